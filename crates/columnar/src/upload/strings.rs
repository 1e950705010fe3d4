// SPDX-License-Identifier: Apache-2.0
//! Host strings and binary values to the layouts `Offsets32`, `Offsets64` and `Views`.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, ByteView, OffsetSizeTrait};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, ToByteSlice};
use device::Buffer;

use crate::Result;
use crate::host_arrays::{MAX_INLINE_VIEW_BYTES, is_utf8, view_string_bytes};
use crate::upload::chunks::ColumnChunks;
use crate::upload::transfer::{upload_buffer, upload_concatenated};

/// Heaps below this size are uploaded whole, without a check for unused bytes.
const MIN_SPARSE_HEAP_BYTES: usize = 1 << 16;

/// Uploads offsets and heap.
pub(crate) fn upload_offsets<O: OffsetSizeTrait>(chunks: &ColumnChunks<'_>) -> Result<Vec<Buffer>> {
    let (utf8, binary) = match O::IS_LARGE {
        true => (DataType::LargeUtf8, DataType::LargeBinary),
        false => {
            // Arrow's cast of views panics if the strings exceed 32-bit offsets.
            let bytes = chunks.arrays.iter().map(|array| view_string_bytes(array)).sum();
            if bytes > i32::MAX as usize {
                return Err(chunks.too_large("bytes of strings", bytes, i32::MAX as usize));
            }
            (DataType::Utf8, DataType::Binary)
        }
    };
    let data_type = if is_utf8(&chunks.ty.data_type) { utf8 } else { binary };
    let arrays = chunks.arrays.iter().map(|array| cast(array, &data_type)).collect::<Result<Vec<_>, _>>()?;
    let arrays: Vec<_> = arrays.iter().map(|array| OffsetArray::<O>::new(array)).collect();
    if let [array] = &arrays[..]
        && (array.first() == 0 || chunks.queue.context().info().unified_memory)
    {
        let heap = array.heap.slice_with_length(0, array.last());
        return Ok(vec![upload_buffer(chunks.queue, array.offsets.clone())?, upload_buffer(chunks.queue, heap)?]);
    }
    let total = arrays.iter().map(|array| array.last() - array.first()).sum();
    if O::from_usize(total).is_none() {
        return Err(chunks.too_large("bytes of strings", total, i32::MAX as usize));
    }
    let mut offsets = Vec::with_capacity(chunks.rows + 1);
    offsets.push(O::usize_as(0));
    let mut base = 0;
    for array in &arrays {
        let first = array.first();
        offsets.extend(array.offsets().iter().skip(1).map(|offset| O::usize_as(base + offset.as_usize() - first)));
        base += array.last() - first;
    }
    let heaps = arrays.iter().map(|array| array.heap.slice_with_length(array.first(), array.last() - array.first()));
    let offsets = upload_buffer(chunks.queue, HostBuffer::from_vec(offsets))?;
    Ok(vec![offsets, upload_concatenated(chunks.queue, &heaps.collect::<Vec<_>>())?])
}

/// Uploads views, heap and bases.
pub(crate) fn upload_views(chunks: &ColumnChunks<'_>) -> Result<Vec<Buffer>> {
    let data_type = if is_utf8(&chunks.ty.data_type) { DataType::Utf8View } else { DataType::BinaryView };
    let arrays = chunks.arrays.iter().map(|array| cast(array, &data_type)).collect::<Result<Vec<_>, _>>()?;
    let arrays: Vec<_> = arrays.iter().map(ViewArray::new).collect();

    // Slices of one batch share its buffers, so each distinct buffer is uploaded once.
    let (mut indices, mut heaps) = (HashMap::new(), Vec::new());
    let mut index_of = |heap: &HostBuffer| {
        *indices.entry((heap.as_ptr() as usize, heap.len())).or_insert_with(|| {
            heaps.push(heap.clone());
            heaps.len() as u32 - 1
        })
    };
    let maps: Vec<Vec<u32>> = arrays.iter().map(|array| array.heaps.iter().map(&mut index_of).collect()).collect();

    let unified = chunks.queue.context().info().unified_memory;
    let unchanged = matches!(&maps[..], [map] if map.iter().enumerate().all(|(old, &new)| old as u32 == new));
    let total: usize = heaps.iter().map(HostBuffer::len).sum();
    let zero_copy = unified && unchanged && heaps.len() <= 1;
    if !zero_copy && total >= MIN_SPARSE_HEAP_BYTES && arrays.iter().map(ViewArray::used_bytes).sum::<usize>() < total / 2 {
        return upload_compacted(chunks, &arrays);
    }
    let views = match &arrays[..] {
        [array] if unchanged => upload_buffer(chunks.queue, array.views.clone())?,
        _ => upload_renumbered(chunks, &arrays, &maps)?,
    };
    let ends = heaps.iter().scan(0, |end, heap| {
        *end += heap.len() as u64;
        Some(*end)
    });
    let mut bases: Vec<u64> = std::iter::once(0).chain(ends).collect();
    if bases.len() > 1 {
        bases.pop();
    }
    let heap = upload_concatenated(chunks.queue, &heaps)?;
    Ok(vec![views, heap, upload_buffer(chunks.queue, HostBuffer::from_vec(bases))?])
}

/// Uploads views with new buffer indices: `maps` has the new index of each heap of an array.
fn upload_renumbered(chunks: &ColumnChunks<'_>, arrays: &[ViewArray<'_>], maps: &[Vec<u32>]) -> Result<Buffer> {
    let buffer = chunks.queue.alloc_for_writes(chunks.rows * size_of::<u128>())?;
    let (mut offset, mut views) = (0, Vec::<u128>::new());
    for (array, map) in arrays.iter().zip(maps) {
        if map.iter().zip(0..).all(|(new, old)| *new == old) {
            chunks.queue.write(&buffer, offset, &array.views)?;
        } else {
            views.clear();
            views.extend(array.views().iter().map(|&raw| {
                let view = ByteView::from(raw);
                if view.length <= MAX_INLINE_VIEW_BYTES {
                    return raw;
                }
                // The buffer index of a view below a NULL may be out of range.
                let index = map.get(view.buffer_index as usize).copied().unwrap_or(0);
                view.with_buffer_index(index).as_u128()
            }));
            chunks.queue.write(&buffer, offset, views.to_byte_slice())?;
        }
        offset += array.views.len();
    }
    Ok(buffer)
}

/// Uploads views over a new heap that holds only the strings in use.
fn upload_compacted(chunks: &ColumnChunks<'_>, arrays: &[ViewArray<'_>]) -> Result<Vec<Buffer>> {
    let mut views: Vec<u128> = Vec::with_capacity(chunks.rows);
    let mut heap = MutableBuffer::with_capacity(arrays.iter().map(ViewArray::used_bytes).sum());
    let mut bases = vec![0u64];
    let mut base = 0;
    for array in arrays {
        let nulls = array.array.nulls();
        for (row, &raw) in array.views().iter().enumerate() {
            let view = ByteView::from(raw);
            if nulls.is_some_and(|nulls| nulls.is_null(row)) {
                views.push(0);
                continue;
            }
            let string = array.string(&view);
            if view.length <= MAX_INLINE_VIEW_BYTES || string.is_empty() {
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
        upload_buffer(chunks.queue, HostBuffer::from_vec(views))?,
        upload_buffer(chunks.queue, heap)?,
        upload_buffer(chunks.queue, HostBuffer::from_vec(bases))?,
    ])
}

/// Buffers of a string or binary array with offsets.
struct OffsetArray<O: OffsetSizeTrait> {
    /// One offset per value, plus one.
    offsets: HostBuffer,
    heap: HostBuffer,
    marker: std::marker::PhantomData<O>,
}

impl<O: OffsetSizeTrait> OffsetArray<O> {
    fn new(array: &dyn Array) -> Self {
        let data = array.to_data();
        let width = size_of::<O>();
        let (offsets, heap) = match data.buffers() {
            [offsets, heap] if offsets.len() > data.offset() * width => {
                (offsets.slice_with_length(data.offset() * width, (array.len() + 1) * width), heap.clone())
            }
            _ => (HostBuffer::from(O::usize_as(0).to_byte_slice()), HostBuffer::default()),
        };
        Self { offsets, heap, marker: std::marker::PhantomData }
    }

    fn offsets(&self) -> &[O] {
        self.offsets.typed_data()
    }

    fn first(&self) -> usize {
        self.offsets().first().map_or(0, |offset| offset.as_usize())
    }

    fn last(&self) -> usize {
        self.offsets().last().map_or(0, |offset| offset.as_usize())
    }
}

/// Buffers of a string or binary view array.
struct ViewArray<'a> {
    array: &'a dyn Array,
    views: HostBuffer,
    heaps: &'a [HostBuffer],
}

impl<'a> ViewArray<'a> {
    fn new(array: &'a ArrayRef) -> Self {
        let (views, heaps) = if is_utf8(array.data_type()) {
            let array = array.as_string_view();
            (array.views(), array.data_buffers())
        } else {
            let array = array.as_binary_view();
            (array.views(), array.data_buffers())
        };
        Self { array, views: views.inner().clone(), heaps }
    }

    fn views(&self) -> &[u128] {
        self.views.typed_data()
    }

    /// Length of all strings in the heaps. A string counts once for each of its views.
    fn used_bytes(&self) -> usize {
        let lengths = self.views().iter().map(|&view| view as u32);
        lengths.filter(|&len| len > MAX_INLINE_VIEW_BYTES).map(|len| len as usize).sum()
    }

    /// The string of a view that is not inline; empty for an invalid view below a NULL.
    fn string(&self, view: &ByteView) -> &[u8] {
        let (from, to) = (view.offset as usize, view.offset as usize + view.length as usize);
        self.heaps.get(view.buffer_index as usize).and_then(|heap| heap.get(from..to)).unwrap_or_default()
    }
}
