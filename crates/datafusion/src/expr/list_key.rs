// SPDX-License-Identifier: Apache-2.0
//! Lists as keys: bytes with the equality and the order of the lists.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::Result;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use kernels::function::Function;

use super::device_function::DeviceFunction;

/// The type of the bytes.
pub(crate) const KEY_TYPE: DataType = DataType::LargeBinary;

pub(crate) fn is_list(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<bool> {
    Ok(expr.data_type(schema)?.is_list())
}

/// The key of an expression for groups and joins; other expressions than lists are their own key.
pub(crate) fn as_key(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    with_options(expr, SortOptions::default(), schema)
}

/// The expression of a sort key, which is sorted by the same options.
pub(crate) fn as_sort_key(key: &PhysicalSortExpr, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    with_options(&key.expr, key.options, schema)
}

fn with_options(expr: &Arc<dyn PhysicalExpr>, options: SortOptions, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    if !is_list(expr, schema)? {
        return Ok(Arc::clone(expr));
    }
    // DESC reverses bytes, so NULL placement flips.
    let function = Function::ListKey { nulls_first: options.nulls_first != options.descending };
    let field = Arc::new(Field::new(function.name(), KEY_TYPE, expr.nullable(schema)?));
    Ok(DeviceFunction::call(function, vec![Arc::clone(expr)], &field))
}
