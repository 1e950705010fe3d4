// SPDX-License-Identifier: Apache-2.0
//! Kernels that convert buffers to Arrow's layouts, the same for every source.
//!
//! - bitmaps that begin at another bit, and the number of their set bits
//! - offsets of the other width
//! - views over offsets, and views over one heap instead of several
//! - codes 0, 1, … that number rows

use columnar::{Carrier, DeviceColumn};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::program::{FixedProgram, Kernel, Loaded, grid_for, row_loop};
use crate::codegen::{Params, Profile};
use crate::ops::Options;
use crate::prelude::Section;
use crate::{Error, Result};

const MOVE_BITS: usize = 0;
const COUNT_BITS: usize = 1;
const NARROW_OFFSETS: usize = 2;
const WIDEN_OFFSETS: usize = 3;
const VIEWS: usize = 4;
const MERGE_VIEW_HEAPS: usize = 5;
/// The first of four kernels, for codes of 1, 2, 4 and 8 bytes.
const ROW_NUMBERS: usize = 6;

/// Bits and bytes of a bitmap word.
const WORD_BITS: usize = 32;
const WORD_BYTES: usize = 4;

/// The kernels before they are compiled.
#[derive(Debug, Clone)]
pub(in crate::ops) struct LayoutKernels {
    program: FixedProgram,
    options: Options,
}

impl LayoutKernels {
    pub fn new(options: &Options) -> LayoutKernels {
        let program = FixedProgram::new("ArrowLayout", options, LayoutKernels::kernels);
        LayoutKernels { program, options: options.clone() }
    }

    fn kernels(options: &Options) -> Vec<Kernel> {
        let mut kernels = vec![bits_kernel("move_bits", options, true), bits_kernel("count_bits", options, false)];
        for (name, from, to) in [("narrow_offsets", "i64", "i32"), ("widen_offsets", "i32", "i64")] {
            let statements = format!("    to[row] = ({to})from[row + offset];\n");
            let params = [("from", pointer("const ", from)), ("offset", "u64".into()), ("to", pointer("", to))];
            kernels.push(row_kernel(name, options, &params, &statements));
        }
        let params = [("offsets", pointer("const ", "i64")), ("heap", pointer("const ", "u8")), ("to", pointer("", "i128"))];
        let len = "(u32)(offsets[row + 1] - offsets[row])";
        let statements = format!("    to[row] = view_of(heap + offsets[row], {len}, heap);\n");
        let mut views = row_kernel("views", options, &params, &statements);
        views.params.need(Section::ViewOf);
        kernels.push(views);
        let params = [
            ("from", pointer("const ", "u32")),
            ("offset", "u64".into()),
            ("bases", pointer("const ", "u64")),
            ("nullable", "u32".into()),
            ("bits", pointer("const ", "u8")),
            ("first", "u64".into()),
            ("to", pointer("", "u32")),
        ];
        kernels.push(row_kernel("merge_view_heaps", options, &params, MERGE_VIEWS));
        for element in ["u8", "u16", "u32", "u64"] {
            let params = [("to", pointer("", element))];
            kernels.push(row_kernel(
                &format!("row_numbers_{element}"),
                options,
                &params,
                &format!("    to[row] = ({element})row;\n"),
            ));
        }
        kernels
    }

    /// The program, as it is compiled.
    pub fn source(&self) -> ProgramSource {
        self.program.source()
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        self.program.kernel_source()
    }

    pub async fn load<'a>(&'a self, queue: &'a Queue) -> Result<LoadedLayoutKernels<'a>> {
        Ok(LoadedLayoutKernels { queue, loaded: self.program.load(queue).await?, options: &self.options })
    }
}

/// The compiled kernels on a queue.
pub(in crate::ops) struct LoadedLayoutKernels<'a> {
    queue: &'a Queue,
    loaded: Loaded<'a>,
    options: &'a Options,
}

/// The bits of a bitmap from one on. Kernels add the number of set bits to `counts[at]`, a u64.
#[derive(Clone, Copy)]
pub(in crate::ops) struct CountedBits<'a> {
    pub bits: &'a Buffer,
    pub first: usize,
    pub n: usize,
    pub counts: &'a Buffer,
    pub at: usize,
}

impl LoadedLayoutKernels<'_> {
    /// A bitmap that has the bits from bit `to` on, with zeros around them. There must be bits.
    pub fn move_bits(&self, from: CountedBits<'_>, to: usize) -> Result<Buffer> {
        let queue = self.queue;
        let (lead, skipped) = (to % WORD_BITS, to / WORD_BITS);
        let words = (lead + from.n).div_ceil(WORD_BITS);
        let moved = queue.alloc((skipped + words) * WORD_BYTES)?;
        queue.fill(&moved, 0, skipped * WORD_BYTES, 0)?;
        let mut named = vec![("to", Arg::Buffer(&moved)), ("skipped", Arg::U64(skipped as u64)), ("lead", Arg::U32(lead as u32))];
        named.extend(from.args());
        self.loaded.launch(queue, MOVE_BITS, grid_for(queue, self.options, words), named)?;
        Ok(moved)
    }

    /// Counts the set bits.
    pub fn count_bits(&self, bits: CountedBits<'_>) -> Result<()> {
        let grid = grid_for(self.queue, self.options, bits.n.div_ceil(WORD_BITS));
        self.loaded.launch(self.queue, COUNT_BITS, grid, bits.args())
    }

    /// The `n + 1` offsets of 64 bits from element `offset` on, as 32 bits, which hold them.
    pub fn narrow_offsets(&self, offsets: &Buffer, offset: usize, n: usize) -> Result<Buffer> {
        self.offsets(NARROW_OFFSETS, offsets, offset, n, size_of::<i32>())
    }

    /// The `n + 1` offsets of 32 bits from element `offset` on, as 64 bits.
    pub fn widen_offsets(&self, offsets: &Buffer, offset: usize, n: usize) -> Result<Buffer> {
        self.offsets(WIDEN_OFFSETS, offsets, offset, n, size_of::<i64>())
    }

    fn offsets(&self, kernel: usize, from: &Buffer, offset: usize, n: usize, width: usize) -> Result<Buffer> {
        let queue = self.queue;
        let to = queue.alloc((n + 1) * width)?;
        let named = vec![
            ("from", Arg::Buffer(from)),
            ("offset", Arg::U64(offset as u64)),
            ("to", Arg::Buffer(&to)),
            ("n", Arg::U64(n as u64 + 1)),
        ];
        self.loaded.launch(queue, kernel, grid_for(queue, self.options, n + 1), named)?;
        Ok(to)
    }

    /// Views of `n` strings that 64-bit offsets delimit in a heap of at most 2^32 bytes.
    pub fn views(&self, offsets: &Buffer, heap: &Buffer, n: usize) -> Result<Buffer> {
        let queue = self.queue;
        let to = queue.alloc(n * size_of::<u128>())?;
        let named = vec![
            ("offsets", Arg::Buffer(offsets)),
            ("heap", Arg::Buffer(heap)),
            ("to", Arg::Buffer(&to)),
            ("n", Arg::U64(n as u64)),
        ];
        self.loaded.launch(queue, VIEWS, grid_for(queue, self.options, n), named)?;
        Ok(to)
    }

    /// Views over one buffer of at most 2^32 bytes, from views over the heaps that this buffer
    /// consists of.
    pub fn merge_view_heaps(&self, column: &DeviceColumn) -> Result<Buffer> {
        let queue = self.queue;
        let [views, _, bases] = column.buffers() else {
            return Err(Error::Internal("views without bases".into()));
        };
        let n = column.len();
        let to = queue.alloc(n * size_of::<u128>())?;
        // Without validity the kernel does not read `bits`.
        let (bits, first) = column.validity().unwrap_or((bases, 0));
        let named = vec![
            ("from", Arg::Buffer(views)),
            ("offset", Arg::U64(column.offset() as u64)),
            ("bases", Arg::Buffer(bases)),
            ("nullable", Arg::U32(column.validity().is_some().into())),
            ("bits", Arg::Buffer(bits)),
            ("first", Arg::U64(first as u64)),
            ("to", Arg::Buffer(&to)),
            ("n", Arg::U64(n as u64)),
        ];
        self.loaded.launch(queue, MERGE_VIEW_HEAPS, grid_for(queue, self.options, n), named)?;
        Ok(to)
    }

    /// The integers from 0 to `n - 1`, which the carrier holds.
    pub fn row_numbers(&self, carrier: Carrier, n: usize) -> Result<Buffer> {
        let queue = self.queue;
        let width = carrier.width();
        if width > size_of::<u64>() {
            return Err(Error::Internal(format!("codes in {}", carrier.name())));
        }
        let to = queue.alloc(n * width)?;
        let named = vec![("to", Arg::Buffer(&to)), ("n", Arg::U64(n as u64))];
        let kernel = ROW_NUMBERS + width.trailing_zeros() as usize;
        self.loaded.launch(queue, kernel, grid_for(queue, self.options, n), named)?;
        Ok(to)
    }
}

impl<'a> CountedBits<'a> {
    fn args(self) -> Vec<(&'static str, Arg<'a>)> {
        vec![
            ("bits", Arg::Buffer(self.bits)),
            ("first", Arg::U64(self.first as u64)),
            ("n", Arg::U64(self.n as u64)),
            ("counts", Arg::Buffer(self.counts)),
            ("at", Arg::U32(self.at as u32)),
        ]
    }
}

fn pointer(constness: &str, element: &str) -> String {
    format!("{constness}G {element} *RESTRICT")
}

/// A kernel that runs `statements` for each `row` of `n`.
fn row_kernel(name: &str, options: &Options, named: &[(&str, String)], statements: &str) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    let n = params.named("n", "u64");
    Kernel::new(name, params, row_loop(options.profile, "row", &n, statements))
}

/// A kernel that counts set bits, a word of 32 bits for each work-item at a time, and with `moves`
/// writes the words.
fn bits_kernel(name: &str, options: &Options, moves: bool) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let mut named = vec![("bits", "const G u8 *RESTRICT"), ("first", "u64"), ("n", "u64"), ("counts", "G u64 *"), ("at", "u32")];
    if moves {
        named.extend([("to", "G u32 *RESTRICT"), ("skipped", "u64"), ("lead", "u32")]);
    }
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    let statements = match moves {
        false => "    sum += POPC32(bits_from(bits, first + w * 32, first + n));\n",
        // The first word begins with `lead` bits outside of the column.
        true => {
            "    u32 word = w ? bits_from(bits, first + w * 32 - lead, first + n) : bits_from(bits, first, first + n) << lead;\n\
             \x20   to[skipped + w] = word;\n\
             \x20   sum += POPC32(word);\n"
        }
    };
    let words = if moves { "(n + lead + 31) / 32" } else { "(n + 31) / 32" };
    let body = match options.profile {
        Profile::Cpu => format!(
            "  u64 words = {words}, run = (words + NGRP() - 1) / NGRP(), sum = 0;
  u64 begin = run * GRP(), end = begin + run < words ? begin + run : words;
  for (u64 w = begin; w < end; ++w) {{
{statements}  }}
  if (sum) A_ADD64(&counts[at], sum);
"
        ),
        Profile::Gpu => format!(
            "  SHARED(u64, part, {group});
  u32 l = LID();
  u64 words = {words}, sum = 0;
  for (u64 w = GID(); w < words; w += GSZ()) {{
{statements}  }}
  part[l] = sum;
  SYNC();
  for (u32 d = {group} / 2; d > 0; d >>= 1) {{
    if (l < d) part[l] += part[l + d];
    SYNC();
  }}
  if (l == 0 && part[0]) A_ADD64(&counts[at], part[0]);
",
            group = options.work_group_size,
        ),
    };
    let mut kernel = Kernel::new(name, params, body);
    if moves {
        kernel.params.function(BITS_FROM.into());
    }
    kernel
}

/// Replaces the offset in one heap by that in the whole buffer. The view of a NULL is arbitrary: it
/// is not looked up.
const MERGE_VIEWS: &str = "    const G u32 *view = from + (row + offset) * 4;
    G u32 *out = to + row * 4;
    i32 valid = nullable ? BIT(bits, row + first) : 1;
    u32 len = valid ? view[0] : 0;
    out[0] = len;
    out[1] = valid ? view[1] : 0;
    out[2] = len > 12 ? 0 : valid ? view[2] : 0;
    out[3] = len > 12 ? (u32)(bases[view[2]] + view[3]) : valid ? view[3] : 0;
";

/// A function for kernels that move bits. Reads no byte beyond that of the last bit.
pub(in crate::ops) const BITS_FROM: &str = "/* The 32 bits from bit `at` on. Bits from `end` on are 0; `end` lies behind `at`. */
FN u32 bits_from(const G u8 *bits, u64 at, u64 end) {
  u64 byte = at >> 3, bytes = ((end + 7) >> 3) - byte, word = 0;
  u32 count = bytes < 5 ? (u32)bytes : 5;
  for (u32 i = 0; i < count; ++i) word |= (u64)bits[byte + i] << (8 * i);
  word >>= at & 7;
  return end - at < 32 ? (u32)word & ((1u << (end - at)) - 1) : (u32)word;
}
";
