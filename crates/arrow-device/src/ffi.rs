// SPDX-License-Identifier: Apache-2.0
//! The structs of the Arrow C Device data interface, as C lays them out.
//!
//! Names follow arrow-rs's open proposal (apache/arrow-rs#10754) where it has one. `include/arrow_device.h` holds the
//! same structs for C; a test compares both, and the assertions at the end of this file pin the numbers for 64-bit
//! targets (R1–R5 of `docs/conformance.md`).
//!
//! Nothing here is checked: the safe owners around these structs are in the modules above this one.
#![allow(non_camel_case_types)]

use std::ffi::{c_char, c_int, c_void};
use std::fmt;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};

/// What kind of device can access the buffers of an array: `ARROW_DEVICE_*` of the interface, the values of DLPack.
///
/// Unknown values are kept as they are (R8): new ones are a compatible change of the interface.
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

    /// The name that the interface gives this type, without its `ARROW_DEVICE_`; nothing for an unknown one.
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

    /// Whether arrays of this device type can come with an event: all but those that R48 lists without one.
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

/// `struct ArrowDeviceArray`: an array whose data buffers are memory of a device.
///
/// Everything but the data buffers is host memory. Dropping this calls the release callback of the embedded array,
/// unless it has been called or moved away (`array.release` is `None`).
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowDeviceArray {
    /// The array; its buffers are device pointers, or handles where the device type has those.
    pub array: FFI_ArrowArray,
    /// Which of the devices of `device_type`; -1 where that type has none to tell apart.
    pub device_id: i64,
    /// What can access every buffer of the tree.
    pub device_type: ArrowDeviceType,
    /// The native event to wait on before the buffers are read, behind a pointer (R24); null if nothing needs waiting.
    pub sync_event: *mut c_void,
    /// Zero.
    pub reserved: [i64; 3],
}

// SAFETY: the interface lets a structure be read and released on any thread, one at a time (R30); the pointers are
// only followed by whoever owns the struct.
unsafe impl Send for FFI_ArrowDeviceArray {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for FFI_ArrowDeviceArray {}

impl FFI_ArrowDeviceArray {
    /// A released structure, all zero: what a producer is given to fill (R44).
    pub fn empty() -> Self {
        Self {
            array: FFI_ArrowArray::empty(),
            device_id: 0,
            device_type: ArrowDeviceType(0),
            sync_event: std::ptr::null_mut(),
            reserved: [0; 3],
        }
    }

    /// Moves the array at `array` here: copies the struct, and marks the source as released without releasing it (R40).
    ///
    /// # Safety
    /// `array` points to an initialised struct that can be read and written.
    pub unsafe fn from_raw(array: *mut FFI_ArrowDeviceArray) -> Self {
        // SAFETY: readable and initialised by this function's own condition; below, the source loses what it owned.
        let moved = unsafe { std::ptr::read(array) };
        // SAFETY: writable by this function's own condition. A plain store: the old value owns nothing to drop.
        unsafe { (&raw mut (*array).array.release).write(None) };
        moved
    }

    /// Whether this holds nothing: released, moved away, or the end of a stream.
    pub fn is_released(&self) -> bool {
        self.array.release.is_none()
    }
}

/// `struct ArrowDeviceArrayStream`: a stream of device arrays of one schema, pulled by blocking calls.
///
/// Dropping this calls its release callback, unless `release` is `None`.
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowDeviceArrayStream {
    /// The device type of every array.
    pub device_type: ArrowDeviceType,
    /// Writes the schema of all arrays; 0 or an errno.
    pub get_schema: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream, *mut FFI_ArrowSchema) -> c_int>,
    /// Writes the next array, a released one at the end; 0 or an errno.
    pub get_next: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream, *mut FFI_ArrowDeviceArray) -> c_int>,
    /// The text of the failure that the last call reported; null if there is none.
    pub get_last_error: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream) -> *const c_char>,
    /// Frees what the stream holds, and sets itself to null.
    pub release: Option<unsafe extern "C" fn(*mut FFI_ArrowDeviceArrayStream)>,
    /// The producer's.
    pub private_data: *mut c_void,
}

// SAFETY: a stream may be used from several threads over time, one at a time (R59).
unsafe impl Send for FFI_ArrowDeviceArrayStream {}

impl Drop for FFI_ArrowDeviceArrayStream {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: a stream with a release callback is live (R57), and nobody uses it after this.
            unsafe { release(self) };
        }
    }
}

impl FFI_ArrowDeviceArrayStream {
    /// Moves the stream at `stream` here: copies the struct, and marks the source as released without releasing it.
    ///
    /// # Safety
    /// `stream` points to an initialised struct that can be read and written.
    pub unsafe fn from_raw(stream: *mut FFI_ArrowDeviceArrayStream) -> Self {
        // SAFETY: readable and initialised by this function's own condition; below, the source loses what it owned.
        let moved = unsafe { std::ptr::read(stream) };
        // SAFETY: writable by this function's own condition. A plain store: the old value owns nothing to drop.
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
/// Copied freely, as C does; whoever has accepted it calls `extract_data` once (R68).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FFI_ArrowAsyncTask {
    /// Writes the array, or only cleans up where the output is null; 0 or an errno.
    pub extract_data: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncTask, *mut FFI_ArrowDeviceArray) -> c_int>,
    /// The producer's.
    pub private_data: *mut c_void,
}

// SAFETY: a task may be extracted on any thread (R93).
unsafe impl Send for FFI_ArrowAsyncTask {}

/// `struct ArrowAsyncProducer`: how the consumer of an async stream asks for more of it, or for its end.
///
/// As in the shipped C headers: the documents list a `release` after `cancel` that no header has (X1).
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowAsyncProducer {
    /// The device type of every array.
    pub device_type: ArrowDeviceType,
    /// Allows this many more calls of `on_next_task`; must be positive.
    pub request: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer, i64)>,
    /// Asks for the end of the stream, before its data ends.
    pub cancel: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer)>,
    /// Null, or key-value pairs, encoded as the metadata of a schema.
    pub additional_metadata: *const c_char,
    /// The producer's.
    pub private_data: *mut c_void,
}

/// `struct ArrowAsyncDeviceStreamHandler`: what the consumer of an async stream gives the producer to call.
///
/// Not freed by Rust: its producer calls `release` last.
#[repr(C)]
#[derive(Debug)]
pub struct FFI_ArrowAsyncDeviceStreamHandler {
    /// Takes the schema; called first and once. 0 or an errno.
    pub on_schema: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler, *mut FFI_ArrowSchema) -> c_int>,
    /// Takes the next task with its metadata, or null at the end. 0 or an errno.
    pub on_next_task:
        Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler, *mut FFI_ArrowAsyncTask, *const c_char) -> c_int>,
    /// Takes an errno, a text and metadata (either may be null); only `release` follows.
    pub on_error: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler, c_int, *const c_char, *const c_char)>,
    /// The last call: frees what the handler holds.
    pub release: Option<unsafe extern "C" fn(*mut FFI_ArrowAsyncDeviceStreamHandler)>,
    /// Set by the producer before its first call, and valid until `release` is called.
    pub producer: *mut FFI_ArrowAsyncProducer,
    /// The consumer's.
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
