// SPDX-License-Identifier: Apache-2.0
//! The safe owner of an imported device array.

use std::ffi::c_void;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use super::check::check;
use super::export::ArrayExport;
use super::path::Path;
use super::view::ArrayView;
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::layout::{self, Layout};
use crate::{Error, Result};

/// A foreign array, validated against its type and released on drop (R39).
///
/// - Its buffers are memory of [`device_type`](Self::device_type) and may not be written yet: wait
///   on [`sync_event`](Self::sync_event) before reading them (R37).
/// - Keep it alive until the device work on them has completed (R43).
/// - Share it with an [`Arc`], or pass it on with [`into_ffi`](Self::into_ffi). It may drop on any
///   thread.
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
    // Never changed while owned here: views rely on the validation.
    array: FFI_ArrowDeviceArray,
    field: FieldRef,
    layout: Layout,
}

impl ImportedArray {
    /// Imports `array`, which has the type of `field`.
    ///
    /// Reads host memory only: the structs, and the lengths of variadic buffers (R35).
    ///
    /// # Errors
    /// `Invalid` if anything in the tree does not fit the type, `Unsupported` for a type unknown to
    /// this crate. Either releases `array` (R47).
    ///
    /// # Safety
    /// - `array` follows the C Device data interface in all that cannot be checked. Non-null
    ///   pointers are valid, and tables and buffers have the sizes that counts and types require.
    /// - It does not change before its release.
    pub unsafe fn import(array: FFI_ArrowDeviceArray, field: &Field) -> Result<Self> {
        // SAFETY: the caller upholds the contract.
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
        // SAFETY: the caller upholds the contract.
        unsafe { check(&array.array, &path)? };
        let layout = layout::layout(field.data_type()).map_err(|why| path.unsupported(why))?;
        Ok(Self { array, field: Arc::clone(field), layout })
    }

    /// Moves the array out of C memory (R40) and imports it as [`import`](Self::import) does.
    ///
    /// # Errors
    /// As [`import`](Self::import); also if `array` is null. In every case the struct at `array` is
    /// released, or flagged as released.
    ///
    /// # Safety
    /// - `array` is null, or points to an initialised, readable and writable struct.
    /// - The conditions of [`import`](Self::import) hold.
    pub unsafe fn import_from_raw(array: *mut FFI_ArrowDeviceArray, field: &Field) -> Result<Self> {
        if array.is_null() {
            return Err(Error::Invalid("import of a device array: the pointer to it is null".into()));
        }
        // SAFETY: not null, so initialised and writable by this function's contract.
        let array = unsafe { FFI_ArrowDeviceArray::from_raw(array) };
        // SAFETY: the caller upholds the contract.
        unsafe { Self::import(array, field) }
    }

    /// Declares the array's event complete: it has no event from now on, and its buffers are
    /// readable (R38).
    ///
    /// # Safety
    /// The event behind [`sync_event`](Self::sync_event), if any, has completed.
    pub unsafe fn assume_complete(mut self) -> Self {
        self.array.sync_event = std::ptr::null_mut();
        self
    }

    /// Exports the array once more, for another consumer. The export shares the memory and the
    /// event; both stay until the release of the last export.
    ///
    /// # Errors
    /// None for an array of this crate's import.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{ArrayRef, StringArray};
    /// use arrow_device::{ImportedArray, cpu};
    ///
    /// let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
    /// let field = cpu::field_of(&names);
    /// // SAFETY: the array comes from this crate's export.
    /// let first = Arc::new(unsafe { ImportedArray::import(cpu::export_array(&names)?, &field)? });
    /// // SAFETY: as above.
    /// let second = unsafe { ImportedArray::import(first.share()?, &field)? };
    /// drop(first);
    /// assert_eq!(&cpu::import_array(second)?, &names);
    /// # Ok::<(), arrow_device::Error>(())
    /// ```
    pub fn share(self: &Arc<Self>) -> Result<FFI_ArrowDeviceArray> {
        let export = shared(&self.view()).owner(Box::new(Arc::clone(self)));
        export.export(self.device_type(), self.device_id(), self.sync_event())
    }

    /// Returns the C struct for the next consumer: a move (R40).
    pub fn into_ffi(self) -> FFI_ArrowDeviceArray {
        self.array
    }

    /// The C struct, which the caller must neither release nor change.
    pub fn as_ffi(&self) -> &FFI_ArrowDeviceArray {
        &self.array
    }

    /// The field given at the import.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The type given at the import.
    pub fn data_type(&self) -> &DataType {
        self.field.data_type()
    }

    /// The schema, if this is a record batch: a struct array with the schema's metadata in its
    /// field (R31).
    pub fn schema(&self) -> Option<Schema> {
        crate::schema::schema_of(&self.field)
    }

    /// A view of the root of the tree.
    pub fn view(&self) -> ArrayView<'_> {
        // SAFETY: the check accepted the tree for this type; nothing changes it while borrowed.
        unsafe { ArrayView::new(&self.array.array, self.field.data_type(), self.layout) }
    }

    /// The number of elements; of rows for a record batch.
    // `is_empty` would say less than `len() == 0` where a length is also a size.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.array.array.len()
    }

    /// The kind of device that can access all buffers (R12). Unknown types are kept (R8).
    pub fn device_type(&self) -> ArrowDeviceType {
        self.array.device_type
    }

    /// The device's id; -1 for device types without ids (R14).
    pub fn device_id(&self) -> i64 {
        self.array.device_id
    }

    /// A pointer to the native event that completes once the buffers are written; null without one
    /// (R38).
    ///
    /// R48 lists the event of each device type. The event stays the producer's: neither destroy nor
    /// keep it (R42).
    pub fn sync_event(&self) -> *mut c_void {
        self.array.sync_event
    }
}

/// A node and its descendants, for an export.
fn shared(view: &ArrayView<'_>) -> ArrayExport {
    let buffers = view.buffers().map(|buffer| buffer.ptr).collect();
    let children = view.children().map(|child| shared(&child)).collect();
    let export = ArrayExport::new(view.len()).offset(view.offset()).null_count(view.null_count()).buffers(buffers);
    match view.dictionary() {
        Some(values) => export.children(children).dictionary(shared(&values)),
        None => export.children(children),
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
