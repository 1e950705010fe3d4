// SPDX-License-Identifier: Apache-2.0
//! Dynamic filters of host scans: the ranges of a build side's keys.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, DynamicFilterPhysicalExpr, lit};
use kernels::ops::JoinTable;

use crate::graph::ScanFilter;

/// Pushes the key ranges of a table into host scans, which prune files and pages by them. Without
/// a table all rows pass.
pub(super) fn push_key_ranges(filter: &ScanFilter, table: Option<&JoinTable>) -> Result<()> {
    let Some(dynamic) = filter.filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { return Ok(()) };
    let ranges = table.and_then(|table| table.key_ranges(filter.keys.len())).unwrap_or_default();
    let mut conditions: Option<Arc<dyn PhysicalExpr>> = None;
    for ((key, data_type), (least, most)) in filter.keys.iter().zip(&filter.types).zip(ranges) {
        let (Some(least), Some(most)) = (value_of(data_type, least), value_of(data_type, most)) else { continue };
        for (operator, bound) in [(Operator::GtEq, least), (Operator::LtEq, most)] {
            let condition: Arc<dyn PhysicalExpr> = Arc::new(BinaryExpr::new(Arc::clone(key), operator, lit(bound)));
            conditions = Some(match conditions {
                Some(others) => Arc::new(BinaryExpr::new(others, Operator::And, condition)),
                None => condition,
            });
        }
    }
    if let Some(conditions) = conditions {
        dynamic.update(conditions)?;
    }
    dynamic.mark_complete();
    Ok(())
}

/// The value of a packed key field, for types whose order the field keeps.
fn value_of(data_type: &DataType, field: u64) -> Option<ScalarValue> {
    let signed = (field ^ 1 << 63) as i64;
    Some(match data_type {
        DataType::Int8 => ScalarValue::Int8(Some(signed.try_into().ok()?)),
        DataType::Int16 => ScalarValue::Int16(Some(signed.try_into().ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(signed.try_into().ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(signed)),
        DataType::UInt8 => ScalarValue::UInt8(Some(field.try_into().ok()?)),
        DataType::UInt16 => ScalarValue::UInt16(Some(field.try_into().ok()?)),
        DataType::UInt32 => ScalarValue::UInt32(Some(field.try_into().ok()?)),
        DataType::UInt64 => ScalarValue::UInt64(Some(field)),
        DataType::Date32 => ScalarValue::Date32(Some(signed.try_into().ok()?)),
        _ => return None,
    })
}
