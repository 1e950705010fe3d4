// SPDX-License-Identifier: Apache-2.0
//! SQL text to statements.

use std::borrow::Cow;
use std::collections::VecDeque;

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, plan_datafusion_err, plan_err};
use datafusion::sql::parser::{DFParserBuilder, Statement};
use datafusion::sql::sqlparser::dialect::{Dialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer};

/// The statements of a text, which semicolons separate. `options` has the dialect.
///
/// The parameters `?` of a statement become `$1`, `$2`, … in their order, since DataFusion takes
/// all of them for one parameter.
///
/// # Errors
/// If the text is malformed, or a statement has both kinds of parameters.
///
/// # Examples
/// ```
/// let options = datafusion::common::config::ConfigOptions::new();
/// let statements = devicefusion::parse_statements(&options, "SELECT ?, '?', ?; SELECT ?")?;
/// let texts: Vec<String> = statements.iter().map(|statement| statement.to_string()).collect();
/// assert_eq!(texts, ["SELECT $1, '?', $2", "SELECT $1"]);
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn parse_statements(options: &ConfigOptions, sql: &str) -> Result<VecDeque<Statement>> {
    let dialect = options.sql_parser.dialect;
    let dialect = dialect_from_str(dialect).ok_or_else(|| plan_datafusion_err!("there is no SQL dialect {dialect}"))?;
    let sql = numbered_parameters(dialect.as_ref(), sql)?;
    let mut parser = DFParserBuilder::new(sql.as_ref())
        .with_dialect(dialect.as_ref())
        .with_recursion_limit(options.sql_parser.recursion_limit.get())
        .build()?;
    parser.parse_statements()
}

/// The text with `$1`, `$2`, … for each `?` of a statement.
fn numbered_parameters<'a>(dialect: &dyn Dialect, sql: &'a str) -> Result<Cow<'a, str>> {
    if !sql.contains('?') {
        return Ok(sql.into());
    }
    // The parser reports what is malformed.
    let Ok(tokens) = Tokenizer::new(dialect, sql).tokenize_with_location() else { return Ok(sql.into()) };
    let mut text = String::with_capacity(sql.len() + 16);
    let mut rest = Rest { sql, line: 1, column: 1 };
    for statement in tokens.split(|token| token.token == Token::SemiColon) {
        let (unnamed, named): (Vec<_>, Vec<_>) = statement.iter().filter_map(parameter).partition(|(name, _)| *name == "?");
        if let ([_, ..], [(name, _), ..]) = (&unnamed[..], &named[..]) {
            return plan_err!("a statement has either parameters ? or parameters such as {name}, not both");
        }
        for (index, (_, token)) in unnamed.iter().enumerate() {
            text.push_str(rest.until(token.span.start.line, token.span.start.column));
            text.push_str(&format!("${}", index + 1));
            rest.until(token.span.start.line, token.span.start.column + 1);
        }
    }
    text.push_str(rest.sql);
    Ok(text.into())
}

/// The name of a parameter.
fn parameter(token: &TokenWithSpan) -> Option<(&str, &TokenWithSpan)> {
    match &token.token {
        Token::Placeholder(name) => Some((name, token)),
        _ => None,
    }
}

/// The rest of a text, and the position where it begins, counted from 1.
struct Rest<'a> {
    sql: &'a str,
    line: u64,
    column: u64,
}

impl<'a> Rest<'a> {
    /// Takes the text before a position.
    fn until(&mut self, line: u64, column: u64) -> &'a str {
        let mut end = self.sql.len();
        for (at, c) in self.sql.char_indices() {
            if (self.line, self.column) == (line, column) {
                end = at;
                break;
            }
            (self.line, self.column) = if c == '\n' { (self.line + 1, 1) } else { (self.line, self.column + 1) };
        }
        let (before, behind) = self.sql.split_at(end);
        self.sql = behind;
        before
    }
}

#[cfg(test)]
mod tests {
    use datafusion::sql::sqlparser::dialect::GenericDialect;

    use super::*;

    fn numbered(sql: &str) -> String {
        numbered_parameters(&GenericDialect, sql).unwrap().into_owned()
    }

    #[test]
    fn each_parameter_of_a_statement_gets_its_number() {
        assert_eq!(numbered("SELECT 1"), "SELECT 1");
        assert_eq!(numbered("SELECT ?"), "SELECT $1");
        assert_eq!(
            numbered("SELECT 'ä?', \"?\", -- ?\n\t/* ?\n */ ? + ?;\nSELECT ?\n"),
            "SELECT 'ä?', \"?\", -- ?\n\t/* ?\n */ $1 + $2;\nSELECT $1\n"
        );
        assert_eq!(numbered("SELECT '?"), "SELECT '?", "the parser tells what is wrong");
        let error = numbered_parameters(&GenericDialect, "SELECT ?; SELECT ?, $2").unwrap_err().to_string();
        assert!(error.contains("either parameters ? or parameters such as $2"), "{error}");
    }
}
