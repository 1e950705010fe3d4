// SPDX-License-Identifier: Apache-2.0
//! Rows of joins that a sink goes through itself, within its own loop.

use std::sync::Arc;

use columnar::DeviceBatch;
use device::{Buffer, Queue};

use super::lookup::Lookup;
use super::probe::pieces;
use super::{Join, JoinTable, joined_schema, joined_types};
use crate::Result;
use crate::codegen::Profile;
use crate::expr::{Aggregate, Expr};
use crate::ops::Input;
use crate::ops::program::word;
use crate::ops::source::Source;

/// The last joins of a [`JoinChain`](super::JoinChain), of which a row has one match at most, and what is computed of their
/// columns: left to a sink, which looks its rows up as it reads them.
#[derive(Debug, Clone)]
pub struct Joined {
    source: Source,
    outputs: Vec<Expr>,
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
        input: &Input,
        joins: &[Join],
        tables: Option<&[Arc<JoinTable>]>,
        outputs: Vec<Expr>,
        profile: Profile,
    ) -> Result<Joined> {
        let lookup = Lookup::try_new(input, joins, tables, profile)?;
        let (schema, types) = (joined_schema(&input.schema, joins), joined_types(&input.types, joins));
        Ok(Joined { source: Source::with_lookup(schema, types, lookup)?, outputs })
    }

    /// Whether no row can stay: nothing needs to be read.
    pub fn is_empty(&self) -> bool {
        self.source.lookup().is_some_and(Lookup::is_empty)
    }

    /// A batch in pieces that kernels search in bounded time.
    pub fn pieces(&self, batch: &DeviceBatch) -> impl Iterator<Item = DeviceBatch> + use<> {
        pieces(batch, self.source.lookup().map_or(0, Lookup::meets))
    }

    pub(in crate::ops) fn source(&self) -> &Source {
        &self.source
    }

    /// An expression over the output, as one over the columns of all sides.
    pub(in crate::ops) fn over(&self, expr: &Expr) -> Result<Expr> {
        expr.over(&|column| {
            let output = self.outputs.get(column).cloned();
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
    pub(in crate::ops) async fn read(queue: &Queue, tallies: usize, counted: Option<&Buffer>) -> Result<JoinedRows> {
        let Some(filters) = tallies.checked_sub(1) else { return Ok(JoinedRows::default()) };
        let Some(counted) = counted else { return Ok(JoinedRows { removed: vec![0; filters], kept: 0 }) };
        let counted = queue.read(counted, 0..tallies * 8).await?;
        let removed = (0..filters).map(|index| word(&counted, index)).collect::<Result<_>>()?;
        Ok(JoinedRows { removed, kept: word(&counted, filters)? })
    }
}
