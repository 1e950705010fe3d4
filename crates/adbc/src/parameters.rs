// SPDX-License-Identifier: Apache-2.0
//! Values of bound rows for the parameters of a query.

use std::collections::HashSet;

use adbc_core::error::{Result, Status};
use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use datafusion::common::{ParamValues, ScalarValue};

use crate::error::{error, from_datafusion};

/// How columns of bound rows are parameters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Binding {
    /// The first column is `$1`.
    #[default]
    ByPosition,
    /// The column `x` or `$x` is `$x`.
    ByName,
}

impl Binding {
    pub fn of(by_name: bool) -> Binding {
        if by_name { Binding::ByName } else { Binding::ByPosition }
    }

    /// Refuses columns that are not the parameters of a query. `names` have their dollar signs.
    pub fn check(self, names: &HashSet<String>, columns: &Schema) -> Result<()> {
        let columns: Vec<&str> = columns.fields().iter().map(|field| parameter_name(field.name())).collect();
        if columns.len() != names.len() {
            let message = format!("the query has {} parameters, and {} are bound", names.len(), columns.len());
            return Err(error(Status::InvalidState, message));
        }
        if self == Binding::ByName && columns.iter().collect::<HashSet<_>>().len() < columns.len() {
            return Err(error(Status::InvalidArguments, format!("a parameter is bound twice: {}", columns.join(", "))));
        }
        let mut unknown = columns.iter().filter(|name| !names.contains(&format!("${name}")));
        match (self, unknown.next()) {
            (Binding::ByName, Some(name)) => {
                let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
                names.sort_unstable();
                let message = format!("the query has no parameter ${name}; it has {}", names.join(", "));
                Err(error(Status::InvalidArguments, message))
            }
            (Binding::ByName, None) | (Binding::ByPosition, _) => Ok(()),
        }
    }

    /// The values of each row.
    pub fn rows(self, batches: &[RecordBatch]) -> Result<Vec<ParamValues>> {
        let mut rows = Vec::new();
        for batch in batches {
            let schema = batch.schema();
            let names: Vec<&str> = schema.fields().iter().map(|field| parameter_name(field.name())).collect();
            for row in 0..batch.num_rows() {
                let value = |column: &ArrayRef| ScalarValue::try_from_array(column, row).map_err(from_datafusion);
                let values = batch.columns().iter().map(value).collect::<Result<Vec<_>>>()?;
                rows.push(match self {
                    Binding::ByPosition => ParamValues::from(values),
                    Binding::ByName => ParamValues::from(names.iter().copied().zip(values).collect::<Vec<_>>()),
                });
            }
        }
        Ok(rows)
    }
}

/// A name without its dollar sign.
fn parameter_name(name: &str) -> &str {
    name.strip_prefix('$').unwrap_or(name)
}
