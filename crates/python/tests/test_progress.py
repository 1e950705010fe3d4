# SPDX-License-Identifier: Apache-2.0
"""Progress bars of long queries, by tqdm's protocol and with tqdm itself."""

import functools
import io
import time

import pyarrow.parquet
import pytest

import devicefusion
from conftest import ENDLESS, SOON, soon
from devicefusion import SessionContext

ROWS = 200_000


class Bar:
    """A bar of tqdm's protocol that keeps its calls."""

    made = []

    def __init__(self, **options):
        self.n, self.total, self.options = 0, options["total"], options
        self.shown, self.closed = [], False
        Bar.made.append(self)

    def set_description_str(self, text, refresh):
        self.shown.append(text)

    def update(self, rows):
        self.n += rows

    def close(self):
        self.closed = True


@pytest.fixture(autouse=True)
def no_bars():
    Bar.made.clear()


def until(condition):
    """A function of SQL that gives its rows once a condition holds."""

    def wait(values):
        deadline = time.monotonic() + SOON
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)
        return values

    return wait


@pytest.fixture
def session(tmp_path):
    """A function that makes a session of the host, with the function `wait` and a table `t`."""

    def make(progress, function):
        # A plan of one partition would call the function on the thread that looks at the plan.
        settings = {"device.selector": "none", "datafusion.execution.target_partitions": 4}
        ctx = SessionContext(settings, progress=progress)
        pyarrow.parquet.write_table(pyarrow.table({"x": range(ROWS)}), tmp_path / "t.parquet")
        ctx.register_parquet("t", tmp_path / "t.parquet")
        number = pyarrow.int64()
        ctx.register_udf(devicefusion.udf(function, [number], number, "volatile", name="wait"))
        return ctx

    return make


def shown():
    return any(bar.n > 0 for bar in Bar.made)


@pytest.mark.parametrize(
    "use",
    [
        devicefusion.DataFrame.to_arrow_table,
        devicefusion.DataFrame.count,
        devicefusion.DataFrame.show,
        devicefusion.DataFrame._repr_html_,
    ],
)
def test_a_long_query_has_a_progress_bar(session, use):
    ctx = session(Bar, until(shown))
    assert ctx.sql("SELECT 1 AS one").to_pydict() == {"one": [1]}
    assert Bar.made == []
    use(ctx.sql("SELECT x FROM t WHERE wait(x) >= 0"))
    (bar,) = Bar.made
    assert bar.closed and bar.shown and 0 < bar.n <= ROWS
    assert bar.options["total"] == ROWS


@pytest.mark.parametrize("format", ["parquet", "csv", "json"])
def test_a_long_export_has_a_progress_bar(session, tmp_path, format):
    ctx = session(Bar, until(shown))
    frame = ctx.sql("SELECT x FROM t WHERE wait(x) >= 0")
    assert getattr(frame, f"write_{format}")(tmp_path / f"rows.{format}") == ROWS
    (bar,) = Bar.made
    assert bar.closed and 0 < bar.n <= ROWS


def test_rows_for_the_device_have_a_progress_bar(device_ctx):
    # The thread that looks at the plan calls it, so that waits for a look would not end.
    def slow(values):
        time.sleep(0.1)
        return values

    ctx = SessionContext(progress=Bar)
    number = pyarrow.int64()
    ctx.register_udf(devicefusion.udf(slow, [number], number, "volatile"))
    ctx.sql(f"SELECT value FROM generate_series(1, {ROWS}) WHERE slow(value) > 3").device()
    (bar,) = Bar.made
    assert bar.closed and bar.n > 0


# tqdm


def test_a_bar_of_tqdm_shows_rows_and_a_text(session):
    tqdm = pytest.importorskip("tqdm")
    printed = io.StringIO()
    progress = functools.partial(tqdm.tqdm, file=printed, ncols=200)
    ctx = session(
        progress, until(lambda: "/200k" in printed.getvalue().rpartition("of 200,000")[2])
    )
    assert ctx.sql("SELECT max(wait(x)) AS m FROM t").to_pydict() == {"m": [ROWS - 1]}
    assert "rows/s" in printed.getvalue()
    # The line is removed.
    assert printed.getvalue().endswith("\r") and not printed.getvalue().split("\r")[-2].strip()


class Kept:
    """Bars of tqdm as widgets of a notebook, which show nowhere."""

    def __init__(self):
        self.made = []

    def __call__(self, **options):
        self.made.append(pytest.importorskip("tqdm.notebook").tqdm(display=False, **options))
        return self.made[-1]

    def widget(self):
        (bar,) = self.made
        _, widget, _ = bar.container.children
        return widget

    def shown(self):
        return self.made and self.widget().value > 0

    def is_hidden(self):
        return self.made[0].container.layout.visibility == "hidden"


@pytest.fixture
def notebook():
    pytest.importorskip("tqdm.notebook")
    pytest.importorskip("ipywidgets")
    return Kept()


def test_a_widget_of_a_notebook_counts_to_the_number_of_rows_and_goes(session, notebook):
    ctx = session(notebook, until(notebook.shown))
    # Most rows come after the last look.
    ctx.sql("SELECT max(wait(x)) AS m FROM t").collect()
    assert notebook.widget().max == ROWS
    assert 0 < notebook.widget().value <= ROWS
    assert notebook.is_hidden() and notebook.widget().bar_style != "danger"


def test_a_widget_of_a_failed_query_stays_in_red(session, notebook):
    def fail(values):
        until(notebook.shown)(values)
        raise LookupError("no rows today")

    ctx = session(notebook, fail)
    with pytest.raises(LookupError, match="no rows today"):
        ctx.sql("SELECT max(wait(x)) AS m FROM t").collect()
    assert notebook.widget().bar_style == "danger"
    assert not notebook.is_hidden()


def test_a_widget_of_an_unknown_number_of_rows_shows_that_work_goes_on(notebook):
    with devicefusion.progress.Bar(notebook) as bar:
        bar.show(10, None, "1.0 s")
        assert notebook.widget().bar_style == "info"
    assert notebook.is_hidden()


def test_the_text_changes_while_no_rows_come():
    tqdm = pytest.importorskip("tqdm")
    printed = io.StringIO()
    progress = functools.partial(tqdm.tqdm, file=printed, ncols=200, mininterval=0)
    with devicefusion.progress.Bar(progress) as bar:
        bar.show(0, ROWS, "1.0 s")
        bar.show(ROWS // 2, ROWS, "1.1 s")
        bar.show(ROWS // 2, ROWS, "1.2 s, the same rows")
        assert "the same rows" in printed.getvalue()


def test_a_bar_that_is_disabled_shows_nothing():
    tqdm = pytest.importorskip("tqdm")
    printed = io.StringIO()
    progress = functools.partial(tqdm.tqdm, file=printed, disable=True)
    with devicefusion.progress.Bar(progress) as bar:
        bar.show(10, ROWS, "1.0 s")
        bar.show(20, ROWS, "1.1 s")
    assert printed.getvalue() == ""


# Bars that fail


class Broken(Exception):
    """Has more than a text."""


@pytest.mark.parametrize("method", ["__init__", "set_description_str", "update"])
def test_an_exception_of_a_bar_comes_back_as_it_was_and_stops_the_query(session, method):
    raised = Broken("no place for a bar", 7)
    calls = []

    def fail(*arguments, **options):
        raise raised

    def count(values):
        calls.append(len(values))
        time.sleep(0.001)
        return values

    ctx = session(type("Failing", (Bar,), {method: fail}), count)
    with pytest.raises(Broken) as caught:
        ctx.sql(ENDLESS.replace("value %", "wait(value) %")).collect()
    assert caught.value is raised
    assert all(bar.closed for bar in Bar.made)

    def stands():
        before = len(calls)
        time.sleep(0.2)
        return len(calls) == before

    assert calls and soon(stands)
    assert ctx.sql("SELECT count(*) AS n FROM t").to_pydict() == {"n": [ROWS]}
