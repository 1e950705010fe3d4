// SPDX-License-Identifier: Apache-2.0
//! Devices and their properties.

use std::fmt;

use crate::drivers::DriverKind;

/// The kind of hardware.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host's own processor.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Other hardware of an OpenCL driver.
    Accelerator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Accelerator => "accelerator",
        })
    }
}

/// Properties of a device, known before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver that offers it.
    pub driver: DriverKind,
    /// Position over all drivers' devices, the `k` of `#k`; [`devices`](crate::devices) assigns it.
    pub index: usize,
    /// Position among the devices of its own driver.
    pub ordinal: usize,
    /// The vendor's name of the device.
    pub name: String,
    /// The vendor's name of the platform, `NVIDIA CUDA` for that driver.
    pub platform: String,
    /// Version of the interface that the device implements.
    pub version: String,
    /// Version of the driver itself.
    pub driver_version: String,
    /// The kind of hardware.
    pub kind: DeviceKind,
    /// Compute units: cores, or multiprocessors (SM).
    pub compute_units: u32,
    /// Bytes of memory that the device has or shares; the host's memory for a CPU.
    pub memory_bytes: u64,
    /// Bytes a second between device memory and its processor at the memory's clock, where the
    /// driver tells it: CUDA does. Kernels reach some 80 to 90 percent of it.
    pub memory_bytes_per_second: Option<u64>,
    /// The largest allocation in bytes.
    pub max_alloc_bytes: u64,
    /// The most work-items in a work-group.
    pub max_work_group_size: u32,
    /// Bytes of shared memory (OpenCL: local memory) of a work-group.
    pub shared_bytes: u32,
    /// The most bytes of all arguments of one kernel together.
    pub max_arg_bytes: u32,
    /// Whether kernels can use doubles.
    pub fp64: bool,
    /// Whether kernels can use 64-bit atomics.
    pub atomics64: bool,
    /// Whether kernels can use host memory in place, without a copy.
    pub unified_memory: bool,
    /// The architecture of compiled programs, such as `sm_90`; empty where the driver decides.
    pub arch: String,
}

impl DeviceInfo {
    /// Short name for messages, such as `opencl:0`.
    pub fn label(&self) -> String {
        format!("{}:{}", self.driver, self.ordinal)
    }

    /// The features that kernels need and this device lacks; `None` for none.
    pub fn missing(&self) -> Option<String> {
        let missing: Vec<&str> = [
            (self.fp64, "double precision (cl_khr_fp64)"),
            (self.atomics64, "64-bit atomics (cl_khr_int64_base_atomics and cl_khr_int64_extended_atomics)"),
        ]
        .into_iter()
        .filter_map(|(has, name)| (!has).then_some(name))
        .collect();
        (!missing.is_empty()).then(|| format!("it lacks {}", missing.join(" and ")))
    }
}

/// An entry of the list of devices: a device, or a driver without devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The device; `None` where the driver is absent or has no device.
    pub info: Option<DeviceInfo>,
    /// The driver.
    pub driver: DriverKind,
    /// Why the device cannot be used, or why the driver is absent; `None` for a usable device.
    pub problem: Option<String>,
}

impl DeviceEntry {
    /// The entry of a driver that cannot be used at all.
    pub(crate) fn absent(driver: DriverKind, problem: impl Into<String>) -> Self {
        Self { info: None, driver, problem: Some(problem.into()) }
    }

    /// The entry of a device; its problem is a missing feature.
    pub(crate) fn new(info: DeviceInfo) -> Self {
        Self { driver: info.driver, problem: info.missing(), info: Some(info) }
    }
}
