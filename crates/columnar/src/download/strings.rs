// SPDX-License-Identifier: Apache-2.0
//! Offsets and heap to string or binary arrays of any Arrow layout.

use arrow::array::{ArrayRef, ByteView, OffsetSizeTrait, make_view};
use arrow::buffer::{Buffer as HostBuffer, NullBuffer};
use arrow::datatypes::DataType;
use device::Buffer;

use crate::Result;
use crate::download::reader::{ColumnReader, PendingBuffer};
use crate::host_arrays::MAX_INLINE_VIEW_BYTES;
use crate::narrow::aligned;

/// A heap with a started read, or one that waits for its offsets.
pub(crate) enum Heap {
    Pending(PendingBuffer),
    Deferred(Buffer),
}

/// Strings of a column: offsets from 0 on, into a heap without other bytes.
pub(crate) struct OffsetStrings<O> {
    offsets: Vec<O>,
    heap: HostBuffer,
}

impl ColumnReader {
    /// Starts the read of the offsets, and of the heap if all of it is needed.
    pub(crate) fn offsets_and_heap(&self, offsets: &Buffer, heap: &Buffer, width: usize) -> (PendingBuffer, Heap) {
        let all = self.column.offset() == 0 && offsets.len() == (self.column.len() + 1) * width;
        let heap = match all || self.reads_whole(heap) {
            true => Heap::Pending(self.read(heap, 0..heap.len())),
            false => Heap::Deferred(heap.clone()),
        };
        (self.values(offsets, width, 1), heap)
    }

    /// Reads the strings that `offsets` delimit.
    pub(crate) async fn strings<O: OffsetSizeTrait>(&self, offsets: HostBuffer, heap: Heap) -> Result<OffsetStrings<O>> {
        let offsets = aligned(&offsets, size_of::<O>());
        let offsets = offsets.typed_data::<O>();
        let (first, last) = match (offsets.first(), offsets.last()) {
            (Some(first), Some(last)) => (first.to_usize().unwrap_or(usize::MAX), last.to_usize().unwrap_or(0)),
            _ => (0, 0),
        };
        let checked_len = |heap_bytes: usize| match first <= last && last <= heap_bytes {
            true => Ok(last - first),
            false => self.malformed(format_args!("offsets {first} to {last} into {heap_bytes} bytes")),
        };
        let heap = match heap {
            Heap::Pending(heap) => {
                let heap = heap.await?;
                heap.slice_with_length(first, checked_len(heap.len())?)
            }
            Heap::Deferred(heap) => {
                checked_len(heap.len())?;
                self.read(&heap, first..last).await?
            }
        };
        let base = O::usize_as(first);
        Ok(OffsetStrings { offsets: offsets.iter().map(|&offset| offset - base).collect(), heap })
    }

    /// The array of the logical type.
    pub(crate) fn decode_strings<O: OffsetSizeTrait>(
        &self,
        strings: OffsetStrings<O>,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        let OffsetStrings { offsets, heap } = strings;
        match self.data_type() {
            DataType::LargeUtf8 | DataType::LargeBinary => self.build(vec![cast_offsets::<O, i64>(offsets), heap], nulls),
            DataType::Utf8 | DataType::Binary if heap.len() > i32::MAX as usize => {
                Err(self.too_large("bytes of strings", heap.len(), i32::MAX as usize))
            }
            DataType::Utf8 | DataType::Binary => self.build(vec![cast_offsets::<O, i32>(offsets), heap], nulls),
            DataType::Utf8View | DataType::BinaryView => {
                let (views, heaps) = views_over(&offsets, &heap, nulls.as_ref());
                self.build(std::iter::once(views).chain(heaps).collect(), nulls)
            }
            _ => self.malformed("carried as strings"),
        }
    }
}

/// Converts offsets, which fit in `To`.
fn cast_offsets<From: OffsetSizeTrait, To: OffsetSizeTrait>(offsets: Vec<From>) -> HostBuffer {
    if From::IS_LARGE == To::IS_LARGE {
        return HostBuffer::from_vec(offsets);
    }
    HostBuffer::from_vec(offsets.into_iter().map(|offset| To::usize_as(offset.as_usize())).collect::<Vec<To>>())
}

/// Views over the strings of a heap, which is split so that 32-bit offsets suffice.
fn views_over<O: OffsetSizeTrait>(offsets: &[O], heap: &HostBuffer, nulls: Option<&NullBuffer>) -> (HostBuffer, Vec<HostBuffer>) {
    let (mut views, mut splits, mut start) = (Vec::with_capacity(offsets.len()), vec![], 0);
    for (row, pair) in offsets.windows(2).enumerate() {
        let (from, to) = (pair[0].as_usize(), pair[1].as_usize());
        let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
        match heap.get(from..to).filter(|_| valid) {
            Some(string) => {
                if to - start > i32::MAX as usize {
                    splits.push(start..from);
                    start = from;
                }
                views.push(make_view(string, splits.len() as u32, (from - start) as u32));
            }
            None => views.push(0),
        }
    }
    splits.push(start..heap.len());
    let heaps = splits.into_iter().map(|range| heap.slice_with_length(range.start, range.len()));
    let needed = views.iter().any(|&view| ByteView::from(view).length > MAX_INLINE_VIEW_BYTES);
    (HostBuffer::from_vec(views), if needed { heaps.collect() } else { vec![] })
}
