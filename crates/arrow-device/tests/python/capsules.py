# SPDX-License-Identifier: Apache-2.0
"""PyCapsules of the Arrow PyCapsule interface (R98 to R100), as in a package around this crate."""

import ctypes
from ctypes import byref, c_char_p, c_void_p, py_object, pythonapi

from peer import CPU, CArray, CDeviceArray, CSchema, Pair, library, move


def function(name, result, *arguments):
    return ctypes.PYFUNCTYPE(result, *arguments)((name, pythonapi))


new = function("PyCapsule_New", py_object, c_void_p, c_char_p, c_void_p)
name_of = function("PyCapsule_GetName", c_char_p, py_object)
pointer_of = function("PyCapsule_GetPointer", c_void_p, py_object, c_char_p)

NAMES = {CSchema: b"arrow_schema", CArray: b"arrow_array", CDeviceArray: b"arrow_device_array"}

# A destructor may run while an exception propagates, so it must not run Python code.
library.peer_capsule_functions(pythonapi.PyCapsule_GetName, pythonapi.PyCapsule_GetPointer)
library.peer_capsule_memory.restype = c_void_p


def capsule(struct):
    """A capsule with the struct; its destructor releases it unless it was moved out (R98)."""
    memory = library.peer_capsule_memory()
    struct = move(struct)
    ctypes.memmove(memory, byref(struct), ctypes.sizeof(struct))
    return new(memory, NAMES[type(struct)], ctypes.cast(library.peer_capsule_destroy, c_void_p))


def taken(capsule, struct):
    """Moves the struct out of a capsule; an error for another kind, or after a first move."""
    return move(look(capsule, struct))


def look(capsule, struct):
    """The struct in a capsule, in place."""
    return struct.from_address(pointer_of(capsule, NAMES[struct]))


def pair_of(capsules):
    """The structs in the result of `__arrow_c_device_array__` or `__arrow_c_array__`."""
    schema, array = capsules
    pair = Pair()
    pair.schema = taken(schema, CSchema)
    if name_of(array) == NAMES[CArray]:
        pair.array.array = taken(array, CArray)
        pair.array.device_id, pair.array.device_type = -1, CPU
    else:
        pair.array = taken(array, CDeviceArray)
    return pair


class Exporter:
    """An array of the library, with the method that other packages call."""

    def __init__(self, make):
        self.make = make

    def __arrow_c_device_array__(self, requested_schema=None, **unknown):
        # R99: the array's own schema is the only one available, and the consumer must check it.
        for name, value in unknown.items():
            if value is not None:
                raise NotImplementedError(name)
        pair = self.make()
        return capsule(pair.schema), capsule(pair.array)


class HostExporter:
    """The same with only the method for host memory (R100)."""

    def __init__(self, make):
        self.make = make

    def __arrow_c_array__(self, requested_schema=None):
        pair = self.make()
        assert pair.array.device_type == CPU
        return capsule(pair.schema), capsule(pair.array.array)
