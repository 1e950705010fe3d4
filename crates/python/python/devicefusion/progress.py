# SPDX-License-Identifier: Apache-2.0
"""Progress bars of other packages, by tqdm's protocol."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any


class Bar:
    """A bar that exists from its first `show` to the end of a query."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make
        self._bar: Any = None

    def __enter__(self) -> Bar:
        return self

    def show(self, read: int, total: int | None, text: str) -> None:
        """Shows how many rows were read, of all if their number is known."""
        if self._bar is None:
            # The text changes while no rows come: tqdm would wait for as many as came before.
            self._bar = self._make(
                total=total, unit=" rows", unit_scale=True, miniters=0, leave=False
            )
        self._bar.total = total if total is None else max(total, read)
        self._bar.set_description_str(text, refresh=False)
        self._bar.update(read - self._bar.n)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is None:
            return
        if kind is None:
            # The last look was before the end, and a notebook keeps a bar below its total, in red.
            self._bar.total = self._bar.n
        self._bar.close()
