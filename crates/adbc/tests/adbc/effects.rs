// SPDX-License-Identifier: Apache-2.0
//! Statements with effects run at their execution, even if their result is never read.

use adbc_core::error::Result;
use adbc_core::options::OptionStatement;
use adbc_core::{Connection, Optionable, Statement};
use arrow::array::AsArray;
use arrow::datatypes::UInt64Type;
use devicefusion_adbc::DeviceFusionConnection;

use crate::support::{connection, ints, numbers, query};

/// Executes a statement, drops the result unread, and returns the number of rows affected.
fn execute(connection: &mut DeviceFusionConnection, sql: &str) -> Result<i64> {
    let mut statement = connection.new_statement()?;
    statement.set_sql_query(sql)?;
    drop(statement.execute()?);
    statement.get_option_int(OptionStatement::Other("devicefusion.rows_affected".into()))
}

fn count(connection: &mut DeviceFusionConnection, table: &str) -> i64 {
    numbers(&query(connection, &format!("SELECT count(*) FROM {table}")).unwrap())[0]
}

#[test]
fn inserts_run_when_executed() -> Result<()> {
    let mut connection = connection();
    for table in ["t", "device.t"] {
        assert_eq!(execute(&mut connection, &format!("CREATE TABLE {table} AS SELECT 1::BIGINT AS x WHERE false"))?, -1);
        assert_eq!(execute(&mut connection, &format!("INSERT INTO {table} VALUES (1), (2)"))?, 2);
        assert_eq!(count(&mut connection, table), 2);
        assert_eq!(execute(&mut connection, &format!("INSERT INTO {table} SELECT x + 2 FROM {table} WHERE x > 5"))?, 0);
        assert_eq!(count(&mut connection, table), 2);
    }
    Ok(())
}

/// As in DuckDB's driver.
#[test]
fn the_result_of_an_insert_is_its_count() -> Result<()> {
    let mut connection = connection();
    query(&mut connection, "CREATE TABLE t (x BIGINT)")?;
    let batches = query(&mut connection, "INSERT INTO t VALUES (1), (2), (3)")?;
    let [batch] = &batches[..] else { panic!("{batches:?}") };
    assert_eq!(batch.schema().field(0).name(), "count");
    assert_eq!(batch.column(0).as_primitive::<UInt64Type>().values(), &[3]);
    assert!(query(&mut connection, "CREATE TABLE u (x BIGINT)")?.is_empty());
    Ok(())
}

#[test]
fn errors_of_an_insert_come_from_execute() -> Result<()> {
    let mut connection = connection();
    execute(&mut connection, "CREATE TABLE t (x BIGINT)")?;
    for sql in ["INSERT INTO t SELECT 1 / (value - value) FROM generate_series(1, 3)", "INSERT INTO t SELECT 1/0"] {
        let error = execute(&mut connection, sql).unwrap_err();
        assert!(error.message.contains("Divide by zero"), "{error}");
    }
    assert_eq!(count(&mut connection, "t"), 0);
    Ok(())
}

#[test]
fn copies_write_their_file_when_executed() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    let mut connection = connection();
    let sql = format!("COPY (SELECT value FROM generate_series(1, 5)) TO '{}'", path.display());
    assert_eq!(execute(&mut connection, &sql)?, 5);
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 6);
    let error = execute(&mut connection, "COPY (SELECT 1) TO '/proc/no/such/rows.csv'").unwrap_err();
    assert!(!error.message.is_empty());
    Ok(())
}

#[test]
fn commands_run_when_executed() -> Result<()> {
    let mut connection = connection();
    execute(&mut connection, "CREATE VIEW v AS SELECT 7::BIGINT AS x")?;
    assert_eq!(numbers(&query(&mut connection, "SELECT x FROM v")?), [7]);
    execute(&mut connection, "DROP VIEW v")?;
    assert!(query(&mut connection, "SELECT x FROM v").is_err());
    execute(&mut connection, "SET datafusion.execution.batch_size = 77")?;
    let shown = query(&mut connection, "SHOW datafusion.execution.batch_size")?;
    assert_eq!(shown[0].column(1).as_string::<i32>().value(0), "77");
    Ok(())
}

#[test]
fn explain_writes_nothing_and_explain_analyze_does() -> Result<()> {
    let mut connection = connection();
    execute(&mut connection, "CREATE TABLE t (x BIGINT)")?;
    query(&mut connection, "EXPLAIN INSERT INTO t VALUES (1)")?;
    assert_eq!(count(&mut connection, "t"), 0);
    assert_eq!(execute(&mut connection, "EXPLAIN ANALYZE INSERT INTO t VALUES (1)")?, -1);
    assert_eq!(count(&mut connection, "t"), 1);
    Ok(())
}

#[test]
fn prepared_and_bound_inserts_run_when_executed() -> Result<()> {
    let mut connection = connection();
    execute(&mut connection, "CREATE TABLE t (x BIGINT)")?;
    let mut statement = connection.new_statement()?;
    statement.set_sql_query("INSERT INTO t VALUES ($1)")?;
    statement.prepare()?;
    statement.bind(ints(&[1, 2, 3]))?;
    drop(statement.execute()?);
    assert_eq!(statement.get_option_int(OptionStatement::Other("devicefusion.rows_affected".into()))?, 3);
    assert_eq!(numbers(&query(&mut connection, "SELECT x FROM t ORDER BY x")?), [1, 2, 3]);
    statement.bind(ints(&[4, 5]))?;
    assert_eq!(statement.execute_update()?, Some(2));
    statement.bind(ints(&[]))?;
    assert_eq!(statement.execute_update()?, Some(0));
    assert_eq!(count(&mut connection, "t"), 5);

    execute(&mut connection, "PREPARE insert_one AS INSERT INTO t VALUES (6)")?;
    assert_eq!(execute(&mut connection, "EXECUTE insert_one")?, 1);
    assert_eq!(count(&mut connection, "t"), 6);
    Ok(())
}

#[test]
fn queries_stay_lazy() -> Result<()> {
    let mut connection = connection();
    let fails = "SELECT 1 / (value - value) FROM generate_series(1, 3)";
    assert_eq!(execute(&mut connection, fails)?, -1);
    assert!(query(&mut connection, fails).is_err());
    // The name and type of its column do not make a query an INSERT.
    let mut statement = connection.new_statement()?;
    statement.set_sql_query("SELECT 7::BIGINT UNSIGNED AS count")?;
    assert_eq!(statement.execute_update()?, None);
    Ok(())
}
