// SPDX-License-Identifier: Apache-2.0
//! Selection of a device, and errors of a machine without one.

use super::*;
use crate::{DriverKind, Error, Selector};

#[test]
fn part_of_a_name_a_number_and_a_platform_select() -> Result<()> {
    let info = context().info().clone();
    let by = |selector: &str, platform: &str| {
        Context::new(DeviceConfig::default().with_selector(selector.parse()?).with_platform(platform))
            .map(|found| found.info().clone())
    };
    let part = &info.name[..info.name.len() / 2].to_uppercase();
    assert_eq!(by(part, &info.platform)?, info);
    assert_eq!(by(&format!("#{}", info.index), &info.platform.to_lowercase())?, info);
    let error = by("auto", "no such platform").unwrap_err().to_string();
    assert!(error.contains("none is of a platform with \"no such platform\" in its name (device.platform)"), "{error}");
    Ok(())
}

#[test]
fn device_without_capabilities_is_refused_by_name() {
    let plan = FaultPlan::masking(|info| (info.fp64, info.atomics64) = (false, false));
    let error = Context::new(config().with_wrap(plan.wrap())).unwrap_err().to_string();
    assert!(error.contains("cannot be used: it lacks double precision (cl_khr_fp64) and 64-bit atomics"), "{error}");
    assert!(error.ends_with("; device.selector chooses another"), "{error}");
}

/// The error of a context on OpenCL. `None` on a machine with a GPU whose loader ignores
/// `OCL_ICD_VENDORS` and opens a driver.
fn error_of_opencl() -> Option<String> {
    match Context::new(DeviceConfig::default().with_selector(Selector::Driver(DriverKind::OpenCl))) {
        Err(error) => Some(error.to_string()),
        Ok(_) if crate::testing::config().unwrap().selector == Selector::Driver(DriverKind::Cuda) => None,
        Ok(context) => panic!("opened {context:?}"),
    }
}

#[test]
fn machine_without_a_platform_says_so() {
    let nowhere = tempfile::tempdir().unwrap();
    let variables = [("OCL_ICD_VENDORS", nowhere.path()), ("CUDA_VISIBLE_DEVICES", "".as_ref())];
    if alone_with("tests::selection::machine_without_a_platform_says_so", &variables) {
        let Some(error) = error_of_opencl() else { return };
        assert!(error.starts_with("device opencl: no driver could be opened: "), "{error}");
        // A machine with a GPU may have no ICD loader.
        let known = ["knows no driver; for a CPU install pocl-opencl-icd", "cannot be opened; install ocl-icd-libopencl1"];
        assert!(known.iter().any(|known| error.contains(&format!("opencl: libOpenCL.so.1 {known}"))), "{error}");
    }
}

#[test]
fn file_of_a_driver_that_cannot_be_opened_is_named_alone_and_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.icd");
    std::fs::write(&file, "/nowhere/libbroken.so\n").unwrap();
    for vendors in [folder.path(), &file] {
        let variables = [("OCL_ICD_VENDORS", vendors), ("CUDA_VISIBLE_DEVICES", "".as_ref())];
        if alone_with("tests::selection::file_of_a_driver_that_cannot_be_opened_is_named_alone_and_in_its_folder", &variables) {
            let Some(error) = error_of_opencl() else { return };
            // A machine with a GPU may have no ICD loader.
            let named = error.contains("broken.icd names \"/nowhere/libbroken.so\": ") && error.contains("No such file");
            assert!(named || error.contains("libOpenCL.so.1 cannot be opened"), "{error}");
            return;
        }
    }
}

#[test]
fn machine_without_the_library_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // The dynamic loader finds this file first, which is no library.
    std::fs::write(folder.path().join("libOpenCL.so.1"), "").unwrap();
    if alone_with(
        "tests::selection::machine_without_the_library_says_so",
        &[("LD_LIBRARY_PATH", folder.path()), ("CUDA_VISIBLE_DEVICES", "".as_ref())],
    ) {
        let problems: Vec<_> = crate::devices().into_iter().filter_map(|entry| entry.problem).collect();
        assert!(problems.iter().any(|problem| problem.starts_with("libOpenCL.so.1 cannot be opened")), "{problems:?}");
        assert!(matches!(Context::new(DeviceConfig::default()), Err(Error::NoDriver { .. })));
    }
}
