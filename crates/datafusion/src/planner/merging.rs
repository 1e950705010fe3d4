// SPDX-License-Identifier: Apache-2.0
//! Subplans that are the same but for their columns: DataFusion's optimizer leaves each use of a CTE the columns that it reads.
//! They become one that has the columns of all, from which each use picks its own.
//!
//! What may fail must be asked for by all of them: the use that alone asks for it may be one that never runs, such as below a join
//! without build rows. Uses that differ in that have what lies below it in common, and compute it each for themselves.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::CsvOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinSide, Result, internal_datafusion_err};
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{CsvSource, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::equivalence::{ProjectionMapping, join_equivalence_properties};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter::FilterExecBuilder;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter, build_join_schema};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions};

use crate::exec::{
    AggregateSpec, DeviceAggregateExec, DeviceFilterExec, DeviceJoinExec, DeviceLimitExec, DeviceProjectionExec, DeviceScanExec,
    DeviceSortExec, DeviceUnionExec, HostToDeviceExec, JoinSpec, is_device,
};
use crate::expr::{AggregateCall, awaits_subquery, may_fail};
use crate::planner::dynamic_filters::of_children;
use crate::planner::sharing::{is_fixed, is_kept, lies_in, same_call, same_rows, same_source, works};

type Plan = Arc<dyn ExecutionPlan>;
type Expr = Arc<dyn PhysicalExpr>;

/// The same plans with one subplan for those that differ in their columns alone, as far as they are `wanted`.
pub(super) fn with_merged_subplans(mut plans: Vec<Plan>, wanted: &dyn Fn(&Plan) -> bool) -> Result<Vec<Plan>> {
    while let Some(uses) = first_group(&plans, wanted) {
        let merged = plans.iter().map(|plan| with_uses(plan, &uses)).collect::<Result<Vec<_>>>()?;
        // Each step leaves fewer operators to run, so that there is a last one.
        if operators(&merged) >= operators(&plans) {
            break;
        }
        plans = merged;
    }
    Ok(plans)
}

/// How many operators run that do more than pass rows on, if those that are the same run once.
fn operators(plans: &[Plan]) -> usize {
    let mut found = Vec::new();
    plans.iter().for_each(|plan| collect(plan, &works, &mut found));
    found.len()
}

/// Collects different subplans, the upper ones first.
fn collect(plan: &Plan, wanted: &dyn Fn(&Plan) -> bool, found: &mut Vec<Plan>) {
    // Kept rows are of a run of their own.
    if !is_device(plan) || plan.is::<HostToDeviceExec>() || is_kept(plan) || found.iter().any(|known| same_rows(known, plan)) {
        return;
    }
    if wanted(plan) {
        found.push(Arc::clone(plan));
    }
    plan.children().into_iter().for_each(|child| collect(child, wanted, found));
}

/// Subplans that can be one, each with what it becomes.
fn first_group(plans: &[Plan], wanted: &dyn Fn(&Plan) -> bool) -> Option<Vec<(Plan, Plan)>> {
    let mut subplans = Vec::new();
    // Each use projects for itself.
    let wanted = |plan: &Plan| !plan.is::<DeviceProjectionExec>() && wanted(plan);
    plans.iter().for_each(|plan| collect(plan, &wanted, &mut subplans));
    subplans.iter().enumerate().find_map(|(index, first)| {
        let mut merged = Merged::same(first).plan;
        let mut uses = vec![(Arc::clone(first), Merged::same(first).a)];
        for other in &subplans[index + 1..] {
            if uses.iter().any(|(known, _)| lies_in(known, other) || lies_in(other, known)) {
                continue;
            }
            let Some(both) = merge(&merged, other, true) else { continue };
            for (_, columns) in &mut uses {
                columns.iter_mut().for_each(|column| *column = both.a[*column]);
            }
            uses.push((Arc::clone(other), both.b));
            merged = both.plan;
        }
        let picked = uses.into_iter().map(|(plan, columns)| picked(&merged, &columns, &plan).map(|picked| (plan, picked)));
        picked.collect::<Option<Vec<_>>>().filter(|uses| uses.len() > 1)
    })
}

/// A merged subplan as a use had it: its columns by their names, and its order. `None` where something is not as it was.
fn picked(merged: &Plan, columns: &[usize], use_of: &Plan) -> Option<Plan> {
    let schema = use_of.schema();
    let picked = if merged.schema() == schema && columns.iter().enumerate().all(|(index, column)| index == *column) {
        Arc::clone(merged)
    } else {
        let outputs =
            columns.iter().zip(schema.fields()).map(|(column, field)| (column_of(merged, *column), field.name().clone()));
        let projection = ProjectionExec::try_new_with_schema_metadata(outputs, Arc::clone(merged), &schema).ok()?;
        Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?)
    };
    let in_order = match use_of.output_ordering() {
        Some(ordering) => picked.equivalence_properties().ordering_satisfy(ordering.clone()).ok()?,
        None => true,
    };
    let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
    (in_order && picked.schema() == schema && partitions(&picked) == partitions(use_of)).then_some(picked)
}

fn column_of(plan: &Plan, index: usize) -> Expr {
    Arc::new(Column::new(plan.schema().field(index).name(), index))
}

/// A plan with what its subplans become.
fn with_uses(plan: &Plan, uses: &[(Plan, Plan)]) -> Result<Plan> {
    if is_kept(plan) {
        return Ok(Arc::clone(plan));
    }
    if let Some((_, becomes)) = uses.iter().find(|(subplan, _)| same_rows(subplan, plan)) {
        return Ok(Arc::clone(becomes));
    }
    let with = of_children(plan, |child| with_uses(child, uses))?;
    Ok(if Arc::ptr_eq(&with, plan) { with } else { one_projection(&with).unwrap_or(with) })
}

/// A projection of a projection that passes columns on, as one.
fn one_projection(plan: &Plan) -> Option<Plan> {
    let upper = plan.downcast_ref::<DeviceProjectionExec>()?;
    let (columns, below) = (passed_columns(input(plan)?)?, input(input(plan)?)?);
    let outputs = upper.expressions().iter().map(|output| Some((moved(&output.expr, &columns, below)?, output.alias.clone())));
    let outputs = outputs.collect::<Option<Vec<_>>>()?;
    let projection = ProjectionExec::try_new_with_schema_metadata(outputs, Arc::clone(below), &plan.schema()).ok()?;
    Some(Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?))
}

/// The columns that a projection passes on, if it does no more.
pub(super) fn passed_columns(plan: &Plan) -> Option<Vec<usize>> {
    let outputs = plan.downcast_ref::<DeviceProjectionExec>()?.expressions().iter();
    outputs.map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect()
}

/// One plan in place of two, `a` and `b`, with the places of their columns in it.
struct Merged {
    plan: Plan,
    a: Vec<usize>,
    b: Vec<usize>,
}

impl Merged {
    /// Of two that are the same.
    fn same(plan: &Plan) -> Merged {
        let columns: Vec<usize> = (0..plan.schema().fields().len()).collect();
        Merged { plan: Arc::clone(plan), a: columns.clone(), b: columns }
    }

    /// `plan`, which gives `columns`, for two that had `a` and `b` of them.
    fn of(plan: impl ExecutionPlan + 'static, columns: &[usize], a: &[usize], b: &[usize]) -> Option<Merged> {
        let places = |wanted: &[usize]| {
            wanted.iter().map(|wanted| columns.iter().position(|column| column == wanted)).collect::<Option<Vec<_>>>()
        };
        Some(Merged { plan: Arc::new(plan), a: places(a)?, b: places(b)? })
    }

    /// Another operator that passes the columns on.
    fn with(self, plan: impl ExecutionPlan + 'static) -> Merged {
        Merged { plan: Arc::new(plan), ..self }
    }

    /// Two expressions, of the columns of `a` and of those of `b`, if they are the same.
    fn agreed(&self, a: &Expr, b: &Expr) -> Option<Expr> {
        let (a, b) = (moved(a, &self.a, &self.plan)?, moved(b, &self.b, &self.plan)?);
        (a == b).then_some(a)
    }
}

/// An expression whose columns have the given places in `plan`. `None` where the next use would have other values.
fn moved(expr: &Expr, places: &[usize], plan: &Plan) -> Option<Expr> {
    if !is_fixed(expr) {
        return None;
    }
    let moved = Arc::clone(expr).transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let place = places.get(column.index()).ok_or_else(|| internal_datafusion_err!("no place for {column}"))?;
        Ok(Transformed::yes(column_of(plan, *place)))
    });
    moved.ok().map(|moved| moved.data)
}

/// An expression as it is whatever its columns are.
fn shape(expr: &Expr) -> Option<Expr> {
    let shape = Arc::clone(expr).transform_up(|node| match node.is::<Column>() {
        true => Ok(Transformed::yes(Arc::new(Column::new("", 0)) as Expr)),
        false => Ok(Transformed::no(node)),
    });
    shape.ok().map(|shape| shape.data)
}

fn input(plan: &Plan) -> Option<&Plan> {
    plan.children().into_iter().next()
}

/// Columns of either, in their order.
fn union(a: &[usize], b: &[usize]) -> Vec<usize> {
    let mut columns = [a, b].concat();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Columns that only one of two asks for.
fn not_of_both<'a>(a: &'a [usize], b: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let only = |own: &'a [usize], other: &'a [usize]| own.iter().copied().filter(|column| !other.contains(column));
    only(a, b).chain(only(b, a))
}

/// Whether an expression may fail. A value that a scalar subquery has yet to give says nothing of that.
fn may_fail_alone(expr: &Expr, schema: &Schema) -> bool {
    may_fail(expr, schema) || awaits_subquery(expr) && !expr.is::<ScalarSubqueryExpr>()
}

fn call_may_fail(call: &AggregateCall, schema: &Schema) -> bool {
    call.may_overflow() || call.exprs().any(|expr| may_fail_alone(expr, schema))
}

fn both<'a, T: ExecutionPlan>(a: &'a Plan, b: &'a Plan) -> Option<(&'a T, &'a T)> {
    Some((a.downcast_ref()?, b.downcast_ref()?))
}

/// One plan for two that do the same to the same rows, with the columns of both. `in_order`: whether somebody may count on the
/// order of the rows.
fn merge(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    if same_rows(a, b) {
        return Some(Merged::same(a));
    }
    if a.is::<DeviceProjectionExec>() || b.is::<DeviceProjectionExec>() {
        return projections(a, b, in_order);
    }
    if a.name() != b.name() {
        return None;
    }
    scans(a, b)
        .or_else(|| uploads(a, b))
        .or_else(|| filters(a, b, in_order))
        .or_else(|| aggregates(a, b))
        .or_else(|| joins(a, b, false, in_order))
        .or_else(|| if in_order { None } else { joins(a, b, true, in_order) })
        .or_else(|| sorts(a, b))
        .or_else(|| limits(a, b))
        .or_else(|| unions(a, b, in_order))
}

fn scans(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a, b) = both::<DeviceScanExec>(a, b)?;
    if !Arc::ptr_eq(a.snapshot(), b.snapshot()) {
        return None;
    }
    let columns = union(a.columns(), b.columns());
    let scan = DeviceScanExec::try_new(Arc::clone(a.snapshot()), columns.clone()).ok()?;
    Merged::of(scan, &columns, a.columns(), b.columns())
}

fn uploads(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a, b) = both::<HostToDeviceExec>(a, b)?;
    let (a_scan, b_scan) = (a.input().downcast_ref::<DataSourceExec>()?, b.input().downcast_ref::<DataSourceExec>()?);
    let (a_columns, b_columns) = (columns_of_scan(a_scan)?, columns_of_scan(b_scan)?);
    let columns = union(&a_columns, &b_columns);
    let (scan, same): (Plan, Plan) = (Arc::new(scan_of_columns(a_scan, &columns)?), Arc::new(scan_of_columns(b_scan, &columns)?));
    if scan.schema() != same.schema() || !same_source(&scan, &same) {
        return None;
    }
    Merged::of(HostToDeviceExec::new(scan, a.origin()), &columns, &a_columns, &b_columns)
}

/// Which columns of its table a scan of the host gives; `None` where it computes some.
fn columns_of_scan(scan: &DataSourceExec) -> Option<Vec<usize>> {
    let source = scan.data_source();
    if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
        let all = || (0..memory.original_schema().fields().len()).collect();
        return Some(memory.projection().clone().unwrap_or_else(all));
    }
    let outputs = source.downcast_ref::<FileScanConfig>()?.file_source().projection()?;
    outputs.iter().map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect()
}

/// The scan with other columns of its table, if that has them all: they may be another table's.
fn scan_of_columns(scan: &DataSourceExec, columns: &[usize]) -> Option<DataSourceExec> {
    let source = scan.data_source();
    let has_all = |schema: &Schema| columns.iter().all(|column| *column < schema.fields().len());
    if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
        if !memory.sort_information().is_empty() || !has_all(&memory.original_schema()) {
            return None;
        }
        let other = MemorySourceConfig::try_new(memory.partitions(), memory.original_schema(), Some(columns.to_vec())).ok()?;
        let other = other.with_limit(source.fetch()).with_show_sizes(memory.show_sizes());
        return Some(DataSourceExec::new(Arc::new(other)));
    }
    let files = source.downcast_ref::<FileScanConfig>()?;
    if !has_all(files.file_source().table_schema().table_schema()) {
        return None;
    }
    let whole = of_all_columns(files)?;
    let of = |columns: Vec<usize>| {
        let builder = FileScanConfigBuilder::from(files.clone()).with_source(Arc::clone(&whole));
        Some(builder.with_projection_indices(Some(columns)).ok()?.build())
    };
    // What a source tells nobody, it prints: with its own columns the new one must be the old one.
    let same = of(columns_of_scan(scan)?)?;
    if printed(same.file_source())? != printed(files.file_source())? {
        return None;
    }
    Some(DataSourceExec::new(Arc::new(of(columns.to_vec())?)))
}

fn printed(source: &Arc<dyn FileSource>) -> Option<String> {
    let parquet = source.downcast_ref::<ParquetSource>().map(|parquet| format!("{parquet:?}"));
    parquet.or_else(|| source.downcast_ref::<CsvSource>().map(|csv| format!("{csv:?}")))
}

/// The source of files with all columns of their table: DataFusion narrows one, but widens none, so it is made anew.
fn of_all_columns(files: &FileScanConfig) -> Option<Arc<dyn FileSource>> {
    let source = files.file_source();
    if let Some(csv) = source.downcast_ref::<CsvSource>() {
        let options = CsvOptions {
            has_header: Some(csv.has_header()),
            delimiter: csv.delimiter(),
            quote: csv.quote(),
            terminator: csv.terminator(),
            escape: csv.escape(),
            comment: csv.comment(),
            newlines_in_values: Some(csv.newlines_in_values()),
            truncated_rows: csv.truncate_rows().then_some(true),
            compression: *files.file_compression_type.get_variant(),
            ..CsvOptions::default()
        };
        return Some(Arc::new(CsvSource::new(source.table_schema().clone()).with_csv_options(options)));
    }
    let parquet = source.downcast_ref::<ParquetSource>()?;
    let options = parquet.table_parquet_options().clone();
    let hint = options.global.metadata_size_hint;
    let mut whole = ParquetSource::new(parquet.table_schema().clone()).with_table_parquet_options(options);
    if let Some(predicate) = parquet.filter() {
        whole = whole.with_predicate(predicate);
    }
    if let Some(factory) = parquet.parquet_file_reader_factory() {
        whole = whole.with_parquet_file_reader_factory(Arc::clone(factory));
    }
    if let Some(hint) = hint {
        whole = whole.with_metadata_size_hint(hint);
    }
    Some(Arc::new(whole))
}

/// Filters by the same predicate.
fn filters(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    let (a_filter, b_filter) = both::<DeviceFilterExec>(a, b)?;
    // Most differ in a constant, which is seen without a look at what lies below.
    if shape(a_filter.predicate())? != shape(b_filter.predicate())? {
        return None;
    }
    let below = merge(input(a)?, input(b)?, in_order)?;
    let predicate = below.agreed(a_filter.predicate(), b_filter.predicate())?;
    let handed_on = |filter: &DeviceFilterExec, places: &[usize]| match filter.projection() {
        Some(projection) => projection.iter().map(|column| places.get(*column).copied()).collect::<Option<Vec<_>>>(),
        None => Some(places.to_vec()),
    };
    let (a, b) = (handed_on(a_filter, &below.a)?, handed_on(b_filter, &below.b)?);
    let columns = union(&a, &b);
    let projection = (columns.len() < below.plan.schema().fields().len()).then(|| columns.clone());
    let filter = FilterExecBuilder::new(predicate, below.plan).apply_projection(projection).ok()?.build().ok()?;
    Merged::of(DeviceFilterExec::try_new(Arc::new(filter)).ok()?, &columns, &a, &b)
}

/// Projections, of which one may have gone since it passes all columns on.
fn projections(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    let below = merge(unprojected(a)?, unprojected(b)?, in_order)?;
    let outputs = |plan: &Plan, places: &[usize]| match plan.downcast_ref::<DeviceProjectionExec>() {
        Some(projection) => {
            let outputs = projection.expressions().iter();
            outputs.map(|output| Some((moved(&output.expr, places, &below.plan)?, output.alias.clone()))).collect()
        }
        None => {
            let outputs = places.iter().zip(plan.schema().fields().iter().cloned().collect::<Vec<_>>());
            Some(outputs.map(|(place, field)| (column_of(&below.plan, *place), field.name().clone())).collect::<Vec<_>>())
        }
    };
    let (a, b) = (outputs(a, &below.a)?, outputs(b, &below.b)?);
    let mut all: Vec<ProjectionExpr> = Vec::new();
    let mut place = |(expr, alias): (Expr, String)| {
        all.iter().position(|known| known.expr.eq(&expr)).unwrap_or_else(|| {
            all.push(ProjectionExpr { expr, alias });
            all.len() - 1
        })
    };
    let a: Vec<usize> = a.into_iter().map(&mut place).collect();
    let b: Vec<usize> = b.into_iter().map(&mut place).collect();
    let schema = below.plan.schema();
    if not_of_both(&a, &b).any(|output| may_fail_alone(&all[output].expr, &schema)) {
        return None;
    }
    let passed = all.iter().map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect::<Option<Vec<_>>>();
    if let Some(passed) = passed
        && passed.len() == below.plan.schema().fields().len()
    {
        let places = |own: Vec<usize>| own.into_iter().map(|output| passed[output]).collect();
        return Some(Merged { plan: below.plan, a: places(a), b: places(b) });
    }
    let projection = ProjectionExec::try_new(all, below.plan).ok()?;
    Some(Merged { plan: Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?), a, b })
}

fn unprojected(plan: &Plan) -> Option<&Plan> {
    if plan.is::<DeviceProjectionExec>() { input(plan) } else { Some(plan) }
}

/// Aggregations by the same keys.
fn aggregates(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a_input, b_input) = (input(a)?, input(b)?);
    let (a, b) = both::<DeviceAggregateExec>(a, b)?;
    let (a_keys, b_keys) = (&a.spec.keys, &b.spec.keys);
    // All calls of a library are one call.
    if a_keys.len() != b_keys.len() || a.is_of_libraries() || b.is_of_libraries() {
        return None;
    }
    let below = merge(a_input, b_input, false)?;
    let keys = a_keys.iter().zip(b_keys).map(|((a, name), (b, _))| Some((below.agreed(a, b)?, name.clone())));
    let keys = keys.collect::<Option<Vec<_>>>()?;
    let mut calls: Vec<AggregateCall> = Vec::new();
    let mut fields = a.spec.schema.fields().iter().take(keys.len()).cloned().collect::<Vec<_>>();
    let mut columns = |aggregate: &DeviceAggregateExec, places: &[usize]| {
        let own = aggregate.spec.schema.fields().iter().skip(keys.len());
        let of_calls = aggregate.spec.calls.iter().zip(own).map(|(call, field)| {
            let exprs = call.exprs().map(|expr| moved(expr, places, &below.plan)).collect::<Option<Vec<_>>>()?;
            let call = call.with_exprs(&exprs);
            let known = calls.iter().position(|known| same_call(known, &call));
            Some(
                keys.len()
                    + known.unwrap_or_else(|| {
                        calls.push(call);
                        fields.push(Arc::clone(field));
                        calls.len() - 1
                    }),
            )
        });
        (0..keys.len()).map(Some).chain(of_calls).collect::<Option<Vec<_>>>()
    };
    let (a_columns, b_columns) = (columns(a, &below.a)?, columns(b, &below.b)?);
    if not_of_both(&a_columns, &b_columns).any(|column| call_may_fail(&calls[column - keys.len()], &below.plan.schema())) {
        return None;
    }
    let schema = Arc::new(Schema::new_with_metadata(fields, a.spec.schema.metadata().clone()));
    let aggregate = DeviceAggregateExec::new(AggregateSpec { keys, calls, schema }, below.plan);
    Some(Merged { plan: Arc::new(aggregate), a: a_columns, b: b_columns })
}

/// Joins of the same pairs of rows. `swapped`: with the sides of the one exchanged in the other, as the optimizer may have done
/// for the sizes of their columns; the rows of that one then come in another order.
fn joins(a: &Plan, b: &Plan, swapped: bool, in_order: bool) -> Option<Merged> {
    let (a, b) = both::<DeviceJoinExec>(a, b)?;
    let kind = |spec: &JoinSpec| (spec.null_equals_null, spec.null_aware, spec.scalar.clone(), spec.on.len());
    let (b_type, b_left, b_right, b_on) = match swapped {
        true => (b.spec.join_type.swap(), b.right(), b.left(), b.spec.on.iter().map(|(left, right)| (right, left)).collect()),
        false => (b.spec.join_type, b.left(), b.right(), b.spec.on.iter().map(|(left, right)| (left, right)).collect::<Vec<_>>()),
    };
    let join_type = a.spec.join_type;
    if join_type != b_type || kind(&a.spec) != kind(&b.spec) || swapped && a.spec.null_aware {
        return None;
    }
    let (left, right) = (merge(a.left(), b_left, in_order)?, merge(a.right(), b_right, in_order)?);
    let on = a.spec.on.iter().zip(b_on);
    let on = on.map(|(a, b)| Some((left.agreed(&a.0, b.0)?, right.agreed(&a.1, b.1)?))).collect::<Option<Vec<_>>>()?;
    // Where columns of either side stand in the new one.
    let placed = |column: &ColumnIndex, side: JoinSide, of_left: &[usize], of_right: &[usize]| {
        let index = match side {
            JoinSide::Left => *of_left.get(column.index)?,
            JoinSide::Right => *of_right.get(column.index)?,
            JoinSide::None => column.index,
        };
        Some(ColumnIndex { index, side })
    };
    let of_a = |column: &ColumnIndex| placed(column, column.side, &left.a, &right.a);
    let of_b = |column: &ColumnIndex| {
        let side = if swapped { column.side.negate() } else { column.side };
        placed(column, side, &left.b, &right.b)
    };
    let filter = match (&a.spec.filter, &b.spec.filter) {
        (None, None) => None,
        (Some(a), Some(b)) if a.expression() == b.expression() && is_fixed(a.expression()) => {
            let columns = a.column_indices().iter().map(of_a).collect::<Option<Vec<_>>>()?;
            if columns != b.column_indices().iter().map(of_b).collect::<Option<Vec<_>>>()? {
                return None;
            }
            Some(JoinFilter::new(Arc::clone(a.expression()), columns, Arc::clone(a.schema())))
        }
        _ => return None,
    };
    let (schema, joined) = build_join_schema(&left.plan.schema(), &right.plan.schema(), &join_type);
    let handed_on = |join: &DeviceJoinExec, moved: &dyn Fn(&ColumnIndex) -> Option<ColumnIndex>| {
        let (_, own) = build_join_schema(&join.left().schema(), &join.right().schema(), &join.spec.join_type);
        let place = |column: &ColumnIndex| moved(column).and_then(|moved| joined.iter().position(|other| *other == moved));
        let places = own.iter().map(place).collect::<Option<Vec<_>>>()?;
        match &join.spec.projection {
            Some(projection) => projection.iter().map(|column| places.get(*column).copied()).collect::<Option<Vec<_>>>(),
            None => Some(places),
        }
    };
    let (a_columns, b_columns) = (handed_on(a, &of_a)?, handed_on(b, &of_b)?);
    let columns = union(&a_columns, &b_columns);
    let schema = Arc::new(schema);
    let mut equivalences = join_equivalence_properties(
        left.plan.equivalence_properties().clone(),
        right.plan.equivalence_properties().clone(),
        &join_type,
        Arc::clone(&schema),
        &[false, false],
        None,
        &on,
    )
    .ok()?;
    let mut projection = None;
    if columns.len() < joined.len() {
        let mapping = ProjectionMapping::from_indices(&columns, &schema).ok()?;
        equivalences = equivalences.project(&mapping, Arc::new(schema.project(&columns).ok()?));
        projection = Some(columns.clone());
    }
    equivalences.clear_orderings();
    equivalences.clear_per_partition_constants();
    let mut spec = JoinSpec { on, filter, projection, schema: Arc::clone(equivalences.schema()), equivalences, ..a.spec.clone() };
    if let Some(ordering) = spec.order_of_probe(&left.plan, &right.plan).ok()? {
        spec.equivalences.add_ordering(ordering);
    }
    Merged::of(DeviceJoinExec::new(spec, left.plan, right.plan), &columns, &a_columns, &b_columns)
}

/// Sorts by the same keys.
fn sorts(a: &Plan, b: &Plan) -> Option<Merged> {
    let below = merge(input(a)?, input(b)?, true)?;
    let (a, b) = both::<DeviceSortExec>(a, b)?;
    if a.fetch_rows() != b.fetch_rows() || a.keys().len() != b.keys().len() {
        return None;
    }
    let keys = a.keys().iter().zip(b.keys()).map(|(a, b)| {
        let key = below.agreed(&a.expr, &b.expr)?;
        (a.options == b.options).then(|| PhysicalSortExpr::new(key, a.options))
    });
    let keys = LexOrdering::new(keys.collect::<Option<Vec<_>>>()?)?;
    let sort = SortExec::new(keys, Arc::clone(&below.plan)).with_fetch(a.fetch_rows());
    Some(below.with(DeviceSortExec::try_new(Arc::new(sort)).ok()?))
}

fn limits(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a_limit, b_limit) = both::<DeviceLimitExec>(a, b)?;
    let kind = |limit: &DeviceLimitExec| (limit.host.name().to_string(), limit.skip(), limit.fetch_rows());
    if kind(a_limit) != kind(b_limit) {
        return None;
    }
    let below = merge(input(a)?, input(b)?, true)?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let host = Arc::clone(&a_limit.host).replace_children(vec![Arc::clone(&below.plan)], options).ok()?;
    Some(below.with(DeviceLimitExec::try_new(host).ok()?))
}

/// Unions of the same inputs, each of which gives its columns in the order of all.
fn unions(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    both::<DeviceUnionExec>(a, b)?;
    if a.children().len() != b.children().len() {
        return None;
    }
    let inputs = a.children().into_iter().zip(b.children()).map(|(a, b)| merge(a, b, in_order)).collect::<Option<Vec<_>>>()?;
    let mut columns: Vec<Vec<usize>> = Vec::new();
    let mut place = |column: Vec<usize>| {
        columns.iter().position(|known| *known == column).unwrap_or_else(|| {
            columns.push(column);
            columns.len() - 1
        })
    };
    let of_a = (0..a.schema().fields().len()).map(|index| place(inputs.iter().map(|input| input.a[index]).collect()));
    let of_a = of_a.collect::<Vec<_>>();
    let of_b = (0..b.schema().fields().len()).map(|index| place(inputs.iter().map(|input| input.b[index]).collect()));
    let of_b = of_b.collect::<Vec<_>>();
    let inputs = inputs.iter().enumerate().map(|(index, input)| {
        let own = columns.iter().map(|column| column[index]).collect::<Vec<_>>();
        if own.iter().copied().eq(0..input.plan.schema().fields().len()) {
            return Some(Arc::clone(&input.plan));
        }
        let schema = input.plan.schema();
        let outputs = own.iter().map(|column| (column_of(&input.plan, *column), schema.field(*column).name().clone()));
        let projection = ProjectionExec::try_new(outputs, Arc::clone(&input.plan)).ok()?;
        Some(Arc::new(DeviceProjectionExec::try_new(Arc::new(projection)).ok()?) as Plan)
    });
    let union = UnionExec::try_new(inputs.collect::<Option<Vec<_>>>()?).ok()?;
    Some(Merged { plan: Arc::new(DeviceUnionExec::try_new(union).ok()?), a: of_a, b: of_b })
}
