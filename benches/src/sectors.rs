// SPDX-License-Identifier: Apache-2.0
//! Random reads per second of the device's memory, the reference for hash table lookups.

use std::time::Instant;

use device::{Arg, Context, DeviceKind, Grid, ProgramSource, Queue, Result};
use kernels::prelude::Section;

/// Reads per round.
const READS: u64 = 1 << 25;
const ROUNDS: usize = 5;

/// Bytes of the smallest memory transfer: a cache line on a CPU, a sector on a GPU.
pub fn bytes(context: &Context) -> usize {
    match context.info().kind {
        DeviceKind::Cpu => 64,
        _ => 32,
    }
}

/// Sectors read per second, the best of a few rounds.
///
/// Addresses are computed and not loaded, so the reads are independent.
pub async fn measure(context: &Context) -> Result<f64> {
    let queue = context.queue()?;
    let source = format!("{}{RANDOM_SECTORS}", Section::Base.source());
    let program = queue.compile(ProgramSource::new(source, "random sectors")).await?;
    let kernel = program.kernel("random_sectors")?;

    let info = context.info();
    let compute_units = info.compute_units.max(1);
    let grid = match info.kind {
        DeviceKind::Cpu => Grid { work_groups: compute_units * 4, work_group_size: 1 },
        _ => Grid { work_groups: compute_units * 16, work_group_size: 256 },
    };
    let work_items = u64::from(grid.work_groups) * u64::from(grid.work_group_size);
    // Larger than any cache, at most an eighth of the memory; a power of two of sectors.
    let budget = usize::try_from(info.memory_bytes / 8).unwrap_or(usize::MAX).clamp(1 << 20, 1 << 30);
    let sectors = 1u64 << (budget / bytes(context)).ilog2();
    let table = queue.filled(sectors as usize * bytes(context), 1)?;
    let sums = queue.alloc(work_items as usize * 8)?;
    let arguments = [
        Arg::Buffer(&table),
        Arg::U64(sectors - 1),
        Arg::U64(bytes(context) as u64 / 8),
        Arg::U64(READS / work_items),
        Arg::Buffer(&sums),
    ];
    let round = async |queue: &Queue| {
        let begin = Instant::now();
        queue.launch(&kernel, grid, &arguments)?;
        queue.finish().await?;
        Result::Ok((READS / work_items * work_items) as f64 / begin.elapsed().as_secs_f64())
    };
    round(&queue).await?;
    let mut best = 0f64;
    for _ in 0..ROUNDS {
        best = best.max(round(&queue).await?);
    }
    drop((table, sums));
    context.trim();
    Ok(best)
}

/// Each work-item sums the first u64 of `reads` random sectors of `sector_u64s` u64 each.
const RANDOM_SECTORS: &str = "
KERNEL void random_sectors(const G u64 *RESTRICT table, u64 mask, u64 sector_u64s, u64 reads, G u64 *RESTRICT sums) {
  u64 sum = 0;
  for (u64 read = 0; read < reads; ++read) {
    u64 x = (read * GSZ() + GID() + 1) * (u64)0x9e3779b97f4a7c15;
    x = (x ^ (x >> 31)) * (u64)0xbf58476d1ce4e5b9;
    sum += table[((x ^ (x >> 29)) & mask) * sector_u64s];
  }
  sums[GID()] = sum;
}
";
