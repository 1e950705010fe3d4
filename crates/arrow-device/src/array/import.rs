// SPDX-License-Identifier: Apache-2.0
//! The safe owner of a device array that somebody else produced.

use std::ffi::c_void;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use super::check::check;
use super::path::Path;
use super::view::ArrayView;
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::layout::{self, Layout};
use crate::{Error, Result};

/// An array from the other side of the interface, validated against its type, released when this drops (R39).
///
/// Its buffers are memory of [`device_type`](Self::device_type) and may not be written yet: wait on
/// [`sync_event`](Self::sync_event) before reading them (R37), and keep this alive until the device work that reads them
/// has completed (R43). Share it through an [`Arc`], or hand it on with [`into_ffi`](Self::into_ffi). It may be dropped on
/// any thread.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// use arrow_device::ffi::ArrowDeviceType;
/// use arrow_device::{ImportedArray, cpu, schema};
///
/// let prices: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4]));
/// let batch = RecordBatch::try_from_iter([("price", prices)])?;
/// let exported = cpu::export_batch(&batch)?; // or from C
///
/// let field = schema::batch_field(&batch.schema());
/// // SAFETY: the array comes from this crate's export.
/// let imported = unsafe { ImportedArray::import(exported, &field)? };
/// assert_eq!(imported.device_type(), ArrowDeviceType::CPU);
/// assert_eq!(imported.view().num_children(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ImportedArray {
    // Never changed while this owns it: views rely on what the check saw.
    array: FFI_ArrowDeviceArray,
    field: FieldRef,
    layout: Layout,
}

impl ImportedArray {
    /// Takes over `array`, an array of the type of `field`.
    ///
    /// Only host memory is read: the structs, and the lengths of the views' buffers (R35).
    ///
    /// # Errors
    /// `Invalid` if anything in the tree does not fit the type, `Unsupported` for a type that this crate does not know;
    /// `array` is then released (R47).
    ///
    /// # Safety
    /// - `array` follows the C Device data interface, as far as that cannot be checked: a pointer that is not null points to
    ///   what it should, a table has as many entries as its count says, and a buffer the bytes that its type needs.
    /// - Nothing of it changes until it is released.
    pub unsafe fn import(array: FFI_ArrowDeviceArray, field: &Field) -> Result<Self> {
        // SAFETY: as this function's own condition.
        unsafe { Self::import_ref(array, &Arc::new(field.clone())) }
    }

    /// Like [`import`](Self::import), for many arrays of one field.
    ///
    /// # Errors
    /// As [`import`](Self::import).
    ///
    /// # Safety
    /// As [`import`](Self::import).
    pub unsafe fn import_ref(array: FFI_ArrowDeviceArray, field: &FieldRef) -> Result<Self> {
        let path = Path::root(field);
        // SAFETY: as this function's own condition.
        unsafe { check(&array.array, &path)? };
        let layout = layout::layout(field.data_type()).map_err(|why| path.unsupported(why))?;
        Ok(Self { array, field: Arc::clone(field), layout })
    }

    /// Moves the array at `array` out of C (R40) and takes it over as [`import`](Self::import) does.
    ///
    /// # Errors
    /// As [`import`](Self::import); also if `array` is null. The struct that `array` points to is released or marked so in
    /// every case.
    ///
    /// # Safety
    /// - `array` is null, or points to an initialised struct that can be read and written.
    /// - What [`import`](Self::import) asks for.
    pub unsafe fn import_from_raw(array: *mut FFI_ArrowDeviceArray, field: &Field) -> Result<Self> {
        if array.is_null() {
            return Err(Error::Invalid("import of a device array: the pointer to it is null".into()));
        }
        // SAFETY: not null, so initialised and writable by this function's own condition.
        let array = unsafe { FFI_ArrowDeviceArray::from_raw(array) };
        // SAFETY: as this function's own condition.
        unsafe { Self::import(array, field) }
    }

    /// Says that the array's event has completed: from here on it has none, and its buffers may be read (R38).
    ///
    /// # Safety
    /// The event behind [`sync_event`](Self::sync_event), if there is one, has completed.
    pub unsafe fn assume_complete(mut self) -> Self {
        self.array.sync_event = std::ptr::null_mut();
        self
    }

    /// Gives the array back, for the next one who takes over: a move (R40).
    pub fn into_ffi(self) -> FFI_ArrowDeviceArray {
        self.array
    }

    /// The array as C sees it; whoever reads it must not release it or change it.
    pub fn as_ffi(&self) -> &FFI_ArrowDeviceArray {
        &self.array
    }

    /// The field that it was imported with.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The type that it was imported with.
    pub fn data_type(&self) -> &DataType {
        self.field.data_type()
    }

    /// The schema, if this is a record batch: a struct array, whose field's metadata is the schema's (R31).
    pub fn schema(&self) -> Option<Schema> {
        crate::schema::schema_of(&self.field)
    }

    /// The whole tree, from its root.
    pub fn view(&self) -> ArrayView<'_> {
        // SAFETY: the check accepted the tree for this type, and it is not changed while it is borrowed.
        unsafe { ArrayView::new(&self.array.array, self.field.data_type(), self.layout) }
    }

    /// How many elements there are; the rows of a record batch.
    // `is_empty` would say less than `len() == 0` where a length is also a size.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.array.array.len()
    }

    /// The kind of device that can access all buffers (R12). Unknown ones are kept as they are (R8).
    pub fn device_type(&self) -> ArrowDeviceType {
        self.array.device_type
    }

    /// Which of these devices; -1 where there are none to tell apart (R14).
    pub fn device_id(&self) -> i64 {
        self.array.device_id
    }

    /// Points to the native event that completes once the buffers are written, as R48 lists for each device type; null if
    /// nothing needs waiting for (R38). The event stays the producer's: neither destroy it nor keep it (R42).
    pub fn sync_event(&self) -> *mut c_void {
        self.array.sync_event
    }
}

impl std::fmt::Debug for ImportedArray {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportedArray")
            .field("field", &self.field)
            .field("len", &self.len())
            .field("device_type", &self.device_type())
            .field("device_id", &self.device_id())
            .field("sync_event", &self.sync_event())
            .finish()
    }
}
