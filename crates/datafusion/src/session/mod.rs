// SPDX-License-Identifier: Apache-2.0
//! Sessions that run on a device: their settings, their device, files as tables, and values for
//! parameters of plans.

mod builder;
mod files;
mod options;
mod parameters;
mod runtime;

pub use builder::{SessionStateBuilderExt, has_device, session, session_with};
pub use files::with_file_tables;
pub use options::{AdaptiveStart, Cost, DeviceOptions, Fallback, ProfileSetting, SettingDoc, SpillSetting, parse_bytes};
pub use parameters::{with_parameters, with_rows_of_parameters};
pub use runtime::DeviceRuntime;
pub(crate) use runtime::{PlannedDevice, Problem, ReleaseLost, kernel_options, kernel_options_for, task_context};
