// SPDX-License-Identifier: Apache-2.0
//! Streams of Python objects for the threads of queries.

use arrow_device::ffi::FFI_ArrowDeviceArray;
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{Error, ImportedArray, Result};

use crate::calls::{Call, ENDED};

/// The stream of a producer, which any thread may read.
pub(crate) fn guarded(reader: ArrowDeviceArrayStreamReader) -> Result<ArrowDeviceArrayStreamReader> {
    let (field, device_type) = (reader.field().as_ref().clone(), reader.device_type());
    let stream = export_iterator(&field, device_type, Guarded(Some(reader)))?;
    // SAFETY: the stream was just exported. Its arrays were checked as they came.
    unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }
}

/// `None` only while it drops.
struct Guarded(Option<ArrowDeviceArrayStreamReader>);

impl Iterator for Guarded {
    type Item = Result<FFI_ArrowDeviceArray>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(_call) = Call::begin() else { return Some(Err(Error::Other(ENDED.into()))) };
        Some(self.0.as_mut()?.next()?.map(ImportedArray::into_ffi))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let reader = self.0.take();
        match Call::begin() {
            Some(_call) => drop(reader),
            // The process ends, too.
            None => std::mem::forget(reader),
        }
    }
}
