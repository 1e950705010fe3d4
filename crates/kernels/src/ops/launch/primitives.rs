// SPDX-License-Identifier: Apache-2.0
//! Kernels that are the same for every query: prefix sums, bytes packed to bits, recoded
//! dictionaries.

use std::sync::Arc;

use columnar::{ColumnType, DeviceColumn, Layout};
use device::{Arg, Buffer, Grid, ProgramSource, Queue};

use super::NamedArgs;
use super::program::{FixedProgram, Kernel, Loaded, grid_for, row_loop, work_group_size};
use crate::codegen::{Params, Profile};
use crate::ops::Options;
use crate::prelude::Section;
use crate::{Error, Result};

const PACK_BITS: usize = 0;
/// The first of four kernels, for codes of 1, 2, 4 and 8 bytes.
const REMAP: usize = 1;
/// Prefix sums in the cpu profile. The latter two for each [`Element`].
const SCAN_COUNTS: usize = 5;
const TILE_SUMS: usize = 6;
const TILE_PREFIX: usize = 8;
/// The same in the gpu profile.
const PREFIX_SUMS: usize = 5;

/// Elements of a tile of a prefix sum in the cpu profile.
const SCAN_TILE: usize = 4096;
/// Elements of a work-item in the gpu profile. With these a work-group takes as much shared memory
/// as the radix sort, which [`Sizes`](crate::ops::Sizes) compares with the device's.
const ITEMS_PER_WORK_ITEM: usize = 8;

/// The kernels before they are compiled.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Primitives {
    options: Options,
    program: FixedProgram,
}

impl Primitives {
    pub fn new(options: &Options) -> Primitives {
        Primitives { options: options.clone(), program: FixedProgram::new("primitives", options, Primitives::kernels) }
    }

    fn kernels(options: &Options) -> Vec<Kernel> {
        let kernel = |name: &str, named: &[(&str, &str)], body: &str| {
            let mut params = Params::new();
            params.need(Section::Base);
            for (name, c_type) in named {
                params.named(name, c_type);
            }
            Kernel::new(name, params, body.into())
        };
        let pack_bits = match options.profile {
            Profile::Cpu => PACK_BITS_CPU,
            Profile::Gpu => PACK_BITS_GPU,
        };
        let named = [("bytes", "const G u8 *RESTRICT"), ("n", "u64"), ("bits", "G u32 *RESTRICT")];
        let mut kernels = vec![kernel("pack_bits", &named, pack_bits)];
        for element in ["u8", "u16", "u32", "u64"] {
            let mut params = Params::new();
            params.need(Section::Base);
            params.named("from", &format!("const G {element} *RESTRICT"));
            params.named("to", &format!("G {element} *RESTRICT"));
            params.named("map", "const G u32 *RESTRICT");
            for name in ["offset", "n", "known"] {
                params.named(name, "u64");
            }
            // The code of a NULL is arbitrary.
            let statements =
                format!("    u64 code = from[row + offset];\n    to[row] = ({element})(code < known ? map[code] : 0);\n");
            kernels.push(Kernel::new(format!("remap_{element}"), params, row_loop(options.profile, "row", "n", &statements)));
        }
        let (from, n) = (("from", "u64"), ("n", "u64"));
        let control = [("control", "G u64 *RESTRICT"), ("at", "u32")];
        match options.profile {
            Profile::Cpu => {
                let counts = [[("counts", "G u64 *RESTRICT"), n], control].concat();
                kernels.push(kernel("scan_counts", &counts, SCAN_COUNTS_BODY));
                let body = |body: &str, element: Element| {
                    body.replace("TILE", &SCAN_TILE.to_string()).replace("ELEMENT", element.c_type())
                };
                for element in Element::ALL {
                    let values = format!("const G {} *RESTRICT", element.c_type());
                    let sums = [("values", values.as_str()), from, n, ("sums", "G u64 *RESTRICT")];
                    kernels.push(kernel(&element.name("tile_sums"), &sums, &body(TILE_SUMS_BODY, element)));
                }
                for element in Element::ALL {
                    let values = format!("G {} *RESTRICT", element.c_type());
                    let starts = ("starts", "const G u64 *RESTRICT");
                    let prefix = [("values", values.as_str()), from, n, ("base", "u64"), starts];
                    kernels.push(kernel(&element.name("tile_prefix"), &prefix, &body(TILE_PREFIX_BODY, element)));
                }
            }
            Profile::Gpu => {
                let group = options.work_group_size as usize;
                let sizes = [("TILE", ITEMS_PER_WORK_ITEM * group), ("EACH", ITEMS_PER_WORK_ITEM), ("WG", group)];
                let body =
                    sizes.iter().fold(PREFIX_SUMS_BODY.to_string(), |body, (name, size)| body.replace(name, &size.to_string()));
                let tiles = ("tiles", "volatile G u64 *");
                for element in Element::ALL {
                    let values = format!("G {} *RESTRICT", element.c_type());
                    let named = [vec![("values", values.as_str()), from, n, ("base", "u64"), tiles], control.to_vec()].concat();
                    let body = body.replace("ELEMENT", element.c_type());
                    kernels.push(kernel(&element.name("prefix_sums"), &named, &body));
                }
            }
        }
        kernels
    }

    /// The program, as it is compiled.
    pub fn source(&self) -> ProgramSource {
        self.program.source()
    }

    pub async fn load<'a>(&'a self, queue: &'a Queue) -> Result<LoadedPrimitives<'a>> {
        Ok(LoadedPrimitives { queue, loaded: self.program.load(queue).await?, options: &self.options })
    }
}

/// The compiled kernels on a queue.
pub(in crate::ops) struct LoadedPrimitives<'a> {
    queue: &'a Queue,
    loaded: Loaded<'a>,
    options: &'a Options,
}

impl LoadedPrimitives<'_> {
    /// Replaces the counts of `n` tiles by their exclusive prefix sums, in the cpu profile. The
    /// total goes to `control[at]`, a u64.
    pub fn scan_counts(&self, counts: &Buffer, n: usize, control: &Buffer, at: u32) -> Result<()> {
        let grid = Grid { work_groups: 1, work_group_size: work_group_size(self.options) };
        let named = vec![
            ("counts", Arg::Buffer(counts)),
            ("n", Arg::U64(n as u64)),
            ("control", Arg::Buffer(control)),
            ("at", Arg::U32(at)),
        ];
        self.loaded.launch(self.queue, SCAN_COUNTS, grid, named)
    }

    /// Replaces lengths by end offsets, in place. The sum of the lengths goes to `control[at]`, a
    /// u64.
    pub fn offsets(&self, lengths: Lengths<'_>, control: &Buffer, at: u32) -> Result<()> {
        let Lengths { values, element, from, n, base } = lengths;
        let work_group_size = work_group_size(self.options);
        let tile = match self.options.profile {
            Profile::Cpu => SCAN_TILE,
            Profile::Gpu => ITEMS_PER_WORK_ITEM * work_group_size as usize,
        };
        let tiles = n.div_ceil(tile).max(1);
        let work_groups = u32::try_from(tiles).map_err(|_| Error::Unsupported("a batch of more than 2^32 tiles".into()))?;
        let grid = Grid { work_groups, work_group_size };
        let range = [("values", Arg::Buffer(values)), ("from", Arg::U64(from as u64)), ("n", Arg::U64(n as u64))];
        let mut args: NamedArgs<'_> = range.to_vec();
        match self.options.profile {
            Profile::Cpu => {
                let sums = self.queue.alloc(tiles * 8)?;
                args.push(("sums", Arg::Buffer(&sums)));
                self.loaded.launch(self.queue, TILE_SUMS + element as usize, grid, args)?;
                self.scan_counts(&sums, tiles, control, at)?;
                let mut args: NamedArgs<'_> = range.to_vec();
                args.extend([("starts", Arg::Buffer(&sums)), ("base", Arg::U64(base))]);
                self.loaded.launch(self.queue, TILE_PREFIX + element as usize, grid, args)
            }
            Profile::Gpu => {
                let states = self.queue.filled((1 + tiles) * 8, 0xff)?;
                args.extend([("base", Arg::U64(base)), ("tiles", Arg::Buffer(&states))]);
                args.extend([("control", Arg::Buffer(control)), ("at", Arg::U32(at))]);
                self.loaded.launch(self.queue, PREFIX_SUMS + element as usize, grid, args)
            }
        }
    }

    /// Packs `n` bytes of 0 or 1 to bits.
    pub fn pack(&self, bytes: &Buffer, n: usize) -> Result<Buffer> {
        let bits = self.queue.alloc(n.div_ceil(32) * 4)?;
        if n > 0 {
            let named = vec![("bytes", Arg::Buffer(bytes)), ("n", Arg::U64(n as u64)), ("bits", Arg::Buffer(&bits))];
            let grid = grid_for(self.queue, self.options, n.div_ceil(32));
            self.loaded.launch(self.queue, PACK_BITS, grid, named)?;
        }
        Ok(bits)
    }

    /// The codes of a dictionary column, each `code` replaced by `map[code]`.
    pub fn remap(&self, column: &DeviceColumn, map: &[u32]) -> Result<Buffer> {
        let Layout::Dictionary { codes, .. } = &column.ty().layout else {
            return Err(Error::Internal("a column without codes".into()));
        };
        let map_bytes: Vec<u8> = map.iter().flat_map(|code| code.to_le_bytes()).collect();
        let map_buffer = self.queue.alloc(map_bytes.len())?;
        self.queue.write(&map_buffer, 0, &map_bytes)?;
        let to = self.queue.alloc(column.len() * codes.width())?;
        if !column.is_empty() {
            let named = vec![
                ("from", Arg::Buffer(&column.buffers()[0])),
                ("to", Arg::Buffer(&to)),
                ("map", Arg::Buffer(&map_buffer)),
                ("offset", Arg::U64(column.offset() as u64)),
                ("n", Arg::U64(column.len() as u64)),
                ("known", Arg::U64(map.len() as u64)),
            ];
            let kernel = REMAP + codes.width().trailing_zeros() as usize;
            self.loaded.launch(self.queue, kernel, grid_for(self.queue, self.options, column.len()), named)?;
        }
        Ok(to)
    }

    /// A column of computed values. `valid`: a byte of 0 or 1 for each row, if the column may have
    /// NULLs.
    pub fn column(
        &self,
        ty: &Arc<ColumnType>,
        n: usize,
        buffers: Vec<Buffer>,
        valid: Option<&Buffer>,
        dictionary: Option<Arc<DeviceColumn>>,
    ) -> Result<DeviceColumn> {
        let validity = match valid {
            Some(bytes) => Some((self.pack(bytes, n)?, 0)),
            None => None,
        };
        Ok(DeviceColumn::try_new(ty.clone(), n, buffers, validity, None, dictionary)?)
    }
}

/// The type of lengths and offsets.
#[derive(Clone, Copy)]
pub(in crate::ops) enum Element {
    /// Offsets of Arrow's large arrays.
    I64,
    /// Offsets below 2^32.
    U32,
}

impl Element {
    /// In the order of the kernels.
    const ALL: [Element; 2] = [Element::I64, Element::U32];

    fn c_type(self) -> &'static str {
        match self {
            Element::I64 => "i64",
            Element::U32 => "u32",
        }
    }

    /// The name of a kernel for elements of this type.
    fn name(self, kernel: &str) -> String {
        match self {
            Element::I64 => kernel.to_string(),
            Element::U32 => format!("{kernel}_u32"),
        }
    }
}

/// Lengths that become end offsets: element `from + 1 + i` of `values` is the length of row `i` of
/// `n`.
#[derive(Clone, Copy)]
pub(in crate::ops) struct Lengths<'a> {
    pub values: &'a Buffer,
    pub element: Element,
    pub from: usize,
    pub n: usize,
    /// Added to each end offset, not to the sum.
    pub base: u64,
}

impl<'a> Lengths<'a> {
    /// Lengths behind the first element of the buffer.
    pub fn of(values: &'a Buffer, n: usize) -> Lengths<'a> {
        Lengths { values, element: Element::I64, from: 0, n, base: 0 }
    }

    /// The same for offsets below 2^32.
    pub fn of_u32(values: &'a Buffer, n: usize) -> Lengths<'a> {
        Lengths { element: Element::U32, ..Lengths::of(values, n) }
    }
}

const SCAN_COUNTS_BODY: &str = "  u64 sum = 0;
  for (u64 i = 0; i < n; ++i) {
    u64 count = counts[i];
    counts[i] = sum;
    sum += count;
  }
  control[at] = sum;
";

const TILE_SUMS_BODY: &str = "  u64 begin = (u64)GRP() * TILE, end = begin + TILE < n ? begin + TILE : n;
  u64 sum = 0;
  for (u64 i = begin; i < end; ++i) sum += (u64)values[from + 1 + i];
  sums[GRP()] = sum;
";

const TILE_PREFIX_BODY: &str = "  u64 begin = (u64)GRP() * TILE, end = begin + TILE < n ? begin + TILE : n;
  u64 sum = base + starts[GRP()];
  for (u64 i = begin; i < end; ++i) {
    sum += (u64)values[from + 1 + i];
    values[from + 1 + i] = (ELEMENT)sum;
  }
";

/// Adjacent work-items load adjacent elements. In shared memory each takes a run of EACH, and a gap
/// of one behind each run spreads the runs over the banks. The last gap has the number of the tile.
/// Four elements are loaded before one is stored: to the compiler, a store may change the others.
const PREFIX_SUMS_BODY: &str = "  SHARED(u64, part, TILE + WG);
  SHARED(u64, sums, WG);
  L u32 *shared = (L u32 *)&part[TILE + WG - 1];
  u32 l = LID();
  u64 tile = next_tile(tiles, shared), first = tile * TILE, sum = 0;
  G ELEMENT *own = values + from + 1 + first;
  for (u32 i = l; i < TILE; i += 4 * WG) {
    u64 four[4];
    UNROLL
    for (u32 k = 0; k < 4; ++k) four[k] = first + i + k * WG < n ? (u64)own[i + k * WG] : 0;
    UNROLL
    for (u32 k = 0; k < 4; ++k) part[i + k * WG + (i + k * WG) / EACH] = four[k];
  }
  SYNC();
  for (u32 i = l * (EACH + 1); i < l * (EACH + 1) + EACH; ++i) sum += part[i];
  sums[l] = sum;
  SYNC();
  for (u32 d = 1; d < WG; d <<= 1) {
    u64 before = l >= d ? sums[l - d] : 0;
    SYNC();
    sums[l] += before;
    SYNC();
  }
  u64 total = sums[WG - 1], run = sums[l] - sum;
  SYNC();
  u64 before = look_back(tiles, tile, total, sums, shared), end = base + before + run;
  for (u32 i = l * (EACH + 1); i < l * (EACH + 1) + EACH; ++i) part[i] = end += part[i];
  SYNC();
  for (u32 i = l; i < TILE; i += WG) if (first + i < n) own[i] = (ELEMENT)part[i + i / EACH];
  if (l == 0 && tile == NGRP() - 1) control[at] = before + total;
";

const PACK_BITS_CPU: &str = "  u64 words = (n + 31) / 32, run = (words + NGRP() - 1) / NGRP();
  u64 begin = run * GRP(), end = begin + run < words ? begin + run : words;
  for (u64 w = begin; w < end; ++w) {
    u32 word = 0;
    if (w * 32 + 32 <= n) {
      for (u32 b = 0; b < 32; ++b) word |= (u32)bytes[w * 32 + b] << b;
    } else {
      for (u32 b = 0; b < (u32)(n - w * 32); ++b) word |= (u32)bytes[w * 32 + b] << b;
    }
    bits[w] = word;
  }
";

const PACK_BITS_GPU: &str = "  u64 words = (n + 31) / 32;
  for (u64 w = GID(); w < words; w += GSZ()) {
    u32 word = 0, count = w * 32 + 32 <= n ? 32 : (u32)(n - w * 32);
    for (u32 b = 0; b < count; ++b) word |= (u32)bytes[w * 32 + b] << b;
    bits[w] = word;
  }
";

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    #[test]
    fn lengths_of_many_tiles_become_offsets() {
        let context = device::Context::new(device::testing::config().unwrap()).unwrap();
        let queue = context.queue().unwrap();
        for options in [Options::new(Profile::Cpu), Options::new(Profile::Gpu), Options::new(Profile::Gpu).narrow()] {
            let primitives = Primitives::new(&options);
            let primitives = block_on(primitives.load(&queue)).unwrap();
            for n in [0, 1, 7, 255, 256, 257, 2047, 2048, 2049, 4096, 4097, (1 << 17) + 1] {
                for (from, base) in [(0, 0), (3, 1 << 40)] {
                    let length = |i: usize| (i as i64 * 7919 + 3) % 1000 + i64::from(i == n / 2) * (1 << 33);
                    let values: Vec<i64> = vec![-1; from + 1].into_iter().chain((0..n).map(length)).collect();
                    let (buffer, control) = (queue.upload_values(values).unwrap(), queue.alloc_values::<u64>(2).unwrap());
                    let lengths = Lengths { values: buffer.buffer(), element: Element::I64, from, n, base };
                    primitives.offsets(lengths, control.buffer(), 1).unwrap();
                    let ends = (0..n).scan(base as i64, |end, i| {
                        *end += length(i);
                        Some(*end)
                    });
                    let expected: Vec<i64> = vec![-1; from + 1].into_iter().chain(ends).collect();
                    assert_eq!(
                        block_on(queue.read_values(&buffer, 0..from + 1 + n)).unwrap(),
                        expected,
                        "{n} {:?}",
                        options.profile
                    );
                    let sum: i64 = (0..n).map(length).sum();
                    assert_eq!(block_on(queue.read_values(&control, 1..2)).unwrap(), [sum as u64], "{n}");
                }
                let length = |i: usize| (i as u32 * 7919 + 3) % 1000 + u32::from(i == n / 2) * (3 << 30);
                let buffer = queue.upload_values([7].into_iter().chain((0..n).map(length)).collect()).unwrap();
                let control = queue.alloc_values::<u64>(1).unwrap();
                primitives.offsets(Lengths::of_u32(buffer.buffer(), n), control.buffer(), 0).unwrap();
                let ends = (0..n).scan(0, |end, i| {
                    *end += length(i);
                    Some(*end)
                });
                let expected: Vec<u32> = [7].into_iter().chain(ends).collect();
                assert_eq!(block_on(queue.read_values(&buffer, 0..1 + n)).unwrap(), expected, "{n} {:?}", options.profile);
            }
        }
    }

    impl Options {
        /// With the smallest work-groups, so that there are many tiles.
        fn narrow(self) -> Options {
            Options { work_group_size: 32, compaction_tile_rows: 1024, ..self }
        }
    }
}
