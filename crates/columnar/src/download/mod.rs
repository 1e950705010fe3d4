// SPDX-License-Identifier: Apache-2.0
//! Device batches to host batches.
//!
//! All reads of a batch are enqueued before the first wait. Columns return in their logical types:
//!
//! - Narrow integers are widened.
//! - Dictionary codes of plain types are replaced by their values.
//! - Strings and lists are converted to the Arrow layout of their type.
//!
//! | module | content |
//! |---|---|
//! | `record_batch` | [`download`], [`download_parts`] |
//! | `column` | one column by its layout, lists included |
//! | `reader` | reads of a column's buffers |
//! | `strings`, `views`, `dictionary` | decoding of these layouts |
//! | `spans` | the elements of each row of a list column |

pub(crate) mod column;
mod dictionary;
mod reader;
pub(crate) mod record_batch;
mod spans;
mod strings;
mod views;

pub use record_batch::{download, download_parts};
