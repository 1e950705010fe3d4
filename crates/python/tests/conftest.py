# SPDX-License-Identifier: Apache-2.0
"""Sessions and values that the tests share."""

import gc
import time

import pytest

import devicefusion

#: No operator stays on the host for a small input or for kernels that are not compiled yet.
STRICT = {"device.cost": "always", "device.adaptive_start": "never"}

#: No test waits for its end.
ENDLESS = "SELECT count(*) AS n FROM generate_series(1, 1000000000000) WHERE value % 7 = 3"

#: Within these seconds a stopped query ends, on a busy machine too.
SOON = 20


@pytest.fixture
def ctx():
    return devicefusion.SessionContext(STRICT)


@pytest.fixture
def host():
    return devicefusion.SessionContext({"device.selector": "none"})


@pytest.fixture
def device_ctx(ctx):
    """A session whose device is open."""
    if ctx.device() is None:
        pytest.skip("there is no device")
    return ctx


@pytest.fixture
def strict(device_ctx):
    """A session that refuses queries with operators on the host."""
    device_ctx.set("device.fallback", "error")
    return device_ctx


@pytest.fixture(params=["ctx", "host"])
def either(request):
    return request.getfixturevalue(request.param)


def sorted_rows(frame):
    """The rows of a query in an order of their values, NULLs last."""
    rows = [tuple(row.values()) for row in frame.to_pylist()]

    def order(row):
        return [(value is None, 0 if value is None else value) for value in row]

    return sorted(rows, key=order)


def setting(session, name):
    return session.sql(f"SHOW {name}").to_pydict()["value"][0]


def soon(condition):
    """Whether a condition holds before long: threads of queries release memory later."""
    deadline = time.monotonic() + SOON
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return condition()


def settled(session):
    """Waits until no kernels are optimized behind the queries. That takes memory."""

    def optimized():
        return session.report()["programs"]["optimized"]

    if "-cl-opt-disable" in setting(session, "device.compile_options"):
        return
    deadline = time.monotonic() + SOON
    before, since = optimized(), time.monotonic()
    while time.monotonic() < min(since + 4, deadline):
        time.sleep(0.1)
        if optimized() != before:
            before, since = optimized(), time.monotonic()


class Tensor:
    """A tensor of no known library, in memory of NumPy."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def address(array):
    return array.__array_interface__["data"][0]
