// SPDX-License-Identifier: Apache-2.0
//! The build side of a join: a table that leads from keys to rows.

mod build;
mod kernels;

use std::fmt;

use columnar::DeviceBatch;
use device::{Arg, Buffer, Queue};

use super::JoinKind;
use super::bloom::BloomFilter;
use super::keys::KeyEncoding;
use crate::Result;
pub use build::JoinBuild;
pub(super) use kernels::BuildKernels;

/// Greatest share of the packed keys in the range of a table that makes a useful filter.
const MAX_FILTER_DENSITY: f64 = 0.4;
/// Rows of a table that is small enough to be a cheap filter.
const CHEAP_FILTER_ROWS: u64 = 4096;

/// How keys lead to slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TableKind {
    /// There are no keys: every row matches.
    AllRows,
    /// By the packed key: it is the slot (a perfect hash), or is hashed.
    Packed { perfect_hash: bool },
    /// By a hash and a comparison.
    Hashed,
}

/// The properties of a table that the kernels depend on that search it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TableLayout {
    pub kind: TableKind,
    /// Whether a slot has one row.
    pub unique: bool,
    /// Whether searches probe the Bloom filter alone.
    pub bloom_only: bool,
}

/// A build side on the device.
pub struct JoinTable {
    batch: DeviceBatch,
    num_rows: usize,
    layout: TableLayout,
    /// Number of slots, less one. Hashed keys have a power of two.
    mask: u64,
    /// By slot, of hashed keys: the packed key and the first row, or a tag with that row.
    keys: Buffer,
    /// By slot of a perfect hash: the first row. If the table is not unique, the rows of all slots.
    rows: Buffer,
    /// By slot: the position of its first row in `rows`.
    starts: Buffer,
    /// The most rows of a key, at least 1.
    max_rows_per_key: usize,
    encodings: Vec<KeyEncoding>,
    fields: Vec<KeyField>,
    /// The most rows whose keys can match, of a table of packed keys.
    matchable_rows: u64,
    /// Whether a row has matchable keys.
    has_matchable_rows: bool,
    /// The Bloom filter of the keys, if searches or dynamic filters probe one.
    pub(super) bloom: Option<BloomFilter>,
}

/// The range and weight of a key field in packed keys.
#[derive(Debug, Clone, Copy, Default)]
struct KeyField {
    least: u64,
    /// Greatest value less the least.
    span: u64,
    stride: u64,
}

/// Most slots of a small table: 64 KiB of packed keys.
const SMALL_SLOTS: usize = 1 << 12;

/// Slots of a hashed table of so many rows. Two for each row are half full, and a search without a
/// match compares further keys, which processors cannot predict. A small table stays in the caches
/// with up to 16.
pub(super) fn slots_of(rows: usize) -> usize {
    let few = (rows * 16).next_power_of_two().min(SMALL_SLOTS);
    (rows * 2).next_power_of_two().max(few)
}

impl JoinTable {
    /// The rows of the build side; without any, one row that no slot refers to.
    pub fn batch(&self) -> &DeviceBatch {
        &self.batch
    }

    /// Number of rows of the build side.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Sets the ranges of the key fields. Returns the number of possible packed keys, `None` if
    /// they do not fit 64 bits.
    fn set_fields(&mut self, encodings: &[KeyEncoding], ranges: &[(u64, u64)], null_equals_null: bool) -> Option<u128> {
        let mut total = 1u128;
        let first_of_key = |encoding: &KeyEncoding| (0..encoding.fields()).map(|position| position == 0);
        let mut first_fields = encodings.iter().flat_map(first_of_key).collect::<Vec<_>>();
        for (field, (least, greatest)) in self.fields.iter_mut().zip(ranges).rev() {
            // If the least is above the greatest, no row has a value.
            let (least, span) = greatest.checked_sub(*least).map_or((0, 0), |span| (*least, span));
            let null = u128::from(null_equals_null && first_fields.pop().unwrap_or(false));
            *field = KeyField { least, span, stride: u64::try_from(total).ok()? };
            total = total.checked_mul(u128::from(span) + 1 + null).filter(|total| *total <= u128::from(u64::MAX))?;
        }
        Some(total)
    }

    /// Allocates empty slots for so many packed keys, as a perfect hash or hashed.
    fn alloc_slots(&mut self, queue: &Queue, packed_keys: u128, perfect_hash: bool) -> Result<()> {
        let slots = if perfect_hash { packed_keys as usize } else { slots_of(self.matchable_rows as usize) };
        self.layout.kind = TableKind::Packed { perfect_hash };
        if perfect_hash {
            self.rows = queue.filled(slots * 4, 0xff)?;
        } else {
            (self.rows, self.keys) = (queue.filled(4, 0xff)?, queue.filled(slots * 16, 0xff)?);
        }
        self.mask = slots as u64 - 1;
        Ok(())
    }

    /// Whether no two rows have equal keys.
    pub fn is_unique(&self) -> bool {
        self.layout.unique
    }

    /// Whether the table can serve [dynamic filters](super::Join::dynamic_filter) with so many
    /// keys, and is likely to remove rows: it lacks most keys of its range.
    pub fn filters(&self, keys: usize) -> bool {
        self.can_filter(keys) && (self.layout.kind != TableKind::Hashed || self.bloom.is_some())
    }

    /// The same for a table that gets a Bloom filter.
    pub(super) fn can_filter(&self, keys: usize) -> bool {
        let span: f64 = self.fields.iter().map(|field| field.span as f64 + 1.0).product();
        let selective = match self.layout.kind {
            TableKind::AllRows => false,
            TableKind::Packed { perfect_hash } => {
                let rows = self.matchable_rows;
                !perfect_hash || rows < CHEAP_FILTER_ROWS || rows as f64 <= span * MAX_FILTER_DENSITY
            }
            TableKind::Hashed => true,
        };
        // A filter does not know the number of fields that the join chose for integers of 128 bits
        // and more.
        let has_known_fields = |encoding: &KeyEncoding| match encoding {
            KeyEncoding::Single | KeyEncoding::Bytes => true,
            KeyEncoding::Multiple(_) => false,
        };
        selective && self.encodings.len() == keys && self.encodings.iter().all(has_known_fields)
    }

    /// Whether the search of the join itself probes the Bloom filter before the table.
    pub(super) fn probes_bloom_first(&self) -> bool {
        self.bloom.as_ref().is_some_and(|bloom| bloom.probe_first)
    }

    /// The layout for dynamic filters.
    pub(super) fn filter_layout(&self) -> TableLayout {
        match self.bloom {
            Some(_) => TableLayout { unique: true, bloom_only: true, ..self.layout },
            None => self.layout,
        }
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.mask as usize + 1
    }

    /// The most rows whose keys can match, of a table of packed keys.
    pub(super) fn matchable_rows(&self) -> u64 {
        self.matchable_rows
    }

    /// Whether a join of this kind gives no rows, whatever its probe side has. DataFusion decides
    /// it before it reads that:
    ///
    /// - the build side has no rows, or
    /// - the result has only matches, and each build row has a NULL among its keys.
    pub fn gives_nothing(&self, kind: JoinKind) -> bool {
        self.num_rows() == 0 || kind.needs_match() && !self.has_matchable_rows
    }

    /// Number of key fields.
    pub(super) fn num_fields(&self) -> usize {
        self.fields.len()
    }

    /// The least and the greatest key field of each of so many keys; the sign bit of signed
    /// integers is flipped.
    ///
    /// `None` unless the table has packed keys of one field each, and a matchable row.
    pub fn key_ranges(&self, keys: usize) -> Option<Vec<(u64, u64)>> {
        let ranges = || self.fields.iter().map(|field| (field.least, field.least + field.span)).collect();
        let is_packed = match self.layout.kind {
            TableKind::Packed { .. } => true,
            TableKind::AllRows | TableKind::Hashed => false,
        };
        (is_packed && self.fields.len() == keys && self.matchable_rows > 0).then(ranges)
    }

    /// The most rows of a key, at least 1; without keys, all rows.
    pub fn max_rows_per_key(&self) -> usize {
        self.max_rows_per_key
    }

    pub(super) fn layout(&self) -> TableLayout {
        self.layout
    }

    /// Names of [`args`](Self::args), after `prefix`.
    pub(super) fn arg_names(prefix: &str, fields: usize) -> Vec<String> {
        let fixed = ["keys", "rows", "starts", "mask", "perfect_hash", "n", "bloom", "bloom_words"].map(String::from);
        let fields = (0..fields).flat_map(|field| ["least", "span", "stride"].map(|what| format!("{what}{field}")));
        fixed.into_iter().chain(fields).map(|name| format!("{prefix}_{name}")).collect()
    }

    pub(super) fn args(&self) -> Vec<Arg<'_>> {
        let mut args = vec![
            Arg::Buffer(&self.keys),
            Arg::Buffer(&self.rows),
            Arg::Buffer(&self.starts),
            Arg::U64(self.mask),
            Arg::U32(u32::from(self.layout.kind == TableKind::Packed { perfect_hash: true })),
            Arg::U64(self.num_rows as u64),
            Arg::Buffer(self.bloom.as_ref().map_or(&self.keys, |bloom| &bloom.buffer)),
            Arg::U64(self.bloom.as_ref().map_or(0, |bloom| bloom.words)),
        ];
        args.extend(self.fields.iter().flat_map(|field| [field.least, field.span, field.stride].map(Arg::U64)));
        args
    }
}

impl fmt::Debug for JoinTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinTable").field("rows", &self.num_rows).field("layout", &self.layout).finish_non_exhaustive()
    }
}
