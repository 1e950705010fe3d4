// SPDX-License-Identifier: Apache-2.0
//! Options of databases and connections as DataFusion settings.

use std::str::FromStr;

use adbc_core::error::{Result, Status};
use adbc_core::options::OptionValue;
use datafusion::common::config::ConfigOptions;
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceOptions, DeviceRuntime};

use crate::error::{error, from_datafusion};

/// The option that reads the report of the device.
const REPORT: &str = "devicefusion.report";

/// Settings of a session, by the names that SQL's `SET` takes.
pub(crate) struct Settings<'a>(pub &'a SessionContext);

impl Settings<'_> {
    /// Sets what SQL may set too.
    pub fn set(&self, key: &str, value: OptionValue) -> Result<()> {
        self.set_with(key, value, ConfigOptions::set)
    }

    /// Sets any setting.
    pub fn set_by_program(&self, key: &str, value: OptionValue) -> Result<()> {
        self.set_with(key, value, DeviceOptions::set_by_program)
    }

    fn set_with(
        &self,
        key: &str,
        value: OptionValue,
        set: fn(&mut ConfigOptions, &str, &str) -> datafusion::common::Result<()>,
    ) -> Result<()> {
        if key == REPORT {
            return Err(error(Status::InvalidArguments, format!("the option {REPORT} is read only")));
        }
        let value = match value {
            OptionValue::String(string) => string,
            OptionValue::Int(number) => number.to_string(),
            OptionValue::Double(number) => number.to_string(),
            _ => return Err(error(Status::InvalidArguments, format!("the option {key} does not take bytes"))),
        };
        self.get(key)?;
        let state = self.0.state_ref();
        set(state.write().config_mut().options_mut(), key, &value).map_err(from_datafusion)
    }

    pub fn get(&self, key: &str) -> Result<String> {
        if key == REPORT {
            return self.report();
        }
        let entries = self.0.state_ref().read().config_options().entries();
        match entries.into_iter().find(|entry| entry.key == key) {
            Some(entry) => Ok(entry.value.unwrap_or_default()),
            None => Err(error(Status::NotFound, format!("there is no option {key}"))),
        }
    }

    /// Kernels, copies, compilations and memory of the device, as JSON.
    fn report(&self) -> Result<String> {
        let device = DeviceRuntime::of(self.0.state_ref().read().config());
        match device.and_then(|device| device.report()) {
            Some(report) => Ok(report.to_string()),
            None => Err(error(Status::InvalidState, format!("{REPORT}: no device is open; the first query opens it"))),
        }
    }

    pub fn get_number<T: FromStr>(&self, key: &str) -> Result<T> {
        let value = self.get(key)?;
        let not_a_number = |_| error(Status::NotFound, format!("the option {key} is '{value}', which is not a number"));
        value.parse().map_err(not_a_number)
    }
}
