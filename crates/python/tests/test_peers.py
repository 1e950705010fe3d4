# SPDX-License-Identifier: Apache-2.0
"""Other libraries read these results, and their data are tables here."""

import datetime
import decimal

import pyarrow
import pytest

SQL = "SELECT value AS x, CAST(value AS VARCHAR) AS s FROM generate_series(1, 1000) ORDER BY x"


@pytest.fixture
def rows(ctx):
    """A query of 1000 numbers `x` and their texts `s`."""
    return ctx.sql(SQL)


def all_types():
    """A table of pyarrow with a column of each kind, with NULLs."""
    day = datetime.date(2024, 2, 29)
    noon = datetime.datetime(2024, 2, 29, 12, 30, 1, 250_000)
    zone = pyarrow.timestamp("us", "+01:00")
    pair = pyarrow.struct([("a", pyarrow.int32()), ("b", pyarrow.string())])
    price = pyarrow.decimal128(10, 2)
    columns = {
        "bool": ([True, None, False], pyarrow.bool_()),
        "int8": ([-128, None, 127], pyarrow.int8()),
        "uint64": ([0, None, 2**64 - 1], pyarrow.uint64()),
        "float32": ([0.5, None, -0.25], pyarrow.float32()),
        "decimal": ([decimal.Decimal("1.25"), None, decimal.Decimal("-9.50")], price),
        "date": ([day, None, day], pyarrow.date32()),
        "time": ([noon.time(), None, noon.time()], pyarrow.time64("us")),
        "timestamp": ([noon, None, noon], pyarrow.timestamp("us")),
        "zoned": ([noon, None, noon], zone),
        "duration": ([datetime.timedelta(seconds=3), None, None], pyarrow.duration("us")),
        "string": (["", None, "a string that no view has within itself"], pyarrow.string()),
        "large": (["a", None, "c"], pyarrow.large_string()),
        "view": (["a", None, "a string that no view has within itself"], pyarrow.string_view()),
        "binary": ([b"\0", None, b"\xff"], pyarrow.binary()),
        "fixed": ([b"ab", None, b"cd"], pyarrow.binary(2)),
        "list": ([[1, None], None, []], pyarrow.list_(pyarrow.int64())),
        "struct": ([{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pair),
        "map": ([[("k", 1)], None, []], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
        "null": ([None, None, None], pyarrow.null()),
    }
    arrays = {name: pyarrow.array(values, type) for name, (values, type) in columns.items()}
    arrays["dictionary"] = pyarrow.array(["b", None, "b"]).dictionary_encode()
    return pyarrow.table(arrays)


# pyarrow


def test_every_type_of_pyarrow_comes_back(either):
    table = all_types()
    back = either.from_arrow(table).to_arrow_table()
    assert back.schema.equals(table.schema)
    assert back.equals(table)


def test_every_type_of_pyarrow_comes_back_from_a_stream(ctx):
    table = all_types()
    ctx.register_table("t", table.to_reader())
    back = pyarrow.table(ctx.sql("SELECT * FROM t").execute_stream())
    assert back.to_pylist() == table.to_pylist()


def test_pyarrow_reads_a_query(rows):
    table = pyarrow.table(rows)
    assert table["x"].to_pylist() == list(range(1, 1001))
    assert table["s"].to_pylist() == [str(x) for x in range(1, 1001)]


def test_pyarrow_reads_a_query_with_types_of_its_own(rows):
    schema = pyarrow.schema([("x", pyarrow.int32()), ("s", pyarrow.large_string())])
    assert pyarrow.table(rows, schema=schema).schema == schema


def test_pyarrow_reads_a_stream_batch_by_batch(rows):
    reader = pyarrow.RecordBatchReader.from_stream(rows)
    assert sum(batch.num_rows for batch in reader) == 1000


def test_pyarrow_stops_a_stream_early(ctx):
    rows = ctx.sql("SELECT value AS x FROM generate_series(1, 100000000)")
    reader = pyarrow.RecordBatchReader.from_stream(rows)
    assert reader.read_next_batch()["x"][0].is_valid
    del reader
    assert ctx.sql("SELECT 1 AS one").to_pydict() == {"one": [1]}


def test_pyarrow_gets_the_error_of_a_query(ctx):
    ctx.register_table("t", {"x": [2, 1, 0]})
    with pytest.raises(pyarrow.ArrowException, match="(?i)divide by zero"):
        pyarrow.table(ctx.sql("SELECT 10 / x AS y FROM t"))


def test_pyarrow_reads_a_schema_and_nothing_runs(ctx):
    ctx.register_table("t", {"x": [2, 1, 0]})
    assert pyarrow.schema(ctx.sql("SELECT 10 / x AS y FROM t")).names == ["y"]


def test_a_reader_over_a_query_is_a_table_of_another_query(ctx, rows):
    reader = pyarrow.RecordBatchReader.from_stream(rows)
    assert ctx.sql("SELECT sum(x) AS s FROM reader").to_pydict() == {"s": [500_500]}


# pandas


def test_pandas_reads_a_query(rows):
    pandas = pytest.importorskip("pandas")
    frame = rows.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["x"].tolist() == list(range(1, 1001))
    assert frame["s"].tolist() == [str(x) for x in range(1, 1001)]


def test_pandas_takes_the_options_of_pyarrow(rows):
    pandas = pytest.importorskip("pandas")
    frame = rows.to_pandas(types_mapper={pyarrow.int64(): pandas.Int64Dtype()}.get)
    assert frame["x"].dtype == "Int64"


def test_frames_of_pandas_are_tables(ctx):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"k": ["a", "b", "a"], "x": [1.0, 2.0, 4.0]})
    query = "SELECT k, sum(x) AS s FROM frame GROUP BY k ORDER BY k"
    assert ctx.sql(query).to_pydict() == {"k": ["a", "b"], "s": [5.0, 2.0]}
    ctx.register_table("registered", frame)
    assert ctx.table("registered").count() == 3
    assert ctx.from_pandas(frame).to_pydict() == frame.to_dict("list")


def test_missing_values_of_pandas_are_nulls(ctx):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": pandas.array([1, None, 3], "Int64"), "s": ["a", None, "c"]})
    found = ctx.sql("SELECT count(*) AS n, count(x) AS x, count(s) AS s FROM frame").to_pydict()
    assert found == {"n": [len(frame)], "x": [2], "s": [2]}


# Polars


def test_polars_reads_a_query(rows):
    polars = pytest.importorskip("polars")
    for frame in (rows.to_polars(), polars.DataFrame(rows)):
        assert frame["x"].to_list() == list(range(1, 1001))
        assert frame["s"].to_list() == [str(x) for x in range(1, 1001)]


def test_frames_of_polars_are_tables(ctx):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {
            "k": ["a", "b", "a", None],
            "x": [1, 2, 4, 8],
            "day": [datetime.date(2024, 1, day) for day in (1, 2, 3, 4)],
            "kind": polars.Series(["u", "v", "u", None], dtype=polars.Categorical),
        }
    )
    query = "SELECT k, sum(x) AS s, max(day) AS d FROM frame GROUP BY k ORDER BY k NULLS LAST"
    assert ctx.sql(query).to_pydict() == {
        "k": ["a", "b", None],
        "s": [5, 2, 8],
        "d": [datetime.date(2024, 1, day) for day in (3, 2, 4)],
    }
    assert ctx.from_polars(frame).to_pylist() == frame.to_dicts()
    ctx.register_table("t", frame)
    assert ctx.sql("SELECT count(kind) AS n FROM t").to_pydict() == {"n": [3]}


def test_nested_columns_of_polars_come_back(ctx):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"l": [[1, 2], None, []], "s": [{"a": 1}, {"a": None}, {"a": 3}]})
    assert ctx.from_polars(frame).to_polars().to_dicts() == frame.to_dicts()


def test_an_empty_frame_of_polars_is_an_empty_table(ctx):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(schema={"x": polars.Int64, "s": polars.String})
    back = ctx.from_polars(frame)
    assert back.schema.names == ["x", "s"] and back.count() == len(frame)


# DuckDB


def test_duckdb_reads_a_query(rows):
    duckdb = pytest.importorskip("duckdb")
    found = duckdb.sql("SELECT count(*), sum(x), min(s) FROM rows WHERE x > 500").fetchall()
    assert found == [(500, sum(range(501, 1001)), "1000")] and rows.count() == 1000


def test_duckdb_reads_a_query_twice(rows):
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql("SELECT a.x FROM rows a JOIN rows b ON a.x = b.x + 1")
    assert relation.aggregate("count(*) AS n").fetchall() == [(rows.count() - 1,)]


def test_relations_of_duckdb_are_tables(ctx):
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql("SELECT i AS x, 'n' || i AS s FROM range(1000) t(i)")
    found = ctx.sql("SELECT count(*) AS n, sum(x) AS x, max(s) AS s FROM relation").to_pydict()
    assert found == {"n": [len(relation)], "x": [499_500], "s": ["n999"]}


def test_arrow_data_of_duckdb_is_a_table(ctx):
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.sql("SELECT i AS x FROM range(1000) t(i)")
    to_arrow = getattr(relation, "to_arrow_table", None) or relation.arrow
    ctx.register_table("t", to_arrow())
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [499_500]}


def test_duckdb_and_this_package_agree(ctx):
    duckdb = pytest.importorskip("duckdb")
    trades = pyarrow.table({"day": [i % 7 for i in range(5000)], "price": list(range(5000))})
    query = "SELECT day, count(*) AS n, sum(price) AS s FROM trades GROUP BY day ORDER BY day"
    expected = [tuple(int(value) for value in row) for row in duckdb.sql(query).fetchall()]
    assert [tuple(row.values()) for row in ctx.sql(query).to_pylist()] == expected
    assert sum(row[1] for row in expected) == trades.num_rows


# nanoarrow


def test_nanoarrow_reads_a_query(rows):
    nanoarrow = pytest.importorskip("nanoarrow")
    found = nanoarrow.ArrayStream(rows).read_all().to_pylist()
    assert found == [{"x": x, "s": str(x)} for x in range(1, 1001)]


def test_arrays_of_nanoarrow_are_columns(ctx):
    nanoarrow = pytest.importorskip("nanoarrow")
    columns = {
        "x": nanoarrow.Array([1, 2, 3], nanoarrow.int64()),
        "s": nanoarrow.c_array(["a", "b", None], nanoarrow.string()),
    }
    assert ctx.from_arrow(columns).to_pydict() == {"x": [1, 2, 3], "s": ["a", "b", None]}


def test_streams_of_nanoarrow_are_tables(ctx):
    nanoarrow = pytest.importorskip("nanoarrow")
    batch = pyarrow.record_batch({"x": [1, 2, 3]})
    for source in (nanoarrow.Array(batch), nanoarrow.ArrayStream(batch), nanoarrow.c_array(batch)):
        assert ctx.sql("SELECT sum(x) AS s FROM source").to_pydict() == {"s": [6]}
        assert type(source).__module__.startswith("nanoarrow")


def test_device_arrays_of_nanoarrow_are_tables(ctx):
    device = pytest.importorskip("nanoarrow.device")
    source = device.c_device_array(pyarrow.record_batch({"x": [1, 2, 3]}))
    if not hasattr(source, "__arrow_c_device_array__"):
        pytest.skip("nanoarrow's device arrays have no capsules")
    assert ctx.from_arrow(source).to_pydict() == {"x": [1, 2, 3]}


def test_nanoarrow_reads_the_device_of_a_result(device_ctx):
    device = pytest.importorskip("nanoarrow.device")
    rows = device_ctx.sql("SELECT value AS x FROM generate_series(1, 1000)").device()
    array = device.c_device_array(rows)
    assert array.device_type.name.lower() == device_ctx.report()["device"]["driver"]
    assert array.schema.child(0).name == "x"


# datafusion of PyPI


def test_datafusion_reads_a_query(rows):
    datafusion = pytest.importorskip("datafusion")
    theirs = datafusion.SessionContext()
    theirs.from_arrow(rows, "t")
    found = theirs.sql("SELECT count(*) AS n, sum(x) AS s FROM t WHERE x > 500").to_pydict()
    assert found == {"n": [500], "s": [sum(range(501, 1001))]}


def test_frames_of_datafusion_are_tables(ctx):
    datafusion = pytest.importorskip("datafusion")
    query = "SELECT value AS x, 'n' || value AS s FROM generate_series(1, 1000)"
    theirs = datafusion.SessionContext().sql(query)
    for _ in range(2):
        found = ctx.sql("SELECT sum(x) AS x, max(s) AS s FROM theirs").to_pydict()
        assert found == {"x": [500_500], "s": ["n999"]}
    assert theirs.count() == 1000


def test_a_registered_frame_of_datafusion_is_read(ctx):
    datafusion = pytest.importorskip("datafusion")
    ctx.register_table("t", datafusion.SessionContext().from_pydict({"x": [1, 2, 3]}))
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [6]}


def test_queries_of_both_packages_feed_one_another(ctx, rows):
    datafusion = pytest.importorskip("datafusion")
    theirs = datafusion.SessionContext()
    theirs.from_arrow(rows, "ours")
    even = theirs.sql("SELECT x FROM ours WHERE x % 2 = 0")
    found = ctx.sql("SELECT count(*) AS n FROM even").to_pydict()
    assert found == {"n": [even.count()]} == {"n": [500]}


def test_datafusion_and_this_package_have_the_same_answers(ctx):
    datafusion = pytest.importorskip("datafusion")
    table = pyarrow.table({"k": [i % 13 for i in range(5000)], "x": [i / 4 for i in range(5000)]})
    theirs = datafusion.SessionContext()
    theirs.from_arrow(table, "t")
    ctx.register_table("t", table)
    query = "SELECT k, count(*) AS n, sum(x) AS s, avg(x) AS a FROM t GROUP BY k ORDER BY k"
    assert ctx.sql(query).to_pydict() == theirs.sql(query).to_pydict()
