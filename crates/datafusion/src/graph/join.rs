// SPDX-License-Identifier: Apache-2.0
//! Joins: row-wise steps of the pipelines that probe them, whose build sides are stages of their own.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::Layout;
use datafusion::common::{DataFusionError, JoinSide, JoinType, Result, ScalarValue, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use kernels::expr::Expr as KernelExpr;
use kernels::ops::{Concat, Input, Join, JoinBuild, JoinChain, JoinKind, JoinRole, Options, VisitedBitmap};

use super::pipeline::{Pipeline, column, kernel_error, lowered, lowered_output, over_columns, pipeline};
use super::{Stage, StageKind};
use crate::exec::{DeviceDynamicFilterExec, DeviceJoinExec, ScalarSubquery};
use crate::planner::lacks_rows;
use crate::texts::JoinTexts;

/// The build side of a join.
#[derive(Debug)]
pub(crate) struct BuildSide {
    /// Name of the join, for messages.
    pub operator: String,
    pub stage: Arc<Stage>,
    pub concat: Concat,
    pub build: JoinBuild,
    /// The keys, for messages.
    pub checks: Vec<Arc<dyn PhysicalExpr>>,
    /// The keys of the probe side, over the columns before the join, and what else must be true of a pair; for messages too.
    pub probe_checks: Vec<Arc<dyn PhysicalExpr>>,
    pub condition: Option<Arc<dyn PhysicalExpr>>,
    /// The scalar subquery that it is: one row at most.
    pub scalar: Option<ScalarSide>,
    /// The number by which dynamic filters ask for the table.
    pub number: Option<usize>,
    /// What host scans below the probe side are told of the keys, which these are.
    pub scan_filter: Option<ScanFilter>,
    /// Whether rows of the probe side are likely to find nothing, since something below leaves rows out, and had better ask
    /// bits of the keys before the table.
    pub asks_first: bool,
}

/// A scalar subquery, and the metrics of the join that brings its value.
#[derive(Debug, Clone)]
pub(crate) struct ScalarSide {
    pub subquery: ScalarSubquery,
    pub metrics: ExecutionPlanMetricsSet,
}

/// What tells host scans the ranges of a build side's keys.
#[derive(Debug)]
pub(crate) struct ScanFilter {
    /// A `DynamicFilterPhysicalExpr`.
    pub filter: Arc<dyn PhysicalExpr>,
    /// The keys, as the scan has them.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
    pub types: Vec<DataType>,
}

/// Where the table of a chain's join comes from.
#[derive(Debug)]
pub(crate) enum Side {
    /// It is built.
    Build(Box<BuildSide>),
    /// A join further up has built it, and it filters by these keys.
    Filter { number: usize, metrics: ExecutionPlanMetricsSet, keys: Vec<Arc<dyn PhysicalExpr>> },
}

impl Side {
    pub(super) fn build(&self) -> Option<&BuildSide> {
        match self {
            Side::Build(build) => Some(build.as_ref()),
            Side::Filter { .. } => None,
        }
    }

    /// The keys of the rows that probe it.
    pub(crate) fn probe_checks(&self) -> &[Arc<dyn PhysicalExpr>] {
        match self {
            Side::Build(build) => &build.probe_checks,
            Side::Filter { keys, .. } => keys,
        }
    }

    /// What else must be true of a pair.
    pub(crate) fn condition(&self) -> Option<&Arc<dyn PhysicalExpr>> {
        self.build()?.condition.as_ref()
    }
}

/// Joins that rows go through one after another. How they run depends on the tables; `chain` is what most often does.
#[derive(Debug)]
pub(crate) struct Joins {
    pub probe: Arc<Stage>,
    pub sides: Vec<Side>,
    pub joins: Vec<Join>,
    /// Its filter is over the columns of all sides.
    pub input: Input,
    pub outputs: Vec<(KernelExpr, Field)>,
    /// Filters over the columns of all sides, and then what is computed of the rows that are left, for messages.
    pub predicates: Vec<Arc<dyn PhysicalExpr>>,
    pub computed: Vec<Arc<dyn PhysicalExpr>>,
    pub options: Options,
    pub chain: JoinChain,
    /// What gathers small batches, where those who read them launch much for each one.
    pub gathers: Option<Concat>,
}

/// A join that gives rows of its build side alone.
#[derive(Debug)]
pub(crate) struct Marks {
    pub probe: Arc<Stage>,
    pub build: BuildSide,
    pub join: Join,
    pub input: Input,
    pub options: Options,
    /// As it most often runs.
    pub mark: VisitedBitmap,
    /// Filters of the probe side, for messages.
    pub predicates: Vec<Arc<dyn PhysicalExpr>>,
}

impl Joins {
    pub(crate) fn builds(&self) -> impl Iterator<Item = &BuildSide> {
        self.sides.iter().filter_map(Side::build)
    }
}

impl BuildSide {
    /// The most that rows go through at once, and the most keys of these: kernels have a limit of arguments.
    const MOST: usize = 4;
    const MOST_KEYS: usize = 6;
    /// The most columns that the filters before them may look at.
    const MOST_TESTED: usize = 8;

    pub(super) fn kernel_texts(&self) -> Vec<(String, String)> {
        self.stage.kernel_texts().into_iter().chain(self.build.kernel_source()).collect()
    }
}

/// Rows that another join's table has keys for: one more probe of the pipeline.
pub(super) fn filtered(filter: &DeviceDynamicFilterExec, options: &Options) -> Result<Pipeline> {
    let schema = filter.input().schema();
    let mut below = pipeline(filter.input(), options)?.with_failures(&schema, options)?;
    if below.joins.len() >= BuildSide::MOST || below.tested_columns() > BuildSide::MOST_TESTED {
        below = Pipeline::of(below.materialise(Arc::clone(&schema), options)?.gathered(options)?);
    }
    let source = below.schema();
    let checks = filter.keys().iter().map(|key| below.over_source(key)).collect::<Result<Vec<_>>>()?;
    let keys = checks.iter().map(|key| {
        let null = ScalarValue::try_from(&key.data_type(&source)?)?;
        Ok((lowered(key, &source)?, lowered(&lit(null), &source)?))
    });
    let join = Join::dynamic_filter(keys.collect::<Result<_>>()?, filter.null_equals_null());
    below.joins.push((join, Side::Filter { number: filter.number(), metrics: filter.metrics.clone(), keys: checks }));
    below.top = Some((filter.name().to_string(), filter.metrics.clone()));
    Ok(below)
}

/// The rows of a join: of its probe side's pipeline where a row-wise step is enough, else of a stage of its own.
pub(super) fn joined(join: &DeviceJoinExec, options: &Options) -> Result<Pipeline> {
    let (own_left, own_right) = (join.left().schema(), join.right().schema());
    let (spec, texts) = JoinTexts::within(&join.spec, &own_left, &own_right)?;
    let kind = join_kind(spec.join_type);
    let below = pipeline(join.right(), options)?.with_failures(&own_right, options)?;
    let mut below = below.with_columns(&texts.right, &own_right, join.name(), options)?;
    let left = pipeline(join.left(), options)?.with_columns(&texts.left, &own_left, join.name(), options)?;
    let (left_schema, right_schema) = (texts.left.schema, texts.right.schema);
    let keys = below.joins.iter().map(|(join, _)| join.keys.len()).sum::<usize>() + spec.on.len();
    let full = below.joins.len() >= BuildSide::MOST || keys > BuildSide::MOST_KEYS && !below.joins.is_empty();
    if kind.visits_build_rows() || full {
        below = below.without_joins(Arc::clone(&right_schema), options)?;
    }
    // Where a left row has no match, the right columns are NULL, which what is computed of NULLs need not be.
    let computes = kind.keeps_unmatched_build_rows() && below.computes();
    let conditions = spec.filter.as_ref().map_or(0, |filter| filter.column_indices().len());
    let tests = below.tested_columns();
    if computes || tests > 0 && tests + conditions > BuildSide::MOST_TESTED {
        below = Pipeline::of(below.materialise(Arc::clone(&right_schema), options)?.gathered(options)?);
    }
    let stage = Arc::new(left.materialise(Arc::clone(&left_schema), options)?);
    let concat = Concat::try_new(Arc::clone(&left_schema), stage.types.clone(), options.clone()).map_err(kernel_error)?;
    let below_schema = below.schema();
    let first = below_schema.fields().len();
    let right_columns = (0..right_schema.fields().len()).map(|index| below.over_source(&column(&right_schema, index)));
    let right_columns = right_columns.collect::<Result<Vec<_>>>()?;
    let left_columns = left_schema.fields().iter().enumerate().map(|(index, field)| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), first + index));
        column
    });
    let left_columns: Vec<_> = left_columns.collect();
    let mut keys = Vec::with_capacity(spec.on.len());
    let mut probe_checks = Vec::with_capacity(spec.on.len());
    for (left, right) in &spec.on {
        let right = below.over_source(right)?;
        keys.push((lowered(&right, &below_schema)?, lowered(left, &left_schema)?));
        probe_checks.push(right);
    }
    let build_checks = spec.on.iter().map(|(left, _)| Arc::clone(left)).collect();
    let mut kernel_join = Join {
        kind,
        keys,
        null_equals_null: spec.null_equals_null,
        null_aware: spec.null_aware,
        residual: None,
        schema: Arc::clone(&left_schema),
        types: concat.output_types().to_vec(),
        role: if spec.scalar.is_some() { JoinRole::ScalarSubquery } else { JoinRole::Query },
    };
    let mut condition = None;
    if let Some(filter) = &spec.filter {
        let sides = filter.column_indices().iter().map(|column| match column.side {
            JoinSide::Left => left_columns.get(column.index).cloned(),
            _ => right_columns.get(column.index).cloned(),
        });
        let Some(sides) = sides.collect::<Option<Vec<_>>>() else {
            return internal_err!("a join filter of columns that are not there");
        };
        let fields = below_schema.fields().iter().chain(left_schema.fields()).cloned();
        let both = Schema::new(fields.collect::<Vec<_>>());
        let over_sides = over_columns(filter.expression(), &sides)?;
        kernel_join.residual = Some(lowered(&over_sides, &both)?);
        condition = Some(over_sides);
    }
    let before: Vec<Join> = below.joins.iter().map(|(join, _)| join.clone()).collect();
    let build = JoinBuild::try_new(&below.source.types, &before, &kernel_join, options.clone()).map_err(kernel_error)?;
    let scan_filter = join.scan_filter().map(|filter| {
        let types = spec.on.iter().map(|(left, _)| left.data_type(&left_schema)).collect::<Result<_>>()?;
        let keys = filter.children().into_iter().cloned().collect();
        Ok::<_, DataFusionError>(ScanFilter { filter: Arc::clone(filter), keys, types })
    });
    let scan_filter = scan_filter.transpose()?;
    let number = join.number();
    // What filters by the table removes the more, the narrower its ranges are.
    let build = if scan_filter.is_some() || number.is_some() { build.with_found_ranges() } else { build };
    let scalar = spec.scalar.clone().map(|subquery| ScalarSide { subquery, metrics: join.metrics.clone() });
    let build = BuildSide {
        operator: join.name().to_string(),
        stage,
        concat,
        build,
        checks: build_checks,
        probe_checks,
        condition,
        scalar,
        number,
        scan_filter,
        asks_first: kind.drops_unmatched_probe_rows() && lacks_rows(join.left()),
    };
    let mark: Arc<dyn PhysicalExpr> =
        Arc::new(Column::new("mark", if kind.gives_build_rows() { left_columns.len() } else { first + left_columns.len() }));
    // Texts end here.
    let right_columns = right_columns.into_iter().take(own_right.fields().len());
    let of_build = || (0..own_left.fields().len()).map(|index| column(&own_left, index));
    let all: Vec<Arc<dyn PhysicalExpr>> = match spec.join_type {
        JoinType::LeftSemi | JoinType::LeftAnti => of_build().collect(),
        JoinType::LeftMark => of_build().chain([Arc::clone(&mark)]).collect(),
        JoinType::RightSemi | JoinType::RightAnti => right_columns.collect(),
        JoinType::RightMark => right_columns.chain([Arc::clone(&mark)]).collect(),
        _ => left_columns.iter().take(own_left.fields().len()).cloned().chain(right_columns).collect(),
    };
    let outputs = match &spec.projection {
        None => Some(all),
        Some(projection) => projection.iter().map(|index| all.get(*index).cloned()).collect(),
    };
    let Some(outputs) = outputs else { return internal_err!("a projection of columns that a join lacks") };
    let top = Some((join.name().to_string(), join.metrics.clone()));
    if kind.gives_build_rows() {
        let input = below.input()?;
        let op = VisitedBitmap::try_new(input.clone(), &kernel_join, None, options.clone()).map_err(kernel_error)?;
        let source = Stage {
            schema: Arc::clone(op.schema()),
            types: op.output_types().to_vec(),
            partitions: 1,
            operator: join.name().to_string(),
            metrics: join.metrics.clone(),
            kind: StageKind::Mark(Box::new(Marks {
                probe: Arc::new(below.source),
                build,
                join: kernel_join,
                input,
                options: options.clone(),
                mark: op,
                predicates: below.predicates,
            })),
        };
        let predicates = match spec.join_type {
            JoinType::LeftSemi => vec![mark],
            JoinType::LeftAnti => vec![datafusion::physical_expr::expressions::not(mark)?],
            _ => vec![],
        };
        return Ok(Pipeline { predicates, outputs: Some(outputs), top, ..Pipeline::of(source) });
    }
    below.joins.push((kernel_join, Side::Build(Box::new(build))));
    below.outputs = Some(outputs);
    below.top = top;
    if kind.visits_build_rows() { below.without_joins(Arc::clone(&spec.schema), options) } else { Ok(below) }
}

pub(super) fn join_kind(join_type: JoinType) -> JoinKind {
    match join_type {
        JoinType::Inner => JoinKind::Inner,
        JoinType::Left => JoinKind::Left,
        JoinType::Right => JoinKind::Right,
        JoinType::Full => JoinKind::Full,
        JoinType::LeftSemi => JoinKind::LeftSemi,
        JoinType::LeftAnti => JoinKind::LeftAnti,
        JoinType::LeftMark => JoinKind::LeftMark,
        JoinType::RightSemi => JoinKind::RightSemi,
        JoinType::RightAnti => JoinKind::RightAnti,
        JoinType::RightMark => JoinKind::RightMark,
    }
}

impl Stage {
    /// Where it is a join, gathers its small batches for those who launch much for each one. Not where the host would have to look
    /// at what is gathered, as at dictionaries, or where short offsets would become long ones.
    pub(super) fn gathered(mut self, options: &Options) -> Result<Stage> {
        let of_dictionaries = self.types.iter().any(|ty| matches!(ty.layout, Layout::Dictionary { .. }));
        if let StageKind::Join(joins) = &mut self.kind
            && !of_dictionaries
        {
            let concat = Concat::try_new(Arc::clone(&self.schema), self.types.clone(), options.clone());
            joins.gathers = Some(concat.map_err(kernel_error)?).filter(|concat| concat.output_types() == self.types);
        }
        Ok(self)
    }
}

impl Pipeline {
    /// As [`materialise`](Self::materialise) where there are joins.
    pub(super) fn materialise_joins(self, schema: SchemaRef, options: &Options) -> Result<Stage> {
        let joined = self.schema();
        let fields = schema.fields().iter();
        let computed = match &self.outputs {
            Some(outputs) => outputs.clone(),
            None => (0..joined.fields().len()).map(|index| column(&joined, index)).collect(),
        };
        let outputs =
            computed.iter().zip(fields).map(|(expr, field)| Ok((lowered_output(expr, &joined)?, field.as_ref().clone())));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let (input, options) = (self.input()?, options.clone());
        let (joins, sides): (Vec<_>, Vec<_>) = self.joins.into_iter().unzip();
        let chain = JoinChain::try_new(input.clone(), &joins, None, outputs.clone(), options.clone()).map_err(kernel_error)?;
        let (operator, metrics) = self.top.unwrap_or_default();
        let types = chain.output_types().to_vec();
        let (probe, predicates) = (Arc::new(self.source), self.predicates);
        let joins = Joins { probe, sides, joins, input, outputs, predicates, computed, options, chain, gathers: None };
        Ok(Stage { schema, types, partitions: 1, operator, metrics, kind: StageKind::Join(Box::new(joins)) })
    }
}
