// SPDX-License-Identifier: Apache-2.0
//! Tables resident in device memory, in the narrowest types that hold their values.
//!
//! | module | content |
//! |---|---|
//! | `table` | [`Resident`] |
//! | `builder` | [`ResidentBuilder`]: rows to batches |
//! | `column` | the narrowest type of a column |
//! | `dictionary` | the dictionary of a column, for the whole table |

mod builder;
mod column;
mod dictionary;
mod table;

pub use builder::ResidentBuilder;
pub use table::Resident;
