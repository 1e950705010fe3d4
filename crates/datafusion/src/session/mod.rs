// SPDX-License-Identifier: Apache-2.0
//! Sessions that run on a device: their settings and device, their statements, files as tables,
//! values for parameters of plans, and profiles of runs.

mod builder;
mod files;
mod nesting;
mod options;
mod parameters;
mod profile;
mod runtime;
mod sql;
mod statement;

pub use builder::{SessionStateBuilderExt, has_device, session, session_with};
pub use files::with_file_tables;
pub use nesting::{STACK_BYTES, check_nesting, with_enough_stack, with_large_stack};
pub(crate) use options::ExplainedPlan;
pub use options::{AdaptiveStart, Cost, DeviceOptions, Fallback, ProfileSetting, SettingDoc, SpillSetting, parse_bytes};
pub use parameters::{with_parameters, with_rows_of_parameters};
pub use profile::Profile;
pub use runtime::DeviceRuntime;
pub(crate) use runtime::{
    PlannedDevice, Problem, ReleaseLost, file_cache, kernel_options, kernel_options_for, number_of_query, task_context,
};
pub use sql::parse_statements;
pub(crate) use statement::state_for_explain;
pub use statement::{execute_logical_plan, execute_logical_plan_watched, plan_for_explain};
