// SPDX-License-Identifier: Apache-2.0
//! Queries whose plans can be kept, and what must be equal for a plan to be theirs.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Weak};

use datafusion::common::Result;
use datafusion::common::config::{ConfigEntry, ConfigOptions};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::logical_plan::builder::LogicalTableSource;
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan, Volatility, WindowFunctionDefinition};

use crate::table::{DeviceTable, Snapshot, TableState};

/// A query over resident tables alone, whose functions are all immutable.
#[derive(Debug)]
pub(super) struct CachedQuery {
    /// The query before analysis, without its tables: a kept plan keeps no table alive.
    plan: LogicalPlan,
    hash: u64,
    /// The snapshot of each scan, in the order of the scans.
    tables: Vec<TableVersion>,
    settings: Vec<ConfigEntry>,
}

/// A snapshot of a table.
#[derive(Debug, Clone)]
pub(super) struct TableVersion {
    pub table: Weak<TableState>,
    pub snapshot: Weak<Snapshot>,
}

impl TableVersion {
    fn of(scan: &TableScan) -> Option<Self> {
        let provider = source_as_provider(&scan.source).ok()?;
        let table = provider.downcast_ref::<DeviceTable>()?.state();
        Some(TableVersion { table: Arc::downgrade(table), snapshot: Arc::downgrade(&table.current().ok()?) })
    }

    /// Whether the table still has this snapshot.
    pub fn is_current(&self) -> bool {
        let current = self.table.upgrade().and_then(|table| table.current().ok());
        current.is_some_and(|current| std::ptr::eq(Arc::as_ptr(&current), self.snapshot.as_ptr()))
    }

    fn is(&self, other: &Self) -> bool {
        self.table.ptr_eq(&other.table) && self.snapshot.ptr_eq(&other.snapshot)
    }
}

impl CachedQuery {
    /// `None` if a plan of the query cannot be kept.
    pub fn of(plan: &LogicalPlan, config: &ConfigOptions) -> Result<Option<Self>> {
        let Some(tables) = tables_of(plan)? else { return Ok(None) };
        let mut hasher = DefaultHasher::new();
        plan.hash(&mut hasher);
        let (plan, hash) = (plan.clone(), hasher.finish());
        Ok(Some(CachedQuery { plan, hash, tables, settings: config.entries() }))
    }

    /// The hash of the query's plan.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The snapshots that its plan reads.
    pub fn tables(&self) -> &[TableVersion] {
        &self.tables
    }

    /// The query, without its tables.
    pub fn without_tables(&self) -> Result<Self> {
        let plan = self.plan.clone().transform_down_with_subqueries(|node| {
            let LogicalPlan::TableScan(mut scan) = node else { return Ok(Transformed::no(node)) };
            scan.source = Arc::new(LogicalTableSource::new(scan.source.schema()));
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        })?;
        let (tables, settings) = (self.tables.clone(), self.settings.clone());
        Ok(CachedQuery { plan: plan.data, hash: self.hash, tables, settings })
    }

    /// Whether both have one plan.
    pub fn is(&self, other: &Self) -> bool {
        let same_tables = self.tables.len() == other.tables.len()
            && self.tables.iter().zip(&other.tables).all(|(table, other)| table.is(other));
        // The equality of table scans leaves out their tables.
        same_tables && self.settings == other.settings && self.plan == other.plan
    }
}

/// The tables of a query in the order of its scans; `None` if its plan cannot be kept, or without
/// tables.
fn tables_of(plan: &LogicalPlan) -> Result<Option<Vec<TableVersion>>> {
    let (mut tables, mut can_keep) = (Vec::new(), true);
    let further = |can_keep| if can_keep { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop };
    plan.apply_with_subqueries(|node| {
        can_keep &= is_kept(node);
        if let LogicalPlan::TableScan(scan) = node {
            let version = TableVersion::of(scan);
            can_keep &= version.is_some();
            tables.extend(version);
        }
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                can_keep &= is_immutable(expr);
                Ok(further(can_keep))
            })
        })?;
        Ok(further(can_keep))
    })?;
    Ok((can_keep && !tables.is_empty()).then_some(tables))
}

/// Whether a plan with this operator can be kept: it reads, and its plan depends on nothing else.
fn is_kept(node: &LogicalPlan) -> bool {
    match node {
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Repartition(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::TableScan(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Subquery(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Values(_)
        | LogicalPlan::Distinct(_)
        | LogicalPlan::Unnest(_) => true,
        LogicalPlan::Statement(_)
        | LogicalPlan::Explain(_)
        | LogicalPlan::Analyze(_)
        | LogicalPlan::Extension(_)
        | LogicalPlan::Dml(_)
        | LogicalPlan::Ddl(_)
        | LogicalPlan::Copy(_)
        | LogicalPlan::DescribeTable(_)
        | LogicalPlan::RecursiveQuery(_) => false,
    }
}

/// Whether an expression has the same value each time. The planner computes `now()` once.
fn is_immutable(expr: &Expr) -> bool {
    let volatility = match expr {
        Expr::ScalarFunction(function) => function.func.signature().volatility,
        Expr::AggregateFunction(function) => function.func.signature().volatility,
        Expr::WindowFunction(function) => match &function.fun {
            WindowFunctionDefinition::AggregateUDF(function) => function.signature().volatility,
            WindowFunctionDefinition::WindowUDF(function) => function.signature().volatility,
        },
        Expr::HigherOrderFunction(function) => function.func.signature().volatility,
        Expr::ScalarVariable(..) | Expr::Placeholder(_) => Volatility::Volatile,
        Expr::Alias(_)
        | Expr::Column(_)
        | Expr::Literal(..)
        | Expr::BinaryExpr(_)
        | Expr::Like(_)
        | Expr::SimilarTo(_)
        | Expr::Not(_)
        | Expr::IsNotNull(_)
        | Expr::IsNull(_)
        | Expr::IsTrue(_)
        | Expr::IsFalse(_)
        | Expr::IsUnknown(_)
        | Expr::IsNotTrue(_)
        | Expr::IsNotFalse(_)
        | Expr::IsNotUnknown(_)
        | Expr::Negative(_)
        | Expr::Between(_)
        | Expr::Case(_)
        | Expr::Cast(_)
        | Expr::TryCast(_)
        | Expr::InList(_)
        | Expr::Exists(_)
        | Expr::InSubquery(_)
        | Expr::SetComparison(_)
        | Expr::ScalarSubquery(_)
        | Expr::GroupingSet(_)
        | Expr::OuterReferenceColumn(..)
        | Expr::Unnest(_)
        | Expr::Lambda(_)
        | Expr::LambdaVariable(_) => Volatility::Immutable,
        #[expect(deprecated, reason = "the match lists all variants")]
        Expr::Wildcard { .. } => Volatility::Immutable,
    };
    volatility == Volatility::Immutable
}
