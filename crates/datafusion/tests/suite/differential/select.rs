// SPDX-License-Identifier: Apache-2.0
//! Random SELECTs over joins: sources, joins, conditions, outputs, groups.
//!
//! An answer must not depend on the order of rows. Row numbers and limits therefore order by a
//! relation's *identity*: the columns that identify its rows. Below the top level no float is a
//! group key, because either zero may represent both.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::DataType;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::data::{ID, Table};
use super::expr::{Expr, Generator, Node};
use super::part::Part;
use super::pools::Domain;
use super::types::{Column, Kind};

/// A table, a subquery, or several of them joined.
#[derive(Debug, Clone)]
pub struct Relation {
    pub part: Part,
    pub columns: Vec<Column>,
    /// Columns that identify its rows; `None` without any.
    pub identity: Option<Vec<usize>>,
    pub growth: Growth,
}

/// Bound on the number of rows: the number of tables whose rows multiply.
#[derive(Debug, Clone, Copy, Default)]
pub struct Growth {
    /// If each key is rare.
    pub spread: u32,
    /// If one key has half of the rows.
    pub skewed: u32,
}

impl Growth {
    fn max(self, other: Growth) -> Growth {
        Growth { spread: self.spread.max(other.spread), skewed: self.skewed.max(other.skewed) }
    }

    fn product(self, other: Growth) -> Growth {
        Growth { spread: self.spread + other.spread, skewed: self.skewed + other.skewed }
    }
}

/// Draws the parts of one query.
pub struct Builder<'a> {
    pub rng: &'a mut StdRng,
    pub tables: &'a [Table],
    pub domains: &'a [Domain],
    /// Common table expressions, by name.
    pub common: Vec<(String, Relation)>,
    /// Features of the query, for the statistics.
    pub features: BTreeSet<&'static str>,
    /// Bound of the largest intermediate result.
    pub growth: Growth,
    names: usize,
}

impl<'a> Builder<'a> {
    pub fn new(rng: &'a mut StdRng, tables: &'a [Table], domains: &'a [Domain]) -> Builder<'a> {
        let (common, features, growth) = (Vec::new(), BTreeSet::new(), Growth::default());
        Builder { rng, tables, domains, common, features, growth, names: 0 }
    }

    /// Name that is unique in the query.
    pub fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    /// A SELECT, or a set operation of several. `depth` limits the nesting of subqueries in its
    /// sources. `inner` flags a query that is a source itself.
    pub fn query(&mut self, depth: usize, inner: bool) -> Relation {
        if self.rng.random_bool(if inner { 0.15 } else { 0.25 }) {
            self.set_operation(depth, inner)
        } else {
            self.select(depth, inner)
        }
    }

    fn select(&mut self, depth: usize, inner: bool) -> Relation {
        let mut from = self.from(depth);
        let filter = self.conditions(&from, depth);
        from.part = Part::Sequence(vec![from.part, filter]);
        match self.rng.random_range(0..10) {
            0..=3 => self.plain(from, inner),
            4..=6 => self.grouped(from, inner),
            _ => self.windowed(from),
        }
    }

    /// A SELECT of columns with the kinds of `wanted` and, if possible, their domains.
    fn select_like(&mut self, wanted: &[Column], depth: usize) -> Relation {
        let from = self.from(depth);
        let filter = self.conditions(&from, depth);
        let outputs = wanted.iter().map(|wanted| {
            let depth = self.rng.random_range(0..2);
            let mut generator = self.generator(&from.columns);
            let key = generator.column(|column| column.domain.is_some() && column.domain == wanted.domain);
            key.unwrap_or_else(|| generator.of(&wanted.kind(), depth))
        });
        let outputs: Vec<Expr> = outputs.collect();
        let (outputs, columns) = self.outputs(outputs, &from.columns);
        let part = Part::Sequence(vec![Part::list("SELECT ", ", ", outputs, wanted.len()), from.part, filter]);
        Relation { part, columns, identity: None, growth: from.growth }
    }

    fn set_operation(&mut self, depth: usize, inner: bool) -> Relation {
        const OPERATORS: [&str; 8] =
            [" UNION ALL ", " UNION ALL ", " UNION ", " UNION ", " INTERSECT ", " EXCEPT ", " INTERSECT ALL ", " EXCEPT ALL "];
        let operator = *OPERATORS.choose(self.rng).unwrap();
        self.features.insert(operator.trim());
        let count = *[1, 1, 2, 3].choose(self.rng).unwrap();
        let wanted: Vec<Column> = (0..count)
            .map(|_| {
                let table = self.tables.choose(self.rng).unwrap();
                let keys: Vec<&Column> = table.columns.iter().filter(|column| column.domain.is_some()).collect();
                let key = keys.choose(self.rng).filter(|_| self.rng.random_bool(0.7));
                let column = key.copied().unwrap_or_else(|| table.columns.choose(self.rng).unwrap());
                if inner && column.kind() == Kind::Float { table.columns[0].clone() } else { column.clone() }
            })
            .collect();
        let left = self.select_like(&wanted, depth);
        let mut right = self.select_like(&wanted, depth);
        if self.rng.random_bool(0.2) {
            let third = self.select_like(&wanted, depth);
            let (left, right_part) = (Box::new(right.part), Box::new(third.part));
            right.part = Part::Sequence(vec![
                Part::text("("),
                Part::Operation { left, operator: " UNION ALL ", right: right_part },
                Part::text(")"),
            ]);
            right.growth = right.growth.max(third.growth);
        }
        // The other side may change the type of a column, and add values of other domains.
        let columns = left.columns.iter().zip(&right.columns).map(|(left, right)| Column {
            data_type: if left.data_type == right.data_type { left.data_type.clone() } else { left.kind().usual_type() },
            domain: left.domain.filter(|domain| right.domain == Some(*domain)),
            ..left.clone()
        });
        let columns = columns.collect();
        let part = Part::Operation { left: Box::new(left.part), operator, right: Box::new(right.part) };
        Relation { part, columns, identity: None, growth: left.growth.max(right.growth) }
    }

    fn plain(&mut self, from: Relation, inner: bool) -> Relation {
        let count = self.rng.random_range(1..=4);
        let mut outputs: Vec<Expr> = (0..count).map(|_| self.output(&from.columns)).collect();
        let distinct = self.rng.random_bool(0.12);
        let mut identity = None;
        if distinct {
            self.features.insert("DISTINCT");
            if inner {
                outputs.retain(|output| output.kind != Kind::Float);
                if outputs.is_empty() {
                    outputs.push(self.generator(&from.columns).of(&Kind::Int, 0));
                }
            }
            identity = Some((0..outputs.len()).collect());
        } else if let Some(columns) = &from.identity {
            identity = Some((outputs.len()..outputs.len() + columns.len()).collect());
            outputs.extend(columns.iter().map(|column| Expr::column(*column, &from.columns)));
        }
        let (mut parts, mut columns) = self.outputs(outputs, &from.columns);
        if !distinct && self.rng.random_bool(0.1) {
            let (part, column) = self.scalar_subquery(&from.columns);
            parts.push(Part::Sequence(vec![part, Part::text(format!(" AS {}", column.name))]));
            columns.push(column);
        }
        let select = if distinct { "SELECT DISTINCT " } else { "SELECT " };
        let part = Part::Sequence(vec![Part::list(select, ", ", parts, 1), from.part]);
        Relation { part, columns, identity, growth: from.growth }
    }

    fn output(&mut self, columns: &[Column]) -> Expr {
        if self.rng.random_bool(0.7) {
            Expr::column(self.rng.random_range(0..columns.len()), columns)
        } else {
            self.generator(columns).any(2)
        }
    }

    /// Named output expressions.
    pub fn outputs(&mut self, outputs: Vec<Expr>, scope: &[Column]) -> (Vec<Part>, Vec<Column>) {
        let shared: Arc<[Column]> = scope.into();
        let name = |expr: Expr| {
            let name = self.name("c");
            let column = expr.described(name.clone(), scope);
            (Part::Sequence(vec![Part::Expr(expr, Arc::clone(&shared)), Part::text(format!(" AS {name}"))]), column)
        };
        outputs.into_iter().map(name).unzip()
    }

    fn grouped(&mut self, from: Relation, inner: bool) -> Relation {
        let count = *[0, 1, 1, 1, 2, 2, 3].choose(self.rng).unwrap();
        let sets = count > 0 && self.rng.random_bool(0.25);
        let mut keys: Vec<Expr> = (0..count).map(|_| self.key(&from.columns, inner, sets)).collect();
        if sets {
            let mut seen = BTreeSet::new();
            keys.retain(|key| seen.insert(key.sql(&from.columns)));
        }
        let mut texts: Vec<String> = keys.iter().map(|key| key.sql(&from.columns)).collect();
        let key_columns = (0..keys.len()).collect();
        let (keys, mut columns) = self.outputs(keys, &from.columns);
        let key_count = keys.len();
        // The groups depend on all keys, so the shrinker removes all keys or none.
        let mut items = if keys.is_empty() { Vec::new() } else { vec![Part::list("", ", ", keys, key_count)] };
        for _ in 0..self.rng.random_range(usize::from(key_count == 0)..=3) {
            let (part, column) = self.aggregate(&from.columns);
            items.push(Part::Sequence(vec![part, Part::text(format!(" AS {}", column.name))]));
            columns.push(column);
        }
        let mut clauses = Vec::new();
        let mut identity = Some(key_columns);
        if sets {
            identity = None;
            let name = self.name("c");
            items.push(Part::text(format!("grouping({}) AS {name}", texts[0])));
            columns.push(computed(name, DataType::Int32));
            self.features.insert("GROUPING SETS");
            let list = texts.join(", ");
            clauses.push(Part::text(match self.rng.random_range(0..3) {
                0 => format!(" GROUP BY ROLLUP ({list})"),
                1 => format!(" GROUP BY CUBE ({list})"),
                _ => format!(" GROUP BY GROUPING SETS (({list}), ({}), ())", texts.pop().unwrap_or_default()),
            }));
        } else if key_count > 0 {
            let names: Vec<&str> = columns[..key_count].iter().map(|column| column.name.as_str()).collect();
            clauses.push(Part::text(format!(" GROUP BY {}", names.join(", "))));
        }
        if self.rng.random_bool(0.15) {
            let condition = if self.rng.random_bool(0.5) { "count(*) >= 2" } else { "count(*) % 2 = 1" };
            clauses.push(Part::list(" HAVING ", "", vec![Part::text(condition)], 0));
        }
        self.features.insert("aggregation");
        let mut parts = vec![Part::list("SELECT ", ", ", items, 1), from.part];
        parts.extend(clauses);
        Relation { part: Part::Sequence(parts), columns, identity, growth: from.growth }
    }

    /// A group key. Keys of several grouping sets appear twice in the SQL, and are columns.
    fn key(&mut self, columns: &[Column], inner: bool, plain: bool) -> Expr {
        let fits = |column: &Column| (column.few || column.domain.is_some()) && !(inner && column.kind() == Kind::Float);
        let number = |column: &Column| column.kind() == Kind::Int;
        let roll = self.rng.random_range(0..10);
        let mut generator = self.generator(columns);
        let computed = match roll {
            0 if !plain => Some(generator.boolean(1)),
            1 if !plain => Some(generator.of(&Kind::Int, 1)),
            _ => None,
        };
        // GROUP BY takes a constant as the position of an output.
        let computed = computed.filter(|key| !matches!(key.node, Node::Literal { .. }));
        let column = computed.or_else(|| generator.column(fits)).or_else(|| generator.column(number));
        column.unwrap_or_else(|| Expr::column(0, columns))
    }

    /// An aggregate that does not depend on the order of rows, and its column. It takes no floats,
    /// whose sums are inexact.
    fn aggregate(&mut self, columns: &[Column]) -> (Part, Column) {
        let kinds = [Kind::Int, Kind::Int, Kind::Text, Kind::Decimal, Kind::Bool];
        let kind = kinds.choose(self.rng).unwrap().clone();
        let roll = self.rng.random_range(0..14);
        let mut generator = self.generator(columns);
        let not_float = generator.column(|column| column.kind() != Kind::Float);
        let (template, operand, kind) = match roll {
            0 | 1 => ("count(*)", None, Kind::Int),
            2 => ("count({})", Some(generator.any(0)), Kind::Int),
            3 => ("count(DISTINCT {})", not_float, Kind::Int),
            4..=6 => ("sum({})", Some(generator.of(&Kind::Int, 1)), Kind::Int),
            7 => ("sum({})", Some(generator.narrow_decimal()), Kind::Decimal),
            8 => ("avg({})", Some(generator.narrow_decimal()), Kind::Decimal),
            9 => ("bool_or({})", Some(generator.boolean(1)), Kind::Bool),
            10 => ("bit_xor({})", Some(generator.of(&Kind::Int, 0)), Kind::Int),
            11 | 12 => {
                let operand = not_float.unwrap_or_else(|| generator.of(&kind, 1));
                let kind = operand.kind.clone();
                (if roll == 11 { "min({})" } else { "max({})" }, Some(operand), kind)
            }
            _ => ("min({})", Some(generator.of(&kind, 1)), kind),
        };
        let (template, operand) =
            if template.contains("{}") && operand.is_none() { ("count(*)", None) } else { (template, operand) };
        let kind = if operand.is_none() { Kind::Int } else { kind };
        let mut operands: Vec<Expr> = operand.into_iter().collect();
        let filtered = generator.rng.random_bool(0.12);
        if filtered {
            operands.push(generator.boolean(0));
        }
        let template = if filtered { format!("{template} FILTER (WHERE {{}})") } else { template.to_string() };
        let expr = Expr::call(kind.clone(), template, operands);
        let name = self.name("c");
        (Part::Expr(expr, columns.into()), computed(name, type_of(&kind)))
    }

    /// Generator of infallible expressions: SQL leaves open which rows evaluate them.
    pub fn generator<'b>(&'b mut self, columns: &'b [Column]) -> Generator<'b> {
        Generator { rng: self.rng, columns, fallible: false }
    }

    /// FROM with up to four joins.
    fn from(&mut self, depth: usize) -> Relation {
        let first = self.source(depth);
        let mut from = Relation { part: Part::text(""), ..first };
        let mut joins = Vec::new();
        let count = if depth == 0 {
            *[0, 0, 1, 1].choose(self.rng).unwrap()
        } else {
            *[0, 1, 1, 1, 1, 2, 2, 2, 3, 4].choose(self.rng).unwrap()
        };
        for _ in 0..count {
            if from.growth.skewed < 5 {
                joins.push(self.join(&mut from, depth));
            }
        }
        if joins.len() > 1 {
            self.features.insert("chain of joins");
        }
        self.growth = self.growth.max(from.growth);
        let part = Part::Sequence(vec![Part::text(" FROM "), first.part, Part::list("", "", joins, 0)]);
        Relation { part, ..from }
    }

    /// A table, a common table expression or a subquery, with an alias that qualifies its columns.
    fn source(&mut self, depth: usize) -> Relation {
        let alias = self.name("s");
        let common = self.common.choose(self.rng).cloned();
        let (text, relation) = match common {
            Some((name, relation)) if self.rng.random_bool(0.5) => (Part::text(format!("{name} AS {alias}")), relation),
            _ if depth > 0 && self.rng.random_bool(0.3) => {
                self.features.insert("subquery in FROM");
                let relation = self.subquery(depth - 1);
                (Part::Sequence(vec![Part::text("("), relation.part.clone(), Part::text(format!(") AS {alias}"))]), relation)
            }
            _ => {
                let table = self.tables.choose(self.rng).unwrap();
                (Part::text(format!("{} AS {alias}", table.name)), of_table(table))
            }
        };
        let columns = relation.columns.into_iter().map(|column| Column { name: format!("{alias}.{}", column.name), ..column });
        Relation { part: text, columns: columns.collect(), ..relation }
    }

    /// A query for FROM or WITH, sometimes with a limit.
    pub fn subquery(&mut self, depth: usize) -> Relation {
        let mut relation = self.query(depth, true);
        let floats = |column: &usize| relation.columns[*column].kind() == Kind::Float;
        if let Some(identity) = &relation.identity
            && !identity.is_empty()
            && !identity.iter().any(floats)
            && self.rng.random_bool(0.15)
        {
            self.features.insert("LIMIT in a subquery");
            let mut names: Vec<String> = identity.iter().map(|column| relation.columns[*column].name.clone()).collect();
            let first = relation.columns.choose(self.rng).unwrap().name.clone();
            names.retain(|name| *name != first);
            names.insert(0, first);
            let rows = *[3, 60, 200].choose(self.rng).unwrap();
            let text = format!(" ORDER BY {} LIMIT {rows}", names.join(", "));
            relation.part = Part::Sequence(vec![relation.part, Part::text(text)]);
        }
        relation
    }

    fn join(&mut self, left: &mut Relation, depth: usize) -> Part {
        const KINDS: [&str; 17] = [
            "INNER",
            "INNER",
            "INNER",
            "INNER",
            "INNER",
            "LEFT",
            "LEFT",
            "LEFT",
            "RIGHT",
            "RIGHT",
            "FULL",
            "FULL",
            "LEFT SEMI",
            "LEFT ANTI",
            "RIGHT SEMI",
            "RIGHT ANTI",
            "CROSS",
        ];
        if self.rng.random_bool(0.1)
            && let Some(join) = self.natural_join(left)
        {
            return join;
        }
        let right = self.source(depth.saturating_sub(1));
        let kind = *KINDS.choose(self.rng).unwrap();
        let mut both = left.columns.clone();
        both.extend(right.columns.iter().cloned());
        let (conditions, growth) =
            if kind == "CROSS" { (Vec::new(), left.growth.product(right.growth)) } else { self.on(left, &right, &both) };
        let kind = if conditions.is_empty() { "CROSS" } else { kind };
        self.growth = self.growth.max(growth);
        self.features.insert(match kind {
            "INNER" => "INNER JOIN",
            "LEFT" => "LEFT JOIN",
            "RIGHT" => "RIGHT JOIN",
            "FULL" => "FULL JOIN",
            "LEFT SEMI" => "LEFT SEMI JOIN",
            "LEFT ANTI" => "LEFT ANTI JOIN",
            "RIGHT SEMI" => "RIGHT SEMI JOIN",
            "RIGHT ANTI" => "RIGHT ANTI JOIN",
            _ => "CROSS JOIN",
        });
        let part = Part::Sequence(vec![
            Part::text(format!(" {kind} JOIN ")),
            right.part.clone(),
            Part::list(" ON ", " AND ", conditions, 1),
        ]);
        match kind {
            "LEFT SEMI" | "LEFT ANTI" => {}
            "RIGHT SEMI" | "RIGHT ANTI" => *left = Relation { part: Part::text(""), ..right },
            _ => joined(left, right, growth),
        }
        part
    }

    /// USING, or NATURAL JOIN with a subquery that shares one column name.
    fn natural_join(&mut self, left: &mut Relation) -> Option<Part> {
        let bare = |column: &Column| column.name.rsplit('.').next().unwrap_or_default().to_string();
        let names: Vec<String> = left.columns.iter().map(bare).collect();
        let table = self.tables.choose(self.rng).unwrap();
        let shared: Vec<&Column> = (table.columns.iter())
            .filter(|column| column.domain.is_some_and(|domain| self.domains[domain].spreads()))
            .filter(|column| names.iter().filter(|name| **name == column.name).count() == 1)
            .collect();
        let shared = (*shared.choose(self.rng)?).clone();
        let (alias, relation) = (self.name("s"), of_table(table));
        let kind = *["INNER", "LEFT", "RIGHT", "FULL"].choose(self.rng).unwrap();
        let growth = Growth {
            spread: left.growth.spread.max(relation.growth.spread),
            skewed: left.growth.skewed + relation.growth.skewed,
        };
        self.growth = self.growth.max(growth);
        let (part, columns, identity) = if self.rng.random_bool(0.5) {
            self.features.insert("JOIN USING");
            let part = Part::text(format!(" {kind} JOIN {} AS {alias} USING ({})", table.name, shared.name));
            (part, relation.columns, relation.identity)
        } else {
            self.features.insert("NATURAL JOIN");
            let other = table.columns.choose(self.rng).unwrap();
            let (id, value) = (self.name("c"), self.name("c"));
            let select = format!("SELECT {ID} AS {id}, {} AS {value}, {} FROM {}", other.name, shared.name, table.name);
            let part = Part::text(format!(" NATURAL {kind} JOIN ({select}) AS {alias}"));
            let number = Column { name: id, ..table.columns[0].clone() };
            (part, vec![number, Column { name: value, ..other.clone() }, shared.clone()], Some(vec![0]))
        };
        let columns = columns.into_iter().map(|column| Column { name: format!("{alias}.{}", column.name), ..column }).collect();
        let right = Relation { part: Part::text(""), columns, identity, growth: relation.growth };
        joined(left, right, growth);
        Some(part)
    }

    /// Conditions of a join, and the growth of its rows.
    fn on(&mut self, left: &Relation, right: &Relation, both: &[Column]) -> (Vec<Part>, Growth) {
        let scope: Arc<[Column]> = both.into();
        let offset = left.columns.len();
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (l, column) in left.columns.iter().enumerate().filter(|(_, column)| column.domain.is_some()) {
            pairs.extend((0..right.columns.len()).filter(|r| right.columns[*r].domain == column.domain).map(|r| (l, offset + r)));
        }
        let pair = |template: &str, (l, r): (usize, usize)| {
            let operands = vec![Expr::column(l, both), Expr::column(r, both)];
            Part::Expr(Expr::call(Kind::Bool, template, operands), Arc::clone(&scope))
        };
        let mut conditions = Vec::new();
        let mut selective = false;
        let keys =
            if pairs.is_empty() || self.rng.random_bool(0.1) { 0 } else { *[1, 1, 1, 1, 2, 2, 3].choose(self.rng).unwrap() };
        for _ in 0..keys {
            let chosen = *pairs.choose(self.rng).unwrap();
            let number = both[chosen.0].kind() == Kind::Int;
            let template = match self.rng.random_range(0..20) {
                0..=1 => "({} IS NOT DISTINCT FROM {})",
                2 if number => "{} = {} + 1",
                3 if number => "{} % 5 = {} % 5",
                _ => "{} = {}",
            };
            selective |= !template.contains('%') && both[chosen.0].domain.is_some_and(|domain| self.domains[domain].spreads());
            conditions.push(pair(template, chosen));
        }
        if keys > 1 {
            self.features.insert("join by several keys");
        }
        // Conditions besides the keys, or without keys.
        if keys == 0 || self.rng.random_bool(0.3) {
            let mut comparable = Vec::new();
            for (l, column) in left.columns.iter().enumerate() {
                let fits = |r: &usize| right.columns[*r].kind() == column.kind();
                comparable.extend((0..right.columns.len()).filter(fits).map(|r| (l, offset + r)));
            }
            let compared = comparable.choose(self.rng).copied();
            match compared {
                Some(chosen) if keys == 0 || self.rng.random_bool(0.6) => {
                    let template = *["{} < {}", "{} <= {}", "{} > {}", "{} <> {}"].choose(self.rng).unwrap();
                    conditions.push(pair(template, chosen));
                }
                _ => {
                    let condition = self.generator(both).boolean(1);
                    conditions.push(Part::Expr(condition, Arc::clone(&scope)));
                }
            }
            self.features.insert(if keys == 0 { "join on an inequality" } else { "join with a residual filter" });
        }
        let product = left.growth.product(right.growth);
        let spread = if selective { left.growth.spread.max(right.growth.spread) } else { product.spread };
        (conditions, Growth { spread, ..product })
    }

    /// WHERE, perhaps with subqueries. Conditions at every level would filter out all rows.
    fn conditions(&mut self, from: &Relation, depth: usize) -> Part {
        let mut conditions = Vec::new();
        if self.rng.random_bool(if depth == 0 { 0.15 } else { 0.25 }) {
            let condition = self.generator(&from.columns).boolean(1);
            conditions.push(Part::Expr(condition, from.columns.as_slice().into()));
        }
        if self.rng.random_bool(if depth == 0 { 0.1 } else { 0.25 }) {
            conditions.push(self.subquery_condition(&from.columns));
        }
        Part::list(" WHERE ", " AND ", conditions, 0)
    }
}

/// The columns of a table, under their own names.
pub fn of_table(table: &Table) -> Relation {
    let growth = Growth { spread: 1, skewed: 1 };
    Relation { part: Part::text(table.name.clone()), columns: table.columns.clone(), identity: Some(vec![0]), growth }
}

/// Adds the columns of a joined source.
fn joined(left: &mut Relation, right: Relation, growth: Growth) {
    let offset = left.columns.len();
    left.identity = match (left.identity.take(), right.identity) {
        (Some(mut left), Some(right)) => {
            left.extend(right.iter().map(|column| offset + column));
            Some(left)
        }
        _ => None,
    };
    left.columns.extend(right.columns);
    left.growth = growth;
}

/// A computed column that is not an expression over columns.
pub fn computed(name: String, data_type: DataType) -> Column {
    Column { name, data_type, nullable: true, few: false, tame: false, domain: None }
}

/// Type of an aggregate or window of a kind. A sum of unsigned integers is unsigned too, and cannot
/// be negated.
pub fn type_of(kind: &Kind) -> DataType {
    if *kind == Kind::Int { DataType::UInt64 } else { kind.usual_type() }
}
