// SPDX-License-Identifier: Apache-2.0
//! Errors of devices. Messages name the object, the limit and the setting.

use std::sync::Arc;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a device or its driver. Cheap to clone: many futures share a failed compilation.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No driver could be opened.
    #[error("device {selector}: no driver could be opened: {reason}")]
    NoDriver {
        /// The requested device.
        selector: String,
        /// Each driver's own reason.
        reason: String,
    },
    /// No device matches the selector.
    #[error("device {selector}: no such device; {available}")]
    NoDevice {
        /// The requested device.
        selector: String,
        /// The available devices, and the problems of unusable ones.
        available: String,
    },
    /// The device or its driver cannot be used.
    #[error("device {device} cannot be used: {reason}; device.selector chooses another")]
    Unusable {
        /// Name of the device.
        device: String,
        /// The missing feature, or the problem.
        reason: String,
    },
    /// The memory limit, or the device's memory itself, is exhausted.
    #[error("{}", out_of_memory(pool, *requested, *in_use, *limit, setting, held))]
    OutOfMemory {
        /// The pool, named after its device.
        pool: String,
        /// Requested bytes.
        requested: usize,
        /// Allocated and reserved bytes.
        in_use: usize,
        /// The pool's limit in bytes; 0 if the driver refused.
        limit: usize,
        /// The setting that raises the limit.
        setting: &'static str,
        /// The operators with the most memory, each with its bytes; empty where none is known.
        held: String,
    },
    /// An allocation is larger than the device allows.
    #[error(
        "device {device}: one allocation of {requested} bytes exceeds its limit of {limit}; if batches are to blame, and no table \
         of keys, lower device.batch_rows"
    )]
    TooLarge {
        /// Name of the device.
        device: String,
        /// Requested bytes.
        requested: usize,
        /// The largest allocation in bytes.
        limit: usize,
    },
    /// The device's compiler refused a kernel.
    #[error("{operator}: kernel does not compile on {device}: {}{}", with_options(options), excerpt(log))]
    CompileFailed {
        /// Name of the device.
        device: String,
        /// The operator that the kernel was generated for; empty in an error of the driver itself.
        operator: String,
        /// The complete source of the program.
        kernel_source: Arc<str>,
        /// The compiler options of `device.compile_options`.
        options: Arc<str>,
        /// The compiler's complete log. The message has its first errors.
        log: String,
    },
    /// A driver call failed.
    #[error("{call} on {device}: {name} ({code})")]
    Driver {
        /// Name of the device.
        device: String,
        /// The driver's function.
        call: &'static str,
        /// The returned status.
        code: i32,
        /// The status's name in the driver's header, and details.
        name: String,
        /// Whether the failure has cost the context its device.
        device_lost: bool,
    },
    /// The device cannot run the launch.
    #[error("kernel {kernel} on {device}: {reason}")]
    Launch {
        /// Name of the device.
        device: String,
        /// Name of the kernel.
        kernel: String,
        /// The exceeded limit.
        reason: String,
    },
    /// A buffer, kernel or event of another context.
    #[error("{call}: a {what} of another context cannot be used on {device}")]
    Foreign {
        /// Name of the device.
        device: String,
        /// The operation.
        call: &'static str,
        /// The kind of object.
        what: &'static str,
    },
    /// A range is outside of its buffer.
    #[error("{call}: bytes {start}..{end} leave a buffer of {len} bytes")]
    Range {
        /// The operation.
        call: &'static str,
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Length of the buffer.
        len: usize,
    },
    /// The buffer is read-only.
    #[error("{call}: its memory belongs to another library, which only allows reads")]
    ReadOnly {
        /// The operation.
        call: &'static str,
    },
    /// A setting has an invalid value.
    #[error("{setting} = {value}: {reason}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// The value.
        value: String,
        /// The reason, or the allowed values.
        reason: String,
    },
    /// A thread of this crate has ended before its work: a bug.
    #[error("{0} ended before its work was done; this is a bug")]
    Interrupted(&'static str),
}

impl Error {
    /// Whether the work may succeed with smaller batches, or later with more free memory.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::TooLarge { .. })
    }

    /// Whether the context has lost its device: every later call fails, and memory and programs are
    /// gone. Only a new context can work.
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::Driver { device_lost: true, .. })
    }

    /// A failed driver call.
    pub(crate) fn driver(device: impl Into<String>, call: &'static str, code: i32, name: impl Into<String>) -> Self {
        Self::Driver { device: device.into(), call, code, name: name.into(), device_lost: false }
    }

    /// A failed driver call that has cost the context its device.
    pub(crate) fn driver_lost(device: impl Into<String>, call: &'static str, code: i32, name: impl Into<String>) -> Self {
        Self::Driver { device: device.into(), call, code, name: name.into(), device_lost: true }
    }

    /// The driver has no memory. The pool replaces the error with its own numbers.
    pub(crate) fn driver_out_of_memory(device: impl Into<String>, requested: usize) -> Self {
        Self::OutOfMemory { pool: device.into(), requested, in_use: 0, limit: 0, setting: MEMORY_SETTING, held: String::new() }
    }
}

/// The setting of the pool's limit.
pub(crate) const MEMORY_SETTING: &str = "device.memory_bytes";

/// Bytes in a readable unit.
pub(crate) fn human(bytes: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// The part of the message about compiler options.
fn with_options(options: &str) -> String {
    if options.is_empty() { String::new() } else { format!("error with device.compile_options = '{options}': ") }
}

/// The first error lines of a compiler's log: one mistake can cause hundreds.
fn excerpt(log: &str) -> String {
    const MOST: usize = 8;
    let is_error = |line: &&str| {
        let line = line.to_lowercase();
        ["error", "fatal", "undefined"].iter().any(|keyword| line.contains(keyword))
    };
    let has_errors = log.lines().any(|line| is_error(&line));
    let lines: Vec<&str> = log.lines().filter(|line| !has_errors || is_error(line)).take(MOST).collect();
    match log.lines().count() - lines.len() {
        0 => lines.join("\n"),
        1 => format!("{}\n… and 1 more line", lines.join("\n")),
        left_out => format!("{}\n… and {left_out} more lines", lines.join("\n")),
    }
}

/// The message for the pool's limit, or for the driver's memory: the remedies differ.
fn out_of_memory(pool: &str, requested: usize, in_use: usize, limit: usize, setting: &str, held: &str) -> String {
    let (asked, used) = (human(requested), human(in_use));
    let held = if held.is_empty() { String::new() } else { format!(" (by {held})") };
    if in_use.saturating_add(requested) > limit && limit > 0 {
        let limit = human(limit);
        format!(
            "pool \"{pool}\": {asked} requested, {used} of {limit} in use{held}; raise {setting} or run fewer queries at once; for scans, lower device.batch_rows"
        )
    } else {
        format!(
            "pool \"{pool}\": {asked} requested, {used} in use{held}, and the driver has no more; lower {setting} or run fewer queries at once"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_compiled(options: &str, log: &str) -> String {
        let (device, operator) = ("opencl:0".to_owned(), "DeviceFilterExec".to_owned());
        Error::CompileFailed { device, operator, kernel_source: "".into(), options: options.into(), log: log.to_owned() }
            .to_string()
    }

    #[test]
    fn bytes_have_a_readable_unit() {
        assert_eq!([999, 1_000, 11_200_000_000].map(human), ["999 bytes", "1.0 kB", "11.2 GB"]);
    }

    #[test]
    fn a_long_log_is_cut_to_its_first_errors() {
        let shown = |log: &str| not_compiled("", log);
        assert_eq!(shown("one\ntwo"), "DeviceFilterExec: kernel does not compile on opencl:0: one\ntwo");
        let log = format!("a warning\n{}", "1:2: error: no\n".repeat(100));
        let lines: Vec<String> = shown(&log).lines().map(str::to_owned).collect();
        assert_eq!(lines.len(), 9);
        assert!(lines[0].ends_with("1:2: error: no"), "{lines:?}");
        assert_eq!(lines[8], "… and 93 more lines");
    }

    #[test]
    fn error_lines_are_shown_with_and_without_options() {
        let log = "warning: odd\nptxas fatal: Unresolved\nFATAL: no\nundefined symbol: f\nError: f\na note";
        let shown = "ptxas fatal: Unresolved\nFATAL: no\nundefined symbol: f\nError: f\n… and 2 more lines";
        let start = "DeviceFilterExec: kernel does not compile on opencl:0: ";
        assert_eq!(not_compiled("", log), format!("{start}{shown}"));
        let options = "error with device.compile_options = '-a -b': ";
        assert_eq!(not_compiled("-a -b", log), format!("{start}{options}{shown}"));
        assert_eq!(not_compiled("-a -b", "one\ntwo"), format!("{start}{options}one\ntwo"));
    }
}
