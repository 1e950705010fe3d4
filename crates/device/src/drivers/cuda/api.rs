// SPDX-License-Identifier: Apache-2.0
//! The functions of `libcuda.so.1` that the driver uses, and the meaning of their status codes.
//!
//! Reference: <https://docs.nvidia.com/cuda/cuda-driver-api/>. The minimum version is CUDA 12.0,
//! apart from the functions labelled optional. Every function may be called from any thread.

use std::ffi::{CStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUfunction, CUjit_option, CUmodule, CUpointer_attribute,
    CUresult, CUstream,
};
use libloading::Library;

use super::library::function_table;
use crate::drivers::loader::loader_message;
use crate::{Error, Traffic};

const LIBRARY: &str = "libcuda.so.1";

function_table! {
    /// The functions of `libcuda.so.1`.
    struct Api from cudarc::driver::sys => CUresult {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);

        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut CUdevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, CUdevice);
        cuDeviceGetAttribute(*mut c_int, CUdevice_attribute, CUdevice);
        cuDeviceTotalMem_v2(*mut usize, CUdevice);

        cuDevicePrimaryCtxRetain(*mut CUcontext, CUdevice);
        cuDevicePrimaryCtxRelease_v2(CUdevice);
        cuCtxSetCurrent(CUcontext);
        cuCtxGetDevice(*mut CUdevice);

        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut CUdeviceptr, usize);
        cuMemFree_v2(CUdeviceptr);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemGetAddressRange_v2(*mut CUdeviceptr, *mut usize, CUdeviceptr);
        cuPointerGetAttribute(*mut c_void, CUpointer_attribute, CUdeviceptr);
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream);
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream);
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream);
        cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream);
        cuMemsetD8Async(CUdeviceptr, c_uchar, usize, CUstream);

        cuStreamCreate(*mut CUstream, c_uint);
        cuStreamDestroy_v2(CUstream);
        cuStreamWaitEvent(CUstream, CUevent, c_uint);
        cuStreamGetCtx(CUstream, *mut CUcontext);

        cuEventCreate(*mut CUevent, c_uint);
        cuEventDestroy_v2(CUevent);
        cuEventRecord(CUevent, CUstream);
        cuEventQuery(CUevent);
        cuEventSynchronize(CUevent);
        cuEventElapsedTime_v2 | cuEventElapsedTime(*mut f32, CUevent, CUevent);

        cuModuleLoadDataEx(*mut CUmodule, *const c_void, c_uint, *mut CUjit_option, *mut *mut c_void);
        cuModuleUnload(CUmodule);
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char);
        cuLaunchKernel(
            CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream, *mut *mut c_void, *mut *mut c_void,
        );
    }
    optional {
        // Since CUDA 12.4.
        cuFuncLoad(CUfunction);
        cuFuncGetParamInfo(CUfunction, usize, *mut usize, *mut usize);
    }
    unchecked {
        cuGetErrorName(c_int, *mut *const c_char);
        cuGetErrorString(c_int, *mut *const c_char);
    }
}

pub(super) const SUCCESS: i32 = CUresult::CUDA_SUCCESS as i32;
pub(super) const INVALID_VALUE: i32 = CUresult::CUDA_ERROR_INVALID_VALUE as i32;
pub(super) const INVALID_IMAGE: i32 = CUresult::CUDA_ERROR_INVALID_IMAGE as i32;
pub(super) const OUT_OF_MEMORY: i32 = CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32;
pub(super) const NOT_FOUND: i32 = CUresult::CUDA_ERROR_NOT_FOUND as i32;
pub(super) const NOT_READY: i32 = CUresult::CUDA_ERROR_NOT_READY as i32;

/// The library, loaded and initialised once for the process, or the reason why not.
pub(super) fn api() -> Result<&'static Api, &'static str> {
    static API: OnceLock<Result<Api, String>> = OnceLock::new();
    API.get_or_init(open).as_ref().map_err(String::as_str)
}

/// Traffic of the launch right before an event that was reached. A function of the emulator, not of
/// NVIDIA's library.
type EmulatorCounts = unsafe extern "C" fn(CUevent, *mut Traffic) -> c_int;

static EMULATOR_COUNTS: OnceLock<Option<EmulatorCounts>> = OnceLock::new();

/// The emulator's function, if the loaded library is the emulator.
pub(super) fn emulator_counts() -> Option<EmulatorCounts> {
    EMULATOR_COUNTS.get().copied().flatten()
}

fn open() -> Result<Api, String> {
    // SAFETY: the initialisers of NVIDIA's library have no preconditions.
    let library = unsafe { Library::new(LIBRARY) }.map_err(|error| {
        let error = loader_message(&error);
        if error.contains("No such file") {
            format!("{LIBRARY} not found: no NVIDIA driver on this machine")
        } else {
            format!("the NVIDIA driver cannot be loaded: {error}")
        }
    })?;
    // SAFETY: the signature is that of `crates/device/emulator/libcuda.c`, and NVIDIA's library has
    // no such function.
    let counts = unsafe { library.get::<EmulatorCounts>(b"emulator_counts\0") }.ok().map(|found| *found);
    let api = Api::load(library).map_err(|name| format!("{LIBRARY} has no {name}: update the NVIDIA driver"))?;
    _ = EMULATOR_COUNTS.set(counts);
    // SAFETY: the flags must be 0.
    match unsafe { (api.cuInit)(0) } {
        SUCCESS => Ok(api),
        status => Err(format!("cuInit: {} ({})", api.status_name(status), api.status_description(status))),
    }
}

impl Api {
    /// The name of a status, such as `CUDA_ERROR_NO_DEVICE`.
    pub fn status_name(&self, status: i32) -> String {
        describe(self.cuGetErrorName, status).unwrap_or_else(|| format!("CUDA error {status}"))
    }

    /// NVIDIA's description of a status.
    pub fn status_description(&self, status: i32) -> String {
        describe(self.cuGetErrorString, status).unwrap_or_else(|| "unknown to this driver".to_owned())
    }
}

fn describe(function: unsafe extern "C" fn(c_int, *mut *const c_char) -> i32, status: i32) -> Option<String> {
    let mut text = ptr::null();
    // SAFETY: the pointer is live. An unknown status is refused.
    if unsafe { function(status, &mut text) } != SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the library returns a constant that ends in NUL.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Whether a status is sticky: the context is lost, and each later call fails too.
///
/// For most of them NVIDIA's documentation says that only a new process can use CUDA again.
pub(super) fn is_sticky(code: i32) -> bool {
    use CUresult::*;
    const STICKY: [CUresult; 17] = [
        CUDA_ERROR_DEINITIALIZED,
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_CONTAINED,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_TENSOR_MEMORY_LEAK,
        CUDA_ERROR_MPS_CLIENT_TERMINATED,
        CUDA_ERROR_EXTERNAL_DEVICE,
    ];
    STICKY.iter().any(|sticky| *sticky as i32 == code)
}

/// The error of a failed call, with the loss of the context where the status is sticky.
pub(in crate::drivers) fn driver_error(
    device: impl Into<String>,
    call: &'static str,
    code: i32,
    name: impl Into<String>,
) -> Error {
    match is_sticky(code) {
        true => Error::driver_lost(device, call, code, name),
        false => Error::driver(device, call, code, name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_the_context_are_sticky() {
        assert!([4, 700, 719].into_iter().all(is_sticky));
        assert!(![SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_READY, -1].into_iter().any(is_sticky));
    }
}
