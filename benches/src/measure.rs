// SPDX-License-Identifier: Apache-2.0
//! Interleaved runs: every contender once per round, so that a slow minute of the machine hits all.

use std::sync::Arc;

use datafusion::error::Result;

use crate::engine::{Engine, Execution, New, Source};

/// One engine on one kind of table.
#[derive(Clone, Copy)]
pub struct Contender<'a> {
    /// Who runs.
    pub engine: &'a Engine,
    /// On what.
    pub source: Source,
}

/// The runs of one contender.
pub struct Series {
    /// The first run, apart: it compiles, and it keeps its answer.
    pub first: Execution,
    /// What the first run compiled and launched first.
    pub first_new: New,
    /// Seconds of the runs after the first.
    pub seconds: Vec<f64>,
    /// Seconds inside kernels of the same runs.
    pub kernel_seconds: Vec<f64>,
    /// The same of the runs after the first; nothing is the promise.
    pub later_new: New,
}

impl Series {
    /// A copy that keeps the times but not the answer.
    pub fn without_answer(&self) -> Self {
        let first = Execution { batches: Vec::new(), plan: Arc::clone(&self.first.plan), ..self.first };
        Self { first, seconds: self.seconds.clone(), kernel_seconds: self.kernel_seconds.clone(), ..*self }
    }

    /// What runs after the first did anew, which is a fault.
    pub fn fault(&self) -> Option<String> {
        let New { programs, kernels } = self.later_new;
        (self.later_new != New::default()).then(|| {
            format!("runs after the first compiled {programs} programs and launched {kernels} kernels for the first time")
        })
    }

    /// Median of the runs after the first.
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    /// Median time inside kernels.
    pub fn kernel_median(&self) -> f64 {
        median(&self.kernel_seconds)
    }
}

/// Runs a query `1 + runs` times on each contender, in rounds. A contender that fails drops out with its error.
pub async fn interleave(contenders: &[Contender<'_>], sql: &str, runs: usize, tick: impl Fn()) -> Vec<Result<Series>> {
    let mut series = Vec::new();
    for contender in contenders {
        series.push(first(contender, sql).await);
        tick();
    }
    for round in 0..runs {
        for step in 0..contenders.len() {
            // Rotated, so that nobody always runs after the same neighbour.
            let index = (round + step) % contenders.len();
            let result = match &mut series[index] {
                Ok(series) => again(&contenders[index], sql, series).await,
                Err(_) => Ok(()),
            };
            if let Err(error) = result {
                series[index] = Err(error);
            }
            tick();
        }
    }
    series
}

async fn first(contender: &Contender<'_>, sql: &str) -> Result<Series> {
    let before = contender.engine.new_so_far();
    let first = contender.engine.execute(contender.source, sql, true).await?;
    let first_new = contender.engine.new_so_far().since(before);
    Ok(Series { first, first_new, seconds: Vec::new(), kernel_seconds: Vec::new(), later_new: New::default() })
}

async fn again(contender: &Contender<'_>, sql: &str, series: &mut Series) -> Result<()> {
    let before = contender.engine.new_so_far();
    let execution = contender.engine.execute(contender.source, sql, false).await?;
    let new = contender.engine.new_so_far().since(before);
    series.seconds.push(execution.seconds);
    series.kernel_seconds.push(execution.work().kernel.as_secs_f64());
    series.later_new.programs += new.programs;
    series.later_new.kernels += new.kernels;
    Ok(())
}

/// The middle value, or the mean of the two middle ones; NaN for none.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => (values[length / 2 - 1] + values[length / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn median_takes_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
