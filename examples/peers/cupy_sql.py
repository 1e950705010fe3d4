# Not run: needs an NVIDIA GPU, and CuPy.
# SPDX-License-Identifier: Apache-2.0
"""SQL on the GPU over CuPy arrays. Input and result are used in place."""

from ctypes import POINTER, c_void_p, pointer

import cupy
import nanoarrow
from peers import CUDA, RELEASE, Array, DeviceArray, lend, query


@RELEASE
def _with_its_batch(address):
    Array.from_address(address).release = RELEASE()


def column_of(values):
    """An Arrow array over a CuPy array, without a validity bitmap."""
    buffers = (c_void_p * 2)(None, values.data.ptr)
    return Array(length=values.size, n_buffers=2, buffers=buffers, release=_with_its_batch)


def batch_of(**columns):
    """Equally long arrays as a record batch, without a copy. They must not change meanwhile."""
    columns = {name: cupy.ascontiguousarray(values) for name, values in columns.items()}
    # Arrow and CuPy share the names of types. A bool is a bit in Arrow and a byte in CuPy.
    types = {name: getattr(nanoarrow, values.dtype.name)() for name, values in columns.items()}
    arrays = [column_of(values) for values in columns.values()]
    children = (POINTER(Array) * len(arrays))(*map(pointer, arrays))
    (length,) = {values.size for values in columns.values()}
    rows = Array(length=length, n_buffers=1, buffers=(c_void_p * 1)(), n_children=len(arrays), children=children)
    (device,) = {values.device.id for values in columns.values()}
    # Without an event, all work on the memory must be complete.
    cupy.cuda.get_current_stream().synchronize()
    array = DeviceArray(array=rows, device_type=CUDA, device_id=device, sync_event=None)
    return lend(nanoarrow.struct(types).__arrow_c_schema__(), array, owner=(columns, arrays, rows, array))


def column_to_cupy(batch, index, dtype):
    """A column of a batch as a CuPy array, without a copy. The array keeps the batch alive."""
    column = batch.array.array.children[index].contents
    assert batch.array.device_type == CUDA and column.null_count == 0
    if batch.array.sync_event:  # points to a cudaEvent_t
        cupy.cuda.runtime.eventSynchronize(c_void_p.from_address(batch.array.sync_event).value)
    size = cupy.dtype(dtype).itemsize
    end = column.offset + column.length
    memory = cupy.cuda.UnownedMemory(column.buffers[1], end * size, owner=batch)
    return cupy.ndarray((column.length,), dtype, cupy.cuda.MemoryPointer(memory, column.offset * size))


x = cupy.arange(1_000_000, dtype=cupy.int64)
y = x / 4

rows = query("SELECT x, y * 2 AS y FROM t WHERE x % 250000 = 0", batch_of(x=x, y=y), on_device=True)
halves = cupy.concatenate([column_to_cupy(one, 1, cupy.float64) for one in rows])

print(halves)
assert sorted(halves.tolist()) == [0, 125_000, 250_000, 375_000]
