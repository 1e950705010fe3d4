// SPDX-License-Identifier: Apache-2.0
//! Profiles of runs: the tree of the plan, the timeline, and what they are written as.

use std::sync::Arc;

use datafusion::DATAFUSION_VERSION;
use datafusion::prelude::SessionContext;
use device::UnifiedMemory;
use devicefusion::{DeviceRuntime, Profile};
use serde_json::Value;

use crate::harness::{block_on, context, device_config, set, strict_on};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 7 AS k FROM generate_series(1, 200000)";
const JOINED: &str = "SELECT a.k, count(*), sum(b.i) FROM t a JOIN (SELECT i FROM t WHERE i % 3 = 0) b ON a.i = b.i GROUP BY 1";

async fn session() -> SessionContext {
    session_on(DeviceRuntime::new()).await
}

async fn session_on(runtime: Arc<DeviceRuntime>) -> SessionContext {
    let ctx = strict_on(2, runtime);
    ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
    ctx
}

async fn profile(ctx: &SessionContext, sql: &str) -> (Profile, Value) {
    let profile = Profile::of(ctx, sql).await.unwrap();
    let json = serde_json::from_str(&profile.to_json()).unwrap();
    (profile, json)
}

fn list<'a>(json: &'a Value, name: &str) -> &'a [Value] {
    json[name].as_array().map_or(&[], Vec::as_slice)
}

/// The spans of the lanes of a kind.
fn spans<'a>(json: &'a Value, kind: &str) -> Vec<&'a Value> {
    list(json, "lanes").iter().filter(|lane| lane["kind"] == kind).flat_map(|lane| list(lane, "spans")).collect()
}

#[track_caller]
fn node<'a>(json: &'a Value, name: &str) -> &'a Value {
    let found = list(json, "nodes").iter().find(|node| node["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {}", json["nodes"]))
}

#[test]
fn operators_have_rows_times_and_kernels_and_the_timeline_has_them_too() {
    block_on(async {
        let ctx = session().await;
        let (profile, json) = profile(&ctx, JOINED).await;
        assert_eq!((profile.rows(), &json["rows"]), (7, &7.into()));
        assert_eq!(json["sql"], JOINED);
        assert_eq!((&json["version"], &json["datafusion"]), (&env!("CARGO_PKG_VERSION").into(), &DATAFUSION_VERSION.into()));
        assert!(json["device"]["name"].as_str().is_some_and(|name| !name.is_empty()), "{}", json["device"]);
        assert!(json["device"]["memory_bytes_per_second"].as_u64() > Some(0), "{}", json["device"]);
        assert!(list(&json, "settings").contains(&serde_json::json!(["device.fallback", "error"])), "{}", json["settings"]);

        let (total, of) = (json["total_nanos"].as_u64().unwrap(), |part: &str| json[part].as_u64().unwrap());
        let parts = ["device_nanos", "compiling_nanos", "waiting_nanos", "host_nanos"];
        assert_eq!(parts.iter().map(|part| of(part)).sum::<u64>(), total);
        assert!(of("device_nanos") > 0 && of("host_nanos") > 0, "{json}");

        for (name, rows) in [("DeviceAggregateExec", 7), ("DeviceJoinExec", 66_666), ("HostToDeviceExec", 200_000)] {
            let node = node(&json, name);
            assert_eq!((&node["ran_on"], &node["rows"]), (&"device".into(), &rows.into()), "{node}");
            assert!(node["wall_nanos"].as_u64() > Some(0) && node["own_nanos"].as_u64() > Some(0), "{node}");
        }
        assert_eq!(node(&json, "DataSourceExec")["ran_on"], "host");

        // Each kernel of an operator is in a lane, as often as it was launched, and has a source.
        let kernels = spans(&json, "kernels");
        let number = list(&json, "nodes").iter().position(|node| node["name"] == "DeviceAggregateExec");
        let of_group = list(node(&json, "DeviceAggregateExec"), "kernels");
        assert!(!of_group.is_empty());
        for kernel in of_group {
            let launched =
                kernels.iter().filter(|span| span["label"] == kernel["name"] && span["node"] == number.unwrap()).count();
            assert_eq!(kernel["launches"], launched, "{kernel}");
        }
        let update = of_group.iter().filter_map(|kernel| kernel["name"].as_str()).find(|name| name.starts_with("group_update"));
        let declaration = format!("{}(", update.unwrap());
        assert!(
            list(&json, "sources").iter().any(|source| source["text"].as_str().unwrap().contains(&declaration)),
            "{declaration}"
        );
        for lane in ["host", "compile", "downloads", "waits", "uploads"] {
            let spans = spans(&json, lane);
            // Memory that is used in place is not copied. All work may have ended before a wait.
            assert!(["uploads", "waits"].contains(&lane) || !spans.is_empty(), "nothing in {lane}");
            for span in spans {
                let (start, end) = (span["start"].as_u64(), span["end"].as_u64());
                assert!(start <= end && end <= Some(total), "{span}");
            }
        }
    });
}

#[test]
fn copies_of_a_device_with_memory_of_its_own_have_lanes() {
    block_on(async {
        let context = context(device_config().with_unified_memory(UnifiedMemory::Never));
        let ctx = session_on(DeviceRuntime::with_context(context)).await;
        let (_, json) = profile(&ctx, JOINED).await;
        for (lane, label) in [("uploads", " bytes up"), ("downloads", " bytes down")] {
            let spans = spans(&json, lane);
            assert!(!spans.is_empty(), "nothing in {lane}");
            let labels: Vec<_> = spans.iter().filter_map(|span| span["label"].as_str()).collect();
            assert!(labels.iter().all(|text| text.ends_with(label)), "{labels:?}");
            assert!(list(&json, "lanes").iter().any(|shown| shown["name"] == lane), "{lane} has another name");
        }
    });
}

#[test]
fn reasons_and_runs_on_the_host_are_shown() {
    block_on(async {
        let ctx = session().await;
        set(&ctx, "device.fallback", "host");
        let sql = "SELECT md5(CAST(k AS varchar)), count(*) FROM t GROUP BY k";
        let (_, json) = profile(&ctx, sql).await;
        let on_host = node(&json, "ProjectionExec");
        assert!(on_host["reason"].as_str().is_some_and(|reason| reason.contains("md5")), "{on_host}");

        // The first run of kernels that are not compiled yet has the host's operators.
        set(&ctx, "device.cost", "auto");
        set(&ctx, "device.adaptive_start", "always");
        let (_, json) = profile(&ctx, "SELECT k, count(*), max(i * 31 % 1009) FROM t GROUP BY k").await;
        assert!(node(&json, "DeviceToHostExec")["detail"].as_str().is_some_and(|detail| detail.contains("ran_on_host=")));
        assert_eq!(node(&json, "AggregateExec")["ran_on"], "host");
        assert!(list(&json, "nodes").iter().all(|node| node["name"] != "DeviceAggregateExec"), "{}", json["nodes"]);
        assert_eq!(json["device_nanos"], 0);
        let number = list(&json, "nodes").iter().position(|node| node["name"] == "DeviceToHostExec").unwrap();
        assert!(spans(&json, "host").iter().any(|span| span["node"] == number), "{}", json["lanes"]);
    });
}

#[test]
fn other_formats_have_the_same_plan_and_timeline() {
    block_on(async {
        let ctx = session().await;
        let (profile, json) = profile(&ctx, JOINED).await;

        let plan: Value = serde_json::from_str(&profile.to_pgjson()).unwrap();
        let top = &plan[0]["Plan"];
        assert_eq!((&top["Node Type"], &top["Actual Rows"]), (&"DeviceToHostExec".into(), &7.into()));
        fn count(plan: &Value) -> usize {
            1 + list(plan, "Plans").iter().map(count).sum::<usize>()
        }
        assert_eq!(count(top), list(&json, "nodes").len());

        let trace: Value = serde_json::from_str(&profile.to_trace()).unwrap();
        let spans = list(&json, "lanes").iter().map(|lane| list(lane, "spans").len()).sum::<usize>();
        assert_eq!(list(&trace, "traceEvents").iter().filter(|event| event["ph"] == "X").count(), spans);

        // Text of the query does not end the page's script.
        let sql = "SELECT '</script><b>' || CAST(max(i) AS varchar) FROM t";
        let html = Profile::of(&ctx, sql).await.unwrap().to_html();
        assert!(html.contains(r"\u003c/script>\u003cb>") && html.matches("</script>").count() == 1);
    });
}

/// The operators of a failed run have their metrics until then.
#[test]
fn a_failed_run_has_a_profile() {
    block_on(async {
        let ctx = session().await;
        let sql = "SELECT k, sum(1000 / (i - 70000)) FROM t GROUP BY k";
        let (profile, outcome) = Profile::of_run(&ctx, sql).await.unwrap();
        assert!(outcome.unwrap_err().to_string().contains("Divide by zero"));
        let json: Value = serde_json::from_str(&profile.to_json()).unwrap();
        assert!(json["error"].as_str().is_some_and(|error| error.contains("Divide by zero")), "{}", json["error"]);
        assert!(node(&json, "DeviceAggregateExec")["kernels"].is_array(), "{}", json["nodes"]);
        Profile::of(&ctx, sql).await.unwrap_err();
        Profile::of_run(&ctx, "SELECT nothing FROM t").await.unwrap_err();
    });
}

/// A statement that makes a table runs its query, as often as it is profiled.
#[test]
fn of_statements_the_query_is_profiled() {
    block_on(async {
        let ctx = session().await;
        for schema in ["device", "public"] {
            let sql = format!("CREATE TABLE {schema}.made AS SELECT k, count(*) AS n FROM t GROUP BY k");
            for _ in 0..2 {
                let (profile, json) = profile(&ctx, &sql).await;
                assert_eq!((profile.rows(), &node(&json, "DeviceAggregateExec")["rows"]), (7, &7.into()));
            }
            assert!(!ctx.table_exist(format!("{schema}.made")).unwrap());
        }
        // A statement that writes does so, and its sink has metrics.
        ctx.sql("CREATE TABLE device.made AS SELECT k, i FROM t WHERE i < 4").await.unwrap().collect().await.unwrap();
        for (sql, rows) in [
            ("INSERT INTO device.made SELECT k, i FROM t WHERE i < 6", 5),
            ("UPDATE device.made SET k = 0 WHERE i = 3", 2),
            ("DELETE FROM device.made WHERE i = 5", 1),
            ("MERGE INTO device.made USING t ON made.i = t.i WHEN MATCHED AND t.i = 4 THEN UPDATE SET k = 9", 1),
        ] {
            let (_, json) = profile(&ctx, sql).await;
            let sink = node(&json, "DataSinkExec");
            assert_eq!(sink["rows"], rows, "{sql}: {sink}");
        }
        for sql in ["SET device.cost = 'auto'", "DROP TABLE t", "CREATE VIEW v AS SELECT 1", "CREATE TABLE e (i INT)"] {
            let error = Profile::of(&ctx, sql).await.unwrap_err().to_string();
            assert!(error.contains("a profile is of a query"), "{sql}: {error}");
        }
    });
}

/// A session's other runs record nothing.
#[test]
fn other_runs_record_nothing() {
    block_on(async {
        let ctx = session().await;
        Profile::of(&ctx, JOINED).await.unwrap();
        let plan = ctx.sql(JOINED).await.unwrap().create_physical_plan().await.unwrap();
        datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        let shown = datafusion::physical_plan::display::DisplayableExecutionPlan::with_full_metrics(plan.as_ref())
            .indent(false)
            .to_string();
        assert!(shown.contains("wall_time") && !shown.contains("activities"), "{shown}");
    });
}
