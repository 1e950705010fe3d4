# SPDX-License-Identifier: Apache-2.0
"""Python objects for the native half: what each holds, by the Arrow interfaces and DLPack."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any

import pyarrow

from devicefusion.dataframe import DataFrame
from devicefusion.device import DeviceResult

#: Methods of which one makes an object a table.
INTERFACES = (
    "__arrow_c_device_stream__",
    "__arrow_c_device_array__",
    "__arrow_c_stream__",
    "__arrow_c_array__",
    "__dlpack__",
    "__cuda_array_interface__",
)

#: Methods of which one makes an object a column.
COLUMN_INTERFACES = ("__arrow_c_array__", "__dlpack__", "__cuda_array_interface__")

#: Names of the frames of comprehensions.
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


def native(value: Any) -> Any:
    """The object that the native half reads.

    >>> native({"x": [1, 2]})["x"].type
    DataType(int64)
    """
    if isinstance(value, Mapping):
        return {str(name): _column(name, column) for name, column in value.items()}
    if isinstance(value, (DataFrame, DeviceResult)):
        return value._frame
    if _is_numpy(value):
        return {"value": _column("value", value)}
    if isinstance(value, pyarrow.ChunkedArray):
        return {"value": _column("value", value)}
    if not _has_interface(value) and hasattr(value, "to_arrow"):
        return value.to_arrow()
    return value


def is_table(value: Any) -> bool:
    """Whether an object can be a table.

    >>> is_table(pyarrow.table({"x": [1]})), is_table({"x": [1]}), is_table(7)
    (True, True, False)
    """
    if isinstance(value, type):
        return False
    if isinstance(value, Mapping):
        return len(value) > 0 and all(map(_is_column, value.values()))
    return _has_interface(value) or _is_numpy(value) or hasattr(value, "to_arrow")


def _shortcoming(value: Any) -> str:
    """The class of an object that is no table, and the reason."""
    if isinstance(value, Mapping):
        for name, column in value.items():
            if not _is_column(column):
                return f"a dict whose {name!r} is {_kind(column)}, and no column"
        return "a dict without columns"
    if hasattr(value, "collect"):
        return f"{_kind(value)}, whose collect() may give one"
    return _kind(value)


def _kind(value: Any) -> str:
    """
    >>> _kind(1), _kind("x")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def variables(query: str, depth: int) -> Callable[[str], Any]:
    """A function that finds a variable of the caller, `depth` calls above this one, as a table."""
    frame: FrameType | None
    try:
        frame = sys._getframe(depth + 1)
    except ValueError:
        # A call from C has no caller in Python.
        frame = None
    # Up to Python 3.11 a comprehension is a function of its own.
    while frame is not None and frame.f_code.co_name in COMPREHENSIONS:
        frame = frame.f_back

    def find(name: str) -> Any:
        if frame is None:
            return None
        for scope in (frame.f_locals, frame.f_globals):
            # SQL folds names without quotes to lower case, so the text tells the spelling.
            spellings = [other for other in list(scope) if name in (other, other.lower())]
            written = [other for other in spellings if re.search(rf"\b{re.escape(other)}\b", query)]
            if len(written) > 1:
                raise ValueError(f"{name} is one of the variables {', '.join(written)}: quote it")
            for spelling in written or spellings:
                value = scope.get(spelling)
                if is_table(value):
                    return native(value)
                if value is not None:
                    raise ValueError(
                        f"there is no table {name}, and the variable {spelling} is no table: "
                        f"it is {_shortcoming(value)}"
                    )
        return None

    return find


def row(values: Any) -> tuple[Any, bool]:
    """Values of parameters as a record batch of one row, and whether they have names."""
    if isinstance(values, Mapping):
        named = {str(name).removeprefix("$"): value for name, value in values.items()}
        return pyarrow.record_batch({name: _value(name, named[name]) for name in named}), True
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError("parameters are a sequence or a mapping of values, not one value")
    columns = {str(index): _value(index, value) for index, value in enumerate(values, 1)}
    return pyarrow.record_batch(columns), False


def _value(name: Any, value: Any) -> pyarrow.Array:
    """A parameter's value as an array of one element."""
    # NULL of pandas.
    if type(value).__name__ in ("NAType", "NaTType"):
        value = None
    try:
        return pyarrow.array([value])
    except (TypeError, ValueError, OverflowError) as error:
        raise type(error)(f"parameter ${name}: {error}") from error


def _column(name: Any, column: Any) -> Any:
    """A column as an array or a tensor."""
    if isinstance(column, pyarrow.ChunkedArray):
        return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if _is_numpy(column):
        if column.ndim != 1:
            raise ValueError(
                f"column {name!r}: a column has one dimension, and this array has {column.ndim}"
            )
        if column.strides[0] != column.itemsize and len(column) > 1:
            raise ValueError(
                f"column {name!r}: its elements are apart: use numpy.ascontiguousarray"
            )
        try:
            return pyarrow.array(column)
        except pyarrow.ArrowNotImplementedError as error:
            raise ValueError(f"column {name!r}: SQL has no type for {column.dtype}") from error
    if any(hasattr(column, name) for name in COLUMN_INTERFACES):
        return column
    if hasattr(column, "__arrow_c_stream__"):
        return _column(name, pyarrow.chunked_array(column))
    if isinstance(column, (list, tuple, range)) or hasattr(column, "__array__"):
        return pyarrow.array(column)
    return column


def _is_column(value: Any) -> bool:
    return isinstance(value, (list, tuple, range)) or _has_interface(value) or _is_numpy(value)


def _has_interface(value: Any) -> bool:
    return any(hasattr(value, name) for name in INTERFACES)


def _is_numpy(value: Any) -> bool:
    return (
        type(value).__module__.split(".")[0] == "numpy"
        and hasattr(value, "__array_interface__")
        and hasattr(value, "ndim")
    )
