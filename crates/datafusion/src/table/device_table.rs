// SPDX-License-Identifier: Apache-2.0
//! A table in device memory.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_device::ImportedArray;
use columnar::{Resident, exchange};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Constraints, Result, SchemaExt, Statistics, not_impl_err, plan_datafusion_err, plan_err};
use datafusion::datasource::sink::DataSinkExec;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{DataFrame, SessionContext};
use device::Context;
use futures::StreamExt;
use futures::future::{BoxFuture, ready};
use kernels::ops::Decode;

use crate::error::{columnar_error, device_error, op_error};
use crate::exec::DeviceScanExec;
use crate::exec::panics;
use crate::session::{DeviceOptions, DeviceRuntime, Problem, kernel_options};
use crate::table::boxed_scan;
use crate::table::sink::TableSink;
use crate::table::snapshot::{OPERATOR, Snapshot, SnapshotBuilder};
use crate::table::state::TableState;

/// A resident table: scans read device memory and upload nothing.
///
/// - Columns have the narrowest layout that holds their values: decimals of 64 or 32 bits,
///   dictionaries for few distinct strings. Results do not change.
/// - Scans read a snapshot. INSERT, UPDATE, DELETE and MERGE INTO do not disturb running queries.
/// - All but INSERT write a snapshot of all rows, and so does TRUNCATE. They fail where another
///   statement has changed the table meanwhile.
///
/// # Examples
/// ```no_run
/// # async fn example() -> datafusion::common::Result<()> {
/// let ctx = devicefusion::session()?;
/// let df = ctx.read_parquet("lineitem.parquet", Default::default()).await?;
/// let table = devicefusion::DeviceTable::load(&ctx, df).await?;
/// ctx.register_table("lineitem", table)?;
/// ctx.sql("SELECT count(*) FROM lineitem WHERE l_quantity < 24").await?.show().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DeviceTable {
    schema: SchemaRef,
    state: Arc<TableState>,
    constraints: Constraints,
    /// Defaults by column name.
    defaults: HashMap<String, Expr>,
    is_replacement: bool,
}

impl DeviceTable {
    /// A table of host batches in a device's memory.
    ///
    /// # Errors
    /// If a column's type is not supported on the device, or device memory runs out.
    pub async fn try_new(context: &Context, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Self> {
        Self::of_rows(SnapshotBuilder::new(context, &schema)?, batches).await
    }

    /// As [`try_new`](Self::try_new), with batches of the size that the settings want.
    pub(super) async fn try_with_options(
        context: &Context,
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
        options: &DeviceOptions,
    ) -> Result<Self> {
        Self::of_rows(SnapshotBuilder::new(context, &schema)?.with_options(options), batches).await
    }

    async fn of_rows(mut builder: SnapshotBuilder, batches: Vec<RecordBatch>) -> Result<Self> {
        for batch in batches {
            builder.push(batch)?;
        }
        Ok(Self::of(builder.finish().await?))
    }

    /// A table of host batches, on the session's device.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new), or if the session has no device.
    pub async fn try_from_batches(ctx: &SessionContext, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Arc<Self>> {
        let (runtime, context) = device_of(ctx)?;
        let builder = SnapshotBuilder::new(&context, &schema)?.with_options(&options_of(ctx));
        Ok(Arc::new(Self::of_rows(builder, batches).await?.watched_by(&runtime)))
    }

    /// A table of a stream's rows, on the session's device. One full batch at a time is on
    /// the host.
    ///
    /// # Errors
    /// As [`try_from_batches`](Self::try_from_batches), or the stream's.
    pub async fn try_from_stream(ctx: &SessionContext, mut rows: SendableRecordBatchStream) -> Result<Arc<Self>> {
        let (runtime, context) = device_of(ctx)?;
        let mut builder = SnapshotBuilder::new(&context, &rows.schema())?.with_options(&options_of(ctx));
        while let Some(batch) = rows.next().await {
            builder.push(batch?)?;
        }
        Ok(Arc::new(Self::of(builder.finish().await?).watched_by(&runtime)))
    }

    /// A table of device arrays on the session's device. The arrays are record batches of `schema`.
    ///
    /// - Memory of the device is used in place, as [`DeviceStreamTable`](crate::DeviceStreamTable)
    ///   does. Dictionaries are decoded to a copy.
    /// - The arrays are released with the table and the queries that read it.
    /// - Columns keep the width of their types, and DataFusion plans without their bounds: nothing
    ///   is known of the values.
    ///
    /// # Errors
    /// As [`try_from_batches`](Self::try_from_batches); or if an array does not fit, or its memory
    /// is out of the device's reach.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use std::sync::Arc;
    /// use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    /// use arrow_device::{ImportedArray, cpu, schema};
    ///
    /// let prices: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4]));
    /// let batch = RecordBatch::try_from_iter([("price", prices)])?;
    /// // SAFETY: the array comes from arrow-device's export.
    /// let array = unsafe { ImportedArray::import(cpu::export_batch(&batch)?, &schema::batch_field(&batch.schema()))? };
    ///
    /// let ctx = devicefusion::session()?;
    /// let table = devicefusion::DeviceTable::try_from_device_arrays(&ctx, batch.schema(), [array]).await?;
    /// assert_eq!(table.num_rows(), 3);
    /// ctx.register_table("prices", table)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn try_from_device_arrays(
        ctx: &SessionContext,
        schema: SchemaRef,
        arrays: impl IntoIterator<Item = ImportedArray>,
    ) -> Result<Arc<Self>> {
        let (runtime, context) = device_of(ctx)?;
        let failed = |error| device_error(OPERATOR, error);
        let queue = context.queue().map_err(failed)?;
        let options = kernel_options(&options_of(ctx), &context)?;
        let decode = Decode::try_new(Arc::clone(&schema), options).map_err(|error| op_error(OPERATOR, error))?;
        let columns: Vec<usize> = (0..schema.fields().len()).collect();
        let mut batches = Vec::new();
        for array in arrays {
            let batch = exchange::import(&queue, array, &schema, &columns).await;
            let batch = batch.map_err(|error| columnar_error(OPERATOR, error))?;
            for chunk in batch.chunks(Resident::BATCH_ROWS) {
                batches.push(decode.run(&queue, chunk).await.map_err(|error| op_error(OPERATOR, error))?);
            }
        }
        // The queues of scans do not wait for the producers.
        queue.finish().await.map_err(failed)?;
        let table = Resident::of_batches(schema, decode.output_types().to_vec(), &batches);
        let table = table.map_err(|error| columnar_error(OPERATOR, error))?;
        Ok(Arc::new(Self::of(Snapshot::new(context, table)).watched_by(&runtime)))
    }

    /// A table of a query's rows, streamed to the session's device.
    ///
    /// # Errors
    /// As [`try_from_stream`](Self::try_from_stream).
    pub async fn load(ctx: &SessionContext, rows: DataFrame) -> Result<Arc<Self>> {
        Self::load_watched(ctx, rows, |_| {}).await
    }

    /// As [`load`](Self::load). `watch` gets the query's plan before that runs.
    pub(super) async fn load_watched(
        ctx: &SessionContext,
        rows: DataFrame,
        watch: impl FnOnce(&Arc<dyn ExecutionPlan>) + Send,
    ) -> Result<Arc<Self>> {
        let task = Arc::new(rows.task_ctx());
        let plan = rows.create_physical_plan().await?;
        watch(&plan);
        let rows = panics::caught(&plan, || execute_stream(Arc::clone(&plan), task))?;
        Self::try_from_stream(ctx, rows).await
    }

    /// Number of rows; 0 after the device was lost.
    pub fn num_rows(&self) -> usize {
        self.state.current().map_or(0, |snapshot| snapshot.num_rows())
    }

    /// The state that scans and inserts of the table share.
    pub(crate) fn state(&self) -> &Arc<TableState> {
        &self.state
    }

    /// Releases the table's memory when the runtime's device is lost.
    pub(crate) fn watched_by(self, runtime: &DeviceRuntime) -> Self {
        runtime.watch(&self.state);
        self
    }

    /// A table of a snapshot.
    pub(crate) fn of(snapshot: Snapshot) -> Self {
        let (constraints, defaults) = Default::default();
        let (schema, state) = (Arc::clone(snapshot.schema()), Arc::new(TableState::new(snapshot)));
        DeviceTable { schema, state, constraints, defaults, is_replacement: false }
    }

    /// The same table, which the schema `device` may put in the place of another one, or not.
    pub(super) fn replacing(&self, is_replacement: bool) -> Self {
        Self {
            schema: Arc::clone(&self.schema),
            state: Arc::clone(&self.state),
            constraints: self.constraints.clone(),
            defaults: self.defaults.clone(),
            is_replacement,
        }
    }

    pub(super) fn is_replacement(&self) -> bool {
        self.is_replacement
    }

    /// The table with the constraints and defaults of a table of the same columns.
    pub(crate) fn declared_as(mut self, table: &dyn TableProvider) -> Self {
        self.constraints = table.constraints().cloned().unwrap_or_default();
        let default = |name: &String| Some((name.clone(), table.get_column_default(name)?.clone()));
        self.defaults = self.schema.fields().iter().filter_map(|field| default(field.name())).collect();
        self
    }

    /// A scan of the current snapshot.
    pub(crate) fn plan_scan(&self, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        // The planner puts a DeviceToHostExec above.
        Ok(Arc::new(DeviceScanExec::try_new(self.state.current()?, columns)?))
    }

    fn plan_insert(&self, input: Arc<dyn ExecutionPlan>, insert: InsertOp) -> Result<Arc<dyn ExecutionPlan>> {
        let overwrite = match insert {
            InsertOp::Append => false,
            InsertOp::Overwrite => true,
            InsertOp::Replace => return not_impl_err!("REPLACE INTO a resident table; use INSERT INTO or INSERT OVERWRITE"),
        };
        let given = input.schema();
        self.schema.logically_equivalent_names_and_types(&given)?;
        // The planner adds casts. A hand-made plan may lack them.
        let mut pairs = self.schema.fields().iter().zip(given.fields());
        if !pairs.all(|(column, row)| column.data_type().equals_datatype(row.data_type())) {
            return plan_err!("rows of {} for a resident table of {}: cast them", columns(&given), columns(&self.schema));
        }
        let sink = TableSink::new(Arc::clone(&self.schema), Arc::clone(&self.state), overwrite);
        Ok(Arc::new(DataSinkExec::new(input, Arc::new(sink), None)))
    }
}

/// Names and types of columns, for messages.
fn columns(schema: &Schema) -> String {
    let columns: Vec<String> = schema.fields().iter().map(|field| format!("{} of {}", field.name(), field.data_type())).collect();
    columns.join(", ")
}

fn device_of(ctx: &SessionContext) -> Result<(Arc<DeviceRuntime>, Context)> {
    let state = ctx.state();
    let runtime = DeviceRuntime::of(state.config()).ok_or_else(|| {
        plan_datafusion_err!("this session has no device: build its state with SessionStateBuilderExt::with_device")
    })?;
    let context = needed(runtime.try_context(&DeviceOptions::of(state.config().options())))?;
    Ok((runtime, context))
}

fn options_of(ctx: &SessionContext) -> DeviceOptions {
    DeviceOptions::of(ctx.state_ref().read().config().options())
}

/// The device of a resident table.
pub(crate) fn needed(device: std::result::Result<Context, Problem>) -> Result<Context> {
    device.map_err(|problem| plan_datafusion_err!("a table of device memory needs a device: {}", problem.reason))
}

impl TableProvider for DeviceTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }

    fn get_column_default(&self, column: &str) -> Option<&Expr> {
        self.defaults.get(column)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    boxed_scan!(|table, _session, projection, _filters, _limit| Box::pin(ready(table.plan_scan(projection))));

    fn statistics(&self) -> Option<Statistics> {
        self.state.current().ok().map(|snapshot| snapshot.statistics().clone())
    }

    // Not `async`, see CONTRIBUTING.md.
    fn insert_into<'table, 'session, 'insert>(
        &'table self,
        _session: &'session dyn Session,
        input: Arc<dyn ExecutionPlan>,
        insert: InsertOp,
    ) -> BoxFuture<'insert, Result<Arc<dyn ExecutionPlan>>>
    where
        'table: 'insert,
        'session: 'insert,
        Self: 'insert,
    {
        Box::pin(ready(self.plan_insert(input, insert)))
    }
}
