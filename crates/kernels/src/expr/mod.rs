// SPDX-License-Identifier: Apache-2.0
//! Typed expressions over the columns of a source, with SQL's meaning.
//!
//! The planner lowers DataFusion's expressions to these, and `codegen` translates them to C. Types
//! are Arrow's logical types. Operands have the types of DataFusion's coercion.

mod aggregate;

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema, i256};

use crate::function::Function;
use crate::{Error, Result};

pub use aggregate::{
    Aggregate, AggregateFamily, AggregateFunction, AggregateRow, ArgumentRule, BitOperator, DistinctRule, RankRule, SqlAggregate,
};

/// The direct operands of an expression, as shared or as mutable references. `$iter` borrows the
/// elements of a list, `$option` the content of an option, and `$arc` that of an `Arc`.
macro_rules! operands {
    ($expr:expr, $iter:ident, $option:ident, $arc:expr) => {
        match $expr {
            Expr::Column(_) | Expr::Literal(_) => Vec::new(),
            Expr::Not(operand)
            | Expr::IsNull(operand)
            | Expr::IsTruth(operand, _)
            | Expr::Negate(operand)
            | Expr::TotalOrder(operand) => vec![$arc(operand)],
            Expr::Cast { expr, .. } | Expr::InList { expr, .. } => vec![$arc(expr)],
            Expr::And(operands) | Expr::Or(operands) | Expr::Coalesce(operands) => operands.$iter().collect(),
            Expr::Call { arguments, .. } => arguments.$iter().collect(),
            Expr::Arithmetic { left, right, .. } | Expr::Compare { left, right, .. } => vec![$arc(left), $arc(right)],
            Expr::Like { expr, pattern, .. } => vec![$arc(expr), $arc(pattern)],
            Expr::Case { branches, otherwise, .. } => {
                let values = branches.$iter().flat_map(|(condition, value)| [condition, value]);
                values.chain(otherwise.$option().map($arc)).collect()
            }
        }
    };
}

/// An expression over a row. Operands are shared, so that a clone is cheap at any depth.
#[derive(Debug, Clone, PartialEq)]
pub enum Expr {
    /// A column of the source, by position.
    Column(usize),
    /// A constant. It is a kernel argument, so another value needs no other kernel.
    Literal(Literal),
    /// `NOT`.
    Not(Arc<Expr>),
    /// `AND` of all, three-valued; at least one operand.
    And(Vec<Expr>),
    /// `OR` of all, three-valued; at least one operand.
    Or(Vec<Expr>),
    /// `IS NULL`.
    IsNull(Arc<Expr>),
    /// `IS TRUE` (`Some(true)`), `IS FALSE` (`Some(false)`), `IS UNKNOWN` (`None`). Never NULL.
    IsTruth(Arc<Expr>, Option<bool>),
    /// Arithmetic and bit operations.
    Arithmetic {
        /// The operation.
        op: ArithmeticOp,
        /// Right operand. It is compared first, for chains of operations grow to the left.
        right: Arc<Expr>,
        /// Left operand.
        left: Arc<Expr>,
        /// Type of the result as DataFusion derives it, significant for decimals and temporal
        /// types.
        data_type: DataType,
    },
    /// Unary minus; it wraps for integers, as in DataFusion.
    Negate(Arc<Expr>),
    /// A float as an integer that sorts by IEEE 754's totalOrder, to tell -0.0 from 0.0. Other
    /// types pass unchanged.
    TotalOrder(Arc<Expr>),
    /// Comparison of two operands of one type.
    Compare {
        /// The operation.
        op: CompareOp,
        /// Left operand.
        left: Arc<Expr>,
        /// Right operand.
        right: Arc<Expr>,
    },
    /// `expr [NOT] IN (literals)`, with SQL's NULL rules. Literals have the operand's type.
    InList {
        /// The operand.
        expr: Arc<Expr>,
        /// The list; may hold NULLs.
        list: Vec<Literal>,
        /// `NOT IN`.
        negated: bool,
    },
    /// `expr LIKE pattern`, or `ILIKE`, with backslash as the escape; both are strings of one type.
    Like {
        /// `ILIKE`, which ignores case.
        ignores_case: bool,
        /// The operand.
        expr: Arc<Expr>,
        /// The pattern.
        pattern: Arc<Expr>,
    },
    /// Searched `CASE`; branches are evaluated only for rows that reach them.
    Case {
        /// Conditions and values.
        branches: Vec<(Expr, Expr)>,
        /// `ELSE`; NULL if absent.
        otherwise: Option<Arc<Expr>>,
        /// Type of the result.
        data_type: DataType,
    },
    /// The first operand other than NULL; later ones are evaluated only where earlier ones are
    /// NULL.
    Coalesce(Vec<Expr>),
    /// A call of a scalar function, which evaluates all arguments.
    Call {
        /// The function.
        function: Function,
        /// Its arguments, with the types of DataFusion's coercion.
        arguments: Vec<Expr>,
        /// Type of the result as DataFusion derives it; for a `Dictionary` its value type.
        data_type: DataType,
    },
    /// `CAST` or `TRY_CAST`: a failing row fails the query, or is NULL.
    Cast {
        /// The operand.
        expr: Arc<Expr>,
        /// Target type, never a `Dictionary`; see [`Expr::cast`].
        to: DataType,
        /// `CAST` if true, else `TRY_CAST`.
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

/// Comparisons. Floats compare in IEEE 754's totalOrder, except that zeros are equal.
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
    /// Logical type; for a `Dictionary` its value type.
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
    /// Integer, date, time, timestamp, duration or unscaled decimal.
    Int(i128),
    /// Unscaled decimal beyond 128 bits.
    Wide(Box<i256>),
    /// Float; `Float32` values are exact in `f64`.
    Float(f64),
    /// String or binary.
    Bytes(Vec<u8>),
    /// Elements of a list, in outputs of projections only.
    List(ArrayRef),
}

/// Floats compare by bits: -0.0 differs from 0.0, and a NaN equals itself.
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

impl Expr {
    /// `CAST` (`checked`) or `TRY_CAST` of this expression, of SQL type `from`, to any type. A cast
    /// to a dictionary gives its values; the download encodes them.
    ///
    /// # Errors
    /// `Unsupported` if arrow-cast builds no dictionary of the type.
    pub fn cast(self, from: &DataType, to: &DataType, checked: bool) -> Result<Expr> {
        let (source, target) = (value_type(from), value_type(to));
        let encodes = matches!(to, DataType::Dictionary(_, _)) && !matches!(from, DataType::Dictionary(_, _) | DataType::Null);
        // arrow-cast builds dictionaries of dates and times from integers, to which it casts first.
        let integer = match target {
            _ if !encodes => None,
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
        let step = |expr, to: &DataType| Expr::Cast { expr: Arc::new(expr), to: to.clone(), checked };
        Ok(match integer {
            Some(integer) if integer != *source => step(step(self, &integer), target),
            _ => step(self, target),
        })
    }

    /// Logical type of the expression over a source's logical schema. A dictionary column evaluates
    /// to its value type, except as a plain column.
    #[recursive::recursive]
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

    /// Appends the columns that the expression reads, without duplicates.
    #[recursive::recursive]
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

    /// The expression with each column replaced by the result of `to` for its position.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn over(&self, to: &dyn Fn(usize) -> Result<Expr>) -> Result<Expr> {
        let mut expr = self.clone();
        expr.replace_columns(to)?;
        Ok(expr)
    }

    #[recursive::recursive]
    fn replace_columns(&mut self, to: &dyn Fn(usize) -> Result<Expr>) -> Result<()> {
        if let Expr::Column(index) = self {
            *self = to(*index)?;
            return Ok(());
        }
        self.operands_mut().into_iter().try_for_each(|operand| operand.replace_columns(to))
    }

    /// The direct operands.
    pub fn operands(&self) -> Vec<&Expr> {
        operands!(self, iter, as_ref, Arc::as_ref)
    }

    /// The direct operands, each with a copy of its own if it is shared.
    fn operands_mut(&mut self) -> Vec<&mut Expr> {
        operands!(self, iter_mut, as_mut, Arc::make_mut)
    }
}

/// The value type of a dictionary; other types unchanged.
pub fn value_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, value) => value,
        other => other,
    }
}
