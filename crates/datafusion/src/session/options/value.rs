// SPDX-License-Identifier: Apache-2.0
//! Kinds of setting values: parsing, printing, and errors for bad values.

use std::collections::BTreeSet;
use std::str::FromStr;

use datafusion::common::{Result, config_err};
use device::{DriverKind, Selector};

/// A kind of values of type `T`.
pub(super) trait Value<T> {
    /// Parses a value.
    ///
    /// # Errors
    /// If the string is no such value; the message names the accepted ones.
    fn parse(&self, key: &str, string: &str) -> Result<T>;

    /// The value as `SHOW` prints it.
    fn show(&self, value: &T) -> String;
}

/// Any string.
pub(super) struct AnyString;

impl Value<String> for AnyString {
    fn parse(&self, _key: &str, string: &str) -> Result<String> {
        Ok(string.to_string())
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// Options of a kernel compiler. Others than these could redefine keywords of the kernels'
/// language, or read files.
pub(super) struct CompilerFlags;

impl Value<String> for CompilerFlags {
    fn parse(&self, key: &str, string: &str) -> Result<String> {
        let is_name = |value: &str| value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._,".contains(&byte));
        let compilers = DriverKind::ALL.map(DriverKind::compiler_options);
        let is_known = |option: &str| {
            compilers.iter().any(|known| {
                known.flags.contains(&option) || known.settings.iter().any(|name| option.strip_prefix(name).is_some_and(is_name))
            })
        };
        match string.split_whitespace().find(|option| !is_known(option)) {
            None => Ok(string.to_string()),
            Some(option) => {
                let known = compilers.iter().flat_map(|known| [known.flags, known.settings]).flatten().copied();
                let known = Vec::from_iter(BTreeSet::from_iter(known)).join(" ");
                config_err!("{key}: '{option}' is not one of the known options: {known}")
            }
        }
    }

    fn show(&self, value: &String) -> String {
        value.clone()
    }
}

/// 'true' or 'false'.
pub(super) struct Flag;

const FLAGS: Choice<bool> = Choice(&[("true", true), ("false", false)]);

impl Value<bool> for Flag {
    fn parse(&self, key: &str, string: &str) -> Result<bool> {
        FLAGS.parse(key, string)
    }

    fn show(&self, value: &bool) -> String {
        value.to_string()
    }
}

/// One of several names, in upper or lower case.
pub(super) struct Choice<T: 'static>(pub &'static [(&'static str, T)]);

impl<T: Copy + PartialEq> Value<T> for Choice<T> {
    fn parse(&self, key: &str, string: &str) -> Result<T> {
        match self.0.iter().find(|(name, _)| name.eq_ignore_ascii_case(string)) {
            Some((_, choice)) => Ok(*choice),
            None => {
                let names: Vec<&str> = self.0.iter().map(|(name, _)| *name).collect();
                config_err!("{key} = '{string}': must be one of {}", names.join(", "))
            }
        }
    }

    fn show(&self, value: &T) -> String {
        self.0.iter().find(|(_, choice)| choice == value).map_or_else(String::new, |(name, _)| (*name).to_string())
    }
}

/// A whole number from 0 to `most`.
pub(super) struct Number {
    pub most: usize,
}

impl Value<usize> for Number {
    fn parse(&self, key: &str, string: &str) -> Result<usize> {
        let number: usize = number(key, string)?;
        match number <= self.most {
            true => Ok(number),
            false => config_err!("{key} = {number}: must lie between 0 and {}", self.most),
        }
    }

    fn show(&self, value: &usize) -> String {
        value.to_string()
    }
}

/// A limit in bytes of at least `least`; 0 stands for the device's default.
pub(super) struct Bytes {
    pub least: usize,
}

impl Value<usize> for Bytes {
    fn parse(&self, key: &str, string: &str) -> Result<usize> {
        let number = match parse_bytes(string) {
            Ok(bytes) => bytes,
            Err(problem) => return config_err!("{key} = '{string}': {problem}"),
        };
        match number == 0 || number >= self.least {
            true => Ok(number),
            false => config_err!("{key} = {number}: must be 0, for the device's default, or at least {}", self.least),
        }
    }

    fn show(&self, value: &usize) -> String {
        value.to_string()
    }
}

/// Parses bytes: a number, alone or with a unit. Units are `B`, `K`, `M`, `G` and `T`, also as `KB`
/// or `KiB`, in upper or lower case. A `K` is 1024 bytes. With a unit the number may have a
/// fraction.
///
/// # Errors
/// The reason, as text.
///
/// # Examples
/// ```
/// assert_eq!(devicefusion::parse_bytes("4 GiB"), Ok(4 << 30));
/// assert_eq!(devicefusion::parse_bytes("1.5K"), Ok(1536));
/// assert_eq!(devicefusion::parse_bytes("1024"), Ok(1024));
/// assert!(devicefusion::parse_bytes("4 parsecs").is_err());
/// ```
pub fn parse_bytes(string: &str) -> std::result::Result<usize, String> {
    let string = string.trim();
    let digits = string.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = string.split_at(digits);
    let shift = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ if digits > 0 => return Err("its unit must be one of B, K, M, G, T".to_string()),
        _ => return Err("must be a number, 0 or more, such as 1073741824 or 1G".to_string()),
    };
    let no_number = || "must be a number, 0 or more, such as 1073741824 or 1G".to_string();
    let too_large = || "must be less than 2 to the power of 64".to_string();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || !fraction.bytes().all(|byte| byte.is_ascii_digit()) || (shift == 0 && number.contains('.')) {
        return Err(no_number());
    }
    let whole = whole.parse::<usize>().ok().and_then(|whole| whole.checked_mul(1 << shift)).ok_or_else(too_large)?;
    let fraction: f64 = if fraction.is_empty() { 0.0 } else { format!("0.{fraction}").parse().map_err(|_| no_number())? };
    whole.checked_add((fraction * (1_u64 << shift) as f64) as usize).ok_or_else(too_large)
}

/// A number that `takes` accepts. The error quotes `wanted`.
pub(super) struct Size {
    pub takes: fn(u32) -> bool,
    pub wanted: fn() -> String,
}

impl Value<u32> for Size {
    fn parse(&self, key: &str, string: &str) -> Result<u32> {
        let number: u64 = number(key, string)?;
        match u32::try_from(number) {
            Ok(size) if (self.takes)(size) => Ok(size),
            _ => config_err!("{key} = {number}: {}", (self.wanted)()),
        }
    }

    fn show(&self, value: &u32) -> String {
        value.to_string()
    }
}

fn number<T: FromStr>(key: &str, string: &str) -> Result<T> {
    match string.parse() {
        Ok(number) => Ok(number),
        Err(_) if string.bytes().all(|byte| byte.is_ascii_digit()) && !string.is_empty() => {
            config_err!("{key} = '{string}': must be less than 2 to the power of 64")
        }
        Err(_) => config_err!("{key} = '{string}': must be a whole number, 0 or more"),
    }
}

/// A device, or 'none'.
pub(super) struct DeviceSelector;

impl Value<Option<Selector>> for DeviceSelector {
    fn parse(&self, key: &str, string: &str) -> Result<Option<Selector>> {
        match string {
            "" => {
                let drivers = DriverKind::ALL.map(DriverKind::name).join(", ");
                config_err!("{key} is empty: must be auto, none, {drivers}, #k or a part of a name")
            }
            none if none.eq_ignore_ascii_case("none") => Ok(None),
            string => match string.parse::<Selector>() {
                Ok(selector) => Ok(Some(selector)),
                Err(error) => config_err!("{error}"),
            },
        }
    }

    fn show(&self, value: &Option<Selector>) -> String {
        value.as_ref().map_or_else(|| "none".to_string(), Selector::to_string)
    }
}
