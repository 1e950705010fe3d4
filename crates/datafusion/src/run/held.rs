// SPDX-License-Identifier: Apache-2.0
//! Rows that an operator holds until the last of them has come.

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use futures::StreamExt;

use super::DeviceBatchStream;

/// The rows for an operator that holds them all: where the memory ends before they do, whoever asked for the last of it says so, and
/// the message goes on with who has the rest.
pub(super) fn held(rows: DeviceBatchStream, operator: &str, what: &'static str) -> DeviceBatchStream {
    let (operator, mut count) = (operator.to_string(), 0);
    let counted = move |batch: Result<DeviceBatch>| match batch {
        Ok(batch) => {
            count += batch.num_rows();
            Ok(batch)
        }
        Err(DataFusionError::ResourcesExhausted(message)) if count > 0 => {
            Err(DataFusionError::ResourcesExhausted(format!("{message}; {operator} holds all rows of {what}, {count} so far")))
        }
        Err(error) => Err(error),
    };
    rows.map(counted).boxed()
}
