// SPDX-License-Identifier: Apache-2.0
//! Metrics of the device in EXPLAIN VERBOSE and EXPLAIN ANALYZE. Plain EXPLAIN is in
//! `sql-tests/plans`.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::util::pretty::pretty_format_batches;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use device::testing::FaultPlan;
use devicefusion::{DeviceRuntime, placement};

use crate::harness::{answer_of, block_on, context, device_config, metric, set, strict, strict_on, text};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 7 AS k FROM generate_series(1, 20000)";
const GROUPED: &str = "SELECT k, sum(i * 3 + 1) FROM t WHERE i > 10 GROUP BY k";

async fn session() -> SessionContext {
    session_on(FaultPlan::new()).await
}

async fn session_on(plan: FaultPlan) -> SessionContext {
    let ctx = strict_on(1, DeviceRuntime::with_context(context(device_config().with_wrap(plan.wrap()))));
    ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
    ctx
}

async fn explained(ctx: &SessionContext, sql: &str) -> String {
    let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    pretty_format_batches(&rows).unwrap().to_string()
}

/// Line of an operator in a plan, with its metrics.
#[track_caller]
fn line<'a>(plan: &'a str, operator: &str) -> &'a str {
    let found = plan.lines().find(|line| line.contains(&format!(" {operator}: ")));
    found.unwrap_or_else(|| panic!("{operator} is not in {plan}"))
}

#[track_caller]
fn check(plan: &str, operator: &str, metrics: &[&str]) {
    let line = line(plan, operator);
    for metric in metrics {
        assert!(line.contains(&format!("{metric}=")), "{operator} has no {metric}: {line}");
    }
}

#[test]
fn analyze_counts_rows_launches_times_and_bytes_of_each_operator() {
    block_on(async {
        // The second device has memory of its own: buffers that other devices share are copied.
        for plan in [FaultPlan::new(), FaultPlan::masking(|info| info.unified_memory = false)] {
            let ctx = session_on(plan).await;
            let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {GROUPED}")).await;
            let work = ["output_rows", "wall_time", "launches", "kernel_time", "compile_time", "peak_device_bytes", "kernels"];
            check(&plan, "DeviceAggregateExec", &work);
            check(&plan, "HostToDeviceExec", &["output_rows", "wall_time", "bytes_up"]);
            check(&plan, "DeviceToHostExec", &["output_rows", "wall_time", "bytes_down"]);
            // Each kernel with its launches, bytes and time, in an order of time no run repeats.
            for kernel in ["select_mask", "select_write0", "group_find0", "group_update0_0", "group_write0"] {
                let (_, costs) = line(&plan, "DeviceAggregateExec").split_once(&format!("{kernel}: 1 launch, ")).expect(&plan);
                let costs: Vec<_> = costs.split([';', ']']).next().expect(&plan).split(", ").collect();
                // The bound is left out where the kernel needs a part of its buffers.
                let [bytes, time, bound @ ..] = costs.as_slice() else { panic!("{kernel} costs {costs:?}: {plan}") };
                assert!(bytes.ends_with('B') && time.ends_with('s'), "{kernel} costs {costs:?}: {plan}");
                assert!(bound.iter().all(|bound| bound.ends_with(" % of the bound")), "{kernel} costs {costs:?}: {plan}");
            }
            for (operator, rows) in [("DeviceAggregateExec", "7"), ("HostToDeviceExec", "20.00 K"), ("DeviceToHostExec", "7")] {
                assert!(line(&plan, operator).contains(&format!("output_rows={rows},")), "{operator} of {rows} rows: {plan}");
            }
            // The first is the total, the others are those of the operators.
            let launches = plan.split("launches=").skip(1);
            let launches: Vec<u64> = launches.map(|rest| rest.split([',', ']']).next().unwrap().parse().unwrap()).collect();
            assert!(line(&plan, "DeviceToHostExec").contains("total=[launches="), "{plan}");
            assert_eq!(launches[0], launches[1..].iter().sum::<u64>(), "{plan}");
            assert!(plan.contains(" % of the bound"), "{plan}");
            let plan = explained(&ctx, "EXPLAIN ANALYZE SELECT i + 1 FROM t WHERE k = 3").await;
            check(&plan, "DeviceProjectionExec", &work);

            // The second run compiles nothing, and shows no compile time.
            let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {GROUPED}")).await;
            check(&plan, "DeviceAggregateExec", &["launches", "kernel_time"]);
            assert!(!plan.contains("compile_time"), "{plan}");
        }
    });
}

/// The filter is fused into the projection.
#[test]
fn a_filter_below_a_projection_has_its_rows() {
    block_on(async {
        let ctx = session().await;
        let plan = explained(&ctx, "EXPLAIN ANALYZE SELECT i + 1 AS n FROM t WHERE k = 3").await;
        for operator in ["DeviceProjectionExec", "DeviceFilterExec"] {
            assert!(line(&plan, operator).contains("output_rows=2.86 K,"), "{operator}: {plan}");
        }
        assert!(line(&plan, "HostToDeviceExec").contains("output_rows=20.00 K,"), "{plan}");
        // The rows of an aggregation are its groups.
        let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {GROUPED}")).await;
        assert!(!line(&plan, "DeviceFilterExec").contains("output_rows"), "{plan}");
    });
}

/// A fused operator has that of the operator whose kernels it runs in.
#[test]
fn each_device_operator_has_a_wall_time() {
    block_on(async {
        let ctx = session().await;
        for sql in [
            GROUPED,
            "SELECT i + 1 AS n FROM t WHERE k = 3 ORDER BY n LIMIT 5",
            "SELECT a.i, b.i * 2 FROM (SELECT * FROM t WHERE k = 2) a JOIN t b ON a.i = b.i + 1 JOIN t c ON b.i = c.i WHERE c.k > 1",
            "SELECT a.k, count(*) FROM t a JOIN t b ON a.i = b.i JOIN t c ON b.i = c.i WHERE b.k > 2 GROUP BY a.k",
            "SELECT sum(i), k FROM (SELECT i + k AS i, k FROM t WHERE i > 9) WHERE k > 1 GROUP BY k HAVING count(*) > 1",
            "SELECT i, rank() OVER (PARTITION BY k ORDER BY i) FROM t WHERE i % 2 = 0",
            "SELECT i FROM t WHERE EXISTS (SELECT 1 FROM t b WHERE b.i = t.i + 5 AND b.k = 1)",
            "SELECT i FROM t WHERE k = 1 UNION ALL SELECT k FROM t WHERE i < 5",
        ] {
            let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await;
            let operators: Vec<_> = plan.lines().filter(|line| line.contains("Device") && line.contains("Exec: ")).collect();
            assert!(operators.len() > 2, "{plan}");
            for operator in operators {
                assert!(operator.contains("wall_time="), "{operator}: {plan}");
            }
        }
    });
}

/// The level 'summary' of DataFusion keeps rows and times.
#[test]
fn analyze_in_short_shows_rows_and_times() {
    block_on(async {
        let ctx = session().await;
        ctx.sql("SET datafusion.explain.analyze_level = 'summary'").await.unwrap().collect().await.unwrap();
        let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {GROUPED}")).await;
        check(&plan, "DeviceAggregateExec", &["output_rows", "wall_time", "launches", "kernel_time", "peak_device_bytes"]);
        assert!(!plan.contains("waits=") && !plan.contains("bytes_up=") && !plan.contains("kernels="), "{plan}");
    });
}

#[test]
fn analyze_without_profiling_shows_no_kernel_times() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        set(&ctx, "device.profiling", "false");
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {GROUPED}")).await;
        check(&plan, "DeviceAggregateExec", &["launches", "output_rows"]);
        assert!(!plan.contains("kernel_time"), "{plan}");
    });
}

/// A query waits a few times for rows that are on the device, regardless of the number of batches.
#[test]
fn host_waits_do_not_grow_with_the_batches_of_a_resident_table() {
    block_on(async {
        let ctx = session().await;
        let run = async |sql: &str| ctx.sql(sql).await.unwrap().collect().await.unwrap();
        let rows = "SELECT i, k, CAST(k AS VARCHAR) AS s FROM t";
        run(&format!("CREATE TABLE device.one AS {rows}")).await;
        // Each statement inserts one batch.
        run(&format!("CREATE TABLE device.many AS {rows} WHERE i <= 1000")).await;
        for first in (1000..20_000).step_by(1000) {
            run(&format!("INSERT INTO device.many {rows} WHERE i > {first} AND i <= {}", first + 1000)).await;
        }
        run("CREATE TABLE device.few AS SELECT i * 5 AS i, k FROM t WHERE i <= 2000").await;
        let mut total = 0;
        for query in [
            "SELECT sum(i), max(k) FROM device.rows WHERE k > 2",
            "SELECT k, sum(i), count(*) FROM device.rows GROUP BY k",
            "SELECT s, sum(i), count(*) FROM device.rows GROUP BY s",
            "SELECT s, sum(i) FROM device.rows GROUP BY ROLLUP (s)",
            "SELECT count(*), sum(f.k) FROM device.rows r JOIN device.few f ON r.i = f.i",
            "SELECT i, s FROM device.rows ORDER BY s DESC, i",
            "SELECT i, s FROM device.rows ORDER BY s DESC, i LIMIT 5",
            "SELECT i, row_number() OVER (ORDER BY k, i) FROM device.rows",
        ] {
            let mut counts = Vec::new();
            for (table, batches) in [("one", "batches=1,"), ("many", "batches=20,")] {
                for batch_rows in ["0", "500"] {
                    set(&ctx, "device.batch_rows", batch_rows);
                    let frame = ctx.sql(&query.replace("device.rows", &format!("device.{table}"))).await.unwrap();
                    let task = Arc::new(frame.task_ctx());
                    let plan = frame.create_physical_plan().await.unwrap();
                    let shown = displayable(plan.as_ref()).indent(false).to_string();
                    assert!(shown.contains(batches), "{query}: {shown}");
                    answer_of(Arc::clone(&plan), task).await.unwrap();
                    counts.push(metric(&plan, "waits"));
                }
            }
            // Work that has already ended needs no wait, so the numbers differ between runs.
            let most = *counts.iter().max().unwrap();
            assert!(most < 20, "{query}: {counts:?} waits");
            total += most;
        }
        assert!(total > 0, "nothing was waited for");
    });
}

#[test]
fn a_host_operator_within_device_operators_costs_one_download_and_one_upload() {
    block_on(async {
        let ctx = session().await;
        ctx.sql("CREATE TABLE device.r AS SELECT i, k FROM t").await.unwrap().collect().await.unwrap();
        set(&ctx, "device.fallback", "host");
        let medians = "SELECT k, approx_median(i) AS m FROM device.r WHERE i > 10 GROUP BY k";
        let plan = explained(&ctx, &format!("EXPLAIN ANALYZE SELECT count(*), sum(m) FROM ({medians}) WHERE m > 3")).await;
        let lines =
            |operator: &str| -> Vec<&str> { plan.lines().filter(|line| line.contains(&format!(" {operator}: "))).collect() };
        let (tops, uploads) = (lines("DeviceToHostExec"), lines("HostToDeviceExec"));
        let ([above, below], [upload]) = (&tops[..], &uploads[..]) else {
            panic!("not two offloaded subplans and one upload: {plan}")
        };
        assert!(below.contains("to=[AggregateExec]") && upload.contains("from=[AggregateExec]"), "{plan}");
        assert!(above.contains("to=[the result]"), "{plan}");
        for (line, rows, bytes) in [(below, "19.99 K", "bytes_down="), (upload, "7", "bytes_up="), (above, "1", "bytes_down=")] {
            // Metrics that are zero are not shown.
            assert!(line.contains(&format!("output_rows={rows},")) && line.contains(bytes), "{line}");
        }
    });
}

#[test]
fn verbose_prints_the_kernels_and_their_profile() {
    block_on(async {
        for profile in ["cpu", "gpu"] {
            let ctx = session().await;
            set(&ctx, "device.profile", profile);
            let plan = explained(&ctx, &format!("EXPLAIN VERBOSE {GROUPED}")).await;
            for wanted in ["-- kernel group_", "-- end of group_", "KERNEL", &format!("profile={profile}")] {
                assert!(plan.contains(wanted), "{wanted} is not in {plan}");
            }
            // Each kernel stands there once, though EXPLAIN shows the plan after each rule.
            let mut kernels: Vec<&str> =
                plan.split("-- kernel ").skip(1).map(|kernel| kernel.split("-- end of").next().unwrap()).collect();
            let count = kernels.len();
            kernels.sort_unstable();
            kernels.dedup();
            assert_eq!(kernels.len(), count, "{plan}");
            // Both aggregations have kernels of these names, others between them.
            let twice = "SELECT s % 3, count(*) FROM (SELECT k, sum(i * 3 + 1) AS s FROM t WHERE i > 10 GROUP BY k) GROUP BY 1";
            let plan = explained(&ctx, &format!("EXPLAIN VERBOSE {twice}")).await;
            let (_, names) = plan.rsplit_once("kernels=[").unwrap();
            let names: Vec<&str> = names.split(']').next().unwrap().split(", ").collect();
            let unique: HashSet<&str> = names.iter().copied().collect();
            assert_eq!((names.len(), unique.is_empty()), (unique.len(), false), "{names:?}");
            for statement in ["EXPLAIN", "EXPLAIN ANALYZE VERBOSE"] {
                assert!(!explained(&ctx, &format!("{statement} {GROUPED}")).await.contains("-- kernel"));
            }
        }
        let ctx = session().await;
        for (setting, value) in [("device.profile", "gpu"), ("device.work_group_size", "64"), ("device.max_work_groups", "3")] {
            set(&ctx, setting, value);
        }
        let plan = explained(&ctx, &format!("EXPLAIN VERBOSE {GROUPED}")).await;
        assert!(plan.contains("profile=gpu, work_group_size=64, compaction_tile_rows=2048, max_work_groups=3"), "{plan}");
    });
}

#[test]
fn session_of_one_call_runs_on_the_device() {
    block_on(async {
        let ctx = devicefusion::session().unwrap();
        assert!(devicefusion::has_device(&ctx.state()));
        for sql in ["SET device.fallback = 'error'", TABLE, "CREATE TABLE device.r AS SELECT * FROM t"] {
            ctx.sql(sql).await.unwrap().collect().await.unwrap();
        }
        let answer = crate::harness::answer(&ctx, "SELECT k, count(*) FROM device.r GROUP BY k").await.unwrap();
        assert!(answer.launches > 0 && answer.num_rows() == 7);
        assert!(DeviceRuntime::of(ctx.state().config()).unwrap().opened().is_some());

        // Queries of files by name make another session context. Resident tables still follow its
        // settings.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.csv").display().to_string();
        ctx.sql(&format!("COPY t TO '{file}'")).await.unwrap().collect().await.unwrap();
        let ctx = devicefusion::session().unwrap().enable_url_table();
        set(&ctx, "device.selector", "none");
        let error = text(&crate::harness::answer(&ctx, "CREATE TABLE device.r AS SELECT 1 AS i").await.unwrap_err());
        assert!(error.contains("a table of device memory needs a device: device.selector = 'none'"), "{error}");
        let error = text(&crate::harness::answer(&ctx, "SELECT i FROM device.r").await.unwrap_err());
        let reason = "a table of device memory needs a device, and there is none: device.selector = 'none'";
        assert!(error.contains(&format!("table 'datafusion.device.r' not found: {reason}")), "{error}");
        set(&ctx, "device.selector", "auto");
        for sql in ["SET device.fallback = 'error'", &format!("CREATE TABLE device.r AS SELECT * FROM '{file}'")] {
            ctx.sql(sql).await.unwrap().collect().await.unwrap();
        }
        let sum = "SELECT k, sum(i) AS s FROM device.r GROUP BY k";
        let file_sum = sum.replace("device.r", &format!("'{file}'"));
        let (of_table, of_file) = (crate::harness::answer(&ctx, sum).await, crate::harness::answer(&ctx, &file_sum).await);
        assert_eq!(of_table.unwrap().lines(), of_file.unwrap().lines());
    });
}

/// An operator asks for the placement of its inputs, and again if it stays on the host. Asking
/// twice at each of these levels would take minutes.
#[test]
fn nested_operators_are_placed_once() {
    block_on(async {
        let ctx = strict(2);
        set(&ctx, "device.cost", "auto");
        set(&ctx, "device.fallback", "host");
        ctx.sql("CREATE TABLE few AS SELECT value AS i FROM generate_series(1, 5)").await.unwrap().collect().await.unwrap();
        let mut sql = "SELECT md5(CAST(i AS VARCHAR)) AS i FROM few".to_string();
        for limit in 3..23 {
            sql = format!("SELECT i FROM ({sql} UNION ALL SELECT CAST(i AS VARCHAR) FROM few LIMIT {limit})");
        }
        let begin = std::time::Instant::now();
        let plan = ctx.sql(&sql).await.unwrap().create_physical_plan().await.unwrap();
        assert_eq!(placement(&plan).device_operators, 0);
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    });
}

#[test]
fn dynamic_filters_show_what_they_remove() {
    block_on(async {
        let ctx = session().await;
        let few = "CREATE TABLE few AS SELECT value AS k, value AS z FROM generate_series(1, 9000)";
        ctx.sql(few).await.unwrap().collect().await.unwrap();
        let sums = "(SELECT i, sum(k) AS s FROM t GROUP BY i)";
        let plan = explained(
            &ctx,
            &format!("EXPLAIN ANALYZE SELECT count(*) FROM few JOIN {sums} x ON few.k = x.i WHERE few.z % 90 = 1"),
        )
        .await;
        assert!(line(&plan, "DeviceJoinExec").contains("dynamic_filter=#1"), "{plan}");
        let filter = line(&plan, "DeviceDynamicFilterExec");
        assert!(filter.contains("keys=[i@0], dynamic_filter=#1"), "{filter}");
        assert!(filter.contains("rows_removed=19.90 K"), "{filter}");
        // A build side with every number removes too few rows, so the filter shows no metric.
        let plan =
            explained(&ctx, &format!("EXPLAIN ANALYZE SELECT count(*) FROM few JOIN {sums} x ON few.k = x.i WHERE few.z > 0"))
                .await;
        assert!(!line(&plan, "DeviceDynamicFilterExec").contains("rows_removed"), "{plan}");
        // Strings probe a Bloom filter, with 16 bits for each of 100 names.
        for sql in [
            "CREATE TABLE names AS SELECT concat('name ', CAST(k AS VARCHAR)) AS name, z FROM few",
            "CREATE TABLE named AS SELECT concat('name ', CAST(i AS VARCHAR)) AS name, k FROM t",
        ] {
            ctx.sql(sql).await.unwrap().collect().await.unwrap();
        }
        let sums = "(SELECT name, sum(k) AS s FROM named GROUP BY name)";
        let query = format!("SELECT count(*) FROM names JOIN {sums} x ON names.name = x.name WHERE names.z % 90 = 1");
        let filter = line(&explained(&ctx, &format!("EXPLAIN ANALYZE {query}")).await, "DeviceDynamicFilterExec").to_string();
        assert!(filter.contains("keys=[name@0], dynamic_filter=#1") && filter.contains("filter_bytes=200"), "{filter}");
        assert!(filter.contains("rows_removed=19."), "{filter}");
    });
}

#[test]
fn analyze_shows_rows_and_time_of_scalar_subqueries() {
    block_on(async {
        let ctx = session().await;
        let query = "SELECT i FROM t WHERE k > (SELECT avg(k) FROM t) OR i = (SELECT k FROM t WHERE i < 0)";
        let plan = explained(&ctx, &format!("EXPLAIN ANALYZE {query}")).await;
        for (subquery, rows) in [("avg(t.k)", 1), ("k", 0)] {
            let join = plan.lines().find(|line| line.contains(&format!("scalar_subquery={subquery}@")));
            let join = join.unwrap_or_else(|| panic!("no join brings {subquery}: {plan}"));
            assert!(join.contains(&format!("subquery_rows={rows}")) && join.contains("subquery_time="), "{join}");
        }
    });
}

#[test]
fn host_scans_take_dynamic_filters_of_a_build_side() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.parquet").display().to_string();
        let ctx = session().await;
        for sql in [
            format!(
                "COPY (SELECT i, k FROM t ORDER BY i) TO '{file}' STORED AS PARQUET OPTIONS ('format.max_row_group_size' '1000')"
            ),
            format!("CREATE EXTERNAL TABLE stored STORED AS PARQUET LOCATION '{file}'"),
            "CREATE TABLE few AS SELECT value AS k FROM generate_series(4500, 4502)".to_string(),
        ] {
            set(&ctx, "device.fallback", "host");
            ctx.sql(&sql).await.unwrap().collect().await.unwrap();
            set(&ctx, "device.fallback", "error");
        }
        let plan = explained(&ctx, "EXPLAIN ANALYZE SELECT sum(s.k) FROM few JOIN stored s ON few.k = s.i").await;
        assert!(plan.contains("DynamicFilter [ i@0 >= 4500 AND i@0 <= 4502 ]"), "{plan}");
        assert!(plan.contains("row_groups_pruned_statistics=20 total → 1 matched"), "{plan}");
        let uploaded =
            plan.lines().filter(|line| line.contains("HostToDeviceExec: ")).any(|line| line.contains("output_rows=1.00 K,"));
        assert!(uploaded, "{plan}");
        // A scan with a limit takes no dynamic filter, which would change its rows.
        let limited = "SELECT sum(s.k) FROM few JOIN (SELECT * FROM stored LIMIT 15000) s ON few.k = s.i";
        let plan = explained(&ctx, &format!("EXPLAIN {limited}")).await;
        assert!(plan.contains("limit=15000") && !plan.contains("DynamicFilter"), "{plan}");
    });
}
