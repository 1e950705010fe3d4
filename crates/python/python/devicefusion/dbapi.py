# SPDX-License-Identifier: Apache-2.0
"""DB-API 2.0 connections, by the ADBC driver inside the package.

It needs the package adbc-driver-manager.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adbc_driver_manager import dbapi
from adbc_driver_manager.dbapi import (
    Connection,
    Cursor,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
    apilevel,
    threadsafety,
)

from devicefusion import _devicefusion
from devicefusion.options import texts

__all__ = [
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

#: Parameters are `?`, as PEP 249 calls it.
paramstyle = "qmark"


def connect(
    options: Mapping[str, Any] | None = None, *, autocommit: bool = True, **kwargs: Any
) -> dbapi.Connection:
    """Connects to a new database. `options` are settings such as `device.selector`.

    Each statement commits itself: there are no transactions.

    >>> with connect({"device.selector": "auto"}) as connection, connection.cursor() as cursor:
    ...     _ = cursor.execute("SELECT 1 + ? AS two", (1,))
    ...     cursor.fetchall()
    [(2,)]
    """
    if not isinstance(options or {}, Mapping):
        raise TypeError("options are a mapping of settings to values")
    return dbapi.connect(
        _devicefusion.__file__,
        entrypoint="AdbcDriverInit",
        db_kwargs=dict(texts(options)),
        autocommit=autocommit,
        **kwargs,
    )
