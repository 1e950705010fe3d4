// SPDX-License-Identifier: Apache-2.0
//! UNNEST: the elements of lists as rows, with the other columns repeated.
//!
//! 1. `unnest_lengths` counts the results of each row.
//! 2. A prefix sum makes offsets of the counts.
//! 3. `unnest_indices` writes the input row of each result, and the indices of its elements.
//! 4. The columns are gathered as in a join, with the elements as the build side.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::launch::columns::{OutputColumn, finish_columns};
use super::launch::primitives::{Lengths, Primitives};
use super::launch::program::{Kernel, Program, describe_operator, read_u64, row_loop};
use super::launch::projection::{ProjectedRows, Projection, Rows};
use super::launch::source::Source;
use super::launch::{Launch, NamedArgs};
use super::{Input, Options, check_rows, row_width};
use crate::codegen::{Params, Profile, RowRef, RowWriter, Value};
use crate::expr::Expr;
use crate::function::Function;
use crate::prelude::Section;
use crate::{Error, Result};

/// Most results written at once, unless one row has more.
const MAX_RESULTS: usize = 1 << 22;
/// The same for a small memory limit.
const FEWEST_RESULTS: usize = 1 << 10;
/// Of the free memory, the results take one part in so many.
const FREE_SHARE: usize = 8;
/// Bytes of the number of a result's row, and of that of each of its elements.
const INDEX_BYTES: usize = size_of::<u32>();

const LENGTHS: usize = 0;
const INDICES: usize = 1;

/// A column of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnnestOutput {
    /// A column of the input, repeated for each result of its row.
    Row(usize),
    /// The elements of a list column; NULL for rows in which another list is longer.
    Elements(usize),
}

/// Which lists without elements give a row with NULL, as in DataFusion's `preserve_nulls`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeepEmpty {
    /// Lists that are NULL.
    pub nulls: bool,
    /// Empty lists.
    pub empties: bool,
}

/// Makes rows of the elements of lists. A row gives as many results as the longest of its lists has
/// elements.
#[derive(Debug, Clone)]
pub struct Unnest {
    /// The columns of the input, followed by the elements of the lists.
    source: Source,
    /// The list columns.
    lists: Vec<usize>,
    /// Number of columns of the input.
    width: usize,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<OutputColumn>,
    options: Options,
    primitives: Primitives,
    program: Program,
    projection: Projection,
}

impl Unnest {
    /// For batches of `schema` in the layouts of `types`. The columns of all
    /// [`UnnestOutput::Elements`] are unnested together.
    ///
    /// # Errors
    /// `Internal` if a column has no lists, or no column is unnested.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, types::Int64Type};
    /// use arrow::datatypes::{DataType, Field};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{KeepEmpty, Options, Unnest, UnnestOutput};
    ///
    /// # futures::executor::block_on(async {
    /// let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)]), Some(vec![]), Some(vec![Some(3)])]);
    /// let host = RecordBatch::try_from_iter([("list", Arc::new(lists) as ArrayRef)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let outputs = vec![(UnnestOutput::Elements(0), Field::new("element", DataType::Int64, true))];
    /// let unnest = Unnest::try_new(host.schema(), types, outputs, KeepEmpty::default(), Options::new(Profile::Cpu))?;
    /// let elements = unnest.next(&queue, &mut vec![batch]).await?.ok_or("no rows")?;
    /// assert_eq!(download(&queue, &elements).await?.column(0).as_ref(), &Int64Array::from(vec![1, 2, 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(
        schema: SchemaRef,
        types: Vec<ColumnType>,
        outputs: Vec<(UnnestOutput, Field)>,
        keep_empty: KeepEmpty,
        options: Options,
    ) -> Result<Unnest> {
        let width = types.len();
        let (mut fields, mut all, mut row_refs) = (schema.fields().to_vec(), types, vec![None; width]);
        let mut lists = Vec::new();
        let mut columns = Vec::with_capacity(outputs.len());
        for (output, _) in &outputs {
            columns.push(match output {
                UnnestOutput::Row(column) => *column,
                UnnestOutput::Elements(column) => {
                    let Some(Layout::List(elements)) = all.get(*column).map(|ty| ty.layout.clone()) else {
                        return Err(Error::Internal(format!("column {column} has no lists to unnest")));
                    };
                    let number = lists.iter().position(|list| list == column).unwrap_or(lists.len());
                    if number == lists.len() {
                        lists.push(*column);
                        fields.push(Arc::new(Field::new(format!("elements of {column}"), elements.data_type.clone(), true)));
                        all.push(*elements);
                        row_refs.push(Some(RowRef { row: at(number), found: Some(found(number)), is_mark: false }));
                    }
                    width + number
                }
            });
        }
        if lists.is_empty() {
            return Err(Error::Internal("no lists to unnest".into()));
        }
        let input = Input { schema: Arc::new(Schema::new(fields)), types: all, filter: None };
        let mut source = Source::with_row_refs(input, row_refs)?;
        let outputs = columns.into_iter().zip(outputs).map(|(column, (_, field))| (Expr::Column(column), field)).collect();
        let (schema, columns) = OutputColumn::plan_all(&mut source, true, outputs, &options)?;
        let mut unnest = Unnest {
            types: columns.iter().map(|column| column.ty(&source).clone()).collect(),
            schema,
            primitives: Primitives::new(&options),
            program: Program::new("Unnest", &options, vec![]),
            projection: Projection::default(),
            columns,
            source,
            lists,
            width,
            options,
        };
        let mut kernels = vec![unnest.lengths_kernel(keep_empty)?, unnest.indices_kernel()?];
        let outputs = unnest.columns.iter().map(OutputColumn::output).collect();
        unnest.projection = Projection::try_new("unnest", &unnest, outputs, false, &unnest.options, &mut kernels)?;
        unnest.program = Program::new("Unnest", &unnest.options, kernels);
        Ok(unnest)
    }

    describe_operator!();

    /// The next results of the batches in `pending`, a stack; `None` if no results are left. A
    /// batch with many results is split, unless it has one row. Waits for the number of results.
    ///
    /// # Errors
    /// `Unsupported` for a row with more than 2^31 - 1 results; errors of the device.
    pub async fn next(&self, queue: &Queue, pending: &mut Vec<DeviceBatch>) -> Result<Option<DeviceBatch>> {
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        while let Some(batch) = pending.pop() {
            let n = batch.num_rows();
            if n == 0 {
                continue;
            }
            let bound = self.bound(queue, &batch)?;
            let ends = queue.alloc((n + 1) * size_of::<u64>())?;
            queue.fill(&ends, 0, size_of::<u64>(), 0)?;
            let named = vec![("n", Arg::U64(n as u64)), ("ends", Arg::Buffer(&ends))];
            launch.run_on(LENGTHS, launch.grid(n), &bound, None, named)?;
            let total = queue.alloc(size_of::<u64>())?;
            launch.primitives.offsets(Lengths::of(&ends, n), &total, 0)?;
            let total = read_u64(&queue.read(&total, 0..size_of::<u64>()).await?, 0)? as usize;
            let (first, second) = batch.halves();
            if total > self.most_results(queue) && n > 1 {
                pending.extend([second, first]);
                continue;
            }
            check_rows("Unnest", total)?;
            if total == 0 {
                continue;
            }
            match self.write(&launch, &bound, (&ends, n), total).await {
                // Strings may take more than their columns promise.
                Err(error) if error.is_out_of_memory() && total > FEWEST_RESULTS && n > 1 => pending.extend([second, first]),
                written => return written.map(Some),
            }
        }
        Ok(None)
    }

    /// Most results that are written at once: they take a share of the free memory.
    fn most_results(&self, queue: &Queue) -> usize {
        let row_bytes = row_width(&self.types) + INDEX_BYTES * (1 + self.lists.len());
        (queue.context().pool().available() / FREE_SHARE / row_bytes).clamp(FEWEST_RESULTS, MAX_RESULTS)
    }

    /// Writes the results of `n` rows, whose end offsets are in `ends`.
    async fn write(
        &self,
        launch: &Launch<'_>,
        bound: &[DeviceColumn],
        (ends, n): (&Buffer, usize),
        total: usize,
    ) -> Result<DeviceBatch> {
        let queue = launch.queue;
        let rows = queue.alloc(total * size_of::<u32>())?;
        let indices = self.lists.iter().map(|_| Ok(queue.alloc(total * size_of::<u32>())?)).collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = (0..indices.len()).map(indices_name).collect();
        let mut args: NamedArgs<'_> = vec![(ROWS, Arg::Buffer(&rows))];
        args.extend(names.iter().zip(&indices).map(|(name, indices)| (name.as_str(), Arg::Buffer(indices))));
        let mut named = args.clone();
        named.extend([("n", Arg::U64(n as u64)), ("ends", Arg::Buffer(ends)), ("total", Arg::U64(total as u64))]);
        let work = if self.options.profile == Profile::Cpu { n } else { total };
        launch.run_on(INDICES, launch.grid(work), bound, None, named)?;
        let written = self.projection.run(launch, ProjectedRows::all(bound, total).with_args(&args)).await?;
        let columns = finish_columns(launch, &self.columns, &self.types, written, total, bound)?;
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, total)?)
    }

    /// The columns of a batch, followed by the elements of its lists and the aliases.
    fn bound(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        let mut columns = batch.columns().to_vec();
        for (list, ty) in self.lists.iter().zip(self.source.types.iter().skip(self.width)) {
            let elements = batch.columns().get(*list).and_then(DeviceColumn::elements);
            let elements = elements.ok_or_else(|| Error::Internal(format!("column {list} of a batch has no lists")))?;
            columns.push(match elements.is_empty() {
                false => elements.as_ref().clone(),
                // One row that gathers without an element read.
                true => {
                    let field = Field::new("elements", ty.data_type.clone(), ty.nullable);
                    let blank = DeviceBatch::blank(queue, &Arc::new(Schema::new(vec![field])), std::slice::from_ref(ty))?;
                    blank.columns().first().cloned().ok_or_else(|| Error::Internal("a batch without its column".into()))?
                }
            });
        }
        self.source.bind_columns(&columns)
    }

    /// The offset/length pairs of a row's lists.
    fn list_pairs(&self, writer: &mut RowWriter<'_>) -> Result<Vec<Value>> {
        let pair = |list: &usize| Expr::Call {
            function: Function::ListView,
            arguments: vec![Expr::Column(*list)],
            data_type: arrow::datatypes::DataType::UInt64,
        };
        self.lists.iter().map(|list| writer.eval(&pair(list))).collect()
    }

    fn lengths_kernel(&self, keep_empty: KeepEmpty) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, ends) = (params.named("n", "u64"), params.named("ends", "G u64 *RESTRICT"));
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let lists = self.list_pairs(&mut writer)?;
        writer.push("u64 longest = 0;");
        for Value { code, valid, .. } in lists {
            let length = format!("({code} >> 32)");
            let length = if keep_empty.empties { format!("({length} ? {length} : (u64)1)") } else { length };
            let none = u8::from(keep_empty.nulls || keep_empty.empties);
            let length = valid.map_or(length.clone(), |valid| format!("({valid} ? {length} : (u64){none})"));
            writer.push(&format!("{{ u64 length = {length}; longest = length > longest ? length : longest; }}"));
        }
        writer.push(&format!("{ends}[row + 1] = longest;"));
        let statements = writer.statements();
        Ok(Kernel::new("unnest_lengths", params, row_loop(self.options.profile, "row", &n, &statements)))
    }

    /// Work-items of the cpu profile loop over rows. Those of the gpu profile search the row of
    /// each result, so that many share a long list.
    fn indices_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, total) = (params.named("n", "u64"), params.named("total", "u64"));
        let ends = params.named("ends", "const G u64 *RESTRICT");
        let rows = params.named(ROWS, "G u32 *RESTRICT");
        let indices: Vec<String> =
            (0..self.lists.len()).map(|number| params.named(&indices_name(number), "G u32 *RESTRICT")).collect();
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let lists = self.list_pairs(&mut writer)?;
        let mut result = format!("{rows}[o] = (u32)row;\n");
        for (indices, Value { code, valid, .. }) in indices.iter().zip(lists) {
            let there = format!("i < ({code} >> 32)");
            let there = valid.map_or(there.clone(), |valid| format!("{valid} && {there}"));
            result += &format!("{indices}[o] = {there} ? (u32){code} + (u32)i : {NONE};\n");
        }
        let profile = self.options.profile;
        let body = match profile {
            Profile::Cpu => {
                writer.push(&format!("u64 first = {ends}[row], count = {ends}[row + 1] - first;"));
                writer.push(&format!("for (u64 i = 0; i < count; ++i) {{ u64 o = first + i;\n{result}}}"));
                row_loop(profile, "row", &n, &writer.statements())
            }
            Profile::Gpu => {
                let statements = writer.statements();
                let found = format!(
                    "    u64 row = 0, above = {n};
    while (above - row > 1) {{
      u64 middle = row + (above - row) / 2;
      if ({ends}[middle] <= o) row = middle; else above = middle;
    }}
{statements}    u64 i = o - {ends}[row];
{result}"
                );
                row_loop(profile, "o", &total, &found)
            }
        };
        Ok(Kernel::new("unnest_indices", params, body))
    }
}

impl Rows for Unnest {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        let rows = params.named(ROWS, "const G u32 *RESTRICT");
        self.source.writer(self.options.profile, params).with_names(&format!("{rows}[row]"), "x")
    }

    fn locate(&self, writer: &mut RowWriter<'_>) {
        for number in 0..self.lists.len() {
            let indices = writer.params().named(&indices_name(number), "const G u32 *RESTRICT");
            let (at, found) = (at(number), found(number));
            writer.push(&format!("u64 {at} = {indices}[row]; i32 {found} = {at} != {NONE}; {at} = {found} ? {at} : 0;"));
        }
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        self.columns[output].value(writer)
    }
}

/// Parameter of the input row of each result.
const ROWS: &str = "unnest_rows";
/// Index of an element that a list lacks.
const NONE: &str = "0xffffffffu";

/// Parameter of the element indices of a list.
fn indices_name(number: usize) -> String {
    format!("unnest_indices{number}")
}

/// C: the index of the current element of a list.
fn at(number: usize) -> String {
    format!("e{number}")
}

/// C: whether the list has the current element.
fn found(number: usize) -> String {
    format!("f{number}")
}
