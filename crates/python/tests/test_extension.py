# SPDX-License-Identifier: Apache-2.0
"""Sessions of the package `datafusion` on the device. Its own answers are the oracle."""

import gc
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pytest

import devicefusion
from conftest import STRICT

datafusion = pytest.importorskip("datafusion")

PAGE = (Path(__file__).parents[3] / "docs" / "python-datafusion.md").read_text()

ROWS = 2**17 + 1

#: Queries over `t`, each with an order, and what they are about.
QUERIES = {
    "filter": "SELECT a, s FROM t WHERE a % 1000 = 7 ORDER BY a",
    "aggregate": "SELECT g, count(*) AS n, sum(a) AS s, avg(x) AS m FROM t GROUP BY g ORDER BY g",
    "count of no columns": "SELECT count(*) AS n FROM t",
    "functions": "SELECT abs(a - 50) AS d, upper(s) AS u FROM t WHERE a < 9 ORDER BY a",
    "join": "SELECT t.a, u.name FROM t JOIN u ON t.g = u.g WHERE t.a < 20 ORDER BY t.a",
    "window": "SELECT a, rank() OVER (PARTITION BY g ORDER BY a) AS n FROM t ORDER BY a LIMIT 9",
    "window of sums": "SELECT a, sum(x) OVER (PARTITION BY g ORDER BY a) AS n FROM t ORDER BY n, a",
    "scalar subquery": "SELECT a FROM t WHERE x > (SELECT avg(x) FROM t) ORDER BY a DESC LIMIT 5",
    "IN": "SELECT a FROM t WHERE g IN (SELECT g FROM u WHERE g > 0) ORDER BY a LIMIT 5",
    "EXISTS": "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.g = t.g) ORDER BY a LIMIT 5",
    "recursive": "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 5) "
    "SELECT i FROM r ORDER BY i",
    "union": "SELECT a FROM t WHERE a < 3 UNION ALL SELECT g AS a FROM u ORDER BY a",
    "unnest": "SELECT unnest([3, 1, 2]) AS v ORDER BY v",
    "series": "SELECT sum(value) AS s FROM generate_series(1, 1000)",
    "distinct": "SELECT DISTINCT g FROM t ORDER BY g",
    "case": "SELECT CASE WHEN a < 3 THEN 'few' ELSE s END AS c FROM t WHERE a < 6 ORDER BY a",
    "no rows": "SELECT a FROM t WHERE a < 0",
    "rollup": "SELECT g, count(*) AS n FROM t GROUP BY ROLLUP (g) ORDER BY g, n",
    "no rows by a constant": "SELECT a, s FROM t WHERE false",
    "no rows by a limit": "SELECT a, s FROM t LIMIT 0",
    "no rows of a sort": "SELECT a, s FROM t ORDER BY a LIMIT 0",
    "count of no rows of a sort": "SELECT count(a) AS n FROM (SELECT a FROM t ORDER BY s LIMIT 0)",
    "no rows in EXISTS": "SELECT count(*) AS n FROM t WHERE EXISTS (SELECT 1 FROM u WHERE false)",
    "a text like a plan": "SELECT 'EmptyRelation: rows=0' AS x, a FROM t "
    "WHERE a IN (SELECT g FROM u)",
    "aggregate of no rows": "SELECT count(a) AS n, max(s) AS m FROM t WHERE false",
    "join of no rows": "SELECT t.a, u.name FROM t LEFT JOIN (SELECT * FROM u LIMIT 0) u "
    "ON t.g = u.g ORDER BY t.a LIMIT 3",
    "nothing in a list": "SELECT a FROM t WHERE false AND g IN (SELECT g FROM u)",
    "dates": "SELECT date_trunc('month', d) AS m, count(*) AS n FROM t GROUP BY m ORDER BY m",
}


def tables():
    numbers = range(ROWS)
    t = pyarrow.table(
        {
            "a": numbers,
            "g": [None if a % 11 == 5 else a % 3 for a in numbers],
            "x": [a / 4 for a in numbers],
            "s": [f"s{a % 97}" for a in numbers],
            "d": pyarrow.array([a % 700 for a in numbers], pyarrow.int32()).cast(pyarrow.date32()),
        }
    )
    u = pyarrow.table({"g": [0, 1], "name": ["zero", "one"]})
    return t, u


TABLES = tables()


def with_tables(session):
    for name, table in zip("tu", TABLES, strict=True):
        session.from_arrow(table, name)
    return session


@pytest.fixture(scope="module")
def theirs():
    """A session of the package `datafusion`."""
    return with_tables(datafusion.SessionContext())


@pytest.fixture(scope="module")
def extension():
    return devicefusion.Extension(STRICT)


@pytest.fixture(scope="module")
def moved(extension):
    """A session of the package `datafusion` whose queries run on the device."""
    return with_tables(datafusion.SessionContext().with_extensions(extension))


def launches(context):
    report = context.report() or {"kernels": []}
    return sum(kernel["launches"] for kernel in report["kernels"])


# run


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_run_gives_the_answer_of_datafusion(theirs, ctx, query):
    frame = theirs.sql(query)
    assert devicefusion.run(frame, ctx).to_pydict() == frame.to_pydict()


def test_run_uses_the_device(theirs, device_ctx):
    frame = devicefusion.run(theirs.sql(QUERIES["aggregate"]), device_ctx)
    assert "Device" in frame.explain()
    before = launches(device_ctx)
    assert len(frame.to_pydict()["g"]) == 4
    assert launches(device_ctx) > before


def test_run_without_a_session(theirs):
    frame = devicefusion.run(theirs.sql("SELECT 6 * 7 AS answer"))
    assert frame.to_pydict() == {"answer": [42]}


def test_run_of_a_frame_without_sql(theirs, ctx):
    col, lit = datafusion.col, datafusion.lit
    sums = theirs.table("t").filter(col("a") < lit(1000))
    sums = sums.aggregate([col("g")], [datafusion.functions.sum(col("a")).alias("s")])
    sums = sums.sort(col("g").sort())
    assert devicefusion.run(sums, ctx).to_pydict() == sums.to_pydict()


def test_a_frame_runs_again(theirs, ctx):
    frame = devicefusion.run(theirs.sql("SELECT count(*) AS n FROM t"), ctx)
    assert frame.to_pydict() == frame.to_pydict() == {"n": [ROWS]}
    assert frame.count() == 1


def test_a_result_is_a_table_of_sql(theirs, ctx):
    few = devicefusion.run(theirs.sql("SELECT a FROM t WHERE a < 4"), ctx)
    assert ctx.sql("SELECT sum(a) AS s FROM few").to_pydict() == {"s": [6]}


def test_files_of_both_are_read_by_kernels(tmp_path, theirs, device_ctx):
    import pyarrow.parquet

    path = str(tmp_path / "t.parquet")
    pyarrow.parquet.write_table(TABLES[0], path)
    session = datafusion.SessionContext()
    session.register_parquet("p", path)
    frame = session.sql("SELECT g, sum(a) AS s FROM p WHERE x > 9 GROUP BY g ORDER BY g")
    ran = devicefusion.run(frame, device_ctx)
    before = launches(device_ctx)
    assert ran.to_pydict() == frame.to_pydict()
    assert launches(device_ctx) > before


def test_the_session_may_go_before_the_frame(ctx):
    def made():
        session = with_tables(datafusion.SessionContext())
        return devicefusion.run(session.sql("SELECT max(a) AS m FROM t WHERE g IS NOT NULL"), ctx)

    frame = made()
    gc.collect()
    assert frame.to_pydict() == {"m": [ROWS - 1]}


@pytest.mark.parametrize(
    "statement, error",
    [
        ("INSERT INTO made SELECT a FROM t", r"within devicefusion.on_host\(ctx\) if"),
        ("DELETE FROM made", r"within devicefusion.on_host\(ctx\) if"),
        ("COPY made TO 'made.csv'", r"within devicefusion.on_host\(ctx\) if"),
        ("DESCRIBE made", r"within devicefusion.on_host\(ctx\) if"),
        ("EXPLAIN DELETE FROM made", "a statement that writes"),
    ],
)
def test_statements_of_a_session_are_not_run(ctx, statement, error):
    session = with_tables(datafusion.SessionContext())
    session.sql("CREATE TABLE made AS SELECT 1::BIGINT AS a").collect()
    with pytest.raises(ValueError, match=error):
        devicefusion.run(session.sql(statement), ctx)
    assert session.sql("SELECT count(*) AS n FROM made").to_pydict() == {"n": [1]}


def test_columns_of_one_name_without_rows(theirs, ctx):
    frame = theirs.sql("SELECT x.g, y.g FROM u AS x JOIN u AS y ON x.g = y.g LIMIT 0")
    assert devicefusion.run(frame, ctx).to_arrow_table().schema.names == ["g", "g"]


@pytest.mark.parametrize("of", ["t", "SELECT g, sum(x) AS x FROM t GROUP BY g"])
def test_temporary_views_plan_their_own_queries(theirs, ctx, extension, of):
    for session, read in [
        (theirs, lambda frame: devicefusion.run(frame, ctx)),
        (with_tables(datafusion.SessionContext().with_extensions(extension)), lambda frame: frame),
    ]:
        view = session.table("t") if of == "t" else session.sql(of)
        view = view.filter(datafusion.col("g") > datafusion.lit(0)).into_view(temporary=True)
        rows = read(session.read_table(view).sort(datafusion.col("x").sort()).limit(3))
        assert len(rows.to_pydict()["x"]) == (3 if of == "t" else 2)


def test_functions_of_python_are_not_copied(ctx):
    lock, seen = threading.Lock(), []

    def noting(values):
        with lock:
            seen.append(len(values))
        return values

    session = datafusion.SessionContext()
    types = [pyarrow.int64()], pyarrow.int64()
    session.register_udf(datafusion.udf(noting, *types, "stable", "noting"))
    session.from_pydict({"a": [1, 2, 3]}, "t")
    frame = session.sql("SELECT noting(a) AS a FROM t")
    assert devicefusion.run(frame, ctx).to_pydict() == {"a": [1, 2, 3]}
    assert seen == [3]


def test_functions_of_spark_are_other_functions(ctx):
    session = datafusion.SessionContext()
    session.from_pydict({"s": ["x", None]}, "t")
    spark = datafusion.functions.spark.concat(datafusion.col("s"), datafusion.lit("y"))
    frame = session.table("t").select(spark.alias("c"))
    assert devicefusion.run(frame, ctx).to_pydict() == frame.to_pydict() == {"c": ["xy", None]}


def test_views_and_datasets(ctx):
    session = with_tables(datafusion.SessionContext())
    session.register_view("v", session.sql("SELECT a * 2 AS b FROM t WHERE a < 5"))
    session.register_dataset("ds", pyarrow.dataset.dataset(TABLES[1]))
    frame = session.sql("SELECT b, name FROM v JOIN ds ON v.b = ds.g ORDER BY b")
    assert devicefusion.run(frame, ctx).to_pydict() == {"b": [0], "name": ["zero"]}


# Functions of Python


def mirrored(strings):
    return pyarrow.array([value.as_py()[::-1] for value in strings])


class Longest(datafusion.Accumulator):
    def __init__(self):
        self.longest = 0

    def update(self, strings):
        self.longest = max([self.longest, *(len(value.as_py()) for value in strings)])

    def merge(self, states):
        self.longest = max([self.longest, *(value.as_py() for value in states[0])])

    def state(self):
        return [pyarrow.scalar(self.longest, pyarrow.int64())]

    def evaluate(self):
        return pyarrow.scalar(self.longest, pyarrow.int64())


class Steps(datafusion.user_defined.WindowEvaluator):
    def evaluate_all(self, values, num_rows):
        numbers = values[0].to_pylist()
        steps = [after - before for before, after in zip(numbers, numbers[1:], strict=False)]
        return pyarrow.array([0, *steps], pyarrow.int64())


def below(end):
    rows = pyarrow.table({"i": range(end.python_value().as_py())})
    return datafusion.catalog.Table(pyarrow.dataset.dataset(rows))


def with_functions(session):
    """A session with a function of each kind."""
    int64, string = pyarrow.int64(), pyarrow.string()
    session.register_udf(datafusion.udf(mirrored, [string], string, "stable", "mirrored"))
    longest = datafusion.udaf(Longest, [string], int64, [int64], "immutable", "longest")
    session.register_udaf(longest)
    session.register_udwf(datafusion.udwf(Steps, int64, int64, "immutable", "steps"))
    session.register_udtf(datafusion.udtf(below, "below"))
    return with_tables(session)


#: Queries with functions of Python, and the reasons for the host. A table function makes a table,
#: which needs no reason.
FUNCTIONS = {
    "scalar": (
        "SELECT mirrored(s) AS m FROM t WHERE a < 12 ORDER BY m",
        "the function mirrored is not supported on the device",
    ),
    "aggregate": (
        "SELECT g, longest(s) AS l FROM t GROUP BY g ORDER BY g",
        "the aggregate longest is not supported on the device",
    ),
    "window": (
        "SELECT a, steps(a) OVER (PARTITION BY g ORDER BY a) AS d FROM t WHERE a < 30 ORDER BY a",
        "the window function steps is not supported on the device",
    ),
    "table": ("SELECT t.s, i FROM below(5) JOIN t ON i = t.a ORDER BY i", ""),
}


@pytest.mark.parametrize("query, reason", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_python_stay_on_the_host(ctx, query, reason):
    frame = with_functions(datafusion.SessionContext()).sql(query)
    ran = devicefusion.run(frame, ctx)
    assert ran.to_pydict() == frame.to_pydict()
    if ctx.device() is not None:
        assert reason in ran.explain()


@pytest.mark.parametrize("query, reason", FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_of_python_stay_on_the_host_of_a_moved_session(extension, query, reason):
    theirs = with_functions(datafusion.SessionContext())
    moved = with_functions(datafusion.SessionContext().with_extensions(extension))
    assert moved.sql(query).to_pydict() == theirs.sql(query).to_pydict()
    if extension._context.device() is not None:
        assert reason in plan_text(moved.sql(f"EXPLAIN {query}"))


def test_a_function_of_python_wins_over_a_built_in_one(ctx):
    session = datafusion.SessionContext()
    session.register_udf(
        datafusion.udf(
            lambda values: pyarrow.array([7] * len(values), pyarrow.int64()),
            [pyarrow.int64()],
            pyarrow.int64(),
            "immutable",
            "abs",
        )
    )
    session.from_pydict({"a": [-1, 2]}, "t")
    frame = session.sql("SELECT abs(a) AS b FROM t")
    assert frame.to_pydict() == {"b": [7, 7]}
    assert devicefusion.run(frame, ctx).to_pydict() == {"b": [7, 7]}


def test_the_exception_of_a_function_is_told(ctx):
    def failing(values):
        raise ValueError("the moon is full")

    session = with_tables(datafusion.SessionContext())
    session.register_udf(
        datafusion.udf(failing, [pyarrow.int64()], pyarrow.int64(), "stable", "failing")
    )
    with pytest.raises(devicefusion.ExecutionError, match="the moon is full"):
        devicefusion.run(session.sql("SELECT failing(a) AS f FROM t"), ctx).to_pydict()


# The extension


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_a_moved_session_gives_the_answer_of_datafusion(theirs, moved, query):
    assert moved.sql(query).to_pydict() == theirs.sql(query).to_pydict()


def test_a_moved_session_uses_the_device(moved, extension):
    if extension._context.device() is None:
        pytest.skip("there is no device")
    before = launches(extension._context)
    assert moved.sql("SELECT g, sum(x) AS s FROM t GROUP BY g").count() == 4
    assert launches(extension._context) > before


def plan_text(frame):
    return "\n".join(frame.to_pydict()["plan"])


def test_explain_shows_the_device(moved, extension):
    if extension._context.device() is None:
        pytest.skip("there is no device")
    query = "SELECT g, sum(x) AS s FROM t GROUP BY g"
    assert "DeviceAggregateExec" in plan_text(moved.sql(f"EXPLAIN {query}"))
    assert "DeviceAggregateExec" in plan_text(moved.sql(f"EXPLAIN ANALYZE {query}"))


def test_statements_of_a_moved_session(moved):
    moved.sql("CREATE TABLE made AS SELECT a, s FROM t WHERE a < 5").collect()
    moved.sql("INSERT INTO made VALUES (5, 'five')").collect()
    assert moved.sql("SELECT sum(a) AS n FROM made").to_pydict() == {"n": [15]}
    moved.sql("CREATE VIEW shown AS SELECT a + 1 AS b FROM made").collect()
    assert moved.sql("SELECT max(b) AS m FROM shown").to_pydict() == {"m": [6]}
    moved.sql("INSERT INTO made SELECT a, s FROM t").collect()
    assert moved.sql("SELECT count(*) AS n FROM made").to_pydict() == {"n": [ROWS + 6]}
    moved.sql("DROP VIEW shown").collect()
    moved.sql("DROP TABLE made").collect()
    assert not moved.table_exist("made")


def test_settings_of_the_session_count(extension):
    config = datafusion.SessionConfig({"datafusion.execution.time_zone": "+05:00"})
    config = config.with_information_schema(True)
    session = datafusion.SessionContext(config).with_extensions(extension)
    assert session.sql("SHOW datafusion.execution.time_zone").to_pydict()["value"] == ["+05:00"]
    query = "SELECT CAST(TIMESTAMPTZ '2024-01-01T00:00:00' AS VARCHAR) AS t"
    expected = datafusion.SessionContext(config).sql(query).to_pydict()
    assert session.sql(query).to_pydict() == expected


#: Errors of what cannot pass, as the page has them.
NO_FORMATS = "FFI does not support decode_file_format"
NO_STATEMENTS = "LogicalPlan serde is not yet implemented for"
INSERT_ALONE = "INSERT alone passes"
NO_LAMBDAS = "LogicalExtensionCodec is not provided"
NO_FIELDS = "No field named"

NOT_PASSING = {
    "COPY": ("COPY (SELECT a FROM t WHERE a < 3) TO 'copied.parquet'", NO_FORMATS),
    "EXPLAIN COPY": ("EXPLAIN COPY t TO 'copied.csv'", NO_FORMATS),
    "DESCRIBE": ("DESCRIBE u", NO_STATEMENTS),
    "UPDATE": ("UPDATE made SET name = 'none' WHERE g = 0", INSERT_ALONE),
    "DELETE": ("DELETE FROM made WHERE g = 0", INSERT_ALONE),
    "EXPLAIN ANALYZE INSERT": ("EXPLAIN ANALYZE INSERT INTO made SELECT * FROM u", INSERT_ALONE),
    "lambda": ("SELECT array_transform(make_array(g, 2), x -> x + 1) AS l FROM u", NO_LAMBDAS),
    "dot": ('SELECT x FROM "with.dot" WHERE x > 0', NO_FIELDS),
    "space": ('SELECT x FROM "with space".made WHERE x > 0', NO_FIELDS),
}


def session_with_all(*extensions):
    """A session with a table to change, names that do not pass, and lambdas in its SQL."""
    config = datafusion.SessionConfig({"datafusion.sql_parser.dialect": "duckdb"})
    config = config.with_information_schema(True)
    session = with_tables(datafusion.SessionContext(config).with_extensions(*extensions))
    for statement in (
        "CREATE TABLE made AS SELECT * FROM u",
        'CREATE TABLE "with.dot" AS SELECT 1 AS x',
        'CREATE SCHEMA "with space"',
        'CREATE TABLE "with space".made AS SELECT 1 AS x',
    ):
        session.sql(statement).collect()
    return session


@pytest.mark.parametrize("statement, error", NOT_PASSING.values(), ids=NOT_PASSING)
def test_what_cannot_pass_runs_on_the_host(extension, tmp_path, monkeypatch, statement, error):
    monkeypatch.chdir(tmp_path)
    theirs, moved = session_with_all(), session_with_all(extension)
    with pytest.raises(Exception, match=error):
        moved.sql(statement).collect()
    with devicefusion.on_host(moved):
        assert moved.sql(statement).to_pydict() == theirs.sql(statement).to_pydict()
    made = "SELECT * FROM made ORDER BY g"
    assert moved.sql(made).to_pydict() == theirs.sql(made).to_pydict()


def test_the_page_has_the_errors_of_what_cannot_pass():
    errors = re.findall(r"^\| [^|]* \| `([^|]*?)(?: …)?` \| [^|]* \|$", PAGE, re.MULTILINE)
    assert errors == list(dict.fromkeys(error for _, error in NOT_PASSING.values()))


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_files_are_written_on_the_host_or_by_run(moved, ctx, tmp_path, form):
    def write(frame, folder, **options):
        getattr(frame, f"write_{form}")(str(tmp_path / folder), **options)

    def written(folder):
        path = str(tmp_path / folder)
        return getattr(moved, f"read_{form}")(path, file_extension="").to_pydict()

    query = "SELECT a, s FROM t WHERE a < 3 ORDER BY a"
    header = {"with_header": True} if form == "csv" else {}
    with pytest.raises(Exception, match=NO_FORMATS):
        write(moved.sql(query), "moved")
    write(devicefusion.run(moved.sql(query), ctx), "run")
    with devicefusion.on_host(moved):
        write(moved.sql(query), "host", **header)
    assert written("host") == written("run") == {"a": [0, 1, 2], "s": ["s0", "s1", "s2"]}


def test_lambdas_run(extension, ctx):
    theirs, moved = session_with_all(), session_with_all(extension)
    query = NOT_PASSING["lambda"][0]
    expected = theirs.sql(query).to_pydict()
    for session in (theirs, moved):
        assert devicefusion.run(session.sql(query), ctx).to_pydict() == expected


@pytest.mark.parametrize("statement", ["DELETE FROM made", "UPDATE made SET g = 7"])
def test_explained_changes_show_the_logical_plan_and_change_nothing(extension, statement):
    moved = session_with_all(extension)
    before = moved.table("made").to_pydict()
    assert "Dml: op=" in plan_text(moved.sql(f"EXPLAIN {statement}"))
    assert moved.table("made").to_pydict() == before


def test_functions_are_listed_on_the_host(extension):
    theirs, moved = session_with_all(), session_with_all(extension)
    functions = "SHOW FUNCTIONS"
    assert set(moved.sql(functions).to_pydict()["function_type"]) == {"TABLE"}
    with devicefusion.on_host(moved):
        assert moved.sql(functions).count() == theirs.sql(functions).count() > 100


@pytest.mark.parametrize(
    "statement",
    ["COMMIT", "ROLLBACK", "TRUNCATE TABLE made", "CREATE INDEX i ON made (g)"],
)
def test_what_datafusion_does_not_run_fails_on_the_host_too(extension, statement):
    theirs, moved = session_with_all(), session_with_all(extension)
    with pytest.raises(Exception, match="is not implemented"):
        theirs.sql(statement).collect()
    with pytest.raises(Exception, match="not yet implemented|INSERT alone passes"):
        moved.sql(statement).collect()
    with pytest.raises(Exception, match="is not implemented"), devicefusion.on_host(moved):
        moved.sql(statement).collect()


def test_prepared_statements_last_until_a_block_of_the_host(extension):
    session = with_tables(datafusion.SessionContext().with_extensions(extension))
    session.sql("PREPARE few(BIGINT) AS SELECT a FROM t WHERE a < $1").collect()
    assert session.sql("EXECUTE few(2)").to_pydict() == {"a": [0, 1]}
    with devicefusion.on_host(session):
        pass
    with pytest.raises(ValueError, match="'few' does not exist"):
        session.sql("EXECUTE few(2)")


def test_blocks_of_the_host_overlap(moved, extension):
    if extension._context.device() is None:
        pytest.skip("there is no device")
    query = "EXPLAIN SELECT g, sum(x) FROM t GROUP BY g"
    first, second = devicefusion.on_host(moved), devicefusion.on_host(moved)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert "Device" not in plan_text(moved.sql(query))
    second.__exit__(None, None, None)
    assert "Device" in plan_text(moved.sql(query))


def test_the_host_ends_with_an_exception(moved, extension):
    with pytest.raises(KeyError), devicefusion.on_host(moved):
        raise KeyError("gone")
    if extension._context.device() is not None:
        assert "Device" in plan_text(moved.sql("EXPLAIN SELECT g, sum(x) FROM t GROUP BY g"))


def test_a_function_cannot_query_its_own_session(extension):
    session = with_tables(datafusion.SessionContext().with_extensions(extension))

    def asking(values):
        session.sql("SELECT count(*) FROM t").to_pydict()
        return values

    types = [pyarrow.int64()], pyarrow.int64()
    session.register_udf(datafusion.udf(asking, *types, "stable", "asking"))
    with pytest.raises(Exception, match="cannot wait for another query"):
        session.sql("SELECT asking(a) AS a FROM t WHERE a < 9").to_pydict()


def test_the_session_before_the_extension_is_no_session_on_the_host(extension):
    session = with_tables(datafusion.SessionContext())
    moved = session.with_extensions(extension)
    with pytest.raises(ValueError, match="no Extension"), devicefusion.on_host(session):
        pass
    assert moved.sql("SELECT count(*) AS n FROM t").to_pydict() == {"n": [ROWS]}


def test_settings_of_the_session_are_not_those_of_the_extension():
    with pytest.raises(ValueError, match="a setting of the session"):
        devicefusion.Extension({"datafusion.execution.batch_size": 5})


def test_the_interpreter_ends_beside_a_moved_query():
    program = """
import threading, time
import datafusion, devicefusion
settings = {"device.cost": "always", "device.adaptive_start": "never"}
session = datafusion.SessionContext().with_extensions(devicefusion.Extension(settings))
query = session.sql("SELECT count(*) FROM generate_series(1, 1000000000000) WHERE value % 7 = 3")
threading.Thread(target=query.collect, daemon=True).start()
time.sleep(2)
print(time.monotonic(), flush=True)
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert time.monotonic() - float(ended.stdout) < 5


def test_errors_of_a_moved_session(moved):
    with pytest.raises(Exception, match="(?i)divide by zero"):
        moved.sql("SELECT 1 / (a - a) AS z FROM t").collect()
    assert moved.sql("SELECT count(*) AS n FROM t").to_pydict() == {"n": [ROWS]}


def test_one_extension_for_many_sessions(extension):
    for number in range(5):
        session = datafusion.SessionContext().with_extensions(extension)
        session.from_pydict({"a": [number]}, "t")
        assert session.sql("SELECT a FROM t").to_pydict() == {"a": [number]}


def test_many_threads_of_a_moved_session(moved):
    found, failed = [], []

    def work(number):
        try:
            query = f"SELECT count(*) AS n FROM t WHERE a < {number * 1000}"
            found.append((number, moved.sql(query).to_pydict()["n"][0]))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(found) == [(number, number * 1000) for number in range(16)]


# Lifetimes and versions


def test_tables_are_freed(ctx):
    def used():
        session = datafusion.SessionContext()
        function = datafusion.udf(
            lambda values: values, [pyarrow.int64()], pyarrow.int64(), "stable", "same"
        )
        session.register_udf(function)
        session.from_pydict({"a": [1, 2, 3]}, "t")
        frame = devicefusion.run(session.sql("SELECT same(a) AS a FROM t"), ctx)
        assert frame.to_pydict() == {"a": [1, 2, 3]}
        return weakref.ref(session)

    session = used()
    gc.collect()
    assert session() is None


def test_bytes_are_read_once(theirs, ctx):
    from devicefusion import extension as module

    writer = module._plan_writer()
    codec = writer.__datafusion_logical_extension_codec__()
    plan = theirs.sql("SELECT a FROM t WHERE a < 2").optimized_logical_plan().to_bytes(writer)
    assert ctx._session.read_plan(plan, codec).count() == 2
    with pytest.raises(Exception, match="the table .* were read before"):
        ctx._session.read_plan(plan, codec)


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(datafusion, "__version__", "54.1.0")
    with pytest.raises(ImportError, match="54.1.0 is installed: pip install 'datafusion==55"):
        devicefusion.Extension()


def test_another_codec_is_refused(ctx):
    with pytest.raises(TypeError, match="datafusion_logical_extension_codec"):
        ctx._session.read_plan(b"", object())


def test_other_objects_are_refused_by_their_class():
    ctx = devicefusion.SessionContext()
    theirs = datafusion.SessionContext()
    for frame in ("SELECT 1", ctx.sql("SELECT 1 AS x")):
        with pytest.raises(TypeError, match="a DataFrame of the package datafusion, not a"):
            devicefusion.run(frame)
    with pytest.raises(TypeError, match="ctx is a session of devicefusion"):
        devicefusion.run(theirs.sql("SELECT 1 AS x"), theirs)
    with (
        pytest.raises(TypeError, match="a session of the package datafusion"),
        devicefusion.on_host(ctx),
    ):
        pass


def test_a_frame_stays_where_it_was_made(tmp_path):
    moved = datafusion.SessionContext().with_extensions(devicefusion.Extension())
    path = tmp_path / "x.parquet"
    with devicefusion.on_host(moved):
        frame = moved.sql(f"COPY (SELECT 1 AS a) TO '{path}'")
    frame.collect()
    assert path.exists()
