// SPDX-License-Identifier: Apache-2.0
//! Settings, in SQL and in the environment.

use crate::{CSV, SUM, check, shell, shell_with_variable};

#[test]
fn settings_come_from_the_environment() {
    let shown = ["-q", "--format", "csv", "-c", "SHOW device.batch_rows"];
    let run = shell_with_variable("DATAFUSION_DEVICE_BATCH_ROWS", "77", &shown);
    assert_eq!(run.stdout, "name,value\ndevice.batch_rows,77\n");
    let run = shell_with_variable("DATAFUSION_DEVICE_BATCH_ROWS", "many", &shown);
    assert!(!run.success);
    assert!(run.stderr.contains("DATAFUSION_DEVICE_BATCH_ROWS: device.batch_rows = 'many'"), "{}", run.stderr);
    for (limit, bound) in [("65536", "at least 1048576"), ("18446744073709551615", "at most ")] {
        let run = shell_with_variable("DATAFUSION_DEVICE_MEMORY_BYTES", limit, &shown);
        let problem = format!("device.memory_bytes = {limit}: must be 0, for the device's default, or {bound}");
        assert!(!run.success && run.stderr.contains(&problem), "{}", run.stderr);
    }
    let run = shell_with_variable("DATAFUSION_DEVICE_SELECTOR", "none", &SUM[1..]);
    assert!(run.stderr.starts_with("No device, queries run on the host: device.selector is 'none'"), "{}", run.stderr);
    let run = shell_with_variable("DATAFUSION_DEVICE_ENABLED", "false", &["--strict", "-c", "SELECT 1"]);
    assert!(run.stderr.contains("--strict needs a device, and device.enabled is false"), "{}", run.stderr);
}

#[test]
fn an_invalid_setting_fails_without_the_name_of_the_optimizer_rule() {
    let run = shell(&["-q", "-c", "SET device.selector = '#99'", SUM[4]]);
    assert!(!run.success);
    let problem = "Error: Error during planning: device.selector = '#99': no such device; there is #0 ";
    assert!(run.stderr.starts_with(problem), "{}", run.stderr);
}

#[test]
fn unknown_setting_is_named() {
    let run = shell(&["-c", "SET device.fallbak = 'error'"]);
    assert!(!run.success);
    assert!(run.stderr.contains("device.fallback"), "{}", run.stderr);
}

#[test]
fn settings_can_change_until_the_first_query() {
    check("SET device.memory_bytes = 1000000000", "");
    let set = "SET device.memory_bytes = 1000000000";
    let run = shell(&["--strict", "-c", set, SUM[4], "SET device.memory_bytes = 2000000000"]);
    assert!(!run.success);
    assert!(run.stderr.contains("device.memory_bytes cannot change from '1000000000' to '2000000000'"), "{}", run.stderr);
    assert!(run.stderr.contains("set it before the first query"), "{}", run.stderr);
}

#[test]
fn a_setting_is_reset_to_its_default() {
    let (set, reset) = ("SET device.profile = 'gpu'", "RESET device.profile");
    let run = shell(&[&CSV[..], &["-c", set, reset, "SHOW device.profile"]].concat());
    assert!(run.success && run.stdout.ends_with("device.profile,auto\n"), "{} {}", run.stdout, run.stderr);
}

#[test]
fn settings_are_shown_with_meaning_default_and_what_is_frozen() {
    let sql = "SELECT description FROM information_schema.df_settings WHERE name = 'device.memory_bytes'";
    let run = shell(&[&CSV[..], &["-c", sql]].concat());
    assert!(run.stdout.contains("device memory pool in bytes"), "{}", run.stdout);
    assert!(run.stdout.contains("Default '0'; frozen once the session's device is open"), "{}", run.stdout);
    let run = shell(&[&CSV[..], &["-c", "SHOW ALL"]].concat());
    assert!(run.stdout.contains("device.fallback,host\n"), "{}", run.stdout);
}

#[test]
fn sizes_have_units() {
    let run = shell(&["-q", "-c", "SET device.memory_bytes = '1 GiB'", "SHOW device.memory_bytes"]);
    assert!(run.success && run.stdout.contains("1073741824"), "{}{}", run.stdout, run.stderr);
}
