// SPDX-License-Identifier: Apache-2.0
//! What can go wrong between an expression and its rows.

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of generating and running kernels.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An expression, cast, type or aggregate is not supported on the device. The text is for users.
    #[error("{0}")]
    Unsupported(String),
    /// A checked operation failed. The caller evaluates this row of the batch again on the host for
    /// the message.
    #[error("row {row} of a batch failed: overflow, division by zero or a cast out of range")]
    Row {
        /// The lowest failing row of the batch.
        row: u64,
    },
    /// The same of a row of several sides, on its way through joins.
    #[error("an expression over joined rows failed (overflow, division by zero or a cast)")]
    JoinedRow,
    /// An AVG of decimals left its type when the aggregation ended. The text is DataFusion's.
    #[error("Arithmetic Overflow in AvgAccumulator")]
    AverageOverflow,
    /// A fault of this crate, not of its user.
    #[error("internal error in kernel generation: {0}")]
    Internal(String),
    /// The device or its driver.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// Columns in device memory.
    #[error(transparent)]
    Columnar(#[from] columnar::Error),
}
