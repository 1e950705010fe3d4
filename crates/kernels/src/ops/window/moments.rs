// SPDX-License-Identifier: Apache-2.0
//! Bounds that lie an interval away from the order key, for [`FrameUnits::Moments`].
//!
//! Where a day is cut to the last one of a shorter month, or clocks are put back, the bound of a later key may lie before that of
//! an earlier one. DataFusion looks for each bound from that of the row before on, so that none goes back; nor does it where
//! there is no such moment, which leads beyond all keys. So all bounds are found first, and then the greatest up to each row.

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Queue};

use super::frame::{Frame, FrameBound, FrameUnits, Places, parts, positions, values};
use crate::codegen::{CType, Params, RowWriter};
use crate::expr::{Expr, Literal, LiteralValue};
use crate::function::Function;
use crate::ops::Options;
use crate::ops::program::{Kernel, Loaded, for_rows, spread};
use crate::prelude::Section;
use crate::{Error, Result};

/// Rows of which one item finds the greatest bounds.
const TILE: usize = 1024;

/// The different bounds of a window's frames.
#[derive(Debug, Clone, Default)]
pub(super) struct Moments {
    bounds: Vec<Bound>,
    /// The position of the kernel of the first bound.
    first: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Bound {
    interval: u128,
    back: bool,
    falls: bool,
    /// Whether the row behind the last one is meant.
    behind: bool,
}

impl Moments {
    /// The frame with the numbers of bounds instead of their intervals.
    pub fn number(&mut self, frame: Frame) -> Frame {
        let FrameUnits::Moments { falls } = frame.units else { return frame };
        let mut number = |interval, back, behind| {
            let bound = Bound { interval, back, falls, behind };
            let known = self.bounds.iter().position(|other| *other == bound);
            known.unwrap_or_else(|| {
                self.bounds.push(bound);
                self.bounds.len() - 1
            }) as u128
        };
        let mut end = |bound, behind| match bound {
            FrameBound::Preceding(interval) => FrameBound::Preceding(number(interval, true, behind)),
            FrameBound::Following(interval) => FrameBound::Following(number(interval, false, behind)),
            other => other,
        };
        Frame { start: end(frame.start, false), end: end(frame.end, true), ..frame }
    }

    /// Appends the kernels, behind the one that writes the order keys, which are the `order` column's.
    pub fn plan(&mut self, types: &[ColumnType], order: &[usize], options: &Options, kernels: &mut Vec<Kernel>) -> Result<()> {
        self.first = kernels.len();
        if let ([_, ..], [column]) = (self.bounds.as_slice(), order) {
            for (number, bound) in self.bounds.iter().enumerate() {
                kernels.push(bound.kernel(number, types, *column, options)?);
            }
            kernels.extend(running(options));
        }
        Ok(())
    }

    /// Adds the bounds of each row to the places.
    pub fn find(
        &self,
        queue: &Queue,
        options: &Options,
        loaded: &Loaded<'_>,
        batch: &DeviceBatch,
        places: &mut Places,
    ) -> Result<()> {
        let n = batch.num_rows();
        let tiles = n.div_ceil(TILE);
        for number in 0..self.bounds.len() {
            let (found, tops) = (queue.alloc(n * size_of::<u32>())?, queue.alloc(tiles * size_of::<u32>())?);
            let mut named = places.args();
            named.extend([("found", Arg::Buffer(&found)), ("n", Arg::U64(n as u64))]);
            loaded.launch_on(queue, self.first + number, spread(queue, options, n), batch, None, named)?;
            for (kernel, rows) in [tiles, 1, n].into_iter().enumerate() {
                let named = vec![
                    ("found", Arg::Buffer(&found)),
                    ("tops", Arg::Buffer(&tops)),
                    ("rows", Arg::U64(n as u64)),
                    ("tiles", Arg::U64(tiles as u64)),
                    ("n", Arg::U64(rows as u64)),
                ];
                loaded.launch(queue, self.first + self.bounds.len() + kernel, spread(queue, options, rows), named)?;
            }
            places.positions.push((positions(number), found));
        }
        Ok(())
    }
}

impl Bound {
    /// Writes where the bound of each row lies.
    fn kernel(&self, number: usize, types: &[ColumnType], column: usize, options: &Options) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let found = params.named("found", "G u32 *RESTRICT");
        params.named("range_keys", "const G i64 *RESTRICT");
        params.named("range_valid", "const G u8 *RESTRICT");
        let n = params.named("n", "u64");
        let places = Places::text(&mut params, "row");
        let mut writer = RowWriter::new(types, options.profile, &mut params);
        writer.push(&places);
        writer.push(&values(CType::I64, self.falls, "row"));
        let target = writer.eval(&self.target(types, column)?)?;
        let (peers, behind) = if self.behind { ("peer_end", 1) } else { ("peer_start", 0) };
        let beyond = if self.back { "part_start" } else { "part_end" };
        writer.push(&format!(
            "{found}[row] = (u32)(!has_key ? {peers} : !{} ? {beyond}
  : key_search(range_keys, values_start, values_end, (i64){}, falls, {behind}));",
            target.valid_code(),
            target.code
        ));
        let statements = writer.statements();
        Ok(Kernel::new(format!("window_moment{number}"), params, for_rows(options.profile, "row", &n, &statements)))
    }

    /// The moment that the bound lies at.
    fn target(&self, types: &[ColumnType], column: usize) -> Result<Expr> {
        let ty = types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}")))?;
        let sign = if self.back == self.falls { 1 } else { -1 };
        let mut arguments = vec![Expr::Column(column)];
        for part in parts(self.interval) {
            let part = part.checked_mul(sign).ok_or_else(|| Error::Unsupported("an interval without a negative".into()))?;
            arguments.push(Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(part.into()) }));
        }
        Ok(Expr::Call { function: Function::AddInterval { checked: false }, arguments, data_type: ty.data_type.clone() })
    }
}

/// Bounds become the greatest up to each row: within tiles, over tiles, and over both. Those of a partition lie behind the ones
/// before it.
fn running(options: &Options) -> [Kernel; 3] {
    let kernel = |name: &str, row: &str, text: &str| {
        let mut params = Params::new();
        params.need(Section::Base);
        params.named("found", "G u32 *RESTRICT");
        params.named("tops", "G u32 *RESTRICT");
        for name in ["rows", "tiles", "n"] {
            params.named(name, "u64");
        }
        let text = text.replace("TILE", &TILE.to_string());
        Kernel::new(name, params, for_rows(options.profile, row, "n", &text))
    };
    [
        kernel("window_greatest", "tile", GREATEST),
        kernel("window_tops", "row", TOPS),
        kernel(
            "window_running",
            "row",
            "    u32 before = tops[row / TILE];\n    if (before > found[row]) found[row] = before;\n",
        ),
    ]
}

const GREATEST: &str = "    u64 end = rows - tile * TILE < TILE ? rows : (tile + 1) * TILE;
    u32 most = 0;
    for (u64 at = tile * TILE; at < end; ++at) {
      u32 own = found[at];
      most = own > most ? own : most;
      found[at] = most;
    }
    tops[tile] = most;
";

/// The greatest of the tiles before each.
const TOPS: &str = "    u32 most = 0;
    for (u64 tile = row; tile < tiles; ++tile) {
      u32 own = tops[tile];
      tops[tile] = most;
      most = own > most ? own : most;
    }
";
