// SPDX-License-Identifier: Apache-2.0
//! Three C functions for SQL on the device over Arrow data of other libraries. `peers.h` declares
//! them, `peers.py` calls them from Python. Other files connect pyarrow, nanoarrow, Arrow C++, cuDF
//! and CuPy.
//!
//! `cargo build --workspace --example peers` makes `target/debug/examples/libpeers.so`.
//!
//! Functions return null, or an error message to free with [`peers_free_error`]. Inputs are moved
//! in any case, outputs are written on success only.

use std::error::Error;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatchIterator;
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::{FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{ImportedArray, cpu, schema};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{SessionConfig, SessionContext};
use devicefusion::{DeviceOptions, DeviceResult, DeviceRuntime, DeviceStreamTable, SessionStateBuilderExt};
use futures::TryStreamExt;
use tokio::runtime::Runtime;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The device of all queries. A query reads the result of an earlier one in place.
static DEVICE: LazyLock<Arc<DeviceRuntime>> = LazyLock::new(DeviceRuntime::new);
static TOKIO: LazyLock<std::io::Result<Runtime>> = LazyLock::new(Runtime::new);

/// Runs a query over the rows of a stream, which is the table `t`. Fails if an operator would run
/// on the host.
///
/// The result stays in device memory if `on_device` is not 0, else it is in host memory.
///
/// # Safety
/// `sql` is a C string, `rows` follows the interface, `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peers_query(
    sql: *const c_char,
    rows: *mut FFI_ArrowDeviceArrayStream,
    on_device: c_int,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> *mut c_char {
    error_of(|| {
        // SAFETY: this function's own condition.
        let (rows, sql) = unsafe { (ArrowDeviceArrayStreamReader::from_raw(rows)?, CStr::from_ptr(sql)) };
        let tokio = TOKIO.as_ref()?;
        let result = tokio.block_on(query(sql.to_str()?, rows, on_device != 0))?;
        // SAFETY: this function's own condition.
        unsafe { out.write(result) };
        Ok(())
    })
}

async fn query(sql: &str, rows: ArrowDeviceArrayStreamReader, on_device: bool) -> Result<FFI_ArrowDeviceArrayStream> {
    let mut config = SessionConfig::new().with_option_extension(DeviceOptions::from_env()?);
    config.options_mut().set("device.fallback", "error")?;
    let state = SessionStateBuilder::new().with_config(config).with_default_features();
    let ctx = SessionContext::new_with_state(state.with_device_runtime(Arc::clone(&DEVICE)).build());

    ctx.register_table("t", Arc::new(DeviceStreamTable::try_new(rows)?))?;
    let result = ctx.sql(sql).await?;
    if on_device {
        return Ok(DeviceResult::try_new(result).await?.into_device_stream()?);
    }
    let result = result.execute_stream().await?;
    let schema = result.schema();
    let batches: Vec<_> = result.try_collect().await?;
    Ok(cpu::export_reader(RecordBatchIterator::new(batches.into_iter().map(Ok), schema))?)
}

/// Makes a stream of one record batch. Most Python libraries have device arrays, but no device
/// streams.
///
/// # Safety
/// `array` and `columns` follow the interface, `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peers_stream(
    array: *mut FFI_ArrowDeviceArray,
    columns: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> *mut c_char {
    error_of(|| {
        // SAFETY: this function's own condition.
        let (array, columns) = unsafe { (FFI_ArrowDeviceArray::from_raw(array), FFI_ArrowSchema::from_raw(columns)) };
        // SAFETY: this function's own condition.
        let field = unsafe { schema::import_field(columns)? };
        // SAFETY: this function's own condition.
        let batch = unsafe { ImportedArray::import(array, &field)? };
        let stream = export_iterator(&field, batch.device_type(), [Ok(batch.into_ffi())])?;
        // SAFETY: this function's own condition.
        unsafe { out.write(stream) };
        Ok(())
    })
}

/// Frees an error message.
///
/// # Safety
/// The message is null, or comes from this library and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peers_free_error(error: *mut c_char) {
    if error.is_null() {
        return;
    }
    // SAFETY: this function's own condition.
    drop(unsafe { CString::from_raw(error) });
}

/// Runs a function's body. Returns null or the error message; a panic does not unwind into C.
fn error_of(body: impl FnOnce() -> Result<()>) -> *mut c_char {
    let error = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "panicked; standard error has its message".to_owned(),
    };
    CString::new(error.replace('\0', "")).unwrap_or_default().into_raw()
}
