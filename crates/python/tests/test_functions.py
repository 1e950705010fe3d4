# SPDX-License-Identifier: Apache-2.0
"""SQL functions and aggregates that Python computes."""

import asyncio
import threading

import pyarrow
import pyarrow.compute
import pytest

import devicefusion
from conftest import sorted_rows
from devicefusion import Accumulator, SessionContext, udaf, udf

INT, FLOAT, TEXT = pyarrow.int64(), pyarrow.float64(), pyarrow.string()


class Refused(Exception):
    """An exception of the program, with more than a text."""

    def __init__(self, text, code):
        super().__init__(text, code)
        self.code = code


@pytest.fixture
def session(either):
    either.register_table("t", {"x": [1, 2, None, 4], "s": ["tea", None, "rye", "naïve"]})
    return either


def twice(values):
    return pyarrow.compute.multiply(values, 2)


def values_of(session, query):
    return [row[0] for row in sorted_rows(session.sql(query))]


def partitioned(session, name="parts", rows=4000, partitions=4):
    """A table `parts` with values from 1 on, so that each partition is aggregated on its own."""
    table = pyarrow.table({"x": range(1, rows + 1), "k": [n % 3 for n in range(rows)]})
    batches = table.to_batches(max_chunksize=rows // partitions)
    session.register_record_batches(name, [[batch] for batch in batches])


@pytest.fixture
def parts():
    session = SessionContext({"datafusion.execution.target_partitions": 4, "device.cost": "always"})
    partitioned(session)
    return session


# Scalar functions


def test_a_function_computes_numbers_and_passes_nulls(session):
    session.register_udf(udf(twice, [INT], INT))
    assert values_of(session, "SELECT twice(x) AS y FROM t") == [2, 4, 8, None]


def test_a_function_computes_strings(session):
    session.register_udf(udf(pyarrow.compute.utf8_reverse, [TEXT], TEXT, name="mirrored"))
    mirrored = values_of(session, "SELECT mirrored(s) AS m FROM t")
    assert mirrored == ["aet", "evïan", "eyr", None]


def test_a_function_gets_arrays_of_its_types(session):
    seen = []

    def spy(number, text):
        seen.append((number.type, text.type, len(number), len(text)))
        return number

    session.register_udf(udf(spy, [FLOAT, TEXT], FLOAT))
    session.sql("SELECT spy(x, s) AS y FROM t").collect()
    assert seen
    assert {types[:2] for types in seen} == {(FLOAT, TEXT)}
    assert sum(lengths[2] for lengths in seen) == sum(lengths[3] for lengths in seen) == 4


def test_a_function_sees_nulls(session):
    session.register_udf(udf(lambda values: values.is_null(), [INT], pyarrow.bool_(), name="lacks"))
    assert values_of(session, "SELECT x FROM t WHERE lacks(x)") == [None]


def test_a_function_may_give_lists_of_python_and_chunked_arrays(session):
    def plain(values):
        return [None if value is None else f"<{value}>" for value in values.to_pylist()]

    def chunked(values):
        return pyarrow.chunked_array([values.slice(0, 1), values.slice(1)])

    session.register_udf(udf(plain, [INT], TEXT))
    session.register_udf(udf(chunked, [INT], INT))
    assert values_of(session, "SELECT plain(x) AS y FROM t") == ["<1>", "<2>", "<4>", None]
    assert values_of(session, "SELECT chunked(x) AS y FROM t") == [1, 2, 4, None]


def test_a_function_of_constants_and_columns_gets_arrays_of_one_length(session):
    session.register_udf(udf(pyarrow.compute.add, [INT, INT], INT, name="plus"))
    assert values_of(session, "SELECT plus(x, 100) AS y FROM t") == [101, 102, 104, None]
    assert values_of(session, "SELECT plus(100, 1) AS y FROM t") == [101] * 4
    assert session.sql("SELECT plus($1, $2) AS y", [1, 2]).to_pydict() == {"y": [3]}


def test_a_function_without_arguments_gives_a_value_for_each_row(session):
    session.register_udf(udf(lambda: pyarrow.array([42]), [], INT, name="answer"))
    assert session.sql("SELECT answer() AS y").to_pydict() == {"y": [42]}
    assert values_of(session, "SELECT answer() AS y FROM t") == [42] * 4
    assert values_of(session, "SELECT x FROM t WHERE x < answer()") == [1, 2, 4]


def test_a_function_is_in_all_parts_of_a_query(session):
    session.register_udf(udf(twice, [INT], INT))
    for query, expected in [
        ("SELECT twice(twice(x)) AS y FROM t", [4, 8, 16, None]),
        ("SELECT x FROM t WHERE twice(x) > 3", [2, 4]),
        ("SELECT sum(twice(x)) AS y FROM t", [14]),
        ("SELECT count(*) AS n FROM t GROUP BY twice(x) % 4", [1, 1, 2]),
        ("SELECT twice(s) AS y FROM (SELECT sum(x) AS s FROM t)", [14]),
        ("SELECT a.x FROM t AS a JOIN t AS b ON a.x = twice(b.x)", [2, 4]),
        ("SELECT max(x) AS m FROM t HAVING twice(max(x)) = 8", [4]),
    ]:
        assert values_of(session, query) == expected, query


def test_a_function_of_many_rows_sees_each_row_once(either):
    lock, seen = threading.Lock(), []

    def count(values):
        with lock:
            seen.append(len(values))
        return values

    either.register_udf(udf(count, [INT], INT, name="counted"))
    query = "SELECT sum(counted(value)) AS s FROM generate_series(1, 100000)"
    assert either.sql(query).to_pydict() == {"s": [5000050000]}
    assert sum(seen) == 100000


def test_a_later_function_replaces_one_of_its_name(session):
    session.register_udf(udf(twice, [INT], INT, name="f"))
    session.register_udf(udf(lambda values: values, [INT], INT, name="f"))
    assert values_of(session, "SELECT f(x) AS y FROM t") == [1, 2, 4, None]


def test_a_function_replaces_a_built_in_one_of_its_name(session):
    session.register_udf(udf(twice, [INT], INT, name="abs"))
    assert values_of(session, "SELECT abs(x) AS y FROM t") == [2, 4, 8, None]


def test_a_function_of_one_session_is_not_in_another(session):
    session.register_udf(udf(twice, [INT], INT))
    with pytest.raises(ValueError, match="twice"):
        SessionContext().sql("SELECT twice(1)")


@pytest.mark.parametrize("volatility", ["immutable", "stable", "volatile"])
def test_a_function_has_a_volatility(session, volatility):
    session.register_udf(udf(twice, [INT], INT, volatility))
    assert values_of(session, "SELECT twice(x) AS y FROM t WHERE x = 1") == [2]


def test_an_unknown_volatility_is_a_value_error_that_lists_them(session):
    with pytest.raises(ValueError, match="sometimes.*immutable.*stable.*volatile"):
        session.register_udf(udf(twice, [INT], INT, "sometimes"))


def test_types_of_a_function_are_types_of_arrow(session):
    with pytest.raises((TypeError, AttributeError)):
        session.register_udf(udf(twice, [int], int))


def test_wrong_arguments_of_a_function_are_refused_when_planned(session):
    session.register_udf(udf(twice, [INT], INT))
    for call in ["twice()", "twice(x, x)", "twice(named_struct('a', 1))"]:
        with pytest.raises((ValueError, RuntimeError), match="twice"):
            session.sql(f"SELECT {call} FROM t").collect()


# Exceptions of functions


def test_an_exception_of_a_function_comes_back_as_it_was(session):
    raised = Refused("no rows today", 7)

    def refuse(values):
        raise raised

    session.register_udf(udf(refuse, [INT], INT))
    frame = session.sql("SELECT refuse(x) AS y FROM t")
    for call in [frame.to_arrow_table, frame.to_pylist, frame.collect, frame.show, frame.profile]:
        with pytest.raises(Refused, match="no rows today") as caught:
            call()
        assert caught.value is raised
        assert caught.value.code == 7
    with pytest.raises(Refused) as caught:
        list(frame.execute_stream())
    assert caught.value is raised
    with pytest.raises(Refused) as caught:
        session.sql("SELECT refuse(1) AS y").collect()
    assert caught.value is raised
    with pytest.raises(Refused) as caught:
        session.sql("CREATE TABLE u AS SELECT refuse(x) AS y FROM t")
    assert caught.value is raised
    assert session.sql("SELECT 1 AS x").to_pydict() == {"x": [1]}


def test_an_exception_shows_the_line_of_the_function(session):
    def refuse(values):
        return values[999]

    session.register_udf(udf(refuse, [INT], INT))
    with pytest.raises(IndexError) as caught:
        session.sql("SELECT refuse(x) AS y FROM t").collect()
    assert "refuse" in [entry.name for entry in caught.traceback]


def test_an_awaited_query_raises_the_exception_of_its_function(session):
    raised = Refused("not now", 1)

    def refuse(values):
        raise raised

    async def main():
        await session.sql("SELECT refuse(x) AS y FROM t")

    session.register_udf(udf(refuse, [INT], INT))
    with pytest.raises(Refused) as caught:
        asyncio.run(main())
    assert caught.value is raised


def test_an_exception_in_the_middle_of_many_rows_comes_back(either):
    raised = Refused("late", 2)

    def late(values):
        if pyarrow.compute.max(values).as_py() > 90000:
            raise raised
        return values

    either.register_udf(udf(late, [INT], INT))
    query = "SELECT sum(late(value)) AS s FROM generate_series(1, 100000)"
    with pytest.raises(Refused) as caught:
        either.sql(query).collect()
    assert caught.value is raised


def test_values_of_another_type_are_refused(session):
    texts = udf(lambda values: pyarrow.array(["a"] * len(values)), [INT], INT, name="f")
    session.register_udf(texts)
    with pytest.raises(ValueError, match="'a'"):
        session.sql("SELECT f(x) FROM t").collect()
    session.register_udf(udf(lambda values: None, [INT], INT, name="g"))
    with pytest.raises((TypeError, ValueError)):
        session.sql("SELECT g(x) FROM t").collect()


def test_another_number_of_values_is_refused_with_the_name_of_the_function(session):
    for name, result in [("shorter", [1, 2]), ("longer", [1] * 9), ("empty", [])]:
        session.register_udf(udf(lambda values, result=result: result, [INT], INT, name=name))
        with pytest.raises(devicefusion.ExecutionError, match=f"{name}.*4 values.*{len(result)}"):
            session.sql(f"SELECT {name}(x) FROM t").collect()


def test_a_function_cannot_run_a_query_of_its_own(session):
    def query(values):
        return session.table("t").to_arrow_table()["x"]

    session.register_udf(udf(query, [INT], INT, name="inner_query"))
    with pytest.raises(RuntimeError, match="cannot wait for another query"):
        session.sql("SELECT inner_query(x) FROM t").collect()


# Plans


def test_explain_names_the_function_as_the_reason_for_the_host(device_ctx):
    device_ctx.register_table("t", {"x": [1, 2], "s": ["a", "b"]})
    device_ctx.register_udf(udf(twice, [INT], INT))
    query = "SELECT twice(n) AS y FROM (SELECT s, sum(x) AS n FROM t GROUP BY s)"
    plan = device_ctx.sql(query).explain()
    assert "host=[the function twice is not supported on the device]" in plan
    assert "DeviceAggregateExec" in plan
    assert values_of(device_ctx, query) == [2, 4]


def test_explain_names_the_aggregate_as_the_reason_for_the_host(device_ctx):
    device_ctx.register_table("t", {"x": [1, 2]})
    device_ctx.register_udaf(spread())
    plan = device_ctx.sql("SELECT spread(x) FROM t").explain()
    assert "host=[the aggregate spread is not supported on the device]" in plan


def test_a_session_without_fallback_refuses_functions(strict):
    strict.register_udf(udf(twice, [INT], INT))
    query = "SELECT twice(value) FROM generate_series(1, 9)"
    with pytest.raises((ValueError, RuntimeError), match="twice.*device.fallback"):
        strict.sql(query).collect()


# Aggregates


class Spread(Accumulator):
    """The largest value less the smallest one."""

    def __init__(self):
        self.low, self.high, self.merged = None, None, 0

    def update(self, values):
        bounds = pyarrow.compute.min_max(values).as_py()
        self.add(bounds["min"], bounds["max"])

    def merge(self, states):
        for low, high in zip(states[0].to_pylist(), states[1].to_pylist(), strict=True):
            self.add(low, high)
            self.merged += 1
        Spread.most_merged = max(Spread.most_merged, self.merged)

    def add(self, low, high):
        if low is not None:
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)

    def state(self):
        return [self.low, pyarrow.scalar(self.high, INT)]

    def evaluate(self):
        return None if self.low is None else pyarrow.scalar(self.high - self.low)

    most_merged = 0


def spread():
    return udaf(Spread, [INT], INT, [INT, INT])


def test_an_aggregate_has_the_name_of_its_class(session):
    session.register_udaf(spread())
    assert session.sql("SELECT spread(x) AS y FROM t").to_pydict() == {"y": [3]}


def test_an_aggregate_of_no_values_is_what_it_says(session):
    session.register_udaf(spread())
    assert session.sql("SELECT spread(x) AS y FROM t WHERE x > 9").to_pydict() == {"y": [None]}
    assert session.sql("SELECT spread(x) AS y FROM t WHERE x IS NULL").to_pydict() == {"y": [None]}


def test_states_of_partitions_are_merged(parts):
    parts.register_udaf(spread())
    Spread.most_merged = 0
    assert parts.sql("SELECT spread(x) AS y FROM parts").to_pydict() == {"y": [3999]}
    assert Spread.most_merged > 1


def test_states_of_groups_are_merged(parts):
    parts.register_udaf(spread())
    Spread.most_merged = 0
    rows = sorted_rows(parts.sql("SELECT k, spread(x) AS y FROM parts GROUP BY k"))
    assert rows == [(0, 3999), (1, 3996), (2, 3996)]
    assert Spread.most_merged > 1


def test_an_aggregate_stands_beside_built_in_ones_and_has_filters(parts):
    parts.register_udaf(spread())
    columns = "max(x) - min(x) AS a, spread(x) AS b, spread(x) FILTER (WHERE x < 11) AS c"
    answer = parts.sql(f"SELECT {columns} FROM parts")
    assert answer.to_pylist() == [{"a": 3999, "b": 3999, "c": 9}]


def test_an_aggregate_is_a_window_function(session):
    session.register_table("w", {"x": [1, 2, 4, 8]})
    session.register_udaf(spread())
    query = "SELECT x, spread(x) OVER (ORDER BY x) AS y FROM w ORDER BY x"
    assert session.sql(query).to_pydict()["y"] == [0, 1, 3, 7]


class Mean(Accumulator):
    """A mean with weights."""

    def __init__(self):
        self.total = self.weight = 0.0

    def update(self, values, weights):
        for value, weight in zip(values.to_pylist(), weights.to_pylist(), strict=True):
            self.total += value * weight
            self.weight += weight

    def merge(self, states):
        self.total += pyarrow.compute.sum(states[0]).as_py()
        self.weight += pyarrow.compute.sum(states[1]).as_py()

    def state(self):
        return [self.total, self.weight]

    def evaluate(self):
        return self.total / self.weight


def test_an_aggregate_may_have_several_arguments(parts):
    parts.register_udaf(udaf(Mean, [FLOAT, FLOAT], FLOAT, [FLOAT, FLOAT], name="weighted"))
    total = sum(x * x for x in range(1, 4001)) / sum(range(1, 4001))
    answer = parts.sql("SELECT weighted(x, x) AS y FROM parts").to_pydict()["y"]
    assert answer == [pytest.approx(total)]


def test_a_function_may_make_the_accumulators(session):
    class Power(Spread):
        def __init__(self, exponent):
            super().__init__()
            self.exponent = exponent

        def evaluate(self):
            return (self.high - self.low) ** self.exponent

    session.register_udaf(udaf(lambda: Power(3), [INT], INT, [INT, INT], name="cubed"))
    assert session.sql("SELECT cubed(x) AS y FROM t").to_pydict() == {"y": [27]}


def test_an_aggregate_of_strings_has_strings_as_state(parts):
    class Joined(Accumulator):
        def __init__(self):
            self.parts = []

        def update(self, values):
            self.parts += values.to_pylist()

        def merge(self, states):
            for part in states[0].to_pylist():
                self.parts += part

        def state(self):
            return [self.parts]

        def evaluate(self):
            return "".join(sorted(self.parts))

    listed = pyarrow.list_(TEXT)
    parts.register_udaf(udaf(Joined, [TEXT], TEXT, [listed]))
    query = "SELECT joined(CAST(x AS VARCHAR)) AS y FROM parts WHERE x % 1000 = 7"
    assert parts.sql(query).to_pydict() == {"y": ["1007200730077"]}


@pytest.mark.parametrize("method", ["__init__", "update", "merge", "state", "evaluate"])
def test_an_exception_of_an_accumulator_comes_back_as_it_was(parts, method):
    raised = Refused("no state", 3)

    def refuse(self, *arguments):
        raise raised

    failing = type("Failing", (Spread,), {method: refuse})
    parts.register_udaf(udaf(failing, [INT], INT, [INT, INT]))
    for query in ["SELECT failing(x) FROM parts", "SELECT k, failing(x) FROM parts GROUP BY k"]:
        with pytest.raises(Refused) as caught:
            parts.sql(query).collect()
        assert caught.value is raised


def test_a_state_of_another_length_is_refused(parts):
    class Short(Spread):
        def state(self):
            return [1]

    parts.register_udaf(udaf(Short, [INT], INT, [INT, INT]))
    with pytest.raises(ValueError, match="2 values.*1"):
        parts.sql("SELECT short(x) FROM parts").collect()


def test_a_result_of_another_type_is_refused(session):
    class Wrong(Spread):
        def evaluate(self):
            return "text"

    session.register_udaf(udaf(Wrong, [INT], INT, [INT, INT]))
    with pytest.raises((TypeError, ValueError), match="text"):
        session.sql("SELECT wrong(x) FROM t").collect()


def test_an_accumulator_has_all_methods():
    class Unfinished(Accumulator):
        def update(self, values):
            pass

    session = SessionContext()
    session.register_udaf(udaf(Unfinished, [INT], INT, [INT]))
    with pytest.raises(TypeError, match="abstract"):
        session.sql("SELECT unfinished(value) FROM generate_series(1, 3)").collect()


def test_a_function_needs_a_callable_and_types_of_pyarrow():
    with pytest.raises(TypeError, match="not a int"):
        devicefusion.udf(5, [], pyarrow.int64())
    with pytest.raises(TypeError, match="pyarrow.int64"):
        devicefusion.udf(len, ["int"], pyarrow.int64())


def test_functions_and_types_are_checked_where_they_are_given(ctx):
    integer = pyarrow.int64()
    for register in (ctx.register_udf, ctx.register_udaf):
        with pytest.raises(TypeError, match="needs what uda?f returns"):
            register(lambda x: x)
    with pytest.raises(ValueError, match="name of a lambda"):
        devicefusion.udf(lambda x: x, [integer], integer)
    with pytest.raises(TypeError, match="sequence of input types"):
        devicefusion.udf(abs, integer, integer)
