// SPDX-License-Identifier: Apache-2.0
//! What can go wrong on a device, in words that name the thing, the limit and the setting.

use std::sync::Arc;

use crate::{DriverKind, Selector, cuda};

/// Result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a device or its driver. Cheap to clone: one failed compilation answers many waiters.
#[non_exhaustive]
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// No driver at all could be opened.
    #[error("device {selector}: no driver could be opened: {reason}")]
    NoDriver {
        /// What was asked for.
        selector: Selector,
        /// Each driver's own reason.
        reason: String,
    },
    /// Drivers there are, but no device that matches.
    #[error("device {selector}: no such device; {available}")]
    NoDevice {
        /// What was asked for.
        selector: Selector,
        /// What is there instead, and why it cannot be used.
        available: String,
    },
    /// The device lacks something that every kernel may use.
    #[error("device {device} cannot be used: {reason}; device.selector chooses another")]
    Unusable {
        /// Name of the device.
        device: String,
        /// What is missing.
        reason: String,
    },
    /// The memory limit, or the device's memory itself, is exhausted.
    #[error("{}", out_of_memory(pool, *requested, *in_use, *limit, setting))]
    OutOfMemory {
        /// The pool, named after its device.
        pool: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes allocated and reserved at that time.
        in_use: usize,
        /// The pool's limit in bytes; 0 where the driver refused before the pool counted.
        limit: usize,
        /// The setting that raises the limit.
        setting: &'static str,
    },
    /// One allocation is larger than the device allows for any.
    #[error(
        "device {device}: one allocation of {requested} bytes exceeds its limit of {limit}; if batches are to blame, and no table \
         of keys, lower device.batch_rows"
    )]
    TooLarge {
        /// Name of the device.
        device: String,
        /// Bytes asked for.
        requested: usize,
        /// Bytes that one allocation may have.
        limit: usize,
    },
    /// The device's compiler refused a kernel.
    #[error("{operator}: kernel does not compile on {device}: {}{}", with_options(options), excerpt(log))]
    CompileFailed {
        /// Name of the device.
        device: String,
        /// The operator that the kernel was generated for; empty where the driver alone speaks.
        operator: String,
        /// The whole text of the program.
        text: Arc<str>,
        /// What `device.compile_options` added to the compiler's options; empty where nothing.
        options: Arc<str>,
        /// What the compiler said, all of it; the message has its first errors.
        log: String,
    },
    /// A driver call failed.
    #[error("{call} on {device}: {name} ({code})")]
    Driver {
        /// Name of the device.
        device: String,
        /// The vendor's function.
        call: &'static str,
        /// Its answer.
        code: i32,
        /// The answer's name in the vendor's header, and what is known beyond it.
        name: String,
    },
    /// A launch that the device cannot run as it is.
    #[error("kernel {kernel} on {device}: {reason}")]
    Launch {
        /// Name of the device.
        device: String,
        /// Name of the kernel.
        kernel: String,
        /// What does not fit, with the limit.
        reason: String,
    },
    /// A buffer, kernel or event of another context.
    #[error("{call}: a {what} of another context cannot be used on {device}")]
    Foreign {
        /// Name of the device that was asked.
        device: String,
        /// The operation.
        call: &'static str,
        /// What was given.
        what: &'static str,
    },
    /// A range that leaves its buffer.
    #[error("{call}: bytes {start}..{end} leave a buffer of {len} bytes")]
    Range {
        /// The operation.
        call: &'static str,
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes of the buffer.
        len: usize,
    },
    /// A buffer that nobody may write.
    #[error("{call}: the buffer's memory is somebody else's, and only lent")]
    ReadOnly {
        /// The operation.
        call: &'static str,
    },
    /// A setting has a value that it cannot have.
    #[error("{setting} = {value}: {reason}")]
    Config {
        /// Name of the setting.
        setting: &'static str,
        /// The value given.
        value: String,
        /// What would be allowed.
        reason: String,
    },
    /// A thread that the work depends on is gone: a bug here.
    #[error("{0} ended before its work was done; this is a bug")]
    Interrupted(&'static str),
}

impl Error {
    /// Whether the same work may succeed in smaller pieces or once others have given memory back.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::TooLarge { .. })
    }

    /// Whether the device is lost to its context: every later call fails, and memory and programs are gone.
    /// Work can go on in a new context at best.
    pub fn is_device_lost(&self) -> bool {
        matches!(self, Self::Driver { device, code, .. } if device.starts_with("cuda:") && cuda::is_sticky(*code))
    }

    /// A failed driver call.
    pub(crate) fn driver(device: impl Into<String>, call: &'static str, code: i32, name: impl Into<String>) -> Self {
        Self::Driver { device: device.into(), call, code, name: name.into() }
    }

    /// A driver's own out of memory; the pool adds what it knows.
    pub(crate) fn driver_out_of_memory(device: impl Into<String>, requested: usize) -> Self {
        Self::OutOfMemory { pool: device.into(), requested, in_use: 0, limit: 0, setting: MEMORY_SETTING }
    }
}

/// The setting that bounds a pool.
pub(crate) const MEMORY_SETTING: &str = "device.memory_bytes";

/// Bytes in the unit that a reader would choose.
pub(crate) fn human(bytes: usize) -> String {
    const UNITS: [(usize, &str); 3] = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

/// Names the options that may be to blame.
fn with_options(options: &str) -> String {
    if options.is_empty() { String::new() } else { format!("error with device.compile_options = '{options}': ") }
}

/// The first lines of a compiler's log that tell of errors: one mistake can bring hundreds of them.
fn excerpt(log: &str) -> String {
    const MOST: usize = 8;
    let is_error = |line: &&str| {
        let line = line.to_lowercase();
        ["error", "fatal", "undefined"].iter().any(|word| line.contains(word))
    };
    let has_errors = log.lines().any(|line| is_error(&line));
    let lines: Vec<&str> = log.lines().filter(|line| !has_errors || is_error(line)).take(MOST).collect();
    match log.lines().count() - lines.len() {
        0 => lines.join("\n"),
        1 => format!("{}\n… and 1 more line", lines.join("\n")),
        left_out => format!("{}\n… and {left_out} more lines", lines.join("\n")),
    }
}

/// Tells whether the pool's limit or the memory behind it is exhausted: the remedies differ.
fn out_of_memory(pool: &str, requested: usize, in_use: usize, limit: usize, setting: &str) -> String {
    let (asked, used) = (human(requested), human(in_use));
    if in_use.saturating_add(requested) > limit && limit > 0 {
        let limit = human(limit);
        format!(
            "pool \"{pool}\": {asked} requested, {used} of {limit} in use; raise {setting}, lower device.batch_rows or run fewer queries at once"
        )
    } else {
        format!(
            "pool \"{pool}\": {asked} requested, {used} in use, and the driver has no more; lower {setting} or run fewer queries at once"
        )
    }
}

/// Why no driver could be opened, in one line.
pub(crate) fn join_problems<'a>(problems: impl Iterator<Item = (DriverKind, &'a str)>) -> String {
    problems.map(|(driver, problem)| format!("{driver}: {problem}")).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn not_compiled(options: &str, log: &str) -> String {
        let (device, operator) = ("opencl:0".to_owned(), "DeviceFilterExec".to_owned());
        Error::CompileFailed { device, operator, text: "".into(), options: options.into(), log: log.to_owned() }.to_string()
    }

    #[test]
    fn bytes_are_told_in_a_fitting_unit() {
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
    fn every_line_that_tells_of_an_error_is_shown_with_the_options_or_without() {
        let log = "warning: odd\nptxas fatal: Unresolved\nFATAL: no\nundefined symbol: f\nError: f\na note";
        let shown = "ptxas fatal: Unresolved\nFATAL: no\nundefined symbol: f\nError: f\n… and 2 more lines";
        let start = "DeviceFilterExec: kernel does not compile on opencl:0: ";
        assert_eq!(not_compiled("", log), format!("{start}{shown}"));
        let options = "error with device.compile_options = '-a -b': ";
        assert_eq!(not_compiled("-a -b", log), format!("{start}{options}{shown}"));
        assert_eq!(not_compiled("-a -b", "one\ntwo"), format!("{start}{options}one\ntwo"));
    }

    #[test]
    fn only_faults_of_a_cuda_context_lose_the_device() {
        const ILLEGAL_ADDRESS: i32 = 700;
        assert!(Error::driver("cuda:0", "cuStreamSynchronize", ILLEGAL_ADDRESS, "").is_device_lost());
        assert!(!Error::driver("cuda:0", "cuStreamSynchronize", 1, "").is_device_lost());
        assert!(!Error::driver("opencl:0", "clFlush", ILLEGAL_ADDRESS, "").is_device_lost());
    }
}
