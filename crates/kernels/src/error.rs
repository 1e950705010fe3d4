// SPDX-License-Identifier: Apache-2.0
//! Errors of this crate.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of generating and running kernels.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An expression, cast, type or aggregate is not supported on the device. The message is for
    /// users.
    #[error("{0}")]
    Unsupported(String),
    /// A checked operation failed. The caller evaluates the row again on the host for DataFusion's
    /// message.
    #[error("row {row} of a batch failed: overflow, division by zero or a cast out of range")]
    Row {
        /// The lowest failing row of the batch.
        row: u64,
    },
    /// A checked operation failed in a joined row.
    #[error("an expression over joined rows failed (overflow, division by zero or a cast)")]
    JoinedRow,
    /// The result of an AVG of decimals exceeds its type. The message is DataFusion's.
    #[error("Arithmetic Overflow in AvgAccumulator")]
    AverageOverflow,
    /// A bug in this crate.
    #[error("internal error in kernel generation: {0}")]
    Internal(String),
    /// An error of the device or its driver.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// An error of columns in device memory.
    #[error(transparent)]
    Columnar(#[from] columnar::Error),
}

impl Error {
    /// Whether device memory did not suffice, so that less work at once may succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Error::Device(error) | Error::Columnar(columnar::Error::Device(error)) => error.is_out_of_memory(),
            _ => false,
        }
    }
}
