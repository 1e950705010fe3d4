// SPDX-License-Identifier: Apache-2.0
//! Queries: planned SQL with values for its parameters, which runs any number of times.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::pin::pin;
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
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::TaskContext;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable, execute_stream};
use datafusion::prelude::DataFrame;
use devicefusion::{DeviceResult, Profile};
use devicefusion_adbc::{counts_written_rows, writes_rows};
use futures::{FutureExt, StreamExt, TryStreamExt};
use parking_lot::Mutex;

use crate::arrow_stream::take_struct;
use crate::boundary::{check_out, code, malloc_string, string, without_context};
use crate::cancel::{Canceller, unless_cancelled};
use crate::context::{Context, devicefusion_context, with_context};
use crate::error::{Failure, Result};
use crate::handle::Registry;
use crate::rows::HostRows;

/// A planned SQL statement with values for its parameters. It belongs to a context and runs any
/// number of times.
pub struct devicefusion_query {
    _opaque: [u8; 0],
}

static QUERIES: Registry<devicefusion_query, Query> = Registry::new("query");

struct Query {
    context: Arc<Context>,
    sql: String,
    plan: LogicalPlan,
    /// Names of the parameters, without the dollar sign.
    parameters: Vec<String>,
    values: Mutex<BTreeMap<String, ScalarValue>>,
    canceller: Canceller,
    /// The physical plan of the latest run, while it is under way.
    running: Mutex<Option<Weak<dyn ExecutionPlan>>>,
}

/// A run that is ready to start.
struct Planned {
    plan: Arc<dyn ExecutionPlan>,
    task: Arc<TaskContext>,
    /// Whether the result is the number of rows written.
    counts_written_rows: bool,
}

impl Query {
    fn new(context: &Arc<Context>, sql: &str) -> Result<Self> {
        let session = context.session()?;
        if session.logging {
            context.log.line(&format!("query: {sql}"));
        }
        let state = session.ctx.state();
        devicefusion::check_nesting(state.config_options(), sql)?;
        // The check tells whether the stack of this call is enough.
        devicefusion::with_enough_stack(|| {
            let mut statements = devicefusion::parse_statements(state.config_options(), sql)?;
            let (Some(statement), true) = (statements.pop_front(), statements.is_empty()) else {
                return Err(Failure::program("a query is one statement: make a query of each, and run them in turn"));
            };
            let plan = session.block_on(async { state.statement_to_plan(statement).await })?;
            Self::of_plan(context, sql, plan)
        })
    }

    fn of_plan(context: &Arc<Context>, sql: &str, plan: LogicalPlan) -> Result<Self> {
        // Most short queries have none of the signs of a parameter, and are not searched for them.
        let names = if sql.contains(['$', '?', ':', '@']) { plan.get_parameter_names()? } else { Default::default() };
        let mut parameters: Vec<String> = names.iter().map(|name| name.trim_start_matches('$').to_owned()).collect();
        parameters.sort_by_key(|name| (name.len(), name.clone()));
        let (context, sql, canceller) = (Arc::clone(context), sql.to_owned(), Canceller::new());
        Ok(Self { context, sql, plan, parameters, values: Mutex::default(), canceller, running: Mutex::new(None) })
    }

    fn bind(&self, name: &str, value: ScalarValue) -> Result<()> {
        if !self.parameters.iter().any(|parameter| parameter == name) {
            let known: Vec<String> = self.parameters.iter().map(|name| format!("${name}")).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Err(Failure::program(format!("the query has no parameter ${name}; it has {known}")));
        }
        self.values.lock().insert(name.to_owned(), value);
        Ok(())
    }

    /// Binds the columns of a one-row batch: by position if the parameters are numbered, else by
    /// name.
    fn bind_row(&self, row: &RecordBatch) -> Result<()> {
        if row.num_rows() != 1 {
            return Err(Failure::program(format!("parameters must be one row, not {}", row.num_rows())));
        }
        let numbered = self.parameters.iter().all(|name| name.parse::<usize>().is_ok());
        for (index, (field, column)) in row.schema().fields().iter().zip(row.columns()).enumerate() {
            let name = if numbered { (index + 1).to_string() } else { field.name().trim_start_matches('$').to_owned() };
            self.bind(&name, ScalarValue::try_from_array(column, 0)?)?;
        }
        Ok(())
    }

    /// The plan with the values of its parameters.
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

    /// A future that is ready once a later call cancels this query or its context.
    fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let (query, context) = (self.canceller.cancelled(), self.context.canceller.cancelled());
        async move {
            tokio::select! {
                () = query => (),
                () = context => (),
            }
        }
    }

    /// Drives the work of one run until it ends or is cancelled.
    fn run<T>(&self, cancelled: impl Future<Output = ()>, work: impl Future<Output = Result<T>>) -> Result<T> {
        // Pinned here: futures of whole plans have many kilobytes, which each call would move.
        self.context.session()?.block_on(unless_cancelled("the query", pin!(cancelled), pin!(work)))
    }

    /// Runs statements with effects (DDL, SET, INSERT, COPY …), and plans queries. The plan of a
    /// statement that has run gives its result, such as the number of rows written.
    async fn planned(&self) -> Result<Planned> {
        let session = self.context.session()?;
        let frame = devicefusion::execute_logical_plan(&session.ctx, self.bound()?).await?;
        // EXECUTE has become the prepared statement.
        let (writes_rows, counts_written_rows) = (writes_rows(frame.logical_plan()), counts_written_rows(frame.logical_plan()));
        let task = Arc::new(frame.task_ctx());
        let mut plan = frame.create_physical_plan().await?;
        // Planning may be one poll. A run that was cancelled meanwhile must not begin.
        tokio::task::yield_now().await;
        if session.debugging {
            self.context.log.line(&format!("plan:\n{}", displayable(plan.as_ref()).indent(false)));
        }
        *self.running.lock() = Some(Arc::downgrade(&plan));
        if writes_rows {
            // DataFusion would write only when C reads the result. C may never do so.
            let batches = collect(Arc::clone(&plan), Arc::clone(&task)).await?;
            plan = MemorySourceConfig::try_new_exec(&[batches], plan.schema(), None)?;
        }
        Ok(Planned { plan, task, counts_written_rows })
    }

    fn stream(&self) -> Result<FFI_ArrowArrayStream> {
        // Subscribes before the run begins, so that a cancellation during planning counts.
        let mut cancelled = self.cancelled().boxed();
        let (rows, plan) = self.run(&mut cancelled, async {
            let Planned { plan, task, .. } = self.planned().await?;
            Ok((execute_stream(Arc::clone(&plan), task)?, plan))
        })?;
        HostRows::new(Arc::clone(&self.context), plan, rows, cancelled).into_stream()
    }

    /// Starts a run whose rows stay on the device.
    fn device_result(&self) -> Result<DeviceResult> {
        let device = &self.context.session()?.device;
        if device.opened().is_none() {
            let problem = device.problem().unwrap_or_default();
            return Err(Failure::program(format!(
                "a result on the device needs a device, and the context has none: {problem}; devicefusion_query_stream gives host rows"
            )));
        }
        let (cancelled, context) = (self.cancelled(), Arc::clone(&self.context));
        self.run(self.cancelled(), async {
            let Planned { plan, task, .. } = self.planned().await?;
            // A task on the context's threads produces the rows, so it keeps the context alive.
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
            // Keeps the threads alive until here.
            drop(context);
        })
    }

    /// Runs to the end and counts the rows: those written, or those of the result.
    fn count(&self, cancelled: impl Future<Output = ()>) -> Result<i64> {
        self.run(cancelled, async {
            let Planned { plan, task, counts_written_rows } = self.planned().await?;
            let mut rows = execute_stream(Arc::clone(&plan), task)?;
            let mut count = 0;
            while let Some(batch) = rows.try_next().await? {
                let written = batch.columns().first().and_then(|column| column.as_primitive_opt::<UInt64Type>());
                count += match written {
                    Some(written) if counts_written_rows => written.values().iter().sum(),
                    _ => batch.num_rows() as u64,
                };
            }
            // `progress` finds the plan until here.
            drop(plan);
            Ok(i64::try_from(count).unwrap_or(i64::MAX))
        })
    }

    fn progress(&self) -> Result<String> {
        let plan = self.running.lock().as_ref().and_then(Weak::upgrade);
        let plan = plan.ok_or_else(|| Failure::program("no run of the query is under way"))?;
        Ok(DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(false).to_string())
    }

    /// Runs to the end, drops the rows and tells how the run went.
    fn profile(&self) -> Result<Profile> {
        self.run(self.cancelled(), async {
            let (profile, outcome) = Profile::of_plan(&self.context.session()?.ctx, self.bound()?, &self.sql).await?;
            outcome?;
            Ok(profile)
        })
    }

    fn explain(&self, verbose: bool, analyze: bool) -> Result<String> {
        let state = self.context.session()?.ctx.state();
        let plan = self.bound()?;
        self.run(self.cancelled(), async {
            let mut rows = DataFrame::new(state, plan).explain(verbose, analyze)?.execute_stream().await?;
            let mut lines = String::new();
            while let Some(batch) = rows.next().await.transpose()? {
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
}

/// Runs the body of a C function with a query, whose context keeps its failure.
fn with_query<T>(query: *const devicefusion_query, body: impl FnOnce(&Arc<Query>) -> Result<T>) -> std::result::Result<T, c_int> {
    let query = without_context(|| QUERIES.get(query))?;
    query.context.report(|| body(&query))
}

/// Plans a SQL statement, whose tables and columns must exist. Nothing runs yet. Parameters are $1,
/// $2 and so on, or $names.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_new(
    context: *mut devicefusion_context,
    sql: *const c_char,
    out: *mut *mut devicefusion_query,
) -> c_int {
    code(with_context(context, |context| {
        check_out("query", out)?;
        // SAFETY: `sql` is as the header asks.
        let query = Query::new(context, unsafe { string("SQL", sql) }?)?;
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

/// The columns of the result. Types that depend on parameters follow the bound values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_schema(query: *mut devicefusion_query, out: *mut FFI_ArrowSchema) -> c_int {
    code(with_query(query, |query| {
        check_out("schema", out)?;
        let schema = schema::export_schema(query.bound()?.schema().as_arrow())?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(schema) };
        Ok(())
    }))
}

/// Binds NULL to the parameter $`index`, from 1 as in SQL.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_bind_null(query: *mut devicefusion_query, index: c_int) -> c_int {
    bind(query, index, ScalarValue::Null)
}

/// Binds a boolean, true if nonzero, to the parameter $`index`.
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

/// Binds a string to the parameter $`index`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_bind_string(
    query: *mut devicefusion_query,
    index: c_int,
    value: *const c_char,
) -> c_int {
    code(with_query(query, |query| {
        // SAFETY: `value` is as the header asks.
        query.bind(&index.to_string(), ScalarValue::from(unsafe { string("string to bind", value) }?))
    }))
}

fn bind(query: *mut devicefusion_query, index: c_int, value: ScalarValue) -> c_int {
    code(with_query(query, |query| query.bind(&index.to_string(), value)))
}

/// Binds values of any type: the columns of `row`, a host array of structs with one element. They
/// go to $1, $2 and so on by position, or to $names by name. Array and schema are moved in any
/// case.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_bind_row(
    query: *mut devicefusion_query,
    row: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
) -> c_int {
    // SAFETY: both are as the header asks.
    let (row, schema) = unsafe { (take_struct("row", row), take_struct("schema", schema)) };
    code(with_query(query, |query| {
        let (row, schema) = (row?, schema?);
        // SAFETY: both are live, and follow the interface as the header asks.
        let row = unsafe { ImportedArray::import(cpu::as_cpu_array(row), &schema::import_field(schema)?)? };
        query.bind_row(&cpu::import_batch(row)?)
    }))
}

/// Starts the query and returns its rows as a stream of host arrays, which are record batches.
///
/// - `get_next` waits for the next batch. It fails if the query fails.
/// - Releasing the stream stops the query. The stream outlives query and context.
/// - INSERT, UPDATE, DELETE, MERGE, COPY, DDL and SET run to their end in this call, which returns
///   their errors. The stream has the result: the number of rows written, or no rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_stream(query: *mut devicefusion_query, out: *mut FFI_ArrowArrayStream) -> c_int {
    code(with_query(query, |query| {
        check_out("stream", out)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(query.stream()?) };
        Ok(())
    }))
}

/// devicefusion_query_stream with the rows left on the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_device_stream(
    query: *mut devicefusion_query,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> c_int {
    code(with_query(query, |query| {
        check_out("stream", out)?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(query.device_result()?.into_device_stream()?) };
        Ok(())
    }))
}

/// devicefusion_query_device_stream that pushes the rows to a handler, as many batches as it asks
/// for. Returns once the query is planned.
///
/// - The context's threads call the handler's callbacks until its `release`, even after query and
///   context are freed. The handler must not move until then.
/// - If this function fails, it releases the handler and calls no other callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_push(
    query: *mut devicefusion_query,
    handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
) -> c_int {
    // SAFETY: the handler is as the header asks.
    let handler = unsafe { AsyncHandler::from_raw(handler) };
    code(with_query(query, |query| query.push(handler?)))
}

/// Runs the query to its end and drops its rows. `rows`, unless NULL, gets the number of rows: of
/// the result, or of those written by INSERT, UPDATE, DELETE, MERGE or COPY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_run(query: *mut devicefusion_query, rows: *mut i64) -> c_int {
    code(with_query(query, |query| {
        let count = query.count(query.cancelled())?;
        if !rows.is_null() {
            // SAFETY: not null, and writable as the header asks.
            unsafe { rows.write(count) };
        }
        Ok(())
    }))
}

/// The plan only.
pub const DEVICEFUSION_EXPLAIN_PLAN: c_int = 0;
/// The plan at every step of planning, and the kernel source.
pub const DEVICEFUSION_EXPLAIN_VERBOSE: c_int = 1;
/// Runs the query and adds the metrics of each operator.
pub const DEVICEFUSION_EXPLAIN_ANALYZE: c_int = 2;
/// Runs the query. A page with its plan and a timeline, which needs no other file.
pub const DEVICEFUSION_EXPLAIN_HTML: c_int = 3;
/// Runs the query. All data of the page as JSON.
pub const DEVICEFUSION_EXPLAIN_JSON: c_int = 4;
/// Runs the query. The plan in the JSON of PostgreSQL's EXPLAIN.
pub const DEVICEFUSION_EXPLAIN_PGJSON: c_int = 5;
/// Runs the query. The timeline in Chrome's trace event format, for Perfetto.
pub const DEVICEFUSION_EXPLAIN_TRACE: c_int = 6;

/// Explains the query: the operators on the device, those on the host, and the reasons. `out` gets
/// a string, which the caller frees.
///
/// `how` is one of the constants DEVICEFUSION_EXPLAIN_….
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_explain(query: *mut devicefusion_query, how: c_int, out: *mut *mut c_char) -> c_int {
    code(with_query(query, |query| {
        check_out("string", out)?;
        let plan = match how {
            DEVICEFUSION_EXPLAIN_PLAN => query.explain(false, false)?,
            DEVICEFUSION_EXPLAIN_VERBOSE => query.explain(true, false)?,
            DEVICEFUSION_EXPLAIN_ANALYZE => query.explain(false, true)?,
            DEVICEFUSION_EXPLAIN_HTML => query.profile()?.to_html(),
            DEVICEFUSION_EXPLAIN_JSON => query.profile()?.to_json(),
            DEVICEFUSION_EXPLAIN_PGJSON => query.profile()?.to_pgjson(),
            DEVICEFUSION_EXPLAIN_TRACE => query.profile()?.to_trace(),
            other => return Err(Failure::program(format!("{other} is not a kind of EXPLAIN: see DEVICEFUSION_EXPLAIN_PLAN"))),
        };
        let plan = malloc_string(&plan);
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(plan) };
        Ok(())
    }))
}

/// Progress of the latest run: its plan with each operator's output rows so far. `out` gets a
/// string, which the caller frees. Fails if no run is under way.
///
/// Call it on another thread, or between two batches of a stream. The device metrics of an operator
/// appear once it has ended, as in EXPLAIN ANALYZE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_query_progress(query: *mut devicefusion_query, out: *mut *mut c_char) -> c_int {
    code(with_query(query, |query| {
        check_out("string", out)?;
        let plan = malloc_string(&query.progress()?);
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(plan) };
        Ok(())
    }))
}

/// Cancels all runs of the query that are under way, from any thread. They and their streams fail.
/// Later runs are not affected.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_query_cancel(query: *mut devicefusion_query) -> c_int {
    code(with_query(query, |query| {
        query.canceller.cancel();
        Ok(())
    }))
}

/// Runs a SQL statement to its end: devicefusion_query_new, devicefusion_query_run and
/// devicefusion_query_free in one call. `rows` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_execute(context: *mut devicefusion_context, sql: *const c_char, rows: *mut i64) -> c_int {
    code(with_context(context, |context| {
        // A cancellation counts from here on, also while the statement is planned.
        let cancelled = context.canceller.cancelled();
        // SAFETY: `sql` is as the header asks.
        let count = Query::new(context, unsafe { string("SQL", sql) }?)?.count(cancelled)?;
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
    use crate::error::{DEVICEFUSION_FAILURE, DEVICEFUSION_SUCCESS};

    /// An empty table that signals its planning. This ends at a signal of the test, or not at all.
    #[derive(Debug)]
    struct SlowTable {
        schema: SchemaRef,
        planned: Sender<()>,
        go_on: Option<Mutex<Receiver<()>>>,
    }

    #[async_trait]
    impl TableProvider for SlowTable {
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
                // Blocks the thread, so that no poll can notice the cancellation.
                Some(go_on) => go_on.lock().recv().unwrap(),
                None => std::future::pending().await,
            }
            Ok(Arc::new(EmptyExec::new(Arc::clone(&self.schema))))
        }
    }

    /// Cancels a query while `run` plans it. The table blocks within a poll or, with `forever`, is
    /// never ready.
    fn cancelled_while_planned(forever: bool, run: impl FnOnce(*mut devicefusion_query) -> c_int) {
        let config = devicefusion_context_config_new();
        let device = std::ffi::CString::new(device::testing::config().unwrap().selector.to_string()).unwrap();
        // SAFETY: a C string.
        assert_eq!(unsafe { devicefusion_context_config_set_device(config, device.as_ptr()) }, DEVICEFUSION_SUCCESS);
        let context = devicefusion_context_new(config);
        let (planned, is_planned) = channel();
        let (go_on, goes_on) = channel();
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let slow = SlowTable { schema, planned, go_on: (!forever).then(|| Mutex::new(goes_on)) };
        let opened = CONTEXTS.get(context).unwrap();
        opened.session().unwrap().ctx.register_table("slow", Arc::new(slow)).unwrap();
        drop(opened);
        let mut query = ptr::null_mut();
        // SAFETY: a C string, and a pointer for the query.
        let made = unsafe { devicefusion_query_new(context, c"SELECT n FROM slow".as_ptr(), &raw mut query) };
        assert_eq!(made, DEVICEFUSION_SUCCESS);

        let address = query.addr();
        let cancelling = std::thread::spawn(move || {
            is_planned.recv().unwrap();
            assert_eq!(devicefusion_query_cancel(ptr::without_provenance_mut(address)), DEVICEFUSION_SUCCESS);
            // With `forever` the receiver is gone.
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
            // SAFETY: the pointer for the number may be NULL.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_run(query, ptr::null_mut()) });
            let mut stream = FFI_ArrowArrayStream::empty();
            // SAFETY: a pointer for the stream.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_stream(query, &raw mut stream) });
            let mut stream = FFI_ArrowDeviceArrayStream::empty();
            // SAFETY: see above.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_device_stream(query, &raw mut stream) });
            // SAFETY: the producer is the library, which follows the interface.
            let (handler, _stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
            // SAFETY: a handler of arrow-device.
            cancelled_while_planned(forever, |query| unsafe { devicefusion_query_push(query, handler.into_raw()) });
        }
    }
}
