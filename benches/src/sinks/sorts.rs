// SPDX-License-Identifier: Apache-2.0
//! Sorts by one or two keys, with a payload column.
//!
//! Times are relative to the device's copy bandwidth, for the bytes that a radix sort with 8-bit
//! digits must move:
//!
//! - one pass per digit, which reads and writes a 64-bit key and a row number,
//! - one read and one write of each row.
//!
//! The encoding of keys, a pass that only counts digits, and the random access to rows are not
//! counted. A string counts as one key of its first seven bytes, which differ.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::error::Result;
use kernels::expr::Expr;
use kernels::ops::{Sort, SortKey};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{SinkBench, external, millions, percent};
use crate::report::{Table, milliseconds};

/// Bytes that a pass moves per row: a 64-bit key and a row number, read and written.
const PASS_BYTES: usize = 2 * (8 + 4);
/// Bytes of a string key.
const STRING_BYTES: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    Int64,
    TwoInt32,
    Strings,
}

/// A sort to time.
#[derive(Debug, Clone, Copy)]
pub struct SortCase {
    keys: Keys,
    rows: usize,
}

impl Display for SortCase {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let keys = match self.keys {
            Keys::Int64 => "an int of 8 bytes",
            Keys::TwoInt32 => "two ints of 4 bytes",
            Keys::Strings => "a string of 16 bytes",
        };
        write!(f, "by {keys}, {} rows", self.rows)
    }
}

impl SortCase {
    /// Least bytes that a radix sort moves.
    fn bytes(self) -> usize {
        let (digits, row_bytes) = match self.keys {
            Keys::Int64 | Keys::TwoInt32 => (8, 8 + 8),
            // The string, its offset and the payload.
            Keys::Strings => (7, STRING_BYTES + 4 + 8),
        };
        self.rows * (digits * PASS_BYTES + 2 * row_bytes)
    }

    fn table(self) -> Result<RecordBatch> {
        let mut random = StdRng::seed_from_u64(2);
        let mut columns: Vec<(&str, ArrayRef)> = match self.keys {
            Keys::Int64 => vec![("a", Arc::new(Int64Array::from_iter_values((0..self.rows).map(|_| random.random()))))],
            Keys::TwoInt32 => ["a", "b"]
                .map(|name| (name, Arc::new(Int32Array::from_iter_values((0..self.rows).map(|_| random.random()))) as _))
                .to_vec(),
            Keys::Strings => {
                let mut string = || (0..STRING_BYTES).map(|_| char::from(random.random_range(b'a'..=b'z'))).collect::<String>();
                vec![("a", Arc::new(StringArray::from_iter_values((0..self.rows).map(|_| string()))))]
            }
        };
        columns.push(("row", Arc::new(Int64Array::from_iter_values(0..self.rows as i64))));
        Ok(RecordBatch::try_from_iter(columns)?)
    }
}

/// Each key type; strings with a quarter of the rows.
pub fn cases(rows: usize) -> [SortCase; 3] {
    [(Keys::Int64, rows), (Keys::TwoInt32, rows), (Keys::Strings, rows / 4)].map(|(keys, rows)| SortCase { keys, rows })
}

/// Time of a sort.
#[derive(Debug)]
pub struct SortTimes {
    seconds: f64,
    copy_bytes_per_second: f64,
}

impl SortTimes {
    fn share(&self, case: SortCase) -> f64 {
        case.bytes() as f64 / self.seconds / self.copy_bytes_per_second
    }

    pub fn json(&self, device: &str, case: SortCase) -> Value {
        json!({
            "device": device,
            "sort": case.to_string(),
            "rows": case.rows,
            "bytes": case.bytes(),
            "seconds": self.seconds,
            "percent_of_copies": self.share(case) * 100.0,
        })
    }
}

/// A line for each sort.
pub fn print(results: &[(String, SortCase, SortTimes)]) {
    let mut table = Table::new(["sort", "device", "ms", "M rows/s", "bytes a row", "of copies"]);
    for (device, case, timed) in results {
        table.push([
            case.to_string(),
            device.clone(),
            milliseconds(timed.seconds),
            millions(case.rows, timed.seconds),
            (case.bytes() / case.rows).to_string(),
            percent(timed.share(*case)),
        ]);
    }
    print!("{}", table.render());
}

/// Sorts by all columns except the last, which is the payload.
pub async fn measure(bench: &SinkBench, case: SortCase) -> Result<SortTimes> {
    let (input, rows) = bench.upload(case.table()?)?;
    let fields = input.schema.fields();
    let key = |index| SortKey { expr: Expr::Column(index), descending: false, nulls_first: false };
    let keys = (0..fields.len() - 1).map(key).collect();
    let outputs = fields.iter().enumerate().map(|(index, field)| (Expr::Column(index), field.as_ref().clone())).collect();
    let sort = Sort::try_new(input, keys, outputs, None, bench.options.clone()).map_err(external)?;
    let run = async || {
        let mut state = sort.start();
        sort.push(&bench.queue, &mut state, &rows).await?;
        let sorted = sort.finish(&bench.queue, state).await?;
        kernels::Result::Ok(sorted.iter().map(|batch| batch.num_rows()).sum::<usize>())
    };
    let (seconds, sorted) = bench.time(run).await.map_err(external)?;
    if sorted != case.rows {
        return internal_err!("a sort of {case} gave {sorted} rows");
    }
    Ok(SortTimes { seconds, copy_bytes_per_second: bench.copy_bytes_per_second })
}
