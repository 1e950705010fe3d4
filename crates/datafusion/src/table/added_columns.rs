// SPDX-License-Identifier: Apache-2.0
//! The columns that a changing statement adds to the rows of its table.

use arrow::datatypes::Fields;
use datafusion::common::{Result, plan_err};

/// The number of a row in the table, from 0.
pub(super) const NUMBER: &str = "__devicefusion_number";

/// Whether an UPDATE gives new values to a row.
pub(super) const CHANGED: &str = "__devicefusion_changed";

/// Whether a MERGE deletes a row.
pub(super) const DELETED: &str = "__devicefusion_deleted";

/// The number of the clause of a MERGE that a row meets first.
pub(super) const CLAUSE: &str = "__devicefusion_clause";

/// True where a row of a MERGE has one of the source.
pub(super) const SOURCE: &str = "__devicefusion_source";

/// Refuses columns of a user that have such a name.
pub(super) fn check_names(columns: &Fields) -> Result<()> {
    let added = [NUMBER, CHANGED, DELETED, CLAUSE, SOURCE];
    match columns.iter().find(|column| added.contains(&column.name().as_str())) {
        Some(column) => plan_err!("UPDATE and MERGE INTO add a column {:?} to rows: rename yours", column.name()),
        None => Ok(()),
    }
}
