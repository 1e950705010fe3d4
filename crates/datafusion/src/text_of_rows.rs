// SPDX-License-Identifier: Apache-2.0
//! The texts of consecutive rows as one, without a copy: what `string_agg` is made of.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

/// `text_of_rows(text, rows)`: the text of so many rows, from the current one on, in a column that a kernel wrote.
///
/// Only plans of the device have it, where the rows are known to be in one batch.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct TextOfRows {
    signature: Signature,
}

impl TextOfRows {
    pub const NAME: &str = "text_of_rows";

    /// The call of the function.
    pub fn call(text: Arc<dyn PhysicalExpr>, rows: Arc<dyn PhysicalExpr>) -> Arc<dyn PhysicalExpr> {
        static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
            let signature = Signature::any(2, Volatility::Immutable);
            Arc::new(ScalarUDF::new_from_impl(TextOfRows { signature }))
        });
        let field = Arc::new(Field::new(Self::NAME, DataType::LargeUtf8, false));
        let options = Arc::new(ConfigOptions::default());
        Arc::new(ScalarFunctionExpr::new(Self::NAME, Arc::clone(&FUNCTION), vec![text, rows], field, options))
    }

    /// Whether a function is this one.
    pub fn is(function: &ScalarUDF) -> bool {
        function.inner().downcast_ref::<TextOfRows>().is_some()
    }
}

impl ScalarUDFImpl for TextOfRows {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::LargeUtf8)
    }

    /// The host looks at a row that a kernel failed for, which it does for one reason.
    fn invoke_with_args(&self, _arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        exec_err!("string_agg: the text of a group is longer than 4 GiB, which a device's strings cannot be")
    }
}
