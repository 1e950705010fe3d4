// SPDX-License-Identifier: Apache-2.0
//! Scalar calls of libraries that share the device.
//!
//! A call within an expression becomes a column behind the input's, and the expression refers to
//! that column. The library is called for all rows of a batch. Conditional calls, as in `CASE`,
//! stay on the host: rows that do not need a value must not fail.

use std::sync::Arc;

use arrow::compute::CastOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err};
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::{CaseExpr, CastExpr, Column, IsNotNullExpr, IsNullExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use device::{Buffer, Queue};
use futhark::Scalar;
use kernels::expr::Expr;

use crate::expr::{is_builtin, lower, supported};
use crate::futhark::convert::constant;
use crate::futhark::function::Function;
use crate::futhark::parameter::Nulls;
use crate::futhark::reasons::{EACH_ROW, reason, support_of_function};
use crate::futhark::returns::Returns;
use crate::futhark::scalar::FutharkScalar;
use crate::reason::Reason;

/// A scalar call of a library that shares the device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceCall {
    function: Function,
    /// Array arguments in the library's types, over the columns before the call's own.
    columns: Vec<Arc<dyn PhysicalExpr>>,
    /// Constant arguments.
    constants: Vec<Scalar>,
    /// The call over the input's columns, as the host evaluates it.
    expr: Arc<dyn PhysicalExpr>,
    data_type: DataType,
}

impl PartialEq for DeviceCall {
    /// The host's call determines the other fields.
    fn eq(&self, other: &DeviceCall) -> bool {
        self.expr.eq(&other.expr)
    }
}

impl DeviceCall {
    fn try_new(
        function: &Function,
        expr: &Arc<dyn PhysicalExpr>,
        arguments: &[Arc<dyn PhysicalExpr>],
        schema: &SchemaRef,
    ) -> std::result::Result<DeviceCall, Reason> {
        support_of_function(function)?;
        let Returns::Column(_, data_type) = function.returns() else { return Err(reason(function, EACH_ROW)) };
        let (mut columns, mut constants) = (Vec::new(), Vec::new());
        for (parameter, argument) in function.parameters().iter().zip(arguments) {
            let name = &parameter.name;
            if parameter.is_array {
                let arguments = match function.nulls() {
                    Nulls::Strict => vec![as_argument(argument, &parameter.data_type, schema)],
                    Nulls::Mask => with_mask(argument, &parameter.data_type, schema).map_err(|error| error.to_string())?,
                };
                for column in arguments {
                    supported(&column, schema).map_err(|why| reason(function, &format!("its argument {name}: {why}")))?;
                    columns.push(column);
                }
                continue;
            }
            let value = literal(argument).map(|value| constant(function, parameter, value));
            match value {
                Some(Ok(Some(value))) => constants.push(value),
                Some(Ok(None)) => return Err(reason(function, &format!("its argument {name} is NULL"))),
                Some(Err(error)) => return Err(reason(function, &error.to_string())),
                None => return Err(reason(function, &format!("its argument {name} is no constant"))),
            }
        }
        let (function, data_type) = (function.clone(), data_type.clone());
        Ok(DeviceCall { function, columns, constants, expr: Arc::clone(expr), data_type })
    }

    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The call over the input's columns, as the host evaluates it.
    pub fn expr(&self) -> &Arc<dyn PhysicalExpr> {
        &self.expr
    }

    /// Array arguments over `schema`, for kernels.
    pub fn arguments(&self, schema: &Schema) -> std::result::Result<Vec<(Expr, Field)>, Reason> {
        self.columns.iter().map(|column| argument(column, schema)).collect()
    }

    /// For each array argument: whether the library overwrites it.
    pub fn consumes(&self) -> impl Iterator<Item = bool> {
        self.function.consumes()
    }

    /// Whether the result may be NULL without a NULL argument.
    pub fn gives_nulls(&self) -> bool {
        self.function.gives_mask()
    }

    /// Calls the library with `rows` values of each array argument, which must have been computed.
    /// Waits for the result, which may have a mask. Blocks the thread; the returned futures do not.
    ///
    /// # Errors
    /// The library's; also if it gives another number of values.
    pub fn call(
        &self,
        buffers: Vec<Buffer>,
        rows: usize,
        queue: &Queue,
    ) -> Result<(impl Future<Output = Result<Buffer>> + Send + use<>, Option<impl Future<Output = Result<Buffer>> + Send + use<>>)>
    {
        let function = &self.function;
        let results = function.call_over_buffers(buffers, rows, &self.constants)?;
        let (values, mask) = function.array_of(results, rows)?;
        let buffer = |array: futhark::Array| {
            let (function, buffer) = (function.clone(), array.into_buffer(queue));
            async move { buffer.await.map_err(|error| function.failed(error)) }
        };
        Ok((buffer(values), mask.map(buffer)))
    }
}

/// The calls within expressions over an input, as columns behind the input's.
pub(crate) struct LibraryCalls {
    /// The input's columns, then those of the calls.
    pub schema: SchemaRef,
    /// Each over the columns before its own.
    pub calls: Vec<DeviceCall>,
    /// Number of columns of the input.
    columns: usize,
}

impl LibraryCalls {
    /// No calls yet.
    pub fn new(schema: &SchemaRef) -> LibraryCalls {
        LibraryCalls { schema: Arc::clone(schema), calls: Vec::new(), columns: schema.fields().len() }
    }

    /// Lifts the calls of an expression to columns. An error is the reason of the host.
    #[recursive::recursive]
    pub fn lift(&mut self, expr: &Arc<dyn PhysicalExpr>) -> std::result::Result<Arc<dyn PhysicalExpr>, Reason> {
        let Some(function) = called_within(expr) else { return Ok(Arc::clone(expr)) };
        if is_conditional(expr) {
            return Err(reason(&function, &format!("{expr} evaluates it for some rows only")));
        }
        let lifted = expr.children().into_iter().map(|child| self.lift(child)).collect::<std::result::Result<Vec<_>, _>>()?;
        let Some(function) = function_of(expr) else {
            return Arc::clone(expr).with_new_children(lifted).map_err(|error| error.to_string());
        };
        let known = self.calls.iter().position(|call| &call.expr == expr && function.volatility() != Volatility::Volatile);
        let index = self.columns + known.unwrap_or(self.calls.len());
        if known.is_none() {
            let call = DeviceCall::try_new(function.function(), expr, &lifted, &self.schema)?;
            let field = Arc::new(Field::new(expr.to_string(), call.data_type.clone(), true));
            let fields = self.schema.fields().iter().cloned().chain([field]).collect::<Vec<_>>();
            self.schema = Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()));
            self.calls.push(call);
        }
        Ok(Arc::new(Column::new(self.schema.field(index).name(), index)))
    }
}

fn function_of(expr: &Arc<dyn PhysicalExpr>) -> Option<&FutharkScalar> {
    expr.downcast_ref::<ScalarFunctionExpr>()?.fun().inner().downcast_ref::<FutharkScalar>()
}

/// The first function of a library within an expression.
#[recursive::recursive]
fn called_within(expr: &Arc<dyn PhysicalExpr>) -> Option<Function> {
    match function_of(expr) {
        Some(function) => Some(function.function().clone()),
        None => expr.children().into_iter().find_map(called_within),
    }
}

/// Whether an expression evaluates operands conditionally.
fn is_conditional(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let lazy = |function: &ScalarFunctionExpr| is_builtin(function.fun()) && function.fun().short_circuits();
    expr.is::<CaseExpr>() || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(lazy)
}

/// The value of a constant.
pub(super) fn literal(argument: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    argument.downcast_ref::<Literal>().map(Literal::value)
}

/// An array argument for kernels.
pub(super) fn argument(column: &Arc<dyn PhysicalExpr>, schema: &Schema) -> std::result::Result<(Expr, Field), Reason> {
    let data_type = column.data_type(schema).map_err(|error| error.to_string())?;
    Ok((lower(column, schema)?, Field::new("argument", data_type, true)))
}

/// Casts an argument to the library's type. A boolean is a byte.
pub(super) fn as_argument(argument: &Arc<dyn PhysicalExpr>, to: &DataType, schema: &Schema) -> Arc<dyn PhysicalExpr> {
    let to = if *to == DataType::Boolean { DataType::UInt8 } else { to.clone() };
    match argument.data_type(schema) {
        Ok(from) if from == to => Arc::clone(argument),
        _ => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            Arc::new(CastExpr::new(Arc::clone(argument), to, Some(options)))
        }
    }
}

/// An argument with 0 for NULL, and its mask of bytes.
fn with_mask(argument: &Arc<dyn PhysicalExpr>, to: &DataType, schema: &Schema) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
    let value = as_argument(argument, to, schema);
    let zero: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::new_default(&value.data_type(schema)?)?));
    let missing: Arc<dyn PhysicalExpr> = Arc::new(IsNullExpr::new(Arc::clone(argument)));
    let known = Arc::new(IsNotNullExpr::new(Arc::clone(argument)));
    let mask = Arc::new(CastExpr::new(known, DataType::UInt8, None));
    Ok(vec![Arc::new(CaseExpr::try_new(None, vec![(missing, zero)], Some(value))?), mask])
}

/// The error of a call whose thread failed.
pub(crate) fn unreached(call: &DeviceCall, error: impl std::fmt::Display) -> datafusion::common::DataFusionError {
    exec_datafusion_err!("{}: {error}", call.function.name())
}
