// SPDX-License-Identifier: Apache-2.0
//! Results of entry points, and the kind of SQL function that follows from them.

use arrow::datatypes::DataType;
use futhark::manifest::{EntryPoint, Kind, OpaqueType, Record};
use futhark::{Manifest, Primitive};

use crate::futhark::parameter::{
    Nulls, Of, Parameter, column_form, data_type_of, field_name, is_stored, parameter_of, struct_type, twice, value_form,
};
use crate::reason::Reason;

/// What `CREATE FUNCTION` says of an entry point beside its name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Conventions {
    pub nulls: Nulls,
    /// Whether a record or tuple is a struct for each row, not a table.
    pub returns_struct: bool,
}

/// What a function gives.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Returns {
    /// A value for each row, from a call for all rows.
    Column(Primitive, DataType),
    /// A struct of these for each row, from a call for all rows.
    Struct(Vec<Parameter>, DataType),
    /// A value for each row, from a call for each.
    Value(One),
    /// One value for all rows.
    Aggregate(One),
    /// Rows of these columns.
    Table(Vec<Parameter>),
}

/// One value that a call gives.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct One {
    pub of: Of,
    /// As what SQL has it: records and sums are structs.
    pub data_type: DataType,
}

impl From<Parameter> for One {
    fn from(Parameter { of, data_type, .. }: Parameter) -> One {
        One { of, data_type }
    }
}

impl Returns {
    /// What kind of function it makes.
    pub fn kind(&self) -> &'static str {
        match self {
            Returns::Column(..) | Returns::Value(_) | Returns::Struct(..) => "scalar",
            Returns::Aggregate(_) => "aggregate",
            Returns::Table(_) => "table",
        }
    }
}

/// Whether structs are where they can be: one that is no column is of a function that is called for
/// each row, or of a table.
pub(super) fn check_structs(parameters: &[Parameter], returns: &Returns) -> std::result::Result<(), Reason> {
    if matches!(returns, Returns::Value(_) | Returns::Table(_)) {
        return Ok(());
    }
    parameters.iter().filter(|parameter| !parameter.is_array).try_for_each(|Parameter { name, of, .. }| match of {
        Of::Values(_) | Of::Lists(_) => Ok(()),
        Of::Records(..) => Err(format!("its parameter {name} is a record of scalars beside arrays")),
        Of::Sums(sum) => Err(format!("its parameter {name} is of the sum type {} beside arrays", sum.type_name)),
        Of::Opaque(of) => Err(format!("its parameter {name} is of the opaque type {of} beside arrays")),
    })
}

/// What a function gives whose record or tuple is a struct.
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
    let columns: Option<Vec<Parameter>> = fields().map(|(name, of)| column_form(manifest, name, of)).collect();
    if let Some(columns) = columns.filter(|columns| for_all && !columns.is_empty()) {
        let data_type = struct_type("its result", &columns)?;
        return Ok(Returns::Struct(columns, data_type));
    }
    let values = fields().map(|(name, of)| value_form(manifest, name, of)).collect::<std::result::Result<Vec<_>, _>>();
    let values = values.map_err(|reason| format!("its result: its field {reason}"))?;
    if values.is_empty() {
        return Err("it gives nothing".to_owned());
    }
    let data_type = struct_type("its result", &values)?;
    let one = One { of: Of::Records(String::new(), values), data_type };
    Ok(if for_all { Returns::Aggregate(one) } else { Returns::Value(one) })
}

/// The parameters of a function whose arrays have masks.
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

/// What a record type is made of.
fn record_of<'a>(manifest: &'a Manifest, type_name: &str) -> Option<&'a Record> {
    match manifest.kind(type_name) {
        Some(Kind::Opaque(opaque)) => opaque.record.as_ref(),
        _ => None,
    }
}

/// The types of what an entry point gives: of a record or tuple those of its fields.
pub(super) fn outputs<'a>(manifest: &'a Manifest, entry: &'a EntryPoint) -> Vec<&'a str> {
    if let [single] = entry.outputs.as_slice()
        && let Some(record) = record_of(manifest, &single.type_name)
    {
        return record.fields.iter().map(|field| field.type_name.as_str()).collect();
    }
    entry.outputs.iter().map(|output| output.type_name.as_str()).collect()
}

/// What a function whose arrays have masks gives: an array without NULLs, or with a mask of its
/// own.
pub(super) fn returns_with_mask(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Returns, Reason> {
    let types = outputs(manifest, entry);
    let takes_arrays = entry.inputs.iter().any(|input| matches!(manifest.kind(&input.type_name), Some(Kind::Array(_))));
    let line = |name: &str| match manifest.kind(name) {
        Some(Kind::Array(array)) if array.rank == 1 => Some(array.elemtype),
        _ => None,
    };
    match types.iter().map(|name| line(name)).collect::<Option<Vec<_>>>().as_deref() {
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
    let one = value_form(manifest, "result", &entry.outputs[0].type_name).map_err(|reason| format!("its {reason}"))?;
    Ok(if takes_arrays { Returns::Aggregate(one.into()) } else { Returns::Value(one.into()) })
}

/// The columns of a table that an entry point gives: a record's fields have names, and others are
/// called as in `VALUES`.
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
    if let Some(name) = twice(&columns) {
        return Err(format!("it gives a table with two columns {name}"));
    }
    let arrays = columns.iter().filter(|column| column.is_array).count();
    match arrays == 0 || arrays == columns.len() {
        true if columns.is_empty() => Err("it gives nothing".to_owned()),
        true => Ok(columns),
        false => Err("it gives both scalars and arrays, which are no table; ?returns=struct makes a struct of them".to_owned()),
    }
}
