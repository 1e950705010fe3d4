// SPDX-License-Identifier: Apache-2.0
//! One statement's result. It runs each time it is asked for.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::util::display::array_value_to_string;
use datafusion::catalog::TableProvider;
use datafusion::common::config::{ConfigField, CsvOptions, JsonOptions, TableParquetOptions};
use datafusion::common::{Result, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::file_format::csv::CsvFormatFactory;
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::datasource::file_format::{FileFormatFactory, format_as_file_type};
use datafusion::execution::{SessionState, TaskContext};
use datafusion::functions_aggregate::count::count_all;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_plan::{self, ExecutionPlan, execute_stream};
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceResult, placement};
use devicefusion_cli::progress::{DELAY, WatchedPlan};
use futures::TryStreamExt;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::task::AbortHandle;

use crate::calls::tell;
use crate::capsule;
use crate::device_rows::DeviceRows;
use crate::errors::exception;
use crate::host_rows::{HostRows, RowStream};
use crate::runtime::{runtime, wait, wait_watched};
use crate::session::device_of;

/// The plan of a query.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct Frame {
    session: SessionContext,
    frame: DataFrame,
    sql: String,
}

impl Frame {
    pub fn new(session: SessionContext, frame: DataFrame, sql: impl Into<String>) -> Self {
        Self { session, frame, sql: sql.into() }
    }

    /// The query as a table.
    pub fn view(&self) -> Arc<dyn TableProvider> {
        self.frame.clone().into_view()
    }
}

#[pymethods]
impl Frame {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::of_schema(py, self.frame.schema().as_arrow())
    }

    /// Runs the query to its end. A long query calls `watch` from time to time. It passes the
    /// number of read rows, that of all rows or None, and a line of text.
    #[pyo3(signature = (watch=None))]
    fn collect(&self, py: Python<'_>, watch: Option<Py<PyAny>>) -> PyResult<HostRows> {
        run(py, &self.frame, watch, rows_of)
    }

    /// Starts the query.
    fn stream(&self, py: Python<'_>) -> PyResult<RowStream> {
        run(py, &self.frame, None, |plan, task| async { execute_stream(plan, task).map(RowStream::new) })
    }

    /// Runs the query to its end on a thread of its own. Then calls `done` with the rows and None,
    /// or with None and the exception.
    fn start(&self, done: Py<PyAny>) -> PyResult<Task> {
        let frame = self.frame.clone();
        let task = runtime()?.spawn(async move {
            tell(&done, collect(&frame).await);
        });
        Ok(Task(task.abort_handle()))
    }

    /// Runs the query to its end and leaves the rows on the device. `watch` is that of `collect`.
    #[pyo3(signature = (watch=None))]
    fn device(&self, py: Python<'_>, watch: Option<Py<PyAny>>) -> PyResult<DeviceRows> {
        let context = device_of(py, &self.session)?;
        let (schema, arrays) = run(py, &self.frame, watch, |plan, task| async move {
            let result = DeviceResult::execute(plan, task)?;
            let schema = Arc::clone(result.schema());
            Ok((schema, result.into_device_arrays().await?))
        })?;
        DeviceRows::new(schema, context, arrays)
    }

    /// The number of rows. `watch` is that of `collect`.
    #[pyo3(signature = (watch=None))]
    fn count(&self, py: Python<'_>, watch: Option<Py<PyAny>>) -> PyResult<i64> {
        let counted = self.frame.clone().aggregate(vec![], vec![count_all()]).map_err(exception)?;
        run(py, &counted, watch, rows_of)?.number()
    }

    /// The plan that EXPLAIN shows.
    fn explain(&self, py: Python<'_>, verbose: bool, analyze: bool) -> PyResult<String> {
        let (frame, state) = (self.frame.clone(), self.session.state());
        wait(py, async move {
            if !analyze {
                // EXPLAIN would leave the physical plan out, and show the error only with VERBOSE.
                devicefusion::plan_for_explain(&state, frame.logical_plan()).await?;
            }
            let mut rows = frame.explain(verbose, analyze)?.execute_stream().await?;
            let mut lines = String::new();
            while let Some(batch) = rows.try_next().await? {
                for row in 0..batch.num_rows() {
                    for column in batch.columns() {
                        lines += array_value_to_string(column, row)?.trim_end();
                        lines.push('\n');
                    }
                }
            }
            Ok(lines)
        })
    }

    /// Runs the query to its end and tells how the run went.
    fn profile(&self, py: Python<'_>) -> PyResult<Profile> {
        let plan = self.frame.logical_plan().clone();
        let profile = wait(py, async {
            let (profile, outcome) = devicefusion::Profile::of_plan(&self.session, plan, &self.sql).await?;
            outcome.map(|()| profile)
        })?;
        Ok(Profile(profile))
    }

    /// Whether there are columns; a result of DDL has none.
    fn has_columns(&self) -> bool {
        !self.frame.schema().fields().is_empty()
    }

    /// The first rows.
    fn limit(&self, skip: usize, fetch: Option<usize>) -> PyResult<Frame> {
        let frame = self.frame.clone().limit(skip, fetch).map_err(exception)?;
        Ok(Frame::new(self.session.clone(), frame, self.sql.clone()))
    }

    /// Writes the rows to a file, or to a folder for a path that ends with a slash. Options are
    /// those of DataFusion's format. Returns the number of rows. `watch` is that of `collect`.
    #[pyo3(signature = (path, format, options, watch=None))]
    fn write(
        &self,
        py: Python<'_>,
        path: &str,
        format: &str,
        options: Vec<(String, String)>,
        watch: Option<Py<PyAny>>,
    ) -> PyResult<u64> {
        let format = format_as_file_type(writer(format, &options).map_err(exception)?);
        let to = HashMap::from([("single_file_output".to_owned(), (!path.ends_with('/')).to_string())]);
        let (state, plan) = self.frame.clone().into_parts();
        let copy = LogicalPlanBuilder::copy_to(plan, path.to_owned(), format, to, vec![]);
        let copy = copy.and_then(LogicalPlanBuilder::build).map_err(exception)?;
        let written = run(py, &DataFrame::new(state, copy), watch, physical_plan::collect)?;
        Ok(crate::session::written_rows(&written))
    }
}

/// The writer of a format of files.
fn writer(format: &str, options: &[(String, String)]) -> Result<Arc<dyn FileFormatFactory>> {
    let writer: Arc<dyn FileFormatFactory> = match format {
        "parquet" => Arc::new(ParquetFormatFactory::new_with_options(with(TableParquetOptions::new(), options)?)),
        "csv" => Arc::new(CsvFormatFactory::new_with_options(with(CsvOptions::default(), options)?)),
        "json" => Arc::new(JsonFormatFactory::new_with_options(with(JsonOptions::default(), options)?)),
        other => return plan_err!("'{other}' is no format of files: there are parquet, csv and json"),
    };
    Ok(writer)
}

/// A format with options, by their names.
fn with<T: ConfigField>(mut format: T, options: &[(String, String)]) -> Result<T> {
    options.iter().try_for_each(|(name, value)| format.set(name, value))?;
    Ok(format)
}

/// Runs a query with `work`, which gets its plan. A long one calls `watch`, see [`Frame::collect`].
fn run<T: Send, F: Future<Output = Result<T>> + Send>(
    py: Python<'_>,
    frame: &DataFrame,
    watch: Option<Py<PyAny>>,
    work: impl FnOnce(Arc<dyn ExecutionPlan>, Arc<TaskContext>) -> F + Send,
) -> PyResult<T> {
    let task = Arc::new(frame.task_ctx());
    let Some(watch) = watch else {
        return wait(py, async { work(frame.create_physical_plan().await?, task).await });
    };
    let plan = wait(py, frame.create_physical_plan())?;
    let mut watched = WatchedPlan::new(&plan, &task);
    wait_watched(py, work(plan, task), exception, |py| {
        py.check_signals()?;
        if watched.elapsed() > DELAY {
            let state = watched.state();
            watch.call1(py, (state.read, state.total, state.to_string()))?;
        }
        Ok(())
    })
}

async fn collect(frame: &DataFrame) -> Result<HostRows> {
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    rows_of(plan, task).await
}

async fn rows_of(plan: Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> Result<HostRows> {
    // A cancellation before this point lets nothing run.
    tokio::task::yield_now().await;
    let schema = plan.schema();
    let mut rows = execute_stream(Arc::clone(&plan), task)?;
    let mut batches = Vec::new();
    while let Some(batch) = rows.try_next().await? {
        batches.push(batch);
        // The caller looks for signals while this yields: a plan of one partition may never wait.
        tokio::task::yield_now().await;
    }
    Ok(HostRows::of_run(schema, batches, placement(&plan)))
}

/// A query that [`Frame::start`] has started.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct Task(AbortHandle);

#[pymethods]
impl Task {
    /// Stops the query. Its callback is not called any more.
    fn cancel(&self) {
        self.0.abort();
    }
}

/// How a run went.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct Profile(devicefusion::Profile);

#[pymethods]
impl Profile {
    fn html(&self) -> String {
        self.0.to_html()
    }

    fn json(&self) -> String {
        self.0.to_json()
    }

    fn trace(&self) -> String {
        self.0.to_trace()
    }

    fn pgjson(&self) -> String {
        self.0.to_pgjson()
    }
}

/// The statement's frame: its plan's rows if it has run. `state` is that of its planning.
pub(crate) async fn executed(session: &SessionContext, state: SessionState, plan: LogicalPlan) -> Result<DataFrame> {
    if let LogicalPlan::Explain(explain) = &plan
        && !matches!(*explain.plan, LogicalPlan::Ddl(_) | LogicalPlan::Statement(_))
    {
        devicefusion::plan_for_explain(&state, &explain.plan).await?;
    }
    let frame = match plan {
        LogicalPlan::Ddl(_) | LogicalPlan::Statement(_) => devicefusion::execute_logical_plan(session, plan).await?,
        plan => DataFrame::new(state, plan),
    };
    let is_root =
        matches!(frame.logical_plan(), LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) | LogicalPlan::DescribeTable(_));
    if !is_root && !devicefusion_adbc::writes_rows(frame.logical_plan()) {
        return Ok(frame);
    }
    // INSERT and COPY run now, as in other databases. EXPLAIN does, too: its plan can be no part of
    // another one. The frame has their result.
    let rows = collect(&frame).await?;
    rows.into_frame(session)
}
