// SPDX-License-Identifier: Apache-2.0
//! The k-th least number of each of many ranges of one sequence. It is found by the searches of a
//! wavelet matrix (Claude, Navarro and Ordóñez, 2015; Gagie, Puglisi and Turpin, 2009). They run
//! level by level, so that one level is in memory at a time.
//!
//! - A level is a bit of the numbers, from the highest to the lowest.
//! - It moves the numbers with bit 0 before those with bit 1; both keep their order.
//! - So the zeros of a range are consecutive after the level, as are the ones. The count of zeros
//!   before a position gives their offset.
//! - A search continues in one of the two. After the last level its range begins with its number.
//!
//! A range may leave out numbers: those whose *companion* is not below a threshold. Then the
//! remaining zeros decide where a search continues. The companions move with the numbers, and a
//! matrix of them, built at each level, counts those of a range below the threshold. That takes the
//! square of the levels in time, and no more memory.

use device::{Arg, Buffer, Event, ProgramSource, Queue};

use crate::codegen::Params;
use crate::ops::Options;
use crate::ops::launch::Launch;
use crate::ops::launch::primitives::Lengths;
use crate::ops::launch::program::{Kernel, Program, row_loop};
use crate::prelude::Section;
use crate::{Error, Result};

const LEVEL: usize = 0;
const NARROW: usize = 1;
const MOVE: usize = 2;
/// Kernels of a matrix with companions.
const ZEROS: usize = 3;
const BELOW: usize = 4;

/// Numbers for each word of a level, a power of two.
const WORD: usize = u32::BITS as usize;

/// The kernels before they are compiled.
#[derive(Debug, Clone)]
pub(super) struct Wavelet {
    program: Program,
}

impl Wavelet {
    /// With `companions`, ranges leave out some of their numbers.
    pub fn try_new(companions: bool, options: &Options) -> Result<Wavelet> {
        let kernel = |name: &str, row: &str, rows: &str, named: &[(&str, &str)], statements: &str| {
            let mut params = Params::new();
            params.need(Section::Base);
            for (name, c_type) in named {
                params.named(name, c_type);
            }
            Kernel::new(name, params, row_loop(options.profile, row, rows, statements))
        };
        let numbers = ("numbers", "const G u32 *RESTRICT");
        let level = [("zeros", "const G u32 *RESTRICT"), ("before", "const G i64 *RESTRICT"), ("words", "u64")];
        let (len, n, count, shift) = (("len", "const G i64 *RESTRICT"), ("n", "u64"), ("count", "u64"), ("shift", "u32"));
        let (searches, ranges) = (("searches", "const G u32 *RESTRICT"), ("ranges", "G u32 *RESTRICT"));
        let written = [numbers, ("zeros", "G u32 *RESTRICT"), ("before", "G i64 *RESTRICT"), len, n, ("words", "u64"), shift];
        let mut narrow = level.to_vec();
        narrow.extend([("searches", "G u32 *RESTRICT"), count]);
        narrow.extend(companions.then_some(("ranges", "const G u32 *RESTRICT")));
        let zeros_in_range = if companions { "ranges[2 * count + s]" } else { "zero_end - zero_begin" };
        let moved = [&level[..], &[numbers, ("moved", "G u32 *RESTRICT"), len, n]].concat();
        let mut kernels = vec![
            kernel("wavelet_level", "w", "words", &written, LEVEL_STATEMENTS),
            kernel("wavelet_narrow", "s", "count", &narrow, &NARROW_STATEMENTS.replace("ZEROS", zeros_in_range)),
            kernel("wavelet_move", "i", "n", &moved, MOVE_STATEMENTS),
        ];
        if companions {
            let zeros = [&level[..], &[searches, ranges, count]].concat();
            let below = [&level[..], &[ranges, ("thresholds", "const G u32 *RESTRICT"), count, n, shift]].concat();
            kernels.push(kernel("wavelet_zeros", "s", "count", &zeros, ZEROS_STATEMENTS));
            kernels.push(kernel("wavelet_below", "s", "count", &below, BELOW_STATEMENTS));
        }
        // For all kernels that follow.
        kernels[NARROW].params.function(ZEROS_BEFORE.into());
        Ok(Wavelet { program: Program::new("Window", options, kernels) })
    }

    /// The source of the program.
    pub fn source_str(&self) -> &str {
        self.program.source_str()
    }

    /// The program, as it is compiled.
    pub fn source(&self) -> ProgramSource {
        self.program.source()
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        self.program.kernel_source()
    }

    /// The kernels on a queue, for sequences of `len[n]` numbers, an i64 of at most `n`.
    pub async fn load<'a>(&'a self, launch: &'a Launch<'a>, len: &'a Buffer, n: usize) -> Result<LoadedWavelet<'a>> {
        Ok(LoadedWavelet { launch: launch.with_program(&self.program).await?, len, n })
    }
}

/// The compiled kernels on a queue, and the length of a sequence.
pub(super) struct LoadedWavelet<'a> {
    launch: Launch<'a>,
    len: &'a Buffer,
    n: usize,
}

/// Companions of numbers, and the thresholds for them.
pub(super) struct Companions<'a> {
    /// A u32 for each number, less than `n`.
    pub values: Buffer,
    /// A u32 for each of `n` rows, at most `n`. A range of the row leaves out numbers whose
    /// companion is not less.
    pub thresholds: &'a Buffer,
}

/// A level of the matrix: a mask of the numbers whose bit is 0, and the number of zeros before each
/// word.
struct Level {
    zeros: Buffer,
    before: Buffer,
    words: usize,
}

impl Level {
    fn alloc(queue: &Queue, n: usize) -> Result<Level> {
        // The position after the last number has a word.
        let words = n / WORD + 1;
        let (zeros, before) = (queue.alloc(words * size_of::<u32>())?, queue.alloc((words + 1) * size_of::<i64>())?);
        Ok(Level { zeros, before, words })
    }

    fn args(&self) -> Vec<(&'static str, Arg<'_>)> {
        vec![("zeros", Arg::Buffer(&self.zeros)), ("before", Arg::Buffer(&self.before)), ("words", Arg::U64(self.words as u64))]
    }
}

impl LoadedWavelet<'_> {
    /// Searches among `numbers`, distinct u32 below `n`.
    ///
    /// Each of `count` searches is for number k, from 0, of a range. `searches` has the begins of
    /// all ranges, then their ends, then all k, u32 each. If a range has more than k numbers, its
    /// begin becomes the position of number k in the returned numbers. Else it becomes some
    /// position up to their end.
    ///
    /// With `companions` there are one or two searches for each row: all first searches, then all
    /// second ones.
    pub async fn select(
        &self,
        numbers: Buffer,
        mut companions: Option<Companions<'_>>,
        searches: &Buffer,
        count: usize,
    ) -> Result<Buffer> {
        let queue = self.launch.queue;
        let level = Level::alloc(queue, self.n)?;
        let (mut numbers, mut moved) = (numbers, queue.alloc(self.n * size_of::<u32>())?);
        let ranges = companions.as_ref().map(|_| queue.alloc(3 * count * size_of::<u32>())).transpose()?;
        let mut level_before: Option<Event> = None;
        for shift in (0..bits(self.n.saturating_sub(1))?).rev() {
            self.find(&numbers, shift, &level)?;
            self.shift(&numbers, &moved, &level)?;
            std::mem::swap(&mut numbers, &mut moved);
            let mut named = level.args();
            named.extend([("searches", Arg::Buffer(searches)), ("count", Arg::U64(count as u64))]);
            named.extend(ranges.as_ref().map(|ranges| ("ranges", Arg::Buffer(ranges))));
            if let (Some(companions), Some(ranges)) = (&mut companions, &ranges) {
                self.shift(&companions.values, &moved, &level)?;
                std::mem::swap(&mut companions.values, &mut moved);
                self.launch.run(ZEROS, self.launch.grid(count), named.clone())?;
                self.below(companions, ranges, count)?;
                // A cancelled query has at most two levels enqueued.
                if let Some(before) = level_before.replace(queue.record()?) {
                    before.wait().await?;
                }
            }
            self.launch.run(NARROW, self.launch.grid(count), named)?;
        }
        Ok(numbers)
    }

    /// Counts the companions below the threshold in each of `count` ranges. `ranges` has the begins
    /// of all ranges, then their ends, then zeros, which become the counts; u32 each.
    pub fn below(&self, companions: &Companions<'_>, ranges: &Buffer, count: usize) -> Result<()> {
        let queue = self.launch.queue;
        let alloc = || queue.alloc(self.n * size_of::<u32>());
        let (level, mut values, mut moved) = (Level::alloc(queue, self.n)?, companions.values.clone(), alloc()?);
        for shift in (0..bits(self.n)?).rev() {
            self.find(&values, shift, &level)?;
            let mut named = level.args();
            named.extend([("ranges", Arg::Buffer(ranges)), ("thresholds", Arg::Buffer(companions.thresholds))]);
            named.extend([("count", Arg::U64(count as u64)), ("n", Arg::U64(self.n as u64)), ("shift", Arg::U32(shift))]);
            self.launch.run(BELOW, self.launch.grid(count), named)?;
            self.shift(&values, &moved, &level)?;
            // The buffer of the companions themselves must not be overwritten.
            let free = if shift + 1 == bits(self.n)? { alloc()? } else { values };
            values = std::mem::replace(&mut moved, free);
        }
        Ok(())
    }

    /// Computes the level of a bit.
    fn find(&self, numbers: &Buffer, shift: u32, level: &Level) -> Result<()> {
        let mut named = level.args();
        named.extend([("numbers", Arg::Buffer(numbers)), ("len", Arg::Buffer(self.len))]);
        named.extend([("n", Arg::U64(self.n as u64)), ("shift", Arg::U32(shift))]);
        self.launch.run(LEVEL, self.launch.grid(level.words), named)?;
        let control = self.launch.queue.alloc(size_of::<u64>())?;
        self.launch.primitives.offsets(Lengths::of(&level.before, level.words), &control, 0)
    }

    /// Moves numbers to their positions after a level.
    fn shift(&self, numbers: &Buffer, moved: &Buffer, level: &Level) -> Result<()> {
        let mut named = level.args();
        named.extend([("numbers", Arg::Buffer(numbers)), ("moved", Arg::Buffer(moved))]);
        named.extend([("len", Arg::Buffer(self.len)), ("n", Arg::U64(self.n as u64))]);
        self.launch.run(MOVE, self.launch.grid(self.n), named)
    }
}

/// Number of bits of numbers up to `most`.
fn bits(most: usize) -> Result<u32> {
    let most = u32::try_from(most).map_err(|_| Error::Internal(format!("{most} numbers in a wavelet matrix")))?;
    Ok(u32::BITS - most.leading_zeros())
}

const ZEROS_BEFORE: &str = "/* The number of zeros before position `i`. */
FN u32 zeros_before(const G u32 *zeros, const G i64 *before, u64 i) {
  return (u32)before[i >> 5] + POPC32(zeros[i >> 5] & (((u32)1 << (i & 31)) - 1));
}
";

/// Writes the mask of the zeros, and their counts after a first element for the prefix sum.
const LEVEL_STATEMENTS: &str = "    u64 first = w * 32, end = (u64)len[n];
    u32 word = 0, count = first >= end ? 0 : end - first < 32 ? (u32)(end - first) : 32;
    for (u32 b = 0; b < count; ++b) word |= (~numbers[first + b] >> shift & 1) << b;
    zeros[w] = word;
    before[w + 1] = (i64)POPC32(word);
    if (w == 0) before[0] = 0;
";

/// Narrows the range of a search to its zeros or its ones.
const NARROW_STATEMENTS: &str = "    u32 begin = searches[s], end = searches[count + s], k = searches[2 * count + s];
    u32 zero_begin = zeros_before(zeros, before, begin), zero_end = zeros_before(zeros, before, end);
    u32 zero_count = ZEROS, ones = (u32)before[words];
    i32 is_zero = k < zero_count;
    searches[s] = is_zero ? zero_begin : ones + begin - zero_begin;
    searches[count + s] = is_zero ? zero_end : ones + end - zero_end;
    searches[2 * count + s] = is_zero ? k : k - zero_count;
";

const MOVE_STATEMENTS: &str = "    if (i < (u64)len[n]) {
      u32 zero = zeros_before(zeros, before, i), is_zero = zeros[i >> 5] >> (i & 31) & 1;
      moved[is_zero ? zero : (u32)before[words] + (u32)i - zero] = numbers[i];
    }
";

/// Writes the zeros of the ranges of searches as ranges of companions.
const ZEROS_STATEMENTS: &str = "    ranges[s] = zeros_before(zeros, before, searches[s]);
    ranges[count + s] = zeros_before(zeros, before, searches[count + s]);
    ranges[2 * count + s] = 0;
";

/// Zeros are below a threshold whose bit is 1. The range is narrowed to the numbers with the bit of
/// the threshold.
const BELOW_STATEMENTS: &str =
    "    u32 begin = ranges[s], end = ranges[count + s], is_one = thresholds[s < n ? s : s - n] >> shift & 1;
    u32 zero_begin = zeros_before(zeros, before, begin), zero_end = zeros_before(zeros, before, end), ones = (u32)before[words];
    if (is_one) ranges[2 * count + s] += zero_end - zero_begin;
    ranges[s] = is_one ? ones + begin - zero_begin : zero_begin;
    ranges[count + s] = is_one ? ones + end - zero_end : zero_end;
";
