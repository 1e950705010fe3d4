// SPDX-License-Identifier: Apache-2.0
//! Kernels that bring buffers into Arrow's form, the same for every source: bitmaps that begin elsewhere and how many bits
//! they have set, offsets of the other width, views over offsets, codes that number rows.

use columnar::{Carrier, DeviceColumn};
use device::{Arg, Buffer, Queue};

use super::Options;
use super::program::{Kernel, Loaded, Program, for_rows, spread};
use crate::codegen::{Params, Profile};
use crate::prelude::Section;
use crate::{Error, Result};

const MOVE_BITS: usize = 0;
const COUNT_BITS: usize = 1;
const NARROW_OFFSETS: usize = 2;
const WIDEN_OFFSETS: usize = 3;
const VIEWS: usize = 4;
const JOIN_VIEWS: usize = 5;
/// For codes of 1, 2, 4 and 8 bytes.
const NUMBER: usize = 6;

/// Width of a word of bits as Arrow counts them, and bytes of such a word.
const WORD_BITS: usize = 32;
const WORD_BYTES: usize = 4;

/// The fixed kernels.
#[derive(Debug, Clone)]
pub(super) struct Forms {
    program: Program,
    options: Options,
}

impl Forms {
    pub fn try_new(options: &Options) -> Result<Forms> {
        let mut kernels = vec![bits("move_bits", options, true), bits("count_bits", options, false)];
        for (name, from, to) in [("narrow_offsets", "i64", "i32"), ("widen_offsets", "i32", "i64")] {
            let statements = format!("    to[row] = ({to})from[row + offset];\n");
            let params = [("from", pointer("const ", from)), ("offset", "u64".into()), ("to", pointer("", to))];
            kernels.push(rows(name, options, &params, &statements));
        }
        let params = [("offsets", pointer("const ", "i64")), ("heap", pointer("const ", "u8")), ("to", pointer("", "i128"))];
        let len = "(u32)(offsets[row + 1] - offsets[row])";
        let statements = format!("    to[row] = view_of(heap + offsets[row], {len}, heap);\n");
        let mut views = rows("views", options, &params, &statements);
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
        kernels.push(rows("join_views", options, &params, JOIN));
        for element in ["u8", "u16", "u32", "u64"] {
            let params = [("to", pointer("", element))];
            kernels.push(rows(&format!("number_{element}"), options, &params, &format!("    to[row] = ({element})row;\n")));
        }
        Ok(Forms { program: Program::try_new("ArrowForm", options, kernels)?, options: options.clone() })
    }

    /// The program as it is compiled.
    pub fn text(&self) -> &str {
        self.program.text()
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.program.kernel_text()
    }

    pub async fn load(&self, queue: &Queue) -> Result<LoadedForms<'_>> {
        Ok(LoadedForms { loaded: self.program.load(queue).await?, options: &self.options })
    }
}

/// The fixed kernels on a device.
pub(super) struct LoadedForms<'a> {
    loaded: Loaded<'a>,
    options: &'a Options,
}

impl LoadedForms<'_> {
    /// A bitmap whose bits from `to` on are the `n` bits of `bits` from `first` on, with zeros around them. Adds the number of
    /// ones to word `at` of `counts`. There must be bits.
    #[allow(clippy::too_many_arguments)]
    pub fn move_bits(
        &self,
        queue: &Queue,
        bits: &Buffer,
        first: usize,
        n: usize,
        to: usize,
        counts: &Buffer,
        at: usize,
    ) -> Result<Buffer> {
        let (lead, skipped) = (to % WORD_BITS, to / WORD_BITS);
        let words = (lead + n).div_ceil(WORD_BITS);
        let moved = queue.alloc((skipped + words) * WORD_BYTES)?;
        queue.fill(&moved, 0, skipped * WORD_BYTES, 0)?;
        let mut named = vec![("to", Arg::Buffer(&moved)), ("skipped", Arg::U64(skipped as u64)), ("lead", Arg::U32(lead as u32))];
        named.extend(bits_args(bits, first, n, counts, at));
        self.loaded.launch(queue, MOVE_BITS, spread(queue, self.options, words), named)?;
        Ok(moved)
    }

    /// Adds the number of ones among the `n` bits from `first` on to word `at` of `counts`.
    pub fn count_bits(&self, queue: &Queue, bits: &Buffer, first: usize, n: usize, counts: &Buffer, at: usize) -> Result<()> {
        let grid = spread(queue, self.options, n.div_ceil(WORD_BITS));
        self.loaded.launch(queue, COUNT_BITS, grid, bits_args(bits, first, n, counts, at))
    }

    /// The `n + 1` offsets of 64 bits from `offset` on in 32 bits, which hold them.
    pub fn narrow_offsets(&self, queue: &Queue, offsets: &Buffer, offset: usize, n: usize) -> Result<Buffer> {
        self.offsets(queue, NARROW_OFFSETS, offsets, offset, n, size_of::<i32>())
    }

    /// The `n + 1` offsets of 32 bits from `offset` on in 64 bits.
    pub fn widen_offsets(&self, queue: &Queue, offsets: &Buffer, offset: usize, n: usize) -> Result<Buffer> {
        self.offsets(queue, WIDEN_OFFSETS, offsets, offset, n, size_of::<i64>())
    }

    fn offsets(&self, queue: &Queue, kernel: usize, from: &Buffer, offset: usize, n: usize, width: usize) -> Result<Buffer> {
        let to = queue.alloc((n + 1) * width)?;
        let named = vec![
            ("from", Arg::Buffer(from)),
            ("offset", Arg::U64(offset as u64)),
            ("to", Arg::Buffer(&to)),
            ("n", Arg::U64(n as u64 + 1)),
        ];
        self.loaded.launch(queue, kernel, spread(queue, self.options, n + 1), named)?;
        Ok(to)
    }

    /// Views of `n` strings that 64-bit offsets delimit in a heap of at most 2^32 bytes.
    pub fn views(&self, queue: &Queue, offsets: &Buffer, heap: &Buffer, n: usize) -> Result<Buffer> {
        let to = queue.alloc(n * size_of::<u128>())?;
        let named = vec![
            ("offsets", Arg::Buffer(offsets)),
            ("heap", Arg::Buffer(heap)),
            ("to", Arg::Buffer(&to)),
            ("n", Arg::U64(n as u64)),
        ];
        self.loaded.launch(queue, VIEWS, spread(queue, self.options, n), named)?;
        Ok(to)
    }

    /// The views of a column over several heaps as views over the one buffer that these are, of at most 2^32 bytes.
    pub fn join_views(&self, queue: &Queue, column: &DeviceColumn) -> Result<Buffer> {
        let [views, _, bases] = column.buffers() else {
            return Err(Error::Internal("views without bases".into()));
        };
        let n = column.len();
        let to = queue.alloc(n * size_of::<u128>())?;
        // Without validity the kernel reads none.
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
        self.loaded.launch(queue, JOIN_VIEWS, spread(queue, self.options, n), named)?;
        Ok(to)
    }

    /// The integers from 0 to `n`, without `n`, which the carrier holds.
    pub fn number(&self, queue: &Queue, carrier: Carrier, n: usize) -> Result<Buffer> {
        let width = carrier.width();
        if width > size_of::<u64>() {
            return Err(Error::Internal(format!("codes in {}", carrier.name())));
        }
        let to = queue.alloc(n * width)?;
        let named = vec![("to", Arg::Buffer(&to)), ("n", Arg::U64(n as u64))];
        let kernel = NUMBER + width.trailing_zeros() as usize;
        self.loaded.launch(queue, kernel, spread(queue, self.options, n), named)?;
        Ok(to)
    }
}

fn bits_args<'a>(bits: &'a Buffer, first: usize, n: usize, counts: &'a Buffer, at: usize) -> Vec<(&'static str, Arg<'a>)> {
    vec![
        ("bits", Arg::Buffer(bits)),
        ("first", Arg::U64(first as u64)),
        ("n", Arg::U64(n as u64)),
        ("counts", Arg::Buffer(counts)),
        ("at", Arg::U32(at as u32)),
    ]
}

fn pointer(constness: &str, element: &str) -> String {
    format!("{constness}G {element} *RESTRICT")
}

/// A kernel that runs `statements` for each `row` of `n`.
fn rows(name: &str, options: &Options, named: &[(&str, String)], statements: &str) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    let n = params.named("n", "u64");
    Kernel::new(name, params, for_rows(options.profile, "row", &n, statements))
}

/// A kernel that counts ones, a word of 32 bits for each item at a time, and writes the words where `moves` says so.
fn bits(name: &str, options: &Options, moves: bool) -> Kernel {
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
        // The first word begins with `lead` bits that are not the column's.
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

/// The place in all heaps for the place in one. Below a NULL a view may name any heap: nothing is looked up.
const JOIN: &str = "    const G u32 *view = from + (row + offset) * 4;
    G u32 *out = to + row * 4;
    i32 valid = nullable ? BIT(bits, row + first) : 1;
    u32 len = valid ? view[0] : 0;
    out[0] = len;
    out[1] = valid ? view[1] : 0;
    out[2] = len > 12 ? 0 : valid ? view[2] : 0;
    out[3] = len > 12 ? (u32)(bases[view[2]] + view[3]) : valid ? view[3] : 0;
";

/// Stands before the first kernel that calls it. Reads no byte beyond the last bit's.
pub(super) const BITS_FROM: &str = "/* The 32 bits from bit `at` on; those from bit `end` on, which lies behind it, are 0. */
FN u32 bits_from(const G u8 *bits, u64 at, u64 end) {
  u64 byte = at >> 3, bytes = ((end + 7) >> 3) - byte, word = 0;
  u32 count = bytes < 5 ? (u32)bytes : 5;
  for (u32 i = 0; i < count; ++i) word |= (u64)bits[byte + i] << (8 * i);
  word >>= at & 7;
  return end - at < 32 ? (u32)word & ((1u << (end - at)) - 1) : (u32)word;
}
";
