// SPDX-License-Identifier: Apache-2.0
//! Aggregates that ask for rows at some places of an order: `first_value`, `last_value`, `nth_value`, `median`,
//! `percentile_cont`, `string_agg`, `array_agg`.
//!
//! Window functions number the rows of each group in that order and count them. What is left is an aggregation of the rows at
//! the right places, which a filter picks.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{Operator, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition};
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, CastExpr, Column, IsNotNullExpr, Literal, lit};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::windows::{WindowAggExec, create_window_expr};
use kernels::function::Function;

use crate::aggregate::{AggregateCall, is_ordered};
use crate::device_function::DeviceFunction;
use crate::exec::AggregateSpec;
use crate::expr::may_fail;

type Expr = Arc<dyn PhysicalExpr>;

/// Whether an aggregation has aggregates of rows at some places of an order.
pub(crate) fn has_ordered(raw: &AggregateExec) -> bool {
    raw.aggr_expr().iter().any(|function| is_ordered(function))
}

/// Whether the order of the input decides nothing, since each of them asks for one.
pub(crate) fn all_name_their_order(raw: &AggregateExec) -> bool {
    let named = |function: &Arc<AggregateFunctionExpr>| {
        !is_ordered(function) || !function.order_bys().is_empty() || is_of_values(function.fun().name())
    };
    raw.aggr_expr().iter().all(named)
}

/// Whether a function takes its rows in the order of the input.
fn comes_as_it_comes(function: &AggregateFunctionExpr) -> bool {
    let name = function.fun().name();
    function.order_bys().is_empty() && !function.is_distinct() && !is_of_values(name) && name != "any_value"
}

/// Whether a function makes lists.
fn collects(function: &AggregateFunctionExpr) -> bool {
    function.fun().name() == "array_agg"
}

/// Whether a function asks for places in the order of its argument.
fn is_of_values(name: &str) -> bool {
    matches!(name, "median" | "percentile_cont")
}

/// The calls of an aggregation over `input`, and the plan that numbers rows for them above it; `place` turns each of its
/// operators, made for the host, into what it becomes.
pub(crate) fn ordered_calls(
    spec: &AggregateSpec,
    input: Arc<dyn ExecutionPlan>,
    place: &dyn Fn(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<(Vec<AggregateCall>, Arc<dyn ExecutionPlan>)> {
    let from = input.schema();
    let mut numbered = Numbered { plan: input, place, keys: Vec::new(), known: Vec::new(), input_place: None };
    let functions = || spec.calls.iter().map(|call| (&call.function, &call.filter));
    // What may fail is computed for the rows alone that the filter leaves.
    let guarded = |expr: &Expr, filter: &Option<Expr>| -> Result<Expr> {
        match filter {
            Some(filter) if may_fail(expr, &from) => {
                Ok(Arc::new(CaseExpr::try_new(None, vec![(Arc::clone(filter), Arc::clone(expr))], None)?))
            }
            _ => Ok(Arc::clone(expr)),
        }
    };
    let mut asked: Vec<Expr> = spec.keys.iter().map(|(key, _)| Arc::clone(key)).collect();
    for (function, filter) in functions().filter(|(function, _)| is_ordered(function)) {
        for expr in function.expressions().iter().chain(function.order_bys().iter().map(|key| &key.expr)) {
            asked.push(guarded(expr, filter)?);
        }
        asked.extend(filter.clone());
    }
    let columns = numbered.columns(&asked)?;
    let over = |expr: &Expr| -> Result<Expr> {
        match asked.iter().position(|known| known == expr) {
            Some(known) => Ok(Arc::clone(&columns[known])),
            None => internal_err!("{expr} is none of an aggregation's expressions"),
        }
    };
    let schema = numbered.plan.schema();
    for (key, _) in &spec.keys {
        let key = over(key)?;
        // Both zeros are one group.
        let float = matches!(key.data_type(&schema)?, DataType::Float32 | DataType::Float64);
        let zero = ScalarValue::new_zero(&key.data_type(&schema)?).ok().filter(|_| float);
        numbered.keys.push(match zero {
            Some(zero) => binary(key, Operator::Plus, lit(zero)),
            None => key,
        });
    }
    // What comes as it comes must tell so, once something else has another order, or asks for other rows.
    let of_other_rows = |function: &Arc<AggregateFunctionExpr>, filter: &Option<Expr>| {
        let name = function.fun().name();
        let of_known = is_of_values(name) || matches!(name, "string_agg" | "any_value") || function.ignore_nulls();
        of_known || filter.is_some() || !function.order_bys().is_empty() || function.is_distinct()
    };
    let ordered: Vec<_> = functions().filter(|(function, _)| is_ordered(function)).collect();
    let moved = ordered.len() > 1 && ordered.iter().any(|(function, filter)| of_other_rows(function, filter));
    if moved && ordered.iter().any(|(function, _)| comes_as_it_comes(function)) {
        numbered.input_place = Some(numbered.input_place()?);
    }
    let mut calls = Vec::new();
    for (function, filter) in functions() {
        calls.push(match is_ordered(function) {
            false => AggregateCall::new(function, filter.as_ref()),
            true => {
                let of_filtered = |expr: &Expr| over(&guarded(expr, filter)?);
                let arguments = function.expressions().iter().map(of_filtered).collect::<Result<Vec<_>>>()?;
                let order = function.order_bys().iter();
                let order = order.map(|key| Ok(PhysicalSortExpr { expr: of_filtered(&key.expr)?, ..key.clone() }));
                let order = order.collect::<Result<_>>()?;
                numbered.call(function, arguments, filter.as_ref().map(over).transpose()?, order)?
            }
        });
    }
    Ok((calls, numbered.plan))
}

/// A plan whose rows get numbers.
struct Numbered<'a> {
    plan: Arc<dyn ExecutionPlan>,
    place: &'a dyn Fn(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
    /// Keys of the groups.
    keys: Vec<Expr>,
    known: Vec<Places>,
    /// The number of each row in the input's order, where somebody asks for it.
    input_place: Option<Expr>,
}

/// Numbers of the rows that a condition holds for, in an order.
#[derive(Clone)]
struct Places {
    condition: Option<Expr>,
    order: Vec<PhysicalSortExpr>,
    /// From 1 on, in a group.
    place: Expr,
    /// How many rows the group has.
    rows: Expr,
}

impl Numbered<'_> {
    /// Expressions as columns, behind those of the plan where they are none yet.
    fn columns(&mut self, exprs: &[Expr]) -> Result<Vec<Expr>> {
        let schema = self.plan.schema();
        let mut outputs: Vec<(Expr, String)> = schema
            .fields()
            .iter()
            .enumerate()
            .map(|(index, field)| (column(field.name(), index), field.name().clone()))
            .collect();
        let own = outputs.len();
        let mut columns = Vec::with_capacity(exprs.len());
        for expr in exprs {
            if expr.is::<Column>() || expr.is::<Literal>() {
                columns.push(Arc::clone(expr));
                continue;
            }
            let known = outputs.iter().position(|(known, _)| known == expr);
            let index = known.unwrap_or(outputs.len());
            if known.is_none() {
                outputs.push((Arc::clone(expr), format!("argument_{}", index - own)));
            }
            columns.push(column(&outputs[index].1, index));
        }
        if outputs.len() > own {
            self.plan = (self.place)(Arc::new(ProjectionExec::try_new(outputs, Arc::clone(&self.plan))?))?;
        }
        Ok(columns)
    }

    /// The call that aggregates the rows at a function's places.
    fn call(
        &mut self,
        function: &Arc<AggregateFunctionExpr>,
        mut arguments: Vec<Expr>,
        filter: Option<Expr>,
        order: Vec<PhysicalSortExpr>,
    ) -> Result<AggregateCall> {
        let Some(value) = arguments.first().cloned() else {
            return internal_err!("{} without an argument", function.name());
        };
        let name = function.fun().name();
        let by_itself = |key: &PhysicalSortExpr| key.expr.eq(&value);
        let (of_values, joins, collects) = (is_of_values(name), name == "string_agg", collects(function));
        if (joins || collects) && function.is_distinct() && !(order.len() < 2 && order.iter().all(by_itself)) {
            return plan_err!("{name} of distinct values in the order of something else is not supported on the device");
        }
        let mut condition = filter;
        if of_values || joins || function.ignore_nulls() || name == "any_value" {
            condition = both(condition, Arc::new(IsNotNullExpr::new(Arc::clone(&value))));
        }
        if (of_values || joins || collects) && function.is_distinct() {
            let each = self.places(condition.clone(), vec![], Some(&value))?;
            condition = both(condition, binary(each.place, Operator::Eq, lit(1i64)));
        }
        let order = if of_values { vec![PhysicalSortExpr::new_default(Arc::clone(&value)).asc()] } else { order };
        let descending = function.order_bys().first().is_some_and(|key| key.options.descending);
        // Turned round, so that aggregates of one query agree on an order: nth_value counts from the other end, and string_agg turns
        // its texts back, and array_agg its values, but for distinct ones.
        let order = match (joins || collects) && function.is_reversed() && !function.is_distinct() {
            true => order.iter().map(PhysicalSortExpr::reverse).collect(),
            false => order,
        };
        let order = match &self.input_place {
            Some(place) if comes_as_it_comes(function) => {
                vec![PhysicalSortExpr::new_default(Arc::clone(place)).asc()]
            }
            _ => order,
        };
        if joins || collects {
            // The rows must come in this order now.
            let last = self.known.pop().filter(|last| last.condition == condition && last.order == order);
            self.known = last.into_iter().collect();
        }
        let Places { condition, place, rows, .. } = self.places(condition, order, None)?;
        let chosen = match name {
            "string_agg" => {
                let delimiter = arguments.get(1).and_then(|delimiter| delimiter.downcast_ref::<Literal>());
                let Some(delimiter) = delimiter.map(Literal::value) else {
                    return plan_err!("string_agg with a delimiter that is not constant");
                };
                let delimiter = delimiter.try_as_str().flatten().unwrap_or_default().to_string();
                arguments[0] = self.joined(value, delimiter, &place, &rows)?;
                binary(place, Operator::Eq, lit(1i64))
            }
            "array_agg" => {
                arguments[0] = self.collected(value, &function.field(), &place, &rows)?;
                binary(place, Operator::Eq, lit(1i64))
            }
            "first_value" | "any_value" => binary(place, Operator::Eq, lit(1i64)),
            "last_value" => binary(place, Operator::Eq, rows),
            "nth_value" => match integer(arguments.get(1)).map(|n| if function.is_reversed() { -n } else { n }) {
                Some(n) if n > 0 => binary(place, Operator::Eq, lit(n)),
                Some(n) if n < 0 => binary(binary(place, Operator::Minus, rows), Operator::Eq, lit(n + 1)),
                _ => return plan_err!("nth_value of a number that is not constant, or is 0"),
            },
            "median" => {
                // 2 · place lies between n and n + 2: one row of odd n, two of even n.
                let twice = binary(place, Operator::Multiply, lit(2i64));
                let least = binary(Arc::clone(&twice), Operator::GtEq, Arc::clone(&rows));
                binary(least, Operator::And, binary(twice, Operator::LtEq, binary(rows, Operator::Plus, lit(2i64))))
            }
            "percentile_cont" => {
                let share = match arguments.get(1).and_then(|share| share.downcast_ref::<Literal>()).map(Literal::value) {
                    Some(ScalarValue::Float64(Some(share))) => {
                        if descending {
                            1.0 - share
                        } else {
                            *share
                        }
                    }
                    _ => return plan_err!("percentile_cont of a share that is not constant"),
                };
                // What DataFusion refuses it shall refuse itself.
                if !(0.0..=1.0).contains(&share) {
                    return plan_err!("percentile_cont of {share} is not supported on the device");
                }
                let float = |expr: Expr| -> Expr { Arc::new(CastExpr::new(expr, DataType::Float64, None)) };
                // The rows less than one away from the place, which is counted from 0.
                let at = binary(float(binary(Arc::clone(&rows), Operator::Minus, lit(1i64))), Operator::Multiply, lit(share));
                let distance = binary(float(binary(place, Operator::Minus, lit(1i64))), Operator::Minus, at);
                arguments = vec![value, rows, lit(share)];
                let above = binary(Arc::clone(&distance), Operator::Gt, lit(-1.0));
                binary(above, Operator::And, binary(distance, Operator::Lt, lit(1.0)))
            }
            other => return internal_err!("{other} asks for no place in an order"),
        };
        if !of_values || name == "median" {
            arguments.truncate(1);
        }
        let filter = both(condition, chosen);
        Ok(AggregateCall { function: Arc::clone(function), arguments, filter, chosen: true })
    }

    /// A column with the texts of a group's rows, from the first place to the last, in the row of the first one.
    fn joined(&mut self, value: Expr, delimiter: String, place: &Expr, rows: &Expr) -> Result<Expr> {
        let text = |text: String| lit(ScalarValue::LargeUtf8(Some(text)));
        let first = binary(Arc::clone(place), Operator::Eq, lit(1i64));
        let before = vec![(Arc::clone(&first), text(String::new()))];
        let before: Expr = Arc::new(CaseExpr::try_new(None, before, Some(text(delimiter)))?);
        let field = Arc::new(Field::new("concat", DataType::LargeUtf8, false));
        let (concat, options) = (datafusion::functions::string::concat(), Arc::new(ConfigOptions::default()));
        let part: Expr = Arc::new(ScalarFunctionExpr::new("concat", concat, vec![before, value], field, options));
        // The first projection writes the parts one after another, the second one takes those of all rows as one.
        let at = self.plan.schema().fields().len();
        let parts = self.with_column(part, at)?;
        let rows: Expr = Arc::new(CaseExpr::try_new(None, vec![(first, Arc::clone(rows))], Some(lit(0i64)))?);
        let text = Arc::new(Field::new("text", DataType::LargeUtf8, false));
        self.with_column(DeviceFunction::call(Function::StringOfRows, vec![parts, rows], &text), at)
    }

    /// A column with the list of a group's values, from the first place to the last, in the row of the first one.
    fn collected(&mut self, value: Expr, list: &FieldRef, place: &Expr, rows: &Expr) -> Result<Expr> {
        let first = binary(Arc::clone(place), Operator::Eq, lit(1i64));
        let rows: Expr = Arc::new(CaseExpr::try_new(None, vec![(first, Arc::clone(rows))], Some(lit(0i64)))?);
        let value = if value.is::<Column>() { value } else { self.with_column(value, self.plan.schema().fields().len())? };
        let list = Arc::new(list.as_ref().clone().with_nullable(false));
        let list = DeviceFunction::call(Function::ListOfRows, vec![value, rows], &list);
        self.with_column(list, self.plan.schema().fields().len())
    }

    /// A column that numbers the rows as they come.
    fn input_place(&mut self) -> Result<Expr> {
        let input = Arc::clone(&self.plan);
        let number = input.schema().fields().len();
        let name = format!("row_{number}");
        let function = WindowFunctionDefinition::WindowUDF(datafusion::functions_window::row_number::row_number_udwf());
        let frame = Arc::new(all_rows());
        let function = create_window_expr(&function, name.clone(), &[], &[], &[], frame, input.schema(), false, false, None)?;
        self.plan = (self.place)(Arc::new(WindowAggExec::try_new(vec![function], input, false)?))?;
        Ok(column(&name, number))
    }

    /// The plan with an expression as its column `at`, where one is already or behind the others.
    fn with_column(&mut self, expr: Expr, at: usize) -> Result<Expr> {
        let name = format!("text_{at}");
        let schema = self.plan.schema();
        let own = schema.fields().iter().take(at).enumerate();
        let mut outputs: Vec<_> = own.map(|(index, field)| (column(field.name(), index), field.name().clone())).collect();
        outputs.push((expr, name.clone()));
        self.plan = (self.place)(Arc::new(ProjectionExec::try_new(outputs, Arc::clone(&self.plan))?))?;
        Ok(column(&name, at))
    }

    /// Numbers of the rows that `condition` holds for, in an order; `of`: of each value's rows alone.
    fn places(&mut self, condition: Option<Expr>, order: Vec<PhysicalSortExpr>, of: Option<&Expr>) -> Result<Places> {
        let same = |known: &&Places| known.condition == condition && known.order == order;
        if let (None, Some(known)) = (of, self.known.iter().find(same)) {
            return Ok(known.clone());
        }
        let input = Arc::clone(&self.plan);
        let partition: Vec<Expr> = self.keys.iter().chain(&condition).chain(of).cloned().collect();
        let number = input.schema().fields().len();
        let window = |function: WindowFunctionDefinition, name: String, arguments: &[Expr]| {
            let (frame, schema): (_, SchemaRef) = (Arc::new(all_rows()), input.schema());
            create_window_expr(&function, name, arguments, &partition, &order, frame, schema, false, false, None)
        };
        let row_number = WindowFunctionDefinition::WindowUDF(datafusion::functions_window::row_number::row_number_udwf());
        let count = WindowFunctionDefinition::AggregateUDF(datafusion::functions_aggregate::count::count_udaf());
        let names = [format!("place_{number}"), format!("rows_{number}")];
        let functions = vec![window(row_number, names[0].clone(), &[])?, window(count, names[1].clone(), &[lit(1i64)])?];
        self.plan = (self.place)(Arc::new(WindowAggExec::try_new(functions, input, false)?))?;
        let place: Expr = Arc::new(CastExpr::new(column(&names[0], number), DataType::Int64, None));
        let places = Places { condition, order, place, rows: column(&names[1], number + 1) };
        if of.is_none() {
            self.known.push(places.clone());
        }
        Ok(places)
    }
}

/// The frame of all rows.
fn all_rows() -> WindowFrame {
    WindowFrame::new_bounds(
        WindowFrameUnits::Rows,
        WindowFrameBound::Preceding(ScalarValue::UInt64(None)),
        WindowFrameBound::Following(ScalarValue::UInt64(None)),
    )
}

fn column(name: &str, index: usize) -> Expr {
    Arc::new(Column::new(name, index))
}

fn binary(left: Expr, op: Operator, right: Expr) -> Expr {
    Arc::new(BinaryExpr::new(left, op, right))
}

fn both(first: Option<Expr>, second: Expr) -> Option<Expr> {
    Some(match first {
        Some(first) => binary(first, Operator::And, second),
        None => second,
    })
}

fn integer(expr: Option<&Expr>) -> Option<i64> {
    match expr?.downcast_ref::<Literal>()?.value() {
        // i64::MIN has no negative.
        ScalarValue::Int64(value) => value.filter(|value| *value != i64::MIN),
        _ => None,
    }
}
