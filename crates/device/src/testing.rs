// SPDX-License-Identifier: Apache-2.0
//! For tests: which device they run on, and a driver around the driver that fails on demand, hides
//! capabilities and counts what is alive.
//!
//! [`config`] is the one place that reads `DEVICEFUSION_TEST_DEVICE`: whatever `device.selector` takes, and
//! OpenCL where it is not set. What only a CPU device can show (shared memory, the profile `cpu`) is left out
//! elsewhere by those who ask [`DeviceInfo::kind`](crate::DeviceInfo::kind).
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

use crate::{DeviceConfig, Error, Result, Selector};

/// Chooses the device of tests.
const DEVICE_VARIABLE: &str = "DEVICEFUSION_TEST_DEVICE";

/// Options, separated by spaces, for the compiler of tests' kernels.
const OPTIONS_VARIABLE: &str = "DEVICEFUSION_TEST_COMPILE_OPTIONS";

/// What tests make their contexts from: the device that `DEVICEFUSION_TEST_DEVICE` names, and the compiler's options of
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
        _ => Selector::OpenCl,
    };
    let options = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    Ok(options.split_whitespace().fold(DeviceConfig::default().with_selector(selector), DeviceConfig::with_compile_option))
}
