# SPDX-License-Identifier: Apache-2.0
"""SQL: answers, parameters, statements, variables as tables, types and resident tables."""

import datetime
import decimal

import pyarrow
import pytest

from conftest import sorted_rows
from devicefusion import DeviceError, ExecutionError, SessionContext

#: A variable of the module, for queries.
WORLD_WIDE = pyarrow.table({"x": [100, 200]})
shadowed = pyarrow.table({"x": [-1]})

BERLIN = datetime.timezone(datetime.timedelta(hours=2))
DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012)


# Answers, with those of the host as the right ones


@pytest.fixture
def sales():
    items = ["tea", "rye", "tea", None, "oil", "rye", "tea", "oil"]
    prices = ["3.50", "2.00", "3.75", "9.99", None, "2.25", "3.50", "12.00"]
    return pyarrow.table(
        {
            "id": pyarrow.array(range(8), pyarrow.int64()),
            "item": pyarrow.array(items),
            "price": pyarrow.array(prices).cast(pyarrow.decimal128(9, 2)),
            "n": pyarrow.array([1, 5, None, 2, 7, 5, 3, 1], pyarrow.int32()),
            "day": pyarrow.array([DAY + datetime.timedelta(days=40 * i) for i in range(8)]),
        }
    )


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM sales WHERE n > 2 AND item <> 'oil'",
        "SELECT item, sum(price) AS s, count(*) AS c, count(n) AS n FROM sales GROUP BY item",
        "SELECT item, min(day) AS a, max(day) AS b FROM sales GROUP BY item HAVING count(*) > 1",
        "SELECT DISTINCT item, n FROM sales",
        "SELECT a.id, b.id AS i FROM sales AS a JOIN sales AS b ON a.item = b.item AND a.id < b.id",
        "SELECT a.id, b.n FROM sales AS a LEFT JOIN sales AS b ON a.n = b.id",
        "SELECT id FROM sales WHERE item IN (SELECT item FROM sales WHERE price > 5)",
        "SELECT id FROM sales AS a WHERE NOT EXISTS (SELECT 1 FROM sales AS b WHERE b.id = a.n)",
        "SELECT id, price - (SELECT avg(price) FROM sales) AS d FROM sales",
        "SELECT item FROM sales UNION SELECT 'new' UNION ALL SELECT 'tea'",
        "SELECT n FROM sales EXCEPT SELECT id FROM sales",
        "SELECT n FROM sales INTERSECT SELECT id FROM sales",
        "SELECT id, row_number() OVER (PARTITION BY item ORDER BY id) AS r FROM sales",
        "SELECT id, sum(n) OVER (ORDER BY id ROWS 2 PRECEDING) AS s FROM sales",
        "SELECT item, n, sum(price) AS s FROM sales GROUP BY ROLLUP (item, n)",
        "SELECT CASE WHEN n > 4 THEN 'many' WHEN n IS NULL THEN '-' ELSE 'few' END AS c FROM sales",
        "SELECT extract(month FROM day) AS m, upper(item) AS u, length(item) AS l FROM sales",
        "SELECT id FROM sales WHERE item LIKE '%e%' OR price BETWEEN 2 AND 3.5",
        "WITH big AS (SELECT * FROM sales WHERE price > 3) SELECT count(*) AS n FROM big",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 5) "
        "SELECT i FROM r",
        "SELECT id, unnest(range(n)) AS u FROM sales WHERE n < 4",
        "SELECT array_agg(id ORDER BY id DESC) AS ids, item FROM sales GROUP BY item",
        "SELECT v.column1, s.id FROM (VALUES (1), (7)) AS v JOIN sales AS s ON v.column1 = s.n",
    ],
)
def test_both_places_give_the_same_answer(ctx, host, sales, query):
    ctx.register_table("sales", sales)
    host.register_table("sales", sales)
    expected = host.sql(query)
    answer = ctx.sql(query)
    assert sorted_rows(answer) == sorted_rows(expected)
    assert answer.schema.equals(expected.schema)


def test_answers_are_those_of_python(either, sales):
    either.register_table("sales", sales)
    totals = {}
    for item, price in zip(sales["item"].to_pylist(), sales["price"].to_pylist(), strict=True):
        totals[item] = totals.get(item, 0) + (price or 0)
    query = "SELECT item, sum(price) AS s FROM sales GROUP BY item"
    assert {row["item"]: row["s"] for row in either.sql(query).to_pylist()} == totals


def test_an_order_is_kept(either):
    query = "SELECT value FROM generate_series(1, 50000) ORDER BY value % 100 DESC, value LIMIT 5"
    assert either.sql(query).to_pydict() == {"value": [99, 199, 299, 399, 499]}


def test_nothing_of_a_supported_query_runs_on_the_host(strict):
    query = "SELECT value % 3 AS k, sum(value) AS s FROM generate_series(1, 9) GROUP BY k"
    assert sorted_rows(strict.sql(query)) == [(0, 18), (1, 12), (2, 15)]
    with pytest.raises((ValueError, RuntimeError), match="md5.*device.fallback"):
        strict.sql("SELECT md5(column1) FROM VALUES ('ab')").collect()


# Parameters


#: Before midnight in UTC.
LAGS = [datetime.timedelta(0), datetime.timedelta(hours=1)]

VALUES = [
    7,
    -(2**63),
    2**63 - 1,
    0.5,
    float("inf"),
    "text",
    "",
    "naïve 日本 𝄞",
    b"\x00\xff",
    b"",
    True,
    False,
    None,
    DAY,
    MOMENT,
    MOMENT.replace(tzinfo=datetime.timezone.utc),
    datetime.time(12, 34, 56, 789012),
    datetime.timedelta(days=3, microseconds=5),
    decimal.Decimal("12.34"),
    decimal.Decimal("-99999999999999999999999999999999999999"),
    [1, 2, None],
    ["a", None],
    [],
    [[1], [2, 3]],
    {"x": 1, "y": "b"},
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_parameter_comes_back_as_it_was(either, value):
    for query, parameters in [("SELECT $1 AS v", [value]), ("SELECT $v AS v", {"v": value})]:
        assert either.sql(query, parameters).to_pylist() == [{"v": value}]


@pytest.mark.parametrize(
    ("value", "data_type"),
    [
        (7, pyarrow.int64()),
        (0.5, pyarrow.float64()),
        ("text", pyarrow.string()),
        (b"bytes", pyarrow.binary()),
        (True, pyarrow.bool_()),
        (DAY, pyarrow.date32()),
        (MOMENT, pyarrow.timestamp("us")),
        (MOMENT.replace(tzinfo=datetime.timezone.utc), pyarrow.timestamp("us", "UTC")),
        (decimal.Decimal("12.34"), pyarrow.decimal128(4, 2)),
        ([1, 2], pyarrow.list_(pyarrow.int64())),
    ],
)
def test_a_parameter_has_the_type_of_its_value(either, value, data_type):
    assert either.sql("SELECT $1 AS v", [value]).schema.types == [data_type]


def test_parameters_have_positions(either):
    frame = either.sql("SELECT $2 AS b, $1 AS a, $2 AS c", [1, "two"])
    assert frame.to_pylist() == [{"b": "two", "a": 1, "c": "two"}]
    frame = either.sql("SELECT ? AS a, ? AS b", (1, "two"))
    assert frame.to_pylist() == [{"a": 1, "b": "two"}]


def test_parameters_have_names(either):
    frame = either.sql("SELECT $high - $low AS d, $low AS l", {"low": 2, "high": 9})
    assert frame.to_pylist() == [{"d": 7, "l": 2}]
    assert either.sql("SELECT $low AS l", {"$low": 2}).to_pylist() == [{"l": 2}]


def test_parameters_are_in_conditions(either, sales):
    either.register_table("sales", sales)
    count = "SELECT count(*) AS n FROM sales WHERE "
    for condition, value, expected in [
        ("n >= $1", 5, 3),
        ("item = $1", "tea", 3),
        ("price < $1", decimal.Decimal("3.6"), 4),
        ("price < $1", 3.6, 4),
        ("day > $1", DAY, 7),
        ("day > $1", MOMENT, 7),
        ("n = $1", None, 0),
        ("item LIKE $1", "%e%", 5),
        ("id IN ($1, 3)", 1, 2),
    ]:
        assert either.sql(count + condition, [value]).to_pydict() == {"n": [expected]}, condition


def test_parameters_are_no_sql(either):
    either.sql("CREATE TABLE t AS SELECT 1 AS x")
    text = "'; DROP TABLE t; SELECT '$1 ?"
    frame = either.sql("SELECT ? AS v, '?' AS q, '$1' AS d", [text])
    assert frame.to_pylist() == [{"v": text, "q": "?", "d": "$1"}]
    assert either.table_exist("t")


def test_parameters_are_of_all_statements_of_a_text(either):
    text = (
        "CREATE TABLE t (x BIGINT, s VARCHAR); "
        "INSERT INTO t VALUES ($1, $2), ($1 + 1, $2); "
        "SELECT count(*) AS n FROM t WHERE x > $1 AND s = $2;"
    )
    assert either.sql(text, [5, "a"]).to_pydict() == {"n": [1]}


def test_a_date_beside_a_timestamp_with_a_zone_is_that_of_a_literal(either):
    zone = pyarrow.timestamp("us", "Europe/Berlin")
    moments = [datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc) - lag for lag in LAGS]
    either.register_table("tz", {"t": pyarrow.array(moments, zone)})
    for comparison in ("t = {}", "t >= {}", "t BETWEEN {} AND {}"):
        query = f"SELECT {comparison} AS a FROM tz".format
        literal = either.sql(query("DATE '2020-01-01'", "DATE '2020-01-01'")).to_pydict()
        values = [datetime.date(2020, 1, 1)] * comparison.count("{}")
        assert either.sql(query("?", "?"), values).to_pydict() == literal == {"a": [True, False]}


OPERANDS = {
    "n": ("n", "7", [2.0, 2.5, 2, -1, 0.5]),
    "small": ("i8", "CAST(127 AS TINYINT)", [100, 2.0, -128]),
    "unsigned": ("u8", "CAST(1 AS TINYINT UNSIGNED)", [2, 1.0]),
    "most": ("i32", "CAST(2147483647 AS INT)", [1, 2.0]),
    "decimal": ("d", "CAST(1.25 AS DECIMAL(5, 2))", [2, 2.0, 0.125]),
    "real": ("f", "CAST(0.5 AS FLOAT)", [2, 0.1]),
}


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "%", "<", ">=", "="])
@pytest.mark.parametrize(("column", "value", "given"), OPERANDS.values(), ids=OPERANDS.keys())
def test_a_parameter_is_as_a_literal_of_its_type(host, operator, column, value, given):
    host.sql(f"CREATE TABLE t AS SELECT {value} AS {column}")
    kinds = {float: "DOUBLE", int: "BIGINT"}
    literals = [f"CAST({parameter!r} AS {kinds[type(parameter)]})" for parameter in given]

    def results(places, *values):
        texts = [f"max({column}) {operator} {place}" for place in places]
        texts += [f"{place} {operator} max({column})" for place in places]
        columns = ", ".join(f"{text} AS y{number}" for number, text in enumerate(texts))
        return host.sql(f"SELECT {columns} FROM t", *values).to_arrow_table()

    assert results(["?"] * len(given), given * 2) == results(literals)


def test_a_parameter_keeps_its_type_on_the_device(ctx):
    numbers = pyarrow.table({"n": [7, 8], "i": pyarrow.array([127, 1], pyarrow.int8())})
    assert numbers.num_rows == 2
    halves = ctx.sql("SELECT n / ? AS half, i + ? AS more FROM numbers", [2.0, 100])
    assert halves.to_pydict() == {"half": [3.5, 4.0], "more": [227, 101]}
    assert ctx.sql("SELECT n FROM numbers WHERE n / ? > 3.9", [2.0]).to_pydict() == {"n": [8]}


def test_a_span_of_time_is_added_by_a_cast(either):
    day = datetime.timedelta(days=1)
    sum = either.sql("SELECT TIMESTAMP '2020-01-01' + CAST(? AS INTERVAL) AS t", [day])
    assert sum.to_pydict() == {"t": [datetime.datetime(2020, 1, 2)]}


@pytest.mark.parametrize("table", ["t", "device.t"])
@pytest.mark.parametrize(("value", "stored"), [(None, None), (2.5, 2), (7, 7), ("8", 8)])
def test_an_update_casts_values_as_it_casts_literals(device_ctx, table, value, stored):
    device_ctx.sql(f"CREATE TABLE {table} AS SELECT column1 AS a FROM VALUES (1), (NULL)")
    device_ctx.sql(f"UPDATE {table} SET a = ?", [value])
    assert device_ctx.sql(f"SELECT a FROM {table}").to_pydict() == {"a": [stored, stored]}
    device_ctx.sql(f"UPDATE {table} SET a = 3 WHERE a = ?", [2.5])
    assert device_ctx.sql(f"SELECT a FROM {table}").to_pydict() == {"a": [stored, stored]}


def test_parameters_may_be_none_at_all(either):
    assert either.sql("SELECT 1 AS v", []).to_pylist() == [{"v": 1}]
    assert either.sql("SELECT 1 AS v", {}).to_pylist() == [{"v": 1}]


def test_a_missing_parameter_is_an_error_with_its_name(either):
    with pytest.raises((ValueError, RuntimeError), match=r"\$2"):
        either.sql("SELECT $1, $2", [1]).collect()
    with pytest.raises((ValueError, RuntimeError), match="q"):
        either.sql("SELECT $q", {"p": 1}).collect()
    with pytest.raises((ValueError, RuntimeError), match=r"\$1"):
        either.sql("SELECT $1").collect()


def test_a_parameter_without_a_type_of_sql_is_refused(either):
    with pytest.raises((TypeError, ValueError)):
        either.sql("SELECT $1", [object()])
    with pytest.raises((OverflowError, ValueError)):
        either.sql("SELECT $1", [2**64])


def test_prepared_statements_take_values(either):
    either.sql("PREPARE twice (BIGINT) AS SELECT $1 * 2 AS v")
    assert either.sql("EXECUTE twice (21)").to_pydict() == {"v": [42]}
    either.sql("DEALLOCATE twice")
    with pytest.raises((ValueError, RuntimeError), match="twice"):
        either.sql("EXECUTE twice (21)")


# Statements


def test_several_statements_run_in_turn_and_the_last_one_has_the_result(either):
    frame = either.sql(
        "CREATE TABLE t (x BIGINT); INSERT INTO t VALUES (1), (2);\n"
        "-- a comment; and a semicolon\nSELECT sum(x) AS s FROM t;"
    )
    assert frame.to_pydict() == {"s": [3]}


def test_statements_before_a_failing_one_stay_and_those_behind_do_not_run(either):
    with pytest.raises(ValueError, match="nope"):
        either.sql("CREATE TABLE a AS SELECT 1 AS x; SELECT nope; CREATE TABLE b AS SELECT 1 AS x")
    assert either.table_exist("a")
    assert not either.table_exist("b")


@pytest.mark.parametrize("text", ["", " \n", "-- nothing", ";"])
def test_a_text_without_statements_is_a_value_error(either, text):
    with pytest.raises(ValueError):
        either.sql(text)


def test_statements_that_write_run_at_once_and_give_their_counts(either):
    assert either.sql("CREATE TABLE t (x BIGINT, s VARCHAR)").to_pydict() == {}
    for statement, count, rows in [
        ("INSERT INTO t VALUES (1, 'a'), (2, NULL), (3, 'c')", 3, 3),
        ("INSERT INTO t SELECT x + 10, s FROM t WHERE x > 1", 2, 5),
        ("INSERT INTO t SELECT * FROM t WHERE false", 0, 5),
        ("UPDATE t SET x = x + 100 WHERE x > 10", 2, 5),
        ("DELETE FROM t WHERE x > 100", 2, 3),
    ]:
        frame = either.sql(statement)
        assert either.table("t").count() == rows, statement
        assert frame.to_pydict() == {"count": [count]}, statement
        assert frame.to_pydict() == {"count": [count]}, statement
        assert either.table("t").count() == rows, statement
    assert sorted_rows(either.table("t")) == [(1, "a"), (2, None), (3, "c")]


def test_a_copy_runs_at_once_and_gives_its_count(either, tmp_path):
    path = tmp_path / "rows.csv"
    frame = either.sql(f"COPY (SELECT value FROM generate_series(1, 5)) TO '{path}'")
    assert path.read_text().split() == ["value", "1", "2", "3", "4", "5"]
    assert frame.to_pydict() == {"count": [5]}


def test_an_error_of_a_statement_that_writes_is_raised_at_once(either):
    either.sql("CREATE TABLE t (x BIGINT)")
    with pytest.raises(ZeroDivisionError):
        either.sql("INSERT INTO t SELECT 1 / (value - value) FROM generate_series(1, 3)")
    assert either.table("t").count() == 0


def test_ddl_runs_at_once(either):
    either.sql("CREATE TABLE t AS SELECT 1 AS x")
    either.sql("CREATE VIEW v AS SELECT x + 1 AS y FROM t")
    assert either.sql("SELECT y FROM v").to_pydict() == {"y": [2]}
    either.sql("CREATE OR REPLACE TABLE t AS SELECT 10 AS x")
    either.sql("CREATE TABLE IF NOT EXISTS t AS SELECT 20 AS x")
    assert either.table("t").to_pydict() == {"x": [10]}
    either.sql("DROP VIEW v; DROP TABLE t")
    assert not either.table_exist("v") and not either.table_exist("t")
    either.sql("DROP TABLE IF EXISTS t")


def test_explain_of_a_statement_that_writes_writes_nothing(either):
    either.sql("CREATE TABLE t (x BIGINT)")
    assert "Dml" in str(either.sql("EXPLAIN INSERT INTO t VALUES (1)").to_pydict())
    assert either.table("t").count() == 0
    either.sql("EXPLAIN ANALYZE INSERT INTO t VALUES (1)")
    assert either.table("t").count() == 1


def test_sql_shows_tables_columns_and_plans(either):
    either.register_table("t", {"x": [1], "s": ["a"]})
    assert "t" in either.sql("SHOW TABLES").to_pydict()["table_name"]
    assert either.sql("DESCRIBE t").to_pydict()["column_name"] == ["x", "s"]
    plan = either.sql("EXPLAIN FORMAT INDENT SELECT sum(x) FROM t").to_pydict()
    assert plan["plan_type"] == ["logical_plan", "physical_plan"]


def test_sql_lists_functions_and_settings(either):
    functions = either.sql("SHOW FUNCTIONS").to_pydict()["function_name"]
    assert {"upper", "sum"} <= set(functions)
    settings = either.sql("SHOW ALL").to_pydict()["name"]
    assert {"device.selector", "datafusion.sql_parser.enable_ident_normalization"} <= set(settings)


def test_names_keep_their_capitals_by_a_setting():
    session = SessionContext({"datafusion.sql_parser.enable_ident_normalization": False})
    session.sql("CREATE TABLE Prices AS SELECT 1 AS Item")
    assert session.sql("SELECT Item FROM Prices").to_pydict() == {"Item": [1]}
    with pytest.raises(ValueError, match="prices"):
        session.sql("SELECT Item FROM prices")


def test_rows_beyond_the_memory_are_in_the_folder_of_a_setting(host, tmp_path):
    for name, value in [("temp_directory", tmp_path), ("memory_limit", "8M")]:
        host.set(f"datafusion.runtime.{name}", value)
    host.set("datafusion.execution.sort_spill_reservation_bytes", 1000000)
    host.set("datafusion.execution.target_partitions", 1)
    query = "SELECT value FROM generate_series(1, 3000000) ORDER BY value DESC"
    stream = host.sql(query).execute_stream()
    assert next(stream)["value"][0].as_py() == 3000000
    assert list(tmp_path.glob("*/*"))
    assert sum(batch.num_rows for batch in stream) > 2900000


def test_rows_of_registered_data_can_be_inserted_without_a_change_of_the_source(either):
    source = pyarrow.table({"x": [1, 2]})
    either.register_table("t", source)
    either.sql("INSERT INTO t VALUES (3)")
    assert sorted_rows(either.table("t")) == [(1,), (2,), (3,)]
    assert source.num_rows == 2


# Variables as tables


def test_a_new_table_may_have_the_name_of_a_variable(either):
    taken, frame = (lambda: 0), pyarrow.table({"x": [1, 2]})
    either.sql("CREATE TABLE taken (a INT)")
    either.sql("INSERT INTO taken VALUES (1)")
    assert either.sql("SELECT a FROM taken").to_pydict() == {"a": [1]}
    either.sql("CREATE OR REPLACE TABLE taken AS SELECT sum(x) AS s FROM frame")
    assert either.sql("SELECT s FROM taken").to_pydict() == {"s": [3]}
    either.sql("CREATE TABLE frame AS SELECT x + 1 AS y FROM frame")
    assert either.sql("SELECT y FROM frame ORDER BY y").to_pydict() == {"y": [2, 3]}
    either.sql("DROP TABLE taken")
    with pytest.raises(ValueError, match="the variable taken is no table"):
        either.sql("CREATE TABLE other AS SELECT * FROM taken")
    assert taken() == 0 and frame.num_rows == 2


def total(session, table):
    return session.sql(f"SELECT sum(x) AS s FROM {table}").to_pydict()["s"][0]


def test_a_local_variable_is_a_table(either):
    rows = pyarrow.table({"x": [1, 2, 3]})
    assert rows.num_rows == 3
    assert either.sql("SELECT sum(x) AS s FROM rows").to_pydict() == {"s": [6]}


def test_a_global_variable_is_a_table(either):
    assert either.sql("SELECT sum(x) AS s FROM world_wide").to_pydict() == {"s": [300]}
    assert either.sql('SELECT sum(x) AS s FROM "WORLD_WIDE"').to_pydict() == {"s": [300]}


def test_a_local_variable_comes_before_a_global_one(either):
    assert either.sql("SELECT sum(x) AS s FROM shadowed").to_pydict() == {"s": [-1]}

    def query(shadowed):
        return either.sql("SELECT sum(x) AS s FROM shadowed").to_pydict()

    assert query(pyarrow.table({"x": [5]})) == {"s": [5]}


def test_a_variable_of_an_enclosing_function_is_a_table_where_it_is_used(either):
    around = pyarrow.table({"x": [1]})

    def inner():
        rows = pyarrow.table({"x": [10]})
        query = "SELECT a.x + b.x AS s FROM around AS a CROSS JOIN rows AS b"
        return either.sql(query).to_pydict(), around.num_rows, rows.num_rows

    assert inner() == ({"s": [11]}, 1, 1)


def test_variables_of_callers_further_up_are_no_tables(either):
    rows = pyarrow.table({"x": [1]})
    assert total(either, "world_wide") == 300
    with pytest.raises(ValueError, match="rows"):
        total(either, "rows")
    assert rows.num_rows == 1


def test_names_of_variables_may_have_capitals(either):
    Prices = pyarrow.table({"x": [1, 2]})
    assert either.sql("SELECT sum(x) AS s FROM Prices").to_pydict() == {"s": [3]}
    assert either.sql('SELECT sum(x) AS s FROM "Prices"').to_pydict() == {"s": [3]}
    prices = pyarrow.table({"x": [10]})
    assert either.sql("SELECT sum(x) AS s FROM Prices").to_pydict() == {"s": [3]}
    assert either.sql("SELECT sum(x) AS s FROM prices").to_pydict() == {"s": [10]}
    assert either.sql('SELECT sum(x) AS s FROM "Prices"').to_pydict() == {"s": [3]}
    assert Prices.num_rows + prices.num_rows == 3
    with pytest.raises(ValueError, match="Prices, prices"):
        either.sql("SELECT count(*) FROM Prices, prices AS other")


def test_a_variable_that_is_no_table_is_named_with_its_type(either):
    lines = {"x": 3}
    with pytest.raises(
        ValueError, match="the variable lines is no table: it is a dict whose 'x' is an int"
    ):
        either.sql("SELECT * FROM lines")
    assert lines


def test_a_parameter_without_a_value_is_a_value_error(either):
    with pytest.raises(ValueError, match=r"\$1 has no value"):
        either.sql("SELECT ? AS x")
    either.sql("PREPARE adds AS SELECT $1 + 1 AS y")
    assert either.sql("EXECUTE adds(2)").to_pydict() == {"y": [3]}


def test_parameters_are_a_sequence_or_a_mapping(either):
    for values in ("text", 5):
        with pytest.raises(TypeError, match="sequence or a mapping"):
            either.sql("SELECT ? AS x", values)
    with pytest.raises(OverflowError, match=r"parameter \$1"):
        either.sql("SELECT ? AS x", [2**70])


def test_rows_of_a_reader_are_given_once(either):
    reader = pyarrow.table({"x": [1, 2]}).to_reader()
    first = either.sql("SELECT sum(x) AS s FROM reader")
    second = either.sql("SELECT count(*) AS n FROM reader")
    either.register_table("same", reader)
    assert first.to_pydict() == {"s": [3]}
    for frame in (second, either.table("same"), either.sql("SELECT x FROM reader")):
        with pytest.raises(ExecutionError, match="reader gives its rows once"):
            frame.collect()


def test_a_registered_table_comes_before_a_variable(either):
    rows = pyarrow.table({"x": [1]})
    assert either.sql("SELECT x FROM rows").to_pydict() == rows.to_pydict()
    either.register_table("rows", {"x": [2]})
    assert either.sql("SELECT x FROM rows").to_pydict() == {"x": [2]}
    either.deregister_table("rows")
    assert either.sql("SELECT x FROM rows").to_pydict() == rows.to_pydict()


def test_a_name_of_the_query_comes_before_a_variable(either):
    rows = pyarrow.table({"x": [1]})
    query = "WITH rows AS (SELECT 2 AS x) SELECT x FROM rows"
    assert either.sql(query).to_pydict() == {"x": [2]}
    assert rows.num_rows == 1


def test_variables_can_be_turned_off():
    session = SessionContext(find_variables=False)
    rows = pyarrow.table({"x": [1]})
    with pytest.raises(ValueError, match="rows"):
        session.sql("SELECT x FROM rows")
    session.register_table("rows", rows)
    assert session.sql("SELECT x FROM rows").to_pydict() == {"x": [1]}


def test_a_variable_is_not_registered(either):
    rows = pyarrow.table({"x": [1]})
    either.sql("SELECT x FROM rows").collect()
    assert rows.num_rows == 1
    assert not either.table_exist("rows")
    with pytest.raises(KeyError):
        either.table("rows")


def test_a_variable_is_read_as_it_was_when_the_query_was_planned(either):
    rows = pyarrow.table({"x": [1]})
    frame = either.sql("SELECT x FROM rows")
    rows = pyarrow.table({"x": [2]})
    assert frame.to_pydict() == {"x": [1]}
    assert either.sql("SELECT x FROM rows").to_pydict() == rows.to_pydict()


def test_a_variable_without_rows_of_its_own_is_no_table(either):
    number, text, kind = 7, "text", pyarrow.Table
    for name in ["number", "text", "kind", "nothing"]:
        with pytest.raises(ValueError, match=name):
            either.sql(f"SELECT * FROM {name}")
    assert (number, text, kind) == (7, "text", pyarrow.Table)


def test_a_frame_is_a_table_by_its_variable(either):
    frame = either.sql("SELECT value AS x FROM generate_series(1, 4)")
    for _ in range(3):
        frame = either.sql("SELECT x * 2 AS x FROM frame WHERE x > 2")
    assert sorted(frame.to_pydict()["x"]) == [24, 32]


def test_a_frame_of_another_session_is_a_table(ctx, host):
    host.register_table("t", {"x": [1, 2]})
    frame = host.sql("SELECT x + 1 AS x FROM t")
    assert ctx.sql("SELECT sum(x) AS s FROM frame").to_pydict() == {"s": [5]}
    ctx.register_table("t", frame)
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [5]}


def test_batches_readers_and_frames_of_other_libraries_are_tables(either):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    columns = {"x": [1, 2]}
    batch, reader = pyarrow.record_batch(columns), pyarrow.table(columns).to_reader()
    of_pandas, of_polars = pandas.DataFrame(columns), polars.DataFrame(columns)
    for name in ["batch", "reader", "of_pandas", "of_polars"]:
        assert either.sql(f"SELECT sum(x) AS s FROM {name}").to_pydict() == {"s": [3]}, name
    assert batch.num_rows == len(of_pandas) == len(of_polars) == 2
    assert list(reader) == []


def test_arrays_are_tables_with_the_column_value(either):
    numpy = pytest.importorskip("numpy")
    array = numpy.array([1, 2])
    assert either.sql("SELECT sum(value) AS s FROM array").to_pydict() == {"s": [array.sum()]}


def test_variables_are_joined_with_tables_and_inserted(either):
    either.register_table("t", {"x": [1, 2], "y": ["a", "b"]})
    rows = pyarrow.table({"x": [2, 3]})
    query = "SELECT y FROM t WHERE x IN (SELECT x FROM rows)"
    assert either.sql(query).to_pydict() == {"y": ["b"]}
    assert either.sql("INSERT INTO t SELECT x, 'new' FROM rows").to_pydict() == {"count": [2]}
    assert either.table("t").count() == 2 + rows.num_rows


def test_a_table_may_be_made_under_the_name_of_its_variable(either):
    rows = pyarrow.table({"x": [1, 2]})
    either.sql("CREATE TABLE rows AS SELECT x * 10 AS x FROM rows")
    assert either.table_exist("rows")
    assert either.sql("SELECT sum(x) AS s FROM rows").to_pydict() == {"s": [30]}
    assert rows.to_pydict() == {"x": [1, 2]}


def test_a_table_may_be_made_unless_it_exists_under_the_name_of_a_variable(either):
    rows = pyarrow.table({"x": [1, 2]})
    either.sql("CREATE TABLE IF NOT EXISTS rows (y BIGINT)")
    assert either.table("rows").schema.names == ["y"]
    assert rows.num_rows == 2


def test_rows_are_not_inserted_into_a_variable(either):
    rows = pyarrow.table({"x": [1, 2]})
    with pytest.raises((ValueError, RuntimeError), match="rows"):
        either.sql("INSERT INTO rows VALUES (3)")
    assert rows.num_rows == 2


def test_a_variable_is_not_dropped_as_a_table(either):
    rows = pyarrow.table({"x": [1, 2]})
    with pytest.raises((ValueError, RuntimeError), match="rows"):
        either.sql("DROP TABLE rows")
    either.sql("DROP TABLE IF EXISTS rows")
    assert either.sql("SELECT sum(x) AS s FROM rows").to_pydict() == {"s": [3]}
    assert rows.num_rows == 2


def test_a_variable_is_no_table_of_another_schema(either):
    rows = pyarrow.table({"x": [1, 2]})
    for schema in ["device", "information_schema", "nowhere"]:
        # A table of the device is the device's concern, where there is none.
        with pytest.raises((ValueError, DeviceError), match="rows"):
            either.sql(f"SELECT * FROM {schema}.rows")
    assert rows.num_rows == 2


# Types


def column(values, data_type):
    return pytest.param(pyarrow.array(values, data_type), id=str(data_type))


D = decimal.Decimal
LONG = "a string of more than twelve bytes"
FIXED_WIDTH = [
    column([1, None, -128, 127], pyarrow.int8()),
    column([1, None, -(2**15)], pyarrow.int16()),
    column([1, None, -(2**31)], pyarrow.int32()),
    column([1, None, -(2**63), 2**63 - 1], pyarrow.int64()),
    column([1, None, 255], pyarrow.uint8()),
    column([1, None, 2**16 - 1], pyarrow.uint16()),
    column([1, None, 2**32 - 1], pyarrow.uint32()),
    column([1, None, 2**64 - 1], pyarrow.uint64()),
    column([0.5, None, float("-inf")], pyarrow.float32()),
    column([0.1, None, 1e300], pyarrow.float64()),
    column([D("1.25"), None, D("-99999.99")], pyarrow.decimal32(7, 2)),
    column([D("1.25"), None, D("-999999999999.99")], pyarrow.decimal64(15, 2)),
    column([D("1.25"), None, D("-" + "9" * 36 + ".99")], pyarrow.decimal128(38, 2)),
    column([D("1.250"), None, D("-" + "9" * 47 + ".999")], pyarrow.decimal256(50, 3)),
    column([True, None, False], pyarrow.bool_()),
    column([DAY, None, datetime.date(1, 1, 1)], pyarrow.date32()),
    column([DAY, None, datetime.date(1969, 7, 20)], pyarrow.date64()),
    column([MOMENT.replace(microsecond=0), None], pyarrow.timestamp("s")),
    column([MOMENT.replace(microsecond=789000), None], pyarrow.timestamp("ms")),
    column([MOMENT, None, datetime.datetime(1, 1, 1)], pyarrow.timestamp("us")),
    column([MOMENT, None], pyarrow.timestamp("ns")),
    column([MOMENT.replace(tzinfo=BERLIN), None], pyarrow.timestamp("us", "UTC")),
    column([MOMENT.replace(tzinfo=BERLIN), None], pyarrow.timestamp("ns", "+02:00")),
    column([MOMENT.replace(tzinfo=BERLIN), None], pyarrow.timestamp("ms", "Europe/Berlin")),
    column([datetime.time(12, 34, 56), None], pyarrow.time32("s")),
    column([datetime.time(12, 34, 56, 789000), None], pyarrow.time32("ms")),
    column([datetime.time(12, 34, 56, 789012), None], pyarrow.time64("us")),
    column([datetime.time(12, 34, 56, 789012), None], pyarrow.time64("ns")),
]
BYTES = [
    column(["a", None, "", "naïve 日本 𝄞", LONG], pyarrow.string()),
    column(["a", None, "", "naïve 日本 𝄞", LONG], pyarrow.large_string()),
    column(["a", None, "", "naïve 日本 𝄞", LONG], pyarrow.string_view()),
    column([b"a", None, b"", b"\x00\xff" * 20], pyarrow.binary()),
    column([b"a", None, b"", b"\x00\xff" * 20], pyarrow.large_binary()),
    column([b"a", None, b"", b"\x00\xff" * 20], pyarrow.binary_view()),
]
OTHERS = [
    column([b"abc", None, b"\x00\x01\x02"], pyarrow.binary(3)),
    column([0.5, None, -2.0], pyarrow.float16()),
    column([datetime.timedelta(seconds=3), None], pyarrow.duration("s")),
    column([datetime.timedelta(days=3, microseconds=5), None], pyarrow.duration("us")),
    column([pyarrow.MonthDayNano([1, 15, -30]), None], pyarrow.month_day_nano_interval()),
    column([[1, None], None, [], [3]], pyarrow.list_(pyarrow.int64())),
    column([["a", None], None, [], [LONG]], pyarrow.list_(pyarrow.string())),
    column([["a", None], None, [], [LONG]], pyarrow.large_list(pyarrow.string())),
    column([[[1], None], None, [[]]], pyarrow.list_(pyarrow.list_(pyarrow.int32()))),
    column([[1, 2], None, [3, None]], pyarrow.list_(pyarrow.int32(), 2)),
    column(
        [{"x": 1, "y": "a"}, None, {"x": None, "y": None}],
        pyarrow.struct({"x": pyarrow.int64(), "y": pyarrow.string()}),
    ),
    column(
        [[{"x": 1}], None, []],
        pyarrow.list_(pyarrow.struct({"x": pyarrow.int64()})),
    ),
    column([[("a", 1), ("b", None)], None, []], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
    column(["a", None, "b", "a"], pyarrow.dictionary(pyarrow.int32(), pyarrow.string())),
    column(["a", None, "b", "a"], pyarrow.dictionary(pyarrow.int8(), pyarrow.string())),
    column([None, None], pyarrow.null()),
]


@pytest.mark.parametrize("array", FIXED_WIDTH + BYTES + OTHERS)
def test_a_column_of_each_type_comes_back_as_it_was(either, array):
    table = pyarrow.table({"x": array})
    either.register_table("t", table)
    assert either.table("t").to_arrow_table().equals(table)
    chunked = pyarrow.table({"x": pyarrow.chunked_array([array, array.slice(1), array])})
    assert either.from_arrow(chunked).to_arrow_table().equals(chunked)


@pytest.mark.parametrize("array", FIXED_WIDTH + BYTES + OTHERS)
def test_a_filtered_column_of_each_type_keeps_values_and_type(either, array):
    either.register_table("t", pyarrow.table({"id": range(len(array)), "x": array}))
    rows = either.sql("SELECT x FROM t WHERE id >= 1 ORDER BY id").to_arrow_table()
    assert rows.schema.field("x").type == array.type
    assert rows["x"].to_pylist() == array.to_pylist()[1:]


@pytest.mark.parametrize("array", FIXED_WIDTH + BYTES)
def test_a_resident_column_of_each_type_keeps_values_and_type(device_ctx, array):
    source = pyarrow.table({"id": range(len(array)), "x": array})
    device_ctx.sql("CREATE TABLE device.t AS SELECT * FROM source")
    rows = device_ctx.sql("SELECT x FROM device.t ORDER BY id").to_arrow_table()
    assert rows.schema.field("x").type == array.type
    assert rows["x"].to_pylist() == source["x"].to_pylist()


def test_floats_that_are_no_numbers_come_back(either):
    values = [float("nan"), 0.0, -0.0, float("inf"), None]
    either.register_table("t", {"id": range(5), "x": values})
    rows = either.sql("SELECT x FROM t WHERE id < 5 ORDER BY id").to_pydict()["x"]
    assert [str(value) for value in rows] == ["nan", "0.0", "-0.0", "inf", "None"]


def test_nullability_and_metadata_of_a_schema_are_kept(either):
    field = pyarrow.field("x", pyarrow.int64(), nullable=False, metadata={"unit": "m"})
    schema = pyarrow.schema([field], metadata={"source": "test"})
    table = pyarrow.table({"x": [1, 2]}, schema=schema)
    assert either.from_arrow(table).to_arrow_table().schema.equals(schema, check_metadata=True)


# Resident tables


def test_a_resident_table_is_made_queried_changed_and_dropped(device_ctx):
    source = pyarrow.table({"x": range(1000), "s": [f"s{n % 7}" for n in range(1000)]})
    assert device_ctx.sql("CREATE TABLE device.t AS SELECT * FROM source").to_pydict() == {}
    for statement, count in [
        ("INSERT INTO device.t VALUES (1000, 's6'), (1001, 's0')", 2),
        ("UPDATE device.t SET x = x + 1 WHERE x > 999", 2),
        ("DELETE FROM device.t WHERE x < 10", 10),
    ]:
        assert device_ctx.sql(statement).to_pydict() == {"count": [count]}, statement
    expected = {}
    for row in source.to_pylist()[10:] + [{"x": 1001, "s": "s6"}, {"x": 1002, "s": "s0"}]:
        expected[row["s"]] = expected.get(row["s"], 0) + row["x"]
    answer = device_ctx.sql("SELECT s, sum(x) AS n FROM device.t GROUP BY s")
    assert dict(sorted_rows(answer)) == expected
    device_ctx.sql("DROP TABLE device.t")
    with pytest.raises(ValueError, match="device.t"):
        device_ctx.sql("SELECT * FROM device.t")


def test_a_query_of_a_resident_table_uploads_nothing(device_ctx):
    device_ctx.sql("CREATE TABLE device.t AS SELECT value AS x FROM generate_series(1, 100000)")
    frame = device_ctx.sql("SELECT sum(x) AS s FROM device.t WHERE x % 2 = 0")
    plan = frame.explain()
    assert "DeviceScanExec" in plan and "HostToDeviceExec" not in plan
    assert frame.to_pydict() == {"s": [2500050000]}
    before = device_ctx.report()["copies"]["bytes_up"]
    assert frame.to_pydict() == {"s": [2500050000]}
    assert device_ctx.report()["copies"]["bytes_up"] - before < 100000


def test_a_taken_name_of_a_resident_table_is_refused(device_ctx):
    device_ctx.sql("CREATE TABLE device.t AS SELECT 1 AS x")
    with pytest.raises(ValueError, match="already exists"):
        device_ctx.sql("CREATE TABLE device.t AS SELECT 2 AS x")
    with pytest.raises(ValueError, match="exists already"):
        device_ctx.register_table("device.t", {"x": [3]})
    device_ctx.sql("CREATE OR REPLACE TABLE device.t AS SELECT 4 AS x")
    assert device_ctx.table("device.t").to_pydict() == {"x": [4]}


def test_a_resident_table_needs_a_device(host):
    with pytest.raises(DeviceError, match="needs a device"):
        host.sql("CREATE TABLE device.t AS SELECT 1 AS x")


def test_a_resident_table_of_a_type_without_device_form_is_refused_with_its_column(device_ctx):
    with pytest.raises((ValueError, RuntimeError), match='column "a".*Struct'):
        device_ctx.sql("CREATE TABLE device.t AS SELECT named_struct('x', 1) AS a")


def test_a_value_without_its_parameter_is_a_value_error(either):
    for query, values in [
        ("SELECT 1 AS x", [5]),
        ("SELECT ? AS x", [1, 2]),
        ("SELECT $a AS x", {"a": 1, "b": 2}),
    ]:
        with pytest.raises(ValueError, match="no such parameter"):
            either.sql(query, values)
    assert either.sql("SELECT $2 AS x", [1, 2]).to_pydict() == {"x": [2]}
