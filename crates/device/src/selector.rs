// SPDX-License-Identifier: Apache-2.0
//! Selection of a device by the setting `device.selector`.

use std::fmt;
use std::str::FromStr;

use crate::drivers::DriverKind;
use crate::info::{DeviceEntry, DeviceInfo, DeviceKind};
use crate::{Error, Result};

/// Rule that selects a device.
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
    /// The best device: GPUs before CPUs, CUDA before OpenCL.
    #[default]
    Auto,
    /// The best device of one driver.
    Driver(DriverKind),
    /// The device `#k` of [`devices`](crate::devices).
    Index(usize),
    /// The first usable device whose name contains this string, case-insensitively.
    Name(String),
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid =
            |reason: &str| Error::Config { setting: "device.selector", value: text.to_owned(), reason: reason.to_owned() };
        match text.trim() {
            "" => {
                let mut names = DriverKind::ALL.map(DriverKind::name);
                names.reverse();
                Err(invalid(&format!("expected auto, {}, #k or a part of a device's name", names.join(", "))))
            }
            name if name.eq_ignore_ascii_case("auto") => Ok(Self::Auto),
            name => match (
                name.strip_prefix('#'),
                DriverKind::ALL.into_iter().find(|driver| name.eq_ignore_ascii_case(driver.name())),
            ) {
                (Some(index), _) => index.parse().map(Self::Index).map_err(|_| invalid("expected a number after #")),
                (None, Some(driver)) => Ok(Self::Driver(driver)),
                (None, None) => Ok(Self::Name(name.to_owned())),
            },
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Driver(driver) => f.write_str(driver.name()),
            Self::Index(index) => write!(f, "#{index}"),
            Self::Name(part) => f.write_str(part),
        }
    }
}

impl Selector {
    /// Selects one of `entries` whose platform's name contains `platform`.
    pub(crate) fn choose(&self, entries: &[DeviceEntry], platform: Option<&str>) -> Result<DeviceInfo> {
        let contains = |name: &str, part: &str| name.to_lowercase().contains(&part.to_lowercase());
        let mut matching: Vec<(&DeviceInfo, Option<&str>)> = entries
            .iter()
            .filter_map(|entry| Some((entry.info.as_ref()?, entry.problem.as_deref())))
            .filter(|(info, _)| platform.is_none_or(|part| contains(&info.platform, part)))
            .filter(|(info, _)| match self {
                Self::Auto => true,
                Self::Driver(driver) => info.driver == *driver,
                Self::Index(index) => info.index == *index,
                Self::Name(part) => contains(&info.name, part),
            })
            .collect();
        // Usable before unusable, GPUs before CPUs. The sort is stable: CUDA's devices come first.
        matching.sort_by_key(|(info, problem)| (problem.is_some(), info.kind == DeviceKind::Cpu));
        match matching.first() {
            Some((info, None)) => Ok((*info).clone()),
            Some((info, Some(problem))) => Err(Error::Unusable { device: info.name.clone(), reason: (*problem).to_owned() }),
            None => Err(self.no_match(entries, platform)),
        }
    }

    /// The error where no device matches.
    fn no_match(&self, entries: &[DeviceEntry], platform: Option<&str>) -> Error {
        let listed = |entry: &DeviceEntry| {
            let DeviceInfo { index, name, platform, .. } = entry.info.as_ref()?;
            let problem = entry.problem.as_ref().map(|problem| format!(", unusable: {problem}")).unwrap_or_default();
            Some(format!("#{index} \"{name}\" (platform \"{platform}\"{problem})"))
        };
        // The error for one driver leaves out the problems of the others.
        let asked = |entry: &&DeviceEntry| match self {
            Self::Driver(driver) => entry.driver == *driver,
            Self::Auto | Self::Index(_) | Self::Name(_) => true,
        };
        let absent = entries.iter().filter(|entry| entry.info.is_none()).filter(asked);
        let absent = absent.filter_map(|entry| Some(format!("{}: {}", entry.driver, entry.problem.as_deref()?)));
        let absent = absent.collect::<Vec<_>>().join("; ");
        let known: Vec<String> = entries.iter().filter_map(listed).collect();
        if known.is_empty() {
            return Error::NoDriver { selector: self.to_string(), reason: absent };
        }
        let mut available = format!("there is {}", known.join(", "));
        if !absent.is_empty() {
            available = format!("{available}; {absent}");
        }
        if let Some(part) = platform {
            available = format!("{available}; none is of a platform with \"{part}\" in its name (device.platform)");
        }
        Error::NoDevice { selector: self.to_string(), available }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(driver: DriverKind, kind: DeviceKind, name: &str, index: usize) -> DeviceEntry {
        DeviceEntry::new(DeviceInfo {
            driver,
            index,
            name: name.to_owned(),
            kind,
            fp64: name != "old",
            unified_memory: true,
            ..crate::testing::some_info()
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
    fn keywords_indices_and_names_select() {
        let parse = |text: &str| text.parse::<Selector>();
        assert_eq!(parse(" CUDA ").unwrap(), Selector::Driver(DriverKind::Cuda));
        assert_eq!(parse("OpenCL").unwrap(), Selector::Driver(DriverKind::OpenCl));
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
        assert_eq!(Selector::Driver(DriverKind::OpenCl).choose(&some()[..2], None)?.name, "host");
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
    fn unknown_device_lists_the_available_ones() {
        let error = Selector::Name("nope".into()).choose(&some()[1..2], None).unwrap_err();
        assert_eq!(error.to_string(), "device nope: no such device; there is #1 \"host\" (platform \"Some platform\")");
        let mut entries = some();
        entries.truncate(1);
        entries.push(DeviceEntry::absent(DriverKind::OpenCl, "no driver"));
        let error = Selector::Index(7).choose(&entries, Some("foo")).unwrap_err();
        let old = "#0 \"old\" (platform \"Some platform\", unusable: it lacks double precision (cl_khr_fp64))";
        let platform = "none is of a platform with \"foo\" in its name (device.platform)";
        assert_eq!(error.to_string(), format!("device #7: no such device; there is {old}; opencl: no driver; {platform}"));
        let none = [DeviceEntry::absent(DriverKind::Cuda, "libcuda.so.1 is missing"), entries.remove(1)];
        let error = Selector::Driver(DriverKind::OpenCl).choose(&none, None);
        assert_eq!(error.unwrap_err().to_string(), "device opencl: no driver could be opened: opencl: no driver");
        let error = Selector::Auto.choose(&none[..1], None);
        assert_eq!(error.unwrap_err().to_string(), "device auto: no driver could be opened: cuda: libcuda.so.1 is missing");
    }
}
