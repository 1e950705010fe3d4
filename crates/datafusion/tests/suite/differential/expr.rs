// SPDX-License-Identifier: Apache-2.0
//! Random expressions over the columns of a table, as trees that can be printed, varied and shrunk.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::pools::Pools;
use super::types::{self, Column, Kind};

/// Expression tree, with the kind of its value.
#[derive(Debug, Clone)]
pub struct Expr {
    pub kind: Kind,
    pub node: Node,
}

#[derive(Debug, Clone)]
pub enum Node {
    /// Column of the input, by position.
    Column(usize),
    /// A constant. Varied `positive` constants stay above zero, and those of a domain within its
    /// pool.
    Literal { value: ScalarValue, positive: bool, domain: Option<usize> },
    /// SQL with `{}` for each operand.
    Call { template: String, operands: Vec<Expr> },
}

impl Expr {
    pub fn column(index: usize, columns: &[Column]) -> Expr {
        Expr { kind: columns[index].kind(), node: Node::Column(index) }
    }

    pub fn literal(value: ScalarValue) -> Expr {
        Expr { kind: types::kind(&value.data_type()), node: Node::Literal { value, positive: false, domain: None } }
    }

    /// A constant to compare with a column.
    fn literal_like(value: ScalarValue, column: &Column) -> Expr {
        let kind = types::kind(&value.data_type());
        Expr { kind, node: Node::Literal { value, positive: false, domain: column.domain } }
    }

    fn positive(value: ScalarValue) -> Expr {
        Expr { kind: types::kind(&value.data_type()), node: Node::Literal { value, positive: true, domain: None } }
    }

    pub fn call(kind: Kind, template: impl Into<String>, operands: Vec<Expr>) -> Expr {
        Expr { kind, node: Node::Call { template: template.into(), operands } }
    }

    /// The expression as SQL.
    pub fn sql(&self, columns: &[Column]) -> String {
        match &self.node {
            Node::Column(index) => columns[*index].name.clone(),
            Node::Literal { value, .. } => types::literal(value),
            Node::Call { template, operands } => {
                let mut parts = template.split("{}");
                let mut text = parts.next().unwrap_or_default().to_string();
                for (operand, part) in operands.iter().zip(parts) {
                    text.push_str(&operand.sql(columns));
                    text.push_str(part);
                }
                text
            }
        }
    }

    /// Replaces each constant with another of its type.
    pub fn vary(&mut self, rng: &mut StdRng, pools: &Pools) {
        match &mut self.node {
            Node::Column(_) => {}
            Node::Literal { value, positive, domain } => {
                let data_type = value.data_type();
                let pooled = domain.and_then(|domain| pools.constant(rng, domain, &data_type));
                if *positive {
                    *value = small(rng, &data_type);
                } else if let Some(pooled) = pooled {
                    *value = pooled;
                } else if !value.is_null() {
                    let few = rng.random_bool(0.5);
                    *value = types::value(rng, &data_type, few, true);
                }
            }
            Node::Call { operands, .. } => operands.iter_mut().for_each(|operand| operand.vary(rng, pools)),
        }
    }

    /// Adds the columns that the expression reads to `used`.
    pub fn columns(&self, used: &mut Vec<usize>) {
        match &self.node {
            Node::Column(index) => used.push(*index),
            Node::Literal { .. } => {}
            Node::Call { operands, .. } => operands.iter().for_each(|operand| operand.columns(used)),
        }
    }

    /// Maps the positions of columns.
    pub fn renumber(&mut self, position: &dyn Fn(usize) -> usize) {
        match &mut self.node {
            Node::Column(index) => *index = position(*index),
            Node::Literal { .. } => {}
            Node::Call { operands, .. } => operands.iter_mut().for_each(|operand| operand.renumber(position)),
        }
    }

    /// Column that a subquery outputs for the expression.
    pub fn described(&self, name: String, columns: &[Column]) -> Column {
        let source = match &self.node {
            Node::Column(source) => Some(&columns[*source]),
            _ => None,
        };
        let data_type = source.map_or_else(|| self.kind.usual_type(), |source| source.data_type.clone());
        Column {
            name,
            data_type,
            nullable: true,
            few: source.is_some_and(|source| source.few),
            tame: source.is_some_and(|source| source.tame),
            domain: source.and_then(|source| source.domain),
        }
    }

    /// Simpler expressions of the same kind, the simplest first.
    pub fn simpler(&self) -> Vec<Expr> {
        let Node::Call { template, operands } = &self.node else { return Vec::new() };
        let mut found: Vec<Expr> = operands.iter().filter(|operand| operand.kind == self.kind).cloned().collect();
        for (index, operand) in operands.iter().enumerate() {
            for simpler in operand.simpler() {
                let mut operands = operands.clone();
                operands[index] = simpler;
                found.push(Expr::call(self.kind.clone(), template.clone(), operands));
            }
        }
        found
    }
}

/// Casts an expression to a dictionary, if its kind has a dictionary type.
fn dictionary(expr: Expr) -> Expr {
    let values = match expr.kind {
        Kind::Int => "Int64",
        Kind::Float => "Float64",
        Kind::Decimal => "Decimal128(38, 6)",
        Kind::Text => "Utf8View",
        Kind::Binary => "Binary",
        Kind::Bool | Kind::Temporal(_) => return expr,
    };
    Expr::call(expr.kind.clone(), format!("arrow_try_cast({{}}, 'Dictionary(Int32, {values})')"), vec![expr])
}

/// Random value from 1 to 10 of a numeric type.
fn small(rng: &mut StdRng, data_type: &DataType) -> ScalarValue {
    ScalarValue::Int64(Some(rng.random_range(1..=10))).cast_to(data_type).unwrap()
}

/// Draws random expressions.
pub struct Generator<'a> {
    pub rng: &'a mut StdRng,
    pub columns: &'a [Column],
    /// Whether an expression may fail for some rows. It must not if SQL leaves its evaluated rows
    /// open.
    pub fallible: bool,
}

impl Generator<'_> {
    /// Random expression of any kind.
    pub fn any(&mut self, depth: usize) -> Expr {
        let kind = if self.rng.random_bool(0.5) {
            self.columns.choose(self.rng).unwrap().kind()
        } else {
            [Kind::Bool, Kind::Int, Kind::Int, Kind::Float, Kind::Decimal, Kind::Text].choose(self.rng).unwrap().clone()
        };
        let expr = self.of(&kind, depth);
        if self.rng.random_bool(0.05) { dictionary(expr) } else { expr }
    }

    /// Random column that satisfies `test`.
    pub fn column(&mut self, test: impl Fn(&Column) -> bool) -> Option<Expr> {
        let found: Vec<usize> = (0..self.columns.len()).filter(|index| test(&self.columns[*index])).collect();
        found.choose(self.rng).map(|index| Expr::column(*index, self.columns))
    }

    /// Random expression of the given kind.
    pub fn of(&mut self, kind: &Kind, depth: usize) -> Expr {
        if depth == 0 || self.rng.random_bool(0.2) {
            return self.leaf(kind);
        }
        if self.rng.random_bool(0.3) {
            return self.branch(kind, depth - 1);
        }
        match kind {
            Kind::Bool => self.boolean(depth - 1),
            Kind::Int => self.int(depth - 1),
            Kind::Float => self.float(depth - 1),
            Kind::Decimal => self.decimal(depth - 1),
            Kind::Text => self.text(depth - 1),
            Kind::Binary => self.leaf(kind),
            Kind::Temporal(data_type) => self.temporal(data_type.clone(), depth - 1),
        }
    }

    fn leaf(&mut self, kind: &Kind) -> Expr {
        match self.column(|column| column.kind() == *kind) {
            Some(column) if self.rng.random_bool(0.85) => column,
            _ => self.constant(kind),
        }
    }

    fn constant(&mut self, kind: &Kind) -> Expr {
        let like = self.column(|column| column.kind() == *kind);
        let data_type = match (like, kind) {
            (Some(Expr { node: Node::Column(index), .. }), _) if self.rng.random_bool(0.7) => {
                let column = &self.columns[index];
                return Expr::literal_like(column.value_not_null(self.rng), column);
            }
            (_, Kind::Bool) => DataType::Boolean,
            (_, Kind::Int) => DataType::Int64,
            (_, Kind::Float) => DataType::Float64,
            (_, Kind::Decimal) => DataType::Decimal128(6, 2),
            (_, Kind::Text) => DataType::Utf8,
            (_, Kind::Binary) => DataType::Binary,
            (_, Kind::Temporal(data_type)) => data_type.clone(),
        };
        Expr::literal(types::value(self.rng, &data_type, true, true))
    }

    /// CASE, COALESCE or NULLIF: the row selects the operand to evaluate.
    fn branch(&mut self, kind: &Kind, depth: usize) -> Expr {
        let fallible = std::mem::replace(&mut self.fallible, false);
        let expr = match self.rng.random_range(0..5) {
            0 => Expr::call(kind.clone(), "coalesce({}, {})", vec![self.of(kind, depth), self.of(kind, depth)]),
            1 => Expr::call(kind.clone(), "nullif({}, {})", vec![self.of(kind, depth), self.of(kind, depth)]),
            2 => Expr::call(
                kind.clone(),
                "CASE WHEN {} THEN {} ELSE {} END",
                vec![self.boolean(depth), self.of(kind, depth), self.of(kind, depth)],
            ),
            3 => Expr::call(kind.clone(), "CASE WHEN {} THEN {} END", vec![self.boolean(depth), self.of(kind, depth)]),
            _ => {
                let operand = self.any(0);
                let kind_of_operand = operand.kind.clone();
                let value =
                    if self.rng.random_bool(0.5) { self.constant(&kind_of_operand) } else { self.of(&kind_of_operand, 0) };
                Expr::call(
                    kind.clone(),
                    "CASE {} WHEN {} THEN {} ELSE {} END",
                    vec![operand, value, self.of(kind, depth), self.of(kind, depth)],
                )
            }
        };
        self.fallible = fallible;
        expr
    }

    /// Random condition.
    pub fn boolean(&mut self, depth: usize) -> Expr {
        let fallible = std::mem::replace(&mut self.fallible, false);
        let expr = self.condition(depth);
        self.fallible = fallible;
        expr
    }

    fn condition(&mut self, depth: usize) -> Expr {
        let call = |template: &str, operands| Expr::call(Kind::Bool, template, operands);
        match self.rng.random_range(0..16) {
            0..=5 => {
                let left = self.any(depth);
                let right = if self.rng.random_bool(0.7) {
                    self.constant(&left.kind.clone())
                } else {
                    self.of(&left.kind.clone(), depth)
                };
                let operators = ["=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"];
                let operator = operators.choose(self.rng).unwrap();
                call(&format!("({{}} {operator} {{}})"), vec![left, right])
            }
            6 => {
                let operand = self.any(depth);
                let (low, high) = (self.constant(&operand.kind.clone()), self.constant(&operand.kind.clone()));
                let not = ["", "NOT "].choose(self.rng).unwrap();
                call(&format!("({{}} {not}BETWEEN {{}} AND {{}})"), vec![operand, low, high])
            }
            7 | 8 => {
                let operand = self.any(depth.min(1));
                let members = *[1, 2, 3, 4, 9].choose(self.rng).unwrap();
                let mut operands = vec![operand.clone()];
                for _ in 0..members {
                    operands.push(self.constant(&operand.kind.clone()));
                }
                let not = ["", "NOT "].choose(self.rng).unwrap();
                let null = if self.rng.random_bool(0.15) { ", NULL" } else { "" };
                call(&format!("({{}} {not}IN ({}{null}))", vec!["{}"; members].join(", ")), operands)
            }
            9 | 10 if depth > 0 => {
                let operator = ["AND", "OR"].choose(self.rng).unwrap();
                call(&format!("({{}} {operator} {{}})"), vec![self.condition(depth - 1), self.condition(depth - 1)])
            }
            11 if depth > 0 => call("(NOT {})", vec![self.condition(depth - 1)]),
            12 => {
                let not = ["", "NOT "].choose(self.rng).unwrap();
                call(&format!("({{}} IS {not}NULL)"), vec![self.any(depth)])
            }
            13 if depth > 0 => {
                let not = ["", "NOT "].choose(self.rng).unwrap();
                let truth = ["TRUE", "FALSE", "UNKNOWN"].choose(self.rng).unwrap();
                call(&format!("({{}} IS {not}{truth})"), vec![self.condition(depth - 1)])
            }
            14 => call("arrow_try_cast({}, 'Boolean')", vec![self.of(&Kind::Int, 0)]),
            _ => self.leaf(&Kind::Bool),
        }
    }

    fn int(&mut self, depth: usize) -> Expr {
        let call = |template: &str, operands| Expr::call(Kind::Int, template, operands);
        match self.rng.random_range(0..14) {
            0..=4 => {
                let operator = ["+", "-", "*"].choose(self.rng).unwrap();
                call(&format!("({{}} {operator} {{}})"), vec![self.of(&Kind::Int, depth), self.of(&Kind::Int, depth)])
            }
            5 | 6 => {
                let operator = ["/", "%"].choose(self.rng).unwrap();
                let divisor =
                    if self.fallible { self.of(&Kind::Int, 0) } else { Expr::positive(small(self.rng, &DataType::Int64)) };
                call(&format!("({{}} {operator} {{}})"), vec![self.of(&Kind::Int, depth), divisor])
            }
            7 => {
                let operator = ["&", "|", "^"].choose(self.rng).unwrap();
                call(&format!("({{}} {operator} {{}})"), vec![self.of(&Kind::Int, depth), self.of(&Kind::Int, depth)])
            }
            8 => {
                let operator = ["<<", ">>"].choose(self.rng).unwrap();
                let bits = Expr::positive(small(self.rng, &DataType::Int64));
                call(&format!("({{}} {operator} {{}})"), vec![self.of(&Kind::Int, depth), bits])
            }
            // Negation of columns only: DataFusion fails for the smallest constant, and wraps
            // around elsewhere.
            9 => match self.column(|column| types::value_type(&column.data_type).is_signed_integer()) {
                Some(column) => call("(- {})", vec![column]),
                None => self.leaf(&Kind::Int),
            },
            10 => {
                let cast = if self.fallible { "arrow_cast" } else { "arrow_try_cast" };
                let to = [DataType::Int8, DataType::Int16, DataType::Int32, DataType::UInt8, DataType::UInt64]
                    .choose(self.rng)
                    .unwrap()
                    .clone();
                call(&format!("{cast}({{}}, '{to}')"), vec![self.of(&Kind::Int, depth)])
            }
            11 => {
                let from = [Kind::Float, Kind::Decimal, Kind::Text].choose(self.rng).unwrap().clone();
                let to = [DataType::Int8, DataType::Int32, DataType::Int64, DataType::UInt16, DataType::UInt64]
                    .choose(self.rng)
                    .unwrap()
                    .clone();
                call(&format!("arrow_try_cast({{}}, '{to}')"), vec![self.of(&from, depth)])
            }
            12 => call("arrow_cast({}, 'Int32')", vec![self.boolean(depth)]),
            _ => match self.column(|column| matches!(column.kind(), Kind::Temporal(_))) {
                Some(column) => call("arrow_cast({}, 'Int64')", vec![column]),
                None => self.leaf(&Kind::Int),
            },
        }
    }

    fn float(&mut self, depth: usize) -> Expr {
        let call = |template: &str, operands| Expr::call(Kind::Float, template, operands);
        match self.rng.random_range(0..10) {
            0..=4 => {
                let operator = ["+", "-", "*", "/"].choose(self.rng).unwrap();
                call(&format!("({{}} {operator} {{}})"), vec![self.of(&Kind::Float, depth), self.of(&Kind::Float, depth)])
            }
            5 => call("({} % {})", vec![self.of(&Kind::Float, depth), self.of(&Kind::Float, 0)]),
            6 => call("(- {})", vec![self.of(&Kind::Float, depth)]),
            7 => {
                let to = [DataType::Float32, DataType::Float64].choose(self.rng).unwrap().clone();
                call(&format!("arrow_cast({{}}, '{to}')"), vec![self.of(&Kind::Float, depth)])
            }
            _ => {
                let from = [Kind::Int, Kind::Decimal, Kind::Text].choose(self.rng).unwrap().clone();
                let to = [DataType::Float32, DataType::Float64].choose(self.rng).unwrap().clone();
                let cast = if from == Kind::Text { "arrow_try_cast" } else { "arrow_cast" };
                call(&format!("{cast}({{}}, '{to}')"), vec![self.of(&from, depth)])
            }
        }
    }

    /// Decimal expression of up to 15 digits. Wider decimals overflow often.
    pub fn narrow_decimal(&mut self) -> Expr {
        let narrow = |column: &Column| match column.data_type {
            DataType::Decimal128(precision, _) | DataType::Decimal64(precision, _) => precision <= 15,
            DataType::Decimal32(..) => true,
            _ => false,
        };
        match self.column(narrow) {
            Some(column) => column,
            None => Expr::literal(types::value(self.rng, &DataType::Decimal128(6, 2), true, true)),
        }
    }

    fn decimal(&mut self, depth: usize) -> Expr {
        let call = |template: &str, operands| Expr::call(Kind::Decimal, template, operands);
        let constant = |rng: &mut StdRng| Expr::positive(small(rng, &DataType::Decimal128(4, 2)));
        match self.rng.random_range(0..9) {
            0..=2 => {
                let operator = ["+", "-"].choose(self.rng).unwrap();
                call(&format!("({{}} {operator} {{}})"), vec![self.narrow_decimal(), self.narrow_decimal()])
            }
            3 => call("({} * (1 - {}))", vec![self.narrow_decimal(), constant(self.rng)]),
            4 => call("({} * {})", vec![self.narrow_decimal(), constant(self.rng)]),
            5 => {
                let operator = ["/", "%"].choose(self.rng).unwrap();
                let divisor = if self.fallible { self.narrow_decimal() } else { constant(self.rng) };
                call(&format!("({{}} {operator} {{}})"), vec![self.narrow_decimal(), divisor])
            }
            6 => call("(- {})", vec![self.narrow_decimal()]),
            7 => {
                let to =
                    ["Decimal128(20, 4)", "Decimal128(10, 1)", "Decimal128(5, 0)", "Decimal128(38, 6)"].choose(self.rng).unwrap();
                let from = [Kind::Decimal, Kind::Decimal, Kind::Int, Kind::Float, Kind::Text].choose(self.rng).unwrap().clone();
                call(&format!("arrow_try_cast({{}}, '{to}')"), vec![self.of(&from, depth.min(1))])
            }
            _ => {
                let left = self.narrow_decimal();
                call("({} + {})", vec![left, Expr::positive(small(self.rng, &DataType::Int64))])
            }
        }
    }

    fn text(&mut self, depth: usize) -> Expr {
        let berlin = DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into()));
        let temporal = [DataType::Date32, berlin].map(Kind::Temporal).choose(self.rng).unwrap().clone();
        let from = [Kind::Int, Kind::Bool, Kind::Text, Kind::Float, Kind::Decimal, temporal].choose(self.rng).unwrap().clone();
        let to = ["Utf8", "Utf8View", "LargeUtf8"].choose(self.rng).unwrap();
        Expr::call(Kind::Text, format!("arrow_cast({{}}, '{to}')"), vec![self.of(&from, depth)])
    }

    fn temporal(&mut self, data_type: DataType, _depth: usize) -> Expr {
        let kind = Kind::Temporal(data_type.clone());
        let timestamp = |data_type: &DataType| matches!(data_type, DataType::Timestamp(..));
        let date = |data_type: &DataType| matches!(data_type, DataType::Date32 | DataType::Date64);
        let same_family = |other: &DataType| match &data_type {
            target if timestamp(target) => timestamp(other) || date(other),
            target if date(target) => date(other) || timestamp(other),
            DataType::Time32(_) | DataType::Time64(_) => {
                matches!(other, DataType::Time32(_) | DataType::Time64(_) | DataType::Timestamp(..))
            }
            _ => matches!(other, DataType::Duration(_)),
        };
        match self.column(|column| same_family(&column.data_type)) {
            Some(column) => Expr::call(kind, format!("arrow_try_cast({{}}, '{}')", types::type_name(&data_type)), vec![column]),
            None => self.of(&kind, 0),
        }
    }
}
