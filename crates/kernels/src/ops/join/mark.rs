// SPDX-License-Identifier: Apache-2.0
//! Left semi, anti and mark joins: which rows of the build side have a match.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, Queue};

use super::keys;
use super::lookup::{conjuncts, guess, position};
use super::pace::{Pace, pieces};
use super::search::{Names, Search};
use super::table::JoinTable;
use super::{Join, joined_types, mark_field, mark_type};
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::ops::primitives::Primitives;
use crate::ops::program::{Kernel, Program, check_row, for_rows, spread, spread_work, word};
use crate::ops::{Input, Options};
use crate::{Error, Result};

/// Notes which rows of a build side the rows of a probe side match. The result is the build side with one column more,
/// the mark: what a left mark join gives, and what is left to filter for semi and anti joins.
#[derive(Debug, Clone)]
pub struct Mark {
    search: Search,
    names: Names,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    table: Option<Arc<JoinTable>>,
    null_aware: bool,
    options: Options,
    primitives: Primitives,
    program: Program,
}

/// Kernels of a [`Mark`] by position.
const MARK: usize = 0;
/// Of `NOT IN`: marks what NULLs leave out.
const NULLS: usize = 1;

/// The marks so far.
#[derive(Debug, Default)]
pub struct MarkState {
    /// Marks, and of the probe side two bytes: whether it has rows, whether one of its keys is NULL.
    marks: Option<(Buffer, Buffer)>,
    pace: Pace,
}

impl Mark {
    /// Marks the build side of `join` by the rows of `input`, whose filter is over its own columns. Without a `table` the
    /// kernels can be read, not run.
    ///
    /// # Errors
    /// `Unsupported` where an expression is not supported on the device.
    pub fn try_new(input: Input, join: &Join, table: Option<Arc<JoinTable>>, options: Options) -> Result<Mark> {
        let joins = std::slice::from_ref(join);
        let all = joined_types(&input.types, joins);
        let form = table.as_deref().map_or_else(|| guess(join, &all), JoinTable::form);
        let search = Search::try_new(join, 0, input.types.len(), &all, form, options.profile)?;
        let filters = conjuncts(input.filter);
        if filters.iter().any(|filter| position(filter, &input.types, joins) > 0) {
            return Err(Error::Internal("a filter over the rows that a semi join loses".into()));
        }
        let mut kernels = vec![mark_kernel(&search, &filters, &all, input.types.len(), join, &options)?];
        if join.null_aware {
            kernels.push(nulls_kernel(join, &options)?);
        }
        let fields = join.schema.fields().iter().cloned().chain([Arc::new(mark_field())]);
        Ok(Mark {
            names: search.names(),
            search,
            schema: Arc::new(Schema::new(fields.collect::<Vec<_>>())),
            types: join.types.iter().cloned().chain([mark_type()]).collect(),
            table,
            null_aware: join.null_aware,
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Mark", &options, kernels)?,
            options,
        })
    }

    /// Names and types of the result: the build side's, then the mark.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.program.kernel_text()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        vec![self.primitives.text().into(), self.program.text().into()]
    }

    /// Nothing marked yet.
    pub fn start(&self) -> MarkState {
        MarkState::default()
    }

    /// Marks what a batch matches.
    ///
    /// # Errors
    /// `Row` with the lowest row of which an expression failed.
    pub async fn push(&self, queue: &Queue, state: &mut MarkState, batch: &DeviceBatch) -> Result<()> {
        let met = self.table()?.longest_list();
        let mut first = 0;
        for piece in pieces(queue, batch, met) {
            state.pace.keep(queue, piece.num_rows(), met).await?;
            self.push_piece(queue, state, &piece).await.map_err(|error| match error {
                Error::Row { row } => Error::Row { row: first + row },
                error => error,
            })?;
            first += piece.num_rows() as u64;
        }
        Ok(())
    }

    async fn push_piece(&self, queue: &Queue, state: &mut MarkState, batch: &DeviceBatch) -> Result<()> {
        let table = self.table()?;
        let n = batch.num_rows();
        if n == 0 || table.num_rows() == 0 && !self.search.meets_all() {
            return Ok(());
        }
        let loaded = self.program.load(queue).await?;
        let (marks, seen) = match state.marks.take() {
            Some(marks) => marks,
            None => (queue.zeroed(table.num_rows().max(1))?, queue.zeroed(4)?),
        };
        let columns: Vec<_> = batch.columns().iter().chain(table.batch().columns()).cloned().collect();
        let fails = self.program.can_fail(MARK);
        let error = if fails { Some(queue.filled(8, 0xff)?) } else { None };
        let mut named = self.search.args(&self.names, table);
        named.extend([("n", Arg::U64(n as u64)), ("marks", Arg::Buffer(&marks)), ("seen", Arg::Buffer(&seen))]);
        let grid = spread_work(queue, &self.options, n, table.longest_list());
        loaded.launch_on(queue, MARK, grid, columns.as_slice(), error.as_ref(), named)?;
        if let Some(error) = &error {
            check_row(word(&queue.read(error, 0..8).await?, 0)?)?;
        }
        state.marks = Some((marks, seen));
        Ok(())
    }

    /// The build side with its marks; no batch where it has no rows.
    pub async fn finish(&self, queue: &Queue, state: MarkState) -> Result<Vec<DeviceBatch>> {
        let table = self.table()?;
        let n = table.num_rows();
        if n == 0 {
            return Ok(vec![]);
        }
        let primitives = self.primitives.load(queue).await?;
        let marks = match state.marks {
            Some((marks, seen)) if self.null_aware => {
                let loaded = self.program.load(queue).await?;
                let named = vec![("n", Arg::U64(n as u64)), ("marks", Arg::Buffer(&marks)), ("seen", Arg::Buffer(&seen))];
                // Keys that fail have failed when the table was built.
                let errors = queue.filled(8, 0xff)?;
                loaded.launch_on(queue, NULLS, spread(queue, &self.options, n), table.batch(), Some(&errors), named)?;
                marks
            }
            Some((marks, _)) => marks,
            None => queue.zeroed(n)?,
        };
        let bits = primitives.pack(queue, &marks, n)?;
        let mark = primitives.column(queue, &Arc::new(mark_type()), n, vec![bits], None, None)?;
        let columns = table.batch().columns().iter().cloned().chain([mark]).collect();
        Ok(vec![DeviceBatch::try_new(self.schema.clone(), columns, n)?])
    }

    fn table(&self) -> Result<&JoinTable> {
        self.table.as_deref().ok_or_else(|| Error::Internal("marks without a table".into()))
    }
}

fn mark_kernel(
    search: &Search,
    filters: &[Expr],
    types: &[ColumnType],
    probe: usize,
    join: &Join,
    options: &Options,
) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(crate::prelude::Section::Base);
    let (n, marks) = (params.named("n", "u64"), params.named("marks", "G u8 *"));
    let mut places = vec![None; probe];
    places.resize(types.len(), Some(search.place()));
    let mut writer = RowWriter::new(types, options.profile, &mut params).with_row_refs(&places);
    writer.push("i32 kept = 1;");
    for filter in filters {
        writer.guarded("kept", |writer| {
            let condition = writer.eval(filter)?.is_true();
            writer.push(&format!("kept = {condition};"));
            Ok(())
        })?;
    }
    writer.guarded("kept", |writer| {
        if join.null_aware {
            let seen = writer.params().named("seen", "G u8 *");
            let keys = join.keys.iter().map(|(probe, _)| writer.eval(probe)).collect::<Result<Vec<_>>>()?;
            writer.push(&format!("{seen}[0] = 1;"));
            if let Some(known) = keys::known(&keys, false) {
                writer.push(&format!("if (!({known})) {seen}[1] = 1;"));
            }
        }
        search.matches(writer, (types, &places), "row", &mut |writer, candidate| {
            writer.push(&format!("{marks}[{candidate}] = 1;"));
            Ok(())
        })
    })?;
    let statements = writer.statements();
    Ok(Kernel::new("join_mark", params, for_rows(options.profile, "row", &n, &statements)))
}

fn nulls_kernel(join: &Join, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(crate::prelude::Section::Base);
    let (n, marks) = (params.named("n", "u64"), params.named("marks", "G u8 *RESTRICT"));
    let seen = params.named("seen", "const G u8 *RESTRICT");
    let mut writer = RowWriter::new(&join.types, options.profile, &mut params);
    let keys = join.keys.iter().map(|(_, build)| writer.eval(build)).collect::<Result<Vec<_>>>()?;
    let known = keys::known(&keys, false).unwrap_or_else(|| "1".into());
    writer.push(&format!("if ({seen}[1] | ({seen}[0] & !({known}))) {marks}[row] = 1;"));
    let statements = writer.statements();
    Ok(Kernel::new("join_mark_nulls", params, for_rows(options.profile, "row", &n, &statements)))
}
