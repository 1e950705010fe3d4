// SPDX-License-Identifier: Apache-2.0
//! Rows of joins that a sink goes through itself, within its own loop.

use std::sync::Arc;

use arrow::datatypes::Field;
use columnar::DeviceBatch;
use device::{Buffer, Queue};

use super::lookup::Lookup;
use super::pace::{Pace, pieces};
use super::{Join, JoinChain, JoinTable, joined_schema, joined_types};
use crate::Result;
use crate::expr::{Aggregate, Expr};
use crate::ops::program::word;
use crate::ops::source::Source;
use crate::ops::{Input, Options};

/// The last joins of a [`JoinChain`](super::JoinChain), of which a row has one match at most, and what is computed of their
/// columns: left to a sink, which looks its rows up as it reads them. Input and joins are kept to write a row that failed.
#[derive(Debug, Clone)]
pub struct Joined {
    source: Source,
    input: Input,
    joins: Vec<Join>,
    outputs: Vec<(Expr, Field)>,
    options: Options,
}

/// Rows that joins have seen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JoinedRows {
    /// For each dynamic filter, those that it has removed.
    pub removed: Vec<u64>,
    /// Those that the joins have given.
    pub kept: u64,
}

impl Joined {
    pub(super) fn try_new(
        input: Input,
        joins: Vec<Join>,
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<Joined> {
        let lookup = Lookup::try_new(&input, &joins, tables, options.profile)?;
        let (schema, types) = (joined_schema(&input.schema, &joins), joined_types(&input.types, &joins));
        Ok(Joined { source: Source::with_lookup(schema, types, lookup)?, input, joins, outputs, options })
    }

    /// Whether no row can stay: nothing needs to be read.
    pub fn is_empty(&self) -> bool {
        self.source.lookup().is_some_and(Lookup::is_empty)
    }

    /// A batch in pieces that kernels search in bounded time.
    pub fn pieces(&self, queue: &Queue, batch: &DeviceBatch) -> impl Iterator<Item = DeviceBatch> + use<> {
        pieces(queue, batch, self.source.meets())
    }

    /// Waits, before a piece is pushed to a sink, while many are ahead of the device.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub async fn keep_pace(&self, queue: &Queue, pace: &mut Pace, piece: &DeviceBatch) -> Result<()> {
        pace.keep(queue, piece.num_rows(), self.source.meets()).await
    }

    /// What a row gives, written; nothing if it does not stay.
    ///
    /// # Errors
    /// `JoinedRow` where an expression of the joins or of their output fails.
    pub async fn written(&self, queue: &Queue, row: &DeviceBatch) -> Result<Option<DeviceBatch>> {
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

impl JoinedRows {
    pub(in crate::ops) fn read(
        queue: &Queue,
        tallies: usize,
        counted: Option<&Buffer>,
    ) -> impl Future<Output = Result<JoinedRows>> + Send + use<> {
        // As `Source::kept` counts: the filters, then the rows that stay.
        let filters = tallies.checked_sub(1);
        let counted = filters.and(counted).map(|counted| queue.read(counted, 0..tallies * 8));
        async move {
            let Some(filters) = filters else { return Ok(JoinedRows::default()) };
            let Some(counted) = counted else { return Ok(JoinedRows { removed: vec![0; filters], kept: 0 }) };
            let counted = counted.await?;
            let removed = (0..filters).map(|index| word(&counted, index)).collect::<Result<_>>()?;
            Ok(JoinedRows { removed, kept: word(&counted, filters)? })
        }
    }
}
