// SPDX-License-Identifier: Apache-2.0
//! A stage as a stream: `open` picks the function of each kind of stage.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{Result, exec_err, internal_err};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{Concat, UnifyLayouts};

use super::aggregate::Aggregation;
use super::blocking::{self, Blocking};
use super::expand::expand;
use super::files::{self, CachedScan};
use super::import::import;
use super::limit::limit;
use super::memory::{MemoryAttribution, fitting_slices};
use super::metrics::{output_rows, timed};
use super::scan::scan;
use super::select::select;
use super::state::{OFFLOADED_SUBPLAN, Run};
use super::unnest::unnest;
use super::upload::{UploadedColumns, upload};
use super::{DeviceBatchStream, futhark, joins, shared, sorts, windows};
use crate::error::{LOST, columnar_error, op_error};
use crate::exec::panics;
use crate::graph::{Origin, Stage, StageKind};
use crate::table::COLUMNS_OF_FILES;

impl Run {
    /// The batches of one partition of a stage.
    pub fn open(self: &Arc<Run>, stage: &Arc<Stage>, partition: usize) -> Result<DeviceBatchStream> {
        let of_stage = if stage.origin() == Origin::External { &self.uploads } else { &self.queue };
        let batches = match self.cached_scan(stage) {
            Some(scan) => {
                let queue = self.metered(of_stage, COLUMNS_OF_FILES, &stage.metrics.set(), partition);
                files::rows(scan, partition, stage, self, queue)
            }
            None => {
                let queue = self.metered(of_stage, &stage.operator, &stage.metrics.set(), partition);
                self.open_kind(stage, partition, queue)?
            }
        };
        // A coalesced batch is charged to its reader's operator, and its rows are none of the
        // reader's output.
        Ok(match stage.origin() {
            Origin::Coalesced => batches,
            Origin::External | Origin::Resident | Origin::Operator => {
                let sets = [stage.metrics.set()].into_iter().chain(stage.metrics.of_same_rows());
                let counts: Vec<_> = sets.map(|set| output_rows(&set, partition)).collect();
                let batches = batches.inspect_ok(move |batch| counts.iter().for_each(|count| count.add(batch.num_rows())));
                let fused = stage.metrics.of_fused();
                timed(batches, &stage.metrics.set(), &fused, partition, &self.task)
            }
        })
    }

    /// The scan of an upload whose columns may stay on the device.
    fn cached_scan(&self, stage: &Stage) -> Option<CachedScan> {
        let (StageKind::Upload { input }, Some(_)) = (&stage.kind, &self.file_cache) else { return None };
        CachedScan::of(input)
    }

    fn open_kind(self: &Arc<Run>, stage: &Arc<Stage>, partition: usize, queue: Queue) -> Result<DeviceBatchStream> {
        Ok(match &stage.kind {
            StageKind::Upload { input } => {
                let rows = panics::caught(input, || input.execute(partition, Arc::clone(&self.task)))?;
                upload(rows, &UploadedColumns::of(stage), self, queue)
            }
            StageKind::Scan { snapshot, .. } if snapshot.context().has_met_fatal_fault() => return exec_err!("{LOST}"),
            StageKind::Scan { snapshot, columns } => {
                let batches = snapshot.batches().iter().map(|batch| project(batch, columns, stage));
                scan(batches.collect(), stage, self)
            }
            StageKind::Stream { source, columns, decode } => import(source, columns, decode, stage, self, queue)?,
            StageKind::Columns { input, columns } => {
                let (columns, stage) = (columns.clone(), Arc::clone(stage));
                self.open(input, partition)?.map(move |batch| project(&batch?, &columns, &stage)).boxed()
            }
            StageKind::Expand { input, sets } => expand(self.merge(input)?, input, sets, stage, self.batch_rows, queue),
            StageKind::Select { input, op, checks } => {
                let (op, checks, operator) = (Arc::clone(op), Arc::clone(checks), stage.operator.clone());
                select(self.open(input, partition)?, op, checks, operator, queue)
            }
            StageKind::LibraryCalls { input, calls, checks } => {
                let (calls, checks, stage) = (Arc::clone(calls), Arc::clone(checks), Arc::clone(stage));
                futhark::call(self.open(input, partition)?, calls, checks, stage, queue, partition)
            }
            StageKind::LibraryAggregates { input, aggregates, checks } => {
                let (aggregates, checks, stage) = (Arc::clone(aggregates), Arc::clone(checks), Arc::clone(stage));
                futhark::aggregate(self.merge(input)?, aggregates, checks, stage, queue, partition)
            }
            StageKind::Unnest { input, op } => {
                unnest(self.open(input, partition)?, Arc::clone(op), stage.operator.clone(), queue)
            }
            StageKind::Union { inputs } => self.open_union(inputs, stage, partition, queue)?,
            StageKind::Shared { input, sharing, .. } => shared::open(input, sharing, stage, self)?,
            // A limit over all partitions merges them.
            StageKind::Limit { input, skip, fetch } if stage.partitions < input.partitions => {
                limit(self.merge(input)?, *skip, *fetch)
            }
            StageKind::Limit { input, skip, fetch } => limit(self.open(input, partition)?, *skip, *fetch),
            StageKind::Aggregate { input, op, checks, lists, over_joins } => {
                let (op, lists, checks) = (Arc::clone(op), lists.clone(), Arc::clone(checks));
                let aggregation = Aggregation { op, lists, checks, stage: Arc::clone(stage), run: Arc::clone(self), queue };
                match (over_joins, input.origin()) {
                    (Some(over), _) => joins::aggregate(Arc::clone(over), aggregation, Arc::clone(input)),
                    (None, Origin::Coalesced) => {
                        let Aggregation { op, lists, checks, stage, run: _, queue } = aggregation;
                        let op = Blocking::Aggregate(op, lists);
                        blocking::run_over_whole_input(self.merge(input)?, op, checks, stage, queue)
                    }
                    (None, Origin::External | Origin::Resident | Origin::Operator) => aggregation.over(self.merge(input)?),
                }
            }
            StageKind::Coalesce { input, concat } => coalesce(self.merge(input)?, concat, stage, queue),
            // Rows with equal keys keep their order, which is that of the partitions.
            StageKind::Sort { input, op, checks } => {
                let rows = self.merge_in_order(input)?;
                let (op, checks, stage) = (Arc::clone(op), Arc::clone(checks), Arc::clone(stage));
                match op.keeps_all() {
                    true => sorts::sort(rows, op, checks, stage, Arc::clone(self), queue),
                    false => {
                        let for_bytes = Arc::clone(&op);
                        let rows = fitting_slices(rows, &queue, move |rows| for_bytes.output_bytes(rows));
                        blocking::run(rows, Blocking::TopK(op), checks, stage, queue)
                    }
                }
            }
            StageKind::Window { input, op, checks } => {
                let (op, checks, stage) = (Arc::clone(op), Arc::clone(checks), Arc::clone(stage));
                windows::window(self.merge_in_order(input)?, op, checks, stage, self.batch_rows, queue)
            }
            StageKind::Join(joins) => joins::join(Arc::clone(joins), Arc::clone(stage), Arc::clone(self), queue),
            StageKind::BuildSideJoin(join) => joins::build_side(Arc::clone(join), Arc::clone(stage), Arc::clone(self), queue),
        })
    }

    /// A partition of a union is one partition of one input, in the union's layouts.
    fn open_union(
        self: &Arc<Run>,
        inputs: &[(Arc<Stage>, UnifyLayouts)],
        stage: &Stage,
        partition: usize,
        queue: Queue,
    ) -> Result<DeviceBatchStream> {
        let mut first = 0;
        let found = inputs.iter().find_map(|(input, unify)| {
            let of_input = partition.checked_sub(first).filter(|of_input| *of_input < input.partitions);
            first += input.partitions;
            of_input.map(|of_input| (input, unify.clone(), of_input))
        });
        let Some((input, unify, of_input)) = found else {
            return internal_err!("partition {partition} of a union of {first}");
        };
        let (operator, for_bytes) = (stage.operator.clone(), unify.clone());
        let rows = fitting_slices(self.open(input, of_input)?, &queue, move |rows| for_bytes.output_bytes(rows));
        let unified = rows.and_then(move |batch| {
            let (unify, queue, operator) = (unify.clone(), queue.clone(), operator.clone());
            async move { unify.run(&queue, &batch).await.map_err(|error| op_error(&operator, error)) }
        });
        Ok(unified.boxed())
    }
}

/// All rows as one batch.
fn coalesce(rows: DeviceBatchStream, concat: &Concat, stage: &Stage, queue: Queue) -> DeviceBatchStream {
    let memory = MemoryAttribution::new(&stage.operator, "its input");
    let (rows, concat, operator) = (memory.counted(rows), concat.clone(), stage.operator.clone());
    let coalesced = async move {
        let batches = rows.try_collect().await?;
        concat.run(&queue, batches).await.map_err(|error| op_error(&operator, error))
    };
    let coalesced = stream::once(coalesced).try_filter_map(|batch| async { Ok(batch) });
    coalesced.map_err(move |error| memory.attributed(error)).boxed()
}

fn project(batch: &DeviceBatch, columns: &[usize], stage: &Stage) -> Result<DeviceBatch> {
    let columns = columns.iter().map(|index| match batch.columns().get(*index) {
        Some(column) => Ok(column.clone()),
        None => internal_err!("column {index} of a batch of {}", batch.columns().len()),
    });
    DeviceBatch::try_new(Arc::clone(&stage.schema), columns.collect::<Result<_>>()?, batch.num_rows())
        .map_err(|error| columnar_error(OFFLOADED_SUBPLAN, error))
}
