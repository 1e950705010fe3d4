# SPDX-License-Identifier: Apache-2.0
"""Data of other libraries as tables: in place, and alive for as long as a query reads it."""

import ctypes
import gc
import itertools
import types
import weakref

import pyarrow
import pytest

import devicefusion
from conftest import Tensor, address, soon

numpy = pytest.importorskip("numpy")

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.fixture
def shared(device_ctx):
    """A session whose device shares the memory of the host."""
    number = device_ctx.report()["device"]["index"]
    if {known.number: known.kind for known in device_ctx.devices()}[number] != "cpu":
        pytest.skip("the device has memory of its own")
    return device_ctx


@pytest.fixture(params=["from_arrow", "from_device", "register_table", "register_device_table"])
def read(request, ctx):
    """A function that gives the rows of an object, by each way in."""
    if "device" in request.param:
        request.getfixturevalue("device_ctx")
    way = getattr(ctx, request.param)

    def rows(data):
        if request.param.startswith("from"):
            return way(data)
        way("t", data)
        return ctx.table("t")

    return rows


def only(source, method):
    """An object that has one method of another."""
    return types.SimpleNamespace(**{method: getattr(source, method)})


def kept(source, method, **others):
    """An object whose method gives the same capsules each time."""
    capsules = getattr(source, method)()
    return types.SimpleNamespace(**{method: lambda *_, **__: capsules}, **others)


def address_of_arrow(column):
    chunk = column.chunk(0)
    return chunk.buffers()[1].address + chunk.offset * chunk.type.bit_width // 8


#: CUDA's number in DLPack and in Arrow's C Device data interface.
CUDA = 2


def relabelled(capsule, name, offset, device_type):
    """A capsule with another device type, at an offset of its struct."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    ctypes.c_int32.from_address(pointer(capsule, name) + offset).value = device_type
    return capsule


def bytes_up(ctx):
    return ctx.report()["copies"]["bytes_up"]


# Values


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_of_numpy_keep_their_extremes(read, dtype):
    limits = numpy.iinfo(dtype)
    rows = read({"x": numpy.array([limits.min, 0, limits.max], dtype)})
    assert rows.schema.field("x").type == pyarrow.from_numpy_dtype(dtype)
    assert rows.to_pydict() == {"x": [limits.min, 0, limits.max]}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_floats_of_numpy_keep_their_values(read, dtype):
    values = [-1.5, 0.0, 0.25, float("inf")]
    assert read({"x": numpy.array(values, dtype)}).to_pydict() == {"x": values}


def test_dates_of_numpy_are_dates(read):
    days = numpy.array(["1970-01-02", "2024-02-29"], "datetime64[D]")
    assert read({"day": days}).to_pydict() == {"day": days.tolist()}


def test_half_floats_are_columns_of_the_host(host):
    halves = numpy.array([0.5, -2.0], "float16")
    assert host.from_arrow({"x": halves}).to_pydict() == {"x": [0.5, -2.0]}
    assert host.from_arrow({"x": Tensor(halves)}).to_pydict() == {"x": [0.5, -2.0]}


def test_half_floats_are_columns_of_a_device_or_refused_by_name(device_ctx):
    halves = numpy.array([0.5, -2.0], "float16")
    try:
        rows = device_ctx.from_device({"height": halves})
    except (ValueError, devicefusion.ExecutionError) as error:
        assert "height" in str(error)
    else:
        assert rows.to_pydict() == {"height": [0.5, -2.0]}


@pytest.mark.parametrize("wrap", [numpy.asarray, Tensor], ids=["numpy", "tensor"])
def test_booleans_are_columns(read, wrap):
    flags = numpy.array([True, False, True, True])
    assert read({"b": wrap(flags)}).to_pydict() == {"b": [True, False, True, True]}


def test_booleans_of_numpy_filter_rows(ctx):
    marked = {"x": numpy.arange(1000), "b": numpy.arange(1000) % 3 == 0}
    ctx.register_table("t", marked)
    found = ctx.sql("SELECT count(*) AS n, sum(x) AS s FROM t WHERE b").to_pydict()
    assert found == {"n": [334], "s": [sum(range(0, 1000, 3))]}


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "float32", "float64"])
def test_tensors_of_torch_keep_their_values(read, name):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([0, 1, 100], dtype=getattr(torch, name))
    assert read({"x": tensor}).to_pydict() == {"x": [0, 1, 100]}


def test_booleans_of_torch_are_columns(read):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor([True, False])
    try:
        tensor.__dlpack__()
    except RuntimeError as error:
        pytest.skip(str(error))
    assert read({"b": tensor}).to_pydict() == {"b": [True, False]}


@pytest.mark.parametrize("name", ["int32", "uint8", "float32"])
def test_arrays_of_jax_keep_their_values(read, name):
    jax = pytest.importorskip("jax.numpy")
    assert read({"x": jax.array([0, 1, 100], dtype=name)}).to_pydict() == {"x": [0, 1, 100]}


@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64"])
def test_any_object_with_dlpack_is_a_column(read, dtype):
    tensor = Tensor(numpy.array([0, 1, 100], dtype))
    assert read({"x": tensor}).to_pydict() == {"x": [0, 1, 100]}


def test_columns_of_several_libraries_are_one_table(ctx):
    jax = pytest.importorskip("jax.numpy")
    columns = {
        "a": numpy.arange(4),
        "b": jax.arange(4, dtype="float32"),
        "c": pyarrow.array(["w", None, "y", "z"]),
        "d": Tensor(numpy.arange(4) * 10),
        "e": [1, None, 3, 4],
    }
    second = ctx.from_arrow(columns).to_pylist()[1]
    assert second == {"a": 1, "b": 1.0, "c": None, "d": 10, "e": None}


def test_a_dictionary_of_tensors_is_found_by_its_variable(ctx):
    measured = {"x": numpy.arange(10), "y": Tensor(numpy.arange(10.0))}
    found = ctx.sql("SELECT sum(x) AS x, sum(y) AS y FROM measured").to_pydict()
    assert found == {"x": [sum(measured["x"])], "y": [45.0]}


def test_arrow_arrays_with_nulls_are_columns(read):
    columns = {"i": pyarrow.array([1, None, 3]), "s": pyarrow.array(["a", None, "c"])}
    assert read(columns).to_pydict() == {"i": [1, None, 3], "s": ["a", None, "c"]}


def test_chunked_arrays_are_columns(read):
    columns = {
        "i": pyarrow.chunked_array([[1], [2, None]]),
        "s": pyarrow.chunked_array([["a", "b", "c"]]),
        "f": pyarrow.chunked_array([[0.5], [], [1.5, 2.5]]),
    }
    assert read(columns).to_pydict() == {
        "i": [1, 2, None],
        "s": ["a", "b", "c"],
        "f": [0.5, 1.5, 2.5],
    }


def test_slices_of_arrow_arrays_have_their_own_rows(read):
    whole = pyarrow.array([None, *range(1, 100)])
    text = pyarrow.array([str(i) for i in range(100)])
    rows = read({"i": whole.slice(10, 3), "s": text.slice(97)})
    assert rows.to_pydict() == {"i": [10, 11, 12], "s": ["97", "98", "99"]}


def test_series_of_polars_are_columns(read):
    polars = pytest.importorskip("polars")
    columns = {
        "i": polars.Series([1, None, 3]),
        "s": polars.Series(["a", None, "a string that no view has within itself"]),
    }
    assert read(columns).to_pydict() == {name: column.to_list() for name, column in columns.items()}


def test_series_of_pandas_are_columns(read):
    pandas = pytest.importorskip("pandas")
    rows = read({"x": pandas.Series([1, 2, 3]), "y": pandas.Series([0.5, 1.5, 2.5])})
    assert rows.to_pydict() == {"x": [1, 2, 3], "y": [0.5, 1.5, 2.5]}


def columns_alone():
    yield "numpy", lambda: numpy.array([1, 2])
    yield "tensor", lambda: Tensor(numpy.array([1, 2]))
    yield "array", lambda: pyarrow.array([1, 2])
    yield "chunked_array", lambda: pyarrow.chunked_array([[1], [2]])
    yield "polars", lambda: pytest.importorskip("polars").Series([1, 2])


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in columns_alone()])
def test_a_column_alone_is_a_table_of_one_column(ctx, make):
    (values,) = ctx.from_arrow(make()).to_pydict().values()
    assert values == [1, 2]


def test_a_device_array_of_a_batch_is_a_table(read):
    batch = pyarrow.record_batch({"x": [1, 2, None], "s": ["a", None, "c"]})
    source = only(batch, "__arrow_c_device_array__")
    assert read(source).to_pydict() == batch.to_pydict()


def test_a_device_array_of_a_slice_has_its_own_rows(read):
    batch = pyarrow.record_batch({"x": list(range(100)), "s": [str(i) for i in range(100)]})
    source = only(batch.slice(40, 2), "__arrow_c_device_array__")
    assert read(source).to_pydict() == {"x": [40, 41], "s": ["40", "41"]}


@pytest.mark.parametrize("method", ["__arrow_c_device_array__", "__arrow_c_array__"])
def test_a_device_table_of_a_batch_answers_queries(device_ctx, method):
    batch = pyarrow.record_batch({"x": list(range(1000))})
    device_ctx.register_device_table("t", only(batch, method))
    found = device_ctx.sql("SELECT sum(x) AS s FROM t WHERE x >= 990").to_pydict()
    assert found == {"s": [sum(range(990, 1000))]}


def test_a_query_over_tensors_gives_the_sum_of_the_library(read, ctx):
    values = numpy.arange(200_000) / 8
    rows = read({"x": values})
    assert ctx.sql("SELECT sum(x) AS s FROM rows").to_pydict() == {"s": [values.sum()]}
    assert rows.count() == 200_000


# Shapes and types that are no columns


def test_memory_that_cannot_be_written_is_read(read):
    values = numpy.arange(5)
    values.flags.writeable = False
    columns = read({"x": values, "y": Tensor(values)}).to_pydict()
    assert columns == {"x": list(range(5)), "y": list(range(5))}


def test_empty_columns_give_no_rows(read):
    columns = {
        "a": numpy.empty(0, "int32"),
        "b": Tensor(numpy.empty(0)),
        "c": pyarrow.array([], pyarrow.string()),
        "d": pyarrow.chunked_array([], pyarrow.int64()),
    }
    rows = read(columns)
    assert rows.to_pydict() == {"a": [], "b": [], "c": [], "d": []}
    assert rows.count() == 0


def test_an_empty_tensor_of_torch_gives_no_rows(read):
    torch = pytest.importorskip("torch")
    assert read({"x": torch.empty(0)}).to_pydict() == {"x": []}


def test_an_aggregate_over_an_empty_device_table_is_null(device_ctx):
    device_ctx.register_device_table("t", {"x": numpy.empty(0)})
    found = device_ctx.sql("SELECT count(*) AS n, max(x) AS m FROM t").to_pydict()
    assert found == {"n": [0], "m": [None]}


def test_columns_of_other_lengths_are_refused_by_name(read):
    with pytest.raises(ValueError, match='"b" has 2 rows') as refused:
        read({"a": numpy.arange(3), "b": Tensor(numpy.arange(2))})
    assert '"a"' in str(refused.value)


@pytest.mark.parametrize("wrap", [lambda array: array, Tensor], ids=["numpy", "tensor"])
@pytest.mark.parametrize("shape", [(2, 3), (2, 1, 1), ()], ids=str)
def test_tensors_of_other_dimensions_are_refused_by_name(read, wrap, shape):
    with pytest.raises(ValueError, match="column .matrix.: .*one dimension"):
        read({"matrix": wrap(numpy.ones(shape))})


def test_a_matrix_alone_is_refused(ctx):
    with pytest.raises(ValueError, match="one dimension"):
        ctx.from_arrow(numpy.ones((2, 2)))


STRIDED = {
    "every second": lambda array: array[::2],
    "backwards": lambda array: array[::-1],
    "repeated": lambda array: numpy.broadcast_to(array[:1], 5),
    "column of a matrix": lambda array: array[:8].reshape(4, 2)[:, 1],
}


@pytest.mark.parametrize("wrap", [lambda array: array, Tensor], ids=["numpy", "tensor"])
@pytest.mark.parametrize("stride", STRIDED.values(), ids=STRIDED.keys())
def test_strides_are_refused_with_a_way_out(read, wrap, stride):
    with pytest.raises(ValueError, match="column .apart.: .*contiguous"):
        read({"apart": wrap(stride(numpy.arange(10)))})


@pytest.mark.parametrize("wrap", [lambda array: array, Tensor], ids=["numpy", "tensor"])
def test_strides_of_one_element_do_not_matter(read, wrap):
    assert read({"x": wrap(numpy.arange(10)[3:4:2])}).to_pydict() == {"x": [3]}


def test_strides_of_torch_are_refused(read):
    torch = pytest.importorskip("torch")
    for tensor in (torch.arange(10)[::2], torch.ones(1).expand(3)):
        with pytest.raises(ValueError, match="column .apart.: .*contiguous"):
            read({"apart": tensor})


def unsupported():
    yield "complex of NumPy", lambda: numpy.ones(2, "complex128")
    yield "complex", lambda: Tensor(numpy.ones(2, "complex64"))
    yield "records", lambda: numpy.zeros(2, [("a", "int32"), ("b", "float32")])
    yield "other order of bytes", lambda: numpy.arange(2, dtype=">i8")
    yield "complex of PyTorch", lambda: ones_of_torch("complex64")
    yield "bfloat16 of PyTorch", lambda: ones_of_torch("bfloat16")
    yield "bfloat16 of JAX", lambda: pytest.importorskip("jax.numpy").ones(2, "bfloat16")


def ones_of_torch(dtype):
    torch = pytest.importorskip("torch")
    return torch.ones(2, dtype=getattr(torch, dtype))


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in unsupported()])
def test_types_that_sql_has_not_are_refused_by_name(read, make):
    column = make()
    with pytest.raises(ValueError, match="phase"):
        read({"phase": column})


def test_a_tensor_with_a_gradient_is_refused_as_torch_does(ctx):
    torch = pytest.importorskip("torch")
    with pytest.raises((BufferError, RuntimeError), match="grad"):
        ctx.from_arrow({"weights": torch.ones(2, requires_grad=True)})


@pytest.mark.parametrize("value", [7, "text", object(), None], ids=lambda it: type(it).__name__)
def test_other_objects_are_refused_with_their_type(read, value):
    kind = type(value).__name__
    with pytest.raises(TypeError, match=f"an? {kind} is no table"):
        read(value)
    with pytest.raises(TypeError, match=f"column .wrong.: an? {kind} is no column"):
        read({"wrong": value})


def test_a_device_table_without_a_device_is_an_error_of_the_device(host):
    with pytest.raises(devicefusion.DeviceError, match="none"):
        host.from_device({"x": numpy.arange(3)})
    with pytest.raises(devicefusion.DeviceError, match="none"):
        host.register_device_table("t", {"x": numpy.arange(3)})


# Capsules


SOURCES = {
    "__arrow_c_stream__": lambda: pyarrow.table({"x": [1, 2]}),
    "__arrow_c_array__": lambda: pyarrow.record_batch({"x": [1, 2]}),
    "__arrow_c_device_array__": lambda: pyarrow.record_batch({"x": [1, 2]}),
}


@pytest.mark.parametrize("method", SOURCES)
def test_a_capsule_is_read_once(ctx, method):
    source = kept(SOURCES[method](), method)
    assert ctx.from_arrow(source).to_pydict() == {"x": [1, 2]}
    with pytest.raises(ValueError, match="used before.*ask its producer for a new one"):
        ctx.from_arrow(source)


@pytest.mark.parametrize("method", SOURCES)
def test_a_capsule_that_another_library_has_read_is_refused(ctx, method):
    source = kept(SOURCES[method](), method)
    assert pyarrow.table(source).to_pydict() == {"x": [1, 2]}
    with pytest.raises(ValueError, match="used before.*ask its producer for a new one"):
        ctx.from_arrow(source)


def test_a_capsule_of_a_tensor_is_read_once(ctx):
    array = numpy.arange(3)
    tensor = kept(array, "__dlpack__", __dlpack_device__=array.__dlpack_device__)
    assert ctx.from_arrow({"x": tensor}).to_pydict() == {"x": [0, 1, 2]}
    with pytest.raises(ValueError, match="column .x.: .*used before"):
        ctx.from_arrow({"x": tensor})


def test_a_capsule_of_a_tensor_that_numpy_has_read_is_refused(ctx):
    array = numpy.arange(3)
    tensor = kept(array, "__dlpack__", __dlpack_device__=array.__dlpack_device__)
    assert numpy.from_dlpack(tensor).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="used before"):
        ctx.from_arrow({"x": tensor})


def test_a_refused_tensor_is_freed(ctx):
    array = numpy.ones((2, 2))
    alive = weakref.ref(array)
    with pytest.raises(ValueError):
        ctx.from_arrow({"x": Tensor(array)})
    del array
    assert soon(lambda: alive() is None)


# Memory of other devices


@pytest.fixture
def opencl(device_ctx):
    """A session whose device is not CUDA's."""
    if device_ctx.report()["device"]["driver"] != "opencl":
        pytest.skip("the device is not OpenCL's")
    return device_ctx


def by_name(ctx):
    """A function that reads an object as a variable."""

    def rows(source):
        query = ctx.sql("SELECT * FROM source")
        assert source is not None
        return query

    return rows


def test_a_tensor_of_another_device_is_refused(opencl, read):
    tensor = only(numpy.arange(3), "__dlpack__")
    tensor.__dlpack_device__ = lambda: (CUDA, 0)
    refused = r"column .x.: .*CUDA device 0.*opencl:\d+.*move it there first"
    for way in (read, by_name(opencl)):
        with pytest.raises(ValueError, match=refused):
            way({"x": tensor})
    assert not opencl.table_exist("t")


def test_an_array_of_cuda_is_refused_by_a_session_of_opencl(opencl, read):
    array = types.SimpleNamespace(__cuda_array_interface__={"shape": (3,)})
    with pytest.raises(ValueError, match=r"column .x.: .*CUDA.*opencl:\d+.*to the host"):
        read({"x": array})


def test_a_tensor_of_a_device_that_no_session_has_is_refused(device_ctx, read):
    metal = 8
    capsule = relabelled(numpy.arange(3).__dlpack__(), b"dltensor", 8, metal)
    tensor = types.SimpleNamespace(
        __dlpack__=lambda **_: capsule, __dlpack_device__=lambda: (metal, 0)
    )
    driver = device_ctx.report()["device"]["driver"]
    refused = rf"METAL 0, .*{driver}:\d+.*copy them.*host, first"
    with pytest.raises(ValueError, match=refused):
        read({"x": tensor})


def test_a_device_array_of_another_device_is_refused(opencl, read):
    def source():
        schema, array = pyarrow.record_batch({"x": [1, 2]}).__arrow_c_device_array__()
        capsules = schema, relabelled(array, b"arrow_device_array", 88, CUDA)
        return types.SimpleNamespace(__arrow_c_device_array__=lambda *_, **__: capsules)

    for way in (read, by_name(opencl)):
        with pytest.raises(ValueError, match=r"CUDA -1.*opencl:\d+.*copy them.*host, first"):
            way(source())
    assert not opencl.table_exist("t")


def test_a_device_stream_of_another_device_is_refused(opencl, read):
    rows = opencl.from_device({"x": numpy.arange(3)}).device()

    def source():
        stream = rows.__arrow_c_device_stream__()
        capsule = relabelled(stream, b"arrow_device_array_stream", 0, CUDA)
        return types.SimpleNamespace(__arrow_c_device_stream__=lambda *_, **__: capsule)

    for way in (read, by_name(opencl)):
        with pytest.raises(ValueError, match=r"of CUDA, .*opencl:\d+.*copy them.*host, first"):
            way(source())
    assert not opencl.table_exist("t")


@pytest.mark.parametrize("method", ["__arrow_c_device_stream__", "__arrow_c_device_array__"])
def test_rows_of_a_device_are_refused_by_a_session_without_one(device_ctx, host, method):
    rows = device_ctx.from_device({"x": numpy.arange(1000)}).device()
    driver = device_ctx.report()["device"]["driver"].upper()
    refused = f"memory of {driver}.*device.selector = 'none'.*to the host"
    for way in (host.from_arrow, lambda data: host.register_table("t", data), by_name(host)):
        for data in (rows, only(rows, method)):
            with pytest.raises(devicefusion.DeviceError, match=refused):
                way(data)
    assert not host.table_exist("t")
    assert host.from_arrow(rows.to_arrow_table()).count() == 1000


def test_a_tensor_of_cuda_is_refused_by_a_session_without_a_device(host):
    tensor = only(numpy.arange(3), "__dlpack__")
    tensor.__dlpack_device__ = lambda: (CUDA, 0)
    array = types.SimpleNamespace(__cuda_array_interface__={"shape": (3,)})
    for column in (tensor, array):
        refused = "memory of CUDA.*device.selector = 'none'.*to the host"
        with pytest.raises(devicefusion.DeviceError, match=refused):
            host.register_table("t", {"x": column})


# Streams


def batches(*parts):
    schema = pyarrow.schema([("x", pyarrow.int64())])
    return [pyarrow.record_batch([pyarrow.array(part, pyarrow.int64())], schema) for part in parts]


def reader(rows):
    return pyarrow.RecordBatchReader.from_batches(pyarrow.schema([("x", pyarrow.int64())]), rows)


class Sized:
    """A stream whose object has a length, as a table has."""

    def __init__(self, rows):
        self._reader = reader(rows)

    def __len__(self):
        return 2

    def __arrow_c_stream__(self, requested_schema=None):
        return self._reader.__arrow_c_stream__(requested_schema)


def failing():
    yield from batches([1, 2], [3])
    raise LookupError("the disk is gone")


def test_a_reader_gives_its_rows_to_one_query(ctx):
    ctx.register_table("t", reader(batches([1, 2], [3])))
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [6]}
    with pytest.raises(devicefusion.ExecutionError, match="once"):
        ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()


def test_a_stream_that_fails_in_the_middle_fails_its_query(ctx):
    ctx.register_table("t", reader(failing()))
    with pytest.raises(devicefusion.ExecutionError, match="the disk is gone"):
        ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()
    assert ctx.sql("SELECT 1 AS one").to_pydict() == {"one": [1]}


def test_rows_before_the_failure_of_a_stream_are_given(host):
    host.register_table("t", reader(failing()))
    rows = host.sql("SELECT x FROM t").execute_stream()
    assert next(rows).to_pydict() == {"x": [1, 2]}
    with pytest.raises(devicefusion.ExecutionError, match="the disk is gone"):
        list(rows)


def test_a_failing_stream_of_a_sized_object_fails_its_registration(ctx):
    with pytest.raises(devicefusion.ExecutionError, match="the disk is gone"):
        ctx.register_table("t", Sized(failing()))
    assert not ctx.table_exist("t")


def test_a_failing_stream_is_freed(ctx):
    rows = failing()
    alive = weakref.ref(rows)
    ctx.register_table("t", reader(rows))
    del rows
    with pytest.raises(devicefusion.ExecutionError):
        ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()
    ctx.deregister_table("t")
    assert soon(lambda: alive() is None)


def test_a_limit_stops_an_endless_reader(ctx):
    def endless():
        for start in itertools.count(0, 1000):
            made.append(start)
            yield batches(range(start, start + 1000))[0]

    made = []
    rows = endless()
    alive = weakref.ref(rows)
    ctx.register_table("t", reader(rows))
    del rows
    found = ctx.sql("SELECT x FROM t WHERE x >= 5 LIMIT 5").to_pydict()
    assert len(set(found["x"])) == 5 and min(found["x"]) >= 5
    ctx.deregister_table("t")
    assert soon(lambda: alive() is None)
    assert len(made) < 10_000


def test_empty_batches_of_a_reader_do_not_end_it(ctx):
    parts = batches([], [1, 2], [], [3], [])
    ctx.register_table("t", reader(parts))
    rows = ctx.sql("SELECT x FROM t").execute_stream()
    assert [value for batch in rows for value in batch["x"].to_pylist()] == [1, 2, 3]


# In place


def test_a_host_table_shares_memory_with_numpy(host):
    values = numpy.arange(10_000.0)
    host.register_table("t", {"x": values})
    column = host.sql("SELECT x FROM t").to_arrow_table()["x"]
    assert address_of_arrow(column) == address(values)


def test_a_host_table_shares_memory_with_any_tensor(host):
    values = numpy.arange(10_000)
    host.register_table("t", {"x": Tensor(values)})
    column = host.sql("SELECT x FROM t").to_arrow_table()["x"]
    assert address_of_arrow(column) == address(values)


def test_a_host_table_shares_memory_with_jax(host):
    values = pytest.importorskip("jax.numpy").arange(10_000, dtype="int32")
    host.register_table("t", {"x": values})
    column = host.sql("SELECT x FROM t").to_arrow_table()["x"]
    assert address_of_arrow(column) == values.unsafe_buffer_pointer()


@pytest.mark.parametrize(
    "wrap", [numpy.asarray, Tensor, pyarrow.array], ids=["numpy", "tensor", "arrow"]
)
def test_a_device_table_shares_memory_with_its_columns(shared, wrap):
    values = numpy.arange(10_000.0)
    rows = shared.from_device({"x": wrap(values)}).device()
    assert address(numpy.from_dlpack(rows["x"])) == address(values)


def test_a_device_table_shares_memory_with_torch(shared):
    torch = pytest.importorskip("torch")
    values = torch.arange(10_000)
    rows = shared.from_device({"x": values}).device()
    assert torch.from_dlpack(rows["x"]).data_ptr() == values.data_ptr()


def test_a_device_table_shares_memory_with_jax(shared):
    values = pytest.importorskip("jax.numpy").arange(10_000, dtype="float32")
    rows = shared.from_device({"x": values}).device()
    assert address(numpy.from_dlpack(rows["x"])) == values.unsafe_buffer_pointer()


def test_a_device_table_takes_no_device_memory_for_its_rows(shared):
    values = numpy.arange(1_000_000)
    before = shared.report()["memory"]["in_use"]
    shared.register_device_table("t", {"x": values})
    assert shared.sql("SELECT max(x) AS m FROM t").to_pydict() == {"m": [999_999]}
    assert shared.report()["memory"]["in_use"] - before < values.nbytes // 2


def test_queries_over_a_device_table_upload_no_rows(device_ctx):
    values = numpy.arange(100_000)
    device_ctx.register_device_table("t", {"x": values})
    for divisor in (3, 3, 7):
        before = bytes_up(device_ctx)
        query = f"SELECT sum(x) AS s FROM t WHERE x % {divisor} = 0"
        assert device_ctx.sql(query).to_pydict() == {"s": [sum(range(0, 100_000, divisor))]}
        assert bytes_up(device_ctx) - before < 4096


def test_queries_over_a_host_table_upload_its_rows_each_time(device_ctx):
    values = numpy.arange(100_000)
    device_ctx.register_table("t", {"x": values})
    for _ in range(2):
        before = bytes_up(device_ctx)
        device_ctx.sql("SELECT sum(x) AS s FROM t WHERE x % 3 = 0").to_pydict()
        assert bytes_up(device_ctx) - before >= values.nbytes


def test_explain_names_the_upload_of_a_host_table(device_ctx):
    device_ctx.register_table("far", {"x": numpy.arange(1000)})
    device_ctx.register_device_table("near", {"x": numpy.arange(1000)})
    assert "HostToDeviceExec" in device_ctx.sql("SELECT sum(x) FROM far").explain()
    assert "HostToDeviceExec" not in device_ctx.sql("SELECT sum(x) FROM near").explain()


# Lifetimes


def total(rows):
    return sum(sum(batch["x"].to_pylist()) for batch in rows)


@pytest.mark.parametrize("wrap", [lambda array: array, Tensor], ids=["numpy", "tensor"])
@pytest.mark.parametrize("register", ["register_table", "register_device_table"])
def test_a_producer_lives_until_its_table_and_its_last_query_end(request, ctx, register, wrap):
    if "device" in register:
        request.getfixturevalue("device_ctx")
    values = numpy.arange(50_000)
    expected, alive = int(values.sum()), weakref.ref(values)
    getattr(ctx, register)("t", {"x": wrap(values)})
    del values
    gc.collect()
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [expected]}
    rows = ctx.sql("SELECT x FROM t").execute_stream()
    ctx.deregister_table("t")
    gc.collect()
    assert alive() is not None
    assert total(rows) == expected
    del rows
    assert soon(lambda: alive() is None)


def test_memory_of_torch_lives_until_its_table_ends(ctx):
    torch = pytest.importorskip("torch")
    values = numpy.arange(50_000)
    expected, alive = int(values.sum()), weakref.ref(values)
    ctx.register_table("t", {"x": torch.from_dlpack(values)})
    del values
    gc.collect()
    assert alive() is not None
    assert ctx.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [expected]}
    ctx.deregister_table("t")
    assert soon(lambda: alive() is None)


def query_over_a_variable(ctx):
    """A query whose source is gone, what it will give, and its memory."""
    values = numpy.arange(50_000)
    source = pyarrow.table({"x": values})
    rows = ctx.sql("SELECT x FROM source WHERE x >= 0").execute_stream()
    assert source.num_rows == 50_000
    return rows, int(values.sum()), weakref.ref(values)


def test_a_variable_may_end_while_a_query_reads_it(ctx):
    rows, expected, alive = query_over_a_variable(ctx)
    gc.collect()
    assert total(rows) == expected
    del rows
    assert soon(lambda: alive() is None)


def test_a_frame_keeps_the_variable_that_it_reads(ctx):
    def over_a_variable():
        values = numpy.arange(50_000)
        source = pyarrow.table({"x": values})
        return ctx.sql("SELECT sum(x) AS s FROM source"), weakref.ref(values), source.num_rows

    rows, alive, _ = over_a_variable()
    gc.collect()
    assert alive() is not None
    assert [rows.to_pydict() for _ in range(2)] == [{"s": [sum(range(50_000))]}] * 2
    del rows
    assert soon(lambda: alive() is None)


def test_a_stream_that_is_dropped_frees_its_producer(ctx):
    values = numpy.arange(50_000)
    alive = weakref.ref(values)
    ctx.register_table("t", {"x": values})
    rows = ctx.sql("SELECT x FROM t").execute_stream()
    next(rows)
    ctx.deregister_table("t")
    del values, rows
    assert soon(lambda: alive() is None)


def test_a_query_that_fails_frees_its_producer(ctx):
    values = numpy.arange(-50, 50)
    alive = weakref.ref(values)
    ctx.register_table("t", {"x": values})
    with pytest.raises(Exception, match="(?i)divide by zero"):
        ctx.sql("SELECT 1 / x AS y FROM t").to_pydict()
    ctx.deregister_table("t")
    del values
    assert soon(lambda: alive() is None)


def test_rows_on_the_host_keep_the_memory_that_they_share(host):
    values = numpy.arange(10_000)
    alive = weakref.ref(values)
    host.register_table("t", {"x": values})
    rows = host.sql("SELECT x FROM t").to_arrow_table()
    host.deregister_table("t")
    del values
    gc.collect()
    assert alive() is not None
    assert rows["x"].to_pylist() == list(range(10_000))
    del rows
    assert soon(lambda: alive() is None)


def test_a_dropped_device_table_frees_its_producer(device_ctx):
    values = numpy.arange(10_000)
    alive = weakref.ref(values)
    device_ctx.register_device_table("t", {"x": values})
    del values
    device_ctx.sql("SELECT max(x) FROM t").to_pydict()
    device_ctx.sql("DROP TABLE t")
    assert soon(lambda: alive() is None)


def test_a_reader_is_loaded_into_a_table_of_the_device(device_ctx):
    batches = [pyarrow.record_batch({"x": [1, 2]}), pyarrow.record_batch({"x": [3]})]
    reader = pyarrow.RecordBatchReader.from_batches(batches[0].schema, batches)
    device_ctx.register_device_table("loaded", reader)
    device_ctx.register_device_table("doubled", device_ctx.sql("SELECT x * 2 AS y FROM loaded"))
    for _ in range(2):
        assert device_ctx.sql("SELECT sum(x) AS s FROM loaded").to_pydict() == {"s": [6]}
    plan = device_ctx.sql("SELECT sum(y) FROM doubled").explain()
    assert "DeviceScanExec" in plan
