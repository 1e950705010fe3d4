// SPDX-License-Identifier: Apache-2.0
//! The values of consecutive rows as a list, without a copy: what `array_agg` is made of.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

/// `list_of_rows(column, rows)`: the list of a column's values in so many rows, from the current one on.
///
/// Only plans of the device have it, where the rows are known to be in one batch.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListOfRows {
    signature: Signature,
}

impl ListOfRows {
    pub const NAME: &str = "list_of_rows";

    /// The call of the function, whose lists are those of `field`.
    pub fn call(column: Arc<dyn PhysicalExpr>, rows: Arc<dyn PhysicalExpr>, field: &FieldRef) -> Arc<dyn PhysicalExpr> {
        static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
            let signature = Signature::any(2, Volatility::Immutable);
            Arc::new(ScalarUDF::new_from_impl(ListOfRows { signature }))
        });
        let field = Arc::new(field.as_ref().clone().with_name(Self::NAME).with_nullable(false));
        let options = Arc::new(ConfigOptions::default());
        Arc::new(ScalarFunctionExpr::new(Self::NAME, Arc::clone(&FUNCTION), vec![column, rows], field, options))
    }

    /// Whether an expression is a call of the function.
    pub fn is_call(expr: &Arc<dyn PhysicalExpr>) -> bool {
        expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(|function| Self::is(function.fun()))
    }

    /// Whether a function is this one.
    pub fn is(function: &ScalarUDF) -> bool {
        function.inner().downcast_ref::<ListOfRows>().is_some()
    }
}

impl ScalarUDFImpl for ListOfRows {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        internal_err!("{} has the type that its call says", Self::NAME)
    }

    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} runs on the device alone", Self::NAME)
    }
}
