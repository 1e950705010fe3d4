// SPDX-License-Identifier: Apache-2.0
//! `CASE` and `COALESCE` of strings that rows compose.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::DataType;

use super::branch::retype;
use super::row::{RowWriter, Scope};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::Expr;
use crate::prelude::Section;

/// Composed strings, of which a row appends one.
///
/// Rows keep the number of theirs: a flag for each condition would occupy as many registers.
pub(super) struct ComposedChoice {
    /// Local: the output's length before the string.
    before: String,
    /// Local: the index in `appends`.
    number: String,
    /// Local: whether the string is valid.
    valid: String,
    /// `None` until the first typed operand of a `COALESCE`.
    data_type: Option<DataType>,
    /// Calls that append a string each.
    appends: Vec<String>,
    nullable: bool,
}

impl RowWriter<'_> {
    /// A composed string that is one of several, as the blocks of `write` choose.
    pub(super) fn composed_choice(
        &mut self,
        data_type: Option<DataType>,
        write: impl FnOnce(&mut Self, &mut ComposedChoice) -> Result<()>,
    ) -> Result<Value> {
        let before = self.fresh();
        self.declare(&format!("u64 {before} = 0;"));
        let (number, valid) = (self.local(CType::U32, "0"), self.flag("0"));
        let mut choice = ComposedChoice { before, number, valid, data_type, appends: Vec::new(), nullable: false };
        write(self, &mut choice)?;
        self.params.need(Section::Append);
        self.costly();
        let ComposedChoice { before, number, valid, data_type, appends, nullable } = choice;
        // `@` occurs once in the result, because it may be a long expression.
        let mut code = format!("({before} = @, ");
        for (index, append) in appends.iter().enumerate() {
            if index + 1 < appends.len() {
                code.push_str(&format!("{number} == {index}u ? "));
            }
            code.push_str(append);
            code.push_str(if index + 1 < appends.len() { " : " } else { ")" });
        }
        let data_type = data_type.unwrap_or(DataType::Null);
        Ok(Value { data_type, ctype: CType::ComposedString, code, valid: nullable.then_some(valid), bounds: None })
    }

    /// Reads the columns that several values have, once for all blocks. A local of each block would
    /// occupy registers until the string is appended.
    pub(super) fn read_shared_columns<'e>(&mut self, values: impl IntoIterator<Item = &'e Expr>) -> Result<()> {
        let mut readers = BTreeMap::new();
        for value in values {
            let mut columns = Vec::new();
            value.columns(&mut columns);
            for column in BTreeSet::from_iter(columns) {
                *readers.entry(column).or_insert(0) += 1;
            }
        }
        for (column, _) in readers.into_iter().filter(|(_, readers)| *readers > 1) {
            self.eval_output(&Expr::Column(column))?;
        }
        Ok(())
    }

    #[recursive::recursive]
    pub(super) fn composed_case(
        &mut self,
        branches: &[(Expr, Expr)],
        otherwise: Option<&Expr>,
        choice: &mut ComposedChoice,
    ) -> Result<()> {
        let Some(((condition, value), rest)) = branches.split_first() else {
            let data_type = choice.data_type.clone().unwrap_or(DataType::Null);
            let value = self.otherwise(otherwise, &data_type)?;
            return self.take(value, choice);
        };
        let condition = self.boolean(condition)?.is_true();
        let then = self.hoisting(|writer| {
            let value = writer.branch(value)?;
            writer.take(value, choice)
        })?;
        let other = self.hoisting(|writer| writer.composed_case(rest, otherwise, choice))?;
        self.either(&condition, &then, &other);
        Ok(())
    }

    #[recursive::recursive]
    pub(super) fn composed_coalesce(&mut self, first: &Expr, rest: &[Expr], choice: &mut ComposedChoice) -> Result<()> {
        let value = self.branch(first)?;
        let (Some(valid), Some((first, rest))) = (value.valid.clone(), rest.split_first()) else {
            return self.take(value, choice);
        };
        let then = self.hoisting(|writer| writer.take(Value { valid: None, ..value }, choice))?;
        let other = self.hoisting(|writer| writer.composed_coalesce(first, rest, choice))?;
        self.either(&valid, &then, &other);
        Ok(())
    }

    /// Takes a value as the one of the current block.
    fn take(&mut self, value: Value, choice: &mut ComposedChoice) -> Result<()> {
        if choice.data_type.is_none() && value.data_type != DataType::Null {
            choice.data_type = Some(value.data_type.clone());
        }
        let value = match &choice.data_type {
            Some(data_type) => retype(value, data_type)?,
            None => value,
        };
        let before = &choice.before;
        let append = match value.ctype {
            CType::ComposedString => value.code.replace('@', before),
            CType::Str => format!("append_str(#, {before}, {})", value.code),
            // An untyped NULL.
            _ => format!("append_str(#, {before}, {})", CType::Str.zero()),
        };
        self.push(&format!("{} = {}u;", choice.number, choice.appends.len()));
        self.push(&format!("{} = {};", choice.valid, value.valid_code()));
        choice.nullable |= value.valid.is_some();
        choice.appends.push(append);
        Ok(())
    }

    /// A detached block, whose locals the caller declares before it.
    fn hoisting(&mut self, body: impl FnOnce(&mut Self) -> Result<()>) -> Result<Scope> {
        Ok(self.detached_from(Scope::hoisting(), body)?.0)
    }

    /// One of two blocks, whose locals stay visible behind it.
    fn either(&mut self, condition: &str, then: &Scope, other: &Scope) {
        for declaration in then.hoisted().iter().chain(other.hoisted()) {
            self.declare(declaration);
        }
        self.costly();
        self.push(&format!("if ({condition}) {{"));
        self.append(then);
        self.push("} else {");
        self.append(other);
        self.push("}");
    }
}
