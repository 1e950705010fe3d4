// SPDX-License-Identifier: Apache-2.0
//! The line editor at a terminal: history, completion, and the colors of `datafusion-cli`.

use std::borrow::Cow;
use std::io::ErrorKind;
use std::path::PathBuf;

use datafusion::config::Dialect;
use datafusion_cli::helper::CliHelper;
use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::{CmdKind, Highlighter};
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{CompletionType, Config, Context, Editor, Helper, Result};

use crate::completion::Candidates;
use crate::statement::is_complete;

/// The backslash command that a token stands for. It needs no semicolon.
pub fn command(token: &str) -> Option<&'static str> {
    match token.trim().trim_end_matches(';').trim_end().to_lowercase().as_str() {
        "exit" | "quit" => Some("\\q"),
        "help" => Some("\\?"),
        _ => None,
    }
}

/// Entries that the history keeps.
const HISTORY_ENTRIES: usize = 10_000;

/// One input at the prompt.
pub enum Input {
    /// Statements.
    Statements(String),
    /// A backslash command.
    Command(String),
    /// Ctrl-C.
    Interrupted,
    /// Ctrl-D.
    End,
    /// Bytes that are not UTF-8.
    Malformed,
}

/// The line editor.
pub struct Prompt {
    editor: Editor<LineHelper, FileHistory>,
    history: Option<PathBuf>,
}

impl Prompt {
    /// Opens the terminal.
    ///
    /// # Errors
    /// If there is none.
    pub fn open(dialect: &Dialect, color: bool) -> Result<Prompt> {
        let config = Config::builder().completion_type(CompletionType::List).auto_add_history(true);
        let config = config.max_history_size(HISTORY_ENTRIES)?.build();
        let mut editor = Editor::with_config(config)?;
        let helper = LineHelper {
            cli: CliHelper::new(dialect, color),
            files: FilenameCompleter::new(),
            candidates: Candidates::default(),
            dialect: *dialect,
        };
        editor.set_helper(Some(helper));
        let history = history_file();
        if let Some(file) = &history {
            // The first shell of a user has none.
            _ = editor.load_history(file);
        }
        Ok(Prompt { editor, history })
    }

    /// Reads statements, which end with a semicolon, or a command.
    ///
    /// # Errors
    /// Those of the terminal.
    pub fn read(&mut self, candidates: Candidates, dialect: &Dialect) -> Result<Input> {
        if let Some(helper) = self.editor.helper_mut() {
            helper.candidates = candidates;
            helper.dialect = *dialect;
            helper.cli.set_dialect(dialect);
            helper.cli.reset_hint();
        }
        let typed = self.editor.readline("> ");
        if let Some(file) = &self.history {
            // Saved at once, for a shell that is killed. Without a history the shell works too.
            _ = self.editor.append_history(file);
        }
        match typed {
            Ok(text) => Ok(match (command(&text), text.trim()) {
                (Some(command), _) => Input::Command(command.to_owned()),
                (None, text) if text.starts_with(['\\', '.']) => Input::Command(text.to_owned()),
                _ => Input::Statements(text),
            }),
            Err(ReadlineError::Io(error)) if error.kind() == ErrorKind::InvalidData => Ok(Input::Malformed),
            Err(ReadlineError::Interrupted) => Ok(Input::Interrupted),
            Err(ReadlineError::Eof) => Ok(Input::End),
            Err(error) => Err(error),
        }
    }
}

/// The history in the user's folder, which is made.
fn history_file() -> Option<PathBuf> {
    let folder = dirs::state_dir().or_else(dirs::data_dir)?.join("devicefusion");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

struct LineHelper {
    cli: CliHelper,
    files: FilenameCompleter,
    candidates: Candidates,
    dialect: Dialect,
}

impl Completer for LineHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, pos: usize, context: &Context<'_>) -> Result<(usize, Vec<Pair>)> {
        let before = &line[..pos];
        // Within a string, which may name a file.
        if before.matches('\'').count() % 2 == 1 {
            return self.files.complete(line, pos, context);
        }
        let (begin, names) = self.candidates.complete(before);
        Ok((begin, names.into_iter().map(|name| Pair { display: name.clone(), replacement: name }).collect()))
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> Result<ValidationResult> {
        let input = context.input().trim();
        let ends =
            input.is_empty() || input.starts_with(['\\', '.']) || command(input).is_some() || is_complete(&self.dialect, input);
        Ok(if ends { ValidationResult::Valid(None) } else { ValidationResult::Incomplete })
    }
}

impl Hinter for LineHelper {
    type Hint = String;

    fn hint(&self, line: &str, pos: usize, context: &Context<'_>) -> Option<String> {
        self.cli.hint(line, pos, context)
    }
}

impl Highlighter for LineHelper {
    fn highlight<'l>(&self, line: &'l str, pos: usize) -> Cow<'l, str> {
        self.cli.highlight(line, pos)
    }

    fn highlight_char(&self, line: &str, pos: usize, kind: CmdKind) -> bool {
        self.cli.highlight_char(line, pos, kind)
    }

    fn highlight_hint<'h>(&self, hint: &'h str) -> Cow<'h, str> {
        self.cli.highlight_hint(hint)
    }
}

impl Helper for LineHelper {}
