// SPDX-License-Identifier: Apache-2.0
//! Frames: which rows of its partition a row looks at, and the C that tells.

use std::fmt;

use device::{Arg, Buffer};

use crate::codegen::Params;
use crate::{Error, Result};

/// The rows that a window function looks at, from a first one to a last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// What offsets count, and what the current row's end is.
    pub units: FrameUnits,
    /// The first row.
    pub start: FrameBound,
    /// The last row.
    pub end: FrameBound,
}

/// What a frame is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameUnits {
    /// Rows.
    Rows,
    /// Values of the order: the current row stands for all of its peers.
    Range,
    /// Groups of peers.
    Groups,
}

/// An end of a frame. Offsets of 0 mean the current row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameBound {
    /// The partition's first row.
    UnboundedPreceding,
    /// So many units before.
    Preceding(u64),
    /// The row itself, or its peers.
    CurrentRow,
    /// So many units behind.
    Following(u64),
    /// The partition's last row.
    UnboundedFollowing,
}

impl Frame {
    /// The whole partition.
    pub const PARTITION: Frame =
        Frame { units: FrameUnits::Rows, start: FrameBound::UnboundedPreceding, end: FrameBound::UnboundedFollowing };
    /// From the partition's first row to the current one's last peer: what SQL means where there is an order and no frame.
    pub const RUNNING: Frame =
        Frame { units: FrameUnits::Range, start: FrameBound::UnboundedPreceding, end: FrameBound::CurrentRow };

    /// Refuses what has no device form.
    pub(super) fn check(&self) -> Result<()> {
        let offset = |bound| matches!(bound, FrameBound::Preceding(1..) | FrameBound::Following(1..));
        if self.units == FrameUnits::Range && (offset(self.start) || offset(self.end)) {
            return Err(Error::Unsupported("RANGE with an offset has no device form".into()));
        }
        if self.start == FrameBound::UnboundedFollowing || self.end == FrameBound::UnboundedPreceding {
            return Err(Error::Unsupported(format!("a frame of {self:?} has no device form")));
        }
        Ok(())
    }

    /// The offsets, as kernels take them.
    pub(super) fn offsets(&self) -> [(&'static str, Arg<'static>); 2] {
        let offset = |bound| match bound {
            // More rows than there can be.
            FrameBound::Preceding(offset) | FrameBound::Following(offset) => Arg::U64(offset.min(1 << 40)),
            _ => Arg::U64(0),
        };
        [(START_OFFSET, offset(self.start)), (END_OFFSET, offset(self.end))]
    }

    /// C that declares `frame_start` and `frame_end`, behind the last row, of the row `i` whose places are declared.
    pub(super) fn text(&self, params: &mut Params, i: &str) -> String {
        let units = self.units;
        params.named(START_OFFSET, "u64");
        params.named(END_OFFSET, "u64");
        let start = Position { bound: self.start, units, i, offset: START_OFFSET, behind: false };
        let end = Position { bound: self.end, units, i, offset: END_OFFSET, behind: true };
        format!("u64 frame_start = {start}, frame_end = {end};\nif (frame_end < frame_start) frame_end = frame_start;")
    }
}

const START_OFFSET: &str = "start_offset";
const END_OFFSET: &str = "end_offset";

/// C for the row of a bound, or the one behind it.
struct Position<'a> {
    bound: FrameBound,
    units: FrameUnits,
    i: &'a str,
    offset: &'a str,
    behind: bool,
}

impl fmt::Display for Position<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { i, offset, behind, .. } = self;
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
            _ => f.write_str(if *behind { "peer_end" } else { "peer_start" }),
        }
    }
}

/// Where partitions and peers lie among the rows of a batch.
#[derive(Debug)]
pub(super) struct Places {
    /// Number of each row's partition, counted from 1, 64 bits each, behind one word; and of its peers.
    pub parts: Buffer,
    pub peers: Buffer,
    /// First row of each, and the number of rows, 32 bits each.
    pub part_starts: Buffer,
    pub peer_starts: Buffer,
}

impl Places {
    /// The arguments by which kernels know them.
    pub fn args(&self) -> [(&'static str, Arg<'_>); 4] {
        [
            ("parts", Arg::Buffer(&self.parts)),
            ("part_starts", Arg::Buffer(&self.part_starts)),
            ("peers", Arg::Buffer(&self.peers)),
            ("peer_starts", Arg::Buffer(&self.peer_starts)),
        ]
    }

    /// C that declares the partition and the peers of the row `i`.
    pub fn text(params: &mut Params, i: &str) -> String {
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
