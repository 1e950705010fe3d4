// SPDX-License-Identifier: Apache-2.0
//! Strings and byte strings, from the host's forms to the three layouts.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, ByteView, OffsetSizeTrait};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, ToByteSlice};
use device::Buffer;

use crate::Result;
use crate::gather::{gather, place};
use crate::upload::Pieces;

/// Strings of up to this many bytes lie inside their view.
pub(crate) const INLINE: u32 = 12;
/// Heaps below this size are not worth a look for unused bytes.
const SPARSE_FROM_BYTES: usize = 1 << 16;

impl Pieces<'_> {
    /// Uploads offsets and heap.
    pub(crate) fn offsets<O: OffsetSizeTrait>(&self) -> Result<Vec<Buffer>> {
        if O::IS_LARGE {
            self.offsets_of::<O>(&DataType::LargeUtf8, &DataType::LargeBinary)
        } else {
            // Arrow's cast of views that are too long for 32 bits panics.
            let bytes = self.arrays.iter().map(|array| view_bytes(array)).sum();
            if bytes > i32::MAX as usize {
                return Err(self.too_large("bytes of strings", bytes, i32::MAX as usize));
            }
            self.offsets_of::<O>(&DataType::Utf8, &DataType::Binary)
        }
    }

    fn offsets_of<O: OffsetSizeTrait>(&self, text: &DataType, binary: &DataType) -> Result<Vec<Buffer>> {
        let form = if is_text(&self.ty.data_type) { text } else { binary };
        let arrays = self.arrays.iter().map(|array| cast(array, form)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<_> = arrays.iter().map(|array| OffsetParts::<O>::of(array)).collect();
        if let [part] = &parts[..]
            && (part.first() == 0 || self.queue.context().info().unified_memory)
        {
            let heap = part.heap.slice_with_length(0, part.last());
            return Ok(vec![place(self.queue, part.bytes.clone())?, place(self.queue, heap)?]);
        }
        let total = parts.iter().map(|part| part.last() - part.first()).sum();
        if O::from_usize(total).is_none() {
            return Err(self.too_large("bytes of strings", total, i32::MAX as usize));
        }
        let mut offsets = Vec::with_capacity(self.rows + 1);
        offsets.push(O::usize_as(0));
        let mut base = 0;
        for part in &parts {
            let first = part.first();
            offsets.extend(part.offsets().iter().skip(1).map(|offset| O::usize_as(base + offset.as_usize() - first)));
            base += part.last() - first;
        }
        let heaps = parts.iter().map(|part| part.heap.slice_with_length(part.first(), part.last() - part.first()));
        let offsets = place(self.queue, HostBuffer::from_vec(offsets))?;
        Ok(vec![offsets, gather(self.queue, &heaps.collect::<Vec<_>>())?])
    }

    /// Uploads views, heap and bases.
    pub(crate) fn views(&self) -> Result<Vec<Buffer>> {
        let form = if is_text(&self.ty.data_type) { DataType::Utf8View } else { DataType::BinaryView };
        let arrays = self.arrays.iter().map(|array| cast(array, &form)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<_> = arrays.iter().map(ViewParts::of).collect();

        // Batches cut from one share its buffers: each goes up once.
        let (mut numbers, mut heaps) = (HashMap::new(), Vec::new());
        let mut number = |heap: &HostBuffer| {
            *numbers.entry((heap.as_ptr() as usize, heap.len())).or_insert_with(|| {
                heaps.push(heap.clone());
                heaps.len() as u32 - 1
            })
        };
        let maps: Vec<Vec<u32>> = parts.iter().map(|part| part.heaps.iter().map(&mut number).collect()).collect();

        let unified = self.queue.context().info().unified_memory;
        let alone = matches!(&maps[..], [map] if map.iter().enumerate().all(|(index, &number)| index as u32 == number));
        let total: usize = heaps.iter().map(HostBuffer::len).sum();
        let in_place = unified && alone && heaps.len() <= 1;
        if !in_place && total >= SPARSE_FROM_BYTES && parts.iter().map(ViewParts::used_bytes).sum::<usize>() < total / 2 {
            return self.packed(&parts);
        }
        let views = match &parts[..] {
            [part] if alone => place(self.queue, part.bytes.clone())?,
            _ => self.renumbered(&parts, &maps)?,
        };
        let ends = heaps.iter().scan(0, |end, heap| {
            *end += heap.len() as u64;
            Some(*end)
        });
        let mut bases: Vec<u64> = std::iter::once(0).chain(ends).collect();
        if bases.len() > 1 {
            bases.pop();
        }
        Ok(vec![views, gather(self.queue, &heaps)?, place(self.queue, HostBuffer::from_vec(bases))?])
    }

    /// The views of all parts, whose heaps have the numbers of `maps`.
    fn renumbered(&self, parts: &[ViewParts<'_>], maps: &[Vec<u32>]) -> Result<Buffer> {
        let buffer = self.queue.alloc_for_writes(self.rows * size_of::<u128>())?;
        let (mut at, mut views) = (0, Vec::<u128>::new());
        for (part, map) in parts.iter().zip(maps) {
            if map.iter().zip(0..).all(|(number, index)| *number == index) {
                self.queue.write(&buffer, at, &part.bytes)?;
            } else {
                views.clear();
                views.extend(part.views().iter().map(|&raw| {
                    let view = ByteView::from(raw);
                    if view.length <= INLINE {
                        return raw;
                    }
                    // A view below a NULL may name any buffer.
                    let index = map.get(view.buffer_index as usize).copied().unwrap_or(0);
                    view.with_buffer_index(index).as_u128()
                }));
                self.queue.write(&buffer, at, views.to_byte_slice())?;
            }
            at += part.bytes.len();
        }
        Ok(buffer)
    }

    /// Views over a new heap that has nothing but their strings.
    fn packed(&self, parts: &[ViewParts<'_>]) -> Result<Vec<Buffer>> {
        let mut views: Vec<u128> = Vec::with_capacity(self.rows);
        let mut heap = MutableBuffer::with_capacity(parts.iter().map(ViewParts::used_bytes).sum());
        let mut bases = vec![0u64];
        let mut base = 0;
        for part in parts {
            let nulls = part.array.nulls();
            for (row, &raw) in part.views().iter().enumerate() {
                let view = ByteView::from(raw);
                if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                    views.push(0);
                    continue;
                }
                let string = part.string(&view);
                if view.length <= INLINE || string.is_empty() {
                    views.push(raw);
                    continue;
                }
                if heap.len() - base + string.len() > i32::MAX as usize {
                    base = heap.len();
                    bases.push(base as u64);
                }
                let (index, offset) = (bases.len() as u32 - 1, (heap.len() - base) as u32);
                views.push(ByteView { buffer_index: index, offset, ..view }.as_u128());
                heap.extend_from_slice(string);
            }
        }
        Ok(vec![
            place(self.queue, HostBuffer::from_vec(views))?,
            place(self.queue, heap)?,
            place(self.queue, HostBuffer::from_vec(bases))?,
        ])
    }
}

/// Whether the type holds UTF-8 rather than bytes.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Bytes of the strings behind an array of views, 0 for any other.
pub(crate) fn view_bytes(array: &ArrayRef) -> usize {
    match array.data_type() {
        DataType::Utf8View => array.as_string_view().lengths().map(|len| len as usize).sum(),
        DataType::BinaryView => array.as_binary_view().lengths().map(|len| len as usize).sum(),
        _ => 0,
    }
}

/// An array of offsets taken apart.
struct OffsetParts<O: OffsetSizeTrait> {
    /// The offsets, one more than values.
    bytes: HostBuffer,
    heap: HostBuffer,
    marker: std::marker::PhantomData<O>,
}

impl<O: OffsetSizeTrait> OffsetParts<O> {
    fn of(array: &dyn Array) -> Self {
        let data = array.to_data();
        let width = size_of::<O>();
        let (bytes, heap) = match data.buffers() {
            [offsets, heap] if offsets.len() > data.offset() * width => {
                (offsets.slice_with_length(data.offset() * width, (array.len() + 1) * width), heap.clone())
            }
            _ => (HostBuffer::from(O::usize_as(0).to_byte_slice()), HostBuffer::default()),
        };
        Self { bytes, heap, marker: std::marker::PhantomData }
    }

    fn offsets(&self) -> &[O] {
        self.bytes.typed_data()
    }

    fn first(&self) -> usize {
        self.offsets().first().map_or(0, |offset| offset.as_usize())
    }

    fn last(&self) -> usize {
        self.offsets().last().map_or(0, |offset| offset.as_usize())
    }
}

/// An array of views taken apart.
struct ViewParts<'a> {
    array: &'a dyn Array,
    bytes: HostBuffer,
    heaps: &'a [HostBuffer],
}

impl<'a> ViewParts<'a> {
    fn of(array: &'a ArrayRef) -> Self {
        let (views, heaps) = if is_text(array.data_type()) {
            let array = array.as_string_view();
            (array.views(), array.data_buffers())
        } else {
            let array = array.as_binary_view();
            (array.views(), array.data_buffers())
        };
        Self { array, bytes: views.inner().clone(), heaps }
    }

    fn views(&self) -> &[u128] {
        self.bytes.typed_data()
    }

    /// Bytes of the heaps that views point at; those that several point at count several times.
    fn used_bytes(&self) -> usize {
        let lengths = self.views().iter().map(|&view| view as u32);
        lengths.filter(|&len| len > INLINE).map(|len| len as usize).sum()
    }

    /// The string behind a view that is not inline; empty where a view below a NULL points nowhere.
    fn string(&self, view: &ByteView) -> &[u8] {
        let (from, to) = (view.offset as usize, view.offset as usize + view.length as usize);
        self.heaps.get(view.buffer_index as usize).and_then(|heap| heap.get(from..to)).unwrap_or_default()
    }
}
