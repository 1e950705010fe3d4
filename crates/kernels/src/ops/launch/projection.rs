// SPDX-License-Identifier: Apache-2.0
//! Kernels that write columns: a value of each column for every row, or for every surviving row.
//!
//! Many columns, and those that need more arguments than a kernel may have, are split over several
//! kernels. Strings write lengths, which a prefix sum makes offsets. Once the host knows the number
//! of bytes, a kernel for each string column copies them.

use std::sync::OnceLock;

use columnar::DeviceColumn;
use device::{Arg, Buffer, ProgramSource};

use super::compact::{Survivors, write_body};
use super::output::{Output, OutputBuffers};
use super::primitives::{Lengths, Primitives};
use super::program::{Kernel, Program, check_failed_row, read_u64, row_loop};
use super::{Launch, NamedArgs};
use crate::codegen::{Params, RowWriter, Value};
use crate::ops::Options;
use crate::{Error, Result};

/// Most outputs of a kernel: compilers take more than linear time, and registers are few.
const MOST_OUTPUTS: usize = 64;

/// The rows that columns are computed from.
pub(in crate::ops) trait Rows {
    /// A writer for the row that the C variable `row` numbers.
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a>;
    /// Appends the row references of columns that are read at other rows than `row`.
    fn locate(&self, _writer: &mut RowWriter<'_>) {}
    /// Appends statements that several values share.
    fn prepare(&self, _writer: &mut RowWriter<'_>) -> Result<()> {
        Ok(())
    }
    /// Whether an output reads little more than one column. A kernel of its own then costs no more
    /// than a share of one.
    fn is_simple(&self, _output: usize) -> bool {
        false
    }
    /// Appends the statements of an output. Returns its value.
    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value>;
}

/// The kernels of one projection, within a program.
#[derive(Debug, Clone, Default)]
pub(in crate::ops) struct Projection {
    /// `None`: other code provides the column.
    pub outputs: Vec<Option<Output>>,
    filtered: bool,
    writes: Vec<WriteKernel>,
    copies: Vec<CopyKernel>,
}

/// A kernel that writes some of the outputs.
#[derive(Debug, Clone)]
struct WriteKernel {
    kernel: usize,
    outputs: Vec<usize>,
}

/// A program and its projection, generated on first use. Many planned operators never run.
#[derive(Debug, Clone, Default)]
pub(in crate::ops) struct LazyProgram(OnceLock<(Program, Projection)>);

impl LazyProgram {
    /// The program and its projection. `generate` is the same in each call.
    pub fn get(&self, generate: impl FnOnce() -> Result<(Program, Projection)>) -> Result<&(Program, Projection)> {
        if let Some(generated) = self.0.get() {
            return Ok(generated);
        }
        let generated = generate()?;
        Ok(self.0.get_or_init(|| generated))
    }
}

/// Names and sources of the kernels of a generated program, or the error of their generation.
pub(in crate::ops) fn kernel_source(generated: Result<&(Program, Projection)>) -> Vec<(String, String)> {
    match generated {
        Ok((program, _)) => program.kernel_source(),
        Err(error) => vec![error_source(&error)],
    }
}

/// The substitute for the source of a program whose generation fails.
pub(in crate::ops) fn error_source(error: &crate::Error) -> (String, String) {
    ("error".to_owned(), error.to_string())
}

/// Primitives and a generated program, as they are compiled. An operator whose generation fails
/// has the former alone; its run gives the error.
pub(in crate::ops) fn programs(primitives: &Primitives, generated: Result<&(Program, Projection)>) -> Vec<ProgramSource> {
    let program = generated.ok().map(|(program, _)| program.source());
    std::iter::once(primitives.source()).chain(program).collect()
}

/// A kernel that copies the bytes of one output.
#[derive(Debug, Clone)]
struct CopyKernel {
    kernel: usize,
    output: usize,
}

impl Projection {
    /// Generates the kernels and appends them. Their names begin with `prefix`.
    pub fn try_new(
        prefix: &str,
        rows: &dyn Rows,
        outputs: Vec<Option<Output>>,
        filtered: bool,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<Projection> {
        let mut projection = Projection { outputs, filtered, writes: vec![], copies: vec![] };
        let written: Vec<usize> = (0..projection.outputs.len())
            .filter(|index| projection.written(*index).is_some_and(|output| !output.is_null()))
            .collect();
        // Where outputs are many, simple ones tend to be alike. Each has a kernel, and a program
        // compiles those that are alike once.
        let is_alone = |index: &usize| written.len() > MOST_OUTPUTS && rows.is_simple(*index);
        let (alone, together): (Vec<usize>, Vec<usize>) = written.iter().partition(|index| is_alone(index));
        let mut pending: Vec<&[usize]> = alone.chunks(1).chain(together.chunks(MOST_OUTPUTS)).rev().collect();
        while let Some(outputs) = pending.pop() {
            let name = format!("{prefix}_write{}", projection.writes.len());
            let kernel = projection.write_kernel(name, rows, outputs, options)?;
            if !kernel.fits(options) && outputs.len() > 1 {
                let (first, second) = outputs.split_at(outputs.len() / 2);
                pending.extend([second, first]);
                continue;
            }
            projection.writes.push(WriteKernel { kernel: kernels.len(), outputs: outputs.to_vec() });
            kernels.push(kernel);
        }
        for index in &written {
            if let Some(output) = projection.written(*index)
                && output.is_str()
            {
                let kernel = projection.copy_kernel(format!("{prefix}_bytes{index}"), rows, *index, output, options)?;
                projection.copies.push(CopyKernel { kernel: kernels.len(), output: *index });
                kernels.push(kernel);
            }
        }
        Ok(projection)
    }

    fn written(&self, index: usize) -> Option<&Output> {
        self.outputs.get(index).and_then(Option::as_ref)
    }

    fn write_kernel(&self, name: String, rows: &dyn Rows, outputs: &[usize], options: &Options) -> Result<Kernel> {
        let mut params = Params::new();
        let mut writer = rows.writer(&mut params);
        rows.locate(&mut writer);
        rows.prepare(&mut writer)?;
        let index = if self.filtered { "o" } else { "row" };
        let mut strings = false;
        for number in outputs {
            if let Some(output) = self.written(*number) {
                let value = rows.value(&mut writer, *number)?;
                output.write(&mut writer, &value, index);
                strings |= output.is_str();
            }
        }
        if strings && self.filtered {
            let origins = writer.params().named("origins", "G u32 *RESTRICT");
            writer.push(&format!("{origins}[o] = (u32)row;"));
        }
        let statements = writer.statements();
        let body = match self.filtered {
            true => write_body(&mut params, options, &statements),
            false => {
                let n = params.named("n", "u64");
                row_loop(options.profile, "row", &n, &statements)
            }
        };
        Ok(Kernel::new(name, params, body))
    }

    fn copy_kernel(&self, name: String, rows: &dyn Rows, index: usize, output: &Output, options: &Options) -> Result<Kernel> {
        let mut params = Params::new();
        let n = params.named("n", "u64");
        let origin = match self.filtered {
            true => format!("{}[o]", params.named("origins", "const G u32 *RESTRICT")),
            false => "o".into(),
        };
        let mut writer = rows.writer(&mut params);
        writer.push(&format!("u64 row = {origin};"));
        rows.locate(&mut writer);
        let value = rows.value(&mut writer, index)?;
        output.write_bytes(&mut writer, &value, "o")?;
        let statements = writer.statements();
        let body = row_loop(options.profile, "o", &n, &statements);
        Ok(Kernel::new(name, params, body))
    }

    /// Writes the columns of `rows`. Waits only if an operation may fail or strings are written.
    ///
    /// # Errors
    /// `Row` with the lowest failing row.
    pub async fn run(&self, launch: &Launch<'_>, rows: ProjectedRows<'_>) -> Result<Vec<Option<OutputBuffers>>> {
        let (queue, n) = (launch.queue, rows.count);
        let alloc = |output: &Option<Output>| output.as_ref().map(|output| output.alloc(queue, n)).transpose();
        let mut buffers = self.outputs.iter().map(alloc).collect::<Result<Vec<_>>>()?;
        for copy in &self.copies {
            if let Some(buffers) = &mut buffers[copy.output] {
                buffers.heap = Some(queue.alloc(0)?);
            }
        }
        if n == 0 {
            return Ok(buffers);
        }
        // The lowest failing row, and the bytes of each string output.
        let control = queue.filled(8 + self.copies.len() * 8, 0xff)?;
        let origins = match rows.survivors {
            Some(_) if !self.copies.is_empty() => Some(queue.alloc(n * 4)?),
            _ => None,
        };
        self.write(launch, &rows, &buffers, &control, origins.as_ref())?;
        for (at, copy) in self.copies.iter().enumerate() {
            let offsets = buffers[copy.output].as_ref().and_then(|buffers| buffers.values.as_ref());
            let offsets = offsets.ok_or_else(|| Error::Internal("strings without offsets".into()))?;
            launch.primitives.offsets(Lengths::of(offsets, n), &control, at as u32 + 1)?;
        }
        let fails = self.writes.iter().any(|write| launch.can_fail(write.kernel));
        if !fails && self.copies.is_empty() {
            return Ok(buffers);
        }
        let answer = queue.read(&control, 0..control.len()).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        for (at, copy) in self.copies.iter().enumerate() {
            if let (Some(output), Some(buffers)) = (&self.outputs[copy.output], &mut buffers[copy.output]) {
                let bytes = read_u64(&answer, at + 1)? as usize;
                output.check_bytes(bytes)?;
                let heap = queue.alloc(bytes)?;
                // Rows that fail have failed in the first pass, so the host never reads this
                // buffer.
                let error = launch.error_buffer([copy.kernel])?;
                let mut args: NamedArgs<'_> = vec![("n", Arg::U64(n as u64)), ("heap", Arg::Buffer(&heap))];
                args.extend(rows.args);
                args.extend(origins.as_ref().map(|origins| ("origins", Arg::Buffer(origins))));
                args.extend(output.args(buffers));
                launch.run_on(copy.kernel, launch.grid(n), rows.columns, error.as_ref(), args)?;
                buffers.heap = Some(heap);
            }
        }
        Ok(buffers)
    }

    /// Enqueues the kernels that write values, validity and lengths of strings.
    fn write(
        &self,
        launch: &Launch<'_>,
        rows: &ProjectedRows<'_>,
        buffers: &[Option<OutputBuffers>],
        control: &Buffer,
        origins: Option<&Buffer>,
    ) -> Result<()> {
        let grid = rows.survivors.map_or_else(|| launch.grid(rows.count), Survivors::grid);
        for write in &self.writes {
            let mut args: NamedArgs<'_> = match rows.survivors {
                Some(survivors) => survivors.args(),
                None => vec![("n", Arg::U64(rows.count as u64))],
            };
            args.extend(rows.args);
            args.extend(origins.map(|origins| ("origins", Arg::Buffer(origins))));
            for index in &write.outputs {
                if let (Some(output), Some(buffers)) = (&self.outputs[*index], &buffers[*index]) {
                    args.extend(output.args(buffers));
                }
            }
            launch.run_on(write.kernel, grid, rows.columns, Some(control), args)?;
        }
        Ok(())
    }
}

/// The rows that a [`Projection`] writes.
pub(in crate::ops) struct ProjectedRows<'a> {
    columns: &'a [DeviceColumn],
    count: usize,
    survivors: Option<&'a Survivors>,
    /// Arguments of the parameters that [`Rows`] declared.
    args: &'a [(&'a str, Arg<'a>)],
}

impl<'a> ProjectedRows<'a> {
    /// `count` rows of a projection without a filter.
    pub fn all(columns: &'a [DeviceColumn], count: usize) -> ProjectedRows<'a> {
        ProjectedRows { columns, count, survivors: None, args: &[] }
    }

    /// The rows that survive a filter.
    pub fn surviving(columns: &'a [DeviceColumn], survivors: &'a Survivors) -> ProjectedRows<'a> {
        ProjectedRows { columns, count: survivors.count, survivors: Some(survivors), args: &[] }
    }

    /// Adds arguments of the parameters that [`Rows`] declared.
    pub fn with_args(self, args: &'a [(&'a str, Arg<'a>)]) -> ProjectedRows<'a> {
        ProjectedRows { args, ..self }
    }
}
