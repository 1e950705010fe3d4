// SPDX-License-Identifier: Apache-2.0
//! Stable radix sort of u64 words, each with a row number, by digits of 8 bits from the least
//! significant on.
//!
//! Digits in which all words agree are left out, and all digits of words already in order. For each
//! digit:
//!
//! 1. Each tile counts its digits.
//! 2. A prefix sum over digits and tiles gives the offset of each tile's words of a digit.
//! 3. Each tile moves its words there, in their order.
//!
//! A tile of the cpu profile is the contiguous run of one work-item. A tile of the gpu profile has
//! [`WORDS_PER_WORK_ITEM`] words for each work-item of a work-group. Its words are first ordered
//! within the tile, by each half of the digit (Satish, Harris and Garland, 2009). Work-items count
//! their consecutive words, and a prefix sum of the counts gives the position of each word. So
//! adjacent work-items write adjacent words, and no rank comes from an atomic. Shared memory: 76
//! bytes for each work-item, and 2 KiB.
//!
//! A launch of the cpu profile has some of the tiles, so that it takes bounded time.
//!
//! A few words are ranked by one kernel without a wait: each word counts those before it.

use device::{Arg, Buffer, Grid, ProgramSource};

use crate::codegen::{Params, Profile};
use crate::ops::Options;
use crate::ops::launch::Launch;
use crate::ops::launch::primitives::Lengths;
use crate::ops::launch::program::{FixedProgram, Kernel, contiguous_rows, read_u64, row_loop, work_group_size};
use crate::ops::launch::ranges::grid_in_ranges;
use crate::ops::launch::throttle::Throttle;
use crate::prelude::Section;
use crate::{Error, Result};

const RANGE: usize = 0;
const COUNT: usize = 1;
const SCATTER: usize = 2;
const RANK_FEW: usize = 3;

/// Most words that are ranked by counting.
const MAX_COUNTED_WORDS: usize = 512;

/// Bits of a digit, and number of its values.
const DIGIT_BITS: u32 = 8;
const DIGITS: usize = 1 << DIGIT_BITS;
/// Words of a tile for each work-item of a work-group, in the gpu profile.
const WORDS_PER_WORK_ITEM: usize = 8;

/// The kernels before they are compiled.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Radix {
    program: FixedProgram,
}

/// Words, with the number of a row for each.
#[derive(Debug)]
pub(in crate::ops) struct WordRowPairs {
    /// u64 each.
    pub words: Buffer,
    /// u32 each.
    pub rows: Buffer,
}

/// The range of words, and the bits in which they differ.
#[derive(Debug, Clone, Copy)]
struct WordRange {
    least: u64,
    most: u64,
    /// Bits in which words differ.
    varying: u64,
    /// Whether a word is less than the one before it.
    unordered: bool,
}

impl Radix {
    pub fn new(options: &Options) -> Radix {
        Radix { program: FixedProgram::new("Sort", options, Radix::kernels) }
    }

    fn kernels(options: &Options) -> Vec<Kernel> {
        let kernel = |name: &str, named: &[(&str, &str)], cpu: String, gpu: &str| {
            let mut params = Params::new();
            params.need(Section::Base);
            for (name, c_type) in named {
                params.named(name, c_type);
            }
            let body = match options.profile {
                Profile::Cpu => cpu,
                Profile::Gpu => gpu
                    .replace("ITEMS", &options.work_group_size.to_string())
                    .replace("TILE", &tile_words(options).to_string())
                    .replace("EACH", &WORDS_PER_WORK_ITEM.to_string()),
            };
            Kernel::new(name, params, body.replace("DIGITS", &DIGITS.to_string()))
        };
        let words = ("words", "const G u64 *RESTRICT");
        let digit = [("base", "u64"), ("shift", "u32"), ("n", "u64")];
        let count: Vec<_> = [words, ("counts", "G u64 *RESTRICT")].into_iter().chain(digit).collect();
        let scatter: Vec<_> = [
            words,
            ("rows", "const G u32 *RESTRICT"),
            ("starts", "const G u64 *RESTRICT"),
            ("to_words", "G u64 *RESTRICT"),
            ("to_rows", "G u32 *RESTRICT"),
        ]
        .into_iter()
        .chain(digit)
        .collect();
        let few = [words, scatter[1], scatter[3], scatter[4], ("n", "u64")];
        let each = row_loop(options.profile, "row", "n", COUNT_BEFORE);
        let run = contiguous_rows("n");
        vec![
            kernel("radix_range", &[words, ("extent", "G u64 *"), ("n", "u64")], format!("{run}{RANGE_CPU}"), RANGE_GPU),
            kernel("radix_count", &count, format!("{run}{COUNT_CPU}"), COUNT_GPU).in_ranges(options.profile),
            kernel("radix_scatter", &scatter, format!("{run}{SCATTER_CPU}"), SCATTER_GPU).in_ranges(options.profile),
            kernel("radix_rank_few", &few, each.clone(), &each),
        ]
    }

    /// The program, as it is compiled.
    pub fn source(&self) -> ProgramSource {
        self.program.source()
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        self.program.kernel_source()
    }

    pub async fn load<'a>(&'a self, launch: &'a Launch<'a>) -> Result<LoadedRadix<'a>> {
        Ok(LoadedRadix { launch: launch.with_program(&self.program).await? })
    }
}

/// The compiled kernels on a queue.
pub(in crate::ops) struct LoadedRadix<'a> {
    launch: Launch<'a>,
}

impl LoadedRadix<'_> {
    /// Sorts `n` pairs by their words; pairs of equal words keep their order. Many pairs wait for
    /// the range of the words, and very many for earlier launches.
    pub async fn sort(&self, pairs: WordRowPairs, n: usize) -> Result<WordRowPairs> {
        let queue = self.launch.queue;
        if n < 2 {
            return Ok(pairs);
        }
        let alloc = || -> Result<WordRowPairs> {
            Ok(WordRowPairs { words: queue.alloc(n * size_of::<u64>())?, rows: queue.alloc(n * size_of::<u32>())? })
        };
        if n <= MAX_COUNTED_WORDS {
            let to = alloc()?;
            let mut named = moved(&pairs, &to).to_vec();
            named.push(("n", Arg::U64(n as u64)));
            self.launch.run(RANK_FEW, self.launch.grid(n), named)?;
            return Ok(to);
        }
        let range = self.range(&pairs.words, n).await?;
        if !range.unordered {
            return Ok(pairs);
        }
        let (base, shifts) = range.digits();
        let mut from = pairs;
        let mut to = alloc()?;
        let grid = self.tile_grid(n)?;
        let counts = queue.alloc((DIGITS * grid.work_groups as usize + 1) * size_of::<u64>())?;
        let control = queue.alloc(size_of::<u64>())?;
        let mut throttle = Throttle::default();
        for shift in shifts {
            let digit = [("base", Arg::U64(base)), ("shift", Arg::U32(shift)), ("n", Arg::U64(n as u64))];
            let mut named = vec![("words", Arg::Buffer(&from.words)), ("counts", Arg::Buffer(&counts))];
            named.extend(digit);
            self.launch.run_grid_in_ranges(COUNT, (n, grid), named, &mut throttle).await?;
            let lengths = Lengths::of(&counts, DIGITS * grid.work_groups as usize);
            self.launch.primitives.offsets(lengths, &control, 0)?;
            let mut named = moved(&from, &to).to_vec();
            named.push(("starts", Arg::Buffer(&counts)));
            named.extend(digit);
            self.launch.run_grid_in_ranges(SCATTER, (n, grid), named, &mut throttle).await?;
            std::mem::swap(&mut from, &mut to);
        }
        Ok(from)
    }

    async fn range(&self, words: &Buffer, n: usize) -> Result<WordRange> {
        let queue = self.launch.queue;
        let extent = queue.alloc(4 * size_of::<u64>())?;
        let nothing: Vec<u8> = [u64::MAX, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        queue.write(&extent, 0, &nothing)?;
        let named = vec![("words", Arg::Buffer(words)), ("extent", Arg::Buffer(&extent)), ("n", Arg::U64(n as u64))];
        self.launch.run(RANGE, self.launch.grid(n), named)?;
        let answer = queue.read(&extent, 0..extent.len()).await?;
        let word = |index| read_u64(&answer, index);
        Ok(WordRange { least: word(0)?, most: word(1)?, varying: word(2)?, unordered: word(3)? != 0 })
    }

    /// A work-group for each tile.
    fn tile_grid(&self, n: usize) -> Result<Grid> {
        let options = self.launch.options;
        match options.profile {
            Profile::Cpu => Ok(grid_in_ranges(self.launch.queue, options, n)),
            Profile::Gpu => {
                let groups = u32::try_from(n.div_ceil(tile_words(options)));
                let groups = groups.map_err(|_| Error::Internal(format!("{n} words in one sort")))?;
                Ok(Grid { work_groups: groups, work_group_size: work_group_size(options) })
            }
        }
    }
}

impl WordRange {
    /// The number to subtract from words, and the digits that order them then. These are the
    /// differing digits of the words, or those of the difference between least and most, if fewer.
    fn digits(&self) -> (u64, Vec<u32>) {
        let differ = |varying: u64| (0..u64::BITS).step_by(DIGIT_BITS as usize).filter(move |shift| varying >> shift & 255 != 0);
        let (as_they_are, span) = (differ(self.varying), self.most - self.least);
        // All digits up to the highest one of the span.
        let subtracted = (0..u64::BITS - span.leading_zeros()).step_by(DIGIT_BITS as usize);
        match subtracted.clone().count() < as_they_are.clone().count() {
            true => (self.least, subtracted.collect()),
            false => (0, as_they_are.collect()),
        }
    }
}

/// The kernel arguments for moving pairs.
fn moved<'a>(from: &'a WordRowPairs, to: &'a WordRowPairs) -> [(&'static str, Arg<'a>); 4] {
    [
        ("words", Arg::Buffer(&from.words)),
        ("rows", Arg::Buffer(&from.rows)),
        ("to_words", Arg::Buffer(&to.words)),
        ("to_rows", Arg::Buffer(&to.rows)),
    ]
}

/// Words of a tile in the gpu profile.
fn tile_words(options: &Options) -> usize {
    options.work_group_size as usize * WORDS_PER_WORK_ITEM
}

/// Shared memory of the kernel with the most, in bytes, in the gpu profile with work-groups of so
/// many work-items.
pub(in crate::ops) fn shared_bytes(work_items: u32) -> usize {
    let tile = work_items as usize * WORDS_PER_WORK_ITEM;
    let per_work_item = 16 * size_of::<u16>() + size_of::<u32>();
    tile * (size_of::<u8>() + 2 * size_of::<u16>()) + work_items as usize * per_work_item + DIGITS * size_of::<u64>()
}

const RANGE_CPU: &str = "  u64 least = NO_ROW, most = 0, varying = 0, unordered = 0, first = words[0];
  for (u64 i = begin ? begin : 1; i < end; ++i) unordered |= words[i] < words[i - 1];
  for (u64 i = begin; i < end; ++i) {
    u64 value = words[i];
    least = value < least ? value : least;
    most = value > most ? value : most;
    varying |= value ^ first;
  }
  A_MIN64(&extent[0], least);
  A_MAX64(&extent[1], most);
  A_OR64(&extent[2], varying);
  if (unordered) A_OR64(&extent[3], unordered);
";

const RANGE_GPU: &str = "  SHARED(u64, leasts, ITEMS);
  SHARED(u64, mosts, ITEMS);
  SHARED(u64, all, ITEMS);
  SHARED(u64, breaks, ITEMS);
  u32 l = LID();
  u64 least = NO_ROW, most = 0, varying = 0, unordered = 0, first = words[0];
  for (u64 i = GID(); i < n; i += GSZ()) {
    u64 value = words[i];
    unordered |= value < words[i ? i - 1 : 0];
    least = value < least ? value : least;
    most = value > most ? value : most;
    varying |= value ^ first;
  }
  leasts[l] = least;
  mosts[l] = most;
  all[l] = varying;
  breaks[l] = unordered;
  SYNC();
  for (u32 d = ITEMS / 2; d > 0; d >>= 1) {
    if (l < d) {
      leasts[l] = leasts[l + d] < leasts[l] ? leasts[l + d] : leasts[l];
      mosts[l] = mosts[l + d] > mosts[l] ? mosts[l + d] : mosts[l];
      all[l] |= all[l + d];
      breaks[l] |= breaks[l + d];
    }
    SYNC();
  }
  if (l == 0) {
    A_MIN64(&extent[0], leasts[0]);
    A_MAX64(&extent[1], mosts[0]);
    A_OR64(&extent[2], all[0]);
    if (breaks[0]) A_OR64(&extent[3], breaks[0]);
  }
";

/// Counts are ordered by digit, then by tile, after a first element for the prefix sum.
const COUNT_CPU: &str = "  u32 own[DIGITS];
  for (u32 d = 0; d < DIGITS; ++d) own[d] = 0;
  for (u64 i = begin; i < end; ++i) ++own[(words[i] - base) >> shift & 255];
  if (GRP() == 0) counts[0] = 0;
  for (u32 d = 0; d < DIGITS; ++d) counts[1 + (u64)d * NGRP() + GRP()] = own[d];
";

const COUNT_GPU: &str = "  SHARED(u32, own, DIGITS);
  u32 l = LID();
  u64 tile = (u64)GRP() * TILE;
  for (u32 d = l; d < DIGITS; d += ITEMS) own[d] = 0;
  SYNC();
  for (u32 i = l; i < TILE; i += ITEMS)
    if (tile + i < n) A_ADD32(&own[(words[tile + i] - base) >> shift & 255], 1u);
  SYNC();
  if (GRP() == 0 && l == 0) counts[0] = 0;
  for (u32 d = l; d < DIGITS; d += ITEMS) counts[1 + (u64)d * NGRP() + GRP()] = own[d];
";

const SCATTER_CPU: &str = "  u64 next[DIGITS];
  for (u32 d = 0; d < DIGITS; ++d) next[d] = starts[(u64)d * NGRP() + GRP()];
  for (u64 i = begin; i < end; ++i) {
    u64 value = words[i], at = next[(value - base) >> shift & 255]++;
    to_words[at] = value;
    to_rows[at] = rows[i];
  }
";

/// Positions past the last word have the greatest digit, and so stay last.
const SCATTER_GPU: &str = "  SHARED(u8, digits, TILE);
  SHARED(u16, order, TILE);
  SHARED(u16, ordered, TILE);
  SHARED(u16, positions, 16 * ITEMS);
  SHARED(u32, sums, ITEMS);
  SHARED(u64, digit_starts, DIGITS);
  u32 l = LID();
  u64 tile = (u64)GRP() * TILE;
  u32 count = n - tile < TILE ? (u32)(n - tile) : TILE;
  for (u32 i = l; i < TILE; i += ITEMS) {
    digits[i] = i < count ? (u8)((words[tile + i] - base) >> shift & 255) : 255;
    order[i] = (u16)i;
  }
  SYNC();
  for (u32 upper = 0; upper < 2; ++upper) {
    for (u32 d = 0; d < 16; ++d) positions[d * ITEMS + l] = 0;
    for (u32 k = 0; k < EACH; ++k) {
      u32 i = upper ? ordered[l * EACH + k] : order[l * EACH + k];
      ++positions[(digits[i] >> (4 * upper) & 15) * ITEMS + l];
    }
    SYNC();
    u32 sum = 0;
    for (u32 k = 0; k < 16; ++k) sum += positions[l * 16 + k];
    sums[l] = sum;
    SYNC();
    for (u32 d = 1; d < ITEMS; d <<= 1) {
      u32 before = l >= d ? sums[l - d] : 0;
      SYNC();
      sums[l] += before;
      SYNC();
    }
    u32 at = sums[l] - sum;
    for (u32 k = 0; k < 16; ++k) {
      u32 width = positions[l * 16 + k];
      positions[l * 16 + k] = (u16)at;
      at += width;
    }
    SYNC();
    for (u32 k = 0; k < EACH; ++k) {
      u32 i = upper ? ordered[l * EACH + k] : order[l * EACH + k];
      u32 position = positions[(digits[i] >> (4 * upper) & 15) * ITEMS + l]++;
      if (upper) order[position] = (u16)i;
      else ordered[position] = (u16)i;
    }
    SYNC();
  }
  for (u32 p = l; p < TILE; p += ITEMS) {
    u32 d = digits[order[p]];
    if (p == 0 || digits[order[p - 1]] != d) digit_starts[d] = starts[(u64)d * NGRP() + GRP()] - p;
  }
  SYNC();
  for (u32 p = l; p < count; p += ITEMS) {
    u32 i = order[p];
    u64 at = digit_starts[digits[i]] + p;
    to_words[at] = words[tile + i];
    to_rows[at] = rows[tile + i];
  }
";

const COUNT_BEFORE: &str = "    u64 value = words[row];
    u32 before = 0;
    for (u64 i = 0; i < n; ++i) before += (words[i] < value) | ((words[i] == value) & (i < row));
    to_words[before] = value;
    to_rows[before] = rows[row];
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_as_few_as_order_the_words() {
        let digits = |least: u64, most: u64, varying: u64| WordRange { least, most, varying, unordered: true }.digits();
        assert_eq!(digits(0, 255, 255), (0, vec![0]));
        assert_eq!(digits(1 << 16, 3 << 16, 3 << 16), (0, vec![16]));
        // Around zero all bits of a signed value vary, and one digit holds the difference.
        let (least, most) = ((1 << 63) - 5, (1 << 63) + 5);
        assert_eq!(digits(least, most, u64::MAX), (least, vec![0]));
        assert_eq!(digits(0, u64::MAX, u64::MAX).1.len(), 8);
        assert_eq!(digits(255, 256, 511), (255, vec![0]));
    }
}
