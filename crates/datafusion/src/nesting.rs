// SPDX-License-Identifier: Apache-2.0
//! The deepest SQL that is planned, and the stack that it needs.
//!
//! DataFusion plans deep expressions on a stack that grows. It clones, drops and evaluates them by
//! plain recursion, which ends the process where the stack ends. Programs whose SQL comes from
//! others therefore run it with [`STACK_BYTES`] of stack, and refuse SQL that needs more.

use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// Bytes of stack that each thread needs for SQL that [`check_nesting`] accepts. Only what a thread
/// touches of it takes memory.
pub const STACK_BYTES: usize = 64 << 20;

/// Operators that may nest. A level takes about 900 bytes of stack, and 2 KB without optimization.
const MAX_OPERATORS: usize = 20_000;

/// Operators that may nest on a stack of 2 MiB, also without optimization.
const SHALLOW_OPERATORS: usize = 128;

/// Whether [`check_nesting`] has met SQL that nests deeper than that. A view keeps it, so later
/// statements may be as deep.
static IS_DEEP: AtomicBool = AtomicBool::new(false);

/// Runs `work` with [`STACK_BYTES`] of stack, on the calling thread. A panic passes through.
///
/// # Examples
/// ```
/// assert_eq!(devicefusion::with_large_stack(|| 6 * 7), 42);
/// ```
pub fn with_large_stack<T>(work: impl FnOnce() -> T) -> T {
    stacker::grow(STACK_BYTES, work)
}

/// Runs `work` as [`with_large_stack`] does, once [`check_nesting`] has met deep SQL in this
/// process. Before, `work` runs on the stack of the thread: another one costs some 100 µs.
///
/// # Examples
/// ```
/// assert_eq!(devicefusion::with_enough_stack(|| 6 * 7), 42);
/// ```
pub fn with_enough_stack<T>(work: impl FnOnce() -> T) -> T {
    if IS_DEEP.load(Ordering::Relaxed) { with_large_stack(work) } else { work() }
}

/// Refuses SQL of which an expression nests more than 20,000 operators, such as `a OR b OR c OR …`.
/// `options` has the dialect.
///
/// # Errors
/// The number of operators, and what to write instead. Malformed SQL passes: its parser reports it.
///
/// # Examples
/// ```
/// let ctx = devicefusion::session()?;
/// let terms = vec!["a = 1"; 30_000].join(" OR ");
/// let state = ctx.state();
/// assert!(devicefusion::check_nesting(state.config_options(), "SELECT 1").is_ok());
/// assert!(devicefusion::check_nesting(state.config_options(), &format!("SELECT * FROM t WHERE {terms}")).is_err());
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn check_nesting(options: &ConfigOptions, sql: &str) -> Result<()> {
    // An operator takes at least a character.
    if sql.len() <= SHALLOW_OPERATORS {
        return Ok(());
    }
    let dialect = dialect_from_str(options.sql_parser.dialect).unwrap_or_else(|| Box::new(GenericDialect));
    let Ok(tokens) = Tokenizer::new(dialect.as_ref(), sql).tokenize() else { return Ok(()) };
    let operators = most_operators(&tokens);
    if operators > SHALLOW_OPERATORS {
        IS_DEEP.store(true, Ordering::Relaxed);
    }
    match operators {
        operators if operators > MAX_OPERATORS => plan_err!(
            "an expression nests up to {operators} operators, the limit is {MAX_OPERATORS}: \
             use IN, a join with VALUES, or several statements instead"
        ),
        _ => Ok(()),
    }
}

/// Operators within one bracket, of which commas separate expressions that do not nest.
#[derive(Default)]
struct Bracket {
    /// Those since the last comma.
    operators: usize,
    /// The most operators of a bracket within, since the last comma.
    within: usize,
    /// The most of any expression before the last comma.
    most: usize,
}

impl Bracket {
    fn end_expression(&mut self) {
        self.most = self.most.max(self.operators + self.within);
        (self.operators, self.within) = (0, 0);
    }
}

/// A bound of the depth to which operators nest. Each SELECT counts for the whole text, since a
/// common table expression nests the ones before it.
fn most_operators(tokens: &[Token]) -> usize {
    let mut selects = 0;
    let mut open = vec![Bracket::default()];
    let close = |open: &mut Vec<Bracket>| {
        if let [.., outer, inner] = open.as_mut_slice() {
            inner.end_expression();
            outer.within = outer.within.max(inner.most + 1);
            open.pop();
        }
    };
    for token in tokens {
        let Some(bracket) = open.last_mut() else { break };
        match token {
            Token::LParen | Token::LBrace => open.push(Bracket::default()),
            Token::LBracket => {
                // Subscripts follow one another: a[1][2].
                bracket.operators += 1;
                open.push(Bracket::default());
            }
            Token::RParen | Token::RBrace | Token::RBracket => close(&mut open),
            Token::Comma | Token::SemiColon => bracket.end_expression(),
            Token::Word(word) => match word.keyword {
                Keyword::NoKeyword | Keyword::CASE | Keyword::WHEN | Keyword::THEN | Keyword::ELSE | Keyword::END => {}
                Keyword::SELECT => selects += 1,
                _ => bracket.operators += 1,
            },
            Token::Whitespace(_) | Token::Number(..) | Token::SingleQuotedString(_) => {}
            _ => bracket.operators += 1,
        }
    }
    while open.len() > 1 {
        close(&mut open);
    }
    let mut statement = open.pop().unwrap_or_default();
    statement.end_expression();
    statement.most + selects
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operators(sql: &str) -> usize {
        most_operators(&Tokenizer::new(&GenericDialect, sql).tokenize().unwrap())
    }

    #[test]
    fn chains_brackets_subscripts_and_common_table_expressions_nest() {
        assert_eq!(operators("a + b + c * 2"), 3);
        assert_eq!(operators("(a + b) * (a - (b + c))"), 5);
        assert_eq!(operators("a[1][2][3]"), 4);
        assert_eq!(operators("((((a))))"), 4);
        assert_eq!(operators("a IS NULL IS NULL"), 4);
        assert_eq!(operators("1 UNION ALL 2 UNION ALL 3"), 4);
        assert_eq!(operators("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b"), 3 + 6);
    }

    #[test]
    fn lists_branches_literals_and_comments_do_not_nest() {
        assert_eq!(operators("f(a, b + 1, c + 1)"), 2);
        assert_eq!(operators("(1, 2), (3, 4), (-5, 6)"), 2);
        assert_eq!(operators("CASE WHEN a THEN b WHEN c THEN d ELSE e END"), 0);
        assert_eq!(operators("'a OR b OR c' -- OR\n /* OR OR */"), 0);
    }

    #[test]
    fn unbalanced_brackets_count_what_they_hold() {
        assert_eq!(operators("(a + b, (c + d + e"), 4);
        assert_eq!(operators(")) a + b )"), 1);
    }

    #[test]
    fn long_lists_pass_and_long_chains_are_refused_in_every_dialect() {
        let mut options = ConfigOptions::default();
        let rows = format!("INSERT INTO t VALUES {}", vec!["(-1, 'a OR b')"; 2 * MAX_OPERATORS].join(", "));
        check_nesting(&options, &rows).unwrap();
        let chain = |terms: usize| format!("SELECT {}", vec!["'\\'"; terms + 1].join(" || "));
        check_nesting(&options, &chain(MAX_OPERATORS - 1)).unwrap();
        let error = check_nesting(&options, &chain(MAX_OPERATORS)).unwrap_err().to_string();
        assert!(error.contains("nests up to 20001 operators, the limit is 20000"), "{error}");
        // A backslash hides the quote after it.
        options.set("datafusion.sql_parser.dialect", "MySQL").unwrap();
        check_nesting(&options, &chain(MAX_OPERATORS)).unwrap();
        let chain = format!("SELECT {}", vec!["'\\''"; MAX_OPERATORS + 2].join(" + "));
        check_nesting(&options, &chain).unwrap_err();
    }
}
