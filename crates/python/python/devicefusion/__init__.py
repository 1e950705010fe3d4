# SPDX-License-Identifier: Apache-2.0
"""SQL over data in device memory: Apache DataFusion on GPUs and CPUs.

>>> import devicefusion
>>> ctx = devicefusion.SessionContext()
>>> ctx.sql("SELECT value, value * value AS square FROM generate_series(1, 3)").to_pydict()
{'value': [1, 2, 3], 'square': [1, 4, 9]}

Any Arrow data is a table, by the name of its variable:

>>> import pyarrow
>>> prices = pyarrow.table({"item": ["tea", "rye"], "price": [3.5, 2.0]})
>>> ctx.sql("SELECT max(price) AS most FROM prices").to_pylist()
[{'most': 3.5}]
"""

import atexit
import importlib
from typing import Any

from devicefusion import _devicefusion
from devicefusion._devicefusion import DeviceError, ExecutionError, __version__
from devicefusion.context import Device, SessionContext, devices
from devicefusion.dataframe import DataFrame, RecordBatchStream
from devicefusion.device import DeviceResult
from devicefusion.extension import Extension, on_host, run
from devicefusion.functions import Accumulator, AggregateUDF, ScalarUDF, udaf, udf
from devicefusion.profile import Profile

# Threads that read streams of Python objects cannot go on beside the end of the interpreter.
atexit.register(_devicefusion.end)


def __getattr__(name: str) -> Any:
    # It needs the driver manager of ADBC, which is a package of its own.
    if name == "dbapi":
        return importlib.import_module("devicefusion.dbapi")
    raise AttributeError(f"module 'devicefusion' has no attribute {name!r}")


__all__ = [
    "Accumulator",
    "AggregateUDF",
    "DataFrame",
    "Device",
    "DeviceError",
    "DeviceResult",
    "ExecutionError",
    "Extension",
    "Profile",
    "RecordBatchStream",
    "ScalarUDF",
    "SessionContext",
    "__version__",
    "devices",
    "on_host",
    "run",
    "udaf",
    "udf",
]
