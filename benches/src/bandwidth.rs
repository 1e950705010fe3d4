// SPDX-License-Identifier: Apache-2.0
//! The device's copy bandwidth: the bound that kernels are held against.

use std::time::Instant;

use device::{Context, Result};
use futures::future::try_join_all;

/// Copies of one round, so that submitting and waiting weigh little.
const COPIES: usize = 8;
const ROUNDS: usize = 5;

/// Bytes read plus bytes written per second, the best of a few rounds.
///
/// Drivers for CPUs copy on one core per queue, so as many queues as the device has compute units
/// (up to 8) are tried beside a single one, and the faster way counts.
pub async fn measure(context: &Context) -> Result<f64> {
    let info = context.info();
    let queues = (info.compute_units as usize).clamp(1, 8);
    // Far above any cache, at most an eighth of the memory.
    let budget = usize::try_from(info.memory_bytes / 8).unwrap_or(usize::MAX);
    let bytes = budget.clamp(1 << 20, 1 << 30) / 2;
    let mut best = 0f64;
    for queues in [1, queues] {
        for _ in 0..ROUNDS {
            best = best.max(copy(context, queues, bytes / queues).await?);
        }
    }
    context.trim();
    Ok(best)
}

async fn copy(context: &Context, queues: usize, bytes: usize) -> Result<f64> {
    let mut lanes = Vec::new();
    for _ in 0..queues {
        let queue = context.queue()?;
        let (from, to) = (queue.filled(bytes, 1)?, queue.filled(bytes, 2)?);
        lanes.push((queue, from, to));
    }
    try_join_all(lanes.iter().map(|(queue, ..)| queue.finish())).await?;
    let begin = Instant::now();
    for (queue, from, to) in &lanes {
        for _ in 0..COPIES {
            queue.copy(from, 0, to, 0, bytes)?;
        }
    }
    try_join_all(lanes.iter().map(|(queue, ..)| queue.finish())).await?;
    Ok((2 * COPIES * queues * bytes) as f64 / begin.elapsed().as_secs_f64())
}
