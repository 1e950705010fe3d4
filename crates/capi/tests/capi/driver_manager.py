# SPDX-License-Identifier: Apache-2.0
"""Uses the driver from Python: driver_manager.py LIBRARY DEVICE."""

import os
import sys
import tempfile
import threading
import time
import warnings

import adbc_driver_manager
import pyarrow as pa
from adbc_driver_manager import dbapi


def connect(library, device, **others):
    options = {"device.selector": device, "device.cost": "always", "device.fallback": "error"}
    options |= {f"device.{name}": value for name, value in others.items()}
    return dbapi.connect(driver=library, entrypoint="devicefusion_adbc_init", db_kwargs=options, autocommit=True)


def fails(kind, message, run, sqlstate=None):
    try:
        run()
    except kind as error:
        assert message in str(error), error
        assert "External error" not in str(error) and "DevicePlanner" not in str(error), error
        assert sqlstate is None or error.sqlstate == sqlstate, error.sqlstate
    else:
        raise AssertionError(f"no {kind.__name__}: {message}")


def ingest_streams(cursor):
    """A table in device memory takes batches as they come: the producer's are freed meanwhile."""
    before, most = pa.total_allocated_bytes(), 0

    def batches(number):
        nonlocal most
        for _ in range(number):
            most = max(most, pa.total_allocated_bytes() - before)
            yield pa.record_batch({"x": pa.array(range(50000), pa.int64())})

    schema = pa.schema({"x": pa.int64()})
    for mode in ("create", "append", "replace"):
        reader = pa.RecordBatchReader.from_batches(schema, batches(120))
        assert cursor.adbc_ingest("long", reader, mode=mode, db_schema_name="device") == 6000000
        # A batch on the device has 2^20 rows, 21 of the producer's batches.
        assert most < 30 * 400000, (mode, most)
    cursor.execute("SELECT count(*), max(x) FROM device.long")
    assert cursor.fetchone()[1] == 49999

    def ends_early():
        yield from batches(3)
        raise ValueError("the producer ended")

    for mode in ("create", "replace"):
        reader = pa.RecordBatchReader.from_batches(schema, ends_early())
        name = "half" if mode == "create" else "long"
        fails(dbapi.Error, "the producer ended", lambda: cursor.adbc_ingest(name, reader, mode=mode, db_schema_name="device"))
    fails(dbapi.Error, "half", lambda: cursor.execute("SELECT * FROM device.half"))
    cursor.execute("SELECT count(*) FROM device.long")
    assert cursor.fetchone() == (6000000,)
    cursor.execute("DROP TABLE device.long")


def main(library, device):
    with connect(library, device) as connection, connection.cursor() as cursor:
        # Query.
        cursor.execute("SELECT value % 3 AS k, count(*) AS n FROM generate_series(1, 10000) GROUP BY value % 3 ORDER BY k")
        assert cursor.fetchall() == [(0, 3333), (1, 3334), (2, 3333)]
        cursor.execute("SELECT * FROM generate_series(1, 30000)")
        table = cursor.fetch_arrow_table()
        assert table.num_rows == 30000 and table.schema.field(0).type == pa.int64(), table.schema

        # Bulk ingest, into the device's memory, in several batches.
        rows = pa.table({"id": pa.array(range(1000)), "name": pa.array([None if i % 7 == 0 else f"n{i % 5}" for i in range(1000)])})
        reader = pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=300))
        assert cursor.adbc_ingest("people", reader, mode="create", db_schema_name="device") == 1000
        assert cursor.adbc_ingest("people", rows, mode="append", db_schema_name="device") == 1000
        cursor.execute("SELECT name, sum(id) FROM device.people GROUP BY name ORDER BY name NULLS LAST")
        expected = {}
        for id, name in zip(rows["id"].to_pylist(), rows["name"].to_pylist()):
            expected[name] = expected.get(name, 0) + 2 * id
        assert cursor.fetchall() == sorted(expected.items(), key=lambda row: (row[0] is None, row[0]))
        fails(dbapi.ProgrammingError, "exists already", lambda: cursor.adbc_ingest("people", rows, mode="create", db_schema_name="device"))
        ingest_streams(cursor)

        # Prepared statements, and many rows of parameters.
        cursor.adbc_prepare("SELECT count(*) FROM device.people WHERE id < CAST($1 AS BIGINT)")
        cursor.execute("SELECT count(*) FROM device.people WHERE id < CAST($1 AS BIGINT)", parameters=(10,))
        assert cursor.fetchone() == (20,)
        cursor.execute("CREATE TABLE t (x BIGINT, s VARCHAR)")
        cursor.executemany("INSERT INTO t VALUES ($1, $2)", [(1, "a"), (2, None), (3, "c")])
        cursor.execute("SELECT x, s FROM t ORDER BY x")
        assert cursor.fetchall() == [(1, "a"), (2, None), (3, "c")]

        # Parameters by position, by `?` and by name. A refused binding is forgotten.
        cursor.execute("SELECT ? || '?', ?", parameters=("a", "b"))
        assert cursor.fetchone() == ("a?", "b")
        cursor.execute("SELECT $high - $low", parameters={"low": 2, "high": 9})
        assert cursor.fetchone() == (7,)
        fails(dbapi.ProgrammingError, "no parameter $q; it has $x", lambda: cursor.execute("SELECT $x", parameters={"q": 20}))
        fails(dbapi.ProgrammingError, "1 parameters, and 0 are bound", lambda: cursor.execute("SELECT $1"))
        cursor.execute("SELECT $1", parameters=(3,))
        assert cursor.fetchone() == (3,)

        # Several statements, of which the last one has the result.
        cursor.execute("CREATE TABLE several (x BIGINT); INSERT INTO several VALUES (1), (2);\nSELECT sum(x) FROM several WHERE x > ?;", parameters=(1,))
        assert cursor.fetchall() == [(2,)]
        fails(dbapi.Error, "Divide by zero", lambda: cursor.execute("DROP TABLE several; SELECT 1 / 0; SELECT 1"))
        fails(dbapi.ProgrammingError, "several", lambda: cursor.execute("SELECT * FROM several"))

        # Files are tables by their names.
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "numbers.parquet")
            cursor.execute(f"COPY (SELECT * FROM generate_series(1, 10)) TO '{path}'; SELECT sum(value) FROM '{path}'")
            assert cursor.fetchone() == (55,)

        # Statements with effects run in execute, even if no result is fetched.
        cursor.execute("CREATE TABLE written (x BIGINT)")
        cursor.execute("INSERT INTO written VALUES (1), (2)")
        assert cursor.rowcount == 2, cursor.rowcount
        cursor.execute("INSERT INTO written VALUES ($1)", parameters=(3,))
        assert cursor.rowcount == 1, cursor.rowcount
        cursor.executemany("INSERT INTO written VALUES ($1)", [(4,), (5,)])
        assert cursor.rowcount == 2, cursor.rowcount
        cursor.execute("SELECT count(*) FROM written")
        assert cursor.rowcount == -1 and cursor.fetchone() == (5,)
        cursor.execute("EXPLAIN INSERT INTO written VALUES (6)")
        cursor.execute("INSERT INTO written VALUES (6), (7)")
        assert cursor.fetchall() == [(2,)]
        fails(dbapi.Error, "Divide by zero", lambda: cursor.execute("INSERT INTO written SELECT 1/0"))
        cursor.execute("SELECT count(*) FROM written")
        assert cursor.fetchone() == (7,)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "written.csv")
            cursor.execute(f"COPY written TO '{path}'")
            assert cursor.rowcount == 7 and len(open(path).readlines()) == 8
        cursor.execute("DROP TABLE written")
        assert cursor.rowcount == -1 and cursor.fetchall() == []
        fails(dbapi.Error, "written", lambda: cursor.execute("SELECT * FROM written"))
        cursor.execute("SET datafusion.execution.batch_size = 4096")
        cursor.execute("SHOW datafusion.execution.batch_size")
        assert cursor.fetchone()[1] == "4096"

        # The connection goes on after errors.
        fails(dbapi.ProgrammingError, "nowhere", lambda: cursor.execute("SELECT * FROM nowhere"), "42000")
        fails(dbapi.ProgrammingError, "Expected", lambda: cursor.execute("SELEC 1"), "42601")
        # Failures while rows stream are ADBC errors, too.
        cursor.execute("SELECT 1 / (x - x) FROM t")
        fails(dbapi.DataError, "Divide by zero", cursor.fetchall, "22012")
        cursor.execute("SELECT 1 / (x - x) FROM t")
        fails(dbapi.DataError, "Divide by zero", cursor.fetch_arrow_table, "22012")
        cursor.execute("CREATE TABLE device.changed AS SELECT value AS x FROM generate_series(1, 10)")
        merged = "MERGE INTO device.changed c USING (SELECT value AS x FROM generate_series(10, 12)) n ON c.x = n.x "
        merged += "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (x) VALUES (n.x)"
        for change, rows in [
            ("UPDATE device.changed SET x = x + 1 WHERE x > 7", 3),
            ("DELETE FROM device.changed WHERE x < 3", 2),
            (merged, 3),
            ("TRUNCATE TABLE device.changed", 7),
        ]:
            cursor.execute(change)
            assert cursor.rowcount == rows, (change, cursor.rowcount)
        cursor.execute("DROP TABLE device.changed")
        # A C string ends at a NUL.
        cursor.adbc_ingest("nul", pa.table({"s": ["\0x"]}), mode="create")
        cursor.execute("SELECT CAST(s AS INT) FROM nul")
        fails(dbapi.DataError, "Cannot cast string 'x'", cursor.fetchall, "22018")
        cursor.execute("SELECT 1")
        assert cursor.fetchone() == (1,)

        # Metadata.
        assert connection.adbc_get_info()["vendor_name"] == "DeviceFusion"
        assert connection.adbc_get_table_schema("people", db_schema_filter="device").names == ["id", "name"]
        objects = connection.adbc_get_objects(depth="tables", db_schema_filter="device").read_all().to_pylist()
        assert [t["table_name"] for t in objects[0]["catalog_db_schemas"][0]["db_schema_tables"]] == ["people"], objects

        # Cancel, from another thread.
        timer = threading.Timer(0.3, cursor.adbc_cancel)
        timer.start()
        start = time.monotonic()
        slow = "SELECT count(*) FROM generate_series(1, 300000) AS a(x) JOIN generate_series(1, 300000) AS b(y) ON x * y % 1000003 = 7"
        fails(dbapi.OperationalError, "cancelled", lambda: (cursor.execute(slow), cursor.fetchall()), "57014")
        assert time.monotonic() - start < 60
        timer.join()

    # Memory may end while rows stream.
    with connect(library, device, memory_bytes="4194304", spill="off") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT value * 7 % 1000003 AS x FROM generate_series(1, 2000000) ORDER BY x")
        fails(dbapi.OperationalError, "device.memory_bytes", cursor.fetchall, "53200")
        cursor.execute("SELECT count(*) FROM generate_series(1, 1000)")
        assert cursor.fetchone() == (1000,)

    # A DB-API connection asks for manual commits by default, which the driver lacks.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dbapi.connect(driver=library, entrypoint="devicefusion_adbc_init").close()
    assert any("autocommit" in str(warning.message) for warning in caught), caught
    fails(
        adbc_driver_manager.Error,
        "device.nothing",
        lambda: dbapi.connect(driver=library, entrypoint="devicefusion_adbc_init", db_kwargs={"device.nothing": "1"}),
    )


main(sys.argv[1], sys.argv[2])
