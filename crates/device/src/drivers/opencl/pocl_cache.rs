// SPDX-License-Identifier: Apache-2.0
//! PoCL's folder of compiled programs: its owner, and files that are not whole.
//!
//! PoCL loads its files unchecked. One that is not whole, as a crash of the machine leaves, ends
//! the process by an assertion, a failed `dlopen` or a signal. So a process removes such files
//! before it builds programs, and PoCL compiles again.
//!
//! Thousands of files take tenths of a second, or a minute from a cold disk. So a process checks
//! them only after one of these events:
//! - a start of the machine: it checks programs with a use since the last check;
//! - the death of a process, perhaps of a damaged file: programs with a use since the start of that
//!   process.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use super::api::is_pocl;
use super::pocl_prune::{last_use, modified, prune_hourly};
use crate::driver::LogSink;
use crate::info::DeviceInfo;
use crate::program::owner_problem;

/// The folder of notes, within PoCL's folder.
pub(super) const NOTES: &str = "devicefusion";

/// The extension of notes of running processes.
const RUNNING: &str = "running";

/// The system's number of the machine's start.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The last block of a bitcode file, by LLVM's number.
const STRING_TABLE_BLOCK: u8 = 23;

/// The type of an ELF section of strings.
const STRING_TABLE_SECTION: [u8; 4] = 3u32.to_le_bytes();

/// After this time written files are on the disk, also if the machine crashes.
const DURABLE: Duration = Duration::from_secs(3600);

/// The precision of times of files.
const SECOND: Duration = Duration::from_secs(1);

/// The note of this process.
static NOTE: Mutex<Option<RunningNote>> = Mutex::new(None);

/// A file, the note of a running process. Its lock ends with the process, however that ends.
struct RunningNote {
    process: u32,
    path: PathBuf,
    _locked: File,
}

/// Why the programs of PoCL's folder must not run. `None` for other drivers.
pub(super) fn problem(info: &DeviceInfo) -> Option<String> {
    let folder = folder_of(info)?;
    // PoCL itself reports a folder that it cannot use.
    let reason = owner_problem(&folder).ok()??;
    Some(format!("its driver loads programs from {}: {reason}; POCL_CACHE_DIR names another folder", folder.display()))
}

/// Removes damaged files from PoCL's folder, once in a process. Does nothing for other drivers.
pub(super) fn prepare(info: &DeviceInfo, log: Option<&LogSink>) {
    static PREPARED: Once = Once::new();
    let Some(folder) = folder_of(info).filter(|folder| cfg!(target_os = "linux") && folder.is_dir()) else { return };
    let mut removed = 0;
    // A process that cannot write notes checks always.
    PREPARED.call_once(|| removed = check_if_needed(&folder).unwrap_or_else(|_| remove_damaged(&folder, None)));
    if let Some(log) = log
        && removed > 0
    {
        log(&format!("{removed} damaged files of PoCL are removed from {}", folder.display()));
    }
}

/// Has PoCL keep its programs in a folder, unless `POCL_CACHE_DIR` names one. Returns whether the
/// folder is PoCL's now.
///
/// PoCL reads its folder from the environment, which only a process of one thread may change. So
/// this is for the start of a program, before it looks for devices. Later it does nothing, and on
/// other systems than Linux neither.
///
/// # Examples
/// ```no_run
/// device::place_pocl_cache(std::path::Path::new("/var/cache/kernels"));
/// ```
pub fn place_pocl_cache(folder: &Path) -> bool {
    let is_named = std::env::var_os("POCL_CACHE_DIR").is_some_and(|value| !value.is_empty());
    let threads = fs::read_dir("/proc/self/task").map_or(usize::MAX, Iterator::count);
    if is_named || threads != 1 {
        return false;
    }
    // SAFETY: no other thread reads the environment meanwhile, for there is none.
    unsafe { std::env::set_var("POCL_CACHE_DIR", folder) };
    true
}

/// The folder, as PoCL finds it. `None` for other drivers.
pub(super) fn folder_of(info: &DeviceInfo) -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let found = variable("POCL_CACHE_DIR")
        .or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("pocl/kcache")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/pocl/kcache")));
    is_pocl(info).then(|| found.unwrap_or_else(|| PathBuf::from("/tmp/pocl/kcache")))
}

/// Checks the files if the notes ask for it, and leaves a note of this process. Returns the number
/// of removed files.
fn check_if_needed(folder: &Path) -> io::Result<usize> {
    let notes = folder.join(NOTES);
    fs::create_dir_all(&notes)?;
    let mut checked = File::options().read(true).write(true).create(true).truncate(false).open(notes.join("checked"))?;
    // One process checks, and others wait for it.
    checked.lock()?;
    let mut last_boot = Vec::new();
    checked.read_to_end(&mut last_boot)?;
    let (boot, (dead, running)) = (fs::read(BOOT_ID)?, processes(&notes)?);
    let mut removed = 0;
    if last_boot != boot || !dead.is_empty() {
        let since = match last_boot.is_empty() {
            true => None,
            false if last_boot != boot => checked.metadata()?.modified()?.checked_sub(DURABLE),
            false => dead.iter().filter_map(|note| modified(note)).min().and_then(|start| start.checked_sub(SECOND)),
        };
        removed = remove_damaged(folder, since);
        checked.set_len(0)?;
        checked.rewind()?;
        checked.write_all(&boot)?;
        dead.iter().try_for_each(fs::remove_file)?;
    }
    if running == 0 {
        prune_hourly(folder);
    }
    note_running(&notes)?;
    Ok(removed)
}

/// The notes of dead processes, and the number of running ones.
fn processes(notes: &Path) -> io::Result<(Vec<PathBuf>, usize)> {
    let (mut dead, mut running) = (Vec::new(), 0);
    for entry in fs::read_dir(notes)? {
        let path = entry?.path();
        let is_unlocked = || File::options().write(true).open(&path).is_ok_and(|file| file.try_lock().is_ok());
        if path.extension().is_some_and(|extension| extension == RUNNING) {
            if is_unlocked() {
                dead.push(path);
            } else {
                running += 1;
            }
        }
    }
    Ok((dead, running))
}

fn note_running(notes: &Path) -> io::Result<()> {
    let process = std::process::id();
    // Processes of several containers may have one number.
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let path = notes.join(format!("{process}-{nanos}.{RUNNING}"));
    let locked = File::create_new(&path)?;
    locked.lock()?;
    *NOTE.lock() = Some(RunningNote { process, path, _locked: locked });
    // SAFETY: the handler does not unwind. Without room for it, the next process checks.
    _ = unsafe { libc::atexit(remove_note) };
    Ok(())
}

extern "C" fn remove_note() {
    // A forked child has a copy of its parent's note.
    if let Some(note) = NOTE.lock().take_if(|note| note.process == std::process::id()) {
        _ = fs::remove_file(&note.path);
    }
}

/// Removes bitcode and libraries that are not whole. Skips programs without a use since `since`.
/// PoCL renames whole files to these names, so none of them is being written.
fn remove_damaged(folder: &Path, since: Option<SystemTime>) -> usize {
    let programs = program_folders(folder).flat_map(|folder| entries(&folder)).map(|entry| entry.path());
    let mut folders: Vec<PathBuf> =
        programs.filter(|program| since.is_none_or(|since| last_use(program) >= Some(since))).collect();
    let mut removed = 0;
    while let Some(folder) = folders.pop() {
        for entry in entries(&folder) {
            let (path, kind) = (entry.path(), entry.file_type());
            if kind.as_ref().is_ok_and(fs::FileType::is_dir) {
                folders.push(path);
            } else if kind.is_ok_and(|kind| kind.is_file()) && is_damaged(&path) && fs::remove_file(&path).is_ok() {
                removed += 1;
            }
        }
    }
    removed
}

/// The folders of two letters that programs are in. Files beside these are being written.
pub(super) fn program_folders(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    entries(folder).filter(|entry| entry.file_name().len() == 2).map(|entry| entry.path())
}

/// The entries of a folder that can be read.
pub(super) fn entries(folder: &Path) -> impl Iterator<Item = DirEntry> + use<> {
    fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok)
}

fn is_damaged(path: &Path) -> bool {
    let whole: fn(&File, u64) -> Option<()> = match path.extension().and_then(OsStr::to_str) {
        Some("bc") => whole_bitcode,
        Some("so") => whole_library,
        _ => return false,
    };
    // PoCL takes a file that it cannot open for a missing one.
    let Ok(file) = File::open(path) else { return false };
    file.metadata().ok().and_then(|metadata| whole(&file, metadata.len())).is_none()
}

/// `Some` if the blocks of a bitcode file fill it, and the last of them is that of the strings.
fn whole_bitcode(file: &File, bytes: u64) -> Option<()> {
    (read::<4>(file, 0)? == *b"BC\xc0\xde").then_some(())?;
    let (mut at, mut block) = (4, 0);
    while at < bytes {
        // Two bits that enter a block, eight of its number, and the number of its 32-bit words.
        let head = read::<8>(file, at)?;
        let (bits, words) = (u16::from_le_bytes([head[0], head[1]]), u32::from_le_bytes([head[4], head[5], head[6], head[7]]));
        (bits & 3 == 1).then_some(())?;
        block = (bits >> 2) as u8;
        at += 8 + 4 * u64::from(words);
    }
    (at == bytes && block == STRING_TABLE_BLOCK).then_some(())
}

/// `Some` if a library has all section headers and that of their names: linkers write them last.
fn whole_library(file: &File, bytes: u64) -> Option<()> {
    let head = read::<64>(file, 0)?;
    head.starts_with(b"\x7fELF").then_some(())?;
    // Only 64 bits in little-endian order are known here.
    if head[4..6] != [2, 1] {
        return Some(());
    }
    let short = |at: usize| Some(u64::from(u16::from_le_bytes(*head[at..].first_chunk()?)));
    let start = u64::from_le_bytes(*head[0x28..].first_chunk()?);
    let (size, count, names) = (short(0x3a)?, short(0x3c)?, short(0x3e)?);
    let header_of_names = read::<8>(file, start.checked_add(size * names)?)?;
    let end = start.checked_add(size * count)?;
    (end <= bytes && header_of_names[4..] == STRING_TABLE_SECTION).then_some(())
}

fn read<const N: usize>(mut file: &File, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    file.seek(SeekFrom::Start(at)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program with a damaged file, and a last use so long ago.
    fn damaged(folder: &Path, program: &str, age: Duration) -> PathBuf {
        let program = folder.join(program);
        fs::create_dir_all(&program).unwrap();
        fs::write(program.join("program.bc"), "no bitcode").unwrap();
        File::create(program.join("last_accessed")).unwrap().set_modified(SystemTime::now() - age).unwrap();
        program.join("program.bc")
    }

    fn note(folder: &Path, name: &str, age: Duration, text: &[u8]) {
        let path = folder.join(NOTES).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::now() - age).unwrap();
    }

    #[test]
    fn after_a_death_programs_that_were_used_since_its_start_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        note(folder, "checked", minutes(50), &fs::read(BOOT_ID).unwrap());
        note(folder, "1-1.running", minutes(2), b"");
        let (before, after) = (damaged(folder, "AA/A", minutes(3)), damaged(folder, "AA/B", minutes(1)));
        assert_eq!(check_if_needed(folder).unwrap(), 1);
        assert!(before.exists() && !after.exists());
        // The next process finds neither a death nor a start of the machine.
        damaged(folder, "AA/B", minutes(0));
        assert_eq!(check_if_needed(folder).unwrap(), 0);
    }

    #[test]
    fn after_a_start_of_the_machine_programs_that_were_used_since_the_last_check_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        note(folder, "checked", minutes(50), b"another start");
        let (before, after) = (damaged(folder, "AA/A", minutes(111)), damaged(folder, "AA/B", minutes(109)));
        assert_eq!(check_if_needed(folder).unwrap(), 1);
        assert!(before.exists() && !after.exists());
    }

    #[test]
    fn the_first_process_reads_all_programs() {
        let folder = tempfile::tempdir().unwrap();
        damaged(folder.path(), "AA/A", Duration::from_secs(1_000_000));
        assert_eq!(check_if_needed(folder.path()).unwrap(), 1);
    }
}
