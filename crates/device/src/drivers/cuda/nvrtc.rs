// SPDX-License-Identifier: Apache-2.0
//! NVRTC, NVIDIA's run-time compiler: kernel source to machine code (cubin) or PTX. Needs no GPU.
//!
//! NVRTC is not part of the driver, so a machine may have none or several. The search order is
//! fixed:
//! 1. `device.nvrtc_path`, a file or a folder; if set, it is the only candidate;
//! 2. the folder of the executable;
//! 3. the dynamic loader's own search (`LD_LIBRARY_PATH`, `ld.so.conf`);
//! 4. toolkits: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda`;
//! 5. Python's packages: `VIRTUAL_ENV`, `CONDA_PREFIX`, then each Python on `PATH`.
//!
//! In each folder version 13 is tried before 12. A version newer than the driver is skipped, since
//! its code may not load.
//!
//! Reference: <https://docs.nvidia.com/cuda/nvrtc/>. Any number of threads may compile
//! concurrently.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{env, fs, ptr};

use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use libloading::Library;

use super::image::kernel_names;
pub use super::image::{KernelUsage, usage};
use super::library::function_table;
use crate::drivers::loader::loader_message;
use crate::{Error, Result};

/// Options of every compilation.
///
/// - `--fmad=false`: a fused multiply-add rounds once where the host rounds twice, and results must
///   be equal.
/// - `-default-device`: helpers need no `__device__`.
/// - Warning 177 is about unused helpers.
pub(super) const OPTIONS: [&str; 4] = ["--std=c++17", "-default-device", "--fmad=false", "-diag-suppress=177"];

/// Supported major versions, the preferred one first.
const MAJORS: [u32; 2] = [13, 12];

const SETTING: &str = "device.nvrtc_path";

function_table! {
    /// The functions of `libnvrtc.so`.
    struct Functions from cudarc::nvrtc::sys => nvrtcResult {
        nvrtcVersion(*mut c_int, *mut c_int);
        nvrtcGetNumSupportedArchs(*mut c_int);
        nvrtcGetSupportedArchs(*mut c_int);
        nvrtcCreateProgram(*mut nvrtcProgram, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char);
        nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char);
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize);
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char);
        nvrtcGetCUBINSize(nvrtcProgram, *mut usize);
        nvrtcGetCUBIN(nvrtcProgram, *mut c_char);
        nvrtcGetPTXSize(nvrtcProgram, *mut usize);
        nvrtcGetPTX(nvrtcProgram, *mut c_char);
        nvrtcDestroyProgram(*mut nvrtcProgram);
    }
    optional {}
    unchecked {}
}

/// The loaded compiler.
pub struct Nvrtc {
    functions: Functions,
    path: PathBuf,
    version: (u32, u32),
    architectures: Vec<u32>,
}

/// The result of a compilation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// A cubin for `sm_…`, PTX for `compute_…`.
    pub binary: Vec<u8>,
    /// Warnings, and the lines that [`usage`] parses.
    pub log: String,
}

impl Compiled {
    /// Names of the kernels in the program, in no particular order.
    pub fn kernels(&self) -> Vec<String> {
        kernel_names(&self.binary).unwrap_or_default()
    }
}

impl Nvrtc {
    /// Opens NVRTC at `path`, a file or a folder, or searches for it.
    ///
    /// # Errors
    /// `Config` with the candidates that were tried and the package to install.
    ///
    /// # Examples
    /// ```
    /// use device::cuda::nvrtc::Nvrtc;
    /// match Nvrtc::open(None) {
    ///     Ok(nvrtc) => {
    ///         let source = "extern \"C\" __global__ void nothing() {}";
    ///         assert!(nvrtc.compile(source, "sm_90", &[])?.binary.starts_with(b"\x7fELF"));
    ///     }
    ///     Err(error) => assert!(error.to_string().contains("device.nvrtc_path")),
    /// }
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn open(path: Option<&Path>) -> Result<Self> {
        Self::open_for(path, None)
    }

    /// Like [`open`](Self::open), but passes over versions newer than `driver`, the CUDA version
    /// (major, minor) of the driver.
    ///
    /// # Errors
    /// `Config` as for [`open`](Self::open), with the version to install.
    pub fn open_for(path: Option<&Path>, driver: Option<(u32, u32)>) -> Result<Self> {
        let mut refused = Vec::new();
        for candidate in candidates(path) {
            match Self::load(&candidate, driver) {
                Ok(nvrtc) => return Ok(nvrtc),
                Err(Refusal::Absent) => {}
                Err(Refusal::Unfit(reason)) => {
                    let reason = format!("{}: {reason}", candidate.display());
                    if !refused.contains(&reason) {
                        refused.push(reason);
                    }
                }
            }
        }
        let found = match (refused.is_empty(), path) {
            (false, _) => refused.join("; "),
            (true, Some(_)) => "no libnvrtc.so.13 or libnvrtc.so.12 there".to_owned(),
            (true, None) => "libnvrtc.so.13 and libnvrtc.so.12 not found".to_owned(),
        };
        Err(Error::Config {
            setting: SETTING,
            value: path.map_or_else(|| "(not set)".to_owned(), |path| path.display().to_string()),
            reason: format!("{found}; {}", remedy(driver)),
        })
    }

    fn load(path: &Path, driver: Option<(u32, u32)>) -> std::result::Result<Self, Refusal> {
        if path.is_absolute() && !path.exists() {
            return Err(Refusal::Absent);
        }
        // SAFETY: the initialisers of NVIDIA's library have no preconditions.
        let library = match unsafe { Library::new(path) } {
            Ok(library) => library,
            Err(_) if !path.is_absolute() => return Err(Refusal::Absent),
            Err(error) => return Err(Refusal::Unfit(loader_message(&error))),
        };
        let functions = Functions::load(library).map_err(|name| Refusal::Unfit(format!("has no {name}")))?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are to live integers.
        let status = unsafe { (functions.nvrtcVersion)(&mut major, &mut minor) };
        if status != 0 {
            return Err(Refusal::Unfit(format!("nvrtcVersion: {}", status_name(status))));
        }
        let version = (major.unsigned_abs(), minor.unsigned_abs());
        if let Some(driver) = driver.filter(|driver| version > *driver) {
            return Err(Refusal::Unfit(format!("NVRTC {major}.{minor} is newer than driver {}.{}", driver.0, driver.1)));
        }
        load_builtins(path, version)?;
        let architectures = architectures(&functions);
        Ok(Self { functions, path: path.to_owned(), version, architectures })
    }

    /// The opened file; a bare name where the dynamic loader found it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version, major and minor.
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The target for a device of compute capability `capability` (90 for 9.0):
    /// - the device's own machine code;
    /// - for a device newer than this NVRTC, PTX that the driver translates;
    /// - `None` for a device that this NVRTC does not support any more.
    pub fn target(&self, capability: u32) -> Option<String> {
        if self.architectures.contains(&capability) {
            return Some(format!("sm_{capability}"));
        }
        let older = self.architectures.iter().filter(|known| **known < capability).max()?;
        Some(format!("compute_{older}"))
    }

    /// Options of a compilation that shall not take long. From version 12.9 on there is one: a
    /// kernel of 290 KB takes 8 instead of 28 s.
    ///
    /// # Examples
    /// ```
    /// # use device::cuda::nvrtc::Nvrtc;
    /// # let Ok(nvrtc) = Nvrtc::open(None) else { return Ok(()) };
    /// let options = nvrtc.options_against_optimization().iter().map(|option| option.to_string());
    /// let source = "extern \"C\" __global__ void nothing() {}";
    /// nvrtc.compile(source, "sm_90", &options.collect::<Vec<_>>())?;
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn options_against_optimization(&self) -> &'static [&'static str] {
        if self.version >= (12, 9) { &["--Ofast-compile=min"] } else { &[] }
    }

    /// Compiles `source` for `arch`: a cubin for `sm_90` and the like, PTX for `compute_75`.
    ///
    /// # Errors
    /// `CompileFailed` with source and log; its device is `arch`.
    pub fn compile(&self, source: &str, arch: &str, options: &[String]) -> Result<Compiled> {
        let failed = |log: String| {
            let (operator, options) = (String::new(), "".into());
            Error::CompileFailed { device: arch.into(), operator, kernel_source: Arc::from(source), options, log }
        };
        let nul = |what: &str| failed(format!("{what} contains a NUL byte"));
        let architecture = format!("--gpu-architecture={arch}");
        let options = [architecture.as_str()].into_iter().chain(OPTIONS).chain(options.iter().map(String::as_str));
        let options = options.map(CString::new).collect::<std::result::Result<Vec<_>, _>>().map_err(|_| nul("an option"))?;
        let options: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(options.len()).map_err(|_| failed("too many options".to_owned()))?;
        let c_source = CString::new(source).map_err(|_| nul("the source"))?;

        let program = NvrtcProgram::new(self, &c_source).map_err(|status| failed(status_name(status)))?;
        // SAFETY: `options` holds `count` pointers to strings; these live until the end of this
        // function.
        let status = unsafe { (self.functions.nvrtcCompileProgram)(program.handle, count, options.as_ptr()) };
        let log = program.log();
        if status != 0 {
            return Err(failed(if log.is_empty() { status_name(status) } else { log }));
        }
        let binary = if arch.starts_with("compute_") { program.ptx() } else { program.cubin() };
        let binary = binary.map_err(|status| failed(status_name(status)))?;
        Ok(Compiled { binary, log })
    }
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc").field("path", &self.path).field("version", &self.version).finish_non_exhaustive()
    }
}

/// The reason why a candidate is not used.
enum Refusal {
    /// There is no file.
    Absent,
    /// The file cannot be used.
    Unfit(String),
}

/// A program of NVRTC.
struct NvrtcProgram<'a> {
    functions: &'a Functions,
    handle: nvrtcProgram,
}

impl Drop for NvrtcProgram<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and this is its last use.
        unsafe { (self.functions.nvrtcDestroyProgram)(&mut self.handle) };
    }
}

type SizeFn = unsafe extern "C" fn(nvrtcProgram, *mut usize) -> c_int;
type FillFn = unsafe extern "C" fn(nvrtcProgram, *mut c_char) -> c_int;

impl<'a> NvrtcProgram<'a> {
    fn new(nvrtc: &'a Nvrtc, source: &CStr) -> std::result::Result<Self, c_int> {
        let functions = &nvrtc.functions;
        let mut handle = ptr::null_mut();
        // SAFETY: both strings end in NUL and are copied; no headers are passed, so their arrays
        // are not read.
        let status = unsafe {
            (functions.nvrtcCreateProgram)(&mut handle, source.as_ptr(), c"kernels.cu".as_ptr(), 0, ptr::null(), ptr::null())
        };
        if status == 0 { Ok(Self { functions, handle }) } else { Err(status) }
    }

    fn log(&self) -> String {
        let log = self.bytes(self.functions.nvrtcGetProgramLogSize, self.functions.nvrtcGetProgramLog);
        String::from_utf8_lossy(&log.unwrap_or_default()).trim_end_matches(['\0', '\n']).to_owned()
    }

    fn cubin(&self) -> std::result::Result<Vec<u8>, c_int> {
        self.bytes(self.functions.nvrtcGetCUBINSize, self.functions.nvrtcGetCUBIN)
    }

    fn ptx(&self) -> std::result::Result<Vec<u8>, c_int> {
        let mut text = self.bytes(self.functions.nvrtcGetPTXSize, self.functions.nvrtcGetPTX)?;
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        Ok(text)
    }

    /// Gets the size, then the bytes.
    fn bytes(&self, size: SizeFn, fill: FillFn) -> std::result::Result<Vec<u8>, c_int> {
        let mut len = 0;
        // SAFETY: the handle is live, `len` too.
        let status = unsafe { size(self.handle, &mut len) };
        if status != 0 {
            return Err(status);
        }
        let mut bytes = vec![0u8; len];
        // SAFETY: the buffer has the size that NVRTC returned.
        let status = unsafe { fill(self.handle, bytes.as_mut_ptr().cast()) };
        if status == 0 { Ok(bytes) } else { Err(status) }
    }
}

/// Loads NVRTC's library of builtins, and never unloads it.
///
/// NVRTC opens it by its bare name at the first compilation, and does not search its own folder.
/// The library of a wheel is found only because it is loaded already.
fn load_builtins(nvrtc: &Path, (major, minor): (u32, u32)) -> std::result::Result<(), Refusal> {
    let name = format!("libnvrtc-builtins.so.{major}.{minor}");
    let beside = nvrtc.parent().map(|folder| folder.join(&name)).filter(|file| file.exists());
    // SAFETY: as for NVRTC itself.
    match unsafe { Library::new(beside.unwrap_or_else(|| PathBuf::from(&name))) } {
        Ok(library) => {
            std::mem::forget(library);
            Ok(())
        }
        Err(_) => Err(Refusal::Unfit(format!("{name} is not beside it"))),
    }
}

/// Compute capabilities that the library compiles for, as 90 for 9.0.
fn architectures(functions: &Functions) -> Vec<u32> {
    let mut count = 0;
    // SAFETY: `count` is live.
    if unsafe { (functions.nvrtcGetNumSupportedArchs)(&mut count) } != 0 {
        return Vec::new();
    }
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: the array has as many elements as the library said it fills.
    if unsafe { (functions.nvrtcGetSupportedArchs)(known.as_mut_ptr()) } != 0 {
        return Vec::new();
    }
    known.into_iter().map(c_int::unsigned_abs).collect()
}

/// The name of a status as in `nvrtc.h`.
fn status_name(status: c_int) -> String {
    const NAMES: [&str; 8] = [
        "SUCCESS",
        "OUT_OF_MEMORY",
        "PROGRAM_CREATION_FAILURE",
        "INVALID_INPUT",
        "INVALID_PROGRAM",
        "INVALID_OPTION",
        "COMPILATION",
        "BUILTIN_OPERATION_FAILURE",
    ];
    match usize::try_from(status).ok().and_then(|status| NAMES.get(status)) {
        Some(name) => format!("NVRTC_ERROR_{name}"),
        None => format!("NVRTC error {status}"),
    }
}

/// The remedy for a missing compiler.
fn remedy(driver: Option<(u32, u32)>) -> String {
    let package = match driver {
        Some((0..=11, _)) => return "update the NVIDIA driver: CUDA 12.0 is the least".to_owned(),
        Some((12, minor)) => format!("nvidia-cuda-nvrtc-cu12==12.{minor}.*"),
        Some((major, minor)) => format!("nvidia-cuda-nvrtc=={major}.{minor}.*"),
        None => "nvidia-cuda-nvrtc==13.0.*".to_owned(),
    };
    format!("install it with `pip install '{package}'`, or set {SETTING} to the library or its folder")
}

/// All candidates, in order. The dynamic loader searches relative names.
fn candidates(path: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = path {
        let path = fs::canonicalize(path).unwrap_or_else(|_| env::current_dir().unwrap_or_default().join(path));
        return if path.is_dir() { in_folder(&path).collect() } else { vec![path] };
    }
    let mut found = Vec::new();
    let executable = env::current_exe().ok();
    found.extend(executable.iter().filter_map(|file| file.parent()).flat_map(in_folder));
    found.extend(MAJORS.map(file_name));
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    for toolkit in toolkits.chain(["/usr/local/cuda".into()]) {
        found
            .extend(["lib64", "lib", "targets/x86_64-linux/lib"].into_iter().flat_map(|folder| in_folder(&toolkit.join(folder))));
    }
    for prefix in python_prefixes() {
        found.extend(wheels(&prefix).iter().flat_map(|folder| in_folder(folder)));
        // Conda keeps its libraries here.
        found.extend(in_folder(&prefix.join("lib")));
    }
    found
}

fn file_name(major: u32) -> PathBuf {
    format!("libnvrtc.so.{major}").into()
}

fn in_folder(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let folder = folder.to_owned();
    MAJORS.into_iter().map(move |major| folder.join(file_name(major)))
}

/// Prefixes of Python installations: environments first, then those on `PATH`. Runs none of them.
fn python_prefixes() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from).collect();
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        let python = folder.join("python3");
        if !python.exists() {
            continue;
        }
        // The link's folder is that of an environment, its target's that of the base Python.
        let target = fs::canonicalize(&python).ok();
        let beside = [Some(folder.as_path()), target.as_deref().and_then(Path::parent)];
        prefixes.extend(beside.into_iter().flatten().filter_map(Path::parent).map(Path::to_owned));
        if folder.ends_with("shims") {
            // pyenv's `python3` is a script that selects one of these versions.
            prefixes.extend(folder.parent().map(|root| root.join("versions")).iter().flat_map(|folder| children(folder)));
        }
    }
    prefixes.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    prefixes
}

/// Library folders of NVIDIA's wheels under a Python's prefix.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for python in children(&prefix.join("lib")) {
        if !python.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")) {
            continue;
        }
        for packages in ["site-packages", "dist-packages"] {
            found.extend(children(&python.join(packages).join("nvidia")).into_iter().map(|wheel| wheel.join("lib")));
        }
    }
    found
}

/// The entries of a folder in descending order, so the newest version first; empty if unreadable.
fn children(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    found.sort_unstable();
    found.reverse();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wheels_of_an_environment_are_found() {
        let prefix = env::temp_dir().join(format!("devicefusion-wheels-{}", std::process::id()));
        let library = prefix.join("lib/python3.12/site-packages/nvidia/cu13/lib");
        fs::create_dir_all(&library).unwrap();
        assert_eq!(wheels(&prefix), vec![library]);
        fs::remove_dir_all(&prefix).unwrap();
    }

    #[test]
    fn explicit_path_is_the_only_candidate() {
        let file = Path::new("/nowhere/libnvrtc.so.13");
        assert_eq!(candidates(Some(file)), vec![file.to_owned()]);
        let folder = env::temp_dir();
        let folder = folder.canonicalize().unwrap();
        assert_eq!(candidates(Some(&folder)), vec![folder.join("libnvrtc.so.13"), folder.join("libnvrtc.so.12")]);
    }

    #[test]
    fn absent_compiler_names_setting_and_package() {
        let error = Nvrtc::open_for(Some(Path::new("/nowhere")), Some((12, 8))).unwrap_err().to_string();
        assert!(error.contains("device.nvrtc_path"), "{error}");
        assert!(error.contains("nvidia-cuda-nvrtc-cu12==12.8.*"), "{error}");
    }
}
