// SPDX-License-Identifier: Apache-2.0
//! Joins: the tables of the build sides first, then the rows that probe them.

mod aggregate;
mod build_side;
mod failed;
mod probing;
mod scan_filter;
mod tables;

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};

use self::probing::Probing;
use self::tables::Tables;
use super::DeviceBatchStream;
use super::coalesce::coalesce_small;
use super::state::Run;
use crate::graph::{Joins, Stage};

pub(super) use aggregate::aggregate;
pub(super) use build_side::build_side;

/// Builds the tables of a stage's joins, then probes them.
pub(super) fn join(joins: Arc<Joins>, stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let tables = Arc::new(Tables::build(&joins, &run, &queue).await?);
        written(&stage, &joins, &run, queue, &tables)
    })
    .try_flatten()
    .boxed()
}

/// The joined rows, written to columns.
fn written(
    stage: &Arc<Stage>,
    joins: &Arc<Joins>,
    run: &Arc<Run>,
    queue: Queue,
    tables: &Arc<Tables>,
) -> Result<DeviceBatchStream> {
    let (chain, operator) = (tables.chain(stage, joins)?, stage.operator.clone());
    let probing = Probing::new(chain.is_empty(), chain, joins, stage, tables, run, &queue)?;
    let state = (Some(probing), Arc::clone(run));
    let batches = stream::try_unfold(state, |(probing, run)| async move {
        let Some(mut probing) = probing else { return Ok::<_, DataFusionError>(None) };
        if let Some(batch) = probing.next().await? {
            return Ok(Some((stream::iter(vec![Ok(batch)]), (Some(probing), run))));
        }
        let rest = probing.finish(&run).await?;
        let rest = rest.into_iter().map(Ok::<_, DataFusionError>).collect::<Vec<_>>();
        Ok(Some((stream::iter(rest), (None, run))))
    });
    let batches = batches.try_flatten().boxed();
    Ok(match joins.coalescer.clone() {
        Some(concat) => coalesce_small(batches, concat, run.batch_rows, queue, operator),
        None => batches,
    })
}
