// SPDX-License-Identifier: Apache-2.0
//! The settings `device.*`: one table from which parsing, `SHOW`, documentation and checks come.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use datafusion::common::config::{ConfigEntry, ConfigExtension, ExtensionOptions};
use datafusion::common::{Result, config_err};
use device::{Selector, UnifiedMemory};
use kernels::ops::Sizes;

/// Whether an operator may stay on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fallback {
    /// Operators that the device does not support run on the host; EXPLAIN says why.
    Host,
    /// A query with such an operator fails when it is planned.
    Error,
}

/// When an operator that is supported on the device runs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Unless statistics say that the input is tiny.
    Auto,
    /// Always.
    Always,
}

/// Which shape of kernels is generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileSetting {
    /// The shape that fits the device.
    Auto,
    /// Contiguous runs per core.
    Cpu,
    /// Tiles per group, shared memory.
    Gpu,
}

/// One setting, for documentation.
#[derive(Debug, Clone, Copy)]
pub struct SettingDoc {
    /// Full name, as in `SET`.
    pub key: &'static str,
    /// Default, as `SHOW` prints it.
    pub default: &'static str,
    /// Whether it may no longer change once the session's device is open.
    pub frozen: bool,
    /// What it does, its unit and special values.
    pub description: &'static str,
}

const SETTINGS: &[SettingDoc] = &[
    SettingDoc {
        key: "device.batch_rows",
        default: "0",
        frozen: false,
        description: "Rows of the device batches that host input is gathered to; 0 chooses by device (131072 on CPU devices, 1048576 elsewhere). More rows mean fewer launches and more device memory per query",
    },
    SettingDoc {
        key: "device.cache_dir",
        default: "",
        frozen: true,
        description: "Folder in which compiled programs are kept between processes; empty keeps none",
    },
    SettingDoc {
        key: "device.compile_options",
        default: "",
        frozen: true,
        description: "Options, separated by spaces, that are handed to the kernel compiler besides our own",
    },
    SettingDoc {
        key: "device.cost",
        default: "auto",
        frozen: false,
        description: "'auto' leaves operators over tiny inputs (fewer rows than device.min_rows by exact statistics) to the host; 'always' never does",
    },
    SettingDoc {
        key: "device.dump_programs",
        default: "",
        frozen: true,
        description: "Folder in which the text of each program is left as HASH.cl, and its image, for device.load_programs or tools; empty leaves none",
    },
    SettingDoc {
        key: "device.enabled",
        default: "true",
        frozen: false,
        description: "Whether plans are moved to the device at all; with false they are plain DataFusion's, and EXPLAIN gives no reasons",
    },
    SettingDoc {
        key: "device.exact_functions",
        default: "true",
        frozen: false,
        description: "Whether functions of floats whose last digits differ between the host and devices stay on the host: sin, cos, cbrt and their like, and exp, ln, power and theirs where the host's C library is none that kernels follow; with false they run on the device",
    },
    SettingDoc {
        key: "device.fallback",
        default: "host",
        frozen: false,
        description: "'host' runs operators that the device does not support on the host and says why in EXPLAIN; 'error' makes such a query fail, and implies device.cost = always",
    },
    SettingDoc {
        key: "device.futhark",
        default: "false",
        frozen: false,
        description: "Whether CREATE FUNCTION … LANGUAGE futhark may load native libraries into this process; they can do whatever it can",
    },
    SettingDoc {
        key: "device.futhark_profiling",
        default: "false",
        frozen: false,
        description: "Whether libraries that CREATE FUNCTION opens from now on measure themselves, for the report of the device; OpenCL's keep what they measure until it is asked for",
    },
    SettingDoc {
        key: "device.max_work_groups",
        default: "0",
        frozen: false,
        description: "Most groups of a grid whose items share a batch's rows among themselves, up to 65536; 0 takes a few for each unit of the device: 16 in the profile 'gpu', 4 in 'cpu'",
    },
    SettingDoc {
        key: "device.work_group_size",
        default: "0",
        frozen: false,
        description: "Items of a group in kernels of the profile 'gpu', a power of two from 32 to 512 that the device can take; 0 takes 256. Those of the profile 'cpu' have no groups of items, and refuse any other value",
    },
    SettingDoc {
        key: "device.load_programs",
        default: "",
        frozen: true,
        description: "Folder that device.dump_programs has filled, read before anything is compiled: an image is taken where all that it depends on is the same, a HASH.cl with another text is compiled in place of its own; empty reads none",
    },
    SettingDoc {
        key: "device.memory_bytes",
        default: "0",
        frozen: true,
        description: "Limit of the device memory pool in bytes; 0 takes 90 % of a GPU's memory or half of the host's",
    },
    SettingDoc {
        key: "device.min_rows",
        default: "10000",
        frozen: false,
        description: "With device.cost = auto, inputs known to have fewer rows stay on the host",
    },
    SettingDoc {
        key: "device.nvrtc_path",
        default: "",
        frozen: true,
        description: "Path of the NVRTC library (libnvrtc.so.*) or its folder; empty searches the usual places",
    },
    SettingDoc {
        key: "device.platform",
        default: "",
        frozen: true,
        description: "Part of the name of the OpenCL platform to use; empty takes any",
    },
    SettingDoc {
        key: "device.profile",
        default: "auto",
        frozen: false,
        description: "Shape of the generated kernels: 'cpu' (a contiguous run of rows per core), 'gpu' (tiles and shared memory) or 'auto' (by device)",
    },
    SettingDoc {
        key: "device.profiling",
        default: "true",
        frozen: true,
        description: "Whether kernel times are measured, for EXPLAIN ANALYZE and reports",
    },
    SettingDoc {
        key: "device.selector",
        default: "auto",
        frozen: true,
        description: "The device: 'auto', 'none', 'opencl', 'cuda', '#k' (as `devicefusion devices` numbers them) or a part of its name",
    },
    SettingDoc {
        key: "device.compaction_tile_rows",
        default: "0",
        frozen: false,
        description: "Rows of which a group brings those together that pass a filter: a multiple of 32 up to 1048576, in the profile 'gpu' a multiple of device.work_group_size and at most 32 times as many; 0 takes 4096 in the profile 'gpu', or fewer where groups are small, and 16384 in 'cpu'",
    },
    SettingDoc {
        key: "device.unified_memory",
        default: "auto",
        frozen: true,
        description: "Whether kernels work in the host's memory in place: 'auto' where the device is the host's processor, 'never', or 'always', which refuses a device that cannot",
    },
];

/// Each description with what `SHOW` has no column for.
static DESCRIPTIONS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let shown = |setting: &SettingDoc| {
        let frozen = if setting.frozen { "; frozen once the session's device is open" } else { "" };
        format!("{}. Default '{}'{frozen}", setting.description, setting.default)
    };
    SETTINGS.iter().map(shown).collect()
});

/// The settings of one session. Clones share the mark that freezes what the open device depends on.
#[derive(Debug, Clone)]
pub struct DeviceOptions {
    /// `device.enabled`.
    pub enabled: bool,
    /// `device.selector`; `None` is 'none'.
    pub selector: Option<Selector>,
    /// `device.platform`.
    pub platform: String,
    /// `device.exact_functions`.
    pub exact_functions: bool,
    /// `device.fallback`.
    pub fallback: Fallback,
    /// `device.cost`.
    pub cost: Cost,
    /// `device.min_rows`.
    pub min_rows: usize,
    /// `device.profile`.
    pub profile: ProfileSetting,
    /// `device.max_work_groups`.
    pub max_work_groups: u32,
    /// `device.work_group_size`.
    pub work_group_size: u32,
    /// `device.compaction_tile_rows`.
    pub compaction_tile_rows: u32,
    /// `device.futhark`.
    pub futhark: bool,
    /// `device.futhark_profiling`.
    pub futhark_profiling: bool,
    /// `device.memory_bytes`.
    pub memory_bytes: usize,
    /// `device.batch_rows`.
    pub batch_rows: usize,
    /// `device.compile_options`.
    pub compile_options: String,
    /// `device.cache_dir`.
    pub cache_dir: String,
    /// `device.profiling`.
    pub profiling: bool,
    /// `device.nvrtc_path`.
    pub nvrtc_path: String,
    /// `device.dump_programs`.
    pub dump_programs: String,
    /// `device.load_programs`.
    pub load_programs: String,
    /// `device.unified_memory`.
    pub unified_memory: UnifiedMemory,
    selector_text: String,
    opened: Arc<AtomicBool>,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        DeviceOptions {
            enabled: true,
            exact_functions: true,
            selector: Some(Selector::Auto),
            platform: String::new(),
            fallback: Fallback::Host,
            cost: Cost::Auto,
            min_rows: 10_000,
            profile: ProfileSetting::Auto,
            max_work_groups: 0,
            work_group_size: 0,
            compaction_tile_rows: 0,
            futhark: false,
            futhark_profiling: false,
            memory_bytes: 0,
            batch_rows: 0,
            compile_options: String::new(),
            cache_dir: String::new(),
            profiling: true,
            nvrtc_path: String::new(),
            dump_programs: String::new(),
            load_programs: String::new(),
            unified_memory: UnifiedMemory::Auto,
            selector_text: "auto".to_string(),
            opened: Arc::new(AtomicBool::new(false)),
        }
    }
}

impl DeviceOptions {
    /// Every setting with its default and meaning, by name.
    pub fn documentation() -> &'static [SettingDoc] {
        SETTINGS
    }

    /// The defaults, but for what variables such as `DATAFUSION_DEVICE_MEMORY_BYTES` say.
    ///
    /// # Errors
    /// If a variable holds a bad value.
    pub fn from_env() -> Result<Self> {
        let mut options = Self::default();
        let known = |name: &str| SETTINGS.iter().any(|setting| variable(setting) == name);
        for (name, _) in std::env::vars_os() {
            if let Some(name) = name.to_str().filter(|name| name.starts_with(VARIABLES) && !known(name)) {
                let names: Vec<String> = SETTINGS.iter().map(variable).collect();
                return config_err!("the variable {name} is no setting: there are {}", names.join(", "));
            }
        }
        for setting in SETTINGS {
            let variable = variable(setting);
            let key = setting.key.strip_prefix("device.").unwrap_or(setting.key);
            if let Some(value) = std::env::var_os(&variable)
                && let Err(error) = options.set(key, &value.to_string_lossy())
            {
                return config_err!("the variable {variable}: {}", error.message());
            }
        }
        Ok(options)
    }

    /// The setting that asks for a device of a user's choice, with its value; where there is none
    /// such, the host is no substitute.
    pub(crate) fn demand(&self) -> Option<String> {
        let selector = match self.selector.as_ref()? {
            Selector::Auto => None,
            _ => Some(format!("device.selector = '{}'", self.selector_text)),
        };
        let platform = (!self.platform.is_empty()).then(|| format!("device.platform = '{}'", self.platform));
        let demands: Vec<String> = selector.into_iter().chain(platform).collect();
        (!demands.is_empty()).then(|| demands.join(", "))
    }

    /// Whether operators must run on the device even where the host would be faster.
    pub(crate) fn always(&self) -> bool {
        self.cost == Cost::Always || self.fallback == Fallback::Error
    }

    pub(crate) fn freeze(&self) {
        self.opened.store(true, Ordering::Relaxed);
    }

    fn value(&self, key: &str) -> String {
        match key {
            "device.batch_rows" => self.batch_rows.to_string(),
            "device.cache_dir" => self.cache_dir.clone(),
            "device.compile_options" => self.compile_options.clone(),
            "device.cost" => match self.cost {
                Cost::Auto => "auto",
                Cost::Always => "always",
            }
            .to_string(),
            "device.dump_programs" => self.dump_programs.clone(),
            "device.enabled" => self.enabled.to_string(),
            "device.exact_functions" => self.exact_functions.to_string(),
            "device.fallback" => match self.fallback {
                Fallback::Host => "host",
                Fallback::Error => "error",
            }
            .to_string(),
            "device.futhark" => self.futhark.to_string(),
            "device.futhark_profiling" => self.futhark_profiling.to_string(),
            "device.max_work_groups" => self.max_work_groups.to_string(),
            "device.work_group_size" => self.work_group_size.to_string(),
            "device.load_programs" => self.load_programs.clone(),
            "device.memory_bytes" => self.memory_bytes.to_string(),
            "device.min_rows" => self.min_rows.to_string(),
            "device.nvrtc_path" => self.nvrtc_path.clone(),
            "device.platform" => self.platform.clone(),
            "device.profile" => match self.profile {
                ProfileSetting::Auto => "auto",
                ProfileSetting::Cpu => "cpu",
                ProfileSetting::Gpu => "gpu",
            }
            .to_string(),
            "device.profiling" => self.profiling.to_string(),
            "device.selector" => self.selector_text.clone(),
            "device.compaction_tile_rows" => self.compaction_tile_rows.to_string(),
            "device.unified_memory" => match self.unified_memory {
                UnifiedMemory::Auto => "auto",
                UnifiedMemory::Never => "never",
                UnifiedMemory::Always => "always",
            }
            .to_string(),
            _ => String::new(),
        }
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
        let Some(setting) = SETTINGS.iter().find(|setting| setting.key.strip_prefix("device.") == Some(key)) else {
            let known: Vec<&str> = SETTINGS.iter().map(|setting| setting.key).collect();
            return config_err!("device.{key} is not a setting; there are {}", known.join(", "));
        };
        let value = value.trim();
        if setting.frozen && self.opened.load(Ordering::Relaxed) && self.value(setting.key) != value {
            return config_err!(
                "{} cannot change from '{}' to '{value}': the session's device is open; set it before the first query",
                setting.key,
                self.value(setting.key)
            );
        }
        match key {
            "batch_rows" => {
                let rows: usize = number(setting.key, value)?;
                if rows > i32::MAX as usize {
                    return config_err!("{} = {rows}: must lie between 0 and {}", setting.key, i32::MAX);
                }
                self.batch_rows = rows;
            }
            "cache_dir" => self.cache_dir = value.to_string(),
            "compile_options" => self.compile_options = value.to_string(),
            "cost" => {
                self.cost = choice(setting.key, value, &[("auto", Cost::Auto), ("always", Cost::Always)])?;
            }
            "dump_programs" => self.dump_programs = value.to_string(),
            "enabled" => self.enabled = boolean(setting.key, value)?,
            "exact_functions" => self.exact_functions = boolean(setting.key, value)?,
            "fallback" => {
                self.fallback = choice(setting.key, value, &[("host", Fallback::Host), ("error", Fallback::Error)])?;
            }
            "futhark" => self.futhark = boolean(setting.key, value)?,
            "futhark_profiling" => self.futhark_profiling = boolean(setting.key, value)?,
            "max_work_groups" => {
                let most = Sizes::MAX_WORK_GROUPS;
                self.max_work_groups =
                    size(setting.key, value, |groups| groups <= most, || format!("must lie between 0 and {most}"))?;
            }
            "work_group_size" => {
                let (least, most) = Sizes::WORK_GROUP_SIZES.into_inner();
                let wanted = || format!("must be 0 or a power of two from {least} to {most}");
                self.work_group_size = size(setting.key, value, Sizes::accepts_work_group_size, wanted)?;
            }
            "load_programs" => self.load_programs = value.to_string(),
            "memory_bytes" => self.memory_bytes = number(setting.key, value)?,
            "min_rows" => self.min_rows = number(setting.key, value)?,
            "nvrtc_path" => self.nvrtc_path = value.to_string(),
            "platform" => self.platform = value.to_string(),
            "profile" => {
                let choices = [("auto", ProfileSetting::Auto), ("cpu", ProfileSetting::Cpu), ("gpu", ProfileSetting::Gpu)];
                self.profile = choice(setting.key, value, &choices)?;
            }
            "profiling" => self.profiling = boolean(setting.key, value)?,
            "compaction_tile_rows" => {
                let (least, most) = Sizes::TILE_ROWS.into_inner();
                let wanted = || format!("must be 0 or a multiple of 32 from {least} to {most}");
                self.compaction_tile_rows = size(setting.key, value, Sizes::accepts_tile_rows, wanted)?;
            }
            "unified_memory" => {
                let choices = [("auto", UnifiedMemory::Auto), ("never", UnifiedMemory::Never), ("always", UnifiedMemory::Always)];
                self.unified_memory = choice(setting.key, value, &choices)?;
            }
            _ => {
                self.selector = match value {
                    "" => {
                        return config_err!("{} is empty: must be auto, none, opencl, cuda, #k or a part of a name", setting.key);
                    }
                    word if word.eq_ignore_ascii_case("none") => None,
                    text => match text.parse::<Selector>() {
                        Ok(selector) => Some(selector),
                        Err(error) => return config_err!("{error}"),
                    },
                };
                self.selector_text = value.to_string();
            }
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        SETTINGS
            .iter()
            .zip(DESCRIPTIONS.iter())
            .map(|(setting, description)| ConfigEntry {
                key: setting.key.to_string(),
                value: Some(self.value(setting.key)),
                description,
            })
            .collect()
    }
}

/// How the variables of all settings begin.
const VARIABLES: &str = "DATAFUSION_DEVICE_";

/// The environment variable of a setting.
fn variable(setting: &SettingDoc) -> String {
    format!("DATAFUSION_{}", setting.key.to_uppercase().replace('.', "_"))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T> {
    match value.parse() {
        Ok(number) => Ok(number),
        Err(_) if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() => {
            config_err!("{key} = '{value}': must be less than 2 to the power of 64")
        }
        Err(_) => config_err!("{key} = '{value}': must be a whole number, 0 or more"),
    }
}

/// A number that `takes` takes; the error says what is `wanted`.
fn size(key: &str, value: &str, takes: impl FnOnce(u32) -> bool, wanted: impl FnOnce() -> String) -> Result<u32> {
    let number: u64 = number(key, value)?;
    match u32::try_from(number) {
        Ok(size) if takes(size) => Ok(size),
        _ => config_err!("{key} = {number}: {}", wanted()),
    }
}

fn boolean(key: &str, value: &str) -> Result<bool> {
    choice(key, value, &[("true", true), ("false", false)])
}

fn choice<T: Copy>(key: &str, value: &str, choices: &[(&str, T)]) -> Result<T> {
    match choices.iter().find(|(name, _)| name.eq_ignore_ascii_case(value)) {
        Some((_, choice)) => Ok(*choice),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            config_err!("{key} = '{value}': must be one of {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_table() {
        let options = DeviceOptions::default();
        for setting in SETTINGS {
            assert_eq!(options.value(setting.key), setting.default, "{}", setting.key);
        }
    }

    #[test]
    fn every_setting_can_be_set_to_its_default() {
        let mut options = DeviceOptions::default();
        for setting in SETTINGS {
            options.set(&setting.key["device.".len()..], setting.default).unwrap();
        }
    }

    #[test]
    fn a_frozen_setting_cannot_change_once_the_device_is_open() {
        let mut options = DeviceOptions::default();
        options.freeze();
        let error = options.set("memory_bytes", "1").unwrap_err().to_string();
        assert!(error.contains("device.memory_bytes"), "{error}");
        options.set("fallback", "error").unwrap();
        options.set("memory_bytes", "0").unwrap();
    }

    #[test]
    fn words_select_in_upper_and_lower_case() {
        let mut options = DeviceOptions::default();
        options.set("selector", "None").unwrap();
        assert_eq!((&options.selector, options.demand()), (&None, None));
        options.set("selector", "AUTO").unwrap();
        assert_eq!((&options.selector, options.demand()), (&Some(Selector::Auto), None));
        options.set("selector", "H200").unwrap();
        assert_eq!(options.demand().as_deref(), Some("device.selector = 'H200'"));
    }

    #[test]
    fn bad_values_are_told_with_what_would_do() {
        let mut options = DeviceOptions::default();
        for (key, value, problem) in [
            ("selector", "", "device.selector is empty: must be auto, none, opencl, cuda, #k or a part of a name"),
            ("selector", "#x", "device.selector = #x: expected a number after #"),
            ("memory_bytes", "1e9", "device.memory_bytes = '1e9': must be a whole number, 0 or more"),
            (
                "batch_rows",
                "99999999999999999999",
                "device.batch_rows = '99999999999999999999': must be less than 2 to the power of 64",
            ),
            ("min_rows", "-1", "device.min_rows = '-1': must be a whole number, 0 or more"),
            ("batch_rows", "4294967296", "device.batch_rows = 4294967296: must lie between 0 and 2147483647"),
            ("work_group_size", "48", "device.work_group_size = 48: must be 0 or a power of two from 32 to 512"),
            ("work_group_size", "1024", "device.work_group_size = 1024: must be 0 or a power of two from 32 to 512"),
            (
                "compaction_tile_rows",
                "100",
                "device.compaction_tile_rows = 100: must be 0 or a multiple of 32 from 32 to 1048576",
            ),
            ("max_work_groups", "4294967297", "device.max_work_groups = 4294967297: must lie between 0 and 65536"),
            ("profiling", "perhaps", "device.profiling = 'perhaps': must be one of true, false"),
            ("profile", "tpu", "device.profile = 'tpu': must be one of auto, cpu, gpu"),
            ("unified_memory", "perhaps", "device.unified_memory = 'perhaps': must be one of auto, never, always"),
        ] {
            let before = options.value(&format!("device.{key}"));
            let error = options.set(key, value).unwrap_err().to_string();
            assert!(error.contains(problem), "{error}");
            assert_eq!(options.value(&format!("device.{key}")), before);
        }
    }

    #[test]
    fn descriptions_tell_default_and_what_is_frozen() {
        for (entry, setting) in DeviceOptions::default().entries().iter().zip(SETTINGS) {
            assert_eq!(entry.key, setting.key);
            assert!(entry.description.contains(&format!("Default '{}'", setting.default)), "{}", entry.description);
            assert_eq!(entry.description.contains("; frozen"), setting.frozen, "{}", entry.description);
        }
    }

    #[test]
    fn an_unknown_setting_lists_the_known_ones() {
        let error = DeviceOptions::default().set("fallbak", "error").unwrap_err().to_string();
        assert!(error.contains("device.fallback"), "{error}");
    }
}
