// SPDX-License-Identifier: Apache-2.0
//! The list of settings, of tuning parameters and of devices.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::LazyLock;

use devicefusion::DeviceOptions;

use crate::boundary::{malloc_string, without_context};

/// A setting as C strings.
pub(crate) struct Setting {
    name: CString,
    default: CString,
    description: CString,
    frozen: bool,
}

impl Setting {
    /// The name that SQL's SET takes.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// Whether its value is a number.
    fn is_number(&self) -> bool {
        self.default.to_str().is_ok_and(|default| default.parse::<u64>().is_ok())
    }

    fn class(&self) -> &'static CStr {
        if self.frozen { c"size" } else { c"threshold" }
    }
}

static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    // The documentation of settings contains no NUL.
    let string = |string: &str| CString::new(string).unwrap_or_default();
    let setting = |doc: &devicefusion::SettingDoc| Setting {
        name: string(doc.key),
        default: string(doc.default),
        description: string(doc.description),
        frozen: doc.frozen,
    };
    DeviceOptions::documentation().iter().map(setting).collect()
});

/// The settings whose values are numbers.
pub(crate) fn tuning_params() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.is_number())
}

/// The `field` of a setting by its index, or NULL.
fn setting_field(index: c_int, field: impl FnOnce(&'static Setting) -> &'static CStr) -> *const c_char {
    let setting = usize::try_from(index).ok().and_then(|index| SETTINGS.get(index));
    setting.map_or(ptr::null(), |setting| field(setting).as_ptr())
}

/// The `field` of a tuning parameter by its index, or NULL.
fn tuning_param_field(index: c_int, field: impl FnOnce(&'static Setting) -> &'static CStr) -> *const c_char {
    let param = usize::try_from(index).ok().and_then(|index| tuning_params().nth(index));
    param.map_or(ptr::null(), |param| field(param).as_ptr())
}

fn count(settings: usize) -> c_int {
    c_int::try_from(settings).unwrap_or(c_int::MAX)
}

/// The version of this library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// The number of settings.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_count() -> c_int {
    count(SETTINGS.len())
}

/// The name of setting `index`, from zero, such as "device.memory_bytes". NULL if there is no such
/// setting.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_name(index: c_int) -> *const c_char {
    setting_field(index, |setting| &setting.name)
}

/// The default of setting `index`. NULL if there is no such setting.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_default(index: c_int) -> *const c_char {
    setting_field(index, |setting| &setting.default)
}

/// Description of setting `index`: its effect, unit and special values. NULL if there is no such
/// setting.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_description(index: c_int) -> *const c_char {
    setting_field(index, |setting| &setting.description)
}

/// The number of tuning parameters: the settings whose values are numbers.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_tuning_param_count() -> c_int {
    count(tuning_params().count())
}

/// The name of tuning parameter `index`, from zero. NULL if there is no such parameter.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_tuning_param_name(index: c_int) -> *const c_char {
    tuning_param_field(index, |param| &param.name)
}

/// The class of tuning parameter `index`. NULL if there is no such parameter.
///
/// - "threshold": SQL's SET changes it while a context lives.
/// - "size": it is fixed when the context is made.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_tuning_param_class(index: c_int) -> *const c_char {
    tuning_param_field(index, Setting::class)
}

/// The devices of all drivers as a JSON array with an object for each device. Opens the drivers.
/// The caller frees the string. NULL if there is no memory.
///
/// - "selector": the value for devicefusion_context_config_set_device.
/// - "name", "driver", "platform", "kind", "memory_bytes".
/// - "problem": the reason why the device cannot be used, or null.
///
/// A driver that is absent has only "driver" and "problem".
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_list_devices() -> *mut c_char {
    let list = || {
        let entry = |entry: device::DeviceEntry| match &entry.info {
            Some(info) => serde_json::json!({
                "selector": format!("#{}", info.index),
                "name": info.name,
                "driver": info.driver.to_string(),
                "platform": info.platform,
                "kind": info.kind.to_string(),
                "memory_bytes": info.memory_bytes,
                "problem": entry.problem,
            }),
            None => serde_json::json!({ "driver": entry.driver.to_string(), "problem": entry.problem }),
        };
        Ok(malloc_string(&device::devices().into_iter().map(entry).collect::<serde_json::Value>().to_string()))
    };
    without_context(list).unwrap_or(ptr::null_mut())
}
