// SPDX-License-Identifier: Apache-2.0
//! What can go wrong between a producer and a consumer, and the errno that stands for it in C.

use std::ffi::c_int;

use arrow::error::ArrowError;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A failure on either side of the interface.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// What the other side gave breaks the interface, or does not fit its schema.
    #[error("{0}")]
    Invalid(String),
    /// A type, device or feature that this side does not have.
    #[error("{0}")]
    Unsupported(String),
    /// Host or device memory ran out.
    #[error("{0}")]
    OutOfMemory(String),
    /// A callback of the other side failed.
    #[error("{call} failed with {code}{}", text(.message))]
    Foreign {
        /// The callback.
        call: &'static str,
        /// Its errno.
        code: c_int,
        /// What it said, if it said anything.
        message: Option<String>,
    },
    /// Anything else: a failure of the data's source.
    #[error("{0}")]
    Other(String),
}

impl Error {
    /// The errno that C gets for this: EINVAL, ENOSYS, ENOMEM, the other side's own, or EIO (R61).
    pub fn errno(&self) -> c_int {
        match self {
            Self::Invalid(_) => libc::EINVAL,
            Self::Unsupported(_) => libc::ENOSYS,
            Self::OutOfMemory(_) => libc::ENOMEM,
            // 0 would tell C of success.
            Self::Foreign { code, .. } if *code != 0 => *code,
            Self::Foreign { .. } | Self::Other(_) => libc::EIO,
        }
    }
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        let text = error.to_string();
        match error {
            ArrowError::NotYetImplemented(_) => Self::Unsupported(text),
            ArrowError::MemoryError(_) => Self::OutOfMemory(text),
            ArrowError::SchemaError(_) | ArrowError::InvalidArgumentError(_) | ArrowError::CDataInterface(_) => {
                Self::Invalid(text)
            }
            _ => Self::Other(text),
        }
    }
}

fn text(message: &Option<String>) -> String {
    message.as_ref().map(|message| format!(": {message}")).unwrap_or_default()
}
