// SPDX-License-Identifier: Apache-2.0
//! The drivers by name, with the facts that other crates need.
//!
//! Each match is exhaustive: a new driver is a new variant, and the compiler lists its places.

use std::fmt;

/// A driver that devices come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// Any OpenCL driver, for CPUs and GPUs.
    OpenCl,
    /// NVIDIA's driver.
    Cuda,
}

/// A driver's handle of device memory, as others in the process know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryHandle {
    /// A device address, such as `CUdeviceptr`. It may point anywhere into an allocation.
    Address,
    /// A reference to an object, such as `cl_mem`. It always means the object's first byte.
    Object,
}

/// The device types that the Arrow C device interface has for a driver's memory.
///
/// The values are those of `ArrowDeviceType` in `arrow/c/abi.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ArrowDeviceTypes {
    /// Device memory.
    pub device: i32,
    /// Memory that the driver moves between host and device; `None` without such memory.
    pub managed: Option<i32>,
    /// Pinned host memory; `None` where the driver's host memory is of type `CPU`.
    pub pinned: Option<i32>,
}

/// Options of a driver's kernel compiler that a user may choose, for they can neither redefine
/// keywords of the kernels' language nor read files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompilerOptions {
    /// Options without a value.
    pub flags: &'static [&'static str],
    /// Options with a value of letters, digits, dots, underscores and commas.
    pub settings: &'static [&'static str],
}

const OPENCL_OPTIONS: CompilerOptions = CompilerOptions {
    flags: &[
        "-cl-opt-disable",
        "-cl-mad-enable",
        "-cl-no-signed-zeros",
        "-cl-unsafe-math-optimizations",
        "-cl-finite-math-only",
        "-cl-fast-relaxed-math",
        "-cl-single-precision-constant",
        "-cl-denorms-are-zero",
        "-cl-strict-aliasing",
        "-cl-fp32-correctly-rounded-divide-sqrt",
        "-cl-uniform-work-group-size",
        "-cl-kernel-arg-info",
        "-cl-nv-verbose",
        "-w",
        "-g",
    ],
    settings: &["-cl-std=", "-cl-nv-maxrregcount=", "-cl-nv-opt-level="],
};

const NVRTC_OPTIONS: CompilerOptions = CompilerOptions {
    flags: &["-w", "--use_fast_math", "--extra-device-vectorization", "--generate-line-info", "--device-debug"],
    settings: &[
        "--fmad=",
        "--ftz=",
        "--prec-div=",
        "--prec-sqrt=",
        "--maxrregcount=",
        "--gpu-architecture=",
        "--optimize=",
        "--ptxas-options=-v",
    ],
};

impl DriverKind {
    /// All drivers, the preferred ones first: `auto` and the list of devices have this order.
    pub const ALL: [Self; 2] = [Self::Cuda, Self::OpenCl];

    /// The name in `device.selector`, in labels such as `cuda:0` and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenCl => "opencl",
            Self::Cuda => "cuda",
        }
    }

    /// The options of its compiler that `device.compile_options` accepts.
    pub const fn compiler_options(self) -> CompilerOptions {
        match self {
            Self::OpenCl => OPENCL_OPTIONS,
            Self::Cuda => NVRTC_OPTIONS,
        }
    }

    /// The handle of this driver's device memory.
    pub const fn memory_handle(self) -> MemoryHandle {
        match self {
            Self::OpenCl => MemoryHandle::Object,
            Self::Cuda => MemoryHandle::Address,
        }
    }

    /// The Arrow device types of this driver's memory.
    pub const fn arrow_device_types(self) -> ArrowDeviceTypes {
        match self {
            // ARROW_DEVICE_OPENCL.
            Self::OpenCl => ArrowDeviceTypes { device: 4, managed: None, pinned: None },
            // ARROW_DEVICE_CUDA, ARROW_DEVICE_CUDA_MANAGED, ARROW_DEVICE_CUDA_HOST.
            Self::Cuda => ArrowDeviceTypes { device: 2, managed: Some(13), pinned: Some(3) },
        }
    }
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
