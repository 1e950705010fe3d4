// SPDX-License-Identifier: Apache-2.0
//! Frames: the rows of its partition that a row reads, and the C to find them.

use std::fmt;

use device::{Arg, Buffer};

use crate::codegen::{CType, Params};
use crate::{Error, Result};

/// The rows that a window function reads, from a first one to a last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// The unit of offsets, and the meaning of the current row.
    pub units: FrameUnits,
    /// The first row.
    pub start: FrameBound,
    /// The last row.
    pub end: FrameBound,
}

/// The unit of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameUnits {
    /// Rows.
    Rows,
    /// Values of the order: the current row stands for all of its peers. Offsets are in units of
    /// the one order key's integers (days of a `Date32`, hundredths of a `Decimal128(15, 2)`).
    Range {
        /// Whether keys are in descending order.
        descending: bool,
    },
    /// A range over a `Decimal128` key that may exceed 64 bits.
    Range128 {
        /// Whether keys are in descending order.
        descending: bool,
    },
    /// A range over a `Decimal256` key.
    Range256 {
        /// Whether keys are in descending order.
        descending: bool,
    },
    /// A range over a float key. Offsets are the bits of floats of its type that are finite and not
    /// below 0. An offset of 0 is not the current row: -0.0 and 0.0 are different keys, and 0.0
    /// ahead of both is 0.0.
    FloatRange {
        /// Whether keys are in descending order.
        descending: bool,
    },
    /// A range over a date or timestamp key with [`interval`]s as offsets: months and days differ
    /// in length, and clocks are put back.
    IntervalRange {
        /// Whether keys are in descending order.
        descending: bool,
    },
    /// A range over a key without arithmetic, such as a string: in DataFusion each offset leads
    /// beyond all keys.
    NonArithmeticRange,
    /// Groups of peers.
    Groups,
}

/// An offset of [`FrameUnits::IntervalRange`].
pub fn interval(months: i32, days: i32, nanos: i64) -> u128 {
    u128::from(months as u32) << 96 | u128::from(days as u32) << 64 | u128::from(nanos as u64)
}

/// Months, days and nanoseconds of an [`interval`].
pub(super) fn interval_parts(interval: u128) -> [i64; 3] {
    [i64::from((interval >> 96) as i32), i64::from((interval >> 64) as i32), interval as i64]
}

/// An end of a frame. An offset of 0 is the current row, except for [`FrameUnits::FloatRange`],
/// [`FrameUnits::IntervalRange`] and [`FrameUnits::NonArithmeticRange`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameBound {
    /// The first row of the partition.
    UnboundedPreceding,
    /// So many units before the row.
    Preceding(u128),
    /// The row itself, or its peers.
    CurrentRow,
    /// So many units after the row.
    Following(u128),
    /// The last row of the partition.
    UnboundedFollowing,
}

impl Frame {
    /// The whole partition.
    pub const PARTITION: Frame =
        Frame { units: FrameUnits::Rows, start: FrameBound::UnboundedPreceding, end: FrameBound::UnboundedFollowing };
    /// From the first row of the partition to the last peer of the current row: SQL's default frame
    /// with an order.
    pub const RUNNING: Frame = Frame {
        units: FrameUnits::Range { descending: false },
        start: FrameBound::UnboundedPreceding,
        end: FrameBound::CurrentRow,
    };

    /// Fails for frames that are not supported on the device.
    pub(super) fn check(&self) -> Result<()> {
        if self.start == FrameBound::UnboundedFollowing || self.end == FrameBound::UnboundedPreceding {
            return Err(Error::Unsupported(format!("a frame of {self:?} is not supported on the device")));
        }
        Ok(())
    }

    /// Whether a bound is found by the order key.
    pub(super) fn searches_keys(&self) -> bool {
        let Frame { units, start, end } = self;
        units.by_key(*start) || units.by_key(*end)
    }

    /// The first and the last row of a frame in units of rows, counted from the row itself, if
    /// offsets limit them.
    pub(super) fn positions(&self) -> Option<(i64, i64)> {
        let rows = |offset: u128| offset.min(MORE_THAN_ALL_ROWS.into()) as i64;
        let position = |bound| match bound {
            FrameBound::Preceding(offset) => Some(-rows(offset)),
            FrameBound::CurrentRow => Some(0),
            FrameBound::Following(offset) => Some(rows(offset)),
            FrameBound::UnboundedPreceding | FrameBound::UnboundedFollowing => None,
        };
        let positions = (position(self.start)?, position(self.end)?);
        (self.units == FrameUnits::Rows).then_some(positions)
    }

    /// Most rows of a frame in units of rows, if its offsets limit them.
    pub(super) fn rows(&self) -> Option<u64> {
        let (start, end) = self.positions()?;
        u64::try_from(end.saturating_sub(start).saturating_add(1).max(0)).ok()
    }

    /// The offsets as kernel arguments.
    pub(super) fn offsets(&self) -> Vec<(&'static str, Arg<'static>)> {
        let most = match self.units {
            FrameUnits::Range { .. } => i64::MAX as u128,
            FrameUnits::Range128 { .. } | FrameUnits::Range256 { .. } => i128::MAX as u128,
            FrameUnits::FloatRange { .. } => u64::MAX.into(),
            FrameUnits::IntervalRange { .. } | FrameUnits::NonArithmeticRange => 0,
            FrameUnits::Rows | FrameUnits::Groups => MORE_THAN_ALL_ROWS.into(),
        };
        let offset = |bound| match bound {
            FrameBound::Preceding(offset) | FrameBound::Following(offset) => offset.min(most),
            FrameBound::UnboundedPreceding | FrameBound::CurrentRow | FrameBound::UnboundedFollowing => 0,
        };
        let words = |[low, high]: [&'static str; 2], offset: u128| {
            let high = self.units.key().is_wide().then_some((high, Arg::U64((offset >> 64) as u64)));
            [(low, Arg::U64(offset as u64))].into_iter().chain(high)
        };
        words(START_OFFSET, offset(self.start)).chain(words(END_OFFSET, offset(self.end))).collect()
    }

    /// C that declares `frame_start` and the exclusive `frame_end` of the row `i`, after
    /// [`PartitionIndex::declare`].
    pub(super) fn declare(&self, params: &mut Params, i: &str) -> String {
        let units = self.units;
        let key = units.key();
        for [low, high] in [START_OFFSET, END_OFFSET] {
            params.named(low, "u64");
            if key.is_wide() {
                params.named(high, "u64");
            }
        }
        let keys = match (units, self.searches_keys()) {
            (FrameUnits::IntervalRange { .. }, true) => {
                for bound in [self.start, self.end] {
                    if let FrameBound::Preceding(number) | FrameBound::Following(number) = bound {
                        params.named(&interval_bound(number as usize), "const G u32 *RESTRICT");
                    }
                }
                String::new()
            }
            (_, true) => {
                params.need_type(key);
                params.named("range_keys", &format!("const G {} *RESTRICT", key.name()));
                params.named("range_valid", "const G u8 *RESTRICT");
                declare_values(key, units.descending(), i)
            }
            (_, false) => String::new(),
        };
        let start = BoundRow { bound: self.start, units, i, offset: START_OFFSET, behind: false };
        let end = BoundRow { bound: self.end, units, i, offset: END_OFFSET, behind: true };
        format!("{keys}u64 frame_start = {start}, frame_end = {end};\nif (frame_end < frame_start) frame_end = frame_start;")
    }
}

impl FrameUnits {
    /// C type of the order key, if rows are found by it.
    pub(super) fn key(self) -> CType {
        match self {
            FrameUnits::Range128 { .. } => CType::I128,
            FrameUnits::Range256 { .. } => CType::I256,
            FrameUnits::Rows
            | FrameUnits::Range { .. }
            | FrameUnits::FloatRange { .. }
            | FrameUnits::IntervalRange { .. }
            | FrameUnits::NonArithmeticRange
            | FrameUnits::Groups => CType::I64,
        }
    }

    /// Whether rows are found by descending order keys.
    fn descending(self) -> bool {
        match self {
            FrameUnits::Range { descending }
            | FrameUnits::Range128 { descending }
            | FrameUnits::Range256 { descending }
            | FrameUnits::FloatRange { descending }
            | FrameUnits::IntervalRange { descending } => descending,
            FrameUnits::NonArithmeticRange | FrameUnits::Rows | FrameUnits::Groups => false,
        }
    }

    /// Whether a bound is found by the order key.
    fn by_key(self, bound: FrameBound) -> bool {
        let (FrameBound::Preceding(offset) | FrameBound::Following(offset)) = bound else { return false };
        match self {
            FrameUnits::Range { .. } | FrameUnits::Range128 { .. } | FrameUnits::Range256 { .. } => offset > 0,
            FrameUnits::FloatRange { .. } | FrameUnits::IntervalRange { .. } | FrameUnits::NonArithmeticRange => true,
            FrameUnits::Rows | FrameUnits::Groups => false,
        }
    }
}

/// C that declares the variables of [`VALUES`] for a row, after [`PartitionIndex::declare`].
pub(super) fn declare_values(key: CType, descending: bool, row: &str) -> String {
    let own = match key.is_wide() {
        true => format!("{}_sel(has_key, range_keys[ROW], {})", key.name(), key.zero()),
        false => "has_key ? range_keys[ROW] : 0".into(),
    };
    VALUES
        .replace("DESCENDING", if descending { "1" } else { "0" })
        .replace("OWN_KEY", &own)
        .replace("ROW", row)
        .replace("KEY", key.name())
}

/// Parameter of a bound of [`FrameUnits::IntervalRange`], by its number in the window.
pub(super) fn interval_bound(number: usize) -> String {
    format!("interval_bound{number}")
}

/// The rows of the partition without a NULL key, whether keys are descending, and the key of the
/// row.
const VALUES: &str = "u64 values_start = part_start, values_end = part_end;
if (!range_valid[part_start]) values_start = peer_starts[peers[part_start + 1]];
if (!range_valid[part_end - 1]) values_end = peer_starts[peers[part_end] - 1];
i32 has_key = range_valid[ROW], descending = DESCENDING;
KEY own_key = OWN_KEY;
";

/// C: whether one key is less than another.
fn less(key: CType, a: &str, b: &str) -> String {
    if key.is_wide() { format!("{}_lt({a}, {b})", key.name()) } else { format!("{a} < {b}") }
}

/// C: whether two keys are equal.
fn same(key: CType, a: &str, b: &str) -> String {
    if key.is_wide() { format!("{}_eq({a}, {b})", key.name()) } else { format!("{a} == {b}") }
}

/// The C function that finds rows by integer keys.
///
/// In DataFusion a bound beyond the values of the key's type is unbounded, so that it includes
/// NULLs. A bound below 0 of an unsigned type is 0.
pub(super) fn range_search(least: i64, most: i64, unsigned: bool) -> String {
    let (least, most, unsigned) = (least as u64, most as u64, i32::from(unsigned));
    let target = INTEGER_TARGET
        .replace("LEAST", &format!("(i64){least:#x}UL"))
        .replace("MOST", &format!("(i64){most:#x}UL"))
        .replace("UNSIGNED", &unsigned.to_string());
    range_search_to(CType::I64, &target)
}

/// The same for decimals of several words: bounds overflow where the words do.
pub(super) fn wide_range_search(key: CType) -> String {
    range_search_to(key, &WIDE_TARGET.replace("KEY", key.name()))
}

/// The same for floats of `bits` bits, whose keys are integers in their totalOrder. No bound
/// overflows: it becomes infinite.
pub(super) fn float_range_search(bits: u32) -> String {
    let target = "  fWIDTH own = fWIDTH_unkey((iWIDTH)key), by = BITS_FWIDTH((uWIDTH)offset);
  i64 target = fWIDTH_key(back != descending ? fWIDTH_sub(own, by) : fWIDTH_add(own, by));
";
    range_search_to(CType::I64, &target.replace("WIDTH", &bits.to_string()))
}

/// The C function that finds the bounds of [`FrameUnits::IntervalRange`].
pub(super) fn key_search(key: CType) -> String {
    KEY_SEARCH
        .replace("MORE", &less(key, "target", "other"))
        .replace("LESS", &less(key, "other", "target"))
        .replace("SAME", &same(key, "other", "target"))
        .replace("KEY", key.name())
}

fn range_search_to(key: CType, target: &str) -> String {
    let offset = if key.is_wide() { key.name() } else { "u64" };
    key_search(key) + &RANGE_SEARCH.replace("TARGET", target).replace("OFFSET", offset).replace("KEY", key.name())
}

const INTEGER_TARGET: &str = "  const i64 least = LEAST, most = MOST;
  i64 by = (i64)offset, target;
  if (back != descending) {
    i32 below = (u64)key - (u64)least < offset;
    if (below && !UNSIGNED) return edge;
    target = below ? least : key - by;
  } else {
    if ((u64)most - (u64)key < offset) return edge;
    target = key + by;
  }
";

const WIDE_TARGET: &str = "  i32 down = back != descending;
  if (down ? KEY_sub_over(key, offset) : KEY_add_over(key, offset)) return edge;
  KEY target = down ? KEY_sub(key, offset) : KEY_add(key, offset);
";

const KEY_SEARCH: &str =
    "/* The first of the rows from low to high whose key is not before the target; with `behind`, whose key is after it. */
FN u64 key_search(const G KEY *keys, u64 low, u64 high, KEY target, i32 descending, i32 behind) {
  while (low < high) {
    u64 middle = low + (high - low) / 2;
    KEY other = keys[middle];
    i32 before = descending ? MORE : LESS;
    if (before || (behind && SAME)) low = middle + 1;
    else high = middle;
  }
  return low;
}
";

const RANGE_SEARCH: &str = "/* The same for the target that is `offset` back from `key`, or ahead of it. */
FN u64 range_search(const G KEY *keys, u64 low, u64 high, KEY key, OFFSET offset, i32 back, i32 descending, i32 behind, u64 edge) {
TARGET  return key_search(keys, low, high, target, descending, behind);
}
";

/// The words of an offset; only wide keys have the second one.
const START_OFFSET: [&str; 2] = ["start_offset", "start_offset_high"];
const END_OFFSET: [&str; 2] = ["end_offset", "end_offset_high"];

/// More rows than a batch can have.
const MORE_THAN_ALL_ROWS: u64 = 1 << 40;

/// C for the row of a bound, or with `behind` for the row after it.
struct BoundRow<'a> {
    bound: FrameBound,
    units: FrameUnits,
    i: &'a str,
    offset: [&'static str; 2],
    behind: bool,
}

impl fmt::Display for BoundRow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BoundRow { i, offset: [offset, high], behind, .. } = self;
        let one = if *behind { " + 1" } else { "" };
        match (self.bound, self.units) {
            (FrameBound::UnboundedPreceding, _) => f.write_str("part_start"),
            (FrameBound::UnboundedFollowing, _) => f.write_str("part_end"),
            (FrameBound::CurrentRow | FrameBound::Preceding(0) | FrameBound::Following(0), FrameUnits::Rows) => {
                write!(f, "{i}{one}")
            }
            (FrameBound::Preceding(_), FrameUnits::Rows) => {
                write!(f, "({i} - part_start < {offset} ? part_start : {i} - {offset}{one})")
            }
            (FrameBound::Following(_), FrameUnits::Rows) => {
                write!(f, "(part_end - {i} <= {offset} ? part_end : {i} + {offset}{one})")
            }
            (FrameBound::Preceding(1..), FrameUnits::Groups) => {
                write!(f, "(peer - ((u64)peers[part_start + 1] - 1) < {offset} ? part_start : peer_starts[peer - {offset}{one}])")
            }
            (FrameBound::Following(1..), FrameUnits::Groups) => {
                write!(f, "((u64)peers[part_end] - 1 - peer < {offset} ? part_end : peer_starts[peer + {offset}{one}])")
            }
            (FrameBound::Preceding(number) | FrameBound::Following(number), FrameUnits::IntervalRange { .. }) => {
                write!(f, "{}[{i}]", interval_bound(number as usize))
            }
            (bound, units) if units.by_key(bound) => {
                let back = i32::from(matches!(self.bound, FrameBound::Preceding(_)));
                let (peers, behind) = if *behind { ("peer_end", 1) } else { ("peer_start", 0) };
                let edge = match (back, behind) {
                    (0, _) => "part_end",
                    (_, 0) => "part_start",
                    _ => "values_start",
                };
                let offset = match units.key() {
                    CType::I128 => format!("i128_make({offset}, {high})"),
                    CType::I256 => format!("i256_make({offset}, {high}, 0, 0)"),
                    _ => (*offset).to_owned(),
                };
                let found = |key: &str| match units {
                    FrameUnits::NonArithmeticRange => edge.to_owned(),
                    FrameUnits::Rows
                    | FrameUnits::Range { .. }
                    | FrameUnits::Range128 { .. }
                    | FrameUnits::Range256 { .. }
                    | FrameUnits::FloatRange { .. }
                    | FrameUnits::IntervalRange { .. }
                    | FrameUnits::Groups => format!(
                        "range_search(range_keys, values_start, values_end, {key}, {offset}, {back}, descending, {behind}, {edge})"
                    ),
                };
                // DataFusion searches each bound from that of the row before on. If the bound of
                // the last value is beyond the partition, so are those of the NULLs after it, and
                // their frames are empty.
                let nulls = match (back, behind) {
                    (0, 0) => format!(
                        "values_start < values_end && values_end <= {i} && {} == part_end ? part_end : {peers}",
                        found("range_keys[values_end - 1]")
                    ),
                    _ => peers.to_owned(),
                };
                write!(f, "(has_key ? {} : {nulls})", found("own_key"))
            }
            (
                FrameBound::CurrentRow | FrameBound::Preceding(_) | FrameBound::Following(_),
                FrameUnits::Range { .. }
                | FrameUnits::Range128 { .. }
                | FrameUnits::Range256 { .. }
                | FrameUnits::FloatRange { .. }
                | FrameUnits::IntervalRange { .. }
                | FrameUnits::NonArithmeticRange
                | FrameUnits::Groups,
            ) => f.write_str(if *behind { "peer_end" } else { "peer_start" }),
        }
    }
}

/// The partitions and groups of peers of the rows of a batch.
#[derive(Debug)]
pub(super) struct PartitionIndex {
    /// For each row, the number of its partition, and that of its peers; from 1, i64 each, after a
    /// first element.
    pub parts: Buffer,
    pub peers: Buffer,
    /// The first row of each partition and of each group of peers, u32 each. The last element is
    /// the number of rows.
    pub part_starts: Buffer,
    pub peer_starts: Buffer,
    /// The order key of each row, and a byte, 0 for NULL; if frames search keys.
    pub keys: Option<(Buffer, Buffer)>,
    /// The bounds of [`FrameUnits::IntervalRange`] by parameter name, a u32 for each row.
    pub interval_bounds: Vec<(String, Buffer)>,
}

impl PartitionIndex {
    /// The kernel arguments.
    pub fn args(&self) -> Vec<(&str, Arg<'_>)> {
        let mut args = vec![
            ("parts", Arg::Buffer(&self.parts)),
            ("part_starts", Arg::Buffer(&self.part_starts)),
            ("peers", Arg::Buffer(&self.peers)),
            ("peer_starts", Arg::Buffer(&self.peer_starts)),
        ];
        if let Some((keys, valid)) = &self.keys {
            args.extend([("range_keys", Arg::Buffer(keys)), ("range_valid", Arg::Buffer(valid))]);
        }
        args.extend(self.interval_bounds.iter().map(|(name, rows)| (name.as_str(), Arg::Buffer(rows))));
        args
    }

    /// C that declares the partition and the peers of the row `i`.
    pub fn declare(params: &mut Params, i: &str) -> String {
        for name in ["parts", "peers"] {
            params.named(name, "const G i64 *RESTRICT");
        }
        for name in ["part_starts", "peer_starts"] {
            params.named(name, "const G u32 *RESTRICT");
        }
        format!(
            "u64 part = (u64)parts[{i} + 1] - 1, part_start = part_starts[part], part_end = part_starts[part + 1];
u64 peer = (u64)peers[{i} + 1] - 1, peer_start = peer_starts[peer], peer_end = peer_starts[peer + 1];"
        )
    }
}
