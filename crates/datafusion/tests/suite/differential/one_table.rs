// SPDX-License-Identifier: Apache-2.0
//! Random queries over one table.

use arrow::datatypes::DataType;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::expr::{Expr, Generator, Node};
use super::pools::Pools;
use super::types::{Column, Kind};

/// Query over the table `t`.
#[derive(Debug, Clone)]
pub struct OneTableQuery {
    /// Subquery in place of `t`: computed columns, and a filter below them.
    pub inner: Option<Inner>,
    pub filter: Option<Expr>,
    pub distinct: bool,
    pub keys: Vec<Expr>,
    pub outputs: Vec<Output>,
    /// HAVING: minimum number of rows of a group.
    pub having: Option<usize>,
    pub limit: Option<(usize, usize)>,
}

/// Kind of aggregates. It keeps the shrinker from replacing an aggregate with its operand.
const AGGREGATE: Kind = Kind::Temporal(DataType::Null);

/// Subquery that computes columns.
#[derive(Debug, Clone)]
pub struct Inner {
    pub outputs: Vec<Expr>,
    pub filter: Option<Expr>,
}

/// Column of the result.
#[derive(Debug, Clone)]
pub struct Output {
    pub expr: Expr,
    /// Whether DataFusion itself sums the values in no fixed order.
    pub approximate: bool,
}

impl OneTableQuery {
    /// Random query. A limit needs one partition, which fixes the order of the input.
    pub fn random(rng: &mut StdRng, columns: &[Column], one_partition: bool) -> OneTableQuery {
        let inner = rng.random_bool(0.15).then(|| Inner::random(rng, columns));
        let outer = match &inner {
            Some(inner) => inner.columns(columns),
            None => columns.to_vec(),
        };
        let grouped = rng.random_range(0..10);
        let limit = (grouped < 4 && one_partition && rng.random_bool(0.25))
            .then(|| (*[1, 5, 40, 1000].choose(rng).unwrap(), *[0, 0, 3, 70].choose(rng).unwrap()));
        let mut generator = Generator { rng, columns: &outer, fallible: false };
        let filter = generator.rng.random_bool(0.5).then(|| generator.boolean(2));
        // Expressions may be evaluated for rows that a filter or limit drops.
        let fallible = filter.is_none() && inner.is_none() && limit.is_none() && generator.rng.random_bool(0.3);
        generator.fallible = fallible;
        let mut query =
            OneTableQuery { inner, filter, distinct: false, keys: Vec::new(), outputs: Vec::new(), having: None, limit };
        match grouped {
            0..=3 => {
                let count = generator.rng.random_range(1..=4);
                query.outputs = (0..count)
                    .map(|_| {
                        let depth = generator.rng.random_range(0..=3);
                        Output { expr: generator.any(depth), approximate: false }
                    })
                    .collect();
                query.distinct = query.limit.is_none() && generator.rng.random_bool(0.08);
            }
            kind => {
                if kind > 5 {
                    let count = *[1, 1, 1, 2, 2, 3].choose(generator.rng).unwrap();
                    query.keys = (0..count).map(|_| generator.key()).collect();
                    query.having = generator.rng.random_bool(0.15).then_some(2);
                }
                let count = generator.rng.random_range(1..=4);
                let grouped = !query.keys.is_empty();
                query.outputs = (0..count).map(|_| generator.aggregate(grouped)).collect();
            }
        }
        query
    }

    /// Replaces each constant with another of its type.
    pub fn vary(&mut self, rng: &mut StdRng, pools: &Pools) {
        let OneTableQuery { inner, filter, keys, outputs, .. } = self;
        if let Some(inner) = inner {
            inner.outputs.iter_mut().chain(&mut inner.filter).for_each(|expr| expr.vary(rng, pools));
        }
        let outputs = outputs.iter_mut().map(|output| &mut output.expr);
        filter.iter_mut().chain(keys).chain(outputs).for_each(|expr| expr.vary(rng, pools));
    }

    pub fn sql(&self, columns: &[Column]) -> String {
        let (from, columns) = match &self.inner {
            None => ("t".to_string(), columns.to_vec()),
            Some(inner) => (format!("({})", inner.sql(columns)), inner.columns(columns)),
        };
        let keys = self.keys.iter().enumerate().map(|(index, key)| format!("{} AS k{index}", key.sql(&columns)));
        let outputs = self.outputs.iter().enumerate().map(|(index, output)| format!("{} AS o{index}", output.expr.sql(&columns)));
        let select: Vec<String> = keys.chain(outputs).collect();
        let mut sql = format!("SELECT {}{} FROM {from}", if self.distinct { "DISTINCT " } else { "" }, select.join(", "));
        if let Some(filter) = &self.filter {
            sql += &format!(" WHERE {}", filter.sql(&columns));
        }
        if !self.keys.is_empty() {
            let positions: Vec<String> = (1..=self.keys.len()).map(|position| position.to_string()).collect();
            sql += &format!(" GROUP BY {}", positions.join(", "));
        }
        if let Some(rows) = self.having {
            sql += &format!(" HAVING count(*) >= {rows}");
        }
        if let Some((rows, skip)) = self.limit {
            sql += &format!(" LIMIT {rows} OFFSET {skip}");
        }
        sql
    }

    /// Whether the query computes nothing: a resident table's columns are downloaded without a
    /// kernel.
    pub fn only_passes_columns(&self) -> bool {
        let passes = |expr: &Expr| !matches!(expr.node, Node::Call { .. });
        // DataFusion may find that a filter of constants keeps all rows.
        let filters = |filter: &Option<Expr>| {
            let mut read = Vec::new();
            filter.iter().for_each(|filter| filter.columns(&mut read));
            !read.is_empty()
        };
        let mut read = Vec::new();
        self.expressions().for_each(|expr| expr.columns(&mut read));
        let inner = self
            .inner
            .as_ref()
            .is_none_or(|inner| !filters(&inner.filter) && read.iter().all(|column| passes(&inner.outputs[*column])));
        inner && !self.groups() && !filters(&self.filter) && self.outputs.iter().all(|output| passes(&output.expr))
    }

    /// Whether the output keeps the order of the input.
    pub fn keeps_order(&self) -> bool {
        !self.distinct && self.keys.is_empty() && self.limit.is_some()
    }

    /// Whether equal floats of different bits may replace each other, as the zeros of a group do.
    pub fn groups(&self) -> bool {
        self.distinct || !self.keys.is_empty()
    }

    /// Whether the outputs are aggregates.
    pub fn aggregates(&self) -> bool {
        self.outputs.iter().any(|output| output.expr.kind == AGGREGATE)
    }

    pub fn approximate(&self) -> Vec<bool> {
        let outputs = self.outputs.iter().map(|output| output.approximate);
        self.keys.iter().map(|_| false).chain(outputs).collect()
    }

    /// Columns of `t` that the query reads.
    pub fn columns(&self) -> Vec<usize> {
        let mut used = Vec::new();
        match &self.inner {
            Some(inner) => inner.outputs.iter().chain(&inner.filter).for_each(|expr| expr.columns(&mut used)),
            None => self.expressions().for_each(|expr| expr.columns(&mut used)),
        }
        used.sort_unstable();
        used.dedup();
        used
    }

    /// Maps the positions of columns of `t`.
    pub fn renumber(&mut self, position: &dyn Fn(usize) -> usize) {
        match &mut self.inner {
            Some(inner) => inner.outputs.iter_mut().chain(&mut inner.filter).for_each(|expr| expr.renumber(position)),
            None => {
                let outputs = self.outputs.iter_mut().map(|output| &mut output.expr);
                self.filter.iter_mut().chain(&mut self.keys).chain(outputs).for_each(|expr| expr.renumber(position));
            }
        }
    }

    fn expressions(&self) -> impl Iterator<Item = &Expr> {
        self.filter.iter().chain(&self.keys).chain(self.outputs.iter().map(|output| &output.expr))
    }

    /// Queries that are one step simpler.
    pub fn simpler(&self) -> Vec<OneTableQuery> {
        let mut found = Vec::new();
        let mut push = |change: &dyn Fn(&mut OneTableQuery)| {
            let mut query = self.clone();
            change(&mut query);
            found.push(query);
        };
        if self.limit.is_some() {
            push(&|query| query.limit = None);
        }
        if self.having.is_some() {
            push(&|query| query.having = None);
        }
        if self.distinct {
            push(&|query| query.distinct = false);
        }
        if self.filter.is_some() {
            push(&|query| query.filter = None);
        }
        for index in 0..self.outputs.len() {
            if self.outputs.len() > 1 || !self.keys.is_empty() && self.outputs.len() == 1 {
                push(&|query| drop(query.outputs.remove(index)));
            }
        }
        for index in 0..self.keys.len() {
            if self.keys.len() > 1 {
                push(&|query| drop(query.keys.remove(index)));
            }
        }
        if let Some(filter) = &self.filter {
            for simpler in filter.simpler() {
                push(&|query| query.filter = Some(simpler.clone()));
            }
        }
        for index in 0..self.outputs.len() {
            for simpler in self.outputs[index].expr.simpler() {
                push(&|query| query.outputs[index].expr = simpler.clone());
            }
        }
        for index in 0..self.keys.len() {
            for simpler in self.keys[index].simpler() {
                push(&|query| query.keys[index] = simpler.clone());
            }
        }
        if let Some(inner) = &self.inner {
            if inner.filter.is_some() {
                push(&|query| query.inner.iter_mut().for_each(|inner| inner.filter = None));
            }
            for index in 0..inner.outputs.len() {
                for simpler in inner.outputs[index].simpler() {
                    push(&|query| query.inner.iter_mut().for_each(|inner| inner.outputs[index] = simpler.clone()));
                }
            }
        }
        found
    }
}

impl Inner {
    fn random(rng: &mut StdRng, columns: &[Column]) -> Inner {
        let mut generator = Generator { rng, columns, fallible: false };
        let filter = generator.rng.random_bool(0.4).then(|| generator.boolean(1));
        let count = generator.rng.random_range(2..=4);
        Inner { outputs: (0..count).map(|_| generator.any(1)).collect(), filter }
    }

    fn sql(&self, columns: &[Column]) -> String {
        let outputs: Vec<String> =
            (self.outputs.iter().enumerate()).map(|(index, expr)| format!("{} AS e{index}", expr.sql(columns))).collect();
        let filter = self.filter.iter().map(|filter| format!(" WHERE {}", filter.sql(columns)));
        format!("SELECT {} FROM t{}", outputs.join(", "), filter.collect::<String>())
    }

    /// Columns of the subquery for the outer query.
    fn columns(&self, columns: &[Column]) -> Vec<Column> {
        self.outputs.iter().enumerate().map(|(index, expr)| expr.described(format!("e{index}"), columns)).collect()
    }
}

impl Generator<'_> {
    /// Random group key, mostly a column of few values.
    fn key(&mut self) -> Expr {
        match self.rng.random_range(0..10) {
            0..=5 => match self.column(|column| column.few) {
                Some(column) => column,
                None => self.any(0),
            },
            6 | 7 => self.any(0),
            8 => self.any(1),
            _ => self.boolean(1),
        }
    }

    fn aggregate(&mut self, grouped: bool) -> Output {
        let small_int = |column: &Column| {
            matches!(
                column.data_type,
                DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::UInt8 | DataType::UInt16 | DataType::UInt32
            )
        };
        let tiny_int = |column: &Column| matches!(column.data_type, DataType::Int8 | DataType::Int16 | DataType::UInt8);
        let tame = |column: &Column| column.tame && column.kind() == Kind::Float;
        let (text, operand, approximate) = match self.rng.random_range(0..20) {
            0 | 1 => ("count(*)", None, false),
            2 => ("count({})", Some(self.any(1)), false),
            3..=5 => ("sum({})", Some(self.of(&Kind::Int, 2)), false),
            6 => ("sum({})", self.column(tame), false),
            7 | 8 => ("sum({})", Some(self.of_narrow_decimal()), false),
            9 | 10 => ("min({})", Some(self.ordered(grouped)), false),
            11 | 12 => ("max({})", Some(self.ordered(grouped)), false),
            13 => ("avg({})", self.column(|column| small_int(column) || tame(column)), false),
            14 => ("avg({})", Some(self.of_narrow_decimal()).filter(|operand| operand.kind == Kind::Decimal), false),
            15 => (*["bool_and({})", "bool_or({})"].choose(self.rng).unwrap(), Some(self.boolean(1)), false),
            16 => (*["bit_and({})", "bit_or({})", "bit_xor({})"].choose(self.rng).unwrap(), Some(self.of(&Kind::Int, 1)), false),
            17 | 18 => {
                let names = ["var_pop({})", "var_samp({})", "stddev_pop({})", "stddev({})"];
                (*names.choose(self.rng).unwrap(), self.column(|column| tiny_int(column) || tame(column)), true)
            }
            // Floats are left out: DataFusion counts the zeros as one or two values, depending on
            // the rest of the query.
            _ => ("count(DISTINCT {})", Some(self.any(0)).filter(|operand| operand.kind != Kind::Float), false),
        };
        let (text, operands) = match (text, operand) {
            ("count(*)", _) => (text, Vec::new()),
            (text, Some(operand)) => (text, vec![operand]),
            (_, None) => ("count(*)", Vec::new()),
        };
        let approximate = approximate && !operands.is_empty();
        let kind = AGGREGATE;
        let fallible = operands.first().is_some_and(may_fail) && self.fallible;
        if self.rng.random_bool(0.2) && !fallible {
            let mut operands = operands;
            operands.push(self.boolean(1));
            return Output { expr: Expr::call(kind, format!("{text} FILTER (WHERE {{}})"), operands), approximate };
        }
        Output { expr: Expr::call(kind, text, operands), approximate }
    }

    /// Operand of MIN or MAX. Groups use no floats: with a NaN or both zeros, DataFusion's own
    /// answer depends on the order of rows.
    fn ordered(&mut self, grouped: bool) -> Expr {
        let expr = self.any(1);
        if grouped && expr.kind == Kind::Float { self.of(&Kind::Int, 1) } else { expr }
    }

    fn of_narrow_decimal(&mut self) -> Expr {
        let column = self.column(|column| match column.data_type {
            DataType::Decimal128(precision, _) | DataType::Decimal64(precision, _) => precision <= 15,
            DataType::Decimal32(..) => true,
            _ => false,
        });
        match column {
            Some(column) => column,
            None => self.of(&Kind::Int, 0),
        }
    }
}

fn may_fail(expr: &Expr) -> bool {
    matches!(expr.node, Node::Call { .. })
}
