// SPDX-License-Identifier: Apache-2.0
//! Functions that kernels have and SQL does not: calls of them stand in plans of the device alone.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use kernels::function::Function;

/// A function of the kernels as one of DataFusion's.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceFunction {
    function: Function,
    signature: Signature,
}

impl DeviceFunction {
    /// A call of the function, whose values are of `field`'s type.
    pub fn call(function: Function, arguments: Vec<Arc<dyn PhysicalExpr>>, field: &FieldRef) -> Arc<dyn PhysicalExpr> {
        let signature = Signature::any(arguments.len(), Volatility::Immutable);
        let udf = Arc::new(ScalarUDF::new_from_impl(DeviceFunction { function, signature }));
        let field = Arc::new(field.as_ref().clone().with_name(function.name()));
        Arc::new(ScalarFunctionExpr::new(function.name(), udf, arguments, field, Arc::new(ConfigOptions::default())))
    }

    /// The kernels' function, if it is one of these.
    pub fn of(udf: &ScalarUDF) -> Option<Function> {
        udf.inner().downcast_ref::<DeviceFunction>().map(|own| own.function)
    }

    /// Whether an expression is a call of such a function.
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

    /// The host looks at a row that a kernel failed for.
    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.function {
            // Its one reason.
            Function::StringOfRows => {
                exec_err!("string_agg: the text of a group is longer than 4 GiB, which a device's strings cannot be")
            }
            // No row fails for its key.
            Function::ListKey { .. } => Ok(ColumnarValue::Scalar(ScalarValue::try_from(arguments.return_field.data_type())?)),
            _ => internal_err!("{} runs on the device alone", self.name()),
        }
    }
}
