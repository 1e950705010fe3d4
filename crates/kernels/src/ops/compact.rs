// SPDX-License-Identifier: Apache-2.0
//! Compaction that keeps the rows' order, in three kernels: `mask` writes a bit for each row and a
//! count for each tile, a scan turns counts into places, `write` visits the surviving rows alone.
//!
//! The gpu form deals a tile's survivors evenly to the items of its group: item k finds the k-th set
//! bit by binary search, so that neighbours write neighbours and expensive expressions run in full
//! warps. Shared memory: `compaction_tile_rows / 8` bytes for the words and as many for their ranks.

use device::{Arg, Buffer, Grid, Queue};

use super::Options;
use super::primitives::LoadedPrimitives;
use super::program::{check_row, word, work_group_size};
use crate::codegen::{Params, Profile};
use crate::{Error, Result};

/// The body of the mask kernel; `condition` is a C expression after `statements` for `row`. Declares
/// its parameters, among them the number of rows `n`.
pub(super) fn mask_body(params: &mut Params, options: &Options, statements: &str, condition: &str) -> String {
    match options.profile {
        Profile::Cpu => mask_words(params, options, statements, condition),
        Profile::Gpu => mask_tile(params, options, statements, condition, 0),
    }
}

/// The cpu form: a word of 32 rows at a time.
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

/// The gpu form, where `statements` count things in `tally0` and so on, which are added to the parameter `tallies`.
pub(super) fn mask_tile(params: &mut Params, options: &Options, statements: &str, condition: &str, tallies: usize) -> String {
    let declared = declare_tallies(tallies);
    let n = params.named("n", "u64");
    let mask = params.named("mask", "G u32 *RESTRICT");
    let counts = params.named("counts", "G u64 *RESTRICT");
    let (words, group) = (options.compaction_tile_rows / 32, options.work_group_size);
    let tile = options.compaction_tile_rows;
    let Shared { declared: shared, cleared, gathered, added } = Shared::new(params, tallies);
    format!(
        "  SHARED(u32, words, {words});
  SHARED(u32, total, 1);
{shared}{declared}  u32 l = LID();
  u64 base = (u64)GRP() * {tile};
  for (u32 w = l; w < {words}; w += {group}) words[w] = 0;
{cleared}  if (l == 0) total[0] = 0;
  SYNC();
  for (u32 i = l; i < {tile}; i += {group}) {{
    u64 row = base + i;
    i32 keep = 0;
    if (row < {n}) {{
{statements}      keep = {condition};
    }}
    VOTE(words, i, keep)
  }}
{gathered}  SYNC();
  for (u32 w = l; w < {words}; w += {group}) {{
    if (base + w * 32 < {n}) {mask}[(base >> 5) + w] = words[w];
    A_ADD32(&total[0], POPC32(words[w]));
  }}
  SYNC();
  if (l == 0) {counts}[GRP()] = total[0];
{added}"
    )
}

/// A body of loops whose statements count things in `tally0` and so on, which are added to the parameter `tallies`.
pub(super) fn tallied_body(params: &mut Params, profile: Profile, body: &str, tallies: usize) -> String {
    let declared = declare_tallies(tallies);
    match profile {
        _ if tallies == 0 => body.into(),
        Profile::Cpu => format!("{declared}{body}{}", add_tallies(params, tallies)),
        Profile::Gpu => {
            let Shared { declared: shared, cleared, gathered, added } = Shared::new(params, tallies);
            format!("{shared}{declared}{cleared}  SYNC();\n{body}{gathered}  SYNC();\n{added}")
        }
    }
}

/// Text that declares an item's tallies.
fn declare_tallies(tallies: usize) -> String {
    (0..tallies).map(|index| format!("  u32 tally{index} = 0;\n")).collect()
}

/// Text that adds an item's tallies to all items'.
fn add_tallies(params: &mut Params, tallies: usize) -> String {
    if tallies == 0 {
        return String::new();
    }
    let all = params.named("tallies", "volatile G u64 *");
    (0..tallies).map(|index| format!("  if (tally{index}) A_ADD64(&{all}[{index}], (u64)tally{index});\n")).collect()
}

/// Text that sums a group's tallies before they are added to all items'.
#[derive(Default)]
struct Shared {
    declared: String,
    cleared: String,
    gathered: String,
    added: String,
}

impl Shared {
    fn new(params: &mut Params, tallies: usize) -> Shared {
        if tallies == 0 {
            return Shared::default();
        }
        let all = params.named("tallies", "volatile G u64 *");
        let each = |text: &dyn Fn(usize) -> String| (0..tallies).map(text).collect::<String>();
        Shared {
            declared: format!("  SHARED(u32, tallied, {tallies});\n"),
            cleared: each(&|index| format!("  if (LID() == 0) tallied[{index}] = 0;\n")),
            gathered: each(&|index| format!("  if (tally{index}) A_ADD32(&tallied[{index}], tally{index});\n")),
            added: each(&|index| {
                format!("  if (LID() == 0 && tallied[{index}]) A_ADD64(&{all}[{index}], (u64)tallied[{index}]);\n")
            }),
        }
    }
}

/// The body of a kernel that runs `statements` for each surviving `row` and its place `o`.
pub(super) fn write_body(params: &mut Params, options: &Options, statements: &str) -> String {
    let n = params.named("n", "u64");
    let mask = params.named("mask", "const G u32 *RESTRICT");
    let starts = params.named("starts", "const G u64 *RESTRICT");
    let tile = options.compaction_tile_rows;
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
  u64 base = (u64)GRP() * {tile};
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
    u32 low = 0, high = {words};
    while (high - low > 1) {{
      u32 middle = (low + high) / 2;
      if (ranks[middle] <= k) low = middle;
      else high = middle;
    }}
    u64 row = base + low * 32 + nth_bit(words[low], k - ranks[low]), o = {starts}[GRP()] + k;
{statements}  }}
"
            )
        }
    }
}

/// Which rows survive, on the device.
pub(super) struct Survivors {
    pub rows: usize,
    pub count: usize,
    mask: Buffer,
    starts: Buffer,
    grid: Grid,
}

impl Survivors {
    /// Runs the mask kernel through `launch` over `rows` rows, with `extra` arguments, scans, and waits
    /// for the count.
    ///
    /// # Errors
    /// `Row` where the condition failed.
    pub async fn find(
        queue: &Queue,
        options: &Options,
        primitives: &LoadedPrimitives<'_>,
        rows: usize,
        extra: &[(&str, Arg<'_>)],
        launch: impl for<'a> FnOnce(Grid, Vec<(&'a str, Arg<'a>)>, &'a Buffer) -> Result<()>,
    ) -> Result<Survivors> {
        let tiles = rows.div_ceil(options.compaction_tile_rows as usize).max(1);
        let groups = u32::try_from(tiles).map_err(|_| Error::Unsupported("a batch of more than 2^32 tiles".into()))?;
        let grid = Grid { work_groups: groups, work_group_size: work_group_size(options) };
        let mask = queue.alloc(rows.div_ceil(32) * 4)?;
        let starts = queue.alloc(tiles * 8)?;
        // The error word, which the condition may lower, and the count.
        let control = queue.filled(16, 0xff)?;
        let mut named = vec![("n", Arg::U64(rows as u64)), ("mask", Arg::Buffer(&mask)), ("counts", Arg::Buffer(&starts))];
        named.extend(extra);
        launch(grid, named, &control)?;
        primitives.scan_counts(queue, &starts, tiles, &control, 1)?;
        let answer = queue.read(&control, 0..16).await?;
        check_row(word(&answer, 0)?)?;
        Ok(Survivors { rows, count: word(&answer, 1)? as usize, mask, starts, grid })
    }

    /// A bit for each row, set where it survives.
    pub fn mask(&self) -> &Buffer {
        &self.mask
    }

    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The arguments that [`write_body`] declared.
    pub fn args(&self) -> Vec<(&'static str, Arg<'_>)> {
        vec![("n", Arg::U64(self.rows as u64)), ("mask", Arg::Buffer(&self.mask)), ("starts", Arg::Buffer(&self.starts))]
    }
}
