// SPDX-License-Identifier: Apache-2.0
//! Results of entry points, and the kind of SQL function that follows from them.

use arrow::datatypes::DataType;
use futhark::manifest::{EntryPoint, Kind, OpaqueType, Record};
use futhark::{Manifest, Primitive};

use crate::futhark::parameter::{
    Nulls, Parameter, ValueKind, as_column, as_value, data_type_of, duplicate_name, field_name, is_stored, parameter_of,
    struct_type,
};
use crate::reason::Reason;

/// Conventions that `CREATE FUNCTION` states for an entry point.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Conventions {
    pub nulls: Nulls,
    /// Whether a returned record or tuple is a struct for each row, not a table.
    pub returns_struct: bool,
}

/// The result of a function.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Returns {
    /// A value for each row, from a call for all rows.
    Column(Primitive, DataType),
    /// A struct for each row, from a call for all rows.
    Struct(Vec<Parameter>, DataType),
    /// A value for each row, from a call for each row.
    Value(ScalarReturn),
    /// One value for all rows.
    Aggregate(ScalarReturn),
    /// Rows with these columns.
    Table(Vec<Parameter>),
}

/// One value that a call returns.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScalarReturn {
    pub kind: ValueKind,
    /// The SQL type: records and sums are structs.
    pub data_type: DataType,
}

impl From<Parameter> for ScalarReturn {
    fn from(Parameter { kind, data_type, .. }: Parameter) -> ScalarReturn {
        ScalarReturn { kind, data_type }
    }
}

impl Returns {
    /// The kind of SQL function.
    pub fn kind(&self) -> &'static str {
        match self {
            Returns::Column(..) | Returns::Value(_) | Returns::Struct(..) => "scalar",
            Returns::Aggregate(_) => "aggregate",
            Returns::Table(_) => "table",
        }
    }
}

/// Checks struct parameters: a struct that is no column needs a table function, or a function
/// called for each row.
pub(super) fn check_structs(parameters: &[Parameter], returns: &Returns) -> std::result::Result<(), Reason> {
    match returns {
        Returns::Value(_) | Returns::Table(_) => return Ok(()),
        Returns::Column(..) | Returns::Struct(..) | Returns::Aggregate(_) => {}
    }
    parameters.iter().filter(|parameter| !parameter.is_array).try_for_each(|Parameter { name, kind, .. }| match kind {
        ValueKind::Values(_) | ValueKind::Lists(_) => Ok(()),
        ValueKind::Records(..) => Err(format!("its parameter {name} is a record of scalars beside arrays")),
        ValueKind::Sums(sum) => Err(format!("its parameter {name} is of the sum type {} beside arrays", sum.type_name)),
        ValueKind::Opaque(of) => Err(format!("its parameter {name} is of the opaque type {of} beside arrays")),
    })
}

/// The result of a function whose record or tuple is a struct.
pub(super) fn returns_struct_of(
    manifest: &Manifest,
    entry: &EntryPoint,
    parameters: &[Parameter],
) -> std::result::Result<Returns, Reason> {
    let for_all = parameters.iter().any(|parameter| parameter.is_array);
    let names: Vec<String> = match entry.outputs.as_slice() {
        [single] => match manifest.kind(&single.type_name) {
            Some(Kind::Opaque(OpaqueType { record: Some(record), .. })) => {
                record.fields.iter().map(|field| field_name(&field.name)).collect()
            }
            _ => return Err("with returns=struct it must give a record or tuple".to_owned()),
        },
        several => (0..several.len()).map(|index| format!("c{index}")).collect(),
    };
    let fields = || names.iter().zip(outputs(manifest, entry));
    let columns: Option<Vec<Parameter>> = fields().map(|(name, of)| as_column(manifest, name, of)).collect();
    if let Some(columns) = columns.filter(|columns| for_all && !columns.is_empty()) {
        let data_type = struct_type("its result", &columns)?;
        return Ok(Returns::Struct(columns, data_type));
    }
    let values = fields().map(|(name, of)| as_value(manifest, name, of)).collect::<std::result::Result<Vec<_>, _>>();
    let values = values.map_err(|reason| format!("its result: its field {reason}"))?;
    if values.is_empty() {
        return Err("it gives nothing".to_owned());
    }
    let data_type = struct_type("its result", &values)?;
    let one = ScalarReturn { kind: ValueKind::Records(String::new(), values), data_type };
    Ok(if for_all { Returns::Aggregate(one) } else { Returns::Value(one) })
}

/// The SQL parameters of a function with masks.
pub(super) fn without_masks(inputs: &[Parameter]) -> std::result::Result<Vec<Parameter>, Reason> {
    let (mut parameters, mut inputs) = (Vec::new(), inputs.iter());
    while let Some(parameter) = inputs.next() {
        if parameter.data_type.is_list() {
            return Err(format!("its parameter {} has several dimensions, and a mask only one", parameter.name));
        }
        if parameter.is_array && !inputs.next().is_some_and(|mask| mask.is_array && mask.data_type == DataType::Boolean) {
            return Err(format!("behind its parameter {} there is no mask, an array of bool", parameter.name));
        }
        parameters.push(parameter.clone());
    }
    Ok(parameters)
}

/// The fields of a record type.
fn record_of<'a>(manifest: &'a Manifest, type_name: &str) -> Option<&'a Record> {
    match manifest.kind(type_name) {
        Some(Kind::Opaque(opaque)) => opaque.record.as_ref(),
        _ => None,
    }
}

/// The result types of an entry point; of a record or tuple, those of its fields.
pub(super) fn outputs<'a>(manifest: &'a Manifest, entry: &'a EntryPoint) -> Vec<&'a str> {
    if let [single] = entry.outputs.as_slice()
        && let Some(record) = record_of(manifest, &single.type_name)
    {
        return record.fields.iter().map(|field| field.type_name.as_str()).collect();
    }
    entry.outputs.iter().map(|output| output.type_name.as_str()).collect()
}

/// The result of a function with masks: an array, or an array and its mask.
pub(super) fn returns_with_mask(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Returns, Reason> {
    let types = outputs(manifest, entry);
    let takes_arrays = entry.inputs.iter().any(|input| matches!(manifest.kind(&input.type_name), Some(Kind::Array(_))));
    let element = |name: &str| match manifest.kind(name) {
        Some(Kind::Array(array)) if array.rank == 1 => Some(array.elemtype),
        _ => None,
    };
    match types.iter().map(|name| element(name)).collect::<Option<Vec<_>>>().as_deref() {
        Some([values] | [values, Primitive::Bool]) if takes_arrays => Ok(Returns::Column(*values, data_type_of(*values))),
        _ => Err("with nulls=mask it must take arrays, and give one, or one and its mask".to_owned()),
    }
}

pub(super) fn returns(manifest: &Manifest, entry: &EntryPoint, parameters: &[Parameter]) -> std::result::Result<Returns, Reason> {
    let takes_arrays = parameters.iter().any(|parameter| parameter.is_array);
    let single = match entry.outputs.as_slice() {
        [output] => manifest.kind(&output.type_name),
        _ => None,
    };
    let is_value = match single {
        Some(Kind::Scalar(_)) => true,
        Some(Kind::Array(array)) if array.rank == 1 && takes_arrays => {
            return Ok(Returns::Column(array.elemtype, data_type_of(array.elemtype)));
        }
        Some(Kind::Opaque(opaque)) => opaque.record.is_none() && (opaque.sum.is_some() || is_stored(opaque)),
        _ => false,
    };
    if !is_value {
        return Ok(Returns::Table(columns_of(manifest, entry)?));
    }
    let one = as_value(manifest, "result", &entry.outputs[0].type_name).map_err(|reason| format!("its {reason}"))?;
    Ok(if takes_arrays { Returns::Aggregate(one.into()) } else { Returns::Value(one.into()) })
}

/// The columns of a table function. They have the names of a record's fields, else those of
/// `VALUES`.
fn columns_of(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Vec<Parameter>, Reason> {
    let types = outputs(manifest, entry);
    let record = match entry.outputs.as_slice() {
        [single] => record_of(manifest, &single.type_name),
        _ => None,
    };
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let name = |index: usize| match record.and_then(|record| record.fields.get(index)) {
        Some(field) if !is_number(&field.name) => field.name.clone(),
        _ => format!("column{}", index + 1),
    };
    let mut columns = Vec::with_capacity(types.len());
    for (index, of) in types.into_iter().enumerate() {
        let column = parameter_of(manifest, &name(index), of);
        columns.push(column.map_err(|_| format!("it gives a value of type {of}, which is no column"))?);
    }
    if let Some(name) = duplicate_name(&columns) {
        return Err(format!("it gives a table with two columns {name}"));
    }
    let arrays = columns.iter().filter(|column| column.is_array).count();
    match arrays == 0 || arrays == columns.len() {
        true if columns.is_empty() => Err("it gives nothing".to_owned()),
        true => Ok(columns),
        false => Err("it gives both scalars and arrays, which are no table; ?returns=struct makes a struct of them".to_owned()),
    }
}
