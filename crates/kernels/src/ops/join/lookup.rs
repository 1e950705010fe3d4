// SPDX-License-Identifier: Apache-2.0
//! Joins with at most one match for each row, as C within the code of the row.

use std::sync::Arc;

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::Arg;

use super::search::{NONE, Search, SearchedRow, TableArgNames};
use super::table::{JoinTable, TableKind, TableLayout};
use super::{Join, JoinKind, joined_types};
use crate::codegen::{CType, Profile, RowRef, RowWriter};
use crate::expr::Expr;
use crate::ops::Input;
use crate::ops::launch::throttle::LaunchBudget;
use crate::{Error, Result};

/// Joins that a row goes through one after another, and the filters between them.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Lookup {
    pub(super) searches: Vec<Search>,
    pub(super) tables: Vec<Arc<JoinTable>>,
    arg_names: Vec<TableArgNames>,
    /// Filters, each with the number of joins before it.
    filters: Vec<(usize, Expr)>,
    row_refs: Vec<Option<RowRef>>,
    pub(super) budget: Arc<LaunchBudget>,
}

/// A step of a row through the joins.
#[derive(Debug, Clone, Copy)]
pub(super) enum LookupStep {
    /// The filter with the position `filter`, before the search `number`.
    Filter { filter: usize, number: usize },
    /// A probe of the Bloom filter of a search.
    ProbeBloom { number: usize },
    /// A search. A dynamic filter counts removed rows in the tally.
    Search { number: usize, tally: usize },
}

impl Lookup {
    /// The steps of the rows of `input` through `joins`. The filter of the input is over the
    /// columns of all sides, one after another. Without `tables` kernels can be generated, but not
    /// run.
    ///
    /// # Errors
    /// `Unsupported` if an expression is not supported on the device.
    pub fn try_new(input: &Input, joins: &[Join], tables: Option<&[Arc<JoinTable>]>, profile: Profile) -> Result<Lookup> {
        let types = joined_types(&input.types, joins);
        let mut searches = Vec::with_capacity(joins.len());
        let mut row_refs: Vec<Option<RowRef>> = vec![None; input.types.len()];
        for (number, join) in joins.iter().enumerate() {
            let table = tables.and_then(|tables| tables.get(number));
            let layout = match table {
                Some(table) if join.counts_removed() => table.filter_layout(),
                Some(table) => table.layout(),
                None => assumed_layout(join, &types),
            };
            let mut search = Search::try_new(join, number, row_refs.len(), &types, layout, profile)?;
            let may_probe_bloom = join.kind.drops_unmatched_probe_rows() && !join.counts_removed();
            search.probe_bloom_first = may_probe_bloom && table.is_some_and(|table| table.probes_bloom_first());
            let row_ref = search.row_ref();
            row_refs.extend(join.types.iter().map(|_| Some(row_ref.clone())));
            if join.kind.marks_probe_rows() {
                row_refs.push(Some(RowRef { is_mark: true, ..row_ref }));
            }
            searches.push(search);
        }
        let filters = conjuncts(input.filter.clone());
        Ok(Lookup {
            filters: filters.into_iter().map(|filter| (joins_before(&filter, &input.types, joins), filter)).collect(),
            arg_names: searches.iter().map(Search::arg_names).collect(),
            tables: tables.map(<[_]>::to_vec).unwrap_or_default(),
            searches,
            row_refs,
            budget: Arc::default(),
        })
    }

    /// The rows at which the columns of all sides are read after the searches.
    pub fn row_refs(&self) -> &[Option<RowRef>] {
        &self.row_refs
    }

    /// Whether no row can stay, so that none needs to be read.
    pub fn is_empty(&self) -> bool {
        let needs_match = |search: &Search| search.kind.drops_unmatched_probe_rows() && !search.reads_all();
        self.searches.iter().zip(&self.tables).any(|(search, table)| needs_match(search) && table.gives_nothing(search.kind))
    }

    /// The most build rows to compare with a row; 1 if no search compares.
    pub fn max_candidates(&self) -> usize {
        // Without a condition the number of matches is known, and any match is as good as another.
        let conditional = self.searches.iter().zip(&self.tables).filter(|(search, _)| search.is_conditional());
        conditional.map(|(_, table)| table.max_rows_per_key()).max().unwrap_or(1)
    }

    /// Number of joins.
    pub fn joins(&self) -> usize {
        self.searches.len()
    }

    /// Number of dynamic filters. Each counts the rows that it removes, in `tally0` and so on.
    pub fn tallies(&self) -> usize {
        self.searches.iter().filter(|search| search.tallied).count()
    }

    /// Appends the filters and the first `count` searches for the row that the variable `row`
    /// numbers. The C variable `kept` tells whether it stays. `record` is called after each search
    /// whose match is read later.
    pub fn write(
        &self,
        writer: &mut RowWriter<'_>,
        types: &[ColumnType],
        count: usize,
        mut record: impl FnMut(&mut RowWriter<'_>, usize),
    ) -> Result<()> {
        writer.push("i32 kept = 1;");
        for step in self.steps(count) {
            self.step(writer, types, step)?;
            if let LookupStep::Search { number, .. } = step
                && self.searches[number].kind.reads_match()
            {
                record(writer, number);
            }
        }
        Ok(())
    }

    /// The steps before the search `count`.
    pub(super) fn steps(&self, count: usize) -> Vec<LookupStep> {
        let (mut steps, mut tally) = (Vec::new(), 0);
        for number in 0..=count {
            let filters = self.filters.iter().enumerate().filter(|(_, (position, _))| *position == number);
            steps.extend(filters.map(|(filter, _)| LookupStep::Filter { filter, number }));
            if self.searches.get(number).is_some_and(|search| search.probe_bloom_first) {
                steps.push(LookupStep::ProbeBloom { number });
            }
            if number < count {
                steps.push(LookupStep::Search { number, tally });
                tally += usize::from(self.searches[number].tallied);
            }
        }
        steps
    }

    /// Appends a step for the current row, if `kept` is 1.
    pub(super) fn step(&self, writer: &mut RowWriter<'_>, types: &[ColumnType], step: LookupStep) -> Result<()> {
        let (number, tally) = match step {
            LookupStep::Filter { filter, .. } => {
                return writer.guarded("kept", |writer| {
                    let condition = writer.eval(&self.filters[filter].1)?.is_true();
                    writer.push(&format!("kept = {condition};"));
                    Ok(())
                });
            }
            LookupStep::ProbeBloom { number } => {
                return writer.guarded("kept", |writer| self.searches[number].probe_bloom(writer, "kept"));
            }
            LookupStep::Search { number, tally } => (number, tally),
        };
        let search = &self.searches[number];
        writer.push(&format!("u32 m{number} = {NONE};"));
        writer.guarded("kept", |writer| {
            let current = SearchedRow { types, row_refs: &self.row_refs, row: "row" };
            search.matches(writer, current, &mut |writer, candidate| {
                writer.push(&format!("m{number} = {candidate};\n{}", search.stop()));
                Ok(())
            })
        })?;
        writer.push(&search.declare_match(&format!("m{number}")));
        if search.tallied {
            writer.push(&format!("tally{tally} += kept & !f{number};"));
        }
        match search.kind {
            JoinKind::Inner | JoinKind::RightSemi => writer.push(&format!("kept &= f{number};")),
            JoinKind::RightAnti => writer.push(&format!("kept &= !f{number};")),
            JoinKind::Right | JoinKind::RightMark => {}
            // These kinds are not looked up: a probe writes their pairs, or a visited bitmap notes
            // their matches.
            JoinKind::Left | JoinKind::Full | JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark => {}
        }
        Ok(())
    }

    /// The columns of all sides of a batch, each with the length of its side.
    pub fn columns(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        let mut columns = batch.columns().to_vec();
        for (search, table) in self.searches.iter().zip(&self.tables) {
            // The table of a dynamic filter has columns that are not part of the chain.
            columns.extend(table.batch().columns().iter().take(search.columns.len()).cloned());
            if search.kind.marks_probe_rows() {
                // A placeholder: kernels read the mark from the search.
                let ty = ColumnType { data_type: DataType::Null, nullable: true, layout: Layout::Null, bounds: None };
                columns.push(DeviceColumn::try_new(Arc::new(ty), 0, vec![], None, None, None)?);
            }
        }
        Ok(columns)
    }

    /// The kernel arguments for the tables.
    pub fn args(&self) -> Vec<(&str, Arg<'_>)> {
        let each = self.searches.iter().zip(&self.arg_names).zip(&self.tables);
        each.flat_map(|((search, names), table)| search.args(names, table)).collect()
    }

    /// Fails without tables.
    pub fn check_tables(&self) -> Result<()> {
        match self.tables.len() == self.searches.len() {
            true => Ok(()),
            false => Err(Error::Internal("a look-up without its tables".into())),
        }
    }
}

/// The layout that the table of a join is likely to have.
pub(super) fn assumed_layout(join: &Join, types: &[ColumnType]) -> TableLayout {
    let is_string = |expr: &Expr| match expr {
        Expr::Column(index) => types.get(*index).is_some_and(|ty| CType::native(&ty.data_type) == Some(CType::Str)),
        _ => false,
    };
    let kind = match join.keys.as_slice() {
        [] => TableKind::AllRows,
        keys if keys.iter().any(|(probe, _)| is_string(probe)) => TableKind::Hashed,
        _ => TableKind::Packed { perfect_hash: true },
    };
    TableLayout { kind, unique: join.is_likely_unique(), bloom_only: false }
}

/// The operands of a conjunction.
pub(super) fn conjuncts(filter: Option<Expr>) -> Vec<Expr> {
    match filter {
        Some(Expr::And(operands)) => operands.into_iter().flat_map(|operand| conjuncts(Some(operand))).collect(),
        other => other.into_iter().collect(),
    }
}

/// The number of joins that provide the columns of an expression.
pub(super) fn joins_before(expr: &Expr, probe: &[ColumnType], joins: &[Join]) -> usize {
    let mut columns = Vec::new();
    expr.columns(&mut columns);
    let Some(last) = columns.into_iter().max() else { return 0 };
    let mut first = probe.len();
    for (number, join) in joins.iter().enumerate() {
        if last < first {
            return number;
        }
        first += join.fields().len();
    }
    joins.len()
}
