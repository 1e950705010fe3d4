# SPDX-License-Identifier: Apache-2.0
"""DB-API 2.0 by the ADBC driver inside the package."""

import datetime
import decimal
import os
import threading
import time
import warnings

import pyarrow
import pytest

import devicefusion
from conftest import ENDLESS, SOON
from devicefusion import SessionContext

pytest.importorskip("adbc_driver_manager")

from devicefusion import dbapi  # noqa: E402

OPTIONS = {
    "device.selector": os.environ.get("DATAFUSION_DEVICE_SELECTOR", "auto"),
    "device.cost": "always",
}


def test_the_package_has_it_as_an_attribute():
    assert devicefusion.dbapi is dbapi
    with pytest.raises(AttributeError, match="no attribute 'dbapj'"):
        _ = devicefusion.dbapj


@pytest.fixture
def connection():
    with dbapi.connect(OPTIONS, autocommit=True) as connection:
        yield connection


@pytest.fixture
def cursor(connection):
    with connection.cursor() as cursor:
        yield cursor


def test_a_query_gives_rows(cursor):
    query = "SELECT value % 3 AS k, count(*) AS n FROM generate_series(1, 9) GROUP BY 1 ORDER BY 1"
    cursor.execute(query)
    assert cursor.fetchall() == [(0, 3), (1, 3), (2, 3)]
    assert cursor.fetchall() == []
    assert cursor.fetchone() is None


def test_rows_come_one_by_one_or_in_parts(cursor):
    query = "SELECT value FROM generate_series(1, 5) ORDER BY value"
    cursor.execute(query)
    assert cursor.fetchone() == (1,)
    assert cursor.fetchmany(2) == [(2,), (3,)]
    assert list(cursor) == [(4,), (5,)]


def test_a_description_names_the_columns(cursor):
    cursor.execute("SELECT 1 AS x, 'a' AS s")
    assert [column[0] for column in cursor.description] == ["x", "s"]


def test_rows_come_as_an_arrow_table(cursor):
    cursor.execute("SELECT value AS x FROM generate_series(1, 30000)")
    table = cursor.fetch_arrow_table()
    assert table.schema.field("x").type == pyarrow.int64()
    assert sum(table["x"].to_pylist()) == 30000 * 30001 // 2


@pytest.mark.parametrize(
    "value",
    [
        7,
        0.5,
        "text",
        b"\x00\xff",
        True,
        None,
        datetime.date(2024, 2, 29),
        datetime.datetime(2024, 2, 29, 12, 34, 56, 789012),
        decimal.Decimal("12.34"),
    ],
    ids=repr,
)
def test_a_parameter_comes_back_as_it_was(cursor, value):
    for query in ["SELECT ?", "SELECT $1"]:
        cursor.execute(query, (value,))
        assert cursor.fetchall() == [(value,)]


def test_parameters_have_positions_or_names(cursor):
    cursor.execute("SELECT $2::VARCHAR || $1::VARCHAR", ("a", "b"))
    assert cursor.fetchone() == ("ba",)
    cursor.execute("SELECT $high - $low", {"low": 2, "high": 9})
    assert cursor.fetchone() == (7,)


def test_rows_are_inserted_counted_and_changed(cursor):
    cursor.execute("CREATE TABLE t (x BIGINT, s VARCHAR)")
    cursor.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, None), (3, "c")])
    assert cursor.rowcount == 3
    cursor.execute("UPDATE t SET x = x * 10 WHERE x > ?", (1,))
    assert cursor.rowcount == 2
    cursor.execute("SELECT x, s FROM t ORDER BY x")
    assert cursor.fetchall() == [(1, "a"), (20, None), (30, "c")]


def test_cursors_of_a_connection_share_its_tables(connection):
    with connection.cursor() as first, connection.cursor() as second:
        first.execute("CREATE TABLE t AS SELECT 7 AS x")
        second.execute("SELECT x FROM t")
        assert second.fetchall() == [(7,)]


def test_a_new_connection_is_a_new_database(cursor):
    cursor.execute("CREATE TABLE t AS SELECT 7 AS x")
    with dbapi.connect(OPTIONS, autocommit=True) as other, other.cursor() as elsewhere:
        with pytest.raises(other.ProgrammingError, match="t"):
            elsewhere.execute("SELECT x FROM t")


def test_arrow_data_is_ingested(cursor):
    rows = pyarrow.table({"x": range(1000), "s": [None, "a", "b", "c"] * 250})
    assert cursor.adbc_ingest("t", rows, mode="create") == 1000
    cursor.execute("SELECT s, sum(x) FROM t GROUP BY s ORDER BY s NULLS LAST")
    expected = [(s, sum(range(i, 1000, 4))) for s, i in [("a", 1), ("b", 2), ("c", 3), (None, 0)]]
    assert cursor.fetchall() == expected


def test_several_statements_run_in_turn(cursor):
    cursor.execute("CREATE TABLE t (x BIGINT); INSERT INTO t VALUES (1), (2); SELECT sum(x) FROM t")
    assert cursor.fetchall() == [(3,)]


def test_options_are_settings():
    options = {**OPTIONS, "datafusion.execution.batch_size": 77, "device.enabled": False}
    with dbapi.connect(options, autocommit=True) as connection, connection.cursor() as cursor:
        for name, value in [("datafusion.execution.batch_size", "77"), ("device.enabled", "false")]:
            cursor.execute(f"SHOW {name}")
            assert cursor.fetchone()[1] == value


def test_a_connection_needs_no_options():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        connection = dbapi.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_an_unknown_option_is_an_error_with_its_name(connection):
    with pytest.raises(connection.Error, match="device.cots"):
        dbapi.connect({"device.cots": "1"}, autocommit=True)


@pytest.mark.parametrize(
    ("query", "kind", "part", "sqlstate"),
    [
        ("SELEC 1", "ProgrammingError", "SELEC", "42601"),
        ("SELECT * FROM missing", "ProgrammingError", "missing", "42000"),
        ("SELECT nope FROM (SELECT 1 AS x)", "ProgrammingError", "nope", "42703"),
        ("SELECT 1 / (value - value) FROM generate_series(1, 3)", "DataError", "zero", "22012"),
        ("SELECT CAST(column1 AS INT) FROM VALUES ('tea')", "DataError", "tea", "22018"),
    ],
)
def test_an_error_has_a_class_a_text_and_a_state(connection, query, kind, part, sqlstate):
    with connection.cursor() as cursor:
        with pytest.raises(getattr(connection, kind), match=part) as caught:
            cursor.execute(query)
            cursor.fetchall()
        assert caught.value.sqlstate == sqlstate
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_a_missing_parameter_is_an_error(cursor, connection):
    with pytest.raises(connection.ProgrammingError):
        cursor.execute("SELECT $1")


def test_a_query_is_cancelled_from_another_thread(connection):
    with connection.cursor() as cursor:
        begin = time.monotonic()
        timer = threading.Timer(0.5, cursor.adbc_cancel)
        timer.start()
        with pytest.raises(connection.OperationalError) as caught:
            cursor.execute(ENDLESS)
            cursor.fetchall()
        timer.join()
        assert caught.value.sqlstate == "57014"
        assert time.monotonic() - begin < SOON
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]


def test_a_resident_table_is_made_and_queried(connection):
    if SessionContext(OPTIONS).device() is None:
        pytest.skip("there is no device")
    with connection.cursor() as cursor:
        rows = pyarrow.table({"x": range(100)})
        assert cursor.adbc_ingest("t", rows, mode="create", db_schema_name="device") == 100
        cursor.execute("EXPLAIN SELECT sum(x) FROM device.t")
        assert any("DeviceScanExec" in plan for _, plan in cursor.fetchall())
        cursor.execute("SELECT sum(x) FROM device.t")
        assert cursor.fetchall() == [(4950,)]
