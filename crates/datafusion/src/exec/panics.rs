// SPDX-License-Identifier: Apache-2.0
//! Panics of the host's operators and expressions, as errors.
//!
//! Readers of files panic on some damaged files, and functions on some arguments. DataFusion lets
//! the panic go on in the thread that polls, or reports a failed task by its number.

use std::any::Any;
use std::collections::BTreeSet;
use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use futures::StreamExt;
use tokio::task::JoinError;

/// The most files that an error names.
const NAMED_FILES: usize = 8;

/// The rows that `start` gives of a host operator.
///
/// A panic, of the operator or of a task started by it, is an error that names the operator, its
/// scans and their files. Any file of a scan may be the one: partitions take files from each
/// other.
pub(crate) fn caught(
    plan: &Arc<dyn ExecutionPlan>,
    start: impl FnOnce() -> Result<SendableRecordBatchStream>,
) -> Result<SendableRecordBatchStream> {
    let rows = catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|panic| Err(error(plan, &message(panic))))?;
    let (schema, plan) = (rows.schema(), Arc::clone(plan));
    let rows = AssertUnwindSafe(rows).catch_unwind().map(move |rows| match rows {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(failed)) => Err(panic_of_task(&failed).map_or(failed, |panic| error(&plan, &panic))),
        Err(panic) => Err(error(&plan, &message(panic))),
    });
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}

/// The value of an expression. A panic is an error that names operator and expression.
pub(crate) fn evaluate(operator: &str, expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ColumnarValue> {
    catch_unwind(AssertUnwindSafe(|| expr.evaluate(rows)))
        .unwrap_or_else(|panic| exec_err!("{operator}: {expr}, evaluated on the host: {}", message(panic)))
}

/// The text of a panic caught by `catch_unwind`; `None` if its payload is no text. Leaks the
/// payload, whose drop might panic again.
///
/// # Examples
/// ```
/// use std::panic::{catch_unwind, panic_any};
///
/// let text = |body: fn()| catch_unwind(body).err().and_then(devicefusion::panic_text);
/// assert_eq!(text(|| panic!("row {}", 7)).as_deref(), Some("row 7"));
/// assert_eq!(text(|| panic!("plainly")).as_deref(), Some("plainly"));
/// assert_eq!(text(|| panic_any(7)), None);
/// ```
pub fn panic_text(payload: Box<dyn Any + Send>) -> Option<String> {
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    std::mem::forget(payload);
    text
}

/// As tokio phrases it for a task.
fn message(panic: Box<dyn Any + Send>) -> String {
    panic_text(panic).map_or_else(|| "panicked".to_owned(), |text| format!("panicked with message {text:?}"))
}

/// The panic of a task that is the cause of an error.
fn panic_of_task(error: &DataFusionError) -> Option<String> {
    let mut next: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(cause) = next {
        let task = cause.downcast_ref::<JoinError>().or_else(|| cause.downcast_ref::<Arc<JoinError>>().map(Arc::as_ref));
        if let Some(task) = task {
            return task.is_panic().then(|| task.to_string());
        }
        next = cause.source();
    }
    None
}

fn error(plan: &Arc<dyn ExecutionPlan>, panic: &str) -> DataFusionError {
    let (mut scans, mut files) = (BTreeSet::new(), BTreeSet::new());
    // The visit has no errors.
    _ = plan.apply(|node| {
        if node.children().is_empty() {
            scans.insert(node.name().to_owned());
            files.extend(files_of(node));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    let mut operator = plan.name().to_owned();
    if !plan.children().is_empty() {
        operator = format!("{operator} over {}", joined(&scans));
    }
    match files.len() {
        0 => exec_datafusion_err!("{operator}: {panic}"),
        1 => exec_datafusion_err!("{operator} of {}: {panic}; the file may be damaged", joined(&files)),
        _ => exec_datafusion_err!("{operator} of {}: {panic}; one of the files may be damaged", joined(&files)),
    }
}

fn joined(names: &BTreeSet<String>) -> String {
    let named: Vec<&str> = names.iter().take(NAMED_FILES).map(String::as_str).collect();
    match names.len().saturating_sub(NAMED_FILES) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

/// The URLs of a scan's files.
fn files_of(scan: &Arc<dyn ExecutionPlan>) -> Vec<String> {
    let source = scan.downcast_ref::<DataSourceExec>().map(DataSourceExec::data_source);
    let Some(config) = source.and_then(|source| source.downcast_ref::<FileScanConfig>()) else { return vec![] };
    let files = config.file_groups.iter().flat_map(FileGroup::files);
    files.map(|file| format!("{}{}", config.object_store_url, file.object_meta.location)).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array, StringArray};
    use datafusion::common::DFSchema;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[test]
    fn a_function_that_panics_is_named() {
        let (strings, lengths) = (Arc::new(StringArray::from(vec!["a"])), Arc::new(Int64Array::from(vec![-1])));
        let rows = RecordBatch::try_from_iter([("s", strings as ArrayRef), ("n", lengths as ArrayRef)]).unwrap();
        let (ctx, schema) = (SessionContext::new(), DFSchema::try_from(rows.schema()).unwrap());
        // DataFusion 55.2 allocates the sum of the lengths, without signs.
        let lpad = ctx.parse_sql_expr("lpad(s, n)", &schema).unwrap();
        let lpad = ctx.create_physical_expr(lpad, &schema).unwrap();
        let error = evaluate("DeviceFilterExec", &lpad, &rows).unwrap_err().strip_backtrace();
        assert!(error.contains("DeviceFilterExec: lpad("), "{error}");
        assert!(error.ends_with(", evaluated on the host: panicked with message \"capacity overflow\""), "{error}");
    }

    #[test]
    fn an_error_names_a_few_files() {
        let names = |count: usize| joined(&(1..=count).map(|number| format!("{number}.csv")).collect());
        assert_eq!(names(2), "1.csv, 2.csv");
        assert_eq!(names(8), "1.csv, 2.csv, 3.csv, 4.csv, 5.csv, 6.csv, 7.csv, 8.csv");
        assert_eq!(names(9), "1.csv, 2.csv, 3.csv, 4.csv, 5.csv, 6.csv, 7.csv, 8.csv and 1 more");
    }
}
