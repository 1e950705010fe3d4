// SPDX-License-Identifier: Apache-2.0
//! Results of aggregates from their states.

use arrow::datatypes::DataType;

use super::state::{Content, Sum, unordered};
use super::{Accumulators, StateKind};
use crate::codegen::{CType, RowWriter, Value};
use crate::expr::{AggregateFamily, AggregateFunction, BitOperator};
use crate::prelude::Section;
use crate::{Error, Result};

/// Evaluation of an aggregate's result.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Evaluator {
    pub(super) function: AggregateFunction,
    pub(super) data_type: DataType,
    /// Type of the first argument, logical and in C.
    pub(super) argument: Option<(DataType, CType)>,
    pub(super) bounds: Option<(i128, i128)>,
    /// Position of the state.
    pub state: usize,
    /// Positions of further states.
    pub(super) others: Vec<usize>,
    /// Position of the count of values; `None` if the result is never NULL.
    pub(super) count: Option<usize>,
}

/// C of an aggregate's states.
pub(super) struct Slots {
    /// The state.
    pub own: Vec<String>,
    /// The first slot of each further state.
    pub others: Vec<String>,
    /// The count of values, or 1.
    pub count: String,
}

impl Evaluator {
    /// Type of the result.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Whether the state is an interval's [sort key](crate::function::IntervalField::SortKey).
    pub fn is_sort_key(&self) -> bool {
        self.function.row().family.is_extreme() && matches!(self.data_type, DataType::Interval(_))
    }

    /// C type of the argument, or else of the result.
    fn argument_ctype(&self, native: CType) -> CType {
        self.argument.as_ref().map_or(native, |(_, ctype)| *ctype)
    }
}

impl Accumulators {
    /// Appends the statements that compute an aggregate's result from its slots, each named by
    /// `slot`; the result.
    pub fn evaluate(&self, writer: &mut RowWriter<'_>, evaluator: &Evaluator, slot: &dyn Fn(usize) -> String) -> Result<Value> {
        let state = &self.states[evaluator.state];
        state.kind.need(writer.params());
        let first = |state: usize| self.states[state].slot_names(slot).remove(0);
        let slots = Slots {
            own: state.slot_names(slot),
            others: evaluator.others.iter().map(|other| first(*other)).collect(),
            count: evaluator.count.map_or("(u64)1".into(), first),
        };
        let count = &slots.count;
        let Some(native) = CType::native(&evaluator.data_type) else {
            return Err(Error::Unsupported(format!("type {} is not supported on the device", evaluator.data_type)));
        };
        let valid = evaluator.count.map(|_| format!("({count} != 0)"));
        let result = Value { data_type: evaluator.data_type.clone(), ctype: native, code: String::new(), valid, bounds: None };
        let own = &slots.own;
        let value = match evaluator.function.row().family {
            AggregateFamily::Count | AggregateFamily::Bitwise(BitOperator::And | BitOperator::Or | BitOperator::Xor) => {
                Value { code: format!("({}){}", native.local(), own[0]), ..result }
            }
            AggregateFamily::Boolean(BitOperator::And | BitOperator::Or | BitOperator::Xor) => {
                Value { code: format!("(i32)({} & 1)", own[0]), ..result }
            }
            AggregateFamily::Sketch => Value { code: format!("sketch_count({})", own.join(", ")), ..result },
            AggregateFamily::Sum => sum(writer, evaluator, state.kind, &slots, result)?,
            AggregateFamily::Extreme { .. } | AggregateFamily::AnyValue => extreme(evaluator, state.kind, own, result)?,
            AggregateFamily::Average => Value { code: self.average(writer, evaluator, state.kind, &slots, native)?, ..result },
            AggregateFamily::Variance { sample, root } => self.variance(state.kind, &slots, sample, root, result)?,
            AggregateFamily::Median => Value { code: median(writer, state.kind, &slots, native)?, ..result },
            AggregateFamily::Percentile => Value { code: percentile(writer, evaluator, &slots, native), ..result },
            AggregateFamily::Bivariate { value, valid } => slots.bivariate(value, valid, result),
        };
        let value = if evaluator.is_sort_key() { writer.interval_of_sort_key(value, &evaluator.data_type) } else { value };
        Ok(writer.store(value))
    }
}

fn sum(writer: &mut RowWriter<'_>, evaluator: &Evaluator, kind: StateKind, slots: &Slots, result: Value) -> Result<Value> {
    let own = &slots.own;
    let Content::Sum(sum) = kind.content() else { return foreign(kind, "a sum") };
    Ok(match sum {
        Sum::Int64 if matches!(evaluator.data_type, DataType::Interval(_)) => {
            writer.params().need(Section::IntervalValue);
            let fields = [&own[0], &slots.others[0], &slots.others[1]];
            Value { code: format!("interval_of({}, {}, {})", fields[0], fields[1], fields[2]), ..result }
        }
        Sum::Float64 => Value { code: format!("BITS_F64({})", own[0]), ..result },
        Sum::Int128 | Sum::Int256 => wide(evaluator, own, result),
        Sum::Int64 => Value { code: format!("({}){}", result.ctype.local(), own[0]), ..result },
        // Of AVG and medians alone.
        Sum::Int192 => return foreign(kind, "a sum"),
    })
}

fn extreme(evaluator: &Evaluator, kind: StateKind, own: &[String], result: Value) -> Result<Value> {
    match kind.content() {
        Content::WideExtreme => return Ok(wide(evaluator, own, result)),
        Content::Least | Content::Greatest => {}
        // States that refer to a row do not come here: the operator fetches its value.
        Content::RowReference
        | Content::Sum(_)
        | Content::Welford
        | Content::PowerSums
        | Content::RankCounts
        | Content::Other => return foreign(kind, "an extreme"),
    }
    let ctype = match &evaluator.argument {
        // A decimal in a narrow integer stays there.
        Some((DataType::Decimal128(_, _) | DataType::Decimal256(_, _), ctype)) => *ctype,
        _ => result.ctype,
    };
    let code = unordered(&own[0], evaluator.argument_ctype(ctype));
    Ok(Value { ctype, code, bounds: evaluator.bounds, ..result })
}

/// A value of 128 or 256 bits.
fn wide(evaluator: &Evaluator, own: &[String], result: Value) -> Value {
    match own {
        [low, high] if result.ctype == CType::I256 => {
            Value { ctype: CType::I128, bounds: evaluator.bounds, code: format!("i128_make({low}, {high})"), ..result }
        }
        [low, high] => Value { code: format!("i128_make({low}, {high})"), ..result },
        own => Value { code: format!("i256_make({})", own.join(", ")), ..result },
    }
}

fn median(writer: &mut RowWriter<'_>, kind: StateKind, slots: &Slots, native: CType) -> Result<String> {
    let (own, count) = (&slots.own, &slots.count);
    Ok(match kind.content() {
        Content::Least => {
            let (least, greatest) = (unordered(&own[0], native), unordered(&slots.others[0], native));
            format!("({count} == 1 ? {least} : ({least} + {greatest}) / 2)")
        }
        // Truncated, as in DataFusion.
        Content::Sum(Sum::Int64) => {
            format!("(({})((i64){} / (i64)({count} ? {count} : 1)))", native.local(), own[0])
        }
        Content::Sum(Sum::Int256) => {
            writer.params().need(Section::I256Div);
            format!("i256_div(i256_make({}), i256_of_u64({count} == 2 ? 2 : 1))", own.join(", "))
        }
        Content::Sum(Sum::Int192) => format!("i192_median({}, {}, {}, {count})", own[0], own[1], own[2]),
        Content::Sum(Sum::Int128 | Sum::Float64)
        | Content::Greatest
        | Content::WideExtreme
        | Content::RowReference
        | Content::Welford
        | Content::PowerSums
        | Content::RankCounts
        | Content::Other => return foreign(kind, "a median"),
    })
}

/// The error of a state from which such a result is never computed.
pub(super) fn foreign<T>(kind: StateKind, result: &str) -> Result<T> {
    Err(Error::Internal(format!("{kind:?} is no state of {result}")))
}

fn percentile(writer: &mut RowWriter<'_>, evaluator: &Evaluator, slots: &Slots, native: CType) -> String {
    let from = evaluator.argument_ctype(native);
    let (least, greatest) = (unordered(&slots.own[0], from), unordered(&slots.others[0], from));
    let (number, share) = (unordered(&slots.others[1], CType::I64), unordered(&slots.others[2], CType::F64));
    writer.params().need(Section::Float);
    format!("({})percentile((f64){least}, (f64){greatest}, {number}, {share})", native.local())
}
