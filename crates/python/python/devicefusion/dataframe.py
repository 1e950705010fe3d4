# SPDX-License-Identifier: Apache-2.0
"""Results of SQL: plans, which run anew for each use of their rows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import html
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pyarrow

from devicefusion import _devicefusion
from devicefusion.device import DeviceResult
from devicefusion.options import texts
from devicefusion.profile import Profile
from devicefusion.progress import Bar

if TYPE_CHECKING:
    import pandas
    import polars

Result = TypeVar("Result")

#: Rows that `show` prints and notebooks show.
SHOWN = 20


class DataFrame:
    """A query's plan. Each method that needs rows runs it.

    It is a table too: in SQL by its variable's name, and for every library with Arrow's interface.

    >>> from devicefusion import SessionContext
    >>> ctx = SessionContext()
    >>> squares = ctx.sql("SELECT value * value AS square FROM generate_series(1, 4)")
    >>> ctx.sql("SELECT sum(square) AS s FROM squares").to_pydict()
    {'s': [30]}
    """

    def __init__(
        self, frame: _devicefusion.Frame, progress: Callable[..., Any] | None = None
    ) -> None:
        self._frame = frame
        self._progress = progress

    @property
    def schema(self) -> pyarrow.Schema:
        """Names and types of the columns. Nothing runs."""
        return pyarrow.schema(self._frame)

    # Rows on the host

    def collect(self) -> list[pyarrow.RecordBatch]:
        """Runs the query: its rows as record batches."""
        return list(self.to_arrow_table().to_batches())

    def to_arrow_table(self) -> pyarrow.Table:
        """Runs the query: its rows as a table, without a further copy."""
        return pyarrow.table(self._watched(self._frame.collect))

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Runs the query: its rows for pandas. Options are those of `pyarrow.Table.to_pandas`."""
        return self.to_arrow_table().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """Runs the query: its rows for Polars."""
        import polars

        rows = polars.from_arrow(self.to_arrow_table())
        assert isinstance(rows, polars.DataFrame)
        return rows

    def to_pydict(self) -> dict[str, list[Any]]:
        """Runs the query: its columns as lists."""
        return dict(self.to_arrow_table().to_pydict())

    def to_pylist(self) -> list[dict[str, Any]]:
        """Runs the query: its rows as dictionaries."""
        return list(self.to_arrow_table().to_pylist())

    def count(self) -> int:
        """Runs the query: the number of its rows."""
        return self._watched(self._frame.count)

    def _watched(self, run: Callable[..., Result]) -> Result:
        """Runs the query, with a bar if it takes long."""
        if self._progress is None:
            return run()
        with Bar(self._progress) as bar:
            return run(bar.show)

    def execute_stream(self) -> RecordBatchStream:
        """Starts the query: its rows batch by batch, as they come."""
        return RecordBatchStream(self._frame.stream())

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        return iter(self.execute_stream())

    def __aiter__(self) -> AsyncIterator[pyarrow.RecordBatch]:
        return self.execute_stream()

    def __arrow_c_schema__(self) -> object:
        return self._frame.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._frame.stream().__arrow_c_stream__(requested_schema)

    def __await__(self) -> Generator[Any, None, pyarrow.Table]:
        """`await frame` runs the query: its rows as a table. Cancelling its task stops it."""
        return self._awaited().__await__()

    async def _awaited(self) -> pyarrow.Table:
        future, done = _future()
        task = self._frame.start(done)
        try:
            return pyarrow.table(await future)
        finally:
            task.cancel()

    # Rows on the device

    def device(self) -> DeviceResult:
        """Runs the query and leaves its rows on the device."""
        return DeviceResult(self._watched(self._frame.device))

    # Plans

    def explain(
        self,
        *,
        analyze: bool = False,
        verbose: bool = False,
        format: Literal["text", "html", "json", "pgjson", "trace"] = "text",
    ) -> str:
        """The plan, with the place of each operator and the reasons for the host.

        `analyze` runs the query and adds times. `verbose` adds kernels' sources. The other formats
        run the query: a page for a browser, its data, the plan as PostgreSQL's JSON, and a timeline
        for Perfetto.
        """
        if format == "text":
            return self._frame.explain(verbose, analyze)
        forms = ("html", "json", "pgjson", "trace")
        if format not in forms:
            raise ValueError(
                f"{format!r} is no format of plans: there are text, {', '.join(forms)}"
            )
        return str(getattr(self._frame.profile(), format)())

    def profile(self) -> Profile:
        """Runs the query: where its time went."""
        return Profile(self._frame.profile())

    # Showing

    def limit(self, count: int, offset: int = 0) -> DataFrame:
        """The first rows, or those behind `offset`."""
        if count < 0 or offset < 0:
            raise ValueError(f"a limit of {count} rows behind {offset}: neither can be negative")
        return DataFrame(self._frame.limit(offset, count), self._progress)

    def show(self, rows: int = SHOWN) -> None:
        """Prints the first rows, and a note if there are more.

        >>> from devicefusion import SessionContext
        >>> SessionContext().sql("SELECT 'tea' AS item, 3.5 AS price").show()
        +------+-------+
        | item | price |
        +------+-------+
        | tea  | 3.5   |
        +------+-------+
        """
        first = self.limit(min(rows, sys.maxsize - 1) + 1)
        # DDL has no result.
        if first._frame.has_columns():
            print(first._watched(first._frame.collect).text(rows))

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self.schema)
        return f"DataFrame({columns})"

    def _repr_html_(self) -> str:
        """The first rows with the query's time and place, for notebooks."""
        if not self._frame.has_columns():
            return "<p><small>no columns</small></p>"
        begin = time.perf_counter()
        rows_of_run = self._watched(self._frame.limit(0, SHOWN + 1).collect)
        seconds = time.perf_counter() - begin
        first = pyarrow.table(rows_of_run)
        head = "".join(
            f"<th>{html.escape(field.name)}<br><small>{html.escape(str(field.type))}</small></th>"
            for field in first.schema
        )
        # Columns may share a name, so rows are no dictionaries.
        columns = [column.to_pylist() for column in first.slice(0, SHOWN).columns]
        rows = ("".join(map(_cell, row)) for row in zip(*columns, strict=True))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        count = f"{first.num_rows} row{'' if first.num_rows == 1 else 's'}"
        more = f"the first {SHOWN} rows" if first.num_rows > SHOWN else count
        note = html.escape(f"{more}, {seconds * 1000:.0f} ms, {_place(rows_of_run)}")
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{table}<p><small>{note}</small></p>"

    # Files

    def write_parquet(self, path: str | os.PathLike[str], **options: Any) -> int:
        """Runs the query and writes its rows: to a file, or to a folder if the path ends with `/`.

        Options are those of DataFusion's Parquet writer, such as `compression="zstd(3)"`. Returns
        the number of rows.
        """
        return self._write(path, "parquet", options)

    def write_csv(self, path: str | os.PathLike[str], **options: Any) -> int:
        """Runs the query and writes its rows as CSV. Options are such as `has_header=False`."""
        return self._write(path, "csv", options)

    def write_json(self, path: str | os.PathLike[str], **options: Any) -> int:
        """Runs the query and writes its rows as lines of JSON."""
        return self._write(path, "json", options)

    def _write(self, path: str | os.PathLike[str], format: str, options: Mapping[str, Any]) -> int:
        write = functools.partial(self._frame.write, os.fspath(path), format, texts(options))
        return self._watched(write)


class RecordBatchStream:
    """The rows of a query that runs, batch by batch, for `for` and `async for`.

    A stream that is dropped stops its query.

    >>> from devicefusion import SessionContext
    >>> rows = SessionContext().sql("SELECT value FROM generate_series(1, 10000)")
    >>> sum(batch.num_rows for batch in rows.execute_stream())
    10000
    """

    def __init__(self, stream: _devicefusion.RowStream) -> None:
        self._stream = stream
        self._read: asyncio.Future[_devicefusion.HostRows | None] | None = None

    @property
    def schema(self) -> pyarrow.Schema:
        """Names and types of the columns."""
        return pyarrow.schema(self._stream)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._stream.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        return self

    def __next__(self) -> pyarrow.RecordBatch:
        batch = self._next()
        if batch is None:
            raise StopIteration
        return batch

    def __aiter__(self) -> AsyncIterator[pyarrow.RecordBatch]:
        return self

    async def __anext__(self) -> pyarrow.RecordBatch:
        if self._read is None:
            self._read, done = _future()
            self._stream.start(done)
        # A read whose task is cancelled goes on, and its batch is the next one.
        read = self._read
        rows = await asyncio.shield(read)
        if self._read is not read:
            # Another task has taken the batch.
            return await self.__anext__()
        self._read = None
        if rows is None:
            raise StopAsyncIteration
        return _batch(rows)

    def _next(self) -> pyarrow.RecordBatch | None:
        rows = self._stream.next()
        return None if rows is None else _batch(rows)


def _place(rows: _devicefusion.HostRows) -> str:
    """The place of the run that gave the rows."""
    device, host = rows.placement()
    if not host:
        return "on the device" if device else "a scan alone"
    reasons = "; ".join(sorted({reason for _, reason in host}))
    place = (
        f"{device} operators on the device, {len(host)} on the host" if device else "on the host"
    )
    return f"{place}: {reasons}"


def _batch(rows: _devicefusion.HostRows) -> pyarrow.RecordBatch:
    return pyarrow.RecordBatchReader.from_stream(rows).read_next_batch()


def _future() -> tuple[asyncio.Future[Any], Callable[[Any, BaseException | None], None]]:
    """A future of the running loop, and a function for any thread that gives it its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def done(result: Any, error: BaseException | None) -> None:
        # The loop may have closed meanwhile.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, error)

    return future, done


def _cell(value: Any) -> str:
    return f"<td>{'<i>NULL</i>' if value is None else html.escape(str(value))}</td>"
