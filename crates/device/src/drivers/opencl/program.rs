// SPDX-License-Identifier: Apache-2.0
//! OpenCL programs and kernels, behind the plain handles of the driver trait.

use std::collections::HashMap;
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;

use super::api::types::{cl_context, cl_device_id, cl_kernel, cl_program};
use super::api::{check, device, error_text, kernel, program};
use super::overlap::{KernelLaunches, OverlapGuard};
use crate::{Error, Result};

/// The language version of kernels, unless their options name another one.
pub(super) const STANDARD: &str = "-cl-std=CL1.2";

/// Suppresses warnings: PoCL's compiler would print their count to stderr. Tests lint the sources.
const QUIET: &str = "-w";

/// Also makes quotients and square roots of `f32` exact. Without the option they may be off by a
/// few units in the last place; those of `f64` never are.
const QUIET_AND_EXACT: &str = "-w -cl-fp32-correctly-rounded-divide-sqrt";

/// This macro is defined if a source must declare its OpenCL functions itself.
///
/// A source that mentions the macro may be built without the declarations of OpenCL's own header.
///
/// ```
/// use device::{Context, DECLARES_BUILTINS, DeviceConfig, ProgramSource};
///
/// # let run = async {
/// let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
/// # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
/// let source = format!(
///     "#ifdef {DECLARES_BUILTINS}
/// size_t __attribute__((overloadable, const)) get_global_id(uint);
/// #endif
/// kernel void count(global uint *x) {{ x[get_global_id(0)] = (uint)get_global_id(0); }}"
/// );
/// context.queue()?.compile(ProgramSource::new(source, "example")).await?;
/// # Ok::<(), device::Error>(())
/// # };
/// # futures::executor::block_on(run)?;
/// # Ok::<(), device::Error>(())
/// ```
pub const DECLARES_BUILTINS: &str = "BUILTINS_UNDECLARED";

/// Options with which PoCL's compiler skips OpenCL's header: they define its include guard. Reading
/// the header takes longer than compiling most programs.
pub(super) fn without_header() -> String {
    format!("-D_OPENCL_H_ -D{DECLARES_BUILTINS}")
}

/// Options of every build for a device, apart from the language version.
///
/// No option disables fused multiply-add, with one rounding instead of the host's two. The source
/// disables it itself, by `#pragma OPENCL FP_CONTRACT OFF`.
pub(super) fn fixed_options(device: cl_device_id) -> &'static str {
    let known = device::get_device_data(device, device::CL_DEVICE_SINGLE_FP_CONFIG).unwrap_or_default();
    let exact = known.try_into().is_ok_and(|known| u64::from_ne_bytes(known) & device::CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0);
    if exact { QUIET_AND_EXACT } else { QUIET }
}

/// The first bytes of an image that holds options and source instead of the driver's own format.
const SOURCE_IMAGE: &[u8] = b"opencl source\0";

/// A built program with the kernels created from it so far.
pub(super) struct ClProgram {
    raw: cl_program,
    kernels: Mutex<HashMap<String, Box<ClKernel>>>,
    /// Hash of source and options, 0 for the driver's own format.
    source_hash: u64,
}

// SAFETY: OpenCL calls on programs are safe from any thread.
unsafe impl Send for ClProgram {}
// SAFETY: as above; the kernels are behind a lock.
unsafe impl Sync for ClProgram {}

/// A kernel. Setting its arguments and enqueueing it happen under the lock of `launches`.
pub(super) struct ClKernel {
    pub(super) raw: cl_kernel,
    /// The count of parameters. For a missing argument OpenCL would silently use that of an earlier
    /// launch.
    pub(super) parameters: usize,
    pub(super) launches: Arc<Mutex<KernelLaunches>>,
}

// SAFETY: OpenCL calls are safe from any thread, except those that set a kernel's arguments; these
// are made under the lock of `launches`.
unsafe impl Send for ClKernel {}
// SAFETY: as above.
unsafe impl Sync for ClKernel {}

impl Drop for ClProgram {
    fn drop(&mut self) {
        for (_, kernel) in self.kernels.get_mut().drain() {
            // SAFETY: the program created the kernel, and it is not launched any more.
            let _ = unsafe { kernel::release_kernel(kernel.raw) };
        }
        // SAFETY: this is the program's only reference.
        let _ = unsafe { program::release_program(self.raw) };
    }
}

impl ClProgram {
    /// Builds a program from source.
    pub(super) fn build(label: &str, context: cl_context, device: cl_device_id, source: &str, options: &str) -> Result<Self> {
        let raw = check(label, "clCreateProgramWithSource", program::create_program_with_source(context, &[source]))?;
        let mut hasher = DefaultHasher::new();
        (source, options).hash(&mut hasher);
        let this = Self { raw, kernels: Mutex::default(), source_hash: hasher.finish() };
        this.finish(label, device, source, options)?;
        Ok(this)
    }

    /// Builds a program from an image of [`binary`](Self::binary).
    pub(super) fn from_binary(label: &str, context: cl_context, device: cl_device_id, binary: &[u8]) -> Result<Self> {
        // SAFETY: the device belongs to the context.
        let raw = unsafe { program::create_program_with_binary(context, &[device], &[binary]) };
        let this = Self { raw: check(label, "clCreateProgramWithBinary", raw)?, kernels: Mutex::default(), source_hash: 0 };
        this.finish(label, device, "", "")?;
        Ok(this)
    }

    fn finish(&self, label: &str, device: cl_device_id, source: &str, options: &str) -> Result<()> {
        let line = CString::new(options.trim()).map_err(|_| Error::Config {
            setting: "device.compile_options",
            value: options.replace('\0', "\\0"),
            reason: "an option cannot contain a NUL byte".to_owned(),
        })?;
        program::build_program(self.raw, &[device], &line, None, std::ptr::null_mut()).map_err(|code| {
            let log = program::get_program_build_data(self.raw, device, program::CL_PROGRAM_BUILD_LOG).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
            let log = if log.is_empty() { error_text(code).to_owned() } else { log };
            let (operator, options) = (String::new(), "".into());
            Error::CompileFailed { device: label.to_owned(), operator, kernel_source: source.into(), options, log }
        })
    }

    /// The driver's own image of the program.
    pub(super) fn binary(&self, label: &str) -> Result<Vec<u8>> {
        let binaries = check(label, "clGetProgramInfo", program::get_program_info(self.raw, program::CL_PROGRAM_BINARIES))?;
        Ok(binaries.to_vec_vec_uchar().into_iter().next().unwrap_or_default())
    }

    /// A kernel by name, created at the first call and owned by the program.
    pub(super) fn kernel(&self, label: &str, name: &str, guard: Option<&OverlapGuard>) -> Result<*const ClKernel> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return Ok(std::ptr::from_ref(kernel.as_ref()));
        }
        let missing = |code| Error::driver(label, "clCreateKernel", code, format!("no kernel named {name}"));
        let c_name = CString::new(name).map_err(|_| missing(0))?;
        let raw = kernel::create_kernel(self.raw, &c_name).map_err(missing)?;
        let parameters = kernel::get_kernel_data(raw, kernel::CL_KERNEL_NUM_ARGS).unwrap_or_default();
        let parameters = parameters.try_into().map_or(0, u32::from_ne_bytes) as usize;
        let launches = guard.map_or_else(Arc::default, |guard| guard.launches(self.source_hash, name));
        let kernel = Box::new(ClKernel { raw, parameters, launches });
        let kernel = kernels.entry(name.to_owned()).or_insert(kernel);
        Ok(std::ptr::from_ref(kernel.as_ref()))
    }
}

/// An image of a program's source and options.
pub(super) fn source_image(source: &str, options: &[String]) -> Vec<u8> {
    let mut image = SOURCE_IMAGE.to_vec();
    image.extend_from_slice(options.join("\n").as_bytes());
    image.push(0);
    image.extend_from_slice(source.as_bytes());
    image
}

/// Source and options of a [`source_image`]; `None` for the driver's own format.
pub(super) fn read_source_image(image: &[u8]) -> Option<(&str, Vec<String>)> {
    let image = std::str::from_utf8(image.strip_prefix(SOURCE_IMAGE)?).ok()?;
    let (options, source) = image.split_once('\0')?;
    Some((source, options.lines().map(str::to_owned).collect()))
}
