// SPDX-License-Identifier: Apache-2.0
//! Joins that are fused with an aggregation, within its loop over rows.

use std::sync::Arc;

use arrow::datatypes::Field;
use columnar::DeviceBatch;
use device::{Buffer, Queue};

use super::lookup::Lookup;
use super::{Join, JoinChain, JoinTable, joined_schema, joined_types};
use crate::Result;
use crate::expr::{Aggregate, Expr};
use crate::ops::launch::program::read_u64;
use crate::ops::launch::source::Source;
use crate::ops::launch::throttle::{LaunchBudget, Slices, Throttle};
use crate::ops::{Input, Options};

/// The last joins of a [`JoinChain`](super::JoinChain), with at most one match for each row, and
/// their output expressions.
///
/// An aggregation searches the tables as it reads the rows. Input and joins are kept to write a
/// single row that failed.
#[derive(Debug, Clone)]
pub struct FusedJoins {
    source: Source,
    input: Input,
    joins: Vec<Join>,
    outputs: Vec<(Expr, Field)>,
    options: Options,
}

/// Row counts of fused joins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FusedJoinCounts {
    /// Rows that each dynamic filter removed.
    pub removed: Vec<u64>,
    /// Rows that the joins gave.
    pub kept: u64,
}

impl FusedJoins {
    pub(super) fn try_new(
        input: Input,
        joins: Vec<Join>,
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<FusedJoins> {
        let lookup = Lookup::try_new(&input, &joins, tables, options.profile)?;
        let (schema, types) = (joined_schema(&input.schema, &joins), joined_types(&input.types, &joins));
        Ok(FusedJoins { source: Source::with_lookup(schema, types, lookup)?, input, joins, outputs, options })
    }

    /// Whether no row can stay, so that none needs to be read.
    pub fn is_empty(&self) -> bool {
        self.source.lookup().is_some_and(Lookup::is_empty)
    }

    /// Slices of a batch that kernels search in bounded time.
    pub fn slices(&self, queue: &Queue, batch: &DeviceBatch) -> impl Iterator<Item = DeviceBatch> + use<> {
        Slices::new(queue, batch, self.source.max_candidates(), usize::MAX, &self.budget())
    }

    /// A handle for the aggregation, whose time bounds the slices.
    pub fn metered(&self, queue: &Queue) -> Queue {
        self.budget().metered(queue)
    }

    fn budget(&self) -> Arc<LaunchBudget> {
        self.source.lookup().map(|lookup| Arc::clone(&lookup.budget)).unwrap_or_default()
    }

    /// Waits, before a slice is pushed to the aggregation, while the host is too far ahead of the
    /// device.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub async fn throttle(&self, queue: &Queue, throttle: &mut Throttle, slice: &DeviceBatch) -> Result<()> {
        throttle.wait(&self.budget(), queue, slice.num_rows(), self.source.max_candidates()).await
    }

    /// The joined output of a single row, `None` if the row does not stay.
    ///
    /// # Errors
    /// `JoinedRow` if an expression of the joins or of their output fails.
    pub async fn write_row(&self, queue: &Queue, row: &DeviceBatch) -> Result<Option<DeviceBatch>> {
        let tables = self.source.lookup().map(|lookup| lookup.tables.as_slice());
        let (input, outputs) = (self.input.clone(), self.outputs.clone());
        let chain = JoinChain::try_new(input, &self.joins, tables, outputs, self.options.clone())?;
        let mut state = chain.start();
        chain.push(&mut state, row);
        chain.next(queue, &mut state).await
    }

    pub(in crate::ops) fn source(&self) -> &Source {
        &self.source
    }

    /// An expression over the output, as one over the columns of all sides.
    pub(in crate::ops) fn over(&self, expr: &Expr) -> Result<Expr> {
        expr.over(&|column| {
            let output = self.outputs.get(column).map(|(output, _)| output.clone());
            output.ok_or_else(|| crate::Error::Internal(format!("column {column} of {} outputs", self.outputs.len())))
        })
    }

    /// An aggregate over the output, as one over the columns of all sides.
    pub(in crate::ops) fn aggregate(&self, aggregate: &Aggregate) -> Result<Aggregate> {
        Ok(Aggregate {
            arguments: aggregate.arguments.iter().map(|argument| self.over(argument)).collect::<Result<_>>()?,
            filter: aggregate.filter.as_ref().map(|filter| self.over(filter)).transpose()?,
            ..aggregate.clone()
        })
    }
}

impl FusedJoinCounts {
    pub(in crate::ops) fn read(
        queue: &Queue,
        tallies: usize,
        counters: Option<&Buffer>,
    ) -> impl Future<Output = Result<FusedJoinCounts>> + Send + use<> {
        // As `Source::write_filter` counts: a tally for each filter, and one for the rows that
        // stay.
        let filters = tallies.checked_sub(1);
        let counted = filters.and(counters).map(|counters| queue.read(counters, 0..tallies * 8));
        async move {
            let Some(filters) = filters else { return Ok(FusedJoinCounts::default()) };
            let Some(counted) = counted else { return Ok(FusedJoinCounts { removed: vec![0; filters], kept: 0 }) };
            let counted = counted.await?;
            let removed = (0..filters).map(|index| read_u64(&counted, index)).collect::<Result<_>>()?;
            Ok(FusedJoinCounts { removed, kept: read_u64(&counted, filters)? })
        }
    }
}
