// SPDX-License-Identifier: Apache-2.0
//! An entry point as a function of SQL: its parameters, its result and its calls.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_datafusion_err, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{DocSection, Documentation, Signature, TypeSignature, Volatility};
use device::Buffer;
use futhark::manifest::EntryPoint;
use futhark::{Argument, Context, Scalar, Value};

use crate::error::device_error;
use crate::futhark::accepts::{accepts, has_bits_of};
use crate::futhark::convert::{row_of, struct_row, to_futhark};
use crate::futhark::parameter::{Nulls, Parameter, ValueKind, parameters, type_of};
use crate::futhark::returns::{
    Conventions, Returns, ScalarReturn, check_structs, outputs, returns, returns_struct_of, returns_with_mask, without_masks,
};
use crate::reason::Reason;

/// An entry point as a function of SQL. Clones are equal.
#[derive(Clone)]
pub(crate) struct Function {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    name: String,
    entry_point: String,
    context: Context,
    /// Parameters of the entry point, with masks.
    inputs: Vec<Parameter>,
    /// Parameters in SQL, without masks.
    parameters: Vec<Parameter>,
    nulls: Nulls,
    returns: Returns,
    signature: String,
    documentation: Documentation,
}

impl Function {
    /// An entry point under a SQL name. An error is the reason why SQL cannot call it.
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

    /// The function with declared types of the same bits; `None` without a declaration.
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
            | Returns::Value(ScalarReturn { data_type, .. })
            | Returns::Aggregate(ScalarReturn { data_type, .. })) = &mut inner.returns
            else {
                return Err(format!("{entry_point} gives columns that are the manifest's: leave RETURNS out"));
            };
            has_bits_of(declared, data_type).map_err(|reason| format!("the result of {entry_point}: {reason}"))?;
            *data_type = declared.clone();
        }
        Ok(Function { inner: Arc::new(inner) })
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn parameters(&self) -> &[Parameter] {
        &self.inner.parameters
    }

    /// Parameters of the entry point, with masks.
    pub fn inputs(&self) -> &[Parameter] {
        &self.inner.inputs
    }

    /// Treatment of rows with a NULL argument.
    pub fn nulls(&self) -> Nulls {
        self.inner.nulls
    }

    /// Whether the result has a mask.
    pub fn gives_mask(&self) -> bool {
        let manifest = self.inner.context.library().manifest();
        let entry = manifest.entry_points.get(&self.inner.entry_point);
        self.inner.nulls == Nulls::Mask && entry.is_some_and(|entry| outputs(manifest, entry).len() > 1)
    }

    /// The array of a call for all rows, and its mask if there is one.
    ///
    /// # Errors
    /// If the result is no array, or its length is not the number of rows.
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

    /// Checks that a call for all rows gave a value for each row.
    pub fn check_rows(&self, gave: usize, rows: usize) -> Result<()> {
        let name = self.name();
        match gave == rows {
            true => Ok(()),
            false => {
                exec_err!("{name} gave {gave} values for {rows} rows: a scalar function must give each row its value")
            }
        }
    }

    /// Checks that the columns of a call have the same length.
    pub fn same_length(&self, fields: &[Parameter], lengths: &[usize]) -> Result<()> {
        if lengths.windows(2).all(|pair| pair[0] == pair[1]) {
            return Ok(());
        }
        let lengths: Vec<String> = fields.iter().zip(lengths).map(|(field, length)| format!("{} {length}", field.name)).collect();
        exec_err!("{} gave columns that differ in length: {}", self.name(), lengths.join(", "))
    }

    /// The results of a call; of a record or tuple, its fields.
    pub fn fields_of(&self, results: Vec<Value>) -> Result<Vec<Value>> {
        match results.as_slice() {
            [Value::Opaque(record)] => record.fields().map_err(|error| self.failed(error)),
            _ => Ok(results),
        }
    }

    /// The one value of a call.
    pub fn value_of(&self, scalar: &ScalarReturn, results: Vec<Value>) -> Result<ScalarValue> {
        let row = match (results.as_slice(), &scalar.kind) {
            ([value], of) => row_of(self, value, of, &scalar.data_type)?,
            (fields, ValueKind::Records(_, of)) => struct_row(self, fields, of)?,
            (several, _) => {
                return internal_err!("{} gave {} values, not one of {}", self.name(), several.len(), scalar.data_type);
            }
        };
        ScalarValue::try_from_array(&row, 0)
    }

    /// A call with the types of its arguments. Arrays are lists.
    pub fn call_syntax(&self) -> String {
        let argument = |parameter: &Parameter| match parameter.is_array {
            true => format!("{} {}", parameter.name, DataType::new_list(parameter.data_type.clone(), true)),
            false => format!("{} {}", parameter.name, parameter.data_type),
        };
        format!("{}({})", self.name(), self.parameters().iter().map(argument).collect::<Vec<_>>().join(", "))
    }

    /// The columns of a table function, with their types.
    pub fn table_type(&self) -> String {
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

    /// For each array input: whether a call overwrites it.
    pub fn consumes(&self) -> impl Iterator<Item = bool> {
        let entry = self.inner.context.library().manifest().entry_points.get(&self.inner.entry_point);
        let inputs = entry.into_iter().flat_map(|entry| &entry.inputs).zip(&self.inner.inputs);
        inputs.filter(|(_, input)| input.is_array).map(|(of, _)| of.unique)
    }

    pub fn documentation(&self) -> &Documentation {
        &self.inner.documentation
    }

    /// A signature that accepts all arguments: [`check`](Self::check) gives better errors. SHOW
    /// FUNCTIONS lists the exact types.
    pub fn sql_signature(&self, volatility: Volatility) -> Signature {
        let types = self.inner.parameters.iter().map(|parameter| parameter.data_type.clone()).collect();
        Signature::one_of(vec![TypeSignature::UserDefined, TypeSignature::Exact(types)], volatility)
    }

    /// Checks the types of arguments.
    pub fn check<'a>(&self, types: impl ExactSizeIterator<Item = &'a DataType>) -> Result<()> {
        let Inner { name, parameters, signature, .. } = self.inner.as_ref();
        if types.len() != parameters.len() {
            return plan_err!("{name} is {signature} and takes {} arguments, not {}", parameters.len(), types.len());
        }
        for (parameter, data_type) in parameters.iter().zip(types) {
            if let Err(reason) = accepts(parameter, data_type) {
                return plan_err!("the argument {} of {name}, which is {signature}: {reason}", parameter.name);
            }
        }
        Ok(())
    }

    /// Calls the entry point.
    pub fn call(&self, arguments: Vec<Value>) -> futhark::Result<Vec<Value>> {
        self.inner.context.call(&self.inner.entry_point, arguments.into_iter().map(Argument::Owned).collect())
    }

    /// Calls the entry point with columns and constants. The context stays locked during the call.
    pub fn call_over(&self, columns: &[ArrayRef], constants: &[Scalar]) -> Result<Vec<Value>> {
        let mut columns = columns.iter();
        self.call_with(constants, |parameter| columns.next().map(|column| to_futhark(self, parameter, column)))
    }

    /// As [`call_over`](Self::call_over) with device buffers of `rows` values each.
    pub fn call_over_buffers(&self, buffers: Vec<Buffer>, rows: usize, constants: &[Scalar]) -> Result<Vec<Value>> {
        let mut buffers = buffers.into_iter();
        self.call_with(constants, |parameter| match parameter.kind {
            ValueKind::Values(primitive) => {
                let array = |buffer| self.context().array_from_buffer(primitive, &[rows], buffer).map(Value::from);
                buffers.next().map(array)
            }
            // Functions of other kinds are not called on the device.
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

    /// Converts an error of the library. Out of memory stays `ResourcesExhausted`.
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
