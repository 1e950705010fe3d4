// SPDX-License-Identifier: Apache-2.0
//! The settings `device.*` (`table.rs`), as a configuration extension of DataFusion.

mod explained;
mod table;
#[cfg(test)]
mod tests;
mod value;

use std::any::Any;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{Result, config_err};
use device::{DeviceKind, Selector};
use kernels::codegen::Profile;

use self::table::{SETTINGS, Setting};
pub(crate) use explained::ExplainedPlan;
pub use table::DeviceOptions;
pub use value::parse_bytes;

/// The value of `device.cache_dir` that leaves the choice to the kind of device.
pub(super) const AUTO: &str = "auto";

/// Whether queries without compiled kernels run on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AdaptiveStart {
    /// On CPU devices.
    Auto,
    /// On all devices.
    Always,
    /// They wait for the kernels.
    Never,
}

impl AdaptiveStart {
    /// Whether they run on the host with a device of this kind.
    pub fn starts_on_host(self, kind: DeviceKind) -> bool {
        match self {
            AdaptiveStart::Auto => match kind {
                DeviceKind::Cpu => true,
                DeviceKind::Gpu | DeviceKind::Accelerator => false,
            },
            AdaptiveStart::Always => true,
            AdaptiveStart::Never => false,
        }
    }
}

/// Whether an operator may stay on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Operators that the device does not support run on the host; EXPLAIN says why.
    Host,
    /// A query with such an operator fails when it is planned.
    Error,
}

impl Fallback {
    /// Whether each computing operator must run on the device.
    pub fn is_strict(self) -> bool {
        match self {
            Fallback::Host => false,
            Fallback::Error => true,
        }
    }
}

/// When a supported operator runs on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Unless the input is tiny, according to statistics.
    Auto,
    /// Always.
    Always,
}

impl Cost {
    /// Whether tiny inputs run on the device too.
    pub fn is_always(self) -> bool {
        match self {
            Cost::Auto => false,
            Cost::Always => true,
        }
    }
}

/// Shape of the generated kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSetting {
    /// The shape that fits the device.
    Auto,
    /// Contiguous runs of rows per core.
    Cpu,
    /// Tiles per work-group, shared memory.
    Gpu,
}

impl ProfileSetting {
    /// The shape on a device of this kind.
    pub(super) fn shape(self, kind: DeviceKind) -> Profile {
        match (self, kind) {
            (ProfileSetting::Cpu, _) | (ProfileSetting::Auto, DeviceKind::Cpu) => Profile::Cpu,
            (ProfileSetting::Gpu, _) | (ProfileSetting::Auto, DeviceKind::Gpu | DeviceKind::Accelerator) => Profile::Gpu,
        }
    }
}

/// The treatment of rows that are more than device memory holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpillSetting {
    /// Operators that can, write them to temporary files.
    Auto,
    /// The query fails.
    Off,
}

impl SpillSetting {
    /// Whether operators may write rows to temporary files.
    pub fn allows_files(self) -> bool {
        match self {
            SpillSetting::Auto => true,
            SpillSetting::Off => false,
        }
    }
}

/// Documentation of one setting.
#[derive(Debug, Clone, Copy)]
pub struct SettingDoc {
    /// Full name, as in `SET`.
    pub key: &'static str,
    /// Default, as `SHOW` prints it.
    pub default: &'static str,
    /// Whether it may no longer change once the session's device is open.
    pub frozen: bool,
    /// Whether SQL may not set it; see [`DeviceOptions::set_by_program`].
    pub program_only: bool,
    /// Effect, unit and special values.
    pub description: &'static str,
}

static DOCUMENTATION: LazyLock<Vec<SettingDoc>> = LazyLock::new(|| {
    let defaults = DeviceOptions::default();
    let doc = |setting: &Setting| SettingDoc {
        key: setting.key,
        default: (setting.get)(&defaults).leak(),
        frozen: setting.frozen,
        program_only: setting.program_only,
        description: setting.description,
    };
    SETTINGS.iter().map(doc).collect()
});

/// Descriptions for `SHOW`, which has no columns for the default and the flags of a setting.
static SHOWN_DESCRIPTIONS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let shown = |doc: &SettingDoc| {
        let frozen = if doc.frozen { "; frozen once the session's device is open" } else { "" };
        let program_only = if doc.program_only { "; not set by SQL" } else { "" };
        format!("{}. Default '{}'{frozen}{program_only}", doc.description, doc.default)
    };
    DOCUMENTATION.iter().map(shown).collect()
});

impl DeviceOptions {
    /// Every setting with its default and meaning, by name.
    pub fn documentation() -> &'static [SettingDoc] {
        &DOCUMENTATION
    }

    /// The defaults, overridden by variables such as `DATAFUSION_DEVICE_MEMORY_BYTES`.
    ///
    /// # Errors
    /// If a variable holds a bad value, or names no setting.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::default();
        let known = |name: &str| SETTINGS.iter().any(|setting| variable(setting) == name);
        for (name, _) in std::env::vars_os() {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLES) && !known(name)) {
                let key = name.trim_start_matches(VARIABLES).to_lowercase();
                return config_err!("the variable {name} is not a setting; {}", instead_of(&key, variable));
            }
        }
        for setting in SETTINGS {
            let variable = variable(setting);
            if let Some(value) = std::env::var_os(&variable)
                && let Err(error) = options.set_row(setting, &value.to_string_lossy())
            {
                return config_err!("the variable {variable}: {}", error.message());
            }
        }
        Ok(options)
    }

    /// The settings of a configuration; the defaults where the extension is not installed.
    pub(crate) fn of(config: &ConfigOptions) -> DeviceOptions {
        config.extensions.get::<DeviceOptions>().cloned().unwrap_or_default()
    }

    /// The settings that ask for a particular device, with their values. The host is no substitute
    /// for it.
    pub(crate) fn demand(&self) -> Option<String> {
        let selector = match self.selector.as_ref()? {
            Selector::Auto => None,
            selector => Some(format!("device.selector = '{selector}'")),
        };
        let platform = (!self.platform.is_empty()).then(|| format!("device.platform = '{}'", self.platform));
        let demands: Vec<String> = selector.into_iter().chain(platform).collect();
        (!demands.is_empty()).then(|| demands.join(", "))
    }

    /// Whether operators must run on the device, even those faster on the host.
    pub(crate) fn always(&self) -> bool {
        self.cost.is_always() || self.fallback.is_strict()
    }

    pub(crate) fn freeze(&self) {
        self.opened.store(true, Ordering::Relaxed);
    }

    /// Flags the settings of a plan for EXPLAIN.
    pub(crate) fn set_explained(config: &mut ConfigOptions, plan: Arc<ExplainedPlan>) {
        if let Some(options) = config.extensions.get_mut::<DeviceOptions>() {
            options.explained = Some(plan);
        }
    }

    /// The plan of an EXPLAIN, which does not open the device. `None` for plans that run.
    pub(crate) fn explained(&self) -> Option<&ExplainedPlan> {
        self.explained.as_deref()
    }

    /// Ends the settings that only the program makes: from now on SQL may change the others.
    pub(crate) fn seal(&mut self) {
        self.is_sealed = true;
    }

    /// Sets any setting of a configuration, DataFusion's too, for the program that embeds the
    /// session. A value from a query must not come this way: some settings run native code.
    ///
    /// # Errors
    /// If there is no such setting, or it does not take the value.
    ///
    /// # Examples
    /// ```
    /// use devicefusion::DeviceOptions;
    ///
    /// let ctx = devicefusion::session()?;
    /// assert!(ctx.state_ref().write().config_mut().options_mut().set("device.cache_dir", "/tmp/kernels").is_err());
    /// DeviceOptions::set_by_program(ctx.state_ref().write().config_mut().options_mut(), "device.cache_dir", "/tmp/kernels")?;
    /// # datafusion::common::Result::<()>::Ok(())
    /// ```
    pub fn set_by_program(config: &mut ConfigOptions, key: &str, value: &str) -> Result<()> {
        let seal = |config: &mut ConfigOptions, is_sealed| {
            config.extensions.get_mut::<DeviceOptions>().map(|options| std::mem::replace(&mut options.is_sealed, is_sealed))
        };
        let was_sealed = seal(config, false);
        let result = config.set(key, value);
        seal(config, was_sealed.unwrap_or_default());
        result
    }

    /// Sets a setting to its default, for the `RESET` of a query.
    ///
    /// # Errors
    /// If there is no such setting, or it cannot change.
    pub(crate) fn reset(config: &mut ConfigOptions, key: &str) -> Result<()> {
        let doc = Self::documentation().iter().find(|doc| doc.key == key);
        // An unknown key is an error of `set`, which knows the nearest one.
        config.set(key, doc.map_or("", |doc| doc.default))
    }

    fn set_row(&mut self, setting: &Setting, value: &str) -> Result<()> {
        let (value, current) = (value.trim(), (setting.get)(self));
        if setting.program_only && self.is_sealed && !self.allow_unsafe_settings && current != value {
            return config_err!(
                "{} cannot change from '{current}' to '{value}' by SQL, because it runs native code or uses files; the session's \
                 program sets it, or device.allow_unsafe_settings",
                setting.key
            );
        }
        if setting.frozen && self.opened.load(Ordering::Relaxed) && current != value {
            // The error of a value that is wrong on any device comes first.
            (setting.set)(&mut self.clone(), setting.key, value)?;
            return config_err!(
                "{} cannot change from '{current}' to '{value}': the session's device is open; set it before the first query",
                setting.key
            );
        }
        (setting.set)(self, setting.key, value)
    }
}

impl ConfigExtension for DeviceOptions {
    const PREFIX: &'static str = "device";
}

impl ExtensionOptions for DeviceOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match SETTINGS.iter().find(|setting| setting.key.strip_prefix("device.") == Some(key)) {
            Some(setting) => self.set_row(setting, value),
            None => {
                let instead = instead_of(key, |setting| setting.key.to_string());
                config_err!("device.{key} is not a setting; {instead}")
            }
        }
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |(setting, description): (&Setting, &'static String)| ConfigEntry {
            key: setting.key.to_string(),
            value: Some((setting.get)(self)),
            description,
        };
        SETTINGS.iter().zip(SHOWN_DESCRIPTIONS.iter()).map(entry).collect()
    }
}

/// The settings to write instead of a wrong key: the most similar one, or all if none is similar.
fn instead_of(key: &str, name: fn(&Setting) -> String) -> String {
    /// Keys with one wrong letter, a missing end or another last part are above this, others below.
    const SIMILAR: f64 = 0.8;
    let similarity = |setting: &Setting| strsim::jaro_winkler(key, setting.key.trim_start_matches("device."));
    match SETTINGS.iter().max_by(|left, right| similarity(left).total_cmp(&similarity(right))) {
        Some(nearest) if similarity(nearest) > SIMILAR => format!("did you mean {}?", name(nearest)),
        _ => format!("there are {}", SETTINGS.iter().map(name).collect::<Vec<_>>().join(", ")),
    }
}

/// Prefix of the environment variables.
const VARIABLES: &str = "DATAFUSION_DEVICE_";

/// The environment variable of a setting.
fn variable(setting: &Setting) -> String {
    format!("DATAFUSION_{}", setting.key.to_uppercase().replace('.', "_"))
}
