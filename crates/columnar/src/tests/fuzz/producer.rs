// SPDX-License-Identifier: Apache-2.0
//! A producer of C structs with the contents of its [`Schema`] and [`Node`]s, true or not.
//!
//! Every string, table and buffer is an allocation of its own and of its exact size, so
//! AddressSanitizer reports each read beyond. Every struct holds an [`Alive`] until its release.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_device::{ArrayView, BufferKind, metadata};

/// Counts the structs that are not released yet.
pub(super) type Alive = Arc<()>;

/// Limit of the tables that are as long as their counts say.
const MAX_TABLE: i64 = 64;

/// A pointer to a child or dictionary.
#[derive(Debug, Clone)]
pub(super) enum Slot<T> {
    To(Box<T>),
    Null,
    Misaligned,
}

impl<T> Slot<T> {
    pub(super) fn get_mut(&mut self) -> Option<&mut T> {
        match self {
            Slot::To(target) => Some(target),
            Slot::Null | Slot::Misaligned => None,
        }
    }
}

/// The contents of an `ArrowSchema`.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    pub format: Option<Vec<u8>>,
    pub name: Option<Vec<u8>>,
    pub metadata: Option<Vec<u8>>,
    pub flags: i64,
    pub n_children: i64,
    pub children: Vec<Slot<Schema>>,
    pub has_children: bool,
    pub dictionary: Slot<Schema>,
    pub is_released: bool,
}

/// The contents of an `ArrowArray`.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub length: i64,
    pub offset: i64,
    pub null_count: i64,
    pub n_buffers: i64,
    pub buffers: Vec<Option<Bytes>>,
    pub has_buffers: bool,
    pub n_children: i64,
    pub children: Vec<Slot<Node>>,
    pub has_children: bool,
    pub dictionary: Slot<Node>,
    pub is_released: bool,
}

/// The contents of a buffer, at an address that may be misaligned.
#[derive(Debug, Clone, Default)]
pub(super) struct Bytes {
    pub bytes: Vec<u8>,
    pub is_misaligned: bool,
}

impl Schema {
    /// The contents of a true schema.
    pub(super) fn of(schema: &FFI_ArrowSchema) -> Self {
        // SAFETY: a true schema has encoded metadata, or null.
        let pairs = unsafe { metadata::decode(schema.metadata) }.unwrap();
        // SAFETY: a true schema has strings, or null.
        let string = |string: *const c_char| (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_bytes().to_vec());
        Self {
            format: string(schema.format),
            name: string(schema.name),
            metadata: (!pairs.is_empty()).then(|| metadata::encode(pairs).unwrap()),
            flags: schema.flags,
            n_children: schema.n_children,
            children: schema.children().map(|child| Slot::To(Box::new(Self::of(child)))).collect(),
            has_children: !schema.children.is_null(),
            dictionary: schema.dictionary().map_or(Slot::Null, |values| Slot::To(Box::new(Self::of(values)))),
            is_released: false,
        }
    }

    /// Calls `f` for all schemas of the tree.
    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Schema)) {
        f(self);
        for slot in self.children.iter_mut().chain([&mut self.dictionary]) {
            if let Some(child) = slot.get_mut() {
                child.visit(f);
            }
        }
    }

    pub(super) fn export(&self, alive: &Alive) -> FFI_ArrowSchema {
        let mut held = Box::new(Held::new(alive));
        let string = |held: &mut Held<_>, string: &Option<Vec<u8>>| -> *const c_char {
            let terminated = string.as_ref().map(|string| {
                let text = string.iter().copied().take_while(|byte| *byte != 0);
                text.chain([0]).collect()
            });
            terminated.map_or(null(), |bytes| held.bytes(bytes).cast())
        };
        let format = string(&mut held, &self.format);
        let name = string(&mut held, &self.name);
        let metadata = self.metadata.as_ref().map_or(null(), |metadata| held.bytes(metadata.clone()).cast());
        let children = self.children.iter().map(|child| held.child(child, |child| child.export_child(alive))).collect();
        let children = held.table(children, self.n_children);
        let dictionary = held.child(&self.dictionary, |values| values.export_child(alive));
        FFI_ArrowSchema {
            format,
            name,
            metadata,
            flags: self.flags,
            n_children: self.n_children,
            children: if self.has_children { children } else { null_mut() },
            dictionary,
            release: Some(release_schema),
            private_data: Box::into_raw(held).cast(),
        }
    }

    fn export_child(&self, alive: &Alive) -> (FFI_ArrowSchema, Option<Held<FFI_ArrowSchema>>) {
        let mut schema = self.export(alive);
        if !self.is_released {
            return (schema, None);
        }
        schema.release = None;
        // SAFETY: boxed in `export`, and no release will take it.
        let held = unsafe { *Box::from_raw(schema.private_data.cast()) };
        (schema, Some(held))
    }
}

impl Node {
    /// The contents of a true array in host memory, with copies of its buffers.
    pub(super) fn of(view: &ArrayView<'_>) -> Self {
        let mut buffers: Vec<Option<Bytes>> = vec![];
        for buffer in view.buffers() {
            let len = buffer.len_bytes.unwrap_or_else(|| {
                let offsets = view.buffer(1).unwrap();
                let BufferKind::Offsets(width) = offsets.kind else { unreachable!() };
                let last = (view.len() + view.offset()) * width;
                integer(&buffers[1].as_ref().unwrap().bytes[last..last + width]) as usize
            });
            // SAFETY: host memory of a true array, of this length.
            let bytes = |len| unsafe { std::slice::from_raw_parts(buffer.ptr.cast::<u8>(), len) }.to_vec();
            let bytes = if len == 0 { vec![] } else { bytes(len) };
            buffers.push((!buffer.ptr.is_null()).then_some(Bytes { bytes, is_misaligned: false }));
        }
        let children: Vec<_> = view.children().map(|child| Slot::To(Box::new(Self::of(&child)))).collect();
        Self {
            length: view.len() as i64,
            offset: view.offset() as i64,
            null_count: view.null_count().map_or(-1, |count| count as i64),
            n_buffers: buffers.len() as i64,
            has_buffers: !buffers.is_empty(),
            buffers,
            n_children: children.len() as i64,
            has_children: !children.is_empty(),
            children,
            dictionary: view.dictionary().map_or(Slot::Null, |values| Slot::To(Box::new(Self::of(&values)))),
            is_released: false,
        }
    }

    /// Calls `f` for all nodes of the tree.
    pub(super) fn visit(&mut self, f: &mut dyn FnMut(&mut Node)) {
        f(self);
        for slot in self.children.iter_mut().chain([&mut self.dictionary]) {
            if let Some(child) = slot.get_mut() {
                child.visit(f);
            }
        }
    }

    pub(super) fn export(&self, alive: &Alive) -> FFI_ArrowArray {
        let mut held = Box::new(Held::new(alive));
        let buffers = self.buffers.iter().map(|buffer| match buffer {
            None => null(),
            Some(Bytes { bytes, is_misaligned: false }) => held.bytes(bytes.clone()).cast(),
            Some(Bytes { bytes, is_misaligned: true }) => {
                let start: *const u8 = held.bytes([&[0], &bytes[..]].concat());
                start.wrapping_add(1).cast::<c_void>()
            }
        });
        let buffers = as_long_as(self.n_buffers, buffers.collect(), null());
        let children = self.children.iter().map(|child| held.child(child, |child| child.export_child(alive))).collect();
        let children = held.table(children, self.n_children);
        let dictionary = held.child(&self.dictionary, |values| values.export_child(alive));
        held.buffers = buffers;
        FFI_ArrowArray {
            length: self.length,
            null_count: self.null_count,
            offset: self.offset,
            n_buffers: self.n_buffers,
            n_children: self.n_children,
            buffers: if self.has_buffers { held.buffers.as_mut_ptr() } else { null_mut() },
            children: if self.has_children { children } else { null_mut() },
            dictionary,
            release: Some(release_array),
            private_data: Box::into_raw(held).cast(),
        }
    }

    fn export_child(&self, alive: &Alive) -> (FFI_ArrowArray, Option<Held<FFI_ArrowArray>>) {
        let mut array = self.export(alive);
        if !self.is_released {
            return (array, None);
        }
        array.release = None;
        // SAFETY: boxed in `export`, and no release will take it.
        let held = unsafe { *Box::from_raw(array.private_data.cast()) };
        (array, Some(held))
    }
}

/// A little-endian integer with a sign.
pub(super) fn integer(bytes: &[u8]) -> i64 {
    match bytes.len() {
        4 => i64::from(i32::from_le_bytes(bytes.try_into().unwrap())),
        _ => i64::from_le_bytes(bytes.try_into().unwrap()),
    }
}

/// The memory and children that a struct owns: dropping a child's struct calls its release.
struct Held<T> {
    memory: Vec<Box<[u8]>>,
    buffers: Vec<*const c_void>,
    table: Vec<*mut T>,
    children: Vec<*mut T>,
    /// The memory and children that released children own.
    of_released: Vec<Held<T>>,
    _alive: Alive,
}

impl<T> Held<T> {
    fn new(alive: &Alive) -> Self {
        let _alive = Arc::clone(alive);
        Self { memory: vec![], buffers: vec![], table: vec![], children: vec![], of_released: vec![], _alive }
    }

    /// The address of bytes that are held from now on.
    fn bytes(&mut self, bytes: Vec<u8>) -> *const u8 {
        self.memory.push(bytes.into_boxed_slice());
        self.memory.last().map_or(null(), |bytes| bytes.as_ptr())
    }

    /// The address of a child that is held from now on.
    fn child<S>(&mut self, slot: &Slot<S>, export: impl FnOnce(&S) -> (T, Option<Held<T>>)) -> *mut T {
        match slot {
            Slot::Null => null_mut(),
            Slot::Misaligned => std::ptr::without_provenance_mut(9),
            Slot::To(child) => {
                let (child, held) = export(child);
                self.of_released.extend(held);
                let child = Box::into_raw(Box::new(child));
                self.children.push(child);
                child
            }
        }
    }

    /// The address of a table of children, which is held from now on.
    fn table(&mut self, children: Vec<*mut T>, count: i64) -> *mut *mut T {
        self.table = as_long_as(count, children, null_mut());
        self.table.as_mut_ptr()
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        for child in self.children.drain(..) {
            // SAFETY: boxed in `child`, dropped once.
            drop(unsafe { Box::from_raw(child) });
        }
    }
}

/// A table of exactly `count` entries, unless the count is absurd.
fn as_long_as<T: Copy>(count: i64, mut table: Vec<T>, filler: T) -> Vec<T> {
    if (0..=MAX_TABLE).contains(&count) {
        table.resize(count as usize, filler);
    }
    table.into_boxed_slice().into_vec()
}

unsafe extern "C" fn release_array(array: *mut FFI_ArrowArray) {
    // SAFETY: called once, with a struct of `Node::export`.
    unsafe {
        (*array).release = None;
        drop(Box::from_raw((*array).private_data.cast::<Held<FFI_ArrowArray>>()));
    }
}

unsafe extern "C" fn release_schema(schema: *mut FFI_ArrowSchema) {
    // SAFETY: called once, with a struct of `Schema::export`.
    unsafe {
        (*schema).release = None;
        drop(Box::from_raw((*schema).private_data.cast::<Held<FFI_ArrowSchema>>()));
    }
}
