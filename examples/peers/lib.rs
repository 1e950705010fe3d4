// SPDX-License-Identifier: Apache-2.0
//! SQL on the device behind three C functions, for whatever has Arrow data: `peers.h` declares them, `peers.py` calls them
//! from Python, and the files beside it connect pyarrow, nanoarrow, Arrow C++, cuDF and CuPy.
//!
//! `cargo build --workspace --example peers` makes `target/debug/examples/libpeers.so`.
//!
//! Functions return null, or a text that says what went wrong and goes back to [`peers_free_text`]. Inputs are moved out of
//! the caller's memory in every case, outputs are only written on success.

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

/// One device for all queries: what one leaves there, the next reads in place.
static DEVICE: LazyLock<Arc<DeviceRuntime>> = LazyLock::new(DeviceRuntime::new);
static TOKIO: LazyLock<std::io::Result<Runtime>> = LazyLock::new(Runtime::new);

/// Runs a query over the rows of a stream, which are the table `t`. All of it runs on the device, or it is an error.
///
/// The result stays in memory of the device if `on_device` is not 0; otherwise it is collected in host memory.
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
    text_of(|| {
        // SAFETY: as this function's own condition.
        let (rows, sql) = unsafe { (ArrowDeviceArrayStreamReader::from_raw(rows)?, CStr::from_ptr(sql)) };
        let tokio = TOKIO.as_ref()?;
        let result = tokio.block_on(query(sql.to_str()?, rows, on_device != 0))?;
        // SAFETY: as this function's own condition.
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

/// Makes a stream of one record batch: most libraries in Python have arrays for the device, and no streams.
///
/// # Safety
/// `array` and `columns` follow the interface, `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peers_stream(
    array: *mut FFI_ArrowDeviceArray,
    columns: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let (array, columns) = unsafe { (FFI_ArrowDeviceArray::from_raw(array), FFI_ArrowSchema::from_raw(columns)) };
        // SAFETY: as this function's own condition.
        let field = unsafe { schema::import_field(columns)? };
        // SAFETY: as this function's own condition.
        let batch = unsafe { ImportedArray::import(array, &field)? };
        let stream = export_iterator(&field, batch.device_type(), [Ok(batch.into_ffi())])?;
        // SAFETY: as this function's own condition.
        unsafe { out.write(stream) };
        Ok(())
    })
}

/// Frees what another function returned.
///
/// # Safety
/// The text comes from this library, and has not been freed; or it is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peers_free_text(text: *mut c_char) {
    if text.is_null() {
        return;
    }
    // SAFETY: as this function's own condition.
    drop(unsafe { CString::from_raw(text) });
}

/// Null, or what went wrong: nothing may unwind into C.
fn text_of(body: impl FnOnce() -> Result<()>) -> *mut c_char {
    let text = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "panicked; standard error has its message".to_owned(),
    };
    CString::new(text.replace('\0', "")).unwrap_or_default().into_raw()
}
