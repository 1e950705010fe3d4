// SPDX-License-Identifier: Apache-2.0
//! Aggregations whose groups do not fit device memory: rows of further groups are set aside.
//!
//! A *frozen* state takes no new groups. Rows of its groups are aggregated, the others are given
//! back, for an aggregation of their own. So each group is whole in one of them.

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer};

use super::key::KeyOutput;
use super::table::SET_ASIDE;
use super::{GroupBy, GroupByState};
use crate::codegen::Params;
use crate::expr::Expr;
use crate::ops::launch::compact::{Survivors, mask_body, row_indices};
use crate::ops::launch::program::{FixedProgram, Kernel};
use crate::ops::launch::{Launch, NamedArgs};
use crate::ops::{Gather, HashPartition, Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// Positions of the kernels.
const MASK: usize = 0;
const ROW_INDICES: usize = 1;

/// Gathers the rows that are set aside.
#[derive(Debug)]
pub(super) struct SetAside {
    program: FixedProgram,
    gather: Gather,
}

impl SetAside {
    /// The rows of a batch whose group ids say so. Waits for their number.
    pub async fn rows(&self, launch: &Launch<'_>, batch: &DeviceBatch, ids: &Buffer) -> Result<Option<DeviceBatch>> {
        let (queue, n) = (launch.queue, batch.num_rows());
        let launch = launch.with_program(&self.program).await?;
        let extra = [("ids", Arg::Buffer(ids))];
        let rows = Survivors::find(&launch, MASK, &[], n, &extra).await?;
        if rows.count == 0 {
            return Ok(None);
        }
        let indices = queue.alloc(rows.count * size_of::<u32>())?;
        let mut named: NamedArgs<'_> = rows.args();
        named.push(("indices", Arg::Buffer(&indices)));
        launch.run(ROW_INDICES, rows.grid(), named)?;
        self.gather.run(queue, batch, &indices, rows.count).await.map(Some)
    }
}

impl GroupByState {
    /// Number of groups so far.
    pub fn groups(&self) -> usize {
        self.groups
    }
}

impl GroupBy {
    /// Whether a state can be frozen: its groups are in a table, and none of the aggregates is
    /// DISTINCT.
    pub fn may_freeze(&self) -> bool {
        !self.mode.is_dense() && self.distincts.is_empty()
    }

    /// Makes a state take no further groups.
    ///
    /// # Errors
    /// `Unsupported` if a column of the input cannot be gathered; `Internal` unless
    /// [`may_freeze`](Self::may_freeze).
    pub fn freeze(&self, state: &mut GroupByState) -> Result<()> {
        let feed = self.feeds.first().filter(|_| self.may_freeze());
        let feed = feed.ok_or_else(|| Error::Internal("an aggregation that cannot be frozen".into()))?;
        let (schema, types) = feed.source.input();
        let gather = Gather::try_new(schema, types, self.options.clone())?;
        state.set_aside = Some(SetAside { program: program(&self.options), gather });
        Ok(())
    }

    /// Partitions rows that are set aside by their groups.
    ///
    /// # Errors
    /// `Internal` for an aggregation without an input; `Unsupported` if a column cannot be
    /// gathered.
    pub fn set_aside_partition(&self) -> Result<HashPartition> {
        let feed = self.feeds.first().ok_or_else(|| Error::Internal("an aggregation without an input".into()))?;
        let (schema, types) = feed.source.input();
        let gathered = Gather::try_new(schema.clone(), types, self.options.clone())?;
        let input = Input { schema, types: gathered.output_types().to_vec(), filter: None };
        // Codes of one value may differ between batches.
        let keys = self.keys.iter().zip(&feed.keys).map(|(key, expr)| match key.output {
            KeyOutput::Codes(column) => Expr::Column(column),
            KeyOutput::Plain | KeyOutput::Dictionary(_) => expr.clone(),
        });
        HashPartition::of_keys(input, keys.collect(), self.options.clone())
    }

    /// Schema and types of the rows that [`push_set_aside`](Self::push_set_aside) takes. Strings
    /// with 32-bit offsets are set aside with offsets of 64 bits.
    ///
    /// # Errors
    /// `Internal` for an aggregation without an input.
    pub fn set_aside_types(&self) -> Result<(SchemaRef, Vec<ColumnType>)> {
        let feed = self.feeds.first().ok_or_else(|| Error::Internal("an aggregation without an input".into()))?;
        Ok(feed.source.input())
    }
}

/// The kernels that select the rows that are set aside.
pub(super) fn program(options: &Options) -> FixedProgram {
    FixedProgram::new("GroupBy", options, |options| vec![mask_kernel(options), row_indices("group_set_aside_rows", options)])
}

fn mask_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let ids = params.named("ids", "const G u32 *RESTRICT");
    let body = mask_body(&mut params, options, "", &format!("{ids}[row] == {SET_ASIDE}"));
    Kernel::new("group_set_aside", params, body)
}
