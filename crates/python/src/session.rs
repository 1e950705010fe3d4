// SPDX-License-Identifier: Apache-2.0
//! Sessions: statements, tables, functions and settings.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{DataType, UInt64Type};
use datafusion::catalog::TableProvider;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DataFusionError, ParamValues, Result, ScalarValue, TableReference, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::SessionState;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion::sql::parser::Statement;
use devicefusion::{DeviceOptions, DeviceRuntime, check_nesting, error_text, parse_statements};
use object_store::aws::AmazonS3ConfigKey;
use object_store::gcp::GoogleConfigKey;
use object_store::{ClientConfigKey, ObjectStoreScheme};
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use url::Url;

use crate::calls::detached;
use crate::capsule;
use crate::errors::{DeviceError, exception};
use crate::foreign_session;
use crate::frame::{Frame, executed};
use crate::functions;
use crate::runtime::{runtime, wait};
use crate::source::Source;
use crate::variables::{self, Variables};

/// Settings of DataFusion's host runtime, which only SQL sets.
const RUNTIME_SETTINGS: &str = "datafusion.runtime.";

/// A session with a device.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct Session {
    context: SessionContext,
}

#[pymethods]
impl Session {
    /// A session with settings. Those of the environment, `DATAFUSION_*`, come before.
    #[new]
    fn new(py: Python<'_>, settings: Vec<(String, String)>) -> PyResult<Self> {
        let (of_runtime, others): (Vec<_>, Vec<_>) = settings.into_iter().partition(|(key, _)| key.starts_with(RUNTIME_SETTINGS));
        let context = open(&others).map_err(of_setting)?;
        variables::install(&context);
        let session = Session { context };
        for (key, value) in &of_runtime {
            session.set(py, key, value)?;
        }
        Ok(session)
    }

    /// Runs the statements of a text in turn, and plans a query that is the last one.
    ///
    /// `parameters` are columns of one row: by position, or by name for `by_name`. `find` gives the
    /// variable of a name, or None.
    #[pyo3(signature = (sql, parameters=None, by_name=false, find=None))]
    fn sql(
        &self,
        py: Python<'_>,
        sql: &str,
        parameters: Option<&Bound<'_, PyAny>>,
        by_name: bool,
        find: Option<Py<PyAny>>,
    ) -> PyResult<Frame> {
        let values = parameters.map(|row| parameter_values(row, by_name)).transpose()?;
        let options = Arc::clone(self.context.state_ref().read().config().options());
        check_nesting(&options, sql).map_err(exception)?;
        let statements = parse_statements(&options, sql).map_err(exception)?;
        let mut last = None;
        let is_only = statements.len() == 1;
        for statement in statements {
            // A copy of all functions: one for each statement, which may change them for the next.
            let state = self.context.state();
            let variables = match &find {
                Some(find) => Variables::of(py, &self.context, &state, &statement, find)?,
                None => Variables::default(),
            };
            let values = values.as_ref().map(|values| (values, is_only));
            last = Some(wait(py, self.run(state, statement, values, variables))?);
        }
        match last {
            Some(frame) => Ok(Frame::new(self.context.clone(), frame, sql)),
            None => Err(PyValueError::new_err(format!("there is no statement in {sql:?}"))),
        }
    }

    /// The rows of a table.
    fn table(&self, py: Python<'_>, name: &str) -> PyResult<Frame> {
        let table = TableReference::from(name);
        if !self.table_exists(name) {
            return Err(PyKeyError::new_err(format!("there is no table {name}")));
        }
        let frame = wait(py, self.context.table(table))?;
        Ok(Frame::new(self.context.clone(), frame, format!("SELECT * FROM {name}")))
    }

    /// Whether a table exists; false also without its schema.
    fn table_exists(&self, name: &str) -> bool {
        self.context.table_exist(name).unwrap_or(false)
    }

    /// A name as SQL writes it.
    fn quoted(&self, name: &str) -> String {
        TableReference::from(name).to_quoted_string()
    }

    /// The rows of an object.
    fn read(&self, py: Python<'_>, object: &Bound<'_, PyAny>, on_device: bool) -> PyResult<Frame> {
        let table = self.table_of(py, Source::of(&self.context, object)?, on_device)?;
        let frame = self.context.read_table(table).map_err(exception)?;
        Ok(Frame::new(self.context.clone(), frame, ""))
    }

    /// The rows of a plan that a session of datafusion-python has written with `codec`, a capsule.
    fn read_plan(&self, plan: &[u8], codec: &Bound<'_, PyAny>) -> PyResult<Frame> {
        let frame = foreign_session::frame(&self.context, plan, codec)?;
        Ok(Frame::new(self.context.clone(), frame, ""))
    }

    /// A query planner for a session of datafusion-python: a capsule, as the codecs of the session.
    fn planner<'py>(
        &self,
        logical_codec: &Bound<'py, PyAny>,
        physical_codec: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        foreign_session::planner(&self.context, logical_codec, physical_codec)
    }

    /// Registers an object as a table.
    fn register(&self, py: Python<'_>, name: &str, object: &Bound<'_, PyAny>, on_device: bool) -> PyResult<()> {
        let name = self.new_name(name)?;
        let table = self.table_of(py, Source::of(&self.context, object)?, on_device)?;
        self.context.register_table(name, table).map_err(exception)?;
        Ok(())
    }

    /// Registers partitions of record batches as a table.
    fn register_batches(&self, name: &str, partitions: &Bound<'_, PyAny>) -> PyResult<()> {
        let name = self.new_name(name)?;
        let partitions = partitions.try_iter()?.map(|batches| Source::of_batches(&batches?));
        let partitions = partitions.collect::<PyResult<Vec<Vec<RecordBatch>>>>()?;
        let Some(first) = partitions.iter().flatten().next() else {
            return Err(PyValueError::new_err(format!("the table {name} needs a record batch, which has the columns")));
        };
        let table = MemTable::try_new(first.schema(), partitions).map_err(exception)?;
        self.context.register_table(name, Arc::new(table)).map_err(exception)?;
        Ok(())
    }

    /// Registers the object store of a URL. Options are those of the store.
    fn register_object_store(&self, url: &str, options: Vec<(String, String)>) -> PyResult<()> {
        let url = Url::parse(url).map_err(|error| PyValueError::new_err(format!("{url} is no URL: {error}")))?;
        if let Some(unknown) = unknown_option(&url, &options) {
            return Err(PyValueError::new_err(format!("{unknown} is no option of the object store {url}")));
        }
        let (store, _) = object_store::parse_url_opts(&url, options).map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.context.register_object_store(&url, Arc::from(store));
        Ok(())
    }

    /// Drops a table; false if there is none of the name.
    fn deregister(&self, name: &str) -> PyResult<bool> {
        Ok(self.table_exists(name) && self.context.deregister_table(name).map_err(exception)?.is_some())
    }

    /// Registers a scalar function.
    fn register_scalar(
        &self,
        name: &str,
        function: Py<PyAny>,
        inputs: Vec<Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        volatility: &str,
    ) -> PyResult<()> {
        let (inputs, output) = (types_of(&inputs)?, capsule::field_of(output)?.data_type().clone());
        let volatility = functions::volatility(volatility).map_err(exception)?;
        self.context.register_udf(functions::scalar(name, function, inputs, output, volatility));
        Ok(())
    }

    /// Registers an aggregate.
    fn register_aggregate(
        &self,
        name: &str,
        make: Py<PyAny>,
        inputs: Vec<Bound<'_, PyAny>>,
        output: &Bound<'_, PyAny>,
        states: Vec<Bound<'_, PyAny>>,
        volatility: &str,
    ) -> PyResult<()> {
        let (inputs, states) = (types_of(&inputs)?, types_of(&states)?);
        let output = capsule::field_of(output)?.data_type().clone();
        let volatility = functions::volatility(volatility).map_err(exception)?;
        self.context.register_udaf(functions::aggregate(name, make, inputs, output, states, volatility));
        Ok(())
    }

    /// The schemas of each catalog.
    fn catalogs(&self) -> Vec<(String, Vec<SchemaTables>)> {
        let catalogs = self.context.state().catalog_list().clone();
        let schemas = |catalog: &str| {
            let Some(catalog) = catalogs.catalog(catalog) else { return Vec::new() };
            let names = catalog.schema_names().into_iter();
            names.map(|name| (name.clone(), catalog.schema(&name).map_or_else(Vec::new, |schema| schema.table_names()))).collect()
        };
        catalogs.catalog_names().into_iter().map(|name| (name.clone(), schemas(&name))).collect()
    }

    /// Changes a setting.
    fn set(&self, py: Python<'_>, key: &str, value: &str) -> PyResult<()> {
        if key.starts_with(RUNTIME_SETTINGS) {
            let sql = format!("SET {key} = '{}'", value.replace('\'', "''"));
            return self.sql(py, &sql, None, false, None).map(|_| ());
        }
        let state = self.context.state_ref();
        DeviceOptions::set_by_program(state.write().config_mut().options_mut(), key, value).map_err(of_setting)
    }

    /// The report of the open device as JSON, or None.
    fn report(&self, py: Python<'_>) -> PyResult<Option<String>> {
        runtime()?;
        let device = self.device();
        Ok(detached(py, || device?.report().map(|report| report.to_string())))
    }

    /// Opens the device, unless it is open. Its label and name, or None without one.
    fn open_device(&self, py: Python<'_>) -> PyResult<Option<(String, String)>> {
        runtime()?;
        let Some(device) = self.device() else { return Ok(None) };
        let options = options_of(&self.context);
        let context = detached(py, || device.context_if_any(&options));
        let context = context.map_err(|error| DeviceError::new_err(error_text(&error)))?;
        Ok(context.map(|context| (context.info().label(), context.info().name.clone())))
    }
}

impl Session {
    /// Runs a statement, or plans a query.
    ///
    /// `values` come with whether the statement is the only one, so that all of them are its own.
    async fn run(
        &self,
        state: SessionState,
        statement: Statement,
        values: Option<(&ParamValues, bool)>,
        variables: Variables,
    ) -> Result<DataFrame> {
        let plan = variables.plan(&state, statement).await?;
        let may_lack = matches!(plan, LogicalPlan::Statement(_) | LogicalPlan::Ddl(_) | LogicalPlan::Explain(_));
        if values.is_none()
            && !may_lack
            && let Some(name) = plan.get_parameter_names()?.iter().min()
        {
            return plan_err!("the parameter {name} has no value: pass a sequence of values, or a mapping");
        }
        let plan = match values {
            Some((values, is_only)) => {
                // A missing value is the better message where a name is wrong.
                let bound = devicefusion::with_parameters(plan.clone(), values.clone())?;
                if is_only {
                    check_surplus(&plan, values)?;
                }
                bound
            }
            None => plan,
        };
        executed(&self.context, state, plan).await
    }

    fn table_of(&self, py: Python<'_>, source: Source, on_device: bool) -> PyResult<Arc<dyn TableProvider>> {
        if !on_device {
            return wait(py, source.into_table(&self.context));
        }
        device_of(py, &self.context)?;
        wait(py, source.into_device_table(&self.context))
    }

    /// The name of a new table.
    fn new_name(&self, name: &str) -> PyResult<TableReference> {
        let table = TableReference::from(name);
        match self.context.table_exist(table.clone()).map_err(exception)? {
            true => Err(PyValueError::new_err(format!("the table {name} exists already: deregister it first"))),
            false => Ok(table),
        }
    }

    fn device(&self) -> Option<Arc<DeviceRuntime>> {
        DeviceRuntime::of(self.context.state().config())
    }
}

/// The settings of the session's device.
pub(crate) fn options_of(session: &SessionContext) -> DeviceOptions {
    session.state().config_options().extensions.get::<DeviceOptions>().cloned().unwrap_or_default()
}

/// The session's device.
pub(crate) fn device_of(py: Python<'_>, session: &SessionContext) -> PyResult<device::Context> {
    runtime()?;
    let (runtime, options) = (DeviceRuntime::of(session.state().config()), options_of(session));
    let runtime = runtime.ok_or_else(|| DeviceError::new_err("this session has no device"))?;
    detached(py, || runtime.context(&options)).map_err(|error| DeviceError::new_err(error_text(&error)))
}

/// The exception for a setting.
fn of_setting(error: DataFusionError) -> PyErr {
    PyValueError::new_err(error_text(&error))
}

fn open(settings: &[(String, String)]) -> Result<SessionContext> {
    let mut options = ConfigOptions::from_env()?;
    options.extensions.insert(DeviceOptions::from_env()?);
    for (key, value) in settings {
        DeviceOptions::set_by_program(&mut options, key, value)?;
    }
    let context = devicefusion::session_with(SessionConfig::from(options), Arc::new(RuntimeEnv::default()))?;
    devicefusion::with_file_tables(context)
}

/// An option that the object store of a URL does not have. `object_store` passes over it.
fn unknown_option<'a>(url: &Url, options: &'a [(String, String)]) -> Option<&'a str> {
    let (scheme, _) = ObjectStoreScheme::parse(url).ok()?;
    let is_known = |name: &str| match scheme {
        ObjectStoreScheme::AmazonS3 => name.parse::<AmazonS3ConfigKey>().is_ok(),
        ObjectStoreScheme::GoogleCloudStorage => name.parse::<GoogleConfigKey>().is_ok(),
        ObjectStoreScheme::Http => name.parse::<ClientConfigKey>().is_ok(),
        _ => true,
    };
    options.iter().map(|(name, _)| name.as_str()).find(|name| !is_known(&name.to_ascii_lowercase()))
}

fn types_of(objects: &[Bound<'_, PyAny>]) -> PyResult<Vec<DataType>> {
    objects.iter().map(|object| Ok(capsule::field_of(object)?.data_type().clone())).collect()
}

/// Refuses values that are no parameter's.
fn check_surplus(plan: &LogicalPlan, values: &ParamValues) -> Result<()> {
    let names = plan.get_parameter_names()?;
    let surplus = match values {
        ParamValues::List(values) => {
            let most = names.iter().filter_map(|name| name.trim_start_matches('$').parse().ok()).max().unwrap_or(0);
            (values.len() > most).then(|| format!("${}", most + 1))
        }
        ParamValues::Map(values) => values.keys().map(|name| format!("${name}")).find(|name| !names.contains(name)),
    };
    match surplus {
        Some(name) => plan_err!("there is a value for {name}, and the statement has no such parameter"),
        None => Ok(()),
    }
}

/// The values of a record batch of one row.
fn parameter_values(row: &Bound<'_, PyAny>, by_name: bool) -> PyResult<ParamValues> {
    let batches = Source::of_batches(PyList::new(row.py(), [row])?.as_any())?;
    let mut values = Vec::new();
    for batch in &batches {
        for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
            values.push((field.name().clone(), ScalarValue::try_from_array(column, 0).map_err(exception)?));
        }
    }
    Ok(match by_name {
        true => ParamValues::from(values),
        false => ParamValues::from(values.into_iter().map(|(_, value)| value).collect::<Vec<_>>()),
    })
}

/// The number of rows that a statement has written, by its result.
pub(crate) fn written_rows(batches: &[RecordBatch]) -> u64 {
    let counts = batches.iter().filter_map(|batch| batch.columns().first()?.as_primitive_opt::<UInt64Type>());
    counts.flat_map(|counts| counts.values().iter()).sum()
}

/// Every device of every driver: number, name, driver, kind, bytes of memory, compute units, and
/// why it cannot be used.
#[pyfunction]
pub(crate) fn devices(py: Python<'_>) -> PyResult<Vec<DeviceFields>> {
    runtime()?;
    let entries = detached(py, device::devices);
    let fields = entries
        .into_iter()
        .map(|entry| match entry.info {
            Some(info) => {
                let kind = format!("{:?}", info.kind).to_lowercase();
                (
                    Some(info.index),
                    info.name,
                    entry.driver.to_string(),
                    kind,
                    info.memory_bytes,
                    info.compute_units,
                    entry.problem,
                )
            }
            None => (None, String::new(), entry.driver.to_string(), String::new(), 0, 0, entry.problem),
        })
        .collect();
    Ok(fields)
}

/// The name of a schema, and those of its tables.
type SchemaTables = (String, Vec<String>);

type DeviceFields = (Option<usize>, String, String, String, u64, u32, Option<String>);
