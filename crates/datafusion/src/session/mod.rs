// SPDX-License-Identifier: Apache-2.0
//! Sessions that run on a device: their settings, their device, and values for parameters of plans.

mod builder;
mod options;
mod parameters;
mod runtime;

pub use builder::{SessionStateBuilderExt, has_device, session, session_with};
pub use options::{Cost, DeviceOptions, Fallback, ProfileSetting, SettingDoc, SpillSetting};
pub use parameters::{with_parameters, with_rows_of_parameters};
pub use runtime::DeviceRuntime;
pub(crate) use runtime::{Problem, ReleaseLost, kernel_options, task_context};
