// SPDX-License-Identifier: Apache-2.0
//! The codec that writes handles into plans, and reads them.

use std::sync::{Arc, LazyLock};

use datafusion::arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::common::{Result, TableReference, not_impl_err};
use datafusion::execution::{FunctionRegistry, TaskContext, TaskContextProvider};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{AggregateUDF, Extension, LogicalPlan, ReturnFieldArgs, ScalarUDF, WindowUDF};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::proto::physical_extension_codec::FFI_PhysicalExtensionCodec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::capsule;
use crate::foreign_query::ForeignQuery;
use crate::handles::{HANDLES, Object};
use crate::runtime::runtime;

/// The bytes of a function that each DataFusion has.
const BUILT_IN: &[u8] = b"built-in";

/// Built-in functions by their names, and the task context that other libraries see.
static SESSION: LazyLock<Arc<SessionContext>> = LazyLock::new(|| Arc::new(SessionContext::new()));

/// Writes and reads plans with handles.
#[derive(Debug)]
pub(crate) struct HandleCodec;

/// Arguments that tell a built-in function from another one of its name: of a user, of Spark, or
/// with other settings.
const PROBES: &[&[DataType]] = &[
    &[],
    &[DataType::Int64],
    &[DataType::Float64],
    &[DataType::Utf8],
    &[DataType::Int64, DataType::Int64],
    &[DataType::Float64, DataType::Int64],
    &[DataType::Utf8, DataType::Utf8],
];

fn nullable(types: &[DataType]) -> Vec<FieldRef> {
    types.iter().map(|data_type| Arc::new(Field::new("argument", data_type.clone(), true))).collect()
}

/// Type and nullability of a call's values; `None` if there is no such call.
fn scalar_type(function: &ScalarUDF, types: &[DataType]) -> Option<(DataType, bool)> {
    let arg_fields = fields_with_udf(&nullable(types), function).ok()?;
    let scalar_arguments = vec![None; arg_fields.len()];
    let arguments = ReturnFieldArgs { arg_fields: &arg_fields, scalar_arguments: &scalar_arguments };
    let field = function.return_field_from_args(arguments).ok()?;
    Some((field.data_type().clone(), field.is_nullable()))
}

/// As [`scalar_type`], of an aggregate.
fn aggregate_type(function: &AggregateUDF, types: &[DataType]) -> Option<(DataType, bool)> {
    let field = function.return_field(&fields_with_udf(&nullable(types), function).ok()?).ok()?;
    Some((field.data_type().clone(), field.is_nullable()))
}

fn write_function(is_built_in: bool, function: Object, bytes: &mut Vec<u8>) -> Result<()> {
    match is_built_in {
        true => bytes.extend(BUILT_IN),
        false => HANDLES.put(function, bytes),
    }
    Ok(())
}

/// The object of a variant.
macro_rules! taken {
    ($bytes:expr, $name:expr, $variant:ident) => {
        match HANDLES.take($bytes, $name)? {
            Object::$variant(object) => Ok(object),
            other => not_impl_err!("{} is not what the plan says: {other:?}", $name),
        }
    };
}

impl LogicalExtensionCodec for HandleCodec {
    fn try_decode(&self, _: &[u8], _: &[LogicalPlan], _: &TaskContext) -> Result<Extension> {
        not_impl_err!("nodes of other libraries do not pass between datafusion and devicefusion")
    }

    fn try_encode(&self, node: &Extension, _: &mut Vec<u8>) -> Result<()> {
        not_impl_err!("the node {} of another library does not pass between datafusion and devicefusion", node.node.name())
    }

    fn try_decode_table_provider(
        &self,
        bytes: &[u8],
        name: &TableReference,
        _: SchemaRef,
        _: &TaskContext,
    ) -> Result<Arc<dyn TableProvider>> {
        taken!(bytes, &format!("the table {name}"), Table)
    }

    fn try_encode_table_provider(&self, _: &TableReference, table: Arc<dyn TableProvider>, bytes: &mut Vec<u8>) -> Result<()> {
        HANDLES.put(Object::Table(table), bytes);
        Ok(())
    }

    fn try_decode_udf(&self, name: &str, bytes: &[u8]) -> Result<Arc<ScalarUDF>> {
        match bytes {
            BUILT_IN => SESSION.udf(name),
            _ => taken!(bytes, &format!("the function {name}"), Scalar),
        }
    }

    fn try_encode_udf(&self, function: &ScalarUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let is_same = |own: Arc<ScalarUDF>| {
            own.aliases() == function.aliases()
                && own.signature().volatility == function.signature().volatility
                && PROBES.iter().all(|types| scalar_type(&own, types) == scalar_type(function, types))
        };
        let is_built_in = SESSION.udf(function.name()).is_ok_and(is_same);
        write_function(is_built_in, Object::Scalar(Arc::new(function.clone())), bytes)
    }

    fn try_decode_udaf(&self, name: &str, bytes: &[u8]) -> Result<Arc<AggregateUDF>> {
        match bytes {
            BUILT_IN => SESSION.udaf(name),
            _ => taken!(bytes, &format!("the aggregate {name}"), Aggregate),
        }
    }

    fn try_encode_udaf(&self, function: &AggregateUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let is_same = |own: Arc<AggregateUDF>| {
            own.aliases() == function.aliases()
                && PROBES.iter().all(|types| aggregate_type(&own, types) == aggregate_type(function, types))
        };
        let is_built_in = SESSION.udaf(function.name()).is_ok_and(is_same);
        write_function(is_built_in, Object::Aggregate(Arc::new(function.clone())), bytes)
    }

    fn try_decode_udwf(&self, name: &str, bytes: &[u8]) -> Result<Arc<WindowUDF>> {
        match bytes {
            BUILT_IN => SESSION.udwf(name),
            _ => taken!(bytes, &format!("the window function {name}"), Window),
        }
    }

    fn try_encode_udwf(&self, function: &WindowUDF, bytes: &mut Vec<u8>) -> Result<()> {
        let is_built_in = SESSION.udwf(function.name()).is_ok_and(|own| own.aliases() == function.aliases());
        write_function(is_built_in, Object::Window(Arc::new(function.clone())), bytes)
    }
}

impl PhysicalExtensionCodec for HandleCodec {
    fn try_decode(
        &self,
        bytes: &[u8],
        _: &[Arc<dyn ExecutionPlan>],
        _: &TaskContext,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        taken!(bytes, "a query", Query)
    }

    fn try_encode(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        _: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        if !plan.is::<ForeignQuery>() {
            return not_impl_err!("devicefusion does not write the operator {}", plan.name());
        }
        HANDLES.put(Object::Query(plan), bytes);
        Ok(())
    }
}

/// The codec for sessions of datafusion-python.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct Codec;

#[pymethods]
impl Codec {
    #[new]
    fn new() -> Self {
        Self
    }

    /// Names the codec in the bytes of plans.
    #[getter]
    fn __datafusion_codec_id__(&self) -> &'static str {
        "devicefusion"
    }

    #[pyo3(signature = (session=None))]
    fn __datafusion_logical_extension_codec__<'py>(
        &self,
        py: Python<'py>,
        session: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(session);
        let runtime = runtime()?.handle().clone();
        let codec = FFI_LogicalExtensionCodec::new(Arc::new(HandleCodec), Some(runtime), &task_contexts());
        capsule::of_logical_codec(py, codec)
    }

    #[pyo3(signature = (session=None))]
    fn __datafusion_physical_extension_codec__<'py>(
        &self,
        py: Python<'py>,
        session: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(session);
        let runtime = runtime()?.handle().clone();
        let codec = FFI_PhysicalExtensionCodec::new(Arc::new(HandleCodec), Some(runtime), &task_contexts());
        capsule::of_physical_codec(py, codec)
    }
}

fn task_contexts() -> Arc<dyn TaskContextProvider> {
    Arc::clone(&SESSION) as Arc<dyn TaskContextProvider>
}
