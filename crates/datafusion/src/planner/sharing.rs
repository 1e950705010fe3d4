// SPDX-License-Identifier: Apache-2.0
//! Subplans that stand several times in an offloaded subplan, such as a CTE that is used twice, and run once; also those of scalar
//! subqueries, which run first and in offloaded subplans of their own, that stand in each other or in the main query again.
//!
//! DataFusion puts a CTE's plan wherever its name stands. What its optimizer then does to each copy may make them differ; those
//! that are still the same, or have become the same but for their columns (`merging.rs`), give the same rows.

use std::cell::Cell;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{
    ArrowSource, AvroSource, CsvSource, FileGroup, FileScanConfig, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::DynamicFilterTracking;
use datafusion::physical_expr::{AcrossPartitions, ConstExpr, PhysicalExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::exec::{
    DeviceAggregateExec, DeviceExpandExec, DeviceFilterExec, DeviceFutharkExec, DeviceJoinExec, DeviceLimitExec,
    DeviceProjectionExec, DeviceReuseExec, DeviceScanExec, DeviceSharedExec, DeviceSortExec, DeviceToHostExec, DeviceUnionExec,
    DeviceUnnestExec, DeviceWindowExec, HostToDeviceExec, Sharing, is_device,
};
use crate::expr::{AggregateCall, awaits_subquery};
use crate::planner::dynamic_filters::{of_children, with_children, without_dynamic_filters};
use crate::planner::merging::{passed_columns, with_merged_subplans};

type Plan = Arc<dyn ExecutionPlan>;

/// An offloaded subplan's operators, with those that stand there several times sharing their rows.
pub(crate) fn with_shared_subplans(plan: &Plan) -> Result<Plan> {
    let plan = without_sharing(plan)?;
    let several = plan.output_partitioning().partition_count() > 1;
    // Partitions run apart from one another, and those of one order are merged by whoever wants it: a constant of each is an order.
    let constants = plan.equivalence_properties().constants();
    let of_each = |constant: &ConstExpr| constant.across_partitions == AcrossPartitions::Heterogeneous;
    if several && (plan.output_ordering().is_some() || constants.iter().any(of_each)) {
        return Ok(plan);
    }
    let merged = with_merged_subplans(vec![plan], &is_worth_sharing)?;
    let [plan] =
        <[_; 1]>::try_from(merged).map_err(|plans| internal_datafusion_err!("{} offloaded subplans of one", plans.len()))?;
    let mut subplans = Vec::new();
    collect(&plan, &mut subplans);
    subplans.retain(|subplan| subplan.readers > 1);
    if subplans.is_empty() {
        return Ok(plan);
    }
    let shared = share(&plan, &mut subplans)?;
    if !several {
        return Ok(shared);
    }
    Ok(Arc::new(DeviceLimitExec::try_new(Arc::new(GlobalLimitExec::new(shared, 0, None)))?))
}

/// The part of a plan that one offloaded subplan runs.
struct Run {
    /// The offloaded subplan, or its operators where it has none yet.
    of: Plan,
    /// The operators, without what they had shared.
    plan: Plan,
    /// Whether it comes after all subqueries.
    is_main: bool,
}

/// Inputs of a scalar subquery's operator, the main query's and then the subqueries', with those that have operators in common
/// reading what the first of them keeps; `count` numbers such rows, `offloaded subplan` puts an offloaded subplan anew over other operators. Rows are
/// held whole, so that only those are kept that an aggregation or a top-k has held anyway: rows of a join would take memory that
/// two runs of it do not.
pub(crate) fn shared_with_subqueries(
    inputs: Vec<Plan>,
    count: &Cell<usize>,
    offload: &dyn Fn(Plan, &str) -> Result<Plan>,
) -> Result<Vec<Plan>> {
    let mut runs = Vec::new();
    // The main query is the first of them, and runs last.
    for index in (1..inputs.len()).chain([0]) {
        of_runs(&inputs[index], &mut |of| {
            let own = of.downcast_ref::<DeviceToHostExec>().map_or(of, DeviceToHostExec::input);
            let plan = without_sharing(&without_dynamic_filters(own)?)?;
            if may_share(&plan) {
                runs.push(Run { of: Arc::clone(of), plan, is_main: index == 0 });
            }
            Ok(Arc::clone(of))
        })?;
    }
    let may_be_kept = |plan: &Plan| is_held(plan) && !awaits_subqueries(plan);
    let mut plans = with_merged_subplans(runs.iter().map(|run| Arc::clone(&run.plan)).collect(), &may_be_kept)?;
    while let Some((subplan, readers)) = uppermost_of_several(&plans, &may_be_kept) {
        count.set(count.get() + 1);
        let mut sharing = Sharing { number: count.get(), readers, cache: Some(Arc::default()), is_last: false };
        let mut placed = false;
        let in_main = plans.iter().zip(&runs).filter(|(plan, run)| run.is_main && runs_with(plan, &subplan) > 0).count();
        for (plan, run) in plans.iter_mut().zip(&runs) {
            if runs_with(plan, &subplan) == 0 {
                continue;
            }
            sharing.is_last = run.is_main && in_main == 1;
            let by = |found: &Plan| -> Plan {
                if placed {
                    Arc::new(DeviceReuseExec::new(Arc::clone(found), sharing.clone()))
                } else {
                    Arc::new(DeviceSharedExec::new(Arc::clone(found), sharing.clone()))
                }
            };
            *plan = replaced(plan, &subplan, &by)?;
            placed = true;
        }
    }
    let mut kept = Vec::new();
    plans.iter().for_each(|plan| find_shared(plan, true, &mut kept));
    let plans = plans.iter().map(|plan| renew(plan, true, &kept)).collect::<Result<Vec<_>>>()?;
    let mut as_before = true;
    let mut current = |of: &Plan| {
        let run = runs.iter().zip(&plans).find(|(run, _)| Arc::ptr_eq(&run.of, of));
        let Some((_, plan)) = run.filter(|(run, plan)| !Arc::ptr_eq(&run.plan, plan)) else { return Ok(Arc::clone(of)) };
        let Some(before) = of.downcast_ref::<DeviceToHostExec>() else { return Ok(Arc::clone(plan)) };
        let top = offload(Arc::clone(plan), before.destination())?;
        // Operators of the host above count on both.
        let in_order = match of.output_ordering() {
            Some(ordering) => top.equivalence_properties().ordering_satisfy(ordering.clone())?,
            None => true,
        };
        let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
        as_before &= in_order && partitions(&top) == partitions(of);
        Ok(top)
    };
    let sharing = inputs.iter().map(|input| of_runs(input, &mut current)).collect::<Result<Vec<_>>>()?;
    // Each of them counts on all readers that were counted.
    Ok(if as_before { sharing } else { inputs })
}

/// A plan over what `f` makes of its offloaded subplans, or of the operators that will be one. Offloaded subplans below others stay.
fn of_runs(plan: &Plan, f: &mut dyn FnMut(&Plan) -> Result<Plan>) -> Result<Plan> {
    if is_device(plan) || plan.is::<DeviceToHostExec>() {
        return f(plan);
    }
    let children = plan.children().into_iter().map(|child| of_runs(child, f)).collect::<Result<Vec<_>>>()?;
    with_children(plan, children)
}

/// Whether each place of a subplan is read once: partitions of one order are merged by whoever wants it, and share nothing.
fn may_share(input: &Plan) -> bool {
    input.output_partitioning().partition_count() == 1 || input.output_ordering().is_none()
}

/// Operators that stand in several runs and not within others that do, with the number of these runs.
fn uppermost_of_several(plans: &[Plan], may_be_kept: &dyn Fn(&Plan) -> bool) -> Option<(Plan, usize)> {
    let mut subplans: Vec<(Plan, usize)> = Vec::new();
    for plan in plans {
        let mut own = Vec::new();
        collect(plan, &mut own);
        for Subplan { plan, .. } in own {
            if subplans.iter().any(|(known, _)| same_rows(known, &plan)) || !may_be_kept(&plan) {
                continue;
            }
            let runs = plans.iter().map(|other| runs_with(other, &plan)).sum();
            if runs > 1 {
                subplans.push((plan, runs));
            }
        }
    }
    let within_another = |plan: &Plan| subplans.iter().any(|(other, _)| lies_in(other, plan));
    let uppermost = subplans.iter().position(|(plan, _)| !within_another(plan))?;
    Some(subplans.swap_remove(uppermost))
}

/// In how many runs of a plan's operators a subplan stands: kept rows are computed by a run of their own.
fn runs_with(plan: &Plan, subplan: &Plan) -> usize {
    let mut kept = Vec::new();
    find_shared(plan, true, &mut kept);
    // They may stand at several places.
    kept.sort_by_key(|(number, _)| *number);
    kept.dedup_by_key(|(number, _)| *number);
    kept.iter().map(|(_, input)| usize::from(stands_in(input, subplan))).sum::<usize>() + usize::from(stands_in(plan, subplan))
}

/// Whether the rows are no more than an operator below has held at once. Whoever reads them projects them for himself, so that
/// those who want other columns read the same rows.
fn is_held(plan: &Plan) -> bool {
    if plan.is::<DeviceFilterExec>() {
        return plan.children().into_iter().all(is_held);
    }
    plan.is::<DeviceAggregateExec>() || plan.downcast_ref::<DeviceSortExec>().is_some_and(|sort| sort.fetch_rows().is_some())
}

/// Whether a run of `plan` reads the rows of `subplan`.
fn stands_in(plan: &Plan, subplan: &Plan) -> bool {
    is_device(plan) && (same_rows(plan, subplan) || lies_in(plan, subplan))
}

/// Whether `inner` stands below the top of `outer`.
pub(super) fn lies_in(outer: &Plan, inner: &Plan) -> bool {
    let of_its_run = !outer.is::<HostToDeviceExec>() && !is_kept(outer);
    of_its_run && outer.children().into_iter().any(|child| stands_in(child, inner))
}

fn replaced(plan: &Plan, subplan: &Plan, by: &dyn Fn(&Plan) -> Plan) -> Result<Plan> {
    if same_rows(plan, subplan) { Ok(by(plan)) } else { of_children(plan, |child| replaced(child, subplan, by)) }
}

fn awaits_subqueries(plan: &Plan) -> bool {
    let mut awaits = false;
    let found = plan.apply_expressions(&mut |expr| {
        awaits |= awaits_subquery(expr);
        Ok(TreeNodeRecursion::Continue)
    });
    found.is_err() || awaits || !plan.is::<HostToDeviceExec>() && plan.children().into_iter().any(awaits_subqueries)
}

fn sharing_of(plan: &Plan) -> Option<&Sharing> {
    let shared = plan.downcast_ref::<DeviceSharedExec>().map(DeviceSharedExec::sharing);
    shared.or_else(|| plan.downcast_ref::<DeviceReuseExec>().map(DeviceReuseExec::sharing))
}

pub(super) fn is_kept(plan: &Plan) -> bool {
    sharing_of(plan).is_some_and(|sharing| sharing.cache.is_some())
}

/// Operators without sharing among them, as they were in the offloaded subplans that have become one.
pub(super) fn without_sharing(plan: &Plan) -> Result<Plan> {
    if !is_kept(plan) {
        if let Some(shared) = plan.downcast_ref::<DeviceSharedExec>() {
            return without_sharing(shared.input());
        }
        if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>() {
            return without_sharing(reuse.shared());
        }
    }
    of_children(plan, without_sharing)
}

/// The same with all who read shared rows knowing what their operators have become since.
pub(crate) fn with_current_subplans(plan: &Plan) -> Result<Plan> {
    let mut shared = Vec::new();
    find_shared(plan, false, &mut shared);
    if shared.is_empty() { Ok(Arc::clone(plan)) } else { renew(plan, false, &shared) }
}

/// Operators that may share their rows.
struct Subplan {
    plan: Plan,
    readers: usize,
    placed: bool,
}

/// Collects subplans that are worth sharing, each with the number of places where it stands.
fn collect(plan: &Plan, subplans: &mut Vec<Subplan>) {
    if !is_device(plan) || plan.is::<HostToDeviceExec>() {
        return;
    }
    if is_worth_sharing(plan) {
        if let Some(known) = subplans.iter_mut().find(|known| same_rows(&known.plan, plan)) {
            known.readers += 1;
            return;
        }
        subplans.push(Subplan { plan: Arc::clone(plan), readers: 1, placed: false });
    }
    plan.children().into_iter().for_each(|child| collect(child, subplans));
}

/// Whether more is done for the rows than to read them.
fn is_worth_sharing(plan: &Plan) -> bool {
    fn any_works(plan: &Plan) -> bool {
        is_device(plan) && !plan.is::<HostToDeviceExec>() && (works(plan) || plan.children().into_iter().any(any_works))
    }
    let brings_value = plan.downcast_ref::<DeviceJoinExec>().is_some_and(|join| join.spec.scalar.is_some());
    // Each reader takes the columns that it wants, and has the value of a subquery brought to him.
    plan.output_partitioning().partition_count() == 1 && passed_columns(plan).is_none() && !brings_value && any_works(plan)
}

/// Whether an operator does more than compute columns of single rows, or drop some.
pub(super) fn works(plan: &Plan) -> bool {
    plan.is::<DeviceAggregateExec>()
        || plan.is::<DeviceJoinExec>()
        || plan.is::<DeviceSortExec>()
        || plan.is::<DeviceWindowExec>()
        || plan.is::<DeviceReuseExec>()
}

fn share(plan: &Plan, subplans: &mut [Subplan]) -> Result<Plan> {
    if !is_device(plan) || plan.is::<HostToDeviceExec>() {
        return Ok(Arc::clone(plan));
    }
    let Some(index) = subplans.iter().position(|known| same_rows(&known.plan, plan)) else {
        return of_children(plan, |child| share(child, subplans));
    };
    let sharing = Sharing { number: index + 1, readers: subplans[index].readers, cache: None, is_last: false };
    if std::mem::replace(&mut subplans[index].placed, true) {
        return Ok(Arc::new(DeviceReuseExec::new(Arc::clone(plan), sharing)));
    }
    let input = of_children(plan, |child| share(child, subplans))?;
    Ok(Arc::new(DeviceSharedExec::new(input, sharing)))
}

/// Whose rows are shared, by number: those that are `kept` for other offloaded subplans, or those of the offloaded subplan.
fn find_shared(plan: &Plan, kept: bool, shared: &mut Vec<(usize, Plan)>) {
    if let Some(node) = plan.downcast_ref::<DeviceSharedExec>()
        && node.sharing().cache.is_some() == kept
    {
        shared.push((node.number(), Arc::clone(node.input())));
    }
    if is_device(plan) && !plan.is::<HostToDeviceExec>() {
        plan.children().into_iter().for_each(|child| find_shared(child, kept, shared));
    }
}

fn renew(plan: &Plan, kept: bool, shared: &[(usize, Plan)]) -> Result<Plan> {
    if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>()
        && reuse.sharing().cache.is_some() == kept
    {
        let current = shared.iter().find(|(number, _)| *number == reuse.number());
        return Ok(match current {
            Some((_, input)) => Arc::new(DeviceReuseExec::new(renew(input, kept, shared)?, reuse.sharing().clone())),
            None => Arc::clone(plan),
        });
    }
    of_children(plan, |child| renew(child, kept, shared))
}

/// Whether two subplans surely give the same rows.
pub(super) fn same_rows(a: &Plan, b: &Plan) -> bool {
    Arc::ptr_eq(a, b)
        || a.name() == b.name()
            && a.schema() == b.schema()
            && same_operator(a, b)
            && (a.is::<HostToDeviceExec>() || a.children().len() == b.children().len())
            && (a.is::<HostToDeviceExec>() || a.children().into_iter().zip(b.children()).all(|(a, b)| same_rows(a, b)))
}

/// Whether two operators do the same to their inputs.
fn same_operator(a: &Plan, b: &Plan) -> bool {
    macro_rules! compare {
        ($($node:ident => |$a:ident, $b:ident| $same:expr),* $(,)?) => {
            $(if let (Some($a), Some($b)) = (a.downcast_ref::<$node>(), b.downcast_ref::<$node>()) {
                return $same;
            })*
        };
    }
    compare! {
        DeviceScanExec => |a, b| Arc::ptr_eq(a.snapshot(), b.snapshot()) && a.columns() == b.columns(),
        HostToDeviceExec => |a, b| same_source(a.input(), b.input()),
        DeviceFilterExec => |a, b| a.predicate() == b.predicate() && a.projection() == b.projection(),
        DeviceProjectionExec => |a, b| a.expressions() == b.expressions(),
        DeviceAggregateExec => |a, b| {
            a.spec.keys == b.spec.keys
                && a.spec.calls.len() == b.spec.calls.len()
                && a.spec.calls.iter().zip(&b.spec.calls).all(|(a, b)| same_call(a, b))
        },
        DeviceSortExec => |a, b| a.keys() == b.keys() && a.fetch_rows() == b.fetch_rows(),
        DeviceLimitExec => |a, b| (a.skip(), a.fetch_rows()) == (b.skip(), b.fetch_rows()),
        DeviceExpandExec => |a, b| a.sets() == b.sets(),
        DeviceFutharkExec => |a, b| a.calls() == b.calls(),
        DeviceUnionExec => |_a, _b| true,
        DeviceSharedExec => |a, b| same_kept(a.sharing(), b.sharing()),
        DeviceReuseExec => |a, b| same_kept(a.sharing(), b.sharing()),
        DeviceUnnestExec => |a, b| (a.lists(), a.keeps()) == (b.lists(), b.keeps()),
        // They compare as they print: expressions and frames in full.
        DeviceWindowExec => |a, b| format!("{:?}", a.functions()) == format!("{:?}", b.functions()),
        DeviceJoinExec => |a, b| {
            let (a, b) = (&a.spec, &b.spec);
            (a.join_type, a.null_equals_null, a.null_aware, &a.scalar)
                == (b.join_type, b.null_equals_null, b.null_aware, &b.scalar)
                && a.on == b.on
                && a.projection == b.projection
                && same_condition(a.filter.as_ref(), b.filter.as_ref())
        },
    }
    false
}

fn same_kept(a: &Sharing, b: &Sharing) -> bool {
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
        _ => false,
    }
}

/// Whether an expression has the same values each time: what a filter learns while the query runs is another's, and random
/// numbers are others.
pub(super) fn is_fixed(expr: &Arc<dyn PhysicalExpr>) -> bool {
    !is_volatile(expr) && !DynamicFilterTracking::classify(expr).contains_dynamic_filter()
}

/// Whether two scans of the host read the same: rows in memory, or files.
pub(super) fn same_source(a: &Plan, b: &Plan) -> bool {
    if Arc::ptr_eq(a, b) {
        return true;
    }
    let (Some(a_scan), Some(b_scan)) = (a.downcast_ref::<DataSourceExec>(), b.downcast_ref::<DataSourceExec>()) else {
        return false;
    };
    let (a_source, b_source) = (a_scan.data_source(), b_scan.data_source());
    if let (Some(a), Some(b)) = (a_source.downcast_ref::<MemorySourceConfig>(), b_source.downcast_ref::<MemorySourceConfig>()) {
        let batches = |source: &MemorySourceConfig| source.partitions().iter().map(Vec::len).collect::<Vec<_>>();
        return a.projection() == b.projection()
            && a_source.fetch() == b_source.fetch()
            && batches(a) == batches(b)
            && a.partitions().iter().flatten().zip(b.partitions().iter().flatten()).all(|(a, b)| {
                a.num_rows() == b.num_rows()
                    && a.num_columns() == b.num_columns()
                    && a.columns().iter().zip(b.columns()).all(|(a, b)| Arc::ptr_eq(a, b))
            });
    }
    let (Some(a_files), Some(b_files)) = (a_source.downcast_ref::<FileScanConfig>(), b_source.downcast_ref::<FileScanConfig>())
    else {
        return false;
    };
    let (a_source, b_source) = (a_files.file_source(), b_files.file_source());
    let text = |plan: &Plan| DisplayableExecutionPlan::new(plan.as_ref()).indent(true).to_string();
    let files = |group: &FileGroup| {
        let files = group.iter().map(|file| (file.object_meta.clone(), file.range.clone(), file.partition_values.clone()));
        files.collect::<Vec<_>>()
    };
    same_format(a_source, b_source)
        && a_source.filter().iter().all(is_fixed)
        && a_source.projection().is_none_or(|projection| projection.iter().all(|output| is_fixed(&output.expr)))
        && a_source.filter() == b_source.filter()
        && a_source.projection() == b_source.projection()
        && text(a) == text(b)
        && a_files.object_store_url == b_files.object_store_url
        && a_files.limit == b_files.limit
        && a_files.file_compression_type == b_files.file_compression_type
        && a_files.file_groups.iter().map(files).eq(b_files.file_groups.iter().map(files))
}

/// Whether two sources read files in the same way.
fn same_format(a: &Arc<dyn FileSource>, b: &Arc<dyn FileSource>) -> bool {
    let both = |is: fn(&Arc<dyn FileSource>) -> bool| is(a) && is(b);
    if let (Some(a), Some(b)) = (a.downcast_ref::<CsvSource>(), b.downcast_ref::<CsvSource>()) {
        // Some of its options it tells in no other way.
        return format!("{a:?}") == format!("{b:?}");
    }
    // JSON has an option that it tells nobody.
    Arc::ptr_eq(a, b)
        || both(|source| source.downcast_ref::<ParquetSource>().is_some())
        || both(|source| source.downcast_ref::<AvroSource>().is_some())
        || both(|source| source.downcast_ref::<ArrowSource>().is_some())
}
