// SPDX-License-Identifier: Apache-2.0
//! Joins: row-wise probes of their pipeline, whose build sides are stages of their own.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{DataFusionError, JoinSide, JoinType, Result, ScalarValue, internal_err};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::{Column, lit, not};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use kernels::ops::{Concat, Join, JoinBuild, JoinRole, VisitedBitmap};

use super::Lowering;
use crate::exec::{DeviceDynamicFilterExec, DeviceJoinExec, JoinColumns, JoinSpec, JoinStrings, JoinTypeFacts, drops_rows};
use crate::expr::ComputedStrings;
use crate::graph::estimate::input_bytes;
use crate::graph::joins::{BuildFilters, BuildRows, BuildSide, BuildSideJoin, ScalarSide, ScanFilter, Side};
use crate::graph::pipeline::{Pipeline, column, kernel_error, lowered, over_columns};
use crate::graph::stage::{Stage, StageKind};

/// Limits of a chain of joins: a kernel has a limited number of arguments.
mod limits {
    /// Joins of a chain.
    pub const JOINS: usize = 4;
    /// Keys of these joins.
    pub const KEYS: usize = 6;
    /// Columns that filters before the joins read.
    pub const TESTED_COLUMNS: usize = 8;
}

/// A join whose sides are lowered.
struct LoweredJoin<'a, 'j> {
    join: &'j DeviceJoinExec,
    /// The join over sides with columns of computed strings.
    spec: JoinSpec,
    facts: JoinTypeFacts,
    left_schema: SchemaRef,
    /// The probe side.
    below: Pipeline<'a>,
    /// Columns of the left side behind those of the probe side's pipeline.
    left_columns: Vec<PhysicalExprRef>,
    /// Columns of the right side over the probe side's pipeline.
    right_columns: Vec<PhysicalExprRef>,
    /// Whether operators above may count on the order of the rows.
    order_counts: bool,
}

impl<'a> Lowering<'a> {
    /// A dynamic filter: one more probe of the pipeline.
    pub(super) fn dynamic_filter(&self, filter: &DeviceDynamicFilterExec) -> Result<Pipeline<'a>> {
        let schema = filter.input().schema();
        let mut below = self.pipeline(filter.input())?.ended_if_fallible(&schema)?;
        if below.joins.len() >= limits::JOINS || below.tested_columns() > limits::TESTED_COLUMNS {
            below = below.ended_with_large_batches(&schema)?;
        }
        let source = below.schema();
        let checks = filter.keys().iter().map(|key| below.over_source(key)).collect::<Result<Vec<_>>>()?;
        let keys = checks.iter().map(|key| {
            let null = ScalarValue::try_from(&key.data_type(&source)?)?;
            Ok((lowered(key, &source)?, lowered(&lit(null), &source)?))
        });
        let join = Join::dynamic_filter(keys.collect::<Result<_>>()?, filter.null_equals_null());
        below.joins.push((join, Side::Filter { number: filter.number(), metrics: filter.metrics.clone(), keys: checks }));
        below.put(filter.name(), &filter.metrics, false);
        Ok(below)
    }

    /// A join: a probe of its probe side's pipeline, or a stage of its own if it gives rows of the
    /// build side.
    pub(super) fn join(&self, join: &DeviceJoinExec) -> Result<Pipeline<'a>> {
        let (spec, strings) = JoinStrings::lift(&join.spec, &join.left().schema(), &join.right().schema())?;
        let facts = JoinTypeFacts::of(spec.join_type);
        let below = self.probe_side(join, &spec, facts, &strings.right)?;
        let (stage, concat) = self.build_stage(join, &strings.left)?;
        let (left_schema, right_schema) = (strings.left.schema, strings.right.schema);
        let first = below.schema().fields().len();
        let left_columns = left_schema.fields().iter().enumerate();
        let left_columns =
            left_columns.map(|(index, field)| Arc::new(Column::new(field.name(), first + index)) as PhysicalExprRef);
        let left_columns = left_columns.collect();
        let right_columns = (0..right_schema.fields().len()).map(|index| below.over_source(&column(&right_schema, index)));
        let right_columns = right_columns.collect::<Result<_>>()?;
        let order_counts = self.order_counts;
        LoweredJoin { join, spec, facts, left_schema, below, left_columns, right_columns, order_counts }.pipeline(stage, concat)
    }

    /// The probe side's pipeline, ended where the join cannot be one more probe of it.
    fn probe_side(
        &self,
        join: &DeviceJoinExec,
        spec: &JoinSpec,
        facts: JoinTypeFacts,
        strings: &ComputedStrings,
    ) -> Result<Pipeline<'a>> {
        let schema = join.right().schema();
        let counts = self.order_counts && facts.keeps_probe_order();
        let below = self.with_order(counts).pipeline(join.right())?.ended_if_fallible(&schema)?;
        let mut below = below.with_string_columns(strings, &schema, join.name())?;
        let keys = below.joins.iter().map(|(join, _)| join.keys.len()).sum::<usize>() + spec.on.len();
        let is_full = below.joins.len() >= limits::JOINS || keys > limits::KEYS && !below.joins.is_empty();
        if facts.kind.visits_build_rows() || is_full {
            below = below.ended_if_joined(Arc::clone(&strings.schema))?;
        }
        // An expression of NULLs need not be NULL, but padded columns are.
        let computes = facts.kind.keeps_unmatched_build_rows() && below.computes();
        let conditions = spec.filter.as_ref().map_or(0, |filter| filter.column_indices().len());
        let tested = below.tested_columns();
        if computes || tested > 0 && tested + conditions > limits::TESTED_COLUMNS {
            below = below.ended_with_large_batches(&strings.schema)?;
        }
        Ok(below)
    }

    fn build_stage(&self, join: &DeviceJoinExec, strings: &ComputedStrings) -> Result<(Arc<Stage>, Concat)> {
        let left =
            self.with_order(false).pipeline(join.left())?.with_string_columns(strings, &join.left().schema(), join.name())?;
        let stage = Arc::new(left.materialise(Arc::clone(&strings.schema))?);
        let concat = Concat::try_new(Arc::clone(&strings.schema), stage.types.clone(), self.options.clone());
        Ok((stage, concat.map_err(kernel_error)?))
    }
}

impl<'a> LoweredJoin<'a, '_> {
    fn pipeline(mut self, stage: Arc<Stage>, concat: Concat) -> Result<Pipeline<'a>> {
        let below_schema = self.below.schema();
        let mut keys = Vec::with_capacity(self.spec.on.len());
        let mut probe_checks = Vec::with_capacity(self.spec.on.len());
        for (left, right) in &self.spec.on {
            let right = self.below.over_source(right)?;
            keys.push((lowered(&right, &below_schema)?, lowered(left, &self.left_schema)?));
            probe_checks.push(right);
        }
        let condition = self.spec.filter.as_ref().map(|filter| self.over_sides(filter)).transpose()?;
        let fields = below_schema.fields().iter().chain(self.left_schema.fields()).cloned();
        let both = Schema::new(fields.collect::<Vec<_>>());
        let kernel_join = Join {
            kind: self.facts.kind,
            keys,
            null_equals_null: self.spec.null_equals_null,
            null_aware: self.spec.null_aware,
            residual: condition.as_ref().map(|condition| lowered(condition, &both)).transpose()?,
            schema: Arc::clone(&self.left_schema),
            types: concat.output_types().to_vec(),
            role: if self.spec.scalar.is_some() { JoinRole::ScalarSubquery } else { JoinRole::Query },
        };
        let build = self.build_side(&kernel_join, stage, concat, probe_checks, condition)?;
        let mark: PhysicalExprRef = Arc::new(Column::new("mark", self.mark_index(below_schema.fields().len())));
        let outputs = self.outputs(&mark)?;
        if self.facts.kind.gives_build_rows() {
            return self.build_side_join(kernel_join, build, outputs, mark);
        }
        self.below.joins.push((kernel_join, Side::Build(Box::new(build))));
        self.below.outputs = Some(outputs);
        self.below.put(self.join.name(), &self.join.metrics, false);
        match self.facts.kind.visits_build_rows() {
            true => self.below.ended_if_joined(Arc::clone(&self.spec.schema)),
            false => Ok(self.below),
        }
    }

    /// The condition over the columns of both sides.
    fn over_sides(&self, filter: &JoinFilter) -> Result<PhysicalExprRef> {
        let sides = filter.column_indices().iter().map(|column| match column.side {
            JoinSide::Left => self.left_columns.get(column.index).cloned(),
            JoinSide::Right | JoinSide::None => self.right_columns.get(column.index).cloned(),
        });
        match sides.collect::<Option<Vec<_>>>() {
            Some(sides) => over_columns(filter.expression(), &sides),
            None => internal_err!("a join filter of columns that are not there"),
        }
    }

    fn build_side(
        &self,
        kernel_join: &Join,
        stage: Arc<Stage>,
        concat: Concat,
        probe_checks: Vec<PhysicalExprRef>,
        condition: Option<PhysicalExprRef>,
    ) -> Result<BuildSide> {
        let before: Vec<Join> = self.below.joins.iter().map(|(join, _)| join.clone()).collect();
        let build = JoinBuild::try_new(&self.below.source.types, &before, kernel_join, self.below.options.clone());
        let build = build.map_err(kernel_error)?;
        let dynamic_filters = self.join.dynamic_filters();
        let scan_filter = dynamic_filters.scan.as_ref().map(|filter| {
            let types = self.spec.on.iter().map(|(left, _)| left.data_type(&self.left_schema)).collect::<Result<_>>()?;
            let keys = filter.children().into_iter().cloned().collect();
            Ok::<_, DataFusionError>(ScanFilter { filter: Arc::clone(filter), keys, types })
        });
        let metrics = self.join.metrics.clone();
        let rows = match self.spec.scalar.clone() {
            Some(subquery) => BuildRows::ScalarSubquery(ScalarSide { subquery, metrics }),
            None => BuildRows::All,
        };
        Ok(BuildSide {
            operator: self.join.name().to_string(),
            input_bytes: input_bytes(&stage),
            stage,
            concat,
            // Narrow key ranges make a filter by the table drop more rows.
            build: if dynamic_filters.is_empty() { build } else { build.with_found_ranges() },
            checks: self.spec.on.iter().map(|(left, _)| Arc::clone(left)).collect(),
            probe_checks,
            condition,
            rows,
            keeps_order: self.order_counts && self.join.properties().output_ordering().is_some(),
            filters: BuildFilters { number: dynamic_filters.number, scan: scan_filter.transpose()? },
            probe_bloom_first: self.facts.kind.drops_unmatched_probe_rows() && drops_rows(self.join.left()),
        })
    }

    /// The column of the mark, behind the columns of the side or sides that the join gives.
    fn mark_index(&self, below_columns: usize) -> usize {
        let left = self.left_columns.len();
        if self.facts.kind.gives_build_rows() { left } else { below_columns + left }
    }

    /// The columns of the join, without those of computed strings.
    fn outputs(&self, mark: &PhysicalExprRef) -> Result<Vec<PhysicalExprRef>> {
        let (left, right) = (self.join.left().schema(), self.join.right().schema());
        let of_right = self.right_columns.iter().take(right.fields().len()).cloned();
        let of_build = (0..left.fields().len()).map(|index| column(&left, index));
        let of_left = self.left_columns.iter().take(left.fields().len()).cloned();
        let all: Vec<PhysicalExprRef> = match self.facts.columns {
            JoinColumns::Build => of_build.collect(),
            JoinColumns::BuildAndMark => of_build.chain([Arc::clone(mark)]).collect(),
            JoinColumns::Probe => of_right.collect(),
            JoinColumns::ProbeAndMark => of_right.chain([Arc::clone(mark)]).collect(),
            JoinColumns::Both => of_left.chain(of_right).collect(),
        };
        let outputs = match &self.spec.projection {
            None => Some(all),
            Some(projection) => projection.iter().map(|index| all.get(*index).cloned()).collect(),
        };
        match outputs {
            Some(outputs) => Ok(outputs),
            None => internal_err!("a projection of columns that a join lacks"),
        }
    }

    /// A stage of the build side's rows with a mark column, and the filter by the mark.
    fn build_side_join(
        self,
        kernel_join: Join,
        build: BuildSide,
        outputs: Vec<PhysicalExprRef>,
        mark: PhysicalExprRef,
    ) -> Result<Pipeline<'a>> {
        let (input, options) = (self.below.input()?, self.below.options);
        let visited = VisitedBitmap::try_new(input.clone(), &kernel_join, None, options.clone()).map_err(kernel_error)?;
        let (operator, metrics) = (self.join.name().to_string(), self.join.metrics.clone());
        let fused = self.below.operators();
        let source = Stage {
            schema: Arc::clone(visited.schema()),
            types: visited.output_types().to_vec(),
            partitions: 1,
            operator: operator.clone(),
            metrics: metrics.clone().with_fused(fused),
            kind: StageKind::BuildSideJoin(Arc::new(BuildSideJoin {
                probe: Arc::new(self.below.source),
                build,
                join: kernel_join,
                input,
                options: options.clone(),
                visited,
                predicates: self.below.predicates,
            })),
        };
        let predicates = match self.spec.join_type {
            JoinType::LeftSemi => vec![mark],
            JoinType::LeftAnti => vec![not(mark)?],
            JoinType::LeftMark
            | JoinType::Inner
            | JoinType::Left
            | JoinType::Right
            | JoinType::Full
            | JoinType::RightSemi
            | JoinType::RightAnti
            | JoinType::RightMark => vec![],
        };
        let top = Some((operator, metrics));
        Ok(Pipeline { predicates, outputs: Some(outputs), top, ..Pipeline::new(source, options) })
    }
}
