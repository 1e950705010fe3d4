// SPDX-License-Identifier: Apache-2.0
//! Calls of scalar functions within an offloaded subplan: of libraries that share the device.
//!
//! A call within an expression becomes a column behind those of the input, and the expression one over all of them. The
//! library is called for all rows of a batch; where a CASE or the like asks for the values of some rows, calls stay
//! on the host, since rows that do not need a value must not fail.

use std::sync::Arc;

use arrow::compute::CastOptions;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::ColumnType;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err};
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::{CaseExpr, CastExpr, Column, IsNotNullExpr, IsNullExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use device::{Buffer, DriverKind, Queue};
use futhark::manifest::Backend;
use futhark::{Primitive, Scalar};
use kernels::expr::Expr;

use super::reason;
use crate::expr::{Reason, lower};
use crate::futhark::convert::constant;
use crate::futhark::function::{Function, Nulls, Of, Parameter, Returns};
use crate::futhark::scalar::FutharkScalar;
use crate::own::is_own;

/// A call of a library that shares the device.
#[derive(Debug, Clone)]
pub(crate) struct DeviceCall {
    function: Function,
    /// The arguments that are arrays, as what the library takes, over the columns before the call's own.
    columns: Vec<Arc<dyn PhysicalExpr>>,
    /// Those that are one value for all rows.
    constants: Vec<Scalar>,
    /// The call over the input's columns.
    expr: Arc<dyn PhysicalExpr>,
    data_type: DataType,
}

impl PartialEq for DeviceCall {
    /// Everything else follows from the call as the host would make it.
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
        stays_on_host(function)?;
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
                    lower(&column, schema).map_err(|why| reason(function, &format!("its argument {name}: {why}")))?;
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

    /// The function.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// The call over the input's columns, as the host would make it.
    pub fn expr(&self) -> &Arc<dyn PhysicalExpr> {
        &self.expr
    }

    /// The arguments that are arrays over `schema`, as kernels compute them.
    pub fn arguments(&self, schema: &Schema) -> std::result::Result<Vec<(Expr, Field)>, Reason> {
        self.columns.iter().map(|column| argument(column, schema)).collect()
    }

    /// Of each of these arguments, whether the library overwrites it.
    pub fn consumes(&self) -> impl Iterator<Item = bool> {
        self.function.consumes()
    }

    /// Whether the result may be NULL where no argument is.
    pub fn gives_nulls(&self) -> bool {
        self.function.gives_mask()
    }

    /// Calls the library with a value of each argument for each of `rows` rows, which are there, and waits for its result, which
    /// may have a mask. Blocks; of what it gives nothing does.
    ///
    /// # Errors
    /// What the library says, and where it gives another number of values.
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

/// The calls within expressions over an input, as columns behind its own.
pub(crate) struct Calls {
    /// The input's columns and those of the calls.
    pub schema: SchemaRef,
    /// Each over the columns before its own.
    pub calls: Vec<DeviceCall>,
    /// Columns of the input.
    columns: usize,
}

impl Calls {
    /// None yet.
    pub fn behind(schema: &SchemaRef) -> Calls {
        Calls { schema: Arc::clone(schema), calls: Vec::new(), columns: schema.fields().len() }
    }

    /// The expression over columns, or why a call within it stays on the host.
    pub fn lift(&mut self, expr: &Arc<dyn PhysicalExpr>) -> std::result::Result<Arc<dyn PhysicalExpr>, Reason> {
        let Some(function) = called_within(expr) else { return Ok(Arc::clone(expr)) };
        if chooses_rows(expr) {
            return Err(reason(&function, &format!("{expr} may ask for its values in some rows only")));
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

/// A function that is called within an expression.
fn called_within(expr: &Arc<dyn PhysicalExpr>) -> Option<Function> {
    match function_of(expr) {
        Some(function) => Some(function.function().clone()),
        None => expr.children().into_iter().find_map(called_within),
    }
}

/// Whether an expression computes some of its operands for some rows only.
fn chooses_rows(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let lazy = |function: &ScalarFunctionExpr| is_own(function.fun()) && function.fun().short_circuits();
    expr.is::<CaseExpr>() || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(lazy)
}

/// The value of a constant.
pub(super) fn literal(argument: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    argument.downcast_ref::<Literal>().map(Literal::value)
}

/// An argument as kernels compute it.
pub(super) fn argument(column: &Arc<dyn PhysicalExpr>, schema: &Schema) -> std::result::Result<(Expr, Field), Reason> {
    let data_type = column.data_type(schema).map_err(|error| error.to_string())?;
    Ok((lower(column, schema)?, Field::new("argument", data_type, true)))
}

/// An argument as what a library takes. A boolean is a byte.
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

/// An argument with 0 for NULL, and where it has values, as bytes.
fn with_mask(argument: &Arc<dyn PhysicalExpr>, to: &DataType, schema: &Schema) -> Result<Vec<Arc<dyn PhysicalExpr>>> {
    let value = as_argument(argument, to, schema);
    let zero: Arc<dyn PhysicalExpr> = Arc::new(Literal::new(ScalarValue::new_default(&value.data_type(schema)?)?));
    let missing: Arc<dyn PhysicalExpr> = Arc::new(IsNullExpr::new(Arc::clone(argument)));
    let known = Arc::new(IsNotNullExpr::new(Arc::clone(argument)));
    let mask = Arc::new(CastExpr::new(known, DataType::UInt8, None));
    Ok(vec![Arc::new(CaseExpr::try_new(None, vec![(missing, zero)], Some(value))?), mask])
}

const EACH_ROW: &str = "it is called for each row";

/// Why a function has no place on the device whatever it is given, if so.
pub(super) fn stays_on_host(function: &Function) -> std::result::Result<(), Reason> {
    let why = |why: &str| Err(reason(function, why));
    if function.context().device().is_none() {
        return why(&no_device(function));
    }
    let (gives, data_type) = match function.returns() {
        Returns::Column(gives, data_type) => (gives, data_type),
        Returns::Struct(..) => return why("it gives structs"),
        _ => return why(EACH_ROW),
    };
    has_device_form(function, data_type)?;
    match function.context().library().has_raw_arrays(*gives, 1) {
        true => Ok(()),
        false => Err(no_new_raw(function, *gives)),
    }
}

fn no_new_raw(function: &Function, of: Primitive) -> Reason {
    reason(function, &format!("the manifest names no new_raw of the type []{}", of.name()))
}

/// Why values of what a function takes, or gives, have no place on the device, if so.
pub(super) fn has_device_form(function: &Function, gives: &DataType) -> std::result::Result<(), Reason> {
    let why = |why: &str| Err(reason(function, why));
    if matches!(gives, DataType::Struct(_)) {
        return why("it gives structs");
    }
    if function.parameters().iter().any(|parameter| !matches!(parameter.of, Of::Values(_))) {
        return why("it takes structs");
    }
    if function.parameters().iter().any(|parameter| parameter.data_type.is_list()) {
        return why("it takes lists");
    }
    fn array(input: &Parameter) -> Option<(Primitive, &DataType)> {
        match input {
            Parameter { of: Of::Values(primitive), is_array: true, data_type, .. } => Some((*primitive, data_type)),
            _ => None,
        }
    }
    let arrays: Vec<(Primitive, &DataType)> = function.inputs().iter().filter_map(array).collect();
    let types = arrays.iter().map(|(_, data_type)| *data_type).chain([gives]);
    if let Some(data_type) = types.into_iter().find(|data_type| ColumnType::of(data_type, true).is_none()) {
        let name = if *data_type == DataType::Float16 { "f16".to_owned() } else { data_type.to_string() };
        return why(&format!("{name} is not supported on the device"));
    }
    match arrays.iter().find(|(primitive, _)| !function.context().library().has_raw_arrays(*primitive, 1)) {
        Some((primitive, _)) => Err(no_new_raw(function, *primitive)),
        None => Ok(()),
    }
}

/// Why a library shares no device.
pub(super) fn no_device(function: &Function) -> String {
    match function.context().library().manifest().backend {
        Backend::OpenCl => "its library shares no device of OpenCL's".to_owned(),
        Backend::Cuda if !function.context().library().can_share(DriverKind::Cuda) => "the manifest names no new_raw".to_owned(),
        Backend::Cuda => "its library shares no device of CUDA's".to_owned(),
        other => format!("its back end is {}", other.name()),
    }
}

/// A failure to reach the library at all.
pub(crate) fn unreached(call: &DeviceCall, error: impl std::fmt::Display) -> datafusion::common::DataFusionError {
    exec_datafusion_err!("{}: {error}", call.function.name())
}
