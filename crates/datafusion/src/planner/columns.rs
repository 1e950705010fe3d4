// SPDX-License-Identifier: Apache-2.0
//! Support of column types, and reasons from errors.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::physical_plan::ExecutionPlan;

use crate::reason::Reason;

/// Checks the types of an operator's columns.
pub(crate) fn support_of_columns(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    columnar::natural_types(&plan.schema()).map(|_| ()).map_err(|error| error.to_string())
}

/// The reason in an error of planning.
pub(crate) fn reason_of(error: DataFusionError) -> Reason {
    match error {
        DataFusionError::Plan(reason) | DataFusionError::Internal(reason) => reason,
        other => other.to_string(),
    }
}
