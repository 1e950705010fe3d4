# SPDX-License-Identifier: Apache-2.0
"""Passes a pyarrow record batch to the library of 04_python.rs, and gets its last row back."""

import ctypes
import sys

import pyarrow as pa

library = ctypes.CDLL(sys.argv[1])  # target/debug/examples/lib04_python.so
batch = pa.record_batch({"city": ["Bern", None, "Oslo"], "people": [134_000, 7, 709_000]})

# Memory for the structs: ArrowDeviceArray has 128 bytes, ArrowSchema 72.
array, schema = (ctypes.c_int64 * 16)(), (ctypes.c_int64 * 9)()
batch._export_to_c_device(ctypes.addressof(array), ctypes.addressof(schema))

error = library.last_rows(ctypes.c_size_t(1), array, schema)  # moves the batch out, writes another in place
if error:
    raise OSError(error, "last_rows")

last = pa.RecordBatch._import_from_c_device(ctypes.addressof(array), ctypes.addressof(schema))
print(last.to_pylist())
