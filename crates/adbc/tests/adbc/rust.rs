// SPDX-License-Identifier: Apache-2.0
//! The driver through `adbc_core`'s traits.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use adbc_core::error::{Result, Status};
use adbc_core::options::{InfoCode, IngestMode, ObjectDepth, OptionConnection, OptionDatabase, OptionStatement};
use adbc_core::{Connection, Database, Optionable, Statement};
use arrow::array::{ArrayRef, AsArray, Float64Array, Int32Array, Int64Array, RecordBatch, RecordBatchReader, StringArray};
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use arrow::error::ArrowError;

use crate::support::{connection, database, ints, numbers, query};

#[test]
fn queries_run_on_the_device() -> Result<()> {
    let mut connection = connection();
    query(&mut connection, "CREATE TABLE device.t AS SELECT value AS x FROM generate_series(1, 20000)")?;
    assert_eq!(numbers(&query(&mut connection, "SELECT sum(x) FROM device.t WHERE x % 2 = 0")?), [100_010_000]);
    let plan = query(&mut connection, "EXPLAIN SELECT sum(x) FROM device.t WHERE x % 2 = 0")?;
    assert!(format!("{plan:?}").contains("DeviceAggregateExec"), "{plan:?}");
    Ok(())
}

#[test]
fn connections_share_tables_and_keep_their_settings() -> Result<()> {
    let database = database();
    let (mut first, mut second) = (database.new_connection()?, database.new_connection()?);
    query(&mut first, "CREATE TABLE t AS SELECT 1 AS x")?;
    first.set_option(OptionConnection::Other("datafusion.execution.batch_size".into()), 100.into())?;
    assert_eq!(numbers(&query(&mut second, "SELECT x FROM t")?), [1]);
    let size = OptionConnection::Other("datafusion.execution.batch_size".into());
    assert_eq!((first.get_option_int(size.clone())?, second.get_option_int(size)?), (100, 8192));
    second.set_option(OptionConnection::CurrentSchema, "device".into())?;
    assert_eq!(second.get_option_string(OptionConnection::CurrentSchema)?, "device");
    assert!(query(&mut second, "SELECT x FROM t").is_err());
    Ok(())
}

#[test]
fn options_that_do_not_exist_or_do_not_fit_are_refused() {
    let status = |result: Result<()>| result.unwrap_err().status;
    let mut database = database();
    assert_eq!(status(database.set_option("nothing".into(), "1".into())), Status::NotFound);
    assert_eq!(status(database.set_option(OptionDatabase::Uri, "file:x".into())), Status::NotFound);
    assert_eq!(status(database.set_option("device.cost".into(), "sometimes".into())), Status::InvalidArguments);
    assert_eq!(status(database.set_option("device.memory_bytes".into(), "65536".into())), Status::InvalidArguments);
    let mut connection = database.new_connection().unwrap();
    assert_eq!(status(connection.set_option(OptionConnection::AutoCommit, false.into())), Status::NotImplemented);
    assert!(connection.set_option(OptionConnection::AutoCommit, true.into()).is_ok());
    assert_eq!(status(connection.commit()), Status::InvalidState);
    let mut statement = connection.new_statement().unwrap();
    assert_eq!(status(statement.set_option("nothing".into(), "1".into())), Status::NotImplemented);
    assert_eq!(status(statement.set_option(OptionStatement::IngestMode, "sideways".into())), Status::InvalidArguments);
}

#[test]
fn errors_have_a_status_and_datafusions_message() {
    let mut connection = connection();
    for (sql, status, message) in [
        ("SELEC 1", Status::InvalidArguments, "SELEC"),
        ("SELECT x FROM nowhere", Status::InvalidArguments, "nowhere"),
        ("SELECT y FROM (SELECT 1 AS x)", Status::NotFound, "y"),
        ("SELECT * FROM 'file.parquet'", Status::InvalidArguments, "file.parquet"),
    ] {
        let error = query(&mut connection, sql).unwrap_err();
        assert!(error.status == status && error.message.contains(message), "{sql}: {error}");
    }
    let failed = query(&mut connection, "SELECT 1 / (value - value) FROM generate_series(1, 3)").unwrap_err();
    assert!(failed.message.contains("Divide by zero"), "{failed}");
    let mut statement = connection.new_statement().unwrap();
    assert_eq!(statement.execute().err().unwrap().status, Status::InvalidState);
}

/// The thread's own stack would overflow: it has 2 MiB.
#[test]
fn deep_expressions_of_the_host_run_and_deeper_ones_are_refused() -> Result<()> {
    let mut connection = connection();
    query(&mut connection, "SET device.enabled = false")?;
    query(&mut connection, "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 5000)")?;
    let sql = |number| format!("SELECT count(*) FROM t WHERE {}", vec!["(a = 1 AND a < 9)"; number].join(" OR "));
    let sql = |number| sql(number).replacen("a = 1", "a = 2", 1);
    assert_eq!(numbers(&query(&mut connection, &sql(600))?), [2]);
    // Copies of the plan and its drop are as deep.
    let mut statement = connection.new_statement()?;
    statement.set_sql_query(format!("SELECT {} AS x FROM t WHERE a = 1", vec!["a"; 600].join(" + ")))?;
    statement.prepare()?;
    assert_eq!((statement.execute_schema()?.fields().len(), statement.get_parameter_schema()?.fields().len()), (1, 0));
    let batches = statement.execute()?.collect::<std::result::Result<Vec<_>, _>>()?;
    assert_eq!(numbers(&batches), [600]);
    drop(statement);
    let error = query(&mut connection, &sql(20_100)).unwrap_err();
    assert!(error.message.contains("operators, the limit is 20000"), "{}", &error.message[..200]);
    Ok(())
}

#[test]
fn prepared_statements_run_once_for_each_row_of_parameters() -> Result<()> {
    let mut connection = connection();
    let mut statement = connection.new_statement()?;
    statement.set_sql_query("SELECT value * $1 AS y FROM generate_series(1, 3) WHERE value > CAST($2 AS BIGINT)")?;
    statement.prepare()?;
    let parameters = statement.get_parameter_schema()?;
    let names: Vec<&str> = parameters.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["$1", "$2"]);
    let row = |a: Vec<i64>, b: Vec<i64>| {
        RecordBatch::try_from_iter([
            ("a", Arc::new(Int64Array::from(a)) as ArrayRef),
            ("b", Arc::new(Int64Array::from(b)) as ArrayRef),
        ])
        .unwrap()
    };
    for _ in 0..2 {
        statement.bind(row(vec![10, 100], vec![1, 2]))?;
        let batches = statement.execute()?.collect::<std::result::Result<Vec<_>, _>>()?;
        assert_eq!(numbers(&batches), [20, 30, 300]);
    }
    // Execution uses up the bound rows.
    let missing = statement.execute().err().unwrap();
    assert!(missing.status == Status::InvalidState && missing.message.contains("2 parameters"), "{missing}");
    assert_eq!(statement.execute_schema()?.field(0).data_type(), &DataType::Int64);
    statement.bind(row(vec![], vec![]))?;
    assert_eq!(statement.execute()?.count(), 0);
    Ok(())
}

#[test]
fn rows_are_ingested_into_the_host_and_into_the_device() -> Result<()> {
    let mut connection = connection();
    for schema in ["public", "device"] {
        let mut ingest = |mode: IngestMode, values: &[i64]| {
            let mut statement = connection.new_statement()?;
            statement.set_option(OptionStatement::TargetTable, "Rows in".into())?;
            statement.set_option(OptionStatement::TargetDbSchema, schema.into())?;
            statement.set_option(OptionStatement::IngestMode, mode.into())?;
            statement.bind(ints(values))?;
            let ingested = statement.execute_update()?;
            assert_eq!(ingested, Some(values.len() as i64));
            Ok::<_, adbc_core::error::Error>(numbers(&query(
                &mut connection,
                &format!("SELECT x FROM {schema}.\"Rows in\" ORDER BY x"),
            )?))
        };
        assert_eq!(ingest(IngestMode::Append, &[1]).unwrap_err().status, Status::NotFound);
        assert_eq!(ingest(IngestMode::Create, &[3, 1])?, [1, 3]);
        assert_eq!(ingest(IngestMode::Create, &[1]).unwrap_err().status, Status::AlreadyExists);
        assert_eq!(ingest(IngestMode::Append, &[2])?, [1, 2, 3]);
        assert_eq!(ingest(IngestMode::CreateAppend, &[4])?, [1, 2, 3, 4]);
        assert_eq!(ingest(IngestMode::Replace, &[9])?, [9]);
    }
    Ok(())
}

#[test]
fn rows_of_other_types_are_ingested_by_a_cast_and_others_refused() -> Result<()> {
    let mut connection = connection();
    for schema in ["public", "device"] {
        query(&mut connection, &format!("CREATE TABLE {schema}.t AS SELECT 1::BIGINT AS a"))?;
        let mut append = |columns: Vec<(&str, ArrayRef)>| {
            let mut statement = connection.new_statement()?;
            statement.set_option(OptionStatement::TargetTable, "t".into())?;
            statement.set_option(OptionStatement::TargetDbSchema, schema.into())?;
            statement.set_option(OptionStatement::IngestMode, IngestMode::Append.into())?;
            statement.bind(RecordBatch::try_from_iter(columns)?)?;
            statement.execute_update()
        };
        let small = || Arc::new(Int32Array::from(vec![7, 8])) as ArrayRef;
        assert_eq!(append(vec![("a", small())])?, Some(2));
        assert_eq!(append(vec![("a", Arc::new(Float64Array::from(vec![2.5])))])?, Some(1));
        assert!(append(vec![("b", small())]).is_err());
        let strings = append(vec![("a", Arc::new(StringArray::from(vec!["xyz"])))]).unwrap_err();
        assert!(strings.message.contains("xyz"), "{strings}");
        let two = append(vec![("a", small()), ("b", small())]).unwrap_err();
        assert!(two.message.contains("has 1 columns, and the rows to insert have 2"), "{two}");
        assert_eq!(numbers(&query(&mut connection, &format!("SELECT a FROM {schema}.t ORDER BY a"))?), [1, 2, 7, 8]);
    }
    Ok(())
}

#[test]
fn execute_update_returns_the_rows_affected() -> Result<()> {
    let mut connection = connection();
    let mut run = |sql: &str| {
        let mut statement = connection.new_statement()?;
        statement.set_sql_query(sql)?;
        statement.execute_update()
    };
    assert_eq!(run("CREATE TABLE t (x BIGINT)")?, None);
    assert_eq!(run("INSERT INTO t VALUES (1), (2), (3)")?, Some(3));
    Ok(())
}

#[test]
fn parameters_of_inserts_are_cast_to_the_types_of_columns() -> Result<()> {
    let mut connection = connection();
    query(&mut connection, "CREATE TABLE t (x BIGINT, s VARCHAR)")?;
    let mut statement = connection.new_statement()?;
    statement.set_sql_query("INSERT INTO t VALUES ($1, $2)")?;
    statement.prepare()?;
    let row = RecordBatch::try_from_iter([
        ("x", Arc::new(Int32Array::from(vec![7])) as ArrayRef),
        ("s", Arc::new(StringArray::from(vec!["seven"]))),
    ])?;
    statement.bind(row)?;
    assert_eq!(statement.execute_update()?, Some(1));
    assert_eq!(numbers(&query(&mut connection, "SELECT x FROM t WHERE s = 'seven'")?), [7]);
    let mut statement = connection.new_statement()?;
    statement.set_sql_query("SELECT CAST(value * $1 AS BIGINT) FROM generate_series(2, 2)")?;
    statement.bind(RecordBatch::try_from_iter([("x", Arc::new(Float64Array::from(vec![2.5])) as ArrayRef)])?)?;
    let batches = statement.execute()?.collect::<std::result::Result<Vec<_>, _>>()?;
    assert_eq!(numbers(&batches), [5]);
    Ok(())
}

/// Only the second row would fit the other operand's type.
#[test]
fn rows_of_parameters_keep_their_type() -> Result<()> {
    let mut connection = connection();
    let mut run = |values: Vec<Option<f64>>| {
        let mut statement = connection.new_statement()?;
        statement.set_sql_query("SELECT $1 + 1::BIGINT AS y")?;
        statement.bind(RecordBatch::try_from_iter([("x", Arc::new(Float64Array::from(values)) as ArrayRef)])?)?;
        let rows = statement.execute()?;
        let schema = rows.schema();
        let batches = rows.collect::<std::result::Result<Vec<_>, _>>()?;
        assert!(batches.iter().all(|batch| batch.schema() == schema));
        Ok::<_, adbc_core::error::Error>(batches)
    };
    let sums: Vec<_> = run(vec![Some(1.5), Some(2.0), None])?
        .iter()
        .flat_map(|batch| batch.column(0).as_primitive::<Float64Type>().iter().collect::<Vec<_>>())
        .collect();
    assert_eq!(sums, [Some(2.5), Some(3.0), None]);
    // The value does not decide the type.
    assert!(run(vec![Some(1.0), Some(2.0)])?.iter().all(|batch| batch.column(0).data_type() == &DataType::Float64));
    Ok(())
}

/// The scale of `round`'s result depends on the value of its argument.
#[test]
fn rows_of_parameters_that_give_other_types_are_refused() -> Result<()> {
    let mut connection = connection();
    let mut statement = connection.new_statement()?;
    statement.set_sql_query("SELECT round(x, $1) FROM (SELECT 1.25::DECIMAL(10, 2) AS x)")?;
    statement.bind(ints(&[1, 0]))?;
    let mut rows = statement.execute()?;
    assert_eq!(rows.next().unwrap()?.num_rows(), 1);
    let error = rows.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("a row of parameters gives columns of (Decimal128("), "{error}");
    assert!(rows.next().is_none());
    Ok(())
}

#[test]
fn cancelling_ends_a_query_from_another_thread() -> Result<()> {
    let mut connection = connection();
    let slow =
        "SELECT count(*) FROM generate_series(1, 300000) AS a(x) JOIN generate_series(1, 300000) AS b(y) ON x * y % 1000003 = 7";
    for of_connection in [false, true] {
        let mut statement = connection.new_statement()?;
        statement.set_sql_query(slow)?;
        let cancel = if of_connection { connection.get_cancel_handle() } else { statement.get_cancel_handle() };
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            cancel.try_cancel()
        });
        let start = Instant::now();
        let ended = statement.execute().and_then(|rows| rows.map(|batch| Ok(batch?)).collect::<Result<Vec<_>>>());
        let error = ended.expect_err("the query takes minutes");
        assert!(error.message.contains("cancelled"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(60));
        canceller.join().unwrap()?;
        // The connection stays usable.
        assert_eq!(numbers(&query(&mut connection, "SELECT sum(value) FROM generate_series(1, 3)")?), [6]);
    }
    Ok(())
}

/// A stream of rows that reports reads, and gives nothing before the end of `silence`.
struct SilentRows {
    schema: SchemaRef,
    asked: Sender<()>,
    silence: Receiver<()>,
}

impl Iterator for SilentRows {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.asked.send(()).unwrap();
        // The end of the silence is an error.
        _ = self.silence.recv();
        None
    }
}

impl RecordBatchReader for SilentRows {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[test]
fn cancelling_ends_a_wait_for_bound_rows() -> Result<()> {
    let mut connection = connection();
    for ingests in [false, true] {
        let mut statement = connection.new_statement()?;
        match ingests {
            true => statement.set_option(OptionStatement::TargetTable, "t".into())?,
            false => statement.set_sql_query("SELECT x + $1 FROM (SELECT 1 AS x)")?,
        }
        let ((asked, is_asked), (end_silence, silence)) = (channel(), channel());
        statement.bind_stream(Box::new(SilentRows { schema: ints(&[1]).schema(), asked, silence }))?;
        let cancel = statement.get_cancel_handle();
        let canceller = std::thread::spawn(move || {
            is_asked.recv().unwrap();
            cancel.try_cancel()
        });
        let error = statement.execute_update().expect_err("the rows do not come");
        assert_eq!((error.status, &*error.message), (Status::Cancelled, "the query was cancelled"));
        canceller.join().unwrap()?;
        drop(end_silence);
    }
    // The connection stays usable.
    assert_eq!(numbers(&query(&mut connection, "SELECT sum(value) FROM generate_series(1, 3)")?), [6]);
    Ok(())
}

/// Blocking calls are errors on a thread of an async runtime. Statements and connections can be
/// dropped there.
#[test]
fn threads_of_a_runtime_are_not_blocked() {
    let mut connection = connection();
    let mut statement = connection.new_statement().unwrap();
    statement.set_sql_query("SELECT 1").unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async move {
        assert_eq!(statement.execute().err().unwrap().status, Status::InvalidState);
        drop((statement, connection));
    });
}

#[test]
fn catalogs_are_listed_by_pattern_and_depth() -> Result<()> {
    let mut connection = connection();
    query(&mut connection, "CREATE TABLE device.trades AS SELECT 1 AS price, 'x' AS name")?;
    let list = |depth, table: Option<&str>, column: Option<&str>| {
        let rows = connection.get_objects(depth, Some("data%"), Some("device"), table, None, column)?;
        let batches = rows.collect::<std::result::Result<Vec<_>, _>>()?;
        Ok::<_, adbc_core::error::Error>(arrow::util::pretty::pretty_format_batches(&batches)?.to_string())
    };
    let columns = list(ObjectDepth::All, Some("tra%"), Some("p%"))?;
    assert!(columns.contains("column_name: price") && !columns.contains("column_name: name"), "{columns}");
    assert!(columns.contains("xdbc_type_name: Int64") && columns.contains("ordinal_position: 1"), "{columns}");
    let tables = list(ObjectDepth::Tables, None, None)?;
    assert!(tables.contains("table_name: trades") && !tables.contains("price"), "{tables}");
    assert!(!list(ObjectDepth::Tables, Some("x%"), None)?.contains("trades"));
    let schemas = list(ObjectDepth::Schemas, None, None)?;
    assert!(schemas.contains("db_schema_name: device") && !schemas.contains("trades"), "{schemas}");
    assert!(!list(ObjectDepth::Catalogs, None, None)?.contains("device"));
    assert_eq!(connection.get_table_schema(None, Some("device"), "trades")?.field(0).name(), "price");
    assert_eq!(connection.get_table_schema(None, None, "nowhere").unwrap_err().status, Status::NotFound);
    let kinds = connection.get_table_types()?.next().unwrap()?;
    assert_eq!(kinds.column(0).as_string::<i32>(), &StringArray::from(vec!["BASE TABLE", "VIEW", "LOCAL TEMPORARY"]));
    Ok(())
}

#[test]
fn get_info_returns_the_values_asked_for() -> Result<()> {
    let connection = connection();
    let all = connection.get_info(None)?.next().unwrap()?;
    assert_eq!(all.num_rows(), 9);
    let two = connection.get_info(Some(HashSet::from([InfoCode::VendorName, InfoCode::VendorSubstrait])))?.next().unwrap()?;
    let table = arrow::util::pretty::pretty_format_batches(&[two])?.to_string();
    assert!(table.contains("DeviceFusion") && table.contains("false") && table.lines().count() == 6, "{table}");
    Ok(())
}
