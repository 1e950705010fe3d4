// SPDX-License-Identifier: Apache-2.0
//! The generated pages of the book: `docs/support.md` from the planner and the kernels, and
//! `docs/settings.md` from the settings.
//!
//! A page that differs from the code fails its test. `DEVICEFUSION_WRITE_DOCS=1 cargo test
//! --workspace --test docs` writes the pages. Planning needs a device; PoCL is enough, and
//! `DEVICEFUSION_TEST_DEVICE` names another. `crates/cli/tests/book.rs` runs the SQL and the shell
//! commands of the book.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchOptions, StringArray};
use arrow::compute::{can_cast_types, cast};
use arrow::datatypes::{DataType, Field, IntervalUnit, Schema, TimeUnit, UnionFields, UnionMode};
use columnar::{ColumnType, Layout};
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::MemTable;
use datafusion::execution::context::{SessionConfig, SessionContext};
use datafusion::functions::expr_fn::{coalesce, nullif};
use datafusion::functions_aggregate::expr_fn as aggregates;
use datafusion::logical_expr::{Expr, ExprFunctionExt, Operator, binary_expr, cast as cast_to, col, lit, when};
use datafusion::prelude::DataFrame;
use devicefusion::{DeviceOptions, PlacementKind, placement};
use kernels::expr::AggregateFunction;
use kernels::support::{supports_cast, supports_type};

/// Compares a page with the committed one, or writes it.
#[track_caller]
fn check(page: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(page);
    if writes_pages() {
        return std::fs::write(&path, text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = committed.lines().zip(text.lines()).position(|(old, new)| old != new);
    let line = differs.unwrap_or_else(|| committed.lines().count().min(text.lines().count()));
    assert!(
        committed == text,
        "docs/{page} differs from the code, from line {} on:\ncommitted: {}\nthe code:  {}\n\
         DEVICEFUSION_WRITE_DOCS=1 cargo test --workspace --test docs writes it",
        line + 1,
        committed.lines().nth(line).unwrap_or("(no such line)"),
        text.lines().nth(line).unwrap_or("(no such line)"),
    );
}

#[test]
fn settings_page_is_what_the_code_says() {
    let mut page = String::from(
        "# Settings\n\n\
         `SET device.memory_bytes = 8000000000` sets a value in a session. The shell and\n\
         `devicefusion::session` also read the environment: `DATAFUSION_DEVICE_MEMORY_BYTES`.\n\
         `SHOW ALL` lists the values, `SHOW ALL VERBOSE` their meanings. `RESET device.cost` sets the\n\
         default, in a Rust program by `devicefusion::execute_logical_plan` only.\n\n\
         - A *frozen* setting can change until the first query opens the session's device. From then on\n\
         \x20 `SET` refuses another value.\n\
         - SQL cannot set what runs native code or uses files. The program that makes the session [sets\n\
         \x20 it](security.md).\n\
         - A setting may ask for an absent device or folder, or for too much memory. Queries that need it\n\
         \x20 then fail; none moves to the host in silence.\n\
         - Only `device.selector = 'auto'` runs queries on the host where there is no device.\n\n\
         This page is generated from the table of the settings.\n\n\
         | setting | default | frozen | by SQL | meaning |\n|---|---|---|---|---|\n",
    );
    for setting in DeviceOptions::documentation() {
        let default = if setting.default.is_empty() { "(empty)".to_owned() } else { format!("`{}`", setting.default) };
        let frozen = if setting.frozen { "frozen" } else { "" };
        let by_sql = if setting.program_only { "no" } else { "" };
        writeln!(page, "| `{}` | {default} | {frozen} | {by_sql} | {} |", setting.key, cell(setting.description)).unwrap();
    }
    check("settings.md", &page);
}

/// `docs/explain.md` has each annotation that an operator writes into EXPLAIN, such as `readers=`.
#[test]
fn legend_of_explain_is_complete() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/explain.md")).unwrap();
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/exec")).unwrap() {
        let source = std::fs::read_to_string(entry.unwrap().path()).unwrap().replace("\\n", " ");
        for (_, text) in source.lines().filter_map(|line| line.split_once("(f, \"")) {
            for (at, _) in text.match_indices('=') {
                let name = text[..at].rsplit(|c: char| !c.is_ascii_lowercase() && c != '_').next().unwrap();
                names.insert(name.to_owned());
            }
        }
    }
    // The name before `=` may be a placeholder: in `exec/shared.rs` for these two.
    names.remove("");
    names.extend(["shared", "cached"].map(str::to_owned));
    let legend = page.split("## Legend").nth(1).and_then(|rest| rest.split("\n## ").next()).unwrap();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let is_named = legend.contains(&format!("\n| `{name}=")) || legend.contains(&format!("`{name}`"));
        assert!(is_named, "docs/explain.md lacks the annotation {name}= of EXPLAIN");
    }
}

#[tokio::test]
async fn support_page_is_what_the_code_says() {
    let mut page = String::from(
        "# What runs on the device\n\n\
         This page is generated: the planner or the kernels' generator answered each entry. An operator on\n\
         the host gives the same answer. `EXPLAIN` says why it is there, and `SET device.fallback = 'error'`\n\
         forbids it.\n\n\
         | entry | meaning |\n|---|---|\n\
         | ● | on the device |\n| host | on the host |\n\
         | · | DataFusion has no such expression, or it fails for all values |\n\
         | a type | the result has that type, and stays on the host |\n",
    );
    page += &match is_asked(0) {
        true => operators().await,
        false => committed("Operators"),
    };
    page += &types();
    page += &match is_asked(1) {
        true => expressions().await,
        false => committed("Expressions"),
    };
    page += &match is_asked(2) {
        true => functions().await,
        false => committed("Functions"),
    };
    page += &match is_asked(3) {
        true => aggregate_functions().await,
        false => committed("Aggregates"),
    };
    page += &casts();
    check("support.md", &page);
}

/// Whether a section of the support page is generated: each takes many queries. All are generated
/// where the page is written, else those of this [turn](device::testing::is_turn).
fn is_asked(turn: usize) -> bool {
    writes_pages() || device::testing::is_turn(turn).unwrap()
}

/// A section of the committed support page.
fn committed(title: &str) -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/support.md")).unwrap();
    let begin = page.find(&format!("\n## {title}\n")).unwrap_or_else(|| panic!("docs/support.md has no section {title}"));
    let section = &page[begin..];
    let end = section[1..].find("\n## ").map_or(section.len(), |end| end + 1);
    section[..end].to_owned()
}

fn writes_pages() -> bool {
    std::env::var("DEVICEFUSION_WRITE_DOCS").is_ok_and(|value| value == "1")
}

/// A session that offloads every supported operator.
fn session() -> SessionContext {
    let ctx = devicefusion::session_with(SessionConfig::new(), Arc::default()).unwrap();
    let mut options = ctx.state().config_options().clone();
    let selector = device::testing::config().unwrap().selector.to_string();
    Arc::make_mut(&mut options).set("device.selector", &selector).unwrap();
    Arc::make_mut(&mut options).set("device.cost", "always").unwrap();
    let config = SessionConfig::from(options.as_ref().clone());
    let ctx = devicefusion::session_with(config, Arc::default()).unwrap();
    assert!(devicefusion::has_device(&ctx.state()), "the documentation is generated by planning, which needs a device");
    ctx
}

/// Like [`runs`], for a query that plain DataFusion answers.
async fn runs_if_plain(query: impl AsyncFn(&SessionContext) -> Result<DataFrame>, contexts: &[SessionContext; 2]) -> Outcome {
    let [device, plain] = contexts;
    match query(plain).await {
        Ok(frame) => {
            let foreign =
                frame.schema().fields().iter().map(|field| field.data_type().clone()).find(|ty| supports_type(ty).is_err());
            match (frame.collect().await, foreign) {
                (Err(_), _) => Outcome::NotSql,
                (Ok(_), Some(data_type)) => Outcome::Foreign(data_type),
                (Ok(_), None) => runs(query(device).await).await,
            }
        }
        Err(_) => Outcome::NotSql,
    }
}

/// The worst outcome of queries that compute one of `exprs` each. A query with all of them is
/// mostly enough.
async fn worst_outcome(
    exprs: Vec<Expr>,
    query: impl AsyncFn(&SessionContext, Vec<Expr>) -> Result<DataFrame>,
    contexts: &[SessionContext; 2],
) -> Outcome {
    let named = |exprs: &[Expr]| {
        exprs.iter().enumerate().map(|(index, expr)| expr.clone().alias(format!("x{index}"))).collect::<Vec<_>>()
    };
    if runs_if_plain(async |ctx| query(ctx, named(&exprs)).await, contexts).await == Outcome::Device {
        return Outcome::Device;
    }
    let mut outcome = Outcome::NotSql;
    for expr in exprs {
        outcome = outcome.and(runs_if_plain(async |ctx| query(ctx, named(std::slice::from_ref(&expr))).await, contexts).await);
    }
    outcome
}

/// Whether the whole query runs on the device, else the reasons.
async fn runs(frame: Result<DataFrame>) -> Outcome {
    let plan = match frame {
        Ok(frame) => frame.create_physical_plan().await,
        Err(error) => Err(error),
    };
    let Ok(plan) = plan else { return Outcome::NotSql };
    let placement = placement(&plan);
    match placement.kind() {
        PlacementKind::Whole => Outcome::Device,
        PlacementKind::ScanOnly => Outcome::NothingToDo,
        PlacementKind::Partly | PlacementKind::Host => {
            let operators = placement.host_operators.into_iter();
            Outcome::Host(operators.map(|operator| (operator.operator, operator.reason)).collect())
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Device,
    /// Operators and reasons.
    Host(Vec<(String, String)>),
    /// No operator computes.
    NothingToDo,
    /// The result's type is not supported on the device.
    Foreign(DataType),
    /// DataFusion itself refuses.
    NotSql,
}

impl Outcome {
    fn entry(&self) -> String {
        match self {
            Outcome::Device => "●".to_owned(),
            Outcome::Host(_) => "host".to_owned(),
            Outcome::Foreign(data_type) => {
                let name = data_type.to_string();
                format!("`{}`", name.split('(').next().unwrap_or_default())
            }
            Outcome::NothingToDo | Outcome::NotSql => "·".to_owned(),
        }
    }

    /// The outcome of several expressions together: the worst one.
    fn and(self, other: Outcome) -> Outcome {
        match (self, other) {
            (Outcome::NotSql, outcome) | (outcome, Outcome::NotSql) => outcome,
            (Outcome::NothingToDo, outcome) | (outcome, Outcome::NothingToDo) => outcome,
            (Outcome::Device, outcome) | (outcome, Outcome::Device) => outcome,
            (Outcome::Host(mut operators), Outcome::Host(others)) => {
                operators.extend(others);
                Outcome::Host(operators)
            }
            (host @ Outcome::Host(_), _) | (_, host @ Outcome::Host(_)) => host,
            (outcome, _) => outcome,
        }
    }
}

/// Escapes a string for a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

// Operators

async fn operators() -> String {
    let ctx = session();
    let folder = tempfile::tempdir().unwrap();
    ctx.sql("CREATE TABLE t AS SELECT value AS a, value % 7 AS b, CAST(value AS VARCHAR) AS s, value % 2 = 0 AS flag FROM generate_series(1, 100)")
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    ctx.sql("CREATE TABLE u AS SELECT a, b FROM t").await.unwrap().collect().await.unwrap();
    let file = folder.path().join("f.parquet");
    ctx.table("t").await.unwrap().write_parquet(file.to_str().unwrap(), Default::default(), None).await.unwrap();
    ctx.register_parquet("f", file.to_str().unwrap(), Default::default()).await.unwrap();

    const QUERIES: &[(&str, &str)] = &[
        ("filter", "SELECT a, s FROM t WHERE a > 10"),
        ("projection", "SELECT a + b FROM t"),
        ("projection over a file", "SELECT a + b FROM f"),
        ("filter over a file", "SELECT a FROM f WHERE a + b > 10"),
        ("LIMIT and OFFSET of computed rows", "SELECT a + b FROM t LIMIT 10 OFFSET 5"),
        ("aggregation", "SELECT sum(a), min(s) FROM t"),
        ("GROUP BY", "SELECT b, sum(a) FROM t GROUP BY b"),
        ("GROUP BY of several keys and expressions", "SELECT b, s, a % 3, count(*) FROM t GROUP BY b, s, a % 3"),
        ("GROUP BY over a file", "SELECT b, sum(a) FROM f GROUP BY b"),
        ("HAVING", "SELECT b FROM t GROUP BY b HAVING sum(a) > 10"),
        ("FILTER (WHERE …)", "SELECT sum(a) FILTER (WHERE flag) FROM t"),
        ("SELECT DISTINCT", "SELECT DISTINCT b, s FROM t"),
        ("COUNT(DISTINCT)", "SELECT b, count(DISTINCT s), count(DISTINCT a), sum(a) FROM t GROUP BY b"),
        ("UNION ALL of computed rows", "SELECT a + 1 FROM t UNION ALL SELECT b + 1 FROM u"),
        ("UNION", "SELECT a FROM t UNION SELECT b FROM u"),
        ("subquery in FROM", "SELECT sum(x) FROM (SELECT b, sum(a) AS x FROM t GROUP BY b)"),
        ("GROUPING SETS, CUBE, ROLLUP", "SELECT b, flag, sum(a), median(a) FROM t GROUP BY ROLLUP (b, flag)"),
        ("ORDER BY", "SELECT a, b FROM t ORDER BY b, a"),
        ("ORDER BY with LIMIT", "SELECT a, b FROM t ORDER BY b, a LIMIT 10"),
        ("INNER JOIN", "SELECT t.s FROM t JOIN u ON t.a = u.a"),
        ("LEFT JOIN", "SELECT t.s, u.b FROM t LEFT JOIN u ON t.a = u.a"),
        ("join on an inequality", "SELECT t.s FROM t JOIN u ON t.a < u.b"),
        ("CROSS JOIN", "SELECT t.s FROM t CROSS JOIN u"),
        ("IN (subquery), EXISTS", "SELECT a FROM t WHERE a IN (SELECT b FROM u)"),
        ("scalar subquery", "SELECT a FROM t WHERE a > (SELECT avg(b) FROM u)"),
        ("INTERSECT, EXCEPT", "SELECT a FROM t EXCEPT SELECT b FROM u"),
        ("window functions", "SELECT sum(a) OVER (PARTITION BY b ORDER BY a) FROM t"),
        ("array_agg", "SELECT b, array_agg(s ORDER BY a), array_agg(DISTINCT s) FROM t GROUP BY b"),
        ("lists as keys", "SELECT l, count(*) FROM (SELECT b, array_agg(a) AS l FROM t GROUP BY b) GROUP BY l ORDER BY l"),
        ("UNNEST", "SELECT b, unnest(l) FROM (SELECT b, array_agg(a) AS l FROM t GROUP BY b)"),
        ("UNNEST of a literal list", "SELECT b, unnest([1, 2, NULL]) FROM t"),
        ("WITH RECURSIVE", "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 9) SELECT n FROM r"),
    ];
    let mut text = String::from(
        "\n## Operators\n\n\
         Scans, inserts and repartitioning do not compute. They feed the device from any source.\n\n\
         | query | example | where it runs |\n|---|---|---|\n",
    );
    for (name, sql) in QUERIES {
        let outcome = runs(ctx.sql(sql).await).await;
        let runs_on = match &outcome {
            Outcome::Device => "●".to_owned(),
            Outcome::Host(operators) => {
                let mut reasons = Vec::new();
                for (operator, reason) in operators {
                    let reason = format!("`{operator}`: {}", cell(reason));
                    if !reasons.contains(&reason) {
                        reasons.push(reason);
                    }
                }
                format!("host: {}", reasons.join("; "))
            }
            other => panic!("{sql} computes nothing: {other:?}"),
        };
        writeln!(text, "| {name} | `{}` | {runs_on} |", cell(sql)).unwrap();
    }
    text
}

// Types

/// The types of columns and values that the pages list.
fn all_types() -> Vec<DataType> {
    use DataType::*;
    use TimeUnit::*;
    let zone = |name: &str| Some(Arc::from(name));
    let dictionary = |value| Dictionary(Box::new(Int32), Box::new(value));
    vec![
        Boolean,
        Int8,
        Int16,
        Int32,
        Int64,
        UInt8,
        UInt16,
        UInt32,
        UInt64,
        Float32,
        Float64,
        Decimal32(9, 2),
        Decimal64(18, 2),
        Decimal128(15, 2),
        Decimal128(38, 10),
        Decimal256(60, 10),
        Date32,
        Date64,
        Time32(Second),
        Time32(Millisecond),
        Time64(Microsecond),
        Time64(Nanosecond),
        Timestamp(Second, None),
        Timestamp(Millisecond, None),
        Timestamp(Microsecond, None),
        Timestamp(Nanosecond, None),
        Timestamp(Nanosecond, zone("UTC")),
        Timestamp(Nanosecond, zone("+05:30")),
        Timestamp(Nanosecond, zone("Europe/Berlin")),
        Duration(Second),
        Duration(Millisecond),
        Duration(Microsecond),
        Duration(Nanosecond),
        Interval(IntervalUnit::MonthDayNano),
        Utf8,
        LargeUtf8,
        Utf8View,
        Binary,
        LargeBinary,
        BinaryView,
        FixedSizeBinary(16),
        dictionary(Utf8),
        dictionary(Utf8View),
        dictionary(Int64),
        dictionary(Decimal128(15, 2)),
        Null,
    ]
}

fn types() -> String {
    let mut text = String::from(
        "\n## Types\n\n\
         Resident tables keep values in fewer bytes where they fit. The SQL type does not change.\n\n\
         | type | in device memory, a value |\n|---|---|\n",
    );
    let item = || Arc::new(Field::new_list_field(DataType::Int64, true));
    let lists = [DataType::List(item()), DataType::LargeList(item()), DataType::FixedSizeList(item(), 3)];
    for data_type in all_types().into_iter().chain(lists) {
        supports_type(&data_type).unwrap();
        let layout = ColumnType::of(&data_type, true).unwrap().layout;
        writeln!(text, "| `{data_type}` | {} |", describe(&layout)).unwrap();
    }
    text += "\nColumns of other types stay on the host, and so do the operators that use them:\n\n";
    let entries =
        DataType::Struct(vec![Field::new("keys", DataType::Utf8, false), Field::new("values", DataType::Int64, true)].into());
    let others = [
        ("`Float16`", DataType::Float16),
        ("`Interval(YearMonth)`", DataType::Interval(IntervalUnit::YearMonth)),
        ("`Interval(DayTime)`", DataType::Interval(IntervalUnit::DayTime)),
        ("`ListView`", DataType::ListView(item())),
        ("`Struct`", DataType::Struct(vec![Field::new("a", DataType::Int64, true)].into())),
        ("`Map`", DataType::Map(Arc::new(Field::new("entries", entries, false)), false)),
        ("`Union`", DataType::Union(UnionFields::empty(), UnionMode::Sparse)),
        (
            "`RunEndEncoded`",
            DataType::RunEndEncoded(
                Arc::new(Field::new("run_ends", DataType::Int32, false)),
                Arc::new(Field::new("values", DataType::Int64, true)),
            ),
        ),
    ];
    let names: Vec<&str> = others
        .into_iter()
        .map(|(name, data_type)| {
            assert!(supports_type(&data_type).is_err(), "{data_type} is supported on the device: list it above");
            name
        })
        .collect();
    writeln!(text, "{}.", enumeration("", &names)).unwrap();
    text
}

/// Names behind `start`, in lines of at most 100 columns that are indented below the first name.
fn enumeration(start: &str, names: &[impl AsRef<str>]) -> String {
    let mut lines = vec![start.to_string()];
    for (index, name) in names.iter().enumerate() {
        let comma = if index + 1 < names.len() { "," } else { "" };
        let item = format!("{}{comma}", name.as_ref());
        let line = lines.last_mut().unwrap();
        match line.chars().count() + item.chars().count() < 99 {
            true if index == 0 => line.push_str(&item),
            true => write!(line, " {item}").unwrap(),
            false => lines.push(" ".repeat(start.len()) + &item),
        }
    }
    lines.join("\n")
}

/// A description of a layout.
fn describe(layout: &Layout) -> String {
    match layout {
        Layout::Null => "nothing".to_owned(),
        Layout::Bits => "1 bit".to_owned(),
        Layout::Fixed(carrier) if carrier.width() == 1 => "1 byte".to_owned(),
        Layout::Fixed(carrier) => format!("{} bytes", carrier.width()),
        Layout::Bytes(width) => format!("{width} bytes"),
        Layout::Offsets32 => "a 32-bit offset, and its bytes".to_owned(),
        Layout::Offsets64 => "a 64-bit offset, and its bytes".to_owned(),
        Layout::Views => "a 16-byte view, and its bytes".to_owned(),
        Layout::Dictionary { codes, .. } => format!("a code of {} bytes, and a dictionary", codes.width()),
        Layout::List(_) => "an 8-byte offset/length pair, and its elements".to_owned(),
    }
}

// Expressions

/// Sessions with and without the device, and a table `t`: `a` and `b` of the type, `n` and `flag`.
fn table_of(data_type: &DataType) -> [SessionContext; 2] {
    let contexts = [session(), SessionContext::new()];
    let schema = Schema::new(vec![
        Field::new("a", data_type.clone(), true),
        Field::new("b", data_type.clone(), true),
        Field::new("n", DataType::Int64, true),
        Field::new("flag", DataType::Boolean, true),
    ]);
    let columns = schema.fields().iter().map(|field| constant(field.data_type()).to_array().unwrap()).collect();
    let batch = RecordBatch::try_new_with_options(Arc::new(schema), columns, &RecordBatchOptions::new()).unwrap();
    let table = Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap());
    for ctx in &contexts {
        ctx.register_table("t", Arc::clone(&table) as _).unwrap();
    }
    contexts
}

/// A constant of the type.
fn constant(data_type: &DataType) -> ScalarValue {
    let (number, text): (ArrayRef, ArrayRef) = (Arc::new(Int64Array::from(vec![1])), Arc::new(StringArray::from(vec!["x"])));
    let array = match data_type {
        DataType::FixedSizeBinary(width) => return ScalarValue::FixedSizeBinary(*width, Some(vec![0; *width as usize])),
        DataType::Null => return ScalarValue::Null,
        // Arrow has no cast from integers to these.
        DataType::Time32(_) | DataType::Date32 => {
            let number = cast(&number, &DataType::Int32).unwrap();
            cast(&number, data_type)
        }
        DataType::Interval(_) => cast(&cast(&number, &DataType::Duration(TimeUnit::Second)).unwrap(), data_type),
        other
            if other.is_string() || other.is_binary() || matches!(other, DataType::Dictionary(_, value) if value.is_string()) =>
        {
            cast(&text, other)
        }
        other => cast(&number, other),
    };
    ScalarValue::try_from_array(&array.unwrap_or_else(|error| panic!("{data_type}: {error}")), 0).unwrap()
}

/// A table of types by columns. Types with equal entries share a row; the reasons follow.
struct Matrix {
    columns: Vec<&'static str>,
    rows: Vec<(Vec<String>, Vec<String>)>,
    reasons: BTreeSet<String>,
}

impl Matrix {
    fn new(columns: Vec<&'static str>) -> Self {
        Self { columns, rows: Vec::new(), reasons: BTreeSet::new() }
    }

    fn add(&mut self, data_type: &DataType, outcomes: &[Outcome]) {
        let entries: Vec<String> = outcomes.iter().map(Outcome::entry).collect();
        for outcome in outcomes {
            if let Outcome::Host(operators) = outcome {
                self.reasons.extend(operators.iter().map(|(_, reason)| reason.clone()));
            }
        }
        match self.rows.iter_mut().find(|(_, known)| *known == entries) {
            Some((types, _)) => types.push(data_type.to_string()),
            None => self.rows.push((vec![data_type.to_string()], entries)),
        }
    }

    fn text(&self) -> String {
        let columns: Vec<String> = self.columns.iter().map(|column| cell(column)).collect();
        let mut text = format!("\n| types | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
        for (types, entries) in &self.rows {
            let types: Vec<String> = types.iter().map(|name| format!("`{name}`")).collect();
            writeln!(text, "| {} | {} |", types.join(", "), entries.join(" | ")).unwrap();
        }
        if !self.reasons.is_empty() {
            text += "\nReasons of EXPLAIN for `host` in this table:\n\n";
            self.reasons.iter().for_each(|reason| writeln!(text, "- {reason}").unwrap());
        }
        text
    }
}

async fn expressions() -> String {
    use Operator::*;
    let (a, b, flag) = (|| col("a"), || col("b"), || col("flag"));
    let binary = move |op| binary_expr(a(), op, b());
    type Make = Box<dyn Fn(&DataType) -> Vec<Expr>>;
    let every = |ops: Vec<Operator>| -> Make { Box::new(move |_| ops.iter().map(|op| binary(*op)).collect()) };
    let columns: Vec<(&str, Make)> = vec![
        ("column, constant", Box::new(move |ty| vec![a(), lit(constant(ty))])),
        ("`=` `<>` `<` `<=` `>` `>=`", every(vec![Eq, NotEq, Lt, LtEq, Gt, GtEq])),
        ("`IS [NOT] DISTINCT FROM`", every(vec![IsDistinctFrom, IsNotDistinctFrom])),
        (
            "`BETWEEN` `IN`",
            Box::new(move |ty| {
                let list = vec![lit(constant(ty)), lit(ScalarValue::try_new_null(ty).unwrap())];
                vec![a().between(lit(constant(ty)), b()), a().in_list(list.clone(), false), a().in_list(list, true)]
            }),
        ),
        ("`IS [NOT] NULL`", Box::new(move |_| vec![a().is_null(), a().is_not_null()])),
        (
            "`CASE` `COALESCE` `NULLIF`",
            Box::new(move |ty| {
                let case = when(flag(), a()).when(a().is_null(), lit(constant(ty))).otherwise(b()).unwrap();
                vec![case, coalesce(vec![a(), b(), lit(constant(ty))]), nullif(a(), b())]
            }),
        ),
        ("`+`", every(vec![Plus])),
        ("`-`", every(vec![Minus])),
        ("`*`", every(vec![Multiply])),
        ("`/` `%`", every(vec![Divide, Modulo])),
        ("`-x`", Box::new(move |_| vec![Expr::Negative(Box::new(a()))])),
        ("`&` `|` `^` `<<` `>>`", every(vec![BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseShiftLeft, BitwiseShiftRight])),
        (
            "`AND` `OR` `NOT`, `IS TRUE` and its kin",
            Box::new(move |_| {
                let truths = [
                    a().is_true(),
                    a().is_not_true(),
                    a().is_false(),
                    a().is_not_false(),
                    a().is_unknown(),
                    a().is_not_unknown(),
                ];
                let mut all = vec![binary(And), binary(Or), Expr::Not(Box::new(a()))];
                all.extend(truths);
                all
            }),
        ),
    ];
    let mut matrix = Matrix::new(columns.iter().map(|(name, _)| *name).collect());
    for data_type in all_types() {
        let contexts = table_of(&data_type);
        let mut outcomes = Vec::new();
        for (_, make) in &columns {
            // A filter makes a plain column an operator that computes.
            let query = async |ctx: &SessionContext, exprs| ctx.table("t").await?.filter(flag())?.select(exprs);
            outcomes.push(worst_outcome(make(&data_type), query, &contexts).await);
        }
        matrix.add(&data_type, &outcomes);
    }
    format!(
        "\n## Expressions\n\nBoth operands have one type. Where types differ, DataFusion casts one; [casts](#casts) are below.\n\
         Expressions nest freely.\n{}",
        matrix.text()
    )
}

async fn functions() -> String {
    const CALLS: &[&str] = &[
        "coalesce(a, b)",
        "nullif(a, b)",
        "nvl(a, b)",
        "abs(a)",
        "round(x, 1)",
        "sqrt(x)",
        "ln(x)",
        "power(x, a)",
        "sin(x)",
        "greatest(a, b)",
        "date_part('year', d)",
        "date_trunc('month', d)",
        "to_date(s, '%d/%m/%Y')",
        "to_char(d, '%d/%m/%Y')",
        "now()",
        "random()",
        "lower(s)",
        "length(s)",
        "substr(s, 1, 2)",
        "s || s",
        "s LIKE 'a%'",
        "s ILIKE '%b%'",
        "s SIMILAR TO 'a+'",
        "regexp_like(s, 'a+')",
        "d + INTERVAL '1' DAY",
        "array_length(l)",
        "cardinality(l)",
        "array_element(l, 1)",
        "make_array(a, b)",
    ];
    let ctx = session();
    ctx.sql(
        "CREATE TABLE t AS SELECT value AS a, value + 1 AS b, CAST(value AS DOUBLE) AS x, CAST(value AS VARCHAR) AS s, \
         DATE '2020-01-01' AS d, value % 2 = 0 AS flag, array_agg(value) AS l FROM generate_series(1, 9) GROUP BY value",
    )
    .await
    .unwrap()
    .collect()
    .await
    .unwrap();
    let mut text = String::from(
        "\n## Functions\n\n\
         DataFusion rewrites some functions to expressions of the table above. A sample, over integers `a`\n\
         and `b`, a float `x`, a string `s`, a date `d` and a list `l`:\n\n| call | where it runs |\n|---|---|\n",
    );
    for call in CALLS {
        let runs_on = match runs(ctx.sql(&format!("SELECT {call} FROM t WHERE flag")).await).await {
            Outcome::Device => "●".to_owned(),
            Outcome::Host(operators) => {
                let computing = operators.iter().map(|(_, reason)| cell(reason)).collect::<BTreeSet<_>>();
                format!("host: {}", computing.into_iter().collect::<Vec<_>>().join("; "))
            }
            other => panic!("{call}: {other:?}"),
        };
        writeln!(text, "| `{}` | {runs_on} |", cell(call)).unwrap();
    }
    text
}

// Aggregates

async fn aggregate_functions() -> String {
    type Make = Box<dyn Fn() -> Vec<Expr>>;
    let a = || col("a");
    let columns: Vec<(&str, Make)> = vec![
        ("`count`", Box::new(move || vec![aggregates::count(a()), aggregates::count(lit(1))])),
        ("`count(DISTINCT)`", Box::new(move || vec![aggregates::count_distinct(a())])),
        ("`approx_distinct`", Box::new(move || vec![aggregates::approx_distinct(a())])),
        ("`sum`", Box::new(move || vec![aggregates::sum(a())])),
        ("`avg`", Box::new(move || vec![aggregates::avg(a())])),
        ("`min` `max`", Box::new(move || vec![aggregates::min(a()), aggregates::max(a())])),
        ("`bool_and` `bool_or`", Box::new(move || vec![aggregates::bool_and(a()), aggregates::bool_or(a())])),
        (
            "`bit_and` `bit_or` `bit_xor`",
            Box::new(move || vec![aggregates::bit_and(a()), aggregates::bit_or(a()), aggregates::bit_xor(a())]),
        ),
        (
            "`var` `stddev`, `_pop` and `_samp`",
            Box::new(move || {
                let (var, stddev) = (aggregates::var_sample(a()), aggregates::stddev(a()));
                vec![var, aggregates::var_pop(a()), stddev, aggregates::stddev_pop(a())]
            }),
        ),
        (
            "`covar_…` `corr` `regr_…`",
            Box::new(move || {
                let (covar, corr) = (aggregates::covar_samp(a(), a()), aggregates::corr(a(), a()));
                vec![covar, aggregates::covar_pop(a(), a()), corr, datafusion::functions_aggregate::regr::regr_slope(a(), a())]
            }),
        ),
        (
            "`median` `percentile_cont`",
            Box::new(move || vec![aggregates::median(a()), aggregates::percentile_cont(a().sort(true, false), lit(0.3))]),
        ),
        (
            "`first_value` `last_value` `nth_value` `any_value`",
            Box::new(move || {
                let order = || vec![a().sort(true, true)];
                let (first, last) = (aggregates::first_value(a(), order()), aggregates::last_value(a(), order()));
                let any = datafusion::functions_aggregate::any_value::any_value(a());
                vec![first, last, aggregates::nth_value(a(), 2, order()), any]
            }),
        ),
        ("`array_agg`", Box::new(move || vec![datafusion::functions_aggregate::array_agg::array_agg(a())])),
        ("`string_agg`", Box::new(move || vec![datafusion::functions_aggregate::string_agg::string_agg(a(), lit(", "))])),
    ];
    let mut names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    // Each aggregate of the kernels' table has a column, by its name or a prefix such as `regr_…`.
    for named in AggregateFunction::ALL.iter().flat_map(|function| function.row().names) {
        let (full, base) = (named.name, named.name.trim_end_matches("_pop"));
        let is_name =
            |name: &str| name == full || name == base || name.strip_suffix('…').is_some_and(|prefix| full.starts_with(prefix));
        assert!(names.iter().any(|column| column.split('`').any(is_name)), "{full} has no column");
    }
    names.push("`GROUP BY`, `DISTINCT`");
    let mut matrix = Matrix::new(names);
    for data_type in all_types() {
        let contexts = table_of(&data_type);
        let mut outcomes = Vec::new();
        for (_, make) in &columns {
            let filtered = |aggregate: Expr| aggregate.filter(col("flag")).build().unwrap();
            let mut outcome = Outcome::NotSql;
            for keys in [vec![], vec![col("n")]] {
                // Without a filter DataFusion could answer from statistics.
                let query = async |ctx: &SessionContext, aggregates| {
                    ctx.table("t").await?.filter(col("flag"))?.aggregate(keys.clone(), aggregates)
                };
                let aggregates =
                    if keys.is_empty() { [make(), make().into_iter().map(filtered).collect()].concat() } else { make() };
                outcome = outcome.and(worst_outcome(aggregates, query, &contexts).await);
            }
            outcomes.push(outcome);
        }
        let keyed = async |ctx: &SessionContext| {
            ctx.table("t").await?.filter(col("flag"))?.aggregate(vec![a()], vec![aggregates::count(lit(1))])
        };
        outcomes.push(runs_if_plain(keyed, &contexts).await);
        matrix.add(&data_type, &outcomes);
    }
    // DataFusion replaces grouping() by the number of the grouping set.
    let all = datafusion::functions_aggregate::all_default_aggregate_functions();
    let is_on_host = |name: &&str| *name != "grouping" && AggregateFunction::from_sql(name).is_none();
    let on_host = all.iter().map(|function| function.name()).filter(is_on_host);
    let on_host: Vec<String> = on_host.map(|name| format!("`{name}`")).collect();
    format!(
        "\n## Aggregates\n\nWith and without `GROUP BY`, each also with `FILTER (WHERE …)`. The last column is the type as a\n\
         key, where `NULL` is a group of its own.\n{}\n\
         These are on the host for every type ([why](limits.md#types)):\n\n{}.\n",
        matrix.text(),
        enumeration("", &on_host)
    )
}

// Casts

fn casts() -> String {
    let types = all_types();
    let entry = |from: &DataType, to: &DataType| match from == to || supports_cast(from, to).is_ok() {
        true => "●",
        false if can_cast_types(from, to) => "host",
        false => "·",
    };
    let matrix: Vec<Vec<&str>> = types.iter().map(|from| types.iter().map(|to| entry(from, to)).collect()).collect();
    // Types with the same casts to and from all others are one.
    let alike = |i: usize, j: usize| {
        (0..types.len()).all(|k| k == i || k == j || (matrix[i][k] == matrix[j][k] && matrix[k][i] == matrix[k][j]))
            && matrix[i][j] == matrix[i][i]
            && matrix[j][i] == matrix[j][j]
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in 0..types.len() {
        match groups.iter_mut().find(|group| group.iter().all(|other| alike(*other, index))) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    let mut text = String::from(
        "\n## Casts\n\n\
         `CAST` fails the query for a value without a counterpart; `TRY_CAST` gives `NULL`. Both are on the\n\
         device or neither. Rows are the source types, columns the target types.\n\n",
    );
    for (number, group) in groups.iter().enumerate() {
        let names: Vec<String> = group.iter().map(|index| format!("`{}`", types[*index])).collect();
        writeln!(text, "{}", enumeration(&format!("{}. ", number + 1), &names)).unwrap();
    }
    let numbers: Vec<String> = (1..=groups.len()).map(|number| number.to_string()).collect();
    writeln!(text, "\n| | {} |\n|---|{}", numbers.join(" | "), "---|".repeat(groups.len())).unwrap();
    for (number, from) in groups.iter().enumerate() {
        let cells: Vec<&str> = groups.iter().map(|to| matrix[from[0]][*to.last().unwrap()]).collect();
        writeln!(text, "| {} | {} |", number + 1, cells.join(" | ")).unwrap();
    }
    text
}

/// The planner and the table agree on casts.
#[tokio::test]
async fn planner_casts_what_the_page_says() {
    let dictionary = |value| DataType::Dictionary(Box::new(DataType::Int16), Box::new(value));
    for (from, to) in [
        (DataType::Int64, DataType::Int8),
        (DataType::Utf8, DataType::Date32),
        (DataType::Float64, DataType::Utf8),
        (DataType::Int64, dictionary(DataType::Utf8)),
        (DataType::Utf8, dictionary(DataType::Date32)),
        (DataType::Boolean, dictionary(DataType::Boolean)),
        (dictionary(DataType::Int64), DataType::Boolean),
    ] {
        let [ctx, _] = table_of(&from);
        let frame = ctx.table("t").await.and_then(|table| table.filter(col("flag"))?.select(vec![cast_to(col("a"), to.clone())]));
        assert_eq!(runs(frame).await == Outcome::Device, supports_cast(&from, &to).is_ok(), "{from} to {to}");
    }
}
