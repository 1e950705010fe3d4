// SPDX-License-Identifier: Apache-2.0
//! Arrow structs from C: moved out of C's memory, and turned into readers of device arrays.

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::ffi::{FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::schema;
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};

use crate::error::{Failure, Result};

/// A struct of the Arrow C interfaces.
pub(crate) trait ArrowStruct: Sized {
    /// Moves the struct out of C's memory and flags the source as released.
    ///
    /// # Safety
    /// `raw` points to an initialised struct that can be read and written.
    unsafe fn take(raw: *mut Self) -> Self;

    /// Whether the struct has not been released.
    fn is_live(&self) -> bool;
}

macro_rules! arrow_struct {
    ($($name:ident),*) => {$(
        impl ArrowStruct for $name {
            unsafe fn take(raw: *mut Self) -> Self {
                // SAFETY: this function's own condition.
                unsafe { Self::from_raw(raw) }
            }

            fn is_live(&self) -> bool {
                self.release.is_some()
            }
        }
    )*};
}
arrow_struct!(FFI_ArrowArray, FFI_ArrowSchema, FFI_ArrowArrayStream, FFI_ArrowDeviceArrayStream);

impl ArrowStruct for FFI_ArrowDeviceArray {
    unsafe fn take(raw: *mut Self) -> Self {
        // SAFETY: this function's own condition.
        unsafe { Self::from_raw(raw) }
    }

    fn is_live(&self) -> bool {
        !self.is_released()
    }
}

/// Moves a struct out of C's memory. The struct is released here even if the call fails later.
///
/// # Safety
/// `raw` is NULL, or points to an initialised struct that can be read and written.
pub(crate) unsafe fn take_struct<T: ArrowStruct>(what: &str, raw: *mut T) -> Result<T> {
    if raw.is_null() {
        return Err(Failure::program(format!("the {what} is NULL")));
    }
    // SAFETY: not null, and the rest is this function's own condition.
    let taken = unsafe { T::take(raw) };
    match taken.is_live() {
        true => Ok(taken),
        false => Err(Failure::program(format!("the {what} has been released, or moved away"))),
    }
}

/// A reader of one device array.
///
/// # Safety
/// Array and schema are live and follow the interface.
pub(crate) unsafe fn reader_of_array(
    array: FFI_ArrowDeviceArray,
    schema: FFI_ArrowSchema,
) -> Result<ArrowDeviceArrayStreamReader> {
    // SAFETY: this function's own condition.
    let field = unsafe { schema::import_field(schema)? };
    let exported = export_iterator(&field, array.device_type, [Ok(array)])?;
    // SAFETY: arrow-device exported the stream; its array follows the interface by this function's
    // own condition.
    Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? })
}
