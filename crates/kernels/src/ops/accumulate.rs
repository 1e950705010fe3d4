// SPDX-License-Identifier: Apache-2.0
//! States of aggregates as words of 64 bits: how they begin, take a value, merge and end.
//!
//! Several aggregates share states: `SUM(x)`, `AVG(x)` and `COUNT(x)` have one sum and one count
//! between them. A value becomes a state of its own first ([`Kind::lift`]), so that taking a value,
//! merging partial states and adding atomically are one thing with three faces.

use arrow::datatypes::{DataType, i256};

use super::launch::source::Source;
use crate::codegen::{CType, Params, Profile, RowWriter, Value, wide_literal};
use crate::expr::{Aggregate, AggregateFunction, Expr};
use crate::function::{Function, IntervalField};
use crate::prelude::Section;
use crate::{Error, Result};

/// What one state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Number of values.
    Count,
    /// Wrapping sum of 64 bits.
    Sum64,
    /// Wrapping sum of 128 bits, low word first.
    Sum128,
    /// Sum of 192 bits.
    Sum192,
    /// Wrapping sum of 256 bits.
    Sum256,
    /// Sum of floats.
    SumF64,
    /// Least and greatest of values mapped to u64 in their order.
    Min,
    Max,
    /// Of 128-bit integers; not atomic.
    Min128,
    Max128,
    /// Of 256-bit integers; not atomic.
    Min256,
    Max256,
    And,
    Or,
    Xor,
    /// Number, mean and sum of squared distances, as DataFusion computes them; not atomic.
    Welford,
    /// Sums of x and x², each as an unevaluated sum of two floats.
    Moments,
    /// Sums of y, x, y², x² and x·y of two arguments y and x, as [`Moments`](Kind::Moments) are.
    CoMoments,
    /// How many registers of a sketch have each rank: rank r in word r / 4, 16 bits each.
    Ranks,
    /// Reference to a row or to the store of earlier winners: of strings, and of integers of several words
    /// where states are atomic. Not among the words; see [`best`](super::group).
    BestMin,
    BestMax,
}

impl Kind {
    /// Words of the state.
    pub fn words(self) -> usize {
        match self {
            Kind::BestMin | Kind::BestMax => 0,
            Kind::Count | Kind::Sum64 | Kind::SumF64 | Kind::Min | Kind::Max | Kind::And | Kind::Or | Kind::Xor => 1,
            Kind::Sum128 | Kind::Min128 | Kind::Max128 => 2,
            Kind::Sum192 | Kind::Welford => 3,
            Kind::Moments | Kind::Sum256 | Kind::Min256 | Kind::Max256 => 4,
            Kind::CoMoments => 10,
            Kind::Ranks => 13,
        }
    }

    /// The state of no values.
    pub fn init(self) -> &'static [u64] {
        const ONES: u64 = u64::MAX;
        match self {
            Kind::Min | Kind::And => &[ONES],
            Kind::Min128 => &[ONES, ONES >> 1],
            Kind::Max128 => &[0, 1 << 63],
            Kind::Min256 => &[ONES, ONES, ONES, ONES >> 1],
            Kind::Max256 => &[0, 0, 0, 1 << 63],
            other => &[0; 13][..other.words()],
        }
    }

    /// The state of one value, as C, or of one of each argument.
    fn lift(self, values: &[Value]) -> Vec<String> {
        let Some(value) = values.first() else { return vec!["(u64)1".into()] };
        let code = &value.code;
        let float = format!("(f64){code}");
        // A product and its rounding error.
        let product = |x: &str, y: &str| [format!("F64_BITS({x} * {y})"), format!("F64_BITS(fma({x}, {y}, -({x} * {y})))")];
        match self {
            Kind::Count => vec!["(u64)1".into()],
            Kind::Sum64
            | Kind::And
            | Kind::Or
            | Kind::Xor
            | Kind::Sum128
            | Kind::Min128
            | Kind::Max128
            | Kind::Sum192
            | Kind::Sum256
            | Kind::Min256
            | Kind::Max256 => words(value, self.words()),
            Kind::SumF64 => vec![format!("F64_BITS({float})")],
            Kind::Min | Kind::Max => vec![ordered(value)],
            Kind::Welford => vec!["(u64)1".into(), format!("F64_BITS({float})"), "(u64)0".into()],
            Kind::Moments => {
                let [square, error] = product(&float, &float);
                vec![format!("F64_BITS({float})"), "(u64)0".into(), square, error]
            }
            Kind::CoMoments => {
                let floats: Vec<String> = values.iter().map(|value| format!("(f64){}", value.code)).collect();
                let sums = floats.iter().flat_map(|float| [format!("F64_BITS({float})"), "(u64)0".into()]);
                let pairs = [(0, 0), (floats.len() - 1, floats.len() - 1), (0, floats.len() - 1)];
                sums.chain(pairs.into_iter().flat_map(|(a, b)| product(&floats[a], &floats[b]))).collect()
            }
            // Most words stay as they are.
            Kind::Ranks | Kind::BestMin | Kind::BestMax => vec![],
        }
    }

    /// The statement that adds one value to the state in `to`.
    pub fn take(self, to: &[String], values: &[Value]) -> String {
        match (self, values) {
            (Kind::Welford, [value]) => format!("welford_add(&{}, &{}, &{}, (f64){});", to[0], to[1], to[2], value.code),
            (Kind::Ranks, [rank]) => format!("(&{})[{1} >> 2] += (u64)1 << 16 * ({1} & 3);", to[0], rank.code),
            // A register's rank, and the one that it had before, 0 if none.
            (Kind::Ranks, [rank, before]) => format!(
                "(&{0})[{1} >> 2] += (u64)1 << 16 * ({1} & 3); (&{0})[{2} >> 2] -= (u64)({2} != 0) << 16 * ({2} & 3);",
                to[0], rank.code, before.code
            ),
            _ => self.merge(to, &self.lift(values)),
        }
    }

    /// The statement that takes a value back out of the state in `to`; none for states that do not give values back exactly.
    pub fn take_back(self, to: &[String], values: &[Value]) -> Option<String> {
        matches!(self, Kind::Count | Kind::Sum64).then(|| format!("{} -= {};", to[0], self.lift(values)[0]))
    }

    /// The statement that adds the state in `from` to that in `to`, which nobody else touches.
    pub fn merge(self, to: &[String], from: &[String]) -> String {
        match self {
            Kind::Count | Kind::Sum64 => format!("{} += {};", to[0], from[0]),
            Kind::And => format!("{} &= {};", to[0], from[0]),
            Kind::Or => format!("{} |= {};", to[0], from[0]),
            Kind::Xor => format!("{} ^= {};", to[0], from[0]),
            Kind::SumF64 => format!("{0} = F64_BITS(f64_add(BITS_F64({0}), BITS_F64({1})));", to[0], from[0]),
            Kind::Min | Kind::Max => {
                let below = if self == Kind::Min { "<" } else { ">" };
                format!("{{ u64 v_ = {1}; {0} = v_ {below} {0} ? v_ : {0}; }}", to[0], from[0])
            }
            Kind::Sum128 => {
                format!("{{ u64 v_ = {0} + {2}; {1} += {3} + (v_ < {0}); {0} = v_; }}", to[0], to[1], from[0], from[1])
            }
            Kind::Sum192 => format!(
                "{{ u64 v_ = {0} + {3}, c_ = v_ < {0}, w_ = {1} + c_; {0} = v_; c_ = w_ < c_; v_ = w_ + {4}; c_ += v_ < w_; {1} = v_; {2} += {5} + c_; }}",
                to[0], to[1], to[2], from[0], from[1], from[2]
            ),
            Kind::Min128 | Kind::Max128 => {
                let (a, b) = if self == Kind::Min128 { ("v_", "w_") } else { ("w_", "v_") };
                format!(
                    "{{ i128 v_ = i128_make({2}, {3}), w_ = i128_make({0}, {1}); if (i128_lt({a}, {b})) {{ {0} = v_.lo; {1} = v_.hi; }} }}",
                    to[0], to[1], from[0], from[1]
                )
            }
            Kind::Sum256 => format!(
                "{{ i256 v_ = i256_add(i256_make({}), i256_make({})); {} }}",
                to.join(", "),
                from.join(", "),
                assigned(to, "v_")
            ),
            Kind::Min256 | Kind::Max256 => {
                let (a, b) = if self == Kind::Min256 { ("v_", "w_") } else { ("w_", "v_") };
                format!(
                    "{{ i256 v_ = i256_make({}), w_ = i256_make({}); if (i256_lt({a}, {b})) {{ {} }} }}",
                    from.join(", "),
                    to.join(", "),
                    assigned(to, "v_")
                )
            }
            Kind::Welford => format!("welford_merge(&{}, &{}, &{}, {}, {}, {});", to[0], to[1], to[2], from[0], from[1], from[2]),
            Kind::Moments | Kind::CoMoments => (0..self.words() / 2)
                .map(|sum| {
                    let (hi, lo) = (&to[sum * 2], &to[sum * 2 + 1]);
                    format!("twofold_add(&{hi}, &{lo}, {}, {}); ", from[sum * 2], from[sum * 2 + 1])
                })
                .collect(),
            Kind::Ranks => to.iter().zip(from).map(|(to, from)| format!("{to} += {from}; ")).collect(),
            Kind::BestMin | Kind::BestMax => String::new(),
        }
    }

    /// The statement that adds the state in `from` to that at the addresses `to`, to which others add
    /// as well. `space` is `g` or `l`: where the addresses point.
    pub fn add(self, to: &[String], from: &[String], space: char) -> Result<String> {
        Ok(match self {
            Kind::Count | Kind::Sum64 => format!("A_ADD64({}, {});", to[0], from[0]),
            Kind::And => format!("A_AND64({}, {});", to[0], from[0]),
            Kind::Or => format!("A_OR64({}, {});", to[0], from[0]),
            Kind::Xor => format!("A_XOR64({}, {});", to[0], from[0]),
            // Most values change nothing: look before going to the memory system's atomic unit.
            Kind::Min => format!("{{ u64 v_ = {1}; if (v_ < *{0}) A_MIN64({0}, v_); }}", to[0], from[0]),
            Kind::Max => format!("{{ u64 v_ = {1}; if (v_ > *{0}) A_MAX64({0}, v_); }}", to[0], from[0]),
            Kind::SumF64 => format!("add_f64_{space}({}, BITS_F64({}));", to[0], from[0]),
            Kind::Sum128 => format!(
                "{{ u64 v_ = {2}, o_ = A_ADD64({0}, v_), w_ = {3} + (o_ + v_ < v_); if (w_) A_ADD64({1}, w_); }}",
                to[0], to[1], from[0], from[1]
            ),
            Kind::Sum192 => format!(
                "{{ u64 v_ = {3}, c_ = A_ADD64({0}, v_) + v_ < v_, w_ = {4} + c_, t_ = {5} + (w_ < c_), o_ = w_ ? A_ADD64({1}, w_) : 0; \
                 t_ += w_ && o_ + w_ < w_; if (t_) A_ADD64({2}, t_); }}",
                to[0], to[1], to[2], from[0], from[1], from[2]
            ),
            Kind::Moments | Kind::CoMoments => (0..self.words() / 2)
                .map(|sum| {
                    let (hi, lo) = (&to[sum * 2], &to[sum * 2 + 1]);
                    format!("twofold_atomic_{space}({hi}, {lo}, BITS_F64({}), BITS_F64({})); ", from[sum * 2], from[sum * 2 + 1])
                })
                .collect(),
            Kind::Ranks => {
                to.iter().zip(from).map(|(to, from)| format!("{{ u64 v_ = {from}; if (v_) A_ADD64({to}, v_); }} ")).collect()
            }
            Kind::Sum256 => {
                let step = |(to, from): (&String, &String)| {
                    format!("v_ = {from} + c_; c_ = v_ < c_; if (v_) {{ o_ = A_ADD64({to}, v_); c_ += o_ + v_ < v_; }} ")
                };
                format!("{{ u64 c_ = 0, v_, o_; {}}}", to.iter().zip(from).map(step).collect::<String>())
            }
            Kind::Min128 | Kind::Max128 | Kind::Min256 | Kind::Max256 | Kind::Welford | Kind::BestMin | Kind::BestMax => {
                return Err(Error::Internal(format!("{self:?} has no atomic form")));
            }
        })
    }

    /// [`add`](Self::add) of one value.
    pub fn add_value(self, to: &[String], values: &[Value], space: char) -> Result<String> {
        match (self, values) {
            (Kind::Ranks, [rank]) => Ok(format!("A_ADD64({} + ({1} >> 2), (u64)1 << 16 * ({1} & 3));", to[0], rank.code)),
            _ => self.add(to, &self.lift(values), space),
        }
    }

    /// Marks the sections of the prelude that the statements need.
    pub fn need(self, params: &mut Params) {
        match self {
            Kind::Sum128 | Kind::Min128 | Kind::Max128 => params.need(Section::I128),
            Kind::Sum192 => params.need(Section::I128Div),
            Kind::Ranks => params.need(Section::Sketch),
            Kind::Sum256 | Kind::Min256 | Kind::Max256 => params.need(Section::I256),
            Kind::SumF64 | Kind::Welford | Kind::Moments | Kind::CoMoments | Kind::Min | Kind::Max => {
                params.need(Section::Float);
            }
            _ => params.need(Section::Base),
        }
    }
}

/// A state and what feeds it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Accumulator {
    pub kind: Kind,
    /// Which input: 0 is the aggregation's own, others are distinct values.
    pub feed: usize,
    pub filter: Option<Expr>,
    /// None: it counts rows.
    pub arguments: Vec<Expr>,
    /// First word in the state of a group.
    pub first: usize,
}

impl Accumulator {
    /// The one argument of a state that looks at its rows again.
    pub fn argument(&self) -> Result<&Expr> {
        match self.arguments.as_slice() {
            [argument] => Ok(argument),
            arguments => Err(Error::Internal(format!("{:?} of {} arguments", self.kind, arguments.len()))),
        }
    }

    /// The words' places, each by `place`.
    pub fn places(&self, place: impl Fn(usize) -> String) -> Vec<String> {
        (self.first..self.first + self.kind.words()).map(place).collect()
    }
}

/// How an aggregate comes out of the states.
#[derive(Debug, Clone)]
pub(super) struct Ending {
    function: AggregateFunction,
    data_type: DataType,
    /// Type of the first argument, logical and in C.
    argument: Option<(DataType, CType)>,
    bounds: Option<(i128, i128)>,
    /// The state.
    pub state: usize,
    /// Other states that the result is made of.
    others: Vec<usize>,
    /// The count of values that went in; without one there is always a value.
    count: Option<usize>,
}

impl Ending {
    /// Type of the result.
    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// Whether the state is of [`IntervalField::InOrder`].
    pub fn is_in_order(&self) -> bool {
        matches!(self.function, AggregateFunction::Min | AggregateFunction::Max)
            && matches!(self.data_type, DataType::Interval(_))
    }

    /// Of AVG of decimals: what a sum is multiplied with, and the digits of the result.
    fn average(&self) -> Result<(u64, u8)> {
        let Some((from, _)) = &self.argument else { return Err(Error::Internal("AVG without an argument".into())) };
        let (from, to) = (decimal(from)?, decimal(&self.data_type)?);
        let up = u32::try_from(to.1 - from.1).map_err(|_| Error::Unsupported("AVG to a lower scale".into()))?;
        Ok((10u64.pow(up), to.0))
    }
}

/// Appends the statements that add the values of its arguments to a state.
type Update<'a> = dyn FnMut(&mut RowWriter<'_>, usize, &[Value]) -> Result<()> + 'a;

/// All states of an aggregation.
#[derive(Debug, Clone, Default)]
pub(super) struct Accumulators {
    pub list: Vec<Accumulator>,
    pub endings: Vec<Ending>,
    pub words: usize,
    /// Whether there are keys. Then the variance of one value is its distance from itself, NaN where
    /// it is not finite; without keys it is 0, as in DataFusion.
    pub keyed: bool,
}

/// What decides the kinds of states.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// Whether several items add to one state at the same time.
    pub atomic: bool,
    /// Whether there is a state for each group that has rows, and for no other.
    pub grouped: bool,
}

impl Accumulators {
    /// Adds the states of an aggregate whose argument and filter are over `source`, the input `feed`.
    ///
    /// # Errors
    /// `Unsupported` where function or argument is not supported on the device.
    pub fn plan(&mut self, aggregate: &Aggregate, source: &Source, feed: usize, usage: Use) -> Result<()> {
        use AggregateFunction::*;
        let mut params = Params::new();
        let mut writer = source.writer(Profile::Cpu, &mut params);
        if let Some(filter) = &aggregate.filter {
            writer.eval(filter)?;
        }
        let values = aggregate.arguments.iter().map(|argument| writer.eval(argument)).collect::<Result<Vec<_>>>()?;
        let nullable = values.iter().any(|value| value.valid.is_some());
        // Without NULLs every count of values counts rows. What may fail is computed all the same, by the function itself or here.
        let fails = matches!(aggregate.function, Count | RegrCount) && params.can_fail();
        let counted = if nullable || fails { aggregate.arguments.clone() } else { Vec::new() };
        let count = self.state(Kind::Count, feed, &aggregate.filter, counted);
        let mut others = Vec::new();
        let (state, count) = match (aggregate.function, values.first()) {
            (Count | RegrCount, _) => (self.settle(count), None),
            (function, None) => return Err(Error::Internal(format!("{function:?} without an argument"))),
            (PercentileCont, Some(value)) => {
                // The values around the place, as least and greatest of those that are left, then how many there were, and which
                // share of them lies below the place.
                let count = self.settle(count);
                let [value_of, number, share] = aggregate.arguments.as_slice() else {
                    return Err(Error::Internal("PercentileCont takes a value, their number, and a share".into()));
                };
                if !matches!(value.ctype, CType::F32 | CType::F64) {
                    return Err(Error::Unsupported(format!(
                        "percentile_cont of {} is not supported on the device",
                        value.data_type
                    )));
                }
                for (kind, argument) in [(Kind::Max, value_of), (Kind::Max, number), (Kind::Max, share)] {
                    let state = self.state(kind, feed, &aggregate.filter, vec![argument.clone()]);
                    others.push(self.settle(state));
                }
                let least = self.state(Kind::Min, feed, &aggregate.filter, vec![value_of.clone()]);
                (self.settle(least), Some(count))
            }
            (Median, Some(value)) if matches!(value.ctype, CType::F32 | CType::F64) => {
                let count = self.settle(count);
                let greatest = self.state(Kind::Max, feed, &aggregate.filter, aggregate.arguments.clone());
                others.push(self.settle(greatest));
                let least = self.state(Kind::Min, feed, &aggregate.filter, aggregate.arguments.clone());
                (self.settle(least), Some(count))
            }
            (Min | Max, Some(value)) if is_interval(value) => {
                let count = self.settle(count);
                let argument = field_of(&aggregate.arguments, IntervalField::InOrder, DataType::Decimal128(38, 0));
                let state = self.state(best_of(aggregate.function, value.ctype, usage), feed, &aggregate.filter, argument);
                (self.settle(state), Some(count))
            }
            // Part by part, each of which wraps.
            (Sum, Some(value)) if is_interval(value) => {
                let count = self.settle(count);
                let negated = false;
                let mut part = |field| {
                    let argument = field_of(&aggregate.arguments, field, DataType::Int64);
                    let state = self.state(Kind::Sum64, feed, &aggregate.filter, argument);
                    self.settle(state)
                };
                let months = part(IntervalField::Months { negated });
                others.extend([IntervalField::Days { negated }, IntervalField::Nanos { negated }].map(part));
                (months, Some(count))
            }
            (function, Some(value)) => {
                let kind = kind_of(function, aggregate, value, usage)?;
                let needs_count = kind != Kind::Ranks
                    && (!usage.grouped
                        || nullable
                        || aggregate.filter.is_some()
                        || matches!(function, Avg | Median | VarPop | VarSamp | StddevPop | StddevSamp)
                        || kind == Kind::CoMoments);
                let count = if needs_count && kind != Kind::Welford { Some(self.settle(count)) } else { None };
                let state = self.state(kind, feed, &aggregate.filter, aggregate.arguments.clone());
                (self.settle(state), count)
            }
        };
        self.endings.push(Ending {
            function: aggregate.function,
            data_type: aggregate.data_type.clone(),
            argument: values.first().map(|value| (value.data_type.clone(), value.ctype)),
            bounds: values.first().and_then(|value| value.bounds),
            state,
            others,
            count,
        });
        Ok(())
    }

    /// The count of an input's rows.
    pub fn count_rows(&mut self, feed: usize) -> usize {
        let state = self.state(Kind::Count, feed, &None, Vec::new());
        self.settle(state)
    }

    /// A state that is not yet one of the list.
    fn state(&self, kind: Kind, feed: usize, filter: &Option<Expr>, arguments: Vec<Expr>) -> Accumulator {
        Accumulator { kind, feed, filter: filter.clone(), arguments, first: 0 }
    }

    fn settle(&mut self, mut state: Accumulator) -> usize {
        let same = |known: &Accumulator| {
            (known.kind, known.feed, &known.filter, &known.arguments) == (state.kind, state.feed, &state.filter, &state.arguments)
        };
        if let Some(known) = self.list.iter().position(same) {
            return known;
        }
        state.first = self.words;
        self.words += state.kind.words();
        self.list.push(state);
        self.list.len() - 1
    }

    /// The words of a group without rows.
    pub fn init(&self) -> Vec<u64> {
        self.list.iter().flat_map(|accumulator| accumulator.kind.init()).copied().collect()
    }

    /// Marks what the statements need.
    pub fn need(&self, params: &mut Params) {
        self.list.iter().for_each(|accumulator| accumulator.kind.need(params));
    }

    /// Appends the updates of the current row by the states of `feed`, `update` giving the statements
    /// of each. Each filter and argument is evaluated once, and only where it is reached.
    pub fn write(&self, writer: &mut RowWriter<'_>, feed: usize, update: &mut Update<'_>) -> Result<()> {
        self.need(writer.params());
        let own: Vec<usize> = (0..self.list.len()).filter(|index| self.list[*index].feed == feed).collect();
        for of_filter in classes(&own, |index| &self.list[index].filter) {
            let mut body = |writer: &mut RowWriter<'_>| -> Result<()> {
                for of_arguments in classes(&of_filter, |index| &self.list[index].arguments) {
                    let arguments = &self.list[of_arguments[0]].arguments;
                    let values = arguments.iter().map(|argument| writer.eval(argument)).collect::<Result<Vec<_>>>()?;
                    let mut updates =
                        |writer: &mut RowWriter<'_>| of_arguments.iter().try_for_each(|index| update(writer, *index, &values));
                    let valid: Vec<&str> = values.iter().filter_map(|value| value.valid.as_deref()).collect();
                    match valid.as_slice() {
                        [] => updates(writer)?,
                        [valid] => writer.guarded(valid, updates)?,
                        several => writer.guarded(&format!("({})", several.join(" && ")), updates)?,
                    }
                }
                Ok(())
            };
            match &self.list[of_filter[0]].filter {
                None => body(writer)?,
                Some(filter) => {
                    let condition = writer.eval(filter)?.is_true();
                    writer.guarded(&condition, body)?;
                }
            }
        }
        Ok(())
    }

    /// Appends the statements that make an aggregate's value of its states' words, `word` naming
    /// each; the value.
    pub fn end(&self, writer: &mut RowWriter<'_>, ending: &Ending, word: &dyn Fn(usize) -> String) -> Result<Value> {
        use AggregateFunction::*;
        let state = &self.list[ending.state];
        state.kind.need(writer.params());
        let words = state.places(word);
        let count = match ending.count {
            Some(count) => self.list[count].places(word).remove(0),
            None => "(u64)1".into(),
        };
        let other = |index: usize| self.list[ending.others[index]].places(word).remove(0);
        let mut valid = ending.count.map(|_| format!("({count} != 0)"));
        let native = CType::native(&ending.data_type)
            .ok_or_else(|| Error::Unsupported(format!("type {} is not supported on the device", ending.data_type)))?;
        let mut ctype = native;
        let mut bounds = None;
        let code = match (ending.function, state.kind) {
            (Count | RegrCount, _) => format!("({}){}", native.local(), words[0]),
            (ApproxDistinct, _) => format!("sketch_count({})", words.join(", ")),
            (Sum, Kind::Sum64) if matches!(ending.data_type, DataType::Interval(_)) => {
                writer.params().need(Section::IntervalValue);
                format!("interval_of({}, {}, {})", words[0], other(0), other(1))
            }
            (Sum | Min | Max | AnyValue, Kind::Sum128 | Kind::Min128 | Kind::Max128) => {
                if native == CType::I256 {
                    (ctype, bounds) = (CType::I128, ending.bounds);
                }
                format!("i128_make({}, {})", words[0], words[1])
            }
            (Sum | Min | Max | AnyValue, Kind::Sum256 | Kind::Min256 | Kind::Max256) => {
                format!("i256_make({})", words.join(", "))
            }
            (Sum, Kind::SumF64) => format!("BITS_F64({})", words[0]),
            (Sum, _) => format!("({}){}", native.local(), words[0]),
            (Min | Max | AnyValue, _) => {
                (ctype, bounds) = match &ending.argument {
                    // A decimal that was narrow stays so.
                    Some((DataType::Decimal128(_, _) | DataType::Decimal256(_, _), ctype)) => (*ctype, ending.bounds),
                    _ => (native, ending.bounds),
                };
                let from = ending.argument.as_ref().map_or(ctype, |(_, ctype)| *ctype);
                unordered(&words[0], from)
            }
            (Avg, Kind::SumF64) => format!("(BITS_F64({}) / (f64){count})", words[0]),
            (Avg, Kind::Sum64) if matches!(ending.data_type, DataType::Duration(_)) => {
                format!("({count} ? (i64){} / (i64){count} : 0)", words[0])
            }
            (Avg, Kind::Sum256) => self.wide_average(writer, ending, &words, &count)?,
            (Avg, kind) => {
                let value = self.average(writer, ending, kind, &words, &count)?;
                if native == CType::I128 { value } else { format!("(({}){value}.lo)", native.local()) }
            }
            (BoolAnd | BoolOr, _) => format!("(i32)({} & 1)", words[0]),
            (BitAnd | BitOr | BitXor, _) => format!("({}){}", native.local(), words[0]),
            (VarPop | VarSamp | StddevPop | StddevSamp, kind) => {
                let sample = matches!(ending.function, VarSamp | StddevSamp);
                let n = if kind == Kind::Welford { words[0].clone() } else { count.clone() };
                valid = Some(format!("({n} > {})", i32::from(sample)));
                let distances = match kind {
                    Kind::Welford => format!("BITS_F64({})", words[2]),
                    _ => format!(
                        "twofold_distances({n}, BITS_F64({}), BITS_F64({}), BITS_F64({}), BITS_F64({}))",
                        words[0], words[1], words[2], words[3]
                    ),
                };
                let divisor = if sample { format!("(f64)({n} - 1)") } else { format!("(f64){n}") };
                // The mean or the sum.
                let lone = format!("BITS_F64({})", words[usize::from(kind == Kind::Welford)]);
                let lone = if self.keyed { format!("({lone} - {lone})") } else { "0.0".into() };
                let variance = format!("({n} > 1 ? {distances} / {divisor} : {lone})");
                match ending.function {
                    StddevPop | StddevSamp => format!("sqrt({variance})"),
                    _ => variance,
                }
            }
            (Median, Kind::Min) => {
                let (least, greatest) = (unordered(&words[0], native), unordered(&other(0), native));
                format!("({count} == 1 ? {least} : ({least} + {greatest}) / 2)")
            }
            // Truncated, as DataFusion's.
            (Median, Kind::Sum64) => format!("(({})((i64){} / (i64)({count} ? {count} : 1)))", native.local(), words[0]),
            (Median, Kind::Sum256) => {
                writer.params().need(Section::I256Div);
                format!("i256_div(i256_make({}), i256_of_u64({count} == 2 ? 2 : 1))", words.join(", "))
            }
            (Median, _) => format!("i192_median({}, {}, {}, {count})", words[0], words[1], words[2]),
            (PercentileCont, _) => {
                let from = ending.argument.as_ref().map_or(native, |(_, ctype)| *ctype);
                let (least, greatest) = (unordered(&words[0], from), unordered(&other(0), from));
                let (number, share) = (unordered(&other(1), CType::I64), unordered(&other(2), CType::F64));
                writer.params().need(Section::Float);
                format!("({})percentile((f64){least}, (f64){greatest}, {number}, {share})", native.local())
            }
            (function, _) => {
                let (code, validity) = statistic(function, &words, &count)?;
                valid = Some(validity);
                code
            }
        };
        let value = Value { data_type: ending.data_type.clone(), ctype, code, valid, bounds };
        let value = if ending.is_in_order() { writer.out_of_order(value, &ending.data_type) } else { value };
        Ok(writer.store(value))
    }

    /// AVG of decimals: the sum, scaled up with a check, divided and truncated, and checked again.
    fn average(&self, writer: &mut RowWriter<'_>, ending: &Ending, kind: Kind, words: &[String], count: &str) -> Result<String> {
        let (scale, precision) = ending.average()?;
        let bits = match kind {
            Kind::Sum64 => 64,
            Kind::Sum128 => 128,
            _ => 256,
        };
        let limit = 10i128.pow(precision.into());
        writer.params().need(Section::I128Div);
        let sign = format!("(u64)((i64){} >> 63)", words[words.len() - 1]);
        let word = |index: usize| words.get(index).unwrap_or(&sign);
        let error = writer.params().error();
        let result = writer.local(CType::I128, "i128_of(0)");
        writer.push(&format!(
            "if ({count} && decimal_average({}, {}, {}, {scale}u, {count}, {bits}u, i128_make({:#x}UL, {:#x}UL), &{result})) A_MIN64({error}, (u64)row);",
            word(0),
            word(1),
            word(2),
            limit as u64,
            (limit >> 64) as u64,
        ));
        Ok(result)
    }

    /// [`average`](Self::average) of decimals of 256 bits, whose sum has no more.
    fn wide_average(&self, writer: &mut RowWriter<'_>, ending: &Ending, words: &[String], count: &str) -> Result<String> {
        let (scale, precision) = ending.average()?;
        let limit = i256::from_i128(10).checked_pow(precision.into());
        let limit = limit.ok_or_else(|| Error::Internal(format!("AVG of {precision} digits")))?;
        writer.params().need(Section::I256Div);
        let error = writer.params().error();
        let result = writer.local(CType::I256, CType::I256.zero());
        writer.push(&format!(
            "if ({count} && wide_average(i256_make({}), {scale}u, {count}, {}, &{result})) A_MIN64({error}, (u64)row);",
            words.join(", "),
            wide_literal(limit),
        ));
        Ok(result)
    }
}

/// A value as so many words, the lowest first.
fn words(value: &Value, count: usize) -> Vec<String> {
    let code = &value.code;
    let mut words: Vec<String> = match value.ctype {
        CType::I256 => (0..4).map(|word| format!("{code}.w[{word}]")).collect(),
        CType::I128 => vec![format!("{code}.lo"), format!("{code}.hi")],
        CType::U64 => vec![code.clone()],
        _ => vec![format!("(u64)(i64){code}")],
    };
    let sign = match words.last() {
        Some(highest) if value.ctype.is_signed() => format!("(u64)((i64){highest} >> 63)"),
        _ => "(u64)0".into(),
    };
    words.resize(count, sign);
    words
}

/// Statements that assign a value of 256 bits to its words.
fn assigned(to: &[String], value: &str) -> String {
    to.iter().enumerate().map(|(word, to)| format!("{to} = {value}.w[{word}]; ")).collect()
}

/// Precision and scale.
fn decimal(data_type: &DataType) -> Result<(u8, i8)> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => Ok((*precision, *scale)),
        other => Err(Error::Internal(format!("{other} is not a decimal"))),
    }
}

/// The state of a function over an argument.
fn kind_of(function: AggregateFunction, aggregate: &Aggregate, value: &Value, usage: Use) -> Result<Kind> {
    use AggregateFunction::*;
    let refuse = || Err(Error::Unsupported(format!("{function:?}({}) is not supported on the device", value.data_type)));
    let kind = match (function, value.ctype) {
        (Count, _) => Kind::Count,
        // Of a register's rank: the groups of values have them.
        (ApproxDistinct, CType::U8) => Kind::Ranks,
        (Sum, CType::F32 | CType::F64) => Kind::SumF64,
        (Sum, CType::Bool | CType::Str) => return refuse(),
        (Sum, _) => match CType::native(&aggregate.data_type) {
            Some(CType::I256) => Kind::Sum256,
            Some(CType::I128) => Kind::Sum128,
            Some(ctype) if ctype.is_integer() => Kind::Sum64,
            Some(CType::F64) => Kind::SumF64,
            _ => return refuse(),
        },
        (Min | Max | AnyValue, ctype) => best_of(function, ctype, usage),
        (Avg, _) => match (&value.data_type, &aggregate.data_type) {
            (DataType::Decimal256(_, _), DataType::Decimal256(_, _)) => Kind::Sum256,
            (DataType::Decimal32(precision, _) | DataType::Decimal64(precision, _) | DataType::Decimal128(precision, _), _) => {
                // DataFusion sums in a type of 13 more digits.
                let least = if matches!(value.data_type, DataType::Decimal128(_, _)) { 38 } else { 0 };
                match (precision + 13).max(least) {
                    ..=18 => Kind::Sum64,
                    19..=38 => Kind::Sum128,
                    _ => Kind::Sum192,
                }
            }
            (DataType::Duration(_), DataType::Duration(_)) => Kind::Sum64,
            (_, DataType::Float64) if !value.ctype.is_wide() && !matches!(value.ctype, CType::Bool | CType::Str) => Kind::SumF64,
            _ => return refuse(),
        },
        (BoolAnd, CType::Bool) => Kind::And,
        (BoolOr, CType::Bool) => Kind::Or,
        (BitAnd, ctype) if ctype.is_integer() && !ctype.is_wide() => Kind::And,
        (BitOr, ctype) if ctype.is_integer() && !ctype.is_wide() => Kind::Or,
        (BitXor, ctype) if ctype.is_integer() && !ctype.is_wide() => Kind::Xor,
        (BitAnd | BitOr | BitXor, _) if value.data_type == DataType::Null => Kind::Or,
        (VarPop | VarSamp | StddevPop | StddevSamp, CType::F64 | CType::F32) => {
            if usage.atomic {
                Kind::Moments
            } else {
                Kind::Welford
            }
        }
        (Median, _) if CType::native(&aggregate.data_type) == Some(CType::I256) => Kind::Sum256,
        (Median, CType::I128) => Kind::Sum192,
        (Median, ctype) if ctype.is_integer() && CType::native(&aggregate.data_type) == Some(CType::I128) => Kind::Sum192,
        // Two decimals of 18 digits.
        (Median, ctype) if ctype.is_integer() => Kind::Sum64,
        (CovarPop | CovarSamp | Corr, CType::F32 | CType::F64)
        | (RegrSlope | RegrIntercept | RegrR2 | RegrAvgX | RegrAvgY | RegrSxx | RegrSyy | RegrSxy, CType::F32 | CType::F64)
            if aggregate.arguments.len() == 2 =>
        {
            Kind::CoMoments
        }
        _ => return refuse(),
    };
    Ok(kind)
}

/// The state of the least value, or of the greatest, which is any where all are the same.
fn best_of(function: AggregateFunction, ctype: CType, usage: Use) -> Kind {
    let [least, greatest] = match ctype {
        CType::Str => [Kind::BestMin, Kind::BestMax],
        CType::I128 | CType::I256 if usage.atomic => [Kind::BestMin, Kind::BestMax],
        CType::I256 => [Kind::Min256, Kind::Max256],
        CType::I128 => [Kind::Min128, Kind::Max128],
        _ => [Kind::Min, Kind::Max],
    };
    if function == AggregateFunction::Min { least } else { greatest }
}

fn is_interval(value: &Value) -> bool {
    matches!(value.data_type, DataType::Interval(_))
}

/// A field of the one argument, an interval.
fn field_of(arguments: &[Expr], field: IntervalField, data_type: DataType) -> Vec<Expr> {
    vec![Expr::Call { function: Function::IntervalField(field), arguments: arguments.to_vec(), data_type }]
}

/// A statistic of two arguments, and C that tells whether there is one.
fn statistic(function: AggregateFunction, words: &[String], n: &str) -> Result<(String, String)> {
    use AggregateFunction::*;
    let float = |index: usize| format!("BITS_F64({})", words[index]);
    // The error of an infinity is a NaN.
    let sum = |index: usize| {
        let (high, low) = (float(index), float(index + 1));
        format!("({high} - {high} != 0.0 ? {high} : {high} + {low})")
    };
    let moments = |indices: [usize; 3]| {
        let words: Vec<String> = indices.into_iter().flat_map(|index| [float(index), float(index + 1)]).collect();
        words.join(", ")
    };
    // Words: sums of y, x, y², x² and x·y.
    let mean = |index: usize| format!("({} / (f64){n})", sum(index));
    let syy = format!("twofold_distances({n}, {}, {}, {}, {})", float(0), float(1), float(4), float(5));
    let sxx = format!("twofold_distances({n}, {}, {}, {}, {})", float(2), float(3), float(6), float(7));
    let sxy = format!("twofold_products({n}, {})", moments([0, 2, 8]));
    let some = format!("({n} != 0)");
    let line = format!("({n} > 1 && {sxx} != 0.0)");
    Ok(match function {
        CovarPop => (format!("({sxy} / (f64){n})"), some),
        CovarSamp => (format!("({sxy} / (f64)({n} - 1))"), format!("({n} > 1)")),
        // NaN in both is NaN, in one of them NULL, as in DataFusion.
        Corr => (
            format!("({0} != {0} ? {0} : {sxy} / sqrt({sxx}) / sqrt({syy}))", mean(0)),
            format!(
                "({n} != 0 && ({0} != {0} ? {1} != {1} : {n} > 1 && {1} == {1} && {sxx} != 0.0 && {syy} != 0.0))",
                mean(0),
                mean(2)
            ),
        ),
        RegrSlope => (format!("({sxy} / {sxx})"), line),
        RegrIntercept => (format!("({} - {sxy} / {sxx} * {})", mean(0), mean(2)), line),
        RegrR2 => (format!("({sxy} * {sxy} / ({sxx} * {syy}))"), format!("({n} > 1 && {sxx} != 0.0 && {syy} != 0.0)")),
        RegrAvgX => (mean(2), some),
        RegrAvgY => (mean(0), some),
        RegrSxx => (sxx, some),
        RegrSyy => (syy, some),
        RegrSxy => (sxy, some),
        other => return Err(Error::Internal(format!("{other:?} has one argument"))),
    })
}

/// A value as u64 in its order.
fn ordered(value: &Value) -> String {
    const SIGN: &str = "(u64)0x8000000000000000UL";
    let code = &value.code;
    match value.ctype {
        CType::F64 => format!("((u64)f64_key({code}) ^ {SIGN})"),
        CType::F32 => format!("((u64)(i64)f32_key({code}) ^ {SIGN})"),
        ctype if ctype.is_signed() => format!("((u64)(i64){code} ^ {SIGN})"),
        _ => format!("(u64){code}"),
    }
}

/// The way back from [`ordered`].
fn unordered(word: &str, ctype: CType) -> String {
    let signed = format!("(i64)({word} ^ (u64)0x8000000000000000UL)");
    match ctype {
        CType::F64 => format!("f64_unkey({signed})"),
        CType::F32 => format!("f32_unkey((i32){signed})"),
        // No value at all leaves ones.
        CType::Bool => format!("(i32)({word} & 1)"),
        ctype if ctype.is_signed() => format!("({}){signed}", ctype.local()),
        ctype => format!("({}){word}", ctype.local()),
    }
}

/// Groups indices by an attribute, in the order in which it first appears.
fn classes<'a, T: PartialEq + 'a>(indices: &[usize], of: impl Fn(usize) -> &'a T) -> Vec<Vec<usize>> {
    let mut classes: Vec<Vec<usize>> = Vec::new();
    for index in indices {
        match classes.iter_mut().find(|class| of(class[0]) == of(*index)) {
            Some(class) => class.push(*index),
            None => classes.push(vec![*index]),
        }
    }
    classes
}
