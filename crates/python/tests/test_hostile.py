# SPDX-License-Identifier: Apache-2.0
"""Forks, the end of the interpreter, Ctrl-C, and objects that do what they should not."""

import os
import signal
import subprocess
import sys
import textwrap
import types

import pyarrow
import pytest

import devicefusion
from conftest import ENDLESS, SOON, STRICT

#: Of a program: its imports and a query take some seconds on a busy machine.
TIMEOUT = 120

PRELUDE = f"""
import faulthandler, gc, os, signal, sys, threading, time
faulthandler.enable()
import pyarrow
import devicefusion

def session(**settings):
    return devicefusion.SessionContext({STRICT!r} | settings)
"""


def run(script):
    """Runs a program to its end: what it printed."""
    program = PRELUDE + textwrap.dedent(script)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        printed, errors = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, errors = process.communicate()
        pytest.fail(f"the program did not end: {printed}\n{errors}")
    assert process.returncode == 0, f"{process.returncode}: {printed}\n{errors}"
    assert "panicked" not in errors and "Fatal Python error" not in errors, errors
    return printed


class Own(Exception):
    """An exception that no library knows, with arguments of its own."""

    def __init__(self, code, place):
        super().__init__(code, place)
        self.code = code


def raising(error):
    def method(*_, **__):
        raise error

    return method


def giving(value):
    return lambda *_, **__: value


def only(**methods):
    return types.SimpleNamespace(**methods)


# Forks

FORK = """
def forked(work):
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(type(error).__name__, error, flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_says_that_it_has_no_threads():
    printed = run(
        FORK
        + """
ctx = session()
ctx.sql("SELECT 1 AS one").to_pydict()
assert forked(lambda: ctx.sql("SELECT 2 AS two").to_pydict()) == 1
assert ctx.sql("SELECT 3 AS three").to_pydict() == {"three": [3]}
"""
    )
    assert printed.startswith("RuntimeError") and "forked" in printed and "spawn" in printed


def test_a_process_that_is_forked_after_its_device_was_opened_says_so():
    printed = run(
        FORK
        + """
ctx = session()
ctx.device()
assert forked(lambda: ctx.sql("SELECT 2 AS two").to_pydict()) == 1
assert forked(devicefusion.devices) == 1
"""
    )
    assert printed.count("forked") == 2


def test_whatever_a_forked_process_asks_for_is_an_error_in_time():
    printed = run(
        FORK
        + """
ctx = session()
frame = ctx.sql("SELECT value FROM generate_series(1, 100000)")
frame.to_pydict()
stream = frame.execute_stream()
for work in (
    lambda: session().sql("SELECT 1").to_pydict(),
    lambda: ctx.register_table("t", {"x": [1]}),
    lambda: frame.count(),
    lambda: frame.explain(),
    lambda: next(stream),
    lambda: pyarrow.table(frame),
):
    assert forked(work) == 1
assert frame.count() == sum(batch.num_rows for batch in stream) == 100000
"""
    )
    assert [line.split()[0] for line in printed.splitlines()] == ["RuntimeError"] * 6
    assert printed.count("forked") == 6


def test_a_process_that_forks_before_its_first_query_has_queries_in_both():
    printed = run(
        FORK
        + """
def work():
    found = session().sql("SELECT sum(value) AS s FROM generate_series(1, 100)").to_pydict()
    print(found, flush=True)

assert forked(work) == 0
work()
"""
    )
    assert printed.splitlines() == ["{'s': [5050]}"] * 2


def test_a_forked_process_can_drop_what_it_has_inherited():
    run(
        FORK
        + """
ctx = session()
frame = ctx.sql("SELECT value * 2 AS x FROM generate_series(1, 100000)")
stream = frame.execute_stream()
next(stream)
table = frame.to_arrow_table()
held = [ctx, frame, stream, table]
del ctx, frame, stream, table

def work():
    held.clear()
    gc.collect()

assert forked(work) == 0
assert len(held) == 4
assert held[0].sql("SELECT 1 AS one").to_pydict() == {"one": [1]}
"""
    )


def test_a_fork_in_the_middle_of_a_stream_leaves_the_parent_alone():
    run(
        FORK
        + """
ctx = session()
stream = ctx.sql("SELECT value AS x FROM generate_series(1, 100000)").execute_stream()
rows = next(stream).num_rows
assert forked(lambda: time.sleep(0.1)) == 0
assert rows + sum(batch.num_rows for batch in stream) == 100000
"""
    )


# The end of the interpreter

ENDS = {
    "a session with tables": """
        ctx.register_table("t", {"x": [1, 2, 3]})
        ctx.sql("SELECT sum(x) FROM t").to_pydict()
        """,
    "a stream that is read in part": """
        stream = ctx.sql("SELECT value FROM generate_series(1, 10000000)").execute_stream()
        next(stream)
        """,
    "a stream of capsules that is read in part": """
        frame = ctx.sql("SELECT value FROM generate_series(1, 10000000)")
        reader = pyarrow.RecordBatchReader.from_stream(frame)
        reader.read_next_batch()
        """,
    "capsules that nobody reads": """
        frame = ctx.sql("SELECT value FROM generate_series(1, 10000000)")
        capsules = [frame.__arrow_c_stream__(), frame.__arrow_c_schema__()]
        """,
    "rows that share memory with Python": """
        values = pyarrow.array(range(1000))
        ctx.register_table("t", {"x": values})
        rows = ctx.sql("SELECT x FROM t").to_arrow_table()
        """,
    "a source of Python that is read in part": """
        def endless():
            while True:
                time.sleep(0.0005)
                yield pyarrow.record_batch({"x": list(range(1000))})
        schema = pyarrow.schema([("x", pyarrow.int64())])
        streams = []
        for index in range(4):
            reader = pyarrow.RecordBatchReader.from_batches(schema, endless())
            ctx.register_table(f"t{index}", reader)
            streams.append(ctx.sql(f"SELECT x FROM t{index}").execute_stream())
            next(streams[-1])
        """,
    "a function of Python in a stream": """
        same = devicefusion.udf(lambda x: x, [pyarrow.int64()], pyarrow.int64(), name="same")
        ctx.register_udf(same)
        query = "SELECT same(value) AS x FROM generate_series(1, 10000000) WHERE value % 2 = 0"
        stream = ctx.sql(query).execute_stream()
        next(stream)
        """,
    "a slow function of Python in a stream": """
        def slow(values):
            time.sleep(0.002)
            return values
        ctx.register_udf(devicefusion.udf(slow, [pyarrow.int64()], pyarrow.int64(), name="slow"))
        query = "SELECT slow(value) AS x FROM generate_series(1, 10000000) WHERE value % 2 = 0"
        stream = ctx.sql(query).execute_stream()
        next(stream)
        """,
    "a daemon thread within a query": """
        endless = ctx.sql("SELECT count(*) FROM generate_series(1, 1000000000000)")
        threading.Thread(target=endless.to_pydict, daemon=True).start()
        time.sleep(0.5)
        """,
    "daemon threads within many queries": """
        def work():
            while True:
                ctx.sql("SELECT sum(value) FROM generate_series(1, 100000)").to_pydict()
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        time.sleep(1)
        """,
    "a cancelled task of asyncio": """
        import asyncio
        async def work():
            return await ctx.sql("SELECT count(*) FROM generate_series(1, 1000000000000)")
        async def main():
            task = asyncio.create_task(work())
            await asyncio.sleep(0.5)
        asyncio.run(main())
        """,
    "an object that queries as it dies": """
        class Last:
            def __del__(self, session=ctx):
                print(session.sql("SELECT 1 AS one").to_pydict())
        last = Last()
        last.itself = last
        """,
    "a query at exit": """
        import atexit
        atexit.register(lambda: print(ctx.sql("SELECT 1 AS one").to_pydict()))
        """,
    "a failed query": """
        try:
            ctx.sql("SELECT 1 / (value - 5) FROM generate_series(1, 10)").to_pydict()
        except Exception as error:
            kept = error
        """,
    "a cycle with a session": """
        class Node:
            pass
        node = Node()
        node.ctx, node.itself = ctx, node
        node.stream = ctx.sql("SELECT value FROM generate_series(1, 10000000)").execute_stream()
        """,
}


@pytest.mark.parametrize("script", ENDS.values(), ids=ENDS.keys())
def test_the_interpreter_ends_with(script):
    run("ctx = session()\n" + textwrap.dedent(script))


ENDS_OF_DEVICES = {
    "rows of the device": "",
    "capsules of the device": """
        capsules = [rows.__arrow_c_device_stream__(), rows.__arrow_c_device_array__()]
        """,
    "a query over rows of the device": """
        stream = ctx.sql("SELECT x + 1 AS y FROM rows").execute_stream()
        next(stream)
        """,
    "a tensor of a device table": """
        import numpy
        values = numpy.arange(100000)
        ctx.register_device_table("t", {"x": values})
        ctx.sql("SELECT sum(x) FROM t").to_pydict()
        """,
    "tensors of the device": """
        import numpy
        try:
            arrays = [numpy.from_dlpack(rows["x"]) for _ in range(3)]
            capsule = rows["x"].__dlpack__()
        except BufferError:
            arrays = []
        """,
    "only a tensor of the device": """
        import numpy
        try:
            array = numpy.from_dlpack(rows["x"])
        except BufferError:
            array = None
        del rows, ctx
        gc.collect()
        """,
}


@pytest.mark.parametrize("script", ENDS_OF_DEVICES.values(), ids=ENDS_OF_DEVICES.keys())
def test_the_interpreter_ends_with_memory_of_a_device(device_ctx, script):
    if "numpy" in script:
        pytest.importorskip("numpy")
    rows = 'rows = ctx.sql("SELECT value AS x FROM generate_series(1, 1000)").device()\n'
    assert device_ctx.device()
    run("ctx = session()\n" + rows + textwrap.dedent(script))


# Ctrl-C

INTERRUPT = f"""
SOON = {SOON}
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupted(work, after=1.0):
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    try:
        work()
    except KeyboardInterrupt:
        assert time.monotonic() - begin < after + SOON
        print("interrupted")
    assert ctx.sql("SELECT 1 AS one").to_pydict() == {{"one": [1]}}
"""

ENDLESS_ROWS = """
def endless():
    while True:
        yield pyarrow.record_batch({"x": list(range(1000))})

def reader():
    schema = pyarrow.schema([("x", pyarrow.int64())])
    return pyarrow.RecordBatchReader.from_batches(schema, endless())

class Sized:
    def __len__(self):
        return 1
    def __arrow_c_stream__(self, requested_schema=None):
        return reader().__arrow_c_stream__()
"""


@pytest.mark.parametrize("work", ["frame.to_pydict()", "frame.show()", "list(frame)"])
def test_ctrl_c_stops_a_query(work):
    printed = run(
        INTERRUPT
        + f"""
ctx = session(**{{"device.selector": "none"}})
frame = ctx.sql({ENDLESS!r})
interrupted(lambda: {work})
"""
    )
    assert printed == "interrupted\n"


def test_ctrl_c_stops_a_query_of_the_device(device_ctx):
    assert device_ctx.device()
    printed = run(
        INTERRUPT
        + f"""
ctx = session()
ctx.device()
frame = ctx.sql({ENDLESS!r})
interrupted(frame.device, after=3.0)
"""
    )
    assert printed == "interrupted\n"


@pytest.mark.parametrize(
    "work",
    [
        'ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()',
        'list(ctx.sql("SELECT x FROM t WHERE x < 0").execute_stream())',
        'ctx.register_table("sized", Sized())',
    ],
    ids=["query", "stream", "registration"],
)
def test_ctrl_c_stops_what_reads_an_endless_stream(work):
    printed = run(
        INTERRUPT
        + ENDLESS_ROWS
        + f"""
ctx = session(**{{"device.selector": "none"}})
ctx.register_table("t", reader())
interrupted(lambda: {work})
"""
    )
    assert printed == "interrupted\n"


def test_ctrl_c_stops_a_function_of_python():
    printed = run(
        INTERRUPT
        + """
ctx = session(**{"device.selector": "none"})

def slow(x):
    for _ in range(1000):
        time.sleep(0.01)
    return x

ctx.register_udf(devicefusion.udf(slow, [pyarrow.int64()], pyarrow.int64()))
ctx.register_table("t", {"x": [1, 2, 3]})
interrupted(lambda: ctx.sql("SELECT slow(x) AS y FROM t").to_pydict())
"""
    )
    assert printed == "interrupted\n"


# Exceptions of callbacks


@pytest.fixture
def numbers(ctx):
    ctx.register_table("numbers", {"x": [1, 2, 3]})


ERRORS = [Own(7, "here"), KeyError("k"), ValueError("v"), MemoryError("m"), SystemExit(3)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["to_pydict", "count_rows", "stream", "explain"])
def test_an_exception_of_a_function_comes_back_as_it_was(ctx, numbers, error, method):
    number = pyarrow.int64()
    ctx.register_udf(devicefusion.udf(raising(error), [number], number, name="fails"))
    frame = ctx.sql("SELECT fails(x) AS y FROM numbers")
    calls = {
        "to_pydict": frame.to_pydict,
        "count_rows": lambda: ctx.sql("SELECT count(fails(x)) AS n FROM numbers").to_pydict(),
        "stream": lambda: [batch.num_rows for batch in frame.execute_stream()],
        "explain": lambda: frame.explain(analyze=True),
    }
    with pytest.raises(type(error)) as raised:
        calls[method]()
    assert raised.value is error


def test_the_end_of_an_iterator_in_a_function_does_not_end_the_rows(ctx, numbers):
    number = pyarrow.int64()
    ctx.register_udf(devicefusion.udf(raising(StopIteration()), [number], number, name="fails"))
    with pytest.raises((RuntimeError, StopIteration)):
        ctx.sql("SELECT fails(x) AS y FROM numbers").to_pydict()
    with pytest.raises(RuntimeError):
        list(ctx.sql("SELECT fails(x) AS y FROM numbers").execute_stream())


@pytest.mark.parametrize("failing", ["__init__", "update", "state", "merge", "evaluate"])
def test_an_exception_of_an_aggregate_comes_back_as_it_was(ctx, failing):
    error = Own(7, failing)

    class Count(devicefusion.Accumulator):
        def __init__(self):
            self.count = 0

        def update(self, values):
            self.count += len(values)

        def merge(self, states):
            self.count += sum(states[0].to_pylist())

        def state(self):
            return [self.count]

        def evaluate(self):
            return self.count

    setattr(Count, failing, raising(error))
    number = pyarrow.int64()
    ctx.register_udaf(devicefusion.udaf(Count, [number], number, [number], name="counted"))
    batch = pyarrow.record_batch({"x": [1, 2, 3]})
    ctx.register_record_batches("numbers", [[batch], [batch], [batch], [batch]])
    ctx.set("datafusion.execution.target_partitions", 4)
    with pytest.raises(Own) as raised:
        ctx.sql("SELECT counted(x) AS n FROM numbers").to_pydict()
    assert raised.value is error


WRONG_RESULTS = {
    "too few values": (lambda x: x[:1], "3 values, and gave 1"),
    "too many values": (lambda x: [1, 2, 3, 4], "3 values, and gave 4"),
    "no values": (lambda x: None, "fails is to give an array, and gave one NoneType"),
    "one number": (lambda x: 7, "fails is to give an array, and gave one int"),
    "texts": (lambda x: ["a", "b", "c"], "int"),
    "structs": (lambda x: pyarrow.array([{"a": 1}] * 3), "struct"),
}


@pytest.mark.parametrize(("function", "says"), WRONG_RESULTS.values(), ids=WRONG_RESULTS.keys())
def test_a_function_that_gives_something_else_is_an_error(ctx, numbers, function, says):
    number = pyarrow.int64()
    ctx.register_udf(devicefusion.udf(function, [number], number, name="fails"))
    wrong = (TypeError, ValueError, NotImplementedError, devicefusion.ExecutionError)
    with pytest.raises(wrong, match=says):
        ctx.sql("SELECT fails(x) AS y FROM numbers").to_pydict()
    assert ctx.sql("SELECT sum(x) AS s FROM numbers").to_pydict() == {"s": [6]}


# Objects that break their promises

INTERFACES = [
    "__arrow_c_device_stream__",
    "__arrow_c_device_array__",
    "__arrow_c_stream__",
    "__arrow_c_array__",
]


@pytest.mark.parametrize("method", INTERFACES)
def test_an_exception_of_an_interface_comes_back_as_it_was(ctx, method):
    error = Own(7, method)
    with pytest.raises(Own) as raised:
        ctx.from_arrow(only(**{method: raising(error)}))
    assert raised.value is error


@pytest.mark.parametrize("method", INTERFACES)
def test_an_exception_of_a_variable_comes_back_as_it_was(ctx, method):
    error = Own(7, method)
    broken = only(**{method: raising(error)})
    with pytest.raises(Own) as raised:
        ctx.sql("SELECT * FROM broken")
    assert raised.value is error


@pytest.mark.parametrize("failing", ["__dlpack__", "__dlpack_device__", "__arrow_c_array__"])
def test_an_exception_of_a_column_comes_back_as_its_own_kind(ctx, failing):
    methods = {"__dlpack__": giving(None), "__dlpack_device__": giving((1, 0))}
    column = only(**methods | {failing: raising(Own(7, failing))})
    with pytest.raises(Own) as raised:
        ctx.from_arrow({"x": column})
    assert raised.value.code == 7


def nonsense():
    table = pyarrow.table({"x": [1]})
    batch = pyarrow.record_batch({"x": [1]})
    yield "nothing", None
    yield "a number", 7
    yield "a text", "capsule"
    yield "a table", table
    yield "an empty tuple", ()
    yield "a tuple of one", batch.__arrow_c_array__()[:1]
    yield "a tuple of nothing", (None, None)
    yield "a list", list(batch.__arrow_c_array__())
    yield "a capsule of a schema", table.schema.__arrow_c_schema__()
    yield "two capsules of a schema", (table.schema.__arrow_c_schema__(),) * 2
    yield "capsules in the other order", batch.__arrow_c_array__()[::-1]
    yield "a capsule of another library", sys.modules["datetime"].datetime_CAPI


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in nonsense()])
@pytest.mark.parametrize("method", INTERFACES)
def test_an_interface_that_gives_nonsense_is_refused(ctx, method, value):
    with pytest.raises((TypeError, ValueError)):
        ctx.from_arrow(only(**{method: giving(value)}))
    with pytest.raises((TypeError, ValueError)):
        ctx.from_arrow({"x": only(__arrow_c_array__=giving(value))})


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in nonsense()])
def test_a_tensor_that_gives_nonsense_is_refused(ctx, value):
    tensor = only(__dlpack__=giving(value), __dlpack_device__=giving((1, 0)))
    with pytest.raises((TypeError, ValueError)):
        ctx.from_arrow({"x": tensor})


@pytest.mark.parametrize("device", [None, 1, (1,), ("cpu", 0), (1, 0, 0)], ids=str)
def test_a_tensor_whose_device_is_nonsense_is_refused(ctx, device):
    numpy = pytest.importorskip("numpy")
    tensor = only(__dlpack__=numpy.arange(3).__dlpack__, __dlpack_device__=giving(device))
    with pytest.raises((TypeError, ValueError)):
        ctx.from_arrow({"x": tensor})


def test_a_tensor_without_a_device_is_refused(ctx):
    numpy = pytest.importorskip("numpy")
    with pytest.raises((TypeError, ValueError, AttributeError), match="x"):
        ctx.from_arrow({"x": only(__dlpack__=numpy.arange(3).__dlpack__)})


def test_a_stream_of_other_columns_the_next_time_is_refused_or_unseen(ctx):
    schemas = [pyarrow.table({"x": [1, 2]}), pyarrow.table({"y": ["a"]})]
    source = only(__arrow_c_stream__=lambda *_: schemas.pop(0).__arrow_c_stream__())
    ctx.register_table("t", source)
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [3]}


def test_a_stream_that_changes_its_schema_in_the_middle_fails_its_query(ctx):
    def rows():
        yield pyarrow.record_batch({"x": [1, 2]})
        yield pyarrow.record_batch({"x": ["a"]})

    schema = pyarrow.schema([("x", pyarrow.int64())])
    ctx.register_table("t", pyarrow.RecordBatchReader.from_batches(schema, rows()))
    with pytest.raises((ValueError, devicefusion.ExecutionError)):
        ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()


def test_an_exception_of_a_property_comes_back(ctx):
    class Broken:
        @property
        def __arrow_c_stream__(self):
            raise Own(7, "property")

    with pytest.raises(Own):
        ctx.from_arrow(Broken())


def test_a_stream_that_registers_tables_while_it_is_read_does_no_harm(host):
    def rows():
        for index in range(5):
            host.register_table(f"t{index}", {"x": [index]})
            yield pyarrow.record_batch({"x": [index]})

    schema = pyarrow.schema([("x", pyarrow.int64())])
    host.register_table("t", pyarrow.RecordBatchReader.from_batches(schema, rows()))
    assert host.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [10]}
    assert host.sql("SELECT x FROM t4").to_pydict() == {"x": [4]}


def test_a_stream_over_its_own_table_ends_with_an_error(host):
    def rows():
        yield pyarrow.record_batch({"x": host.sql("SELECT x FROM t").to_pydict()["x"]})

    schema = pyarrow.schema([("x", pyarrow.int64())])
    host.register_table("t", pyarrow.RecordBatchReader.from_batches(schema, rows()))
    with pytest.raises(devicefusion.ExecutionError, match="once"):
        host.sql("SELECT sum(x) AS s FROM t").to_pydict()


def test_columns_with_names_of_all_kinds_are_read(ctx):
    names = ["", " ", "a b", 'a "quote"', "Grüße", "SELECT", "x" * 1000, "a.b", "a;b", "a\nb"]
    rows = ctx.from_arrow({name: [index] for index, name in enumerate(names)})
    assert rows.to_pydict() == {name: [index] for index, name in enumerate(names)}


def test_a_name_with_a_zero_byte_is_an_error_or_a_name(ctx):
    try:
        rows = ctx.from_arrow({"a\0b": [1]})
    except ValueError:
        return
    assert rows.count() == 1


def test_a_table_of_very_many_columns_is_read(host):
    columns = {f"c{index}": [index] for index in range(2000)}
    assert host.from_arrow(columns).to_pydict() == columns
