// SPDX-License-Identifier: Apache-2.0
//! Stages of sorts.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use kernels::ops::{Sort, SortKey};

use super::Lowering;
use crate::exec::DeviceSortExec;
use crate::expr::{Evaluation, as_sort_key};
use crate::graph::pipeline::{LiftedStrings, Pipeline, column, kernel_error, lowered};
use crate::graph::stage::{Stage, StageKind};

impl Lowering<'_> {
    pub(super) fn sort(&self, sort: &DeviceSortExec, input: &Arc<dyn ExecutionPlan>) -> Result<Stage> {
        let schema = input.schema();
        let mut below = self.with_order(false).pipeline(input)?;
        if !below.joins.is_empty() {
            below = Pipeline::new(below.materialise(Arc::clone(&schema))?, self.options);
        }
        let exprs = sort.keys().iter().map(|key| Ok((as_sort_key(key, &schema)?, Evaluation::Always)));
        let exprs = exprs.collect::<Result<Vec<_>>>()?;
        let LiftedStrings { pipeline: below, exprs, .. } = below.lift_strings(&schema, &exprs, sort.name())?;
        let source_schema = Arc::clone(&below.source.schema);
        let mut checks = below.predicates.clone();
        let mut keys = Vec::new();
        for (key, expr) in sort.keys().iter().zip(&exprs) {
            let expr = below.over_source(expr)?;
            let lowered = lowered(&expr, &source_schema)?;
            keys.push(SortKey { expr: lowered, descending: key.options.descending, nulls_first: key.options.nulls_first });
            checks.push(expr);
        }
        let mut outputs = Vec::new();
        for (index, field) in schema.fields().iter().enumerate() {
            let expr = below.over_source(&column(&schema, index))?;
            outputs.push((lowered(&expr, &source_schema)?, field.as_ref().clone()));
            checks.push(expr);
        }
        let op = Sort::try_new(below.input()?, keys, outputs, sort.fetch_rows(), self.options.clone()).map_err(kernel_error)?;
        let metrics = sort.metrics.clone().with_fused(below.operators());
        Ok(Stage {
            schema,
            types: op.output_types().to_vec(),
            partitions: 1,
            kind: StageKind::Sort { input: Arc::new(below.source), op: Arc::new(op), checks: checks.into() },
            operator: sort.name().to_string(),
            metrics,
        })
    }
}
