// SPDX-License-Identifier: Apache-2.0
//! Giving away device arrays: from a description of the tree to a struct whose release callback frees all of it.

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

/// What keeps exported memory alive; shared, because a child that its consumer has moved out outlives its parent.
type Owner = Arc<dyn Any + Send + Sync>;

/// A device array to give away: one node of its tree.
///
/// Lengths and offsets count elements. The buffers are those of the C data interface in its order, validity first where
/// the type has one; they are device pointers, or handles where the device type has those.
///
/// [`owner`](Self::owner) keeps the memory alive. It drops when the consumer releases the array, on any thread and with
/// any or no context of the device current (R30), and it must not wait for the device there. A consumer may move children
/// out of the tree, so the root's owner drops after the last of its nodes was released.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow_device::ArrayExport;
/// use arrow_device::ffi::ArrowDeviceType;
///
/// // Stands for device memory and the event that completes once it is written.
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
    // None is -1.
    null_count: Option<usize>,
    buffers: Vec<*const c_void>,
    children: Vec<ArrayExport>,
    dictionary: Option<Box<ArrayExport>>,
    owner: Option<Owner>,
}

// SAFETY: the pointers are not followed here; the owner, which is what they point into, may be sent.
unsafe impl Send for ArrayExport {}
// SAFETY: as above; nothing changes through a shared reference.
unsafe impl Sync for ArrayExport {}

impl ArrayExport {
    /// A node of `len` elements, none of them null, without buffers.
    pub fn new(len: usize) -> Self {
        Self { len, null_count: Some(0), ..Self::default() }
    }

    /// A record batch: a struct array of these columns without offset or validity, which is what all consumers take (R33).
    ///
    /// # Errors
    /// `Invalid` if a column does not have `num_rows` elements.
    pub fn batch(num_rows: usize, columns: Vec<ArrayExport>) -> Result<Self> {
        if let Some((index, column)) = columns.iter().enumerate().find(|(_, column)| column.len != num_rows) {
            return Err(Error::Invalid(format!("export of column {index}: expected {num_rows} rows, got {}", column.len)));
        }
        Ok(Self::new(num_rows).buffers(vec![std::ptr::null()]).children(columns))
    }

    /// Sets how many elements are null. `None` leaves the counting to the consumer: only for those known to cope (R34).
    pub fn null_count(mut self, null_count: Option<usize>) -> Self {
        self.null_count = null_count;
        self
    }

    /// Sets how many elements of the buffers come before the first.
    pub fn offset(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Sets the buffers, in C's order; null for a validity where nothing is null.
    pub fn buffers(mut self, buffers: Vec<*const c_void>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Sets the children; of a struct, each has at least as many elements as the struct's length and offset.
    pub fn children(mut self, children: Vec<ArrayExport>) -> Self {
        self.children = children;
        self
    }

    /// Sets the values of a dictionary.
    pub fn dictionary(mut self, dictionary: ArrayExport) -> Self {
        self.dictionary = Some(Box::new(dictionary));
        self
    }

    /// Sets what keeps the buffers of this node alive, and those of the nodes below it; of the root, also the cell that
    /// holds the event (R16).
    pub fn owner(mut self, owner: Box<dyn Any + Send + Sync>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Makes the C struct: one device for the whole tree (R15), every field set (R36), `reserved` zero (R19).
    ///
    /// `device_id` is -1 where the type has no ids (R14). `sync_event` points to a cell that holds the native event (R24),
    /// kept alive by the root's owner; null if all buffers are complete (R21).
    ///
    /// # Errors
    /// `Invalid` if a length or count cannot be, or there is an event for a device type that has none (R22).
    pub fn export(self, device_type: ArrowDeviceType, device_id: i64, sync_event: *mut c_void) -> Result<FFI_ArrowDeviceArray> {
        if !sync_event.is_null() && !device_type.has_events() {
            return Err(Error::Invalid(format!("export to {device_type}: this device type has no events to wait on")));
        }
        let array = self.into_node(&[])?;
        Ok(FFI_ArrowDeviceArray { array, device_id, device_type, sync_event, reserved: [0; 3] })
    }

    /// Like [`export`](Self::export), and checks the tree against the type of `field` with the consumer's own checks: for
    /// descriptions that come from elsewhere, and for tests.
    ///
    /// # Errors
    /// As [`export`](Self::export), and all of [`ImportedArray::import`](crate::ImportedArray::import).
    ///
    /// # Safety
    /// The lengths of the buffers of views, where there are any, can be read.
    pub unsafe fn export_as(
        self,
        field: &Field,
        device_type: ArrowDeviceType,
        device_id: i64,
        sync_event: *mut c_void,
    ) -> Result<FFI_ArrowDeviceArray> {
        let array = self.export(device_type, device_id, sync_event)?;
        // SAFETY: the structs and tables were made above; the rest is this function's own condition.
        unsafe { check(&array.array, &Path::root(field))? };
        Ok(array)
    }

    /// Makes the C struct in memory of the consumer, which may be uninitialised: `out` is only written (R27).
    ///
    /// # Errors
    /// As [`export`](Self::export), and `Invalid` if `out` is null; nothing is written then.
    ///
    /// # Safety
    /// `out` is null or can be written.
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
        // SAFETY: not null, so writable by this function's own condition.
        unsafe { out.write(array) };
        Ok(())
    }

    /// Builds this node and those below; `above` are the owners of the nodes above.
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

        let private = Private::new(self.buffers, children, dictionary, owners);
        Ok(FFI_ArrowArray {
            length,
            null_count,
            offset,
            n_buffers: private.buffers.len() as i64,
            n_children: private.children.len() as i64,
            buffers: private.buffers.as_table(),
            children: private.children.as_table(),
            dictionary: private.dictionary,
            release: Some(release),
            private_data: Box::into_raw(Box::new(private)).cast(),
        })
    }
}

/// What an exported node owns. C reads and writes through the pointers into it, so they are raw from the start.
struct Private {
    buffers: Table<*const c_void>,
    children: Table<*mut FFI_ArrowArray>,
    dictionary: *mut FFI_ArrowArray,
    // Dropped last: the memory that the rest points to.
    _owners: Vec<Owner>,
}

impl Drop for Private {
    fn drop(&mut self) {
        let children = (0..self.children.len()).map(|index| self.children.get(index));
        for node in children.chain(std::iter::once(self.dictionary)).filter(|node| !node.is_null()) {
            // SAFETY: boxed in `new`, and dropped only here. The drop releases it, unless a consumer moved it out, which
            // leaves `release` null (R29).
            drop(unsafe { Box::from_raw(node) });
        }
    }
}

impl Private {
    fn new(
        buffers: Vec<*const c_void>,
        children: Vec<FFI_ArrowArray>,
        dictionary: Option<FFI_ArrowArray>,
        owners: Vec<Owner>,
    ) -> Self {
        let boxed = |node| Box::into_raw(Box::new(node));
        Self {
            buffers: Table::new(buffers),
            children: Table::new(children.into_iter().map(boxed).collect()),
            dictionary: dictionary.map_or(std::ptr::null_mut(), boxed),
            _owners: owners,
        }
    }
}

/// A table of pointers that C sees.
struct Table<T>(*mut [T]);

impl<T: Copy> Table<T> {
    fn new(entries: Vec<T>) -> Self {
        Self(Box::into_raw(entries.into_boxed_slice()))
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    /// The table for C; null if it is empty.
    fn as_table(&self) -> *mut T {
        if self.len() == 0 { std::ptr::null_mut() } else { self.0.cast() }
    }

    fn get(&self, index: usize) -> T {
        // SAFETY: boxed in `new`, alive until this drops; read through the same pointer that C may have written through.
        unsafe { (*self.0)[index] }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // SAFETY: boxed in `new`, and dropped only here.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// The release callback of every node: frees what `private_data` owns, whatever address the struct has now (R29).
unsafe extern "C" fn release(array: *mut FFI_ArrowArray) {
    // SAFETY: the caller owns the struct at `array`, if there is one.
    let Some(array) = (unsafe { array.as_mut() }) else { return };
    if array.release.take().is_none() {
        return;
    }
    let private = std::mem::replace(&mut array.private_data, std::ptr::null_mut()).cast::<Private>();
    // There is nobody to tell of a panic in an owner's drop; what it did not free is lost (R30).
    let _ = guard("release", || {
        // SAFETY: boxed in `into_node`; a struct is released once, because its `release` was just taken.
        drop(unsafe { Box::from_raw(private) });
        Ok(())
    });
}
