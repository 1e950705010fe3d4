// SPDX-License-Identifier: Apache-2.0
//! The k-th least number of each of many ranges of one sequence: a wavelet matrix (Claude, Navarro and Ordóñez, 2015) and
//! its searches (Gagie, Puglisi and Turpin, 2009), level by level, so that one level is in memory at a time.
//!
//! A level is a bit of the numbers, from the highest to the lowest. It moves the numbers whose bit is 0 before those whose bit
//! is 1; both keep their order. So the zeros of a range stand together behind it, as do the ones, and a count of the zeros before
//! each place tells where. A search goes on in one of the two. Behind the last level its range begins with its number.
//!
//! Where each range leaves out some of its numbers, those whose companion is not below a threshold, it is the zeros that it does
//! not leave out that tell where a search goes on. The companions move with the numbers, and a matrix of them, made anew at each
//! level, counts those of a range that are below. That takes the square of the levels in time, and no more memory.

use device::{Arg, Buffer, Event, Queue};

use crate::codegen::Params;
use crate::ops::Options;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, Program, for_rows, spread};
use crate::prelude::Section;
use crate::{Error, Result};

const LEVEL: usize = 0;
const NARROW: usize = 1;
const MOVE: usize = 2;
/// Of a matrix with companions.
const ZEROS: usize = 3;
const BELOW: usize = 4;

/// Numbers of a word of a level, a power of two.
const WORD: usize = u32::BITS as usize;

/// The fixed kernels.
#[derive(Debug, Clone)]
pub(super) struct Wavelet {
    program: Program,
    options: Options,
}

impl Wavelet {
    /// `companions`: whether ranges leave out some of their numbers.
    pub fn try_new(companions: bool, options: &Options) -> Result<Wavelet> {
        let kernel = |name: &str, row: &str, rows: &str, named: &[(&str, &str)], text: &str| {
            let mut params = Params::new();
            params.need(Section::Base);
            for (name, c_type) in named {
                params.named(name, c_type);
            }
            Kernel::new(name, params, for_rows(options.profile, row, rows, text))
        };
        let numbers = ("numbers", "const G u32 *RESTRICT");
        let level = [("zeros", "const G u32 *RESTRICT"), ("before", "const G i64 *RESTRICT"), ("words", "u64")];
        let (len, n, count, shift) = (("len", "const G i64 *RESTRICT"), ("n", "u64"), ("count", "u64"), ("shift", "u32"));
        let (searches, ranges) = (("searches", "const G u32 *RESTRICT"), ("ranges", "G u32 *RESTRICT"));
        let written = [numbers, ("zeros", "G u32 *RESTRICT"), ("before", "G i64 *RESTRICT"), len, n, ("words", "u64"), shift];
        let mut narrow = level.to_vec();
        narrow.extend([("searches", "G u32 *RESTRICT"), count]);
        narrow.extend(companions.then_some(("ranges", "const G u32 *RESTRICT")));
        let there = if companions { "ranges[2 * count + s]" } else { "zero_end - zero_begin" };
        let moved = [&level[..], &[numbers, ("moved", "G u32 *RESTRICT"), len, n]].concat();
        let mut kernels = vec![
            kernel("wavelet_level", "w", "words", &written, LEVEL_TEXT),
            kernel("wavelet_narrow", "s", "count", &narrow, &NARROW_TEXT.replace("THERE", there)),
            kernel("wavelet_move", "i", "n", &moved, MOVE_TEXT),
        ];
        if companions {
            let zeros = [&level[..], &[searches, ranges, count]].concat();
            let below = [&level[..], &[ranges, ("thresholds", "const G u32 *RESTRICT"), count, n, shift]].concat();
            kernels.push(kernel("wavelet_zeros", "s", "count", &zeros, ZEROS_TEXT));
            kernels.push(kernel("wavelet_below", "s", "count", &below, BELOW_TEXT));
        }
        // For all that follow.
        kernels[NARROW].params.function(ZEROS_BEFORE.into());
        Ok(Wavelet { program: Program::try_new("Window", options, kernels)?, options: options.clone() })
    }

    /// The program as it is compiled.
    pub fn text(&self) -> &str {
        self.program.text()
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.program.kernel_text()
    }

    /// The kernels on a device, for sequences of so many numbers as word `n` of `len` says, and at most `n`.
    pub async fn load<'a>(&'a self, queue: &'a Queue, len: &'a Buffer, n: usize) -> Result<LoadedWavelet<'a>> {
        Ok(LoadedWavelet { loaded: self.program.load(queue).await?, options: &self.options, queue, len, n })
    }
}

/// The fixed kernels on a device, and the length of a sequence.
pub(super) struct LoadedWavelet<'a> {
    loaded: Loaded<'a>,
    options: &'a Options,
    queue: &'a Queue,
    len: &'a Buffer,
    n: usize,
}

/// What stands beside numbers, and the limits for it.
pub(super) struct Companions<'a> {
    /// One of 32 bits for each number, less than `n`.
    pub values: Buffer,
    /// For each of `n` rows of 32 bits, at most `n`: a range of the row leaves out the numbers whose companion is not less.
    pub thresholds: &'a Buffer,
}

/// Which numbers of a sequence have a bit of 0, and how many of them stand before each word.
struct Level {
    zeros: Buffer,
    before: Buffer,
    words: usize,
}

impl Level {
    fn alloc(queue: &Queue, n: usize) -> Result<Level> {
        // There is a word for the place behind the last number.
        let words = n / WORD + 1;
        let (zeros, before) = (queue.alloc(words * size_of::<u32>())?, queue.alloc((words + 1) * size_of::<i64>())?);
        Ok(Level { zeros, before, words })
    }

    fn args(&self) -> Vec<(&'static str, Arg<'_>)> {
        vec![("zeros", Arg::Buffer(&self.zeros)), ("before", Arg::Buffer(&self.before)), ("words", Arg::U64(self.words as u64))]
    }
}

impl LoadedWavelet<'_> {
    /// Searches among `numbers`, different ones below `n`, of 32 bits each.
    ///
    /// Each of `count` searches asks for number k, from 0, of the range from a place to another. `searches` has all first
    /// places, then those behind the ranges, then all k, 32 bits each. Where a range is longer than k, its first place becomes
    /// that of its number among the numbers that are returned; else some place up to that behind them all.
    ///
    /// With `companions` there is a search for each row or two, all first ones before all second ones.
    pub async fn select(
        &self,
        primitives: &LoadedPrimitives<'_>,
        numbers: Buffer,
        mut companions: Option<Companions<'_>>,
        searches: &Buffer,
        count: usize,
    ) -> Result<Buffer> {
        let level = Level::alloc(self.queue, self.n)?;
        let (mut numbers, mut moved) = (numbers, self.queue.alloc(self.n * size_of::<u32>())?);
        let ranges = companions.as_ref().map(|_| self.queue.alloc(3 * count * size_of::<u32>())).transpose()?;
        let mut level_before: Option<Event> = None;
        for shift in (0..bits(self.n.saturating_sub(1))?).rev() {
            self.find(primitives, &numbers, shift, &level)?;
            self.shift(&numbers, &moved, &level)?;
            std::mem::swap(&mut numbers, &mut moved);
            let mut named = level.args();
            named.extend([("searches", Arg::Buffer(searches)), ("count", Arg::U64(count as u64))]);
            named.extend(ranges.as_ref().map(|ranges| ("ranges", Arg::Buffer(ranges))));
            if let (Some(companions), Some(ranges)) = (&mut companions, &ranges) {
                self.shift(&companions.values, &moved, &level)?;
                std::mem::swap(&mut companions.values, &mut moved);
                self.loaded.launch(self.queue, ZEROS, spread(self.queue, self.options, count), named.clone())?;
                self.below(primitives, companions, ranges, count)?;
                // A query that is cancelled leaves two levels to the device.
                if let Some(before) = level_before.replace(self.queue.record()?) {
                    before.wait().await?;
                }
            }
            self.loaded.launch(self.queue, NARROW, spread(self.queue, self.options, count), named)?;
        }
        Ok(numbers)
    }

    /// Counts in each of `count` ranges the companions below its threshold. `ranges` has all first places, then those behind the
    /// ranges, then zeros, which become the counts; 32 bits each.
    pub fn below(
        &self,
        primitives: &LoadedPrimitives<'_>,
        companions: &Companions<'_>,
        ranges: &Buffer,
        count: usize,
    ) -> Result<()> {
        let alloc = || self.queue.alloc(self.n * size_of::<u32>());
        let (level, mut values, mut moved) = (Level::alloc(self.queue, self.n)?, companions.values.clone(), alloc()?);
        for shift in (0..bits(self.n)?).rev() {
            self.find(primitives, &values, shift, &level)?;
            let mut named = level.args();
            named.extend([("ranges", Arg::Buffer(ranges)), ("thresholds", Arg::Buffer(companions.thresholds))]);
            named.extend([("count", Arg::U64(count as u64)), ("n", Arg::U64(self.n as u64)), ("shift", Arg::U32(shift))]);
            self.loaded.launch(self.queue, BELOW, spread(self.queue, self.options, count), named)?;
            self.shift(&values, &moved, &level)?;
            // The companions themselves are still asked for.
            let free = if shift + 1 == bits(self.n)? { alloc()? } else { values };
            values = std::mem::replace(&mut moved, free);
        }
        Ok(())
    }

    /// Finds the level of a bit.
    fn find(&self, primitives: &LoadedPrimitives<'_>, numbers: &Buffer, shift: u32, level: &Level) -> Result<()> {
        let mut named = level.args();
        named.extend([("numbers", Arg::Buffer(numbers)), ("len", Arg::Buffer(self.len))]);
        named.extend([("n", Arg::U64(self.n as u64)), ("shift", Arg::U32(shift))]);
        self.loaded.launch(self.queue, LEVEL, spread(self.queue, self.options, level.words), named)?;
        let control = self.queue.alloc(size_of::<u64>())?;
        primitives.offsets(self.queue, &level.before, 0, level.words, 0, &control, 0)
    }

    /// Moves numbers as a level says.
    fn shift(&self, numbers: &Buffer, moved: &Buffer, level: &Level) -> Result<()> {
        let mut named = level.args();
        named.extend([("numbers", Arg::Buffer(numbers)), ("moved", Arg::Buffer(moved))]);
        named.extend([("len", Arg::Buffer(self.len)), ("n", Arg::U64(self.n as u64))]);
        self.loaded.launch(self.queue, MOVE, spread(self.queue, self.options, self.n), named)
    }
}

/// Bits of numbers up to `most`.
fn bits(most: usize) -> Result<u32> {
    let most = u32::try_from(most).map_err(|_| Error::Internal(format!("{most} numbers in a wavelet matrix")))?;
    Ok(u32::BITS - most.leading_zeros())
}

const ZEROS_BEFORE: &str = "/* How many of the numbers before place `i` have a bit of 0. */
FN u32 zeros_before(const G u32 *zeros, const G i64 *before, u64 i) {
  return (u32)before[i >> 5] + POPC32(zeros[i >> 5] & (((u32)1 << (i & 31)) - 1));
}
";

/// A word has a bit for each number whose own is 0; counts lie behind one word that the scan needs.
const LEVEL_TEXT: &str = "    u64 first = w * 32, end = (u64)len[n];
    u32 word = 0, count = first >= end ? 0 : end - first < 32 ? (u32)(end - first) : 32;
    for (u32 b = 0; b < count; ++b) word |= (~numbers[first + b] >> shift & 1) << b;
    zeros[w] = word;
    before[w + 1] = (i64)POPC32(word);
    if (w == 0) before[0] = 0;
";

const NARROW_TEXT: &str = "    u32 begin = searches[s], end = searches[count + s], k = searches[2 * count + s];
    u32 zero_begin = zeros_before(zeros, before, begin), zero_end = zeros_before(zeros, before, end);
    u32 there = THERE, ones = (u32)before[words];
    i32 is_zero = k < there;
    searches[s] = is_zero ? zero_begin : ones + begin - zero_begin;
    searches[count + s] = is_zero ? zero_end : ones + end - zero_end;
    searches[2 * count + s] = is_zero ? k : k - there;
";

const MOVE_TEXT: &str = "    if (i < (u64)len[n]) {
      u32 zero = zeros_before(zeros, before, i), is_zero = zeros[i >> 5] >> (i & 31) & 1;
      moved[is_zero ? zero : (u32)before[words] + (u32)i - zero] = numbers[i];
    }
";

/// The zeros of the ranges of searches.
const ZEROS_TEXT: &str = "    ranges[s] = zeros_before(zeros, before, searches[s]);
    ranges[count + s] = zeros_before(zeros, before, searches[count + s]);
    ranges[2 * count + s] = 0;
";

/// Numbers with a bit of 0 where the threshold's is 1 are below; the others are where the threshold's bit is.
const BELOW_TEXT: &str =
    "    u32 begin = ranges[s], end = ranges[count + s], is_one = thresholds[s < n ? s : s - n] >> shift & 1;
    u32 zero_begin = zeros_before(zeros, before, begin), zero_end = zeros_before(zeros, before, end), ones = (u32)before[words];
    if (is_one) ranges[2 * count + s] += zero_end - zero_begin;
    ranges[s] = is_one ? ones + begin - zero_begin : zero_begin;
    ranges[count + s] = is_one ? ones + end - zero_end : zero_end;
";
