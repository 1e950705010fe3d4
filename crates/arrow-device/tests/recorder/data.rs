// SPDX-License-Identifier: Apache-2.0
//! The data of data.c, rebuilt in Rust, and exports with counted memory.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering::SeqCst};

use arrow::array::{
    Array, ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int8Array, Int32Array,
    ListArray, NullArray, RecordBatch, StringArray, StringViewArray, StructArray,
};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Int8Type, Int64Type, Schema, SchemaRef};
use arrow_device::Result;
use arrow_device::cpu;
use arrow_device::ffi::FFI_ArrowDeviceArray;

/// Rows of a batch by default.
pub const ROWS: i64 = 5;

/// The numbers of the setting `malformed`: see the list in data.c.
pub const MALFORMED: std::ops::RangeInclusive<i64> = 1..=26;

/// The numbers of `malformed_schema`.
pub const MALFORMED_SCHEMA: std::ops::RangeInclusive<i64> = 1..=12;

/// Column `a` of these rows, in all shapes but 2.
pub fn ints(first: i64, rows: i64) -> Int32Array {
    (first..first + rows).map(|g| (g % 3 != 2).then_some((g * 3 - 1) as i32)).collect()
}

/// Rows of shape 0 with all columns, 1 with one column, or 2 with none.
pub fn batch(shape: i64, first: i64, rows: i64) -> RecordBatch {
    let numbers = || first..first + rows;
    let item = Arc::new(Field::new("item", DataType::Int64, false));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(
        numbers().map(|g| Some((0..g % 3).map(|j| Some(g * 10 + j)).collect::<Vec<_>>())),
    );
    let (_, offsets, items, _) = lists.into_parts();
    let keys: Int8Array = numbers().map(|g| (g % 5 != 1).then_some((g % 3) as i8)).collect();
    let colours: ArrayRef = Arc::new(StringArray::from(vec!["red", "green", "blue"]));
    let halves: ArrayRef = Arc::new(Float64Array::from_iter_values(numbers().map(|g| g as f64 / 2.0)));
    let x = Arc::new(Field::new("x", DataType::Float64, false));
    let strings = numbers().map(|g| match g {
        g if g % 5 == 4 => String::new(),
        g if g % 4 == 0 => format!("é{g}"),
        g => format!("row{g}"),
    });
    let views = numbers().map(|g| if g % 2 == 1 { format!("a string that is number {g}") } else { format!("s{g}") });
    let bytes = numbers().flat_map(|g| [g as u8, (g as u8).wrapping_add(1), 0]).collect::<Vec<_>>();
    let columns: Vec<(&str, bool, ArrayRef)> = vec![
        ("a", true, Arc::new(ints(first, rows))),
        ("b", false, Arc::new(StringArray::from_iter_values(strings))),
        ("c", true, Arc::new(numbers().map(|g| (g % 4 != 3).then_some(g % 2 == 0)).collect::<BooleanArray>())),
        ("d", false, Arc::new(ListArray::new(item, offsets, items, None))),
        ("e", true, Arc::new(DictionaryArray::<Int8Type>::new(keys, colours))),
        ("f", false, Arc::new(StructArray::new(vec![x].into(), vec![halves], None))),
        (
            "g",
            false,
            Arc::new(
                Decimal128Array::from_iter_values(numbers().map(|g| i128::from(g) * 100))
                    .with_precision_and_scale(10, 2)
                    .unwrap(),
            ),
        ),
        ("h", false, Arc::new(StringViewArray::from_iter_values(views))),
        ("i", true, Arc::new(NullArray::new(rows as usize))),
        ("j", false, Arc::new(FixedSizeBinaryArray::new(3, Buffer::from_vec(bytes), None))),
    ];
    let wanted = [10, 1, 0][shape as usize];
    let columns = columns.into_iter().take(wanted);
    let (fields, columns): (Vec<_>, Vec<_>) =
        columns.map(|(name, nullable, column)| (Field::new(name, column.data_type().clone(), nullable), column)).unzip();
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows as usize));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options).unwrap()
}

/// Batches of all columns, [`ROWS`] each.
pub fn batches(n: i64) -> Vec<RecordBatch> {
    (0..n).map(|k| batch(0, k * ROWS, ROWS)).collect()
}

/// Counts live allocations.
#[derive(Clone, Default)]
pub struct LiveCount(Arc<AtomicIsize>);

impl LiveCount {
    pub fn token(&self) -> LiveToken {
        self.0.fetch_add(1, SeqCst);
        LiveToken(Arc::clone(&self.0))
    }

    pub fn count(&self) -> isize {
        self.0.load(SeqCst)
    }

    /// The same integers in counted memory of their own.
    fn counted(&self, values: &Int32Array) -> Int32Array {
        let memory = Arc::new((self.token(), values.values().to_vec()));
        let start = NonNull::new(memory.1.as_ptr().cast_mut().cast::<u8>()).unwrap();
        // SAFETY: the allocation owns the memory, which never changes.
        let buffer = unsafe { Buffer::from_custom_allocation(start, memory.1.len() * 4, memory) };
        Int32Array::new(ScalarBuffer::from(buffer), values.nulls().cloned())
    }

    /// Batch `k` of [`batches`], with column `a` in counted memory, as a device array.
    pub fn export(&self, k: i64) -> Result<FFI_ArrowDeviceArray> {
        let batch = batch(0, k * ROWS, ROWS);
        let mut columns = batch.columns().to_vec();
        columns[0] = Arc::new(self.counted(&ints(k * ROWS, ROWS)));
        // Every second batch is a slice of a larger one: offsets and unaligned bitmaps.
        let batch = RecordBatch::try_new(batch.schema(), columns).unwrap();
        match k % 2 {
            0 => cpu::export_batch(&batch),
            _ => {
                let before = self::batch(0, 0, 3);
                let all = concat_batches(&batch.schema(), [&before, &batch]).unwrap();
                let mut columns = all.slice(3, ROWS as usize).columns().to_vec();
                columns[0] = Arc::clone(batch.column(0));
                cpu::export_batch(&RecordBatch::try_new(batch.schema(), columns).unwrap())
            }
        }
    }
}

/// The schema of the exports of [`LiveCount::export`].
pub fn schema() -> SchemaRef {
    batch(0, 0, 1).schema()
}

pub struct LiveToken(Arc<AtomicIsize>);

impl Drop for LiveToken {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Repetitions of a random test: fewer under valgrind.
pub fn rounds(n: i64) -> i64 {
    if std::env::var_os(BRIEF).is_some() { n / 10 } else { n }
}

/// Set under valgrind.
pub const BRIEF: &str = "RECORDER_BRIEF";

/// Reproducible pseudo-random numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as i64 % end
    }
}
