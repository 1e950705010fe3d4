// SPDX-License-Identifier: Apache-2.0
//! SQL over a device stream from C, with the result as a device stream for C.
//!
//! `cargo run --example device_stream` compiles `examples/c/prices.c` with `cc`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use arrow_device::ffi::FFI_ArrowDeviceArrayStream;
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use datafusion::common::{DataFusionError, Result};
use devicefusion::{DeviceResult, DeviceStreamTable};

type Open = unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream);
type Count = unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream) -> i64;

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The C program, as a library of this process.
fn load(folder: &Path) -> Result<libloading::Library> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let library = folder.join("libprices.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library);
    cc.arg("-I").arg(root.join("crates/arrow-device/include")).arg(root.join("examples/c/prices.c"));
    assert!(cc.status()?.success(), "cc failed");
    // SAFETY: the library has no initialisers.
    unsafe { libloading::Library::new(library) }.map_err(external)
}

#[tokio::main]
async fn main() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let c = load(folder.path())?;
    // SAFETY: these are the types of the functions in prices.c.
    let (open_prices, count_rows) =
        unsafe { (*c.get::<Open>(b"open_prices").map_err(external)?, *c.get::<Count>(b"count_rows").map_err(external)?) };

    // Input: a struct that C fills.
    let mut prices = FFI_ArrowDeviceArrayStream::empty();
    // SAFETY: the function fills the struct by the interface, and the library outlives its streams.
    let reader = unsafe {
        open_prices(&mut prices);
        ArrowDeviceArrayStreamReader::from_raw(&mut prices)
    };
    let ctx = devicefusion::session()?;
    ctx.register_table("prices", Arc::new(DeviceStreamTable::try_new(reader.map_err(external)?)?))?;

    // Output: a struct that C reads, on another thread.
    let query = ctx.sql("SELECT price, price * 2 AS twice FROM prices WHERE price % 3 = 0").await?;
    let mut result = DeviceResult::try_new(query).await?.into_device_stream()?;
    // SAFETY: the function reads the stream by the interface, and releases it.
    let counted = tokio::task::spawn_blocking(move || unsafe { count_rows(&mut result) });
    let rows = counted.await.map_err(external)?;
    println!("{rows} rows of 3000 can be divided by 3");
    assert_eq!(rows, 1000);
    Ok(())
}

#[test]
fn runs() -> Result<()> {
    main()
}
