# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of the book and of the READMEs run, those of a page in one namespace."""

import re
from pathlib import Path

import pytest

import devicefusion

ROOT = Path(__file__).parents[3]
PAGES = [
    "README.md",
    "docs/python.md",
    "docs/python-datafusion.md",
    "docs/python-device-data.md",
    "crates/python/README.md",
]


#: Pages whose blocks put data onto a device.
OF_DEVICES = ("docs/python.md", "docs/python-device-data.md")


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    if page == "docs/python-datafusion.md":
        pytest.importorskip("datafusion")
    if page in OF_DEVICES and devicefusion.SessionContext().device() is None:
        pytest.skip("there is no device")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert blocks
    namespace = {"__name__": page}
    for block in blocks:
        # The blocks before have run; those behind may use its names.
        if "import torch" in block:
            pytest.importorskip("torch")
        exec(compile(block, page, "exec"), namespace)
