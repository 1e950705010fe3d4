// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with a Futhark library.

use std::path::PathBuf;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with a Futhark library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The manifest is no manifest, or contradicts itself.
    #[error("manifest: {0}")]
    Manifest(String),
    /// A file cannot be read or opened.
    #[error("{}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The object is not what the manifest describes.
    #[error("{}: {reason}", path.display())]
    Mismatch {
        /// The object.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// The context cannot be set up.
    #[error("the context of the library cannot be set up: {0}")]
    Setup(String),
    /// A name that the library has not, or an argument that does not fit.
    #[error("{0}")]
    Usage(String),
    /// The program failed: an index out of bounds, a size that does not fit (code 2).
    #[error("{call}: {message}")]
    Program {
        /// The C function.
        call: String,
        /// What the library says.
        message: String,
    },
    /// The library could not allocate memory (code 3).
    #[error("{call}: out of memory: {message}")]
    OutOfMemory {
        /// The C function.
        call: String,
        /// What the library says.
        message: String,
    },
    /// The device that the context shares failed.
    #[error(transparent)]
    Device(device::Error),
    /// Any other failure.
    #[error("{call}: failed with code {code}: {message}")]
    Failed {
        /// The C function.
        call: String,
        /// What it returned.
        code: i32,
        /// What the library says.
        message: String,
    },
}
