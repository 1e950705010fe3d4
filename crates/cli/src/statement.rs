// SPDX-License-Identifier: Apache-2.0
//! Where statements end.

use datafusion::config::Dialect;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, Tokenizer};

/// Parts of the tokenizer's messages for a string, a name or a comment whose end is missing.
const UNTERMINATED: [&str; 2] = ["Unterminated", "EOF"];

/// Whether a text ends with the semicolon of a statement. One within a string or a comment ends
/// none, and a comment may follow. A text that is malformed otherwise ends there too: its error is
/// better now than later.
pub fn is_complete(dialect: &Dialect, sql: &str) -> bool {
    let dialect = dialect_from_str(dialect).unwrap_or_else(|| Box::new(GenericDialect));
    match Tokenizer::new(dialect.as_ref(), sql).tokenize() {
        Ok(tokens) => {
            let last = tokens.iter().rev().find(|token| !matches!(token, Token::Whitespace(_)));
            last == Some(&Token::SemiColon)
        }
        Err(error) => {
            let is_open = UNTERMINATED.iter().any(|part| error.message.contains(part));
            !is_open && sql.trim_end().ends_with(';')
        }
    }
}

/// The statements of a text, each from its first token to its semicolon. A text that is malformed
/// is one statement.
pub fn statements(dialect: &Dialect, sql: &str) -> Vec<String> {
    let dialect = dialect_from_str(dialect).unwrap_or_else(|| Box::new(GenericDialect));
    let Ok(tokens) = Tokenizer::new(dialect.as_ref(), sql).tokenize_with_location() else { return vec![sql.to_owned()] };
    let lines: Vec<&str> = sql.split_inclusive('\n').collect();
    // Columns count characters from 1.
    let offset = |position: Location| {
        let line = (position.line as usize).saturating_sub(1);
        let before: usize = lines.iter().take(line).map(|line| line.len()).sum();
        let characters = (position.column as usize).saturating_sub(1);
        let within = lines.get(line).map_or(0, |line| line.chars().take(characters).map(char::len_utf8).sum());
        (before + within).min(sql.len())
    };
    let (mut statements, mut begin) = (vec![], None);
    for token in &tokens {
        match token.token {
            Token::SemiColon => {
                let statement = begin.take().and_then(|begin| sql.get(begin..offset(token.span.end)));
                statements.extend(statement.map(str::to_owned));
            }
            Token::Whitespace(_) => {}
            _ => begin = begin.or(Some(offset(token.span.start))),
        }
    }
    statements.extend(begin.and_then(|begin| sql.get(begin..)).map(str::to_owned));
    statements
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_statements() {
        let cut = |sql: &str| statements(&Dialect::Generic, sql);
        assert_eq!(
            cut("SELECT ';ü'; -- b;\n SUMMARIZE t;\n\nSELECT 'é'\n, 2"),
            ["SELECT ';ü';", "SUMMARIZE t;", "SELECT 'é'\n, 2"]
        );
        assert_eq!(cut("SELECT 'ü"), ["SELECT 'ü"]);
        assert_eq!(cut(" ; ;"), Vec::<String>::new());
    }

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
