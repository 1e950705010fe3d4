// SPDX-License-Identifier: Apache-2.0
//! Typed expressions over the columns of a source: what pipelines compute, with SQL's meaning.
//!
//! The planner lowers DataFusion's expressions to these; the generator turns them into C. Types are
//! Arrow's logical types; operands of arithmetic and comparison already have the types that
//! DataFusion's coercion gave them.

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema, i256};

use crate::function::Function;
use crate::{Error, Result};

/// An expression of a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// Column of the source, by position.
    Column(usize),
    /// A constant. Becomes a kernel argument: another value compiles nothing.
    Literal(Literal),
    /// `NOT`.
    Not(Box<Expr>),
    /// `AND` of all, three-valued; at least one operand.
    And(Vec<Expr>),
    /// `OR` of all, three-valued; at least one operand.
    Or(Vec<Expr>),
    /// `IS NULL`.
    IsNull(Box<Expr>),
    /// `IS TRUE` (`Some(true)`), `IS FALSE` (`Some(false)`), `IS UNKNOWN` (`None`). Never NULL.
    IsTruth(Box<Expr>, Option<bool>),
    /// Arithmetic and bit operations. Operands as DataFusion coerces them.
    Arithmetic {
        /// The operation.
        op: ArithmeticOp,
        /// Left operand.
        left: Box<Expr>,
        /// Right operand.
        right: Box<Expr>,
        /// Type of the result, as DataFusion derives it (matters for decimals and temporal types).
        data_type: DataType,
    },
    /// Unary minus, wrapping for integers as DataFusion's.
    Negate(Box<Expr>),
    /// A float as the integer that has its place in IEEE 754's totalOrder, where -0.0 lies below 0.0 and
    /// NaNs lie by their bits; anything else as it is. For comparisons that do not fold the zeros.
    TotalOrder(Box<Expr>),
    /// Comparison of two operands of one type.
    Compare {
        /// The operation.
        op: CompareOp,
        /// Left operand.
        left: Box<Expr>,
        /// Right operand.
        right: Box<Expr>,
    },
    /// `expr [NOT] IN (literals)`, with SQL's NULL rules. Literals have the operand's type.
    InList {
        /// The operand.
        expr: Box<Expr>,
        /// The list; may hold NULLs.
        list: Vec<Literal>,
        /// `NOT IN`.
        negated: bool,
    },
    /// `expr LIKE pattern`, or `ILIKE`, with backslash as the escape; operands are text of one type.
    Like {
        /// `ILIKE`: characters that differ in case only are equal.
        ignores_case: bool,
        /// The operand.
        expr: Box<Expr>,
        /// The pattern.
        pattern: Box<Expr>,
    },
    /// Searched `CASE`; branches are evaluated only for rows that reach them.
    Case {
        /// Pairs of condition and value.
        branches: Vec<(Expr, Expr)>,
        /// `ELSE`; NULL where absent.
        otherwise: Option<Box<Expr>>,
        /// Type of the result.
        data_type: DataType,
    },
    /// First operand that is not NULL; later ones are evaluated only where earlier ones are NULL.
    Coalesce(Vec<Expr>),
    /// A scalar function, which evaluates all of its arguments.
    Call {
        /// Which one.
        function: Function,
        /// Its arguments, coerced as DataFusion coerces them.
        arguments: Vec<Expr>,
        /// Type of the result as DataFusion derives it, `Dictionary` never (its value type instead).
        data_type: DataType,
    },
    /// `CAST` (`checked`: a failing row fails the query) or `TRY_CAST` (it gives NULL).
    Cast {
        /// The operand.
        expr: Box<Expr>,
        /// Target type, `Dictionary` never: see [`Expr::cast`].
        to: DataType,
        /// `CAST` where true, `TRY_CAST` where false.
        checked: bool,
    },
}

/// Arithmetic and bit operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum ArithmeticOp {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    BitAnd,
    BitOr,
    BitXor,
    ShiftLeft,
    ShiftRight,
}

/// Comparisons. Floats compare in IEEE 754's totalOrder, but for the zeros, which are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum CompareOp {
    Eq,
    NotEq,
    Lt,
    LtEq,
    Gt,
    GtEq,
    IsDistinctFrom,
    IsNotDistinctFrom,
}

/// A typed constant.
#[derive(Debug, Clone, PartialEq)]
pub struct Literal {
    /// Logical type, `Dictionary` never (its value type instead).
    pub data_type: DataType,
    /// The value.
    pub value: LiteralValue,
}

/// Value of a [`Literal`].
#[derive(Debug, Clone)]
pub enum LiteralValue {
    /// NULL of the literal's type.
    Null,
    /// Boolean.
    Bool(bool),
    /// Integers, dates, times, timestamps, durations, unscaled decimals.
    Int(i128),
    /// Unscaled decimals beyond 128 bits.
    Wide(Box<i256>),
    /// Floats; `Float32` values are exact in `f64`.
    Float(f64),
    /// Strings and binary.
    Bytes(Vec<u8>),
    /// The elements of a list, which only outputs of projections are.
    List(ArrayRef),
}

/// Floats by their bits: -0.0 is another literal than 0.0, and a NaN is itself.
impl PartialEq for LiteralValue {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Bool(left), Self::Bool(right)) => left == right,
            (Self::Int(left), Self::Int(right)) => left == right,
            (Self::Wide(left), Self::Wide(right)) => left == right,
            (Self::Float(left), Self::Float(right)) => left.to_bits() == right.to_bits(),
            (Self::Bytes(left), Self::Bytes(right)) => left == right,
            (Self::List(left), Self::List(right)) => left == right,
            _ => false,
        }
    }
}

/// Aggregate functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum AggregateFunction {
    Count,
    Sum,
    Min,
    Max,
    Avg,
    BoolAnd,
    BoolOr,
    BitAnd,
    BitOr,
    BitXor,
    VarPop,
    VarSamp,
    StddevPop,
    StddevSamp,
    /// The value of a group's only row, or of any.
    AnyValue,
    /// The mean of the one or two values that are left in the middle.
    Median,
    /// Out of the one or two values around the place that are left, how many there were, and the share of them that lies
    /// below the place, in Float64: its three arguments.
    PercentileCont,
    /// Of y and x, in this order, as the others that follow.
    CovarPop,
    CovarSamp,
    Corr,
    RegrSlope,
    RegrIntercept,
    RegrCount,
    RegrR2,
    RegrAvgX,
    RegrAvgY,
    RegrSxx,
    RegrSyy,
    RegrSxy,
    /// How many different values there are, as a HyperLogLog sketch of 2^14 registers tells.
    ApproxDistinct,
}

/// One aggregate of a query.
#[derive(Debug, Clone, PartialEq)]
pub struct Aggregate {
    /// The function.
    pub function: AggregateFunction,
    /// Its arguments, coerced as DataFusion coerces them; none for `COUNT(*)`. Rows with a NULL among them do not count.
    pub arguments: Vec<Expr>,
    /// `FILTER (WHERE …)`.
    pub filter: Option<Expr>,
    /// `DISTINCT`.
    pub distinct: bool,
    /// Type of the result as DataFusion derives it.
    pub data_type: DataType,
}

impl Aggregate {
    /// The same without a DISTINCT that changes nothing.
    pub(crate) fn plain(mut self) -> Aggregate {
        use AggregateFunction::*;
        let same = matches!(self.function, Min | Max | AnyValue | BoolAnd | BoolOr | BitAnd | BitOr);
        self.distinct &= !same && !self.arguments.is_empty();
        self
    }

    /// Whether rows are brought together by their value before the aggregate sees them.
    pub fn groups_values(&self) -> bool {
        self.distinct || self.function == AggregateFunction::ApproxDistinct
    }
}

impl Expr {
    /// `CAST` (`checked`) or `TRY_CAST` of this expression, in SQL of type `from`, to any type. What is cast to
    /// a dictionary becomes the dictionary's values: codes are for those who download them.
    ///
    /// # Errors
    /// `Unsupported` where arrow-cast packs no dictionary of the type.
    pub fn cast(self, from: &DataType, to: &DataType, checked: bool) -> Result<Expr> {
        let (source, target) = (value_type(from), value_type(to));
        let packs = matches!(to, DataType::Dictionary(_, _)) && !matches!(from, DataType::Dictionary(_, _) | DataType::Null);
        // arrow-cast packs dates and times as integers, and makes those of whatever comes.
        let integer = match target {
            _ if !packs => None,
            DataType::Date32 | DataType::Time32(_) => Some(DataType::Int32),
            DataType::Date64 | DataType::Time64(_) | DataType::Timestamp(_, _) => Some(DataType::Int64),
            DataType::Boolean | DataType::Duration(_) | DataType::Null => {
                return Err(Error::Unsupported(format!("CAST from {from} to {to} does not exist")));
            }
            _ => None,
        };
        if source == target {
            return Ok(self);
        }
        let step = |expr, to: &DataType| Expr::Cast { expr: Box::new(expr), to: to.clone(), checked };
        Ok(match integer {
            Some(integer) if integer != *source => step(step(self, &integer), target),
            _ => step(self, target),
        })
    }

    /// Logical type of the expression over a source's logical schema. Dictionary columns evaluate to
    /// their value type except as plain columns.
    pub fn data_type(&self, schema: &Schema) -> Result<DataType> {
        Ok(match self {
            Expr::Column(index) => schema
                .fields()
                .get(*index)
                .ok_or_else(|| Error::Internal(format!("column {index} of {} columns", schema.fields().len())))?
                .data_type()
                .clone(),
            Expr::Literal(literal) => literal.data_type.clone(),
            Expr::Not(_)
            | Expr::And(_)
            | Expr::Or(_)
            | Expr::IsNull(_)
            | Expr::IsTruth(..)
            | Expr::Compare { .. }
            | Expr::InList { .. }
            | Expr::Like { .. } => DataType::Boolean,
            Expr::Arithmetic { data_type, .. } | Expr::Case { data_type, .. } | Expr::Call { data_type, .. } => data_type.clone(),
            Expr::Negate(operand) => operand.data_type(schema)?,
            Expr::TotalOrder(operand) => match value_type(&operand.data_type(schema)?) {
                DataType::Float32 => DataType::Int32,
                DataType::Float64 => DataType::Int64,
                other => other.clone(),
            },
            Expr::Coalesce(operands) => match operands.first() {
                Some(first) => first.data_type(schema)?,
                None => DataType::Null,
            },
            Expr::Cast { to, .. } => to.clone(),
        })
    }

    /// Appends the columns that the expression reads, each once.
    pub fn columns(&self, columns: &mut Vec<usize>) {
        if let Expr::Column(index) = self
            && !columns.contains(index)
        {
            columns.push(*index);
        }
        for operand in self.operands() {
            operand.columns(columns);
        }
    }

    /// The expression over other columns: each column becomes what `to` gives for its position.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn over(&self, to: &dyn Fn(usize) -> Result<Expr>) -> Result<Expr> {
        let mut expr = self.clone();
        expr.replace_columns(to)?;
        Ok(expr)
    }

    fn replace_columns(&mut self, to: &dyn Fn(usize) -> Result<Expr>) -> Result<()> {
        if let Expr::Column(index) = self {
            *self = to(*index)?;
            return Ok(());
        }
        self.operands_mut().into_iter().try_for_each(|operand| operand.replace_columns(to))
    }

    fn operands_mut(&mut self) -> Vec<&mut Expr> {
        match self {
            Expr::Column(_) | Expr::Literal(_) => Vec::new(),
            Expr::Not(operand)
            | Expr::IsNull(operand)
            | Expr::IsTruth(operand, _)
            | Expr::Negate(operand)
            | Expr::TotalOrder(operand) => vec![operand],
            Expr::Cast { expr, .. } | Expr::InList { expr, .. } => vec![expr],
            Expr::And(operands) | Expr::Or(operands) | Expr::Coalesce(operands) => operands.iter_mut().collect(),
            Expr::Arithmetic { left, right, .. } | Expr::Compare { left, right, .. } => vec![left, right],
            Expr::Like { expr, pattern, .. } => vec![expr, pattern],
            Expr::Call { arguments, .. } => arguments.iter_mut().collect(),
            Expr::Case { branches, otherwise, .. } => {
                let values = branches.iter_mut().flat_map(|(condition, value)| [condition, value]);
                values.chain(otherwise.as_deref_mut()).collect()
            }
        }
    }

    /// The direct operands.
    pub fn operands(&self) -> Vec<&Expr> {
        match self {
            Expr::Column(_) | Expr::Literal(_) => Vec::new(),
            Expr::Not(operand)
            | Expr::IsNull(operand)
            | Expr::IsTruth(operand, _)
            | Expr::Negate(operand)
            | Expr::TotalOrder(operand) => vec![operand],
            Expr::Cast { expr, .. } | Expr::InList { expr, .. } => vec![expr],
            Expr::And(operands) | Expr::Or(operands) | Expr::Coalesce(operands) => operands.iter().collect(),
            Expr::Call { arguments, .. } => arguments.iter().collect(),
            Expr::Arithmetic { left, right, .. } | Expr::Compare { left, right, .. } => vec![left, right],
            Expr::Like { expr, pattern, .. } => vec![expr, pattern],
            Expr::Case { branches, otherwise, .. } => {
                let values = branches.iter().flat_map(|(condition, value)| [condition, value]);
                values.chain(otherwise.as_deref()).collect()
            }
        }
    }
}

/// The type of a dictionary's values, else the type itself.
pub fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}
