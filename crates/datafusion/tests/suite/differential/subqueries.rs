// SPDX-License-Identifier: Apache-2.0
//! Random subqueries in expressions: IN, EXISTS and scalar, correlated or not.

use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::expr::Expr;
use super::part::Part;
use super::select::{Builder, Relation, computed, of_table, type_of};
use super::types::{Column, Kind};

impl Builder<'_> {
    /// Condition with a subquery.
    pub fn subquery_condition(&mut self, outer: &[Column]) -> Part {
        let inner = self.table_with_alias();
        let pair = self.pair(outer, &inner.columns);
        let condition = match (self.rng.random_range(0..10), pair) {
            (0..=3, Some(pair)) => self.membership(outer, &inner, pair),
            (4..=6, Some(pair)) => self.existence(outer, &inner, pair),
            (_, pair) => self.comparison(outer, &inner, pair),
        };
        if !self.rng.random_bool(0.2) {
            return condition;
        }
        self.features.insert("subquery below OR");
        let other = self.generator(outer).boolean(0);
        Part::Sequence(vec![Part::text("("), condition, Part::text(" OR "), Part::Expr(other, outer.into()), Part::text(")")])
    }

    /// Scalar subquery as an output column.
    pub fn scalar_subquery(&mut self, outer: &[Column]) -> (Part, Column) {
        let inner = self.table_with_alias();
        let pair = self.pair(outer, &inner.columns);
        let operand = self.operand(&inner.columns);
        let (template, kind) = match &operand {
            Some(operand) if self.rng.random_bool(0.5) => {
                (*["max", "min"].choose(self.rng).unwrap(), inner.columns[*operand].kind())
            }
            _ => ("count", Kind::Int),
        };
        let part = self.scalar(template, operand, outer, &inner, pair);
        let name = self.name("c");
        (part, computed(name, type_of(&kind)))
    }

    fn table_with_alias(&mut self) -> Relation {
        let (alias, table) = (self.name("s"), self.tables.choose(self.rng).unwrap());
        let relation = of_table(table);
        let columns = relation.columns.iter().map(|column| Column { name: format!("{alias}.{}", column.name), ..column.clone() });
        Relation { columns: columns.collect(), part: Part::text(format!("{} AS {alias}", table.name)), ..relation }
    }

    /// Random pair of an outer and an inner column of one domain.
    fn pair(&mut self, outer: &[Column], inner: &[Column]) -> Option<(usize, usize)> {
        let mut pairs = Vec::new();
        for (o, column) in outer.iter().enumerate().filter(|(_, column)| column.domain.is_some()) {
            pairs.extend((0..inner.len()).filter(|i| inner[*i].domain == column.domain).map(|i| (o, i)));
        }
        pairs.choose(self.rng).copied()
    }

    /// Column of the subquery to aggregate. It is not a float, since either zero may be the
    /// minimum.
    fn operand(&mut self, inner: &[Column]) -> Option<usize> {
        let fits: Vec<usize> = (0..inner.len()).filter(|column| inner[*column].kind() != Kind::Float).collect();
        fits.choose(self.rng).copied()
    }

    fn membership(&mut self, outer: &[Column], inner: &Relation, (o, i): (usize, usize)) -> Part {
        let not = *["", "NOT "].choose(self.rng).unwrap();
        self.features.insert(if not.is_empty() { "IN (subquery)" } else { "NOT IN (subquery)" });
        let start = format!("{} {not}IN (SELECT {} FROM ", outer[o].name, inner.columns[i].name);
        let mut conditions = Vec::new();
        if self.rng.random_bool(0.5) {
            let filter = self.generator(&inner.columns).boolean(1);
            conditions.push(Part::Expr(filter, inner.columns.as_slice().into()));
        }
        if self.rng.random_bool(0.2)
            && let Some(pair) = self.pair(outer, &inner.columns)
        {
            conditions.push(self.correlation(outer, inner, pair, "="));
        }
        Part::Sequence(vec![
            Part::text(start),
            inner.part.clone(),
            Part::list(" WHERE ", " AND ", conditions, 0),
            Part::text(")"),
        ])
    }

    fn existence(&mut self, outer: &[Column], inner: &Relation, pair: (usize, usize)) -> Part {
        let not = *["", "NOT "].choose(self.rng).unwrap();
        self.features.insert(if not.is_empty() { "EXISTS" } else { "NOT EXISTS" });
        let mut conditions = vec![self.correlation(outer, inner, pair, "=")];
        if self.rng.random_bool(0.3)
            && let Some(pair) = self.pair(outer, &inner.columns)
        {
            let operator = *["=", "<", ">=", "<>"].choose(self.rng).unwrap();
            conditions.push(self.correlation(outer, inner, pair, operator));
        }
        if self.rng.random_bool(0.4) {
            let filter = self.generator(&inner.columns).boolean(1);
            conditions.push(Part::Expr(filter, inner.columns.as_slice().into()));
        }
        let start = Part::text(format!("{not}EXISTS (SELECT 1 FROM "));
        Part::Sequence(vec![start, inner.part.clone(), Part::list(" WHERE ", " AND ", conditions, 0), Part::text(")")])
    }

    fn comparison(&mut self, outer: &[Column], inner: &Relation, pair: Option<(usize, usize)>) -> Part {
        let operator = *["<", ">", "<=", ">=", "<>", "="].choose(self.rng).unwrap();
        let operand = self.operand(&inner.columns);
        let kind = operand.map(|operand| inner.columns[operand].kind());
        let compared: Vec<usize> = (0..outer.len()).filter(|column| Some(outer[*column].kind()) == kind).collect();
        let numbers: Vec<usize> = (0..outer.len()).filter(|column| outer[*column].kind() == Kind::Int).collect();
        let compared = compared.choose(self.rng).copied();
        let (left, function) = match (compared, numbers.choose(self.rng)) {
            (Some(column), _) => (Expr::column(column, outer), *["min", "max"].choose(self.rng).unwrap()),
            (None, Some(column)) => (Expr::column(*column, outer), "count"),
            (None, None) => (self.generator(outer).of(&Kind::Int, 0), "count"),
        };
        let subquery = self.scalar(function, operand, outer, inner, pair);
        Part::Sequence(vec![Part::Expr(left, outer.into()), Part::text(format!(" {operator} ")), subquery])
    }

    fn scalar(
        &mut self,
        function: &str,
        operand: Option<usize>,
        outer: &[Column],
        inner: &Relation,
        pair: Option<(usize, usize)>,
    ) -> Part {
        let mut conditions = Vec::new();
        match pair {
            Some(pair) if self.rng.random_bool(0.6) => {
                self.features.insert("correlated scalar subquery");
                conditions.push(self.correlation(outer, inner, pair, "="));
            }
            _ => drop(self.features.insert("scalar subquery")),
        }
        if self.rng.random_bool(0.3) {
            let filter = self.generator(&inner.columns).boolean(1);
            conditions.push(Part::Expr(filter, inner.columns.as_slice().into()));
        }
        let operand = operand.map_or("*", |operand| &inner.columns[operand].name);
        let operand = if function == "count" { "*" } else { operand };
        let start = Part::text(format!("(SELECT {function}({operand}) FROM "));
        Part::Sequence(vec![start, inner.part.clone(), Part::list(" WHERE ", " AND ", conditions, 0), Part::text(")")])
    }

    fn correlation(&self, outer: &[Column], inner: &Relation, (o, i): (usize, usize), operator: &str) -> Part {
        let mut both = outer.to_vec();
        both.extend(inner.columns.iter().cloned());
        let operands = vec![Expr::column(outer.len() + i, &both), Expr::column(o, &both)];
        Part::Expr(Expr::call(Kind::Bool, format!("{{}} {operator} {{}}"), operands), Arc::from(both))
    }
}
