// SPDX-License-Identifier: Apache-2.0
//! Predicates over a dictionary column: computed for each value of the dictionary, looked up by each row's code.

use arrow::datatypes::DataType;
use columnar::{ColumnType, Layout};

use super::Profile;
use super::params::{Param, Params};
use super::row::RowWriter;
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{CompareOp, Expr, value_type};
use crate::function::Function;

/// What a predicate says of each value of a column's dictionary: a byte, 0 for false, 1 for true, 2 for NULL.
#[derive(Debug, Clone)]
pub struct Verdict {
    /// The column, by position.
    pub column: usize,
    /// The predicate over the dictionary's values, which are column 0.
    pub predicate: Expr,
    /// Type and layout of these values.
    pub values: ColumnType,
    /// What the statements take.
    pub params: Params,
    /// C that computes the predicate of the value `row`.
    pub statements: String,
    /// C: the byte.
    pub byte: String,
    /// Whether it may be 2.
    pub nullable: bool,
}

/// Bytes that the statements' parameters may take: OpenCL's least for a kernel, without those of number and result.
const MOST_BYTES: usize = 1024 - 16;

impl Verdict {
    /// `None` where the predicate is not supported on the device, which is refused where it is computed for each row, or too many
    /// constants; where it can fail, since the value may be one that no row has; and where it is always NULL.
    fn try_new(column: usize, predicate: Expr, values: ColumnType, profile: Profile) -> Option<Verdict> {
        let (mut params, types) = (Params::new(), [values]);
        let mut writer = RowWriter::new(&types, profile, &mut params);
        let verdict = writer.eval(&predicate).ok()?;
        let statements = writer.statements();
        if verdict.is_null() || verdict.ctype != CType::Bool || params.can_fail() || params.bytes() > MOST_BYTES {
            return None;
        }
        let byte = match &verdict.valid {
            None => verdict.code,
            Some(valid) => format!("{valid} ? {} : 2", verdict.code),
        };
        let [values] = types;
        Some(Verdict { column, predicate, values, params, statements, byte, nullable: verdict.valid.is_some() })
    }
}

impl RowWriter<'_> {
    /// The value of a predicate over text of one dictionary column alone, if it is one that has no errors and is NULL where the
    /// column is.
    pub(super) fn verdict(&mut self, expr: &Expr) -> Result<Option<Value>> {
        let is_predicate = match expr {
            Expr::Compare { .. } | Expr::InList { .. } | Expr::Like { .. } | Expr::And(_) | Expr::Or(_) | Expr::Not(_) => true,
            Expr::Call { data_type, .. } => *data_type == DataType::Boolean,
            _ => false,
        };
        let mut columns = Vec::new();
        if is_predicate && !self.is_per_row() {
            expr.columns(&mut columns);
        }
        let (&[column], true) = (columns.as_slice(), is_null_where_its_column_is(expr)) else { return Ok(None) };
        let Some(values) = self.types.get(column).and_then(values) else { return Ok(None) };
        let predicate = expr.over(&|_| Ok(Expr::Column(0)))?;
        let verdicts = self.params.verdicts();
        let known = verdicts.iter().position(|known| known.column == column && known.predicate == predicate);
        let index = match known {
            Some(known) => known,
            None => match Verdict::try_new(column, predicate, values, self.profile()) {
                Some(verdict) => self.params.verdict(verdict),
                None => return Ok(None),
            },
        };
        let nullable = self.params.verdicts()[index].nullable;
        let code = self.code(column)?;
        let verdicts = self.params.add(Param::Verdicts { index }, "const G u8 *RESTRICT");
        let byte = self.local(CType::U8, &format!("{verdicts}[{}]", code.code));
        let valid = match (code.valid, nullable) {
            (valid, false) => valid,
            (None, true) => Some(self.flag(&format!("{byte} != 2"))),
            (Some(valid), true) => Some(self.flag(&format!("{valid} & ({byte} != 2)"))),
        };
        let code = self.flag(&format!("{byte} == 1"));
        Ok(Some(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None }))
    }
}

/// The values of a dictionary of texts, none of which is NULL.
fn values(ty: &ColumnType) -> Option<ColumnType> {
    let Layout::Dictionary { values, .. } = &ty.layout else { return None };
    let data_type = value_type(&ty.data_type);
    let is_text = CType::native(data_type) == Some(CType::Str) && **values != Layout::Null;
    is_text.then(|| ColumnType { data_type: data_type.clone(), nullable: false, layout: (**values).clone(), bounds: None })
}

/// Whether an expression over one column is known to be NULL where the column is.
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
        Expr::Call { function, arguments, .. } => match function {
            Function::Concat { skips_nulls: true }
            | Function::ConcatWs
            | Function::Greatest
            | Function::Least
            | Function::Nanvl
            // These look at rows, not at values.
            | Function::TextOfRows
            | Function::ListOfRows
            | Function::ListLength
            | Function::ListWord
            | Function::ListKey { .. } => false,
            _ => arguments.iter().any(is),
        },
        Expr::Literal(_) | Expr::IsNull(_) | Expr::IsTruth(..) | Expr::Case { .. } | Expr::Coalesce(_) => false,
    }
}
