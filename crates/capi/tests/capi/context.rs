// SPDX-License-Identifier: Apache-2.0
//! Contexts: creation, reports, freeing, and independence of each other.

use std::ffi::c_int;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::table::*;

use crate::c::is_alone;
use crate::support::{Context, c, config, prices, take_string, thread_error};

#[path = "../stress/memory.rs"]
mod memory;

#[test]
fn a_context_that_cannot_be_made_says_why_and_can_only_be_freed() {
    let config = devicefusion_context_config_new();
    // SAFETY: a C string.
    assert_eq!(unsafe { devicefusion_context_config_set_device(config, c"no such device".as_ptr()) }, 0);
    let context = Context { config, raw: devicefusion_context_new(config) };
    let error = context.error().unwrap();
    assert!(error.contains("device.selector = 'no such device': no such device"), "{error}");
    let error = context.failed(2, context.try_execute("SELECT 1"));
    assert_eq!(error, "this context could not be made, so it can only be freed");
    assert_eq!(devicefusion_context_sync(context.raw), 2);
    assert_eq!(take_string(devicefusion_context_report(context.raw)), None);
}

#[test]
fn without_a_device_queries_run_on_the_host_unless_the_context_is_strict() {
    let context = Context::on_host();
    assert_eq!(context.rows("SELECT sum(value) FROM generate_series(1, 100000)"), ["5000050000"]);
    let report = context.report();
    assert_eq!((&report["version"], &report["device"]), (&1.into(), &serde_json::Value::Null));
    assert_eq!(report["problem"], "device.selector = 'none'");
    for call in [
        devicefusion_context_sync,
        devicefusion_context_cancel,
        devicefusion_context_clear_caches,
        devicefusion_context_pause_profiling,
        devicefusion_context_unpause_profiling,
    ] {
        context.ok(call(context.raw));
    }

    let config = devicefusion_context_config_new();
    // SAFETY: a C string.
    assert_eq!(unsafe { devicefusion_context_config_set_device(config, c"none".as_ptr()) }, 0);
    assert_eq!(devicefusion_context_config_set_strict(config, 1), 0);
    let context = Context { config, raw: devicefusion_context_new(config) };
    assert_eq!(context.error().unwrap(), "a strict context needs a device, and there is none: device.selector = 'none'");
}

#[test]
fn the_report_counts_kernels_and_profiling_can_pause() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let times = || {
        context.execute("SELECT sum(items) FROM t");
        context.ok(devicefusion_context_sync(context.raw));
        let report = context.report();
        let of =
            |key: &str| report["kernels"].as_array().unwrap().iter().map(|kernel| kernel[key].as_u64().unwrap()).sum::<u64>();
        (of("launches"), of("nanos"))
    };
    context.ok(devicefusion_context_pause_profiling(context.raw));
    let (launches, nanos) = times();
    assert!(launches > 0);
    let (more, same) = times();
    assert!(more > launches && same == nanos);
    context.ok(devicefusion_context_unpause_profiling(context.raw));
    assert!(times().1 > nanos);
}

#[test]
fn caches_are_cleared_and_tables_stay() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let compiled = || {
        assert_eq!(context.rows("SELECT sum(items) FROM t"), ["9"]);
        context.report()["programs"]["compiled"].as_u64().unwrap()
    };
    let once = compiled();
    assert_eq!(compiled(), once);
    context.ok(devicefusion_context_sync(context.raw));
    context.ok(devicefusion_context_clear_caches(context.raw));
    assert_eq!(context.report()["memory"]["cached"], 0);
    assert!(compiled() > once);
}

#[test]
fn errors_are_taken_once() {
    let context = Context::new();
    assert_eq!(context.try_execute("SELECT nothing"), 2);
    assert!(context.error().unwrap().contains("nothing"));
    assert_eq!(context.error(), None);
}

#[test]
fn contexts_know_nothing_of_each_other() {
    let (one, other) = (Context::new(), Context::new());
    one.execute("CREATE TABLE t AS SELECT 1 AS n");
    other.execute("CREATE TABLE t AS SELECT 2 AS n");
    assert_eq!((one.rows("SELECT n FROM t"), other.rows("SELECT n FROM t")), (vec!["1".to_owned()], vec!["2".to_owned()]));
    other.execute("SET device.batch_rows = 1000");
    assert_eq!(one.rows("SHOW device.batch_rows"), ["device.batch_rows 0"]);
    assert_eq!(other.try_execute("SELECT nothing"), 2);
    assert_eq!(one.error(), None);
    drop(one);
    assert_eq!(other.rows("SELECT n FROM t"), ["2"]);
}

#[test]
fn a_context_serves_several_threads_at_once() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let context = &context;
            scope.spawn(move || {
                for _ in 0..5 {
                    let sum = context.rows(&format!("SELECT sum(items) + {thread} FROM t"));
                    assert_eq!(sum, [(9 + thread).to_string()]);
                }
            });
        }
    });
}

#[test]
fn a_context_that_one_thread_frees_stays_valid_for_another() {
    let context = Context::new();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut ran: usize = 0;
            // The loop ends with the code of a freed context.
            while context.try_execute("SELECT sum(value) FROM generate_series(1, 100000)") == 0 {
                ran += 1;
            }
            assert!(thread_error().contains("is not a context"));
            ran
        });
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(devicefusion_context_free(context.raw), 0);
        worker.join().unwrap();
    });
    assert_eq!(devicefusion_context_config_free(context.config), 0);
    std::mem::forget(context);
}

/// The log of a context that runs one query.
fn log_of(logging: c_int, debugging: c_int) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("log");
    let name = c(path.to_str().unwrap());
    let config = config();
    assert_eq!(devicefusion_context_config_set_logging(config, logging), 0);
    assert_eq!(devicefusion_context_config_set_debugging(config, debugging), 0);
    let context = Context::of(config);
    // SAFETY: two C strings.
    let file = unsafe { libc::fopen(name.as_ptr(), c"w".as_ptr()) };
    assert!(!file.is_null());
    // SAFETY: an open file, which is closed once the context has another.
    unsafe {
        context.ok(devicefusion_context_set_logging_file(context.raw, file));
        context.execute("SELECT sum(value) AS total FROM generate_series(1, 100000)");
        context.ok(devicefusion_context_sync(context.raw));
        context.ok(devicefusion_context_set_logging_file(context.raw, std::ptr::null_mut()));
        libc::fclose(file);
    }
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn the_log_goes_to_a_file_with_queries_programs_and_plans() {
    assert_eq!(log_of(0, 0), "");
    let log = log_of(1, 0);
    assert!(log.starts_with("devicefusion: query: SELECT sum(value) AS total") && !log.contains("DeviceToHostExec"), "{log}");
    assert!(log.lines().count() > 1, "{log}");
    assert!(log_of(0, 1).contains("devicefusion: plan:\nDeviceToHostExec"));
}

#[test]
fn each_thread_has_its_own_message() {
    let context = Context::on_host();
    let (failed, read) = (Barrier::new(8), Barrier::new(8));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (context, failed, read) = (&context, &failed, &read);
            scope.spawn(move || {
                for round in 0..20 {
                    let name = format!("table_{number}_{round}");
                    assert_ne!(context.try_execute(&format!("SELECT * FROM {name}")), 0);
                    failed.wait();
                    let error = context.error().unwrap();
                    assert!(error.contains(&name), "{error}");
                    assert_eq!(context.error(), None);
                    read.wait();
                }
            });
        }
    });
    assert_eq!(context.error(), None);
}

/// Memory that the first half leaves behind, such as caches, stays for good. In the second half
/// 1000 contexts that each kept 8 KiB would be too much.
#[test]
fn freed_contexts_leave_no_memory_behind() {
    const TEST: &str = "context::freed_contexts_leave_no_memory_behind";
    const FEWEST: usize = 500;
    if !is_alone(TEST) {
        return;
    }
    let half = || {
        let (begun, mut made) = (Instant::now(), 0);
        // A release build makes some thousand in this time.
        while made < FEWEST || begun.elapsed() < Duration::from_secs(5) {
            assert_eq!(Context::on_host().rows("SELECT sum(value) FROM generate_series(1, 100)"), ["5050"]);
            made += 1;
        }
        (made, memory::resident_bytes())
    };
    let ((first, before), (second, after)) = (half(), half());
    println!("{first} and {second} contexts, resident bytes {before:?} and {after:?}");
    if let (Some(before), Some(after)) = (before, after) {
        assert!(after < before + (8 << 20), "resident bytes grow from {before} to {after} in {second} contexts");
    }
}
