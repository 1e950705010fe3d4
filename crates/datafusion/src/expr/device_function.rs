// SPDX-License-Identifier: Apache-2.0
//! Functions that kernels have and SQL does not. Only plans of the device call them.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use kernels::function::{ColumnFunction, Function};

/// A function of the kernels as a scalar UDF.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceFunction {
    function: Function,
    signature: Signature,
}

impl DeviceFunction {
    /// A call whose values have the type of `field`.
    pub fn call(function: Function, arguments: Vec<Arc<dyn PhysicalExpr>>, field: &FieldRef) -> Arc<dyn PhysicalExpr> {
        let signature = Signature::any(arguments.len(), Volatility::Immutable);
        let udf = Arc::new(ScalarUDF::new_from_impl(DeviceFunction { function, signature }));
        let field = Arc::new(field.as_ref().clone().with_name(function.name()));
        Arc::new(ScalarFunctionExpr::new(function.name(), udf, arguments, field, Arc::new(ConfigOptions::default())))
    }

    /// The kernels' function of a UDF; `None` for other UDFs.
    pub fn of(udf: &ScalarUDF) -> Option<Function> {
        udf.inner().downcast_ref::<DeviceFunction>().map(|udf| udf.function)
    }

    pub fn is_call(expr: &Arc<dyn PhysicalExpr>, function: Function) -> bool {
        expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(|call| Self::of(call.fun()) == Some(function))
    }
}

impl ScalarUDFImpl for DeviceFunction {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        internal_err!("{} has the type that its call says", self.name())
    }

    /// Called on the host for a row that failed in a kernel, for the message.
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.function.row().column_function() {
            // It fails for no other reason.
            Some(ColumnFunction::StringOfRows) => {
                exec_err!("string_agg: the string of a group is longer than 4 GiB, the limit of strings on the device")
            }
            // The key itself never fails.
            Some(ColumnFunction::ListKey) => {
                Ok(ColumnarValue::Scalar(ScalarValue::try_from(arguments.return_field.data_type())?))
            }
            Some(ColumnFunction::ListOfRows | ColumnFunction::ListLength | ColumnFunction::ListView) | None => {
                internal_err!("{} runs on the device alone", self.name())
            }
        }
    }
}
