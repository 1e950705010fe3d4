// SPDX-License-Identifier: Apache-2.0
//! Strings as their ranks: equal strings have the same number, and lesser ones a lesser one.
//!
//! All strings are sorted by their first bytes as one word; then only those that tie and go on, by their next bytes, within
//! the segment of those that they tie with, until none is left (forward radix sort). The words of a round order
//! [`CHUNK`] bytes and, below them, how many of these the string has, so that no byte value needs to be set apart. Bytes that
//! a segment's strings have in common are passed over, so that each round tells some of them apart, however long they are.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, Queue};

use super::radix::{LoadedRadix, Pairs};
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::compact::{Survivors, mask_body, write_body};
use crate::ops::forms::LoadedForms;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Program, for_rows, spread};
use crate::prelude::Section;
use crate::{Error, Result};

const CHUNKS: usize = 0;
const SEGMENTS: usize = 1;
const SETTLE: usize = 2;
const CARRY: usize = 3;
const RANKS: usize = 4;
const COMMON: usize = 5;

/// Bytes of a string that one word holds; the word's last byte says how many there are, one more where the string goes on.
const CHUNK: usize = 7;

/// The most bytes that a round passes over: launches are bounded.
const MOST_COMMON: u32 = 1 << 20;

/// Ranks the strings of a column of one type.
#[derive(Debug, Clone)]
pub(super) struct Ranker {
    program: Program,
    options: Options,
}

/// Strings that are not in their place yet, and what is known of where that is.
struct Unsettled {
    n: usize,
    /// Numbers of the strings, 32 bits each, in order of their segments.
    rows: Buffer,
    /// Where the strings of this order go among all.
    places: Buffer,
    /// Number of the segment, 64 bits each, behind one word that the scan needs.
    segments: Buffer,
    /// Bytes that they are sorted by, 32 bits each, the same in a segment.
    depths: Buffer,
    /// How many more a segment's strings have in common, by its number, 32 bits each.
    common: Buffer,
}

impl Ranker {
    /// For columns of `ty`, strings of any layout but a dictionary's.
    pub fn try_new(ty: &ColumnType, options: &Options) -> Result<Ranker> {
        let kernels = vec![
            chunks(ty, options)?,
            fixed(
                "sort_segments",
                &[("segments", "const G i64 *RESTRICT"), ("ids", "const G u32 *RESTRICT"), ("words", "G u64 *RESTRICT")],
                options,
                "    words[row] = (u64)segments[ids[row] + 1];\n",
            ),
            settle(options),
            carry(options),
            fixed(
                "sort_ranks",
                &[("places", "const G u32 *RESTRICT"), ("heads", "const G i64 *RESTRICT"), ("ranks", "G u32 *RESTRICT")],
                options,
                "    ranks[places[row]] = (u32)(heads[row + 1] - 1);\n",
            ),
            common(ty, options)?,
        ];
        Ok(Ranker { program: Program::try_new("Sort", options, kernels)?, options: options.clone() })
    }

    /// The program as it is compiled.
    pub fn text(&self) -> &str {
        self.program.text()
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.program.kernel_text()
    }

    /// The ranks of a column's strings, 32 bits each; NULL ranks as the empty string. Waits in every round.
    pub async fn run(
        &self,
        queue: &Queue,
        primitives: &LoadedPrimitives<'_>,
        forms: &LoadedForms<'_>,
        radix: &LoadedRadix<'_>,
        column: &DeviceColumn,
    ) -> Result<Buffer> {
        let n = column.len();
        let loaded = self.program.load(queue).await?;
        let schema = Schema::new(vec![Field::new("strings", column.ty().data_type.clone(), true)]);
        let batch = DeviceBatch::try_new(Arc::new(schema), vec![column.clone()], n)?;
        // Of all strings, in the order that is found: their numbers, and where others follow than stand before.
        let order = queue.alloc(n * size_of::<u32>())?;
        let heads = queue.zeroed((n + 1) * size_of::<i64>())?;
        let number = |n: usize| forms.number(queue, Carrier::U32, n);
        let mut left = Unsettled {
            n,
            rows: number(n)?,
            places: number(n)?,
            segments: queue.zeroed((n + 1) * size_of::<i64>())?,
            depths: queue.zeroed(n * size_of::<u32>())?,
            common: queue.zeroed(size_of::<u32>())?,
        };
        let mut first = true;
        while left.n > 0 {
            let m = left.n;
            let grid = spread(queue, &self.options, m);
            let chunks = queue.alloc(m * size_of::<u64>())?;
            let named = vec![
                ("rows", Arg::Buffer(&left.rows)),
                ("words", Arg::Buffer(&chunks)),
                ("segments", Arg::Buffer(&left.segments)),
                ("depths", Arg::Buffer(&left.depths)),
                ("common", Arg::Buffer(&left.common)),
                ("n", Arg::U64(m as u64)),
            ];
            loaded.launch_on(queue, CHUNKS, grid, &batch, None, named)?;
            // The words that are sorted move.
            let words = queue.alloc(m * size_of::<u64>())?;
            queue.copy(&chunks, 0, &words, 0, m * size_of::<u64>())?;
            let pairs = Pairs { words, rows: number(m)? };
            let mut ids = radix.sort(queue, primitives, pairs, m).await?.rows;
            if !std::mem::take(&mut first) {
                let words = queue.alloc(m * size_of::<u64>())?;
                let named = vec![
                    ("segments", Arg::Buffer(&left.segments)),
                    ("ids", Arg::Buffer(&ids)),
                    ("words", Arg::Buffer(&words)),
                    ("n", Arg::U64(m as u64)),
                ];
                loaded.launch(queue, SEGMENTS, grid, named)?;
                ids = radix.sort(queue, primitives, Pairs { words, rows: ids }, m).await?.rows;
            }
            let known = [
                ("chunks", Arg::Buffer(&chunks)),
                ("ids", Arg::Buffer(&ids)),
                ("segments", Arg::Buffer(&left.segments)),
                ("rows", Arg::Buffer(&left.rows)),
                ("places", Arg::Buffer(&left.places)),
            ];
            let results = [("order", Arg::Buffer(&order)), ("heads", Arg::Buffer(&heads))];
            let extra: Vec<_> = known.into_iter().chain(results).collect();
            let ties = Survivors::find(queue, &self.options, primitives, m, &extra, |grid, named, _| {
                loaded.launch(queue, SETTLE, grid, named)
            })
            .await?;
            if ties.count == 0 {
                break;
            }
            let next = Unsettled {
                n: ties.count,
                rows: queue.alloc(ties.count * size_of::<u32>())?,
                places: queue.alloc(ties.count * size_of::<u32>())?,
                segments: queue.alloc((ties.count + 1) * size_of::<i64>())?,
                depths: queue.alloc(ties.count * size_of::<u32>())?,
                common: queue.filled((ties.count + 1) * size_of::<u32>(), 0xff)?,
            };
            let mut named = ties.args();
            named.extend(known);
            named.extend([
                ("next_rows", Arg::Buffer(&next.rows)),
                ("next_places", Arg::Buffer(&next.places)),
                ("next_segments", Arg::Buffer(&next.segments)),
                ("depths", Arg::Buffer(&left.depths)),
                ("next_depths", Arg::Buffer(&next.depths)),
            ]);
            loaded.launch(queue, CARRY, ties.grid(), named)?;
            let control = queue.alloc(size_of::<u64>())?;
            primitives.offsets(queue, &next.segments, 0, next.n, 0, &control, 0)?;
            let named = vec![
                ("rows", Arg::Buffer(&next.rows)),
                ("segments", Arg::Buffer(&next.segments)),
                ("depths", Arg::Buffer(&next.depths)),
                ("common", Arg::Buffer(&next.common)),
                ("n", Arg::U64(next.n as u64)),
            ];
            loaded.launch_on(queue, COMMON, spread(queue, &self.options, next.n), &batch, None, named)?;
            left = next;
        }
        let (control, ranks) = (queue.alloc(size_of::<u64>())?, queue.alloc(n * size_of::<u32>())?);
        if n > 0 {
            primitives.offsets(queue, &heads, 0, n, 0, &control, 0)?;
            let named = vec![
                ("places", Arg::Buffer(&order)),
                ("heads", Arg::Buffer(&heads)),
                ("ranks", Arg::Buffer(&ranks)),
                ("n", Arg::U64(n as u64)),
            ];
            loaded.launch(queue, RANKS, spread(queue, &self.options, n), named)?;
        }
        Ok(ranks)
    }
}

fn chunks(ty: &ColumnType, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Str);
    let rows = params.named("rows", "const G u32 *RESTRICT");
    let words = params.named("words", "G u64 *RESTRICT");
    let segments = params.named("segments", "const G i64 *RESTRICT");
    let depths = params.named("depths", "G u32 *RESTRICT");
    let common = params.named("common", "const G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let types = [ty.clone()];
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_names(&format!("{rows}[row]"), "x");
    let value = writer.eval(&Expr::Column(0))?;
    let (code, valid) = (&value.code, value.valid_code());
    writer.push(&format!(
        "u32 depth = {depths}[row] + {common}[{segments}[row + 1]];
{depths}[row] = depth + {CHUNK};
{words}[row] = {valid} ? str_chunk({code}.p, {code}.len, depth) : 0;"
    ));
    let statements = writer.statements();
    let mut kernel = Kernel::new("sort_chunks", params, for_rows(options.profile, "row", &n, &statements));
    kernel.params.function(str_chunk());
    Ok(kernel)
}

/// Finds how many bytes each string has in common with the one before it in its segment, and of these the fewest.
fn common(ty: &ColumnType, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Str);
    let rows = params.named("rows", "const G u32 *RESTRICT");
    let segments = params.named("segments", "const G i64 *RESTRICT");
    let depths = params.named("depths", "const G u32 *RESTRICT");
    let common = params.named("common", "volatile G u32 *");
    let n = params.named("n", "u64");
    let types = [ty.clone()];
    let mut string = |row: &str, prefix: &str| {
        let mut writer = RowWriter::new(&types, options.profile, &mut params).with_names(&format!("{rows}[{row}]"), prefix);
        let value = writer.eval(&Expr::Column(0))?;
        let text = (value.code.clone(), value.valid_code().to_string());
        Ok::<_, Error>((writer.statements(), text))
    };
    let (own_statements, (own, own_valid)) = string("row", "x")?;
    let (other_statements, (other, other_valid)) = string("row - 1", "y")?;
    let statements = format!(
        "    if (row > 0 && {segments}[row] == {segments}[row + 1]) {{
{other_statements}{own_statements}      u32 own_len = {own_valid} ? {own}.len : 0, other_len = {other_valid} ? {other}.len : 0;
      A_MIN32(&{common}[{segments}[row + 1]], str_common({own}.p, own_len, {other}.p, other_len, {depths}[row]));
    }}
"
    );
    let mut kernel = Kernel::new("sort_common", params, for_rows(options.profile, "row", &n, &statements));
    kernel.params.function(STR_COMMON.replace("MOST", &MOST_COMMON.to_string()));
    Ok(kernel)
}

/// The function that words of strings come from.
pub(super) fn str_chunk() -> String {
    STR_CHUNK.replace("CHUNK", &CHUNK.to_string())
}

fn fixed(name: &str, named: &[(&str, &str)], options: &Options, statements: &str) -> Kernel {
    let mut params = declare(named);
    let n = params.named("n", "u64");
    Kernel::new(name, params, for_rows(options.profile, "row", &n, statements))
}

fn declare(named: &[(&str, &str)]) -> Params {
    let mut params = Params::new();
    params.need(Section::Base);
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    params
}

/// What both kernels after a sort read.
const KNOWN: [(&str, &str); 5] = [
    ("chunks", "const G u64 *RESTRICT"),
    ("ids", "const G u32 *RESTRICT"),
    ("segments", "const G i64 *RESTRICT"),
    ("rows", "const G u32 *RESTRICT"),
    ("places", "const G u32 *RESTRICT"),
];

/// Puts the strings of a round where they belong as far as it tells, and finds those that still tie.
fn settle(options: &Options) -> Kernel {
    let mut params = declare(&KNOWN);
    params.named("order", "G u32 *RESTRICT");
    params.named("heads", "G i64 *RESTRICT");
    let statements = "    u32 id = ids[row];
    u64 chunk = chunks[id];
    i32 before = row > 0 && segments[row] == segments[row + 1] && chunks[ids[row - 1]] == chunk;
    i32 after = row + 1 < n && segments[row + 2] == segments[row + 1] && chunks[ids[row + 1]] == chunk;
    u32 place = places[row];
    order[place] = rows[id];
    if (!before) heads[place + 1] = 1;
";
    let condition = format!("(before | after) & ((chunk & 255) > {CHUNK})");
    let body = mask_body(&mut params, options, statements, &condition);
    Kernel::new("sort_settle", params, body)
}

/// Writes those that still tie.
fn carry(options: &Options) -> Kernel {
    let mut params = declare(&KNOWN);
    for (name, c_type) in [
        ("next_rows", "G u32 *RESTRICT"),
        ("next_places", "G u32 *RESTRICT"),
        ("next_segments", "G i64 *RESTRICT"),
        ("depths", "const G u32 *RESTRICT"),
        ("next_depths", "G u32 *RESTRICT"),
    ] {
        params.named(name, c_type);
    }
    let statements = "    u32 id = ids[row];
    i32 before = row > 0 && segments[row] == segments[row + 1] && chunks[ids[row - 1]] == chunks[id];
    next_rows[o] = rows[id];
    next_places[o] = places[row];
    next_segments[o + 1] = !before;
    next_depths[o] = depths[id];
";
    let body = write_body(&mut params, options, statements);
    Kernel::new("sort_carry", params, body)
}

/// Bytes from `depth` on, the first one most significant; then their number.
const STR_CHUNK: &str = "FN u64 str_chunk(const G u8 *p, u32 len, u32 depth) {
  if (len <= depth) return 0;
  u32 rest = len - depth;
  u64 word = 0;
  if (rest > CHUNK) {
    u64 bytes = LOAD64(p + depth);
    bytes = (bytes & (u64)0x00ff00ff00ff00ffUL) << 8 | (bytes >> 8 & (u64)0x00ff00ff00ff00ffUL);
    bytes = (bytes & (u64)0x0000ffff0000ffffUL) << 16 | (bytes >> 16 & (u64)0x0000ffff0000ffffUL);
    return ((bytes << 32 | bytes >> 32) & ~(u64)255) | (CHUNK + 1);
  }
  for (u32 i = 0; i < rest; ++i) word |= (u64)p[depth + i] << (56 - 8 * i);
  return word | rest;
}
";

/// Bytes from `depth` on that are equal.
const STR_COMMON: &str = "FN u32 str_common(const G u8 *p, u32 p_len, const G u8 *q, u32 q_len, u32 depth) {
  u32 len = p_len < q_len ? p_len : q_len, i = 0;
  if (len <= depth) return 0;
  len = len - depth < MOST ? len - depth : MOST;
  p += depth;
  q += depth;
  while (i + 8 <= len && LOAD64(p + i) == LOAD64(q + i)) i += 8;
  while (i < len && p[i] == q[i]) ++i;
  return i;
}
";
