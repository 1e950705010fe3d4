// SPDX-License-Identifier: Apache-2.0
//! Rows of a query in host memory.

use std::sync::Arc;

use arrow_device::cpu;
use datafusion::arrow::array::{AsArray, RecordBatch};
use datafusion::arrow::datatypes::{Int64Type, SchemaRef};
use datafusion::arrow::util::pretty::pretty_format_batches_with_options;
use datafusion::common::format::DEFAULT_FORMAT_OPTIONS;
use datafusion::common::{DataFusionError, Result};
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::prelude::SessionContext;
use devicefusion::{Placement, error_text};
use futures::TryStreamExt;
use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use tokio::task::AbortHandle;

use crate::calls::{ENDED, tell, with_python};
use crate::capsule;
use crate::errors::{ExecutionError, exception, interface_exception};
use crate::runtime::{runtime, wait, wait_for};

/// Record batches of one schema.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct HostRows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// The place of their run.
    placement: Placement,
}

impl HostRows {
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, batches, placement: Placement::default() }
    }

    /// Rows of a run.
    pub fn of_run(schema: SchemaRef, batches: Vec<RecordBatch>, placement: Placement) -> Self {
        Self { schema, batches, placement }
    }

    /// The number that a query of one counts.
    pub fn number(&self) -> PyResult<i64> {
        let counts = self.batches.iter().find_map(|batch| batch.columns().first()?.as_primitive_opt::<Int64Type>());
        let count = counts.and_then(|counts| counts.values().first().copied());
        count.ok_or_else(|| ExecutionError::new_err("a count has no row"))
    }

    /// The rows as a query's.
    pub fn into_frame(self, session: &SessionContext) -> Result<DataFrame> {
        session.read_table(Arc::new(MemTable::try_new(self.schema, vec![self.batches])?))
    }
}

#[pymethods]
impl HostRows {
    /// The number of operators that ran on the device, and those of the host with their reasons.
    fn placement(&self) -> (usize, Vec<(String, String)>) {
        let host = self.placement.host_operators.iter().map(|host| (host.operator.clone(), host.reason.clone())).collect();
        (self.placement.device_operators, host)
    }

    fn __len__(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::of_schema(py, &self.schema)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The interface lets a producer ignore a type that it cannot give.
        drop(requested_schema);
        let batches: Vec<_> = self.batches.iter().cloned().map(Ok).collect();
        capsule::of_stream(py, cpu::export_host_stream(&self.schema, batches).map_err(interface_exception)?)
    }

    /// The first rows as a table of characters, `most` at most, with a note if there are more.
    fn text(&self, most: usize) -> PyResult<String> {
        let mut left = most;
        let mut shown = vec![RecordBatch::new_empty(Arc::clone(&self.schema))];
        for batch in &self.batches {
            let rows = batch.num_rows().min(left);
            shown.push(batch.slice(0, rows));
            left -= rows;
        }
        let text = pretty_format_batches_with_options(&shown, &DEFAULT_FORMAT_OPTIONS.clone().with_null("NULL"));
        let text = text.map_err(|error| exception(DataFusionError::from(error)))?;
        let rows: usize = self.batches.iter().map(RecordBatch::num_rows).sum();
        Ok(match most {
            1 if rows > 1 => format!("{text}\nthe first row"),
            _ if rows > most => format!("{text}\nthe first {most} rows"),
            _ => text.to_string(),
        })
    }
}

/// The rows of a query that runs, batch by batch. Its drop stops the query.
#[pyclass(frozen, module = "devicefusion._devicefusion")]
pub(crate) struct RowStream {
    schema: SchemaRef,
    rows: Arc<Mutex<Rows>>,
    /// The read of [`start`](Self::start) that is under way.
    read: Mutex<Option<AbortHandle>>,
}

/// Where the rows of a stream are.
enum Rows {
    Here(SendableRecordBatchStream),
    /// A thread waits for the next batch.
    Read,
    /// A stream of C has them.
    HandedOver,
    Ended,
    /// A read has failed, or Ctrl-C has stopped it.
    Failed,
}

impl RowStream {
    pub fn new(rows: SendableRecordBatchStream) -> Self {
        Self { schema: rows.schema(), rows: Arc::new(Mutex::new(Rows::Here(rows))), read: Mutex::new(None) }
    }

    /// The rows, whose new place is `state`. `None` after their end.
    fn take(&self, state: Rows) -> PyResult<Option<SendableRecordBatchStream>> {
        let mut rows = self.rows.lock();
        match std::mem::replace(&mut *rows, state) {
            Rows::Here(stream) => return Ok(Some(stream)),
            before => *rows = before,
        }
        match &*rows {
            Rows::Ended => Ok(None),
            Rows::HandedOver => Err(PyRuntimeError::new_err("the rows of this stream were handed over")),
            Rows::Failed => Err(ExecutionError::new_err("the query of this stream has failed or was interrupted")),
            Rows::Read | Rows::Here(_) => Err(PyRuntimeError::new_err("another thread reads the rows of this stream")),
        }
    }
}

impl Drop for RowStream {
    fn drop(&mut self) {
        if let Some(read) = self.read.get_mut() {
            read.abort();
        }
    }
}

/// The state after a read.
fn state_after<E>(batch: &Result<Option<RecordBatch>, E>, rows: SendableRecordBatchStream) -> Rows {
    match batch {
        Ok(Some(_)) => Rows::Here(rows),
        Ok(None) => Rows::Ended,
        Err(_) => Rows::Failed,
    }
}

#[pymethods]
impl RowStream {
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::of_schema(py, &self.schema)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let stream = match self.take(Rows::HandedOver)? {
            Some(rows) => cpu::export_host_stream(&self.schema, Pulled(rows)),
            None => cpu::export_host_stream(&self.schema, []),
        };
        capsule::of_stream(py, stream.map_err(interface_exception)?)
    }

    /// The next batch, or None at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<HostRows>> {
        let Some(mut rows) = self.take(Rows::Read)? else { return Ok(None) };
        let batch = wait(py, rows.try_next());
        *self.rows.lock() = state_after(&batch, rows);
        Ok(batch?.map(|batch| HostRows::new(Arc::clone(&self.schema), vec![batch])))
    }

    /// Waits for the next batch on a thread of its own. Then calls `done` with the batch and None,
    /// with None twice at the end, or with None and the exception.
    fn start(&self, done: Py<PyAny>) -> PyResult<()> {
        let (here, schema) = (Arc::clone(&self.rows), Arc::clone(&self.schema));
        let taken = self.take(Rows::Read)?;
        let read = runtime()?.spawn(async move {
            let batch = match taken {
                Some(mut rows) => {
                    let batch = rows.try_next().await;
                    *here.lock() = state_after(&batch, rows);
                    batch
                }
                None => Ok(None),
            };
            tell(&done, batch.map(|batch| batch.map(|batch| HostRows::new(schema, vec![batch]))));
        });
        *self.read.lock() = Some(read.abort_handle());
        Ok(())
    }
}

/// Pulls batches on the thread of a consumer in C, which may hold the GIL or not.
struct Pulled(SendableRecordBatchStream);

impl Iterator for Pulled {
    type Item = arrow_device::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut failure = None;
        let pulled = with_python(|py| {
            // Rows may come so fast that the wait never looks for Ctrl-C.
            py.check_signals()?;
            wait_for(py, self.0.try_next(), |error| {
                let raised = foreign_error(error);
                let exception = interface_exception(raised.clone());
                failure = Some(raised);
                exception
            })
        });
        let Some(pulled) = pulled else { return Some(Err(arrow_device::Error::Other(ENDED.into()))) };
        // Else the wait itself has failed, such as by Ctrl-C. A consumer in C gets it as a text.
        let failed = |error: PyErr| failure.unwrap_or_else(|| arrow_device::Error::Other(error.to_string()));
        pulled.map_err(failed).transpose()
    }
}

/// A query's error for a consumer in C.
fn foreign_error(error: DataFusionError) -> arrow_device::Error {
    let text = error_text(&error);
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => arrow_device::Error::OutOfMemory(text),
        _ => arrow_device::Error::Invalid(text),
    }
}
