# SPDX-License-Identifier: Apache-2.0
"""Rows of a query that stay on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow

from devicefusion import _devicefusion


class DeviceResult:
    """Rows in device memory: a table for SQL, device arrays for others, and tensors by column.

    Each column without NULLs is a tensor by DLPack, so that it goes to PyTorch, CuPy, JAX and NumPy
    in place. The tensors share the memory of the rows: do not write to it.

    >>> from devicefusion import SessionContext
    >>> ctx = SessionContext()
    >>> rows = ctx.sql("SELECT value, value * 0.5 AS half FROM generate_series(1, 4)").device()
    >>> len(rows), rows.column_names
    (4, ['value', 'half'])
    >>> import numpy
    >>> numpy.from_dlpack(rows["half"])
    array([0.5, 1. , 1.5, 2. ])
    >>> ctx.sql("SELECT max(half) AS most FROM rows").to_pydict()
    {'most': [2.0]}
    """

    def __init__(self, rows: _devicefusion.DeviceRows) -> None:
        self._frame = rows

    @property
    def schema(self) -> pyarrow.Schema:
        """Names and types of the columns."""
        return pyarrow.schema(self._frame)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema.names)

    def __len__(self) -> int:
        return len(self._frame)

    def __getitem__(self, name: str) -> _devicefusion.DeviceColumn:
        """A column as a tensor, by `__dlpack__`.

        Raises KeyError if there is none of the name.
        """
        if not isinstance(name, str):
            raise TypeError(f"a column is found by its name, not by a {type(name).__name__}")
        return self._frame.column(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is a column of a name."""
        return name in self.column_names

    def __iter__(self) -> Iterator[str]:
        """The names of the columns."""
        return iter(self.column_names)

    def to_arrow_table(self) -> pyarrow.Table:
        """The rows on the host: the same memory where the device shares it."""
        return pyarrow.table(self._frame.host())

    def __arrow_c_schema__(self) -> object:
        return self._frame.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._frame.host().__arrow_c_stream__(requested_schema)

    def __arrow_c_device_stream__(
        self, requested_schema: object | None = None, **options: Any
    ) -> object:
        return self._frame.__arrow_c_device_stream__(requested_schema, **options)

    def __arrow_c_device_array__(
        self, requested_schema: object | None = None, **options: Any
    ) -> tuple[object, object]:
        return self._frame.__arrow_c_device_array__(requested_schema, **options)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"DeviceResult({len(self)} rows: {columns})"
