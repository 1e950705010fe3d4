// SPDX-License-Identifier: Apache-2.0
//! Rows of table functions that stay in the memory of a shared device.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout, Resident};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DataFusionError, Result, exec_err};
use datafusion::datasource::TableType;
use datafusion::logical_expr::Expr;
use datafusion::physical_plan::ExecutionPlan;
use device::Queue;
use futhark::{Array, Value};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared, try_join_all};

use crate::error::{columnar_error, device_error};
use crate::futhark::function::Function;
use crate::futhark::parameter::{Parameter, ValueKind};
use crate::futhark::returns::Returns;
use crate::session::{DeviceOptions, DeviceRuntime};
use crate::table::{DeviceTable, Snapshot, boxed_scan};

/// The operator that errors name.
const OPERATOR: &str = "DeviceFutharkTable";

/// The result of a call as a table of device memory.
pub(crate) struct ResidentResult {
    schema: SchemaRef,
    table: Shared<BoxFuture<'static, std::result::Result<Arc<DeviceTable>, Arc<DataFusionError>>>>,
}

impl fmt::Debug for ResidentResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidentResult").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// The session's device and the physical types of a result that stays there. `None` if
/// - the library shares another device or none, or the session does not use its device,
/// - a column is no array of numbers. Booleans are bytes on the device, and go through the host; so
///   do scalars, structs and lists.
pub(crate) fn resident_device(function: &Function, session: &dyn Session) -> Option<(Arc<DeviceRuntime>, Vec<ColumnType>)> {
    let Returns::Table(columns) = function.returns() else { return None };
    let runtime = DeviceRuntime::of(session.config())?;
    let device = function.context().device()?;
    let is_used =
        DeviceOptions::of(session.config().options()).enabled && runtime.opened().is_some_and(|opened| opened.same(device));
    let column = |column: &Parameter| {
        let ValueKind::Values(primitive) = column.kind else { return None };
        let ty = ColumnType::of(&column.data_type, false).filter(|ty| matches!(ty.layout, Layout::Fixed(_)))?;
        (column.is_array && function.context().library().has_raw_arrays(primitive, 1)).then_some(ty)
    };
    let types = columns.iter().map(column).collect::<Option<_>>().filter(|_| is_used)?;
    Some((runtime, types))
}

impl ResidentResult {
    /// The table of a call's results: one array for each column.
    ///
    /// # Errors
    /// If the results are no arrays, or differ in length.
    pub fn try_new(
        function: &Function,
        results: Vec<Value>,
        runtime: &Arc<DeviceRuntime>,
        types: Vec<ColumnType>,
    ) -> Result<ResidentResult> {
        let (Returns::Table(columns), Some(device)) = (function.returns(), function.context().device()) else {
            return exec_err!("{} gives no rows on a device", function.name());
        };
        let queue = device.queue().map_err(|error| device_error(OPERATOR, error))?;
        let fields = columns.iter().map(|column| Field::new(&column.name, column.data_type.clone(), false));
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let mut arrays = Vec::with_capacity(columns.len());
        for value in function.fields_of(results)? {
            match value {
                Value::Array(array) => arrays.push(array),
                other => return exec_err!("{} gave {} as a column", function.name(), other.type_name()),
            }
        }
        let lengths: Vec<usize> = arrays.iter().map(|array| array.shape().iter().product()).collect();
        function.same_length(columns, &lengths)?;
        let rows = lengths.first().copied().unwrap_or(0);
        let table = table(function.clone(), arrays, rows, Arc::clone(&schema), types, queue, Arc::clone(runtime));
        Ok(ResidentResult { schema, table: table.boxed().shared() })
    }
}

/// Asks the library for its arrays now; the future waits for their copies.
fn table(
    function: Function,
    arrays: Vec<Array>,
    rows: usize,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    queue: Queue,
    runtime: Arc<DeviceRuntime>,
) -> impl Future<Output = std::result::Result<Arc<DeviceTable>, Arc<DataFusionError>>> + Send + 'static {
    let buffers: Vec<_> = arrays.into_iter().map(|array| array.into_buffer(&queue)).collect();
    let table = async move {
        let buffers = try_join_all(buffers).await.map_err(|error| function.failed(error))?;
        let failed = |error| columnar_error(OPERATOR, error);
        let column =
            |(ty, buffer): (&ColumnType, _)| DeviceColumn::try_new(Arc::new(ty.clone()), rows, vec![buffer], None, None, None);
        let columns = types.iter().zip(buffers).map(column).collect::<columnar::Result<Vec<_>>>().map_err(failed)?;
        let batch = DeviceBatch::try_new(Arc::clone(&schema), columns, rows).map_err(failed)?;
        // The queues of scans do not wait for these copies.
        queue.finish().await.map_err(|error| device_error(OPERATOR, error))?;
        let batches: &[DeviceBatch] = if rows > 0 { &[batch] } else { &[] };
        let resident = Resident::of_batches(schema, types, batches).map_err(failed)?;
        Ok(Arc::new(DeviceTable::of(Snapshot::new(queue.context().clone(), resident)).watched_by(&runtime)))
    };
    table.map(|table: Result<_>| table.map_err(Arc::new))
}

impl TableProvider for ResidentResult {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    boxed_scan!(|table, _session, projection, _filters, _limit| table.plan_scan(projection));
}

impl ResidentResult {
    fn plan_scan<'a>(&'a self, projection: Option<&'a Vec<usize>>) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        let table = self.table.clone();
        Box::pin(async move { table.await.map_err(DataFusionError::Shared)?.plan_scan(projection) })
    }
}
