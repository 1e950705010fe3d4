// SPDX-License-Identifier: Apache-2.0
//! The writer of row code: scopes, locals, and the dispatch over expressions.

use std::fmt::Write;
use std::mem;

use columnar::ColumnType;

use super::Profile;
use super::params::Params;
use super::value::{CType, Value};
use crate::expr::Expr;
use crate::{Error, Result};

/// Emits C that computes expressions for one row.
///
/// Statements go to the current block, for the row that the variable `row` (u64) names. A
/// sub-expression that was computed in the block, or in one around it, is not computed again.
/// Columns are loaded where they are first used.
pub struct RowWriter<'a> {
    pub(super) types: &'a [ColumnType],
    pub(super) places: &'a [Option<Place>],
    pub(super) params: &'a mut Params,
    pub(super) row: String,
    profile: Profile,
    per_row: bool,
    prefix: String,
    scopes: Vec<Scope>,
    locals: usize,
}

/// Where a column is read if not at the writer's row: a join's other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// C: the row, which always lies in the column.
    pub row: String,
    /// C, 0 or 1: whether there is a row; `None`: always. Without one the column is NULL.
    pub found: Option<String>,
    /// Whether the column is no more than that answer.
    pub is_mark: bool,
}

/// Blocks within blocks: clang takes 256 brackets, of any kind.
const DEEPEST: usize = 200;

/// A block under construction.
#[derive(Debug, Default)]
pub(super) struct Scope {
    text: String,
    known: Vec<(Expr, Value)>,
    /// Set once the block holds what should not run for rows that do not need it: branches, loops,
    /// recorded errors, long arithmetic.
    costly: bool,
    /// The locals of a block that is read behind it: they are declared before it.
    declared: Option<Vec<String>>,
}

impl Scope {
    /// A block whose locals are read behind it, or one like any other.
    pub(super) fn read_behind(is: bool) -> Scope {
        Scope { declared: is.then(Vec::new), ..Scope::default() }
    }

    /// What must be declared before the block.
    pub(super) fn declared(&self) -> &[String] {
        self.declared.as_deref().unwrap_or_default()
    }

    pub(super) fn is_cheap(&self) -> bool {
        !self.costly
    }
}

impl<'a> RowWriter<'a> {
    /// A writer over a source's columns, with nothing written yet.
    pub fn new(types: &'a [ColumnType], profile: Profile, params: &'a mut Params) -> RowWriter<'a> {
        let scopes = vec![Scope::default()];
        RowWriter {
            types,
            places: &[],
            params,
            row: "row".into(),
            profile,
            per_row: false,
            prefix: "x".into(),
            scopes,
            locals: 0,
        }
    }

    /// Reads the columns that have a place there, each at its own.
    pub fn with_places(mut self, places: &'a [Option<Place>]) -> RowWriter<'a> {
        self.places = places;
        self
    }

    /// Names the row variable (default `row`) and the prefix of locals (default `x`): for several
    /// writers in one kernel.
    pub fn with_names(mut self, row: &str, prefix: &str) -> RowWriter<'a> {
        self.row = row.into();
        self.prefix = prefix.into();
        self
    }

    /// Computes predicates over dictionary columns for each row: for kernels that nobody runs over dictionaries before, as
    /// [`Params::verdicts`] ask.
    pub fn per_row(mut self) -> Self {
        self.per_row = true;
        self
    }

    pub(super) fn is_per_row(&self) -> bool {
        self.per_row
    }

    /// The profile that the text is for.
    pub fn profile(&self) -> Profile {
        self.profile
    }

    /// The kernel's parameters.
    pub fn params(&mut self) -> &mut Params {
        self.params
    }

    /// Appends the statements that compute `expr`; its value.
    ///
    /// # Errors
    /// `Unsupported`, with a reason for users, where the expression is not supported on the device.
    pub fn eval(&mut self, expr: &Expr) -> Result<Value> {
        match (self.result(expr)?, expr) {
            (Value { ctype: CType::Text, .. }, Expr::Call { function, .. }) => {
                unsupported(format!("text of {} within another operation is not supported on the device", function.name()))
            }
            (Value { ctype: CType::Text, .. }, _) => {
                unsupported("text of CASE or coalesce within another operation is not supported on the device")
            }
            (Value { ctype: CType::List, data_type, .. }, _) => {
                unsupported(format!("{data_type} within another operation is not supported on the device"))
            }
            (value, _) => Ok(value),
        }
    }

    /// As [`eval`](Self::eval), for who writes the value to a column: it may be a list, or text that the row computes, which no
    /// other operation takes.
    pub fn result(&mut self, expr: &Expr) -> Result<Value> {
        if let Some((_, value)) = self.scopes.iter().rev().flat_map(|scope| &scope.known).find(|(known, _)| known == expr) {
            return Ok(value.clone());
        }
        if let Some(value) = self.verdict(expr)? {
            self.scope().known.push((expr.clone(), value.clone()));
            return Ok(value);
        }
        let value = match expr {
            Expr::Column(index) => self.column(*index)?,
            Expr::Literal(literal) => {
                let value = self.params.literal(literal)?;
                // Words made of several parameters get a name, so that they are made once.
                match value.ctype {
                    CType::I128 | CType::I256 | CType::Str if !value.is_null() => self.store(value),
                    _ => value,
                }
            }
            Expr::Not(operand) => self.not(operand)?,
            Expr::And(operands) => self.connect(operands, true)?,
            Expr::Or(operands) => self.connect(operands, false)?,
            Expr::IsNull(operand) => self.is_null(operand)?,
            Expr::IsTruth(operand, truth) => self.is_truth(operand, *truth)?,
            Expr::Arithmetic { op, left, right, data_type } => self.arithmetic(*op, left, right, data_type)?,
            Expr::Negate(operand) => self.negate(operand)?,
            Expr::TotalOrder(operand) => self.total_order(operand)?,
            Expr::Compare { op, left, right } => self.compare(*op, left, right)?,
            Expr::InList { expr, list, negated } => self.in_list(expr, list, *negated)?,
            Expr::Like { ignores_case, expr, pattern } => self.like(expr, pattern, *ignores_case)?,
            Expr::Case { branches, otherwise, data_type } => self.case(branches, otherwise.as_deref(), data_type)?,
            Expr::Coalesce(operands) => self.coalesce(operands)?,
            Expr::Call { function, arguments, data_type } => self.call(*function, arguments, data_type)?,
            Expr::Cast { expr, to, checked } => self.cast(expr, to, *checked)?,
        };
        // A NULL is written by nobody else who would ask for its type's section.
        self.params.need_type(value.ctype);
        self.scope().known.push((expr.clone(), value.clone()));
        Ok(value)
    }

    /// Appends a statement of the caller's own to the current block.
    pub fn push(&mut self, statement: &str) {
        let depth = self.scopes.len() + 1;
        let text = &mut self.scope().text;
        for line in statement.lines() {
            let _ = writeln!(text, "{:1$}{line}", "", depth * 2);
        }
    }

    /// Writes a block `if (condition) { … }`. What is computed inside is not reused outside.
    pub fn guarded(&mut self, condition: &str, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (scope, ()) = self.detached(body)?;
        self.costly();
        self.push(&format!("if ({condition}) {{"));
        self.append(&scope);
        self.push("}");
        Ok(())
    }

    /// The statements written so far, which the writer forgets; what they computed stays known.
    pub fn statements(&mut self) -> String {
        mem::take(&mut self.scope().text)
    }

    /// Names a value: declares a local for its code (and for its validity, if that is more than a name).
    pub fn store(&mut self, mut value: Value) -> Value {
        value.code = self.local(value.ctype, &value.code);
        if let Some(valid) = value.valid.take_if(|valid| valid.contains([' ', '('])) {
            value.valid = Some(self.flag(&valid));
        }
        value
    }

    /// Declares a local; its name.
    pub fn local(&mut self, ctype: CType, code: &str) -> String {
        self.params.need_type(ctype);
        let name = self.fresh();
        match self.scope().declared {
            None => self.push(&format!("{} {name} = {code};", ctype.local())),
            Some(_) => {
                self.declare(&format!("{} {name} = {};", ctype.local(), ctype.zero()));
                self.push(&format!("{name} = {code};"));
            }
        }
        name
    }

    /// Declares what the current block needs, where it may be read behind the block.
    pub(super) fn declare(&mut self, declaration: &str) {
        match &mut self.scope().declared {
            Some(declared) => declared.push(declaration.into()),
            None => self.push(declaration),
        }
    }

    /// Declares a local that is 0 or 1; its name.
    pub fn flag(&mut self, code: &str) -> String {
        self.local(CType::Bool, code)
    }

    /// Records an error of the current row where the condition holds.
    pub fn fail_if(&mut self, condition: &str) {
        let err = self.params.error();
        let row = self.row.clone();
        self.costly();
        self.push(&format!("if ({condition}) A_MIN64({err}, (u64){row});"));
    }

    /// Says that the current block should not run for rows that do not need it.
    pub(super) fn costly(&mut self) {
        self.scope().costly = true;
    }

    /// A new local's name.
    pub(super) fn fresh(&mut self) -> String {
        self.locals += 1;
        format!("{}{}", self.prefix, self.locals)
    }

    /// Writes into a block of its own that is not yet part of the text.
    pub(super) fn detached<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<(Scope, T)> {
        self.detached_from(Scope::default(), body)
    }

    /// The same with a block that says what becomes of its locals.
    pub(super) fn detached_from<T>(&mut self, scope: Scope, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<(Scope, T)> {
        if self.scopes.len() >= DEEPEST {
            return unsupported(format!("an expression of more than {DEEPEST} nested branches is not supported on the device"));
        }
        self.scopes.push(scope);
        let result = body(self);
        let scope = self.scopes.pop().unwrap_or_default();
        Ok((scope, result?))
    }

    /// Continues the current block with a detached one.
    pub(super) fn splice(&mut self, scope: Scope) {
        let current = self.scope();
        for line in scope.text.lines() {
            // One level less deep than it was written.
            let _ = writeln!(current.text, "{}", line.strip_prefix("  ").unwrap_or(line));
        }
        current.known.extend(scope.known);
        current.costly |= scope.costly;
    }

    /// Appends the statements of a detached block, between braces that the caller pushes.
    pub(super) fn append(&mut self, scope: &Scope) {
        self.scope().text.push_str(&scope.text);
    }

    /// Pushes one level deeper.
    pub(super) fn push_inner(&mut self, statements: &str) {
        for line in statements.lines() {
            self.push(&format!("  {line}"));
        }
    }

    /// Validity of an operation that is NULL where either operand is.
    pub(super) fn both_valid(&mut self, left: &Value, right: &Value) -> Option<String> {
        match (&left.valid, &right.valid) {
            (None, None) => None,
            (Some(valid), None) | (None, Some(valid)) => Some(valid.clone()),
            (Some(left), Some(right)) if left == right => Some(left.clone()),
            (Some(left), Some(right)) => Some(self.flag(&format!("{left} & {right}"))),
        }
    }

    /// `condition ? left : right` for values of one C type.
    pub(super) fn select(&self, ctype: CType, condition: &str, left: &str, right: &str) -> String {
        match ctype {
            CType::I128 | CType::I256 => format!("{}_sel({condition}, {left}, {right})", ctype.name()),
            CType::Str => format!("str_sel({condition}, {left}, {right})"),
            _ => format!("{condition} ? {left} : {right}"),
        }
    }

    fn scope(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        let last = self.scopes.len() - 1;
        &mut self.scopes[last]
    }
}

/// A refusal, for users.
pub(super) fn unsupported<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::Unsupported(reason.into()))
}
