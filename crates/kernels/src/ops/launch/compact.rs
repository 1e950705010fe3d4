// SPDX-License-Identifier: Apache-2.0
//! Stream compaction that keeps the order of rows.
//!
//! 1. `mask` writes a bit for each row, set where the row survives, and a count for each tile.
//! 2. A prefix sum makes output positions of the counts. In the gpu profile the tiles of `mask`
//!    look back for them.
//! 3. `write` visits the surviving rows alone.
//!
//! The gpu profile deals a tile's survivors evenly to the work-items of a work-group: work-item k
//! finds the k-th set bit by binary search. So adjacent work-items write adjacent rows, and
//! expensive expressions run in full warps. Shared memory: `compaction_tile_rows / 8` bytes for the
//! mask and as many for the ranks of its words.

use columnar::DeviceColumn;
use device::{Arg, Buffer, Grid};

use super::program::{Kernel, check_failed_row, read_u64, work_group_size};
use super::{Launch, NamedArgs};
use crate::codegen::{NEXT_ROW, Params, Profile};
use crate::ops::Options;
use crate::prelude::Section;
use crate::{Error, Result};

/// The body of a `mask` kernel. `condition` is C, evaluated after `statements` for each `row`.
/// Declares the parameters, among them the number of rows `n`.
pub(in crate::ops) fn mask_body(params: &mut Params, options: &Options, statements: &str, condition: &str) -> String {
    match options.profile {
        Profile::Cpu => mask_words(params, options, statements, condition),
        Profile::Gpu => mask_tile(params, options, statements, condition, 0),
    }
}

/// The body for the cpu profile: a mask word of 32 rows at a time.
fn mask_words(params: &mut Params, options: &Options, statements: &str, condition: &str) -> String {
    let n = params.named("n", "u64");
    let mask = params.named("mask", "G u32 *RESTRICT");
    let counts = params.named("counts", "G u64 *RESTRICT");
    let tile = options.compaction_tile_rows;
    format!(
        "  u64 begin = (u64)GRP() * {tile}, end = begin + {tile} < {n} ? begin + {tile} : {n}, total = 0;
  for (u64 first = begin; first < end; first += 32) {{
    u32 word = 0, width = end - first < 32 ? (u32)(end - first) : 32;
    for (u32 bit = 0; bit < width; ++bit) {{
      u64 row = first + bit;
{statements}      word |= (u32)({condition}) << bit;
    }}
    {mask}[first >> 5] = word;
    total += POPC32(word);
  }}
  {counts}[GRP()] = total;
"
    )
}

/// The body for the gpu profile. `statements` count in `tally0` and so on, which are added to the
/// parameter `tallies`.
pub(in crate::ops) fn mask_tile(
    params: &mut Params,
    options: &Options,
    statements: &str,
    condition: &str,
    tallies: usize,
) -> String {
    let declared = declare_tallies(tallies);
    let n = params.named("n", "u64");
    let mask = params.named("mask", "G u32 *RESTRICT");
    let tiles = params.named("tiles", "volatile G u64 *");
    let (words, group) = (options.compaction_tile_rows / 32, options.work_group_size);
    let tile = options.compaction_tile_rows;
    let rows = rows_at_once(statements, tile / group);
    let step = rows * group;
    let SharedTallies { declared: shared, cleared, summed, added } = SharedTallies::new(params, tallies);
    format!(
        "  SHARED(u32, words, {words});
  SHARED(u32, total, 1);
  SHARED(u32, nearest, 1);
  SHARED(u64, sums, 32);
{shared}{declared}  u32 l = LID();
  for (u32 w = l; w < {words}; w += {group}) words[w] = 0;
{cleared}  if (l == 0) total[0] = 0;
  u64 tile = next_tile({tiles} + {STATES}, nearest), base = tile * {tile};
  for (u32 first = l; first < {tile}; first += {step}) {{
    u32 votes = 0;
    UNROLL
    for (u32 i = 0; i < {rows}; ++i) {{
{NEXT_ROW}      u64 row = base + first + i * {group};
      i32 keep = 0;
      if (row < {n}) {{
{statements}        keep = {condition};
      }}
      votes |= (u32)(keep != 0) << i;
    }}
    UNROLL
    for (u32 i = 0; i < {rows}; ++i) {{
      u32 at = first + i * {group};
      VOTE(words, at, (votes >> i & 1))
    }}
  }}
{summed}  SYNC();
  for (u32 w = l; w < {words}; w += {group}) {{
    if (base + w * 32 < {n}) {mask}[(base >> 5) + w] = words[w];
    A_ADD32(&total[0], POPC32(words[w]));
  }}
  SYNC();
  u64 before = look_back({tiles} + {STATES}, tile, total[0], sums, nearest);
  if (l == 0 && tile == NGRP() - 1) {tiles}[{COUNT}] = before + total[0];
{added}"
    )
}

/// Word of the number of surviving rows in the buffer of a `mask` kernel's results. The lowest
/// failing row comes before it.
const COUNT: usize = 1;
/// Words before the ticket and the states of the tiles, in the gpu profile.
const STATES: usize = 2;

/// Rows of a work-item whose loads are under way at once, of `most`. Long statements and those with
/// loops are not repeated: they fill the time of a load with work of their own.
fn rows_at_once(statements: &str, most: u32) -> u32 {
    let is_long = statements.len() > LONGEST_UNROLLED || ["for (", "while ("].iter().any(|keyword| statements.contains(keyword));
    [4, 2, 1].into_iter().find(|rows| !is_long && most.is_multiple_of(*rows)).unwrap_or(1)
}

/// Most bytes of statements that are written out for several rows.
const LONGEST_UNROLLED: usize = 2000;

/// A kernel body whose loops count in `tally0` and so on. Adds these to the parameter `tallies`.
pub(in crate::ops) fn tallied_body(params: &mut Params, profile: Profile, body: &str, tallies: usize) -> String {
    let declared = declare_tallies(tallies);
    match profile {
        _ if tallies == 0 => body.into(),
        Profile::Cpu => format!("{declared}{body}{}", add_tallies(params, tallies)),
        Profile::Gpu => {
            let SharedTallies { declared: shared, cleared, summed, added } = SharedTallies::new(params, tallies);
            format!("{shared}{declared}{cleared}  SYNC();\n{body}{summed}  SYNC();\n{added}")
        }
    }
}

/// C that declares a work-item's tallies.
fn declare_tallies(tallies: usize) -> String {
    (0..tallies).map(|index| format!("  u32 tally{index} = 0;\n")).collect()
}

/// C that adds a work-item's tallies to the global ones.
fn add_tallies(params: &mut Params, tallies: usize) -> String {
    if tallies == 0 {
        return String::new();
    }
    let all = params.named("tallies", "volatile G u64 *");
    (0..tallies).map(|index| format!("  if (tally{index}) A_ADD64(&{all}[{index}], (u64)tally{index});\n")).collect()
}

/// C that sums the tallies of a work-group in shared memory before they are added to the global
/// ones.
#[derive(Default)]
struct SharedTallies {
    declared: String,
    cleared: String,
    summed: String,
    added: String,
}

impl SharedTallies {
    fn new(params: &mut Params, tallies: usize) -> SharedTallies {
        if tallies == 0 {
            return SharedTallies::default();
        }
        let all = params.named("tallies", "volatile G u64 *");
        let each = |statement: &dyn Fn(usize) -> String| (0..tallies).map(statement).collect::<String>();
        SharedTallies {
            declared: format!("  SHARED(u32, tallied, {tallies});\n"),
            cleared: each(&|index| format!("  if (LID() == 0) tallied[{index}] = 0;\n")),
            summed: each(&|index| format!("  if (tally{index}) A_ADD32(&tallied[{index}], tally{index});\n")),
            added: each(&|index| {
                format!("  if (LID() == 0 && tallied[{index}]) A_ADD64(&{all}[{index}], (u64)tallied[{index}]);\n")
            }),
        }
    }
}

/// The kernel that writes the numbers of the surviving rows to its parameter `indices`, u32 each.
pub(in crate::ops) fn row_indices(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let indices = params.named("indices", "G u32 *RESTRICT");
    let body = write_body(&mut params, options, &format!("    {indices}[o] = (u32)row;\n"));
    Kernel::new(name, params, body)
}

/// The body of a `write` kernel: runs `statements` for each surviving `row` and its output position
/// `o`.
pub(in crate::ops) fn write_body(params: &mut Params, options: &Options, statements: &str) -> String {
    let n = params.named("n", "u64");
    let mask = params.named("mask", "const G u32 *RESTRICT");
    let starts = params.named("starts", "const G u64 *RESTRICT");
    let tile = options.compaction_tile_rows;
    // The state of the tile before.
    let before = STATES;
    match options.profile {
        Profile::Cpu => format!(
            "  u64 begin = (u64)GRP() * {tile}, end = begin + {tile} < {n} ? begin + {tile} : {n}, o = {starts}[GRP()];
  for (u64 first = begin; first < end; first += 32) {{
    for (u32 word = {mask}[first >> 5]; word; word &= word - 1) {{
      u64 row = first + CTZ32(word);
{statements}      ++o;
    }}
  }}
"
        ),
        Profile::Gpu => {
            let (words, group) = (tile / 32, options.work_group_size);
            format!(
                "  SHARED(u32, words, {words});
  SHARED(u32, ranks, {words} + 1);
  u32 l = LID(), own = 0;
  u64 base = (u64)GRP() * {tile}, start = GRP() ? {starts}[{before} + GRP()] >> 2 : 0;
  if (l < {words}) {{
    own = base + l * 32 < {n} ? {mask}[(base >> 5) + l] : 0;
    words[l] = own;
    ranks[l + 1] = POPC32(own);
  }}
  if (l == 0) ranks[0] = 0;
  SYNC();
  for (u32 d = 1; d < {words}; d <<= 1) {{
    u32 before = l < {words} && l >= d ? ranks[l + 1 - d] : 0;
    SYNC();
    if (l < {words}) ranks[l + 1] += before;
    SYNC();
  }}
  u32 total = ranks[{words}];
  for (u32 k = l; k < total; k += {group}) {{
{NEXT_ROW}    u32 low = 0, high = {words};
    while (high - low > 1) {{
      u32 middle = (low + high) / 2;
      if (ranks[middle] <= k) low = middle;
      else high = middle;
    }}
    u64 row = base + low * 32 + nth_bit(words[low], k - ranks[low]), o = start + k;
{statements}  }}
"
            )
        }
    }
}

/// The surviving rows, as a mask on the device.
pub(in crate::ops) struct Survivors {
    pub rows: usize,
    pub count: usize,
    mask: Buffer,
    /// The first output position of each tile; in the gpu profile the states of the tiles.
    starts: Buffer,
    grid: Grid,
}

impl Survivors {
    /// Runs the `mask` kernel with the number `kernel` over `rows` rows, with `extra` arguments,
    /// and waits for the count.
    ///
    /// # Errors
    /// `Row` if the condition failed.
    pub async fn find(
        launch: &Launch<'_>,
        kernel: usize,
        columns: &[DeviceColumn],
        rows: usize,
        extra: &[(&str, Arg<'_>)],
    ) -> Result<Survivors> {
        let queue = launch.queue;
        let tiles = rows.div_ceil(launch.options.compaction_tile_rows as usize).max(1);
        let groups = u32::try_from(tiles).map_err(|_| Error::Unsupported("a batch of more than 2^32 tiles".into()))?;
        let grid = Grid { work_groups: groups, work_group_size: work_group_size(launch.options) };
        let mask = queue.alloc(rows.div_ceil(32) * 4)?;
        let named: NamedArgs<'_> = vec![("n", Arg::U64(rows as u64)), ("mask", Arg::Buffer(&mask))];
        let named = named.into_iter().chain(extra.iter().cloned());
        let (control, starts) = match launch.options.profile {
            Profile::Cpu => {
                let starts = queue.alloc(tiles * 8)?;
                let control = queue.filled((COUNT + 1) * 8, 0xff)?;
                let args = named.chain([("counts", Arg::Buffer(&starts))]).collect();
                launch.run_on(kernel, grid, columns, Some(&control), args)?;
                launch.primitives.scan_counts(&starts, tiles, &control, COUNT as u32)?;
                (control, Some(starts))
            }
            Profile::Gpu => {
                let control = queue.filled((STATES + 1 + tiles) * 8, 0xff)?;
                let args = named.chain([("tiles", Arg::Buffer(&control))]).collect();
                launch.run_on(kernel, grid, columns, Some(&control), args)?;
                (control, None)
            }
        };
        let answer = queue.read(&control, 0..(COUNT + 1) * 8).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        Ok(Survivors { rows, count: read_u64(&answer, COUNT)? as usize, mask, starts: starts.unwrap_or(control), grid })
    }

    /// A bit for each row, set if the row survives.
    pub fn mask(&self) -> &Buffer {
        &self.mask
    }

    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The arguments of the parameters that [`write_body`] declares.
    pub fn args(&self) -> Vec<(&'static str, Arg<'_>)> {
        vec![("n", Arg::U64(self.rows as u64)), ("mask", Arg::Buffer(&self.mask)), ("starts", Arg::Buffer(&self.starts))]
    }
}
