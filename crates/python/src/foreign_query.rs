// SPDX-License-Identifier: Apache-2.0
//! A query of this library within a plan of another DataFusion.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, exec_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties, ReplaceChildrenOptions, displayable,
};
use futures::{FutureExt, StreamExt};

use crate::calls::{ENDED, ended};
use crate::runtime::query_runtime;

/// Batches that wait for the other library.
const READ_AHEAD: usize = 2;

/// A leaf that runs a whole plan with this library's operators, threads and task context.
///
/// The other library sees no children: it would take them apart.
#[derive(Debug)]
pub(crate) struct ForeignQuery {
    plan: Arc<dyn ExecutionPlan>,
    task: Arc<TaskContext>,
}

impl ForeignQuery {
    pub fn new(plan: Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> Self {
        Self { plan, task }
    }
}

impl DisplayAs for ForeignQuery {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => Ok(()),
            _ => write!(f, "DeviceFusionExec\n{}", displayable(self.plan.as_ref()).indent(false)),
        }
    }
}

impl ExecutionPlan for ForeignQuery {
    fn name(&self) -> &'static str {
        "DeviceFusionExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.plan.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn replace_children(
        self: Arc<Self>,
        _: Vec<Arc<dyn ExecutionPlan>>,
        _: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    /// The task context of the other library is left alone: its functions and memory are not ours.
    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let runtime = query_runtime()?;
        let (plan, task) = (Arc::clone(&self.plan), Arc::clone(&self.task));
        let mut rows = RecordBatchReceiverStream::builder(plan.schema(), READ_AHEAD);
        let sender = rows.tx();
        let send = async move {
            let mut batches = plan.execute(partition, task)?;
            while let Some(batch) = batches.next().await {
                let is_last = batch.is_err();
                if sender.send(batch).await.is_err() || is_last {
                    break;
                }
            }
            Ok(())
        };
        // A thread of the other library may read on while the interpreter ends.
        let send = async {
            tokio::select! {
                sent = send => sent,
                () = ended() => exec_err!("{ENDED}"),
            }
        };
        // A panic may not reach the other library's calls of C, which would end the process.
        let send = AssertUnwindSafe(send).catch_unwind();
        let send = async { send.await.unwrap_or_else(|_| exec_err!("an operator of devicefusion has panicked")) };
        rows.spawn_on(send, runtime.handle());
        Ok(rows.build())
    }

    fn metrics(&self) -> Option<MetricsSet> {
        self.plan.metrics()
    }
}
