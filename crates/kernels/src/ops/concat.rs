// SPDX-License-Identifier: Apache-2.0
//! Many batches of one source as one: what sorts and the build sides of joins look at.
//!
//! Values of fixed width are copied. Strings behind offsets get offsets of 64 bits over one heap, to which the bytes that rows
//! use are copied; where those lie is read first, once for all columns. Views keep their heaps whole, each heap once however
//! many batches share it, and lists their elements. Dictionaries become one: batches of a resident table have longer and longer ones of the same
//! beginning, and others are renumbered on the host (see [`dictionary`](super::dictionary)).

use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::forms::BITS_FROM;
use super::primitives::{LoadedPrimitives, Primitives};
use super::program::{Kernel, Loaded, Program, described_by_its_fields, for_rows, spread, word};
use super::{Options, check_rows, dictionary};
use crate::codegen::{CType, Params};
use crate::prelude::Section;
use crate::{Error, Result};

const JOIN_BITS: usize = 0;
const JOIN_OFFSETS32: usize = 1;
const JOIN_OFFSETS64: usize = 2;
const JOIN_VIEWS: usize = 3;
const JOIN_WORDS: usize = 4;

/// Width of a word of bits, and its bytes.
const WORD_BITS: usize = 32;
const WORD_BYTES: usize = 4;

/// Most elements that words of lists can point at.
const MOST_ELEMENTS: usize = u32::MAX as usize;

/// Makes one batch of many, rows in their order.
///
/// Columns of 32-bit offsets come out with 64-bit ones, since together their strings may be longer than 32 bits address, also
/// where they are elements of lists; all other layouts stay.
#[derive(Debug, Clone)]
pub struct Concat {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    options: Options,
    primitives: Primitives,
    program: Program,
}

impl Concat {
    /// For batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Internal` where there are not as many types as columns.
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
        if schema.fields().len() != types.len() {
            return Err(Error::Internal(format!("{} types for {} columns", types.len(), schema.fields().len())));
        }
        Ok(Concat {
            schema,
            types: types.into_iter().map(widened).collect(),
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Concat", &options, kernels(&options))?,
            options,
        })
    }

    described_by_its_fields!();

    /// The rows of all batches in one; `None` where there are no rows. A single batch with rows is not copied. Waits where
    /// there are strings behind offsets, or dictionaries that have to be unified.
    ///
    /// # Errors
    /// `Unsupported` for more than 2^31 - 1 rows or 2^32 - 1 elements of lists, and for different dictionaries of more values
    /// together than their codes can number; the device's.
    pub async fn run(&self, queue: &Queue, mut batches: Vec<DeviceBatch>) -> Result<Option<DeviceBatch>> {
        batches.retain(|batch| batch.num_rows() > 0);
        let rows = batches.iter().map(DeviceBatch::num_rows).sum();
        check_rows("Concat", rows)?;
        if let Some(batch) = batches.iter().find(|batch| batch.columns().len() != self.types.len()) {
            return Err(Error::Internal(format!("a batch of {} columns, not {}", batch.columns().len(), self.types.len())));
        }
        let lies_right =
            |batch: &DeviceBatch| batch.columns().iter().zip(&self.types).all(|(column, ty)| column.ty().layout == ty.layout);
        match batches.as_slice() {
            [] => return Ok(None),
            [batch] if lies_right(batch) => return Ok(batches.pop()),
            _ => {}
        }
        let joiner = Joiner {
            queue,
            loaded: self.program.load(queue).await?,
            primitives: self.primitives.load(queue).await?,
            options: &self.options,
        };
        let mut columns = Vec::with_capacity(self.types.len());
        for (index, ty) in self.types.iter().enumerate() {
            let pieces = batches.iter().filter_map(|batch| batch.columns().get(index).cloned()).collect();
            columns.push((Arc::new(ty.clone()), Pieces { columns: pieces, used: vec![] }));
        }
        // The columns are all that holds the batches from here on, so that each goes once it is copied.
        drop(batches);
        joiner.find_used(&mut columns).await?;
        let mut joined = Vec::with_capacity(self.types.len());
        for (ty, pieces) in columns {
            joined.push(joiner.column(ty, pieces).await?);
        }
        Ok(Some(DeviceBatch::try_new(self.schema.clone(), joined, rows)?))
    }
}

/// The layout in which batches become one.
fn widened(ty: ColumnType) -> ColumnType {
    let layout = match ty.layout {
        Layout::Offsets32 => Layout::Offsets64,
        Layout::List(elements) => Layout::List(Box::new(widened(*elements))),
        layout => layout,
    };
    ColumnType { layout, ..ty }
}

/// Rows of columns that become one.
fn rows_of(columns: &[DeviceColumn]) -> usize {
    columns.iter().map(DeviceColumn::len).sum()
}

/// A column of each batch.
struct Pieces {
    columns: Vec<DeviceColumn>,
    /// Of strings behind offsets, the bytes of the heap that rows use.
    used: Vec<Range<usize>>,
}

/// Joins the columns of one call.
struct Joiner<'a> {
    queue: &'a Queue,
    loaded: Loaded<'a>,
    primitives: LoadedPrimitives<'a>,
    options: &'a Options,
}

impl Joiner<'_> {
    /// Reads which bytes of their heaps the rows use, of all columns at once.
    async fn find_used(&self, columns: &mut [(Arc<ColumnType>, Pieces)]) -> Result<()> {
        let strings = |ty: &ColumnType| ty.layout == Layout::Offsets64;
        let pieces: usize = columns.iter().filter(|(ty, _)| strings(ty)).map(|(_, pieces)| pieces.columns.len()).sum();
        if pieces == 0 || columns.iter().all(|(_, pieces)| pieces.columns.len() == 1) {
            return Ok(());
        }
        // Begin and end of each piece. The widths are mixed, and offsets are not negative.
        let ends = self.queue.zeroed(pieces * 2 * size_of::<u64>())?;
        let mut at = 0;
        for column in columns.iter().filter(|(ty, _)| strings(ty)).flat_map(|(_, pieces)| &pieces.columns) {
            let [offsets, _] = column.buffers() else { return Err(missing(column)) };
            let width = if column.ty().layout == Layout::Offsets32 { size_of::<i32>() } else { size_of::<i64>() };
            for element in [column.offset(), column.offset() + column.len()] {
                self.queue.copy(offsets, element * width, &ends, at * size_of::<u64>(), width)?;
                at += 1;
            }
        }
        let answer = self.queue.read(&ends, 0..ends.len()).await?;
        let mut at = 0;
        for (_, pieces) in columns.iter_mut().filter(|(ty, _)| strings(ty)) {
            for _ in &pieces.columns {
                pieces.used.push(word(&answer, at)? as usize..word(&answer, at + 1)? as usize);
                at += 2;
            }
        }
        Ok(())
    }

    /// The column of all pieces. The future is an object since lists have columns too.
    fn column(&self, ty: Arc<ColumnType>, pieces: Pieces) -> BoxFuture<'_, Result<DeviceColumn>> {
        self.column_of(ty, pieces).boxed()
    }

    async fn column_of(&self, ty: Arc<ColumnType>, mut pieces: Pieces) -> Result<DeviceColumn> {
        if let [column] = pieces.columns.as_slice()
            && column.ty().layout == ty.layout
        {
            return Ok(column.clone());
        }
        let nullable = ty.nullable && ty.layout != Layout::Null;
        let validity = if nullable { Some((self.validity(&pieces.columns)?, 0)) } else { None };
        let null_count = pieces.columns.iter().map(DeviceColumn::null_count).sum();
        let mut values = None;
        let buffers = match &ty.layout {
            Layout::Null => vec![],
            Layout::Bits => vec![self.values_of_bits(&pieces.columns)?],
            Layout::Fixed(carrier) => vec![self.fixed(&pieces.columns, carrier.width())?],
            Layout::Bytes(width) => vec![self.fixed(&pieces.columns, *width as usize)?],
            Layout::Offsets32 | Layout::Offsets64 => self.strings(&pieces)?,
            Layout::Views => self.views(&pieces.columns)?,
            Layout::Dictionary { codes, .. } => {
                let most = most_values(*codes, ty.bounds);
                for column in &mut pieces.columns {
                    let agreed = dictionary::agree(self.queue, &self.primitives, &mut values, column, most).await?;
                    *column = agreed.unwrap_or_else(|| column.clone());
                }
                vec![self.fixed(&pieces.columns, codes.width())?]
            }
            Layout::List(elements) => {
                let (words, elements) = self.lists(elements, &pieces.columns).await?;
                values = Some(Arc::new(elements));
                vec![words]
            }
        };
        Ok(DeviceColumn::try_new(ty, rows_of(&pieces.columns), buffers, validity, null_count, values)?)
    }

    fn validity(&self, columns: &[DeviceColumn]) -> Result<Buffer> {
        let pieces = columns.iter().map(|column| column.validity().map(|(bits, first)| (bits, first, column.len())));
        self.bits(pieces.collect::<Option<Vec<_>>>().ok_or_else(|| Error::Internal("a nullable column without validity".into()))?)
    }

    fn values_of_bits(&self, columns: &[DeviceColumn]) -> Result<Buffer> {
        let pieces = columns.iter().map(|column| column.buffers().first().map(|bits| (bits, column.offset(), column.len())));
        self.bits(pieces.collect::<Option<Vec<_>>>().ok_or_else(|| Error::Internal("a column of bits without bits".into()))?)
    }

    /// Bitmaps, each from a bit on and of a length, one after the other.
    fn bits(&self, pieces: Vec<(&Buffer, usize, usize)>) -> Result<Buffer> {
        let rows: usize = pieces.iter().map(|(_, _, n)| n).sum();
        let to = self.queue.alloc(rows.div_ceil(WORD_BITS) * WORD_BYTES)?;
        let mut at = 0;
        for (bits, first, n) in pieces {
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
            self.loaded.launch(self.queue, JOIN_BITS, spread(self.queue, self.options, words), named)?;
            at += n;
        }
        Ok(to)
    }

    fn fixed(&self, columns: &[DeviceColumn], width: usize) -> Result<Buffer> {
        let to = self.queue.alloc(rows_of(columns) * width)?;
        let mut at = 0;
        for column in columns {
            let [from] = column.buffers() else { return Err(missing(column)) };
            self.queue.copy(from, column.offset() * width, &to, at, column.len() * width)?;
            at += column.len() * width;
        }
        Ok(to)
    }

    /// Offsets and heap. A single piece keeps its heap.
    fn strings(&self, pieces: &Pieces) -> Result<Vec<Buffer>> {
        let to = self.queue.alloc((rows_of(&pieces.columns) + 1) * size_of::<i64>())?;
        if let [column] = pieces.columns.as_slice() {
            self.offsets(column, &to, 0, 0)?;
            let [_, heap] = column.buffers() else { return Err(missing(column)) };
            return Ok(vec![to, heap.clone()]);
        }
        let joined = self.queue.alloc(pieces.used.iter().map(Range::len).sum())?;
        let (mut row, mut at) = (0, 0);
        for (column, used) in pieces.columns.iter().zip(&pieces.used) {
            let [_, heap] = column.buffers() else { return Err(missing(column)) };
            self.offsets(column, &to, row, (at as u64).wrapping_sub(used.start as u64))?;
            self.queue.copy(heap, used.start, &joined, at, used.len())?;
            row += column.len();
            at += used.len();
        }
        Ok(vec![to, joined])
    }

    /// Writes a column's offsets, moved by `shift` modulo 2^64, from element `at` on. The last one is the next column's first.
    fn offsets(&self, column: &DeviceColumn, to: &Buffer, at: usize, shift: u64) -> Result<()> {
        let [from, _] = column.buffers() else { return Err(missing(column)) };
        let kernel = if column.ty().layout == Layout::Offsets32 { JOIN_OFFSETS32 } else { JOIN_OFFSETS64 };
        let n = column.len() + 1;
        let named = vec![
            ("from", Arg::Buffer(from)),
            ("offset", Arg::U64(column.offset() as u64)),
            ("to", Arg::Buffer(to)),
            ("at", Arg::U64(at as u64)),
            ("shift", Arg::U64(shift)),
            ("n", Arg::U64(n as u64)),
        ];
        self.loaded.launch(self.queue, kernel, spread(self.queue, self.options, n), named)
    }

    /// Views, heaps one after the other, and where each begins.
    fn views(&self, columns: &[DeviceColumn]) -> Result<Vec<Buffer>> {
        let mut heaps: Vec<Heap<'_>> = vec![];
        let (mut bytes, mut bases) = (0, 0);
        let to = self.queue.alloc(rows_of(columns) * size_of::<u128>())?;
        let mut at = 0;
        for column in columns {
            let [views, heap, own] = column.buffers() else { return Err(missing(column)) };
            let known = heaps.iter().find(|known| known.heap.raw() == heap.raw() && known.bases.raw() == own.raw());
            let first = known.map_or(bases, |known| known.first);
            if known.is_none() {
                heaps.push(Heap { heap, bases: own, at: bytes, first });
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
            self.loaded.launch(self.queue, JOIN_VIEWS, spread(self.queue, self.options, column.len()), named)?;
            at += column.len();
        }
        if let [Heap { heap, bases, .. }] = heaps.as_slice() {
            return Ok(vec![to, (*heap).clone(), (*bases).clone()]);
        }
        let (joined, places) = (self.queue.alloc(bytes)?, self.queue.alloc(bases * size_of::<u64>())?);
        for Heap { heap, bases, at, first } in heaps {
            self.queue.copy(heap, 0, &joined, at, heap.len())?;
            let n = bases.len() / size_of::<u64>();
            if n > 0 {
                self.words((bases, 0, n), &places, first, at)?;
            }
        }
        Ok(vec![to, joined, places])
    }

    /// Words of lists, and the elements that they point at: those of each column once, however many share them.
    async fn lists(&self, ty: &ColumnType, columns: &[DeviceColumn]) -> Result<(Buffer, DeviceColumn)> {
        let mut kept: Vec<(&Arc<DeviceColumn>, usize)> = vec![];
        let mut total = 0;
        let to = self.queue.alloc(rows_of(columns) * size_of::<u64>())?;
        let mut at = 0;
        for column in columns {
            let ([words], Some(elements)) = (column.buffers(), column.elements()) else { return Err(missing(column)) };
            let known = kept.iter().find(|(known, _)| Arc::ptr_eq(known, elements));
            let first = known.map_or(total, |(_, first)| *first);
            if known.is_none() {
                kept.push((elements, total));
                total += elements.len();
            }
            if total > MOST_ELEMENTS {
                return Err(Error::Unsupported(format!(
                    "Concat: lists of {total} elements in one batch, the limit is {MOST_ELEMENTS}"
                )));
            }
            self.words((words, column.offset(), column.len()), &to, at, first)?;
            at += column.len();
        }
        let ty = Arc::new(ty.clone());
        let pieces: Vec<_> = kept.into_iter().map(|(elements, _)| elements).filter(|elements| !elements.is_empty()).collect();
        if pieces.is_empty() {
            let field = Field::new("elements", ty.data_type.clone(), ty.nullable);
            let one = DeviceBatch::blank(self.queue, &Arc::new(Schema::new(vec![field])), &[(*ty).clone()])?;
            let none = one.columns().first().map(|elements| elements.slice(0, 0));
            return Ok((to, none.ok_or_else(|| Error::Internal("a batch without its column".into()))?));
        }
        let pieces = Pieces { columns: pieces.into_iter().map(|elements| (**elements).clone()).collect(), used: vec![] };
        let mut columns = [(ty, pieces)];
        self.find_used(&mut columns).await?;
        let [(ty, pieces)] = columns;
        Ok((to, self.column(ty, pieces).await?))
    }

    /// Writes `n` words from one on, each moved by `shift`, from element `at` on.
    fn words(&self, (from, offset, n): (&Buffer, usize, usize), to: &Buffer, at: usize, shift: usize) -> Result<()> {
        let named = vec![
            ("from", Arg::Buffer(from)),
            ("offset", Arg::U64(offset as u64)),
            ("to", Arg::Buffer(to)),
            ("at", Arg::U64(at as u64)),
            ("shift", Arg::U64(shift as u64)),
            ("n", Arg::U64(n as u64)),
        ];
        self.loaded.launch(self.queue, JOIN_WORDS, spread(self.queue, self.options, n), named)
    }
}

/// A heap of views, in which several columns may have theirs.
struct Heap<'a> {
    heap: &'a Buffer,
    bases: &'a Buffer,
    /// Its first byte among all, and the number of its first base.
    at: usize,
    first: usize,
}

/// Values that codes can number, those below the bounds where there are any.
fn most_values(codes: Carrier, bounds: Option<(i128, i128)>) -> usize {
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
        Kernel::new(name, params, for_rows(options.profile, row, &n, statements))
    };
    let bits = [
        ("bits", "const G u8 *RESTRICT"),
        ("first", "u64"),
        ("n", "u64"),
        ("to", "G u32 *RESTRICT"),
        ("skipped", "u64"),
        ("lead", "u32"),
    ];
    let mut join_bits = kernel("join_bits", &bits, "w", "words", BITS);
    join_bits.params.function(BITS_FROM.into());
    let offsets = |name: &str, from: &str| {
        let named = [("from", from), ("offset", "u64"), ("to", "G i64 *RESTRICT"), ("at", "u64"), ("shift", "u64")];
        kernel(name, &named, "row", "n", "    to[row + at] = (i64)((u64)from[row + offset] + shift);\n")
    };
    let views =
        [("from", "const G u32 *RESTRICT"), ("offset", "u64"), ("to", "G u32 *RESTRICT"), ("at", "u64"), ("shift", "u32")];
    let words =
        [("from", "const G u64 *RESTRICT"), ("offset", "u64"), ("to", "G u64 *RESTRICT"), ("at", "u64"), ("shift", "u64")];
    vec![
        join_bits,
        offsets("join_offsets32", "const G i32 *RESTRICT"),
        offsets("join_offsets64", "const G i64 *RESTRICT"),
        kernel("join_views", &views, "row", "n", VIEWS),
        kernel("join_words", &words, "row", "n", "    to[row + at] = from[row + offset] + shift;\n"),
    ]
}

/// A word of the result; the first one keeps the `lead` bits that the pieces before have written.
const BITS: &str =
    "    u32 word = w ? bits_from(bits, first + w * 32 - lead, first + n) : bits_from(bits, first, first + n) << lead;
    if (w == 0 && lead) word |= to[skipped] & ((1u << lead) - 1);
    to[skipped + w] = word;
";

/// Below a NULL a view may be anything, and stays so.
const VIEWS: &str = "    const G u32 *view = from + (row + offset) * 4;
    G u32 *out = to + (row + at) * 4;
    u32 len = view[0];
    out[0] = len;
    out[1] = view[1];
    out[2] = len > 12 ? view[2] + shift : view[2];
    out[3] = view[3];
";
