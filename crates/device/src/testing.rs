// SPDX-License-Identifier: Apache-2.0
//! Support for tests: the device of the tests, and a driver that fails on demand, hides
//! capabilities and counts live objects.
//!
//! [`sample`] shortens long tests to a part of their cases, which `DEVICEFUSION_TEST_PART` names.
//!
//! [`config`] alone reads `DEVICEFUSION_TEST_DEVICE`: a value of `device.selector`, `opencl` by
//! default, or `cuda-emulated` behind `scripts/cuda-emulator.sh`. Tests of features that only a CPU
//! device has (shared memory, the profile `cpu`) check
//! [`DeviceInfo::kind`](crate::DeviceInfo::kind) and skip other devices.
//!
//! # Examples
//! ```
//! use device::testing::FaultPlan;
//! use device::{Context, DeviceConfig};
//!
//! let plan = FaultPlan::new();
//! # let Ok(context) = Context::new(DeviceConfig::default().with_wrap(plan.wrap())) else { return Ok(()) };
//! let queue = context.queue()?;
//! plan.fail_alloc(1);
//! assert!(queue.alloc(8).is_err_and(|error| error.is_out_of_memory()));
//! plan.heal();
//! assert!(queue.alloc(8).is_ok());
//! drop((queue, context));
//! plan.wait_until_nothing_is_alive(std::time::Duration::from_secs(10))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod emulator;
mod faults;

pub use emulator::{emulated, has_nvrtc};
pub use faults::{Fault, FaultPlan, Live};

use crate::{DeviceConfig, DeviceInfo, DeviceKind, DriverKind, Error, Result, Selector};

/// The variable that selects the device of tests.
const DEVICE_VARIABLE: &str = "DEVICEFUSION_TEST_DEVICE";

/// The value of the variable for CUDA's driver over the emulator.
const EMULATED: &str = "cuda-emulated";

/// The variable with compiler options of tests, separated by spaces. Those of OpenCL, such as
/// `-cl-opt-disable`, are for its devices alone.
const OPTIONS_VARIABLE: &str = "DEVICEFUSION_TEST_COMPILE_OPTIONS";

/// The device of `DEVICEFUSION_TEST_DEVICE`, else one of OpenCL. Examples that measure time take it
/// without the compiler options of tests: some turn optimization off.
///
/// # Errors
/// `Config` if the variable holds no selector.
pub fn selector() -> Result<Selector> {
    match std::env::var(DEVICE_VARIABLE) {
        Ok(text) if text == EMULATED => Ok(Selector::Driver(DriverKind::Cuda)),
        Ok(text) if !text.is_empty() => text.parse().map_err(|error| match error {
            Error::Config { value, reason, .. } => Error::Config { setting: DEVICE_VARIABLE, value, reason },
            other => other,
        }),
        _ => Ok(Selector::Driver(DriverKind::OpenCl)),
    }
}

/// Properties of no real device, of one compute unit. Tests change the fields that they are about.
///
/// # Examples
/// ```
/// use device::{DeviceInfo, DeviceKind};
///
/// let gpu = DeviceInfo { kind: DeviceKind::Gpu, ..device::testing::some_info() };
/// assert_eq!(gpu.compute_units, 1);
/// ```
pub fn some_info() -> DeviceInfo {
    DeviceInfo {
        driver: DriverKind::OpenCl,
        index: 0,
        ordinal: 0,
        name: "Some device".to_string(),
        platform: "Some platform".to_string(),
        version: String::new(),
        driver_version: String::new(),
        kind: DeviceKind::Cpu,
        compute_units: 1,
        memory_bytes: 1,
        memory_bytes_per_second: None,
        max_alloc_bytes: 1,
        max_work_group_size: 256,
        shared_bytes: 16 << 10,
        max_arg_bytes: 1024,
        fp64: true,
        atomics64: true,
        unified_memory: false,
        arch: String::new(),
    }
}

/// The configuration of tests: the device of `DEVICEFUSION_TEST_DEVICE` and the compiler options of
/// `DEVICEFUSION_TEST_COMPILE_OPTIONS`.
///
/// # Errors
/// `Config` if the variable holds no selector.
pub fn config() -> Result<DeviceConfig> {
    let selector = selector()?;
    let options = std::env::var(OPTIONS_VARIABLE).unwrap_or_default();
    let is_cuda = selector == Selector::Driver(DriverKind::Cuda);
    let options = options.split_whitespace().filter(|option| !is_cuda || !option.starts_with("-cl-"));
    Ok(options.fold(DeviceConfig::default().with_selector(selector), DeviceConfig::with_compile_option))
}

/// The variable for the part of the cases in a run of the tests.
const PART_VARIABLE: &str = "DEVICEFUSION_TEST_PART";

/// Number of parts that the cases of a long test have.
pub const PARTS: usize = 32;

/// Numbers of the parts of long tests that `DEVICEFUSION_TEST_PART` names, below [`PARTS`]: one
/// part, or all of them for `all`. Without the variable the part is 0.
///
/// In `.ci/run` the commit chooses the part; `make test-full` takes all of them.
///
/// # Errors
/// `Config` if the variable holds neither `all` nor a number.
pub fn parts() -> Result<Vec<usize>> {
    let value = std::env::var(PART_VARIABLE).unwrap_or_default();
    match value.as_str() {
        "all" => Ok((0..PARTS).collect()),
        "" => Ok(vec![0]),
        number => match number.parse::<usize>() {
            Ok(number) => Ok(vec![number % PARTS]),
            Err(_) => {
                let reason = "must be 'all' or a number".to_owned();
                Err(Error::Config { setting: PART_VARIABLE, value, reason })
            }
        },
    }
}

/// Number of turns of [`is_turn`].
const TURNS: usize = 8;

/// Parts in a row that have one turn.
const PARTS_OF_TURN: usize = 4;

/// Whether the turn of this number, of eight, is in the [`parts`] of this run: for tests of minutes
/// with few cases.
///
/// Four parts in a row have one turn, so that each of them takes other cases of the test.
///
/// # Errors
/// As [`parts`].
///
/// # Examples
/// ```
/// use device::testing::is_turn;
/// let turns = (0..8).filter(|number| is_turn(*number).is_ok_and(|is_turn| is_turn)).count();
/// assert!(turns == 1 || turns == 8);
/// ```
pub fn is_turn(number: usize) -> Result<bool> {
    Ok(parts()?.iter().any(|part| part / PARTS_OF_TURN % TURNS == number % TURNS))
}

/// Ends a test whose [turn](crate::testing::is_turn) is not in this run. A test that returns a
/// result gives what it returns then.
///
/// # Panics
/// If `DEVICEFUSION_TEST_PART` is neither `all` nor a number.
///
/// # Examples
/// ```
/// fn takes_minutes() -> device::Result<()> {
///     device::skip_unless_turn!(2, Ok(()));
///     Ok(())
/// }
/// assert!(takes_minutes().is_ok());
/// ```
#[macro_export]
macro_rules! skip_unless_turn {
    ($number:expr $(, $result:expr)?) => {
        if !$crate::testing::is_turn($number).unwrap() {
            eprintln!("skipped: the turn of other parts");
            return $($result)?;
        }
    };
}

/// The half of the cases that is in the [`parts`] of this run, or all. A single case is in both
/// halves.
///
/// # Errors
/// As [`parts`].
///
/// # Examples
/// ```
/// let cases = device::testing::half(vec![1, 2, 3, 4])?;
/// assert!(cases.len() == 2 || cases.len() == 4);
/// # Ok::<(), device::Error>(())
/// ```
pub fn half<T>(cases: Vec<T>) -> Result<Vec<T>> {
    one_of(2, cases)
}

/// The cases of a long test that are in the [`parts`] of this run: one of each [`PARTS`], or all.
/// Of fewer cases it is one.
///
/// # Errors
/// As [`parts`].
///
/// # Examples
/// ```
/// let cases = device::testing::sample(vec![1, 2, 3, 4, 5, 6, 7, 8])?;
/// assert!(cases.len() == 1 || cases.len() == 8);
/// # Ok::<(), device::Error>(())
/// ```
pub fn sample<T>(cases: Vec<T>) -> Result<Vec<T>> {
    one_of(PARTS, cases)
}

/// One case of each `step`, which the parts choose.
fn one_of<T>(step: usize, cases: Vec<T>) -> Result<Vec<T>> {
    let parts = parts()?;
    let step = cases.len().clamp(1, step);
    let numbered = cases.into_iter().enumerate();
    let taken = numbered.filter(|(index, _)| parts.iter().any(|part| part % step == index % step));
    Ok(taken.map(|(_, case)| case).collect())
}
