// SPDX-License-Identifier: Apache-2.0
//! What kind of SQL function an entry point is, and what it takes and gives.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err, internal_err, plan_err};
use datafusion::execution::context::RegisterFunction;
use datafusion::logical_expr::{AggregateUDF, DocSection, Documentation, ScalarUDF, Signature, TypeSignature, Volatility};
use device::Buffer;
use futhark::manifest::{ArrayType, EntryPoint, Kind, OpaqueType, Record};
use futhark::{Argument, Context, Manifest, Primitive, Scalar, Value};

use crate::expr::Reason;
use crate::futhark::aggregate::FutharkAggregate;
use crate::futhark::convert::{row_of, struct_row, to_futhark};
use crate::futhark::scalar::FutharkScalar;
use crate::futhark::sum::SumType;
use crate::futhark::table::FutharkTable;
use crate::runtime::device_error;

/// An entry point as a function of SQL. Clones are the same one.
#[derive(Clone)]
pub(crate) struct Function {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    name: String,
    entry_point: String,
    context: Context,
    /// What the library takes.
    inputs: Vec<Parameter>,
    /// What SQL gives: without masks.
    parameters: Vec<Parameter>,
    nulls: Nulls,
    returns: Returns,
    signature: String,
    documentation: Documentation,
}

/// A parameter.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parameter {
    pub name: String,
    pub of: Of,
    /// A value for each row; else one for all.
    pub is_array: bool,
    /// What SQL gives for a row, or for all: a type with the primitive type's bits, lists of it for more dimensions, structs for
    /// records and sums.
    pub data_type: DataType,
}

/// What a parameter's values are.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Of {
    /// Values of a primitive type.
    Values(Primitive),
    /// Records of this type, and their fields in the manifest's order.
    Records(String, Vec<Parameter>),
    /// Values of a sum type.
    Sums(Arc<SumType>),
    /// Values of a type that only the library understands, sealed.
    Opaque(String),
    /// Arrays within one value: lists of what a column of them has.
    Lists(Box<Parameter>),
}

/// What becomes of rows with a NULL argument.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Nulls {
    /// The library does not see them, and they give NULL.
    #[default]
    Strict,
    /// Behind each array the library takes another one of booleans, which says where there is a value. Its result has NULL
    /// where a second result of booleans says so.
    Mask,
}

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

impl Function {
    /// An entry point under a name, or why SQL has no form for it.
    pub fn new(
        name: &str,
        entry_point: &str,
        conventions: Conventions,
        context: &Context,
    ) -> std::result::Result<Function, Reason> {
        let Conventions { nulls, returns_struct } = conventions;
        let manifest = context.library().manifest();
        let entry = manifest.entry_point(entry_point).map_err(|error| error.to_string())?;
        let inputs = parameters(manifest, entry)?;
        let (parameters, returns) = match nulls {
            Nulls::Mask if returns_struct => return Err("nulls=mask and returns=struct exclude one another".to_owned()),
            Nulls::Mask => (without_masks(&inputs)?, returns_with_mask(manifest, entry)?),
            Nulls::Strict if returns_struct => (inputs.clone(), returns_struct_of(manifest, entry, &inputs)?),
            Nulls::Strict => (inputs.clone(), returns(manifest, entry, &inputs)?),
        };
        check_structs(&parameters, &returns)?;
        let signature = manifest.signature(entry_point).map_err(|error| error.to_string())?;
        let documentation = documentation(name, entry, &signature, context, &parameters);
        let (name, entry_point) = (name.to_owned(), entry_point.to_owned());
        let context = context.clone();
        let inner = Inner { name, entry_point, context, inputs, parameters, nulls, returns, signature, documentation };
        Ok(Function { inner: Arc::new(inner) })
    }

    /// The function with types that a user declares, where they have the same bits; `None` where none are declared.
    pub fn declared(&self, parameters: Option<&[DataType]>, returns: Option<&DataType>) -> std::result::Result<Function, Reason> {
        let mut inner = Inner::clone(&self.inner);
        let entry_point = &inner.entry_point;
        if let Some(declared) = parameters {
            if declared.len() != inner.parameters.len() {
                let (has, signature) = (inner.parameters.len(), &inner.signature);
                return Err(format!("{entry_point} is {signature} and takes {has} arguments, not {}", declared.len()));
            }
            for (parameter, declared) in inner.parameters.iter_mut().zip(declared) {
                has_bits_of(declared, &parameter.data_type)
                    .map_err(|reason| format!("the parameter {} of {entry_point}: {reason}", parameter.name))?;
                parameter.data_type = declared.clone();
            }
        }
        if let Some(declared) = returns {
            let (Returns::Column(_, data_type)
            | Returns::Value(One { data_type, .. })
            | Returns::Aggregate(One { data_type, .. })) = &mut inner.returns
            else {
                return Err(format!("{entry_point} gives columns that are the manifest's: leave RETURNS out"));
            };
            has_bits_of(declared, data_type).map_err(|reason| format!("the result of {entry_point}: {reason}"))?;
            *data_type = declared.clone();
        }
        Ok(Function { inner: Arc::new(inner) })
    }

    /// What DataFusion registers.
    pub fn into_registration(self, volatility: Volatility) -> RegisterFunction {
        match self.inner.returns {
            Returns::Column(..) | Returns::Value(_) | Returns::Struct(..) => {
                RegisterFunction::Scalar(Arc::new(ScalarUDF::new_from_impl(FutharkScalar::new(self, volatility))))
            }
            Returns::Aggregate(_) => {
                RegisterFunction::Aggregate(Arc::new(AggregateUDF::new_from_impl(FutharkAggregate::new(self, volatility))))
            }
            Returns::Table(_) => RegisterFunction::Table(self.inner.name.clone(), Arc::new(FutharkTable::new(self))),
        }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.inner.parameters
    }

    /// What the library takes: the parameters, and masks.
    pub fn inputs(&self) -> &[Parameter] {
        &self.inner.inputs
    }

    /// What becomes of rows with a NULL argument.
    pub fn nulls(&self) -> Nulls {
        self.inner.nulls
    }

    /// Whether a result has a mask.
    pub fn gives_mask(&self) -> bool {
        let manifest = self.inner.context.library().manifest();
        let entry = manifest.entry_points.get(&self.inner.entry_point);
        self.inner.nulls == Nulls::Mask && entry.is_some_and(|entry| outputs(manifest, entry).len() > 1)
    }

    /// The array that a call for all rows has given, and the mask of its values, if there is one.
    ///
    /// # Errors
    /// Where it is not that, or the library gave another number of values than there were rows.
    pub fn array_of(&self, results: Vec<Value>, rows: usize) -> Result<(futhark::Array, Option<futhark::Array>)> {
        let name = self.name();
        let mut arrays = Vec::with_capacity(results.len());
        for result in self.fields_of(results)? {
            let Value::Array(array) = result else { return internal_err!("{name} gave no array") };
            self.check_rows(array.shape().iter().product(), rows)?;
            arrays.push(array);
        }
        let mut arrays = arrays.into_iter();
        match (arrays.next(), arrays.next()) {
            (Some(values), mask) => Ok((values, mask)),
            (None, _) => internal_err!("{name} gave nothing"),
        }
    }

    /// Whether a call for all rows gave each its value.
    pub fn check_rows(&self, gave: usize, rows: usize) -> Result<()> {
        let name = self.name();
        match gave == rows {
            true => Ok(()),
            false => {
                exec_err!("{name} gave {gave} values for {rows} rows: a scalar function must give each row its value")
            }
        }
    }

    /// Whether columns that a call gave can be rows.
    pub fn same_length(&self, fields: &[Parameter], lengths: &[usize]) -> Result<()> {
        if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(());
        }
        let lengths: Vec<String> = fields.iter().zip(lengths).map(|(field, length)| format!("{} {length}", field.name)).collect();
        exec_err!("{} gave columns that differ in length: {}", self.name(), lengths.join(", "))
    }

    /// The results of a call; of a record or tuple its fields.
    pub fn fields_of(&self, results: Vec<Value>) -> Result<Vec<Value>> {
        match results.as_slice() {
            [Value::Opaque(record)] => record.fields().map_err(|error| self.failed(error)),
            _ => Ok(results),
        }
    }

    /// The one value that a call has given.
    pub fn value_of(&self, one: &One, results: Vec<Value>) -> Result<ScalarValue> {
        let row = match (results.as_slice(), &one.of) {
            ([value], of) => row_of(self, value, of, &one.data_type)?,
            (fields, Of::Records(_, of)) => struct_row(self, fields, of)?,
            (several, _) => return internal_err!("{} gave {} values, not one of {}", self.name(), several.len(), one.data_type),
        };
        ScalarValue::try_from_array(&row, 0)
    }

    /// What a call looks like, with the arguments' types: lists for arrays.
    pub fn call_text(&self) -> String {
        let argument = |parameter: &Parameter| match parameter.is_array {
            true => format!("{} {}", parameter.name, DataType::new_list(parameter.data_type.clone(), true)),
            false => format!("{} {}", parameter.name, parameter.data_type),
        };
        format!("{}({})", self.name(), self.parameters().iter().map(argument).collect::<Vec<_>>().join(", "))
    }

    /// The columns of a table function, with their types.
    pub fn columns_text(&self) -> String {
        let Returns::Table(columns) = self.returns() else { return String::new() };
        let column = |column: &Parameter| format!("{} {}", column.name, column.data_type);
        format!("TABLE({})", columns.iter().map(column).collect::<Vec<_>>().join(", "))
    }

    pub fn returns(&self) -> &Returns {
        &self.inner.returns
    }

    pub fn context(&self) -> &Context {
        &self.inner.context
    }

    /// Of each input that is an array, whether a call overwrites what it is given.
    pub fn consumes(&self) -> impl Iterator<Item = bool> {
        let entry = self.inner.context.library().manifest().entry_points.get(&self.inner.entry_point);
        let inputs = entry.into_iter().flat_map(|entry| &entry.inputs).zip(&self.inner.inputs);
        inputs.filter(|(_, input)| input.is_array).map(|(of, _)| of.unique)
    }

    pub fn documentation(&self) -> &Documentation {
        &self.inner.documentation
    }

    /// All arguments are taken as they come and checked by [`check`](Self::check), whose reasons are better; the exact types
    /// are what SHOW FUNCTIONS lists.
    pub fn sql_signature(&self, volatility: Volatility) -> Signature {
        let types = self.inner.parameters.iter().map(|parameter| parameter.data_type.clone()).collect();
        Signature::one_of(vec![TypeSignature::UserDefined, TypeSignature::Exact(types)], volatility)
    }

    /// Whether arguments of these types can be handed over.
    pub fn check<'a>(&self, types: impl ExactSizeIterator<Item = &'a DataType>) -> Result<()> {
        let Inner { name, parameters, signature, .. } = self.inner.as_ref();
        if types.len() != parameters.len() {
            return plan_err!("{name} is {signature} and takes {} arguments, not {}", parameters.len(), types.len());
        }
        for (parameter, data_type) in parameters.iter().zip(types) {
            if let Err(reason) = takes(parameter, data_type) {
                return plan_err!("the argument {} of {name}, which is {signature}: {reason}", parameter.name);
            }
        }
        Ok(())
    }

    /// Calls the entry point.
    pub fn call(&self, arguments: Vec<Value>) -> futhark::Result<Vec<Value>> {
        self.inner.context.call(&self.inner.entry_point, arguments.into_iter().map(Argument::Owned).collect())
    }

    /// Calls the entry point over columns, with constants for the parameters that are no arrays. No other thread comes between.
    pub fn call_over(&self, columns: &[ArrayRef], constants: &[Scalar]) -> Result<Vec<Value>> {
        let mut columns = columns.iter();
        self.call_with(constants, |parameter| columns.next().map(|column| to_futhark(self, parameter, column)))
    }

    /// The same over buffers that the library can use, of `rows` values each.
    pub fn call_over_buffers(&self, buffers: Vec<Buffer>, rows: usize, constants: &[Scalar]) -> Result<Vec<Value>> {
        let mut buffers = buffers.into_iter();
        self.call_with(constants, |parameter| match parameter.of {
            Of::Values(primitive) => {
                let array = |buffer| self.context().array_from_buffer(primitive, &[rows], buffer).map(Value::from);
                buffers.next().map(array)
            }
            // No function of these is called on the device.
            _ => None,
        })
    }

    fn call_with(
        &self,
        constants: &[Scalar],
        mut array: impl FnMut(&Parameter) -> Option<futhark::Result<Value>>,
    ) -> Result<Vec<Value>> {
        let call = || {
            let mut constants = constants.iter();
            let mut arguments = Vec::with_capacity(self.inputs().len());
            for parameter in self.inputs() {
                if parameter.is_array {
                    arguments.extend(array(parameter).transpose()?);
                } else {
                    arguments.extend(constants.next().copied().map(Value::from));
                }
            }
            self.call(arguments)
        };
        self.context().locked(call).map_err(|error| self.failed(error))
    }

    /// A failure of the library as the query's. Out of memory keeps its kind.
    pub fn failed(&self, error: futhark::Error) -> DataFusionError {
        let name = self.name();
        match error {
            futhark::Error::OutOfMemory { .. } => DataFusionError::ResourcesExhausted(format!("{name}: {error}")),
            futhark::Error::Device(error) => device_error(name, error),
            error => exec_datafusion_err!("{name}: {error}"),
        }
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.inner.name, self.inner.signature)
    }
}

impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for Function {}

impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.inner).hash(state);
    }
}

fn parameters(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Vec<Parameter>, Reason> {
    let parameter = |(position, input): (usize, &futhark::manifest::Input)| {
        let name = if input.name.is_empty() { format!("arg{}", position + 1) } else { input.name.clone() };
        parameter_of(manifest, &name, &input.type_name).map_err(|reason| format!("its parameter {reason}"))
    };
    entry.inputs.iter().enumerate().map(parameter).collect()
}

/// A type as a column, where it is an array or a record of nothing else, or as one value; or why SQL has neither.
fn parameter_of(manifest: &Manifest, name: &str, type_name: &str) -> std::result::Result<Parameter, Reason> {
    column_form(manifest, name, type_name).map_or_else(|| value_form(manifest, name, type_name), Ok)
}

/// A type as a column: arrays, and records of nothing else.
fn column_form(manifest: &Manifest, name: &str, type_name: &str) -> Option<Parameter> {
    let (of, data_type) = match manifest.kind(type_name)? {
        Kind::Array(ArrayType { elemtype, rank, .. }) => {
            let lists = (1..*rank).fold(data_type_of(*elemtype), |item, _| DataType::new_list(item, true));
            (Of::Values(*elemtype), lists)
        }
        Kind::Opaque(OpaqueType { record: Some(record), .. }) if !record.fields.is_empty() => {
            let field = |field: &futhark::manifest::Field| column_form(manifest, &field_name(&field.name), &field.type_name);
            let fields = record.fields.iter().map(field).collect::<Option<Vec<_>>>()?;
            let structs = struct_type(&format!("the type {type_name}"), &fields).ok()?;
            (Of::Records(type_name.to_owned(), fields), structs)
        }
        Kind::Scalar(_) | Kind::Opaque(_) => return None,
    };
    Some(Parameter { name: name.to_owned(), of, is_array: true, data_type })
}

/// A type as one value, or why SQL has none: structs for records and sums, in which arrays are lists.
pub(super) fn value_form(manifest: &Manifest, name: &str, type_name: &str) -> std::result::Result<Parameter, Reason> {
    let (of, data_type) = match manifest.kind(type_name) {
        Some(Kind::Scalar(primitive)) => (Of::Values(primitive), data_type_of(primitive)),
        Some(Kind::Array(_) | Kind::Opaque(OpaqueType { record: Some(Record { rank: 1.., .. }), .. })) => {
            let column = column_form(manifest, name, type_name);
            let column = column.ok_or_else(|| format!("{name} is of type {type_name}, an array of what is no column"))?;
            let lists = DataType::new_list(column.data_type.clone(), true);
            (Of::Lists(Box::new(column)), lists)
        }
        Some(Kind::Opaque(OpaqueType { record: Some(record), .. })) if !record.fields.is_empty() => {
            let field = |field: &futhark::manifest::Field| value_form(manifest, &field_name(&field.name), &field.type_name);
            let fields = record.fields.iter().map(field).collect::<std::result::Result<Vec<_>, _>>();
            let fields = fields.map_err(|reason| format!("{name}: its field {reason}"))?;
            let structs = struct_type(&format!("the type {type_name}"), &fields).map_err(|reason| format!("{name}: {reason}"))?;
            (Of::Records(type_name.to_owned(), fields), structs)
        }
        Some(Kind::Opaque(OpaqueType { sum: Some(sum), .. })) => {
            let sum = SumType::new(manifest, type_name, sum).map_err(|reason| format!("{name}: {reason}"))?;
            let structs = sum.data_type();
            (Of::Sums(Arc::new(sum)), structs)
        }
        Some(Kind::Opaque(opaque)) if is_stored(opaque) => (Of::Opaque(type_name.to_owned()), DataType::Binary),
        _ => return Err(format!("{name} is of type {type_name}, which cannot be stored")),
    };
    Ok(Parameter { name: name.to_owned(), of, is_array: false, data_type })
}

/// The struct that something with these fields is, if each has its own name.
fn struct_type(what: &str, fields: &[Parameter]) -> std::result::Result<DataType, Reason> {
    if let Some(name) = twice(fields) {
        return Err(format!("{what} would be a struct with two fields {name}"));
    }
    Ok(DataType::Struct(fields.iter().map(|field| Field::new(&field.name, field.data_type.clone(), true)).collect()))
}

/// A name that two fields have.
fn twice(fields: &[Parameter]) -> Option<&str> {
    let is_twice = |(index, field): &(usize, &Parameter)| fields[..*index].iter().any(|other| other.name == field.name);
    fields.iter().enumerate().find(is_twice).map(|(_, field)| field.name.as_str())
}

/// Whether values of an opaque type can be bytes.
fn is_stored(opaque: &OpaqueType) -> bool {
    opaque.ops.store.is_some() && opaque.ops.restore.is_some()
}

/// The name of a field; those of tuples are numbers, and called as `struct()` calls them.
fn field_name(name: &str) -> String {
    let is_number = name.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { format!("c{name}") } else { name.to_owned() }
}

/// Whether structs are where they can be: one that is no column is of a function that is called for each row, or of a table.
fn check_structs(parameters: &[Parameter], returns: &Returns) -> std::result::Result<(), Reason> {
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
fn returns_struct_of(manifest: &Manifest, entry: &EntryPoint, parameters: &[Parameter]) -> std::result::Result<Returns, Reason> {
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
fn without_masks(inputs: &[Parameter]) -> std::result::Result<Vec<Parameter>, Reason> {
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
fn outputs<'a>(manifest: &'a Manifest, entry: &'a EntryPoint) -> Vec<&'a str> {
    if let [single] = entry.outputs.as_slice()
        && let Some(record) = record_of(manifest, &single.type_name)
    {
        return record.fields.iter().map(|field| field.type_name.as_str()).collect();
    }
    entry.outputs.iter().map(|output| output.type_name.as_str()).collect()
}

/// What a function whose arrays have masks gives: an array without NULLs, or with a mask of its own.
fn returns_with_mask(manifest: &Manifest, entry: &EntryPoint) -> std::result::Result<Returns, Reason> {
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

fn returns(manifest: &Manifest, entry: &EntryPoint, parameters: &[Parameter]) -> std::result::Result<Returns, Reason> {
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

/// The columns of a table that an entry point gives: a record's fields have names, and others are called as in `VALUES`.
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

fn documentation(name: &str, entry: &EntryPoint, signature: &str, context: &Context, parameters: &[Parameter]) -> Documentation {
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    let from = format!("Futhark: {signature}, of {}", context.library().path().display());
    let description = entry.doc.as_ref().map_or(from.clone(), |doc| format!("{doc} {from}"));
    let section = DocSection { include: false, label: "Futhark", description: None };
    let mut builder = Documentation::builder(section, description, format!("{name}({})", names.join(", ")));
    for parameter in parameters {
        builder = builder.with_argument(&parameter.name, type_of(parameter));
    }
    builder.build()
}

/// A parameter's type in Futhark's words.
fn type_of(parameter: &Parameter) -> String {
    match &parameter.of {
        Of::Values(primitive) => {
            let dimensions = usize::from(parameter.is_array) + list_depth(&parameter.data_type);
            format!("{}{}", "[]".repeat(dimensions), primitive.name())
        }
        Of::Records(type_name, _) | Of::Opaque(type_name) => type_name.clone(),
        Of::Sums(sum) => sum.type_name.clone(),
        Of::Lists(column) => type_of(column),
    }
}

fn list_depth(data_type: &DataType) -> usize {
    if let DataType::List(item) = data_type { 1 + list_depth(item.data_type()) } else { 0 }
}

/// The Arrow type that has a primitive type's values.
pub(crate) fn data_type_of(primitive: Primitive) -> DataType {
    match primitive {
        Primitive::I8 => DataType::Int8,
        Primitive::I16 => DataType::Int16,
        Primitive::I32 => DataType::Int32,
        Primitive::I64 => DataType::Int64,
        Primitive::U8 => DataType::UInt8,
        Primitive::U16 => DataType::UInt16,
        Primitive::U32 => DataType::UInt32,
        Primitive::U64 => DataType::UInt64,
        Primitive::F16 => DataType::Float16,
        Primitive::F32 => DataType::Float32,
        Primitive::F64 => DataType::Float64,
        Primitive::Bool => DataType::Boolean,
    }
}

/// Why values of a declared type are not handed over as those of the manifest's, if not. Times are, as integers.
fn has_bits_of(declared: &DataType, of: &DataType) -> std::result::Result<(), Reason> {
    let fits = match (declared, of) {
        (DataType::List(declared), DataType::List(of)) => return has_bits_of(declared.data_type(), of.data_type()),
        (DataType::Date32 | DataType::Time32(_), of) => *of == DataType::Int32,
        (DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(..) | DataType::Duration(_), of) => *of == DataType::Int64,
        (declared, of) => declared == of,
    };
    match fits {
        true => Ok(()),
        false if declared.is_decimal() => Err(DECIMALS.to_owned()),
        false => Err(format!("it is {of}, which {declared} is not")),
    }
}

const DECIMALS: &str = "decimals have no Futhark type; use DOUBLE or BIGINT";

/// Why an argument of a type is not taken for a parameter, if not. Values that do not fit fail when they come.
pub(super) fn takes(parameter: &Parameter, from: &DataType) -> std::result::Result<(), Reason> {
    match (&parameter.of, from) {
        (_, DataType::Null) => Ok(()),
        (Of::Sums(sum), from) => sum.takes(from),
        (Of::Records(_, fields), DataType::Struct(given)) => {
            if let Some(missing) = fields.iter().find(|field| given.find(&field.name).is_none()) {
                return Err(format!("the struct has no field {}", missing.name));
            }
            if given.len() != fields.len() {
                return Err(format!("the struct has {} fields, must have {}", given.len(), fields.len()));
            }
            fields.iter().try_for_each(|field| {
                let given = given.find(&field.name).map_or(&DataType::Null, |(_, given)| given.data_type());
                takes(field, given).map_err(|reason| format!("its field {}: {reason}", field.name))
            })
        }
        (Of::Lists(column), DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) => {
            takes(column, item.data_type())
        }
        (_, from) => converts(from, &parameter.data_type),
    }
}

/// The same of types without structs.
fn converts(from: &DataType, to: &DataType) -> std::result::Result<(), Reason> {
    let is_time = |data_type: &DataType| data_type.is_temporal() && !matches!(data_type, DataType::Interval(_));
    let widens = |to: &DataType| from.primitive_width() <= to.primitive_width();
    let fits = match from {
        DataType::Null => true,
        DataType::Dictionary(_, values) => return converts(values, to),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            return match to {
                DataType::List(to) => converts(item.data_type(), to.data_type()),
                to => Err(format!("{from} is not taken for {to}")),
            };
        }
        DataType::Struct(_) => return Err(format!("a struct is not taken for {to}")),
        from if from == to => true,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => *to == DataType::Binary,
        from if from.is_decimal() => return Err(DECIMALS.to_owned()),
        from if from.is_integer() => to.is_integer() || to.is_floating(),
        from if from.is_floating() => to.is_floating(),
        from if is_time(from) && is_time(to) => can_cast_types(from, to),
        from if is_time(from) => to.is_signed_integer() && widens(to) && can_cast_types(from, to),
        _ => false,
    };
    match fits {
        true => Ok(()),
        false => Err(format!("{from} is not taken for {to}; cast it")),
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::TimeUnit;

    use super::*;

    #[test]
    fn times_are_integers_and_decimals_are_refused() {
        let moment = DataType::Timestamp(TimeUnit::Nanosecond, None);
        let list = |item: &DataType| DataType::new_list(item.clone(), false);
        for (declared, of) in [(&moment, &DataType::Int64), (&DataType::Date32, &DataType::Int32)] {
            assert_eq!(has_bits_of(declared, of), Ok(()));
            assert_eq!(has_bits_of(&list(declared), &DataType::new_list(of.clone(), true)), Ok(()));
        }
        assert_eq!(has_bits_of(&DataType::Date32, &DataType::Int64).unwrap_err(), "it is Int64, which Date32 is not");
        assert!(has_bits_of(&DataType::Int64, &list(&DataType::Int64)).is_err());
        assert_eq!(has_bits_of(&DataType::Decimal128(9, 2), &DataType::Int64).unwrap_err(), DECIMALS);
        for primitive in Primitive::ALL {
            assert_eq!(has_bits_of(&data_type_of(primitive), &data_type_of(primitive)), Ok(()));
        }
    }

    #[test]
    fn arguments_are_converted_where_nothing_is_lost_unseen() {
        use DataType::*;
        let moment = Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
        let words = Dictionary(Box::new(Int8), Box::new(Int16));
        for (from, to) in [
            (&Int64, &Int32),
            (&Int64, &Float32),
            (&Float64, &Float32),
            (&Null, &Boolean),
            (&moment, &Int64),
            (&Date32, &Int32),
            (&Date32, &Int64),
            (&words, &Int64),
        ] {
            assert_eq!(converts(from, to), Ok(()), "{from} to {to}");
        }
        for (from, to) in
            [(&Float64, &Int64), (&Boolean, &Int8), (&Int8, &Boolean), (&Utf8, &Int64), (&moment, &Int32), (&moment, &UInt64)]
        {
            assert_eq!(converts(from, to).unwrap_err(), format!("{from} is not taken for {to}; cast it"));
        }
        assert_eq!(converts(&Decimal64(9, 2), &Float64).unwrap_err(), DECIMALS);
        let lists = |item: DataType| DataType::new_list(item, true);
        let points = DataType::new_fixed_size_list(Float32, 3, false);
        assert_eq!(converts(&points, &lists(Float64)), Ok(()));
        assert!(converts(&points, &Float64).is_err() && converts(&points, &lists(Int64)).is_err());
        assert!(converts(&Float64, &lists(Float64)).is_err() && converts(&points, &lists(lists(Float64))).is_err());
    }
}
