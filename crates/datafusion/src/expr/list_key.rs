// SPDX-License-Identifier: Apache-2.0
//! Lists as keys: as bytes that are the same where the lists are, and order as they do.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use kernels::function::Function;

use super::device_function::DeviceFunction;

/// The type of the bytes.
pub(crate) const KEY_TYPE: DataType = DataType::LargeBinary;

/// Whether an expression is a list.
pub(crate) fn is_list(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<bool> {
    Ok(expr.data_type(schema)?.is_list())
}

/// What stands for an expression where rows are told apart by it.
pub(crate) fn as_key(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    in_order(expr, SortOptions::default(), schema)
}

/// What stands for the expression of a key where rows are sorted by it: the options then hold for that.
pub(crate) fn as_sort_key(key: &PhysicalSortExpr, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    in_order(&key.expr, key.options, schema)
}

fn in_order(expr: &Arc<dyn PhysicalExpr>, options: SortOptions, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    if !is_list(expr, schema)? {
        return Ok(Arc::clone(expr));
    }
    // Turned round, what comes first comes last.
    let function = Function::ListKey { nulls_first: options.nulls_first != options.descending };
    let field = Arc::new(Field::new(function.name(), KEY_TYPE, expr.nullable(schema)?));
    Ok(DeviceFunction::call(function, vec![Arc::clone(expr)], &field))
}
