// SPDX-License-Identifier: Apache-2.0
//! TPC-H: each query strict on resident tables, with plain DataFusion's answer, in one island for each part that
//! DataFusion runs by itself, and with the plan that `tpch_plans.txt` pins.
//!
//! `DEVICEFUSION_WRITE_DOCS=1` writes the plans anew.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use devicefusion::PlacementKind;
use devicefusion::exec::DeviceIslandExec;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator, RegionGenerator,
    SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

use crate::harness::{Answer, answer_of, block_on, plain, profile, set, strict};

const SCALE: f64 = 0.01;

/// The tables at [`SCALE`].
fn tables() -> Vec<(&'static str, Vec<RecordBatch>)> {
    vec![
        ("lineitem", LineItemArrow::new(LineItemGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("orders", OrderArrow::new(OrderGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("partsupp", PartSuppArrow::new(PartSuppGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("part", PartArrow::new(PartGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("customer", CustomerArrow::new(CustomerGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("supplier", SupplierArrow::new(SupplierGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("nation", NationArrow::new(NationGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
        ("region", RegionArrow::new(RegionGenerator::new(SCALE, 1, 1)).collect::<Result<_, _>>().unwrap()),
    ]
}

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn query(number: usize) -> String {
    let text = std::fs::read_to_string(folder("../../benches/queries").join(format!("q{number}.sql"))).unwrap();
    // Q11 asks for a share that depends on the scale.
    text.replace("0.0001", &(0.0001 / SCALE).to_string())
}

fn register(ctx: &SessionContext, name: &str, batches: &[RecordBatch]) {
    // Two partitions, so that exchanges are planned.
    let (first, second) = batches.split_at(batches.len() / 2);
    let table = MemTable::try_new(batches[0].schema(), vec![first.to_vec(), second.to_vec()]).unwrap();
    ctx.register_table(name, Arc::new(table)).unwrap();
}

/// The tables in a plain session, and resident in a strict one under the same names.
async fn sessions() -> (SessionContext, SessionContext) {
    let (host, device) = (plain(2), strict(2));
    for (name, batches) in tables() {
        register(&host, name, &batches);
        register(&device, &format!("host_{name}"), &batches);
        let create = format!("CREATE TABLE device.{name} AS SELECT * FROM host_{name}");
        device.sql(&create).await.unwrap().collect().await.unwrap();
    }
    set(&device, "datafusion.catalog.default_schema", "device");
    (host, device)
}

async fn run(ctx: &SessionContext, sql: &str) -> (Answer, String, usize) {
    let frame = ctx.sql(sql).await.unwrap();
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.unwrap();
    let text = displayable(plan.as_ref()).indent(false).to_string();
    let islands = text.matches("DeviceIslandExec").count();
    assert_eq!(islands > 0, ctx.table_exist("device.lineitem").unwrap_or(false));
    assert!(islands == 0 || plan.is::<DeviceIslandExec>() || text.starts_with("ScalarSubqueryExec"), "{text}");
    (answer_of(plan, task).await.unwrap(), text, islands)
}

#[test]
fn queries_answer_as_plain_in_one_island() {
    block_on(async {
        let (host, device) = sessions().await;
        let mut plans = String::from("The plans of TPC-H's queries at scale 0.01 over resident tables, two target partitions.\n");
        for number in 1..=22 {
            let sql = query(number);
            let (expected, _, _) = run(&host, &sql).await;
            let (actual, plan, islands) = run(&device, &sql).await;
            assert_eq!(actual.lines(), expected.lines(), "Q{number}");
            assert_eq!(actual.placement.kind(), PlacementKind::Whole, "Q{number}: {:?}", actual.placement);
            assert!(actual.launches > 0, "Q{number}");
            // A scalar subquery runs before the query that uses it.
            let subqueries = usize::from(plan.starts_with("ScalarSubqueryExec"));
            assert_eq!(islands, 1 + subqueries, "Q{number}:\n{plan}");
            plans.push_str(&format!("\nQ{number}\n{plan}"));
        }
        let path = folder("tests/suite/tpch_plans.txt");
        if std::env::var("DEVICEFUSION_WRITE_DOCS").is_ok_and(|value| value == "1") {
            return std::fs::write(&path, plans).unwrap();
        }
        let pinned = std::fs::read_to_string(&path).unwrap_or_default();
        for (old, new) in pinned.split("\nQ").zip(plans.split("\nQ")) {
            assert_eq!(old, new);
        }
        assert_eq!(pinned, plans);
    });
}

#[test]
fn queries_answer_as_plain_in_the_gpu_profile() {
    block_on(async {
        let (host, device) = sessions().await;
        set(&device, "device.profile", profile("gpu"));
        for number in 1..=22 {
            let sql = query(number);
            let (expected, _, _) = run(&host, &sql).await;
            let (actual, _, _) = run(&device, &sql).await;
            assert_eq!(actual.lines(), expected.lines(), "Q{number}");
        }
    });
}
