# SPDX-License-Identifier: Apache-2.0
"""Sessions of the package `datafusion`: their queries on the device."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from devicefusion import _devicefusion
from devicefusion.context import SessionContext
from devicefusion.dataframe import DataFrame

if TYPE_CHECKING:
    import datafusion

#: Packages of one number pass plans to each other.
VERSION = _devicefusion.__datafusion_version__.partition(".")[0]

#: Statements of the session that has made them. COPY and DESCRIBE cannot pass, others must not.
STATEMENTS = ("CopyTo", "DescribeTable", "Dml")

#: A part of a plan that the optimizer has found to be empty.
NO_ROWS = "EmptyRelation: rows=0"

#: Rules of the optimizer that make such parts. They run on this side.
EMPTYING = ("eliminate_filter", "eliminate_limit", "eliminate_join", "propagate_empty_relation")

_lock = threading.Lock()
_session: SessionContext | None = None
_writer: datafusion.SessionContext | None = None
#: Blocks of `on_host` by sessions, and the planners before them.
_hosts: dict[str, tuple[int, Any]] = {}


def run(df: datafusion.DataFrame, ctx: SessionContext | None = None) -> DataFrame:
    """A query of the package `datafusion`, run by this one.

    The plan passes as `datafusion` has optimized it, and its tables are read in place. `ctx` has
    the settings and the object stores; without it, all calls share a session.

    DESCRIBE and statements that write are a ValueError. Another major version of `datafusion` is an
    ImportError. Other plans that cannot pass have the exceptions of `datafusion`.

    >>> import datafusion
    >>> theirs = datafusion.SessionContext()
    >>> trades = theirs.from_pydict({"day": [1, 1, 2], "price": [10.0, 30.0, 20.0]})
    >>> dear = trades.filter(datafusion.col("price") > datafusion.lit(15.0))
    >>> run(dear).to_pydict()
    {'day': [1, 2], 'price': [30.0, 20.0]}
    """
    if not isinstance(df, _package().DataFrame):
        kind = f"{type(df).__module__}.{type(df).__name__}"
        raise TypeError(f"run takes a DataFrame of the package datafusion, not a {kind}")
    if ctx is not None and not isinstance(ctx, SessionContext):
        raise TypeError("ctx is a session of devicefusion, which runs the query")
    writer = _plan_writer()
    plan = df.optimized_logical_plan()
    if plan.display().partition(":")[0] in STATEMENTS:
        raise ValueError(
            "this statement runs in the session that has made it: collect it there, within "
            "devicefusion.on_host(ctx) if that session has an Extension"
        )
    if any(line.strip().startswith(NO_ROWS) for line in plan.display_indent().splitlines()):
        # Its columns would be lost on the way. The writer's optimizer makes no such part.
        plan = writer.create_dataframe_from_logical_plan(df.logical_plan()).optimized_logical_plan()
    ctx = ctx or _shared_session()
    codec = writer.__datafusion_logical_extension_codec__()
    return ctx._result(ctx._session.read_plan(plan.to_bytes(writer), codec))


class Extension:
    """Moves the queries of a session of the package `datafusion` onto the device.

    `settings` are those of the device, as for `SessionContext`. Settings of DataFusion are the
    session's own: ValueError. Another major version of `datafusion` is an ImportError.

    Some statements cannot pass, and raise errors of `datafusion`: run them within `on_host`.

    >>> import datafusion
    >>> ctx = datafusion.SessionContext().with_extensions(Extension())
    >>> ctx.sql("SELECT 6 * 7 AS answer").to_pydict()
    {'answer': [42]}
    """

    def __init__(self, settings: Mapping[str, Any] | None = None) -> None:
        _package()
        for name in settings or {}:
            if name.startswith("datafusion.") and not name.startswith("datafusion.runtime."):
                raise ValueError(f"{name} is a setting of the session, not of the extension")
        self._context = SessionContext(settings, find_variables=False)

    def __datafusion_session_components__(
        self, ctx: datafusion.SessionContext
    ) -> datafusion.SessionExtensionComponents:
        codec = _devicefusion.Codec()
        components: datafusion.SessionExtensionComponents = _package().SessionExtensionComponents(
            logical_extension_codecs=(codec,), physical_extension_codecs=(codec,)
        )
        return components

    def __datafusion_session_planner__(
        self, ctx: datafusion.SessionContext, fallback: object
    ) -> object:
        for rule in EMPTYING:
            ctx.remove_optimizer_rule(rule)
        return self._context._session.planner(
            ctx.__datafusion_logical_extension_codec__(),
            ctx.__datafusion_physical_extension_codec__(),
        )


@contextlib.contextmanager
def on_host(ctx: datafusion.SessionContext) -> Iterator[datafusion.SessionContext]:
    """Lets a session with an `Extension` plan as the package `datafusion` does, for a while.

    It is for what cannot pass between both packages, such as COPY. A DataFrame that is made within
    stays on the host. All threads that use the session meanwhile run on the host. `datafusion`
    forgets statements of PREPARE where the block begins or ends. Raises ValueError for a session
    without an `Extension`.

    >>> import datafusion
    >>> ctx = datafusion.SessionContext().with_extensions(Extension())
    >>> _ = ctx.from_pydict({"a": [1, 2]}, "t")
    >>> with on_host(ctx):
    ...     rows = ctx.sql("DESCRIBE t").to_pydict()
    >>> rows["column_name"]
    ['a']
    """
    if not isinstance(ctx, _package().SessionContext):
        raise TypeError("on_host takes a session of the package datafusion")
    if "devicefusion" not in ctx.logical_extension_codec_ids():
        raise ValueError("this session has no Extension: pass the one that with_extensions gave")
    session = ctx.session_id()
    with _lock:
        blocks, planner = _hosts.get(session) or (0, ctx.__datafusion_query_planner__())
        _hosts[session] = blocks + 1, planner
        if blocks == 0:
            ctx.set_query_planner(_package().SessionContext())
    try:
        yield ctx
    finally:
        with _lock:
            blocks, planner = _hosts.pop(session)
            if blocks == 1:
                ctx.set_query_planner(planner)
            else:
                _hosts[session] = blocks - 1, planner


def _package() -> Any:
    """The package `datafusion`.

    Raises ImportError for another version: both exchange structs whose layout may differ.
    """
    import datafusion

    if datafusion.__version__.partition(".")[0] != VERSION:
        raise ImportError(
            f"devicefusion passes plans to and from datafusion {VERSION}, and "
            f"{datafusion.__version__} is installed: pip install 'datafusion=={VERSION}.*'"
        )
    return datafusion


def _shared_session() -> SessionContext:
    global _session
    with _lock:
        if _session is None:
            _session = SessionContext(find_variables=False)
        return _session


def _plan_writer() -> Any:
    """A session that writes plans with handles for their tables.

    Tables that have passed refer to it, so it lives as long as the process.
    """
    global _writer
    with _lock:
        if _writer is None:
            # Functions of Python go as they are, without a copy.
            writer = _package().SessionContext().with_python_udf_inlining(enabled=False)
            for rule in EMPTYING:
                writer.remove_optimizer_rule(rule)
            _writer = writer.with_logical_extension_codec(_devicefusion.Codec())
        return _writer
