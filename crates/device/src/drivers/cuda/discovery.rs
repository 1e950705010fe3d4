// SPDX-License-Identifier: Apache-2.0
//! The CUDA devices of this machine, or the reason for none.

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;

use cudarc::driver::sys::{CUdevice, CUdevice_attribute as Attribute};

use super::api::{Api, SUCCESS, api};
use super::nvrtc::Nvrtc;
use crate::drivers::DriverKind;
use crate::info::{DeviceEntry, DeviceInfo, DeviceKind};

/// The minimum compute capability. From 7.0 on the threads of a warp progress independently, which
/// locks between them need.
const MIN_CAPABILITY: u32 = 70;

/// The bytes of kernel arguments that every driver and compiler allows.
const ARG_BYTES: u32 = 4096;

/// `CU_COMPUTEMODE_PROHIBITED`.
const PROHIBITED: c_int = 2;

/// A device that the driver lists.
pub(super) struct CudaDevice {
    pub device: CUdevice,
    /// Compute capability, 90 for 9.0.
    pub capability: u32,
    pub info: DeviceInfo,
    pub problem: Option<String>,
}

/// Every CUDA device with its problem; a single entry with the reason where there is none.
///
/// `nvrtc_path` is the setting `device.nvrtc_path`: a device without a compiler is unusable.
pub fn devices_for(nvrtc_path: Option<&Path>) -> Vec<DeviceEntry> {
    let absent = |problem: String| vec![DeviceEntry::absent(DriverKind::Cuda, problem)];
    let (api, devices) = match api().map_err(str::to_owned).and_then(|api| Ok((api, found(api)?))) {
        Ok(all) => all,
        Err(problem) => return absent(problem),
    };
    if devices.is_empty() {
        return absent("the NVIDIA driver lists no device; CUDA_VISIBLE_DEVICES may hide them".to_owned());
    }
    let nvrtc = Nvrtc::open_for(nvrtc_path, Some(driver_version(api)));
    let problem = |device: &CudaDevice| match (&device.problem, &nvrtc) {
        (Some(problem), _) => Some(problem.clone()),
        (None, Err(error)) => Some(error.to_string()),
        (None, Ok(nvrtc)) => unsupported(nvrtc, device),
    };
    let entry = |device: CudaDevice| {
        let problem = problem(&device);
        DeviceEntry { info: Some(device.info), driver: DriverKind::Cuda, problem }
    };
    devices.into_iter().map(entry).collect()
}

/// The reason why `nvrtc` does not support `device`; `None` if it does.
pub(super) fn unsupported(nvrtc: &Nvrtc, device: &CudaDevice) -> Option<String> {
    let (major, minor) = nvrtc.version();
    nvrtc
        .target(device.capability)
        .is_none()
        .then(|| format!("NVRTC {major}.{minor} has no code for {}; point device.nvrtc_path at an older one", device.info.arch))
}

/// The devices in the driver's order.
pub(super) fn found(api: &'static Api) -> Result<Vec<CudaDevice>, String> {
    let failed = |call: &str, status| format!("{call}: {} ({})", api.status_name(status), api.status_description(status));
    let mut count = 0;
    // SAFETY: `count` is live.
    match unsafe { (api.cuDeviceGetCount)(&mut count) } {
        SUCCESS => {}
        status => return Err(failed("cuDeviceGetCount", status)),
    }
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let mut device = 0;
        // SAFETY: `device` is live.
        match unsafe { (api.cuDeviceGet)(&mut device, ordinal) } {
            SUCCESS => devices.push(describe(api, device, devices.len())),
            status => return Err(failed("cuDeviceGet", status)),
        }
    }
    Ok(devices)
}

/// The CUDA version supported by the driver, major and minor; 0.0 if unknown.
pub(super) fn driver_version(api: &Api) -> (u32, u32) {
    let mut version = 0;
    // SAFETY: `version` is live.
    unsafe { (api.cuDriverGetVersion)(&mut version) };
    let version = version.unsigned_abs();
    (version / 1000, version % 1000 / 10)
}

fn describe(api: &'static Api, device: CUdevice, ordinal: usize) -> CudaDevice {
    let attribute = |attribute: Attribute| {
        let mut value = 0;
        // SAFETY: `value` is live, `device` came from the driver. A failing call leaves 0.
        unsafe { (api.cuDeviceGetAttribute)(&mut value, attribute, device) };
        value
    };
    let count = |name: Attribute| attribute(name).unsigned_abs();
    let major = count(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    let minor = count(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    let capability = major * 10 + minor;
    let mut memory = 0;
    // SAFETY: `memory` is live.
    unsafe { (api.cuDeviceTotalMem_v2)(&mut memory, device) };
    let (cuda, cuda_minor) = driver_version(api);
    let problem = if capability < MIN_CAPABILITY {
        Some(format!("compute capability {major}.{minor} is too old: {}.0 is the least", MIN_CAPABILITY / 10))
    } else if attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE) == PROHIBITED {
        Some("its compute mode is prohibited; `nvidia-smi -c 0` allows computing".to_owned())
    } else {
        None
    };
    let info = DeviceInfo {
        driver: DriverKind::Cuda,
        index: ordinal,
        ordinal,
        name: string(|buffer, len| {
            // SAFETY: `buffer` has `len` bytes.
            unsafe { (api.cuDeviceGetName)(buffer, len, device) }
        }),
        platform: "NVIDIA CUDA".to_owned(),
        version: format!("compute capability {major}.{minor}"),
        driver_version: format!("CUDA {cuda}.{cuda_minor}"),
        kind: DeviceKind::Gpu,
        compute_units: count(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
        memory_bytes: memory as u64,
        memory_bytes_per_second: memory_bytes_per_second(
            count(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE),
            count(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH),
        ),
        max_alloc_bytes: memory as u64,
        max_work_group_size: count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
        shared_bytes: count(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
        max_arg_bytes: ARG_BYTES,
        // Since compute capability 6.0 every device has both.
        fp64: true,
        atomics64: true,
        // Host memory is copied, never used in place: kernels would read it over the bus.
        unified_memory: false,
        arch: format!("sm_{capability}"),
    };
    CudaDevice { device, capability, info, problem }
}

/// Bytes a second of memory with this clock in kHz and this bus in bits. Data moves twice a clock.
/// `None` if the driver does not tell them.
fn memory_bytes_per_second(clock: u32, bus: u32) -> Option<u64> {
    let bytes = u64::from(clock) * 1000 * 2 * u64::from(bus / 8);
    (bytes > 0).then_some(bytes)
}

/// A string that the driver writes into a buffer; empty after a failed call.
fn string(fill: impl FnOnce(*mut c_char, c_int) -> i32) -> String {
    let mut buffer = [0u8; 256];
    if fill(buffer.as_mut_ptr().cast(), 255) != SUCCESS {
        return String::new();
    }
    CStr::from_bytes_until_nul(&buffer).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}
