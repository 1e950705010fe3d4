// SPDX-License-Identifier: Apache-2.0
//! Equality of subplans: whether two surely give the same rows.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{
    ArrowSource, AvroSource, CsvSource, FileGroup, FileScanConfig, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;

use crate::exec::{DeviceOperator, JoinSpec, Sharing, device_inputs, is_device};
use crate::expr::AggregateCall;

/// Whether two subplans surely give the same rows.
pub(super) fn same_rows(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> bool {
    let same_inputs = || {
        let (a, b) = (device_inputs(a), device_inputs(b));
        a.len() == b.len() && a.into_iter().zip(b).all(|(a, b)| same_rows(a, b))
    };
    Arc::ptr_eq(a, b) || same_operator(a, b) && same_inputs()
}

/// Whether `inner` stands below the top of `outer`, in the same run. Cached rows are computed by a
/// run of their own.
fn contains_below(outer: &Arc<dyn ExecutionPlan>, inner: &Arc<dyn ExecutionPlan>) -> bool {
    !is_cached(outer) && device_inputs(outer).into_iter().any(|input| reads_rows_of(input, inner))
}

/// Whether a run of `plan` reads the rows of `subplan`.
pub(super) fn reads_rows_of(plan: &Arc<dyn ExecutionPlan>, subplan: &Arc<dyn ExecutionPlan>) -> bool {
    is_device(plan) && (same_rows(plan, subplan) || contains_below(plan, subplan))
}

/// Whether the rows of an operator are cached for several offloaded subplans.
pub(super) fn is_cached(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let sharing = DeviceOperator::of(plan).and_then(DeviceOperator::sharing);
    sharing.is_some_and(|sharing| sharing.cache.is_some())
}

/// Whether two operators do the same to their inputs.
pub(super) fn same_operator(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> bool {
    #[cfg(test)]
    comparisons::count();
    a.name() == b.name() && a.schema() == b.schema() && same_work(a, b)
}

fn same_work(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> bool {
    /// Compares with `b`, if it is the same operator.
    fn with<T: ExecutionPlan>(b: &Arc<dyn ExecutionPlan>, same: impl FnOnce(&T) -> bool) -> bool {
        b.downcast_ref::<T>().is_some_and(same)
    }
    use crate::exec::*;
    let Some(operator) = DeviceOperator::of(a) else { return false };
    match operator {
        DeviceOperator::Scan(a) => {
            with(b, |b: &DeviceScanExec| Arc::ptr_eq(a.snapshot(), b.snapshot()) && a.columns() == b.columns())
        }
        DeviceOperator::Upload(a) => with(b, |b: &HostToDeviceExec| same_source(a.input(), b.input())),
        DeviceOperator::Filter(a) => {
            with(b, |b: &DeviceFilterExec| a.predicate() == b.predicate() && a.projection() == b.projection())
        }
        DeviceOperator::Projection(a) => with(b, |b: &DeviceProjectionExec| a.expressions() == b.expressions()),
        DeviceOperator::Aggregate(a) => with(b, |b: &DeviceAggregateExec| {
            let (a, b) = (&a.spec, &b.spec);
            a.keys == b.keys && a.calls.len() == b.calls.len() && a.calls.iter().zip(&b.calls).all(|(a, b)| same_call(a, b))
        }),
        DeviceOperator::Sort(a) => with(b, |b: &DeviceSortExec| a.keys() == b.keys() && a.fetch_rows() == b.fetch_rows()),
        DeviceOperator::Limit(a) => with(b, |b: &DeviceLimitExec| (a.skip(), a.fetch_rows()) == (b.skip(), b.fetch_rows())),
        DeviceOperator::Expand(a) => with(b, |b: &DeviceExpandExec| a.sets() == b.sets()),
        DeviceOperator::Futhark(a) => with(b, |b: &DeviceFutharkExec| a.calls() == b.calls()),
        DeviceOperator::Union(_) => with(b, |_: &DeviceUnionExec| true),
        DeviceOperator::Shared(a) => with(b, |b: &DeviceSharedExec| same_cache(a.sharing(), b.sharing())),
        DeviceOperator::Reuse(a) => with(b, |b: &DeviceReuseExec| same_cache(a.sharing(), b.sharing())),
        DeviceOperator::Unnest(a) => with(b, |b: &DeviceUnnestExec| (a.lists(), a.keeps()) == (b.lists(), b.keeps())),
        // Window expressions have no equality, but print expressions and frames in full.
        DeviceOperator::Window(a) => {
            with(b, |b: &DeviceWindowExec| format!("{:?}", a.functions()) == format!("{:?}", b.functions()))
        }
        DeviceOperator::Join(a) => with(b, |b: &DeviceJoinExec| same_join(&a.spec, &b.spec)),
        // The same filter keeps its rows in another table; a stream gives its rows once.
        DeviceOperator::DynamicFilter(_) | DeviceOperator::Stream(_) => false,
    }
}

fn same_join(a: &JoinSpec, b: &JoinSpec) -> bool {
    let flags = |spec: &JoinSpec| (spec.join_type, spec.null_equals_null, spec.null_aware, spec.scalar.clone());
    flags(a) == flags(b) && a.on == b.on && a.projection == b.projection && same_condition(a.filter.as_ref(), b.filter.as_ref())
}

fn same_cache(a: &Sharing, b: &Sharing) -> bool {
    matches!((&a.cache, &b.cache), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
}

pub(super) fn same_call(a: &AggregateCall, b: &AggregateCall) -> bool {
    let of = |call: &AggregateCall| {
        let function = &call.function;
        (function.fun().clone(), function.is_distinct(), function.ignore_nulls(), function.field(), call.selected_by_rank)
    };
    of(a) == of(b) && a.arguments == b.arguments && a.filter == b.filter
}

fn same_condition(a: Option<&JoinFilter>, b: Option<&JoinFilter>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some(a), Some(b)) => a.expression() == b.expression() && a.column_indices() == b.column_indices(),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// Whether an expression has the same values in each use: it is not volatile, and has no dynamic
/// filter.
pub(super) fn is_fixed(expr: &Arc<dyn PhysicalExpr>) -> bool {
    !is_volatile(expr) && !DynamicFilterTracking::classify(expr).contains_dynamic_filter()
}

/// Whether two scans of the host read the same rows in memory, or the same files.
pub(super) fn same_source(a: &Arc<dyn ExecutionPlan>, b: &Arc<dyn ExecutionPlan>) -> bool {
    if Arc::ptr_eq(a, b) {
        return true;
    }
    let (Some(a_scan), Some(b_scan)) = (a.downcast_ref::<DataSourceExec>(), b.downcast_ref::<DataSourceExec>()) else {
        return false;
    };
    let (a_source, b_source) = (a_scan.data_source(), b_scan.data_source());
    if let (Some(a), Some(b)) = (a_source.downcast_ref::<MemorySourceConfig>(), b_source.downcast_ref::<MemorySourceConfig>()) {
        return a_source.fetch() == b_source.fetch() && same_memory(a, b);
    }
    let (Some(a_files), Some(b_files)) = (a_source.downcast_ref::<FileScanConfig>(), b_source.downcast_ref::<FileScanConfig>())
    else {
        return false;
    };
    let printed = |plan: &Arc<dyn ExecutionPlan>| DisplayableExecutionPlan::new(plan.as_ref()).indent(true).to_string();
    same_files(a_files, b_files) && printed(a) == printed(b)
}

/// Adds what two scans have in common if [`same_source`] accepts them, whatever their columns.
pub(super) fn hash_source(plan: &Arc<dyn ExecutionPlan>, hasher: &mut impl Hasher) {
    let Some(scan) = plan.downcast_ref::<DataSourceExec>() else {
        return Arc::as_ptr(plan).cast::<()>().hash(hasher);
    };
    if let Some(memory) = scan.data_source().downcast_ref::<MemorySourceConfig>() {
        let first = memory.partitions().iter().flatten().next().and_then(|batch| batch.columns().first());
        first.map(|column| Arc::as_ptr(column).cast::<()>()).hash(hasher);
    } else if let Some(files) = scan.data_source().downcast_ref::<FileScanConfig>() {
        let first = files.file_groups.iter().flat_map(|group| group.iter()).next();
        first.map(|file| &file.object_meta.location).hash(hasher);
    }
}

fn same_memory(a: &MemorySourceConfig, b: &MemorySourceConfig) -> bool {
    let batches = |source: &MemorySourceConfig| source.partitions().iter().map(Vec::len).collect::<Vec<_>>();
    a.projection() == b.projection()
        && batches(a) == batches(b)
        && a.partitions().iter().flatten().zip(b.partitions().iter().flatten()).all(|(a, b)| {
            a.num_rows() == b.num_rows()
                && a.num_columns() == b.num_columns()
                && a.columns().iter().zip(b.columns()).all(|(a, b)| Arc::ptr_eq(a, b))
        })
}

fn same_files(a: &FileScanConfig, b: &FileScanConfig) -> bool {
    let (a_source, b_source) = (a.file_source(), b.file_source());
    let files = |group: &FileGroup| {
        let files = group.iter().map(|file| (file.object_meta.clone(), file.range.clone(), file.partition_values.clone()));
        files.collect::<Vec<_>>()
    };
    same_format(a_source, b_source)
        && a_source.filter().iter().all(is_fixed)
        && a_source.projection().is_none_or(|projection| projection.iter().all(|output| is_fixed(&output.expr)))
        && a_source.filter() == b_source.filter()
        && a_source.projection() == b_source.projection()
        && a.object_store_url == b.object_store_url
        && a.limit == b.limit
        && a.file_compression_type == b.file_compression_type
        && a.file_groups.iter().map(files).eq(b.file_groups.iter().map(files))
}

/// Whether two sources read files in the same way.
fn same_format(a: &Arc<dyn FileSource>, b: &Arc<dyn FileSource>) -> bool {
    let both = |is: fn(&Arc<dyn FileSource>) -> bool| is(a) && is(b);
    if let (Some(a), Some(b)) = (a.downcast_ref::<CsvSource>(), b.downcast_ref::<CsvSource>()) {
        // `Debug` alone shows some of its options.
        return format!("{a:?}") == format!("{b:?}");
    }
    // JsonSource has an option that no method shows.
    Arc::ptr_eq(a, b)
        || both(|source| source.downcast_ref::<ParquetSource>().is_some())
        || both(|source| source.downcast_ref::<AvroSource>().is_some())
        || both(|source| source.downcast_ref::<ArrowSource>().is_some())
}

/// Counts comparisons of subplans, for tests of their growth.
#[cfg(test)]
pub(super) mod comparisons {
    use std::cell::Cell;

    thread_local! {
        static COUNT: Cell<usize> = const { Cell::new(0) };
    }

    pub fn count() {
        COUNT.set(COUNT.get() + 1);
    }

    /// Comparisons of this thread since the last call.
    pub fn take() -> usize {
        COUNT.replace(0)
    }
}
