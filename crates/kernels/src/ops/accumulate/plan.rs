// SPDX-License-Identifier: Apache-2.0
//! States of an aggregate, by its family and the type of its argument.

use arrow::datatypes::DataType;

use super::{Accumulators, Evaluator, StateKind, StateUse};
use crate::codegen::{CType, Params, Profile, Value};
use crate::expr::{Aggregate, AggregateFamily, BitOperator, Expr};
use crate::function::{Function, IntervalField};
use crate::ops::launch::source::Source;
use crate::{Error, Result};

/// Positions of an aggregate's states.
struct PlannedStates {
    state: usize,
    others: Vec<usize>,
    count: Option<usize>,
}

impl Accumulators {
    /// Adds the states of an aggregate whose argument and filter are over `source`, the input
    /// `feed`.
    ///
    /// # Errors
    /// `Unsupported` if function or argument is not supported on the device.
    pub fn plan(&mut self, aggregate: &Aggregate, source: &Source, feed: usize, usage: StateUse) -> Result<()> {
        let mut params = Params::new();
        let mut writer = source.writer(Profile::Cpu, &mut params);
        if let Some(filter) = &aggregate.filter {
            writer.eval(filter)?;
        }
        let values = aggregate.arguments.iter().map(|argument| writer.eval(argument)).collect::<Result<Vec<_>>>()?;
        let nullable = values.iter().any(|value| value.valid.is_some());
        let family = aggregate.function.row().family;
        // Without NULLs, a count of values is a count of rows.
        let counted = if nullable { aggregate.arguments.clone() } else { Vec::new() };
        let mut add = |kind, arguments: &[Expr]| self.add(kind, feed, &aggregate.filter, arguments.to_vec());
        let planned = match (family, values.first()) {
            (AggregateFamily::Count, _) => {
                // A count evaluates arguments that can fail; other states evaluate them anyway.
                let counted = if params.can_fail() { &aggregate.arguments } else { &counted };
                PlannedStates { state: add(StateKind::Count, counted), others: vec![], count: None }
            }
            (_, None) => return Err(Error::Internal(format!("{:?} without an argument", aggregate.function))),
            (AggregateFamily::Percentile, Some(value)) => plan_percentile(&aggregate.arguments, value, &counted, &mut add)?,
            (AggregateFamily::Median, Some(value)) if value.ctype.is_float() => {
                let count = add(StateKind::Count, &counted);
                let greatest = add(StateKind::Max, &aggregate.arguments);
                PlannedStates { state: add(StateKind::Min, &aggregate.arguments), others: vec![greatest], count: Some(count) }
            }
            (AggregateFamily::Extreme { greatest }, Some(value)) if is_interval(value) => {
                let count = add(StateKind::Count, &counted);
                let key = field_of(&aggregate.arguments, IntervalField::SortKey, DataType::Decimal128(38, 0));
                let state = add(extreme_kind(greatest, value.ctype, usage), &key);
                PlannedStates { state, others: vec![], count: Some(count) }
            }
            (AggregateFamily::Sum, Some(value)) if is_interval(value) => {
                let count = add(StateKind::Count, &counted);
                let negated = false;
                // Each field wraps on its own.
                let fields =
                    [IntervalField::Months { negated }, IntervalField::Days { negated }, IntervalField::Nanos { negated }];
                let [months, days, nanos] =
                    fields.map(|field| add(StateKind::Sum64, &field_of(&aggregate.arguments, field, DataType::Int64)));
                PlannedStates { state: months, others: vec![days, nanos], count: Some(count) }
            }
            (_, Some(value)) => {
                let kind = state_kind(aggregate, value, usage)?;
                let needs_count = !usage.grouped || nullable || aggregate.filter.is_some() || divides_by_count(family);
                let count = (needs_count && !kind.has_count()).then(|| add(StateKind::Count, &counted));
                PlannedStates { state: add(kind, &aggregate.arguments), others: vec![], count }
            }
        };
        self.evaluators.push(Evaluator {
            function: aggregate.function,
            data_type: aggregate.data_type.clone(),
            argument: values.first().map(|value| (value.data_type.clone(), value.ctype)),
            bounds: values.first().and_then(|value| value.bounds),
            state: planned.state,
            others: planned.others,
            count: planned.count,
        });
        Ok(())
    }
}

/// States of `percentile_cont`: the least and greatest of the values that are left, their number,
/// and the share of values below the interpolated one.
fn plan_percentile(
    arguments: &[Expr],
    value: &Value,
    counted: &[Expr],
    add: &mut impl FnMut(StateKind, &[Expr]) -> usize,
) -> Result<PlannedStates> {
    let count = add(StateKind::Count, counted);
    let [value_of, number, share] = arguments else {
        return Err(Error::Internal("PercentileCont takes a value, their number, and a share".into()));
    };
    if !value.ctype.is_float() {
        return Err(Error::Unsupported(format!("percentile_cont of {} is not supported on the device", value.data_type)));
    }
    let others = [value_of, number, share].map(|argument| add(StateKind::Max, std::slice::from_ref(argument)));
    let least = add(StateKind::Min, std::slice::from_ref(value_of));
    Ok(PlannedStates { state: least, others: others.into(), count: Some(count) })
}

/// Whether the result divides by the number of values.
fn divides_by_count(family: AggregateFamily) -> bool {
    match family {
        AggregateFamily::Average
        | AggregateFamily::Median
        | AggregateFamily::Variance { .. }
        | AggregateFamily::Bivariate { .. } => true,
        AggregateFamily::Count
        | AggregateFamily::Sum
        | AggregateFamily::Extreme { .. }
        | AggregateFamily::AnyValue
        | AggregateFamily::Boolean(_)
        | AggregateFamily::Bitwise(_)
        | AggregateFamily::Percentile
        | AggregateFamily::Sketch => false,
    }
}

/// The state of an aggregate with a single one, besides the count.
fn state_kind(aggregate: &Aggregate, value: &Value, usage: StateUse) -> Result<StateKind> {
    let native = CType::native(&aggregate.data_type);
    let kind = match (aggregate.function.row().family, value.ctype) {
        (AggregateFamily::Count, _) => Some(StateKind::Count),
        // The argument is the rank of a register; the groups of values have the registers.
        (AggregateFamily::Sketch, CType::U8) => Some(StateKind::RankCounts),
        (AggregateFamily::Sum, ctype) => sum_kind(ctype, native),
        (AggregateFamily::Extreme { greatest }, ctype) => Some(extreme_kind(greatest, ctype, usage)),
        (AggregateFamily::AnyValue, ctype) => Some(extreme_kind(true, ctype, usage)),
        (AggregateFamily::Average, _) => average_kind(value, &aggregate.data_type),
        (AggregateFamily::Boolean(operator), CType::Bool) => Some(operator_kind(operator)),
        (AggregateFamily::Bitwise(operator), ctype) if ctype.is_integer() && !ctype.is_wide() => Some(operator_kind(operator)),
        // No value ever comes, so that any operator will do.
        (AggregateFamily::Bitwise(_), _) if value.data_type == DataType::Null => Some(StateKind::Or),
        (AggregateFamily::Variance { .. }, CType::F64 | CType::F32) if usage.atomic => Some(StateKind::PowerSums),
        (AggregateFamily::Variance { .. }, CType::F64 | CType::F32) => Some(StateKind::Welford),
        (AggregateFamily::Median, _) if native == Some(CType::I256) => Some(StateKind::Sum256),
        (AggregateFamily::Median, CType::I128) => Some(StateKind::Sum192),
        (AggregateFamily::Median, ctype) if ctype.is_integer() && native == Some(CType::I128) => Some(StateKind::Sum192),
        // The sum of two decimals of 18 digits fits.
        (AggregateFamily::Median, ctype) if ctype.is_integer() => Some(StateKind::Sum64),
        (AggregateFamily::Bivariate { .. }, CType::F32 | CType::F64) if aggregate.arguments.len() == 2 => {
            Some(StateKind::CrossSums)
        }
        (
            AggregateFamily::Sketch
            | AggregateFamily::Boolean(_)
            | AggregateFamily::Bitwise(_)
            | AggregateFamily::Variance { .. }
            | AggregateFamily::Median
            | AggregateFamily::Percentile
            | AggregateFamily::Bivariate { .. },
            _,
        ) => None,
    };
    let refuse = || Error::Unsupported(format!("{:?}({}) is not supported on the device", aggregate.function, value.data_type));
    kind.ok_or_else(refuse)
}

fn sum_kind(ctype: CType, native: Option<CType>) -> Option<StateKind> {
    match (ctype, native) {
        (CType::F32 | CType::F64, _) => Some(StateKind::SumF64),
        (CType::Bool | CType::Str, _) => None,
        (_, Some(CType::I256)) => Some(StateKind::Sum256),
        (_, Some(CType::I128)) => Some(StateKind::Sum128),
        (_, Some(ctype)) if ctype.is_integer() => Some(StateKind::Sum64),
        (_, Some(CType::F64)) => Some(StateKind::SumF64),
        _ => None,
    }
}

fn average_kind(value: &Value, data_type: &DataType) -> Option<StateKind> {
    match (&value.data_type, data_type) {
        (DataType::Decimal256(_, _), DataType::Decimal256(_, _)) => Some(StateKind::Sum256),
        (DataType::Decimal32(precision, _) | DataType::Decimal64(precision, _) | DataType::Decimal128(precision, _), _) => {
            // DataFusion sums in a type of 13 more digits.
            let least = if matches!(value.data_type, DataType::Decimal128(_, _)) { 38 } else { 0 };
            Some(match (precision + 13).max(least) {
                ..=18 => StateKind::Sum64,
                19..=38 => StateKind::Sum128,
                _ => StateKind::Sum192,
            })
        }
        (DataType::Duration(_), DataType::Duration(_)) => Some(StateKind::Sum64),
        (_, DataType::Float64) if !value.ctype.is_wide() && !matches!(value.ctype, CType::Bool | CType::Str) => {
            Some(StateKind::SumF64)
        }
        _ => None,
    }
}

/// The state of the least or greatest value.
fn extreme_kind(greatest: bool, ctype: CType, usage: StateUse) -> StateKind {
    let [least_kind, greatest_kind] = match ctype {
        CType::Str => [StateKind::VarWidthMin, StateKind::VarWidthMax],
        CType::I128 | CType::I256 if usage.atomic => [StateKind::VarWidthMin, StateKind::VarWidthMax],
        CType::I256 => [StateKind::Min256, StateKind::Max256],
        CType::I128 => [StateKind::Min128, StateKind::Max128],
        _ => [StateKind::Min, StateKind::Max],
    };
    if greatest { greatest_kind } else { least_kind }
}

fn operator_kind(operator: BitOperator) -> StateKind {
    match operator {
        BitOperator::And => StateKind::And,
        BitOperator::Or => StateKind::Or,
        BitOperator::Xor => StateKind::Xor,
    }
}

fn is_interval(value: &Value) -> bool {
    matches!(value.data_type, DataType::Interval(_))
}

/// A field of the only argument, an interval.
fn field_of(arguments: &[Expr], field: IntervalField, data_type: DataType) -> Vec<Expr> {
    vec![Expr::Call { function: Function::IntervalField(field), arguments: arguments.to_vec(), data_type }]
}
