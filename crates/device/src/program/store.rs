// SPDX-License-Identifier: Apache-2.0
//! Folders of compiled programs, for later processes, and of sources, for tools.
//!
//! A folder has one file per compiled program, named by a hash. The file holds everything that the
//! program depends on: source, options, device, driver and compiler. It is used only if all of them
//! are equal, so a collision, an update or a damaged file costs just one compilation. Files are
//! written atomically, by renaming.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use crate::driver::Driver;
use crate::{Error, Result};

/// The first bytes of each file. Another layout gets another number.
const MAGIC: &[u8; 8] = b"devprog1";

/// A folder of compiled programs.
pub(crate) struct DiskCache {
    folder: PathBuf,
    /// Device, driver and compiler, one line each.
    built_by: String,
    /// Bytes that may still be written before the folder's size is looked up.
    room: AtomicU64,
}

/// Share of the limit that one process writes between two looks at the size.
const SHARE_OF_LIMIT: u64 = 16;

/// The extension of files that are being written.
const PART: &str = "part";

/// The extension of programs.
const EXTENSION: &str = "program";

impl DiskCache {
    /// The cache in `folder`, which `setting` names. Creates a missing folder.
    ///
    /// # Errors
    /// `Config` if the folder cannot be created, or another user could write to it.
    pub(crate) fn new(setting: &'static str, folder: &Path, driver: &dyn Driver) -> Result<Self> {
        create(folder).map_err(|error| unusable(setting, folder, &error))?;
        check_owner(setting, folder)?;
        Ok(Self::over(folder, driver))
    }

    /// The cache in a folder that may be missing.
    fn over(folder: &Path, driver: &dyn Driver) -> Self {
        let info = driver.info();
        let parts = [&info.driver.to_string(), &info.platform, &info.name, &info.version, &info.driver_version, &info.arch];
        let parts: Vec<&str> = parts.into_iter().map(String::as_str).collect();
        let built_by = format!("{}\n{}", parts.join("\n"), driver.compiler());
        Self { folder: folder.to_owned(), built_by, room: AtomicU64::new(0) }
    }

    /// The stored image for this source and these options.
    pub(crate) fn get(&self, source: &str, options: &[String]) -> Option<Vec<u8>> {
        self.read(&self.key(source, options))
    }

    fn read(&self, key: &str) -> Option<Vec<u8>> {
        let file = fs::read(self.path(key)).ok()?;
        let (length, rest) = file.strip_prefix(MAGIC)?.split_first_chunk()?;
        let (stored_key, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let (checksum, image) = rest.split_first_chunk()?;
        (stored_key == key.as_bytes() && hash(image) == u128::from_le_bytes(*checksum)).then(|| image.to_owned())
    }

    /// Stores an image. Failed writes are ignored: the caller has the program.
    pub(crate) fn put(&self, source: &str, options: &[String], image: &[u8]) {
        let key = self.key(source, options);
        let length = (key.len() as u64).to_le_bytes();
        let file = [MAGIC, &length[..], key.as_bytes(), &hash(image).to_le_bytes(), image].concat();
        _ = write_whole(&self.folder, &self.path(&key), &file);
    }

    /// As [`get`](Self::get), and notes the use: programs that are used are the last to go.
    pub(crate) fn get_and_note(&self, source: &str, options: &[String]) -> Option<Vec<u8>> {
        let key = self.key(source, options);
        let image = self.read(&key)?;
        let file = File::options().append(true).open(self.path(&key));
        // A folder that only another user may write is read as it is.
        _ = file.and_then(|file| file.set_modified(SystemTime::now()));
        Some(image)
    }

    /// As [`put`](Self::put), and keeps the folder below a size.
    pub(crate) fn put_within(&self, limit: u64, source: &str, options: &[String], image: &[u8]) {
        self.put(source, options, image);
        let written = image.len() as u64;
        let has_room = |room: u64| room.checked_sub(written);
        if self.room.fetch_update(Relaxed, Relaxed, has_room).is_err() {
            self.room.store(limit / SHARE_OF_LIMIT, Relaxed);
            _ = prune(&self.folder, limit);
        }
    }

    fn key(&self, source: &str, options: &[String]) -> String {
        format!("{}\n{}\n\n{source}", self.built_by, options.join("\0"))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.{EXTENSION}", hash(key.as_bytes())))
    }
}

/// Removes programs above a size, the least recently used first, until a quarter is free. Another
/// process may remove the same ones. Parts of files that a process has left behind count as
/// programs.
fn prune(folder: &Path, limit: u64) -> std::io::Result<()> {
    let mut programs = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == EXTENSION || extension == PART)
            && let Ok(metadata) = fs::metadata(&path)
        {
            programs.push((metadata.modified()?, metadata.len(), path));
        }
    }
    let mut bytes: u64 = programs.iter().map(|(_, bytes, _)| bytes).sum();
    if bytes <= limit {
        return Ok(());
    }
    programs.sort_unstable();
    for (_, of_program, path) in programs {
        if bytes <= limit / 4 * 3 {
            break;
        }
        _ = fs::remove_file(path);
        bytes -= of_program;
    }
    Ok(())
}

fn unusable(setting: &'static str, folder: &Path, error: &std::io::Error) -> Error {
    let reason = format!("cannot be used as a folder: {error}");
    Error::Config { setting, value: folder.display().to_string(), reason }
}

/// Creates a folder, and those above it, for this user alone.
fn create(folder: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.recursive(true).create(folder)
}

/// Refuses a folder where another user could put programs.
fn check_owner(setting: &'static str, folder: &Path) -> Result<()> {
    match owner_problem(folder) {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(Error::Config { setting, value: folder.display().to_string(), reason }),
        Err(error) => Err(unusable(setting, folder, &error)),
    }
}

/// How another user could put programs into a folder, which would run as this one.
#[cfg(unix)]
pub(crate) fn owner_problem(folder: &Path) -> std::io::Result<Option<String>> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(folder)?;
    // SAFETY: it has no precondition.
    let user = unsafe { libc::geteuid() };
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o777);
    if owner != user && owner != 0 {
        return Ok(Some(format!("belongs to the user {owner}, whose programs would run as the user {user}")));
    }
    Ok((mode & 0o022 != 0)
        .then(|| format!("other users can write to it (mode {mode:o}), so their programs could run; chmod go-w forbids that")))
}

#[cfg(not(unix))]
pub(crate) fn owner_problem(_: &Path) -> std::io::Result<Option<String>> {
    Ok(None)
}

/// The folder `device.dump_programs`: the source of each program as `HASH.cl`, named by the hash of
/// the source, and its image as in a [`DiskCache`].
pub(crate) struct DumpFolder(DiskCache);

impl DumpFolder {
    pub(crate) fn new(folder: &Path, driver: &dyn Driver) -> Result<Self> {
        DiskCache::new("device.dump_programs", folder, driver).map(Self)
    }

    pub(crate) fn put(&self, source: &str, options: &[String], image: &[u8]) -> std::io::Result<()> {
        self.0.put(source, options, image);
        write_whole(&self.0.folder, &source_path(&self.0.folder, source), source.as_bytes())
    }
}

/// The folder `device.load_programs`, in the layout of a [`DumpFolder`]. Read only.
pub(crate) struct LoadFolder(DiskCache);

impl LoadFolder {
    /// # Errors
    /// `Config` for an unreadable folder, or one that another user could write to.
    pub(crate) fn new(folder: &Path, driver: &dyn Driver) -> Result<Self> {
        fs::read_dir(folder).map_err(|error| unusable("device.load_programs", folder, &error))?;
        check_owner("device.load_programs", folder)?;
        Ok(Self(DiskCache::over(folder, driver)))
    }

    /// The image for this source and these options.
    pub(crate) fn image(&self, source: &str, options: &[String]) -> Option<Vec<u8>> {
        self.0.get(source, options)
    }

    /// The source in the file of this one's hash, if a user has edited it.
    pub(crate) fn replacement(&self, source: &str) -> Option<String> {
        let found = fs::read_to_string(source_path(&self.0.folder, source)).ok()?;
        (found != source).then_some(found)
    }
}

/// The path of a source in a folder.
fn source_path(folder: &Path, source: &str) -> PathBuf {
    folder.join(format!("{:032x}.cl", hash(source.as_bytes())))
}

/// The folder of the variable `DEVICEFUSION_DUMP_KERNELS`, for tools that check sources.
///
/// Each compiled source is left there once, as `HASH.cl`, if it is in the common dialect: it tests
/// `__OPENCL_VERSION__`. A source for OpenCL alone would fail checks for CUDA.
pub(crate) struct SourceFolder(PathBuf);

impl SourceFolder {
    /// The folder, if the variable is set.
    pub(crate) fn from_env() -> Option<Self> {
        let folder = std::env::var_os("DEVICEFUSION_DUMP_KERNELS")?;
        (!folder.is_empty()).then(|| Self(folder.into()))
    }

    /// Writes a source there.
    pub(crate) fn put(&self, source: &str) -> std::io::Result<()> {
        let path = source_path(&self.0, source);
        if !source.contains("__OPENCL_VERSION__") || path.exists() {
            return Ok(());
        }
        write_whole(&self.0, &path, source.as_bytes())
    }
}

/// Writes a file in `folder` atomically.
fn write_whole(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static UNIQUE: AtomicU64 = AtomicU64::new(0);
    let part = folder.join(format!("{}-{}.{PART}", std::process::id(), UNIQUE.fetch_add(1, Relaxed)));
    create(folder)?;
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| _ = fs::remove_file(&part))
}

/// The 128-bit FNV-1a hash, stable across versions of this crate.
pub(super) fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62272e07bb014262b821756295c58d;
    const PRIME: u128 = 0x0000000001000000000000000000013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn programs_that_were_used_least_recently_go_first() {
        let folder = tempfile::tempdir().unwrap();
        let begin = SystemTime::now() - Duration::from_secs(1000);
        for number in 0..10 {
            let file = File::create(folder.path().join(format!("{number}.program"))).unwrap();
            file.set_len(100).unwrap();
            // Numbers 0 and 1 were used last.
            file.set_modified(begin + Duration::from_secs((number + 8) % 10)).unwrap();
        }
        fs::write(folder.path().join("note"), [0; 5000]).unwrap();
        let names = || {
            let entries = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = entries.collect();
            names.sort_unstable();
            names
        };
        prune(folder.path(), 1000).unwrap();
        assert_eq!(names().len(), 11);
        prune(folder.path(), 800).unwrap();
        let kept = ["0.program", "1.program", "6.program", "7.program", "8.program", "9.program", "note"];
        assert_eq!(names(), kept);
    }
}
