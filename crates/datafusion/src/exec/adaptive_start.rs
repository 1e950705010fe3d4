// SPDX-License-Identifier: Apache-2.0
//! Adaptive start: the first runs of a query, whose kernels are not compiled yet, are the host's.

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use device::{Context, DeviceKind, ProgramSource};

use crate::graph::{self, Stage};
use crate::session::{AdaptiveStart, Cost, DeviceOptions, Fallback, task_context};

/// What EXPLAIN says of such a run.
pub(crate) const NOT_COMPILED: &str = "its kernels were not compiled yet; SET device.adaptive_start = 'never' waits for them";

/// What EXPLAIN says before it.
pub(crate) const STARTS_ON_HOST: &str = "while its kernels are compiled; SET device.adaptive_start = 'never' waits for them";

/// Whether runs over these settings may start on the host.
pub(crate) fn may_start_on_host(context: &Context, options: &DeviceOptions) -> bool {
    let for_device = match options.adaptive_start {
        AdaptiveStart::Auto => context.info().kind == DeviceKind::Cpu,
        AdaptiveStart::Always => true,
        AdaptiveStart::Never => false,
    };
    for_device && options.cost == Cost::Auto && options.fallback == Fallback::Host
}

/// Most rows of the inputs of a run that starts on the host. Of more, a run takes longer than the
/// compilation of its kernels.
const MOST_ROWS: usize = 1 << 25;

/// The programs of a stage that are not compiled yet; none if its runs must be the device's.
pub(crate) fn missing_programs(context: &Context, stage: &Stage) -> Vec<ProgramSource> {
    if stage.calls_libraries() {
        return vec![];
    }
    let mut programs = stage.likely_programs();
    programs.retain(|program| !context.is_ready(program));
    if !programs.is_empty() && graph::uploaded_rows(stage) > MOST_ROWS {
        programs.clear();
    }
    programs
}

/// Whether a run is the host's. Then the missing programs are compiled in the background.
pub(crate) fn starts_on_host(stage: &Stage, task: &TaskContext) -> Result<bool> {
    let (context, options) = task_context(task)?;
    if !may_start_on_host(&context, &options) {
        return Ok(false);
    }
    let missing = missing_programs(&context, stage);
    let starts = !missing.is_empty();
    context.prepare(missing);
    Ok(starts)
}
