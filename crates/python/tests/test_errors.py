# SPDX-License-Identifier: Apache-2.0
"""Errors as exceptions of the right class, and Ctrl-C."""

import decimal
import subprocess
import sys

import pyarrow
import pytest

import devicefusion
from conftest import ENDLESS, SOON, STRICT
from devicefusion import DeviceError, ExecutionError, SessionContext

HOST = {"device.selector": "none"}


def still_works(session):
    frame = session.sql("SELECT sum(value) AS s FROM generate_series(1, 4)")
    return frame.to_pydict() == {"s": [10]}


# Classes


def test_classes_of_errors_are_those_of_the_package():
    assert issubclass(DeviceError, ExecutionError)
    assert issubclass(ExecutionError, RuntimeError)
    assert DeviceError.__module__ == ExecutionError.__module__ == "devicefusion"
    assert devicefusion.DeviceError is DeviceError
    assert DeviceError.__doc__ and ExecutionError.__doc__


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("SELEC 1", "SELEC"),
        ("SELECT 'open", "(?i)unterminated"),
        ("SELECT nope FROM t", "nope"),
        ("SELECT t.nope FROM t", "nope"),
        ("SELECT * FROM missing", "missing"),
        ("SELECT * FROM nowhere.missing", "missing"),
        ("SELECT nope(x) FROM t", "nope"),
        ("SELECT sum(s) FROM t", "sum"),
        ("SELECT x FROM t GROUP BY s", "t.x"),
        ("INSERT INTO missing VALUES (1)", "missing"),
        ("SET device.cots = 1", "cots"),
        ("SELECT * FROM '/nowhere/t.parquet'", "/nowhere/t.parquet"),
    ],
)
def test_a_query_that_cannot_be_planned_is_a_value_error_with_its_cause(either, query, part):
    either.register_table("t", {"x": [1], "s": ["a"]})
    with pytest.raises((ValueError, FileNotFoundError), match=part):
        either.sql(query)
    assert still_works(either)


def test_a_taken_name_is_a_value_error_that_says_what_to_do(either):
    either.sql("CREATE TABLE t AS SELECT 1 AS x; CREATE VIEW v AS SELECT 1 AS x; CREATE SCHEMA s")
    for statement, name in [
        ("CREATE TABLE t AS SELECT 2 AS x", "t"),
        ("CREATE TABLE v AS SELECT 2 AS x", "v"),
        ("CREATE TABLE t (x INT)", "t"),
        ("CREATE VIEW v AS SELECT 2 AS x", "v"),
        ("CREATE EXTERNAL TABLE t (x INT) STORED AS CSV LOCATION '/nowhere/'", "t"),
        ("CREATE SCHEMA s", "s"),
    ]:
        with pytest.raises(ValueError, match=f"'{name}' already exists: drop it first"):
            either.sql(statement)
    assert either.table("t").to_pydict() == either.table("v").to_pydict() == {"x": [1]}


def test_a_taken_name_of_device_memory_is_a_value_error_that_says_what_to_do():
    session = SessionContext(STRICT)
    if session.device() is None:
        pytest.skip("there is no device")
    session.sql("CREATE TABLE device.t AS SELECT 1 AS x")
    with pytest.raises(ValueError, match="'device.t' already exists: drop it first"):
        session.sql("CREATE TABLE device.t AS SELECT 2 AS x")
    assert session.table("device.t").to_pydict() == {"x": [1]}


def test_a_missing_name_is_a_value_error(either):
    for statement in ["DROP TABLE missing", "DROP VIEW missing"]:
        with pytest.raises(ValueError, match="missing"):
            either.sql(statement)
    either.sql("DROP TABLE IF EXISTS missing")


def test_a_name_in_the_text_of_another_error_changes_no_class(either):
    either.register_table("t", {"s": ["device.selector = 'x': no such device"]})
    with pytest.raises(ValueError, match="no such device") as raised:
        either.sql("SELECT CAST(s AS BIGINT) FROM t").collect()
    assert not isinstance(raised.value, DeviceError)


ABSENT = {**STRICT, "device.selector": "no such device"}
SUM = "SELECT sum(value) AS s FROM generate_series(1, 100000)"


@pytest.mark.parametrize(
    ("settings", "query"),
    [
        (ABSENT, SUM),
        (ABSENT, "CREATE TABLE t AS " + SUM),
        (ABSENT, "CREATE TABLE device.t AS " + SUM),
        ({**ABSENT, "device.platform": "no such platform"}, SUM),
        ({**ABSENT, "device.fallback": "error"}, SUM),
        ({**HOST, "device.fallback": "error"}, SUM),
        (HOST, "CREATE TABLE device.t AS " + SUM),
        (HOST, "SELECT * FROM device.t"),
    ],
)
def test_a_query_whose_device_is_absent_is_a_device_error(settings, query):
    session = SessionContext(settings)
    reason = f"device.selector = '{settings['device.selector']}'"
    with pytest.raises(DeviceError, match=reason):
        session.sql(query).collect()


def test_an_absent_device_has_one_class(host):
    absent = SessionContext(ABSENT)
    table = {"x": [1, 2, 3]}
    for session in (absent, host):
        for work in (
            lambda session: session.from_device(table),
            lambda session: session.register_device_table("t", table),
            lambda session: session.sql("SELECT 1 AS one").device(),
            lambda session: session.sql("CREATE TABLE device.t AS SELECT 1 AS one"),
        ):
            with pytest.raises(DeviceError, match="device.selector = '"):
                work(session)
    with pytest.raises(DeviceError, match="no such device"):
        absent.device()


def test_what_datafusion_lacks_is_not_implemented(either):
    with pytest.raises(NotImplementedError, match="(?i)temporary"):
        either.sql("CREATE TEMPORARY TABLE t AS SELECT 1 AS x")


def test_a_division_by_zero_is_a_zero_division_error(either):
    either.register_table("t", {"x": [1, 0, 2]})
    for query in [
        "SELECT 10 / x FROM t",
        "SELECT sum(10 % x) FROM t",
        "SELECT x FROM t WHERE 10 / x > 1",
        "SELECT 10 / x AS k, count(*) FROM t GROUP BY k",
        "SELECT x FROM t ORDER BY 10 / x",
    ]:
        with pytest.raises(ZeroDivisionError, match="(?i)divide by zero"):
            either.sql(query).collect()
    assert still_works(either)


def test_a_failing_cast_is_a_value_error_with_the_value(either):
    either.register_table("t", {"s": ["1", "tea"], "x": [1, 300]})
    with pytest.raises(ValueError, match="tea"):
        either.sql("SELECT CAST(s AS BIGINT) FROM t").collect()
    with pytest.raises(ValueError, match="300"):
        either.sql("SELECT CAST(x AS TINYINT) FROM t").collect()
    frame = either.sql("SELECT try_cast(s AS BIGINT) AS n FROM t WHERE x > 1")
    assert frame.to_pydict() == {"n": [None]}


def test_a_product_beyond_its_type_is_an_overflow_error(either):
    large = decimal.Decimal(10) ** 37
    either.register_table("t", {"x": pyarrow.array([large], pyarrow.decimal128(38, 0))})
    with pytest.raises(OverflowError):
        either.sql("SELECT x * x AS y FROM t").collect()


def test_host_memory_that_runs_out_is_a_memory_error():
    session = SessionContext({**HOST, "datafusion.runtime.memory_limit": "1M"})
    series = "generate_series(1, 2000000)"
    query = f"SELECT count(*) FROM {series} AS a JOIN {series} AS b ON a.value = b.value"
    with pytest.raises(MemoryError, match="(?i)resources exhausted"):
        session.sql(query).collect()
    assert still_works(session)


def test_device_memory_that_runs_out_is_a_memory_error():
    session = SessionContext({**STRICT, "device.memory_bytes": "1048576"})
    if session.device() is None:
        pytest.skip("there is no device")
    with pytest.raises(MemoryError, match="device.memory_bytes"):
        session.sql("CREATE TABLE device.t AS SELECT value FROM generate_series(1, 10000000)")
    assert not session.table_exist("device.t")
    assert still_works(session)


def test_an_error_of_a_producer_is_raised_with_its_text(either):
    def batches():
        yield pyarrow.record_batch({"x": [1]})
        raise RuntimeError("the producer gave up")

    schema = pyarrow.schema({"x": pyarrow.int64()})
    either.register_table("t", pyarrow.RecordBatchReader.from_batches(schema, batches()))
    with pytest.raises((ValueError, RuntimeError), match="the producer gave up"):
        either.sql("SELECT sum(x) FROM t").collect()
    assert still_works(either)


def test_an_exception_of_an_interface_comes_back_as_it_was(either):
    raised = LookupError("no stream today")

    class Broken:
        def __arrow_c_stream__(self, requested_schema=None):
            raise raised

    for call in [either.from_arrow, lambda value: either.register_table("t", value)]:
        with pytest.raises(LookupError) as caught:
            call(Broken())
        assert caught.value is raised
    broken = Broken()
    with pytest.raises(LookupError) as caught:
        either.sql("SELECT * FROM broken")
    assert caught.value is raised and broken is not None


@pytest.mark.parametrize("result", [None, 7, (1, 2), object()], ids=repr)
def test_an_interface_that_gives_no_capsule_is_a_type_error(either, result):
    class Wrong:
        def __arrow_c_stream__(self, requested_schema=None):
            return result

    with pytest.raises(TypeError):
        either.from_arrow(Wrong())


def test_a_query_that_failed_can_run_again(either):
    either.sql("CREATE TABLE t AS SELECT 0::BIGINT AS x")
    frame = either.sql("SELECT 10 / x AS y FROM t")
    with pytest.raises(ZeroDivisionError):
        frame.collect()
    either.sql("UPDATE t SET x = 5")
    assert frame.to_pydict() == {"y": [2]}


def test_errors_have_no_traces_of_their_origin_in_rust(either):
    with pytest.raises(ValueError) as caught:
        either.sql("SELECT nope")
    text = str(caught.value)
    assert "backtrace" not in text and ".rs:" not in text


# Ctrl-C


SCRIPT = [
    "import asyncio, os, signal, threading, time",
    "import devicefusion, pyarrow",
    "signal.signal(signal.SIGINT, signal.default_int_handler)",
    "ctx = devicefusion.SessionContext({settings!r})",
    "ctx.sql('SELECT 1').collect()",
    "timer = threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT))",
    "begin = time.monotonic()",
    "try:",
    "    timer.start()",
    "    frame = ctx.sql({query!r})",
    "    {call}",
    "except KeyboardInterrupt:",
    "    seconds = time.monotonic() - begin",
    "    print('stopped soon' if seconds < {soon} else f'stopped after {{seconds}} s')",
    "print(ctx.sql('SELECT 2 AS x').to_pydict())",
]
STOPPED = ["stopped soon", "{'x': [2]}"]

ROWS = "SELECT value FROM generate_series(1, 1000000000000) WHERE value % 7 = 3"
JOIN = (
    "SELECT max(a.value % 7 + b.value % 5) AS m FROM generate_series(1, 10000) AS a "
    "CROSS JOIN generate_series(1, 1000000000) AS b"
)


def interrupted(query, call, settings):
    script = "\n".join(SCRIPT).format(query=query, call=call, settings=settings, soon=SOON)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=20 * SOON, check=False)


@pytest.mark.parametrize("settings", [STRICT, HOST], ids=["ctx", "host"])
@pytest.mark.parametrize(
    ("query", "call"),
    [
        (ENDLESS, "frame.to_arrow_table()"),
        (ROWS, "frame.count()"),
        (ENDLESS, "frame.show()"),
        (ENDLESS, "frame.explain(analyze=True)"),
        (ENDLESS, "frame.profile()"),
        (ROWS, "sum(batch.num_rows for batch in frame.execute_stream())"),
    ],
)
def test_ctrl_c_stops_a_query_and_the_session_goes_on(query, call, settings):
    run = interrupted(query, call, settings)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == STOPPED, run.stderr


def test_ctrl_c_stops_a_join():
    run = interrupted(JOIN, "frame.collect()", HOST)
    assert run.stdout.splitlines() == STOPPED, run.stderr


def test_ctrl_c_stops_a_statement_that_runs_at_once():
    statement = "CREATE TABLE t AS " + ROWS.replace("value % 7 = 3", "value % 1000000 = 3")
    run = interrupted(statement, "pass", HOST)
    assert run.stdout.splitlines() == STOPPED, run.stderr


def test_ctrl_c_stops_a_query_that_another_library_reads():
    run = interrupted(ROWS, "pyarrow.table(frame)", HOST)
    assert run.returncode == 1
    # The text went through pyarrow's stream of C, and pyarrow has an exception of its own.
    assert "OSError: KeyboardInterrupt" in run.stderr


def test_ctrl_c_stops_an_awaited_query():
    call = "asyncio.run(asyncio.wait_for(frame, 1000))"
    run = interrupted(ENDLESS, call, HOST)
    assert run.stdout.splitlines() == STOPPED, run.stderr


def test_ctrl_c_stops_a_function_of_python():
    call = "; ".join(
        [
            "integer = pyarrow.int64()",
            "sleep = lambda values: time.sleep(0.2) or values",
            "ctx.register_udf(devicefusion.udf(sleep, [integer], integer, name='slow'))",
            "ctx.sql('SELECT sum(slow(value)) FROM generate_series(1, 1000000000)').collect()",
        ]
    )
    run = interrupted("SELECT 1", call, HOST)
    assert run.stdout.splitlines() == STOPPED, run.stderr


def test_an_unknown_option_of_an_object_store_is_refused(ctx):
    options = {"region": "us-east-1", "nope": 1}
    with pytest.raises(ValueError, match="nope is no option of the object store s3://bucket"):
        ctx.register_object_store("s3://bucket", options)
    with pytest.raises(
        ValueError, match="no object store for s3://bucket/x.parquet: call register_object_store"
    ):
        ctx.read_parquet("s3://bucket/x.parquet")
    ctx.register_object_store("s3://bucket", {"region": "us-east-1", "AWS_ENDPOINT": "http://x"})


def test_batches_without_partitions_are_refused(ctx):
    batch = pyarrow.record_batch({"x": [1]})
    with pytest.raises(ValueError, match=r"\[\[batch, batch\]\]"):
        ctx.register_record_batches("t", [batch])
