// SPDX-License-Identifier: Apache-2.0
//! The devices of every OpenCL platform.

use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::api::error_codes::{DLOPEN_FUNCTION_NOT_AVAILABLE, DLOPEN_RUNTIME_LOAD_FAILED};
use super::api::types::{cl_device_id, cl_device_info, cl_platform_id};
use super::api::{device as cl, error_text, platform};
use super::pocl_cache;
use crate::drivers::DriverKind;
use crate::drivers::loader::loader_message;
use crate::host::HostMemory;
use crate::info::{DeviceEntry, DeviceInfo, DeviceKind};
use crate::{Error, Result};

/// The status of `clGetPlatformIDs` if the ICD loader finds no driver.
const CL_PLATFORM_NOT_FOUND_KHR: i32 = -1001;

/// The ICD loader, by the name that cl3 opens it under.
const LOADER: &str = "libOpenCL.so.1";

/// The ICD loader's folder of drivers, unless `OCL_ICD_VENDORS` names another one.
const VENDORS: &str = "/etc/OpenCL/vendors";

/// The devices of every OpenCL platform; a single entry with the reason where there are none.
pub(super) fn entries() -> Vec<DeviceEntry> {
    let absent = |problem: &str| vec![DeviceEntry::absent(DriverKind::OpenCl, problem)];
    match found() {
        Ok(devices) if devices.is_empty() => absent("its platforms offer no device"),
        Ok(devices) => devices.into_iter().map(|(_, entry)| entry).collect(),
        Err(problem) => absent(&problem),
    }
}

/// The handle of a device out of [`entries`].
pub(super) fn find(info: &DeviceInfo) -> Result<cl_device_id> {
    let gone = |reason: &str| Error::Unusable { device: info.name.clone(), reason: reason.to_owned() };
    let devices = found().map_err(|problem| gone(&problem))?;
    let is_it =
        |entry: &DeviceEntry| entry.info.as_ref().is_some_and(|known| known.ordinal == info.ordinal && known.name == info.name);
    let device = devices.into_iter().find(|(_, entry)| is_it(entry));
    device.map(|(device, _)| device).ok_or_else(|| gone("it is gone"))
}

/// The position of a device in the ICD loader's order.
pub(super) fn ordinal(device: cl_device_id) -> Option<usize> {
    found().ok()?.into_iter().position(|(known, _)| known == device)
}

/// Handles and properties of all devices, in the ICD loader's order.
fn found() -> std::result::Result<Vec<(cl_device_id, DeviceEntry)>, String> {
    // Drivers initialise themselves at the first call. PoCL does so without a lock.
    static INITIALISATION: Mutex<()> = Mutex::new(());
    let _guard = INITIALISATION.lock();
    let platforms = platform::get_platform_ids().map_err(|code| match code {
        DLOPEN_RUNTIME_LOAD_FAILED => {
            let why = problem_of(Path::new(LOADER)).unwrap_or_default();
            format!("{LOADER} cannot be opened ({why}); install ocl-icd-libopencl1 and a driver, for a CPU pocl-opencl-icd")
        }
        DLOPEN_FUNCTION_NOT_AVAILABLE => {
            format!("{LOADER} is not OpenCL's: it lacks clGetPlatformIDs; LD_LIBRARY_PATH may hide the one of ocl-icd-libopencl1")
        }
        CL_PLATFORM_NOT_FOUND_KHR => no_driver(),
        code => format!("clGetPlatformIDs: {} ({code})", error_text(code)),
    })?;
    if platforms.is_empty() {
        return Err(no_driver());
    }
    let mut devices = Vec::new();
    for platform in platforms {
        // A failing platform has no devices; the others may have.
        for device in cl::get_device_ids(platform, cl::CL_DEVICE_TYPE_ALL).unwrap_or_default() {
            let ordinal = devices.len();
            let info = describe(platform, device, ordinal);
            let problem_of_cache = pocl_cache::problem(&info);
            let mut entry = DeviceEntry::new(info);
            if number(device, cl::CL_DEVICE_AVAILABLE) == 0 {
                entry.problem = Some("its driver says that it is not available".to_owned());
            } else if number(device, cl::CL_DEVICE_COMPILER_AVAILABLE) == 0 {
                entry.problem = Some("its driver has no compiler".to_owned());
            } else if entry.problem.is_none() {
                entry.problem = problem_of_cache;
            }
            devices.push((device, entry));
        }
    }
    Ok(devices)
}

/// The reason for no driver: the problem of each driver that the ICD loader's folder names.
fn no_driver() -> String {
    let vendors = std::env::var_os("OCL_ICD_VENDORS").map_or_else(|| PathBuf::from(VENDORS), PathBuf::from);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&vendors).into_iter().flatten().filter_map(|file| Some(file.ok()?.path())).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "icd"));
    files.sort();
    if vendors.is_file() {
        files.push(vendors);
    }
    let broken = files.iter().filter_map(|file| {
        let text = std::fs::read_to_string(file).ok()?;
        let driver = text.lines().next().unwrap_or_default().trim();
        let problem = problem_of(Path::new(driver)).unwrap_or_else(|| "it offers no platform".to_owned());
        Some(format!("{} names \"{driver}\": {problem}", file.display()))
    });
    let broken: Vec<String> = broken.collect();
    if broken.is_empty() {
        return format!("{LOADER} knows no driver; for a CPU install pocl-opencl-icd");
    }
    format!("{LOADER} could use no driver: {}; for a CPU install pocl-opencl-icd", broken.join("; "))
}

/// The dynamic loader's problem with a library. A library without problem stays open: a driver may
/// have started threads, which need its code.
fn problem_of(library: &Path) -> Option<String> {
    // SAFETY: the ICD loader has run the library's initialisers before. Its finalisers run only at
    // the end of the process.
    match unsafe { libloading::Library::new(library) } {
        Ok(library) => {
            std::mem::forget(library);
            None
        }
        Err(error) => Some(loader_message(&error)),
    }
}

/// The properties of a device. Unknown properties are empty or 0.
fn describe(platform: cl_platform_id, device: cl_device_id, ordinal: usize) -> DeviceInfo {
    let types = number(device, cl::CL_DEVICE_TYPE);
    let kind = match types {
        types if types & cl::CL_DEVICE_TYPE_GPU != 0 => DeviceKind::Gpu,
        types if types & cl::CL_DEVICE_TYPE_CPU != 0 => DeviceKind::Cpu,
        _ => DeviceKind::Accelerator,
    };
    let extensions = string(device, cl::CL_DEVICE_EXTENSIONS);
    let has = |name: &str| extensions.split_whitespace().any(|extension| extension == name);
    let global = number(device, cl::CL_DEVICE_GLOBAL_MEM_SIZE);
    DeviceInfo {
        driver: DriverKind::OpenCl,
        index: ordinal,
        ordinal,
        name: string(device, cl::CL_DEVICE_NAME),
        platform: platform::get_platform_data(platform, platform::CL_PLATFORM_NAME).map(c_string).unwrap_or_default(),
        version: string(device, cl::CL_DEVICE_VERSION),
        driver_version: string(device, cl::CL_DRIVER_VERSION),
        kind,
        compute_units: narrow(number(device, cl::CL_DEVICE_MAX_COMPUTE_UNITS)),
        // A CPU driver reports a current preference; its memory is the host's.
        memory_bytes: if kind == DeviceKind::Cpu { HostMemory::now().map_or(global, |host| host.total) } else { global },
        memory_bytes_per_second: None,
        max_alloc_bytes: number(device, cl::CL_DEVICE_MAX_MEM_ALLOC_SIZE),
        max_work_group_size: narrow(number(device, cl::CL_DEVICE_MAX_WORK_GROUP_SIZE)),
        shared_bytes: narrow(number(device, cl::CL_DEVICE_LOCAL_MEM_SIZE)),
        max_arg_bytes: narrow(number(device, cl::CL_DEVICE_MAX_PARAMETER_SIZE)),
        fp64: has("cl_khr_fp64") || number(device, cl::CL_DEVICE_DOUBLE_FP_CONFIG) != 0,
        atomics64: has("cl_khr_int64_base_atomics") && has("cl_khr_int64_extended_atomics"),
        unified_memory: kind == DeviceKind::Cpu,
        arch: String::new(),
    }
}

/// A property of 4 or 8 bytes; 0 for an unknown one.
fn number(device: cl_device_id, property: cl_device_info) -> u64 {
    let bytes = cl::get_device_data(device, property).unwrap_or_default();
    match bytes.len() {
        4 => bytes.try_into().map(u32::from_ne_bytes).map_or(0, u64::from),
        8 => bytes.try_into().map_or(0, u64::from_ne_bytes),
        _ => 0,
    }
}

/// A property that is a string.
fn string(device: cl_device_id, property: cl_device_info) -> String {
    cl::get_device_data(device, property).map(c_string).unwrap_or_default()
}

/// A C string without its NUL, and without the spaces that some drivers pad with.
fn c_string(mut bytes: Vec<u8>) -> String {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
