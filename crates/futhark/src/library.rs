// SPDX-License-Identifier: Apache-2.0
//! A library opened at run time, with the addresses of all functions in its manifest.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use device::DriverKind;
use libloading::os::unix::{Library as Handle, RTLD_LOCAL, RTLD_NOW};

use crate::manifest::{ArrayType, Backend, OpaqueType, Type, Variant};
use crate::{Error, Manifest, Primitive, Result};

/// An opaque pointer of the library: a context, a value, or a function.
pub(crate) type Raw = *mut c_void;

/// The type of `free` functions.
pub(crate) type FreeFn = unsafe extern "C" fn(Raw, Raw) -> c_int;

/// The type of functions that give a field of a record: context, result, record.
pub(crate) type ProjectFn = unsafe extern "C" fn(Raw, Raw, Raw) -> c_int;

/// An opened library. Clones are the same one; it stays open until its last context is freed.
#[derive(Clone)]
pub struct Library {
    inner: Arc<LibraryInner>,
}

struct LibraryInner {
    /// Unique among the libraries of the process.
    number: u64,
    manifest: Manifest,
    manifest_path: PathBuf,
    path: PathBuf,
    /// Modification times of the manifest and the object.
    modified: [Option<SystemTime>; 2],
    api: Api,
    entries: BTreeMap<String, FnAddress>,
    arrays: BTreeMap<String, ArrayFns>,
    opaques: BTreeMap<String, OpaqueFns>,
    /// Dropped last: the addresses above point into it.
    _handle: Handle,
}

/// A tuning parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningParam {
    /// Its name.
    pub name: String,
    /// Its class; parameters of the class `threshold` select code versions.
    pub class: String,
}

impl Library {
    /// Opens the library of a manifest: the shared object `x` or `libx` beside `x.json`.
    ///
    /// # Errors
    /// - [`Error::Open`] if a file cannot be read or loaded.
    /// - [`Error::Manifest`].
    /// - [`Error::Mismatch`] if the object lacks a function of the manifest, or was built for
    ///   another back end.
    ///
    /// # Safety
    /// - The object was built from the program of the manifest: its functions have the types that
    ///   the manifest implies.
    /// - The object may run code in this process.
    pub unsafe fn open(manifest: impl AsRef<Path>) -> Result<Library> {
        let path = manifest.as_ref();
        // SAFETY: the caller upholds the contract.
        unsafe { Library::open_object(path, &object_beside(path)?) }
    }

    /// As [`open`](Self::open), with the path of the object.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    ///
    /// # Safety
    /// As [`open`](Self::open).
    pub unsafe fn open_object(manifest: &Path, object: &Path) -> Result<Library> {
        let manifest_path = manifest;
        let modified = [manifest_path, object].map(modified);
        let unreadable = |error: &dyn fmt::Display| Error::Open { path: manifest_path.to_owned(), reason: error.to_string() };
        let json = std::fs::read_to_string(manifest_path).map_err(|error| unreadable(&error))?;
        let manifest = Manifest::parse(&json).map_err(|error| unreadable(&error))?;
        // The loader would search the system's folders for a bare name.
        let unopened = |reason: String| Error::Open { path: object.to_owned(), reason };
        let object = object.canonicalize().map_err(|error| unopened(error.to_string()))?;
        // All libraries export the same names, so each must be local. SAFETY: the caller upholds
        // the contract.
        let handle = unsafe { Handle::open(Some(&object), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| unopened(std::error::Error::source(&error).unwrap_or(&error).to_string()))?;
        let symbols = Symbols { handle: &handle, path: &object };
        check_backend(&symbols, manifest.backend)?;
        let api = Api::resolve(&symbols, manifest.backend)?;
        let entry = |(name, entry): (&String, &crate::manifest::EntryPoint)| Ok((name.clone(), symbols.address(&entry.cfun)?));
        let entries = manifest.entry_points.iter().map(entry).collect::<Result<_>>()?;
        let (mut arrays, mut opaques) = (BTreeMap::new(), BTreeMap::new());
        for (name, ty) in &manifest.types {
            match ty {
                Type::Array(array) => _ = arrays.insert(name.clone(), ArrayFns::resolve(&symbols, array)?),
                Type::Opaque(opaque) => _ = opaques.insert(name.clone(), OpaqueFns::resolve(&symbols, opaque)?),
            }
        }
        let manifest_path = manifest_path.to_owned();
        static OPENED: AtomicU64 = AtomicU64::new(0);
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        let inner = LibraryInner {
            number,
            manifest,
            manifest_path,
            path: object,
            modified,
            api,
            entries,
            arrays,
            opaques,
            _handle: handle,
        };
        Ok(Library { inner: Arc::new(inner) })
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.inner.manifest
    }

    /// The path of the shared object.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The path of the manifest.
    pub fn manifest_path(&self) -> &Path {
        &self.inner.manifest_path
    }

    /// Whether both files are unchanged after the library's opening.
    pub fn is_current(&self) -> bool {
        self.inner.modified == [&self.inner.manifest_path, &self.inner.path].map(|path| modified(path))
    }

    /// The tuning parameters of a context.
    pub fn tuning_params(&self) -> Vec<TuningParam> {
        let api = self.api();
        // SAFETY: needs no context.
        let count = unsafe { (api.tuning_param_count)() };
        let string = |function: unsafe extern "C" fn(c_int) -> *const c_char, index| {
            // SAFETY: the index is below the count; the library owns the string.
            let string = unsafe { function(index) };
            if string.is_null() {
                return String::new();
            }
            // SAFETY: a C string, as documented.
            unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
        };
        let param =
            |index| TuningParam { name: string(api.tuning_param_name, index), class: string(api.tuning_param_class, index) };
        (0..count).map(param).collect()
    }

    /// Whether arrays of this type and rank can wrap foreign memory and expose their own.
    ///
    /// The manifest then names `new_raw` and `values_raw`.
    pub fn has_raw_arrays(&self, element: Primitive, rank: usize) -> bool {
        self.inner.arrays.values().any(|fns| (fns.element, fns.rank) == (element, rank) && fns.raw.is_some())
    }

    /// Whether a context can share a device of this driver
    /// ([`Context::on_device`](crate::Context::on_device)).
    pub fn can_share(&self, driver: DriverKind) -> bool {
        let backend = self.manifest().backend;
        let reveals_context = match backend {
            Backend::OpenCl => true,
            // An array must reveal the library's own driver context.
            Backend::Cuda => self.shared_element().is_some(),
            Backend::C | Backend::Multicore | Backend::Ispc | Backend::Hip => false,
        };
        backend.driver() == Some(driver) && reveals_context
    }

    /// An element type of one-dimensional arrays that expose their memory.
    pub(crate) fn shared_element(&self) -> Option<Primitive> {
        self.inner.arrays.values().find(|fns| fns.rank == 1 && fns.raw.is_some()).map(|fns| fns.element)
    }

    pub(crate) fn number(&self) -> u64 {
        self.inner.number
    }

    pub(crate) fn api(&self) -> &Api {
        &self.inner.api
    }

    pub(crate) fn entry(&self, name: &str) -> Option<FnAddress> {
        self.inner.entries.get(name).copied()
    }

    pub(crate) fn array(&self, type_name: &str) -> Option<&ArrayFns> {
        self.inner.arrays.get(type_name)
    }

    pub(crate) fn opaque(&self, type_name: &str) -> Option<&OpaqueFns> {
        self.inner.opaques.get(type_name)
    }

    /// The name of the array type of an element type and rank.
    pub(crate) fn array_type(&self, element: Primitive, rank: usize) -> Result<&str> {
        let found = self.inner.arrays.iter().find(|(_, fns)| (fns.element, fns.rank) == (element, rank));
        found
            .map(|(name, _)| name.as_str())
            .ok_or_else(|| Error::Usage(format!("the library has no arrays of type {}{}", "[]".repeat(rank), element.name())))
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

/// The address of a function, whose type comes from the manifest.
#[derive(Clone, Copy)]
pub(crate) struct FnAddress(pub Raw);

// SAFETY: an address of code.
unsafe impl Send for FnAddress {}
// SAFETY: as above.
unsafe impl Sync for FnAddress {}

/// The functions that depend on the back end.
#[derive(Clone, Copy)]
pub(crate) enum BackendApi {
    /// `c` and `hip`: none.
    Plain,
    /// `multicore` and `ispc`. Some objects lack the function.
    Threads { config_set_num_threads: Option<unsafe extern "C" fn(Raw, c_int)> },
    /// `opencl`.
    OpenCl { config_set_command_queue: unsafe extern "C" fn(Raw, Raw) },
    /// `cuda`. Only newer compilers have unified memory.
    Cuda {
        /// That of `opencl` expects other names.
        config_set_device: unsafe extern "C" fn(Raw, *const c_char),
        config_set_unified_memory: Option<unsafe extern "C" fn(Raw, c_int)>,
    },
}

impl BackendApi {
    fn resolve(symbols: &Symbols<'_>, backend: Backend) -> Result<BackendApi> {
        // SAFETY: each has its documented type.
        unsafe {
            Ok(match backend {
                Backend::C | Backend::Hip => BackendApi::Plain,
                Backend::Multicore | Backend::Ispc => {
                    BackendApi::Threads { config_set_num_threads: symbols.find("futhark_context_config_set_num_threads") }
                }
                Backend::OpenCl => {
                    BackendApi::OpenCl { config_set_command_queue: symbols.get("futhark_context_config_set_command_queue")? }
                }
                Backend::Cuda => BackendApi::Cuda {
                    config_set_device: symbols.get("futhark_context_config_set_device")?,
                    config_set_unified_memory: symbols.find("futhark_context_config_set_unified_memory"),
                },
            })
        }
    }
}

/// The functions of every library.
pub(crate) struct Api {
    pub config_new: unsafe extern "C" fn() -> Raw,
    pub config_free: unsafe extern "C" fn(Raw),
    pub config_set_debugging: unsafe extern "C" fn(Raw, c_int),
    pub config_set_profiling: unsafe extern "C" fn(Raw, c_int),
    pub config_set_logging: unsafe extern "C" fn(Raw, c_int),
    pub config_set_tuning_param: unsafe extern "C" fn(Raw, *const c_char, usize) -> c_int,
    pub config_set_cache_file: unsafe extern "C" fn(Raw, *const c_char),
    pub backend: BackendApi,
    pub tuning_param_count: unsafe extern "C" fn() -> c_int,
    pub tuning_param_name: unsafe extern "C" fn(c_int) -> *const c_char,
    pub tuning_param_class: unsafe extern "C" fn(c_int) -> *const c_char,
    pub new: unsafe extern "C" fn(Raw) -> Raw,
    pub free: unsafe extern "C" fn(Raw),
    pub sync: unsafe extern "C" fn(Raw) -> c_int,
    pub get_error: unsafe extern "C" fn(Raw) -> *mut c_char,
    pub report: unsafe extern "C" fn(Raw) -> *mut c_char,
    pub clear_caches: unsafe extern "C" fn(Raw) -> c_int,
    pub pause_profiling: unsafe extern "C" fn(Raw),
    pub unpause_profiling: unsafe extern "C" fn(Raw),
}

impl Api {
    fn resolve(symbols: &Symbols<'_>, backend: Backend) -> Result<Api> {
        // SAFETY: each has its documented type.
        unsafe {
            Ok(Api {
                backend: BackendApi::resolve(symbols, backend)?,
                config_new: symbols.get("futhark_context_config_new")?,
                config_free: symbols.get("futhark_context_config_free")?,
                config_set_debugging: symbols.get("futhark_context_config_set_debugging")?,
                config_set_profiling: symbols.get("futhark_context_config_set_profiling")?,
                config_set_logging: symbols.get("futhark_context_config_set_logging")?,
                config_set_tuning_param: symbols.get("futhark_context_config_set_tuning_param")?,
                config_set_cache_file: symbols.get("futhark_context_config_set_cache_file")?,
                tuning_param_count: symbols.get("futhark_get_tuning_param_count")?,
                tuning_param_name: symbols.get("futhark_get_tuning_param_name")?,
                tuning_param_class: symbols.get("futhark_get_tuning_param_class")?,
                new: symbols.get("futhark_context_new")?,
                free: symbols.get("futhark_context_free")?,
                sync: symbols.get("futhark_context_sync")?,
                get_error: symbols.get("futhark_context_get_error")?,
                report: symbols.get("futhark_context_report")?,
                clear_caches: symbols.get("futhark_context_clear_caches")?,
                pause_profiling: symbols.get("futhark_context_pause_profiling")?,
                unpause_profiling: symbols.get("futhark_context_unpause_profiling")?,
            })
        }
    }
}

/// The functions of an array type.
#[derive(Clone, Copy)]
pub(crate) struct ArrayFns {
    pub element: Primitive,
    pub rank: usize,
    /// Takes as many dimensions as the rank.
    pub new: FnAddress,
    pub free: FreeFn,
    pub shape: unsafe extern "C" fn(Raw, Raw) -> *const i64,
    pub values: unsafe extern "C" fn(Raw, Raw, Raw) -> c_int,
    /// `new_raw`, with as many dimensions as `new`, and `values_raw`.
    pub raw: Option<(FnAddress, unsafe extern "C" fn(Raw, Raw) -> Raw)>,
}

impl ArrayFns {
    fn resolve(symbols: &Symbols<'_>, array: &ArrayType) -> Result<ArrayFns> {
        let new = symbols.address(&array.ops.new)?;
        // SAFETY: the manifest gives their roles, which have documented types.
        let (free, shape, values) =
            unsafe { (symbols.get(&array.ops.free)?, symbols.get(&array.ops.shape)?, symbols.get(&array.ops.values)?) };
        let raw = match (&array.ops.new_raw, &array.ops.values_raw) {
            // SAFETY: as above.
            (Some(new_raw), Some(values_raw)) => Some((symbols.address(new_raw)?, unsafe { symbols.get(values_raw) }?)),
            _ => None,
        };
        Ok(ArrayFns { element: array.elemtype, rank: array.rank, new, free, shape, values, raw })
    }
}

/// The functions of an opaque type.
pub(crate) struct OpaqueFns {
    pub free: FreeFn,
    pub store: Option<unsafe extern "C" fn(Raw, Raw, *mut Raw, *mut usize) -> c_int>,
    pub restore: Option<unsafe extern "C" fn(Raw, *const c_void) -> Raw>,
    pub content: ContentFns,
}

/// The functions for the content of an opaque type.
pub(crate) enum ContentFns {
    /// Only the library knows the content.
    Hidden,
    Record(RecordFns),
    Sum(SumFns),
}

/// The functions of a record.
pub(crate) struct RecordFns {
    pub new: FnAddress,
    /// One per field.
    pub project: Vec<ProjectFn>,
}

/// The functions of a sum type.
pub(crate) struct SumFns {
    pub variant: FreeFn,
    /// Constructor and destructor of each variant.
    pub variants: Vec<(FnAddress, FnAddress)>,
}

impl OpaqueFns {
    fn resolve(symbols: &Symbols<'_>, opaque: &OpaqueType) -> Result<OpaqueFns> {
        // SAFETY: the manifest gives their roles, which have documented types.
        unsafe {
            let ops = &opaque.ops;
            let store = ops.store.as_ref().map(|name| symbols.get(name)).transpose()?;
            let restore = ops.restore.as_ref().map(|name| symbols.get(name)).transpose()?;
            let content = match (&opaque.record, &opaque.sum) {
                (Some(record), _) => {
                    let projections = record.fields.iter().map(|field| symbols.get(&field.project));
                    let project = projections.collect::<Result<_>>()?;
                    ContentFns::Record(RecordFns { new: symbols.address(&record.new)?, project })
                }
                (None, Some(sum)) => {
                    let addresses =
                        |variant: &Variant| Ok((symbols.address(&variant.construct)?, symbols.address(&variant.destruct)?));
                    let variants = sum.variants.iter().map(addresses).collect::<Result<_>>()?;
                    ContentFns::Sum(SumFns { variant: symbols.get(&sum.variant)?, variants })
                }
                (None, None) => ContentFns::Hidden,
            };
            Ok(OpaqueFns { free: symbols.get(&ops.free)?, store, restore, content })
        }
    }
}

/// Looks up symbols of the shared object.
struct Symbols<'a> {
    handle: &'a Handle,
    path: &'a Path,
}

impl Symbols<'_> {
    /// A function that some objects lack.
    ///
    /// # Safety
    /// `T` is the type of the function with that name.
    unsafe fn find<T: Copy>(&self, name: &str) -> Option<T> {
        // SAFETY: the caller upholds the contract.
        unsafe { self.handle.get::<T>(name) }.ok().map(|symbol| *symbol)
    }

    /// A function that each object has.
    ///
    /// # Safety
    /// As [`find`](Self::find).
    unsafe fn get<T: Copy>(&self, name: &str) -> Result<T> {
        let missing = || Error::Mismatch { path: self.path.to_owned(), reason: format!("it has no function {name}") };
        // SAFETY: the caller upholds the contract.
        unsafe { self.find(name) }.ok_or_else(missing)
    }

    fn address(&self, name: &str) -> Result<FnAddress> {
        // SAFETY: an untyped address fits any symbol.
        Ok(FnAddress(unsafe { self.get::<Raw>(name) }?))
    }

    fn has(&self, name: &str) -> bool {
        self.address(name).is_ok()
    }
}

/// Checks functions that only one back end has against the manifest's back end.
fn check_backend(symbols: &Symbols<'_>, backend: Backend) -> Result<()> {
    for (name, only) in [
        ("futhark_context_config_set_command_queue", Backend::OpenCl),
        ("futhark_context_config_add_nvrtc_option", Backend::Cuda),
    ] {
        if symbols.has(name) != (backend == only) {
            let has = if symbols.has(name) { "has the" } else { "lacks the" };
            let reason = format!("it {has} function {name}, but the manifest is of the back end {backend:?}");
            return Err(Error::Mismatch { path: symbols.path.to_owned(), reason });
        }
    }
    Ok(())
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|file| file.modified()).ok()
}

fn object_beside(manifest: &Path) -> Result<PathBuf> {
    manifest.metadata().map_err(|error| Error::Open { path: manifest.to_owned(), reason: error.to_string() })?;
    let stem = manifest.file_stem().unwrap_or_default().to_string_lossy();
    let suffix = std::env::consts::DLL_SUFFIX;
    let names = [format!("{stem}{suffix}"), format!("lib{stem}{suffix}")];
    let found = names.iter().map(|name| manifest.with_file_name(name)).find(|path| path.exists());
    found.ok_or_else(|| Error::Open {
        path: manifest.to_owned(),
        reason: format!("there is neither {} nor {} beside it", names[0], names[1]),
    })
}
