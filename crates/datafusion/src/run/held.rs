// SPDX-License-Identifier: Apache-2.0
//! Rows that an operator holds until the last of them has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use datafusion::common::DataFusionError;
use futures::{StreamExt, TryStreamExt};

use super::DeviceBatchStream;

/// Who holds how many rows: a sort, a window or an aggregation by lists until it ends, a join while it builds.
#[derive(Clone)]
pub(super) struct Held {
    operator: String,
    what: &'static str,
    rows: Arc<AtomicUsize>,
}

impl Held {
    /// None so far.
    pub fn by(operator: &str, what: &'static str) -> Held {
        Held { operator: operator.to_string(), what, rows: Arc::default() }
    }

    /// The operator's input, whose rows are counted.
    pub fn counted(&self, rows: DeviceBatchStream) -> DeviceBatchStream {
        let count = Arc::clone(&self.rows);
        rows.inspect_ok(move |batch| _ = count.fetch_add(batch.num_rows(), Relaxed)).boxed()
    }

    /// What the operator or its input fails with. Where memory ends, whoever asked for the last of it says so, and the message goes
    /// on with who has the rest.
    pub fn named(&self, error: DataFusionError) -> DataFusionError {
        let (operator, what, rows) = (&self.operator, self.what, self.rows.load(Relaxed));
        match error {
            DataFusionError::ResourcesExhausted(message) if rows > 0 => {
                DataFusionError::ResourcesExhausted(format!("{message}; {operator} holds all rows of {what}, {rows} so far"))
            }
            error => error,
        }
    }
}
