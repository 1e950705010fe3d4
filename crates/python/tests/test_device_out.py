# SPDX-License-Identifier: Apache-2.0
"""Results that stay on the device: for SQL, for other libraries, and as tensors by column."""

import ctypes
import gc
import types

import pyarrow
import pytest

import devicefusion
from conftest import STRICT, address, soon, sorted_rows

numpy = pytest.importorskip("numpy")

#: Numbers of device types in Arrow's C Device data interface.
DEVICE_TYPES = {"cuda": 2, "opencl": 4}


@pytest.fixture
def shared(device_ctx):
    """A session whose device shares the memory of the host."""
    number = device_ctx.report()["device"]["index"]
    if {known.number: known.kind for known in device_ctx.devices()}[number] != "cpu":
        pytest.skip("the device has memory of its own")
    return device_ctx


@pytest.fixture
def numbers(device_ctx):
    """A table of the device: 100,000 numbers `x`."""
    device_ctx.register_device_table("numbers", {"x": numpy.arange(100_000)})


class Moved:
    """The bytes that go between host and device from now on."""

    def __init__(self, ctx):
        self._ctx = ctx
        self._before = ctx.report()["copies"]

    def __call__(self):
        now = self._ctx.report()["copies"]
        return max(now[name] - self._before[name] for name in ("bytes_up", "bytes_down"))


def in_use(ctx):
    return ctx.report()["memory"]["in_use"]


class HandedOver:
    """Whether rows went to another library and back, once each way, and no copy was made.

    The counters of bytes count shared memory that changes hands. A copy takes memory of the device,
    or another turn.
    """

    def __init__(self, ctx):
        self._ctx = ctx
        self._moved = Moved(ctx)
        self._in_use = in_use(ctx)

    def once(self, nbytes):
        taken = in_use(self._ctx) - self._in_use
        return nbytes <= self._moved() < nbytes + 8192 and taken < nbytes // 2


def field(capsule, name, offset):
    """The 32 bits at an offset of a capsule's struct."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_int32.from_address(pointer(capsule, name) + offset).value


# Rows


def test_a_result_stays_on_the_device(device_ctx, numbers):
    moved = Moved(device_ctx)
    rows = device_ctx.sql("SELECT x * 2 AS y FROM numbers WHERE x >= 10").device()
    assert len(rows) == 99_990
    assert moved() < 4096


def test_a_result_has_names_and_types(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x, x * 0.5 AS half, 'a' AS s FROM numbers").device()
    assert rows.column_names == ["x", "half", "s"]
    assert rows.schema.field("half").type == pyarrow.float64()
    assert repr(rows).startswith("DeviceResult(100000 rows: x: int64, half: double")


def test_a_result_gives_its_rows_to_the_host(device_ctx):
    query = device_ctx.sql(
        """
        SELECT value AS i, NULLIF(value % 7, 3) AS n, CAST(value AS VARCHAR) AS s,
               value % 2 = 0 AS b, CAST(value AS DECIMAL(12, 2)) / 4 AS d, DATE '2024-02-29' AS day
        FROM generate_series(1, 1000)
        """
    )
    rows = query.device().to_arrow_table()
    assert rows.schema.names == query.schema.names
    assert sorted_rows(rows) == sorted_rows(query)


def test_a_sorted_result_keeps_its_order(shared):
    query = "SELECT value AS x FROM generate_series(1, 300000) ORDER BY x DESC"
    rows = shared.sql(query).device()
    assert (numpy.from_dlpack(rows["x"]) == numpy.arange(300_000, 0, -1)).all()


def test_a_missing_column_is_a_key_error_with_the_names(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x AS found FROM numbers").device()
    with pytest.raises(KeyError, match="nothing.*found"):
        rows["nothing"]


def test_without_a_device_there_is_no_device_result(host):
    with pytest.raises(devicefusion.DeviceError, match="none"):
        host.sql("SELECT 1 AS one").device()


def test_a_plan_of_the_host_is_uploaded(shared):
    shared.register_udf(
        devicefusion.udf(lambda x: x, [pyarrow.int64()], pyarrow.int64(), name="same")
    )
    rows = shared.sql("SELECT same(value) AS x FROM generate_series(1, 10)").device()
    assert sorted(numpy.from_dlpack(rows["x"])) == list(range(1, 11))


def test_a_result_runs_once(device_ctx):
    seen = []

    def watched(x):
        seen.append(len(x))
        return x

    device_ctx.register_udf(
        devicefusion.udf(watched, [pyarrow.int64()], pyarrow.int64(), "volatile", name="watched")
    )
    rows = device_ctx.sql("SELECT watched(value) AS x FROM generate_series(1, 10)").device()
    first = sum(seen)
    rows.to_arrow_table()
    device_ctx.sql("SELECT sum(x) FROM rows").to_pydict()
    assert sum(seen) == first == 10


# Tensors


TYPES = {
    "Int8": "int8",
    "Int16": "int16",
    "Int32": "int32",
    "Int64": "int64",
    "UInt8": "uint8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Float32": "float32",
    "Float64": "float64",
    "Date32": "int32",
    "Timestamp(Second, None)": "int64",
}


def test_columns_of_every_fixed_width_are_arrays_of_numpy(shared):
    casts = ", ".join(
        f"arrow_cast({'value::INT' if name == 'Date32' else 'value'}, '{name}') AS c{index}"
        for index, name in enumerate(TYPES)
    )
    rows = shared.sql(f"SELECT {casts} FROM generate_series(1, 100)").device()
    for index, dtype in enumerate(TYPES.values()):
        array = numpy.from_dlpack(rows[f"c{index}"])
        assert array.dtype == dtype
        assert sorted(array.tolist()) == list(range(1, 101))


def test_columns_are_tensors_of_torch(shared, numbers):
    torch = pytest.importorskip("torch")
    rows = shared.sql("SELECT x * 0.5 AS half FROM numbers").device()
    tensor = torch.from_dlpack(rows["half"])
    assert tensor.dtype == torch.float64
    assert tensor.sum().item() == sum(range(100_000)) / 2


@pytest.mark.parametrize(("type_name", "dtype"), [("INT", "int32"), ("REAL", "float32")])
def test_columns_are_arrays_of_jax(shared, type_name, dtype):
    jax = pytest.importorskip("jax")
    query = f"SELECT CAST(value AS {type_name}) AS x FROM generate_series(1, 1000)"
    array = jax.dlpack.from_dlpack(shared.sql(query).device()["x"])
    assert array.dtype == dtype and array.shape == (1000,)
    assert int(array.sum()) == sum(range(1, 1001))


def test_two_tensors_of_a_column_share_its_memory(shared, numbers):
    rows = shared.sql("SELECT x + 1 AS y FROM numbers").device()
    first, second = numpy.from_dlpack(rows["y"]), numpy.from_dlpack(rows["y"])
    assert address(first) == address(second)


def test_a_tensor_shares_memory_with_the_rows_on_the_host(shared, numbers):
    rows = shared.sql("SELECT x + 1 AS y FROM numbers").device()
    (chunk,) = rows.to_arrow_table()["y"].chunks
    assert address(numpy.from_dlpack(rows["y"])) == chunk.buffers()[1].address + chunk.offset * 8


def test_a_tensor_of_memory_of_the_host_is_on_the_cpu(shared, numbers):
    column = shared.sql("SELECT x FROM numbers").device()["x"]
    assert column.__dlpack_device__() == (1, 0)
    assert not hasattr(column, "__cuda_array_interface__")
    assert len(column) == 100_000


def test_a_tensor_cannot_be_written_by_numpy(shared, numbers):
    array = numpy.from_dlpack(shared.sql("SELECT x FROM numbers").device()["x"])
    assert not array.flags.writeable


@pytest.mark.parametrize(
    "expression",
    ["NULLIF(value, 3)", "value::VARCHAR", "value > 2", "value::DECIMAL(10, 2)"],
    ids=["nulls", "strings", "booleans", "decimals"],
)
def test_columns_that_no_tensor_holds_are_refused_by_name(shared, expression):
    rows = shared.sql(f"SELECT {expression} AS odd FROM generate_series(1, 5)").device()
    with pytest.raises(BufferError, match="odd"):
        rows["odd"].__dlpack__()


def test_a_refused_column_leaves_the_others_alone(shared):
    query = "SELECT value AS x, NULLIF(value, 3) AS n FROM generate_series(1, 5)"
    rows = shared.sql(query).device()
    with pytest.raises(BufferError):
        numpy.from_dlpack(rows["n"])
    assert sorted(numpy.from_dlpack(rows["x"])) == [1, 2, 3, 4, 5]
    assert sum(value is None for value in rows.to_arrow_table()["n"].to_pylist()) == 1


def test_a_nullable_column_without_nulls_is_a_tensor(shared):
    query = "SELECT COALESCE(NULLIF(value, 3), 0) AS x FROM generate_series(1, 5)"
    rows = shared.sql(query).device()
    assert sorted(numpy.from_dlpack(rows["x"])) == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("options", [{"stream": 1}, {"copy": True}, {"dl_device": (2, 0)}], ids=str)
def test_a_consumer_that_asks_for_another_tensor_is_refused(shared, numbers, options):
    column = shared.sql("SELECT x FROM numbers").device()["x"]
    with pytest.raises(BufferError):
        column.__dlpack__(**options)


@pytest.mark.parametrize(
    "options",
    [{}, {"stream": None}, {"copy": False}, {"dl_device": (1, 0)}, {"max_version": (1, 0)}],
    ids=str,
)
def test_a_consumer_may_say_what_it_takes(shared, numbers, options):
    column = shared.sql("SELECT x FROM numbers").device()["x"]
    assert "dltensor" in repr(column.__dlpack__(**options))


def test_tensors_that_nobody_takes_free_their_memory(shared, numbers):
    before = in_use(shared)
    column = shared.sql("SELECT x * 2 AS y FROM numbers").device()["y"]
    capsules = [column.__dlpack__() for _ in range(10)]
    assert in_use(shared) - before >= 800_000
    del column, capsules
    assert soon(lambda: in_use(shared) - before < 400_000)


def test_a_tensor_keeps_its_memory_without_its_rows(shared, numbers):
    before = in_use(shared)
    array = numpy.from_dlpack(shared.sql("SELECT x * 2 AS y FROM numbers").device()["y"])
    gc.collect()
    assert in_use(shared) - before >= array.nbytes
    assert array.sum() == sum(range(0, 200_000, 2))
    del array
    assert soon(lambda: in_use(shared) - before < 400_000)


def test_a_result_outlives_its_session(device_ctx):
    session = devicefusion.SessionContext(STRICT)
    assert session.device() == device_ctx.device()
    rows = session.sql("SELECT value AS x FROM generate_series(1, 1000)").device()
    del session
    gc.collect()
    assert sum(rows.to_arrow_table()["x"].to_pylist()) == 500_500


# Sizes


def test_a_result_of_many_batches_is_one_tensor(shared):
    query = "SELECT value AS x, value * 0.5 AS half FROM generate_series(1, 3000000)"
    rows = shared.sql(query).device()
    assert len(rows) == 3_000_000
    array = numpy.from_dlpack(rows["x"])
    assert array.shape == (3_000_000,)
    assert (numpy.sort(array) == numpy.arange(1, 3_000_001)).all()
    assert numpy.from_dlpack(rows["half"]).sum() == 3_000_000 * 3_000_001 / 4
    assert rows.to_arrow_table().num_rows == 3_000_000


def test_a_result_of_many_batches_is_a_stream_and_no_array(device_ctx):
    rows = device_ctx.sql("SELECT value AS x FROM generate_series(1, 3000000)").device()
    with pytest.raises(ValueError, match="__arrow_c_device_stream__"):
        rows.__arrow_c_device_array__()
    found = device_ctx.sql("SELECT count(*) AS n, sum(x) AS s FROM rows").to_pydict()
    assert found == {"n": [3_000_000], "s": [3_000_000 * 3_000_001 // 2]}


def test_an_empty_result_has_columns_and_no_rows(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x, x * 0.5 AS half FROM numbers WHERE x < 0").device()
    assert len(rows) == 0
    assert rows.to_arrow_table().to_pydict() == {"x": [], "half": []}
    assert device_ctx.sql("SELECT count(*) AS n, max(x) AS m FROM rows").to_pydict() == {
        "n": [0],
        "m": [None],
    }


def test_an_empty_result_has_empty_tensors(shared, numbers):
    rows = shared.sql("SELECT x, x * 0.5 AS half FROM numbers WHERE x < 0").device()
    assert numpy.from_dlpack(rows["x"]).tolist() == []
    assert numpy.from_dlpack(rows["half"]).dtype == "float64"


def test_an_empty_tensor_of_torch_is_empty(shared, numbers):
    torch = pytest.importorskip("torch")
    rows = shared.sql("SELECT x FROM numbers WHERE x < 0").device()
    assert torch.from_dlpack(rows["x"]).shape == (0,)


# Chains


def test_queries_follow_one_another_on_the_device(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x * 2 AS y FROM numbers").device()
    moved = Moved(device_ctx)
    again = device_ctx.sql("SELECT y + 1 AS z FROM rows WHERE y >= 100").device()
    assert moved() < 4096
    last = device_ctx.sql("SELECT max(z) AS most, count(*) AS n FROM again").to_pydict()
    assert last == {"most": [199_999], "n": [99_950]}
    assert moved() < 8192


def test_a_device_result_is_read_any_number_of_times(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x FROM numbers WHERE x >= 10").device()
    device_ctx.register_table("kept", rows)
    for table in ("rows", "kept", "rows", "kept"):
        found = device_ctx.sql(f"SELECT sum(x) AS s FROM {table}").to_pydict()
        assert found == {"s": [sum(range(10, 100_000))]}


@pytest.mark.parametrize("method", ["__arrow_c_device_stream__", "__arrow_c_device_array__"])
def test_either_interface_of_a_result_is_a_table(device_ctx, numbers, method):
    rows = device_ctx.sql("SELECT x, x % 10 AS digit FROM numbers").device()
    source = types.SimpleNamespace(**{method: getattr(rows, method)})
    moved = Moved(device_ctx)
    again = device_ctx.from_device(source)
    found = device_ctx.sql("SELECT digit, sum(x) AS s FROM again GROUP BY digit ORDER BY digit")
    assert found.to_pydict()["s"] == [sum(range(digit, 100_000, 10)) for digit in range(10)]
    assert moved() < 8192


@pytest.mark.parametrize("method", ["__arrow_c_device_stream__", "__arrow_c_device_array__"])
def test_a_capsule_of_a_result_is_read_once(device_ctx, numbers, method):
    rows = device_ctx.sql("SELECT x FROM numbers").device()
    capsules = getattr(rows, method)()
    source = types.SimpleNamespace(**{method: lambda: capsules})
    assert device_ctx.from_device(source).count() == 100_000
    with pytest.raises(ValueError, match="used before.*ask its producer for a new one"):
        device_ctx.from_device(source)


def test_rows_of_a_deleted_result_live_until_their_query_has_read_them(device_ctx, numbers):
    def started():
        rows = device_ctx.sql("SELECT x FROM numbers WHERE x >= 10").device()
        return device_ctx.sql("SELECT x + 1 AS y FROM rows").execute_stream(), len(rows)

    stream, count = started()
    gc.collect()
    found = [value for batch in stream for value in batch["y"].to_pylist()]
    assert len(found) == count and sum(found) == sum(range(11, 100_001))


def test_rows_go_to_numpy_and_back_in_place(shared, numbers):
    moved = Moved(shared)
    rows = shared.sql("SELECT x * 2 AS y FROM numbers").device()
    assert moved() < 8192
    handed_over = HandedOver(shared)
    array = numpy.from_dlpack(rows["y"])
    again = shared.from_device({"y": array}).device()
    assert shared.sql("SELECT max(y) AS m FROM again").to_pydict() == {"m": [199_998]}
    assert soon(lambda: handed_over.once(array.nbytes))
    assert address(numpy.from_dlpack(again["y"])) == address(array)


def test_rows_go_through_torch_without_a_copy(shared, numbers):
    torch = pytest.importorskip("torch")
    moved = Moved(shared)
    rows = shared.sql("SELECT x * 0.5 AS half FROM numbers").device()
    assert moved() < 8192
    handed_over = HandedOver(shared)
    scores = torch.from_dlpack(rows["half"]) * 4
    scored = shared.from_device({"score": scores})
    assert shared.sql("SELECT max(score) AS most FROM scored").to_pydict() == {"most": [199_998.0]}
    assert soon(lambda: handed_over.once(scores.numel() * scores.element_size()))
    assert torch.from_dlpack(scored.device()["score"]).data_ptr() == scores.data_ptr()


def test_rows_go_through_jax_without_a_copy(shared, numbers):
    jax = pytest.importorskip("jax")
    moved = Moved(shared)
    rows = shared.sql("SELECT CAST(x AS REAL) AS x FROM numbers").device()
    assert moved() < 8192
    handed_over = HandedOver(shared)
    scores = jax.dlpack.from_dlpack(rows["x"]) * 2
    back = shared.from_device({"score": scores})
    found = shared.sql("SELECT sum(score) AS s, count(*) AS n FROM back").to_pydict()
    assert found == {"s": [float(sum(range(0, 200_000, 2)))], "n": [len(scores)]}
    assert soon(lambda: handed_over.once(scores.nbytes))
    found = address(numpy.from_dlpack(back.device()["score"]))
    assert found == scores.unsafe_buffer_pointer()


def test_another_session_reads_a_device_result(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x, CAST(x AS VARCHAR) AS s FROM numbers WHERE x < 1000").device()
    other = devicefusion.SessionContext(STRICT)
    found = other.sql("SELECT sum(x) AS x, max(s) AS s FROM rows").to_pydict()
    assert found == {"x": [sum(range(1000))], "s": ["999"]}


# Capsules


def test_a_device_array_names_its_device(device_ctx, numbers):
    rows = device_ctx.sql("SELECT x FROM numbers").device()
    _, array = rows.__arrow_c_device_array__()
    expected = DEVICE_TYPES[device_ctx.report()["device"]["driver"]]
    assert field(array, b"arrow_device_array", 88) == expected
    stream = rows.__arrow_c_device_stream__()
    assert field(stream, b"arrow_device_array_stream", 0) == expected


def test_capsules_that_nobody_reads_free_their_rows(device_ctx, numbers):
    before = in_use(device_ctx)
    rows = device_ctx.sql("SELECT x * 2 AS y FROM numbers").device()
    capsules = [rows.__arrow_c_device_stream__(), rows.__arrow_c_device_array__()]
    del rows
    gc.collect()
    assert in_use(device_ctx) - before >= 800_000
    del capsules
    assert soon(lambda: in_use(device_ctx) - before < 400_000)


def test_a_library_that_does_not_know_the_device_refuses_and_frees(device_ctx, numbers):
    if device_ctx.report()["device"]["driver"] != "opencl":
        pytest.skip("pyarrow knows the memory of this device")
    before = in_use(device_ctx)
    rows = device_ctx.sql("SELECT x * 2 AS y FROM numbers").device()
    with pytest.raises((pyarrow.ArrowException, NotImplementedError, KeyError, ValueError)):
        pyarrow.record_batch(rows)
    del rows
    assert soon(lambda: in_use(device_ctx) - before < 400_000)


# Errors


def test_a_failing_query_raises_as_it_does_elsewhere(device_ctx):
    device_ctx.register_table("t", {"x": [2, 1, 0]})
    query = device_ctx.sql("SELECT 10 / x AS y FROM t")
    with pytest.raises(Exception, match="(?i)divide by zero") as usual:
        query.to_pydict()
    with pytest.raises(usual.type, match="(?i)divide by zero"):
        query.device()


def test_an_exception_of_a_function_comes_back_as_it_was(device_ctx):
    error = LookupError("no such price")

    def fails(x):
        raise error

    device_ctx.register_udf(devicefusion.udf(fails, [pyarrow.int64()], pyarrow.int64()))
    with pytest.raises(LookupError) as raised:
        device_ctx.sql("SELECT fails(value) AS x FROM generate_series(1, 10)").device()
    assert raised.value is error


def test_a_result_beyond_the_memory_of_the_session_is_a_memory_error(device_ctx):
    assert device_ctx.device()
    small = devicefusion.SessionContext(STRICT | {"device.memory_bytes": 8 << 20})
    query = small.sql("SELECT value * 2 AS x FROM generate_series(1, 3000000)")
    with pytest.raises(MemoryError):
        query.device()
    found = small.sql("SELECT sum(value) AS s FROM generate_series(1, 10)").to_pydict()
    assert found == {"s": [55]}


def test_no_rows_are_an_empty_array(device_ctx):
    rows = device_ctx.sql("SELECT value AS x FROM generate_series(1, 10) WHERE value < 0").device()
    array = pyarrow.RecordBatch._import_from_c_device_capsule(*rows.__arrow_c_device_array__())
    assert array.num_rows == 0 and array.schema.names == ["x"]


def test_an_unknown_option_of_the_interface_is_refused(device_ctx):
    rows = device_ctx.sql("SELECT value AS x FROM generate_series(1, 10)").device()
    assert rows.__arrow_c_device_stream__(None, later=None)
    with pytest.raises(NotImplementedError, match="later"):
        rows.__arrow_c_device_stream__(None, later=1)


def test_tensors_are_not_to_be_written(shared):
    numpy = pytest.importorskip("numpy")
    rows = shared.sql("SELECT value AS x FROM generate_series(1, 10)").device()
    assert not numpy.from_dlpack(rows["x"]).flags.writeable


def test_a_column_is_an_array_of_numpy_and_a_result_a_mapping_of_columns(shared):
    numpy = pytest.importorskip("numpy")
    rows = shared.sql("SELECT value AS x FROM generate_series(1, 4)").device()
    assert numpy.asarray(rows["x"]).tolist() == [1, 2, 3, 4]
    assert numpy.asarray(rows["x"], dtype="float32").dtype == numpy.float32
    assert repr(rows["x"]) == "DeviceColumn(x: 4 of Int64)"
    assert list(rows) == ["x"] and "x" in rows and "y" not in rows
    assert pyarrow.table(rows).num_rows == 4
    with pytest.raises(TypeError, match="name"):
        rows[0]
