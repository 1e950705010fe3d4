# SPDX-License-Identifier: Apache-2.0
"""Sessions: SQL, tables, functions and settings."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow

from devicefusion import _devicefusion, sources
from devicefusion.dataframe import DataFrame
from devicefusion.functions import AggregateUDF, ScalarUDF
from devicefusion.options import text, texts

#: One or several paths or URLs.
Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Device:
    """A device of a driver, or a driver without one."""

    #: The `k` of the selector `#k`; None for a driver without devices.
    number: int | None
    name: str
    #: `cuda` or `opencl`.
    driver: str
    #: `gpu`, `cpu` or `accelerator`.
    kind: str
    memory_bytes: int
    compute_units: int
    #: Why it cannot be used; None for a usable device.
    problem: str | None


def devices() -> list[Device]:
    """Every device of every driver.

    >>> {device.driver for device in devices()} <= {"cuda", "opencl"}
    True
    """
    return [Device(*fields) for fields in _devicefusion.devices()]


class SessionContext:
    """A session whose queries run on a device.

    The first query that can use the device opens it. Without a device, queries run on the host, and
    `explain` says why. All threads may share a session.

    `settings` are those of DataFusion and DeviceFusion by their names, such as `device.selector`.
    They override settings of the environment, such as `DATAFUSION_DEVICE_SELECTOR`. With
    `find_variables` SQL finds Python variables by their names. `progress` makes bars for queries
    that take long, such as `tqdm.auto.tqdm`.

    >>> ctx = SessionContext({"datafusion.execution.target_partitions": 2})
    >>> ctx.sql("SELECT 1 + 1 AS two").to_pydict()
    {'two': [2]}
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        find_variables: bool = True,
        progress: Callable[..., Any] | None = None,
    ) -> None:
        if not isinstance(settings or {}, Mapping):
            raise TypeError("settings are a mapping of names to values")
        if progress is not None and not callable(progress):
            raise TypeError("progress makes bars, as tqdm.auto.tqdm does")
        self._session = _devicefusion.Session(texts(settings))
        self._find_variables = find_variables
        self._progress = progress

    def __repr__(self) -> str:
        tables = sum(
            len(names) for schemas in self.catalog().values() for names in schemas.values()
        )
        return f"SessionContext({tables} table{'' if tables == 1 else 's'})"

    # SQL

    def sql(self, query: str, params: Mapping[str, Any] | Sequence[Any] | None = None) -> DataFrame:
        """Runs the statements of a text, and plans a query that is the last one.

        - DDL, SET, INSERT, UPDATE, DELETE and COPY run at once. A query runs when its rows are
          asked for, each time anew.
        - Parameters are `$1` or `?` for a sequence, `$name` for a mapping.
        - Names without a table are Python variables of the caller, as for `register_table`.

        >>> ctx = SessionContext()
        >>> ctx.sql("SELECT $least + 1 AS next", {"least": 41}).to_pylist()
        [{'next': 42}]
        >>> names = pyarrow.table({"name": ["Ada", "Grace"]})
        >>> ctx.sql("SELECT count(*) AS n FROM names WHERE name < ?", ["B"]).to_pydict()
        {'n': [1]}
        """
        row, by_name = (None, False) if params is None else sources.row(params)
        find = sources.variables(query, 1) if self._find_variables else None
        return self._result(self._session.sql(query, row, by_name, find))

    def table(self, name: str) -> DataFrame:
        """The rows of a table.

        Raises KeyError if there is none.
        """
        return self._result(self._session.table(name))

    def table_exist(self, name: str) -> bool:
        """Whether a table exists."""
        return self._session.table_exists(name)

    # Tables

    def register_table(self, name: str, table: Any) -> None:
        """Registers an object as a table. Its Arrow memory is not copied.

        The object has `__arrow_c_device_stream__`, `__arrow_c_device_array__`,
        `__arrow_c_stream__`, `__arrow_c_array__`, `__dlpack__` or `__cuda_array_interface__`, or is
        a mapping of columns. It lives as long as a query reads it. Readers such as
        `pyarrow.RecordBatchReader` give their rows to one run of one query.

        >>> ctx = SessionContext()
        >>> ctx.register_table("t", {"x": [1, 2, 3], "y": [0.5, 1.5, 2.5]})
        >>> ctx.sql("SELECT sum(x * y) AS s FROM t").to_pydict()
        {'s': [11.0]}
        """
        self._session.register(name, sources.native(table), False)

    def register_device_table(self, name: str, table: Any) -> None:
        """Registers an object as a table of the session's device.

        Memory of the device is used in place. On a CPU device that is the host's memory, too. The
        rows of readers and of queries are loaded.
        """
        self._session.register(name, sources.native(table), True)

    def register_record_batches(self, name: str, partitions: Iterable[Iterable[Any]]) -> None:
        """Registers partitions of record batches as a table."""
        if isinstance(partitions, pyarrow.Table):
            raise ValueError("a table is no sequence of partitions: register_table takes it")
        partitions = [_batches(partition) for partition in partitions]
        if any(hasattr(partition, "__arrow_c_array__") for partition in partitions):
            raise ValueError("partitions are sequences of record batches, such as [[batch, batch]]")
        self._session.register_batches(name, partitions)

    def deregister_table(self, name: str) -> None:
        """Drops a table. Queries that read it go on.

        Raises KeyError if there is none.
        """
        if not self._session.deregister(name):
            raise KeyError(f"there is no table {name}")

    def register_parquet(
        self,
        name: str,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Registers a Parquet file, a folder of them, an object store's URL, or several of these.

        `table_partition_cols` are columns in the names of folders. `options` are those of CREATE
        EXTERNAL TABLE. Several paths have the same columns, and one object store.
        """
        self._register_files(name, path, "PARQUET", table_partition_cols, options)

    def register_csv(
        self,
        name: str,
        path: Paths,
        has_header: bool = True,
        delimiter: str = ",",
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Registers a CSV file, a folder of them, a URL, or several of these."""
        options = _of_csv(has_header, delimiter, options)
        self._register_files(name, path, "CSV", table_partition_cols, options)

    def register_json(
        self,
        name: str,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Registers a file of JSON lines, a folder of them, a URL, or several of these."""
        self._register_files(name, path, "JSON", table_partition_cols, options)

    def register_avro(
        self,
        name: str,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Registers an Avro file, a folder of them, a URL, or several of these."""
        self._register_files(name, path, "AVRO", table_partition_cols, options)

    def register_arrow(
        self,
        name: str,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Registers a file of Arrow IPC, a folder of them, a URL, or several of these."""
        self._register_files(name, path, "ARROW", table_partition_cols, options)

    def read_parquet(
        self,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows of Parquet files."""
        return self._read_files(path, "PARQUET", table_partition_cols, options)

    def read_csv(
        self,
        path: Paths,
        has_header: bool = True,
        delimiter: str = ",",
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows of CSV files.

        >>> import gzip, tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".csv.gz") as file:
        ...     _ = file.write(gzip.compress(b"item,price\\ntea,3.5\\n"))
        ...     file.flush()
        ...     options = {"format.compression": "gzip"}
        ...     SessionContext().read_csv(file.name, options=options).to_pylist()
        [{'item': 'tea', 'price': 3.5}]
        """
        options = _of_csv(has_header, delimiter, options)
        return self._read_files(path, "CSV", table_partition_cols, options)

    def read_json(
        self,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows of files of JSON lines."""
        return self._read_files(path, "JSON", table_partition_cols, options)

    def read_avro(
        self,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows of Avro files."""
        return self._read_files(path, "AVRO", table_partition_cols, options)

    def read_arrow(
        self,
        path: Paths,
        table_partition_cols: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> DataFrame:
        """The rows of files of Arrow IPC."""
        return self._read_files(path, "ARROW", table_partition_cols, options)

    def register_dataset(self, name: str, dataset: Any) -> None:
        """Registers a dataset of pyarrow. Each query reads all its rows.

        >>> import pyarrow.dataset
        >>> ctx = SessionContext()
        >>> rows = pyarrow.dataset.dataset(pyarrow.table({"x": [1, 2, 3]}))
        >>> ctx.register_dataset("t", rows.filter(pyarrow.dataset.field("x") > 1))
        >>> ctx.sql("SELECT sum(x) AS s FROM t").to_pydict()
        {'s': [5]}
        """
        if not hasattr(dataset, "to_batches") or not hasattr(dataset, "schema"):
            raise TypeError(f"register_dataset needs a dataset, not a {type(dataset).__name__}")
        self.register_table(name, _Dataset(dataset))

    def register_object_store(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        """Registers the object store of a URL, such as `s3://bucket`.

        Options are those of the store, such as `aws_region` and `aws_endpoint`.
        """
        self._session.register_object_store(url, texts(options))

    # Data as results

    def from_arrow(self, data: Any, name: str | None = None) -> DataFrame:
        """The rows of any Arrow data. With a name they are a table, too.

        >>> SessionContext().from_arrow(pyarrow.table({"x": [1, 2]})).count()
        2
        """
        if name is not None:
            self.register_table(name, data)
            return self.table(name)
        return self._result(self._session.read(sources.native(data), False))

    def from_device(self, data: Any) -> DataFrame:
        """The rows of data on the session's device, in place.

        `data` is device data of Arrow's interfaces, or a mapping of columns: tensors by DLPack and
        arrays. Host memory is in place on a CPU device, and copied once to another one.
        """
        return self._result(self._session.read(sources.native(data), True))

    def from_pydict(self, data: Mapping[str, Any], name: str | None = None) -> DataFrame:
        """The rows of a mapping of columns. With a name they are a table, too.

        >>> SessionContext().from_pydict({"x": [1, 2]}).to_pylist()
        [{'x': 1}, {'x': 2}]
        """
        return self.from_arrow(pyarrow.table(dict(data)), name)

    def from_pylist(self, data: Sequence[Mapping[str, Any]], name: str | None = None) -> DataFrame:
        """The rows of a sequence of mappings. With a name they are a table, too."""
        return self.from_arrow(pyarrow.Table.from_pylist(list(data)), name)

    def from_pandas(self, data: Any, name: str | None = None) -> DataFrame:
        """The rows of a pandas DataFrame, and its index unless it is a range.

        With a name they are a table, too.
        """
        return self.from_arrow(pyarrow.Table.from_pandas(data), name)

    def from_polars(self, data: Any, name: str | None = None) -> DataFrame:
        """The rows of a Polars DataFrame. With a name they are a table, too."""
        return self.from_arrow(data, name)

    # Functions

    def register_udf(self, function: ScalarUDF) -> None:
        """Registers a scalar function, see `udf`."""
        if not isinstance(function, ScalarUDF):
            raise TypeError("register_udf needs what udf returns")
        function._register(self._session)

    def register_udaf(self, function: AggregateUDF) -> None:
        """Registers an aggregate, see `udaf`."""
        if not isinstance(function, AggregateUDF):
            raise TypeError("register_udaf needs what udaf returns")
        function._register(self._session)

    # The session

    def catalog(self) -> dict[str, dict[str, list[str]]]:
        """The tables of each schema of each catalog."""
        return {name: dict(schemas) for name, schemas in self._session.catalogs()}

    def set(self, key: str, value: Any) -> None:
        """Changes a setting.

        >>> ctx = SessionContext()
        >>> ctx.set("device.cost", "always")
        """
        self._session.set(key, text(value))

    def device(self) -> str | None:
        """Opens the session's device, unless it is open. None without one: queries run on the host.

        Raises DeviceError if a setting asks for a missing device.
        """
        opened = self._session.open_device()
        return None if opened is None else f"{opened[0]} {opened[1]}"

    def devices(self) -> list[Device]:
        """Every device of every driver."""
        return devices()

    def report(self) -> dict[str, Any] | None:
        """Counters of the open device: kernels, copies, compilations, memory. None without one."""
        report = self._session.report()
        return None if report is None else dict(json.loads(report))

    def _result(self, frame: _devicefusion.Frame) -> DataFrame:
        return DataFrame(frame, self._progress)

    def _register_files(
        self,
        name: str,
        path: Paths,
        format: str,
        partitions: Sequence[str],
        options: Mapping[str, Any] | None,
    ) -> None:
        if self.table_exist(name):
            raise ValueError(f"the table {name} exists already: deregister it first")
        sql = f"CREATE EXTERNAL TABLE {self._session.quoted(name)} STORED AS {format}"
        if not all(isinstance(column, str) for column in partitions):
            raise TypeError("table_partition_cols are names; their values are strings")
        if partitions:
            # DataFusion keeps quotes here, so only names in need of them get some.
            columns = (name if name.isidentifier() else _quoted(name) for name in partitions)
            sql += f" PARTITIONED BY ({', '.join(columns)})"
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if not paths:
            raise ValueError("there is no path")
        sql += f" LOCATION ({', '.join(_string(os.fspath(each)) for each in paths)})"
        with_options = ", ".join(
            f"{_string(key)} {_string(value)}" for key, value in texts(options)
        )
        if with_options:
            sql += f" OPTIONS ({with_options})"
        self._session.sql(sql)

    def _read_files(
        self,
        path: Paths,
        format: str,
        partitions: Sequence[str],
        options: Mapping[str, Any] | None,
    ) -> DataFrame:
        name = f"read_{uuid.uuid4().hex}"
        self._register_files(name, path, format, partitions, options)
        try:
            return self.table(name)
        finally:
            self.deregister_table(name)


class _Dataset:
    """A dataset of pyarrow with Arrow's interface, which it lacks."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pyarrow.RecordBatchReader.from_batches(self._dataset.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pyarrow.RecordBatch]:
        # A scan reads ahead, so it begins with the first read of its stream.
        yield from self._dataset.to_batches()


def _of_csv(has_header: bool, delimiter: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of CREATE EXTERNAL TABLE for a CSV file."""
    return {
        "format.has_header": has_header,
        "format.delimiter": delimiter,
        **(options or {}),
    }


def _string(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _batches(partition: Any) -> Iterable[Any]:
    batches: Iterable[Any] = partition
    if isinstance(partition, pyarrow.Table):
        batches = partition.to_batches()
    return batches
