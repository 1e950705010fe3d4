// SPDX-License-Identifier: Apache-2.0
//! Compiled programs in a folder, for the next process, and texts in another, for tools.
//!
//! One file per compiled program, named by a hash. A file holds everything that the program depends on (text,
//! options, device, driver, compiler) and is used only where all of it is the same; so a collision, an
//! update or a damaged file costs one compilation and nothing else. Files appear whole, by renaming.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::driver::Driver;
use crate::{Error, Result};

/// Begins each file; another layout gets another number.
const MAGIC: &[u8; 8] = b"devprog1";

/// A folder of compiled programs.
pub(crate) struct DiskCache {
    folder: PathBuf,
    /// Device, driver and compiler, a line each.
    built_by: String,
}

impl DiskCache {
    /// A cache in `folder`, which is made where it is missing, for `setting`.
    ///
    /// # Errors
    /// `Config` where that is impossible.
    pub(crate) fn new(setting: &'static str, folder: &Path, driver: &dyn Driver) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| unusable(setting, folder, &error))?;
        Ok(Self::over(folder, driver))
    }

    /// The cache in a folder, which may be missing.
    fn over(folder: &Path, driver: &dyn Driver) -> Self {
        let info = driver.info();
        let parts = [&info.driver.to_string(), &info.platform, &info.name, &info.version, &info.driver_version, &info.arch];
        let parts: Vec<&str> = parts.into_iter().map(String::as_str).collect();
        Self { folder: folder.to_owned(), built_by: format!("{}\n{}", parts.join("\n"), driver.compiler()) }
    }

    /// The stored image, if there is one for exactly this.
    pub(crate) fn get(&self, text: &str, options: &[String]) -> Option<Vec<u8>> {
        let key = self.key(text, options);
        let file = fs::read(self.path(&key)).ok()?;
        let (length, rest) = file.strip_prefix(MAGIC)?.split_first_chunk()?;
        let (stored_key, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        let (checksum, image) = rest.split_first_chunk()?;
        (stored_key == key.as_bytes() && hash(image) == u128::from_le_bytes(*checksum)).then(|| image.to_owned())
    }

    /// Stores an image. A folder that cannot be written is no error: the program is there.
    pub(crate) fn put(&self, text: &str, options: &[String], image: &[u8]) {
        let key = self.key(text, options);
        let length = (key.len() as u64).to_le_bytes();
        let file = [MAGIC, &length[..], key.as_bytes(), &hash(image).to_le_bytes(), image].concat();
        _ = write_whole(&self.folder, &self.path(&key), &file);
    }

    fn key(&self, text: &str, options: &[String]) -> String {
        format!("{}\n{}\n\n{text}", self.built_by, options.join("\0"))
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{:032x}.program", hash(key.as_bytes())))
    }
}

fn unusable(setting: &'static str, folder: &Path, error: &std::io::Error) -> Error {
    let reason = format!("cannot be used as a folder: {error}");
    Error::Config { setting, value: folder.display().to_string(), reason }
}

/// The folder that `device.dump_programs` names: the text of each program as `HASH.cl`, by the hash of the text, and its image as
/// in a [`DiskCache`].
pub(crate) struct Dump(DiskCache);

impl Dump {
    pub(crate) fn new(folder: &Path, driver: &dyn Driver) -> Result<Self> {
        DiskCache::new("device.dump_programs", folder, driver).map(Self)
    }

    pub(crate) fn put(&self, text: &str, options: &[String], image: &[u8]) -> std::io::Result<()> {
        self.0.put(text, options, image);
        write_whole(&self.0.folder, &text_path(&self.0.folder, text), text.as_bytes())
    }
}

/// The folder that `device.load_programs` names, as a [`Dump`] has left it. Nothing is written there.
pub(crate) struct Load(DiskCache);

impl Load {
    /// # Errors
    /// `Config` without such a folder.
    pub(crate) fn new(folder: &Path, driver: &dyn Driver) -> Result<Self> {
        fs::read_dir(folder).map_err(|error| unusable("device.load_programs", folder, &error))?;
        Ok(Self(DiskCache::over(folder, driver)))
    }

    /// The image of exactly this.
    pub(crate) fn image(&self, text: &str, options: &[String]) -> Option<Vec<u8>> {
        self.0.get(text, options)
    }

    /// The text that somebody has put in place of this one.
    pub(crate) fn other_text(&self, text: &str) -> Option<String> {
        let other = fs::read_to_string(text_path(&self.0.folder, text)).ok()?;
        (other != text).then_some(other)
    }
}

/// Where the text of a program lies in a folder.
fn text_path(folder: &Path, text: &str) -> PathBuf {
    folder.join(format!("{:032x}.cl", hash(text.as_bytes())))
}

/// The folder that `DEVICEFUSION_DUMP_KERNELS` names, for tools that look at the texts of programs.
///
/// A text that compiles is left there once, as `HASH.cl`, if it is for both compilers, that is, if it asks for
/// `__OPENCL_VERSION__`: what only OpenCL understands is of no use to a tool that checks texts for CUDA.
pub(crate) struct TextFolder(PathBuf);

impl TextFolder {
    /// The folder, if the variable is set.
    pub(crate) fn from_env() -> Option<Self> {
        let folder = std::env::var_os("DEVICEFUSION_DUMP_KERNELS")?;
        (!folder.is_empty()).then(|| Self(folder.into()))
    }

    /// Leaves a text there.
    pub(crate) fn put(&self, text: &str) -> std::io::Result<()> {
        let path = text_path(&self.0, text);
        if !text.contains("__OPENCL_VERSION__") || path.exists() {
            return Ok(());
        }
        write_whole(&self.0, &path, text.as_bytes())
    }
}

/// Writes a file in `folder` so that nobody sees a part of it.
fn write_whole(folder: &Path, path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    static UNIQUE: AtomicU64 = AtomicU64::new(0);
    let part = folder.join(format!("{}-{}.part", std::process::id(), UNIQUE.fetch_add(1, Relaxed)));
    fs::create_dir_all(folder)?;
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.inspect_err(|_| _ = fs::remove_file(&part))
}

/// FNV-1a with 128 bits: the same in every version of this program.
fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62272e07bb014262b821756295c58d;
    const PRIME: u128 = 0x0000000001000000000000000000013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}
