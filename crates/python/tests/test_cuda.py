# SPDX-License-Identifier: Apache-2.0
"""Device data of CUDA, on the emulator: its memory is apart from the host's."""

import os

import pytest

import devicefusion
from conftest import STRICT

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
