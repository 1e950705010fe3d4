// SPDX-License-Identifier: Apache-2.0
//! Export of device arrays: builds a C struct, whose release callback frees the whole tree.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use arrow::datatypes::Field;
use arrow::ffi::FFI_ArrowArray;

use super::check::check;
use super::path::Path;
use crate::callback::guard;
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::{Error, Result};

/// Keeps exported memory alive. Shared, because a moved-out child outlives its parent.
type Owner = Arc<dyn Any + Send + Sync>;

/// A device array to export: one node of its tree.
///
/// Lengths and offsets count elements. The buffers are those of the C data interface, in its order,
/// with the validity first for types that have one. They are device pointers, or handles for device
/// types that use handles.
///
/// [`owner`](Self::owner) keeps the memory alive. It drops when the consumer releases the array:
/// - on any thread, with any or no context of the device current (R30)
/// - without waiting for the device, which the owner's `drop` must not do
/// - after the release of all its nodes: a consumer may move children out of the tree
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow_device::ArrayExport;
/// use arrow_device::ffi::ArrowDeviceType;
///
/// // Stands for device memory and the event that signals its completion.
/// let memory = Arc::new(([1i32, 2, 3, 4], Box::new(7u64)));
/// let values = memory.0.as_ptr().cast();
/// let event = (&raw const *memory.1).cast_mut().cast();
///
/// let array = ArrayExport::new(4)
///     .buffers(vec![std::ptr::null(), values])
///     .owner(Box::new(memory))
///     .export(ArrowDeviceType::CUDA, 0, event)?;
/// assert_eq!((array.array.length, array.array.null_count), (4, 0));
/// # Ok::<(), arrow_device::Error>(())
/// ```
#[derive(Default)]
pub struct ArrayExport {
    len: usize,
    offset: usize,
    // `None` is -1.
    null_count: Option<usize>,
    buffers: Vec<*const c_void>,
    children: Vec<ArrayExport>,
    dictionary: Option<Box<ArrayExport>>,
    owner: Option<Owner>,
}

// SAFETY: the pointers are never dereferenced here; the owner, which holds their memory, is `Send`.
unsafe impl Send for ArrayExport {}
// SAFETY: as above; a shared reference allows no mutation.
unsafe impl Sync for ArrayExport {}

impl ArrayExport {
    /// A node of `len` elements without nulls or buffers.
    pub fn new(len: usize) -> Self {
        Self { len, null_count: Some(0), ..Self::default() }
    }

    /// A record batch: a struct array without offset or validity, which every consumer accepts
    /// (R33).
    ///
    /// # Errors
    /// `Invalid` if a column does not have `num_rows` elements.
    pub fn batch(num_rows: usize, columns: Vec<ArrayExport>) -> Result<Self> {
        if let Some((index, column)) = columns.iter().enumerate().find(|(_, column)| column.len != num_rows) {
            return Err(Error::Invalid(format!("export of column {index}: expected {num_rows} rows, got {}", column.len)));
        }
        Ok(Self::new(num_rows).buffers(vec![std::ptr::null()]).children(columns))
    }

    /// Sets the number of nulls. `None` makes the consumer count them, which not every consumer can
    /// (R34).
    pub fn null_count(mut self, null_count: Option<usize>) -> Self {
        self.null_count = null_count;
        self
    }

    /// Sets the number of elements in the buffers before the first.
    pub fn offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the buffers, in C's order. The validity may be null if no element is null.
    pub fn buffers(mut self, buffers: Vec<*const c_void>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Sets the children; those of a struct have at least offset plus length elements.
    pub fn children(mut self, children: Vec<ArrayExport>) -> Self {
        self.children = children;
        self
    }

    /// Sets the values of a dictionary array.
    pub fn dictionary(mut self, dictionary: ArrayExport) -> Self {
        self.dictionary = Some(Box::new(dictionary));
        self
    }

    /// Sets the owner of this node's buffers and those of its descendants. The root's owner also
    /// holds the event's cell (R16).
    pub fn owner(mut self, owner: Box<dyn Any + Send + Sync>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Builds the C struct: one device for the whole tree (R15), every field set (R36), `reserved`
    /// zero (R19).
    ///
    /// - `device_id` is -1 for device types without ids (R14).
    /// - `sync_event` points to a cell with the native event (R24), which the root's owner keeps
    ///   alive. It is null if all buffers are complete (R21).
    ///
    /// # Errors
    /// `Invalid` for an impossible length or count, or an event on a device type without events
    /// (R22).
    pub fn export(self, device_type: ArrowDeviceType, device_id: i64, sync_event: *mut c_void) -> Result<FFI_ArrowDeviceArray> {
        if !sync_event.is_null() && !device_type.has_events() {
            return Err(Error::Invalid(format!("export to {device_type}: this device type has no events to wait on")));
        }
        let array = self.into_node(&[])?;
        Ok(FFI_ArrowDeviceArray { array, device_id, device_type, sync_event, reserved: [0; 3] })
    }

    /// Like [`export`](Self::export), with the consumer's checks of the tree against the type of
    /// `field`.
    ///
    /// Meant for descriptions from other code, and for tests.
    ///
    /// # Errors
    /// As [`export`](Self::export), and all of
    /// [`ImportedArray::import`](crate::ImportedArray::import).
    ///
    /// # Safety
    /// The lengths of variadic buffers, if the tree has any, are readable.
    pub unsafe fn export_as(
        self,
        field: &Field,
        device_type: ArrowDeviceType,
        device_id: i64,
        sync_event: *mut c_void,
    ) -> Result<FFI_ArrowDeviceArray> {
        let array = self.export(device_type, device_id, sync_event)?;
        // SAFETY: the structs and tables were built above; the rest is this function's contract.
        unsafe { check(&array.array, &Path::root(field))? };
        Ok(array)
    }

    /// Builds the C struct in the consumer's memory, which may be uninitialised: `out` is only
    /// written (R27).
    ///
    /// # Errors
    /// As [`export`](Self::export); also `Invalid` if `out` is null. Nothing is written on an
    /// error.
    ///
    /// # Safety
    /// `out` is null or writable.
    pub unsafe fn export_into(
        self,
        device_type: ArrowDeviceType,
        device_id: i64,
        sync_event: *mut c_void,
        out: *mut FFI_ArrowDeviceArray,
    ) -> Result<()> {
        if out.is_null() {
            return Err(Error::Invalid("export of a device array: the output is null".into()));
        }
        let array = self.export(device_type, device_id, sync_event)?;
        // SAFETY: not null, so writable by this function's contract.
        unsafe { out.write(array) };
        Ok(())
    }

    /// Builds this node and its descendants; `above` are the owners of its ancestors.
    fn into_node(self, above: &[Owner]) -> Result<FFI_ArrowArray> {
        let (length, offset) = match (i64::try_from(self.len), i64::try_from(self.offset)) {
            (Ok(len), Ok(offset)) if len.checked_add(offset).is_some() => (len, offset),
            _ => return Err(Error::Invalid(format!("export: length {} and offset {} overflow", self.len, self.offset))),
        };
        let null_count = match self.null_count {
            Some(count) if count > self.len => {
                return Err(Error::Invalid(format!("export: {count} of {} elements cannot be null", self.len)));
            }
            Some(count) => i64::try_from(count).unwrap_or(-1),
            None => -1,
        };
        let owners: Vec<Owner> = above.iter().cloned().chain(self.owner).collect();
        let node = |node: ArrayExport| node.into_node(&owners);
        let children = self.children.into_iter().map(node).collect::<Result<Vec<_>>>()?;
        let dictionary = self.dictionary.map(|values| node(*values)).transpose()?;

        let node = ExportedNode::new(self.buffers, children, dictionary, owners);
        Ok(FFI_ArrowArray {
            length,
            null_count,
            offset,
            n_buffers: node.buffers.len() as i64,
            n_children: node.children.len() as i64,
            buffers: node.buffers.as_table(),
            children: node.children.as_table(),
            dictionary: node.dictionary,
            release: Some(release),
            private_data: Box::into_raw(Box::new(node)).cast(),
        })
    }
}

/// The private data of an exported node. C accesses its tables, so their pointers are raw.
struct ExportedNode {
    buffers: PointerTable<*const c_void>,
    children: PointerTable<*mut FFI_ArrowArray>,
    dictionary: *mut FFI_ArrowArray,
    // Dropped last: the memory behind the pointers.
    _owners: Vec<Owner>,
}

impl Drop for ExportedNode {
    fn drop(&mut self) {
        let children = (0..self.children.len()).map(|index| self.children.get(index));
        for node in children.chain(std::iter::once(self.dictionary)).filter(|node| !node.is_null()) {
            // SAFETY: boxed in `new`, and dropped only here. The drop releases the node, unless a
            // consumer moved it out and left `release` null (R29).
            drop(unsafe { Box::from_raw(node) });
        }
    }
}

impl ExportedNode {
    fn new(
        buffers: Vec<*const c_void>,
        children: Vec<FFI_ArrowArray>,
        dictionary: Option<FFI_ArrowArray>,
        owners: Vec<Owner>,
    ) -> Self {
        let boxed = |node| Box::into_raw(Box::new(node));
        Self {
            buffers: PointerTable::new(buffers),
            children: PointerTable::new(children.into_iter().map(boxed).collect()),
            dictionary: dictionary.map_or(std::ptr::null_mut(), boxed),
            _owners: owners,
        }
    }
}

/// A pointer table that C accesses.
struct PointerTable<T>(*mut [T]);

impl<T: Copy> PointerTable<T> {
    fn new(entries: Vec<T>) -> Self {
        Self(Box::into_raw(entries.into_boxed_slice()))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// The table's address for C; null if it is empty.
    fn as_table(&self) -> *mut T {
        if self.len() == 0 { std::ptr::null_mut() } else { self.0.cast() }
    }

    fn get(&self, index: usize) -> T {
        // SAFETY: boxed in `new` and still alive; this reads through the same pointer as C.
        unsafe { (*self.0)[index] }
    }
}

impl<T> Drop for PointerTable<T> {
    fn drop(&mut self) {
        // SAFETY: boxed in `new`, and dropped only here.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// The release callback of every node: frees `private_data`, wherever the struct was moved (R29).
unsafe extern "C" fn release(array: *mut FFI_ArrowArray) {
    // SAFETY: null, or a struct that the caller owns.
    let Some(array) = (unsafe { array.as_mut() }) else { return };
    if array.release.take().is_none() {
        return;
    }
    let node = std::mem::replace(&mut array.private_data, std::ptr::null_mut()).cast::<ExportedNode>();
    // C takes no error from a release: a panic in an owner's drop leaks the rest (R30).
    let _ = guard("release", || {
        // SAFETY: boxed in `into_node`; only the first release reaches this, because it took
        // `release`.
        drop(unsafe { Box::from_raw(node) });
        Ok(())
    });
}
