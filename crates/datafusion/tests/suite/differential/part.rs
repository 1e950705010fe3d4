// SPDX-License-Identifier: Apache-2.0
//! SQL as parts that can be printed, varied and shrunk.

use std::sync::Arc;

use rand::rngs::StdRng;

use super::expr::Expr;
use super::pools::Pools;
use super::types::Column;

#[derive(Debug, Clone)]
pub enum Part {
    Text(String),
    /// Expression over the columns in scope.
    Expr(Expr, Arc<[Column]>),
    Sequence(Vec<Part>),
    List(List),
    /// Set operation of two queries. Each of them is valid alone.
    Operation {
        left: Box<Part>,
        operator: &'static str,
        right: Box<Part>,
    },
}

/// Removable items, of which at least `least` stay. An empty list has no prefix.
#[derive(Debug, Clone)]
pub struct List {
    pub prefix: &'static str,
    pub separator: &'static str,
    pub items: Vec<Part>,
    pub least: usize,
}

impl Part {
    pub fn text(text: impl Into<String>) -> Part {
        Part::Text(text.into())
    }

    pub fn list(prefix: &'static str, separator: &'static str, items: Vec<Part>, least: usize) -> Part {
        Part::List(List { prefix, separator, items, least })
    }

    pub fn sql(&self) -> String {
        let joined = |parts: &[Part], separator: &str| parts.iter().map(Part::sql).collect::<Vec<_>>().join(separator);
        match self {
            Part::Text(text) => text.clone(),
            Part::Expr(expr, columns) => expr.sql(columns),
            Part::Sequence(parts) => joined(parts, ""),
            Part::List(list) if list.items.is_empty() => String::new(),
            Part::List(list) => format!("{}{}", list.prefix, joined(&list.items, list.separator)),
            Part::Operation { left, operator, right } => format!("{}{operator}{}", left.sql(), right.sql()),
        }
    }

    /// Replaces each constant with another of its type.
    pub fn vary(&mut self, rng: &mut StdRng, pools: &Pools) {
        match self {
            Part::Text(_) => {}
            Part::Expr(expr, _) => expr.vary(rng, pools),
            Part::Sequence(parts) => parts.iter_mut().for_each(|part| part.vary(rng, pools)),
            Part::List(list) => list.items.iter_mut().for_each(|part| part.vary(rng, pools)),
            Part::Operation { left, right, .. } => {
                left.vary(rng, pools);
                right.vary(rng, pools);
            }
        }
    }

    /// Parts that are one step simpler, large steps first. Parts that name a removed column cannot
    /// be planned.
    pub fn simpler(&self) -> Vec<Part> {
        match self {
            Part::Text(_) => Vec::new(),
            Part::Expr(expr, columns) => expr.simpler().into_iter().map(|expr| Part::Expr(expr, Arc::clone(columns))).collect(),
            Part::Sequence(parts) => each_simpler(parts).map(Part::Sequence).collect(),
            Part::List(list) => {
                let with = |items: Vec<Part>| Part::List(List { items, ..list.clone() });
                let removable = if list.items.len() > list.least { 0..list.items.len() } else { 0..0 };
                let fewer = removable.rev().map(|index| {
                    let mut items = list.items.clone();
                    items.remove(index);
                    with(items)
                });
                fewer.chain(each_simpler(&list.items).map(with)).collect()
            }
            Part::Operation { left, operator, right } => {
                let with = |left: Part, right: Part| Part::Operation { left: Box::new(left), operator, right: Box::new(right) };
                let mut found = vec![left.as_ref().clone(), right.as_ref().clone()];
                found.extend(left.simpler().into_iter().map(|left| with(left, right.as_ref().clone())));
                found.extend(right.simpler().into_iter().map(|right| with(left.as_ref().clone(), right)));
                found
            }
        }
    }
}

/// Variants of the list with one part a step simpler.
fn each_simpler(parts: &[Part]) -> impl Iterator<Item = Vec<Part>> {
    (0..parts.len()).flat_map(move |index| {
        parts[index].simpler().into_iter().map(move |simpler| {
            let mut parts = parts.to_vec();
            parts[index] = simpler;
            parts
        })
    })
}
