// SPDX-License-Identifier: Apache-2.0
//! Comparisons, `IN`, and three-valued logic.
//!
//! Floats compare as in DataFusion:
//! - Arrow compares in IEEE 754's totalOrder (`ArrowNativeTypeOp::compare`), where -0.0 is below
//!   0.0.
//! - DataFusion first folds -0.0 to 0.0 in both operands (`normalize_float_zero` in its
//!   `datum.rs`).
//! - NaNs keep their bits: equality compares bits, and a NaN with the sign bit lies below -inf.
//! - `IN` over constants compares bits without folding (`OrderedFloat64` in its
//!   `in_list/primitive_filter.rs`), so `-0.0 IN (0.0)` is false.
//! - Simple `CASE`, `NULLIF`, `IN` over computed members, and floats of a dictionary are not folded
//!   either. The planner passes those operands as integers in totalOrder ([`Expr::TotalOrder`]).

use std::sync::Arc;

use arrow::datatypes::DataType;

use super::concatenation::is_concatenation;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{CompareOp, Expr, Literal, LiteralValue};
use crate::prelude::Section;

/// Longest `IN` list that is compared without a loop.
const UNROLLED_LIST: usize = 4;

/// Operands of AND and OR that are computed without a branch between them. NVIDIA's assembler loads
/// the columns of all of them before any is computed, and so runs out of registers.
const OPERANDS_AT_ONCE: usize = 16;

impl RowWriter<'_> {
    pub(super) fn compare(&mut self, op: CompareOp, left: &Expr, right: &Expr) -> Result<Value> {
        if let (CompareOp::Eq | CompareOp::NotEq, Expr::Column(column), Expr::Literal(literal))
        | (CompareOp::Eq | CompareOp::NotEq, Expr::Literal(literal), Expr::Column(column)) = (op, left, right)
            && let LiteralValue::Bytes(bytes) = &literal.value
            && let Some((same, valid)) = self.equals_view(*column, bytes)?
        {
            let code = if op == CompareOp::Eq { same } else { self.flag(&format!("!{same}")) };
            return Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None });
        }
        if is_concatenation(left) || is_concatenation(right) {
            let [left, right] = self.compare_concatenations(left, right)?;
            return self.compare_values(op, &left, &right);
        }
        let (left, right) = (self.eval(left)?, self.eval(right)?);
        self.compare_values(op, &left, &right)
    }

    /// Compares two values of one logical type, as SQL does.
    pub fn compare_values(&mut self, op: CompareOp, left: &Value, right: &Value) -> Result<Value> {
        let distinct = matches!(op, CompareOp::IsDistinctFrom | CompareOp::IsNotDistinctFrom);
        if !distinct && (left.is_null() || right.is_null()) {
            return Ok(Value::null(DataType::Boolean, CType::Bool));
        }
        comparable(left, right)?;
        if !distinct {
            let valid = self.both_valid(left, right);
            let code = self.comparison(op, left, right);
            let code = self.flag(&code);
            return Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None });
        }
        let same = match (left.is_null(), right.is_null()) {
            (true, true) => "1".to_string(),
            (true, false) => format!("!{}", right.valid_code()),
            (false, true) => format!("!{}", left.valid_code()),
            (false, false) => {
                let equal = self.comparison(CompareOp::Eq, left, right);
                match (&left.valid, &right.valid) {
                    (None, None) => equal,
                    (Some(valid), None) | (None, Some(valid)) => format!("{valid} & ({equal})"),
                    (Some(l), Some(r)) => format!("({l} == {r}) & (!{l} | ({equal}))"),
                }
            }
        };
        let code = self.flag(&if op == CompareOp::IsDistinctFrom { format!("!({same})") } else { same });
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid: None, bounds: None })
    }

    /// C, 0 or 1: the comparison of two values that are not NULL.
    fn comparison(&mut self, op: CompareOp, left: &Value, right: &Value) -> String {
        let sign = match op {
            CompareOp::Eq | CompareOp::IsNotDistinctFrom => "==",
            CompareOp::NotEq | CompareOp::IsDistinctFrom => "!=",
            CompareOp::Lt => "<",
            CompareOp::LtEq => "<=",
            CompareOp::Gt => ">",
            CompareOp::GtEq => ">=",
        };
        let equality = matches!(sign, "==" | "!=");
        if !equality && matches!(left.data_type, DataType::Interval(_)) {
            let (left, right) = (self.interval_sort_key(left), self.interval_sort_key(right));
            return self.comparison(op, &left, &right);
        }
        match (left.ctype, right.ctype) {
            (CType::Str, _) => {
                // A loop over bytes; the bytes of a NULL may be inaccessible.
                self.costly();
                let (l, r) = (&left.code, &right.code);
                match sign {
                    "==" => format!("str_eq({l}, {r})"),
                    "!=" => format!("!str_eq({l}, {r})"),
                    _ => format!("(str_cmp({l}, {r}) {sign} 0)"),
                }
            }
            (CType::F64, _) | (CType::F32, _) => {
                let of = left.ctype.name();
                let bits = if of == "f64" { "F64_BITS" } else { "F32_BITS" };
                match equality {
                    true => format!("({bits}({of}_fold({})) {sign} {bits}({of}_fold({})))", left.code, right.code),
                    false => format!("({of}_key({of}_fold({})) {sign} {of}_key({of}_fold({})))", left.code, right.code),
                }
            }
            (l, r) if l.is_wide() || r.is_wide() => {
                let wide = if l == CType::I256 || r == CType::I256 { CType::I256 } else { CType::I128 };
                self.params.need_type(wide);
                let (of, l, r) = (wide.name(), left.to_ctype(wide), right.to_ctype(wide));
                match sign {
                    "==" => format!("{of}_eq({l}, {r})"),
                    "!=" => format!("!{of}_eq({l}, {r})"),
                    "<" => format!("{of}_lt({l}, {r})"),
                    ">" => format!("{of}_lt({r}, {l})"),
                    "<=" => format!("!{of}_lt({r}, {l})"),
                    _ => format!("!{of}_lt({l}, {r})"),
                }
            }
            _ => format!("({} {sign} {})", left.code, right.code),
        }
    }

    pub(super) fn total_order(&mut self, operand: &Expr) -> Result<Value> {
        let value = self.eval(operand)?;
        let (data_type, ctype) = match value.ctype {
            CType::F32 => (DataType::Int32, CType::I32),
            CType::F64 => (DataType::Int64, CType::I64),
            _ => return Ok(value),
        };
        let code = self.local(ctype, &format!("{}_key({})", value.ctype.name(), value.code));
        Ok(Value { data_type, ctype, code, valid: value.valid, bounds: None })
    }

    pub(super) fn in_list(&mut self, expr: &Expr, list: &[Literal], negated: bool) -> Result<Value> {
        if is_concatenation(expr) && !list.is_empty() {
            let right = |literal: &Literal| Arc::new(Expr::Literal(literal.clone()));
            let equal = |literal| Expr::Compare { op: CompareOp::Eq, left: Arc::new(expr.clone()), right: right(literal) };
            let any = Expr::Or(list.iter().map(equal).collect());
            return if negated { self.not(&any) } else { self.eval(&any) };
        }
        let has_null = list.iter().any(|literal| literal.value == LiteralValue::Null);
        let literals: Vec<&Literal> = list.iter().filter(|literal| literal.value != LiteralValue::Null).collect();
        let (found, valid) = match self.found_view(expr, &literals)? {
            Some(found) => found,
            None => {
                let value = self.eval(expr)?;
                if value.is_null() {
                    return Ok(Value::null(DataType::Boolean, CType::Bool));
                }
                (self.found(&value, &literals)?, value.valid)
            }
        };
        // With a NULL in the list, "not found" is NULL.
        let valid = match (&valid, has_null) {
            (valid, false) => valid.clone(),
            (None, true) => Some(found.clone()),
            (Some(valid), true) => Some(self.flag(&format!("{valid} & {found}"))),
        };
        let code = if negated { self.flag(&format!("!{found}")) } else { found };
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None })
    }

    /// A flag and its validity: whether a column's view equals one of a few literals. `None` for
    /// columns without views and for long lists.
    fn found_view(&mut self, expr: &Expr, literals: &[&Literal]) -> Result<Option<(String, Option<String>)>> {
        let Expr::Column(column) = expr else { return Ok(None) };
        if literals.is_empty() || literals.len() > UNROLLED_LIST {
            return Ok(None);
        }
        let (mut same, mut valid) = (Vec::with_capacity(literals.len()), None);
        for literal in literals {
            let LiteralValue::Bytes(bytes) = &literal.value else { return Ok(None) };
            let Some((code, of_column)) = self.equals_view(*column, bytes)? else { return Ok(None) };
            same.push(code);
            valid = of_column;
        }
        let found = self.flag(&same.join(" | "));
        Ok(Some((found, valid)))
    }

    /// A flag: whether a valid value equals one of the literals.
    fn found(&mut self, value: &Value, literals: &[&Literal]) -> Result<String> {
        if literals.is_empty() {
            return Ok("0".into());
        }
        if literals.len() <= UNROLLED_LIST {
            let mut equal = Vec::new();
            for literal in literals {
                let literal = self.params.literal(literal)?;
                comparable(value, &literal)?;
                equal.push(match value.ctype {
                    CType::F64 => format!("(F64_BITS({}) == F64_BITS({}))", value.code, literal.code),
                    CType::F32 => format!("(F32_BITS({}) == F32_BITS({}))", value.code, literal.code),
                    _ => self.comparison(CompareOp::Eq, value, &literal),
                });
            }
            return Ok(self.flag(&equal.join(" | ")));
        }
        for literal in literals {
            same_type(&value.data_type, &literal.data_type)?;
        }
        // Literals of a decimal type have its native width, whatever the carrier of the value.
        let ctype = CType::native(&value.data_type).unwrap_or(value.ctype);
        let (values, len) = self.params.list(ctype, literals)?;
        let code = match ctype {
            CType::Str => format!("list_has_str({values}, lits, {len}, {})", value.code),
            CType::F64 => format!("list_has_u64({values}, {len}, F64_BITS({}))", value.code),
            CType::F32 => format!("list_has_u32({values}, {len}, F32_BITS({}))", value.code),
            CType::Bool => format!("list_has_u8({values}, {len}, {})", value.code),
            other => format!("list_has_{}({values}, {len}, {})", other.name(), value.to_ctype(other)),
        };
        self.params.need(match ctype {
            CType::Str => Section::ListStr,
            CType::I128 => Section::ListI128,
            CType::I256 => Section::ListI256,
            _ => Section::List,
        });
        self.costly();
        let found = self.flag(&match (&value.valid, ctype) {
            (Some(valid), CType::Str) => format!("{valid} && {code}"),
            _ => code,
        });
        Ok(found)
    }

    pub(super) fn not(&mut self, operand: &Expr) -> Result<Value> {
        let value = self.boolean(operand)?;
        let code = self.flag(&format!("!{}", value.code));
        Ok(Value { code, ..value })
    }

    pub(super) fn is_null(&mut self, operand: &Expr) -> Result<Value> {
        let is_list = matches!(operand, Expr::Column(column) if self.is_list(*column));
        let value = if is_list { self.eval_output(operand)? } else { self.eval(operand)? };
        let code = match &value.valid {
            None => "0".into(),
            Some(_) if value.is_null() => "1".into(),
            Some(valid) => self.flag(&format!("!{valid}")),
        };
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid: None, bounds: None })
    }

    pub(super) fn is_truth(&mut self, operand: &Expr, truth: Option<bool>) -> Result<Value> {
        let value = self.boolean(operand)?;
        let code = match truth {
            Some(true) => value.is_true(),
            Some(false) => value.is_false(),
            None => format!("!{}", value.valid_code()),
        };
        let code = self.flag(&code);
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid: None, bounds: None })
    }

    /// `AND` (`all`) or `OR` of operands.
    ///
    /// The first cheap operands are computed for every row, without branches. Further ones, and
    /// each costly one, are computed for rows that the others leave undecided. So errors of costly
    /// ones count only there.
    pub(super) fn connect(&mut self, operands: &[Expr], all: bool) -> Result<Value> {
        let (mut cheap, mut further, mut costly) = (Vec::new(), Vec::new(), Vec::new());
        for operand in operands {
            let (scope, value) = self.detached(|writer| writer.boolean(operand))?;
            match scope.is_cheap() {
                true if cheap.len() < OPERANDS_AT_ONCE => {
                    self.splice(scope);
                    cheap.push(value);
                }
                true => further.push((scope, value)),
                false => costly.push((scope, value)),
            }
        }
        // Without cheap operands, the first costly one needs no guard.
        if cheap.is_empty() && !costly.is_empty() {
            let (scope, value) = costly.remove(0);
            self.splice(scope);
            cheap.push(value);
        }
        let guarded = || further.chunks(OPERANDS_AT_ONCE).chain(costly.chunks(1));
        let nullable = cheap.iter().chain(guarded().flatten().map(|(_, value)| value)).any(|value| value.valid.is_some());
        // For AND, `every`: all are true, `one`: one is false. For OR, with true and false swapped.
        let settled = |value: &Value| if all { value.is_false() } else { value.is_true() };
        let neutral = |value: &Value| if all { value.is_true() } else { value.is_false() };
        let join = |parts: Vec<String>, sign: &str| parts.join(sign);
        let every = self.flag(&join(cheap.iter().map(neutral).collect(), " & "));
        let one = match nullable {
            true => Some(self.flag(&join(cheap.iter().map(settled).collect(), " | "))),
            false => None,
        };
        for operands in guarded() {
            let of = |part: &dyn Fn(&Value) -> String| operands.iter().map(|(_, value)| part(value)).collect();
            let mut update = format!("{every} &= {};", join(of(&neutral), " & "));
            if let Some(one) = &one {
                update.push_str(&format!("\n{one} |= {};", join(of(&settled), " | ")));
            }
            let open = match &one {
                Some(one) => format!("!{one}"),
                None => every.clone(),
            };
            self.costly();
            self.push(&format!("if ({open}) {{"));
            operands.iter().for_each(|(scope, _)| self.append(scope));
            self.push_inner(&update);
            self.push("}");
        }
        // Rows that skip an operand have `every` = 0 already.
        let valid = one.as_ref().map(|one| self.flag(&format!("{every} | {one}")));
        let code = if all { every } else { self.flag(&one.clone().unwrap_or(format!("!{every}"))) };
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None })
    }

    /// Evaluates an operand that must be Boolean.
    pub(super) fn boolean(&mut self, operand: &Expr) -> Result<Value> {
        let value = self.eval(operand)?;
        match value.data_type {
            DataType::Boolean => Ok(value),
            DataType::Null => Ok(Value::null(DataType::Boolean, CType::Bool)),
            other => unsupported(format!("a condition of type {other} is not supported on the device")),
        }
    }
}

fn comparable(left: &Value, right: &Value) -> Result<()> {
    same_type(&left.data_type, &right.data_type)
}

/// Checks that values of two logical types compare without a cast.
pub(super) fn same_type(left: &DataType, right: &DataType) -> Result<()> {
    use DataType::*;
    let same = match (left, right) {
        (Null, _) | (_, Null) => true,
        (
            Decimal32(_, l) | Decimal64(_, l) | Decimal128(_, l) | Decimal256(_, l),
            Decimal32(_, r) | Decimal64(_, r) | Decimal128(_, r) | Decimal256(_, r),
        ) => l == r,
        (Timestamp(l, _), Timestamp(r, _)) => l == r,
        (left, right) => left == right || (CType::native(left) == Some(CType::Str) && CType::native(right) == Some(CType::Str)),
    };
    if same { Ok(()) } else { unsupported(format!("comparison of {left} with {right} is not supported on the device")) }
}
