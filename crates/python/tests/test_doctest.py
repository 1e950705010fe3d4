# SPDX-License-Identifier: Apache-2.0
"""The examples of docstrings run and print what they say."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

import devicefusion

PARTS = [f".{part.name}" for part in pkgutil.iter_modules(devicefusion.__path__)]
MODULES = ["", *(part for part in PARTS if not part.startswith("._"))]

#: Packages without which a module's examples cannot run.
NEEDED = {".dbapi": "adbc_driver_manager", ".device": "numpy", ".extension": "datafusion"}


def kind_of(ctx):
    """The kind of a session's device."""
    number = ctx.report()["device"]["index"]
    return next(known.kind for known in ctx.devices() if known.number == number)


@pytest.mark.parametrize("part", MODULES)
def test_the_examples_of_a_module_run(request, part):
    if part in NEEDED:
        pytest.importorskip(NEEDED[part])
    if part == ".device" and kind_of(request.getfixturevalue("device_ctx")) != "cpu":
        pytest.skip("the device has memory of its own, which NumPy cannot read")
    module = importlib.import_module(f"devicefusion{part}")
    result = doctest.testmod(module)
    assert result.failed == 0
    assert result.attempted == inspect.getsource(module).count(">>> ")


def public(owner):
    return {name: value for name, value in vars(owner).items() if not name.startswith("_")}


def undocumented():
    for name in devicefusion.__all__:
        value = getattr(devicefusion, name)
        if not name.startswith("_") and not inspect.getdoc(value):
            yield name
        if inspect.isclass(value) and value.__module__.startswith("devicefusion."):
            members = public(value).items()
            documented = (member for member in members if callable(member[1]))
            yield from (f"{name}.{key}" for key, member in documented if not member.__doc__)


def test_whatever_is_public_has_a_docstring():
    assert list(undocumented()) == []


def test_public_names_are_those_of_all():
    assert sorted(devicefusion.__all__) == devicefusion.__all__
    assert all(hasattr(devicefusion, name) for name in devicefusion.__all__)
