// SPDX-License-Identifier: Apache-2.0
//! NVRTC compiles kernels of the gpu profile: to PTX for the oldest devices, to machine code for a
//! recent one.
//!
//! `scripts/nvrtc.sh` installs NVRTC; `NVRTC_PATH` names its folder.

use std::path::{Path, PathBuf};

use device::cuda::nvrtc::{KernelUsage, Nvrtc, usage};
use device::testing::sample;
use kernels::codegen::Profile;
use kernels::ops::LONGEST_OPTIMIZED;
use kernels::prelude::Section;

use crate::sample::{Sample, programs, sized_programs};
use crate::{in_parallel, missing};

const REQUIRED: &str = "DEVICEFUSION_REQUIRE_NVRTC";

/// Machine code tells registers and spills; PTX shows that older devices are supported.
const MACHINE: &str = "sm_90";
const PORTABLE: &str = "compute_75";

fn nvrtc() -> Option<Nvrtc> {
    let wheel = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/nvrtc/nvidia/cu13/lib");
    let path = std::env::var_os("NVRTC_PATH").map(PathBuf::from).or_else(|| wheel.is_dir().then_some(wheel));
    match Nvrtc::open(path.as_deref()) {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            missing("NVRTC", REQUIRED, &format!("scripts/nvrtc.sh installs it ({error})"));
            None
        }
    }
}

/// Compiles a source to PTX and machine code, as the driver does; the resources of its kernels, or
/// the errors.
fn compile(nvrtc: &Nvrtc, text: &str) -> Result<Vec<KernelUsage>, String> {
    let error = |error: device::Error| match error {
        device::Error::CompileFailed { device, log, .. } => {
            format!("for {device}:\n{}", log.lines().take(12).collect::<Vec<_>>().join("\n"))
        }
        other => other.to_string(),
    };
    let is_optimized = text.len() <= LONGEST_OPTIMIZED;
    let options = if is_optimized { &[] } else { nvrtc.options_against_optimization() };
    let mut options: Vec<String> = options.iter().map(|option| option.to_string()).collect();
    nvrtc.compile(text, PORTABLE, &options).map_err(error)?;
    options.push("--ptxas-options=-v".to_owned());
    let compiled = nvrtc.compile(text, MACHINE, &options).map_err(error)?;
    let kernels = usage(&compiled.log);
    match kernels.iter().find(|kernel| kernel.spill_bytes > 0) {
        Some(kernel) => Err(format!("spills registers: {kernel:?}")),
        None if kernels.is_empty() => Err(format!("no kernels in the log:\n{}", compiled.log)),
        None => Ok(kernels),
    }
}

#[track_caller]
fn check(nvrtc: &Nvrtc, samples: &[Sample]) {
    let results =
        in_parallel(samples, |sample| compile(nvrtc, &sample.text).map_err(|error| format!("{}: {error}", sample.name)));
    let (mut used, mut failures) = (Vec::new(), Vec::new());
    for (sample, result) in samples.iter().zip(results) {
        match result {
            Ok(kernels) => used.extend(kernels.into_iter().map(|kernel| (sample, kernel))),
            Err(failure) => failures.push(failure),
        }
    }
    used.sort_by_key(|(_, kernel)| std::cmp::Reverse((kernel.registers, kernel.stack_bytes)));
    eprintln!("{} programs, {} kernels, 0 spills; most registers:", samples.len() - failures.len(), used.len());
    for (sample, kernel) in used.iter().take(10) {
        let KernelUsage { kernel, registers, shared_bytes, stack_bytes, .. } = kernel;
        eprintln!("{registers:4} registers {shared_bytes:6} shared {stack_bytes:5} stack  {kernel} of {}", sample.name);
    }
    let shown: Vec<&str> = failures.iter().take(10).map(String::as_str).collect();
    assert!(failures.is_empty(), "{} of {} programs fail:\n{}", failures.len(), samples.len(), shown.join("\n"));
}

/// A part of the programs, because each takes a second.
#[test]
fn gpu_programs_compile_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let samples = programs(Profile::Gpu);
    assert!(samples.len() > 300, "a sample of {} programs", samples.len());
    check(&nvrtc, &sample(samples).unwrap());
}

/// The smallest and largest work-groups. The largest have fewer registers per work-item; shared
/// memory must fit any device.
#[test]
fn other_work_group_sizes_compile_and_fit() {
    let Some(nvrtc) = nvrtc() else { return };
    for items in [32, 512] {
        let samples = sized_programs(items);
        assert!(samples.len() > 20, "a sample of {} programs", samples.len());
        let samples = sample(samples).unwrap();
        let used = in_parallel(&samples, |sample| {
            nvrtc.compile(&sample.text, MACHINE, &["--ptxas-options=-v".to_owned()]).map(|compiled| usage(&compiled.log))
        });
        for (sample, used) in samples.iter().zip(used) {
            for kernel in used.unwrap_or_else(|error| panic!("{}: {error}", sample.name)) {
                let registers = kernel.registers * items;
                assert!(registers <= 1 << 16 && kernel.shared_bytes <= 48 << 10, "{}: {kernel:?}", sample.name);
            }
        }
    }
}

/// Sources of other tests in the folder `DEVICEFUSION_KERNEL_SOURCES`. Those tests ran with
/// `DEVICEFUSION_DUMP_KERNELS` set to it, as in `.ci/run`. The cpu profile is excluded.
#[test]
#[ignore = "needs the sources that other tests generate: scripts/nvrtc-gate.sh"]
fn dumped_programs_compile_without_spills() {
    let folder = std::env::var("DEVICEFUSION_KERNEL_SOURCES").expect("DEVICEFUSION_KERNEL_SOURCES names a folder of sources");
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}"));
    let paths = files.map(|file| file.unwrap().path()).filter(|path| path.extension().is_some_and(|extension| extension == "cl"));
    let text = |path: &Path| std::fs::read_to_string(path).unwrap();
    let samples = paths.map(|path| Sample { name: path.display().to_string(), text: text(&path), megakernel_part: None });
    // Sources of sinks begin with their profile; those of expressions' tests begin with the
    // prelude. Tests of the crate `device` compile sources that need their own options.
    let generated = |sample: &Sample| {
        let first = sample.text.lines().next().unwrap_or_default();
        let for_gpus = first.ends_with("profile gpu") || sample.text.starts_with(Section::Base.source());
        // A projection of plain columns has no kernel.
        for_gpus && sample.text.contains("KERNEL void")
    };
    let mut samples: Vec<Sample> = samples.filter(generated).collect();
    samples.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(
        !samples.is_empty(),
        "{folder} holds no texts of the gpu profile: did the tests run with DEVICEFUSION_DUMP_KERNELS={folder}?"
    );
    let Some(nvrtc) = nvrtc() else { return };
    check(&nvrtc, &samples);
}
