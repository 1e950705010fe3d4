# SPDX-License-Identifier: Apache-2.0
"""The page of differences names each method of datafusion-python as the two packages have it."""

import re
from pathlib import Path

import pytest

import devicefusion

PAGE = Path(__file__).parents[3] / "docs" / "python-differences.md"


def methods(name):
    """The methods of a class that the page names, each with the text on the one here."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {name}\n")[1].split("\n## ")[0]
    for row in re.findall(r"^\| (`.+)\|$", section, re.MULTILINE):
        there, here = row.split(" | ")
        yield from ((method, here) for method in re.findall(r"`(\w+)", there) if method != name)


CLASSES = pytest.mark.parametrize("name", ["SessionContext", "DataFrame"])


@CLASSES
def test_the_page_names_each_method_once(name):
    theirs = getattr(pytest.importorskip("datafusion"), name)
    named = [method for method, _ in methods(name)]
    assert sorted(named) == [method for method in dir(theirs) if not method.startswith("_")]


@CLASSES
def test_methods_are_absent_where_the_page_says_so(name):
    ours = getattr(devicefusion, name)
    absent = {method for method, here in methods(name) if here.startswith("absent")}
    assert absent == {method for method, _ in methods(name) if not hasattr(ours, method)}


@CLASSES
def test_methods_that_are_the_same_take_the_same_arguments(name):
    datafusion = pytest.importorskip("datafusion")
    same = [method for method, here in methods(name) if here.startswith("the same")]
    assert same
    for method in same:
        theirs, ours = (arguments(package, name, method) for package in (datafusion, devicefusion))
        assert ours[: len(theirs)] == theirs, method


def arguments(package, name, method):
    code = getattr(getattr(package, name), method).__code__
    return code.co_varnames[: code.co_argcount]
