// SPDX-License-Identifier: Apache-2.0
//! Random queries over several tables: their parts, and the comparison of their answers.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::data::Table;
use super::part::Part;
use super::pools::{Domain, Pools};
use super::select::{Builder, Growth};
use super::types::Kind;

/// Approximate limit on the rows of an intermediate result.
const MOST_ROWS: f64 = 30_000.0;

/// Query over several tables.
#[derive(Debug, Clone)]
pub struct RelationalQuery {
    common: Part,
    body: Part,
    pub order: Vec<Key>,
    pub limit: Option<(usize, usize)>,
    /// A group may return any of several equal floats.
    pub groups_floats: bool,
    /// Features of the query, for the statistics.
    pub features: BTreeSet<&'static str>,
    growth: Growth,
}

/// Sort key: a column of the result.
#[derive(Debug, Clone)]
pub struct Key {
    pub column: String,
    text: String,
}

impl RelationalQuery {
    pub fn random(rng: &mut StdRng, tables: &[Table], domains: &[Domain]) -> RelationalQuery {
        let mut builder = Builder::new(rng, tables, domains);
        let mut common = Vec::new();
        for _ in 0..*[0, 0, 0, 0, 1, 2].choose(builder.rng).unwrap() {
            builder.features.insert("WITH");
            let name = builder.name("w");
            let relation = builder.subquery(0);
            let text = vec![Part::text(format!("{name} AS (")), relation.part.clone(), Part::text(")")];
            common.push(Part::Sequence(text));
            builder.common.push((name, relation));
        }
        let depth = *[1, 1, 1, 2].choose(builder.rng).unwrap();
        let body = builder.query(depth, false);
        let groups = ["DISTINCT", "aggregation", "UNION", "INTERSECT", "EXCEPT"];
        let groups_floats = groups.iter().any(|feature| builder.features.contains(feature))
            && body.columns.iter().any(|column| column.kind() == Kind::Float);
        let mut order = Vec::new();
        let mut limit = None;
        if builder.rng.random_bool(0.4) {
            let fits: Vec<&str> = (body.columns.iter())
                .filter(|column| !(groups_floats && column.kind() == Kind::Float))
                .map(|column| column.name.as_str())
                .collect();
            for _ in 0..*[1, 1, 2, 3].choose(builder.rng).unwrap() {
                if let Some(column) = fits.choose(builder.rng) {
                    order.push(Key { column: column.to_string(), text: builder.direction(column) });
                }
            }
        }
        if !order.is_empty() {
            builder.features.insert("ORDER BY with ties");
            if builder.rng.random_bool(0.4) {
                builder.features.insert("ORDER BY with LIMIT");
                limit = Some((*[1, 5, 40, 1000].choose(builder.rng).unwrap(), *[0, 0, 0, 3, 20].choose(builder.rng).unwrap()));
            }
        }
        let (features, growth) = (builder.features, builder.growth);
        RelationalQuery {
            common: Part::list("WITH ", ", ", common, 0),
            body: body.part,
            order,
            limit,
            groups_floats,
            features,
            growth,
        }
    }

    pub fn sql(&self) -> String {
        let space = if self.common.sql().is_empty() { "" } else { " " };
        let mut sql = format!("{}{space}{}", self.common.sql(), self.body.sql());
        if !self.order.is_empty() {
            let keys: Vec<&str> = self.order.iter().map(|key| key.text.as_str()).collect();
            sql += &format!(" ORDER BY {}", keys.join(", "));
        }
        if let Some((rows, skip)) = self.limit {
            sql += &format!(" LIMIT {rows} OFFSET {skip}");
        }
        sql
    }

    /// Replaces each constant with another of its type.
    pub fn vary(&mut self, rng: &mut StdRng, pools: &Pools) {
        self.common.vary(rng, pools);
        self.body.vary(rng, pools);
    }

    /// Row limit of the tables, at most `most`, which keeps joins small.
    pub fn most_rows(&self, spread: bool, most: usize) -> usize {
        let factors = if spread { self.growth.spread } else { self.growth.skewed };
        usize::min(MOST_ROWS.powf(1.0 / f64::from(factors.max(1))) as usize, most)
    }

    /// Queries that are one step simpler.
    pub fn simpler(&self) -> Vec<RelationalQuery> {
        let mut found = Vec::new();
        if self.limit.is_some() {
            found.push(RelationalQuery { limit: None, ..self.clone() });
        } else {
            for index in 0..self.order.len() {
                let mut query = self.clone();
                query.order.remove(index);
                found.push(query);
            }
        }
        found.extend(self.common.simpler().into_iter().map(|common| RelationalQuery { common, ..self.clone() }));
        found.extend(self.body.simpler().into_iter().map(|body| RelationalQuery { body, ..self.clone() }));
        found
    }
}
