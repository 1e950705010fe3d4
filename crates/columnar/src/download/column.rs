// SPDX-License-Identifier: Apache-2.0
//! Download of one column by its layout.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, NullArray, OffsetSizeTrait, new_empty_array};
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer, NullBuffer};
use arrow::compute::concat;
use arrow::datatypes::DataType;
use device::Queue;
use futures::future::{BoxFuture, FutureExt, OptionFuture, ready, try_join_all};
use futures::try_join;

use crate::download::dictionary;
use crate::download::reader::{ColumnReader, MAX_READS, PendingBuffer, PendingNulls};
use crate::download::spans::ListSpans;
use crate::download::strings::Heap;
use crate::host_arrays::copied_bytes;
use crate::narrow::aligned;
use crate::{ColumnType, DeviceColumn, Layout, Result};

/// Downloads one column as an array of its logical type. `name` is for errors.
pub(crate) fn download_column(queue: &Queue, name: &str, column: &DeviceColumn) -> BoxFuture<'static, Result<ArrayRef>> {
    download_column_within(queue, name, column, usize::MAX)
}

/// As [`download_column`]. Fails with `TooLarge` if elements of lists or dictionary values, shared
/// by rows on the device, need more than `max_copied_bytes` of copies.
pub(crate) fn download_column_within(
    queue: &Queue,
    name: &str,
    column: &DeviceColumn,
    max_copied_bytes: usize,
) -> BoxFuture<'static, Result<ArrayRef>> {
    if column.is_empty() {
        return ready(Ok(new_empty_array(&column.ty().data_type))).boxed();
    }
    match (&column.ty().data_type, &column.ty().layout) {
        (DataType::Dictionary(_, values), layout) if !matches!(layout, Layout::Dictionary { .. }) => {
            download_and_encode(queue, name, column, values, max_copied_bytes)
        }
        _ => {
            let (queue, name, column) = (queue.clone(), name.to_owned(), column.clone());
            download_layout(ColumnReader { queue, name, column, max_copied_bytes })
        }
    }
}

/// Downloads plain values, and encodes them on the host. Kernels compute plain values, also for a
/// dictionary type with `values`.
fn download_and_encode(
    queue: &Queue,
    name: &str,
    column: &DeviceColumn,
    values: &DataType,
    max_copied_bytes: usize,
) -> BoxFuture<'static, Result<ArrayRef>> {
    let plain = ColumnType { data_type: values.clone(), ..column.ty().as_ref().clone() };
    let to = column.ty().data_type.clone();
    match column.with_type(Arc::new(plain), column.validity().map(|(buffer, _)| buffer.clone())) {
        Ok(plain) => {
            let plain = download_column_within(queue, name, &plain, max_copied_bytes);
            async move { dictionary::encode(&plain.await?, &to) }.boxed()
        }
        Err(error) => ready(Err(error)).boxed(),
    }
}

/// Starts the reads of a column's buffers, and decodes them by its layout.
fn download_layout(reader: ColumnReader) -> BoxFuture<'static, Result<ArrayRef>> {
    let nulls = reader.nulls();
    match (&reader.column.ty().layout, reader.column.buffers()) {
        (Layout::Null, _) => ready(Ok(Arc::new(NullArray::new(reader.column.len())) as ArrayRef)).boxed(),
        (Layout::Bits, [bits]) => {
            let (bits, offset) = reader.bits(bits, reader.column.offset());
            async move {
                let bits = BooleanBuffer::new(bits.await?, offset, reader.column.len());
                Ok(Arc::new(BooleanArray::new(bits, nulls.await?)) as ArrayRef)
            }
            .boxed()
        }
        (&Layout::Fixed(carrier), [values]) => {
            let values = reader.values(values, carrier.width(), 0);
            async move { reader.decode_fixed(carrier, values.await?, nulls.await?) }.boxed()
        }
        (&Layout::Bytes(width), [values]) => {
            let values = reader.values(values, width as usize, 0);
            async move { reader.build(vec![values.await?], nulls.await?) }.boxed()
        }
        (Layout::Offsets32, [offsets, heap]) => {
            let (offsets, heap) = reader.offsets_and_heap(offsets, heap, 4);
            download_strings::<i32>(reader, offsets, heap, nulls).boxed()
        }
        (Layout::Offsets64, [offsets, heap]) => {
            let (offsets, heap) = reader.offsets_and_heap(offsets, heap, 8);
            download_strings::<i64>(reader, offsets, heap, nulls).boxed()
        }
        (Layout::Views, [views, heap, bases]) => {
            let views = reader.values(views, 16, 0);
            let bases = reader.read(bases, 0..bases.len());
            let heap = match reader.reads_whole(heap) {
                true => Heap::Pending(reader.read(heap, 0..heap.len())),
                false => Heap::Deferred(heap.clone()),
            };
            download_views(reader, views, heap, bases, nulls).boxed()
        }
        (&Layout::Dictionary { codes: carrier, .. }, [codes]) => {
            let codes = reader.values(codes, carrier.width(), 0);
            let values = reader.column.dictionary().map(|values| download_column(&reader.queue, &reader.name, values));
            async move {
                let values = OptionFuture::from(values).await.unwrap_or_else(|| reader.malformed("codes without a dictionary"));
                reader.decode_codes(carrier, codes.await?, values?, nulls.await?)
            }
            .boxed()
        }
        (Layout::List(_), [pairs]) => {
            let pairs = reader.values(pairs, size_of::<u64>(), 0);
            async move {
                let (pairs, nulls) = try_join!(pairs, nulls)?;
                download_lists(&reader, &pairs, nulls).await
            }
            .boxed()
        }
        _ => ready(reader.malformed("wrong number of buffers")).boxed(),
    }
}

/// Reads the strings that offsets delimit, and builds their array.
async fn download_strings<O: OffsetSizeTrait>(
    reader: ColumnReader,
    offsets: PendingBuffer,
    heap: Heap,
    nulls: PendingNulls,
) -> Result<ArrayRef> {
    let (offsets, nulls) = try_join!(offsets, nulls)?;
    let strings = reader.strings::<O>(offsets, heap).await?;
    reader.decode_strings(strings, nulls)
}

/// Reads the bytes that views refer to, and builds their array.
async fn download_views(
    reader: ColumnReader,
    views: PendingBuffer,
    heap: Heap,
    bases: PendingBuffer,
    nulls: PendingNulls,
) -> Result<ArrayRef> {
    let (views, bases, nulls) = try_join!(views, bases, nulls)?;
    let (views, heap, bases) = match heap {
        Heap::Pending(heap) => (views, heap.await?, bases),
        Heap::Deferred(heap) => reader.read_used_heap(views, &heap, bases, nulls.as_ref()).await?,
    };
    reader.decode_views(views, &heap, &bases, nulls)
}

/// Reads the elements that offset/length pairs refer to, and builds the list array.
async fn download_lists(reader: &ColumnReader, pairs: &HostBuffer, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let Some(elements) = reader.column.elements() else { return reader.malformed("lists without elements") };
    let pairs = aligned(pairs, size_of::<u64>());
    let spans = ListSpans::from_pairs(pairs.typed_data(), nulls.as_ref());
    if spans.end() > elements.len() {
        return reader.malformed(format_args!("a list that ends at {} of {} elements", spans.end(), elements.len()));
    }
    let ranges = spans.merged(elements.len() / MAX_READS);
    let read = |range: &Range<usize>| {
        let elements = elements.slice(range.start, range.len());
        download_column_within(&reader.queue, &reader.name, &elements, reader.max_copied_bytes)
    };
    let read = try_join_all(ranges.iter().map(read)).await?;
    let size = match reader.data_type() {
        DataType::FixedSizeList(_, size) => Some(*size as usize),
        _ => None,
    };
    let elements = match read.as_slice() {
        [] => new_empty_array(&elements.ty().data_type),
        [all] => Arc::clone(all),
        read => {
            check_copied(reader, read.iter().fold(0, |sum, part| sum.saturating_add(copied_bytes(part, 0..part.len()))))?;
            concat(&read.iter().map(|part| part.as_ref()).collect::<Vec<_>>())?
        }
    };
    let offsets = match reader.data_type() {
        DataType::List(_) if spans.total() > i32::MAX as usize => {
            return Err(reader.too_large("elements of lists", spans.total(), i32::MAX as usize));
        }
        DataType::List(_) => vec![spans.offsets::<i32>()],
        DataType::LargeList(_) => vec![spans.offsets::<i64>()],
        DataType::FixedSizeList(..) => vec![],
        _ => return reader.malformed("carried as lists"),
    };
    let values = if spans.is_contiguous(&ranges, size) {
        elements
    } else {
        check_copied(reader, spans.copied_bytes(&ranges, &elements))?;
        spans.copy(&ranges, &elements, size)?
    };
    reader.array(reader.data_type(), offsets, nulls, Some(values))
}

fn check_copied(reader: &ColumnReader, bytes: usize) -> Result<()> {
    match bytes > reader.max_copied_bytes {
        true => Err(reader.too_large("bytes of lists' elements", bytes, reader.max_copied_bytes)),
        false => Ok(()),
    }
}
