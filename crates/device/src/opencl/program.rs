// SPDX-License-Identifier: Apache-2.0
//! Programs and kernels as this driver keeps them behind the plain handles of the trait.

use std::collections::HashMap;
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use cl3::types::{cl_context, cl_device_id, cl_kernel, cl_program};
use cl3::{device, kernel, program};
use parking_lot::Mutex;

use super::check;
use super::launches::{Apart, Launches};
use crate::{Error, Result};

/// The dialect that kernels are written in, unless their options ask for another.
pub(super) const STANDARD: &str = "-cl-std=CL1.2";

/// Without it PoCL's compiler counts its warnings on the process's stderr. Tests lint the texts.
const QUIET: &str = "-w";

/// Besides, without the other one a quotient or root of floats may be off by a few units in the last place; doubles never are.
const QUIET_AND_EXACT: &str = "-w -cl-fp32-correctly-rounded-divide-sqrt";

/// What a text looks at that declares the functions of OpenCL it calls, where it is built without OpenCL's own declarations, which
/// are those of all functions.
///
/// ```
/// use device::{Context, DECLARES_BUILTINS, DeviceConfig, ProgramSource};
///
/// # let run = async {
/// let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
/// # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
/// let text = format!(
///     "#ifdef {DECLARES_BUILTINS}
/// size_t __attribute__((overloadable, const)) get_global_id(uint);
/// #endif
/// kernel void count(global uint *x) {{ x[get_global_id(0)] = (uint)get_global_id(0); }}"
/// );
/// context.queue()?.compile(ProgramSource::new(text, "example")).await?;
/// # Ok::<(), device::Error>(())
/// # };
/// # futures::executor::block_on(run)?;
/// # Ok::<(), device::Error>(())
/// ```
pub const DECLARES_BUILTINS: &str = "BUILTINS_UNDECLARED";

/// Options by which PoCL's compiler leaves out the header that it reads before each program, and that takes longer than most of
/// these: it finds the guard of that header defined.
pub(super) fn without_header() -> String {
    format!("-D_OPENCL_H_ -D{DECLARES_BUILTINS}")
}

/// Options of every build for a device, apart from the dialect.
///
/// Fused multiply-add, which rounds once where the host rounds twice, is switched off in the text itself, by
/// `#pragma OPENCL FP_CONTRACT OFF`: there is no option for it.
pub(super) fn fixed_options(device: cl_device_id) -> &'static str {
    let known = device::get_device_data(device, device::CL_DEVICE_SINGLE_FP_CONFIG).unwrap_or_default();
    let exact = known.try_into().is_ok_and(|known| u64::from_ne_bytes(known) & device::CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT != 0);
    if exact { QUIET_AND_EXACT } else { QUIET }
}

/// Marks an image that holds options and text instead of the driver's own format.
const SOURCE_IMAGE: &[u8] = b"opencl source\0";

/// A built program with the kernels taken from it so far.
pub(super) struct Program {
    raw: cl_program,
    kernels: Mutex<HashMap<String, Box<Kernel>>>,
    /// Hash of text and options, 0 for the driver's own format.
    text: u64,
}

// SAFETY: OpenCL calls on programs are safe from any thread.
unsafe impl Send for Program {}
// SAFETY: as above; the kernels are behind a lock.
unsafe impl Sync for Program {}

/// A kernel, with the lock that setting its arguments and enqueueing it need around what was launched of it.
pub(super) struct Kernel {
    pub(super) raw: cl_kernel,
    /// Parameters in its text. OpenCL itself would take what an earlier launch gave for missing ones.
    pub(super) parameters: usize,
    pub(super) launches: Arc<Mutex<Launches>>,
}

// SAFETY: OpenCL's only calls that are not safe from any thread are those that set a kernel's
// arguments; they are made under the lock of `launches`.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Drop for Program {
    fn drop(&mut self) {
        for (_, kernel) in self.kernels.get_mut().drain() {
            // SAFETY: the kernel was created by this program and nobody launches it any more.
            let _ = unsafe { kernel::release_kernel(kernel.raw) };
        }
        // SAFETY: this owner holds the program's only reference.
        let _ = unsafe { program::release_program(self.raw) };
    }
}

impl Program {
    /// Builds a program from its text.
    pub(super) fn build(label: &str, context: cl_context, device: cl_device_id, text: &str, options: &str) -> Result<Self> {
        let raw = check(label, "clCreateProgramWithSource", program::create_program_with_source(context, &[text]))?;
        let mut hasher = DefaultHasher::new();
        (text, options).hash(&mut hasher);
        let this = Self { raw, kernels: Mutex::default(), text: hasher.finish() };
        this.finish(label, device, text, options)?;
        Ok(this)
    }

    /// Builds a program from what [`Program::binary`] gave.
    pub(super) fn from_binary(label: &str, context: cl_context, device: cl_device_id, binary: &[u8]) -> Result<Self> {
        // SAFETY: the device belongs to the context.
        let raw = unsafe { program::create_program_with_binary(context, &[device], &[binary]) };
        let this = Self { raw: check(label, "clCreateProgramWithBinary", raw)?, kernels: Mutex::default(), text: 0 };
        this.finish(label, device, "", "")?;
        Ok(this)
    }

    fn finish(&self, label: &str, device: cl_device_id, text: &str, options: &str) -> Result<()> {
        let line = CString::new(options.trim()).map_err(|_| Error::Config {
            setting: "device.compile_options",
            value: options.replace('\0', "\\0"),
            reason: "an option cannot contain a NUL byte".to_owned(),
        })?;
        program::build_program(self.raw, &[device], &line, None, std::ptr::null_mut()).map_err(|code| {
            let log = program::get_program_build_data(self.raw, device, program::CL_PROGRAM_BUILD_LOG).unwrap_or_default();
            let log = String::from_utf8_lossy(&log).trim_matches(['\0', '\n', ' ']).to_owned();
            let log = if log.is_empty() { cl3::error_codes::error_text(code).to_owned() } else { log };
            let (operator, options) = (String::new(), "".into());
            Error::CompileFailed { device: label.to_owned(), operator, text: text.into(), options, log }
        })
    }

    /// The driver's own image of the program.
    pub(super) fn binary(&self, label: &str) -> Result<Vec<u8>> {
        let binaries = check(label, "clGetProgramInfo", program::get_program_info(self.raw, program::CL_PROGRAM_BINARIES))?;
        Ok(binaries.to_vec_vec_uchar().into_iter().next().unwrap_or_default())
    }

    /// A kernel by name, made at the first call and owned by the program.
    pub(super) fn kernel(&self, label: &str, name: &str, apart: Option<&Apart>) -> Result<*const Kernel> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return Ok(std::ptr::from_ref(kernel.as_ref()));
        }
        let missing = |code| Error::driver(label, "clCreateKernel", code, format!("no kernel named {name}"));
        let c_name = CString::new(name).map_err(|_| missing(0))?;
        let raw = kernel::create_kernel(self.raw, &c_name).map_err(missing)?;
        let parameters = kernel::get_kernel_data(raw, kernel::CL_KERNEL_NUM_ARGS).unwrap_or_default();
        let parameters = parameters.try_into().map_or(0, u32::from_ne_bytes) as usize;
        let launches = apart.map_or_else(Arc::default, |apart| apart.launches(self.text, name));
        let kernel = Box::new(Kernel { raw, parameters, launches });
        let kernel = kernels.entry(name.to_owned()).or_insert(kernel);
        Ok(std::ptr::from_ref(kernel.as_ref()))
    }
}

/// An image that is the program's text and options.
pub(super) fn source_image(text: &str, options: &[String]) -> Vec<u8> {
    let mut image = SOURCE_IMAGE.to_vec();
    image.extend_from_slice(options.join("\n").as_bytes());
    image.push(0);
    image.extend_from_slice(text.as_bytes());
    image
}

/// Text and options out of a [`source_image`]; `None` for the driver's own format.
pub(super) fn read_source_image(image: &[u8]) -> Option<(&str, Vec<String>)> {
    let image = std::str::from_utf8(image.strip_prefix(SOURCE_IMAGE)?).ok()?;
    let (options, text) = image.split_once('\0')?;
    Some((text, options.lines().map(str::to_owned).collect()))
}
