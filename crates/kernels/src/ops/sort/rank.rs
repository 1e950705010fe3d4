// SPDX-License-Identifier: Apache-2.0
//! Ranks of strings: equal strings have equal ranks, lesser strings lesser ones.
//!
//! Forward radix sort: all strings are sorted by their first bytes as one word. Then tied strings
//! are sorted by their next bytes, within their *segment* of equals so far, until no ties are left.
//!
//! A word has [`CHUNK`] bytes and, below them, the number of these bytes that the string has, so
//! that no byte value is reserved. Bytes that the strings of a segment have in common are skipped,
//! so that each round resolves some ties, however long the strings are.
//!
//! A few short strings are ranked by one kernel without a wait: each counts the lesser ones.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, ProgramSource};

use super::radix::{LoadedRadix, WordRowPairs};
use super::strings::{MAX_COMPARED_BYTES, compared_bytes, string_or_empty};
use crate::codegen::{Params, Profile, RowWriter};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::launch::compact::{Survivors, mask_body, write_body};
use crate::ops::launch::layout_kernels::LoadedLayoutKernels;
use crate::ops::launch::primitives::Lengths;
use crate::ops::launch::program::{Kernel, Program, row_loop};
use crate::ops::launch::{Launch, NamedArgs};
use crate::prelude::Section;
use crate::{Error, Result};

const CHUNKS: usize = 0;
const SEGMENTS: usize = 1;
const SETTLE: usize = 2;
const CARRY: usize = 3;
const RANKS: usize = 4;
const COMMON: usize = 5;

/// Most strings that are ranked by counting.
fn max_counted_strings(options: &Options) -> usize {
    options.threshold(match options.profile {
        Profile::Cpu => 128,
        Profile::Gpu => 512,
    })
}

/// Bytes of a string in a word. The last byte of the word is their number, plus one if the string
/// has more.
const CHUNK: usize = 7;

/// Most bytes that a round skips, so that launches are bounded.
const MAX_COMMON: u32 = 1 << 20;

/// Ranks the strings of columns of one type.
#[derive(Debug, Clone)]
pub(super) struct Ranker {
    program: Program,
    /// For a few strings.
    few: Program,
}

/// Strings whose position in the order is not known yet.
struct Ties {
    n: usize,
    /// Row numbers of the strings, u32 each, in the order of their segments.
    rows: Buffer,
    /// Positions that the strings take in the order of all, u32 each.
    positions: Buffer,
    /// Number of the segment, i64 each, after a first element for the prefix sum.
    segments: Buffer,
    /// Bytes that the strings are sorted by already, u32 each, the same within a segment.
    depths: Buffer,
    /// How many more bytes the strings of a segment have in common, by its number, u32 each.
    common: Buffer,
}

/// The order of all strings, as far as it is known.
struct RankedOrder {
    /// Row numbers by position, u32 each.
    rows: Buffer,
    /// For each position, 1 if its string differs from the one before; i64 each, after a first
    /// element for the prefix sum.
    heads: Buffer,
}

impl Ranker {
    /// For columns of `ty`, strings of any layout but a dictionary's.
    pub fn try_new(ty: &ColumnType, options: &Options) -> Result<Ranker> {
        let kernels = vec![
            chunks_kernel(ty, options)?,
            row_kernel(
                "sort_segments",
                &[("segments", "const G i64 *RESTRICT"), ("ids", "const G u32 *RESTRICT"), ("words", "G u64 *RESTRICT")],
                options,
                "    words[row] = (u64)segments[ids[row] + 1];\n",
            ),
            settle_kernel(options),
            carry_kernel(options),
            row_kernel(
                "sort_ranks",
                &[("positions", "const G u32 *RESTRICT"), ("heads", "const G i64 *RESTRICT"), ("ranks", "G u32 *RESTRICT")],
                options,
                "    ranks[positions[row]] = (u32)(heads[row + 1] - 1);\n",
            ),
            common_kernel(ty, options)?,
        ];
        let few = Program::new("Sort", options, vec![few_kernel(ty, options)?]);
        Ok(Ranker { program: Program::new("Sort", options, kernels), few })
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> [ProgramSource; 2] {
        [self.program.source(), self.few.source()]
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        [&self.few, &self.program].into_iter().flat_map(Program::kernel_source).collect()
    }

    /// The ranks of a column's strings, u32 each. NULL ranks as the empty string. Many strings wait
    /// in every round.
    pub async fn run(
        &self,
        launch: &Launch<'_>,
        layout_kernels: &LoadedLayoutKernels<'_>,
        radix: &LoadedRadix<'_>,
        column: &DeviceColumn,
    ) -> Result<Buffer> {
        let n = column.len();
        let queue = launch.queue;
        let are_few = n <= max_counted_strings(launch.options) && compared_bytes(column, n) <= MAX_COMPARED_BYTES;
        if n > 0 && are_few {
            let launch = launch.with_program(&self.few).await?;
            let ranks = queue.alloc(n * size_of::<u32>())?;
            let named = vec![("ranks", Arg::Buffer(&ranks)), ("n", Arg::U64(n as u64))];
            launch.run_on(0, launch.grid(n), std::slice::from_ref(column), None, named)?;
            return Ok(ranks);
        }
        let launch = launch.with_program(&self.program).await?;
        let schema = Schema::new(vec![Field::new("strings", column.ty().data_type.clone(), true)]);
        let strings = DeviceBatch::try_new(Arc::new(schema), vec![column.clone()], n)?;
        let order = RankedOrder { rows: queue.alloc(n * size_of::<u32>())?, heads: queue.zeroed((n + 1) * size_of::<i64>())? };
        let mut ties = Ties {
            n,
            rows: layout_kernels.row_numbers(Carrier::U32, n)?,
            positions: layout_kernels.row_numbers(Carrier::U32, n)?,
            segments: queue.zeroed((n + 1) * size_of::<i64>())?,
            depths: queue.zeroed(n * size_of::<u32>())?,
            common: queue.zeroed(size_of::<u32>())?,
        };
        let mut first = true;
        while ties.n > 0 {
            let words = chunk_words(&launch, &strings, &ties)?;
            let ids = sort_ties(&launch, layout_kernels, radix, (&ties, &words), std::mem::take(&mut first)).await?;
            match settle_ties(&launch, &strings, &order, &ties, (&words, &ids)).await? {
                Some(next) => ties = next,
                None => break,
            }
        }
        let (control, ranks) = (queue.alloc(size_of::<u64>())?, queue.alloc(n * size_of::<u32>())?);
        if n > 0 {
            launch.primitives.offsets(Lengths::of(&order.heads, n), &control, 0)?;
            let named = vec![
                ("positions", Arg::Buffer(&order.rows)),
                ("heads", Arg::Buffer(&order.heads)),
                ("ranks", Arg::Buffer(&ranks)),
                ("n", Arg::U64(n as u64)),
            ];
            launch.run(RANKS, launch.grid(n), named)?;
        }
        Ok(ranks)
    }
}

/// The words of the next bytes of strings that tie.
fn chunk_words(launch: &Launch<'_>, strings: &DeviceBatch, ties: &Ties) -> Result<Buffer> {
    let words = launch.queue.alloc(ties.n * size_of::<u64>())?;
    let named = vec![
        ("rows", Arg::Buffer(&ties.rows)),
        ("words", Arg::Buffer(&words)),
        ("segments", Arg::Buffer(&ties.segments)),
        ("depths", Arg::Buffer(&ties.depths)),
        ("common", Arg::Buffer(&ties.common)),
        ("n", Arg::U64(ties.n as u64)),
    ];
    launch.run_on(CHUNKS, launch.grid(ties.n), strings.columns(), None, named)?;
    Ok(words)
}

/// Sorts strings that tie, by segment and then by word. Returns their numbers among the ties, u32
/// each. In the first round there is one segment.
async fn sort_ties(
    launch: &Launch<'_>,
    layout_kernels: &LoadedLayoutKernels<'_>,
    radix: &LoadedRadix<'_>,
    (ties, words): (&Ties, &Buffer),
    first: bool,
) -> Result<Buffer> {
    let (queue, n) = (launch.queue, ties.n);
    // The sort moves its words, and the unsorted words are read later.
    let sorted = queue.alloc(n * size_of::<u64>())?;
    queue.copy(words, 0, &sorted, 0, n * size_of::<u64>())?;
    let pairs = WordRowPairs { words: sorted, rows: layout_kernels.row_numbers(Carrier::U32, n)? };
    let ids = radix.sort(pairs, n).await?.rows;
    if first {
        return Ok(ids);
    }
    let segments = queue.alloc(n * size_of::<u64>())?;
    let named = vec![
        ("segments", Arg::Buffer(&ties.segments)),
        ("ids", Arg::Buffer(&ids)),
        ("words", Arg::Buffer(&segments)),
        ("n", Arg::U64(n as u64)),
    ];
    launch.run(SEGMENTS, launch.grid(n), named)?;
    Ok(radix.sort(WordRowPairs { words: segments, rows: ids }, n).await?.rows)
}

/// Writes the order that sorted ties have so far. Returns the strings that still tie, `None`
/// without any.
async fn settle_ties(
    launch: &Launch<'_>,
    strings: &DeviceBatch,
    order: &RankedOrder,
    ties: &Ties,
    (words, ids): (&Buffer, &Buffer),
) -> Result<Option<Ties>> {
    let queue = launch.queue;
    let sorted = [
        ("chunks", Arg::Buffer(words)),
        ("ids", Arg::Buffer(ids)),
        ("segments", Arg::Buffer(&ties.segments)),
        ("rows", Arg::Buffer(&ties.rows)),
        ("positions", Arg::Buffer(&ties.positions)),
    ];
    let results = [("order", Arg::Buffer(&order.rows)), ("heads", Arg::Buffer(&order.heads))];
    let extra: NamedArgs<'_> = sorted.iter().cloned().chain(results).collect();
    let tied = Survivors::find(launch, SETTLE, &[], ties.n, &extra).await?;
    if tied.count == 0 {
        return Ok(None);
    }
    let next = Ties {
        n: tied.count,
        rows: queue.alloc(tied.count * size_of::<u32>())?,
        positions: queue.alloc(tied.count * size_of::<u32>())?,
        segments: queue.alloc((tied.count + 1) * size_of::<i64>())?,
        depths: queue.alloc(tied.count * size_of::<u32>())?,
        common: queue.filled((tied.count + 1) * size_of::<u32>(), 0xff)?,
    };
    let mut named: NamedArgs<'_> = tied.args();
    named.extend(sorted);
    named.extend([
        ("next_rows", Arg::Buffer(&next.rows)),
        ("next_positions", Arg::Buffer(&next.positions)),
        ("next_segments", Arg::Buffer(&next.segments)),
        ("depths", Arg::Buffer(&ties.depths)),
        ("next_depths", Arg::Buffer(&next.depths)),
    ]);
    launch.run(CARRY, tied.grid(), named)?;
    let control = queue.alloc(size_of::<u64>())?;
    launch.primitives.offsets(Lengths::of(&next.segments, next.n), &control, 0)?;
    let named = vec![
        ("rows", Arg::Buffer(&next.rows)),
        ("segments", Arg::Buffer(&next.segments)),
        ("depths", Arg::Buffer(&next.depths)),
        ("common", Arg::Buffer(&next.common)),
        ("n", Arg::U64(next.n as u64)),
    ];
    launch.run_on(COMMON, launch.grid(next.n), strings.columns(), None, named)?;
    Ok(Some(next))
}

fn chunks_kernel(ty: &ColumnType, options: &Options) -> Result<Kernel> {
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
    let mut kernel = Kernel::new("sort_chunks", params, row_loop(options.profile, "row", &n, &statements));
    kernel.params.function(str_chunk());
    Ok(kernel)
}

/// The kernel that finds how many bytes each string has in common with the one before in its
/// segment, and their minimum.
fn common_kernel(ty: &ColumnType, options: &Options) -> Result<Kernel> {
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
        let string = (value.code.clone(), value.valid_code().to_string());
        Ok::<_, Error>((writer.statements(), string))
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
    let mut kernel = Kernel::new("sort_common", params, row_loop(options.profile, "row", &n, &statements));
    kernel.params.function(STR_COMMON.replace("MAX_LENGTH", &MAX_COMMON.to_string()));
    Ok(kernel)
}

/// The kernel that ranks a few strings: by how many are lesser.
fn few_kernel(ty: &ColumnType, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Str);
    let ranks = params.named("ranks", "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let types = [ty.clone()];
    let mut string = |row: &str, prefix: &str| {
        let mut writer = RowWriter::new(&types, options.profile, &mut params).with_names(row, prefix);
        let code = string_or_empty(&mut writer, 0)?;
        Ok::<_, Error>((writer.statements(), code))
    };
    let ((own_statements, own), (other_statements, other)) = (string("row", "x")?, string("other", "y")?);
    let statements = format!(
        "{own_statements}    u32 lesser = 0;
    for (u64 other = 0; other < {n}; ++other) {{
{other_statements}      lesser += str_cmp({other}, {own}) < 0;
    }}
    {ranks}[row] = lesser;
"
    );
    Ok(Kernel::new("sort_rank_few", params, row_loop(options.profile, "row", &n, &statements)))
}

/// The C function that makes words of strings.
pub(super) fn str_chunk() -> String {
    STR_CHUNK.replace("CHUNK", &CHUNK.to_string())
}

fn row_kernel(name: &str, named: &[(&str, &str)], options: &Options, statements: &str) -> Kernel {
    let mut params = declare(named);
    let n = params.named("n", "u64");
    Kernel::new(name, params, row_loop(options.profile, "row", &n, statements))
}

fn declare(named: &[(&str, &str)]) -> Params {
    let mut params = Params::new();
    params.need(Section::Base);
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    params
}

/// Parameters of the kernels after a sort.
const SORTED: [(&str, &str); 5] = [
    ("chunks", "const G u64 *RESTRICT"),
    ("ids", "const G u32 *RESTRICT"),
    ("segments", "const G i64 *RESTRICT"),
    ("rows", "const G u32 *RESTRICT"),
    ("positions", "const G u32 *RESTRICT"),
];

/// The kernel that writes the order of a round, and masks the still tied strings.
fn settle_kernel(options: &Options) -> Kernel {
    let mut params = declare(&SORTED);
    params.named("order", "G u32 *RESTRICT");
    params.named("heads", "G i64 *RESTRICT");
    let statements = "    u32 id = ids[row];
    u64 chunk = chunks[id];
    i32 before = row > 0 && segments[row] == segments[row + 1] && chunks[ids[row - 1]] == chunk;
    i32 after = row + 1 < n && segments[row + 2] == segments[row + 1] && chunks[ids[row + 1]] == chunk;
    u32 position = positions[row];
    order[position] = rows[id];
    if (!before) heads[position + 1] = 1;
";
    let condition = format!("(before | after) & ((chunk & 255) > {CHUNK})");
    let body = mask_body(&mut params, options, statements, &condition);
    Kernel::new("sort_settle", params, body)
}

/// The kernel that writes the still tied strings.
fn carry_kernel(options: &Options) -> Kernel {
    let mut params = declare(&SORTED);
    for (name, c_type) in [
        ("next_rows", "G u32 *RESTRICT"),
        ("next_positions", "G u32 *RESTRICT"),
        ("next_segments", "G i64 *RESTRICT"),
        ("depths", "const G u32 *RESTRICT"),
        ("next_depths", "G u32 *RESTRICT"),
    ] {
        params.named(name, c_type);
    }
    let statements = "    u32 id = ids[row];
    i32 before = row > 0 && segments[row] == segments[row + 1] && chunks[ids[row - 1]] == chunks[id];
    next_rows[o] = rows[id];
    next_positions[o] = positions[row];
    next_segments[o + 1] = !before;
    next_depths[o] = depths[id];
";
    let body = write_body(&mut params, options, statements);
    Kernel::new("sort_carry", params, body)
}

/// The bytes from `depth` on, the first one most significant, then their number.
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

/// The number of equal bytes from `depth` on.
const STR_COMMON: &str = "FN u32 str_common(const G u8 *p, u32 p_len, const G u8 *q, u32 q_len, u32 depth) {
  u32 len = p_len < q_len ? p_len : q_len, i = 0;
  if (len <= depth) return 0;
  len = len - depth < MAX_LENGTH ? len - depth : MAX_LENGTH;
  p += depth;
  q += depth;
  while (i + 8 <= len && LOAD64(p + i) == LOAD64(q + i)) i += 8;
  while (i < len && p[i] == q[i]) ++i;
  return i;
}
";
