# SPDX-License-Identifier: Apache-2.0
"""The types of the package hold for mypy and pyright, and the stubs are those of the library."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from devicefusion import _devicefusion

FOLDER = Path(__file__).parents[1]
PACKAGE = FOLDER / "python" / "devicefusion"

PROGRAM = """
import pathlib

import pyarrow
import devicefusion

session = devicefusion.SessionContext({"device.selector": "none", "device.min_rows": 5})
session.register_csv("several", ["a.csv", pathlib.Path("b.csv")])
frame: devicefusion.DataFrame = session.sql("SELECT 1 AS one", [1])
rows: list[dict[str, object]] = frame.to_pylist()
count: int = frame.count()
device: str | None = session.device()
result: devicefusion.DeviceResult = frame.device()
number: pyarrow.DataType = pyarrow.int64()
function: devicefusion.ScalarUDF = devicefusion.udf(lambda x: x, [number], number, "stable")
session.register_udf(function)
for batch in frame:
    rows += batch.to_pylist()

async def main() -> pyarrow.Table:
    async for batch in frame.execute_stream():
        rows.extend(batch.to_pylist())
    return await frame
"""

MISTAKES = [
    'frame.explain(format="poem")',
    "session.sql(7)",
    "number_of_rows: str = frame.count()",
    'session.register_udf("name")',
    "frame.nothing()",
    'devicefusion.udf(len, [], pyarrow.int64(), "sometimes")',
]


def checked(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    pytest.importorskip("mypy")
    # Other packages take half a minute without it.
    cache = f"--cache-dir={tmp_path_factory.mktemp('mypy')}"
    config = f"--config-file={FOLDER / 'pyproject.toml'}"

    def run(*arguments):
        command = [sys.executable, "-m", "mypy", "--strict", cache, config, *arguments]
        return checked(command, FOLDER / "python")

    return run


def test_the_package_is_typed_for_mypy(mypy):
    code, printed = mypy("-p", "devicefusion")
    assert code == 0, printed


def test_a_program_with_the_package_is_typed_for_mypy(mypy, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    code, printed = mypy(str(program))
    assert code == 0, printed


def test_mypy_finds_mistakes_in_uses_of_the_package(mypy, tmp_path):
    program = tmp_path / "program.py"
    lines = [*PROGRAM.splitlines(), *MISTAKES]
    program.write_text("\n".join(lines))
    code, printed = mypy(str(program))
    assert code == 1
    first = len(PROGRAM.splitlines()) + 1
    for number, mistake in enumerate(MISTAKES, first):
        assert f"program.py:{number}: error" in printed, (mistake, printed)


def pyright(*arguments):
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, *arguments]
    return checked(command, FOLDER)


def test_the_package_is_typed_for_pyright():
    code, printed = pyright(str(PACKAGE))
    assert code == 0, printed


def test_pyright_finds_mistakes_in_uses_of_the_package(tmp_path):
    program = tmp_path / "program.py"
    lines = PROGRAM.splitlines()
    program.write_text("\n".join([*lines, *MISTAKES]))
    code, printed = pyright("--outputjson", str(program))
    assert code == 1
    found = {
        problem["range"]["start"]["line"]
        for problem in json.loads(printed)["generalDiagnostics"]
        if problem["severity"] == "error"
    }
    assert found == set(range(len(lines), len(lines) + len(MISTAKES))), printed


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_devicefusion.pyi").exists()


# The stubs

STUBS = ast.parse((PACKAGE / "_devicefusion.pyi").read_text())
CLASSES = {node.name: node for node in STUBS.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in STUBS.body if isinstance(node, ast.FunctionDef)}

#: Names that every class or module of Python has.
COMMON = {*dir(object), "__module__", "__dict__", "__weakref__"}


def methods(node):
    return {member.name: member for member in node.body if isinstance(member, ast.FunctionDef)}


def parameters(function):
    """Names of a stub's parameters but for those that take all others."""
    arguments = function.args
    names = [each.arg for each in arguments.posonlyargs + arguments.args + arguments.kwonlyargs]
    return [name for name in names if name != "self"]


def parameters_of_library(function):
    kept = (
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    )
    return [name for name in kept if name != "self"]


def test_the_stubs_name_each_class_and_function():
    members = {name: value for name, value in vars(_devicefusion).items() if name[0] != "_"}
    classes = {name for name, value in members.items() if inspect.isclass(value)}
    assert classes == set(CLASSES)
    assert {name for name, value in members.items() if not inspect.isclass(value)} == set(FUNCTIONS)


@pytest.mark.parametrize("name", CLASSES)
def test_the_stubs_name_each_method(name):
    library = set(vars(getattr(_devicefusion, name))) - COMMON
    assert library == set(methods(CLASSES[name])) - COMMON


@pytest.mark.parametrize("name", CLASSES)
def test_the_stubs_name_each_parameter_of_a_method(name):
    for method, stub in methods(CLASSES[name]).items():
        found = getattr(getattr(_devicefusion, name), method)
        if method not in COMMON and callable(found) and getattr(found, "__text_signature__", None):
            assert parameters_of_library(found) == parameters(stub), method


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stubs_name_each_parameter_of_a_function(name):
    found = getattr(_devicefusion, name)
    assert parameters_of_library(found) == parameters(FUNCTIONS[name])
