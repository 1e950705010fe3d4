// SPDX-License-Identifier: Apache-2.0
//! The C structs of the Arrow C Device data interface.
//!
//! Names follow arrow-rs's open proposal (apache/arrow-rs#10754) where it has one.
//! `include/arrow_device.h` declares the same structs for C, and a test compares both. The
//! assertions at the end of this file pin the layout for 64-bit targets (R1–R5 of
//! `docs/conformance.md`).
//!
//! This module checks nothing; the modules above it wrap these structs in safe owners.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};

/// The kind of device that can access the buffers: `ARROW_DEVICE_*`, with the values of DLPack.
///
/// Unknown values are kept (R8): a new value is a compatible change of the interface.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArrowDeviceType(pub i32);

impl ArrowDeviceType {
    /// Host memory.
    pub const CPU: Self = Self(1);
    /// Memory of a CUDA device.
    pub const CUDA: Self = Self(2);
    /// Pinned host memory, by `cudaMallocHost`.
    pub const CUDA_HOST: Self = Self(3);
    /// OpenCL buffers.
    pub const OPENCL: Self = Self(4);
    /// Vulkan buffers.
    pub const VULKAN: Self = Self(7);
    /// Metal buffers.
    pub const METAL: Self = Self(8);
    /// Verilog simulator buffers.
    pub const VPI: Self = Self(9);
    /// Memory of a ROCm device.
    pub const ROCM: Self = Self(10);
    /// Pinned host memory, by `hipMallocHost`.
    pub const ROCM_HOST: Self = Self(11);
    /// A device outside this list; its producer documents what it is.
    pub const EXT_DEV: Self = Self(12);
    /// Memory that CUDA moves between host and devices, by `cudaMallocManaged`.
    pub const CUDA_MANAGED: Self = Self(13);
    /// Unified shared memory of a oneAPI device.
    pub const ONEAPI: Self = Self(14);
    /// WebGPU buffers.
    pub const WEBGPU: Self = Self(15);
    /// Memory of a Qualcomm Hexagon DSP.
    pub const HEXAGON: Self = Self(16);

    /// The interface's name without `ARROW_DEVICE_`; `None` for an unknown type.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::CPU => "CPU",
            Self::CUDA => "CUDA",
            Self::CUDA_HOST => "CUDA_HOST",
            Self::OPENCL => "OPENCL",
            Self::VULKAN => "VULKAN",
            Self::METAL => "METAL",
            Self::VPI => "VPI",
            Self::ROCM => "ROCM",
            Self::ROCM_HOST => "ROCM_HOST",
            Self::EXT_DEV => "EXT_DEV",
            Self::CUDA_MANAGED => "CUDA_MANAGED",
            Self::ONEAPI => "ONEAPI",
            Self::WEBGPU => "WEBGPU",
            Self::HEXAGON => "HEXAGON",
            _ => return None,
        })
    }

    /// Whether arrays of this device type can have an event: all but the types without one in R48.
    pub fn has_events(self) -> bool {
        !matches!(self, Self::CPU | Self::VPI | Self::WEBGPU | Self::HEXAGON)
    }
}

impl fmt::Display for ArrowDeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "device type {}", self.0),
        }
    }
}

impl fmt::Debug for ArrowDeviceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// `struct ArrowDeviceArray`: an array whose data buffers are device memory.
///
/// Everything but the data buffers is host memory. Dropping it calls the release callback of the
/// embedded array, unless `array.release` is `None` (released or moved out).
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowDeviceArray {
    /// The array; its buffers are device pointers, or handles for device types that use handles.
    pub array: FFI_ArrowArray,
    /// The device's index among those of `device_type`; -1 where the type has no ids.
    pub device_id: i64,
    /// The kind of device that can access every buffer of the tree.
    pub device_type: ArrowDeviceType,
    /// A pointer to the native event to wait on before reading the buffers (R24); null without one.
    pub sync_event: *mut c_void,
    /// Zero.
    pub reserved: [i64; 3],
}

// SAFETY: the interface allows reading and releasing a struct on any thread, one at a time (R30).
// Only the owner of the struct dereferences the pointers.
unsafe impl Send for FFI_ArrowDeviceArray {}
// SAFETY: a shared reference allows no mutation.
unsafe impl Sync for FFI_ArrowDeviceArray {}

impl FFI_ArrowDeviceArray {
    /// A released structure, all zero, for a producer to fill (R44).
    pub fn empty() -> Self {
        Self {
            array: FFI_ArrowArray::empty(),
            device_id: 0,
            device_type: ArrowDeviceType(0),
            sync_event: std::ptr::null_mut(),
            reserved: [0; 3],
        }
    }

    /// Moves the array out of `array`: copies the struct, and flags the source as released (R40).
    ///
    /// # Safety
    /// `array` points to an initialised struct that can be read and written.
    pub unsafe fn from_raw(array: *mut FFI_ArrowDeviceArray) -> Self {
        // SAFETY: readable and initialised by this function's contract; the source loses ownership
        // below.
        let moved = unsafe { std::ptr::read(array) };
        // SAFETY: writable by this function's contract. A plain store: the old value owns nothing.
        unsafe { (&raw mut (*array).array.release).write(None) };
        moved
    }

    /// Whether this is released, moved out, or the end of a stream.
    pub fn is_released(&self) -> bool {
        self.array.release.is_none()
    }
}

/// `struct ArrowDeviceArrayStream`: a stream of device arrays of one schema, pulled by blocking
/// calls.
///
/// Dropping this calls its release callback, unless `release` is `None`.
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowDeviceArrayStream {
    /// The device type of every array.
    pub device_type: ArrowDeviceType,
    /// Writes the schema of all arrays; returns 0 or an errno.
    pub get_schema: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream, *mut FFI_ArrowSchema) -> c_int>,
    /// Writes the next array, a released one at the end; returns 0 or an errno.
    pub get_next: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream, *mut FFI_ArrowDeviceArray) -> c_int>,
    /// The message of the last failed call; null if there is none.
    pub get_last_error: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream) -> *const c_char>,
    /// Frees the stream's data and sets `release` to null.
    pub release: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream)>,
    /// Private to the producer.
    pub private_data: *mut c_void,
}

// SAFETY: a stream may move between threads, which use it one at a time (R59).
unsafe impl Send for FFI_ArrowDeviceArrayStream {}

impl Drop for FFI_ArrowDeviceArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: a stream with a release callback is live (R57), and this is its last use.
            unsafe { release(self) };
        }
    }
}

impl FFI_ArrowDeviceArrayStream {
    /// Moves the stream out of `stream`: copies the struct, and flags the source as released.
    ///
    /// # Safety
    /// `stream` points to an initialised struct that can be read and written.
    pub unsafe fn from_raw(stream: *mut FFI_ArrowDeviceArrayStream) -> Self {
        // SAFETY: readable and initialised by this function's contract; the source loses ownership
        // below.
        let moved = unsafe { std::ptr::read(stream) };
        // SAFETY: writable by this function's contract. A plain store: the old value owns nothing.
        unsafe { (&raw mut (*stream).release).write(None) };
        moved
    }

    /// A released structure, all zero.
    pub fn empty() -> Self {
        Self {
            device_type: ArrowDeviceType(0),
            get_schema: None,
            get_next: None,
            get_last_error: None,
            release: None,
            private_data: std::ptr::null_mut(),
        }
    }
}

/// `struct ArrowAsyncTask`: one array of an async stream, not yet extracted.
///
/// C copies it freely. The consumer that accepted it calls `extract_data` once (R68).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FFI_ArrowAsyncTask {
    /// Writes the array, or only frees it if the output is null; returns 0 or an errno.
    pub extract_data: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncTask, *mut FFI_ArrowDeviceArray) -> c_int>,
    /// Private to the producer.
    pub private_data: *mut c_void,
}

// SAFETY: a task may be extracted on any thread (R93).
unsafe impl Send for FFI_ArrowAsyncTask {}

/// `struct ArrowAsyncProducer`: the consumer's handle to request more of an async stream, or to
/// cancel it.
///
/// It follows the shipped C headers: the documents list a `release` after `cancel`, which no header
/// has (X1).
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowAsyncProducer {
    /// The device type of every array.
    pub device_type: ArrowDeviceType,
    /// Allows `n` more calls of `on_next_task`; `n` must be positive.
    pub request: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer, i64)>,
    /// Asks the producer to end the stream early.
    pub cancel: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer)>,
    /// Null, or key-value pairs in the encoding of a schema's metadata.
    pub additional_metadata: *const c_char,
    /// Private to the producer.
    pub private_data: *mut c_void,
}

/// `struct ArrowAsyncDeviceStreamHandler`: the callbacks of an async stream's consumer, called by
/// the producer.
///
/// Rust does not free it: the producer calls `release` last.
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowAsyncDeviceStreamHandler {
    /// Takes the schema; the first call, made once. Returns 0 or an errno.
    pub on_schema: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler, *mut FFI_ArrowSchema) -> c_int>,
    /// Takes the next task with its metadata, or null at the end. Returns 0 or an errno.
    pub on_next_task:
        Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler, *mut FFI_ArrowAsyncTask, *const c_char) -> c_int>,
    /// Takes an errno, a message and metadata (either may be null); only `release` follows.
    pub on_error: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler, c_int, *const c_char, *const c_char)>,
    /// The last call: frees the handler's data.
    pub release: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler)>,
    /// Set by the producer before its first call, and valid until `release` is called.
    pub producer: *mut FFI_ArrowAsyncProducer,
    /// Private to the consumer.
    pub private_data: *mut c_void,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::{align_of, offset_of, size_of};

    assert!(size_of::<FFI_ArrowDeviceArray>() == 128 && align_of::<FFI_ArrowDeviceArray>() == 8);
    assert!(offset_of!(FFI_ArrowDeviceArray, array) == 0);
    assert!(offset_of!(FFI_ArrowDeviceArray, device_id) == 80);
    assert!(offset_of!(FFI_ArrowDeviceArray, device_type) == 88);
    assert!(offset_of!(FFI_ArrowDeviceArray, sync_event) == 96);
    assert!(offset_of!(FFI_ArrowDeviceArray, reserved) == 104);

    assert!(size_of::<FFI_ArrowDeviceArrayStream>() == 48);
    assert!(offset_of!(FFI_ArrowDeviceArrayStream, device_type) == 0);
    assert!(offset_of!(FFI_ArrowDeviceArrayStream, get_schema) == 8);
    assert!(offset_of!(FFI_ArrowDeviceArrayStream, get_next) == 16);
    assert!(offset_of!(FFI_ArrowDeviceArrayStream, get_last_error) == 24);
    assert!(offset_of!(FFI_ArrowDeviceArrayStream, release) == 32);
    assert!(offset_of!(FFI_ArrowDeviceArrayStream, private_data) == 40);

    assert!(size_of::<FFI_ArrowAsyncTask>() == 16);
    assert!(offset_of!(FFI_ArrowAsyncTask, extract_data) == 0);
    assert!(offset_of!(FFI_ArrowAsyncTask, private_data) == 8);

    assert!(size_of::<FFI_ArrowAsyncProducer>() == 40);
    assert!(offset_of!(FFI_ArrowAsyncProducer, device_type) == 0);
    assert!(offset_of!(FFI_ArrowAsyncProducer, request) == 8);
    assert!(offset_of!(FFI_ArrowAsyncProducer, cancel) == 16);
    assert!(offset_of!(FFI_ArrowAsyncProducer, additional_metadata) == 24);
    assert!(offset_of!(FFI_ArrowAsyncProducer, private_data) == 32);

    assert!(size_of::<FFI_ArrowAsyncDeviceStreamHandler>() == 48);
    assert!(offset_of!(FFI_ArrowAsyncDeviceStreamHandler, on_schema) == 0);
    assert!(offset_of!(FFI_ArrowAsyncDeviceStreamHandler, on_next_task) == 8);
    assert!(offset_of!(FFI_ArrowAsyncDeviceStreamHandler, on_error) == 16);
    assert!(offset_of!(FFI_ArrowAsyncDeviceStreamHandler, release) == 24);
    assert!(offset_of!(FFI_ArrowAsyncDeviceStreamHandler, producer) == 32);
    assert!(offset_of!(FFI_ArrowAsyncDeviceStreamHandler, private_data) == 40);
};
