# SPDX-License-Identifier: Apache-2.0
"""Whatever queries take is given back, and rows are copied once at most."""

import gc
import itertools
import os
import sys
import time
import weakref

import pyarrow
import pytest

import devicefusion
from conftest import STRICT, Tensor, settled, soon

numpy = pytest.importorskip("numpy")

#: A table that SQL finds by its name.
three = pyarrow.table({"x": [1, 2, 3]})


# The turns of a session


def query(ctx):
    ctx.sql("SELECT 1 + 1 AS two").to_pydict()


def query_over_a_table(ctx):
    if not ctx.table_exist("numbers"):
        ctx.register_table("numbers", {"x": list(range(100))})
    ctx.sql("SELECT sum(x) AS s FROM numbers WHERE x > 10").to_pydict()


def query_with_parameters(ctx):
    ctx.sql("SELECT $1 + 1 AS a, $2 AS b", [41, "text"]).to_pylist()
    ctx.sql("SELECT $a + 1 AS a", {"a": 41}).to_pylist()


def query_over_a_variable(ctx):
    mine = pyarrow.table({"x": [1, 2, 3]})
    assert ctx.sql("SELECT sum(x) AS s FROM mine").to_pydict() == {"s": [mine.num_rows * 2]}


def failing_queries(ctx):
    for text in ("SELECT nothing", "SELEC 1", "SELECT 1 / (x - 1) FROM three"):
        try:
            ctx.sql(text).to_pydict()
        except Exception as error:
            assert str(error)
        else:
            raise AssertionError(text)


def tables_that_come_and_go(ctx):
    ctx.register_table("t", {"x": numpy.arange(1000), "y": Tensor(numpy.arange(1000.0))})
    ctx.sql("SELECT sum(x) + sum(y) AS s FROM t").to_pydict()
    ctx.deregister_table("t")


def streams_read_in_part(ctx):
    rows = ctx.sql("SELECT value FROM generate_series(1, 100000)").execute_stream()
    next(rows)
    pyarrow.RecordBatchReader.from_stream(ctx.sql("SELECT 1 AS one"))


def readers(ctx):
    batches = [pyarrow.record_batch({"x": [1, 2, 3]})] * 3
    reader = pyarrow.RecordBatchReader.from_batches(batches[0].schema, batches)
    assert ctx.from_arrow(reader).count() == 9


def functions(ctx):
    number = pyarrow.int64()
    ctx.register_udf(devicefusion.udf(lambda x: x, [number], number, name="same"))
    ctx.sql("SELECT same(x) AS y FROM three").to_pydict()


def plans(ctx):
    frame = ctx.sql("SELECT sum(x) AS s FROM three")
    assert frame.schema.names == ["s"] and frame.explain()
    frame.profile()


def device_tables(ctx):
    ctx.register_device_table("t", {"x": numpy.arange(1000)})
    ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()
    ctx.deregister_table("t")


def device_results(ctx):
    rows = ctx.from_device({"x": numpy.arange(1000)}).device()
    try:
        assert len(numpy.from_dlpack(rows["x"])) == 1000
        rows["x"].__dlpack__()
    except BufferError:
        pass
    rows.__arrow_c_device_stream__()
    ctx.sql("SELECT max(x) AS m FROM rows").to_pydict()


ON_HOST = [
    query,
    query_over_a_table,
    query_with_parameters,
    query_over_a_variable,
    failing_queries,
    tables_that_come_and_go,
    streams_read_in_part,
    readers,
    functions,
    plans,
]
ON_DEVICE = [query_over_a_table, tables_that_come_and_go, device_tables, device_results]
WORK = [("host", work) for work in ON_HOST] + [("device_ctx", work) for work in ON_DEVICE]


@pytest.fixture(params=WORK, ids=lambda work: f"{work[0]}-{work[1].__name__}")
def repeat(request):
    """A function that works once."""
    session, work = request.param
    ctx = request.getfixturevalue(session)
    work(ctx)
    return lambda: work(ctx)


# References


def sources():
    yield "table", pyarrow.table({"x": [1, 2, 3]})
    yield "batch", pyarrow.record_batch({"x": [1, 2, 3]})
    yield "columns", {"x": pyarrow.array([1, 2, 3])}
    yield "numpy", {"x": numpy.arange(3)}
    yield "tensor", {"x": Tensor(numpy.arange(3))}


@pytest.mark.parametrize("source", [pytest.param(value, id=name) for name, value in sources()])
@pytest.mark.parametrize("register", ["register_table", "register_device_table"])
def test_a_source_has_as_many_references_as_before(request, ctx, register, source):
    if "device" in register:
        request.getfixturevalue("device_ctx")
    held = [source, *(source.values() if isinstance(source, dict) else ())]

    def counts():
        return [sys.getrefcount(held[index]) for index in range(len(held))]

    before = counts()
    for _ in range(20):
        getattr(ctx, register)("t", source)
        ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()
        ctx.deregister_table("t")
    assert soon(lambda: counts() == before), (counts(), before)


def test_constants_of_python_have_as_many_references_as_before(host):
    kept = [None, True, (), object, ValueError, pyarrow.int64()]

    def counts():
        return [sys.getrefcount(kept[index]) for index in range(len(kept))]

    def work():
        host.sql("SELECT 1 AS one").to_pydict()
        host.from_arrow({"x": [1, 2]}).count()
        with pytest.raises(ValueError):
            host.sql("SELECT nothing")

    work()
    before = counts()
    for _ in range(100):
        work()
    assert soon(lambda: all(now - then < 50 for now, then in zip(counts(), before, strict=True)))


def test_objects_of_python_do_not_become_more(repeat):
    for _ in range(10):
        repeat()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        repeat()
    assert soon(lambda: len(gc.get_objects()) - before < 40)


def test_a_session_frees_its_tables_and_functions():
    def doubled(x):
        return [value.as_py() * 2 for value in x]

    session = devicefusion.SessionContext(STRICT)
    values = numpy.arange(1000)
    number = pyarrow.int64()
    session.register_table("t", {"x": values})
    session.register_udf(devicefusion.udf(doubled, [number], number))
    assert session.sql("SELECT max(doubled(x)) AS m FROM t").to_pydict() == {"m": [1998]}
    alive = [weakref.ref(values), weakref.ref(doubled)]
    del session, values, doubled
    assert soon(lambda: [reference() for reference in alive] == [None, None])


def test_a_session_without_queries_frees_its_tables():
    session = devicefusion.SessionContext({"device.selector": "none"})
    values = numpy.arange(1000)
    alive = weakref.ref(values)
    session.register_table("t", {"x": values})
    del session, values
    assert soon(lambda: alive() is None)


def test_a_session_frees_its_device_tables(device_ctx):
    assert device_ctx.device()
    session = devicefusion.SessionContext(STRICT)
    values = numpy.arange(1000)
    alive = weakref.ref(values)
    session.register_device_table("t", {"x": values})
    session.sql("SELECT sum(x) AS s FROM t").to_pydict()
    del session, values
    assert soon(lambda: alive() is None)


def test_a_frame_keeps_its_session_and_frees_it():
    session = devicefusion.SessionContext({"device.selector": "none"})
    values = numpy.arange(1000)
    alive = weakref.ref(values)
    session.register_table("t", {"x": values})
    frame = session.sql("SELECT sum(x) AS s FROM t")
    del session, values
    gc.collect()
    assert frame.to_pydict() == {"s": [sum(range(1000))]}
    del frame
    assert soon(lambda: alive() is None)


def test_an_exception_is_freed_with_the_objects_of_its_function(host):
    class Own(Exception):
        pass

    def fails(x):
        raise Own(x)

    number = pyarrow.int64()
    host.register_udf(devicefusion.udf(fails, [number], number))

    def reference():
        try:
            host.sql("SELECT fails(x) AS y FROM three").to_pydict()
        except Own as error:
            return weakref.ref(error)

    alive = reference()
    assert soon(lambda: alive() is None)


# Memory


def resident_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS:"))


def rounds(work, seconds, most):
    """Works for some time, or so often."""
    deadline = time.monotonic() + seconds
    for _ in range(most):
        work()
        if time.monotonic() > deadline:
            break
    gc.collect()


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no /proc")
def test_memory_stays_as_it_is(repeat):
    """A leak shows in each round. Of what allocators keep there is a round that adds nothing."""
    rounds(repeat, 0.3, 200)
    sizes = [resident_bytes()]
    for _ in range(3):
        rounds(repeat, 0.2, 500)
        sizes.append(resident_bytes())
    growth = [after - before for before, after in itertools.pairwise(sizes)]
    assert min(growth) < 256 << 10, growth


#: The first quarter of so many queries fills caches and allocators. The clock may end them before,
#: unless all tests are asked for: builds without optimization are slow.
QUERIES, STEP, SECONDS = 10_000, 100, 15


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no /proc")
@pytest.mark.parametrize("session", ["host", "device_ctx"])
def test_memory_is_flat_over_ten_thousand_queries(request, capsys, session):
    ctx = request.getfixturevalue(session)
    ctx.register_table("t", {"x": list(range(1000))})
    expected = {"s": [sum(range(11, 1000))]}
    query = "SELECT sum(x) AS s FROM t WHERE x > 10"
    if session == "device_ctx":
        assert ctx.sql(query).to_pydict() == expected
        settled(ctx)
    is_whole = os.environ.get("DEVICEFUSION_TEST_PART") == "all"
    sizes, begin = [], time.monotonic()
    while len(sizes) < QUERIES // STEP and (is_whole or time.monotonic() < begin + SECONDS):
        for _ in range(STEP):
            assert ctx.sql(query).to_pydict() == expected
        gc.collect()
        sizes.append(resident_bytes())
    seconds = time.monotonic() - begin
    # Allocators give memory back in steps, so the least of many sizes counts.
    quarter = max(len(sizes) // 4, 1)
    before = min(sizes[quarter:-quarter] or sizes[:1])
    growth = min(sizes[-quarter:]) - before
    # For the log, also of a run that passes.
    with capsys.disabled():
        print(
            f"\n{session}: {before >> 10} KiB after {quarter * STEP} queries, "
            f"{growth >> 10} KiB more after {len(sizes) * STEP} in {seconds:.1f} s"
        )
    assert growth < 2 << 20


def test_memory_of_the_device_stays_as_it_is(device_ctx):
    def work():
        device_tables(device_ctx)
        device_results(device_ctx)

    def in_use():
        return device_ctx.report()["memory"]["in_use"]

    rounds(work, 0.5, 20)
    before = in_use()
    rounds(work, 1, 100)
    assert soon(lambda: in_use() - before < 64 << 10)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="there is no /proc")
def test_threads_do_not_become_more(host):
    def work():
        readers(host)
        streams_read_in_part(host)

    def threads():
        return len(os.listdir("/proc/self/task"))

    rounds(work, 0.5, 20)
    before = threads()
    rounds(work, 1, 100)
    assert soon(lambda: threads() <= before + 4)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="there is no /proc")
def test_files_do_not_become_more(host, tmp_path):
    def work():
        session = devicefusion.SessionContext({"device.selector": "none"})
        session.sql("SELECT 1 AS one").write_parquet(tmp_path / "one.parquet")
        session.sql(f"SELECT * FROM '{tmp_path / 'one.parquet'}'").to_pydict()

    def files():
        return len(os.listdir("/proc/self/fd"))

    rounds(work, 0.5, 10)
    before = files()
    rounds(work, 1, 50)
    assert soon(lambda: files() <= before + 4)


# Copies


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="there is no /proc")
@pytest.mark.parametrize("session", ["host", "device_ctx"])
def test_a_large_result_is_copied_once_at_most(request, session):
    ctx = request.getfixturevalue(session)
    values = numpy.arange(10_000_000)
    if session == "host":
        ctx.register_table("t", {"x": values})
    else:
        ctx.register_device_table("t", {"x": values})
    frame = ctx.sql("SELECT x FROM t")
    # The libraries of a first query do not count.
    frame.limit(10).to_arrow_table()
    if session == "device_ctx":
        settled(ctx)
    before = resident_bytes()
    rows = frame.to_arrow_table()
    grown = resident_bytes() - before
    assert rows.num_rows == len(values) and rows.nbytes >= values.nbytes
    assert grown < 1.5 * rows.nbytes


def test_a_large_table_is_registered_at_once(host):
    # Pages of zeros take no memory, unless they are read.
    table = pyarrow.table({"x": numpy.zeros(125_000_000)})
    assert table.nbytes == 1_000_000_000
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        host.from_arrow(table)
        times.append(time.perf_counter() - begin)
    assert min(times) <= 0.01
