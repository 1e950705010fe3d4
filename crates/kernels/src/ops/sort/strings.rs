// SPDX-License-Identifier: Apache-2.0
//! Comparison of each string with each other one, by kernels over few rows.

use columnar::{DeviceColumn, Layout};
use device::Buffer;

use crate::Result;
use crate::codegen::RowWriter;
use crate::expr::Expr;

/// Most bytes that the comparisons of a launch read, so that it takes some milliseconds at most.
pub(super) const MAX_COMPARED_BYTES: usize = 1 << 24;

/// Appends the statements for a string of the writer's row. Returns its C. NULL is the empty
/// string.
pub(super) fn string_or_empty(writer: &mut RowWriter<'_>, column: usize) -> Result<String> {
    let value = writer.eval(&Expr::Column(column))?;
    Ok(match &value.valid {
        Some(valid) => format!("str_make({0}.p, {valid} ? {0}.len : 0)", value.code),
        None => value.code,
    })
}

/// A bound of the read bytes if each of `n` strings of a column is compared with all.
pub(super) fn compared_bytes(column: &DeviceColumn, n: usize) -> usize {
    let strings = column.dictionary().map_or(column, |dictionary| dictionary);
    // The first buffer has offsets or views, unless all strings have one length.
    let others = if matches!(strings.ty().layout, Layout::Bytes(_)) { 0 } else { 1 };
    let bytes: usize = strings.buffers().iter().skip(others).map(Buffer::len).sum();
    // Strings that lie one behind the other are read n times. A dictionary or views may have the
    // same bytes in every row, so that each pair of rows reads them.
    let are_apart = matches!(column.ty().layout, Layout::Offsets32 | Layout::Offsets64 | Layout::Bytes(_));
    bytes.saturating_mul(if are_apart { n } else { n.saturating_mul(n) })
}
