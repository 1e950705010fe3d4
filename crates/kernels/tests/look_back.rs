// SPDX-License-Identifier: Apache-2.0
//! Prefix sums by look-back, over states that earlier tiles have left.
//!
//! Operators seldom meet several tiles without a prefix: on one processor each tile ends before the
//! next one begins.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use device::{Grid, ProgramSource};
use futures::executor::block_on;
use kernels::prelude::{Section, Sections};
use support::*;

const GROUP: u32 = 64;
/// The state of a tile that knows its own sum, and of one with the sum of all up to it.
const OWN: u64 = 1;
const ALL: u64 = 2;

/// Runs the tile behind these states, which has the sum 7. Returns what is before it, and its
/// state.
fn look_back(states: &[u64]) -> (u64, u64) {
    let mut sections = Sections::default();
    sections.need(Section::Base);
    let text = format!(
        "{}{}KERNEL void tile(volatile G u64 *tiles, G u64 *result) {{
  SHARED(u64, sums, 32);
  SHARED(u32, shared, 1);
  u64 tile = next_tile(tiles, shared), before = look_back(tiles, tile, 7, sums, shared);
  if (LID() == 0) {{ result[0] = tile; result[1] = before; }}
}}
",
        sections.source(),
        include_str!("../src/ops/launch/look_back.h")
    );
    let queue = queue();
    // The ticket that the last of the earlier tiles took, in the lower half of its word.
    let ticket = 0xffff_ffff_0000_0000 | u64::from((states.len() as u32).wrapping_sub(1));
    let words = [&[ticket], states, &[u64::MAX]].concat();
    let (tiles, result) = (queue.upload_values(words).unwrap(), queue.alloc_values::<u64>(2).unwrap());
    let program = block_on(queue.compile(ProgramSource::new(text, "tests"))).unwrap();
    let grid = Grid { work_groups: 1, work_group_size: GROUP };
    queue.launch(&program.kernel("tile").unwrap(), grid, &[(&tiles).into(), (&result).into()]).unwrap();
    let result = block_on(queue.read_values(&result, 0..2)).unwrap();
    assert_eq!(result[0], states.len() as u64);
    let left = block_on(queue.read_values(&tiles, 0..states.len() + 2)).unwrap();
    assert_eq!(left[1..=states.len()], *states);
    (result[1], left[states.len() + 1])
}

#[test]
fn sums_of_earlier_tiles_are_added_up_to_the_nearest_prefix() {
    for tiles in [0, 1, 2, 31, 32, 33, 64, 65, 200] {
        for prefix in [0, 1, 30, 31, 32, 33, 63, 64, 199].into_iter().filter(|prefix| *prefix < tiles.max(1)) {
            // The sums before a prefix are in it, so they must not count again. The first tile has
            // a prefix at least.
            let state = |tile: usize| match tile {
                0 => 1000 << 2 | ALL,
                _ if tile == prefix => (5000 + tile as u64) << 2 | ALL,
                _ => (tile as u64 + 1) << 2 | OWN,
            };
            let states: Vec<u64> = (0..tiles).map(state).collect();
            let before = match tiles {
                0 => 0,
                _ => (prefix..tiles).map(|tile| state(tile) >> 2).sum::<u64>(),
            };
            assert_eq!(look_back(&states), (before, (before + 7) << 2 | ALL), "{tiles} tiles, a prefix at {prefix}");
        }
    }
}

#[test]
fn sums_beyond_32_bits_are_exact() {
    let large = 1 << 60;
    assert_eq!(look_back(&[large << 2 | ALL, 1 << 40 << 2 | OWN]).0, large + (1 << 40));
}
