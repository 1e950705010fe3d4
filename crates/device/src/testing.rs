// SPDX-License-Identifier: Apache-2.0
//! Support for tests: the device of the tests, and a driver that fails on demand, hides
//! capabilities and counts live objects.
//!
//! [`config`] alone reads `DEVICEFUSION_TEST_DEVICE`: a value of `device.selector`, `opencl` by
//! default. Tests of features that only a CPU device has (shared memory, the profile `cpu`) check
//! [`DeviceInfo::kind`](crate::DeviceInfo::kind) and skip other devices.
//!
//! # Examples
//! ```
//! use device::testing::FaultPlan;
//! use device::{Context, DeviceConfig};
//!
//! let plan = FaultPlan::new();
//! # let Ok(context) = Context::new(DeviceConfig::default().with_wrap(plan.wrap())) else { return Ok(()) };
//! let queue = context.queue()?;
//! plan.fail_alloc(1);
//! assert!(queue.alloc(8).is_err_and(|error| error.is_out_of_memory()));
//! plan.heal();
//! assert!(queue.alloc(8).is_ok());
//! drop((queue, context));
//! plan.wait_until_nothing_is_alive(std::time::Duration::from_secs(10))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod faults;

pub use faults::{Fault, FaultPlan, Live};

use crate::{DeviceConfig, DriverKind, Error, Result, Selector};

/// The variable that selects the device of tests.
const DEVICE_VARIABLE: &str = "DEVICEFUSION_TEST_DEVICE";

/// The variable with compiler options of tests, separated by spaces.
const OPTIONS_VARIABLE: &str = "DEVICEFUSION_TEST_COMPILE_OPTIONS";

/// The configuration of tests: the device of `DEVICEFUSION_TEST_DEVICE` and the compiler options of
/// `DEVICEFUSION_TEST_COMPILE_OPTIONS`.
///
/// # Errors
/// `Config` if the variable holds no selector.
pub fn config() -> Result<DeviceConfig> {
    let selector = match std::env::var(DEVICE_VARIABLE) {
        Ok(text) if !text.is_empty() => text.parse().map_err(|error| match error {
            Error::Config { value, reason, .. } => Error::Config { setting: DEVICE_VARIABLE, value, reason },
            other => other,
        })?,
        _ => Selector::Driver(DriverKind::OpenCl),
    };
    let options = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    Ok(options.split_whitespace().fold(DeviceConfig::default().with_selector(selector), DeviceConfig::with_compile_option))
}
