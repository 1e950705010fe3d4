// SPDX-License-Identifier: Apache-2.0
//! NVRTC without a GPU: compilation, messages and refused versions.
//!
//! `scripts/nvrtc.sh` installs it. Without it, and without `NVRTC_PATH`, the tests are skipped.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::thread;

use device::Error;
use device::cuda::nvrtc::{Nvrtc, usage};

const SUM: &str = r#"
extern "C" __global__ void sum(const double* values, unsigned long long n, double* total) {
    __shared__ double parts[256];
    double own = 0;
    for (unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) own += values[i];
    parts[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x == 0) for (int i = 0; i < 256; ++i) atomicAdd(total, parts[i]);
}
extern "C" __global__ void scale(double* values, double by, double plus) { values[threadIdx.x] = values[threadIdx.x] * by + plus; }
"#;

/// The folder of the library: `NVRTC_PATH`, else that of `scripts/nvrtc.sh`.
fn installed() -> Option<PathBuf> {
    let wheel = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc/nvidia/cu13/lib");
    let found = std::env::var_os("NVRTC_PATH").map(PathBuf::from).or_else(|| wheel.is_dir().then_some(wheel));
    if found.is_none() {
        eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
    }
    found
}

fn nvrtc() -> Option<Nvrtc> {
    installed().map(|path| Nvrtc::open(Some(&path)).unwrap())
}

#[test]
fn cubin_names_its_kernels_and_spills_nothing() {
    let Some(nvrtc) = nvrtc() else { return };
    let compiled = nvrtc.compile(SUM, "sm_90", &["--ptxas-options=-v".to_owned()]).unwrap();
    let mut kernels = compiled.kernels();
    kernels.sort();
    assert_eq!(kernels, ["scale", "sum"]);
    let mut used = usage(&compiled.log);
    used.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    assert_eq!(used.iter().map(|kernel| kernel.kernel.as_str()).collect::<Vec<_>>(), ["scale", "sum"]);
    assert!(used.iter().all(|kernel| kernel.registers > 0 && kernel.spill_bytes == 0), "{used:?}");
    assert_eq!(used[1].shared_bytes, 2048);
}

#[test]
fn ptx_names_its_kernels() {
    let Some(nvrtc) = nvrtc() else { return };
    let compiled = nvrtc.compile(SUM, "compute_75", &[]).unwrap();
    let mut kernels = compiled.kernels();
    kernels.sort();
    assert_eq!(kernels, ["scale", "sum"]);
    assert!(std::str::from_utf8(&compiled.binary).unwrap().contains(".target sm_75"));
}

#[test]
fn product_and_sum_round_twice() {
    let Some(nvrtc) = nvrtc() else { return };
    let ptx = nvrtc.compile(SUM, "compute_75", &[]).unwrap().binary;
    let ptx = String::from_utf8(ptx).unwrap();
    assert!(ptx.contains("mul") && !ptx.contains("fma"), "{ptx}");
}

#[test]
fn spills_are_counted() {
    let Some(nvrtc) = nvrtc() else { return };
    let loads: String = (0..64).map(|i| format!("double a{i} = in[{i}];\n")).collect();
    let uses: String = (0..64).map(|i| format!("out[{i}] = a{i} * in[0] + a{};\n", 63 - i)).collect();
    let source = format!(
        "extern \"C\" __global__ void wide(const volatile double* in, volatile double* out) {{\n{loads}__syncthreads();\n{uses}}}"
    );
    let options = ["--ptxas-options=-v".to_owned(), "--maxrregcount=24".to_owned()];
    let used = usage(&nvrtc.compile(&source, "sm_90", &options).unwrap().log);
    assert!(used[0].spill_bytes > 0 && used[0].stack_bytes > 0, "{used:?}");
}

#[test]
fn failed_compilation_returns_source_and_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = "extern \"C\" __global__ void k() {\n    undeclared = 1;\n}";
    match nvrtc.compile(source, "sm_90", &[]).unwrap_err() {
        Error::CompileFailed { kernel_source: given, log, .. } => {
            assert_eq!(&*given, source);
            assert!(log.contains("kernels.cu(2)") && log.contains("undeclared"), "{log}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn unknown_option_architecture_and_nul_are_errors() {
    let Some(nvrtc) = nvrtc() else { return };
    let cases = [(SUM, "sm_90", "--no-such-option"), (SUM, "sm_12345", "-DA"), (SUM, "sm_90", "-DA\0"), ("\0", "sm_90", "-DA")];
    for (source, arch, option) in cases {
        let error = nvrtc.compile(source, arch, &[option.to_owned()]).unwrap_err();
        assert!(matches!(error, Error::CompileFailed { ref log, .. } if !log.is_empty()), "{error}");
    }
}

#[test]
fn newer_than_the_driver_is_refused() {
    let Some(path) = installed() else { return };
    let (major, minor) = Nvrtc::open(Some(&path)).unwrap().version();
    assert!(Nvrtc::open_for(Some(&path), Some((major, minor))).is_ok());
    assert!(Nvrtc::open_for(Some(&path), Some((major, minor + 1))).is_ok());
    let error = Nvrtc::open_for(Some(&path), Some((major - 1, 9))).unwrap_err().to_string();
    assert!(error.contains(&format!("NVRTC {major}.{minor} is newer than driver {}.9", major - 1)), "{error}");
    assert!(error.contains("device.nvrtc_path") && error.contains("pip install"), "{error}");
}

#[test]
fn file_and_folder_open_alike() {
    let Some(path) = installed().filter(|path| path.is_dir()) else { return };
    let by_folder = Nvrtc::open(Some(&path)).unwrap();
    let by_file = Nvrtc::open(Some(by_folder.path())).unwrap();
    // A folder may name one library by several links.
    assert_eq!(by_file.path().canonicalize().unwrap(), by_folder.path().canonicalize().unwrap());
    assert!(by_file.path().is_absolute());
}

#[test]
fn file_that_is_no_library_is_refused() {
    let file = std::env::temp_dir().join(format!("devicefusion-no-nvrtc-{}", std::process::id()));
    std::fs::write(&file, "not a library").unwrap();
    let error = Nvrtc::open(Some(&file)).unwrap_err().to_string();
    std::fs::remove_file(&file).unwrap();
    assert!(error.contains("devicefusion-no-nvrtc") && error.contains("device.nvrtc_path"), "{error}");
}

#[test]
fn target_is_the_device_or_ptx_for_a_newer_one() {
    let Some(nvrtc) = nvrtc() else { return };
    assert_eq!(nvrtc.target(90).as_deref(), Some("sm_90"));
    assert!(nvrtc.target(999).unwrap().starts_with("compute_"));
    assert_eq!(nvrtc.target(20), None);
}

#[test]
fn threads_compile_at_once() {
    let Some(nvrtc) = nvrtc() else { return };
    thread::scope(|scope| {
        for thread in 0..4 {
            let nvrtc = &nvrtc;
            scope.spawn(move || {
                let source = format!("extern \"C\" __global__ void k{thread}(int* a) {{ a[0] = {thread}; }}");
                assert_eq!(nvrtc.compile(&source, "sm_90", &[]).unwrap().kernels(), [format!("k{thread}")]);
            });
        }
    });
}

#[test]
fn discovery_never_fails_and_says_why() {
    let entries = device::cuda::devices();
    assert!(!entries.is_empty());
    for entry in &entries {
        assert!(entry.info.is_some() || entry.problem.as_ref().is_some_and(|problem| !problem.is_empty()));
    }
    // SAFETY: the initialisers of NVIDIA's library have no preconditions.
    if unsafe { libloading::Library::new("libcuda.so.1") }.is_err() {
        let problem = entries[0].problem.as_deref();
        assert_eq!(problem, Some("libcuda.so.1 not found: no NVIDIA driver on this machine"));
    }
}
