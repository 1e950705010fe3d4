// SPDX-License-Identifier: Apache-2.0
//! The k-th least number of each of many ranges of one sequence: a wavelet matrix (Claude, Navarro and Ordóñez, 2015) and
//! its searches (Gagie, Puglisi and Turpin, 2009), level by level, so that one level is in memory at a time.
//!
//! A level is a bit of the numbers, from the highest to the lowest. It moves the numbers whose bit is 0 before those whose bit
//! is 1; both keep their order. So the zeros of a range stand together behind it, as do the ones, and a count of the zeros before
//! each place tells where. A search goes on in one of the two. Behind the last level its range begins with its number.

use device::{Arg, Buffer, Queue};

use crate::codegen::Params;
use crate::ops::Options;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, Program, for_rows, spread};
use crate::prelude::Section;
use crate::{Error, Result};

const LEVEL: usize = 0;
const NARROW: usize = 1;
const MOVE: usize = 2;

/// Numbers of a word of a level, a power of two.
const WORD: usize = u32::BITS as usize;

/// The fixed kernels.
#[derive(Debug, Clone)]
pub(super) struct Wavelet {
    program: Program,
    options: Options,
}

impl Wavelet {
    pub fn try_new(options: &Options) -> Result<Wavelet> {
        let kernel = |name: &str, row: &str, rows: &str, named: &[(&str, &str)], text: &str| {
            let mut params = Params::new();
            params.need(Section::Base);
            for (name, c_type) in named {
                params.named(name, c_type);
            }
            Kernel::new(name, params, for_rows(options.profile, row, rows, text))
        };
        let numbers = ("numbers", "const G u32 *RESTRICT");
        let (zeros, before) = (("zeros", "const G u32 *RESTRICT"), ("before", "const G i64 *RESTRICT"));
        let (len, n, words) = (("len", "const G i64 *RESTRICT"), ("n", "u64"), ("words", "u64"));
        let shift = ("shift", "u32");
        let level = [numbers, ("zeros", "G u32 *RESTRICT"), ("before", "G i64 *RESTRICT"), len, n, words, shift];
        let narrow = [("searches", "G u32 *RESTRICT"), zeros, before, words, ("count", "u64")];
        let moves = [numbers, ("moved", "G u32 *RESTRICT"), zeros, before, len, n, words, shift];
        let mut kernels = vec![
            kernel("wavelet_level", "w", "words", &level, LEVEL_TEXT),
            kernel("wavelet_narrow", "s", "count", &narrow, NARROW_TEXT),
            kernel("wavelet_move", "i", "n", &moves, MOVE_TEXT),
        ];
        kernels[LEVEL].functions = ZEROS_BEFORE.into();
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

    pub async fn load(&self, queue: &Queue) -> Result<LoadedWavelet<'_>> {
        Ok(LoadedWavelet { loaded: self.program.load(queue).await?, options: &self.options })
    }
}

/// The fixed kernels on a device.
pub(super) struct LoadedWavelet<'a> {
    loaded: Loaded<'a>,
    options: &'a Options,
}

impl LoadedWavelet<'_> {
    /// Searches among `numbers`, different ones below `n`, of 32 bits each. How many there are is word `n` of `len`.
    ///
    /// Each of `count` searches asks for number k, from 0, of the range from a place to another. `searches` has all first
    /// places, then those behind the ranges, then all k, 32 bits each. Where a range is longer than k, its first place becomes
    /// that of its number among the numbers that are returned; else some place up to that behind them all.
    pub fn select(
        &self,
        queue: &Queue,
        primitives: &LoadedPrimitives<'_>,
        numbers: Buffer,
        (len, n): (&Buffer, usize),
        searches: &Buffer,
        count: usize,
    ) -> Result<Buffer> {
        // There is a word for the place behind the last number.
        let words = n / WORD + 1;
        let (zeros, before) = (queue.alloc(words * size_of::<u32>())?, queue.alloc((words + 1) * size_of::<i64>())?);
        let control = queue.alloc(size_of::<u64>())?;
        let (mut numbers, mut moved) = (numbers, queue.alloc(n * size_of::<u32>())?);
        let last = u32::try_from(n.saturating_sub(1)).map_err(|_| Error::Internal(format!("{n} numbers in a wavelet matrix")))?;
        for shift in (0..u32::BITS - last.leading_zeros()).rev() {
            let of_level = [("len", Arg::Buffer(len)), ("n", Arg::U64(n as u64)), ("shift", Arg::U32(shift))];
            let words_arg = ("words", Arg::U64(words as u64));
            let bits = [("zeros", Arg::Buffer(&zeros)), ("before", Arg::Buffer(&before)), words_arg];
            let mut named = vec![("numbers", Arg::Buffer(&numbers))];
            named.extend(of_level);
            named.extend(bits);
            self.loaded.launch(queue, LEVEL, spread(queue, self.options, words), named)?;
            primitives.offsets(queue, &before, 0, words, 0, &control, 0)?;
            let mut named = vec![("searches", Arg::Buffer(searches)), ("count", Arg::U64(count as u64))];
            named.extend(bits);
            self.loaded.launch(queue, NARROW, spread(queue, self.options, count), named)?;
            let mut named = vec![("numbers", Arg::Buffer(&numbers)), ("moved", Arg::Buffer(&moved))];
            named.extend(of_level);
            named.extend(bits);
            self.loaded.launch(queue, MOVE, spread(queue, self.options, n), named)?;
            std::mem::swap(&mut numbers, &mut moved);
        }
        Ok(numbers)
    }
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
    u32 there = zero_end - zero_begin, ones = (u32)before[words];
    i32 is_zero = k < there;
    searches[s] = is_zero ? zero_begin : ones + begin - zero_begin;
    searches[count + s] = is_zero ? zero_end : ones + end - zero_end;
    searches[2 * count + s] = is_zero ? k : k - there;
";

const MOVE_TEXT: &str = "    if (i < (u64)len[n]) {
      u32 number = numbers[i], zero = zeros_before(zeros, before, i);
      moved[number >> shift & 1 ? (u32)before[words] + (u32)i - zero : zero] = number;
    }
";
