// SPDX-License-Identifier: Apache-2.0
//! The elements of lists as rows, with the other columns repeated.
//!
//! `unnest_lengths` counts each row's results, a scan makes places of the counts, and `unnest_places` writes for each result its
//! row and the places of its elements. The columns are then gathered as those of a join are: elements are the other side.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::primitives::{LoadedPrimitives, Primitives};
use super::program::{Kernel, Loaded, Program, described_by_its_fields, for_rows, spread, word};
use super::project::{Projection, Rows};
use super::select::{Column, plan, share};
use super::source::Source;
use super::{Input, Options, check_rows};
use crate::codegen::{Params, Profile, RowRef, RowWriter, Value};
use crate::expr::Expr;
use crate::function::Function;
use crate::prelude::Section;
use crate::{Error, Result};

/// Results that are written at once, where they come of several rows.
const MOST_RESULTS: usize = 1 << 22;

const LENGTHS: usize = 0;
const PLACES: usize = 1;

/// A column of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnnestOutput {
    /// A column of the input, repeated for each result of its row.
    Row(usize),
    /// The elements of a column of lists; NULL where another list is longer.
    Elements(usize),
}

/// Which lists without elements have a result, of NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Keeps {
    /// Those that are NULL.
    pub nulls: bool,
    /// Those that are empty.
    pub empties: bool,
}

/// Gives a row for each element of a batch's lists, as many for each of its rows as the longest of its lists has.
#[derive(Debug, Clone)]
pub struct Unnest {
    /// The columns of the input, and the elements of the lists behind them.
    source: Source,
    lists: Vec<usize>,
    /// Columns of the input.
    width: usize,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<Column>,
    options: Options,
    primitives: Primitives,
    program: Program,
    projection: Projection,
}

impl Unnest {
    /// For batches of `schema` in the layouts of `types`. All columns that `outputs` have elements of are unnested together.
    ///
    /// # Errors
    /// `Internal` where a column has no lists, or nothing is unnested.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch, types::Int64Type};
    /// use arrow::datatypes::{DataType, Field};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{Keeps, Options, Unnest, UnnestOutput};
    ///
    /// # futures::executor::block_on(async {
    /// let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), Some(2)]), Some(vec![]), Some(vec![Some(3)])]);
    /// let host = RecordBatch::try_from_iter([("list", Arc::new(lists) as ArrayRef)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let outputs = vec![(UnnestOutput::Elements(0), Field::new("element", DataType::Int64, true))];
    /// let unnest = Unnest::try_new(host.schema(), types, outputs, Keeps::default(), Options::new(Profile::Cpu))?;
    /// let elements = unnest.next(&queue, &mut vec![batch]).await?.ok_or("no rows")?;
    /// assert_eq!(download(&queue, &elements).await?.column(0).as_ref(), &Int64Array::from(vec![1, 2, 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(
        schema: SchemaRef,
        types: Vec<ColumnType>,
        outputs: Vec<(UnnestOutput, Field)>,
        keeps: Keeps,
        options: Options,
    ) -> Result<Unnest> {
        let width = types.len();
        let (mut fields, mut all, mut places) = (schema.fields().to_vec(), types, vec![None; width]);
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
                        places.push(Some(RowRef { row: at(number), found: Some(found(number)), is_mark: false }));
                    }
                    width + number
                }
            });
        }
        if lists.is_empty() {
            return Err(Error::Internal("no lists to unnest".into()));
        }
        let input = Input { schema: Arc::new(Schema::new(fields)), types: all, filter: None };
        let mut source = Source::with_row_refs(input, places)?;
        let planned = columns.into_iter().zip(&outputs).enumerate();
        let planned = planned
            .map(|(index, (column, (_, field)))| plan(&mut source, true, index, Expr::Column(column), field, &options))
            .collect::<Result<Vec<_>>>()?;
        let mut unnest = Unnest {
            types: planned.iter().map(|column| column.ty(&source).clone()).collect(),
            schema: Arc::new(Schema::new(outputs.into_iter().map(|(_, field)| field).collect::<Vec<_>>())),
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Unnest", &options, vec![])?,
            projection: Projection::default(),
            columns: planned,
            source,
            lists,
            width,
            options,
        };
        let mut kernels = vec![unnest.lengths_kernel(keeps)?, unnest.places_kernel()?];
        let outputs = unnest.columns.iter().map(|column| match column {
            Column::Pass(_) => None,
            Column::Written { output, .. } => Some(output.clone()),
        });
        let outputs = outputs.collect();
        unnest.projection = Projection::try_new("unnest", &unnest, outputs, false, &unnest.options, &mut kernels)?;
        unnest.program = Program::try_new("Unnest", &unnest.options, kernels)?;
        Ok(unnest)
    }

    described_by_its_fields!();

    /// The next results of the batches in `pending`, of which the last one comes first; `None` when there are none left. A batch
    /// with many results is taken apart, unless it has one row. Waits for the number of results.
    ///
    /// # Errors
    /// `Unsupported` for a row with more than 2^31 - 1 results; the device's.
    pub async fn next(&self, queue: &Queue, pending: &mut Vec<DeviceBatch>) -> Result<Option<DeviceBatch>> {
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        while let Some(batch) = pending.pop() {
            let n = batch.num_rows();
            if n == 0 {
                continue;
            }
            let bound = self.bound(queue, &batch)?;
            let ends = queue.alloc((n + 1) * size_of::<u64>())?;
            queue.fill(&ends, 0, size_of::<u64>(), 0)?;
            let named = vec![("n", Arg::U64(n as u64)), ("ends", Arg::Buffer(&ends))];
            loaded.launch_on(queue, LENGTHS, spread(queue, &self.options, n), &bound, None, named)?;
            let total = queue.alloc(size_of::<u64>())?;
            primitives.offsets(queue, &ends, 0, n, 0, &total, 0)?;
            let total = word(&queue.read(&total, 0..size_of::<u64>()).await?, 0)? as usize;
            if total > MOST_RESULTS && n > 1 {
                pending.extend([batch.slice(n / 2, n - n / 2), batch.slice(0, n / 2)]);
                continue;
            }
            check_rows("Unnest", total)?;
            if total > 0 {
                return self.write(queue, &loaded, &primitives, &bound, (&ends, n), total).await.map(Some);
            }
        }
        Ok(None)
    }

    /// Writes the results of `n` rows, which end at `ends`.
    async fn write(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        bound: &[DeviceColumn],
        (ends, n): (&Buffer, usize),
        total: usize,
    ) -> Result<DeviceBatch> {
        let rows = queue.alloc(total * size_of::<u32>())?;
        let places = self.lists.iter().map(|_| Ok(queue.alloc(total * size_of::<u32>())?)).collect::<Result<Vec<_>>>()?;
        let names: Vec<String> = (0..places.len()).map(places_name).collect();
        let mut extra = vec![(ROWS, Arg::Buffer(&rows))];
        extra.extend(names.iter().zip(&places).map(|(name, places)| (name.as_str(), Arg::Buffer(places))));
        let mut named = extra.clone();
        named.extend([("n", Arg::U64(n as u64)), ("ends", Arg::Buffer(ends)), ("total", Arg::U64(total as u64))]);
        let items = if self.options.profile == Profile::Cpu { n } else { total };
        loaded.launch_on(queue, PLACES, spread(queue, &self.options, items), bound, None, named)?;
        let written =
            self.projection.run(queue, &self.options, &self.program, loaded, primitives, bound, None, total, &extra).await?;
        let mut columns = Vec::with_capacity(self.columns.len());
        for ((column, buffers), ty) in self.columns.iter().zip(written).zip(&self.types) {
            columns.push(match (column, buffers) {
                (Column::Written { output, shares: None, .. }, Some(buffers)) => {
                    output.finish(queue, primitives, total, buffers, None)?
                }
                (Column::Written { shares: Some(shared), .. }, Some(buffers)) => {
                    share(queue, primitives, ty, total, buffers, &shared.column(queue, ty, bound)?)?
                }
                _ => return Err(Error::Internal("an output without buffers".into())),
            });
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, total)?)
    }

    /// The columns of a batch, the elements of its lists, and the aliases.
    fn bound(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        let mut columns = batch.columns().to_vec();
        for (list, ty) in self.lists.iter().zip(self.source.types.iter().skip(self.width)) {
            let elements = batch.columns().get(*list).and_then(DeviceColumn::elements);
            let elements = elements.ok_or_else(|| Error::Internal(format!("column {list} of a batch has no lists")))?;
            columns.push(match elements.is_empty() {
                false => elements.as_ref().clone(),
                // Something to read where nothing is found.
                true => {
                    let field = Field::new("elements", ty.data_type.clone(), ty.nullable);
                    let blank = DeviceBatch::blank(queue, &Arc::new(Schema::new(vec![field])), std::slice::from_ref(ty))?;
                    blank.columns().first().cloned().ok_or_else(|| Error::Internal("a batch without its column".into()))?
                }
            });
        }
        self.source.bind_columns(&columns)
    }

    /// Words of a row's lists, and whether they are there.
    fn words(&self, writer: &mut RowWriter<'_>) -> Result<Vec<Value>> {
        let word = |list: &usize| Expr::Call {
            function: Function::ListView,
            arguments: vec![Expr::Column(*list)],
            data_type: arrow::datatypes::DataType::UInt64,
        };
        self.lists.iter().map(|list| writer.eval(&word(list))).collect()
    }

    fn lengths_kernel(&self, keeps: Keeps) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, ends) = (params.named("n", "u64"), params.named("ends", "G u64 *RESTRICT"));
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let words = self.words(&mut writer)?;
        writer.push("u64 longest = 0;");
        for Value { code, valid, .. } in words {
            let length = format!("({code} >> 32)");
            let length = if keeps.empties { format!("({length} ? {length} : (u64)1)") } else { length };
            let none = u8::from(keeps.nulls || keeps.empties);
            let length = valid.map_or(length.clone(), |valid| format!("({valid} ? {length} : (u64){none})"));
            writer.push(&format!("{{ u64 length = {length}; longest = length > longest ? length : longest; }}"));
        }
        writer.push(&format!("{ends}[row + 1] = longest;"));
        let statements = writer.statements();
        Ok(Kernel::new("unnest_lengths", params, for_rows(self.options.profile, "row", &n, &statements)))
    }

    /// Items go through rows, or look up the row of each result, so that a long list is nobody's alone.
    fn places_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, total) = (params.named("n", "u64"), params.named("total", "u64"));
        let ends = params.named("ends", "const G u64 *RESTRICT");
        let rows = params.named(ROWS, "G u32 *RESTRICT");
        let places: Vec<String> =
            (0..self.lists.len()).map(|number| params.named(&places_name(number), "G u32 *RESTRICT")).collect();
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let words = self.words(&mut writer)?;
        let mut result = format!("{rows}[o] = (u32)row;\n");
        for (places, Value { code, valid, .. }) in places.iter().zip(words) {
            let there = format!("i < ({code} >> 32)");
            let there = valid.map_or(there.clone(), |valid| format!("{valid} && {there}"));
            result += &format!("{places}[o] = {there} ? (u32){code} + (u32)i : {NONE};\n");
        }
        let profile = self.options.profile;
        let body = match profile {
            Profile::Cpu => {
                writer.push(&format!("u64 first = {ends}[row], count = {ends}[row + 1] - first;"));
                writer.push(&format!("for (u64 i = 0; i < count; ++i) {{ u64 o = first + i;\n{result}}}"));
                for_rows(profile, "row", &n, &writer.statements())
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
                for_rows(profile, "o", &total, &found)
            }
        };
        Ok(Kernel::new("unnest_places", params, body))
    }
}

impl Rows for Unnest {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        let rows = params.named(ROWS, "const G u32 *RESTRICT");
        self.source.writer(self.options.profile, params).with_names(&format!("{rows}[row]"), "x")
    }

    fn locate(&self, writer: &mut RowWriter<'_>) {
        for number in 0..self.lists.len() {
            let places = writer.params().named(&places_name(number), "const G u32 *RESTRICT");
            let (at, found) = (at(number), found(number));
            writer.push(&format!("u64 {at} = {places}[row]; i32 {found} = {at} != {NONE}; {at} = {found} ? {at} : 0;"));
        }
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        match self.columns.get(output) {
            Some(Column::Written { expr, .. }) => writer.eval_output(expr),
            _ => Err(Error::Internal("a column that is passed on is not written".into())),
        }
    }
}

/// The kernels' name for the row of each result.
const ROWS: &str = "unnest_rows";
/// The place of an element that is not there.
const NONE: &str = "0xffffffffu";

/// The kernels' name for the places of the elements of a list.
fn places_name(number: usize) -> String {
    format!("unnest_places{number}")
}

/// C: the place of the current element of a list.
fn at(number: usize) -> String {
    format!("e{number}")
}

/// C: whether there is one.
fn found(number: usize) -> String {
    format!("f{number}")
}
