// SPDX-License-Identifier: Apache-2.0
//! The size of PoCL's folder of compiled programs, which PoCL itself never limits.
//!
//! PoCL aborts where a folder of a program disappears amid its work. So a process prunes
//! - before it builds its first program,
//! - if no other process of ours runs,
//! - programs that no process has built within an hour.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::pocl_cache::{NOTES, entries, program_folders};
use crate::program::{NOTES_OF_MEGAKERNELS, NOTES_OF_OPTIMIZED};

/// Most programs of the folder, of 250 KB on average.
const MOST_PROGRAMS: usize = 4096;

/// The note of the last time, within [`NOTES`].
const PRUNED: &str = "pruned";

const HOUR: Duration = Duration::from_secs(3600);

/// The file that PoCL touches whenever a process builds the program.
const LAST_USE: &str = "last_accessed";

/// The first letters of files that PoCL is writing, or has left behind.
const PART: &str = "tempfile";

/// Prunes the folder once an hour. The caller holds the lock of the notes.
pub(super) fn prune_hourly(folder: &Path) {
    let note = folder.join(NOTES).join(PRUNED);
    if modified(&note).is_none_or(|time| is_before(time, HOUR)) {
        prune(folder, MOST_PROGRAMS);
        // Without a note, the next process prunes again.
        _ = File::create(&note).and_then(|note| note.set_modified(SystemTime::now()));
    }
}

/// The time when a process has last built a program.
pub(super) fn last_use(program: &Path) -> Option<SystemTime> {
    modified(&program.join(LAST_USE)).or_else(|| modified(program))
}

/// The time of a file's last change.
pub(super) fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn is_before(time: SystemTime, age: Duration) -> bool {
    time.elapsed().is_ok_and(|elapsed| elapsed > age)
}

/// Removes what PoCL has left behind. Above `most` programs, removes the least recently used ones
/// until a quarter is free.
fn prune(folder: &Path, most: usize) {
    let parts = entries(folder).filter(|entry| entry.file_name().to_string_lossy().starts_with(PART));
    let is_left = |part: &PathBuf| modified(part).is_some_and(|time| is_before(time, HOUR));
    parts.map(|part| part.path()).filter(is_left).for_each(|part| _ = fs::remove_file(part));
    let programs: Vec<PathBuf> = program_folders(folder).flat_map(|folder| entries(&folder)).map(|entry| entry.path()).collect();
    if programs.len() <= most {
        return;
    }
    let superfluous = programs.len() - most / 4 * 3;
    let used = |program: PathBuf| Some((last_use(&program)?, program));
    let mut old: Vec<(SystemTime, PathBuf)> = programs.into_iter().filter_map(used).collect();
    old.retain(|(used, _)| is_before(*used, HOUR));
    old.sort_unstable();
    old.truncate(superfluous);
    if !old.is_empty() {
        // They do not say which programs are gone.
        [NOTES_OF_OPTIMIZED, NOTES_OF_MEGAKERNELS].into_iter().for_each(|notes| _ = fs::remove_dir_all(folder.join(notes)));
    }
    old.into_iter().for_each(|(_, program)| _ = fs::remove_dir_all(program));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_were_used_least_recently_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let file = |path: &str, hours: u32| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            File::create(path).unwrap().set_modified(SystemTime::now() - HOUR * hours).unwrap();
        };
        for (name, hours) in [("AA/A", 5), ("AA/B", 2), ("BB/C", 9), ("BB/D", 0), ("BB/E", 7)] {
            file(&format!("{name}/kernel/1-1-1/kernel.so"), 0);
            file(&format!("{name}/{LAST_USE}"), hours);
        }
        file("tempfile_a", 2);
        file(&format!("{NOTES_OF_OPTIMIZED}/note"), 3);
        file(&format!("{NOTES_OF_MEGAKERNELS}/a.program"), 3);
        let left = || {
            let programs = program_folders(folder).flat_map(|folder| entries(&folder));
            let mut left: Vec<String> = programs.map(|entry| entry.file_name().into_string().unwrap()).collect();
            left.sort();
            left.concat()
        };
        prune(folder, 5);
        assert_eq!(left(), "ABCDE");
        assert!(folder.join(NOTES_OF_OPTIMIZED).exists() && !folder.join("tempfile_a").exists());
        prune(folder, 4);
        assert_eq!(left(), "ABD");
        assert!(!folder.join(NOTES_OF_OPTIMIZED).exists() && !folder.join(NOTES_OF_MEGAKERNELS).exists());
        // A program that was used within the hour stays.
        prune(folder, 0);
        assert_eq!(left(), "D");
    }

    #[test]
    fn a_folder_is_pruned_once_an_hour() {
        let folder = tempfile::tempdir().unwrap();
        let (note, part) = (folder.path().join(NOTES).join(PRUNED), folder.path().join("tempfile_a"));
        fs::create_dir_all(note.parent().unwrap()).unwrap();
        for (hours, is_pruned) in [(None, true), (Some(0), false), (Some(2), true)] {
            File::create(&part).unwrap().set_modified(SystemTime::now() - HOUR * 2).unwrap();
            if let Some(hours) = hours {
                File::create(&note).unwrap().set_modified(SystemTime::now() - HOUR * hours).unwrap();
            }
            prune_hourly(folder.path());
            assert_eq!(!part.exists(), is_pruned, "{hours:?}");
        }
    }
}
