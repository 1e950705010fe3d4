// SPDX-License-Identifier: Apache-2.0
//! Random query of either kind.

use std::collections::BTreeSet;

use rand::rngs::StdRng;

use super::compare::{Allowance, Order};
use super::data::Table;
use super::one_table::OneTableQuery;
use super::pools::Pools;
use super::relational::RelationalQuery;
use crate::harness::Answer;

#[derive(Debug, Clone)]
pub enum Query {
    /// Nested expressions and aggregates over one table.
    OneTable(OneTableQuery),
    /// Joins, windows, set operations and subqueries.
    Relational(RelationalQuery),
}

impl Query {
    pub fn sql(&self, tables: &[Table]) -> String {
        match self {
            Query::OneTable(query) => query.sql(&tables[0].columns),
            Query::Relational(query) => query.sql(),
        }
    }

    /// Replaces each constant with another of its type.
    pub fn vary(&mut self, rng: &mut StdRng, pools: &Pools) {
        match self {
            Query::OneTable(query) => query.vary(rng, pools),
            Query::Relational(query) => query.vary(rng, pools),
        }
    }

    /// Features of the query, for the statistics.
    pub fn features(&self) -> BTreeSet<&'static str> {
        match self {
            Query::OneTable(_) => BTreeSet::from(["one table"]),
            Query::Relational(query) => query.features.clone(),
        }
    }

    /// Differences that a comparison of its answers ignores. DataFusion drops keys from `ORDER BY`
    /// behind one that it takes for unique. It is wrong if a join has repeated a group's key, so
    /// `kept` lists the keys of its sort.
    pub fn allowance(&self, answer: &Answer, kept: Option<&[String]>) -> Allowance {
        match self {
            Query::OneTable(query) => Allowance {
                order: if query.keeps_order() { Order::Kept } else { Order::Any },
                zeros_are_equal: query.groups(),
                nans_are_equal: query.groups() || query.aggregates(),
                approximate: query.approximate(),
            },
            Query::Relational(query) => {
                let keys = (query.order.iter().map(|key| &key.column))
                    .filter(|key| kept.is_none_or(|kept| kept.contains(key)))
                    .filter_map(|key| answer.schema.index_of(key).ok())
                    .collect();
                Allowance {
                    order: Order::Keys { columns: keys, limited: query.limit.is_some() },
                    zeros_are_equal: query.groups_floats,
                    nans_are_equal: query.groups_floats,
                    approximate: vec![false; answer.schema.fields().len()],
                }
            }
        }
    }

    /// Whether the device may answer without a launch, even with rows in all tables.
    pub fn may_be_idle(&self) -> bool {
        match self {
            Query::OneTable(query) => query.limit.is_some() || query.only_passes_columns(),
            // Its conditions may simplify to constants.
            Query::Relational(_) => true,
        }
    }

    /// Queries that are one step simpler.
    pub fn simpler(&self) -> Vec<Query> {
        match self {
            Query::OneTable(query) => query.simpler().into_iter().map(Query::OneTable).collect(),
            Query::Relational(query) => query.simpler().into_iter().map(Query::Relational).collect(),
        }
    }
}
