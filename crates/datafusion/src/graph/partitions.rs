// SPDX-License-Identifier: Apache-2.0
//! Partitions that a run reads together.

use std::ops::Range;
use std::sync::Arc;

use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::stage::{Stage, StageKind};
use crate::exec::DeviceOperator;

impl Stage {
    /// Its partitions in groups, one after another. Groups do not depend on each other: they come
    /// from different inputs of a union.
    ///
    /// - The partitions of one input may come from an exchange of the host. It keeps the rows of
    ///   those that nothing reads yet.
    /// - Live inputs are one group. One of them may never end, and a producer of several streams
    ///   may wait for a reader of each.
    pub fn partition_groups(&self) -> Vec<Range<usize>> {
        let mut sizes = Vec::new();
        add_groups(self, &mut sizes);
        if sizes.len() > 1 && is_live(self) {
            sizes = vec![sizes.iter().sum()];
        }
        let mut first = 0;
        let groups = sizes.into_iter().map(|size| {
            let group = first..first + size;
            first = group.end;
            group
        });
        groups.collect()
    }
}

/// The origin of a stage's partitions.
enum Partitions<'a> {
    /// Arrays that another library produces meanwhile.
    OfProducer,
    /// A plan of the host.
    OfHost(&'a Arc<dyn ExecutionPlan>),
    /// Those of its inputs, one input after another.
    OfEachInput,
    /// Its own.
    Own,
}

fn partitions_of(stage: &Stage) -> Partitions<'_> {
    use StageKind::*;
    match &stage.kind {
        Stream { .. } => Partitions::OfProducer,
        Upload { input } => Partitions::OfHost(input),
        Union { .. } => Partitions::OfEachInput,
        Scan { .. } | Columns { .. } | Select { .. } | Aggregate { .. } | LibraryCalls { .. } => Partitions::Own,
        LibraryAggregates { .. } | Unnest { .. } | Coalesce { .. } | Sort { .. } | Expand { .. } => Partitions::Own,
        Window { .. } | Join(_) | BuildSideJoin(_) | Shared { .. } | Limit { .. } => Partitions::Own,
    }
}

/// Whether a stage reads an unbounded input, or arrays produced meanwhile by another library.
fn is_live(stage: &Stage) -> bool {
    match partitions_of(stage) {
        Partitions::OfProducer => true,
        Partitions::OfHost(plan) => is_live_plan(plan),
        Partitions::OfEachInput | Partitions::Own => stage.inputs().into_iter().any(|input| is_live(input)),
    }
}

fn is_live_plan(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let reads_producer = DeviceOperator::of(plan).is_some_and(DeviceOperator::reads_producer);
    plan.boundedness().is_unbounded() || reads_producer || plan.children().into_iter().any(is_live_plan)
}

fn add_groups(stage: &Stage, sizes: &mut Vec<usize>) {
    match partitions_of(stage) {
        Partitions::OfEachInput => stage.inputs().into_iter().for_each(|input| add_groups(input, sizes)),
        Partitions::OfHost(plan) => add_groups_of_host(plan, sizes),
        Partitions::OfProducer | Partitions::Own => match stage.inputs().as_slice() {
            [input] if stage.partitions > 1 && stage.partitions == input.partitions => add_groups(input, sizes),
            _ => sizes.push(stage.partitions),
        },
    }
}

fn add_groups_of_host(plan: &Arc<dyn ExecutionPlan>, sizes: &mut Vec<usize>) {
    let partitions = |plan: &Arc<dyn ExecutionPlan>| plan.output_partitioning().partition_count();
    match plan.children().as_slice() {
        children if plan.is::<UnionExec>() => children.iter().for_each(|child| add_groups_of_host(child, sizes)),
        // Operators that keep the order of their input read each partition by itself.
        [child]
            if partitions(plan) == partitions(child)
                && plan.maintains_input_order() == [true]
                && !plan.is::<RepartitionExec>() =>
        {
            add_groups_of_host(child, sizes);
        }
        _ => sizes.push(partitions(plan)),
    }
}
