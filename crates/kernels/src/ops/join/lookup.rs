// SPDX-License-Identifier: Apache-2.0
//! The way of a row through joins that give it one match at most each, as C within the row's code.

use std::sync::Arc;

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::Arg;

use super::search::{NONE, Names, Search};
use super::table::{Form, JoinTable, Shape};
use super::{Join, JoinKind, joined_types};
use crate::codegen::{CType, Profile, RowRef, RowWriter};
use crate::expr::Expr;
use crate::ops::Input;
use crate::{Error, Result};

/// Joins that a row goes through one after another, with the filters between them.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Lookup {
    pub(super) searches: Vec<Search>,
    pub(super) tables: Vec<Arc<JoinTable>>,
    names: Vec<Names>,
    filters: Vec<(usize, Expr)>,
    places: Vec<Option<RowRef>>,
}

/// What a row goes through.
#[derive(Debug, Clone, Copy)]
pub(super) enum Step {
    /// A filter by its position, before the search `number`.
    Filter { filter: usize, number: usize },
    /// The bits of a search's table.
    Ask { number: usize },
    /// A search, whose dynamic filter counts in that tally.
    Search { number: usize, tally: usize },
}

impl Lookup {
    /// The way of the rows of `input` through `joins`. The input's filter is over the columns of all sides, one after another.
    /// Without `tables` it can be written, not run.
    ///
    /// # Errors
    /// `Unsupported` where an expression is not supported on the device.
    pub fn try_new(input: &Input, joins: &[Join], tables: Option<&[Arc<JoinTable>]>, profile: Profile) -> Result<Lookup> {
        let types = joined_types(&input.types, joins);
        let mut searches = Vec::with_capacity(joins.len());
        let mut places: Vec<Option<RowRef>> = vec![None; input.types.len()];
        for (number, join) in joins.iter().enumerate() {
            let table = tables.and_then(|tables| tables.get(number));
            let form = match table {
                Some(table) if join.tallied => table.filter_form(),
                Some(table) => table.form(),
                None => guess(join, &types),
            };
            let mut search = Search::try_new(join, number, places.len(), &types, form, profile)?;
            let asks = join.kind.drops_unmatched() && !join.tallied;
            search.asks_first = asks && table.is_some_and(|table| table.asks_bits_first());
            let place = search.place();
            places.extend(join.types.iter().map(|_| Some(place.clone())));
            if join.kind == JoinKind::RightMark {
                places.push(Some(RowRef { is_mark: true, ..place }));
            }
            searches.push(search);
        }
        let filters = conjuncts(input.filter.clone());
        Ok(Lookup {
            filters: filters.into_iter().map(|filter| (position(&filter, &input.types, joins), filter)).collect(),
            names: searches.iter().map(Search::names).collect(),
            tables: tables.map(<[_]>::to_vec).unwrap_or_default(),
            searches,
            places,
        })
    }

    /// Where the columns of all sides are read once the searches are over.
    pub fn places(&self) -> &[Option<RowRef>] {
        &self.places
    }

    /// Whether no row can stay, and none needs to be read.
    pub fn is_empty(&self) -> bool {
        let needs = |search: &Search| search.kind.drops_unmatched() && !search.reads_all();
        self.searches.iter().zip(&self.tables).any(|(search, table)| needs(search) && table.gives_nothing(search.kind))
    }

    /// The most rows that a row's search looks at; 1 where it looks at none one by one.
    pub fn meets(&self) -> usize {
        // Without a condition the number of matches is known, and the first is as good as any.
        let met = self.searches.iter().zip(&self.tables).filter(|(search, _)| search.is_conditional());
        met.map(|(_, table)| table.longest_list()).max().unwrap_or(1)
    }

    /// Number of joins.
    pub fn joins(&self) -> usize {
        self.searches.len()
    }

    /// Number of dynamic filters: each counts the rows that it removes in `tally0` and so on.
    pub fn tallies(&self) -> usize {
        self.searches.iter().filter(|search| search.tallied).count()
    }

    /// Appends filters and the first `count` searches for the row that the variable `row` names: `kept` tells whether it stays.
    /// `noted` is called behind each search whose match is of use later.
    pub fn write(
        &self,
        writer: &mut RowWriter<'_>,
        types: &[ColumnType],
        count: usize,
        mut noted: impl FnMut(&mut RowWriter<'_>, usize),
    ) -> Result<()> {
        writer.push("i32 kept = 1;");
        for step in self.steps(count) {
            self.step(writer, types, step)?;
            if let Step::Search { number, .. } = step
                && self.searches[number].is_noted()
            {
                noted(writer, number);
            }
        }
        Ok(())
    }

    /// What a row goes through up to the search `count`, which is not among it.
    pub(super) fn steps(&self, count: usize) -> Vec<Step> {
        let (mut steps, mut tally) = (Vec::new(), 0);
        for number in 0..=count {
            let filters = self.filters.iter().enumerate().filter(|(_, (position, _))| *position == number);
            steps.extend(filters.map(|(filter, _)| Step::Filter { filter, number }));
            if self.searches.get(number).is_some_and(|search| search.asks_first) {
                steps.push(Step::Ask { number });
            }
            if number < count {
                steps.push(Step::Search { number, tally });
                tally += usize::from(self.searches[number].tallied);
            }
        }
        steps
    }

    /// Appends a step for the current row, of which `kept` tells whether it has come so far.
    pub(super) fn step(&self, writer: &mut RowWriter<'_>, types: &[ColumnType], step: Step) -> Result<()> {
        let (number, tally) = match step {
            Step::Filter { filter, .. } => {
                return writer.guarded("kept", |writer| {
                    let condition = writer.eval(&self.filters[filter].1)?.is_true();
                    writer.push(&format!("kept = {condition};"));
                    Ok(())
                });
            }
            Step::Ask { number } => {
                return writer.guarded("kept", |writer| self.searches[number].ask_bits(writer, "kept"));
            }
            Step::Search { number, tally } => (number, tally),
        };
        let search = &self.searches[number];
        writer.push(&format!("u32 m{number} = {NONE};"));
        writer.guarded("kept", |writer| {
            search.matches(writer, (types, &self.places), "row", &mut |writer, candidate| {
                writer.push(&format!("m{number} = {candidate};\n{}", search.stop()));
                Ok(())
            })
        })?;
        writer.push(&search.found(&format!("m{number}")));
        if search.tallied {
            writer.push(&format!("tally{tally} += kept & !f{number};"));
        }
        match search.kind {
            JoinKind::Inner | JoinKind::RightSemi => writer.push(&format!("kept &= f{number};")),
            JoinKind::RightAnti => writer.push(&format!("kept &= !f{number};")),
            _ => {}
        }
        Ok(())
    }

    /// The columns of all sides of a batch, each of its side's length.
    pub fn columns(&self, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        let mut columns = batch.columns().to_vec();
        for (search, table) in self.searches.iter().zip(&self.tables) {
            // A dynamic filter's table has columns that are no business of the chain.
            columns.extend(table.batch().columns().iter().take(search.columns.len()).cloned());
            if search.kind == JoinKind::RightMark {
                // Nobody reads it: its value is that of the search.
                let ty = ColumnType { data_type: DataType::Null, nullable: true, layout: Layout::Null, bounds: None };
                columns.push(DeviceColumn::try_new(Arc::new(ty), 0, vec![], None, None, None)?);
            }
        }
        Ok(columns)
    }

    /// The arguments by which kernels know the tables.
    pub fn args(&self) -> Vec<(&str, Arg<'_>)> {
        let each = self.searches.iter().zip(&self.names).zip(&self.tables);
        each.flat_map(|((search, names), table)| search.args(names, table)).collect()
    }

    /// Refuses to run without tables.
    pub fn check_tables(&self) -> Result<()> {
        match self.tables.len() == self.searches.len() {
            true => Ok(()),
            false => Err(Error::Internal("a look-up without its tables".into())),
        }
    }
}

/// What tables most often are.
pub(super) fn guess(join: &Join, types: &[ColumnType]) -> Form {
    let text = |expr: &Expr| match expr {
        Expr::Column(index) => types.get(*index).is_some_and(|ty| CType::native(&ty.data_type) == Some(CType::Str)),
        _ => false,
    };
    let shape = match join.keys.as_slice() {
        [] => Shape::All,
        keys if keys.iter().any(|(probe, _)| text(probe)) => Shape::Wide,
        _ => Shape::Number { dense: true },
    };
    Form { shape, unique: join.is_unique(None), bits: false }
}

/// The conditions all of which a filter asks for.
pub(super) fn conjuncts(filter: Option<Expr>) -> Vec<Expr> {
    match filter {
        Some(Expr::And(operands)) => operands.into_iter().flat_map(|operand| conjuncts(Some(operand))).collect(),
        other => other.into_iter().collect(),
    }
}

/// The number of joins after which an expression's columns are there.
pub(super) fn position(expr: &Expr, probe: &[ColumnType], joins: &[Join]) -> usize {
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
