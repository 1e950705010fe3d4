// SPDX-License-Identifier: Apache-2.0
//! Where statements end.

use datafusion::config::Dialect;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// What the tokenizer says of a string, a name or a comment whose end is missing.
const UNTERMINATED: [&str; 2] = ["Unterminated", "EOF"];

/// Whether a text ends with the semicolon of a statement. One within a string or a comment ends
/// none, and a comment may follow. A text that is malformed otherwise ends there too: its error is
/// better now than after all that follows.
pub fn is_complete(dialect: &Dialect, sql: &str) -> bool {
    let dialect = dialect_from_str(dialect).unwrap_or_else(|| Box::new(GenericDialect));
    match Tokenizer::new(dialect.as_ref(), sql).tokenize() {
        Ok(tokens) => {
            let last = tokens.iter().rev().find(|token| !matches!(token, Token::Whitespace(_)));
            last == Some(&Token::SemiColon)
        }
        Err(error) => {
            let is_open = UNTERMINATED.iter().any(|words| error.message.contains(words));
            !is_open && sql.trim_end().ends_with(';')
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_semicolon_outside_of_strings_and_comments_ends_a_statement() {
        let complete = [
            "SELECT 1;",
            "SELECT 1; \n",
            "SELECT ';';",
            "SELECT 1; -- done",
            "SELECT $$a;b$$; /* ; */",
            "SELECT 1; ;",
            "SELECT U&'\\zzzz';",
        ];
        let incomplete = [
            "",
            "SELECT 1",
            "SELECT 1 -- first;",
            "SELECT 1 /* ; */",
            "SELECT 'a;",
            "SELECT $$a;",
            "SELECT 1; SELECT 2",
            "/* ;",
            "SELECT \"a;",
        ];
        for sql in complete {
            assert!(is_complete(&Dialect::Generic, sql), "{sql}");
        }
        for sql in incomplete {
            assert!(!is_complete(&Dialect::Generic, sql), "{sql}");
        }
    }
}
