// SPDX-License-Identifier: Apache-2.0
//! Bounds at an interval from the order key, for [`FrameUnits::IntervalRange`].
//!
//! The bound of a later key may be before that of an earlier key. This happens if a day is cut to
//! the last one of a shorter month, or clocks are put back. DataFusion searches each bound from
//! that of the row before on, so that bounds never go back. The same holds for a nonexistent
//! timestamp, which leads beyond all keys. So all bounds are found first, and then the greatest up
//! to each row.

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceBatch};
use device::Arg;

use super::frame::{Frame, FrameBound, FrameUnits, PartitionIndex, declare_values, interval_bound, interval_parts};
use crate::codegen::{CType, Params, RowWriter};
use crate::expr::{Expr, Literal, LiteralValue};
use crate::function::Function;
use crate::ops::Options;
use crate::ops::launch::Launch;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::prelude::Section;
use crate::{Error, Result};

/// Rows of a tile, of which one work-item computes the running maximum.
const TILE: usize = 1024;

/// The distinct bounds of a window's frames.
#[derive(Debug, Clone, Default)]
pub(super) struct IntervalBounds {
    bounds: Vec<IntervalBound>,
    /// The position of the kernel of the first bound.
    first: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct IntervalBound {
    interval: u128,
    back: bool,
    descending: bool,
    /// Whether the bound is the row after the last one of the frame.
    behind: bool,
}

impl IntervalBounds {
    /// The frame with the numbers of bounds instead of their intervals.
    pub fn number(&mut self, frame: Frame) -> Frame {
        let FrameUnits::IntervalRange { descending } = frame.units else { return frame };
        let mut number = |interval, back, behind| {
            let bound = IntervalBound { interval, back, descending, behind };
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

    /// Appends the kernels, after the one that writes the keys of the `order` column.
    pub fn plan(&mut self, types: &[ColumnType], order: &[usize], options: &Options, kernels: &mut Vec<Kernel>) -> Result<()> {
        self.first = kernels.len();
        if let ([_, ..], [column]) = (self.bounds.as_slice(), order) {
            for (number, bound) in self.bounds.iter().enumerate() {
                kernels.push(bound.kernel(number, types, *column, options)?);
            }
            kernels.extend(running_maximum(options));
        }
        Ok(())
    }

    /// Adds the bounds of each row to the index.
    pub fn find(&self, launch: &Launch<'_>, batch: &DeviceBatch, partitions: &mut PartitionIndex) -> Result<()> {
        let (queue, n) = (launch.queue, batch.num_rows());
        let tiles = n.div_ceil(TILE);
        for number in 0..self.bounds.len() {
            let (found, tile_max) = (queue.alloc(n * size_of::<u32>())?, queue.alloc(tiles * size_of::<u32>())?);
            let mut named = partitions.args();
            named.extend([("found", Arg::Buffer(&found)), ("n", Arg::U64(n as u64))]);
            launch.run_on(self.first + number, launch.grid(n), batch.columns(), None, named)?;
            for (kernel, rows) in [tiles, 1, n].into_iter().enumerate() {
                let named = vec![
                    ("found", Arg::Buffer(&found)),
                    ("tile_max", Arg::Buffer(&tile_max)),
                    ("rows", Arg::U64(n as u64)),
                    ("tiles", Arg::U64(tiles as u64)),
                    ("n", Arg::U64(rows as u64)),
                ];
                launch.run(self.first + self.bounds.len() + kernel, launch.grid(rows), named)?;
            }
            partitions.interval_bounds.push((interval_bound(number), found));
        }
        Ok(())
    }
}

impl IntervalBound {
    /// The kernel that writes the bound of each row.
    fn kernel(&self, number: usize, types: &[ColumnType], column: usize, options: &Options) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let found = params.named("found", "G u32 *RESTRICT");
        params.named("range_keys", "const G i64 *RESTRICT");
        params.named("range_valid", "const G u8 *RESTRICT");
        let n = params.named("n", "u64");
        let partition = PartitionIndex::declare(&mut params, "row");
        let mut writer = RowWriter::new(types, options.profile, &mut params);
        writer.push(&partition);
        writer.push(&declare_values(CType::I64, self.descending, "row"));
        let target = writer.eval(&self.target(types, column)?)?;
        let (peers, behind) = if self.behind { ("peer_end", 1) } else { ("peer_start", 0) };
        let beyond = if self.back { "part_start" } else { "part_end" };
        writer.push(&format!(
            "{found}[row] = (u32)(!has_key ? {peers} : !{} ? {beyond}
  : key_search(range_keys, values_start, values_end, (i64){}, descending, {behind}));",
            target.valid_code(),
            target.code
        ));
        let statements = writer.statements();
        Ok(Kernel::new(format!("window_interval_bound{number}"), params, row_loop(options.profile, "row", &n, &statements)))
    }

    /// The timestamp of the bound.
    fn target(&self, types: &[ColumnType], column: usize) -> Result<Expr> {
        let ty = types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}")))?;
        let sign = if self.back == self.descending { 1 } else { -1 };
        let mut arguments = vec![Expr::Column(column)];
        for part in interval_parts(self.interval) {
            let part = part.checked_mul(sign).ok_or_else(|| Error::Unsupported("an interval without a negative".into()))?;
            arguments.push(Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(part.into()) }));
        }
        Ok(Expr::Call { function: Function::AddInterval { checked: false }, arguments, data_type: ty.data_type.clone() })
    }
}

/// Kernels that replace bounds by their running maximum: within tiles, over tiles, and over both.
/// The bounds of a partition are after those of the partitions before.
fn running_maximum(options: &Options) -> [Kernel; 3] {
    let kernel = |name: &str, row: &str, statements: &str| {
        let mut params = Params::new();
        params.need(Section::Base);
        params.named("found", "G u32 *RESTRICT");
        params.named("tile_max", "G u32 *RESTRICT");
        for name in ["rows", "tiles", "n"] {
            params.named(name, "u64");
        }
        let statements = statements.replace("TILE", &TILE.to_string());
        Kernel::new(name, params, row_loop(options.profile, row, "n", &statements))
    };
    [
        kernel("window_tile_max", "tile", TILE_MAX),
        kernel("window_max_before_tile", "row", MAX_BEFORE_TILE),
        kernel(
            "window_running_max",
            "row",
            "    u32 before = tile_max[row / TILE];\n    if (before > found[row]) found[row] = before;\n",
        ),
    ]
}

const TILE_MAX: &str = "    u64 end = rows - tile * TILE < TILE ? rows : (tile + 1) * TILE;
    u32 most = 0;
    for (u64 at = tile * TILE; at < end; ++at) {
      u32 own = found[at];
      most = own > most ? own : most;
      found[at] = most;
    }
    tile_max[tile] = most;
";

/// Replaces the maximum of each tile by that of the tiles before.
const MAX_BEFORE_TILE: &str = "    u32 most = 0;
    for (u64 tile = row; tile < tiles; ++tile) {
      u32 own = tile_max[tile];
      tile_max[tile] = most;
      most = own > most ? own : most;
    }
";
