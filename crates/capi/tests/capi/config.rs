// SPDX-License-Identifier: Apache-2.0
//! Configurations: valid, invalid and frozen settings.

use std::ffi::{CStr, c_char};

use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::query::*;
use devicefusion_capi::settings::*;

use crate::support::{Context, c, config, take_string, thread_error};

/// A string that the library owns.
fn borrowed(string: *const c_char) -> Option<&'static str> {
    // SAFETY: a C string that lives as long as the library.
    (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_str().unwrap())
}

/// The settings whose values are numbers: C's tuning parameters.
fn numbers() -> impl Iterator<Item = &'static devicefusion::SettingDoc> {
    devicefusion::DeviceOptions::documentation().iter().filter(|setting| setting.default.parse::<u64>().is_ok())
}

fn set(config: *mut devicefusion_context_config, name: &str, value: &str) -> i32 {
    let (name, value) = (c(name), c(value));
    // SAFETY: two C strings.
    unsafe { devicefusion_context_config_set_option(config, name.as_ptr(), value.as_ptr()) }
}

#[test]
fn what_is_set_is_what_the_session_shows() {
    let platform = Context::new().report()["device"]["platform"].as_str().unwrap().to_owned();
    let (config, platform_name) = (config(), c(&platform));
    // SAFETY: C strings, here and below.
    unsafe {
        assert_eq!(devicefusion_context_config_set_platform(config, platform_name.as_ptr()), 0);
        assert_eq!(devicefusion_context_config_set_nvrtc_path(config, c"/nowhere".as_ptr()), 0);
        assert_eq!(devicefusion_context_config_add_build_option(config, c"-cl-mad-enable".as_ptr()), 0);
        assert_eq!(devicefusion_context_config_add_build_option(config, c"-cl-no-signed-zeros".as_ptr()), 0);
        assert_eq!(devicefusion_context_config_set_tuning_param(config, c"device.batch_rows".as_ptr(), 1000), 0);
    }
    assert_eq!(devicefusion_context_config_set_profiling(config, 0), 0);
    assert_eq!(devicefusion_context_config_set_memory_limit(config, 1 << 28), 0);
    assert_eq!(devicefusion_context_config_set_num_threads(config, 3), 0);
    assert_eq!(devicefusion_context_config_set_unified_memory(config, 0), 0);
    assert_eq!(devicefusion_context_config_set_host_memory_limit(config, 64 << 20), 0);
    assert_eq!(set(config, "datafusion.execution.batch_size", "4096"), 0);

    let context = Context::of(config);
    for (name, value) in [
        ("device.platform", platform.as_str()),
        ("device.nvrtc_path", "/nowhere"),
        ("device.compile_options", "-cl-mad-enable -cl-no-signed-zeros"),
        ("device.batch_rows", "1000"),
        ("device.profiling", "false"),
        ("device.memory_bytes", "268435456"),
        ("device.fallback", "error"),
        ("device.unified_memory", "never"),
        ("datafusion.runtime.memory_limit", "64M"),
        ("datafusion.execution.target_partitions", "3"),
        ("datafusion.execution.batch_size", "4096"),
    ] {
        assert_eq!(context.rows(&format!("SHOW {name}")), [format!("{name} {value}")]);
    }
    assert_eq!(context.report()["memory"]["limit"], 1 << 28);
}

#[test]
fn bad_settings_are_refused_when_they_are_set_and_change_nothing() {
    let config = config();
    assert_eq!(set(config, "device.memory_bytes", "many"), 2);
    assert!(thread_error().contains("device.memory_bytes = 'many': must be a number"));
    assert_eq!(devicefusion_context_config_set_memory_limit(config, 65536), 2);
    assert!(thread_error().contains("device.memory_bytes = 65536: must be 0, for the device's default, or at least 1048576"));
    assert_eq!(set(config, "device.fallbak", "error"), 2);
    assert!(thread_error().contains("device.fallback"));
    // SAFETY: C strings, but for one that is NULL.
    unsafe {
        assert_eq!(devicefusion_context_config_set_device(config, c"#x".as_ptr()), 2);
        assert!(thread_error().contains("device.selector = #x: expected a number after #"));
        assert_eq!(devicefusion_context_config_set_device(config, std::ptr::null()), 2);
        assert_eq!(thread_error(), "the device.selector is NULL");
        assert_eq!(devicefusion_context_config_set_device(config, c"\xff".as_ptr()), 2);
        assert!(thread_error().starts_with("the device.selector is not UTF-8"));
        assert_eq!(devicefusion_context_config_add_build_option(config, c"-D A".as_ptr()), 2);
        assert!(thread_error().contains("must be one option"));
        assert_eq!(devicefusion_context_config_set_tuning_param(config, c"device.fallback".as_ptr(), 1), 2);
        let known = numbers().map(|setting| setting.key).collect::<Vec<_>>().join(", ");
        assert_eq!(thread_error(), format!("device.fallback is not a tuning parameter; there are {known}"));
    }
    for flag in [-1, 3] {
        assert_eq!(devicefusion_context_config_set_unified_memory(config, flag), 2);
        assert_eq!(thread_error(), format!("unified memory is 0, 1 or 2, not {flag}"));
    }
    // The configuration still makes a context.
    assert_eq!(Context::of(config).rows("SELECT 1"), ["1"]);
}

#[test]
fn a_configuration_is_frozen_while_its_context_lives() {
    let context = Context::new();
    assert_eq!(devicefusion_context_config_set_profiling(context.config, 0), 2);
    assert!(thread_error().contains("frozen"));
    assert!(devicefusion_context_new(context.config).is_null());
    assert!(thread_error().contains("another context uses the configuration"));

    assert_eq!(devicefusion_context_free(context.raw), 0);
    assert_eq!(devicefusion_context_config_set_profiling(context.config, 0), 0);
    let again = Context::of(context.config);
    assert_eq!(again.rows("SHOW device.profiling"), ["device.profiling false"]);
    // `again` frees both.
    std::mem::forget(context);
}

#[test]
fn settings_are_listed_with_what_they_do() {
    let all = devicefusion::DeviceOptions::documentation();
    assert_eq!(devicefusion_get_option_count(), all.len() as i32);
    for (index, setting) in (0..).zip(all) {
        assert_eq!(borrowed(devicefusion_get_option_name(index)), Some(setting.key));
        assert_eq!(borrowed(devicefusion_get_option_default(index)), Some(setting.default));
        assert_eq!(borrowed(devicefusion_get_option_description(index)), Some(setting.description));
    }
    for index in [-1, all.len() as i32] {
        assert_eq!(borrowed(devicefusion_get_option_name(index)), None);
        assert_eq!(borrowed(devicefusion_get_option_default(index)), None);
        assert_eq!(borrowed(devicefusion_get_option_description(index)), None);
    }
    assert_eq!(borrowed(devicefusion_version()), Some(env!("CARGO_PKG_VERSION")));
}

#[test]
fn tuning_params_are_listed_with_their_class() {
    let param =
        |index| (borrowed(devicefusion_get_tuning_param_name(index)), borrowed(devicefusion_get_tuning_param_class(index)));
    let params: Vec<_> = (0..devicefusion_get_tuning_param_count()).map(param).collect();
    let class = |frozen| if frozen { "size" } else { "threshold" };
    let expected: Vec<_> = numbers().map(|setting| (Some(setting.key), Some(class(setting.frozen)))).collect();
    assert_eq!(params, expected);
    let end = params.len() as i32;
    assert_eq!((param(-1), param(end)), ((None, None), (None, None)));

    // The last value counts.
    let config = config();
    for value in [500, 700] {
        // SAFETY: a C string.
        assert_eq!(unsafe { devicefusion_context_config_set_tuning_param(config, c"device.batch_rows".as_ptr(), value) }, 0);
    }
    let context = Context::of(config);
    assert_eq!(context.rows("SHOW device.batch_rows"), ["device.batch_rows 700"]);

    // The class "threshold" can change while the context lives.
    context.execute("SET device.batch_rows = 1000");
    context.execute("RESET device.batch_rows");
    assert_eq!(context.rows("SHOW device.batch_rows"), ["device.batch_rows 0"]);
    let error = context.failed(2, context.try_execute("SET device.memory_bytes = 2000000"));
    assert!(error.contains("the session's device is open"), "{error}");
    let error = context.failed(2, context.try_execute("RESET device.batch_row"));
    assert!(error.contains("did you mean device.batch_rows?"), "{error}");
}

#[test]
fn sizes_of_groups_tiles_and_grids_are_those_of_the_kernels() {
    let sized = |profile: &str, group, tile, grid| {
        let config = config();
        assert_eq!(set(config, "device.profile", profile), 0);
        assert_eq!(devicefusion_context_config_set_default_group_size(config, group), 0);
        assert_eq!(devicefusion_context_config_set_default_tile_size(config, tile), 0);
        assert_eq!(devicefusion_context_config_set_default_grid_size(config, grid), 0);
        config
    };
    let sql = "SELECT count(*), sum(value), max(value) FROM generate_series(1, 131073) WHERE value % 3 = 0";
    for (group, tile) in [(32, 64), (64, 2048), (256, 0)] {
        let context = Context::of(sized("gpu", group, tile, 3));
        assert_eq!(context.rows(sql), ["43691 2863420758 131073"]);
        let plan = context.query(sql).explain(DEVICEFUSION_EXPLAIN_VERBOSE);
        assert!(plan.contains(&format!("SHARED(u64, tree, {})", 3 * group / 2)), "{plan}");
        assert!(plan.contains("max_work_groups=3"), "{plan}");
    }
    let context = Context::of(sized("gpu", 0, 0, 0));
    context.execute("SET device.work_group_size = 64");
    assert_eq!(context.rows(sql), ["43691 2863420758 131073"]);
    context.execute("SET device.compaction_tile_rows = 96");
    let error = context.failed(2, context.try_execute(sql));
    let problem =
        "device.compaction_tile_rows = 96: in the profile 'gpu' it must be a multiple of the 64 work-items of a work-group";
    assert!(error.contains(problem), "{error}");

    for (profile, group, tile, problem) in [
        ("cpu", 64, 0, "device.work_group_size = 64: kernels of the profile 'cpu' have work-groups of one work-item"),
        (
            "gpu",
            32,
            2048,
            "device.compaction_tile_rows = 2048: in the profile 'gpu' it must be a multiple of the 32 work-items of a work-group",
        ),
    ] {
        let config = sized(profile, group, tile, 0);
        let context = devicefusion_context_new(config);
        let error = take_string(devicefusion_context_get_error(context)).unwrap();
        assert!(error.contains(problem), "{error}");
        assert_eq!((devicefusion_context_free(context), devicefusion_context_config_free(config)), (0, 0));
    }
    let config = config();
    for (call, value, problem) in [
        (
            devicefusion_context_config_set_default_group_size as extern "C" fn(_, _) -> _,
            48,
            "device.work_group_size = 48: must be 0",
        ),
        (devicefusion_context_config_set_default_group_size, -1, "device.work_group_size = '-1': must be a whole number"),
        (
            devicefusion_context_config_set_default_tile_size,
            33,
            "device.compaction_tile_rows = 33: must be 0 or a multiple of 32",
        ),
        (
            devicefusion_context_config_set_default_grid_size,
            65537,
            "device.max_work_groups = 65537: must lie between 0 and 65536",
        ),
    ] {
        assert_eq!(call(config, value), 2);
        let error = thread_error();
        assert!(error.contains(problem), "{error}");
    }
    assert_eq!(devicefusion_context_config_free(config), 0);
}

#[test]
fn devices_are_listed_by_what_selects_them() {
    let list = take_string(devicefusion_list_devices()).unwrap();
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    let usable: Vec<_> = list.as_array().unwrap().iter().filter(|entry| entry["problem"].is_null()).collect();
    assert!(!usable.is_empty(), "{list}");
    let config = devicefusion_context_config_new();
    let selector = c(usable[0]["selector"].as_str().unwrap());
    // SAFETY: a C string.
    assert_eq!(unsafe { devicefusion_context_config_set_device(config, selector.as_ptr()) }, 0);
    assert_eq!(Context::of(config).report()["device"]["name"], usable[0]["name"]);
}

#[test]
fn compiled_programs_are_kept_in_the_cache_folder_and_nowhere_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = c(folder.path().to_str().unwrap());
    let has_tiers = Context::new().report()["device"]["driver"] == "opencl";
    let compiled_and_hits = |cached: bool| {
        let config = config();
        if has_tiers {
            // Another process may optimize the same programs between two runs, which is noted in
            // the driver's folder.
            // SAFETY: a C string.
            assert_eq!(unsafe { devicefusion_context_config_add_build_option(config, c"-cl-opt-disable".as_ptr()) }, 0);
        }
        let path = if cached { path.as_ptr() } else { std::ptr::null() };
        // SAFETY: a C string, or NULL.
        assert_eq!(unsafe { devicefusion_context_config_set_cache_dir(config, path) }, 0);
        let context = Context::of(config);
        context.execute("SELECT sum(value) FROM generate_series(1, 100000)");
        let programs = &context.report()["programs"];
        (programs["compiled"].as_u64().unwrap(), programs["cache_hits_disk"].as_u64().unwrap())
    };
    let (compiled, hits) = compiled_and_hits(false);
    assert!(compiled > 0 && hits == 0);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    assert_eq!(compiled_and_hits(true), (compiled, 0));
    assert_eq!(compiled_and_hits(true), (0, compiled));
}

#[test]
fn programs_are_dumped_and_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let path = c(folder.path().to_str().unwrap());
    let run = |set: unsafe extern "C" fn(*mut devicefusion_context_config, *const c_char) -> i32| {
        let config = config();
        // SAFETY: a C string.
        assert_eq!(unsafe { set(config, path.as_ptr()) }, 0);
        let context = Context::of(config);
        assert_eq!(context.rows("SELECT sum(value) FROM generate_series(1, 100000)"), ["5000050000"]);
        let programs = &context.report()["programs"];
        (programs["compiled"].as_u64().unwrap(), programs["cache_hits_disk"].as_u64().unwrap())
    };
    let (compiled, hits) = run(devicefusion_context_config_dump_programs_to);
    assert!(compiled > 0 && hits == 0);
    let files = || folder.path().read_dir().unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>();
    assert_eq!(files().len() as u64, 2 * compiled);
    assert_eq!(run(devicefusion_context_config_load_programs_from), (0, compiled));
    // Edited source is compiled instead, and nothing is written.
    let file = files().into_iter().find(|path| path.extension().is_some_and(|found| found == "cl")).unwrap();
    let edited = std::fs::read_to_string(&file).unwrap() + "\n// edited\n";
    std::fs::write(file, edited).unwrap();
    assert_eq!(run(devicefusion_context_config_load_programs_from), (1, compiled - 1));
    assert_eq!(files().len() as u64, 2 * compiled);

    let (config, nowhere) = (config(), c("/no/such/folder"));
    // SAFETY: a C string.
    assert_eq!(unsafe { devicefusion_context_config_load_programs_from(config, nowhere.as_ptr()) }, 0);
    let context = devicefusion_context_new(config);
    let error = take_string(devicefusion_context_get_error(context)).unwrap();
    assert!(error.contains("device.load_programs = /no/such/folder: cannot be used as a folder"), "{error}");
    assert_eq!((devicefusion_context_free(context), devicefusion_context_config_free(config)), (0, 0));
}

#[test]
fn memory_of_the_host_is_limited_and_copied_as_the_configuration_says() {
    let limited = devicefusion_context_config_new();
    // SAFETY: a C string.
    assert_eq!(unsafe { devicefusion_context_config_set_device(limited, c"none".as_ptr()) }, 0);
    assert_eq!(devicefusion_context_config_set_host_memory_limit(limited, 1 << 20), 0);
    let limited = Context::of(limited);
    limited.failed(3, limited.try_execute("SELECT count(DISTINCT value) FROM generate_series(1, 1000000)"));

    let answer = "SELECT sum(value), max(value) FROM generate_series(1, 131073)";
    for flag in [0, 2] {
        let config = config();
        assert_eq!(devicefusion_context_config_set_unified_memory(config, flag), 0);
        assert_eq!(Context::of(config).rows(answer), ["8590131201 131073"]);
    }
}
