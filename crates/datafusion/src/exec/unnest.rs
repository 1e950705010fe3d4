// SPDX-License-Identifier: Apache-2.0
//! `UNNEST`.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::unnest::UnnestExec;
use kernels::ops::KeepEmpty;

use crate::exec::{OperatorMetrics, host_counterpart};
use crate::reason::Reason;

/// Gives each element of a list as a row, with the other columns repeated.
///
/// Of several lists the longest decides; shorter ones give NULL. Partitioning and ordering are
/// those of the `UnnestExec` that it replaces. Structs, and several levels of lists at once, stay
/// on the host.
#[derive(Debug)]
pub struct DeviceUnnestExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    lists: Vec<usize>,
    keeps: KeepEmpty,
}

impl DeviceUnnestExec {
    /// Offloads an `UnnestExec` whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(unnest) = host.downcast_ref::<UnnestExec>() else {
            return internal_err!("DeviceUnnestExec replaces an UnnestExec, not {}", host.name());
        };
        let lists = unnest.list_column_indices().iter().map(|list| list.index_in_input_schema).collect();
        let options = unnest.options();
        let keeps = KeepEmpty { nulls: options.preserve_nulls(), empties: options.expand_empty_as_null() };
        Ok(DeviceUnnestExec { host, metrics: OperatorMetrics::new(), lists, keeps })
    }

    /// Checks an `UnnestExec`, but for the types of its columns.
    pub(crate) fn support_of(unnest: &UnnestExec) -> std::result::Result<(), Reason> {
        let lists = unnest.list_column_indices();
        if !unnest.struct_column_indices().is_empty() || lists.is_empty() {
            return Err("UNNEST of structs is not supported on the device".to_string());
        }
        let is_repeated =
            |at: usize| lists[..at].iter().any(|list| list.index_in_input_schema == lists[at].index_in_input_schema);
        if lists.iter().any(|list| list.depth != 1) || (0..lists.len()).any(is_repeated) {
            return Err("UNNEST of several levels of lists is not supported on the device".to_string());
        }
        Ok(())
    }

    /// Positions of the lists in the child's columns.
    pub fn lists(&self) -> &[usize] {
        &self.lists
    }

    /// Which lists without elements give a row.
    pub(crate) fn keeps(&self) -> KeepEmpty {
        self.keeps
    }
}

host_counterpart!(DeviceUnnestExec, "DeviceUnnestExec");
