// SPDX-License-Identifier: Apache-2.0
//! Aggregate functions.
//!
//! [`AggregateFunction`] is one table: each variant is declared with its [`AggregateRow`]. A new
//! aggregate is its row and, in a new [family](AggregateFamily), its states in `ops/accumulate`.
//! These derive from the row:
//! - the lookup by SQL name and the meaning of NULLs and `DISTINCT`,
//! - the states and the evaluation of the result (`ops/accumulate`),
//! - the planner's rewrite of window filters and its selection of rows by [rank](RankRule),
//! - the sample that the gates compile (`tests/gates/sample.rs`).

use arrow::datatypes::DataType;

use super::Expr;

/// Facts about an aggregate function.
#[derive(Debug)]
pub struct AggregateRow {
    /// DataFusion's functions that lower to it.
    pub names: &'static [SqlAggregate],
    /// States and evaluation.
    pub family: AggregateFamily,
    /// Effect of `DISTINCT`.
    pub distinct: DistinctRule,
    /// Use of the argument.
    pub argument: ArgumentRule,
}

/// One of DataFusion's aggregate functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SqlAggregate {
    /// Its name.
    pub name: &'static str,
    /// Whether it skips rows with a NULL argument. If so, `FILTER (WHERE p)` of a window moves into
    /// the argument: `CASE WHEN p THEN argument END`.
    pub skips_nulls: bool,
    /// The rows of a group that the planner first selects by their rank in an order; `None` for
    /// functions of all rows.
    pub rank: Option<RankRule>,
}

/// Rows of a group that a function selects by their rank in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RankRule {
    /// `any_value`: the first row; without an order, any row.
    Any,
    /// `first_value`: the first row.
    First,
    /// `last_value`: the last row.
    Last,
    /// `nth_value`: the row at a position, from either end.
    Nth,
    /// `median`: the one or two middle rows, in the order of the argument.
    Median,
    /// `percentile_cont`: the one or two rows around a fraction, in the order of the argument.
    Percentile,
    /// `string_agg`: the first row, to which the strings of all rows are joined.
    Concatenation,
    /// `array_agg`: the first row, in which the values of all rows are a list.
    List,
}

impl SqlAggregate {
    const fn by_rank(self, rule: RankRule) -> SqlAggregate {
        SqlAggregate { rank: Some(rule), ..self }
    }
}

/// Aggregates that share states and the shape of their evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AggregateFamily {
    /// Number of rows.
    Count,
    /// Sum.
    Sum,
    /// Mean.
    Average,
    /// Least or greatest value.
    Extreme {
        /// The greatest.
        greatest: bool,
    },
    /// Any value of a group whose values are all the same.
    AnyValue,
    /// Logical operator over Booleans.
    Boolean(BitOperator),
    /// Bitwise operator over integers.
    Bitwise(BitOperator),
    /// Variance or standard deviation.
    Variance {
        /// Of a sample: divided by n - 1 instead of n.
        sample: bool,
        /// Its square root.
        root: bool,
    },
    /// Statistic of two arguments y and x, by C over their counts and sums.
    ///
    /// - `$n` is the number of pairs, `$mean_y` and `$mean_x` are the means.
    /// - `$syy` and `$sxx` are sums of squared distances from the means, `$sxy` of their products.
    Bivariate {
        /// C of the value.
        value: &'static str,
        /// C of its validity.
        valid: &'static str,
    },
    /// Mean of the one or two middle values, which the planner selects by rank.
    Median,
    /// Interpolation between one or two values, which the planner selects by rank. Arguments: the
    /// value, the number of values, and the `Float64` share below the interpolated one.
    Percentile,
    /// Number of distinct values by a HyperLogLog sketch of 2^14 registers.
    Sketch,
}

/// Nature of an aggregate's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResultNature {
    /// The least or greatest value.
    Extreme,
    /// Another one of the values.
    Picked,
    /// A mean, in the type of the values or a wider one.
    Mean,
    /// An estimate by a sketch.
    Estimate,
    Computed,
}

impl AggregateFamily {
    const fn result(self) -> ResultNature {
        match self {
            AggregateFamily::Extreme { .. } => ResultNature::Extreme,
            AggregateFamily::AnyValue => ResultNature::Picked,
            AggregateFamily::Average => ResultNature::Mean,
            AggregateFamily::Sketch => ResultNature::Estimate,
            AggregateFamily::Count | AggregateFamily::Sum | AggregateFamily::Boolean(_) | AggregateFamily::Bitwise(_) => {
                ResultNature::Computed
            }
            AggregateFamily::Variance { .. } | AggregateFamily::Bivariate { .. } => ResultNature::Computed,
            AggregateFamily::Median | AggregateFamily::Percentile => ResultNature::Computed,
        }
    }

    /// Whether the result is one of the values.
    pub(crate) fn selects_value(self) -> bool {
        match self.result() {
            ResultNature::Extreme | ResultNature::Picked => true,
            ResultNature::Mean | ResultNature::Estimate | ResultNature::Computed => false,
        }
    }

    /// Whether the result is the least or greatest value.
    pub(crate) fn is_extreme(self) -> bool {
        match self.result() {
            ResultNature::Extreme => true,
            ResultNature::Picked | ResultNature::Mean | ResultNature::Estimate | ResultNature::Computed => false,
        }
    }

    /// Whether the states are sketches of distinct values.
    pub fn is_sketch(self) -> bool {
        match self.result() {
            ResultNature::Estimate => true,
            ResultNature::Extreme | ResultNature::Picked | ResultNature::Mean | ResultNature::Computed => false,
        }
    }

    /// Whether a result may overflow its type and fail the query.
    pub fn may_overflow(self, result: &DataType) -> bool {
        match self.result() {
            ResultNature::Mean => result.is_decimal(),
            ResultNature::Extreme | ResultNature::Picked | ResultNature::Estimate | ResultNature::Computed => false,
        }
    }
}

/// Bit operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum BitOperator {
    And,
    Or,
    Xor,
}

/// Effect of `DISTINCT` on an aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DistinctRule {
    /// Each value counts once.
    Applies,
    /// The result is the same.
    NoEffect,
    /// DataFusion ignores it.
    Ignored,
}

/// Use of its argument by an aggregate, which decides how the planner passes lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentRule {
    /// It counts unless it is NULL: any list or constant will do.
    Counted,
    /// It is the result as it is, which may be a list.
    Picked,
    /// The result is computed from it.
    Computed,
}

impl AggregateRow {
    const fn new(names: &'static [SqlAggregate], family: AggregateFamily, distinct: DistinctRule) -> AggregateRow {
        AggregateRow { names, family, distinct, argument: ArgumentRule::Computed }
    }

    /// With another use of the argument.
    const fn argument(self, argument: ArgumentRule) -> AggregateRow {
        AggregateRow { argument, ..self }
    }

    /// A statistic of two arguments.
    const fn bivariate(names: &'static [SqlAggregate], value: &'static str, valid: &'static str) -> AggregateRow {
        AggregateRow::new(names, AggregateFamily::Bivariate { value, valid }, DistinctRule::Ignored)
    }
}

/// A function that skips rows with a NULL argument.
const fn skips_nulls(name: &'static str) -> SqlAggregate {
    SqlAggregate { name, skips_nulls: true, rank: None }
}

/// A function for which NULL arguments are values.
const fn keeps_nulls(name: &'static str) -> SqlAggregate {
    SqlAggregate { name, skips_nulls: false, rank: None }
}

macro_rules! aggregates {
    ($($(#[$doc:meta])* $name:ident = $row:expr;)*) => {
        /// An aggregate function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum AggregateFunction {
            $($(#[$doc])* $name,)*
        }

        impl AggregateFunction {
            /// All functions.
            pub const ALL: &'static [AggregateFunction] = &[$(AggregateFunction::$name),*];

            /// The function's row of the table.
            pub fn row(self) -> &'static AggregateRow {
                match self {
                    $(AggregateFunction::$name => {
                        const ROW: AggregateRow = $row;
                        &ROW
                    })*
                }
            }
        }
    };
}

use AggregateFamily::{AnyValue as Any, Average, Bitwise, Boolean, Extreme, Sketch, Variance};
use DistinctRule::{Applies, Ignored, NoEffect};

/// Validity of statistics that one pair defines.
const SOME: &str = "($n != 0)";
/// Validity of the parameters of a regression line.
const LINE: &str = "($n > 1 && $sxx != 0.0)";

aggregates! {
    /// `count(*)`, `count(value)`.
    Count = AggregateRow::new(&[skips_nulls("count")], AggregateFamily::Count, Applies).argument(ArgumentRule::Counted);
    /// `sum(number)`.
    Sum = AggregateRow::new(&[skips_nulls("sum")], AggregateFamily::Sum, Applies);
    /// `min(value)`.
    Min = AggregateRow::new(&[skips_nulls("min")], Extreme { greatest: false }, NoEffect);
    /// `max(value)`.
    Max = AggregateRow::new(&[skips_nulls("max")], Extreme { greatest: true }, NoEffect);
    /// `avg(number)`.
    Avg = AggregateRow::new(&[skips_nulls("avg")], Average, Applies);
    /// `bool_and(truth)`.
    BoolAnd = AggregateRow::new(&[skips_nulls("bool_and")], Boolean(BitOperator::And), NoEffect);
    /// `bool_or(truth)`.
    BoolOr = AggregateRow::new(&[skips_nulls("bool_or")], Boolean(BitOperator::Or), NoEffect);
    /// `bit_and(integer)`.
    BitAnd = AggregateRow::new(&[skips_nulls("bit_and")], Bitwise(BitOperator::And), NoEffect);
    /// `bit_or(integer)`.
    BitOr = AggregateRow::new(&[skips_nulls("bit_or")], Bitwise(BitOperator::Or), NoEffect);
    /// `bit_xor(integer)`.
    BitXor = AggregateRow::new(&[skips_nulls("bit_xor")], Bitwise(BitOperator::Xor), Applies);
    /// `var_pop(number)`.
    VarPop = AggregateRow::new(&[skips_nulls("var_pop")], Variance { sample: false, root: false }, Applies);
    /// `var(number)`.
    VarSamp = AggregateRow::new(&[skips_nulls("var")], Variance { sample: true, root: false }, Applies);
    /// `stddev_pop(number)`.
    StddevPop = AggregateRow::new(&[skips_nulls("stddev_pop")], Variance { sample: false, root: true }, Applies);
    /// `stddev(number)`.
    StddevSamp = AggregateRow::new(&[skips_nulls("stddev")], Variance { sample: true, root: true }, Applies);
    /// The value of a group's only row, or of any row.
    AnyValue = AggregateRow::new(
        &[
            skips_nulls("any_value").by_rank(RankRule::Any),
            keeps_nulls("first_value").by_rank(RankRule::First),
            keeps_nulls("last_value").by_rank(RankRule::Last),
            keeps_nulls("nth_value").by_rank(RankRule::Nth),
            skips_nulls("string_agg").by_rank(RankRule::Concatenation),
            keeps_nulls("array_agg").by_rank(RankRule::List),
        ],
        Any,
        NoEffect,
    )
    .argument(ArgumentRule::Picked);
    /// `median(number)`.
    Median = AggregateRow::new(&[skips_nulls("median").by_rank(RankRule::Median)], AggregateFamily::Median, Applies);
    /// `percentile_cont(number, share)`.
    PercentileCont = AggregateRow::new(
        &[skips_nulls("percentile_cont").by_rank(RankRule::Percentile)],
        AggregateFamily::Percentile,
        Applies,
    );
    /// `covar_pop(y, x)`.
    CovarPop = AggregateRow::bivariate(&[skips_nulls("covar_pop")], "($sxy / (f64)$n)", SOME);
    /// `covar_samp(y, x)`.
    CovarSamp = AggregateRow::bivariate(&[skips_nulls("covar_samp")], "($sxy / (f64)($n - 1))", "($n > 1)");
    /// `corr(y, x)`. As in DataFusion, NaN in both arguments gives NaN, in one of them NULL.
    Corr = AggregateRow::bivariate(
        &[skips_nulls("corr")],
        "($mean_y != $mean_y ? $mean_y : $sxy / sqrt($sxx) / sqrt($syy))",
        "($n != 0 && ($mean_y != $mean_y ? $mean_x != $mean_x : \
         $n > 1 && $mean_x == $mean_x && $sxx != 0.0 && $syy != 0.0))",
    );
    /// `regr_slope(y, x)`.
    RegrSlope = AggregateRow::bivariate(&[skips_nulls("regr_slope")], "($sxy / $sxx)", LINE);
    /// `regr_intercept(y, x)`.
    RegrIntercept =
        AggregateRow::bivariate(&[skips_nulls("regr_intercept")], "($mean_y - $sxy / $sxx * $mean_x)", LINE);
    /// `regr_count(y, x)`.
    RegrCount = AggregateRow::new(&[skips_nulls("regr_count")], AggregateFamily::Count, Ignored);
    /// `regr_r2(y, x)`.
    RegrR2 = AggregateRow::bivariate(
        &[skips_nulls("regr_r2")],
        "($sxy * $sxy / ($sxx * $syy))",
        "($n > 1 && $sxx != 0.0 && $syy != 0.0)",
    );
    /// `regr_avgx(y, x)`.
    RegrAvgX = AggregateRow::bivariate(&[skips_nulls("regr_avgx")], "$mean_x", SOME);
    /// `regr_avgy(y, x)`.
    RegrAvgY = AggregateRow::bivariate(&[skips_nulls("regr_avgy")], "$mean_y", SOME);
    /// `regr_sxx(y, x)`.
    RegrSxx = AggregateRow::bivariate(&[skips_nulls("regr_sxx")], "$sxx", SOME);
    /// `regr_syy(y, x)`.
    RegrSyy = AggregateRow::bivariate(&[skips_nulls("regr_syy")], "$syy", SOME);
    /// `regr_sxy(y, x)`.
    RegrSxy = AggregateRow::bivariate(&[skips_nulls("regr_sxy")], "$sxy", SOME);
    /// `approx_distinct(value)`.
    ApproxDistinct = AggregateRow::new(&[skips_nulls("approx_distinct")], Sketch, Applies);
}

impl AggregateFunction {
    /// The function that DataFusion's function of this name lowers to, and the entry of the name.
    ///
    /// # Examples
    /// ```
    /// use kernels::expr::AggregateFunction;
    ///
    /// let (function, named) = AggregateFunction::from_sql("first_value").ok_or("no such function")?;
    /// assert_eq!(function, AggregateFunction::AnyValue);
    /// assert!(!named.skips_nulls);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_sql(name: &str) -> Option<(AggregateFunction, SqlAggregate)> {
        let all = AggregateFunction::ALL.iter();
        let mut named = all.flat_map(|function| function.row().names.iter().map(|named| (*function, *named)));
        named.find(|(_, named)| named.name == name)
    }
}

/// One aggregate of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// The function.
    pub function: AggregateFunction,
    /// Its arguments, with the types of DataFusion's coercion; none for `COUNT(*)`. Rows with a
    /// NULL argument do not count.
    pub arguments: Vec<Expr>,
    /// `FILTER (WHERE …)`.
    pub filter: Option<Expr>,
    /// `DISTINCT`.
    pub distinct: bool,
    /// Type of the result as DataFusion derives it.
    pub data_type: DataType,
}

impl Aggregate {
    /// The aggregate without a `DISTINCT` that changes nothing.
    pub(crate) fn plain(mut self) -> Aggregate {
        let applies = match self.function.row().distinct {
            DistinctRule::Applies => true,
            DistinctRule::NoEffect | DistinctRule::Ignored => false,
        };
        self.distinct &= applies && !self.arguments.is_empty();
        self
    }

    /// Whether rows are grouped by value before the aggregate sees them.
    pub fn groups_values(&self) -> bool {
        self.distinct || self.function.row().family.is_sketch()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sql_names_are_unique() {
        let mut names: Vec<&str> =
            AggregateFunction::ALL.iter().flat_map(|function| function.row().names).map(|named| named.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
