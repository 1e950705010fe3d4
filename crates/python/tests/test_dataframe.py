# SPDX-License-Identifier: Apache-2.0
"""Results: their forms, streams, plans, profiles, and what is shown of them."""

import asyncio
import gc
import html
import json
import re
import sys
import time
import uuid

import pyarrow
import pytest

import devicefusion
from conftest import ENDLESS, SOON, sorted_rows

ROWS = [(1, "a", 0.5), (2, None, None), (3, "c", 2.5), (None, "d", -1.0)]
STREAMS = "SELECT value FROM generate_series(1, 1000000000000) WHERE value % 7 = 3"


@pytest.fixture
def table():
    x, s, f = zip(*ROWS, strict=True)
    columns = {"x": pyarrow.array(x, pyarrow.int32()), "s": pyarrow.array(s), "f": pyarrow.array(f)}
    return pyarrow.table(columns)


@pytest.fixture
def session(either, table):
    either.register_table("t", table)
    return either


# Forms


def test_the_schema_is_known_before_the_query_runs(session):
    schema = session.sql("SELECT x, s, f * 2 AS g, 1 / (x - x) AS fails FROM t").schema
    assert schema.names == ["x", "s", "g", "fails"]
    assert schema.types[:3] == [pyarrow.int32(), pyarrow.string(), pyarrow.float64()]


def test_the_schema_is_that_of_the_rows(session):
    frame = session.sql("SELECT s, count(*) AS n, avg(f) AS mean FROM t GROUP BY s")
    rows = frame.to_arrow_table()
    assert (rows.schema.names, rows.schema.types) == (frame.schema.names, frame.schema.types)


def test_a_frame_shows_its_columns(session):
    assert repr(session.table("t")) == "DataFrame(x: int32, s: string, f: double)"


def test_collect_gives_batches(session, table):
    batches = session.table("t").collect()
    assert all(isinstance(batch, pyarrow.RecordBatch) for batch in batches)
    assert pyarrow.Table.from_batches(batches).equals(table)


def test_to_arrow_table_gives_a_table(session, table):
    assert session.table("t").to_arrow_table().equals(table)


def test_to_pydict_gives_columns(session):
    frame = session.sql("SELECT x, s FROM t ORDER BY x NULLS LAST")
    assert frame.to_pydict() == {"x": [1, 2, 3, None], "s": ["a", None, "c", "d"]}


def test_to_pylist_gives_rows(session):
    frame = session.sql("SELECT x, s FROM t WHERE x < 3 ORDER BY x DESC")
    assert frame.to_pylist() == [{"x": 2, "s": None}, {"x": 1, "s": "a"}]


def test_to_pandas_gives_a_pandas_frame(session, table):
    pandas = pytest.importorskip("pandas")
    frame = session.table("t")
    pandas.testing.assert_frame_equal(frame.to_pandas(), table.to_pandas())
    typed = frame.to_pandas(types_mapper=pandas.ArrowDtype)
    assert typed["x"].tolist()[:3] == [1, 2, 3]
    assert typed["x"].dtype == pandas.ArrowDtype(pyarrow.int32())


def test_to_polars_gives_a_polars_frame(session):
    polars = pytest.importorskip("polars")
    rows = session.sql("SELECT x, s, f FROM t ORDER BY x NULLS LAST").to_polars()
    assert isinstance(rows, polars.DataFrame)
    assert rows.schema["x"] == polars.Int32
    assert rows.rows() == ROWS


def test_count_gives_the_number_of_rows(session):
    assert session.table("t").count() == 4
    assert session.sql("SELECT x FROM t WHERE x > 1").count() == 2
    assert session.sql("SELECT x FROM t WHERE x > 100").count() == 0
    assert session.sql("SELECT s, count(*) FROM t GROUP BY s").count() == 4


def test_a_query_runs_each_time_that_it_is_asked(either):
    either.sql("CREATE TABLE grows AS SELECT 1::BIGINT AS x")
    frame = either.sql("SELECT sum(x) AS s FROM grows")
    assert frame.to_pydict() == {"s": [1]}
    either.sql("INSERT INTO grows VALUES (10)")
    assert frame.to_pydict() == {"s": [11]}
    assert frame.count() == 1


def test_columns_of_one_name_are_all_there(session):
    rows = session.sql("SELECT * FROM t AS a JOIN t AS b ON a.x = b.x").to_arrow_table()
    assert rows.column_names == ["x", "s", "f"] * 2
    assert rows.num_rows == 3


def test_large_results_arrive_whole(either):
    frame = either.sql("SELECT value, value % 10 AS d FROM generate_series(1, 300000)")
    rows = frame.to_arrow_table().to_pydict()
    assert sorted(rows["value"]) == list(range(1, 300001))
    assert rows["d"] == [value % 10 for value in rows["value"]]


# Results without rows


def test_a_result_without_rows_keeps_its_schema(session):
    frame = session.sql("SELECT x, s, f FROM t WHERE x > 100")
    schema = session.table("t").schema
    rows = frame.to_arrow_table()
    assert rows.num_rows == 0
    assert (rows.schema.names, rows.schema.types) == (schema.names, schema.types)
    assert frame.to_pydict() == {"x": [], "s": [], "f": []}
    assert frame.to_pylist() == []
    assert sum(batch.num_rows for batch in frame.collect()) == 0
    assert sum(batch.num_rows for batch in frame.execute_stream()) == 0
    assert pyarrow.table(frame).schema.names == schema.names


def test_a_result_without_rows_keeps_its_columns_in_pandas_and_polars(session):
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    frame = session.sql("SELECT x, s FROM t WHERE false")
    assert list(frame.to_pandas().columns) == ["x", "s"]
    assert frame.to_polars().columns == ["x", "s"]


def test_batches_without_rows_are_no_obstacle_for_a_stream(either):
    schema = pyarrow.schema({"x": pyarrow.int64()})
    full = pyarrow.record_batch({"x": [1, 2]}, schema=schema)
    empty = full.slice(0, 0)
    either.register_record_batches("t", [[empty, full, empty]])
    assert sum(batch.num_rows for batch in either.table("t").execute_stream()) == 2
    assert either.table("t").to_pydict() == {"x": [1, 2]}


def test_aggregates_of_no_rows_are_one_row(session):
    frame = session.sql("SELECT count(*) AS n, sum(x) AS s, max(s) AS m FROM t WHERE x > 100")
    assert frame.to_pylist() == [{"n": 0, "s": None, "m": None}]


# Streams


def test_execute_stream_gives_batches_of_the_schema(session):
    stream = session.sql("SELECT x, s FROM t").execute_stream()
    assert stream.schema.names == ["x", "s"]
    batches = list(stream)
    assert sum(batch.num_rows for batch in batches) == 4
    assert all(batch.schema.names == ["x", "s"] for batch in batches)
    assert list(stream) == []


def test_a_frame_is_iterable(either):
    frame = either.sql("SELECT value FROM generate_series(1, 100000)")
    assert sum(batch.num_rows for batch in frame) == 100000


def test_a_stream_gives_rows_before_its_query_has_ended(either):
    begin = time.monotonic()
    stream = either.sql(STREAMS).execute_stream()
    batch = next(stream)
    assert batch.num_rows > 0
    assert all(value % 7 == 3 for value in batch["value"].to_pylist())
    del stream
    gc.collect()
    assert either.sql("SELECT 1 AS x").to_pydict() == {"x": [1]}
    assert time.monotonic() - begin < SOON


def test_a_stream_can_be_handed_over_once(session):
    stream = session.table("t").execute_stream()
    assert pyarrow.table(stream).num_rows == 4
    with pytest.raises(RuntimeError, match="handed over"):
        next(stream)
    with pytest.raises(RuntimeError, match="handed over"):
        pyarrow.table(stream)


def test_an_error_in_the_middle_of_a_stream_is_raised_where_it_is_read(either):
    frame = either.sql("SELECT 1 / (value - 500000) AS x FROM generate_series(1, 1000000)")
    with pytest.raises(ZeroDivisionError):
        for _ in frame.execute_stream():
            pass


def test_pyarrow_reads_a_frame(session, table):
    frame = session.table("t")
    assert pyarrow.table(frame).equals(table)
    assert pyarrow.RecordBatchReader.from_stream(frame).read_all().equals(table)
    assert pyarrow.schema(frame).equals(table.schema)


def test_a_requested_schema_leaves_the_columns_as_they_are(session, table):
    frame = session.table("t")
    others = pyarrow.schema({"f": pyarrow.float32(), "no such": pyarrow.string()})
    for rows in [frame, frame.execute_stream()]:
        reader = pyarrow.RecordBatchReader.from_stream(rows, schema=others)
        assert reader.schema.equals(table.schema)
        assert reader.read_all().equals(table)


def test_pyarrow_casts_to_a_schema_of_the_same_columns(session):
    wide = pyarrow.schema([("x", pyarrow.int64()), ("s", pyarrow.large_string())])
    frame = session.sql("SELECT x, s FROM t ORDER BY x NULLS LAST")
    rows = pyarrow.table(frame, schema=wide)
    assert rows.schema.equals(wide)
    assert rows["x"].to_pylist() == [1, 2, 3, None]
    with pytest.raises(ValueError):
        pyarrow.table(frame, schema=pyarrow.schema({"y": pyarrow.int64()}))


def test_pyarrow_gets_the_error_of_a_stream(session):
    with pytest.raises((ValueError, OSError), match="(?i)divide by zero"):
        pyarrow.table(session.sql("SELECT 1 / (x - x) AS y FROM t"))


def test_pyarrow_reads_an_endless_frame_batch_by_batch(either):
    reader = pyarrow.RecordBatchReader.from_stream(either.sql(STREAMS))
    assert reader.read_next_batch().num_rows > 0
    reader.close()


def test_polars_reads_a_frame(session):
    polars = pytest.importorskip("polars")
    rows = polars.DataFrame(session.sql("SELECT x, s, f FROM t ORDER BY x NULLS LAST"))
    assert rows.rows() == ROWS


def test_pandas_reads_a_frame(session, table):
    pandas = pytest.importorskip("pandas")
    if not hasattr(pandas.DataFrame, "from_arrow"):
        pytest.skip("this pandas reads no Arrow data")
    assert len(pandas.DataFrame.from_arrow(session.table("t"))) == 4


def test_duckdb_reads_a_frame(session):
    duckdb = pytest.importorskip("duckdb")
    frame = session.table("t")
    with duckdb.connect() as connection:
        rows = connection.sql("SELECT count(*), sum(x), max(s) FROM frame").fetchall()
        assert rows == [(4, 6, "d")]
        again = connection.sql("SELECT count(*) FROM frame AS a, frame AS b").fetchall()
        assert again == [(16,)]
    assert frame.count() == 4


def test_nanoarrow_reads_a_frame(session):
    nanoarrow = pytest.importorskip("nanoarrow")
    stream = nanoarrow.ArrayStream(session.sql("SELECT x, s, f FROM t ORDER BY x NULLS LAST"))
    rows = [tuple(row.values()) for array in stream for row in array.to_pylist()]
    assert rows == ROWS


def test_datafusion_reads_a_frame(session):
    datafusion = pytest.importorskip("datafusion")
    frame = datafusion.SessionContext().from_arrow(session.table("t"))
    assert frame.count() == 4


# Plans


def test_explain_shows_the_place_of_operators(device_ctx, table):
    device_ctx.register_table("t", table)
    plan = device_ctx.sql("SELECT s, sum(x) FROM t GROUP BY s").explain()
    assert "logical_plan" in plan and "physical_plan" in plan
    for operator in ["DeviceToHostExec", "DeviceAggregateExec", "HostToDeviceExec"]:
        assert operator in plan


def test_explain_gives_the_reason_for_the_host(host):
    plan = host.sql("SELECT sum(value) FROM generate_series(1, 100000)").explain()
    assert "there is no device: device.selector = 'none'" in plan


def test_explain_runs_nothing_unless_it_is_to_analyze(session):
    frame = session.sql("SELECT 1 / (x - x) AS y FROM t")
    assert "physical_plan" in frame.explain()
    with pytest.raises(ZeroDivisionError):
        frame.explain(analyze=True)


def test_explain_analyze_shows_rows_and_times(session):
    plan = session.sql("SELECT s, sum(x) FROM t GROUP BY s").explain(analyze=True)
    assert "output_rows=" in plan


def test_explain_analyze_shows_kernels(device_ctx, table):
    device_ctx.register_table("t", table)
    plan = device_ctx.sql("SELECT s, sum(x) FROM t GROUP BY s").explain(analyze=True)
    assert "launches=" in plan and "kernel_time=" in plan


def test_explain_verbose_shows_sources_of_kernels(device_ctx, table):
    device_ctx.register_table("t", table)
    plan = device_ctx.sql("SELECT s, sum(x) FROM t GROUP BY s").explain(verbose=True)
    assert "-- kernel" in plan


def test_explain_has_the_formats_of_a_profile(session):
    frame = session.sql("SELECT s, sum(x) AS n FROM t GROUP BY s")
    assert frame.explain(format="html").startswith("<!DOCTYPE html>")
    assert json.loads(frame.explain(format="json"))["rows"] == 4
    assert "Plan" in json.loads(frame.explain(format="pgjson"))[0]
    assert json.loads(frame.explain(format="trace"))["traceEvents"]


def test_an_unknown_format_of_a_plan_is_a_value_error_that_lists_the_formats(session):
    with pytest.raises(ValueError, match="'yaml'.*text.*html.*json.*pgjson.*trace"):
        session.table("t").explain(format="yaml")


# Profiles


def test_a_profile_is_a_dict_with_rows_and_times(session):
    query = "SELECT s, sum(x) AS n FROM t GROUP BY s"
    profile = session.sql(query).profile()
    assert isinstance(profile, dict)
    assert profile["sql"] == query
    assert profile["rows"] == 4
    assert profile["nodes"]
    parts = ["device_nanos", "compiling_nanos", "waiting_nanos", "host_nanos"]
    assert sum(profile[part] for part in parts) == profile["total_nanos"] > 0


def test_a_profile_names_the_device(device_ctx):
    query = "SELECT value % 10 AS k, count(*) FROM generate_series(1, 100000) GROUP BY k"
    profile = device_ctx.sql(query).profile()
    assert profile["device"]["name"] in device_ctx.device()
    assert profile["device_nanos"] > 0
    assert ["device.cost", "always"] in profile["settings"]


def test_a_profile_of_the_host_has_no_device(host):
    assert host.sql("SELECT 1 AS x").profile()["device"] is None


def test_a_profile_is_saved_in_four_forms(session, tmp_path):
    profile = session.sql("SELECT s, sum(x) AS n FROM t GROUP BY s").profile()
    for name in ["q.html", "q.json", "q.pg.json", "q.trace.json"]:
        profile.save(tmp_path / name)
    assert (tmp_path / "q.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert json.loads((tmp_path / "q.json").read_text(encoding="utf-8")) == profile
    plan = json.loads((tmp_path / "q.pg.json").read_text(encoding="utf-8"))[0]
    assert plan["Plan"] and plan["Execution Time"] > 0
    trace = json.loads((tmp_path / "q.trace.json").read_text(encoding="utf-8"))
    # A run on the host alone has no events.
    assert "M" in {event["ph"] for event in trace["traceEvents"]} <= {"M", "X"}


def test_a_profile_is_not_saved_under_another_ending(session, tmp_path):
    profile = session.table("t").profile()
    with pytest.raises(ValueError, match="q.txt.*trace.json"):
        profile.save(tmp_path / "q.txt")
    assert list(tmp_path.iterdir()) == []


def test_a_profile_of_a_failing_query_is_its_error(session):
    with pytest.raises(ZeroDivisionError):
        session.sql("SELECT 1 / (x - x) AS y FROM t").profile()


def test_a_notebook_shows_the_page_of_a_profile(session):
    shown = session.sql("SELECT '\"<script>' AS q FROM t").profile()._repr_html_()
    page = re.fullmatch(r'<iframe srcdoc="([^"]*)"[^>]*></iframe>', shown).group(1)
    assert html.unescape(page).startswith("<!DOCTYPE html>")


# In terminals and notebooks


def test_show_prints_the_rows(session, capsys):
    session.sql("SELECT x, s FROM t WHERE x < 3 ORDER BY x").show()
    lines = capsys.readouterr().out.splitlines()
    rule = "+---+------+"
    assert lines == [rule, "| x | s    |", rule, "| 1 | a    |", "| 2 | NULL |", rule]


def test_show_prints_the_first_rows(either, capsys):
    frame = either.sql("SELECT value FROM generate_series(1, 1000)")
    frame.show()
    assert len(capsys.readouterr().out.splitlines()) == 20 + 5
    frame.show(3)
    assert len(capsys.readouterr().out.splitlines()) == 3 + 5


def test_show_tells_of_more_rows_and_of_nulls(either, capsys):
    either.sql("SELECT NULL AS a, '' AS b FROM generate_series(1, 3)").show(2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[3:] == ["| NULL |   |", "| NULL |   |", "+------+---+", "the first 2 rows"]
    either.sql("SELECT 1 AS a FROM generate_series(1, 20)").show()
    either.sql("SELECT 1 AS a FROM generate_series(1, 30)").show(sys.maxsize)
    assert "first" not in capsys.readouterr().out


def test_show_prints_the_columns_of_no_rows(session, capsys):
    session.sql("SELECT x, s FROM t WHERE false").show()
    assert "| x | s |" in capsys.readouterr().out


def test_limit_keeps_the_first_rows(session):
    frame = session.sql("SELECT x FROM t ORDER BY x")
    assert frame.limit(2).to_pydict() == {"x": [1, 2]}
    assert frame.limit(2, 1).to_pydict() == {"x": [2, 3]}
    assert frame.limit(2, offset=100).to_pydict() == {"x": []}
    assert frame.limit(0).to_pydict() == {"x": []}
    assert frame.limit(1000).count() == 4
    assert frame.count() == 4


def test_a_negative_limit_is_refused(session):
    with pytest.raises((ValueError, OverflowError)):
        session.table("t").limit(-1)


def test_a_notebook_shows_rows_with_time_and_place(host, table):
    host.register_table("t", table)
    shown = host.sql("SELECT x, s FROM t WHERE x < 3 ORDER BY x")._repr_html_()
    assert re.search(r"<th>x.*int32.*<th>s.*string", shown)
    assert re.findall(r"<td>(.*?)</td>", shown) == ["1", "a", "2", "<i>NULL</i>"]
    assert re.search(r"2 rows, \d+ ms, on the host: its input has at most 4 rows", shown)


def test_a_notebook_shows_that_a_query_ran_on_the_device(device_ctx, table):
    device_ctx.register_table("t", table)
    shown = device_ctx.sql("SELECT s, sum(x) AS n FROM t GROUP BY s")._repr_html_()
    assert re.search(r"4 rows, \d+ ms, on the device", shown)


def test_a_notebook_shows_that_a_first_run_is_the_hosts():
    ctx = devicefusion.SessionContext({"device.adaptive_start": "always"})
    if ctx.device() is None:
        pytest.skip("there is no device")
    # No other process has compiled these kernels.
    number = uuid.uuid4().int % 2**40
    query = f"SELECT sum((value + {number}) % 1001) AS s FROM generate_series(1, 200000)"
    shown = ctx.sql(query)._repr_html_()
    assert re.search(r"1 row, \d+ ms, on the host: its kernels", shown), shown


def test_a_plan_that_fails_is_the_error_of_explain(strict):
    query = "SELECT md5(column1) FROM VALUES ('ab')"
    for explained in (lambda: strict.sql(query).explain(), lambda: strict.sql(f"EXPLAIN {query}")):
        with pytest.raises((ValueError, RuntimeError), match="md5.*device.fallback"):
            explained()


def test_ddl_shows_nothing(either, capsys):
    frame = either.sql("CREATE TABLE made AS SELECT 1 AS a")
    frame.show()
    assert capsys.readouterr().out == ""
    assert frame._repr_html_() == "<p><small>no columns</small></p>"


def test_shown_rows_have_a_progress_bar(capsys):
    shown = []

    class Bars:
        n = 0

        def __init__(self, **options):
            shown.append(options)

        def set_description_str(self, text, refresh):
            pass

        def update(self, rows):
            self.n += rows

        def close(self):
            pass

    def slow(values):
        time.sleep(0.01)
        return values

    ctx = devicefusion.SessionContext({"device.selector": "none"}, progress=Bars)
    ctx.register_udf(devicefusion.udf(slow, [pyarrow.int64()], pyarrow.int64()))
    ctx.sql("SELECT max(slow(value)) AS m FROM generate_series(1, 2500000)").show()
    assert "2500000" in capsys.readouterr().out
    assert len(shown) == 1
    with pytest.raises(TypeError, match="tqdm"):
        devicefusion.SessionContext(progress=True)


def test_a_notebook_shows_both_places(device_ctx, table):
    device_ctx.register_table("t", table)
    frame = device_ctx.sql("SELECT md5(m) AS h FROM (SELECT max(s) AS m FROM t GROUP BY x)")
    shown = frame._repr_html_()
    assert re.search(r"on the device, \d+ on the host: the function md5 is not supported", shown)


def test_a_notebook_shows_the_first_rows_of_many(either):
    shown = either.sql("SELECT value FROM generate_series(1, 1000)")._repr_html_()
    assert shown.count("<tr><td>") == 20
    assert "the first 20 rows" in shown


def test_a_notebook_escapes_what_looks_like_html(either):
    shown = either.sql('SELECT \'<script>&"\' AS "<b>bold"')._repr_html_()
    assert "<script>" not in shown and "<b>" not in shown
    assert "&lt;script&gt;&amp;" in shown and "&lt;b&gt;bold" in shown


def test_a_notebook_shows_columns_of_one_name(session):
    query = "SELECT a.x, b.x FROM t AS a JOIN t AS b ON a.x = b.x WHERE a.x = 1"
    shown = session.sql(query)._repr_html_()
    assert re.findall(r"<td>(.*?)</td>", shown) == ["1", "1"]


# asyncio


def test_await_gives_a_table(session, table):
    async def main():
        return await session.table("t")

    assert asyncio.run(main()).equals(table)


def test_queries_are_awaited_together(either):
    async def main():
        queries = (f"SELECT {n} + sum(value) AS s FROM generate_series(1, 10)" for n in range(8))
        return await asyncio.gather(*map(either.sql, queries))

    tables = asyncio.run(main())
    assert [table.to_pydict() for table in tables] == [{"s": [n + 55]} for n in range(8)]


def test_await_raises_the_error_of_the_query(session):
    async def main():
        await session.sql("SELECT 1 / (x - x) AS y FROM t")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_other_tasks_run_while_a_query_is_awaited(either):
    async def main():
        query = asyncio.ensure_future(either.sql(ENDLESS))
        begin, ticks = time.monotonic(), 0
        while ticks < 10:
            await asyncio.sleep(0.02)
            ticks += 1
        assert not query.done()
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
        return time.monotonic() - begin

    assert asyncio.run(main()) < SOON


def test_a_cancelled_query_stops_and_its_session_goes_on(either):
    async def main():
        begin = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(either.sql(ENDLESS), 0.5)
        return time.monotonic() - begin, await either.sql("SELECT 1 AS x")

    seconds, rows = asyncio.run(main())
    assert seconds < SOON
    assert rows.to_pydict() == {"x": [1]}


def test_a_loop_that_ends_before_its_query_is_no_error(either):
    async def main():
        asyncio.ensure_future(either.sql(ENDLESS))
        await asyncio.sleep(0.1)

    asyncio.run(main())
    assert either.sql("SELECT 1 AS x").to_pydict() == {"x": [1]}


def test_async_for_reads_batches(either):
    async def main():
        stream = either.sql("SELECT value FROM generate_series(1, 100000)").execute_stream()
        return [batch.num_rows async for batch in stream]

    assert sum(asyncio.run(main())) == 100000


def test_async_for_raises_the_error_of_the_query(session):
    async def main():
        async for _ in session.sql("SELECT 1 / (x - x) AS y FROM t").execute_stream():
            pass

    with pytest.raises(ZeroDivisionError):
        asyncio.run(main())


def test_async_for_can_stop_early(either):
    async def main():
        async for batch in either.sql(STREAMS).execute_stream():
            return batch.num_rows

    begin = time.monotonic()
    assert asyncio.run(main()) > 0
    assert time.monotonic() - begin < SOON


def test_both_places_give_the_same_rows(ctx, host, table):
    query = "SELECT s, count(*) AS n, sum(x) AS x, max(f) AS f FROM t GROUP BY s"
    ctx.register_table("t", table)
    host.register_table("t", table)
    assert sorted_rows(ctx.sql(query)) == sorted_rows(host.sql(query))


def test_a_batch_of_a_cancelled_read_is_the_next_one(host):
    async def main():
        stream = host.sql("SELECT value FROM generate_series(1, 100000)").execute_stream()
        rows = 0
        while True:
            try:
                rows += (await asyncio.wait_for(anext(stream), 0.00001)).num_rows
            except asyncio.TimeoutError:
                pass
            except StopAsyncIteration:
                return rows

    assert asyncio.run(main()) == 100000


def test_a_stream_whose_query_has_failed_stays_failed(either):
    stream = either.sql("SELECT 1 / (value - 5) AS y FROM generate_series(1, 10)").execute_stream()
    with pytest.raises(ZeroDivisionError):
        list(stream)
    for read in (lambda: list(stream), lambda: pyarrow.table(stream)):
        with pytest.raises(RuntimeError, match="failed"):
            read()


@pytest.mark.parametrize("statement", ["EXPLAIN", "EXPLAIN ANALYZE"])
def test_explain_is_a_result_like_others(session, statement, capsys):
    plan = session.sql(f"{statement} SELECT sum(x) FROM t")
    plan.show()
    assert "TableScan" in capsys.readouterr().out or "Exec" in plan.to_pydict()["plan"][0]
    assert plan.count() == len(plan.to_pylist()) > 0
    assert "<table>" in plan._repr_html_()


def test_each_batch_goes_to_one_of_two_tasks(host):
    async def rows_of(stream):
        return [batch.num_rows async for batch in stream]

    async def main():
        stream = host.sql("SELECT value FROM generate_series(1, 100000)").execute_stream()
        return await asyncio.gather(rows_of(stream), rows_of(stream))

    assert sum(map(sum, asyncio.run(main()))) == 100000
