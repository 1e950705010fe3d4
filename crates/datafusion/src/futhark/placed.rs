// SPDX-License-Identifier: Apache-2.0
//! Rows of table functions where the library has put them: in the memory of the device that it shares with the session.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use async_trait::async_trait;
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

use crate::futhark::function::{Function, Of, Parameter, Returns};
use crate::run::columnar_error;
use crate::runtime::{DeviceRuntime, device_error, options_of};
use crate::table::{DeviceTable, Snapshot};

/// Who reads the rows, for messages.
const OPERATOR: &str = "DeviceFutharkTable";

/// What a call has given, as a table of device memory.
pub(crate) struct Placed {
    schema: SchemaRef,
    table: Shared<BoxFuture<'static, std::result::Result<Arc<DeviceTable>, Arc<DataFusionError>>>>,
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// The device on which the rows of a table function may stay, and the types of its columns there: one that the session uses and
/// the library shares. Booleans are bytes there, and go through the host, as do rows of scalars, structs and lists.
pub(crate) fn place_of(function: &Function, session: &dyn Session) -> Option<(Arc<DeviceRuntime>, Vec<ColumnType>)> {
    let Returns::Table(columns) = function.returns() else { return None };
    let runtime = DeviceRuntime::of(session.config())?;
    let device = function.context().device()?;
    let is_used = options_of(session.config().options()).enabled && runtime.opened().is_some_and(|own| own.same(device));
    let column = |column: &Parameter| {
        let Of::Values(primitive) = column.of else { return None };
        let ty = ColumnType::of(&column.data_type, false).filter(|ty| matches!(ty.layout, Layout::Fixed(_)))?;
        (column.is_array && function.context().library().has_raw_arrays(primitive, 1)).then_some(ty)
    };
    let types = columns.iter().map(column).collect::<Option<_>>().filter(|_| is_used)?;
    Some((runtime, types))
}

impl Placed {
    /// The table of a call's results, one array for each column.
    ///
    /// # Errors
    /// Where they are not that, or differ in length.
    pub fn try_new(
        function: &Function,
        results: Vec<Value>,
        runtime: &Arc<DeviceRuntime>,
        types: Vec<ColumnType>,
    ) -> Result<Placed> {
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
        Ok(Placed { schema, table: table.boxed().shared() })
    }
}

/// The library is asked for its arrays now; what is to be waited for is the rest.
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
    let made = async move {
        let buffers = try_join_all(buffers).await.map_err(|error| function.failed(error))?;
        let failed = |error| columnar_error(OPERATOR, error);
        let column =
            |(ty, buffer): (&ColumnType, _)| DeviceColumn::try_new(Arc::new(ty.clone()), rows, vec![buffer], None, None, None);
        let columns = types.iter().zip(buffers).map(column).collect::<columnar::Result<Vec<_>>>().map_err(failed)?;
        let batch = DeviceBatch::try_new(Arc::clone(&schema), columns, rows).map_err(failed)?;
        // Scans have queues of their own, which do not wait for copies.
        queue.finish().await.map_err(|error| device_error(OPERATOR, error))?;
        let batches: &[DeviceBatch] = if rows > 0 { &[batch] } else { &[] };
        let resident = Resident::of_batches(schema, types, batches).map_err(failed)?;
        Ok(Arc::new(DeviceTable::of(Snapshot::new(queue.context().clone(), resident)).watched_by(&runtime)))
    };
    made.map(|made: Result<_>| made.map_err(Arc::new))
}

#[async_trait]
impl TableProvider for Placed {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let table = self.table.clone().await.map_err(DataFusionError::Shared)?;
        table.scan(session, projection, filters, limit).await
    }
}
