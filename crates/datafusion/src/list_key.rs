// SPDX-License-Identifier: Apache-2.0
//! Lists as keys: as bytes that are the same where the lists are, and order as they do.

use std::sync::{Arc, LazyLock};

use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr, ScalarFunctionExpr};

/// The type of the bytes.
pub(crate) const KEY_TYPE: DataType = DataType::LargeBinary;

/// `list_key(list)`, which only plans of the device have.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListKey {
    signature: Signature,
    /// Whether a NULL among a list's elements comes before what else could stand there.
    nulls_first: bool,
}

impl ListKey {
    const NAME: &str = "list_key";

    /// Of a call of the function, whether NULLs come first.
    pub fn nulls_first(function: &ScalarUDF) -> Option<bool> {
        function.inner().downcast_ref::<ListKey>().map(|key| key.nulls_first)
    }
}

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
    static FUNCTIONS: LazyLock<[Arc<ScalarUDF>; 2]> = LazyLock::new(|| {
        [false, true].map(|nulls_first| {
            let signature = Signature::any(1, Volatility::Immutable);
            Arc::new(ScalarUDF::new_from_impl(ListKey { signature, nulls_first }))
        })
    });
    if !is_list(expr, schema)? {
        return Ok(Arc::clone(expr));
    }
    // Turned round, what comes first comes last.
    let function = &FUNCTIONS[usize::from(options.nulls_first != options.descending)];
    let field = Arc::new(Field::new(ListKey::NAME, KEY_TYPE, expr.nullable(schema)?));
    let (arguments, options) = (vec![Arc::clone(expr)], Arc::new(ConfigOptions::default()));
    Ok(Arc::new(ScalarFunctionExpr::new(ListKey::NAME, Arc::clone(function), arguments, field, options)))
}

impl ScalarUDFImpl for ListKey {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(KEY_TYPE)
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // Rows that fail are computed again, and none fails for its key.
        Ok(ColumnarValue::Scalar(ScalarValue::LargeBinary(None)))
    }
}
