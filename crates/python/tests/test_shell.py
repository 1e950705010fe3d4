# SPDX-License-Identifier: Apache-2.0
"""The SQL shell: `python -m devicefusion`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import devicefusion
from conftest import ENDLESS, SOON

COMMAND = [sys.executable, "-m", "devicefusion"]
CSV = ["-q", "--format", "csv"]
SUM = "SELECT sum(value) AS s FROM generate_series(1, 100000)"


@pytest.fixture
def environment(tmp_path):
    """Without startup files and history of the user."""
    home = tmp_path / "home"
    home.mkdir()
    return {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home)}


@pytest.fixture
def shell(environment):
    def run(*arguments, text=""):
        return subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            timeout=300,
            check=False,
        )

    return run


def test_a_command_prints_its_answer(shell):
    run = shell(*CSV, "-c", "SELECT 1 + 1 AS two, 'naïve' AS s")
    assert (run.returncode, run.stdout, run.stderr) == (0, "two,s\n2,naïve\n", "")


def test_an_answer_is_a_table_unless_told_otherwise(shell):
    run = shell("-q", "-c", "SELECT 1 AS x")
    assert run.returncode == 0
    assert run.stdout.splitlines() == ["+---+", "| x |", "+---+", "| 1 |", "+---+"]


def test_several_commands_run_in_turn(shell):
    changes = ["CREATE TABLE t AS SELECT 7 AS x", "INSERT INTO t VALUES (8)"]
    run = shell(*CSV, "-c", *changes, "SELECT x FROM t ORDER BY x")
    assert run.returncode == 0
    assert run.stdout.split()[-3:] == ["x", "7", "8"]


def test_statements_come_from_standard_input(shell):
    run = shell(*CSV, text="CREATE TABLE t AS VALUES (1), (2);\nSELECT count(*) AS n FROM t;\n")
    assert (run.returncode, run.stdout) == (0, "n\n2\n")


def test_statements_come_from_a_file(shell, tmp_path):
    script = tmp_path / "script.sql"
    script.write_text("CREATE TABLE t AS VALUES (1), (2);\nSELECT sum(column1) AS s FROM t;\n")
    run = shell(*CSV, "-f", script)
    assert (run.returncode, run.stdout) == (0, "s\n3\n")


def test_a_failing_command_is_a_failure_with_its_error(shell):
    run = shell(*CSV, "-c", "SELECT nope", "SELECT 1")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("Error: ") and "nope" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_failing_statement_of_a_file_is_a_failure_and_the_rest_runs(shell, tmp_path):
    script = tmp_path / "script.sql"
    script.write_text("SELECT nope;\nSELECT 1 AS x;\n")
    run = shell(*CSV, "-f", script)
    assert (run.returncode, run.stdout) == (1, "x\n1\n")
    assert "nope" in run.stderr


@pytest.mark.parametrize("arguments", [["--nope"], ["-f", "/nowhere.sql"], ["nope"], ["-c", " "]])
def test_wrong_arguments_are_a_failure_of_their_own(shell, arguments):
    run = shell(*arguments)
    assert run.returncode == 2
    assert run.stdout == ""
    assert "Traceback" not in run.stderr and run.stderr


def test_the_version_is_that_of_the_package(shell):
    run = shell("--version")
    assert (run.returncode, run.stdout) == (0, f"devicefusion {devicefusion.__version__}\n")


def test_help_shows_the_arguments(shell):
    run = shell("--help")
    assert run.returncode == 0
    for part in ["Usage: devicefusion", "--device", "--strict", "--command"]:
        assert part in run.stdout


def test_devices_are_listed(shell):
    run = shell("devices")
    assert run.returncode == 0
    assert run.stdout.split()[:3] == ["#", "NAME", "DRIVER"]
    for device in devicefusion.devices():
        assert device.name in run.stdout


def test_a_device_is_chosen_by_an_argument(shell):
    run = shell("--device", "none", "--format", "csv", "-c", "SELECT 1 AS x")
    assert (run.returncode, run.stdout) == (0, "x\n1\n")
    assert "queries run on the host" in run.stderr
    run = shell("--device", "no such device", "-c", "SELECT 1 AS x")
    assert run.returncode == 1
    assert "no such device" in run.stderr


def test_a_query_is_profiled(shell, tmp_path):
    page = tmp_path / "profile.html"
    run = shell("profile", "-o", page, "SELECT count(*) FROM generate_series(1, 100000)")
    assert run.returncode == 0, run.stderr
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


#: A session of a new process, with the settings of its environment.
SESSION = f"""
import json
import devicefusion

ctx = devicefusion.SessionContext()
assert ctx.sql({SUM!r}).to_pydict() == {{"s": [5000050000]}}
print(json.dumps([ctx.report(), ctx.catalog()]))
"""


def session_of(environment):
    """The report and the tables of a session."""
    run = subprocess.run(
        [sys.executable, "-c", SESSION],
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
        check=True,
    )
    return json.loads(run.stdout)


def test_the_shell_and_a_session_have_the_same_programs_and_settings(
    device_ctx, shell, environment, tmp_path
):
    folder = tmp_path / "programs"
    folder.mkdir()
    settings = {"CACHE_DIR": str(folder), "COST": "always", "ADAPTIVE_START": "never"}
    environment |= {f"DATAFUSION_DEVICE_{name}": value for name, value in settings.items()}
    run = shell("--strict", *CSV, "-c", SUM)
    assert (run.returncode, run.stdout) == (0, "s\n5000050000\n"), run.stderr
    kept = {path.name for path in folder.rglob("*")}
    assert kept
    programs = session_of(environment)[0]["programs"]
    assert programs["cache_hits_disk"] > 0 and programs["compiled"] == 0, programs
    # Programs may be optimized in the background, each once.
    later = {path.name for path in folder.rglob("*")}
    assert kept <= later and len(later) <= 2 * len(kept)


def test_the_startup_file_is_the_shells_alone(shell, environment, tmp_path):
    startup = tmp_path / "home" / "devicefusion" / "rc.sql"
    startup.parent.mkdir()
    startup.write_text("CREATE TABLE kept AS SELECT 7 AS x;\n")
    run = shell(*CSV, text="SELECT x FROM kept;\n")
    assert run.returncode == 0 and run.stdout.endswith("x\n7\n"), run.stderr
    tables = session_of(environment)[1]["datafusion"]
    assert not any(tables.values())


def test_files_are_queried_in_a_folder(shell, tmp_path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n3,4\n")
    run = shell(*CSV, "-p", tmp_path, "-c", "SELECT sum(b) AS s FROM 't.csv'")
    assert (run.returncode, run.stdout) == (0, "s\n6\n")


def test_a_reader_that_has_gone_is_no_error(environment):
    query = "SELECT value FROM generate_series(1, 1000000)"
    with subprocess.Popen(
        [*COMMAND, *CSV, "-c", query],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdout.readline() == b"value\n"
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_ctrl_c_ends_a_command(environment):
    with subprocess.Popen(
        [*COMMAND, *CSV, "-c", "SELECT 1 AS x", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        try:
            assert process.stdout.readline() == b"x\n"
            time.sleep(0.5)
            begin = time.monotonic()
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=SOON) != 0
            assert time.monotonic() - begin < SOON
        finally:
            process.kill()
