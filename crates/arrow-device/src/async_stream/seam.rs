// SPDX-License-Identifier: Apache-2.0
//! Stand-ins for parts of this crate that are being written.

use std::collections::HashMap;
use std::ffi::c_char;

use arrow::datatypes::Field;

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::{Error, Result};

/// Key-value pairs.
pub type Metadata = HashMap<String, String>;

/// An array of another producer.
#[derive(Debug)]
pub struct ImportedArray {
    array: FFI_ArrowDeviceArray,
}

impl ImportedArray {
    /// Takes ownership.
    ///
    /// # Safety
    /// The array is a live one of the interface, of the field's type.
    pub unsafe fn import(array: FFI_ArrowDeviceArray, _field: &Field) -> Result<Self> {
        Ok(Self { array })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.array.array.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device type.
    pub fn device_type(&self) -> ArrowDeviceType {
        self.array.device_type
    }
}

pub(super) fn encode(metadata: &Metadata) -> Result<Vec<u8>> {
    let number = |n: usize| i32::try_from(n).map_err(|_| Error::Invalid(format!("metadata of {n} bytes or entries")));
    let mut bytes = number(metadata.len())?.to_ne_bytes().to_vec();
    for text in metadata.iter().flat_map(|(key, value)| [key, value]) {
        bytes.extend(number(text.len())?.to_ne_bytes());
        bytes.extend(text.as_bytes());
    }
    Ok(bytes)
}

/// # Safety
/// Null, or valid metadata.
pub(super) unsafe fn decode(metadata: *const c_char) -> Result<Metadata> {
    let mut at = metadata.cast::<u8>();
    let mut pairs = Metadata::new();
    if at.is_null() {
        return Ok(pairs);
    }
    let number = |at: &mut *const u8| {
        // SAFETY: as the caller says.
        let n = i32::from_ne_bytes(unsafe { at.cast::<[u8; 4]>().read() });
        // SAFETY: as the caller says.
        *at = unsafe { at.add(4) };
        usize::try_from(n).map_err(|_| Error::Invalid(format!("metadata: a length of {n}")))
    };
    for _ in 0..number(&mut at)? {
        let mut text = || {
            let n = number(&mut at)?;
            // SAFETY: as the caller says.
            let bytes = unsafe { std::slice::from_raw_parts(at, n) };
            // SAFETY: as the caller says.
            at = unsafe { at.add(n) };
            Ok::<_, Error>(String::from_utf8_lossy(bytes).into_owned())
        };
        pairs.insert(text()?, text()?);
    }
    Ok(pairs)
}
