// SPDX-License-Identifier: Apache-2.0
//! Device batches to host batches.
//!
//! All reads of a batch are enqueued before the first is waited for. Columns come back in their
//! logical types, whatever their layout: narrow integers are widened, dictionaries of plain types
//! are looked up, strings and lists take the form that the type asks for.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, ByteView, NullArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions,
    make_array, make_view, new_empty_array,
};
use arrow::buffer::{BooleanBuffer, Buffer as HostBuffer, MutableBuffer, NullBuffer};
use arrow::compute::kernels::length::length;
use arrow::compute::{TakeOptions, cast, concat, sum, take};
use arrow::datatypes::{ArrowNativeType, DataType, Int64Type};
use device::{Buffer, Queue};
use futures::future::{BoxFuture, FutureExt, OptionFuture, ready, try_join_all};
use futures::{Stream, stream, try_join};

use crate::lists::{Spans, bytes};
use crate::narrow::{aligned, convert, is_integer};
use crate::strings::{INLINE, is_text, view_bytes};
use crate::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result};

/// Bytes of copies that a part of a download has at most, unless it is one row.
const MOST_COPIED_BYTES: usize = 1 << 28;
/// Heaps above this size are read in part where a slice needs only a part.
const WHOLE_HEAP_BYTES: usize = 1 << 20;
/// About the most reads that a part of a heap is split into.
const PARTS: usize = 256;

/// Downloads a batch as a host batch of exactly `batch.schema()`'s types.
///
/// The reads are enqueued before this returns; the future waits for them. On devices that share the
/// host's memory the host batch looks at the device's buffers.
///
/// # Errors
/// `TooLarge` where strings are more than their type can address; those of the device.
pub fn download(queue: &Queue, batch: &DeviceBatch) -> impl Future<Output = Result<RecordBatch>> + Send + 'static + use<> {
    download_within(queue, batch, usize::MAX)
}

/// Downloads a batch in parts: rows that share elements of lists, or texts of a dictionary, have copies of their own on the host,
/// of which a part of several rows has no more than some hundred megabytes, nor more text than an array of the type can hold.
/// Each part is read when it is asked for.
///
/// # Errors
/// `TooLarge` where one row's text is more than its type can address; those of the device.
pub fn download_parts(queue: &Queue, batch: DeviceBatch) -> impl Stream<Item = Result<RecordBatch>> + Send + 'static + use<> {
    parts_within(queue, batch, MOST_COPIED_BYTES)
}

/// The parts, each of one row or with so many bytes of copies at most.
pub(crate) fn parts_within(
    queue: &Queue,
    batch: DeviceBatch,
    most_copied: usize,
) -> impl Stream<Item = Result<RecordBatch>> + Send + 'static + use<> {
    let state = (queue.clone(), 0, batch.num_rows().max(1), batch);
    stream::try_unfold(state, move |(queue, begun, mut at_once, batch)| async move {
        let left = batch.num_rows() - begun;
        if left == 0 {
            return Ok(None);
        }
        loop {
            let rows = at_once.min(left);
            let limit = if rows == 1 { usize::MAX } else { most_copied };
            match download_within(&queue, &batch.slice(begun, rows), limit).await {
                Err(Error::TooLarge { actual, limit, .. }) if rows > 1 => {
                    at_once = (rows as u128 * limit as u128 / actual.max(1) as u128).clamp(1, rows as u128 / 2) as usize;
                }
                // The next rows may share less.
                part => return Ok(Some((part?, (queue, begun + rows, at_once.saturating_mul(2), batch)))),
            }
        }
    })
}

fn download_within(
    queue: &Queue,
    batch: &DeviceBatch,
    most_copied: usize,
) -> impl Future<Output = Result<RecordBatch>> + Send + 'static + use<> {
    let (schema, rows) = (Arc::clone(batch.schema()), batch.num_rows());
    let columns = schema.fields().iter().zip(batch.columns());
    let columns: Vec<_> = columns.map(|(field, column)| column_within(queue, field.name(), column, most_copied)).collect();
    async move {
        let columns = try_join_all(columns).await?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
    }
}

/// Downloads one column as an array of its logical type. `name` is for errors.
pub(crate) fn download_column(queue: &Queue, name: &str, column: &DeviceColumn) -> BoxFuture<'static, Result<ArrayRef>> {
    column_within(queue, name, column, usize::MAX)
}

/// The same, unless more than so many bytes would be copies of what rows share.
fn column_within(queue: &Queue, name: &str, column: &DeviceColumn, most_copied: usize) -> BoxFuture<'static, Result<ArrayRef>> {
    let column = column.clone();
    if column.is_empty() {
        return ready(Ok(new_empty_array(&column.ty().data_type))).boxed();
    }
    if let (DataType::Dictionary(_, values), false) =
        (&column.ty().data_type, matches!(column.ty().layout, Layout::Dictionary { .. }))
    {
        // Computed values of a dictionary type: a dictionary is made of them here.
        let plain = ColumnType { data_type: values.as_ref().clone(), ..column.ty().as_ref().clone() };
        let to = column.ty().data_type.clone();
        return match column.with_type(Arc::new(plain), column.validity().map(|(buffer, _)| buffer.clone())) {
            Ok(plain) => {
                let plain = column_within(queue, name, &plain, most_copied);
                async move { pack(&plain.await?, &to) }.boxed()
            }
            Err(error) => ready(Err(error)).boxed(),
        };
    }
    let reader = Reader { queue: queue.clone(), name: name.into(), column, most_copied };
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
            let values = reader.elements(values, carrier.width(), 0);
            async move { reader.fixed(carrier, values.await?, nulls.await?) }.boxed()
        }
        (&Layout::Bytes(width), [values]) => {
            let values = reader.elements(values, width as usize, 0);
            async move { reader.build(vec![values.await?], nulls.await?) }.boxed()
        }
        (Layout::Offsets32, [offsets, heap]) => {
            let (offsets, heap) = reader.offsets_and_heap(offsets, heap, 4);
            async move {
                let ((offsets, nulls), heap) = (try_join!(offsets, nulls)?, heap);
                let strings = reader.strings::<i32>(offsets, heap).await?;
                reader.decode_strings(strings, nulls)
            }
            .boxed()
        }
        (Layout::Offsets64, [offsets, heap]) => {
            let (offsets, heap) = reader.offsets_and_heap(offsets, heap, 8);
            async move {
                let ((offsets, nulls), heap) = (try_join!(offsets, nulls)?, heap);
                let strings = reader.strings::<i64>(offsets, heap).await?;
                reader.decode_strings(strings, nulls)
            }
            .boxed()
        }
        (Layout::Views, [views, heap, bases]) => {
            let views = reader.elements(views, 16, 0);
            let bases = reader.read(bases, 0..bases.len());
            let heap = if reader.reads_whole(heap) { Ok(reader.read(heap, 0..heap.len())) } else { Err(heap.clone()) };
            async move {
                let (views, bases, nulls) = try_join!(views, bases, nulls)?;
                let (views, heap, bases) = match heap {
                    Ok(heap) => (views, heap.await?, bases),
                    Err(heap) => reader.used_part(views, &heap, bases, nulls.as_ref()).await?,
                };
                reader.decode_views(views, &heap, &bases, nulls)
            }
            .boxed()
        }
        (&Layout::Dictionary { codes: carrier, .. }, [codes]) => {
            let codes = reader.elements(codes, carrier.width(), 0);
            let values = reader.column.dictionary().map(|values| download_column(queue, name, values));
            async move {
                let values = OptionFuture::from(values).await.unwrap_or_else(|| reader.malformed("codes without a dictionary"));
                reader.decode_codes(carrier, codes.await?, values?, nulls.await?)
            }
            .boxed()
        }
        (Layout::List(_), [words]) => {
            let words = reader.elements(words, size_of::<u64>(), 0);
            async move {
                let (words, nulls) = try_join!(words, nulls)?;
                reader.lists(&words, nulls).await
            }
            .boxed()
        }
        _ => ready(reader.malformed("wrong number of buffers")).boxed(),
    }
}

/// What a download of one column needs to know.
struct Reader {
    queue: Queue,
    name: String,
    column: DeviceColumn,
    /// Most bytes that may be copies of what rows share.
    most_copied: usize,
}

/// Strings as the device has them: offsets from 0 on into a heap of nothing but them.
struct Strings<O> {
    offsets: Vec<O>,
    heap: HostBuffer,
}

impl Reader {
    fn data_type(&self) -> &DataType {
        &self.column.ty().data_type
    }

    fn malformed<T>(&self, what: impl std::fmt::Display) -> Result<T> {
        Err(Error::Malformed(format!("download of column \"{}\" ({}): {what}", self.name, self.data_type())))
    }

    fn read(&self, buffer: &Buffer, range: Range<usize>) -> BoxFuture<'static, Result<HostBuffer>> {
        if range.is_empty() {
            return ready(Ok(HostBuffer::default())).boxed();
        }
        let bytes = self.queue.read(buffer, range);
        async move { Ok(HostBuffer::from(bytes.await?)) }.boxed()
    }

    /// Reads the column's elements of a buffer, and `extra` more.
    fn elements(&self, buffer: &Buffer, width: usize, extra: usize) -> BoxFuture<'static, Result<HostBuffer>> {
        let (from, to) = (self.column.offset(), self.column.offset() + self.column.len() + extra);
        self.read(buffer, from * width..to * width)
    }

    /// Reads the column's bits from bit `offset` on, and says at which bit of the bytes read they begin.
    fn bits(&self, buffer: &Buffer, offset: usize) -> (BoxFuture<'static, Result<HostBuffer>>, usize) {
        (self.read(buffer, offset / 8..(offset + self.column.len()).div_ceil(8)), offset % 8)
    }

    fn nulls(&self) -> BoxFuture<'static, Result<Option<NullBuffer>>> {
        let len = self.column.len();
        let Some((bits, offset)) = self.column.validity().filter(|_| self.column.null_count() != Some(0)) else {
            return ready(Ok(None)).boxed();
        };
        let (bits, offset) = self.bits(bits, offset);
        async move {
            let nulls = NullBuffer::new(BooleanBuffer::new(bits.await?, offset, len));
            Ok(Some(nulls).filter(|nulls| nulls.null_count() > 0))
        }
        .boxed()
    }

    /// Whether to read a heap before the offsets or views tell what of it is needed.
    fn reads_whole(&self, heap: &Buffer) -> bool {
        heap.len() <= WHOLE_HEAP_BYTES || self.queue.context().info().unified_memory
    }

    /// The array of type `data_type` over `buffers`, validated.
    fn array(
        &self,
        data_type: &DataType,
        buffers: Vec<HostBuffer>,
        nulls: Option<NullBuffer>,
        child: Option<ArrayRef>,
    ) -> Result<ArrayRef> {
        let data = ArrayData::builder(data_type.clone())
            .len(self.column.len())
            .buffers(buffers)
            .nulls(nulls)
            .child_data(child.iter().map(|child| child.to_data()).collect())
            .align_buffers(true)
            .build()?;
        Ok(make_array(data))
    }

    /// The array of the logical type.
    fn build(&self, buffers: Vec<HostBuffer>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        self.array(self.data_type(), buffers, nulls, None)
    }

    fn fixed(&self, carrier: Carrier, values: HostBuffer, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        match ColumnType::of(self.data_type(), true).map(|ty| ty.layout) {
            Some(Layout::Fixed(natural)) => {
                let values = self.in_carrier(values, carrier, natural, nulls.as_ref())?;
                self.build(vec![values], nulls)
            }
            _ => self.malformed(format_args!("carried as {}", carrier.name())),
        }
    }

    fn in_carrier(&self, values: HostBuffer, from: Carrier, to: Carrier, nulls: Option<&NullBuffer>) -> Result<HostBuffer> {
        if from == to {
            return Ok(values);
        }
        if !is_integer(from) || !is_integer(to) {
            return self.malformed(format_args!("carried as {}", from.name()));
        }
        let mut out = MutableBuffer::with_capacity(self.column.len() * to.width());
        convert(&values, from, to, nulls, &mut out).map_err(|value| Error::Range {
            column: self.name.clone(),
            data_type: self.data_type().clone(),
            value,
            carrier: to.name(),
        })?;
        Ok(out.into())
    }

    fn decode_codes(&self, carrier: Carrier, codes: HostBuffer, values: ArrayRef, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        if let DataType::Dictionary(key, _) = self.data_type() {
            let Some(Layout::Fixed(natural)) = ColumnType::of(key, true).map(|ty| ty.layout) else {
                return self.malformed("keys that are no integers");
            };
            let keys = self.in_carrier(codes, carrier, natural, nulls.as_ref())?;
            return self.array(self.data_type(), vec![keys], nulls, Some(values));
        }
        let indices = self.array(&index_type(carrier), vec![codes], nulls, None)?;
        let checked = || Some(TakeOptions { check_bounds: true });
        if matches!(values.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary) {
            let lengths = take(&cast(&length(&values)?, &DataType::Int64)?, &indices, checked())?;
            let bytes = sum(lengths.as_primitive::<Int64Type>()).unwrap_or(0).as_usize();
            let addressed = matches!(values.data_type(), DataType::Utf8 | DataType::Binary);
            let limit = if addressed { self.most_copied.min(i32::MAX as usize) } else { self.most_copied };
            if bytes > limit {
                return Err(self.too_large("bytes of strings", bytes, limit));
            }
        }
        Ok(take(&values, &indices, checked())?)
    }

    #[allow(clippy::type_complexity)] // two reads, of which the second may have to wait
    fn offsets_and_heap(
        &self,
        offsets: &Buffer,
        heap: &Buffer,
        width: usize,
    ) -> (BoxFuture<'static, Result<HostBuffer>>, Result<BoxFuture<'static, Result<HostBuffer>>, Buffer>) {
        let all = self.column.offset() == 0 && offsets.len() == (self.column.len() + 1) * width;
        let heap = if all || self.reads_whole(heap) { Ok(self.read(heap, 0..heap.len())) } else { Err(heap.clone()) };
        (self.elements(offsets, width, 1), heap)
    }

    /// Reads the strings that `offsets` delimit; `heap` is under way, or its buffer.
    async fn strings<O: OffsetSizeTrait>(
        &self,
        offsets: HostBuffer,
        heap: Result<BoxFuture<'static, Result<HostBuffer>>, Buffer>,
    ) -> Result<Strings<O>> {
        let offsets = aligned(&offsets, size_of::<O>());
        let offsets = offsets.typed_data::<O>();
        let (first, last) = match (offsets.first(), offsets.last()) {
            (Some(first), Some(last)) => (first.to_usize().unwrap_or(usize::MAX), last.to_usize().unwrap_or(0)),
            _ => (0, 0),
        };
        let range = |len: usize| match first <= last && last <= len {
            true => Ok(last - first),
            false => self.malformed(format_args!("offsets {first} to {last} into {len} bytes")),
        };
        let heap = match heap {
            Ok(heap) => {
                let heap = heap.await?;
                heap.slice_with_length(first, range(heap.len())?)
            }
            Err(heap) => {
                range(heap.len())?;
                self.read(&heap, first..last).await?
            }
        };
        let base = O::usize_as(first);
        Ok(Strings { offsets: offsets.iter().map(|&offset| offset - base).collect(), heap })
    }

    /// The array of the logical type.
    fn decode_strings<O: OffsetSizeTrait>(&self, strings: Strings<O>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let Strings { offsets, heap } = strings;
        match self.data_type() {
            DataType::LargeUtf8 | DataType::LargeBinary => self.build(vec![offsets_as::<O, i64>(offsets), heap], nulls),
            DataType::Utf8 | DataType::Binary if heap.len() > i32::MAX as usize => {
                Err(self.too_large("bytes of strings", heap.len(), i32::MAX as usize))
            }
            DataType::Utf8 | DataType::Binary => self.build(vec![offsets_as::<O, i32>(offsets), heap], nulls),
            DataType::Utf8View | DataType::BinaryView => {
                let (views, heaps) = views_over(&offsets, &heap, nulls.as_ref());
                self.build(std::iter::once(views).chain(heaps).collect(), nulls)
            }
            _ => self.malformed("carried as strings"),
        }
    }

    /// The array of the logical type over views, one buffer for each base.
    fn decode_views(
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
        let text = is_text(self.data_type());
        let form = if text { DataType::Utf8View } else { DataType::BinaryView };
        let array = self.array(&form, buffers.clone(), nulls.clone(), None).or_else(|error| match &nulls {
            // Views below NULLs are undefined on the device; Arrow checks them all the same.
            Some(valid) => {
                let views = aligned(&buffers[0], 16);
                let views = views.typed_data::<u128>().iter().zip(valid.iter());
                let views: Vec<u128> = views.map(|(&view, valid)| if valid { view } else { 0 }).collect();
                buffers[0] = HostBuffer::from_vec(views);
                self.array(&form, buffers, nulls, None)
            }
            None => Err(error),
        })?;
        if *self.data_type() == form {
            return Ok(array);
        }
        let bytes = view_bytes(&array);
        if matches!(self.data_type(), DataType::Utf8 | DataType::Binary) && bytes > i32::MAX as usize {
            return Err(self.too_large("bytes of strings", bytes, i32::MAX as usize));
        }
        Ok(cast(&array, self.data_type())?)
    }

    /// Reads only the parts of a heap that views point at, with what lies in small gaps between
    /// them, and makes the views point into that. Views, heap and bases.
    async fn used_part(
        &self,
        views: HostBuffer,
        heap: &Buffer,
        bases: HostBuffer,
        nulls: Option<&NullBuffer>,
    ) -> Result<(HostBuffer, HostBuffer, HostBuffer)> {
        let views = aligned(&views, 16);
        let starts = aligned(&bases, 8);
        let place = |view: &ByteView| {
            let base = starts.typed_data::<u64>().get(view.buffer_index as usize)?;
            let from = base.checked_add(view.offset.into())?.to_usize()?;
            Some(from..from.checked_add(view.length as usize)?)
        };
        let used = |(row, &raw): (usize, &u128)| {
            let view = ByteView::from(raw);
            let outside = view.length > INLINE && nulls.is_none_or(|nulls| nulls.is_valid(row));
            outside.then(|| place(&view)).flatten().filter(|range| range.end <= heap.len())
        };
        let all = views.typed_data::<u128>();
        let mut ranges: Vec<_> = all.iter().enumerate().filter_map(used).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        // Gaps of at least this size, of which there are few, are left out.
        let gap = heap.len() / PARTS;
        ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end.saturating_add(gap);
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
        let mut packed = MutableBuffer::with_capacity(total);
        let mut starts = Vec::with_capacity(ranges.len());
        for part in &parts {
            starts.push(packed.len());
            packed.extend_from_slice(part);
        }
        let moved = all.iter().enumerate().map(|(row, &raw)| {
            let Some(place) = used((row, &raw)) else { return raw };
            let part = ranges.partition_point(|range| range.start <= place.start) - 1;
            let offset = (starts[part] + place.start - ranges[part].start) as u32;
            ByteView::from(raw).with_buffer_index(0).with_offset(offset).as_u128()
        });
        Ok((HostBuffer::from_vec(moved.collect::<Vec<_>>()), packed.into(), HostBuffer::from_vec(vec![0u64])))
    }

    /// The array of the logical type whose rows have the elements that `words` point at.
    async fn lists(&self, words: &HostBuffer, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
        let Some(elements) = self.column.elements() else { return self.malformed("lists without elements") };
        let words = aligned(words, size_of::<u64>());
        let spans = Spans::of(words.typed_data(), nulls.as_ref());
        if spans.end() > elements.len() {
            return self.malformed(format_args!("a list that ends at {} of {} elements", spans.end(), elements.len()));
        }
        let parts = spans.parts(elements.len() / PARTS);
        let read = |part: &Range<usize>| {
            column_within(&self.queue, &self.name, &elements.slice(part.start, part.len()), self.most_copied)
        };
        let read = try_join_all(parts.iter().map(read)).await?;
        let size = match self.data_type() {
            DataType::FixedSizeList(_, size) => Some(*size as usize),
            _ => None,
        };
        let all = match read.as_slice() {
            [] => new_empty_array(&elements.ty().data_type),
            [all] => Arc::clone(all),
            read => {
                self.check_copied(read.iter().fold(0, |sum, part| sum.saturating_add(bytes(part, 0..part.len()))))?;
                concat(&read.iter().map(|part| part.as_ref()).collect::<Vec<_>>())?
            }
        };
        let buffers = match self.data_type() {
            DataType::List(_) if spans.total() > i32::MAX as usize => {
                return Err(self.too_large("elements of lists", spans.total(), i32::MAX as usize));
            }
            DataType::List(_) => vec![spans.offsets::<i32>()],
            DataType::LargeList(_) => vec![spans.offsets::<i64>()],
            DataType::FixedSizeList(..) => vec![],
            _ => return self.malformed("carried as lists"),
        };
        let values = if spans.are_all(&parts, size) {
            all
        } else {
            self.check_copied(spans.bytes(&parts, &all))?;
            spans.copy(&parts, &all, size)?
        };
        self.array(self.data_type(), buffers, nulls, Some(values))
    }

    fn check_copied(&self, bytes: usize) -> Result<()> {
        match bytes > self.most_copied {
            true => Err(self.too_large("bytes of lists' elements", bytes, self.most_copied)),
            false => Ok(()),
        }
    }

    fn too_large(&self, what: &'static str, actual: usize, limit: usize) -> Error {
        Error::TooLarge { column: self.name.clone(), data_type: self.data_type().clone(), what, actual, limit }
    }
}

/// A dictionary of plain values.
fn pack(plain: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    // What arrow-cast does not pack, it packs as integers.
    let integers = match plain.data_type() {
        DataType::Boolean => DataType::Int8,
        DataType::Duration(_) => DataType::Int64,
        _ => return Ok(cast(plain, to)?),
    };
    let DataType::Dictionary(key, _) = to else { return Ok(cast(plain, to)?) };
    let packed = cast(&cast(plain, &integers)?, &DataType::Dictionary(key.clone(), Box::new(integers)))?;
    Ok(cast(&packed, to)?)
}

/// The integer type whose values a carrier holds.
fn index_type(carrier: Carrier) -> DataType {
    match carrier {
        Carrier::I8 => DataType::Int8,
        Carrier::I16 => DataType::Int16,
        Carrier::I32 => DataType::Int32,
        Carrier::U8 => DataType::UInt8,
        Carrier::U16 => DataType::UInt16,
        Carrier::U32 => DataType::UInt32,
        Carrier::U64 => DataType::UInt64,
        Carrier::I64 | Carrier::I128 | Carrier::I256 | Carrier::F32 | Carrier::F64 => DataType::Int64,
    }
}

/// Offsets that fit, in the other width.
fn offsets_as<From: OffsetSizeTrait, To: OffsetSizeTrait>(offsets: Vec<From>) -> HostBuffer {
    if From::IS_LARGE == To::IS_LARGE {
        return HostBuffer::from_vec(offsets);
    }
    HostBuffer::from_vec(offsets.into_iter().map(|offset| To::usize_as(offset.as_usize())).collect::<Vec<To>>())
}

/// Views over the strings of a heap, which is cut where 32-bit offsets end.
fn views_over<O: OffsetSizeTrait>(offsets: &[O], heap: &HostBuffer, nulls: Option<&NullBuffer>) -> (HostBuffer, Vec<HostBuffer>) {
    let (mut views, mut cuts, mut start) = (Vec::with_capacity(offsets.len()), vec![], 0);
    for (row, pair) in offsets.windows(2).enumerate() {
        let (from, to) = (pair[0].as_usize(), pair[1].as_usize());
        let valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
        match heap.get(from..to).filter(|_| valid) {
            Some(string) => {
                if to - start > i32::MAX as usize {
                    cuts.push(start..from);
                    start = from;
                }
                views.push(make_view(string, cuts.len() as u32, (from - start) as u32));
            }
            None => views.push(0),
        }
    }
    cuts.push(start..heap.len());
    let heaps = cuts.into_iter().map(|cut| heap.slice_with_length(cut.start, cut.len()));
    let needed = views.iter().any(|&view| ByteView::from(view).length > INLINE);
    (HostBuffer::from_vec(views), if needed { heaps.collect() } else { vec![] })
}
