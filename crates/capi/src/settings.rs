// SPDX-License-Identifier: Apache-2.0
//! The list of settings, for C to ask.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::LazyLock;

use devicefusion::DeviceOptions;

use crate::boundary::{give_text, without_context};

/// A setting in C's texts.
pub(crate) struct Setting {
    name: CString,
    default: CString,
    description: CString,
    frozen: bool,
}

impl Setting {
    /// As SQL's SET takes it.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }

    /// What it is where nobody sets it.
    pub fn default(&self) -> &str {
        self.default.to_str().unwrap_or_default()
    }

    /// Whether its value is a number.
    fn is_number(&self) -> bool {
        self.default().parse::<u64>().is_ok()
    }

    fn class(&self) -> &'static CStr {
        if self.frozen { c"size" } else { c"threshold" }
    }
}

static SETTINGS: LazyLock<Vec<Setting>> = LazyLock::new(|| {
    // None of our own texts has a NUL.
    let text = |text: &str| CString::new(text).unwrap_or_default();
    let setting = |doc: &devicefusion::SettingDoc| Setting {
        name: text(doc.key),
        default: text(doc.default),
        description: text(doc.description),
        frozen: doc.frozen,
    };
    DeviceOptions::documentation().iter().map(setting).collect()
});

/// The setting with this name.
pub(crate) fn of_device(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name().eq_ignore_ascii_case(name))
}

/// The settings whose values are numbers.
pub(crate) fn tuning_params() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| setting.is_number())
}

/// What `of` gives for the setting with this index; NULL where there is none.
fn of_setting(index: c_int, of: impl FnOnce(&'static Setting) -> &'static CStr) -> *const c_char {
    let setting = usize::try_from(index).ok().and_then(|index| SETTINGS.get(index));
    setting.map_or(ptr::null(), |setting| of(setting).as_ptr())
}

fn of_tuning_param(index: c_int, of: impl FnOnce(&'static Setting) -> &'static CStr) -> *const c_char {
    let param = usize::try_from(index).ok().and_then(|index| tuning_params().nth(index));
    param.map_or(ptr::null(), |param| of(param).as_ptr())
}

fn count(settings: usize) -> c_int {
    c_int::try_from(settings).unwrap_or(c_int::MAX)
}

/// The version of this library, as in "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_version() -> *const c_char {
    const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };
    VERSION.as_ptr()
}

/// How many settings there are.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_count() -> c_int {
    count(SETTINGS.len())
}

/// The name of setting `index`, counted from zero, as in "device.memory_bytes". NULL where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_name(index: c_int) -> *const c_char {
    of_setting(index, |setting| &setting.name)
}

/// The default of setting `index`. NULL where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_default(index: c_int) -> *const c_char {
    of_setting(index, |setting| &setting.default)
}

/// What setting `index` does, its unit and special values. NULL where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_option_description(index: c_int) -> *const c_char {
    of_setting(index, |setting| &setting.description)
}

/// How many tuning parameters there are: settings whose values are numbers.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_tuning_param_count() -> c_int {
    count(tuning_params().count())
}

/// The name of tuning parameter `index`, counted from zero. NULL where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_tuning_param_name(index: c_int) -> *const c_char {
    of_tuning_param(index, |param| &param.name)
}

/// The class of tuning parameter `index`: "threshold" for one that can change while a context lives, by SQL's SET; "size" for
/// one that is fixed when the context is made. NULL where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_get_tuning_param_class(index: c_int) -> *const c_char {
    of_tuning_param(index, Setting::class)
}

/// The devices of all drivers as JSON, an array with an object for each: "selector" (what
/// devicefusion_context_config_set_device takes), "name", "driver", "platform", "kind", "memory_bytes" and "problem", the reason why it
/// cannot be used, or null. A driver that is absent has only "driver" and "problem". Opens the drivers. The caller frees the
/// text; NULL without memory.
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
        Ok(give_text(&device::devices().into_iter().map(entry).collect::<serde_json::Value>().to_string()))
    };
    without_context(list).unwrap_or(ptr::null_mut())
}
