// SPDX-License-Identifier: Apache-2.0
//! Which devices there are, what they can do, and how one of them is chosen.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use crate::error::join_problems;
use crate::{Error, Result, cuda, opencl};

/// The two kinds of driver, of equal standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DriverKind {
    /// Any OpenCL driver, for CPUs and GPUs.
    OpenCl,
    /// NVIDIA's driver.
    Cuda,
}

impl fmt::Display for DriverKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenCl => "opencl",
            Self::Cuda => "cuda",
        })
    }
}

/// What a device is built as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The host's own processor.
    Cpu,
    /// A graphics processor.
    Gpu,
    /// Anything else that an OpenCL driver offers.
    Accelerator,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Accelerator => "accelerator",
        })
    }
}

/// What is known of a device before any work is given to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver that offers it.
    pub driver: DriverKind,
    /// Position over all drivers' devices, the `k` of `#k`; [`devices`] assigns it.
    pub index: usize,
    /// Position among the devices of its own driver.
    pub ordinal: usize,
    /// The vendor's name of the device.
    pub name: String,
    /// The vendor's name of the platform, `NVIDIA CUDA` for that driver.
    pub platform: String,
    /// Version of the interface that the device implements.
    pub version: String,
    /// Version of the driver itself.
    pub driver_version: String,
    /// What the device is built as.
    pub kind: DeviceKind,
    /// Cores or multiprocessors.
    pub compute_units: u32,
    /// Bytes of memory that the device has or shares; the host's memory for a CPU.
    pub memory_bytes: u64,
    /// Bytes that one allocation may have.
    pub max_alloc_bytes: u64,
    /// Items that one group may have.
    pub max_group_size: u32,
    /// Bytes of shared memory of one group.
    pub shared_bytes: u32,
    /// Bytes of all arguments of one kernel together.
    pub max_arg_bytes: u32,
    /// Whether kernels can use doubles.
    pub fp64: bool,
    /// Whether kernels can use atomics of 64 bits.
    pub atomics64: bool,
    /// Whether kernels can use host memory in place, without a copy.
    pub unified_memory: bool,
    /// The architecture that programs are compiled for, as in `sm_90`; empty where the driver decides.
    pub arch: String,
}

impl DeviceInfo {
    /// Short name for messages, as in `opencl:0`.
    pub fn label(&self) -> String {
        format!("{}:{}", self.driver, self.ordinal)
    }

    /// What every kernel may use and this device lacks, `None` where nothing is missing.
    pub fn missing(&self) -> Option<String> {
        let missing: Vec<&str> = [
            (self.fp64, "double precision (cl_khr_fp64)"),
            (self.atomics64, "64-bit atomics (cl_khr_int64_base_atomics and cl_khr_int64_extended_atomics)"),
        ]
        .into_iter()
        .filter_map(|(has, name)| (!has).then_some(name))
        .collect();
        (!missing.is_empty()).then(|| format!("it lacks {}", missing.join(" and ")))
    }
}

/// One line of the list of devices: a device, or a driver that offers none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEntry {
    /// The device; `None` where the whole driver is absent or has no device.
    pub info: Option<DeviceInfo>,
    /// The driver.
    pub driver: DriverKind,
    /// Why the device cannot be used, or why the driver is absent; `None` for a usable device.
    pub problem: Option<String>,
}

impl DeviceEntry {
    /// A driver that cannot be used at all.
    pub(crate) fn absent(driver: DriverKind, problem: impl Into<String>) -> Self {
        Self { info: None, driver, problem: Some(problem.into()) }
    }

    /// A device, with the problem that its own capabilities tell.
    pub(crate) fn of(info: DeviceInfo) -> Self {
        Self { driver: info.driver, problem: info.missing(), info: Some(info) }
    }
}

/// Lists the devices of every driver, CUDA's first, and each driver that has none with the reason.
///
/// Never fails: a missing or broken driver is an entry with a problem.
///
/// # Examples
/// ```
/// for entry in device::devices() {
///     match (&entry.info, &entry.problem) {
///         (Some(info), None) => println!("#{} {}", info.index, info.name),
///         (_, problem) => println!("{}: {}", entry.driver, problem.as_deref().unwrap_or_default()),
///     }
/// }
/// ```
pub fn devices() -> Vec<DeviceEntry> {
    devices_for(None)
}

/// Like [`devices`], with the setting `device.nvrtc_path`: whether a CUDA device can be used depends on its compiler.
pub fn devices_for(nvrtc_path: Option<&Path>) -> Vec<DeviceEntry> {
    let mut entries = cuda::entries_for(nvrtc_path);
    entries.extend(opencl::entries());
    for (index, info) in entries.iter_mut().filter_map(|entry| entry.info.as_mut()).enumerate() {
        info.index = index;
    }
    entries
}

/// How a device is chosen.
///
/// # Examples
/// ```
/// use device::Selector;
/// let parse = |text: &str| text.parse::<Selector>();
/// assert_eq!(parse("auto")?, Selector::Auto);
/// assert_eq!(parse("#1")?, Selector::Index(1));
/// assert_eq!(parse("H200")?, Selector::Name("H200".to_owned()));
/// assert!(parse("#x").is_err());
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selector {
    /// The best there is: GPUs before CPUs, CUDA before OpenCL.
    #[default]
    Auto,
    /// The best that OpenCL offers.
    OpenCl,
    /// The first of CUDA's devices.
    Cuda,
    /// The device `#k` of [`devices`].
    Index(usize),
    /// The first usable device whose name contains this, upper and lower case alike.
    Name(String),
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid =
            |reason: &str| Error::Config { setting: "device.selector", value: text.to_owned(), reason: reason.to_owned() };
        match text.trim() {
            "" => Err(invalid("expected auto, opencl, cuda, #k or a part of a device's name")),
            word if word.eq_ignore_ascii_case("auto") => Ok(Self::Auto),
            word if word.eq_ignore_ascii_case("opencl") => Ok(Self::OpenCl),
            word if word.eq_ignore_ascii_case("cuda") => Ok(Self::Cuda),
            word => match word.strip_prefix('#') {
                Some(index) => index.parse().map(Self::Index).map_err(|_| invalid("expected a number after #")),
                None => Ok(Self::Name(word.to_owned())),
            },
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::OpenCl => f.write_str("opencl"),
            Self::Cuda => f.write_str("cuda"),
            Self::Index(index) => write!(f, "#{index}"),
            Self::Name(part) => f.write_str(part),
        }
    }
}

impl Selector {
    /// Chooses one of `entries`, of those whose platform's name contains `platform`.
    pub(crate) fn choose(&self, entries: &[DeviceEntry], platform: Option<&str>) -> Result<DeviceInfo> {
        let contains = |name: &str, part: &str| name.to_lowercase().contains(&part.to_lowercase());
        let mut matching: Vec<(&DeviceInfo, Option<&str>)> = entries
            .iter()
            .filter_map(|entry| Some((entry.info.as_ref()?, entry.problem.as_deref())))
            .filter(|(info, _)| platform.is_none_or(|part| contains(&info.platform, part)))
            .filter(|(info, _)| match self {
                Self::Auto => true,
                Self::OpenCl => info.driver == DriverKind::OpenCl,
                Self::Cuda => info.driver == DriverKind::Cuda,
                Self::Index(index) => info.index == *index,
                Self::Name(part) => contains(&info.name, part),
            })
            .collect();
        // Usable before unusable, GPUs before CPUs; the sort is stable and CUDA's devices come first.
        matching.sort_by_key(|(info, problem)| (problem.is_some(), info.kind == DeviceKind::Cpu));
        match matching.first() {
            Some((info, None)) => Ok((*info).clone()),
            Some((info, Some(problem))) => Err(Error::Unusable { device: info.name.clone(), reason: (*problem).to_owned() }),
            None => Err(self.none_of(entries, platform)),
        }
    }

    /// The error for a selection that nothing matches.
    fn none_of(&self, entries: &[DeviceEntry], platform: Option<&str>) -> Error {
        let listed = |entry: &DeviceEntry| {
            let DeviceInfo { index, name, platform, .. } = entry.info.as_ref()?;
            let problem = entry.problem.as_ref().map(|problem| format!(", unusable: {problem}")).unwrap_or_default();
            Some(format!("#{index} \"{name}\" (platform \"{platform}\"{problem})"))
        };
        // Who asks for one driver is not told what another one lacks.
        let asked = |entry: &&DeviceEntry| match self {
            Self::OpenCl => entry.driver == DriverKind::OpenCl,
            Self::Cuda => entry.driver == DriverKind::Cuda,
            Self::Auto | Self::Index(_) | Self::Name(_) => true,
        };
        let absent = entries.iter().filter(|entry| entry.info.is_none()).filter(asked);
        let absent = join_problems(absent.filter_map(|entry| Some((entry.driver, entry.problem.as_deref()?))));
        let known: Vec<String> = entries.iter().filter_map(listed).collect();
        if known.is_empty() {
            return Error::NoDriver { selector: self.clone(), reason: absent };
        }
        let mut available = format!("there is {}", known.join(", "));
        if !absent.is_empty() {
            available = format!("{available}; {absent}");
        }
        if let Some(part) = platform {
            available = format!("{available}; none is of a platform with \"{part}\" in its name (device.platform)");
        }
        Error::NoDevice { selector: self.clone(), available }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(driver: DriverKind, kind: DeviceKind, name: &str, index: usize) -> DeviceEntry {
        DeviceEntry::of(DeviceInfo {
            driver,
            index,
            ordinal: 0,
            name: name.to_owned(),
            platform: "Some platform".to_owned(),
            version: String::new(),
            driver_version: String::new(),
            kind,
            compute_units: 1,
            memory_bytes: 1,
            max_alloc_bytes: 1,
            max_group_size: 1,
            shared_bytes: 1,
            max_arg_bytes: 1,
            fp64: name != "old",
            atomics64: true,
            unified_memory: true,
            arch: String::new(),
        })
    }

    fn some() -> Vec<DeviceEntry> {
        vec![
            entry(DriverKind::Cuda, DeviceKind::Gpu, "old", 0),
            entry(DriverKind::OpenCl, DeviceKind::Cpu, "host", 1),
            entry(DriverKind::OpenCl, DeviceKind::Gpu, "Fast 9000", 2),
        ]
    }

    #[test]
    fn words_numbers_and_names_select() {
        let parse = |text: &str| text.parse::<Selector>();
        assert_eq!(parse(" CUDA ").unwrap(), Selector::Cuda);
        assert_eq!(parse("OpenCL").unwrap(), Selector::OpenCl);
        for (text, reason) in [("", "expected auto, opencl"), ("#", "expected a number"), ("#-1", "expected a number")] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("device.selector = {text}: {reason}")), "{error}");
        }
        for selector in ["auto", "opencl", "cuda", "#2", "NAME part"] {
            assert_eq!(parse(selector).unwrap().to_string(), selector);
        }
        assert_eq!(parse("#2").unwrap().choose(&some(), None).unwrap().name, "Fast 9000");
        assert_eq!(parse("#1").unwrap().choose(&some(), Some("SOME")).unwrap().name, "host");
    }

    #[test]
    fn auto_takes_the_usable_gpu() -> Result<()> {
        assert_eq!(Selector::Auto.choose(&some(), None)?.name, "Fast 9000");
        assert_eq!(Selector::OpenCl.choose(&some()[..2], None)?.name, "host");
        assert_eq!("fast".parse::<Selector>()?.choose(&some(), Some("some"))?.index, 2);
        Ok(())
    }

    #[test]
    fn unusable_device_says_what_it_lacks() {
        let error = "#0".parse::<Selector>().unwrap().choose(&some(), None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device old cannot be used: it lacks double precision (cl_khr_fp64); device.selector chooses another"
        );
    }

    #[test]
    fn unknown_device_lists_what_there_is() {
        let error = Selector::Name("nope".into()).choose(&some()[1..2], None).unwrap_err();
        assert_eq!(error.to_string(), "device nope: no such device; there is #1 \"host\" (platform \"Some platform\")");
        let mut entries = some();
        entries.truncate(1);
        entries.push(DeviceEntry::absent(DriverKind::OpenCl, "no driver"));
        let error = Selector::Index(7).choose(&entries, Some("foo")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "device #7: no such device; there is #0 \"old\" (platform \"Some platform\", unusable: it lacks double precision \
             (cl_khr_fp64)); opencl: no driver; none is of a platform with \"foo\" in its name (device.platform)"
        );
        let none = [DeviceEntry::absent(DriverKind::Cuda, "libcuda.so.1 is missing"), entries.remove(1)];
        let error = Selector::OpenCl.choose(&none, None);
        assert_eq!(error.unwrap_err().to_string(), "device opencl: no driver could be opened: opencl: no driver");
        let error = Selector::Auto.choose(&none[..1], None);
        assert_eq!(error.unwrap_err().to_string(), "device auto: no driver could be opened: cuda: libcuda.so.1 is missing");
    }
}
