// SPDX-License-Identifier: Apache-2.0
//! Adaptive start: the first runs of a query, whose kernels are not compiled yet, are the host's.

use datafusion::common::Result;
use datafusion::execution::TaskContext;
use device::{Context, DeviceInfo, ProgramSource};

use crate::graph::{self, Stage};
use crate::session::{DeviceOptions, task_context};

/// EXPLAIN's text for such a run.
pub(crate) const NOT_COMPILED: &str = "its kernels were not compiled yet; SET device.adaptive_start = 'never' waits for them";

/// EXPLAIN's text before such a run.
pub(crate) const STARTS_ON_HOST: &str = "until its kernels are compiled; SET device.adaptive_start = 'never' waits for them";

/// Most bytes of the input of a run that starts on the host. Over more, a run takes longer than the
/// compilation of its kernels. `device.threshold_divisor` divides it.
const MOST_BYTES: usize = 2 << 30;

/// The programs of a stage that are not compiled yet, so that its run starts on the host. None if
/// the run is the device's. A device that is closed has none compiled.
pub(crate) fn missing_programs(
    info: &DeviceInfo,
    context: Option<&Context>,
    options: &DeviceOptions,
    stage: &Stage,
) -> Vec<ProgramSource> {
    if !may_start_on_host(info, options) {
        return vec![];
    }
    let mut programs = stage.likely_programs().unwrap_or_default();
    programs.retain(|program| !context.is_some_and(|context| context.is_ready(program)));
    let most_bytes = MOST_BYTES / options.threshold_divisor.max(1);
    if !programs.is_empty() && graph::input_bytes(stage).is_some_and(|bytes| bytes > most_bytes) {
        programs.clear();
    }
    programs
}

/// Whether the settings allow a start on the host.
fn may_start_on_host(info: &DeviceInfo, options: &DeviceOptions) -> bool {
    options.adaptive_start.starts_on_host(info.kind) && !options.always()
}

/// Whether a run is the host's. Then the missing programs are compiled in the background.
pub(crate) fn starts_on_host(stage: &Stage, task: &TaskContext) -> Result<bool> {
    let (context, options) = task_context(task)?;
    let missing = missing_programs(context.info(), Some(&context), &options, stage);
    let starts = !missing.is_empty();
    context.prepare(missing);
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use device::DeviceKind;
    use device::testing::some_info;

    use super::*;
    use crate::session::{AdaptiveStart, Cost, Fallback};

    #[test]
    fn settings_and_the_kind_of_device_decide_where_first_runs_are() {
        let kinds = [DeviceKind::Cpu, DeviceKind::Gpu, DeviceKind::Accelerator];
        let starts = |options: &DeviceOptions| kinds.map(|kind| may_start_on_host(&DeviceInfo { kind, ..some_info() }, options));
        let (all, none, cpus) = ([true; 3], [false; 3], [true, false, false]);
        let defaults = DeviceOptions::default();
        assert_eq!(starts(&defaults), cpus);
        let settings = [(AdaptiveStart::Auto, cpus), (AdaptiveStart::Always, all), (AdaptiveStart::Never, none)];
        for (adaptive_start, on_kinds) in settings {
            for (cost, fallback, expected) in [
                (Cost::Auto, Fallback::Host, on_kinds),
                (Cost::Auto, Fallback::Error, none),
                (Cost::Always, Fallback::Host, none),
                (Cost::Always, Fallback::Error, none),
            ] {
                let mut options = defaults.clone();
                options.adaptive_start = adaptive_start;
                options.cost = cost;
                options.fallback = fallback;
                assert_eq!(starts(&options), expected, "{adaptive_start:?}, {cost:?}, {fallback:?}");
            }
        }
    }
}
