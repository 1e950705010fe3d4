// SPDX-License-Identifier: Apache-2.0
//! Errors of Futhark libraries.

use std::path::PathBuf;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a Futhark library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manifest is malformed or inconsistent.
    #[error("manifest: {0}")]
    Manifest(String),
    /// A file cannot be read or opened.
    #[error("{}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The shared object does not match the manifest.
    #[error("{}: {reason}", path.display())]
    Mismatch {
        /// The shared object.
        path: PathBuf,
        /// The mismatch.
        reason: String,
    },
    /// The context cannot be created.
    #[error("the context of the library cannot be set up: {0}")]
    Setup(String),
    /// An unknown name, or an argument that does not fit.
    #[error("{0}")]
    Usage(String),
    /// The program failed: an index out of bounds, a size that does not fit (code 2).
    #[error("{call}: {message}")]
    Program {
        /// The C function.
        call: String,
        /// The library's message.
        message: String,
    },
    /// The library could not allocate memory (code 3).
    #[error("{call}: out of memory: {message}")]
    OutOfMemory {
        /// The C function.
        call: String,
        /// The library's message.
        message: String,
    },
    /// A failure of the shared device.
    #[error(transparent)]
    Device(device::Error),
    /// Any other failure.
    #[error("{call}: failed with code {code}: {message}")]
    Failed {
        /// The C function.
        call: String,
        /// Its return code.
        code: i32,
        /// The library's message.
        message: String,
    },
}
