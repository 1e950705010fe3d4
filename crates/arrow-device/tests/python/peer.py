# SPDX-License-Identifier: Apache-2.0
"""The C structs of the interface, the library under test, and helpers of all tests.

`Pair` is an array with its schema, `Stream` a device stream: structs in Python's memory, as in any
consumer or producer. The library is that of `peer/lib.rs`; PYTHON_PEER names its file.
"""

import ctypes
import gc
import itertools
import os
import unittest
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

import pyarrow as pa

CPU = 1


class CSchema(ctypes.Structure):
    pass


CSchema._fields_ = [
    ("format", c_char_p),
    ("name", c_char_p),
    ("metadata", c_void_p),
    ("flags", c_int64),
    ("n_children", c_int64),
    ("children", POINTER(POINTER(CSchema))),
    ("dictionary", POINTER(CSchema)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]


class CArray(ctypes.Structure):
    pass


CArray._fields_ = [
    ("length", c_int64),
    ("null_count", c_int64),
    ("offset", c_int64),
    ("n_buffers", c_int64),
    ("n_children", c_int64),
    ("buffers", POINTER(c_void_p)),
    ("children", POINTER(POINTER(CArray))),
    ("dictionary", POINTER(CArray)),
    ("release", c_void_p),
    ("private_data", c_void_p),
]


class CDeviceArray(ctypes.Structure):
    _fields_ = [
        ("array", CArray),
        ("device_id", c_int64),
        ("device_type", c_int32),
        ("sync_event", c_void_p),
        ("reserved", c_int64 * 3),
    ]


class CDeviceStream(ctypes.Structure):
    _fields_ = [
        ("device_type", c_int32),
        ("get_schema", c_void_p),
        ("get_next", c_void_p),
        ("get_last_error", c_void_p),
        ("release", c_void_p),
        ("private_data", c_void_p),
    ]


assert (ctypes.sizeof(CSchema), ctypes.sizeof(CDeviceArray), ctypes.sizeof(CDeviceStream)) == (72, 128, 48)

RELEASE = ctypes.CFUNCTYPE(None, c_void_p)


def released(struct):
    """Whether a struct is released."""
    return not (struct.array.release if isinstance(struct, CDeviceArray) else struct.release)


def release(struct):
    """Calls the release callback of a struct, if any; it must flag the struct."""
    inner = struct.array if isinstance(struct, CDeviceArray) else struct
    if inner.release:
        RELEASE(inner.release)(ctypes.addressof(inner))
        assert not inner.release, "a release callback did not flag its struct"


def move(source):
    """A bitwise copy of a struct; the source is flagged as released (R40)."""
    target = type(source)()
    ctypes.memmove(byref(target), byref(source), ctypes.sizeof(source))
    (source.array if isinstance(source, CDeviceArray) else source).release = None
    return target


# ---- The library


class PeerError(Exception):
    """An error that the library returned."""


library = ctypes.CDLL(os.environ["PYTHON_PEER"])
library.peer_allocated_bytes.restype = c_int64
library.peer_free_message.argtypes = [c_void_p]
library.peer_release_at.restype = ctypes.c_bool


def call(name, *arguments):
    """Calls a function of the library; structs are passed by address."""
    function = getattr(library, "peer_" + name)
    function.restype = c_void_p
    structs = (ctypes.Structure, c_int64)
    error = function(*[byref(a) if isinstance(a, structs) else a for a in arguments])
    if error:
        message = ctypes.string_at(error).decode()
        library.peer_free_message(error)
        raise PeerError(message)


def sample_names():
    try:
        call("sample_names")
    except PeerError as names:
        return str(names).split("\n")


# ---- Arrays


class Pair:
    """A device array and its schema."""

    def __init__(self):
        self.array, self.schema = CDeviceArray(), CSchema()

    @classmethod
    def of(cls, data):
        """An export of pyarrow."""
        pair = cls()
        data._export_to_c_device(*pair.addresses())
        return pair

    @classmethod
    def sample(cls, name, offset=0, length=6):
        """An export of the library."""
        pair = cls()
        call("sample", name.encode(), c_size_t(offset), c_size_t(length), pair.array, pair.schema)
        return pair

    def addresses(self):
        return ctypes.addressof(self.array), ctypes.addressof(self.schema)

    def through(self, function):
        """Passes this to the library and returns its result."""
        back = Pair()
        try:
            call(function, self.array, self.schema, back.array, back.schema)
        finally:
            assert released(self.array) and released(self.schema), "the library did not import its arguments"
        return back

    def expect(self, name, offset=0, length=6):
        """Passes this to the library, which compares it with a sample."""
        call("expect", name.encode(), c_size_t(offset), c_size_t(length), self.array, self.schema)

    def to_array(self):
        """Imports this in pyarrow."""
        return self._imported(pa.Array._import_from_c_device(*self.addresses()))

    def to_batch(self):
        return self._imported(pa.RecordBatch._import_from_c_device(*self.addresses()))

    def _imported(self, data):
        assert released(self.array) and released(self.schema), "pyarrow did not import its arguments"
        data.validate(full=True)
        return data

    def release(self):
        release(self.array)
        release(self.schema)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


def releases():
    """The key and the thread of all counted releases, in order."""
    seen, key, thread = [], c_int64(), c_size_t()
    while library.peer_release_at(c_size_t(len(seen)), byref(key), byref(thread)):
        seen.append((key.value, thread.value))
    return seen


class Counted:
    """Counts the releases of named arrays."""

    keys = itertools.count()

    def __init__(self):
        self._names = {}

    def __call__(self, pair, name=None):
        key = next(self.keys)
        self._names[key] = name
        library.peer_count(byref(pair.array), c_int64(key))
        return pair

    @property
    def releases(self):
        return [self._names[key] for key, _ in releases() if key in self._names]

    @property
    def threads(self):
        return [thread for key, thread in releases() if key in self._names]


# ---- Tests


class TestCase(unittest.TestCase):
    """Checks that each test frees all memory of pyarrow and of the library."""

    maxDiff = None

    def setUp(self):
        # Warms up allocations that are made once and kept.
        sample_names()
        releases()
        gc.collect()
        self.addCleanup(self._given_back, self.allocated())

    @staticmethod
    def allocated():
        """Allocated bytes of pyarrow and of the library."""
        return pa.total_allocated_bytes(), library.peer_allocated_bytes()

    def _given_back(self, before):
        # A failed test keeps memory alive through its traceback.
        if self._outcome.success:
            gc.collect()
            self.assertEqual(self.allocated(), before, "bytes that pyarrow and the library have allocated")

    def assert_same(self, got, expected):
        """Checks type, values and metadata."""
        self.assertEqual(str(got.type), str(expected.type))
        self.assertTrue(got.type.equals(expected.type, check_metadata=True), f"{got.type!r} {expected.type!r}")
        self.assertEqual(len(got), len(expected))
        self.assertTrue(got.equals(expected), f"got {got}\nexpected {expected}")

    def assert_same_batch(self, got, expected):
        self.assertTrue(got.schema.equals(expected.schema, check_metadata=True), f"got {got.schema}\n{expected.schema}")
        self.assertEqual(got.num_rows, expected.num_rows)
        self.assertTrue(got.equals(expected), f"got {got}\nexpected {expected}")
