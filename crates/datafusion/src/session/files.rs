// SPDX-License-Identifier: Apache-2.0
//! Files as tables by their names: `SELECT … FROM 'x.parquet'`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, TableReference, plan_err};
use datafusion::datasource::file_format::csv::{CsvFormat, CsvFormatFactory};
use datafusion::datasource::file_format::json::JsonFormatFactory;
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};
use datafusion::logical_expr::planner::{RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::prelude::SessionContext;
use datafusion::sql::sqlparser::ast::{ObjectNamePart, TableFactor};

/// The session with files as tables by their names, as in the shell, ADBC and the C library.
///
/// Beside DataFusion's extensions (`.parquet`, `.csv`, `.json`, `.avro`, `.arrow`) there are
/// `.tsv`, `.ndjson` and `.jsonl`. The error for a file that does not exist says so.
///
/// # Errors
/// If the session has these formats already.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let ctx = devicefusion::with_file_tables(devicefusion::session()?)?;
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("t.tsv").display().to_string();
/// std::fs::write(&file, "a\tb\n1\t2\n")?;
/// let rows = ctx.sql(&format!("SELECT a + b FROM '{file}'")).await?.collect().await?;
/// assert_eq!(rows[0].num_rows(), 1);
/// let error = ctx.sql("SELECT * FROM 'nowhere/t.tsv'").await.unwrap_err();
/// assert!(error.to_string().contains("there is no file 'nowhere/t.tsv'"));
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn with_file_tables(ctx: SessionContext) -> Result<SessionContext> {
    let ctx = ctx.enable_url_table();
    let state = ctx.state_ref();
    let mut state = state.write();
    state.register_file_format(Arc::new(TabSeparated), false)?;
    for extension in ["ndjson", "jsonl"] {
        state.register_file_format(Arc::new(JsonLines { extension }), false)?;
    }
    drop(state);
    ctx.register_relation_planner(Arc::new(MissingFiles))?;
    Ok(ctx)
}

/// CSV with tabs.
#[derive(Debug)]
struct TabSeparated;

impl GetExt for TabSeparated {
    fn get_ext(&self) -> String {
        "tsv".into()
    }
}

impl FileFormatFactory for TabSeparated {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        let mut options = options.clone();
        options.entry("format.delimiter".into()).or_insert_with(|| "\t".into());
        CsvFormatFactory::new().create(state, &options)
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(CsvFormat::default().with_delimiter(b'\t'))
    }
}

/// JSON by another extension.
#[derive(Debug)]
struct JsonLines {
    extension: &'static str,
}

impl GetExt for JsonLines {
    fn get_ext(&self) -> String {
        self.extension.into()
    }
}

impl FileFormatFactory for JsonLines {
    fn create(&self, state: &dyn Session, options: &HashMap<String, String>) -> Result<Arc<dyn FileFormat>> {
        JsonFormatFactory::new().create(state, options)
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        JsonFormatFactory::new().default()
    }
}

/// Says that a file of a query is missing. DataFusion says that there is no such table.
#[derive(Debug)]
struct MissingFiles;

impl RelationPlanner for MissingFiles {
    fn plan_relation(&self, relation: TableFactor, context: &mut dyn RelationPlannerContext) -> Result<RelationPlanning> {
        if let Some(file) = file_name(&relation)
            && !Path::new(file).exists()
            && context.context_provider().get_table_source(TableReference::bare(file)).is_err()
        {
            if !is_pattern(file) {
                return plan_err!("there is no file '{file}'");
            }
            let skips = context.context_provider().options().execution.listing_table_ignore_subdirectory;
            let hint = match skips && file.rsplit_once('/').is_some_and(|(folders, _)| is_pattern(folders)) {
                true => "; SET datafusion.execution.listing_table_ignore_subdirectory = false reads folders below",
                false => "",
            };
            return plan_err!("no file matches '{file}'{hint}");
        }
        Ok(RelationPlanning::Original(Box::new(relation)))
    }
}

/// Whether a path is a pattern of paths.
fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The path of a table that can only be a file of this machine: a string, no URL, with a folder or
/// an extension.
fn file_name(relation: &TableFactor) -> Option<&str> {
    let TableFactor::Table { name, args: None, .. } = relation else { return None };
    let [ObjectNamePart::Identifier(name)] = &name.0[..] else { return None };
    let is_file = name.quote_style == Some('\'') && !name.value.contains("://");
    (is_file && (name.value.contains('/') || Path::new(&name.value).extension().is_some())).then_some(name.value.as_str())
}
