// SPDX-License-Identifier: Apache-2.0
//! Predicates over a dictionary column, computed once per dictionary value and looked up by code.

use arrow::datatypes::DataType;
use columnar::{ColumnType, Layout};

use super::Profile;
use super::params::{Param, Params};
use super::row::RowWriter;
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{CompareOp, Expr, value_type};
use crate::function::NullHandling;

/// A predicate table over a column's dictionary: per value a byte, 0 (false), 1 (true) or 2 (NULL).
#[derive(Debug, Clone)]
pub struct DictionaryPredicate {
    /// Position of the column.
    pub column: usize,
    /// The predicate over the dictionary's values as column 0.
    pub predicate: Expr,
    /// Type and layout of the values.
    pub values: ColumnType,
    /// Parameters of the statements.
    pub params: Params,
    /// C that computes the predicate for the value `row`.
    pub statements: String,
    /// C of the byte.
    pub byte: String,
    /// Whether the byte may be 2.
    pub nullable: bool,
}

/// Most bytes of the statements' parameters: OpenCL's minimum for a kernel, without those of the
/// number of values and the table.
const MOST_BYTES: usize = 1024 - 16;

impl DictionaryPredicate {
    /// `None` for a predicate that
    /// - is not supported on the device or has too many constants,
    /// - can fail, because a value without rows could fail it,
    /// - is always NULL.
    fn try_new(column: usize, predicate: Expr, values: ColumnType, profile: Profile) -> Option<DictionaryPredicate> {
        let (mut params, types) = (Params::new(), [values]);
        let mut writer = RowWriter::new(&types, profile, &mut params);
        let result = writer.eval(&predicate).ok()?;
        let statements = writer.statements();
        if result.is_null() || result.ctype != CType::Bool || params.can_fail() || params.bytes() > MOST_BYTES {
            return None;
        }
        let byte = match &result.valid {
            None => result.code,
            Some(valid) => format!("{valid} ? {} : 2", result.code),
        };
        let [values] = types;
        Some(DictionaryPredicate { column, predicate, values, params, statements, byte, nullable: result.valid.is_some() })
    }
}

impl RowWriter<'_> {
    /// The value of a predicate over strings of a single dictionary column, looked up in a table.
    /// `None` for other expressions, and for predicates that can fail or ignore the column's NULLs.
    pub(super) fn dictionary_predicate(&mut self, expr: &Expr) -> Result<Option<Value>> {
        let is_predicate = match expr {
            Expr::Compare { .. } | Expr::InList { .. } | Expr::Like { .. } | Expr::And(_) | Expr::Or(_) | Expr::Not(_) => true,
            Expr::Call { data_type, .. } => *data_type == DataType::Boolean,
            Expr::Column(_)
            | Expr::Literal(_)
            | Expr::IsNull(_)
            | Expr::IsTruth(..)
            | Expr::Arithmetic { .. }
            | Expr::Negate(_)
            | Expr::TotalOrder(_)
            | Expr::Case { .. }
            | Expr::Coalesce(_)
            | Expr::Cast { .. } => false,
        };
        let mut columns = Vec::new();
        if is_predicate && !self.is_per_row() {
            expr.columns(&mut columns);
        }
        let (&[column], true) = (columns.as_slice(), is_null_where_its_column_is(expr)) else { return Ok(None) };
        let Some(values) = self.types.get(column).and_then(values) else { return Ok(None) };
        let predicate = expr.over(&|_| Ok(Expr::Column(0)))?;
        let predicates = self.params.dictionary_predicates();
        let known = predicates.iter().position(|known| known.column == column && known.predicate == predicate);
        let index = match known {
            Some(known) => known,
            None => match DictionaryPredicate::try_new(column, predicate, values, self.profile()) {
                Some(predicate) => self.params.add_dictionary_predicate(predicate),
                None => return Ok(None),
            },
        };
        let nullable = self.params.dictionary_predicates()[index].nullable;
        let code = self.code(column)?;
        let table = self.params.add(Param::DictionaryPredicate { index }, "const G u8 *RESTRICT");
        let byte = self.local(CType::U8, &format!("{table}[{}]", code.code));
        let valid = match (code.valid, nullable) {
            (valid, false) => valid,
            (None, true) => Some(self.flag(&format!("{byte} != 2"))),
            (Some(valid), true) => Some(self.flag(&format!("{valid} & ({byte} != 2)"))),
        };
        let code = self.flag(&format!("{byte} == 1"));
        Ok(Some(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None }))
    }
}

/// Type of the values of a dictionary of strings, none of which is NULL.
fn values(ty: &ColumnType) -> Option<ColumnType> {
    let Layout::Dictionary { values, .. } = &ty.layout else { return None };
    let data_type = value_type(&ty.data_type);
    let is_string = CType::native(data_type) == Some(CType::Str) && **values != Layout::Null;
    is_string.then(|| ColumnType { data_type: data_type.clone(), nullable: false, layout: (**values).clone(), bounds: None })
}

/// Whether an expression over one column is NULL for every NULL of the column.
#[recursive::recursive]
fn is_null_where_its_column_is(expr: &Expr) -> bool {
    let is = is_null_where_its_column_is;
    match expr {
        Expr::Column(_) => true,
        Expr::Not(_)
        | Expr::Negate(_)
        | Expr::TotalOrder(_)
        | Expr::Cast { .. }
        | Expr::InList { .. }
        | Expr::Arithmetic { .. }
        | Expr::Like { .. } => expr.operands().into_iter().any(is),
        Expr::Compare { op: CompareOp::IsDistinctFrom | CompareOp::IsNotDistinctFrom, .. } => false,
        Expr::Compare { .. } => expr.operands().into_iter().any(is),
        Expr::And(operands) | Expr::Or(operands) => operands.iter().all(is),
        Expr::Call { function, arguments, .. } => match function.row().nulls {
            NullHandling::Propagate => arguments.iter().any(is),
            NullHandling::Generated => false,
        },
        Expr::Literal(_) | Expr::IsNull(_) | Expr::IsTruth(..) | Expr::Case { .. } | Expr::Coalesce(_) => false,
    }
}
