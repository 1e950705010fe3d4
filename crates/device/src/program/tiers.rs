// SPDX-License-Identifier: Apache-2.0
//! Tiered compilation: a program that a query waits for is compiled without optimization first,
//! and optimized in the background.
//!
//! The driver's own folder keeps the machine code of both tiers. A note beside it says which
//! programs are optimized there, so that later processes begin with those.

use std::fs;
use std::path::{Path, PathBuf};

use super::compiler::ProgramKey;
use super::store::hash;
use crate::driver::{Driver, FirstTier};

/// The folder of the notes, within the driver's.
pub(crate) const NOTES_OF_OPTIMIZED: &str = "devicefusion/optimized";

/// The first tier of a driver, and the programs that are past it.
pub(super) struct Tiers(FirstTier);

impl Tiers {
    /// The tiers of a driver; `None` if it has one only.
    pub fn of(driver: &dyn Driver) -> Option<Tiers> {
        driver.first_tier().map(Tiers)
    }

    /// The driver's folder for machine code.
    pub fn folder(&self) -> Option<&Path> {
        self.0.folder.as_deref()
    }

    /// The properties that machine code depends on, beside source and options.
    pub fn machine(&self) -> &str {
        &self.0.machine
    }

    /// Whether these options are those of a first tier.
    pub fn is_first(&self, options: &[String]) -> bool {
        self.0.options.iter().all(|option| options.iter().any(|known| known == option))
    }

    /// The program in its first tier; `None` if it is optimized already, or never will be.
    pub fn first(&self, key @ (source, options): &ProgramKey) -> Option<ProgramKey> {
        if self.is_first(options) || self.note(key).is_some_and(|note| note.exists()) {
            return None;
        }
        let own = self.0.options.iter().map(|option| option.to_string());
        Some((source.clone(), options.iter().cloned().chain(own).collect()))
    }

    /// Notes that the driver's folder has the optimized machine code of all kernels. Without the
    /// note, later processes begin with the first tier.
    pub fn note_optimized(&self, key: &ProgramKey) {
        if let Some(note) = self.note(key) {
            let folder = note.parent().map_or(Ok(()), fs::create_dir_all);
            _ = folder.and_then(|()| fs::write(note, []));
        }
    }

    fn note(&self, (source, options): &ProgramKey) -> Option<PathBuf> {
        let key = [&self.0.machine, &options.join("\0"), &**source].join("\n");
        Some(self.0.folder.as_ref()?.join(NOTES_OF_OPTIMIZED).join(format!("{:032x}", hash(key.as_bytes()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_by_source_options_and_machine() {
        let folder = tempfile::tempdir().unwrap();
        let tiers = |machine: &str| {
            Tiers(FirstTier { options: &["-fast"], folder: Some(folder.path().to_owned()), machine: machine.to_owned() })
        };
        let key = |options: &[&str]| ("source".into(), options.iter().map(|option| option.to_string()).collect());
        assert_eq!(tiers("a").first(&key(&["-x"])), Some(key(&["-x", "-fast"])));
        assert_eq!(tiers("a").first(&key(&["-fast", "-x"])), None);
        tiers("a").note_optimized(&key(&["-x"]));
        assert_eq!(tiers("a").first(&key(&["-x"])), None);
        assert_eq!(tiers("a").first(&key(&[])), Some(key(&["-fast"])));
        assert_eq!(tiers("b").first(&key(&["-x"])), Some(key(&["-x", "-fast"])));
        // A driver that keeps no machine code.
        let unkept = Tiers(FirstTier { folder: None, ..tiers("a").0 });
        unkept.note_optimized(&key(&["-x"]));
        assert_eq!(unkept.first(&key(&["-x"])), Some(key(&["-x", "-fast"])));
    }
}
