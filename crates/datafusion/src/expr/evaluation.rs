// SPDX-License-Identifier: Apache-2.0
//! Conditional evaluation.

/// Rows for which an expression is evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Evaluation {
    /// All rows.
    Always,
    /// The rows that need it: operands of `CASE`, `AND` and `OR`, and arguments under `FILTER`.
    Conditional,
}
