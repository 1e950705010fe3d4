# SPDX-License-Identifier: Apache-2.0
"""Both ends of device streams over pyarrow's arrays; the peers have no device streams."""

import ctypes
import errno
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p

import pyarrow as pa
from peer import CPU, CDeviceArray, CDeviceStream, CSchema, Pair, RELEASE, call, move, release, released

GET_SCHEMA = ctypes.CFUNCTYPE(c_int, POINTER(CDeviceStream), POINTER(CSchema))
GET_NEXT = ctypes.CFUNCTYPE(c_int, POINTER(CDeviceStream), POINTER(CDeviceArray))
GET_LAST_ERROR = ctypes.CFUNCTYPE(c_void_p, POINTER(CDeviceStream))


class StreamError(Exception):
    """A failed callback of a stream: its errno and message."""


class Producer:
    """A stream over an iterator of pyarrow's arrays or batches; exceptions are stream errors."""

    def __init__(self, schema, items):
        self.schema, self.items = schema, iter(items)
        self.stream, self.message, self.calls, self.releases = CDeviceStream(), None, [], 0
        self._callbacks = [
            GET_SCHEMA(lambda _, out: self._call("get_schema", self._get_schema, out)),
            GET_NEXT(lambda _, out: self._call("get_next", self._get_next, out)),
            GET_LAST_ERROR(lambda _: ctypes.cast(c_char_p(self.message), c_void_p).value),
            RELEASE(self._release),
        ]
        callbacks = [ctypes.cast(callback, c_void_p) for callback in self._callbacks]
        stream = self.stream
        stream.get_schema, stream.get_next, stream.get_last_error, stream.release = callbacks
        stream.device_type = CPU

    def _call(self, name, function, out):
        self.calls.append(name)
        self.message = None
        try:
            function(out)
            return 0
        except Exception as error:
            self.message = str(error).encode()
            return error.errno if isinstance(error, OSError) else errno.EINVAL

    def _get_schema(self, out):
        self.schema._export_to_c(ctypes.addressof(out.contents))

    def _get_next(self, out):
        item = next(self.items, None)
        if item is None:
            # At the end all other fields stay unset, as in Arrow C++ (Y1).
            out.contents.array.release = None
            return
        pair = Pair.of(item)
        ctypes.memmove(out, byref(pair.array), ctypes.sizeof(CDeviceArray))
        release(pair.schema)

    def _release(self, address):
        self.releases += 1
        self.items = iter(())
        CDeviceStream.from_address(address).release = None


class Consumer:
    """Reads a stream of the library."""

    def __init__(self, stream):
        self.stream = move(stream)
        self.get_schema = GET_SCHEMA(self.stream.get_schema)
        self.get_next = GET_NEXT(self.stream.get_next)
        self.get_last_error = GET_LAST_ERROR(self.stream.get_last_error)
        self.release = lambda: release(self.stream)

    @classmethod
    def of_samples(cls, batches, fails=0):
        stream = CDeviceStream()
        call("sample_stream", c_size_t(batches), c_int(fails), stream)
        return cls(stream)

    @classmethod
    def through(cls, producer):
        """A stream of the library that reads from the producer."""
        stream = CDeviceStream()
        call("stream", producer.stream, stream)
        return cls(stream)

    def _check(self, code):
        if code:
            message = self.get_last_error(byref(self.stream))
            raise StreamError(code, ctypes.string_at(message).decode() if message else None)

    def raw_schema(self):
        schema = CSchema()
        self._check(self.get_schema(byref(self.stream), byref(schema)))
        return schema

    def schema(self):
        schema = self.raw_schema()
        return pa.Schema._import_from_c(ctypes.addressof(schema))

    def next_pair(self):
        """The next array with the stream's schema; None at the end."""
        pair = Pair()
        # The producer must not read the old content (R44).
        ctypes.memset(byref(pair.array), 0xAB, ctypes.sizeof(CDeviceArray))
        self._check(self.get_next(byref(self.stream), byref(pair.array)))
        if released(pair.array):
            return None
        pair.schema = self.raw_schema()
        return pair

    def __iter__(self):
        while pair := self.next_pair():
            yield pair.to_batch()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
