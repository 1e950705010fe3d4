// SPDX-License-Identifier: Apache-2.0
//! A chain of joins in two parts, with rows written in between: where a build side does not fit
//! device memory.

use std::sync::Arc;

use arrow::datatypes::Field;
use columnar::ColumnType;

use super::chain::{KeptColumns, all_of};
use super::lookup::{conjuncts, joins_before};
use super::{Join, JoinChain, JoinTable, joined_schema};
use crate::expr::Expr;
use crate::ops::{Input, Options};
use crate::{Error, Result};

/// Joins one after another, with what they read and give, as [`JoinChain::try_new`] takes it.
#[derive(Debug, Clone)]
pub struct ChainPart {
    /// The probe side. Its filter is over the columns of all sides.
    pub input: Input,
    /// The joins.
    pub joins: Vec<Join>,
    /// Over the columns of all sides.
    pub outputs: Vec<(Expr, Field)>,
}

/// A chain that is cut before one of its joins.
#[derive(Debug)]
pub struct CutChain {
    /// The joins before the cut. They give the columns that the part after it reads.
    pub before: ChainPart,
    /// Its input are the rows of the part before.
    pub after: ChainPart,
    kept: KeptColumns,
}

impl ChainPart {
    /// The chain with `tables`.
    ///
    /// # Errors
    /// As [`JoinChain::try_new`].
    pub fn chain(&self, tables: Option<&[Arc<JoinTable>]>, options: &Options) -> Result<JoinChain> {
        JoinChain::try_new(self.input.clone(), &self.joins, tables, self.outputs.clone(), options.clone())
    }

    /// Cuts the chain before the join with the number `at`. Rows also keep the columns `others`, by
    /// positions among the columns of all sides.
    ///
    /// # Errors
    /// As [`JoinChain::try_new`]; `Internal` if there are fewer joins.
    pub fn cut(&self, at: usize, others: &[usize], options: &Options) -> Result<CutChain> {
        let (before, rest) = self.joins.split_at_checked(at).ok_or_else(|| Error::Internal(format!("no join {at}")))?;
        let types = &self.input.types;
        let filters = conjuncts(self.input.filter.clone()).into_iter();
        let (now, later): (Vec<_>, Vec<_>) = filters.partition(|filter| joins_before(filter, types, &self.joins) <= at);
        let schema = joined_schema(&self.input.schema, before);
        let others: Vec<Expr> = others.iter().map(|column| Expr::Column(*column)).collect();
        let read = later.iter().chain(self.outputs.iter().map(|(expr, _)| expr)).chain(&others);
        let kept = KeptColumns::of(schema.fields().len(), rest, read);
        let before = ChainPart {
            input: Input { filter: all_of(now), ..self.input.clone() },
            joins: before.to_vec(),
            outputs: kept.outputs(&schema),
        };
        let (schema, types) = before.result(options)?;
        let filter = all_of(later.iter().map(|filter| kept.over(filter)).collect::<Result<_>>()?);
        let outputs = self.outputs.iter().map(|(expr, field)| Ok((kept.over(expr)?, field.clone())));
        let after = ChainPart {
            input: Input { schema, types, filter },
            joins: rest.iter().map(|join| kept.join(join.clone())).collect::<Result<_>>()?,
            outputs: outputs.collect::<Result<_>>()?,
        };
        Ok(CutChain { before, after, kept })
    }

    fn result(&self, options: &Options) -> Result<(arrow::datatypes::SchemaRef, Vec<ColumnType>)> {
        let chain = self.chain(None, options)?;
        Ok((chain.schema().clone(), chain.output_types().to_vec()))
    }
}

impl CutChain {
    /// The position of a column after the cut, `None` if it is not kept.
    pub fn position(&self, column: usize) -> Option<usize> {
        self.kept.position(column)
    }
}
