// SPDX-License-Identifier: Apache-2.0
//! The errors of the interface, and their errno in C.

use std::ffi::c_int;

use arrow::error::ArrowError;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure on either side of the interface.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The other side's struct breaks the interface, or does not fit its schema.
    #[error("{0}")]
    Invalid(String),
    /// A type, device or feature that this side does not support.
    #[error("{0}")]
    Unsupported(String),
    /// Host or device memory is exhausted.
    #[error("{0}")]
    OutOfMemory(String),
    /// A callback of the other side failed.
    #[error("{call} failed with {code}{}", suffix(.message))]
    Foreign {
        /// The callback.
        call: &'static str,
        /// Its errno.
        code: c_int,
        /// Its message, if it gave one.
        message: Option<String>,
    },
    /// Any other failure, such as one of the data source.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// The errno for C (R61): EINVAL, ENOSYS, ENOMEM, the other side's own, or EIO.
    pub fn errno(&self) -> c_int {
        match self {
            Self::Invalid(_) => libc::EINVAL,
            Self::Unsupported(_) => libc::ENOSYS,
            Self::OutOfMemory(_) => libc::ENOMEM,
            // 0 would mean success.
            Self::Foreign { code, .. } if *code != 0 => *code,
            Self::Foreign { .. } | Self::Other(_) => libc::EIO,
        }
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        let message = error.to_string();
        match error {
            ArrowError::NotYetImplemented(_) => Self::Unsupported(message),
            ArrowError::MemoryError(_) => Self::OutOfMemory(message),
            ArrowError::SchemaError(_) | ArrowError::InvalidArgumentError(_) | ArrowError::CDataInterface(_) => {
                Self::Invalid(message)
            }
            _ => Self::Other(message),
        }
    }
}

fn suffix(message: &Option<String>) -> String {
    message.as_ref().map(|message| format!(": {message}")).unwrap_or_default()
}
