// SPDX-License-Identifier: Apache-2.0
//! Prints results: rows as they come in formats for programs, tables for people.

use std::io::{IsTerminal, Write, stderr, stdout};
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::{Array, RecordBatch, StringArray};
use datafusion::arrow::csv;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::arrow::json::writer::{JsonArray, JsonFormat, LineDelimited, WriterBuilder};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{Result, plan_err};
use datafusion::execution::memory_pool::MemoryConsumer;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion_cli::object_storage::instrumented::{
    InstrumentedObjectStoreMode, InstrumentedObjectStoreRegistry, RequestSummaries,
};
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;
use futures::StreamExt;
use tokio::task::yield_now;

use crate::progress::Progress;
use crate::table::TextTable;

/// Whether rows are printed as records, a line for each value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expanded {
    /// Always.
    On,
    /// Never: wide tables are cut to the terminal.
    Off,
    /// If a table is wider than the terminal.
    Auto,
}

/// The printer of results, with its settings.
#[derive(Debug, Clone)]
pub struct Printer {
    pub format: PrintFormat,
    /// Most rows of a table.
    pub maxrows: MaxRows,
    pub expanded: Expanded,
    /// Whether a result is printed alone, without the number of rows and the time.
    pub quiet: bool,
    /// Whether the time follows a result.
    pub timing: bool,
    pub registry: Arc<InstrumentedObjectStoreRegistry>,
}

/// A statement that runs.
pub struct RunningStatement {
    pub rows: SendableRecordBatchStream,
    pub kind: StatementKind,
    /// Whether the rows never end.
    pub is_endless: bool,
    /// Ends before the first row is printed.
    pub progress: Progress,
    /// When the statement began.
    pub begun: Instant,
}

/// The kind of a statement, as far as printing depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatementKind {
    /// Rows.
    Query,
    /// Few rows that are all shown: settings, columns.
    Listing,
    /// Text of plans, whose lines stay as they are.
    Plan,
}

/// Prints a line on standard error, whose reader may have gone.
pub fn print_to_stderr(line: &str) {
    _ = writeln!(stderr(), "{line}");
}

impl Printer {
    /// Runs a statement to its end and prints the rows.
    ///
    /// # Errors
    /// Those of the statement, and of writing.
    pub async fn print(&self, running: RunningStatement, task: &TaskContext) -> Result<()> {
        let begun = running.begun;
        let printed = match self.format {
            PrintFormat::Automatic if running.is_endless => self.print_separated(running, b',', task).await?,
            PrintFormat::Table if running.is_endless => {
                return plan_err!("a table of endless rows: choose another format, such as csv");
            }
            PrintFormat::Table | PrintFormat::Automatic => self.print_table(running, task).await?,
            PrintFormat::Csv => self.print_separated(running, b',', task).await?,
            PrintFormat::Tsv => self.print_separated(running, b'\t', task).await?,
            PrintFormat::Json => self.print_json::<JsonArray>(running).await?,
            PrintFormat::NdJson => self.print_json::<LineDelimited>(running).await?,
        };
        self.print_summary(&printed, begun)
    }

    /// Rows with a header, which an empty result has too.
    async fn print_separated(&self, running: RunningStatement, delimiter: u8, task: &TaskContext) -> Result<Printed> {
        let RunningStatement { mut rows, progress, .. } = running;
        let options: FormatOptions<'_> = (&task.session_config().options().format).try_into()?;
        let mut printed = Printed::default();
        let mut writer = csv::WriterBuilder::new().with_delimiter(delimiter).build(stdout());
        let (schema, mut progress) = (rows.schema(), Some(progress));
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            printed.rows += batch.num_rows();
            if batch.num_rows() > 0 {
                progress.take();
                writer.write(&batch_of_text(batch, &options)?)?;
            }
            // Ctrl-C comes between batches.
            yield_now().await;
        }
        drop(progress);
        if printed.rows == 0 && !schema.fields().is_empty() {
            writer.write(&batch_of_text(RecordBatch::new_empty(schema), &options)?)?;
        }
        Ok(printed)
    }

    /// Objects with all fields: NULL is `null`.
    async fn print_json<F: JsonFormat>(&self, running: RunningStatement) -> Result<Printed> {
        let RunningStatement { mut rows, progress, .. } = running;
        let mut printed = Printed::default();
        let (has_columns, mut progress) = (!rows.schema().fields().is_empty(), Some(progress));
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, F>(stdout());
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            printed.rows += batch.num_rows();
            progress.take();
            writer.write(&batch)?;
            yield_now().await;
        }
        drop(progress);
        if has_columns {
            writer.finish()?;
            if self.format == PrintFormat::Json {
                writeln!(stdout())?;
            }
        }
        Ok(printed)
    }

    async fn print_table(&self, running: RunningStatement, task: &TaskContext) -> Result<Printed> {
        let RunningStatement { mut rows, kind, progress, .. } = running;
        let options: FormatOptions<'_> = (&task.session_config().options().format).try_into()?;
        let most = match (kind, self.maxrows) {
            (StatementKind::Query, MaxRows::Limited(rows)) => rows,
            (StatementKind::Query, MaxRows::Unlimited) | (StatementKind::Listing | StatementKind::Plan, _) => usize::MAX,
        };
        let reservation = MemoryConsumer::new("results of the shell").register(task.memory_pool());
        let (mut shown, mut rows_shown, mut printed) = (Vec::new(), 0, Printed::default());
        let schema = rows.schema();
        while let Some(batch) = rows.next().await {
            let batch = batch?;
            printed.rows += batch.num_rows();
            let part = batch.slice(0, batch.num_rows().min(most - rows_shown));
            if part.num_rows() > 0 {
                rows_shown += part.num_rows();
                reservation.try_grow(part.get_array_memory_size())?;
                shown.push(part);
            }
        }
        drop(progress);
        printed.rows_hidden = printed.rows - rows_shown;
        if kind == StatementKind::Plan && self.expanded == Expanded::Off {
            write!(stdout(), "{}", plan_text(&shown, &options)?)?;
            return Ok(printed);
        }
        if schema.fields().is_empty() {
            printed.rows_hidden = 0;
            printed.lacks_columns = printed.rows > 0;
            return Ok(printed);
        }
        if most == 0 {
            return Ok(printed);
        }
        let text = self.table(schema, shown, &mut printed, &options)?;
        write!(stdout(), "{text}")?;
        Ok(printed)
    }

    fn table(
        &self,
        schema: SchemaRef,
        mut batches: Vec<RecordBatch>,
        printed: &mut Printed,
        options: &FormatOptions<'_>,
    ) -> Result<String> {
        if batches.is_empty() {
            batches.push(RecordBatch::new_empty(Arc::clone(&schema)));
        }
        let table = TextTable::try_new(&batches, options)?;
        if self.expanded == Expanded::On {
            return Ok(table.records());
        }
        let width = terminal_width();
        Ok(match (table.whole(width), self.expanded) {
            (Some(whole), _) => whole,
            (None, Expanded::Auto) => table.records(),
            (None, _) => {
                let (text, shown) = table.cut(width);
                printed.is_cut = true;
                printed.columns_hidden = schema.fields().len() - shown;
                text
            }
        })
    }

    fn print_summary(&self, printed: &Printed, begun: Instant) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        // Programs read rows only.
        let mut out: Box<dyn Write> = match self.format {
            PrintFormat::Automatic | PrintFormat::Table => Box::new(stdout()),
            PrintFormat::Csv | PrintFormat::Tsv | PrintFormat::Json | PrintFormat::NdJson => Box::new(stderr()),
        };
        let mut notes = vec![format!("{} row(s) fetched.", printed.rows)];
        if printed.lacks_columns {
            notes.push("(They have no columns: FROM without SELECT)".to_owned());
        }
        if printed.rows_hidden > 0 {
            let displayed = printed.rows - printed.rows_hidden;
            let shown = if displayed == 0 { "None".to_owned() } else { format!("First {displayed}") };
            notes.push(format!("({shown} displayed. Use --maxrows or \\pset maxrows to adjust)"));
        }
        match printed.columns_hidden {
            0 if printed.is_cut => notes.push("(Long values are cut. \\x shows them)".to_owned()),
            0 => {}
            hidden => notes.push(format!("(Columns without room: {hidden}. \\x shows them)")),
        }
        writeln!(out, "{}", notes.join(" "))?;
        if self.timing {
            writeln!(out, "Elapsed {:.3} seconds.", begun.elapsed().as_secs_f64())?;
        }
        writeln!(out)?;
        let mode = self.registry.instrument_mode();
        if mode != InstrumentedObjectStoreMode::Disabled {
            writeln!(out, "Object Store Profiling")?;
            for store in self.registry.stores() {
                let requests = store.take_requests();
                if requests.is_empty() {
                    continue;
                }
                writeln!(out, "{store}")?;
                if mode == InstrumentedObjectStoreMode::Trace {
                    requests.iter().try_for_each(|request| writeln!(out, "{request}"))?;
                    writeln!(out)?;
                }
                writeln!(out, "Summaries:\n{}", RequestSummaries::new(&requests))?;
            }
        }
        Ok(())
    }
}

/// The printed and the hidden parts of a result.
#[derive(Debug, Default)]
struct Printed {
    rows: usize,
    rows_hidden: usize,
    columns_hidden: usize,
    is_cut: bool,
    lacks_columns: bool,
}

/// A batch with lists and structs as text, since CSV has none.
fn batch_of_text(batch: RecordBatch, options: &FormatOptions<'_>) -> Result<RecordBatch> {
    let schema = batch.schema();
    if !schema.fields().iter().any(|field| field.data_type().is_nested()) {
        return Ok(batch);
    }
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (field, column) in schema.fields().iter().zip(batch.columns()) {
        if !field.data_type().is_nested() {
            fields.push(field.as_ref().clone());
            columns.push(Arc::clone(column));
            continue;
        }
        let values = ArrayFormatter::try_new(column, options)?;
        let text = (0..column.len()).map(|row| column.is_valid(row).then(|| values.value(row).to_string()));
        fields.push(Field::new(field.name(), DataType::Utf8, true));
        columns.push(Arc::new(text.collect::<StringArray>()));
    }
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)?)
}

/// The text of plans as it is: padded to the width of a table, it would be many times as long.
fn plan_text(batches: &[RecordBatch], options: &FormatOptions<'_>) -> Result<String> {
    Ok(TextTable::try_new(batches, options)?.paragraphs())
}

/// Columns of text of the terminal; without one, as many as there are.
fn terminal_width() -> usize {
    match terminal_size::terminal_size() {
        Some((width, _)) if stdout().is_terminal() => usize::from(width.0),
        _ => usize::MAX,
    }
}
