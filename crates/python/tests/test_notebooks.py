# SPDX-License-Identifier: Apache-2.0
"""The notebooks of examples/python run, cell by cell, and what they show is HTML or text."""

import ast
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples/python"


def shown(cell, namespace):
    """Runs a cell. The value of its last expression as a notebook shows it, or None."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), namespace)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
    to_html = getattr(value, "_repr_html_", None)
    return to_html() if to_html else repr(value)


def run(name):
    cells = json.loads((FOLDER / name).read_text())["cells"]
    namespace = {}
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [shown(cell, namespace) for cell in code]


@pytest.fixture
def tpch(tmp_path, host):
    """A thousandth of the two tables, as the notebook reads them."""
    host.sql(
        """
        SELECT value AS o_orderkey, DATE '1993-06-01' + (value % 200)::INT AS o_orderdate,
               (value % 5 + 1)::VARCHAR || '-PRIORITY' AS o_orderpriority
        FROM generate_series(1, 1500)
        """
    ).write_parquet(tmp_path / "orders.parquet")
    host.sql(
        """
        SELECT value % 1500 + 1 AS l_orderkey,
               DATE '1993-07-01' + (value % 50)::INT AS l_commitdate,
               DATE '1993-07-01' + (value % 70)::INT AS l_receiptdate
        FROM generate_series(1, 6000)
        """
    ).write_parquet(tmp_path / "lineitem.parquet")
    return tmp_path


def test_the_notebook_of_tpch_shows_rows_and_a_profile(tpch, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setenv("TPCH", str(tpch))
    _, rows, _, profile, times = run("tpch.ipynb")
    assert "<td>1-PRIORITY</td>" in rows
    assert "<iframe" in profile
    assert "'total'" in times


def test_the_notebook_of_features_goes_to_a_model_and_back(device_ctx):
    pytest.importorskip("torch")
    *_, best, _ = run("features.ipynb")
    assert best.count("<tr>") == 6


@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.ipynb")))
def test_notebooks_are_kept_without_outputs(name):
    cells = json.loads((FOLDER / name).read_text())["cells"]
    assert all(cell["cell_type"] == "markdown" or not cell["outputs"] for cell in cells)
