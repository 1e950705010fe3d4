// SPDX-License-Identifier: Apache-2.0
//! Loads the drivers while the first query over files is planned.
//!
//! The first list of devices takes a driver some 40 ms: PoCL loads LLVM. The physical plan needs
//! the device, and DataFusion's steps before it take as long for a large query. Queries of small
//! files and of the catalog load no driver.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::listing::{ListingTable, ListingTableUrl};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{LogicalPlan, TableScan};
use datafusion::optimizer::AnalyzerRule;

use crate::session::{DeviceOptions, DeviceRuntime};

/// Fewest bytes of a table whose queries load the drivers early.
const LARGE_BYTES: u64 = 1 << 20;

/// Has the drivers loaded in the background.
#[derive(Debug)]
pub(crate) struct EarlyDrivers {
    runtime: Arc<DeviceRuntime>,
    is_done: AtomicBool,
}

impl EarlyDrivers {
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        EarlyDrivers { runtime, is_done: AtomicBool::new(false) }
    }
}

impl AnalyzerRule for EarlyDrivers {
    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if self.is_done.load(Relaxed) {
            return Ok(plan);
        }
        let options = DeviceOptions::of(config);
        if options.enabled && reads_large_files(&plan)? {
            self.is_done.store(true, Relaxed);
            self.runtime.load_drivers(&options);
        }
        Ok(plan)
    }

    fn name(&self) -> &str {
        "early_drivers"
    }
}

fn reads_large_files(plan: &LogicalPlan) -> Result<bool> {
    let mut reads = false;
    plan.apply_with_subqueries(|node| {
        reads |= matches!(node, LogicalPlan::TableScan(scan) if is_large(scan));
        Ok(if reads { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(reads)
}

/// Whether a table is of large local files.
fn is_large(scan: &TableScan) -> bool {
    let Ok(provider) = source_as_provider(&scan.source) else { return false };
    let table = provider.downcast_ref::<ListingTable>();
    let local = table.into_iter().flat_map(ListingTable::table_paths).filter(|url| url.scheme() == "file");
    local.map(bytes).sum::<u64>() >= LARGE_BYTES
}

/// The bytes of a file, or of the files of a folder without those of folders in it.
fn bytes(url: &ListingTableUrl) -> u64 {
    let path = Path::new("/").join(url.prefix().as_ref());
    let bytes = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
    match path.read_dir() {
        Ok(entries) => entries.flatten().map(|entry| bytes(&entry.path())).sum(),
        Err(_) => bytes(&path),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[tokio::test]
    async fn only_large_files_need_a_device_soon() {
        let (ctx, folder) = (SessionContext::new().enable_url_table(), tempfile::tempdir().unwrap());
        let defaults = DeviceOptions::default();
        let write = |name: &str, rows: usize| {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
            let path = folder.path().join(name).join("part.csv");
            std::fs::write(&path, format!("k\n{}", "1234567\n".repeat(rows))).unwrap();
            path.display().to_string()
        };
        let (small, large) = (write("small", 9), write("large", 1 << 17));
        let parts = folder.path().join("large").display().to_string();
        let external = format!("CREATE EXTERNAL TABLE parts STORED AS CSV LOCATION '{parts}' OPTIONS (format.has_header true)");
        ctx.sql(&external).await.unwrap().collect().await.unwrap();
        for (sql, expected) in [
            ("SELECT 1".to_owned(), false),
            (format!("SELECT count(*) FROM '{small}'"), false),
            (format!("SELECT count(*) FROM '{large}'"), true),
            (format!("SELECT * FROM '{small}' WHERE k IN (SELECT k FROM '{large}')"), true),
            ("SELECT k FROM parts ORDER BY k".to_owned(), true),
        ] {
            let plan = ctx.state().create_logical_plan(&sql).await.unwrap();
            assert_eq!(reads_large_files(&plan).unwrap(), expected, "{sql}");
            for enabled in [false, true] {
                let (rule, mut config) = (EarlyDrivers::new(DeviceRuntime::new()), ConfigOptions::new());
                let mut options = defaults.clone();
                options.enabled = enabled;
                config.extensions.insert(options);
                assert_eq!(rule.analyze(plan.clone(), &config).unwrap(), plan);
                assert_eq!(rule.is_done.load(Relaxed), expected && enabled, "{sql}, enabled: {enabled}");
            }
        }
    }
}
