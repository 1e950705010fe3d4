// SPDX-License-Identifier: Apache-2.0
//! Interleaved runs: each contender runs once per round, so that a slow phase affects all.

use std::sync::Arc;

use datafusion::error::Result;

use crate::engine::{ColdWork, Engine, Execution, KernelTotals, Source};

/// One engine on one kind of table.
#[derive(Clone, Copy)]
pub struct Contender<'a> {
    /// The engine.
    pub engine: &'a Engine,
    /// The storage of its tables.
    pub source: Source,
}

/// The runs of one contender.
pub struct Series {
    /// The first run, which compiles and keeps its answer.
    pub first: Execution,
    /// Compilations and first launches of the first run.
    pub first_cold: ColdWork,
    /// Seconds of the runs after the first.
    pub seconds: Vec<f64>,
    /// Seconds of planning, of the same runs.
    pub planning_seconds: Vec<f64>,
    /// Seconds inside kernels, of the same runs.
    pub kernel_seconds: Vec<f64>,
    /// Compilations and first launches of the later runs; any is a fault.
    pub later_cold: ColdWork,
    /// The kernels of the last run.
    pub kernels: KernelTotals,
}

impl Series {
    /// A copy without the answer.
    pub fn without_answer(&self) -> Self {
        let first = Execution { batches: Vec::new(), plan: Arc::clone(&self.first.plan), ..self.first };
        Self {
            first,
            seconds: self.seconds.clone(),
            planning_seconds: self.planning_seconds.clone(),
            kernel_seconds: self.kernel_seconds.clone(),
            kernels: self.kernels.clone(),
            ..*self
        }
    }

    /// Message about compilations or first launches after the first run.
    pub fn fault(&self) -> Option<String> {
        let ColdWork { programs, kernels } = self.later_cold;
        (self.later_cold != ColdWork::default()).then(|| {
            format!("runs after the first compiled {programs} programs and launched {kernels} kernels for the first time")
        })
    }

    /// Median of the runs after the first.
    pub fn median(&self) -> f64 {
        median(&self.seconds)
    }

    /// Median time of planning.
    pub fn planning_median(&self) -> f64 {
        median(&self.planning_seconds)
    }

    /// Median time inside kernels.
    pub fn kernel_median(&self) -> f64 {
        median(&self.kernel_seconds)
    }
}

/// Runs a query `1 + runs` times on each contender, in rounds. A failed contender runs no more.
pub async fn interleave(contenders: &[Contender<'_>], sql: &str, runs: usize, tick: impl Fn()) -> Vec<Result<Series>> {
    let mut series = Vec::new();
    for contender in contenders {
        series.push(run_first(contender, sql).await);
        tick();
    }
    for round in 0..runs {
        for step in 0..contenders.len() {
            // Rotated, so that no contender always runs after the same one.
            let index = (round + step) % contenders.len();
            let result = match &mut series[index] {
                Ok(series) => run_again(&contenders[index], sql, series).await,
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

async fn run_first(contender: &Contender<'_>, sql: &str) -> Result<Series> {
    let before = contender.engine.cold_work();
    let first = contender.engine.execute(contender.source, sql, true).await?;
    let first_cold = contender.engine.cold_work().since(before);
    contender.engine.wait_until_optimized();
    let later_cold = ColdWork::default();
    Ok(Series {
        first,
        first_cold,
        seconds: vec![],
        planning_seconds: vec![],
        kernel_seconds: vec![],
        later_cold,
        kernels: KernelTotals::new(),
    })
}

async fn run_again(contender: &Contender<'_>, sql: &str, series: &mut Series) -> Result<()> {
    let (before, kernels_before) = (contender.engine.cold_work(), contender.engine.kernel_totals());
    let execution = contender.engine.execute(contender.source, sql, false).await?;
    let cold = contender.engine.cold_work().since(before);
    series.kernels = contender.engine.kernel_totals();
    for (name, (launches, nanos)) in kernels_before {
        if let Some(after) = series.kernels.get_mut(&name) {
            *after = (after.0 - launches, after.1 - nanos);
        }
    }
    series.kernels.retain(|_, (launches, _)| *launches > 0);
    series.seconds.push(execution.seconds);
    series.planning_seconds.push(execution.planning_seconds);
    series.kernel_seconds.push(execution.device_metrics().kernel.as_secs_f64());
    series.later_cold.programs += cold.programs;
    series.later_cold.kernels += cold.kernels;
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
