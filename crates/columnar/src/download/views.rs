// SPDX-License-Identifier: Apache-2.0
//! Views, heap and bases to string or binary arrays of any Arrow layout.

use std::ops::Range;

use arrow::array::{ArrayRef, ByteView};
use arrow::buffer::{Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::compute::cast;
use arrow::datatypes::{ArrowNativeType, DataType};
use device::Buffer;
use futures::future::try_join_all;

use crate::Result;
use crate::download::reader::{ColumnReader, MAX_READS};
use crate::host_arrays::{MAX_INLINE_VIEW_BYTES, is_utf8, view_string_bytes};
use crate::narrow::aligned;

impl ColumnReader {
    /// The array of the logical type, with one data buffer for each base.
    pub(crate) fn decode_views(
        &self,
        views: HostBuffer,
        heap: &HostBuffer,
        bases: &HostBuffer,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        let bases = aligned(bases, 8);
        let starts: Vec<usize> = bases.typed_data::<u64>().iter().map(|base| base.as_usize()).collect();
        let mut buffers = Vec::with_capacity(starts.len() + 1);
        buffers.push(views);
        for (index, &start) in starts.iter().enumerate() {
            let end = starts.get(index + 1).copied().unwrap_or(heap.len());
            if start > end || end > heap.len() {
                return self.malformed(format_args!("heap of {} bytes, but a base of {start}", heap.len()));
            }
            buffers.push(heap.slice_with_length(start, end - start));
        }
        let view_type = if is_utf8(self.data_type()) { DataType::Utf8View } else { DataType::BinaryView };
        let array = self.array(&view_type, buffers.clone(), nulls.clone(), None).or_else(|error| match &nulls {
            // Views below NULLs are undefined on the device, but Arrow validates them too.
            Some(valid) => {
                let views = aligned(&buffers[0], 16);
                let views = views.typed_data::<u128>().iter().zip(valid.iter());
                let views: Vec<u128> = views.map(|(&view, valid)| if valid { view } else { 0 }).collect();
                buffers[0] = HostBuffer::from_vec(views);
                self.array(&view_type, buffers, nulls, None)
            }
            None => Err(error),
        })?;
        if *self.data_type() == view_type {
            return Ok(array);
        }
        let bytes = view_string_bytes(&array);
        if matches!(self.data_type(), DataType::Utf8 | DataType::Binary) && bytes > i32::MAX as usize {
            return Err(self.too_large("bytes of strings", bytes, i32::MAX as usize));
        }
        Ok(cast(&array, self.data_type())?)
    }

    /// Reads the parts of a heap that views use, and redirects the views to the compacted heap.
    ///
    /// Small gaps between the parts are read too. Returns views, heap and bases.
    pub(crate) async fn read_used_heap(
        &self,
        views: HostBuffer,
        heap: &Buffer,
        bases: HostBuffer,
        nulls: Option<&NullBuffer>,
    ) -> Result<(HostBuffer, HostBuffer, HostBuffer)> {
        let views = aligned(&views, 16);
        let starts = aligned(&bases, 8);
        let heap_range = |view: &ByteView| {
            let base = starts.typed_data::<u64>().get(view.buffer_index as usize)?;
            let from = base.checked_add(view.offset.into())?.to_usize()?;
            Some(from..from.checked_add(view.length as usize)?)
        };
        let used_range = |(row, &raw): (usize, &u128)| {
            let view = ByteView::from(raw);
            let in_heap = view.length > MAX_INLINE_VIEW_BYTES && nulls.is_none_or(|nulls| nulls.is_valid(row));
            in_heap.then(|| heap_range(&view)).flatten().filter(|range| range.end <= heap.len())
        };
        let all = views.typed_data::<u128>();
        let mut ranges: Vec<_> = all.iter().enumerate().filter_map(used_range).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let min_gap = heap.len() / MAX_READS;
        ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end.saturating_add(min_gap);
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
        let total: usize = ranges.iter().map(Range::len).sum();
        if total > heap.len() / 2 || total > i32::MAX as usize {
            let heap = self.read(heap, 0..heap.len()).await?;
            return Ok((views, heap, bases));
        }
        let parts = try_join_all(ranges.iter().map(|range| self.read(heap, range.clone()))).await?;
        let mut compacted = MutableBuffer::with_capacity(total);
        let mut starts = Vec::with_capacity(ranges.len());
        for part in &parts {
            starts.push(compacted.len());
            compacted.extend_from_slice(part);
        }
        let redirected = all.iter().enumerate().map(|(row, &raw)| {
            let Some(range) = used_range((row, &raw)) else { return raw };
            let part = ranges.partition_point(|part| part.start <= range.start) - 1;
            let offset = (starts[part] + range.start - ranges[part].start) as u32;
            ByteView::from(raw).with_buffer_index(0).with_offset(offset).as_u128()
        });
        Ok((HostBuffer::from_vec(redirected.collect::<Vec<_>>()), compacted.into(), HostBuffer::from_vec(vec![0u64])))
    }
}
