// SPDX-License-Identifier: Apache-2.0
//! Bloom filters over the keys of a table.
//!
//! Dynamic filters probe them instead of a table that exceeds the caches, and searches with few
//! matches probe them before the table.
//!
//! - If packed keys index an array, the filter is exact: a bitmap with one bit for each possible
//!   key.
//! - Else a hash sets four bits of one word of 64, so that a row reads one address. With 16 bits
//!   for each build row about one row of a hundred passes without a match, and finds none in the
//!   join itself later. The upper half of a product gives the word, instead of a division.

use device::{Arg, Buffer, Queue};

use super::keys::{PackedKey, RowKeys};
use super::table::{BuildKernels, JoinBuild, JoinTable, TableKind};
use crate::Result;
use crate::codegen::{CType, Params, Profile, RowWriter};
use crate::ops::Options;
use crate::ops::launch::program::{Kernel, Program, grid_for, row_loop};
use crate::prelude::Section;

/// Bits for each build row. The number of distinct keys is unknown.
const BITS_PER_ROW: u64 = 16;

/// Bytes of a table that the cache of a core, or of a GPU, holds beside the other data of a kernel.
pub(super) fn cached_table_bytes(options: &Options) -> usize {
    options.threshold(match options.profile {
        Profile::Cpu => 1 << 18,
        Profile::Gpu => 1 << 23,
    })
}

/// The readers of a table's Bloom filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BloomFilterUse {
    /// Dynamic filters.
    pub dynamic_filters: bool,
    /// The search of the join itself, in which most rows are likely to find no match.
    pub search: bool,
}

/// The Bloom filter of a table.
pub(super) struct BloomFilter {
    pub buffer: Buffer,
    /// Size in words of 64 bits.
    pub words: u64,
    /// Whether the search of the join itself probes it before the table.
    pub probe_first: bool,
}

/// C of the bits of a row's keys in a Bloom filter.
struct BloomBits {
    /// 0 or 1: whether the row can have bits.
    condition: String,
    /// Index of the word.
    word: String,
    /// The bits within the word.
    mask: String,
}

impl BloomBits {
    fn of(writer: &mut RowWriter<'_>, keys: RowKeys<'_>, table: &str, kind: TableKind) -> BloomBits {
        let (condition, hash) = match kind {
            TableKind::Packed { perfect_hash } => {
                let PackedKey { condition, code } = keys.packed(writer, table);
                if perfect_hash {
                    return BloomBits { condition, word: format!("{code} >> 6"), mask: format!("(u64)1 << ({code} & 63)") };
                }
                (condition, writer.local(CType::U64, &format!("hash64({code})")))
            }
            TableKind::AllRows | TableKind::Hashed => (keys.matchable().unwrap_or_else(|| "1".into()), keys.hash(writer)),
        };
        writer.params().need(Section::Hash);
        let words = writer.params().named(&format!("{table}_bloom_words"), "u64");
        BloomBits { condition, word: format!("bloom_word({hash}, {words})"), mask: format!("bloom_bits({hash})") }
    }
}

/// Appends a probe: sets `result` to `hit` if the filter has all bits of the row.
pub(super) fn probe(
    writer: &mut RowWriter<'_>,
    keys: RowKeys<'_>,
    (table, kind): (&str, TableKind),
    (result, hit): (&str, &str),
) -> Result<()> {
    let BloomBits { condition, word, mask } = BloomBits::of(writer, keys, table, kind);
    writer.guarded(&condition, |writer| {
        let bloom = writer.params().named(&format!("{table}_bloom"), "const G u64 *RESTRICT");
        writer.push(&format!("u64 mask = {mask};\nif (({bloom}[{word}] & mask) == mask) {result} = {hit};"));
        Ok(())
    })
}

/// Appends a prefetch of the word that a row probes.
pub(super) fn prefetch(writer: &mut RowWriter<'_>, keys: RowKeys<'_>, (table, kind): (&str, TableKind)) -> Result<()> {
    let BloomBits { condition, word, .. } = BloomBits::of(writer, keys, table, kind);
    writer.guarded(&condition, |writer| {
        let bloom = writer.params().named(&format!("{table}_bloom"), "const G u64 *RESTRICT");
        writer.push(&format!("PREFETCH(&{bloom}[{word}]);"));
        Ok(())
    })
}

impl BuildKernels<'_> {
    /// The kernel that sets the bits of each row.
    fn bloom(&self, kind: TableKind) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let n = params.named("n", "u64");
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        let BloomBits { condition, word, mask } = BloomBits::of(&mut writer, self.row_keys(&values), "t", kind);
        let bloom = writer.params().named("t_bloom", "volatile G u64 *");
        writer.push(&format!(
            "if ({condition}) {{
  u64 mask = {mask};
  volatile G u64 *bits = &{bloom}[{word}];
  if ((*bits & mask) != mask) A_OR64(bits, mask);
}}"
        ));
        let statements = writer.statements();
        let body = row_loop(self.options.profile, "row", &n, &statements);
        Ok(Kernel::new("join_bloom", params, body))
    }
}

impl JoinBuild {
    /// Adds a Bloom filter to a table that exceeds the caches, or for a dynamic filter without the
    /// columns to compare. If there is no memory for it, the join runs without.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn add_bloom_filter(&self, queue: &Queue, table: &mut JoinTable, wanted: BloomFilterUse) -> Result<()> {
        let kind = table.layout().kind;
        let Some(words) = table.bloom_words(kind) else { return Ok(()) };
        let exceeds_caches = table.searched_bytes(kind) > self.cached_table_bytes;
        let saves_reads = match kind {
            // A perfect hash finds a row, or that there is none, with one read. If the caches of a
            // GPU hold the bitmap, and most keys are missing, most reads miss no cache.
            TableKind::Packed { perfect_hash: true } => {
                let is_sparse = table.matchable_rows() <= table.slots() as u64 / 4;
                self.options.profile == Profile::Gpu && is_sparse && words as usize * 8 <= self.cached_table_bytes
            }
            TableKind::AllRows | TableKind::Packed { perfect_hash: false } | TableKind::Hashed => true,
        };
        let probe_first = wanted.search && exceeds_caches && saves_reads;
        let filters = wanted.dynamic_filters
            && (exceeds_caches || kind == TableKind::Hashed)
            && table.can_filter(self.kernels().keys.len());
        if !probe_first && !filters {
            return Ok(());
        }
        let program = self.bloom_program(kind)?;
        let loaded = program.load(queue).await?;
        let buffer = match queue.zeroed(words as usize * 8) {
            Err(device::Error::OutOfMemory { .. } | device::Error::TooLarge { .. }) => return Ok(()),
            buffer => buffer?,
        };
        table.bloom = Some(BloomFilter { buffer, words, probe_first });
        // Keys that fail have failed in the table's build, so the host never reads this buffer.
        let error = queue.filled(8, 0xff)?;
        let n = table.num_rows();
        let names = JoinTable::arg_names("t", table.num_fields());
        let bound = self.source.bind(table.batch())?;
        let mut named: Vec<_> = names.iter().map(String::as_str).zip(table.args()).collect();
        named.push(("n", Arg::U64(n as u64)));
        loaded.launch_on(queue, 0, grid_for(queue, &self.options, n), &bound, Some(&error), named)
    }

    /// The same for caches that hold so many bytes of a table. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_cache(mut self, bytes: usize) -> JoinBuild {
        self.cached_table_bytes = bytes;
        self
    }

    pub(super) fn bloom_program(&self, kind: TableKind) -> Result<Program> {
        Ok(Program::new("JoinBuild", &self.options, vec![self.kernels().bloom(kind)?]))
    }
}

impl JoinTable {
    /// Bytes of the Bloom filter; 0 without one.
    pub fn filter_bytes(&self) -> usize {
        self.bloom.as_ref().map_or(0, |bloom| bloom.buffer.len())
    }

    /// Words of a Bloom filter for a table of this kind; `None` for a table without keys or rows.
    fn bloom_words(&self, kind: TableKind) -> Option<u64> {
        let of_rows = |rows: u64| (rows * BITS_PER_ROW).div_ceil(64);
        let words = match kind {
            TableKind::AllRows => None,
            TableKind::Packed { perfect_hash: true } => Some((self.slots() as u64).div_ceil(64)),
            TableKind::Packed { perfect_hash: false } => Some(of_rows(self.matchable_rows())),
            TableKind::Hashed => Some(of_rows(self.num_rows() as u64)),
        };
        words.filter(|_| self.num_rows() > 0)
    }

    /// Bytes that searches of a table of this kind read at random.
    fn searched_bytes(&self, kind: TableKind) -> usize {
        let starts = if self.is_unique() { 0 } else { 4 };
        let slot = match kind {
            TableKind::AllRows => 0,
            TableKind::Packed { perfect_hash: true } => 4,
            TableKind::Packed { perfect_hash: false } => 16 + starts,
            TableKind::Hashed => 8 + starts,
        };
        self.slots() * slot
    }
}
