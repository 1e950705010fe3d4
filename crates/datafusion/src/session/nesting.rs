// SPDX-License-Identifier: Apache-2.0
//! The deepest accepted SQL, and the stack that it needs.
//!
//! DataFusion plans deep expressions on a stack that grows. It clones, drops and evaluates them by
//! plain recursion, and the end of the stack ends the process. Programs with SQL from others
//! therefore run it with [`STACK_BYTES`] of stack, and refuse SQL that needs more.

use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, plan_err};
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

/// Bytes of stack that each thread needs for SQL accepted by [`check_nesting`]. Only what a thread
/// touches of it takes memory.
pub const STACK_BYTES: usize = 64 << 20;

/// Operators that may nest. 3,000 of them overflow a stack of 2 MiB, and fit one of 4 MiB. Builds
/// for tests hold fewer: without optimization each takes up to 10 KiB.
const MAX_OPERATORS: usize = 20_000;

/// Operators that may nest on a stack of 2 MiB, also without optimization.
const SHALLOW_OPERATORS: usize = 128;

/// Operators of the deepest statement so far, and those of all views and prepared statements, which
/// later statements may nest.
static DEEPEST: AtomicUsize = AtomicUsize::new(0);
static KEPT: AtomicUsize = AtomicUsize::new(0);

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
    let operators = DEEPEST.load(Ordering::Relaxed).saturating_add(KEPT.load(Ordering::Relaxed));
    if operators > SHALLOW_OPERATORS { with_large_stack(work) } else { work() }
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
    if is_shallow(sql) && KEPT.load(Ordering::Relaxed) == 0 {
        return Ok(());
    }
    let dialect = dialect_from_str(options.sql_parser.dialect).unwrap_or_else(|| Box::new(GenericDialect));
    let Ok(tokens) = Tokenizer::new(dialect.as_ref(), sql).tokenize() else { return Ok(()) };
    let statements = tokens.split(|token| *token == Token::SemiColon);
    let operators = statements.map(most_operators).max().unwrap_or(0);
    DEEPEST.fetch_max(operators, Ordering::Relaxed);
    let is_kept =
        |token: &Token| matches!(token, Token::Word(name) if KEEPING.iter().any(|(keyword, _)| *keyword == name.keyword));
    if tokens.iter().any(is_kept) {
        KEPT.fetch_add(operators, Ordering::Relaxed);
    }
    match operators {
        operators if operators > MAX_OPERATORS => plan_err!(
            "an expression nests up to {operators} operators, the limit is {MAX_OPERATORS}: \
             use IN, a join with VALUES, or several statements instead"
        ),
        _ => Ok(()),
    }
}

/// Keywords of statements that later ones may nest, with their text.
const KEEPING: [(Keyword, &str); 2] = [(Keyword::VIEW, "view"), (Keyword::PREPARE, "prepare")];

/// Whether SQL is short enough for any stack, and keeps nothing for later statements. Spares most
/// short queries the tokenizer.
fn is_shallow(sql: &str) -> bool {
    let has = |text: &str| sql.as_bytes().windows(text.len()).any(|bytes| bytes.eq_ignore_ascii_case(text.as_bytes()));
    // An operator has at least one byte, and the end of a bracket, which counts as one, another.
    sql.len() <= SHALLOW_OPERATORS && !KEEPING.iter().any(|(_, text)| has(text))
}

/// Operators within one bracket. Commas separate its expressions, which do not nest.
#[derive(Default)]
struct Bracket {
    /// Whether END closes it.
    is_case: bool,
    /// Whether commas separate tables. Joins of these nest.
    is_from: bool,
    /// Those since the last comma.
    operators: usize,
    /// The most operators of a bracket within, since the last comma.
    within: usize,
    /// The most of any expression before the last comma.
    most: usize,
}

impl Bracket {
    fn case() -> Bracket {
        Bracket { is_case: true, ..Bracket::default() }
    }

    fn end_expression(&mut self) {
        self.most = self.most.max(self.operators + self.within);
        (self.operators, self.within) = (0, 0);
    }
}

/// Brackets that are open, and the number of all operators.
struct Nesting {
    open: Vec<Bracket>,
    operators: usize,
}

impl Nesting {
    fn count(&mut self) {
        self.operators += 1;
        if let Some(bracket) = self.open.last_mut() {
            bracket.operators += 1;
        }
    }

    fn close(&mut self) {
        if let [.., outer, inner] = self.open.as_mut_slice() {
            inner.end_expression();
            outer.within = outer.within.max(inner.most + 1);
            self.open.pop();
        }
    }

    fn is_in_case(&self) -> bool {
        self.open.len() > 1 && self.open.last().is_some_and(|bracket| bracket.is_case)
    }

    /// Closes a bracket, and each CASE in it that lacks its END.
    fn close_bracket(&mut self) {
        while self.is_in_case() {
            self.close();
        }
        self.close();
    }

    fn comma(&mut self) {
        match self.open.last_mut() {
            Some(bracket) if bracket.is_from => self.count(),
            Some(bracket) => bracket.end_expression(),
            None => {}
        }
    }

    fn keyword(&mut self, keyword: Keyword) {
        match keyword {
            Keyword::NoKeyword | Keyword::WHEN | Keyword::THEN | Keyword::ELSE => {}
            Keyword::CASE => self.open.push(Bracket::case()),
            Keyword::END if self.is_in_case() => self.close(),
            _ => self.count(),
        }
        let is_from = match keyword {
            Keyword::FROM => true,
            Keyword::SELECT | Keyword::WHERE | Keyword::GROUP | Keyword::HAVING | Keyword::ORDER | Keyword::WINDOW => false,
            _ => return,
        };
        if let Some(bracket) = self.open.last_mut() {
            bracket.is_from = is_from;
        }
    }
}

/// A bound of the depth to which the operators of a statement nest. With several SELECTs it is the
/// number of all operators, since the optimizer may put one SELECT into another.
fn most_operators(tokens: &[Token]) -> usize {
    let mut selects = 0;
    let mut nesting = Nesting { open: vec![Bracket::default()], operators: 0 };
    for token in tokens {
        match token {
            Token::LParen | Token::LBrace => nesting.open.push(Bracket::default()),
            Token::LBracket => {
                // Subscripts follow one another: a[1][2].
                nesting.count();
                nesting.open.push(Bracket::default());
            }
            Token::RParen | Token::RBrace | Token::RBracket => nesting.close_bracket(),
            Token::Comma => nesting.comma(),
            Token::Word(name) => {
                selects += usize::from(name.keyword == Keyword::SELECT);
                nesting.keyword(name.keyword);
            }
            Token::Whitespace(_) | Token::Number(..) | Token::SingleQuotedString(_) => {}
            _ => nesting.count(),
        }
    }
    while nesting.open.len() > 1 {
        nesting.close();
    }
    let mut statement = nesting.open.pop().unwrap_or_default();
    statement.end_expression();
    if selects > 1 { nesting.operators.max(statement.most) } else { statement.most }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operators(sql: &str) -> usize {
        most_operators(&Tokenizer::new(&GenericDialect, sql).tokenize().unwrap())
    }

    #[test]
    fn chains_brackets_subscripts_and_joins_nest() {
        assert_eq!(operators("a + b + c * 2"), 3);
        assert_eq!(operators("(a + b) * (a - (b + c))"), 5);
        assert_eq!(operators("a[1][2][3]"), 4);
        assert_eq!(operators("((((a))))"), 4);
        assert_eq!(operators("a IS NULL IS NULL"), 4);
        assert_eq!(operators("1 UNION ALL 2 UNION ALL 3"), 4);
        assert_eq!(operators("FROM a, b, c, d WHERE x, y"), 5);
    }

    #[test]
    fn several_selects_count_all_operators() {
        // WITH, three SELECT, two AS, two FROM, two `*`.
        assert_eq!(operators("WITH a AS (SELECT 1), b AS (SELECT * FROM a) SELECT * FROM b"), 10);
        assert!(operators("SELECT x + 1, x + 2, x + 3 FROM (SELECT a + b, a + c FROM t)") >= 5);
    }

    #[test]
    fn cases_nest_and_their_branches_add_up() {
        assert_eq!(operators("CASE WHEN a THEN b WHEN c THEN d ELSE e END"), 1);
        assert_eq!(operators("CASE WHEN a = 1 THEN b WHEN c = 2 THEN d END"), 3);
        assert_eq!(operators(&format!("{}1{}", "CASE WHEN a THEN 1 ELSE ".repeat(50), " END".repeat(50))), 50);
        // Columns of these names.
        assert!(operators("case OR then OR then OR end OR then") >= 4);
    }

    #[test]
    fn lists_literals_and_comments_do_not_nest() {
        assert_eq!(operators("f(a, b + 1, c + 1)"), 2);
        assert_eq!(operators("(1, 2), (3, 4), (-5, 6)"), 2);
        assert_eq!(operators("'a OR b OR c' -- OR\n /* OR OR */"), 0);
    }

    #[test]
    fn unbalanced_brackets_count_what_they_hold() {
        assert_eq!(operators("(a + b, (c + d + e"), 4);
        assert_eq!(operators(")) a + b )"), 1);
    }

    #[test]
    fn short_sql_is_shallow_unless_later_statements_may_nest_it() {
        assert!(is_shallow(&"a".repeat(SHALLOW_OPERATORS)));
        assert!(!is_shallow(&"a".repeat(SHALLOW_OPERATORS + 1)));
        assert!(operators(&"(".repeat(SHALLOW_OPERATORS)) <= SHALLOW_OPERATORS);
        assert!(!is_shallow("CREATE View v AS SELECT 1"));
        assert!(!is_shallow("PREPARE p AS SELECT $1"));
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
