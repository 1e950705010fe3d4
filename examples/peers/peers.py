# SPDX-License-Identifier: Apache-2.0
"""SQL on the device over record batches of any library with `__arrow_c_device_array__`.

This module calls lib.rs through ctypes. `query` runs a query over a batch, in place if the device
can read its memory. The result is a list of `Batch`es, which other libraries take through the same
method. PEERS_LIBRARY is the path of the library, by default that of a debug build.
"""

import atexit
import ctypes
import itertools
import os
import time
import weakref
from ctypes import CFUNCTYPE, POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_void_p, py_object, pythonapi
from pathlib import Path

CPU, CUDA = 1, 2  # device types

# ---- The structs of the Arrow C Device data interface


class Schema(ctypes.Structure):
    pass


class Array(ctypes.Structure):
    pass


class DeviceArray(ctypes.Structure):
    pass


class Stream(ctypes.Structure):
    pass


RELEASE = CFUNCTYPE(None, c_void_p)

Schema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_void_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(Schema))),
    ("dictionary", POINTER(Schema)),
    ("release", RELEASE),
    ("private_data", c_void_p),
]
Array._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(Array))),
    ("dictionary", POINTER(Array)),
    ("release", RELEASE),
    ("private_data", c_void_p),
]
DeviceArray._fields_ = [
    ("array", Array),
    ("device_id", c_int64),
    ("device_type", c_int32),
    ("sync_event", c_void_p),
    ("reserved", c_int64 * 3),
]
Stream._fields_ = [
    ("device_type", c_int32),
    ("get_schema", CFUNCTYPE(c_int, POINTER(Stream), POINTER(Schema))),
    ("get_next", CFUNCTYPE(c_int, POINTER(Stream), POINTER(DeviceArray))),
    ("get_last_error", CFUNCTYPE(c_char_p, POINTER(Stream))),
    ("release", RELEASE),
    ("private_data", c_void_p),
]

# ---- PyCapsules, in which Python libraries exchange these structs

capsule = ctypes.PYFUNCTYPE(py_object, c_void_p, c_char_p, c_void_p)(("PyCapsule_New", pythonapi))
pointer_of = ctypes.PYFUNCTYPE(c_void_p, py_object, c_char_p)(("PyCapsule_GetPointer", pythonapi))

SCHEMA, DEVICE_ARRAY = b"arrow_schema", b"arrow_device_array"


class Batch:
    """A record batch: an ArrowDeviceArray and its ArrowSchema, released with the object."""

    def __init__(self):
        self.array, self.schema = DeviceArray(), Schema()

    def __arrow_c_device_array__(self, requested_schema=None, **kwargs):
        self._check()
        # The capsules own nothing, so they are valid while this batch lives.
        return (
            capsule(ctypes.addressof(self.schema), SCHEMA, None),
            capsule(ctypes.addressof(self.array), DEVICE_ARRAY, None),
        )

    def _check(self):
        if not self.schema.release or not self.array.array.release:
            raise PeersError("this batch was moved already; a batch can be moved once")

    def column_names(self):
        self._check()
        children = self.schema.children[: self.schema.n_children]
        return [child.contents.name.decode() for child in children]

    def __del__(self):
        for struct in (self.array.array, self.schema):
            if struct.release:
                struct.release(ctypes.addressof(struct))


# ---- Memory that Python owns

_lent, _keys = {}, itertools.count(1)


@RELEASE
def _give_back(address):
    # Called on any thread; ctypes takes the interpreter's lock.
    array = Array.from_address(address)
    array.release = RELEASE()
    _lent.pop(array.private_data, None)


def lend(schema, array, owner):
    """A batch of a schema capsule and an array struct, over memory of `owner`.

    The release of the array drops the owner.
    """
    batch, key = Batch(), next(_keys)
    source = Schema.from_address(pointer_of(schema, SCHEMA))
    ctypes.memmove(byref(batch.schema), byref(source), ctypes.sizeof(Schema))
    source.release = RELEASE()  # moved
    ctypes.memmove(byref(batch.array), byref(array), ctypes.sizeof(DeviceArray))
    batch.array.array.release, batch.array.array.private_data = _give_back, key
    _lent[key] = owner, weakref.ref(batch)
    return batch


def _is_taken(batch):
    return batch() is None or not batch().array.array.release


@atexit.register
def _wait():
    # The library may release arrays shortly after a query's end, which needs the interpreter. A
    # batch that was not moved releases its own array.
    deadline = time.monotonic() + 1
    while any(_is_taken(batch) for _, batch in list(_lent.values())) and time.monotonic() < deadline:
        time.sleep(0.001)


# ---- Queries

_debug_build = Path(__file__).resolve().parents[2] / "target/debug/examples/libpeers.so"
library = ctypes.CDLL(os.environ.get("PEERS_LIBRARY", str(_debug_build)))
library.peers_query.argtypes = [c_char_p, POINTER(Stream), c_int, POINTER(Stream)]
library.peers_stream.argtypes = [c_void_p, c_void_p, POINTER(Stream)]
library.peers_query.restype = library.peers_stream.restype = c_void_p
library.peers_free_error.argtypes = [c_void_p]


class PeersError(Exception):
    """An error of the library."""


def _call(function, *arguments):
    if error := function(*arguments):
        message = ctypes.string_at(error).decode()
        library.peers_free_error(error)
        raise PeersError(message)


def query(sql, batch, on_device=False):
    """Runs a query over the table `t`, a batch of any library. Returns the result's batches.

    They are in host memory or, with `on_device`, on the device. A result without rows has no
    batches. On the device, a dictionary column with narrow keys may split the result: a batch has
    at most as many rows as there are keys.
    """
    if "\0" in sql:
        raise PeersError("the query contains a NUL character")
    schema, array = batch.__arrow_c_device_array__()
    rows, result, batches = Stream(), Stream(), []
    _call(library.peers_stream, pointer_of(array, DEVICE_ARRAY), pointer_of(schema, SCHEMA), byref(rows))
    _call(library.peers_query, sql.encode(), byref(rows), on_device, byref(result))
    try:
        while True:
            batch = Batch()
            if result.get_next(byref(result), byref(batch.array)):
                raise PeersError((result.get_last_error(byref(result)) or b"no message").decode())
            if not batch.array.array.release:  # the end
                return batches
            if result.get_schema(byref(result), byref(batch.schema)):
                raise PeersError((result.get_last_error(byref(result)) or b"no message").decode())
            batches.append(batch)
    finally:
        result.release(ctypes.addressof(result))
