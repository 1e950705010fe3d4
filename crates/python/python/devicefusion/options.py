# SPDX-License-Identifier: Apache-2.0
"""Settings and options as DataFusion reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def text(value: Any) -> str:
    """A value as text.

    >>> text(True), text(7)
    ('true', '7')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts(options: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Names and values of options."""
    return [(name, text(value)) for name, value in (options or {}).items()]
