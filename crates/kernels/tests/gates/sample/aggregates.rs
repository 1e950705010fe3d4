// SPDX-License-Identifier: Apache-2.0
//! Every aggregate.

use std::collections::HashSet;

use arrow::datatypes::{DataType, Field, Schema};
use kernels::expr::{Aggregate, AggregateFamily, AggregateFunction, Expr, Literal, LiteralValue};
use kernels::support::supports_aggregate;

use super::inputs::*;

pub fn aggregate(function: AggregateFunction, argument: Option<Expr>, data_type: DataType) -> Aggregate {
    Aggregate { function, arguments: argument.into_iter().collect(), filter: None, distinct: false, data_type }
}

pub fn output(aggregate: Aggregate) -> (Aggregate, Field) {
    let field = Field::new("out", aggregate.data_type.clone(), true);
    (aggregate, field)
}

/// Type of a sum, as DataFusion derives it.
pub fn sum_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Decimal32(p, s) => DataType::Decimal32((p + 10).min(9), *s),
        DataType::Decimal64(p, s) => DataType::Decimal64((p + 10).min(18), *s),
        DataType::Decimal128(p, s) => DataType::Decimal128((p + 10).min(38), *s),
        other if other.is_signed_integer() => DataType::Int64,
        other if other.is_unsigned_integer() => DataType::UInt64,
        other if other.is_floating() => DataType::Float64,
        DataType::Duration(unit) => DataType::Duration(*unit),
        _ => return None,
    })
}

/// Type of an average, as DataFusion derives it.
pub fn avg_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Decimal32(p, s) => DataType::Decimal32((p + 4).min(9), (s + 4).min(9)),
        DataType::Decimal64(p, s) => DataType::Decimal64((p + 4).min(18), (s + 4).min(18)),
        DataType::Decimal128(p, s) => DataType::Decimal128((p + 4).min(38), (s + 4).min(38)),
        DataType::Duration(unit) => DataType::Duration(*unit),
        _ => DataType::Float64,
    }
}

/// Every aggregate of column 0 that is supported on the device. Common ones also of the column
/// without NULLs and with a filter; those that DISTINCT changes also with it. Arguments are coerced
/// as in DataFusion.
pub fn aggregates(data_type: &DataType, schema: &Schema) -> Vec<Aggregate> {
    use AggregateFunction::{Avg, Count, Sum};
    let value = value_type(data_type);
    let mut all = vec![aggregate(Count, None, DataType::Int64)];
    for function in AggregateFunction::ALL {
        let family = function.row().family;
        let Some((coerced, result)) = aggregate_types(family, value) else { continue };
        let column = |index| match &coerced {
            coerced if coerced != value => cast(Expr::Column(index), coerced, true),
            _ => Expr::Column(index),
        };
        let mut plain = aggregate(*function, Some(column(0)), result);
        match family {
            AggregateFamily::Bivariate { .. } => plain.arguments.push(column(0)),
            AggregateFamily::Percentile => {
                let number = |data_type, value| Expr::Literal(Literal { data_type, value });
                plain.arguments.push(number(DataType::Int64, LiteralValue::Int(4)));
                plain.arguments.push(number(DataType::Float64, LiteralValue::Float(0.3)));
            }
            AggregateFamily::Count
            | AggregateFamily::Sum
            | AggregateFamily::Average
            | AggregateFamily::Extreme { .. }
            | AggregateFamily::AnyValue
            | AggregateFamily::Boolean(_)
            | AggregateFamily::Bitwise(_)
            | AggregateFamily::Variance { .. }
            | AggregateFamily::Median
            | AggregateFamily::Sketch => {}
        }
        let by_rank = function.row().names.iter().any(|named| named.rank.is_some());
        let selects = by_rank || plain.arguments.len() > 1 || family.is_sketch();
        if schema.fields().len() > 3 && !selects {
            all.push(Aggregate { arguments: vec![column(2)], ..plain.clone() });
            all.push(Aggregate { filter: Some(Expr::Column(3)), ..plain.clone() });
        }
        if matches!(function, Count | Sum | Avg) {
            all.push(Aggregate { distinct: true, ..plain.clone() });
        }
        all.push(plain);
    }
    all.retain(|aggregate| supports_aggregate(aggregate, schema).is_ok());
    all
}

/// Types of an aggregate's argument and result, as DataFusion coerces and derives them; `None` if
/// it does not take the type.
pub fn aggregate_types(family: AggregateFamily, value: &DataType) -> Option<(DataType, DataType)> {
    let keeps = value.is_decimal() || matches!(value, DataType::Duration(_));
    let float = (DataType::Float64, DataType::Float64);
    let same = (value.clone(), value.clone());
    match family {
        AggregateFamily::Count => Some((value.clone(), DataType::Int64)),
        AggregateFamily::Sketch => Some((value.clone(), DataType::UInt64)),
        AggregateFamily::Sum => {
            let result = sum_type(value)?;
            Some((if keeps { value.clone() } else { result.clone() }, result))
        }
        AggregateFamily::Extreme { .. } | AggregateFamily::AnyValue => Some(same),
        AggregateFamily::Median => (value.is_decimal() || value.is_floating()).then_some(same),
        AggregateFamily::Percentile => value.is_floating().then_some(same),
        AggregateFamily::Bivariate { .. } => value.is_floating().then_some(float),
        AggregateFamily::Average if keeps => Some((value.clone(), avg_type(value))),
        AggregateFamily::Average | AggregateFamily::Variance { .. } => value.is_numeric().then_some(float),
        AggregateFamily::Boolean(_) => (*value == DataType::Boolean).then_some(same),
        AggregateFamily::Bitwise(_) => value.is_integer().then_some(same),
    }
}

/// Every aggregate is supported with an argument of one of the types, so that the gates compile it.
#[test]
fn every_aggregate_is_sampled() {
    let mut missing: HashSet<AggregateFunction> = AggregateFunction::ALL.iter().copied().collect();
    for data_type in types() {
        for aggregate in aggregates(&data_type, &input(&data_type).schema) {
            missing.remove(&aggregate.function);
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
