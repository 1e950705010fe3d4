// SPDX-License-Identifier: Apache-2.0
//! Writer of the C for one row: scopes, locals, and the dispatch over expressions.

use std::fmt::Write;
use std::mem;

use columnar::ColumnType;

use super::Profile;
use super::params::Params;
use super::value::{CType, Value};
use crate::expr::Expr;
use crate::{Error, Result};

/// Writer of C that computes expressions for one row.
///
/// Statements go to the current block; the C variable `row` (u64) is the row. A sub-expression is
/// computed once per block and the blocks within it. A column is loaded at its first use.
pub struct RowWriter<'a> {
    pub(super) types: &'a [ColumnType],
    pub(super) references: &'a [Option<RowRef>],
    pub(super) params: &'a mut Params,
    pub(super) row: String,
    profile: Profile,
    per_row: bool,
    prefix: String,
    scopes: Vec<Scope>,
    locals: usize,
}

/// Row at which a column is read instead of the writer's row, such as a row of a join's other side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRef {
    /// C: the row, always within the column.
    pub row: String,
    /// C, 0 or 1: whether the row exists; `None`: always. Without a row the column is NULL.
    pub found: Option<String>,
    /// Whether the column is the mark column of a join: the value of `found` itself.
    pub is_mark: bool,
}

/// Greatest depth of nested blocks. clang's limit is 256 nested brackets of any kind.
const DEEPEST: usize = 200;

/// Depth of nested brackets from which a value becomes a local.
const DEEP: usize = 16;

/// A block under construction.
#[derive(Debug, Default)]
pub(super) struct Scope {
    statements: String,
    known: Vec<(Expr, Value)>,
    /// Whether the block runs only for the rows in need of it: it has branches, loops, errors or
    /// long arithmetic.
    costly: bool,
    /// Declarations to hoist before the block, so that its locals stay visible behind it.
    hoisted: Option<Vec<String>>,
}

impl Scope {
    /// A block whose declarations are hoisted.
    pub(super) fn hoisting() -> Scope {
        Scope { hoisted: Some(Vec::new()), ..Scope::default() }
    }

    /// Declarations to place before the block.
    pub(super) fn hoisted(&self) -> &[String] {
        self.hoisted.as_deref().unwrap_or_default()
    }

    pub(super) fn is_cheap(&self) -> bool {
        !self.costly
    }
}

impl<'a> RowWriter<'a> {
    /// An empty writer over a source's columns.
    pub fn new(types: &'a [ColumnType], profile: Profile, params: &'a mut Params) -> RowWriter<'a> {
        let scopes = vec![Scope::default()];
        RowWriter {
            types,
            references: &[],
            params,
            row: "row".into(),
            profile,
            per_row: false,
            prefix: "x".into(),
            scopes,
            locals: 0,
        }
    }

    /// Reads columns with a row reference at that row.
    pub fn with_row_refs(mut self, references: &'a [Option<RowRef>]) -> RowWriter<'a> {
        self.references = references;
        self
    }

    /// Names the row variable (default `row`) and the prefix of locals (default `x`), so that
    /// several writers share a kernel.
    pub fn with_names(mut self, row: &str, prefix: &str) -> RowWriter<'a> {
        self.row = row.into();
        self.prefix = prefix.into();
        self
    }

    /// Computes predicates over dictionary columns for each row, for kernels that run without the
    /// tables of [`Params::dictionary_predicates`].
    pub fn per_row(mut self) -> Self {
        self.per_row = true;
        self
    }

    pub(super) fn is_per_row(&self) -> bool {
        self.per_row
    }

    /// The profile of the kernel.
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
        match (self.eval_output(expr)?, expr) {
            (Value { ctype: CType::ComposedString, .. }, Expr::Call { function, .. }) => {
                unsupported(format!("{} within another operation is not supported on the device", function.name()))
            }
            (Value { ctype: CType::ComposedString, .. }, _) => {
                unsupported("CASE or coalesce of composed strings within another operation is not supported on the device")
            }
            (Value { ctype: CType::List, data_type, .. }, _) => {
                unsupported(format!("{data_type} within another operation is not supported on the device"))
            }
            (value, _) => Ok(value),
        }
    }

    /// [`eval`](Self::eval) for output columns, which may also be lists or composed strings.
    #[recursive::recursive]
    pub fn eval_output(&mut self, expr: &Expr) -> Result<Value> {
        if let Some((_, value)) = self.scopes.iter().rev().flat_map(|scope| &scope.known).find(|(known, _)| known == expr) {
            return Ok(value.clone());
        }
        if let Some(value) = self.dictionary_predicate(expr)? {
            self.scope().known.push((expr.clone(), value.clone()));
            return Ok(value);
        }
        let value = match expr {
            Expr::Column(index) => self.column(*index)?,
            Expr::Literal(literal) => {
                let value = self.params.literal(literal)?;
                // A constant of several parameters gets a local, so that it is assembled once.
                match value.ctype {
                    CType::I128 | CType::I256 | CType::Str if !value.is_null() => self.constant(value),
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
        // A NULL needs the section of its type, which no other code requests.
        self.params.need_type(value.ctype);
        let value = if is_deep(&value) { self.store(value) } else { value };
        self.scope().known.push((expr.clone(), value.clone()));
        Ok(value)
    }

    /// Appends a statement to the current block.
    pub fn push(&mut self, statement: &str) {
        let depth = self.scopes.len() + 1;
        let statements = &mut self.scope().statements;
        for line in statement.lines() {
            let _ = writeln!(statements, "{:1$}{line}", "", depth * 2);
        }
    }

    /// Writes a block `if (condition) { … }`, whose values are not reused outside.
    pub fn guarded(&mut self, condition: &str, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let (scope, ()) = self.detached(body)?;
        self.costly();
        self.push(&format!("if ({condition}) {{"));
        self.append(&scope);
        self.push("}");
        Ok(())
    }

    /// Takes the statements written so far; their values stay known.
    pub fn statements(&mut self) -> String {
        mem::take(&mut self.scope().statements)
    }

    /// Declares a local for a value, and one for a validity other than a name.
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
        match self.scope().hoisted {
            None => self.push(&format!("{} {name} = {code};", ctype.local())),
            Some(_) => {
                self.declare(&format!("{} {name} = {};", ctype.local(), ctype.zero()));
                self.push(&format!("{name} = {code};"));
            }
        }
        name
    }

    /// [`store`](Self::store) for a constant. It is declared with its value, also before a block:
    /// assigned within one, it would occupy registers until its use.
    fn constant(&mut self, mut value: Value) -> Value {
        let name = self.fresh();
        self.params.need_type(value.ctype);
        self.declare(&format!("{} {name} = {};", value.ctype.local(), value.code));
        value.code = name;
        value
    }

    /// Adds a declaration to the current block, or before it where the block hoists.
    pub(super) fn declare(&mut self, declaration: &str) {
        match &mut self.scope().hoisted {
            Some(hoisted) => hoisted.push(declaration.into()),
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

    /// Flags the current block as one to run only for the rows in need of it.
    pub(super) fn costly(&mut self) {
        self.scope().costly = true;
    }

    /// Name of a new local.
    pub(super) fn fresh(&mut self) -> String {
        self.locals += 1;
        format!("{}{}", self.prefix, self.locals)
    }

    /// Writes a block that is not yet part of the current one.
    ///
    /// Within a block that hoists it hoists, too: what follows may know its values.
    pub(super) fn detached<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<(Scope, T)> {
        let hoists = self.scope().hoisted.is_some();
        let (mut scope, value) = self.detached_from(if hoists { Scope::hoisting() } else { Scope::default() }, body)?;
        for declaration in scope.hoisted.take().unwrap_or_default() {
            self.declare(&declaration);
        }
        Ok((scope, value))
    }

    /// [`detached`](Self::detached) with a given scope.
    pub(super) fn detached_from<T>(&mut self, scope: Scope, body: impl FnOnce(&mut Self) -> Result<T>) -> Result<(Scope, T)> {
        if self.scopes.len() > DEEPEST {
            let what = format!("a CASE of more than {DEEPEST} WHENs, or as many branches within each other,");
            return unsupported(format!("{what} is not supported on the device"));
        }
        self.scopes.push(scope);
        let result = body(self);
        let scope = self.scopes.pop().unwrap_or_default();
        Ok((scope, result?))
    }

    /// Continues the current block with a detached one.
    pub(super) fn splice(&mut self, scope: Scope) {
        let current = self.scope();
        for line in scope.statements.lines() {
            // The block was written one level deeper.
            let _ = writeln!(current.statements, "{}", line.strip_prefix("  ").unwrap_or(line));
        }
        current.known.extend(scope.known);
        current.costly |= scope.costly;
    }

    /// Appends the statements of a detached block, between braces that the caller pushes.
    pub(super) fn append(&mut self, scope: &Scope) {
        self.scope().statements.push_str(&scope.statements);
    }

    /// Appends statements one level deeper.
    pub(super) fn push_inner(&mut self, statements: &str) {
        for line in statements.lines() {
            self.push(&format!("  {line}"));
        }
    }

    /// Validity of an operation that is NULL for a NULL operand.
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

/// Whether the C of a value nests too deep for the C of other values to contain it.
fn is_deep(value: &Value) -> bool {
    let deepest = |code: &str| {
        let (mut depth, mut deepest) = (0usize, 0);
        for c in code.bytes() {
            match c {
                b'(' => depth += 1,
                b')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            deepest = depth.max(deepest);
        }
        deepest
    };
    let is_local = !matches!(value.ctype, CType::ComposedString | CType::List);
    is_local && !value.is_null() && deepest(&value.code).max(value.valid.as_deref().map_or(0, deepest)) > DEEP
}

/// Refusal with a reason for users.
pub(super) fn unsupported<T>(reason: impl Into<String>) -> Result<T> {
    Err(Error::Unsupported(reason.into()))
}
