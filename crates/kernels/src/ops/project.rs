// SPDX-License-Identifier: Apache-2.0
//! Kernels that write columns: one value of each for every row, or for every surviving row.
//!
//! What needs more arguments than a kernel may have is split over several. Strings write lengths,
//! which are scanned to offsets; once the host knows the bytes, one kernel for each copies them.

use columnar::DeviceColumn;
use device::{Arg, Queue};

use super::Options;
use super::compact::{Survivors, write_body};
use super::output::{Buffers, Output};
use super::primitives::LoadedPrimitives;
use super::program::{Kernel, Loaded, Program, check_row, for_rows, spread, word};
use crate::codegen::{Params, RowWriter, Value};
use crate::{Error, Result};

/// What the columns are computed from.
pub(super) trait Rows {
    /// A writer for rows whose variable is `row`.
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a>;
    /// Appends what says where the columns of `row` lie.
    fn locate(&self, _writer: &mut RowWriter<'_>) {}
    /// Appends what several values share.
    fn prepare(&self, _writer: &mut RowWriter<'_>) -> Result<()> {
        Ok(())
    }
    /// Appends the statements of an output; its value.
    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value>;
}

/// The kernels of one projection, within a program.
#[derive(Debug, Clone, Default)]
pub(super) struct Projection {
    /// `None`: the column comes from elsewhere.
    pub outputs: Vec<Option<Output>>,
    filtered: bool,
    writes: Vec<Write>,
    copies: Vec<Copy>,
}

/// A kernel that writes some of the outputs.
#[derive(Debug, Clone)]
struct Write {
    kernel: usize,
    outputs: Vec<usize>,
}

/// A kernel that copies the bytes of one output.
#[derive(Debug, Clone)]
struct Copy {
    kernel: usize,
    output: usize,
}

impl Projection {
    /// Generates the kernels, named after `prefix`, and appends them.
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
        let mut pending = vec![written.as_slice()];
        while let Some(outputs) = pending.pop() {
            if outputs.is_empty() {
                continue;
            }
            let name = format!("{prefix}_write{}", projection.writes.len());
            let kernel = projection.write_kernel(name, rows, outputs, options)?;
            if !kernel.fits(options) && outputs.len() > 1 {
                let (first, second) = outputs.split_at(outputs.len() / 2);
                pending.extend([second, first]);
                continue;
            }
            projection.writes.push(Write { kernel: kernels.len(), outputs: outputs.to_vec() });
            kernels.push(kernel);
        }
        for index in &written {
            if let Some(output) = projection.written(*index)
                && output.is_str()
            {
                let kernel = projection.copy_kernel(format!("{prefix}_bytes{index}"), rows, *index, output, options)?;
                projection.copies.push(Copy { kernel: kernels.len(), output: *index });
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
        let place = if self.filtered { "o" } else { "row" };
        let mut strings = false;
        for index in outputs {
            if let Some(output) = self.written(*index) {
                let value = rows.value(&mut writer, *index)?;
                output.write(&mut writer, &value, place);
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
                for_rows(options.profile, "row", &n, &statements)
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
        let body = for_rows(options.profile, "o", &n, &statements);
        Ok(Kernel::new(name, params, body))
    }

    /// Writes `rows` rows, or the survivors, with `extra` arguments for what `Rows` declared. Waits
    /// only where an operation may fail or strings are written.
    ///
    /// # Errors
    /// `Row` with the lowest failing row.
    #[allow(clippy::too_many_arguments)]
    pub async fn run(
        &self,
        queue: &Queue,
        options: &Options,
        program: &Program,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        bound: &(impl AsRef<[DeviceColumn]> + ?Sized),
        survivors: Option<&Survivors>,
        rows: usize,
        extra: &[(&str, Arg<'_>)],
    ) -> Result<Vec<Option<Buffers>>> {
        let alloc = |output: &Option<Output>| output.as_ref().map(|output| output.alloc(queue, rows)).transpose();
        let mut buffers = self.outputs.iter().map(alloc).collect::<Result<Vec<_>>>()?;
        for copy in &self.copies {
            if let Some(buffers) = &mut buffers[copy.output] {
                buffers.heap = Some(queue.alloc(0)?);
            }
        }
        if rows == 0 {
            return Ok(buffers);
        }
        let grid = survivors.map_or_else(|| spread(queue, options, rows), Survivors::grid);
        // The error word, and the bytes of each string output.
        let control = queue.filled(8 + self.copies.len() * 8, 0xff)?;
        let origins = if survivors.is_some() && !self.copies.is_empty() { Some(queue.alloc(rows * 4)?) } else { None };
        for write in &self.writes {
            let mut named = match survivors {
                Some(survivors) => survivors.args(),
                None => vec![("n", Arg::U64(rows as u64))],
            };
            named.extend(extra);
            named.extend(origins.as_ref().map(|origins| ("origins", Arg::Buffer(origins))));
            for index in &write.outputs {
                if let (Some(output), Some(buffers)) = (&self.outputs[*index], &buffers[*index]) {
                    named.extend(output.args(buffers));
                }
            }
            loaded.launch_on(queue, write.kernel, grid, bound, Some(&control), named)?;
        }
        for (at, copy) in self.copies.iter().enumerate() {
            let offsets = buffers[copy.output].as_ref().and_then(|buffers| buffers.values.as_ref());
            let offsets = offsets.ok_or_else(|| Error::Internal("strings without offsets".into()))?;
            primitives.offsets(queue, offsets, 0, rows, 0, &control, at as u32 + 1)?;
        }
        let fails = self.writes.iter().any(|write| program.can_fail(write.kernel));
        if !fails && self.copies.is_empty() {
            return Ok(buffers);
        }
        let answer = queue.read(&control, 0..control.len()).await?;
        check_row(word(&answer, 0)?)?;
        for (at, copy) in self.copies.iter().enumerate() {
            if let (Some(output), Some(buffers)) = (&self.outputs[copy.output], &mut buffers[copy.output]) {
                let bytes = word(&answer, at + 1)? as usize;
                output.check_bytes(bytes)?;
                let heap = queue.alloc(bytes)?;
                // What failed has failed above already; this word is never read.
                let errors = if program.can_fail(copy.kernel) { Some(queue.filled(8, 0xff)?) } else { None };
                let mut named = vec![("n", Arg::U64(rows as u64)), ("heap", Arg::Buffer(&heap))];
                named.extend(extra);
                named.extend(origins.as_ref().map(|origins| ("origins", Arg::Buffer(origins))));
                named.extend(output.args(buffers));
                loaded.launch_on(queue, copy.kernel, spread(queue, options, rows), bound, errors.as_ref(), named)?;
                buffers.heap = Some(heap);
            }
        }
        Ok(buffers)
    }
}
