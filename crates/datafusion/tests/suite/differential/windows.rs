// SPDX-License-Identifier: Apache-2.0
//! Random window functions.

use arrow::datatypes::DataType;
use rand::Rng;
use rand::seq::IndexedRandom;

use super::expr::Expr;
use super::part::Part;
use super::select::{Builder, Relation, computed, type_of};
use super::types::{Column, Kind};

const ROWS_AND_GROUPS: [&str; 10] = [
    "BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "BETWEEN UNBOUNDED PRECEDING AND 2 FOLLOWING",
    "BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "BETWEEN 2 PRECEDING AND CURRENT ROW",
    "BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "BETWEEN 4 PRECEDING AND 2 PRECEDING",
    "BETWEEN CURRENT ROW AND 1 FOLLOWING",
    "BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "BETWEEN 3 FOLLOWING AND 5 FOLLOWING",
    "BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING",
];

/// How the order of rows defines the answer of a window function.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ties {
    /// Tied rows have the same answer, and no frame is given.
    Together,
    /// Only an order without ties defines the answer, and no frame is given.
    OrderFact,
    /// Only an order without ties defines the answer, over frames.
    OrderFactInFrames,
    /// The answer is an aggregate of the frame's rows.
    Aggregate,
}

impl Builder<'_> {
    /// A SELECT of columns and windows over them.
    pub fn windowed(&mut self, from: Relation) -> Relation {
        let count = self.rng.random_range(1..=3);
        let mut outputs: Vec<Expr> =
            (0..count).map(|_| Expr::column(self.rng.random_range(0..from.columns.len()), &from.columns)).collect();
        let mut identity = None;
        if let Some(columns) = &from.identity {
            identity = Some((outputs.len()..outputs.len() + columns.len()).collect());
            outputs.extend(columns.iter().map(|column| Expr::column(*column, &from.columns)));
        }
        let (mut parts, mut columns) = self.outputs(outputs, &from.columns);
        for _ in 0..self.rng.random_range(1..=3) {
            let (part, column) = self.window(&from);
            parts.push(Part::Sequence(vec![part, Part::text(format!(" AS {}", column.name))]));
            columns.push(column);
        }
        self.features.insert("window");
        let part = Part::Sequence(vec![Part::list("SELECT ", ", ", parts, 1), from.part]);
        Relation { part, columns, identity, growth: from.growth }
    }

    fn window(&mut self, from: &Relation) -> (Part, Column) {
        let (call, kind, ties) = self.window_function(&from.columns, from.identity.is_some());
        let mut order: Vec<usize> = Vec::new();
        for _ in 0..*[0, 1, 1, 1, 2].choose(self.rng).unwrap() {
            order.push(self.rng.random_range(0..from.columns.len()));
        }
        let range = self.range_key(&from.columns).filter(|_| ties == Ties::Aggregate && self.rng.random_bool(0.25));
        let (frame, total) = match range {
            Some((key, frame)) => {
                order = vec![key];
                (format!(" RANGE {frame}"), false)
            }
            None if ties == Ties::Together => (String::new(), false),
            None if ties == Ties::OrderFact => (String::new(), true),
            None => {
                let frame = ROWS_AND_GROUPS.choose(self.rng).unwrap();
                match self.rng.random_range(0..10) {
                    0..=2 if ties == Ties::Aggregate => (String::new(), false),
                    3 | 4 if ties == Ties::Aggregate && !order.is_empty() => (format!(" GROUPS {frame}"), false),
                    5 if !order.is_empty() => {
                        (" RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING".to_string(), ties != Ties::Aggregate)
                    }
                    _ if from.identity.is_some() => (format!(" ROWS {frame}"), true),
                    _ => (String::new(), ties != Ties::Aggregate),
                }
            }
        };
        let mut keys: Vec<Part> = order.iter().map(|column| Part::text(self.direction(&from.columns[*column].name))).collect();
        if total && let Some(identity) = &from.identity {
            let names: Vec<&str> = identity.iter().map(|column| from.columns[*column].name.as_str()).collect();
            if !names.is_empty() {
                keys.push(Part::text(names.join(", ")));
            }
        }
        let partitions = *[0, 1, 1, 1, 2].choose(self.rng).unwrap();
        let partition: Vec<Part> = (0..partitions)
            .map(|_| {
                let grouping = |column: &Column| column.few || column.domain.is_some();
                let column = self.generator(&from.columns).column(grouping);
                let column = column.unwrap_or_else(|| Expr::column(0, &from.columns));
                Part::Expr(column, from.columns.as_slice().into())
            })
            .collect();
        // Frames and ties depend on the order, so none of its keys can be removed.
        let least = keys.len();
        let part = Part::Sequence(vec![
            call,
            Part::text(" OVER ("),
            Part::list("PARTITION BY ", ", ", partition, 0),
            Part::list(" ORDER BY ", ", ", keys, least),
            Part::text(format!("{frame})")),
        ]);
        let name = self.name("c");
        (part, computed(name, type_of(&kind)))
    }

    /// Sort key: a column with a direction.
    pub fn direction(&mut self, name: &str) -> String {
        let direction = ["", "", " DESC"].choose(self.rng).unwrap();
        let nulls = ["", "", " NULLS FIRST", " NULLS LAST"].choose(self.rng).unwrap();
        format!("{name}{direction}{nulls}")
    }

    /// Key of a RANGE frame, with an offset of its type.
    fn range_key(&mut self, columns: &[Column]) -> Option<(usize, &'static str)> {
        const NUMBERS: [&str; 4] = [
            "BETWEEN 2 PRECEDING AND 3 FOLLOWING",
            "BETWEEN 5 PRECEDING AND 1 PRECEDING",
            "BETWEEN CURRENT ROW AND 10 FOLLOWING",
            "BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING",
        ];
        const DAYS: [&str; 2] = [
            "BETWEEN INTERVAL '2' DAY PRECEDING AND CURRENT ROW",
            "BETWEEN INTERVAL '40' DAY PRECEDING AND INTERVAL '1' DAY FOLLOWING",
        ];
        let fits = |column: &usize| columns[*column].kind() == Kind::Int || columns[*column].data_type == DataType::Date32;
        let found: Vec<usize> = (0..columns.len()).filter(fits).collect();
        let key = *found.choose(self.rng)?;
        let frames: &[&str] = if columns[key].kind() == Kind::Int { &NUMBERS } else { &DAYS };
        Some((key, frames.choose(self.rng).unwrap()))
    }

    /// A window function, the kind of its result, and the order that it needs.
    fn window_function(&mut self, columns: &[Column], ordered: bool) -> (Part, Kind, Ties) {
        let any = self.rng.random_range(0..columns.len());
        let roll = self.rng.random_range(if ordered { 0 } else { 6 }..20);
        let number = self.rng.random_range(1..4);
        let small = |column: &Column| matches!(column.data_type, DataType::Int8 | DataType::Int16 | DataType::UInt8);
        let comparable = |column: &Column| !matches!(column.kind(), Kind::Float | Kind::Text | Kind::Binary);
        let mut generator = self.generator(columns);
        let (call, operand, kind, ties) = match roll {
            0 => ("row_number()".to_string(), None, Kind::Int, Ties::OrderFact),
            1 => (format!("ntile({number})"), None, Kind::Int, Ties::OrderFact),
            2 | 3 => {
                let name = ["lag", "lead"].choose(generator.rng).unwrap();
                (format!("{name}({{}}, {number})"), Some(Expr::column(any, columns)), columns[any].kind(), Ties::OrderFact)
            }
            4 | 5 => {
                let call = match generator.rng.random_range(0..3) {
                    0 => "first_value({})".to_string(),
                    1 => "last_value({})".to_string(),
                    _ => format!("nth_value({{}}, {number})"),
                };
                (call, Some(Expr::column(any, columns)), columns[any].kind(), Ties::OrderFactInFrames)
            }
            6 => ("rank()".to_string(), None, Kind::Int, Ties::Together),
            7 => ("dense_rank()".to_string(), None, Kind::Int, Ties::Together),
            8 => ("percent_rank()".to_string(), None, Kind::Float, Ties::Together),
            9 => ("cume_dist()".to_string(), None, Kind::Float, Ties::Together),
            10 | 11 => ("count(*)".to_string(), None, Kind::Int, Ties::Aggregate),
            12 => ("count({})".to_string(), Some(Expr::column(any, columns)), Kind::Int, Ties::Aggregate),
            13 | 14 => ("sum({})".to_string(), Some(generator.of(&Kind::Int, 1)), Kind::Int, Ties::Aggregate),
            15 => ("sum({})".to_string(), Some(generator.narrow_decimal()), Kind::Decimal, Ties::Aggregate),
            16 => {
                // In a sliding frame, inexact float sums of DataFusion depend on rows that have
                // left the frame.
                let operand = generator.column(small).unwrap_or_else(|| generator.narrow_decimal());
                let kind = if operand.kind == Kind::Int { Kind::Float } else { Kind::Decimal };
                ("avg({})".to_string(), Some(operand), kind, Ties::Aggregate)
            }
            roll => {
                let operand = generator.column(comparable).unwrap_or_else(|| generator.of(&Kind::Int, 0));
                let kind = operand.kind.clone();
                (if roll == 17 { "min({})" } else { "max({})" }.to_string(), Some(operand), kind, Ties::Aggregate)
            }
        };
        let mut operands: Vec<Expr> = operand.into_iter().collect();
        // The host computes some of these, beside others on the device.
        let call = match ties {
            Ties::OrderFact | Ties::OrderFactInFrames if !operands.is_empty() && generator.rng.random_bool(0.04) => {
                format!("{call} IGNORE NULLS")
            }
            Ties::Aggregate if generator.rng.random_bool(0.03) => {
                operands.push(generator.boolean(0));
                format!("{call} FILTER (WHERE {{}})")
            }
            _ => call,
        };
        let expr = Expr::call(kind.clone(), call, operands);
        (Part::Expr(expr, columns.into()), kind, ties)
    }
}
