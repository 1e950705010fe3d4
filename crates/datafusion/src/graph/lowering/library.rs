// SPDX-License-Identifier: Apache-2.0
//! Stages that call libraries.

use std::sync::Arc;

use arrow::datatypes::Schema;
use columnar::ColumnType;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use kernels::ops::NullStripping;

use super::{Lowering, partitions};
use crate::exec::{DeviceAggregateExec, DeviceFutharkExec};
use crate::futhark::{DeviceAggregate, types_of};
use crate::graph::pipeline::kernel_error;
use crate::graph::stage::{LibraryAggregate, LibraryCall, Stage, StageKind};

impl Lowering<'_> {
    pub(super) fn library_calls(
        &self,
        futhark: &DeviceFutharkExec,
        input: Stage,
        plan: &Arc<dyn ExecutionPlan>,
    ) -> Result<Stage> {
        let (schema, width) = (plan.schema(), input.types.len());
        let mut types = input.types.clone();
        let (mut calls, mut checks) = (Vec::new(), Vec::<Arc<dyn PhysicalExpr>>::new());
        for (call, result) in futhark.calls().iter().zip(schema.fields().iter().skip(width)) {
            let fields = schema.fields().iter().take(types.len()).cloned().collect::<Vec<_>>();
            let before = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
            let arguments = call.arguments(&before).map_err(|reason| internal_datafusion_err!("{reason}"))?;
            let adapter = NullStripping::try_new(Arc::clone(&before), types.clone(), arguments, self.options.clone());
            let adapter = adapter.map_err(kernel_error)?;
            let Some(ty) = ColumnType::of(result.data_type(), adapter.is_nullable() || call.gives_nulls()) else {
                let (name, data_type) = (call.function().name(), result.data_type());
                return internal_err!("{name} gives {data_type}, which is not supported on the device");
            };
            types.push(ty.clone());
            checks.push(Arc::clone(call.expr()));
            calls.push(LibraryCall { call: Arc::new(call.clone()), adapter, schema: before, ty: Arc::new(ty) });
        }
        Ok(Stage {
            partitions: partitions(plan),
            kind: StageKind::LibraryCalls { input: Arc::new(input), calls: calls.into(), checks: checks.into() },
            schema,
            types,
            operator: futhark.name().to_string(),
            metrics: futhark.metrics.clone(),
        })
    }

    pub(super) fn library_aggregates(&self, aggregate: &DeviceAggregateExec, input: Stage) -> Result<Stage> {
        let schema = Arc::clone(&aggregate.spec.schema);
        let (mut aggregates, mut checks) = (Vec::new(), Vec::<Arc<dyn PhysicalExpr>>::new());
        for call in &aggregate.spec.calls {
            let internal = |reason| internal_datafusion_err!("{}: {reason}", call.function.name());
            let fold = DeviceAggregate::try_new(call, &input.schema).map_err(internal)?;
            let arguments = fold.arguments(&input.schema).map_err(internal)?;
            let adapter = NullStripping::try_new(Arc::clone(&input.schema), input.types.clone(), arguments, self.options.clone());
            checks.extend(fold.columns().iter().cloned());
            aggregates.push(LibraryAggregate { fold: Arc::new(fold), adapter: adapter.map_err(kernel_error)? });
        }
        let Some(types) = types_of(&schema) else { return internal_err!("{schema} is not supported on the device") };
        Ok(Stage {
            kind: StageKind::LibraryAggregates { input: Arc::new(input), aggregates: aggregates.into(), checks: checks.into() },
            schema,
            types,
            partitions: 1,
            operator: aggregate.name().to_string(),
            metrics: aggregate.metrics.clone(),
        })
    }
}
