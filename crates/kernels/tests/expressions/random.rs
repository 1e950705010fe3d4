// SPDX-License-Identifier: Apache-2.0
//! Random expressions over random columns.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use kernels::expr::{Expr, LiteralValue};
use kernels::function::{DatePart, Function};
use kernels::support::{supports, supports_cast};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data;
use crate::harness::{PROFILES, batch, check_in, natural};
use crate::host::arithmetic_type;
use crate::operators::{ARITHMETIC, COMPARISONS};

struct Generator {
    random: StdRng,
    types: Vec<DataType>,
}

impl Generator {
    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.random.random_range(0..from.len())].clone()
    }

    fn any_type(&mut self) -> DataType {
        let all = [&data::all()[..], &self.types].concat();
        self.pick(&all)
    }

    /// A value that is not NaN. With two NaN operands, arrow's loops over a constant and a column
    /// may return either.
    fn constant(&mut self, data_type: &DataType) -> LiteralValue {
        loop {
            match self.value(data_type) {
                LiteralValue::Float(value) if value.is_nan() => {}
                value => return value,
            }
        }
    }

    fn value(&mut self, data_type: &DataType) -> LiteralValue {
        match self.random.random_range(0..8) {
            0 => LiteralValue::Null,
            _ => {
                let values = data::special(data_type);
                self.pick(&values)
            }
        }
    }

    /// A call with a result of the type.
    fn call(&mut self, data_type: &DataType, depth: u32) -> Expr {
        let number = |value: i64| Expr::Literal(data::literal(&DataType::Int64, LiteralValue::Int(value.into())));
        let text = self.pick(&data::strings());
        let (function, arguments) = match data_type {
            DataType::Boolean => {
                let function = self.pick(&[Function::StartsWith, Function::EndsWith, Function::Contains]);
                (function, vec![self.expr(&text, depth), self.expr(&text, depth)])
            }
            DataType::Int32 if self.random.random_bool(0.5) => {
                let part =
                    self.pick(&[DatePart::Year, DatePart::Week, DatePart::DayOfYear, DatePart::Minute, DatePart::Millisecond]);
                let of = self.pick(&[
                    DataType::Date32,
                    DataType::Date64,
                    DataType::Timestamp(TimeUnit::Microsecond, Some("-07:30".into())),
                ]);
                (Function::DatePart(part), vec![self.expr(&of, depth)])
            }
            DataType::Int32 => {
                let text = if text == DataType::LargeUtf8 { DataType::Utf8 } else { text };
                match self.random.random_bool(0.5) {
                    true => (self.pick(&[Function::CharacterLength, Function::Ascii]), vec![self.expr(&text, depth)]),
                    false => (Function::Position, vec![self.expr(&text, depth), self.expr(&text, depth)]),
                }
            }
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                let own = self.expr(data_type, depth);
                match self.random.random_range(0..4) {
                    0 => (self.pick(&[Function::Left, Function::Right]), vec![own, self.expr(&DataType::Int64, depth)]),
                    1 => (Function::Substring, vec![own, self.expr(&DataType::Int64, depth), number(5)]),
                    2 => (Function::Btrim, vec![own, self.expr(&text, depth)]),
                    _ => (Function::SplitPart, vec![own, self.expr(&text, depth), self.expr(&DataType::Int64, depth)]),
                }
            }
            DataType::Float32 | DataType::Float64 if self.random.random_bool(0.7) => {
                let function = self.pick(&[Function::Floor, Function::Round, Function::Trunc, Function::Sqrt, Function::Signum]);
                (function, vec![self.expr(data_type, depth)])
            }
            DataType::Timestamp(_, _) | DataType::Date32 if self.random.random_bool(0.5) => (
                Function::AddInterval { checked: true },
                vec![self.expr(data_type, depth), number(-13), number(20), number(-3_600_000_000_007)],
            ),
            data_type if data_type.is_numeric() && self.random.random_bool(0.5) => {
                (Function::Abs, vec![self.expr(data_type, depth)])
            }
            _ => {
                let arguments = (0..self.random.random_range(1..4)).map(|_| self.expr(data_type, depth)).collect();
                (self.pick(&[Function::Greatest, Function::Least]), arguments)
            }
        };
        Expr::Call { function, arguments, data_type: data_type.clone() }
    }

    /// An expression of the type, with columns, constants and casts as leaves.
    fn expr(&mut self, data_type: &DataType, depth: u32) -> Expr {
        let columns: Vec<usize> = (0..self.types.len()).filter(|index| self.types[*index] == *data_type).collect();
        if depth == 0 {
            return match columns.is_empty() || self.random.random_bool(0.2) {
                true => Expr::Literal(data::literal(data_type, self.constant(data_type))),
                false => Expr::Column(self.pick(&columns)),
            };
        }
        let depth = depth - 1;
        let choice = self.random.random_range(0..12);
        match choice {
            0 | 1 if *data_type == DataType::Boolean => {
                let operands = (0..self.random.random_range(1..4)).map(|_| self.expr(data_type, depth)).collect();
                if choice == 0 { Expr::And(operands) } else { Expr::Or(operands) }
            }
            2 | 3 if *data_type == DataType::Boolean => {
                let of = self.any_type();
                let op = self.pick(&COMPARISONS);
                Expr::Compare { op, left: Arc::new(self.expr(&of, depth)), right: Arc::new(self.expr(&of, depth)) }
            }
            4 if *data_type == DataType::Boolean => match self.random.random_range(0..4) {
                0 => Expr::Not(Arc::new(self.expr(data_type, depth))),
                1 => {
                    let of = self.any_type();
                    Expr::IsNull(Arc::new(self.expr(&of, depth)))
                }
                2 => {
                    let truth = self.pick(&[Some(true), Some(false), None]);
                    Expr::IsTruth(Arc::new(self.expr(data_type, depth)), truth)
                }
                _ => {
                    let of = self.any_type();
                    let list = (0..self.random.random_range(0..9)).map(|_| data::literal(&of, self.value(&of))).collect();
                    Expr::InList { expr: Arc::new(self.expr(&of, depth)), list, negated: self.random.random_bool(0.5) }
                }
            },
            5 => {
                let branches = (0..self.random.random_range(1..3))
                    .map(|_| (self.expr(&DataType::Boolean, depth), self.expr(data_type, depth)))
                    .collect();
                let otherwise = self.random.random_bool(0.7).then(|| Arc::new(self.expr(data_type, depth)));
                Expr::Case { branches, otherwise, data_type: data_type.clone() }
            }
            6 => Expr::Coalesce((0..self.random.random_range(1..4)).map(|_| self.expr(data_type, depth)).collect()),
            7 => {
                let from = self.any_type();
                if from == *data_type || supports_cast(&from, data_type).is_err() {
                    return self.expr(data_type, depth);
                }
                Expr::Cast {
                    expr: Arc::new(self.expr(&from, depth)),
                    to: data_type.clone(),
                    checked: self.random.random_bool(0.2),
                }
            }
            8 | 9 => self.call(data_type, depth),
            _ => {
                // Arithmetic with a result of the type, if there is any.
                let op = self.pick(&ARITHMETIC);
                let (left, right) = (self.any_type(), self.any_type());
                for (left, right) in [(left.clone(), right), (data_type.clone(), data_type.clone()), (left.clone(), left)] {
                    if arithmetic_type(op, &left, &right).as_ref() == Some(data_type) {
                        return Expr::Arithmetic {
                            op,
                            left: Arc::new(self.expr(&left, depth)),
                            right: Arc::new(self.expr(&right, depth)),
                            data_type: data_type.clone(),
                        };
                    }
                }
                self.expr(data_type, depth)
            }
        }
    }
}

#[test]
fn random_expressions() {
    let first: u64 = std::env::var("KERNELS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let rounds: u64 = std::env::var("KERNELS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(25);
    for round in 0..rounds {
        let seed = first.wrapping_add(round);
        println!("KERNELS_SEED={seed}");
        let mut generator = Generator { random: StdRng::seed_from_u64(seed), types: vec![] };
        generator.types = (0..generator.random.random_range(1..6)).map(|_| generator.any_type()).collect();
        let rows = generator.random.random_range(0..40);
        let types = generator.types.clone();
        let columns = types.iter().map(|data_type| {
            let values: Vec<LiteralValue> = (0..rows).map(|_| generator.value(data_type)).collect();
            data::array(data_type, &values)
        });
        let batch = batch(columns.collect());
        let schema = Schema::new(
            types
                .iter()
                .enumerate()
                .map(|(index, data_type)| Field::new(format!("c{index}"), data_type.clone(), true))
                .collect::<Vec<_>>(),
        );
        let mut exprs = Vec::new();
        while exprs.len() < 6 {
            let data_type = generator.any_type();
            let depth = generator.random.random_range(1..5);
            let expr = generator.expr(&data_type, depth);
            if supports(&expr, &schema).is_ok() {
                exprs.push(expr);
            }
        }
        check_in(&batch, &natural(&batch), &exprs, &[PROFILES[round as usize % 2]]);
    }
}
