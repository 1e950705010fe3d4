// SPDX-License-Identifier: Apache-2.0
//! Filters and projections, which are substituted into the pipeline.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_plan::ExecutionPlan;
use kernels::function::Function;

use super::Lowering;
use crate::exec::{DeviceFilterExec, DeviceProjectionExec};
use crate::expr::{DeviceFunction, Evaluation, must_be_column};
use crate::graph::pipeline::{LiftedStrings, Pipeline, column};

impl<'a> Lowering<'a> {
    pub(super) fn filter(&self, filter: &DeviceFilterExec, input: &Arc<dyn ExecutionPlan>) -> Result<Pipeline<'a>> {
        let schema = input.schema();
        let predicate = [(Arc::clone(filter.predicate()), Evaluation::Always)];
        let below = self.pipeline(input)?.ended_if_fallible(&schema)?;
        let LiftedStrings { pipeline: mut below, exprs: predicates, .. } =
            below.lift_strings(&schema, &predicate, filter.name())?;
        for predicate in &predicates {
            below.predicates.push(below.over_source(predicate)?);
        }
        if let Some(projection) = filter.projection() {
            let columns = projection.iter().map(|index| column(&schema, *index));
            below.outputs = Some(columns.map(|column| below.over_source(&column)).collect::<Result<_>>()?);
        } else if let Some(outputs) = &mut below.outputs {
            // Drops the columns of computed strings.
            outputs.truncate(schema.fields().len());
        }
        below.put(filter.name(), &filter.metrics, false);
        Ok(below)
    }

    pub(super) fn projection(
        &self,
        projection: &DeviceProjectionExec,
        input: &Arc<dyn ExecutionPlan>,
        output_schema: SchemaRef,
    ) -> Result<Pipeline<'a>> {
        let outputs: Vec<_> = projection.expressions().iter().map(|output| Arc::clone(&output.expr)).collect();
        let LiftedStrings { pipeline: mut below, exprs: outputs, schema } =
            self.pipeline(input)?.lift_strings_of_outputs(&input.schema(), &outputs, projection.name())?;
        let writes = outputs.iter().any(|output| must_be_column(output, &schema));
        if writes {
            below = below.ended_if_joined(Arc::clone(&schema))?;
        }
        // The rows of a new list are read from a column.
        if outputs.iter().any(|output| DeviceFunction::is_call(output, Function::ListOfRows)) && below.computes() {
            below = Pipeline::new(below.materialise(schema)?, self.options);
        }
        let outputs = outputs.iter().map(|output| below.over_source(output));
        below.outputs = Some(outputs.collect::<Result<_>>()?);
        below.put(projection.name(), &projection.metrics, true);
        // New strings and new lists are written to columns before another operator reads them.
        if writes { Ok(Pipeline::new(below.materialise(output_schema)?, self.options)) } else { Ok(below) }
    }
}
