# SPDX-License-Identifier: Apache-2.0
"""Device data of CUDA, on the emulator: its memory is apart from the host's."""

import ctypes
import os
import weakref

import pytest

import devicefusion
from conftest import STRICT, soon

pytestmark = pytest.mark.skipif(
    os.environ.get("DATAFUSION_DEVICE_SELECTOR") != "cuda", reason="the device is not CUDA's"
)

CUDA = 2
ROWS = 1000


@pytest.fixture
def ctx():
    return devicefusion.SessionContext({**STRICT, "device.fallback": "error"})


@pytest.fixture
def numbers(ctx):
    ctx.sql(f"CREATE TABLE device.numbers AS SELECT value AS x FROM generate_series(1, {ROWS})")
    return ctx.sql("SELECT x, x * 0.5 AS half FROM device.numbers").device()


class Tensor:
    """A column with DLPack alone, and the stream of its consumer."""

    def __init__(self, column):
        self.column = column
        self.stream = None

    def __dlpack_device__(self):
        return self.column.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        self.stream = stream
        return self.column.__dlpack__(stream=stream, **options)


class Array:
    """A column with the CUDA Array Interface alone."""

    def __init__(self, column, **changes):
        self.column = column
        self.changes = changes

    @property
    def __cuda_array_interface__(self):
        return {**self.column.__cuda_array_interface__, **self.changes}


class Driver:
    """CUDA's driver, as a library beside the session calls it."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        device = ctypes.c_int()
        self.context = ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)
        self.device = device

    def call(self, name, *arguments):
        assert getattr(self.library, name)(*arguments) == 0, name

    def within(self, name, *arguments):
        """A call in the context of the session."""
        above = ctypes.c_void_p()
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            self.call(name, *arguments)
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(above))

    def made(self, name, flags):
        """A new stream, or a new event."""
        made = ctypes.c_void_p()
        self.within(name, ctypes.byref(made), flags)
        return made

    def end(self):
        self.call("cuDevicePrimaryCtxRelease_v2", self.device)


class Producer:
    """A column that its producer overwrites with zeros, on a stream of its own."""

    def __init__(self, driver, column):
        self.driver = driver
        self.column = column
        self.stream = driver.made("cuStreamCreate", 1)

    def write(self):
        start = ctypes.c_uint64(self.column.__cuda_array_interface__["data"][0])
        size = ctypes.c_size_t(8 * len(self.column))
        self.driver.within("cuMemsetD8Async", start, ctypes.c_ubyte(0), size, self.stream)

    def follow(self, consumer):
        """Lets the consumer's stream wait for the zeros."""
        event = self.driver.made("cuEventCreate", 2)
        self.driver.within("cuEventRecord", event, self.stream)
        self.driver.within("cuStreamWaitEvent", ctypes.c_void_p(consumer), event, 0)
        self.driver.within("cuEventDestroy_v2", event)

    def end(self):
        self.driver.within("cuStreamDestroy_v2", self.stream)
        self.driver.end()


class ProducerOfTensors(Producer):
    def __dlpack_device__(self):
        return self.column.__dlpack_device__()

    def __dlpack__(self, *, stream=None, **options):
        self.follow(stream)
        return self.column.__dlpack__(stream=stream, **options)


class ProducerOfArrays(Producer):
    @property
    def __cuda_array_interface__(self):
        return {**self.column.__cuda_array_interface__, "stream": self.stream.value}


@pytest.fixture
def producer(request, numbers):
    """A producer of the class that the test names."""
    made = request.param(Driver(), numbers["x"])
    yield made
    made.end()


def copied(ctx):
    """Bytes between host and device."""
    copies = ctx.report()["copies"]
    return copies["bytes_up"], copies["bytes_down"]


def test_a_column_is_a_tensor_of_cuda(numbers):
    assert numbers["half"].__dlpack_device__() == (CUDA, 0)
    interface = numbers["half"].__cuda_array_interface__
    assert interface["shape"] == (ROWS,)
    assert interface["typestr"] == "<f8"
    assert interface["data"][0] != 0 and interface["data"][1]
    assert interface["version"] == 3


def test_tensors_of_cuda_go_back_into_sql_in_place(ctx, numbers):
    x, half = Tensor(numbers["x"]), Tensor(numbers["half"])
    before = copied(ctx)
    ctx.register_device_table("tensors", {"x": x, "half": half})
    result = ctx.sql("SELECT x + half AS y FROM tensors WHERE x > 10").device()
    # Counts come to the host, and no rows.
    up, down = (now - then for now, then in zip(copied(ctx), before, strict=True))
    assert up < ROWS and down < ROWS
    assert x.stream not in (None, 0)
    assert len(result) == ROWS - 10
    total = ctx.sql("SELECT sum(y) AS s FROM result").to_pydict()["s"][0]
    assert total == sum(1.5 * x for x in range(11, ROWS + 1))


def test_arrays_of_cuda_go_back_into_sql_in_place(ctx, numbers):
    # The stream of a consumer of DLPack is the session's.
    tensor = Tensor(numbers["x"])
    ctx.register_device_table("tensors", {"x": tensor})
    before = copied(ctx)
    x, half = Array(numbers["x"], stream=tensor.stream), Array(numbers["half"], strides=(8,))
    ctx.register_device_table("arrays", {"x": x, "half": half})
    up, down = (now - then for now, then in zip(copied(ctx), before, strict=True))
    assert up < ROWS and down < ROWS
    found = ctx.sql("SELECT sum(x + half) AS s FROM arrays").to_pydict()
    assert found == {"s": [sum(1.5 * x for x in range(1, ROWS + 1))]}


@pytest.mark.parametrize("producer", [ProducerOfTensors, ProducerOfArrays], indirect=True)
def test_a_query_waits_for_the_stream_of_the_producer(ctx, producer):
    total = "SELECT sum(x) AS s FROM {}"
    producer.write()
    # The emulator runs a stream's work only for those that wait for it.
    if hasattr(producer.driver.library, "emulator_hold"):
        ctx.register_device_table("early", {"x": Array(producer.column)})
        early = ctx.sql(total.format("early")).to_pydict()
        assert early == {"s": [ROWS * (ROWS + 1) // 2]}
    ctx.register_device_table("written", {"x": producer})
    assert ctx.sql(total.format("written")).to_pydict() == {"s": [0]}


def test_an_array_of_cuda_is_a_table_by_its_name(ctx, numbers):
    array = Array(numbers["x"])
    found = ctx.sql("SELECT max(value) AS m FROM array").to_pydict()
    assert found == {"m": [array.__cuda_array_interface__["shape"][0]]}


def test_an_array_of_cuda_lives_as_long_as_its_table(ctx, numbers):
    array = Array(numbers["x"])
    gone = weakref.ref(array)
    ctx.register_device_table("arrays", {"x": array})
    del array
    assert ctx.sql("SELECT count(x) AS n FROM arrays").to_pydict() == {"n": [ROWS]}
    assert gone() is not None
    ctx.deregister_table("arrays")
    assert soon(lambda: gone() is None)


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"shape": (10, 100)}, "one dimension"),
        ({"strides": (16,)}, "16 bytes apart"),
        ({"typestr": "<c16"}, "no type for elements of <c16"),
        ({"typestr": ">f8"}, "no type for elements of >f8"),
        ({"mask": object()}, "has a mask"),
        ({"stream": 0}, "ambiguous"),
    ],
)
def test_arrays_of_cuda_that_are_no_columns(ctx, numbers, changes, error):
    with pytest.raises(ValueError, match=error):
        ctx.register_device_table("arrays", {"x": Array(numbers["x"], **changes)})


def test_arrays_of_cuda_on_another_device_are_refused(numbers):
    host = devicefusion.SessionContext({"device.selector": "none"})
    refused = "memory of CUDA.*device.selector = 'none'.*to the host"
    for data in ({"x": Array(numbers["x"])}, {"x": Tensor(numbers["x"])}, numbers):
        with pytest.raises(devicefusion.DeviceError, match=refused):
            host.register_table("arrays", data)


def test_a_column_of_many_batches_is_one_tensor(ctx):
    ctx.set("device.batch_rows", 1024)
    rows = ctx.sql("SELECT value AS x FROM generate_series(1, 100000) WHERE value % 2 = 0").device()
    ctx.register_device_table("evens", {"x": Tensor(rows["x"])})
    found = ctx.sql("SELECT count(*) AS n, sum(x) AS s FROM evens").to_pydict()
    assert found == {"n": [50000], "s": [sum(range(2, 100001, 2))]}


def test_a_column_with_nulls_is_no_tensor(ctx, numbers):
    rows = ctx.sql("SELECT NULLIF(x, 5) AS x FROM numbers").device()
    with pytest.raises(BufferError, match="COALESCE"):
        rows["x"]


def test_host_and_device_columns_do_not_mix(ctx, numbers):
    with pytest.raises(ValueError, match="host memory"):
        ctx.register_device_table("mixed", {"x": Tensor(numbers["x"]), "y": list(range(ROWS))})


def test_rows_of_cuda_come_to_the_host(numbers):
    table = numbers.to_arrow_table()
    assert table.num_rows == ROWS
    assert table["half"].to_pylist() == [x * 0.5 for x in table["x"].to_pylist()]


def test_cupy_and_sql_pass_arrays_in_place(ctx, numbers):
    cupy = pytest.importorskip("cupy", reason="CuPy needs a GPU, and is not run here")
    x = cupy.from_dlpack(numbers["x"])
    assert int(x.sum()) == ROWS * (ROWS + 1) // 2
    before = copied(ctx)
    ctx.register_device_table("doubled", {"x": x * 2})
    total = ctx.sql("SELECT sum(x) AS s FROM doubled").to_pydict()
    assert total == {"s": [ROWS * (ROWS + 1)]}
    up, down = (now - then for now, then in zip(copied(ctx), before, strict=True))
    assert up < ROWS and down < ROWS


def test_cudf_and_sql_pass_tables_in_place(ctx, numbers):
    cudf = pytest.importorskip("cudf", reason="cuDF needs a GPU, and is not run here")
    frame = cudf.DataFrame({"k": [1, 2, 1], "x": [0.5, 1.5, 2.5]})
    ctx.register_device_table("frame", {name: frame[name].values for name in frame.columns})
    sums = ctx.sql("SELECT k, sum(x) AS s FROM frame GROUP BY k ORDER BY k").to_pydict()
    assert sums == {"k": [1, 2], "s": [3.0, 1.5]}
    assert int(cudf.Series(numbers["x"]).sum()) == ROWS * (ROWS + 1) // 2
