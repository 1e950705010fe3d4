// SPDX-License-Identifier: Apache-2.0
//! A safe view of a validated array tree: all but the data buffers, which may be device memory.

use std::ffi::c_void;
use std::marker::PhantomData;

use arrow::datatypes::DataType;
use arrow::ffi::FFI_ArrowArray;

use super::check::buffer_at;
use crate::layout::{self, BufferKind, Layout};

/// One node of an imported array: its type, lengths and buffers, and its children.
///
/// [`ImportedArray::view`](crate::ImportedArray::view) makes it, so the node fits its type. Lengths
/// and offsets count elements. Buffer pointers do not include the offset.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int32Array};
/// use arrow_device::{BufferKind, ImportedArray, cpu};
///
/// let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
/// let field = cpu::field_of(&numbers);
/// // SAFETY: the array comes from this crate's export.
/// let imported = unsafe { ImportedArray::import(cpu::export_array(&numbers)?, &field)? };
///
/// let view = imported.view();
/// assert_eq!((view.len(), view.offset(), view.null_count()), (3, 0, Some(1)));
/// let values = view.buffer(1).ok_or("no values")?;
/// assert_eq!((values.kind, values.len_bytes), (BufferKind::Fixed(4), Some(12)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy)]
pub struct ArrayView<'a> {
    array: &'a FFI_ArrowArray,
    data_type: &'a DataType,
    layout: Layout,
}

/// One buffer of an array: its address and size.
#[derive(Debug, Clone, Copy)]
pub struct BufferView<'a> {
    /// The content of the buffer.
    pub kind: BufferKind,
    /// Its start: a device pointer, or a handle for device types that use handles (OpenCL's
    /// `cl_mem`).
    ///
    /// Host memory for [`BufferKind::VariadicLengths`]. May be null if nothing is to be read.
    pub ptr: *const c_void,
    /// The readable bytes, from length, offset and type; 0 for an empty array, and if `ptr` is
    /// null.
    ///
    /// `None` for [`BufferKind::Bytes`], whose size is the last offset: read it after the array's
    /// event.
    pub len_bytes: Option<usize>,
    lifetime: PhantomData<&'a FFI_ArrowArray>,
}

// SAFETY: a plain description of memory, which any thread may read.
unsafe impl Send for BufferView<'_> {}
// SAFETY: as above.
unsafe impl Sync for BufferView<'_> {}

impl<'a> ArrayView<'a> {
    /// # Safety
    /// `check` accepted the tree for this type, and nothing changes it during `'a`.
    pub(crate) unsafe fn new(array: &'a FFI_ArrowArray, data_type: &'a DataType, layout: Layout) -> Self {
        Self { array, data_type, layout }
    }

    /// The Arrow type.
    pub fn data_type(&self) -> &'a DataType {
        self.data_type
    }

    /// The number of elements.
    // `is_empty` would say less than `len() == 0` where a length is also a size.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.array.len()
    }

    /// The number of elements in the buffers before the first.
    pub fn offset(&self) -> usize {
        self.array.offset()
    }

    /// The nulls by this array's own validity; `None` if the producer did not count them (R28).
    ///
    /// Without a validity the count is known: all for `Null`, 0 otherwise. It does not include
    /// nulls in the children of unions, nor in the values of runs and dictionaries.
    pub fn null_count(&self) -> Option<usize> {
        match self.data_type {
            DataType::Null => Some(self.len()),
            _ if self.validity().is_none() => Some(0),
            _ => self.array.null_count_opt(),
        }
    }

    /// The validity bitmap; `None` if the type has none or the producer gave none.
    pub fn validity(&self) -> Option<BufferView<'a>> {
        if !self.layout.has_validity() {
            return None;
        }
        self.buffer(0).filter(|buffer| !buffer.ptr.is_null())
    }

    /// The number of buffers, including validity and variadic ones.
    pub fn num_buffers(&self) -> usize {
        self.array.num_buffers()
    }

    /// The buffer at `index` in C's order; the validity, for types that have one, is the first.
    pub fn buffer(&self, index: usize) -> Option<BufferView<'a>> {
        if index >= self.num_buffers() {
            return None;
        }
        let kinds = self.layout.kinds();
        let last = self.num_buffers() - 1;
        let kind = match kinds.get(index) {
            Some(kind) => *kind,
            None if index < last => BufferKind::Variadic,
            None => BufferKind::VariadicLengths,
        };
        let len_bytes = match kind {
            // No buffer of an empty array need be readable, not even the lengths of its variadic
            // ones (R46).
            _ if self.len() == 0 => Some(0),
            BufferKind::Variadic => Some(self.variadic_len(index - kinds.len(), last)),
            BufferKind::VariadicLengths => Some((last - kinds.len()) * size_of::<i64>()),
            // The check has refused sizes that overflow.
            kind => kind.byte_len(self.len() + self.offset()).unwrap_or_default(),
        };
        // SAFETY: the check saw a table of `n_buffers` entries.
        let ptr = unsafe { buffer_at(self.array, index) };
        let len_bytes = if ptr.is_null() { Some(0) } else { len_bytes };
        Some(BufferView { kind, ptr, len_bytes, lifetime: PhantomData })
    }

    /// All buffers in C's order.
    pub fn buffers(&self) -> impl ExactSizeIterator<Item = BufferView<'a>> + use<'a> {
        let view = *self;
        (0..self.num_buffers()).map(move |index| {
            // Never `None` within the count, so the default is unused.
            let none = BufferView { kind: BufferKind::Bytes, ptr: std::ptr::null(), len_bytes: None, lifetime: PhantomData };
            view.buffer(index).unwrap_or(none)
        })
    }

    /// The variadic buffers, which string or binary views point into; none for other types.
    pub fn variadic_buffers(&self) -> impl Iterator<Item = BufferView<'a>> + use<'a> {
        self.buffers().filter(|buffer| buffer.kind == BufferKind::Variadic)
    }

    fn variadic_len(&self, index: usize, lengths: usize) -> usize {
        // SAFETY: the check saw the table, and read these lengths from host memory (R35).
        let length = unsafe { buffer_at(self.array, lengths).cast::<i64>().add(index).read_unaligned() };
        usize::try_from(length).unwrap_or_default()
    }

    /// The number of children: the columns of a record batch, 1 for a list.
    pub fn num_children(&self) -> usize {
        self.array.num_children()
    }

    /// The child at `index`.
    pub fn child(&self, index: usize) -> Option<ArrayView<'a>> {
        let field = layout::child_field(self.data_type, index)?;
        // SAFETY: the check saw as many children as the type has, each at a valid address.
        let child = unsafe { &*self.array.children.add(index).read_unaligned() };
        let layout = layout::layout(field.data_type()).ok()?;
        // SAFETY: the check covered the children too.
        Some(unsafe { Self::new(child, field.data_type(), layout) })
    }

    /// All children.
    pub fn children(&self) -> impl Iterator<Item = ArrayView<'a>> + use<'a> {
        let view = *self;
        (0..self.num_children()).filter_map(move |index| view.child(index))
    }

    /// The values of a dictionary array; `None` for other types.
    pub fn dictionary(&self) -> Option<ArrayView<'a>> {
        let DataType::Dictionary(_, values) = self.data_type else { return None };
        // SAFETY: the check saw a dictionary at a valid address.
        let dictionary = unsafe { &*self.array.dictionary };
        let layout = layout::layout(values).ok()?;
        // SAFETY: the check covered the dictionary too.
        Some(unsafe { Self::new(dictionary, values, layout) })
    }
}

impl std::fmt::Debug for ArrayView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrayView")
            .field("data_type", self.data_type)
            .field("len", &self.len())
            .field("offset", &self.offset())
            .field("null_count", &self.null_count())
            .field("buffers", &self.num_buffers())
            .field("children", &self.num_children())
            .finish()
    }
}
