// SPDX-License-Identifier: Apache-2.0
//! Runs the stages of an offloaded subplan: one in-order queue per execution, batches pulled through it, and a second one
//! for uploads on devices with memory of their own.

mod failed;
mod futhark;
mod gather;
mod held;
mod joins;
mod kept;
mod lists;
mod subqueries;

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Weak};

use arrow::array::RecordBatch;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, SchemaRef};
use columnar::{BatchCoalescer, DeviceBatch, DeviceColumn, Layout, exchange};
use datafusion::common::runtime::JoinSet;
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err, internal_datafusion_err, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use device::{DeviceKind, Event, Queue};
use futures::future::{BoxFuture, Shared, try_join_all};
use futures::{FutureExt, Stream, StreamExt, TryStreamExt, stream};
use kernels::expr::value_type;
use kernels::ops::{Decode, JoinTable};
use tokio::sync::mpsc;

use crate::exchange::{ImportedArrayStream, of_query};
use crate::exec::{GroupingSet, ScalarSubquery};
use crate::graph::{AggregateOp, Stage, StageKind};
use crate::metrics::StageMeter;
use crate::options::DeviceOptions;
use crate::runtime::{device_error, task_context};
use crate::table::LOST;
use held::Held;
pub(crate) use kept::KeptRows;
use lists::Elements;

/// Who downloads and waits, for messages.
const ISLAND: &str = "DeviceToHostExec";

/// Batches that stay on the device.
pub type DeviceBatchStream = Pin<Box<dyn Stream<Item = Result<DeviceBatch>> + Send>>;

/// What the stages of one execution share.
struct Run {
    queue: Queue,
    /// Where batches go up while kernels run; the same queue where the device shares the host's memory.
    uploads: Queue,
    task: Arc<TaskContext>,
    batch_rows: usize,
    meters: parking_lot::Mutex<Vec<StageMeter>>,
    /// The tables that dynamic filters ask for, as long as their joins probe.
    tables: parking_lot::Mutex<HashMap<usize, Weak<JoinTable>>>,
    /// Rows that several stages read, each with how many of these have not come yet.
    /// `None` once the run has ended.
    shared: parking_lot::Mutex<Option<HashMap<usize, (SharedRows, usize)>>>,
    /// The rows of scalar subqueries.
    scalars: parking_lot::Mutex<Vec<(ScalarSubquery, SharedRows)>>,
    /// What is read for metrics alone, which nobody waits for before the end.
    at_end: parking_lot::Mutex<Vec<BoxFuture<'static, Result<()>>>>,
}

/// What a task hears that goes on after its run.
const ENDED: &str = "rows of a run that has ended";

/// Batches that are computed as soon as the first one asks for them.
type SharedRows = Shared<BoxFuture<'static, std::result::Result<Arc<Vec<DeviceBatch>>, Arc<DataFusionError>>>>;

/// Lets go, at the end of a run, of shared rows that nobody came for, and of scalar subqueries' rows.
struct SharedUntilDropped(Arc<Run>);

impl Drop for SharedUntilDropped {
    fn drop(&mut self) {
        let shared = self.0.shared.lock().take();
        let scalars = std::mem::take(&mut *self.0.scalars.lock());
        drop((shared, scalars));
    }
}

impl Run {
    fn start(stage: &Stage, task: &Arc<TaskContext>) -> Result<Arc<Run>> {
        let (context, options) = task_context(task)?;
        let batch_rows = batch_rows(&options, context.info().kind);
        let new_queue = || context.queue().map_err(|error| device_error(ISLAND, error));
        let queue = new_queue()?;
        let apart = stage.uploads() && !context.info().unified_memory;
        let uploads = if apart { new_queue()? } else { queue.clone() };
        let task = Arc::clone(task);
        let (meters, tables, scalars, at_end) = Default::default();
        let shared = parking_lot::Mutex::new(Some(HashMap::new()));
        Ok(Arc::new(Run { queue, uploads, task, batch_rows, meters, tables, shared, scalars, at_end }))
    }

    /// A handle of a queue that charges what it does to an operator.
    fn metered(&self, queue: &Queue, metrics: &ExecutionPlanMetricsSet, partition: usize) -> Queue {
        let meter = StageMeter::new(metrics, partition);
        let queue = queue.metered(meter.meter());
        self.meters.lock().push(meter);
        queue
    }

    /// Waits until no more than [`BATCHES_AHEAD`] batches of an input are on their way through the kernels. Whoever asks for
    /// another one has enqueued at least the first kernels that read the one before.
    async fn stay_close(&self, consumed: &mut VecDeque<Event>, operator: &str) -> Result<()> {
        consumed.push_back(self.queue.record().map_err(|error| device_error(operator, error))?);
        if consumed.len() > BATCHES_AHEAD
            && let Some(oldest) = consumed.pop_front()
        {
            oldest.wait().await.map_err(|error| device_error(operator, error))?;
        }
        Ok(())
    }

    /// Has something done when the run ends.
    fn at_end(&self, what: impl Future<Output = Result<()>> + Send + 'static) {
        self.at_end.lock().push(what.boxed());
    }

    /// Waits for the queues, then writes what the meters counted into the operators' metrics.
    async fn finish(&self) -> Result<()> {
        let at_end = try_join_all(std::mem::take(&mut *self.at_end.lock()));
        let (uploaded, computed, ended) = futures::join!(self.uploads.finish(), self.queue.finish(), at_end);
        self.meters.lock().clear();
        uploaded.and(computed).map_err(|error| device_error(ISLAND, error))?;
        ended.map(drop)
    }
}

fn batch_rows(options: &DeviceOptions, kind: DeviceKind) -> usize {
    match (options.batch_rows, kind) {
        (0, DeviceKind::Cpu) => 1 << 17,
        (0, _) => 1 << 20,
        (rows, _) => rows,
    }
}

/// Runs a partition and leaves its rows on the device.
pub(crate) fn execute_device(stage: &Arc<Stage>, partition: usize, task: &Arc<TaskContext>) -> Result<DeviceBatchStream> {
    let run = Run::start(stage, task)?;
    let batches = open_run(stage, partition, &run)?;
    let end = stream::once(async move { run.finish().await }).filter_map(|result| async { result.err().map(Err) });
    Ok(batches.chain(end).boxed())
}

/// Runs a partition and downloads its rows in batches of the session's size.
pub(crate) fn execute_host(
    stage: &Arc<Stage>,
    schema: SchemaRef,
    partition: usize,
    task: &Arc<TaskContext>,
    metrics: &ExecutionPlanMetricsSet,
) -> Result<SendableRecordBatchStream> {
    let run = Run::start(stage, task)?;
    let batches = open_run(stage, partition, &run)?;
    let queue = run.metered(&run.queue, metrics, partition);
    let output_rows = MetricBuilder::new(metrics).output_rows(partition);
    let host_batch_rows = task.session_config().batch_size().max(1);
    let downloaded = batches
        .map_ok(move |batch| {
            // DataFusion fills a dictionary for each of its batches: more rows may have more values than
            // its keys can number.
            let rows = if batch.columns().iter().any(is_packed_by_download) { host_batch_rows } else { DOWNLOADED_ROWS };
            let queue = queue.clone();
            let parts = stream::iter(batch.chunks(rows)).flat_map(move |piece| columnar::download_parts(&queue, piece));
            parts.map_err(|error| columnar_error(ISLAND, error))
        })
        .try_flatten()
        .map_ok(move |batch| stream::iter(slices(batch, host_batch_rows).map(Ok)))
        .try_flatten()
        .inspect_ok(move |batch| output_rows.add(batch.num_rows()));
    let end = stream::once(async move { run.finish().await }).filter_map(|result| async { result.err().map(Err) });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, downloaded.chain(end))))
}

/// Rows that are on the host at once. An operator may give all of its result as one batch.
const DOWNLOADED_ROWS: usize = 1 << 20;

/// Whether a computed dictionary column lies as plain values, which its download packs.
fn is_packed_by_download(column: &DeviceColumn) -> bool {
    matches!(column.ty().data_type, DataType::Dictionary(..)) && !matches!(column.ty().layout, Layout::Dictionary { .. })
}

fn slices(batch: RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> {
    let total = batch.num_rows();
    (0..total).step_by(rows).map(move |start| batch.slice(start, rows.min(total - start)))
}

/// The last stage of a run.
fn open_run(stage: &Arc<Stage>, partition: usize, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    let shared = SharedUntilDropped(Arc::clone(run));
    let batches = match stage.scalar_subqueries().is_empty() {
        true => open(stage, partition, run)?,
        false => {
            let (stage, run) = (Arc::clone(stage), Arc::clone(run));
            let after = async move {
                subqueries::run_all(&stage, &run).await?;
                open(&stage, partition, &run)
            };
            stream::once(after).try_flatten().boxed()
        }
    };
    let of_run = move |batch| {
        let _ = &shared;
        batch
    };
    Ok(batches.map(of_run).boxed())
}

/// The rows of a stage that others read as well.
fn shared_rows(number: usize, readers: usize, input: &Arc<Stage>, run: &Arc<Run>) -> Result<SharedRows> {
    let mut shared = run.shared.lock();
    let Some(shared) = shared.as_mut() else { return internal_err!("{ENDED}") };
    let (rows, missing) = shared.entry(number).or_insert_with(|| {
        // The run holds the rows, not the rows the run.
        let (input, run) = (Arc::clone(input), Arc::downgrade(run));
        let rows = async move {
            let Some(run) = run.upgrade() else { return internal_err!("{ENDED}") };
            merge(&input, &run)?.try_collect::<Vec<_>>().await
        };
        (rows.map(|rows| rows.map(Arc::new).map_err(Arc::new)).boxed().shared(), readers)
    });
    *missing = missing.saturating_sub(1);
    let (rows, last) = (rows.clone(), *missing == 0);
    if last {
        shared.remove(&number);
    }
    Ok(rows)
}

fn batches_of(rows: SharedRows) -> DeviceBatchStream {
    let batches = async move {
        let rows = rows.await.map_err(DataFusionError::Shared)?;
        let batches = (0..rows.len()).map(move |index| Ok(rows[index].clone()));
        Ok::<_, DataFusionError>(stream::iter(batches))
    };
    stream::once(batches).try_flatten().boxed()
}

fn open(stage: &Arc<Stage>, partition: usize, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    let of_stage = if stage.reads_others() { &run.uploads } else { &run.queue };
    let queue = run.metered(of_stage, &stage.metrics, partition);
    let output_rows = MetricBuilder::new(&stage.metrics).output_rows(partition);
    let batches = match &stage.kind {
        StageKind::Upload { input } => upload(input.execute(partition, Arc::clone(&run.task))?, stage, run, queue),
        StageKind::Scan { snapshot, .. } if snapshot.context().has_met_fatal_fault() => return exec_err!("{LOST}"),
        StageKind::Scan { snapshot, columns } => {
            let schema = Arc::clone(&stage.schema);
            let batches = snapshot.batches().iter().map(|batch| project(batch, columns, &schema));
            stream::iter(batches.collect::<Vec<_>>()).boxed()
        }
        StageKind::Stream { source, columns, decode } => {
            import(source.open()?, Arc::clone(source.schema()), columns.clone(), Arc::clone(decode), stage, run, queue)
        }
        StageKind::Columns { input, columns } => {
            let (columns, schema) = (columns.clone(), Arc::clone(&stage.schema));
            open(input, partition, run)?.map(move |batch| project(&batch?, &columns, &schema)).boxed()
        }
        StageKind::Expand { input, sets } => {
            let (sets, stage, from) = (sets.clone(), Arc::clone(stage), Arc::clone(input));
            let rows = run.batch_rows;
            let pieces = merge(input, run)?
                .map_ok(move |batch| stream::iter(batch.chunks(rows).map(Ok::<_, DataFusionError>)))
                .try_flatten();
            let batches = pieces.map_ok(Some).chain(stream::once(async { Ok(None) }));
            let mut any = false;
            let expanded = batches.map(move |batch| {
                let (batch, real) = match batch? {
                    Some(batch) => (batch, true),
                    None => (
                        DeviceBatch::blank(&queue, &from.schema, &from.types)
                            .map_err(|error| columnar_error(&stage.operator, error))?,
                        false,
                    ),
                };
                any |= real && batch.num_rows() > 0;
                // Without rows there are the groups of no keys.
                let wanted = |set: &GroupingSet| if real { batch.num_rows() > 0 } else { !any && set.is_total() };
                let wanted: Vec<_> = sets.iter().filter(|set| wanted(set)).cloned().collect();
                let (stage, queue) = (Arc::clone(&stage), queue.clone());
                Ok::<_, DataFusionError>(stream::iter(wanted).map(move |set| expand(&batch, &set, real, &stage, &queue)))
            });
            expanded.try_flatten().boxed()
        }
        StageKind::Select { input, .. } => select(open(input, partition, run)?, Arc::clone(stage), queue),
        StageKind::Futhark { input, .. } => futhark::call(open(input, partition, run)?, Arc::clone(stage), queue, partition),
        StageKind::Fold { input, .. } => futhark::fold(merge(input, run)?, Arc::clone(stage), queue, partition),
        StageKind::Unnest { input, .. } => unnest(open(input, partition, run)?, Arc::clone(stage), queue),
        StageKind::Union { inputs } => {
            let mut first = 0;
            let own = inputs.iter().find_map(|(input, conform)| {
                let own = partition.checked_sub(first).filter(|own| *own < input.partitions);
                first += input.partitions;
                own.map(|own| (input, conform.clone(), own))
            });
            let Some((input, conform, own)) = own else { return internal_err!("partition {partition} of a union of {first}") };
            let operator = stage.operator.clone();
            let conformed = open(input, own, run)?.and_then(move |batch| {
                let (conform, queue, operator) = (conform.clone(), queue.clone(), operator.clone());
                async move { conform.run(&queue, &batch).await.map_err(|error| op_error(&operator, error)) }
            });
            conformed.boxed()
        }
        StageKind::Shared { input, sharing, .. } => batches_of(match &sharing.kept {
            Some(kept) => kept.read(sharing, input, &run.task),
            None => shared_rows(sharing.number, sharing.readers, input, run)?,
        }),
        // A limit of all partitions takes them one with another.
        StageKind::Limit { input, skip, fetch } if stage.partitions < input.partitions => {
            limit(merge(input, run)?, *skip, *fetch)
        }
        StageKind::Limit { input, skip, fetch } => limit(open(input, partition, run)?, *skip, *fetch),
        StageKind::Aggregate { input, over_joins: Some(_), .. } => {
            joins::aggregate(Arc::clone(stage), Arc::clone(input), Arc::clone(run), queue)
        }
        StageKind::Aggregate { input, .. } => match &input.kind {
            StageKind::Gather { .. } => holding(merge(input, run)?, stage, queue),
            _ => aggregate(merge(input, run)?, Arc::clone(stage), queue),
        },
        StageKind::Gather { input, concat } => {
            let held = Held::by(&stage.operator, "its input");
            let (rows, concat, operator) = (held.counted(merge(input, run)?), concat.clone(), stage.operator.clone());
            let gathered = async move {
                let batches = rows.try_collect().await?;
                concat.run(&queue, batches).await.map_err(|error| op_error(&operator, error))
            };
            let gathered = stream::once(gathered).try_filter_map(|batch| async { Ok(batch) });
            gathered.map_err(move |error| held.named(error)).boxed()
        }
        // Rows with equal keys keep their order, which is that of the partitions.
        StageKind::Sort { input, op, .. } => {
            let rows = merge_in_order(input, run)?;
            if op.keeps_all() { holding(rows, stage, queue) } else { aggregate(rows, Arc::clone(stage), queue) }
        }
        StageKind::Window { input, .. } => holding(merge_in_order(input, run)?, stage, queue),
        StageKind::Join(_) => joins::join(Arc::clone(stage), Arc::clone(run), queue),
        StageKind::Mark(_) => joins::mark(Arc::clone(stage), Arc::clone(run), queue),
    };
    // What is gathered for an operator has its metrics, and is no row of its result.
    Ok(match stage.kind {
        StageKind::Gather { .. } => batches,
        _ => batches.inspect_ok(move |batch| output_rows.add(batch.num_rows())).boxed(),
    })
}

/// Batches of one input that may be on their way through the kernels when the next one goes up.
const BATCHES_AHEAD: usize = 3;

/// Gathers host batches to `run.batch_rows` and uploads them, a few ahead of the kernels: these may never
/// wait for an answer, and memory is bounded all the same.
fn upload(input: SendableRecordBatchStream, stage: &Arc<Stage>, run: &Arc<Run>, queue: Queue) -> DeviceBatchStream {
    let (stage, run) = (Arc::clone(stage), Arc::clone(run));
    stream::try_unfold((input, VecDeque::new(), None), move |(mut input, mut consumed, mut rest)| {
        let (stage, run, queue) = (Arc::clone(&stage), Arc::clone(&run), queue.clone());
        async move {
            run.stay_close(&mut consumed, &stage.operator).await?;
            let failed = |error| columnar_error(&stage.operator, error);
            // Where one batch was full, the next one most often is.
            let expected = if consumed.len() > 1 { run.batch_rows } else { 0 };
            let coalescer = BatchCoalescer::new(&queue, &stage.schema, &stage.types, run.batch_rows);
            let mut coalescer = coalescer.with_expected_rows(expected);
            while coalescer.remaining_rows() > 0 {
                let batch: RecordBatch = match rest.take() {
                    Some(rest) => rest,
                    None => match input.next().await {
                        Some(batch) => batch?,
                        None => break,
                    },
                };
                if batch.num_rows() == 0 {
                    continue;
                }
                let batch = conform(batch, &stage.schema)?;
                let room = coalescer.remaining_rows();
                if batch.num_rows() <= room || coalescer.is_empty() {
                    coalescer.push(batch).map_err(failed)?;
                } else {
                    rest = Some(batch.slice(room, batch.num_rows() - room));
                    coalescer.push(batch.slice(0, room)).map_err(failed)?;
                }
            }
            let uploaded = coalescer.finish().map_err(failed)?;
            let next = (!uploaded.is_empty()).then(|| (stream::iter(uploaded.into_iter().map(Ok)), (input, consumed, rest)));
            Ok::<_, DataFusionError>(next)
        }
    })
    .try_flatten()
    .boxed()
}

/// Imports device arrays of somebody else, a few ahead of the kernels as [`upload`] does, and no more rows at once.
fn import(
    arrays: ImportedArrayStream,
    schema: SchemaRef,
    columns: Vec<usize>,
    decode: Arc<Decode>,
    stage: &Arc<Stage>,
    run: &Arc<Run>,
    queue: Queue,
) -> DeviceBatchStream {
    let (operator, run, batch_rows) = (stage.operator.clone(), Arc::clone(run), run.batch_rows);
    stream::try_unfold((arrays, VecDeque::new()), move |(mut arrays, mut consumed)| {
        let (operator, run, queue) = (operator.clone(), Arc::clone(&run), queue.clone());
        let (schema, columns, decode) = (Arc::clone(&schema), columns.clone(), Arc::clone(&decode));
        async move {
            run.stay_close(&mut consumed, &operator).await?;
            let Some(array) = arrays.next().await else { return Ok(None) };
            let batch = exchange::import(&queue, array.map_err(of_query)?, &schema, &columns).await;
            let batch = batch.map_err(|error| columnar_error(&operator, error))?;
            let decoded = stream::iter(batch.chunks(batch_rows)).then(move |piece| {
                let (decode, queue, operator) = (Arc::clone(&decode), queue.clone(), operator.clone());
                async move { decode.run(&queue, piece).await.map_err(|error| op_error(&operator, error)) }
            });
            Ok::<_, DataFusionError>(Some((decoded, (arrays, consumed))))
        }
    })
    .try_flatten()
    .boxed()
}

/// A host batch as its schema says. Some of DataFusion's plans yield a column's values for the
/// dictionary that the schema promises.
fn conform(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if schema.fields().is_empty() {
        return Ok(batch.project(&[])?);
    }
    let pairs = || batch.columns().iter().zip(schema.fields());
    if pairs().all(|(column, field)| column.data_type() == field.data_type()) {
        return Ok(batch);
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = pairs().map(|(column, field)| {
        let (actual, expected) = (column.data_type(), field.data_type());
        if value_type(actual) != value_type(expected) {
            return internal_err!("column {} is of type {actual}, its schema says {expected}", field.name());
        }
        Ok(cast_with_options(column, expected, &options)?)
    });
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_>>()?)?)
}

fn project(batch: &DeviceBatch, columns: &[usize], schema: &SchemaRef) -> Result<DeviceBatch> {
    let columns = columns.iter().map(|index| match batch.columns().get(*index) {
        Some(column) => Ok(column.clone()),
        None => internal_err!("column {index} of a batch of {}", batch.columns().len()),
    });
    DeviceBatch::try_new(Arc::clone(schema), columns.collect::<Result<_>>()?, batch.num_rows())
        .map_err(|error| columnar_error(ISLAND, error))
}

/// A batch with the keys that a set lacks all NULL, and the set's number.
fn expand(batch: &DeviceBatch, set: &GroupingSet, real: bool, stage: &Stage, queue: &Queue) -> Result<DeviceBatch> {
    let failed = |error| columnar_error(&stage.operator, error);
    let first = batch.columns().len().saturating_sub(set.masked.len());
    let (own, keys) = batch.columns().split_at(first);
    let keys = keys.iter().zip(&set.masked).map(|(key, masked)| key.nullable(queue, *masked));
    let mut columns = own.iter().cloned().map(Ok).chain(keys).collect::<columnar::Result<Vec<_>>>().map_err(failed)?;
    let rows = batch.num_rows();
    let constants = [(rows, set.id), (rows.div_ceil(32) * 4, if real { 0xff } else { 0 })];
    for (ty, (bytes, value)) in stage.types.iter().skip(columns.len()).zip(constants) {
        let values = queue.filled(bytes, value).map_err(|error| device_error(&stage.operator, error))?;
        columns.push(DeviceColumn::try_new(Arc::new(ty.clone()), rows, vec![values], None, None, None).map_err(failed)?);
    }
    DeviceBatch::try_new(Arc::clone(&stage.schema), columns, rows).map_err(failed)
}

fn select(input: DeviceBatchStream, stage: Arc<Stage>, queue: Queue) -> DeviceBatchStream {
    let run = move |batch: Result<DeviceBatch>| {
        let (stage, queue) = (Arc::clone(&stage), queue.clone());
        started(async move {
            let batch = batch?;
            let StageKind::Select { op, checks, .. } = &stage.kind else {
                return internal_err!("a select stage");
            };
            match op.run(&queue, &batch).await {
                Ok(selected) => Ok(selected),
                Err(error) => Err(explain(error, &stage.operator, &queue, &batch, checks).await),
            }
        })
    };
    // While the host waits for the number of one batch's survivors, the device tests the next one's rows. Errors of the
    // input keep their place.
    input.map(run).buffered(BATCHES_STARTED).try_filter(|batch| futures::future::ready(batch.num_rows() > 0)).boxed()
}

/// Batches whose first kernels run, or wait for the number of rows that they leave, at the same time.
const BATCHES_STARTED: usize = 2;

/// A future that has done what it can without waiting: its first kernels run while the input makes the next batch.
fn started<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> impl Future<Output = T> + Send {
    let mut future = future.boxed();
    let done = future.as_mut().now_or_never();
    async move {
        match done {
            Some(done) => done,
            None => future.await,
        }
    }
}

/// The elements of lists, in batches of bounded size.
fn unnest(input: DeviceBatchStream, stage: Arc<Stage>, queue: Queue) -> DeviceBatchStream {
    stream::try_unfold((input, Vec::new()), move |(mut input, mut pending)| {
        let (stage, queue) = (Arc::clone(&stage), queue.clone());
        async move {
            let StageKind::Unnest { op, .. } = &stage.kind else { return internal_err!("an unnest stage") };
            loop {
                let next = op.next(&queue, &mut pending).await;
                if let Some(batch) = next.map_err(|error| op_error(&stage.operator, error))? {
                    return Ok(Some((batch, (input, pending))));
                }
                match input.next().await {
                    Some(batch) => pending.push(batch?),
                    None => return Ok(None),
                }
            }
        }
    })
    .boxed()
}

fn limit(input: DeviceBatchStream, skip: usize, fetch: Option<usize>) -> DeviceBatchStream {
    let state = Some((input, skip, fetch.unwrap_or(usize::MAX)));
    stream::try_unfold(state, |state| async move {
        let Some((mut input, mut skip, fetch)) = state else { return Ok(None) };
        if fetch == 0 {
            return Ok(None);
        }
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if skip >= batch.num_rows() {
                skip -= batch.num_rows();
                continue;
            }
            let rows = (batch.num_rows() - skip).min(fetch);
            let batch = batch.slice(skip, rows);
            // Dropping the input as soon as the last row is out stops the work below.
            let rest = (fetch > rows).then(|| (input, 0, fetch - rows));
            return Ok(Some((batch, rest)));
        }
        Ok(None)
    })
    .boxed()
}

/// What an operator gives that must see all of its input first.
fn aggregate(mut input: DeviceBatchStream, stage: Arc<Stage>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let mut elements = Elements::of(match &stage.kind {
            StageKind::Aggregate { lists, .. } => lists,
            _ => &[],
        });
        // Operators have no type in common, but the same three steps.
        macro_rules! finished {
            ($op:ident, $checks:ident) => {{
                let mut state = $op.start();
                while let Some(batch) = input.next().await {
                    let batch = batch?;
                    elements.see(&batch)?;
                    if let Err(error) = $op.push(&queue, &mut state, &batch).await {
                        return Err(explain(error, &stage.operator, &queue, &batch, $checks).await);
                    }
                }
                drop(input);
                $op.finish(&queue, state).await.map_err(|error| op_error(&stage.operator, error))?
            }};
        }
        let batches = match &stage.kind {
            StageKind::Aggregate { op: AggregateOp::Reduce(op), checks, .. } => vec![finished!(op, checks)],
            StageKind::Aggregate { op: AggregateOp::GroupBy(op), checks, .. } => finished!(op, checks),
            StageKind::Sort { op, checks, .. } => finished!(op, checks),
            StageKind::Window { op, checks, .. } => finished!(op, checks),
            _ => return internal_err!("an aggregate stage"),
        };
        let batches = batches.into_iter().filter(|batch| batch.num_rows() > 0);
        let batches: Vec<_> = batches.map(|batch| elements.attach(&queue, &stage, batch)).collect();
        Ok(stream::iter(batches))
    })
    .try_flatten()
    .boxed()
}

/// The same of an operator that holds its input.
fn holding(input: DeviceBatchStream, stage: &Arc<Stage>, queue: Queue) -> DeviceBatchStream {
    let held = Held::by(&stage.operator, "its input");
    aggregate(held.counted(input), Arc::clone(stage), queue).map_err(move |error| held.named(error)).boxed()
}

/// All partitions of a stage as one stream, in no order; host partitions decode in tasks of their own.
fn merge(stage: &Arc<Stage>, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    if matches!(stage.kind, StageKind::Scan { .. }) && stage.partitions == 1 {
        return open(stage, 0, run);
    }
    let (sender, receiver) = mpsc::channel(stage.partitions.max(1));
    let mut tasks = JoinSet::new();
    for partition in 0..stage.partitions {
        read(open(stage, partition, run)?, sender.clone(), &mut tasks);
    }
    drop(sender);
    Ok(received(vec![receiver], tasks))
}

/// The same, one partition after another; those that wait for their turn read a few batches ahead.
fn merge_in_order(stage: &Arc<Stage>, run: &Arc<Run>) -> Result<DeviceBatchStream> {
    if stage.partitions <= 1 {
        return merge(stage, run);
    }
    let mut tasks = JoinSet::new();
    let mut receivers = Vec::with_capacity(stage.partitions);
    for partition in 0..stage.partitions {
        let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
        read(open(stage, partition, run)?, sender, &mut tasks);
        receivers.push(receiver);
    }
    Ok(received(receivers, tasks))
}

/// Reads a partition in a task of its own, up to its first error.
fn read(mut batches: DeviceBatchStream, sender: mpsc::Sender<Result<DeviceBatch>>, tasks: &mut JoinSet<()>) {
    tasks.spawn(async move {
        while let Some(batch) = batches.next().await {
            let failed = batch.is_err();
            if sender.send(batch).await.is_err() || failed {
                return;
            }
        }
    });
}

/// What the tasks send, one receiver after another.
fn received(receivers: Vec<mpsc::Receiver<Result<DeviceBatch>>>, tasks: JoinSet<()>) -> DeviceBatchStream {
    let state = (receivers.into_iter().collect::<VecDeque<_>>(), tasks);
    let merged = stream::try_unfold(state, |(mut receivers, mut tasks)| async move {
        while let Some(receiver) = receivers.front_mut() {
            if let Some(batch) = receiver.recv().await {
                return Ok(Some((batch?, (receivers, tasks))));
            }
            receivers.pop_front();
        }
        // A task that panicked closes its end of the channel without a word.
        while let Some(joined) = tasks.join_next().await {
            joined.map_err(|error| internal_datafusion_err!("a task that reads a partition failed: {error}"))?;
        }
        Ok(None)
    });
    merged.boxed()
}

/// A failed kernel's error; where a row failed, DataFusion's own message for that row.
async fn explain(
    error: kernels::Error,
    operator: &str,
    queue: &Queue,
    batch: &DeviceBatch,
    checks: &[Arc<dyn PhysicalExpr>],
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    match check_again(row, operator, queue, batch, checks).await {
        Ok(row) => {
            let values: String = format!("{:?}", row.columns()).chars().take(200).collect();
            internal_datafusion_err!("{operator}: a row failed on the device and not on the host: {values}")
        }
        Err(error) => error,
    }
}

/// A row of a batch, none of whose `checks` fails on the host.
async fn check_again(
    row: u64,
    operator: &str,
    queue: &Queue,
    batch: &DeviceBatch,
    checks: &[Arc<dyn PhysicalExpr>],
) -> Result<RecordBatch> {
    let row = columnar::download(queue, &batch.slice(row as usize, 1)).await;
    let row = row.map_err(|error| columnar_error(operator, error))?;
    for check in checks {
        check.evaluate(&row)?;
    }
    Ok(row)
}

pub(crate) fn op_error(operator: &str, error: kernels::Error) -> DataFusionError {
    match error {
        kernels::Error::Device(error) => device_error(operator, error),
        kernels::Error::Columnar(error) => columnar_error(operator, error),
        // DataFusion's own message.
        kernels::Error::AverageOverflow => exec_datafusion_err!("{error}"),
        error => exec_datafusion_err!("{operator}: {error}"),
    }
}

pub(crate) fn columnar_error(operator: &str, error: columnar::Error) -> DataFusionError {
    match error {
        columnar::Error::Device(error) => device_error(operator, error),
        error => exec_datafusion_err!("{operator}: {error}"),
    }
}
