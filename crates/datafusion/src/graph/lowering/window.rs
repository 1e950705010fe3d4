// SPDX-License-Identifier: Apache-2.0
//! Stages of window functions.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, internal_datafusion_err, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use kernels::expr::Expr as KernelExpr;
use kernels::ops::{Input, Window};

use super::Lowering;
use crate::exec::{DeviceWindowExec, is_bounded};
use crate::expr::{ComputedStrings, as_key, as_sort_key, lower_window};
use crate::graph::pipeline::kernel_error;
use crate::graph::stage::{Stage, StageKind};

impl Lowering<'_> {
    pub(super) fn window(&self, window: &DeviceWindowExec, rows: &Arc<dyn ExecutionPlan>, schema: SchemaRef) -> Result<Stage> {
        let below = rows.schema();
        let mut strings = ComputedStrings::new(&below);
        let internal = |reason| internal_datafusion_err!("{reason}");
        let Some(first) = window.functions().first() else { return internal_err!("a window without functions") };
        let mut checks: Vec<Arc<dyn PhysicalExpr>> = Vec::new();
        let mut keys = |exprs: Vec<Arc<dyn PhysicalExpr>>| {
            checks.extend(exprs.iter().cloned());
            exprs.iter().map(|expr| strings.lower(expr).map_err(internal)).collect::<Result<Vec<_>>>()
        };
        let partition = keys(first.partition_by().iter().map(|key| as_key(key, &below)).collect::<Result<_>>()?)?;
        let order = keys(first.order_by().iter().map(|key| as_sort_key(key, &below)).collect::<Result<_>>()?)?;
        let passed = below.fields().iter().enumerate();
        let passed = passed.map(|(index, field)| (KernelExpr::Column(index), field.as_ref().clone())).collect();
        let mut functions = Vec::new();
        for (function, field) in window.functions().iter().zip(schema.fields().iter().skip(below.fields().len())) {
            let call = lower_window(function, is_bounded(&window.host), &mut strings)
                .map_err(|reason| internal_datafusion_err!("{}: {reason}", function.name()))?;
            functions.push((call, field.as_ref().clone()));
            checks.extend(function.expressions());
        }
        let input = self.with_order(true).pipeline(rows)?.with_string_columns(&strings, &below, window.name())?;
        let input = input.materialise(strings.schema)?;
        let from = Input { schema: Arc::clone(&input.schema), types: input.types.clone(), filter: None };
        let op = Window::try_new(from, partition, order, passed, functions, self.options.clone()).map_err(kernel_error)?;
        Ok(Stage {
            schema,
            types: op.output_types().to_vec(),
            partitions: 1,
            kind: StageKind::Window { input: Arc::new(input), op: Arc::new(op), checks: checks.into() },
            operator: window.name().to_string(),
            metrics: window.metrics.clone(),
        })
    }
}
