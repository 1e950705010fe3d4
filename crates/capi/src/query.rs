// SPDX-License-Identifier: Apache-2.0
//! Queries: SQL that has been planned, with values for its parameters, run as often as one likes.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Weak};

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::async_stream::AsyncHandler;
use arrow_device::ffi::{FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowDeviceArrayStream};
use arrow_device::{ImportedArray, cpu, schema};
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::UInt64Type;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::common::ScalarValue;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::{LogicalPlan, Statement};
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::DataFrame;
use devicefusion::DeviceResult;
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use crate::arrow_stream::{on_host, taken};
use crate::boundary::{code, give_text, text, wanted, with_context, with_query};
use crate::cancel::{Canceller, unless};
use crate::context::{Context, devicefusion_context};
use crate::error::{Failure, Result};
use crate::handle::Registry;
use crate::rows::HostRows;
use crate::settings;

/// A statement of SQL that has been planned, with values for its parameters. It belongs to its context, and can be run any
/// number of times.
pub struct devicefusion_query {
    _opaque: [u8; 0],
}

pub(crate) static QUERIES: Registry<devicefusion_query, Query> = Registry::new("query");

pub(crate) struct Query {
    context: Arc<Context>,
    plan: LogicalPlan,
    /// Of its parameters, without the dollar.
    parameters: Vec<String>,
    values: Mutex<BTreeMap<String, ScalarValue>>,
    canceller: Canceller,
    /// That of the run that was begun last, as long as it is under way.
    running: Mutex<Option<Weak<dyn ExecutionPlan>>>,
}

impl Query {
    fn new(context: &Arc<Context>, sql: &str) -> Result<Self> {
        let session = context.session()?;
        if session.logging {
            context.log.line(&format!("query: {sql}"));
        }
        let plan = session.wait(async { session.ctx.state().create_logical_plan(sql).await })?;
        if let LogicalPlan::Statement(Statement::ResetVariable(reset)) = &plan
            && let Some(setting) = settings::of_device(&reset.variable)
        {
            let (name, default) = (setting.name(), setting.default());
            return Err(Failure::program(format!(
                "RESET knows DataFusion's own settings alone; SET {name} = '{default}' sets the default again"
            )));
        }
        let mut parameters: Vec<String> =
            plan.get_parameter_names()?.iter().map(|name| name.trim_start_matches('$').to_owned()).collect();
        parameters.sort_by_key(|name| (name.len(), name.clone()));
        let (context, canceller) = (Arc::clone(context), Canceller::new());
        Ok(Self { context, plan, parameters, values: Mutex::default(), canceller, running: Mutex::new(None) })
    }

    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn bind(&self, name: &str, value: ScalarValue) -> Result<()> {
        if !self.parameters.iter().any(|parameter| parameter == name) {
            let known: Vec<String> = self.parameters.iter().map(|name| format!("${name}")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Failure::program(format!("the query has no parameter ${name}; there are {known}")));
        }
        self.values.lock().insert(name.to_owned(), value);
        Ok(())
    }

    /// Binds the columns of a batch of one row: by name where parameters have names, else in their order.
    fn bind_row(&self, row: &RecordBatch) -> Result<()> {
        if row.num_rows() != 1 {
            return Err(Failure::program(format!("parameters are one row, and got {}", row.num_rows())));
        }
        let numbered = self.parameters.iter().all(|name| name.parse::<usize>().is_ok());
        for (index, (field, column)) in row.schema().fields().iter().zip(row.columns()).enumerate() {
            let name = if numbered { (index + 1).to_string() } else { field.name().trim_start_matches('$').to_owned() };
            self.bind(&name, ScalarValue::try_from_array(column, 0)?)?;
        }
        Ok(())
    }

    /// The plan with its parameters' values.
    fn bound(&self) -> Result<LogicalPlan> {
        let values = self.values.lock();
        if let Some(name) = self.parameters.iter().find(|name| !values.contains_key(*name)) {
            return Err(Failure::program(format!("the parameter ${name} has no value: bind one")));
        }
        if values.is_empty() {
            return Ok(self.plan.clone());
        }
        let values: Vec<(String, ScalarValue)> = values.clone().into_iter().collect();
        Ok(devicefusion::with_parameters(self.plan.clone(), values)?)
    }

    /// Does the work of one run, until it is cancelled.
    fn run<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.context.session()?.wait(unless(self.canceller.cancelled(), work))
    }

    /// Executes what is executed at once (DDL, SET), and plans the rest.
    async fn planned(&self) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>)> {
        let session = self.context.session()?;
        let rows = session.ctx.execute_logical_plan(self.bound()?).await?;
        let task = Arc::new(rows.task_ctx());
        let plan = rows.create_physical_plan().await?;
        // Planning may be one poll, and a run must not begin if it was cancelled meanwhile.
        tokio::task::yield_now().await;
        if session.debugging {
            self.context.log.line(&format!("plan:\n{}", displayable(plan.as_ref()).indent(false)));
        }
        *self.running.lock() = Some(Arc::downgrade(&plan));
        Ok((plan, task))
    }

    fn stream(&self) -> Result<FFI_ArrowArrayStream> {
        // From now on: the rows would not see what came before them.
        let cancelled = self.canceller.cancelled().boxed();
        let (rows, plan) = self.run(async {
            let (plan, task) = self.planned().await?;
            Ok((execute_stream(Arc::clone(&plan), task)?, plan))
        })?;
        Ok(FFI_ArrowArrayStream::new(Box::new(HostRows::new(Arc::clone(&self.context), plan, rows, cancelled))))
    }

    /// The rows on the device.
    fn device_result(&self) -> Result<DeviceResult> {
        let device = &self.context.session()?.device;
        if device.opened().is_none() {
            let problem = device.problem().unwrap_or_default();
            return Err(Failure::program(format!(
                "rows on the device need one, and the context has none: {problem}; devicefusion_query_stream gives rows of the host"
            )));
        }
        let (cancelled, context) = (self.canceller.cancelled(), Arc::clone(&self.context));
        self.run(async {
            let (plan, task) = self.planned().await?;
            // The rows come from a task of the context's threads, which therefore stay as long as it does.
            let kept = (context, Arc::clone(&plan));
            let cancelled = async move {
                cancelled.await;
                drop(kept);
            };
            Ok(DeviceResult::execute(plan, task)?.cancelled_by(cancelled))
        })
    }

    fn push(&self, handler: AsyncHandler) -> Result<()> {
        let (rows, context) = (self.device_result()?, Arc::clone(&self.context));
        self.context.session()?.spawn(async move {
            rows.push_into(handler).await;
            // The threads stay until then.
            drop(context);
        })
    }

    /// Runs to the end; how many rows it gave, or changed.
    fn count(&self) -> Result<i64> {
        let changes = matches!(self.plan, LogicalPlan::Dml(_) | LogicalPlan::Copy(_));
        self.run(async {
            let (plan, task) = self.planned().await?;
            let mut rows = execute_stream(Arc::clone(&plan), task)?;
            let mut count = 0;
            while let Some(batch) = rows.try_next().await? {
                let changed = batch.columns().first().and_then(|column| column.as_primitive_opt::<UInt64Type>());
                count += match changed {
                    Some(changed) if changes => changed.values().iter().sum(),
                    _ => batch.num_rows() as u64,
                };
            }
            // What it does is told until here.
            drop(plan);
            Ok(i64::try_from(count).unwrap_or(i64::MAX))
        })
    }

    fn progress(&self) -> Result<String> {
        let plan = self.running.lock().as_ref().and_then(Weak::upgrade);
        let plan = plan.ok_or_else(|| Failure::program("no run of the query is under way"))?;
        Ok(DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(false).to_string())
    }

    fn explain(&self, verbose: bool, analyze: bool) -> Result<String> {
        let state = self.context.session()?.ctx.state();
        let plan = self.bound()?;
        self.run(async {
            let mut rows = DataFrame::new(state, plan).explain(verbose, analyze)?.execute_stream().await?;
            let mut text = String::new();
            while let Some(batch) = rows.next().await.transpose()? {
                for row in 0..batch.num_rows() {
                    for column in batch.columns() {
                        text += array_value_to_string(column, row)?.trim_end();
                        text.push('\n');
                    }
                }
            }
            Ok(text)
        })
    }
}

/// Plans a statement of SQL. Its parameters are $1, $2 and so on, or $names. Nothing runs yet, but the statement is checked: its
/// tables and columns must exist.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_new(
    context: *mut devicefusion_context,
    sql: *const c_char,
    out: *mut *mut devicefusion_query,
) -> c_int {
    code(with_context(context, |context| {
        wanted("query", out)?;
        // SAFETY: `sql` is as the header asks.
        let query = Query::new(context, unsafe { text("SQL", sql) }?)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(QUERIES.insert(query)) };
        Ok(())
    }))
}

/// Frees a query. Its streams go on.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_free(query: *mut devicefusion_query) -> c_int {
    code(with_query(query, |_| QUERIES.take(query).map(drop)))
}

/// The columns that the query gives. Types that hang on those of parameters are those of the values that are bound.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_schema(query: *mut devicefusion_query, out: *mut FFI_ArrowSchema) -> c_int {
    code(with_query(query, |query| {
        wanted("schema", out)?;
        let schema = schema::export_schema(query.bound()?.schema().as_arrow())?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(schema) };
        Ok(())
    }))
}

/// Binds NULL to the parameter $`index`, counted from 1 as in SQL.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_bind_null(query: *mut devicefusion_query, index: c_int) -> c_int {
    bind(query, index, ScalarValue::Null)
}

/// Binds a truth value, true if nonzero, to the parameter $`index`.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_bind_bool(query: *mut devicefusion_query, index: c_int, value: c_int) -> c_int {
    bind(query, index, ScalarValue::from(value != 0))
}

/// Binds an integer to the parameter $`index`.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_bind_int64(query: *mut devicefusion_query, index: c_int, value: i64) -> c_int {
    bind(query, index, ScalarValue::from(value))
}

/// Binds a floating-point number to the parameter $`index`.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_bind_double(query: *mut devicefusion_query, index: c_int, value: f64) -> c_int {
    bind(query, index, ScalarValue::from(value))
}

/// Binds a text to the parameter $`index`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_bind_string(
    query: *mut devicefusion_query,
    index: c_int,
    value: *const c_char,
) -> c_int {
    code(with_query(query, |query| {
        // SAFETY: `value` is as the header asks.
        query.bind(&index.to_string(), ScalarValue::from(unsafe { text("text to bind", value) }?))
    }))
}

fn bind(query: *mut devicefusion_query, index: c_int, value: ScalarValue) -> c_int {
    code(with_query(query, |query| query.bind(&index.to_string(), value)))
}

/// Binds values of any type: the columns of `row`, a host array of structs with one element, to the parameters $1, $2 and so
/// on in their order, or by name to $names. Array and schema are moved away in any case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_bind_row(
    query: *mut devicefusion_query,
    row: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> c_int {
    // SAFETY: both are as the header asks.
    let (row, schema) = unsafe { (taken("row", row), taken("schema", schema)) };
    code(with_query(query, |query| {
        let (row, schema) = (row?, schema?);
        // SAFETY: both are live, and follow the interface as the header asks.
        let row = unsafe { ImportedArray::import(on_host(row), &schema::import_field(schema)?)? };
        query.bind_row(&cpu::import_batch(row)?)
    }))
}

/// Runs the query; its rows come as a stream of host arrays, record batches, while it runs. `get_next` waits for them, and can
/// fail with what the query fails with. Releasing the stream stops the query. The stream outlives query and context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_stream(query: *mut devicefusion_query, out: *mut FFI_ArrowArrayStream) -> c_int {
    code(with_query(query, |query| {
        wanted("stream", out)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(query.stream()?) };
        Ok(())
    }))
}

/// As devicefusion_query_stream, with the rows left on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_device_stream(
    query: *mut devicefusion_query,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> c_int {
    code(with_query(query, |query| {
        wanted("stream", out)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(query.device_result()?.into_device_stream()?) };
        Ok(())
    }))
}

/// Runs the query, and pushes its rows to a handler as it asks for them, left on the device. Returns when the query has been
/// planned; the handler's callbacks are called by the context's threads, also after query and context have been freed, until
/// its `release`. The handler stays where it is until then. It is released without another word where this fails.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_push(
    query: *mut devicefusion_query,
    handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
) -> c_int {
    // SAFETY: the handler is as the header asks.
    let handler = unsafe { AsyncHandler::from_raw(handler) };
    code(with_query(query, |query| query.push(handler?)))
}

/// Runs the query to its end and drops its rows. `rows`, unless NULL, gets how many there were; for INSERT and COPY, how many
/// were written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_run(query: *mut devicefusion_query, rows: *mut i64) -> c_int {
    code(with_query(query, |query| {
        let count = query.count()?;
        if !rows.is_null() {
            // SAFETY: not null, and writable as the header asks.
            unsafe { rows.write(count) };
        }
        Ok(())
    }))
}

/// The plan alone.
pub const DEVICEFUSION_EXPLAIN_PLAN: c_int = 0;
/// The plan at every step of planning, and the text of the kernels.
pub const DEVICEFUSION_EXPLAIN_VERBOSE: c_int = 1;
/// Runs the query, and adds what each operator of its plan has cost.
pub const DEVICEFUSION_EXPLAIN_ANALYZE: c_int = 2;

/// Tells how the query runs: what on the device, what on the host, and why that. `how` is one of DEVICEFUSION_EXPLAIN_PLAN,
/// DEVICEFUSION_EXPLAIN_VERBOSE and DEVICEFUSION_EXPLAIN_ANALYZE. `out` gets a text, which the caller frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_explain(query: *mut devicefusion_query, how: c_int, out: *mut *mut c_char) -> c_int {
    code(with_query(query, |query| {
        wanted("text", out)?;
        let (verbose, analyze) = match how {
            DEVICEFUSION_EXPLAIN_PLAN => (false, false),
            DEVICEFUSION_EXPLAIN_VERBOSE => (true, false),
            DEVICEFUSION_EXPLAIN_ANALYZE => (false, true),
            other => return Err(Failure::program(format!("{other} is no way to explain: see DEVICEFUSION_EXPLAIN_PLAN"))),
        };
        let text = give_text(&query.explain(verbose, analyze)?);
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(text) };
        Ok(())
    }))
}

/// Tells how far the run is that was begun last: its plan, with the rows that each operator has given so far; what an operator
/// has cost the device is there once it has ended, as in EXPLAIN ANALYZE. To be called from another thread, or between two
/// batches of a stream; an error where no run is under way. `out` gets a text, which the caller frees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_progress(query: *mut devicefusion_query, out: *mut *mut c_char) -> c_int {
    code(with_query(query, |query| {
        wanted("text", out)?;
        let text = give_text(&query.progress()?);
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(text) };
        Ok(())
    }))
}

/// Stops all runs of the query that are under way, from any thread: they fail, their streams too. Later runs are not touched.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_cancel(query: *mut devicefusion_query) -> c_int {
    code(with_query(query, |query| {
        query.canceller.cancel();
        Ok(())
    }))
}

/// Runs a statement of SQL to its end: devicefusion_query_new, devicefusion_query_run and devicefusion_query_free in one.
/// `rows` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_execute(context: *mut devicefusion_context, sql: *const c_char, rows: *mut i64) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: `sql` is as the header asks.
        let count = Query::new(context, unsafe { text("SQL", sql) }?)?.count()?;
        if !rows.is_null() {
            // SAFETY: not null, and writable as the header asks.
            unsafe { rows.write(count) };
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
    use async_trait::async_trait;
    use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
    use datafusion::catalog::{Session, TableProvider};
    use datafusion::logical_expr::{Expr, TableType};
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::config::*;
    use crate::context::*;
    use crate::{DEVICEFUSION_FAILURE, DEVICEFUSION_SUCCESS};

    /// A table without rows that tells when it is planned, and is done with that when it is told to, if ever.
    #[derive(Debug)]
    struct Slow {
        schema: SchemaRef,
        planned: Sender<()>,
        go_on: Option<Mutex<Receiver<()>>>,
    }

    #[async_trait]
    impl TableProvider for Slow {
        fn schema(&self) -> SchemaRef {
            Arc::clone(&self.schema)
        }

        fn table_type(&self) -> TableType {
            TableType::Base
        }

        async fn scan(
            &self,
            _: &dyn Session,
            _: Option<&Vec<usize>>,
            _: &[Expr],
            _: Option<usize>,
        ) -> datafusion::common::Result<Arc<dyn ExecutionPlan>> {
            self.planned.send(()).unwrap();
            match &self.go_on {
                // The thread waits, so that nobody can see a cancel.
                Some(go_on) => go_on.lock().recv().unwrap(),
                None => std::future::pending().await,
            }
            Ok(Arc::new(EmptyExec::new(Arc::clone(&self.schema))))
        }
    }

    /// Cancels a query while `run` has it planned: by a table that waits within a poll or, with `forever`, by one that is never ready.
    fn cancelled_while_planned(forever: bool, run: impl FnOnce(*mut devicefusion_query) -> c_int) {
        let config = devicefusion_context_config_new();
        let device = std::ffi::CString::new(device::testing::config().unwrap().selector.to_string()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { devicefusion_context_config_set_device(config, device.as_ptr()) }, DEVICEFUSION_SUCCESS);
        let context = devicefusion_context_new(config);
        let (planned, is_planned) = channel();
        let (go_on, goes_on) = channel();
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let slow = Slow { schema, planned, go_on: (!forever).then(|| Mutex::new(goes_on)) };
        let opened = CONTEXTS.get(context).unwrap();
        opened.session().unwrap().ctx.register_table("slow", Arc::new(slow)).unwrap();
        drop(opened);
        let mut query = ptr::null_mut();
        // SAFETY: a C string, and a place for the query.
        let made = unsafe { devicefusion_query_new(context, c"SELECT n FROM slow".as_ptr(), &raw mut query) };
        assert_eq!(made, DEVICEFUSION_SUCCESS);

        let address = query.addr();
        let cancelling = std::thread::spawn(move || {
            is_planned.recv().unwrap();
            assert_eq!(devicefusion_query_cancel(ptr::without_provenance_mut(address)), DEVICEFUSION_SUCCESS);
            // Nobody may be there to be told.
            _ = go_on.send(());
        });
        assert_eq!(run(query), DEVICEFUSION_FAILURE);
        cancelling.join().unwrap();
        assert_eq!(CONTEXTS.get(context).unwrap().errors.take().unwrap(), "the query was cancelled");
        assert_eq!(devicefusion_query_free(query), DEVICEFUSION_SUCCESS);
        assert_eq!(devicefusion_context_free(context), DEVICEFUSION_SUCCESS);
        assert_eq!(devicefusion_context_config_free(config), DEVICEFUSION_SUCCESS);
    }

    #[test]
    fn a_query_that_is_cancelled_while_it_is_planned_does_not_run() {
        for forever in [false, true] {
            // SAFETY: there may be no place for the number.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_run(query, ptr::null_mut()) });
            let mut stream = FFI_ArrowArrayStream::empty();
            // SAFETY: a place for the stream.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_stream(query, &raw mut stream) });
            let mut stream = FFI_ArrowDeviceArrayStream::empty();
            // SAFETY: as above.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_device_stream(query, &raw mut stream) });
            // SAFETY: the producer is the library's, which follows the interface.
            let (handler, _stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
            // SAFETY: a handler of arrow-device.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_push(query, handler.into_raw()) });
        }
    }
}
