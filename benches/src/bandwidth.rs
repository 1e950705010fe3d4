// SPDX-License-Identifier: Apache-2.0
//! The device's copy bandwidth, the reference for kernel times.

use std::time::Instant;

use device::{Context, Result};
use futures::future::try_join_all;

/// Copies per round, enough to amortize submission and wait.
const COPIES: usize = 8;
const ROUNDS: usize = 5;

/// Bytes read plus bytes written per second, the best of a few rounds.
///
/// CPU drivers copy on one core per queue. So this measures one queue, and one queue per compute
/// unit (at most 8), and returns the better result.
pub async fn measure(context: &Context) -> Result<f64> {
    let info = context.info();
    let queues = (info.compute_units as usize).clamp(1, 8);
    // Larger than any cache, at most an eighth of the memory.
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
    let mut pairs = Vec::new();
    for _ in 0..queues {
        let queue = context.queue()?;
        let (from, to) = (queue.filled(bytes, 1)?, queue.filled(bytes, 2)?);
        pairs.push((queue, from, to));
    }
    try_join_all(pairs.iter().map(|(queue, ..)| queue.finish())).await?;
    let begin = Instant::now();
    for (queue, from, to) in &pairs {
        for _ in 0..COPIES {
            queue.copy(from, 0, to, 0, bytes)?;
        }
    }
    try_join_all(pairs.iter().map(|(queue, ..)| queue.finish())).await?;
    Ok((2 * COPIES * queues * bytes) as f64 / begin.elapsed().as_secs_f64())
}
