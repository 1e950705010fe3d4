// SPDX-License-Identifier: Apache-2.0
//! Aggregates that select rows by their rank in an order, such as `first_value`, `median` and
//! `string_agg`. [`RankRule`] lists them.
//!
//! Window functions rank the rows of each group and count them. An aggregation with a filter then
//! picks the rows of the right ranks.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{Operator, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, CastExpr, Column, IsNotNullExpr, Literal, lit};
use datafusion::physical_expr::{PhysicalExprRef, PhysicalSortExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::windows::{WindowAggExec, create_window_expr};
use kernels::expr::RankRule;
use kernels::function::Function;

use crate::exec::AggregateSpec;
use crate::expr::{AggregateCall, DeviceFunction, may_fail, rank_rule, skips_nulls};

/// Whether an aggregation has an aggregate selecting rows by rank.
pub(crate) fn has_ordered(raw: &AggregateExec) -> bool {
    raw.aggr_expr().iter().any(|function| is_ordered(function))
}

/// Whether no aggregate takes its rows in the order of the input.
pub(crate) fn all_name_their_order(raw: &AggregateExec) -> bool {
    let names_order = |function: &Arc<AggregateFunctionExpr>| match rank_rule(function) {
        None => true,
        Some(rule) => !function.order_bys().is_empty() || is_quantile(rule),
    };
    raw.aggr_expr().iter().all(names_order)
}

/// Whether an aggregate selects rows by rank.
fn is_ordered(function: &AggregateFunctionExpr) -> bool {
    rank_rule(function).is_some()
}

/// Whether a function takes its rows in the order of the input.
fn takes_input_order(function: &AggregateFunctionExpr) -> bool {
    match rank_rule(function) {
        None | Some(RankRule::Any | RankRule::Median | RankRule::Percentile) => false,
        Some(RankRule::First | RankRule::Last | RankRule::Nth | RankRule::Concatenation | RankRule::List) => {
            function.order_bys().is_empty() && !function.is_distinct()
        }
    }
}

/// Whether a function concatenates the values of its rows to a string or list.
fn collects(rule: RankRule) -> bool {
    match rule {
        RankRule::Concatenation | RankRule::List => true,
        RankRule::Any | RankRule::First | RankRule::Last | RankRule::Nth | RankRule::Median | RankRule::Percentile => false,
    }
}

/// Whether a function ranks its rows by its argument.
fn is_quantile(rule: RankRule) -> bool {
    match rule {
        RankRule::Median | RankRule::Percentile => true,
        RankRule::Any | RankRule::First | RankRule::Last | RankRule::Nth | RankRule::Concatenation | RankRule::List => false,
    }
}

/// Whether a function skips rows with a NULL value.
fn selects_valid(function: &AggregateFunctionExpr) -> bool {
    skips_nulls(function.fun().name()) || function.ignore_nulls()
}

/// The calls of an aggregation over `input`, and the plan that ranks the rows for them.
///
/// `offload` maps each host operator of that plan.
pub(crate) fn ordered_calls(
    spec: &AggregateSpec,
    input: Arc<dyn ExecutionPlan>,
    offload: &dyn Fn(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<(Vec<AggregateCall>, Arc<dyn ExecutionPlan>)> {
    let from = input.schema();
    let mut ranked = RankedRows { plan: input, offload, keys: Vec::new(), known: Vec::new(), input_rank: None };
    let functions = || spec.calls.iter().map(|call| (&call.function, &call.filter));
    // A fallible expression is evaluated only for rows that the filter keeps.
    let guarded = |expr: &PhysicalExprRef, filter: &Option<PhysicalExprRef>| -> Result<PhysicalExprRef> {
        match filter {
            Some(filter) if may_fail(expr, &from) => {
                Ok(Arc::new(CaseExpr::try_new(None, vec![(Arc::clone(filter), Arc::clone(expr))], None)?))
            }
            _ => Ok(Arc::clone(expr)),
        }
    };
    let mut exprs: Vec<PhysicalExprRef> = spec.keys.iter().map(|(key, _)| Arc::clone(key)).collect();
    for (function, filter) in functions().filter(|(function, _)| is_ordered(function)) {
        for expr in function.expressions().iter().chain(function.order_bys().iter().map(|key| &key.expr)) {
            exprs.push(guarded(expr, filter)?);
        }
        exprs.extend(filter.clone());
    }
    let columns = ranked.columns(&exprs)?;
    let over = |expr: &PhysicalExprRef| -> Result<PhysicalExprRef> {
        match exprs.iter().position(|known| known == expr) {
            Some(known) => Ok(Arc::clone(&columns[known])),
            None => internal_err!("{expr} is none of an aggregation's expressions"),
        }
    };
    for (key, _) in &spec.keys {
        ranked.add_key(over(key)?)?;
    }
    let ordered: Vec<_> = functions().filter(|(function, _)| is_ordered(function)).collect();
    if reorders(&ordered) && ordered.iter().any(|(function, _)| takes_input_order(function)) {
        ranked.input_rank = Some(ranked.input_rank()?);
    }
    let mut calls = Vec::new();
    for (function, filter) in functions() {
        calls.push(match rank_rule(function) {
            None => AggregateCall::new(function, filter.as_ref()),
            Some(rule) => {
                let of_filtered = |expr: &PhysicalExprRef| over(&guarded(expr, filter)?);
                let arguments = function.expressions().iter().map(of_filtered).collect::<Result<Vec<_>>>()?;
                let order = function.order_bys().iter();
                let order = order.map(|key| Ok(PhysicalSortExpr { expr: of_filtered(&key.expr)?, ..key.clone() }));
                let order = order.collect::<Result<_>>()?;
                ranked.call(function, rule, arguments, filter.as_ref().map(over).transpose()?, order)?
            }
        });
    }
    Ok((calls, ranked.plan))
}

/// Whether an aggregate sorts the rows, or selects some, so that others lose the input's order.
fn reorders(ordered: &[(&Arc<AggregateFunctionExpr>, &Option<PhysicalExprRef>)]) -> bool {
    let selects = |(function, filter): &(&Arc<AggregateFunctionExpr>, &Option<PhysicalExprRef>)| {
        selects_valid(function) || filter.is_some() || !function.order_bys().is_empty() || function.is_distinct()
    };
    ordered.len() > 1 && ordered.iter().any(selects)
}

/// A plan whose rows are ranked.
struct RankedRows<'a> {
    plan: Arc<dyn ExecutionPlan>,
    offload: &'a dyn Fn(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
    /// Keys of the groups.
    keys: Vec<PhysicalExprRef>,
    known: Vec<Ranks>,
    /// Rank of each row in the input's order, if an aggregate needs it.
    input_rank: Option<PhysicalExprRef>,
}

/// Ranks in an order, of rows that satisfy a condition.
#[derive(Clone)]
struct Ranks {
    condition: Option<PhysicalExprRef>,
    order: Vec<PhysicalSortExpr>,
    /// From 1 on, within a group.
    rank: PhysicalExprRef,
    /// Number of rows of the group.
    rows: PhysicalExprRef,
}

impl RankedRows<'_> {
    /// Adds a key of the groups. Both zeros of floats are one group.
    fn add_key(&mut self, key: PhysicalExprRef) -> Result<()> {
        let data_type = key.data_type(&self.plan.schema())?;
        let is_float = matches!(data_type, DataType::Float32 | DataType::Float64);
        let zero = ScalarValue::new_zero(&data_type).ok().filter(|_| is_float);
        self.keys.push(match zero {
            Some(zero) => binary(key, Operator::Plus, lit(zero)),
            None => key,
        });
        Ok(())
    }

    /// Expressions as columns, computed behind those of the plan.
    fn columns(&mut self, exprs: &[PhysicalExprRef]) -> Result<Vec<PhysicalExprRef>> {
        let mut outputs = passed_columns(&self.plan, usize::MAX);
        let width = outputs.len();
        let mut columns = Vec::with_capacity(exprs.len());
        for expr in exprs {
            if expr.is::<Column>() || expr.is::<Literal>() {
                columns.push(Arc::clone(expr));
                continue;
            }
            let known = outputs.iter().position(|(known, _)| known == expr);
            let index = known.unwrap_or(outputs.len());
            if known.is_none() {
                outputs.push((Arc::clone(expr), format!("argument_{}", index - width)));
            }
            columns.push(column(&outputs[index].1, index));
        }
        if outputs.len() > width {
            self.plan = (self.offload)(Arc::new(ProjectionExec::try_new(outputs, Arc::clone(&self.plan))?))?;
        }
        Ok(columns)
    }

    /// The call to aggregate the rows that a function selects by rank.
    fn call(
        &mut self,
        function: &Arc<AggregateFunctionExpr>,
        rule: RankRule,
        arguments: Vec<PhysicalExprRef>,
        filter: Option<PhysicalExprRef>,
        order: Vec<PhysicalSortExpr>,
    ) -> Result<AggregateCall> {
        let Some(value) = arguments.first().cloned() else {
            return internal_err!("{} without an argument", function.name());
        };
        let is_by_value = |key: &PhysicalSortExpr| key.expr.eq(&value);
        if collects(rule) && function.is_distinct() && !(order.len() < 2 && order.iter().all(is_by_value)) {
            let name = function.fun().name();
            return plan_err!("{name} of distinct values in the order of something else is not supported on the device");
        }
        let mut condition = filter;
        if selects_valid(function) {
            condition = both(condition, Arc::new(IsNotNullExpr::new(Arc::clone(&value))));
        }
        if (is_quantile(rule) || collects(rule)) && function.is_distinct() {
            let of_value = self.ranks(condition.clone(), vec![], Some(&value))?;
            condition = both(condition, binary(of_value.rank, Operator::Eq, lit(1i64)));
        }
        let order = self.rank_order(function, rule, &value, order);
        if collects(rule) {
            // The rows must now come in this order.
            let last = self.known.pop().filter(|last| last.condition == condition && last.order == order);
            self.known = last.into_iter().collect();
        }
        let ranks = self.ranks(condition, order, None)?;
        let condition = ranks.condition.clone();
        let (arguments, selected) = self.selection(function, rule, arguments, value, ranks)?;
        Ok(AggregateCall { function: Arc::clone(function), arguments, filter: both(condition, selected), selected_by_rank: true })
    }

    /// The order by which a function ranks its rows.
    ///
    /// DataFusion may have reversed a function, so that the aggregates of a query agree on an
    /// order.
    /// - `nth_value` counts from the other end.
    /// - `string_agg` and `array_agg` reverse their order again, unless they are distinct.
    fn rank_order(
        &self,
        function: &AggregateFunctionExpr,
        rule: RankRule,
        value: &PhysicalExprRef,
        order: Vec<PhysicalSortExpr>,
    ) -> Vec<PhysicalSortExpr> {
        match &self.input_rank {
            Some(rank) if takes_input_order(function) => vec![PhysicalSortExpr::new_default(Arc::clone(rank)).asc()],
            _ if is_quantile(rule) => vec![PhysicalSortExpr::new_default(Arc::clone(value)).asc()],
            _ if collects(rule) && function.is_reversed() && !function.is_distinct() => {
                order.iter().map(PhysicalSortExpr::reverse).collect()
            }
            _ => order,
        }
    }

    /// The arguments of a function over the selected rows, and the condition on ranks that selects
    /// them.
    fn selection(
        &mut self,
        function: &AggregateFunctionExpr,
        rule: RankRule,
        arguments: Vec<PhysicalExprRef>,
        value: PhysicalExprRef,
        ranks: Ranks,
    ) -> Result<(Vec<PhysicalExprRef>, PhysicalExprRef)> {
        let Ranks { rank, rows, .. } = ranks;
        let first = |rank: PhysicalExprRef| binary(rank, Operator::Eq, lit(1i64));
        Ok(match rule {
            RankRule::Concatenation => {
                let delimiter = arguments.get(1).and_then(|delimiter| delimiter.downcast_ref::<Literal>());
                let Some(delimiter) = delimiter.map(Literal::value) else {
                    return plan_err!("string_agg with a delimiter that is not constant");
                };
                let delimiter = delimiter.try_as_str().flatten().unwrap_or_default().to_string();
                (vec![self.concatenated(value, delimiter, &rank, &rows)?], first(rank))
            }
            RankRule::List => (vec![self.collected(value, &function.field(), &rank, &rows)?], first(rank)),
            RankRule::Any | RankRule::First => (vec![value], first(rank)),
            RankRule::Last => (vec![value], binary(rank, Operator::Eq, rows)),
            RankRule::Nth => match integer(arguments.get(1)).map(|n| if function.is_reversed() { -n } else { n }) {
                Some(n) if n > 0 => (vec![value], binary(rank, Operator::Eq, lit(n))),
                Some(n) if n < 0 => (vec![value], binary(binary(rank, Operator::Minus, rows), Operator::Eq, lit(n + 1))),
                _ => return plan_err!("nth_value of a number that is not constant, or is 0"),
            },
            RankRule::Median => {
                // 2 · rank lies between n and n + 2: one row of odd n, two rows of even n.
                let twice = binary(rank, Operator::Multiply, lit(2i64));
                let least = binary(Arc::clone(&twice), Operator::GtEq, Arc::clone(&rows));
                let most = binary(twice, Operator::LtEq, binary(rows, Operator::Plus, lit(2i64)));
                (vec![value], binary(least, Operator::And, most))
            }
            RankRule::Percentile => {
                let fraction = fraction(function, arguments.get(1))?;
                let selected = near_fraction(rank, &rows, fraction);
                (vec![value, rows, lit(fraction)], selected)
            }
        })
    }

    /// A column with the strings of a group's rows by rank, in the row of rank 1.
    fn concatenated(
        &mut self,
        value: PhysicalExprRef,
        delimiter: String,
        rank: &PhysicalExprRef,
        rows: &PhysicalExprRef,
    ) -> Result<PhysicalExprRef> {
        let string = |string: String| lit(ScalarValue::LargeUtf8(Some(string)));
        let first = binary(Arc::clone(rank), Operator::Eq, lit(1i64));
        let before = vec![(Arc::clone(&first), string(String::new()))];
        let before: PhysicalExprRef = Arc::new(CaseExpr::try_new(None, before, Some(string(delimiter)))?);
        let field = Arc::new(Field::new("concat", DataType::LargeUtf8, false));
        let (concat, options) = (datafusion::functions::string::concat(), Arc::new(ConfigOptions::default()));
        let part: PhysicalExprRef = Arc::new(ScalarFunctionExpr::new("concat", concat, vec![before, value], field, options));
        // The first projection writes the parts one after another, the second takes those of a
        // group as one string.
        let at = self.plan.schema().fields().len();
        let parts = self.with_column(part, at)?;
        let rows: PhysicalExprRef = Arc::new(CaseExpr::try_new(None, vec![(first, Arc::clone(rows))], Some(lit(0i64)))?);
        let field = Arc::new(Field::new("string", DataType::LargeUtf8, false));
        self.with_column(DeviceFunction::call(Function::StringOfRows, vec![parts, rows], &field), at)
    }

    /// A column with the list of a group's values by rank, in the row of rank 1.
    fn collected(
        &mut self,
        value: PhysicalExprRef,
        list: &FieldRef,
        rank: &PhysicalExprRef,
        rows: &PhysicalExprRef,
    ) -> Result<PhysicalExprRef> {
        let first = binary(Arc::clone(rank), Operator::Eq, lit(1i64));
        let rows: PhysicalExprRef = Arc::new(CaseExpr::try_new(None, vec![(first, Arc::clone(rows))], Some(lit(0i64)))?);
        let value = if value.is::<Column>() { value } else { self.with_column(value, self.plan.schema().fields().len())? };
        let list = Arc::new(list.as_ref().clone().with_nullable(false));
        let list = DeviceFunction::call(Function::ListOfRows, vec![value, rows], &list);
        self.with_column(list, self.plan.schema().fields().len())
    }

    /// A column with the ranks of the rows in the input's order.
    fn input_rank(&mut self) -> Result<PhysicalExprRef> {
        let input = Arc::clone(&self.plan);
        let width = input.schema().fields().len();
        let name = format!("row_{width}");
        let function = WindowFunctionDefinition::WindowUDF(datafusion::functions_window::row_number::row_number_udwf());
        let frame = Arc::new(all_rows());
        let function = create_window_expr(&function, name.clone(), &[], &[], &[], frame, input.schema(), false, false, None)?;
        self.plan = (self.offload)(Arc::new(WindowAggExec::try_new(vec![function], input, false)?))?;
        Ok(column(&name, width))
    }

    /// Computes an expression as column `at`. The columns from there on are dropped.
    fn with_column(&mut self, expr: PhysicalExprRef, at: usize) -> Result<PhysicalExprRef> {
        let name = format!("string_{at}");
        let mut outputs = passed_columns(&self.plan, at);
        outputs.push((expr, name.clone()));
        self.plan = (self.offload)(Arc::new(ProjectionExec::try_new(outputs, Arc::clone(&self.plan))?))?;
        Ok(column(&name, at))
    }

    /// Ranks of the rows that satisfy `condition`. `of`: ranks among the rows of each of its
    /// values.
    fn ranks(
        &mut self,
        condition: Option<PhysicalExprRef>,
        order: Vec<PhysicalSortExpr>,
        of: Option<&PhysicalExprRef>,
    ) -> Result<Ranks> {
        let same = |known: &&Ranks| known.condition == condition && known.order == order;
        if let (None, Some(known)) = (of, self.known.iter().find(same)) {
            return Ok(known.clone());
        }
        let input = Arc::clone(&self.plan);
        let partition: Vec<PhysicalExprRef> = self.keys.iter().chain(&condition).chain(of).cloned().collect();
        let width = input.schema().fields().len();
        let window = |function: WindowFunctionDefinition, name: String, arguments: &[PhysicalExprRef]| {
            let (frame, schema): (_, SchemaRef) = (Arc::new(all_rows()), input.schema());
            create_window_expr(&function, name, arguments, &partition, &order, frame, schema, false, false, None)
        };
        let row_number = WindowFunctionDefinition::WindowUDF(datafusion::functions_window::row_number::row_number_udwf());
        let count = WindowFunctionDefinition::AggregateUDF(datafusion::functions_aggregate::count::count_udaf());
        let names = [format!("rank_{width}"), format!("rows_{width}")];
        let functions = vec![window(row_number, names[0].clone(), &[])?, window(count, names[1].clone(), &[lit(1i64)])?];
        self.plan = (self.offload)(Arc::new(WindowAggExec::try_new(functions, input, false)?))?;
        let rank: PhysicalExprRef = Arc::new(CastExpr::new(column(&names[0], width), DataType::Int64, None));
        let ranks = Ranks { condition, order, rank, rows: column(&names[1], width + 1) };
        if of.is_none() {
            self.known.push(ranks.clone());
        }
        Ok(ranks)
    }
}

/// The fraction of a `percentile_cont`. An error for fractions that DataFusion refuses itself.
fn fraction(function: &AggregateFunctionExpr, argument: Option<&PhysicalExprRef>) -> Result<f64> {
    let fraction = match argument.and_then(|argument| argument.downcast_ref::<Literal>()).map(Literal::value) {
        Some(ScalarValue::Float64(Some(fraction))) => *fraction,
        _ => return plan_err!("percentile_cont of a fraction that is not constant"),
    };
    let descending = function.order_bys().first().is_some_and(|key| key.options.descending);
    let fraction = if descending { 1.0 - fraction } else { fraction };
    match (0.0..=1.0).contains(&fraction) {
        true => Ok(fraction),
        false => plan_err!("percentile_cont of {fraction} is not supported on the device"),
    }
}

/// Selects the rows whose rank, counted from 0, is less than one away from the fraction of the last
/// rank.
fn near_fraction(rank: PhysicalExprRef, rows: &PhysicalExprRef, fraction: f64) -> PhysicalExprRef {
    let float = |expr: PhysicalExprRef| -> PhysicalExprRef { Arc::new(CastExpr::new(expr, DataType::Float64, None)) };
    let at = binary(float(binary(Arc::clone(rows), Operator::Minus, lit(1i64))), Operator::Multiply, lit(fraction));
    let distance = binary(float(binary(rank, Operator::Minus, lit(1i64))), Operator::Minus, at);
    let above = binary(Arc::clone(&distance), Operator::Gt, lit(-1.0));
    binary(above, Operator::And, binary(distance, Operator::Lt, lit(1.0)))
}

/// The frame of all rows.
fn all_rows() -> WindowFrame {
    WindowFrame::new_bounds(
        WindowFrameUnits::Rows,
        WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
        WindowFrameBound::Following(ScalarValue::UInt64(None)),
    )
}

/// The first columns of a plan, as outputs of a projection.
fn passed_columns(plan: &Arc<dyn ExecutionPlan>, count: usize) -> Vec<(PhysicalExprRef, String)> {
    let schema = plan.schema();
    let fields = schema.fields().iter().take(count).enumerate();
    fields.map(|(index, field)| (column(field.name(), index), field.name().clone())).collect()
}

fn column(name: &str, index: usize) -> PhysicalExprRef {
    Arc::new(Column::new(name, index))
}

fn binary(left: PhysicalExprRef, op: Operator, right: PhysicalExprRef) -> PhysicalExprRef {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// The conjunction of two conditions.
fn both(first: Option<PhysicalExprRef>, second: PhysicalExprRef) -> Option<PhysicalExprRef> {
    Some(match first {
        Some(first) => binary(first, Operator::And, second),
        None => second,
    })
}

fn integer(expr: Option<&PhysicalExprRef>) -> Option<i64> {
    match expr?.downcast_ref::<Literal>()?.value() {
        // i64::MIN has no negative.
        ScalarValue::Int64(value) => value.filter(|value| *value != i64::MIN),
        _ => None,
    }
}
