# SPDX-License-Identifier: Apache-2.0
"""Sessions, frames and streams that threads share, and functions of Python in threads."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pyarrow.compute
import pytest

import devicefusion
from conftest import STRICT

THREADS = 16


def together(work, items):
    """Runs a function over items, each in a thread of its own, which start at once."""
    barrier = threading.Barrier(len(items))

    def run(item):
        barrier.wait(60)
        return work(item)

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(run, items))


@pytest.fixture
def numbers(ctx):
    """A table of 10,000 numbers `x`."""
    ctx.register_table("numbers", {"x": list(range(10_000))})


def test_threads_of_a_session_get_the_answers_of_their_own_queries(ctx, numbers):
    def answers(k):
        query = f"SELECT count(*) AS n, sum(x * {k}) AS s FROM numbers WHERE x % {k} = 0"
        return [ctx.sql(query).to_pydict() for _ in range(3)]

    steps = range(1, THREADS + 1)
    for k, found in zip(steps, together(answers, steps), strict=True):
        multiples = range(0, 10_000, k)
        assert found == [{"n": [len(multiples)], "s": [k * sum(multiples)]}] * 3


def test_threads_run_queries_of_other_shapes(ctx, numbers):
    queries = {
        "SELECT max(x) AS v FROM numbers": 9999,
        "SELECT count(DISTINCT x % 100) AS v FROM numbers": 100,
        "SELECT x AS v FROM numbers ORDER BY x DESC LIMIT 1": 9999,
        "SELECT count(*) AS v FROM numbers a JOIN numbers b ON a.x = b.x + 1": 9999,
        "SELECT sum(n) AS v FROM (SELECT count(*) AS n FROM numbers GROUP BY x % 7)": 10_000,
        "SELECT max(r) AS v FROM (SELECT row_number() OVER (ORDER BY x) r FROM numbers)": 10_000,
        "SELECT length(max(CAST(x AS VARCHAR))) AS v FROM numbers": 4,
        "SELECT count(*) AS v FROM numbers WHERE x IN (SELECT x * 2 FROM numbers)": 5000,
    }
    items = [*queries] * 2
    found = together(lambda query: ctx.sql(query).to_pylist(), items)
    assert found == [[{"v": queries[query]}] for query in items]


def test_threads_share_one_frame(ctx, numbers):
    frame = ctx.sql("SELECT x % 10 AS digit, count(*) AS n FROM numbers GROUP BY digit")

    def by_method(method):
        match method:
            case "to_pydict":
                return sorted(frame.to_pydict()["digit"])
            case "stream":
                return sorted(row for batch in frame for row in batch["digit"].to_pylist())
            case "interface":
                return sorted(pyarrow.table(frame)["digit"].to_pylist())
            case "limit":
                return sorted(frame.limit(10).to_pydict()["digit"])

    methods = ["to_pydict", "stream", "interface", "limit"] * (THREADS // 4)
    assert together(by_method, methods) == [list(range(10))] * THREADS


def test_plans_and_counters_are_read_while_queries_run(ctx, numbers):
    query = "SELECT sum(x) AS s FROM numbers"

    def work(index):
        match index % 4:
            case 0:
                return ctx.sql(query).to_pydict()["s"][0]
            case 1:
                return len(ctx.sql(query).explain()) > 0
            case 2:
                return ctx.sql(query).profile()["rows"]
            case 3:
                ctx.report()
                return "numbers" in str(ctx.catalog())

    assert together(work, range(THREADS)) == [sum(range(10_000)), True, 1, True] * (THREADS // 4)


def test_threads_open_the_device_of_a_new_session_at_once():
    ctx = devicefusion.SessionContext(STRICT)
    query = "SELECT count(*) AS n FROM generate_series(1, 1000) WHERE value % 2 = 0"
    found = together(lambda _: ctx.sql(query).to_pydict(), range(THREADS))
    assert found == [{"n": [500]}] * THREADS


def test_two_sessions_have_tables_of_their_own(ctx, host):
    ctx.register_table("t", {"x": list(range(1000))})
    host.register_table("t", {"x": list(range(2000))})

    def total(index):
        session = (ctx, host)[index % 2]
        return [session.sql("SELECT sum(x) AS s FROM t").to_pydict()["s"][0] for _ in range(5)]

    expected = [[sum(range(1000))] * 5, [sum(range(2000))] * 5]
    assert together(total, range(THREADS)) == expected * (THREADS // 2)


def test_threads_make_and_drop_tables(ctx):
    def cycle(index):
        for turn in range(5):
            ctx.register_table(f"t{index}", {"x": [index, turn]})
            found = ctx.sql(f"SELECT sum(x) AS s FROM t{index}").to_pydict()
            ctx.deregister_table(f"t{index}")
            assert found == {"s": [index + turn]}
        return index

    assert together(cycle, range(THREADS)) == list(range(THREADS))
    assert not any(ctx.table_exist(f"t{index}") for index in range(THREADS))


def test_only_one_of_many_threads_registers_a_name(ctx):
    def register(index):
        try:
            ctx.register_table("t", {"x": [index]})
        except (ValueError, devicefusion.ExecutionError) as error:
            assert "exists" in str(error)
            return None
        return index

    winners = [index for index in together(register, range(THREADS)) if index is not None]
    assert ctx.sql("SELECT x FROM t").to_pydict() == {"x": winners}


def test_each_thread_finds_variables_of_its_own(ctx):
    def total(index):
        mine = pyarrow.table({"x": [index, 1]})
        return ctx.sql("SELECT sum(x) AS s FROM mine").to_pydict()["s"][0] - mine.num_rows + 1

    assert together(total, range(THREADS)) == list(range(THREADS))


def test_other_threads_run_while_a_query_runs(host):
    ended = threading.Event()

    def count():
        ticks = 0
        while not ended.wait(0.001):
            ticks += 1
        return ticks

    with ThreadPoolExecutor(1) as pool:
        ticks = pool.submit(count)
        begin = time.perf_counter()
        query = "SELECT sum(sqrt(value)) AS s FROM generate_series(1, 20000000)"
        host.sql(query).to_pydict()
        seconds = time.perf_counter() - begin
        ended.set()
        assert ticks.result() > 20 * seconds


def test_an_error_of_one_thread_is_not_that_of_others(ctx):
    ctx.register_table("t", {"x": [0, 1, 2]})

    def work(index):
        try:
            divisor = "x" if index % 2 else "(x + 1)"
            return sum(ctx.sql(f"SELECT 6 / {divisor} AS y FROM t").to_pydict()["y"])
        except Exception as error:
            return "divide by zero" in str(error).lower()

    assert together(work, range(THREADS)) == [11, True] * (THREADS // 2)


# Functions of Python


def test_a_function_of_python_runs_in_queries_of_all_threads(ctx, numbers):
    def doubled(x):
        return pyarrow.compute.multiply(x, 2)

    ctx.register_udf(devicefusion.udf(doubled, [pyarrow.int64()], pyarrow.int64()))

    def total(k):
        query = f"SELECT sum(doubled(x)) AS s FROM numbers WHERE x % {k} = 0"
        return ctx.sql(query).to_pydict()["s"][0]

    steps = range(1, THREADS + 1)
    assert together(total, steps) == [2 * sum(range(0, 10_000, k)) for k in steps]


def test_an_aggregate_of_python_runs_in_queries_of_all_threads(ctx, numbers):
    class Longest(devicefusion.Accumulator):
        def __init__(self):
            self.most = 0

        def update(self, values):
            self.most = max([self.most, *values.to_pylist()])

        def merge(self, states):
            self.update(states[0])

        def state(self):
            return [self.most]

        def evaluate(self):
            return self.most

    number = pyarrow.int64()
    ctx.register_udaf(devicefusion.udaf(Longest, [number], number, [number]))

    def most(limit):
        query = f"SELECT longest(x) AS m FROM numbers WHERE x < {limit}"
        return ctx.sql(query).to_pydict()["m"][0]

    limits = [100 * (index + 1) for index in range(THREADS)]
    assert together(most, limits) == [limit - 1 for limit in limits]


def test_a_query_within_a_function_of_a_query_is_refused_clearly(ctx):
    def nested(x):
        return ctx.sql("SELECT 1 AS one").to_arrow_table()["one"]

    ctx.register_udf(devicefusion.udf(nested, [pyarrow.int64()], pyarrow.int64()))
    ctx.register_table("t", {"x": [1, 2, 3]})
    with pytest.raises(RuntimeError, match="cannot wait for another query"):
        ctx.sql("SELECT nested(x) AS y FROM t").to_pydict()
    assert ctx.sql("SELECT count(*) AS n FROM t").to_pydict() == {"n": [3]}


def test_a_function_may_ask_another_thread_for_a_query(ctx):
    with ThreadPoolExecutor(1) as pool:

        def looked_up(x):
            found = pool.submit(lambda: ctx.sql("SELECT 7 AS seven").to_pydict()).result(60)
            return [found["seven"][0]] * len(x)

        ctx.register_udf(devicefusion.udf(looked_up, [pyarrow.int64()], pyarrow.int64()))
        ctx.register_table("t", {"x": [1, 2, 3]})
        assert ctx.sql("SELECT looked_up(x) AS y FROM t").to_pydict() == {"y": [7, 7, 7]}


# Streams


def test_a_stream_is_read_by_another_thread(ctx, numbers):
    rows = ctx.sql("SELECT x FROM numbers WHERE x % 2 = 0").execute_stream()
    first = next(rows)
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(list, rows).result(60)
    found = [value for batch in [first, *rest] for value in batch["x"].to_pylist()]
    assert sorted(found) == list(range(0, 10_000, 2))


def test_a_stream_of_capsules_is_read_by_another_thread(ctx, numbers):
    reader = pyarrow.RecordBatchReader.from_stream(ctx.sql("SELECT x FROM numbers"))
    with ThreadPoolExecutor(1) as pool:
        table = pool.submit(reader.read_all).result(60)
    assert sorted(table["x"].to_pylist()) == list(range(10_000))


def test_threads_that_take_turns_read_each_row_once(ctx, numbers):
    rows = ctx.sql("SELECT x FROM numbers").execute_stream()
    turn = threading.Lock()

    def read(_):
        mine = []
        while True:
            with turn:
                batch = next(rows, None)
            if batch is None:
                return mine
            mine += batch["x"].to_pylist()

    parts = together(read, range(4))
    assert sorted(value for part in parts for value in part) == list(range(10_000))


def test_threads_that_read_a_stream_at_once_read_no_row_twice(ctx, numbers):
    rows = ctx.sql("SELECT x FROM numbers").execute_stream()

    def read(_):
        mine = []
        while True:
            try:
                batch = next(rows)
            except StopIteration:
                return mine
            except RuntimeError as error:
                assert "another thread" in str(error)
            else:
                mine += batch["x"].to_pylist()

    parts = together(read, range(4))
    assert sorted(value for part in parts for value in part) == list(range(10_000))


def test_a_stream_stays_at_its_end(ctx, numbers):
    rows = ctx.sql("SELECT x FROM numbers WHERE x < 10").execute_stream()
    assert sum(batch.num_rows for batch in rows) == 10
    assert list(rows) == [] and next(rows, None) is None


def test_a_stream_that_was_handed_over_says_so(ctx, numbers):
    rows = ctx.sql("SELECT x FROM numbers").execute_stream()
    assert pyarrow.table(rows).num_rows == 10_000
    with pytest.raises(RuntimeError, match="handed over"):
        next(rows)


def test_a_source_of_python_is_read_by_a_thread_that_waits_for_it(ctx):
    gate = threading.Event()

    def rows():
        yield pyarrow.record_batch({"x": [1, 2]})
        assert gate.wait(60)
        yield pyarrow.record_batch({"x": [3]})

    schema = pyarrow.schema([("x", pyarrow.int64())])
    ctx.register_table("t", pyarrow.RecordBatchReader.from_batches(schema, rows()))
    with ThreadPoolExecutor(1) as pool:
        total = pool.submit(lambda: ctx.sql("SELECT sum(x) AS s FROM t").to_pydict())
        assert ctx.sql("SELECT 1 AS one").to_pydict() == {"one": [1]}
        gate.set()
        assert total.result(60) == {"s": [6]}


def test_a_result_is_shared_by_threads(device_ctx):
    numpy = pytest.importorskip("numpy")
    rows = device_ctx.sql("SELECT value AS x FROM generate_series(1, 10000)").device()

    def total(index):
        if index % 2:
            return numpy.sum(rows.to_arrow_table()["x"].to_numpy())
        return device_ctx.sql("SELECT sum(x) AS s FROM rows").to_pydict()["s"][0]

    assert together(total, range(THREADS)) == [50_005_000] * THREADS
