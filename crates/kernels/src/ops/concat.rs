// SPDX-License-Identifier: Apache-2.0
//! Concatenation of batches, for sorts, the build sides of joins and resident tables.
//!
//! - Values of fixed width are copied.
//! - Strings with offsets get 64-bit offsets over one heap, or keep those of 32 bits. Only bytes
//!   that rows use are copied; their ranges are read first, once for all columns.
//! - Views keep whole heaps, lists keep all elements. A heap, or an array of elements, that several
//!   batches share is copied once.
//! - Dictionaries are unified. Those of a resident table each begin with that of the batch before;
//!   others are recoded on the host (see [`dictionary`]).

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::launch::layout_kernels::BITS_FROM;
use super::launch::primitives::Primitives;
use super::launch::program::{FixedProgram, Kernel, describe_operator, read_u64, row_loop};
use super::launch::{Launch, dictionary};
use super::{Options, check_rows};
use crate::codegen::{CType, Params};
use crate::prelude::Section;
use crate::{Error, Result};

const CONCAT_BITS: usize = 0;
const CONCAT_OFFSETS32: usize = 1;
const CONCAT_OFFSETS64: usize = 2;
const CONCAT_VIEWS: usize = 3;
const CONCAT_LISTS: usize = 4;
/// 32-bit offsets that stay so.
const CONCAT_SAME_OFFSETS32: usize = 5;

/// Bits and bytes of a bitmap word.
const WORD_BITS: usize = 32;
const WORD_BYTES: usize = 4;

/// Most bytes that 32-bit offsets of strings can address.
const MAX_BYTES32: usize = i32::MAX as usize;
/// Most elements that the offsets of lists can address.
const MAX_ELEMENTS: usize = u32::MAX as usize;

/// Concatenates batches.
///
/// Strings with 32-bit offsets, also those in lists, get 64-bit offsets, since 32 bits may not
/// address the bytes of all batches. Other layouts stay.
#[derive(Debug, Clone)]
pub struct Concat {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    /// Columns whose offsets get 64 bits.
    widened_columns: usize,
    options: Options,
    primitives: Primitives,
    program: FixedProgram,
}

impl Concat {
    /// For batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Internal` if the number of types is not that of the columns.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{Concat, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let concat = Concat::try_new(host.schema(), types, Options::new(Profile::Cpu))?;
    /// let all = concat.run(&queue, vec![batch.slice(0, 2), batch.slice(2, 1)]).await?;
    /// assert_eq!(download(&queue, &all.ok_or("no rows")?).await?, host);
    /// assert!(concat.run(&queue, vec![]).await?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<Concat> {
        let widened_columns = types.iter().filter(|ty| ty.layout == Layout::Offsets32).count();
        let concat = Concat::try_new_keeping_layouts(schema, types.into_iter().map(widened).collect(), options)?;
        Ok(Concat { widened_columns, ..concat })
    }

    /// As [`try_new`](Self::try_new), for batches whose strings 32-bit offsets address together:
    /// no layout changes.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new). [`run`](Self::run) fails with `Unsupported` for more bytes.
    pub fn try_new_keeping_layouts(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<Concat> {
        if schema.fields().len() != types.len() {
            return Err(Error::Internal(format!("{} types for {} columns", types.len(), schema.fields().len())));
        }
        Ok(Concat {
            schema,
            types,
            widened_columns: 0,
            primitives: Primitives::new(&options),
            program: FixedProgram::new("Concat", &options, kernels),
            options,
        })
    }

    describe_operator!();

    /// Device bytes of the offsets of a row, beside those that a copy of the batches has. A single
    /// batch gets wider offsets beside its own.
    pub(in crate::ops) fn widening_bytes(&self, batches: usize) -> usize {
        let each = size_of::<i64>() - if batches > 1 { size_of::<i32>() } else { 0 };
        self.widened_columns * each
    }

    /// Columns whose offsets get 64 bits.
    pub(in crate::ops) fn widened_columns(&self) -> usize {
        self.widened_columns
    }

    /// The rows of all batches; `None` without rows. A single batch with rows is not copied. Waits
    /// for strings with offsets, and for dictionaries that have to be unified.
    ///
    /// # Errors
    /// - `Unsupported` for more than 2^31 - 1 rows or 2^32 - 1 elements of lists
    /// - `Unsupported` for dictionaries with more values together than their codes can number
    /// - `Unsupported` for more than 2^31 - 1 bytes of strings that keep 32-bit offsets
    /// - errors of the device
    pub async fn run(&self, queue: &Queue, mut batches: Vec<DeviceBatch>) -> Result<Option<DeviceBatch>> {
        batches.retain(|batch| batch.num_rows() > 0);
        let rows = batches.iter().map(DeviceBatch::num_rows).sum();
        check_rows("Concat", rows)?;
        if let Some(batch) = batches.iter().find(|batch| batch.columns().len() != self.types.len()) {
            return Err(Error::Internal(format!("a batch of {} columns, not {}", batch.columns().len(), self.types.len())));
        }
        let has_result_layouts =
            |batch: &DeviceBatch| batch.columns().iter().zip(&self.types).all(|(column, ty)| column.ty().layout == ty.layout);
        match batches.as_slice() {
            [] => return Ok(None),
            [batch] if has_result_layouts(batch) => return Ok(batches.pop()),
            _ => {}
        }
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let concatenator = Concatenator { launch };
        let mut columns = Vec::with_capacity(self.types.len());
        for (index, ty) in self.types.iter().enumerate() {
            let parts = batches.iter().filter_map(|batch| batch.columns().get(index).cloned()).collect();
            columns.push((Arc::new(ty.clone()), Parts { columns: parts, used: vec![] }));
        }
        // Only the columns own the buffers from here on, so that each is freed once it is copied.
        drop(batches);
        concatenator.find_used(&mut columns).await?;
        let mut concatenated = Vec::with_capacity(self.types.len());
        for (ty, parts) in columns {
            concatenated.push(concatenator.column(ty, parts).await?);
        }
        Ok(Some(DeviceBatch::try_new(self.schema.clone(), concatenated, rows)?))
    }
}

/// The layout of concatenated batches.
fn widened(ty: ColumnType) -> ColumnType {
    let layout = match ty.layout {
        Layout::Offsets32 => Layout::Offsets64,
        Layout::List(elements) => Layout::List(Box::new(widened(*elements))),
        layout => layout,
    };
    ColumnType { layout, ..ty }
}

/// Rows of all columns.
fn rows_of(columns: &[DeviceColumn]) -> usize {
    columns.iter().map(DeviceColumn::len).sum()
}

/// A column of each batch.
struct Parts {
    columns: Vec<DeviceColumn>,
    /// Of strings with offsets, the bytes of each heap that rows use.
    used: Vec<Range<usize>>,
}

/// Concatenates the columns of one call.
struct Concatenator<'a> {
    launch: Launch<'a>,
}

impl Concatenator<'_> {
    /// Reads the ranges of heap bytes that rows use, for all columns at once.
    async fn find_used(&self, columns: &mut [(Arc<ColumnType>, Parts)]) -> Result<()> {
        let strings = |ty: &ColumnType| matches!(ty.layout, Layout::Offsets32 | Layout::Offsets64);
        let parts: usize = columns.iter().filter(|(ty, _)| strings(ty)).map(|(_, parts)| parts.columns.len()).sum();
        if parts == 0 || columns.iter().all(|(_, parts)| parts.columns.len() == 1) {
            return Ok(());
        }
        // First and last offset of each part, zero-extended: widths differ, and offsets are not
        // negative.
        let ends = self.launch.queue.zeroed(parts * 2 * size_of::<u64>())?;
        let mut at = 0;
        for column in columns.iter().filter(|(ty, _)| strings(ty)).flat_map(|(_, parts)| &parts.columns) {
            let [offsets, _] = column.buffers() else { return Err(missing(column)) };
            let width = if column.ty().layout == Layout::Offsets32 { size_of::<i32>() } else { size_of::<i64>() };
            for element in [column.offset(), column.offset() + column.len()] {
                self.launch.queue.copy(offsets, element * width, &ends, at * size_of::<u64>(), width)?;
                at += 1;
            }
        }
        let answer = self.launch.queue.read(&ends, 0..ends.len()).await?;
        let mut at = 0;
        for (_, parts) in columns.iter_mut().filter(|(ty, _)| strings(ty)) {
            for _ in &parts.columns {
                parts.used.push(read_u64(&answer, at)? as usize..read_u64(&answer, at + 1)? as usize);
                at += 2;
            }
        }
        Ok(())
    }

    /// The concatenated column. The future is boxed since the elements of lists are columns too.
    fn column(&self, ty: Arc<ColumnType>, parts: Parts) -> BoxFuture<'_, Result<DeviceColumn>> {
        self.column_of(ty, parts).boxed()
    }

    async fn column_of(&self, ty: Arc<ColumnType>, mut parts: Parts) -> Result<DeviceColumn> {
        if let [column] = parts.columns.as_slice()
            && column.ty().layout == ty.layout
        {
            return Ok(column.clone());
        }
        let nullable = ty.nullable && ty.layout != Layout::Null;
        let validity = if nullable { Some((self.validity(&parts.columns)?, 0)) } else { None };
        let null_count = parts.columns.iter().map(DeviceColumn::null_count).sum();
        let mut values = None;
        let buffers = match &ty.layout {
            Layout::Null => vec![],
            Layout::Bits => vec![self.values_of_bits(&parts.columns)?],
            Layout::Fixed(carrier) => vec![self.fixed(&parts.columns, carrier.width())?],
            Layout::Bytes(width) => vec![self.fixed(&parts.columns, *width as usize)?],
            Layout::Offsets32 => self.strings(&parts, size_of::<i32>())?,
            Layout::Offsets64 => self.strings(&parts, size_of::<i64>())?,
            Layout::Views => self.views(&parts.columns)?,
            Layout::Dictionary { codes, .. } => {
                let most = max_values(*codes, ty.bounds);
                for column in &mut parts.columns {
                    let unified =
                        dictionary::unify(self.launch.queue, &self.launch.primitives, &mut values, column, most).await?;
                    *column = unified.unwrap_or_else(|| column.clone());
                }
                vec![self.fixed(&parts.columns, codes.width())?]
            }
            Layout::List(elements) => {
                let (lists, elements) = self.lists(elements, &parts.columns).await?;
                values = Some(Arc::new(elements));
                vec![lists]
            }
        };
        Ok(DeviceColumn::try_new(ty, rows_of(&parts.columns), buffers, validity, null_count, values)?)
    }

    fn validity(&self, columns: &[DeviceColumn]) -> Result<Buffer> {
        let parts = columns.iter().map(|column| column.validity().map(|(bits, first)| (bits, first, column.len())));
        self.bits(parts.collect::<Option<Vec<_>>>().ok_or_else(|| Error::Internal("a nullable column without validity".into()))?)
    }

    fn values_of_bits(&self, columns: &[DeviceColumn]) -> Result<Buffer> {
        let parts = columns.iter().map(|column| column.buffers().first().map(|bits| (bits, column.offset(), column.len())));
        self.bits(parts.collect::<Option<Vec<_>>>().ok_or_else(|| Error::Internal("a column of bits without bits".into()))?)
    }

    /// Concatenates bitmaps, each given by buffer, first bit and length.
    fn bits(&self, parts: Vec<(&Buffer, usize, usize)>) -> Result<Buffer> {
        let rows: usize = parts.iter().map(|(_, _, n)| n).sum();
        let to = self.launch.queue.alloc(rows.div_ceil(WORD_BITS) * WORD_BYTES)?;
        let mut at = 0;
        for (bits, first, n) in parts {
            let (lead, skipped) = (at % WORD_BITS, at / WORD_BITS);
            let words = (lead + n).div_ceil(WORD_BITS);
            let named = vec![
                ("bits", Arg::Buffer(bits)),
                ("first", Arg::U64(first as u64)),
                ("n", Arg::U64(n as u64)),
                ("to", Arg::Buffer(&to)),
                ("skipped", Arg::U64(skipped as u64)),
                ("lead", Arg::U32(lead as u32)),
                ("words", Arg::U64(words as u64)),
            ];
            self.launch.run(CONCAT_BITS, self.launch.grid(words), named)?;
            at += n;
        }
        Ok(to)
    }

    fn fixed(&self, columns: &[DeviceColumn], width: usize) -> Result<Buffer> {
        let to = self.launch.queue.alloc(rows_of(columns) * width)?;
        let mut at = 0;
        for column in columns {
            let [from] = column.buffers() else { return Err(missing(column)) };
            self.launch.queue.copy(from, column.offset() * width, &to, at, column.len() * width)?;
            at += column.len() * width;
        }
        Ok(to)
    }

    /// Offsets of so many bytes, and heap. A single part keeps its heap.
    fn strings(&self, parts: &Parts, width: usize) -> Result<Vec<Buffer>> {
        let bytes: usize = parts.used.iter().map(Range::len).sum();
        if width == size_of::<i32>() && bytes > MAX_BYTES32 {
            return Err(Error::Unsupported(format!(
                "Concat: {bytes} bytes of strings in one batch, the limit of 32-bit offsets is {MAX_BYTES32}"
            )));
        }
        let to = self.launch.queue.alloc((rows_of(&parts.columns) + 1) * width)?;
        if let [column] = parts.columns.as_slice() {
            self.offsets(column, (&to, width), 0, 0)?;
            let [_, heap] = column.buffers() else { return Err(missing(column)) };
            return Ok(vec![to, heap.clone()]);
        }
        let heap_bytes = self.launch.queue.alloc(bytes)?;
        let (mut row, mut at) = (0, 0);
        for (column, used) in parts.columns.iter().zip(&parts.used) {
            let [_, heap] = column.buffers() else { return Err(missing(column)) };
            self.offsets(column, (&to, width), row, (at as u64).wrapping_sub(used.start as u64))?;
            self.launch.queue.copy(heap, used.start, &heap_bytes, at, used.len())?;
            row += column.len();
            at += used.len();
        }
        Ok(vec![to, heap_bytes])
    }

    /// Writes the offsets of a column, plus `shift` modulo 2^64, from element `at` on, each of so
    /// many bytes. The last offset is the first of the next column.
    fn offsets(&self, column: &DeviceColumn, (to, width): (&Buffer, usize), at: usize, shift: u64) -> Result<()> {
        let [from, _] = column.buffers() else { return Err(missing(column)) };
        let kernel = match &column.ty().layout {
            Layout::Offsets32 if width == size_of::<i32>() => CONCAT_SAME_OFFSETS32,
            Layout::Offsets32 => CONCAT_OFFSETS32,
            _ if width == size_of::<i64>() => CONCAT_OFFSETS64,
            _ => return Err(missing(column)),
        };
        let n = column.len() + 1;
        let named = vec![
            ("from", Arg::Buffer(from)),
            ("offset", Arg::U64(column.offset() as u64)),
            ("to", Arg::Buffer(to)),
            ("at", Arg::U64(at as u64)),
            ("shift", Arg::U64(shift)),
            ("n", Arg::U64(n as u64)),
        ];
        self.launch.run(kernel, self.launch.grid(n), named)
    }

    /// Views, the concatenated heaps, and the base offset of each heap.
    fn views(&self, columns: &[DeviceColumn]) -> Result<Vec<Buffer>> {
        let mut heaps: Vec<ViewHeap<'_>> = vec![];
        let (mut bytes, mut bases) = (0, 0);
        let to = self.launch.queue.alloc(rows_of(columns) * size_of::<u128>())?;
        let mut at = 0;
        for column in columns {
            let [views, heap, own] = column.buffers() else { return Err(missing(column)) };
            let known = heaps.iter().find(|known| known.heap.raw() == heap.raw() && known.bases.raw() == own.raw());
            let first = known.map_or(bases, |known| known.first);
            if known.is_none() {
                heaps.push(ViewHeap { heap, bases: own, at: bytes, first });
                (bytes, bases) = (bytes + heap.len(), bases + own.len() / size_of::<u64>());
            }
            let shift = u32::try_from(first).map_err(|_| Error::Unsupported("Concat: views over more than 2^32 heaps".into()))?;
            let named = vec![
                ("from", Arg::Buffer(views)),
                ("offset", Arg::U64(column.offset() as u64)),
                ("to", Arg::Buffer(&to)),
                ("at", Arg::U64(at as u64)),
                ("shift", Arg::U32(shift)),
                ("n", Arg::U64(column.len() as u64)),
            ];
            self.launch.run(CONCAT_VIEWS, self.launch.grid(column.len()), named)?;
            at += column.len();
        }
        if let [ViewHeap { heap, bases, .. }] = heaps.as_slice() {
            return Ok(vec![to, (*heap).clone(), (*bases).clone()]);
        }
        let (heap_bytes, all_bases) = (self.launch.queue.alloc(bytes)?, self.launch.queue.alloc(bases * size_of::<u64>())?);
        for ViewHeap { heap, bases, at, first } in heaps {
            self.launch.queue.copy(heap, 0, &heap_bytes, at, heap.len())?;
            let n = bases.len() / size_of::<u64>();
            if n > 0 {
                self.move_pairs((bases, 0, n), &all_bases, first, at)?;
            }
        }
        Ok(vec![to, heap_bytes, all_bases])
    }

    /// Offset/length pairs of lists, and their elements. Elements that several columns share are
    /// copied once.
    async fn lists(&self, ty: &ColumnType, columns: &[DeviceColumn]) -> Result<(Buffer, DeviceColumn)> {
        let mut kept: Vec<(&Arc<DeviceColumn>, usize)> = vec![];
        let mut total = 0;
        let to = self.launch.queue.alloc(rows_of(columns) * size_of::<u64>())?;
        let mut at = 0;
        for column in columns {
            let ([pairs], Some(elements)) = (column.buffers(), column.elements()) else { return Err(missing(column)) };
            let known = kept.iter().find(|(known, _)| Arc::ptr_eq(known, elements));
            let first = known.map_or(total, |(_, first)| *first);
            if known.is_none() {
                kept.push((elements, total));
                total += elements.len();
            }
            if total > MAX_ELEMENTS {
                return Err(Error::Unsupported(format!(
                    "Concat: lists of {total} elements in one batch, the limit is {MAX_ELEMENTS}"
                )));
            }
            self.move_pairs((pairs, column.offset(), column.len()), &to, at, first)?;
            at += column.len();
        }
        let ty = Arc::new(ty.clone());
        let parts: Vec<_> = kept.into_iter().map(|(elements, _)| elements).filter(|elements| !elements.is_empty()).collect();
        if parts.is_empty() {
            let field = Field::new("elements", ty.data_type.clone(), ty.nullable);
            let one = DeviceBatch::blank(self.launch.queue, &Arc::new(Schema::new(vec![field])), &[(*ty).clone()])?;
            let none = one.columns().first().map(|elements| elements.slice(0, 0));
            return Ok((to, none.ok_or_else(|| Error::Internal("a batch without its column".into()))?));
        }
        let parts = Parts { columns: parts.into_iter().map(|elements| (**elements).clone()).collect(), used: vec![] };
        let mut columns = [(ty, parts)];
        self.find_used(&mut columns).await?;
        let [(ty, parts)] = columns;
        Ok((to, self.column(ty, parts).await?))
    }

    /// Copies `n` u64 from element `offset` on to element `at` on, each plus `shift`.
    fn move_pairs(&self, (from, offset, n): (&Buffer, usize, usize), to: &Buffer, at: usize, shift: usize) -> Result<()> {
        let named = vec![
            ("from", Arg::Buffer(from)),
            ("offset", Arg::U64(offset as u64)),
            ("to", Arg::Buffer(to)),
            ("at", Arg::U64(at as u64)),
            ("shift", Arg::U64(shift as u64)),
            ("n", Arg::U64(n as u64)),
        ];
        self.launch.run(CONCAT_LISTS, self.launch.grid(n), named)
    }
}

/// A heap that the views of one or more columns refer to.
struct ViewHeap<'a> {
    heap: &'a Buffer,
    bases: &'a Buffer,
    /// Position in the concatenated heap, and in the bases.
    at: usize,
    first: usize,
}

/// Number of values that codes can address within any `bounds`.
fn max_values(codes: Carrier, bounds: Option<(i128, i128)>) -> usize {
    let most = bounds.or(CType::of_carrier(codes).range()).map_or(0, |(_, most)| most);
    usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1))
}

fn missing(column: &DeviceColumn) -> Error {
    Error::Internal(format!("a column of {} in layout {:?} lacks a buffer", column.ty().data_type, column.ty().layout))
}

fn kernels(options: &Options) -> Vec<Kernel> {
    let kernel = |name: &str, named: &[(&str, &str)], row: &str, n: &str, statements: &str| {
        let mut params = Params::new();
        params.need(Section::Base);
        for (name, c_type) in named {
            params.named(name, c_type);
        }
        let n = params.named(n, "u64");
        Kernel::new(name, params, row_loop(options.profile, row, &n, statements))
    };
    let bits = [
        ("bits", "const G u8 *RESTRICT"),
        ("first", "u64"),
        ("n", "u64"),
        ("to", "G u32 *RESTRICT"),
        ("skipped", "u64"),
        ("lead", "u32"),
    ];
    let mut concat_bits = kernel("concat_bits", &bits, "w", "words", BITS);
    concat_bits.params.function(BITS_FROM.into());
    let offsets = |name: &str, from: &str, to: &str| {
        let [from_type, to_type] = [format!("const G {from} *RESTRICT"), format!("G {to} *RESTRICT")];
        let named = [("from", from_type.as_str()), ("offset", "u64"), ("to", &to_type), ("at", "u64"), ("shift", "u64")];
        kernel(name, &named, "row", "n", &format!("    to[row + at] = ({to})((u64)from[row + offset] + shift);\n"))
    };
    let views =
        [("from", "const G u32 *RESTRICT"), ("offset", "u64"), ("to", "G u32 *RESTRICT"), ("at", "u64"), ("shift", "u32")];
    let lists =
        [("from", "const G u64 *RESTRICT"), ("offset", "u64"), ("to", "G u64 *RESTRICT"), ("at", "u64"), ("shift", "u64")];
    vec![
        concat_bits,
        offsets("concat_offsets32", "i32", "i64"),
        offsets("concat_offsets64", "i64", "i64"),
        kernel("concat_views", &views, "row", "n", VIEWS),
        kernel("concat_lists", &lists, "row", "n", "    to[row + at] = from[row + offset] + shift;\n"),
        offsets("concat_same_offsets32", "i32", "i32"),
    ]
}

/// A bitmap word of the result. The first one keeps the `lead` bits of the parts before.
const BITS: &str =
    "    u32 word = w ? bits_from(bits, first + w * 32 - lead, first + n) : bits_from(bits, first, first + n) << lead;
    if (w == 0 && lead) word |= to[skipped] & ((1u << lead) - 1);
    to[skipped + w] = word;
";

/// The view of a NULL is arbitrary, and may remain so.
const VIEWS: &str = "    const G u32 *view = from + (row + offset) * 4;
    G u32 *out = to + (row + at) * 4;
    u32 len = view[0];
    out[0] = len;
    out[1] = view[1];
    out[2] = len > 12 ? view[2] + shift : view[2];
    out[3] = view[3];
";
