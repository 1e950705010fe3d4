# SPDX-License-Identifier: Apache-2.0
"""The course of one run of a query."""

from __future__ import annotations

import json
import os
from typing import Any

from devicefusion import _devicefusion


class Profile(dict[str, Any]):
    """The time of a run by operator and by kernel, as data. `save` writes it as a page.

    >>> from devicefusion import SessionContext
    >>> profile = SessionContext().sql("SELECT count(*) FROM generate_series(1, 100000)").profile()
    >>> profile["rows"]
    1
    """

    def __init__(self, profile: _devicefusion.Profile) -> None:
        super().__init__(json.loads(profile.json()))
        self._profile = profile

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile: a page for a browser (`.html`), its data (`.json`), the plan as
        PostgreSQL's JSON (`.pg.json`), or a timeline for Perfetto (`.trace.json`).
        """
        name = os.fspath(path)
        if name.endswith(".trace.json"):
            text = self._profile.trace()
        elif name.endswith(".pg.json"):
            text = self._profile.pgjson()
        elif name.endswith(".json"):
            text = self._profile.json()
        elif name.endswith(".html"):
            text = self._profile.html()
        else:
            raise ValueError(f"{name}: a profile is saved as .html, .json, .pg.json or .trace.json")
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)

    def _repr_html_(self) -> str:
        page = self._profile.html().replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 640px; border: 0"></iframe>'
