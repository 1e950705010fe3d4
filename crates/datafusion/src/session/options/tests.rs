// SPDX-License-Identifier: Apache-2.0
use datafusion::common::config::{ConfigOptions, ExtensionOptions};
use device::Selector;

use super::table::SETTINGS;
use super::{DeviceOptions, variable};

/// The value of a setting without the prefix `device.`.
fn value(options: &DeviceOptions, key: &str) -> String {
    let setting = SETTINGS.iter().find(|setting| setting.key == format!("device.{key}")).unwrap();
    (setting.get)(options)
}

#[test]
fn settings_are_sorted_by_name() {
    assert!(SETTINGS.is_sorted_by_key(|setting| setting.key));
}

#[test]
fn every_setting_can_be_set_to_its_default() {
    let mut options = DeviceOptions::default();
    for setting in DeviceOptions::documentation() {
        let key = &setting.key["device.".len()..];
        options.set(key, setting.default).unwrap();
        assert_eq!(value(&options, key), setting.default, "{key}");
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
fn values_ignore_case() {
    let mut options = DeviceOptions::default();
    options.set("selector", "None").unwrap();
    assert_eq!((&options.selector, options.demand()), (&None, None));
    options.set("selector", "AUTO").unwrap();
    assert_eq!((&options.selector, options.demand()), (&Some(Selector::Auto), None));
    options.set("selector", "H200").unwrap();
    assert_eq!(options.demand().as_deref(), Some("device.selector = 'H200'"));
}

#[test]
fn errors_name_the_accepted_values() {
    let mut options = DeviceOptions::default();
    for (key, bad, problem) in [
        ("selector", "", "device.selector is empty: must be auto, none, cuda, opencl, #k or a part of a name"),
        ("selector", "#x", "device.selector = #x: expected a number after #"),
        ("memory_bytes", "1e9", "device.memory_bytes = '1e9': its unit must be one of B, K, M, G, T"),
        ("memory_bytes", "-1", "device.memory_bytes = '-1': must be a number, 0 or more, such as 1073741824 or 1G"),
        ("memory_bytes", "17179869184G", "device.memory_bytes = '17179869184G': must be less than 2 to the power of 64"),
        ("memory_bytes", "1023k", "device.memory_bytes = 1047552: must be 0, for the device's default, or at least 1048576"),
        (
            "batch_rows",
            "99999999999999999999",
            "device.batch_rows = '99999999999999999999': must be less than 2 to the power of 64",
        ),
        ("memory_bytes", "1048575", "device.memory_bytes = 1048575: must be 0, for the device's default, or at least 1048576"),
        ("min_rows", "-1", "device.min_rows = '-1': must be a whole number, 0 or more"),
        ("batch_rows", "4294967296", "device.batch_rows = 4294967296: must lie between 0 and 2147483647"),
        ("work_group_size", "48", "device.work_group_size = 48: must be 0 or a power of two from 32 to 512"),
        ("work_group_size", "1024", "device.work_group_size = 1024: must be 0 or a power of two from 32 to 512"),
        ("compaction_tile_rows", "100", "device.compaction_tile_rows = 100: must be 0 or a multiple of 32 from 32 to 1048576"),
        ("max_work_groups", "4294967297", "device.max_work_groups = 4294967297: must lie between 0 and 65536"),
        ("profiling", "perhaps", "device.profiling = 'perhaps': must be one of true, false"),
        ("profile", "tpu", "device.profile = 'tpu': must be one of auto, cpu, gpu"),
        ("unified_memory", "perhaps", "device.unified_memory = 'perhaps': must be one of auto, never, always"),
    ] {
        let before = value(&options, key);
        let error = options.set(key, bad).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
        assert_eq!(value(&options, key), before);
    }
}

#[test]
fn descriptions_contain_the_default_and_whether_it_is_frozen() {
    for (entry, setting) in DeviceOptions::default().entries().iter().zip(DeviceOptions::documentation()) {
        assert_eq!(entry.key, setting.key);
        assert_eq!(entry.value.as_deref(), Some(setting.default));
        assert!(entry.description.contains(&format!("Default '{}'", setting.default)), "{}", entry.description);
        assert_eq!(entry.description.contains("; frozen"), setting.frozen, "{}", entry.description);
    }
}

#[test]
fn variables_are_named_as_the_settings() {
    assert!(SETTINGS.iter().any(|setting| variable(setting) == "DATAFUSION_DEVICE_MEMORY_BYTES"));
}

#[test]
fn an_unknown_setting_has_the_nearest_one_in_its_error_or_all() {
    for (mistyped, meant) in [
        ("fallbak", "device.fallback"),
        ("profil", "device.profile"),
        ("memory_limit", "device.memory_bytes"),
        ("minrows", "device.min_rows"),
        ("max_groups", "device.max_work_groups"),
    ] {
        let error = DeviceOptions::default().set(mistyped, "error").unwrap_err().to_string();
        assert!(error.contains(&format!("device.{mistyped} is not a setting; did you mean {meant}?")), "{error}");
    }
    for other in ["no_such", "threads", "gpu", ""] {
        let error = DeviceOptions::default().set(other, "1").unwrap_err().to_string();
        assert!(error.contains(&format!("device.{other} is not a setting; there are device.adaptive_start, ")), "{error}");
        assert!(SETTINGS.iter().all(|setting| error.contains(setting.key)), "{error}");
    }
}

#[test]
fn sql_sets_neither_native_code_nor_files() {
    let program_only: Vec<&str> =
        DeviceOptions::documentation().iter().filter(|doc| doc.program_only).map(|doc| doc.key).collect();
    assert_eq!(
        program_only,
        [
            "device.allow_unsafe_settings",
            "device.cache_dir",
            "device.compile_options",
            "device.dump_programs",
            "device.futhark",
            "device.load_programs",
            "device.nvrtc_path",
        ]
    );
    let mut config = ConfigOptions::new();
    let mut options = DeviceOptions::default();
    options.set("cache_dir", "/kernels").unwrap();
    options.seal();
    config.extensions.insert(options);
    for (key, value) in [
        ("device.allow_unsafe_settings", "true"),
        ("device.cache_dir", "/other"),
        ("device.cache_dir", ""),
        ("device.compile_options", "-cl-mad-enable"),
        ("device.dump_programs", "/programs"),
        ("device.futhark", "true"),
        ("device.load_programs", "/programs"),
        ("device.nvrtc_path", "/lib"),
    ] {
        let error = config.set(key, value).unwrap_err().to_string();
        assert!(error.contains(&format!("{key} cannot change from")) && error.contains("by SQL"), "{error}");
        // The seal holds in copies, and after the program has set another.
        let error = config.clone().set(key, value).unwrap_err().to_string();
        assert!(error.contains("by SQL"), "{error}");
        DeviceOptions::set_by_program(&mut config, "device.nvrtc_path", "/nvrtc").unwrap();
    }
    config.set("device.cache_dir", "/kernels").unwrap();
    config.set("device.min_rows", "7").unwrap();
    DeviceOptions::set_by_program(&mut config, "device.allow_unsafe_settings", "true").unwrap();
    config.set("device.dump_programs", "/programs").unwrap();
    assert_eq!(DeviceOptions::of(&config).dump_programs, "/programs");
}

#[test]
fn a_setting_is_reset_where_sql_may_set_it() {
    let mut config = ConfigOptions::new();
    let mut options = DeviceOptions::default();
    options.set("cache_dir", "/kernels").unwrap();
    options.set("profiling", "false").unwrap();
    options.set("min_rows", "7").unwrap();
    options.seal();
    options.freeze();
    config.extensions.insert(options);
    DeviceOptions::reset(&mut config, "device.min_rows").unwrap();
    assert_eq!(DeviceOptions::of(&config).min_rows, 10_000);
    for (key, problem) in [
        ("device.cache_dir", "device.cache_dir cannot change from '/kernels' to 'auto' by SQL"),
        ("device.profiling", "device.profiling cannot change from 'false' to 'true': the session's device is open"),
        ("device.profil", "device.profil is not a setting; did you mean device.profile?"),
    ] {
        let error = DeviceOptions::reset(&mut config, key).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
    // The default is no change.
    DeviceOptions::reset(&mut config, "device.selector").unwrap();
}

#[test]
fn compiler_options_are_known_ones() {
    let mut options = DeviceOptions::default();
    for known in ["", "-cl-opt-disable", "-cl-std=CL3.0 -w", "--maxrregcount=64 --fmad=false --ptxas-options=-v"] {
        options.set("compile_options", known).unwrap();
        assert_eq!(options.compile_options, known);
    }
    for unknown in
        ["-DX=1", "-D X", "-I/tmp", "-include x.h", "-cl-std=CL1.2;-DX", "--maxrregcount=1/2", "x", "-cl-opt-disable -Dif=x"]
    {
        let error = options.set("compile_options", unknown).unwrap_err().to_string();
        assert!(error.contains("is not one of the known options: --device-debug "), "{error}");
    }
}
