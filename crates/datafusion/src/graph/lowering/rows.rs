// SPDX-License-Identifier: Apache-2.0
//! Stages that pass rows on, repeat them or bring several inputs together.

use std::sync::Arc;

use arrow::datatypes::DataType;
use columnar::{Carrier, ColumnType, Layout};
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use kernels::ops::{UnifyLayouts, Unnest, UnnestOutput};

use super::{Lowering, partitions};
use crate::exec::{
    DeviceExpandExec, DeviceLimitExec, DeviceReuseExec, DeviceSharedExec, DeviceUnionExec, DeviceUnnestExec, GroupingSet,
    OperatorMetrics, Sharing,
};
use crate::graph::pipeline::kernel_error;
use crate::graph::stage::{Stage, StageKind};

impl Lowering<'_> {
    pub(super) fn limit(&self, limit: &DeviceLimitExec, input: &Arc<dyn ExecutionPlan>, partitions: usize) -> Result<Stage> {
        let input = self.with_order(true).stage(input)?;
        Ok(Stage {
            schema: Arc::clone(&input.schema),
            types: input.types.clone(),
            partitions,
            kind: StageKind::Limit { input: Arc::new(input), skip: limit.skip(), fetch: limit.fetch_rows() },
            operator: limit.name().to_string(),
            metrics: limit.metrics.clone(),
        })
    }

    pub(super) fn shared(&self, shared: &DeviceSharedExec) -> Result<Stage> {
        let input = self.with_order(true).stage(shared.input())?;
        Ok(shared_stage(input, shared.sharing(), false, shared.name(), &shared.metrics))
    }

    pub(super) fn reuse(&self, reuse: &DeviceReuseExec) -> Result<Stage> {
        let input = self.with_order(true).stage(reuse.shared())?;
        Ok(shared_stage(input, reuse.sharing(), true, reuse.name(), &reuse.metrics))
    }

    pub(super) fn expand(&self, expand: &DeviceExpandExec) -> Result<Stage> {
        let below = expand.input().schema();
        let input = self.stage(expand.input())?.coalescing(self.options)?;
        let first_key = below.fields().len() - expand.sets().first().map_or(0, |set| set.masked.len());
        let greatest_id = expand.sets().iter().map(|set| set.id).max().unwrap_or(0);
        let has_total = expand.sets().iter().any(GroupingSet::is_total);
        let types = input.types.iter().enumerate();
        let types = types.map(|(index, ty)| ColumnType { nullable: ty.nullable || index >= first_key, ..ty.clone() });
        Ok(Stage {
            schema: expand.schema(),
            types: types.chain([grouping_id_type(greatest_id)]).chain(has_total.then(real_type)).collect(),
            partitions: 1,
            kind: StageKind::Expand { input: Arc::new(input), sets: expand.sets().to_vec() },
            operator: expand.name().to_string(),
            metrics: expand.metrics.clone(),
        })
    }

    pub(super) fn unnest(&self, unnest: &DeviceUnnestExec, input: Stage, plan: &Arc<dyn ExecutionPlan>) -> Result<Stage> {
        let schema = plan.schema();
        let outputs = (0..input.types.len()).zip(schema.fields()).map(|(column, field)| {
            let output =
                if unnest.lists().contains(&column) { UnnestOutput::Elements(column) } else { UnnestOutput::Row(column) };
            (output, field.as_ref().clone())
        });
        let (below, types) = (Arc::clone(&input.schema), input.types.clone());
        let op = Unnest::try_new(below, types, outputs.collect(), unnest.keeps(), self.options.clone());
        let op = op.map_err(kernel_error)?;
        Ok(Stage {
            types: op.output_types().to_vec(),
            schema,
            partitions: partitions(plan),
            kind: StageKind::Unnest { input: Arc::new(input), op: Arc::new(op) },
            operator: unnest.name().to_string(),
            metrics: unnest.metrics.clone(),
        })
    }

    pub(super) fn union(&self, union: &DeviceUnionExec) -> Result<Stage> {
        let schema = union.schema();
        let inputs = union.children().into_iter().map(|child| self.stage(child)).collect::<Result<Vec<_>>>()?;
        let sources: Vec<&[ColumnType]> = inputs.iter().map(|input| input.types.as_slice()).collect();
        let types = UnifyLayouts::common(&sources).map_err(kernel_error)?;
        let partitions = inputs.iter().map(|input| input.partitions).sum();
        let unified = inputs.into_iter().map(|input| {
            let (below, from) = (Arc::clone(&input.schema), input.types.clone());
            let unify = UnifyLayouts::try_new(below, from, types.clone(), Arc::clone(&schema), self.options.clone());
            Ok((Arc::new(input), unify.map_err(kernel_error)?))
        });
        Ok(Stage {
            kind: StageKind::Union { inputs: unified.collect::<Result<_>>()? },
            schema,
            types,
            partitions,
            operator: union.name().to_string(),
            metrics: union.metrics.clone(),
        })
    }
}

fn shared_stage(input: Stage, sharing: &Sharing, is_reuse: bool, operator: &str, metrics: &OperatorMetrics) -> Stage {
    Stage {
        schema: Arc::clone(&input.schema),
        types: input.types.clone(),
        partitions: 1,
        kind: StageKind::Shared { input: Arc::new(input), sharing: sharing.clone(), is_reuse },
        operator: operator.to_string(),
        metrics: metrics.clone(),
    }
}

/// The type of `DeviceExpandExec::REAL`.
fn real_type() -> ColumnType {
    ColumnType { data_type: DataType::Boolean, nullable: false, layout: Layout::Bits, bounds: None }
}

/// The type of `__grouping_id`s up to `greatest`.
fn grouping_id_type(greatest: u8) -> ColumnType {
    let bounds = Some((0, i128::from(greatest)));
    ColumnType { data_type: DataType::UInt8, nullable: false, layout: Layout::Fixed(Carrier::U8), bounds }
}
