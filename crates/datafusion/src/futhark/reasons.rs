// SPDX-License-Identifier: Apache-2.0
//! Reasons for which functions of libraries stay on the host.

use arrow::datatypes::DataType;
use columnar::ColumnType;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF};
use device::DriverKind;
use futhark::Primitive;
use futhark::manifest::Backend;

use crate::futhark::aggregate::FutharkAggregate;
use crate::futhark::function::Function;
use crate::futhark::parameter::{Parameter, ValueKind};
use crate::futhark::returns::Returns;
use crate::futhark::scalar::FutharkScalar;
use crate::reason::Reason;

pub(super) const EACH_ROW: &str = "it is called for each row";

/// Whether a scalar function can run on the device, whatever its arguments.
pub(super) fn support_of_function(function: &Function) -> std::result::Result<(), Reason> {
    let why = |why: &str| Err(reason(function, why));
    if function.context().device().is_none() {
        return why(&no_device(function));
    }
    let (gives, data_type) = match function.returns() {
        Returns::Column(gives, data_type) => (gives, data_type),
        Returns::Struct(..) => return why("it gives structs"),
        _ => return why(EACH_ROW),
    };
    support_of_values(function, data_type)?;
    match function.context().library().has_raw_arrays(*gives, 1) {
        true => Ok(()),
        false => Err(no_new_raw(function, *gives)),
    }
}

fn no_new_raw(function: &Function, of: Primitive) -> Reason {
    reason(function, &format!("the manifest names no new_raw of the type []{}", of.name()))
}

/// Whether the device supports the arguments and results of a function.
pub(super) fn support_of_values(function: &Function, gives: &DataType) -> std::result::Result<(), Reason> {
    let why = |why: &str| Err(reason(function, why));
    if matches!(gives, DataType::Struct(_)) {
        return why("it gives structs");
    }
    if function.parameters().iter().any(|parameter| !matches!(parameter.kind, ValueKind::Values(_))) {
        return why("it takes structs");
    }
    if function.parameters().iter().any(|parameter| parameter.data_type.is_list()) {
        return why("it takes lists");
    }
    fn array(input: &Parameter) -> Option<(Primitive, &DataType)> {
        match input {
            Parameter { kind: ValueKind::Values(primitive), is_array: true, data_type, .. } => Some((*primitive, data_type)),
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

/// The reason why a library shares no device.
pub(super) fn no_device(function: &Function) -> String {
    match function.context().library().manifest().backend {
        Backend::OpenCl => "its library shares no device of OpenCL's".to_owned(),
        Backend::Cuda if !function.context().library().can_share(DriverKind::Cuda) => "the manifest names no new_raw".to_owned(),
        Backend::Cuda => "its library shares no device of CUDA's".to_owned(),
        other => format!("its back end is {}", other.name()),
    }
}

/// The reason of a scalar function of a Futhark library.
pub(super) fn scalar_reason(function: &ScalarUDF) -> Option<Reason> {
    let function = function.inner().downcast_ref::<FutharkScalar>()?.function();
    let why = support_of_function(function).err();
    // Some operators call no functions of libraries.
    Some(why.unwrap_or_else(|| reason(function, "on the device it is called by projections, filters and aggregations alone")))
}

/// The reason of an aggregate of a Futhark library.
pub(super) fn aggregate_reason(function: &AggregateUDF) -> Option<Reason> {
    let function = function.inner().downcast_ref::<FutharkAggregate>()?.function();
    let why = match function.context().device() {
        None => no_device(function),
        Some(_) => "on the device it is called for all rows, without GROUP BY or OVER, and only beside other Futhark functions"
            .to_owned(),
    };
    Some(reason(function, &why))
}

pub(super) fn reason(function: &Function, why: &str) -> Reason {
    format!("the Futhark function {} works in host memory: {why}", function.name())
}
