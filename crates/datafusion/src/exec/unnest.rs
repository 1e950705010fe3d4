// SPDX-License-Identifier: Apache-2.0
//! `UNNEST` on the device.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::unnest::UnnestExec;
use kernels::ops::KeepEmpty;

use crate::exec::row_wise_operator;
use crate::expr::Reason;

/// Gives each element of lists as a row, with the other columns repeated; of several lists the longest decides, and NULL stands
/// for the elements that the others lack.
///
/// Partitioning and ordering are those of the `UnnestExec` it stands for. On the host stay levels of lists that are unnested at
/// once, and structs.
#[derive(Debug)]
pub struct DeviceUnnestExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    lists: Vec<usize>,
    keeps: KeepEmpty,
}

impl DeviceUnnestExec {
    /// The device form of an `UnnestExec` whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(unnest) = host.downcast_ref::<UnnestExec>() else {
            return internal_err!("DeviceUnnestExec stands for an UnnestExec, not {}", host.name());
        };
        let lists = unnest.list_column_indices().iter().map(|list| list.index_in_input_schema).collect();
        let options = unnest.options();
        let keeps = KeepEmpty { nulls: options.preserve_nulls(), empties: options.expand_empty_as_null() };
        Ok(DeviceUnnestExec { host, metrics: ExecutionPlanMetricsSet::new(), lists, keeps })
    }

    /// What of an `UnnestExec` is not supported on the device, beside the types of its columns.
    pub(crate) fn supports(unnest: &UnnestExec) -> std::result::Result<(), Reason> {
        let lists = unnest.list_column_indices();
        if !unnest.struct_column_indices().is_empty() || lists.is_empty() {
            return Err("UNNEST of structs is not supported on the device".to_string());
        }
        let again = |at: usize| lists[..at].iter().any(|list| list.index_in_input_schema == lists[at].index_in_input_schema);
        if lists.iter().any(|list| list.depth != 1) || (0..lists.len()).any(again) {
            return Err("UNNEST of several levels of lists is not supported on the device".to_string());
        }
        Ok(())
    }

    /// Positions of the lists in the child's columns.
    pub fn lists(&self) -> &[usize] {
        &self.lists
    }

    /// Which lists without elements have a row.
    pub(crate) fn keeps(&self) -> KeepEmpty {
        self.keeps
    }
}

row_wise_operator!(DeviceUnnestExec, "DeviceUnnestExec");
