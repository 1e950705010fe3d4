# SPDX-License-Identifier: Apache-2.0
"""Sessions: settings, tables of every kind, names, devices and counters."""

import gc

import pyarrow
import pytest

import devicefusion
from conftest import setting, sorted_rows
from devicefusion import SessionContext

NUMBERS = {"x": [1, 2, 3], "s": ["a", None, "c"]}


def numbers():
    return pyarrow.table(NUMBERS)


class Stream:
    """An object of another library, of which only the interface is known."""

    def __init__(self, data):
        self.data = data

    def __arrow_c_stream__(self, requested_schema=None):
        return self.data.__arrow_c_stream__(requested_schema)


# Settings


def test_settings_are_those_of_the_mapping():
    session = SessionContext({"datafusion.execution.batch_size": 77, "device.cost": "always"})
    assert setting(session, "datafusion.execution.batch_size") == "77"
    assert setting(session, "device.cost") == "always"


def test_a_bool_is_a_setting():
    session = SessionContext({"datafusion.execution.parquet.pushdown_filters": True})
    assert setting(session, "datafusion.execution.parquet.pushdown_filters") == "true"
    session.set("datafusion.execution.parquet.pushdown_filters", False)
    assert setting(session, "datafusion.execution.parquet.pushdown_filters") == "false"


def test_settings_of_the_environment_come_before_those_of_the_mapping(monkeypatch):
    monkeypatch.setenv("DATAFUSION_EXECUTION_BATCH_SIZE", "55")
    monkeypatch.setenv("DATAFUSION_DEVICE_MIN_ROWS", "66")
    session = SessionContext({"datafusion.execution.batch_size": 77})
    assert setting(session, "datafusion.execution.batch_size") == "77"
    assert setting(session, "device.min_rows") == "66"


def test_settings_can_change_later(ctx):
    ctx.set("device.min_rows", 5)
    assert setting(ctx, "device.min_rows") == "5"
    ctx.sql("SET device.min_rows = 6")
    assert setting(ctx, "device.min_rows") == "6"
    ctx.sql("RESET device.min_rows")
    assert setting(ctx, "device.min_rows") == "10000"


def test_settings_of_one_session_leave_others_alone(ctx):
    other = SessionContext()
    ctx.set("device.min_rows", 5)
    assert setting(other, "device.min_rows") == "10000"


def test_memory_of_the_host_is_a_setting():
    session = SessionContext({"datafusion.runtime.memory_limit": "100M"})
    assert session.sql("SELECT 1 AS x").to_pydict() == {"x": [1]}
    session.set("datafusion.runtime.memory_limit", "200M")


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("device.cots", "cots"),
        ("datafusion.execution.batch_sizes", "batch_sizes"),
        ("datafusion.runtime.memory_limits", "memory_limits"),
        ("nowhere.x", "nowhere"),
        ("alone", "alone"),
    ],
)
def test_an_unknown_setting_is_a_value_error_with_its_name(ctx, name, part):
    with pytest.raises(ValueError, match=part):
        SessionContext({name: "1"})
    with pytest.raises(ValueError, match=part):
        ctx.set(name, "1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("device.cost", "sometimes"),
        ("device.batch_rows", "many"),
        ("device.enabled", "perhaps"),
        ("device.memory_bytes", "8 potatoes"),
        ("datafusion.execution.batch_size", "many"),
        ("datafusion.execution.batch_size", "0"),
    ],
)
def test_a_bad_value_of_a_setting_is_a_value_error_with_the_value(ctx, name, value):
    with pytest.raises(ValueError, match=value):
        SessionContext({name: value})
    with pytest.raises(ValueError, match=value):
        ctx.set(name, value)


def test_a_refused_value_changes_nothing(ctx):
    with pytest.raises(ValueError):
        ctx.set("device.cost", "sometimes")
    assert setting(ctx, "device.cost") == "always"


def test_the_device_of_a_session_cannot_change_once_it_is_open(device_ctx):
    with pytest.raises(ValueError, match="device is open"):
        device_ctx.set("device.selector", "none")


def test_sql_cannot_set_what_uses_files_and_the_program_can(ctx, tmp_path):
    with pytest.raises(ValueError, match="device.dump_programs"):
        ctx.sql(f"SET device.dump_programs = '{tmp_path}'")
    ctx.set("device.dump_programs", tmp_path)
    assert setting(ctx, "device.dump_programs") == str(tmp_path)


# Devices


def test_each_device_says_what_it_is_or_why_it_cannot_be_used():
    for device in devicefusion.devices():
        assert device.driver in {"cuda", "opencl"}
        if device.problem is None:
            assert device.number >= 0
            assert device.name
            assert device.kind in {"gpu", "cpu", "accelerator"}
            assert device.memory_bytes > 0
            assert device.compute_units > 0
        else:
            assert device.problem


def test_the_devices_of_a_session_are_those_of_the_machine(ctx):
    assert ctx.devices() == devicefusion.devices()


def test_a_device_cannot_change():
    for device in devicefusion.devices():
        with pytest.raises(AttributeError):
            device.name = "another"


def test_the_device_of_a_session_is_one_of_the_machine(device_ctx):
    assert any(device.name in device_ctx.device() for device in device_ctx.devices() if device.name)


def test_a_session_without_a_device_runs_on_the_host(host):
    assert host.device() is None
    assert host.report() is None
    frame = host.sql("SELECT sum(value) AS s FROM generate_series(1, 100)")
    assert frame.to_pydict() == {"s": [5050]}


def test_an_absent_device_is_a_device_error():
    session = SessionContext({"device.selector": "no such device"})
    with pytest.raises(devicefusion.DeviceError, match="no such device"):
        session.device()


def test_a_query_of_a_session_with_a_wrong_selector_is_a_device_error():
    session = SessionContext({"device.selector": "no such device", "device.cost": "always"})
    with pytest.raises(devicefusion.DeviceError, match="no such device"):
        session.sql("SELECT sum(value) FROM generate_series(1, 100000)").collect()


# Counters


def launches(report):
    return sum(kernel["launches"] for kernel in report["kernels"])


def test_there_is_no_report_before_a_device_is_open(ctx):
    assert ctx.report() is None


def test_counters_rise_when_a_query_runs_on_the_device(device_ctx):
    before = device_ctx.report()
    query = "SELECT value % 3 AS k, sum(value) AS s FROM generate_series(1, 100000) GROUP BY k"
    device_ctx.sql(query).collect()
    after = device_ctx.report()
    assert launches(after) > launches(before)
    assert after["copies"]["bytes_up"] >= before["copies"]["bytes_up"] + 100000
    assert after["copies"]["bytes_down"] > before["copies"]["bytes_down"]
    assert after["memory"]["allocations"] > before["memory"]["allocations"]
    assert 0 < after["memory"]["peak"] <= after["memory"]["limit"]


def test_a_query_of_the_host_launches_no_kernels(device_ctx):
    before = device_ctx.report()
    device_ctx.set("device.enabled", False)
    device_ctx.sql("SELECT sum(value) FROM generate_series(1, 100000)").collect()
    assert launches(device_ctx.report()) == launches(before)


def test_the_report_names_the_device_and_its_kernels(device_ctx):
    device_ctx.sql("SELECT sum(value) FROM generate_series(1, 100000)").collect()
    report = device_ctx.report()
    assert report["device"]["name"] in device_ctx.device()
    assert report["device"]["driver"] in {"cuda", "opencl"}
    assert all(kernel["name"] and kernel["launches"] > 0 for kernel in report["kernels"])
    programs = report["programs"]
    made = programs["compiled"] + programs["cache_hits_memory"] + programs["cache_hits_disk"]
    assert made > 0


# Tables of objects


def of_pandas():
    return pytest.importorskip("pandas").DataFrame(NUMBERS)


def of_polars():
    return pytest.importorskip("polars").DataFrame(NUMBERS)


def of_duckdb():
    table = numbers()
    return pytest.importorskip("duckdb").connect().from_arrow(table)


def of_nanoarrow():
    return pytest.importorskip("nanoarrow").ArrayStream(numbers())


KINDS = {
    "table": numbers,
    "batch": lambda: numbers().to_batches()[0],
    "reader": lambda: numbers().to_reader(),
    "struct_array": lambda: pyarrow.StructArray.from_arrays(
        [numbers()["x"].combine_chunks(), numbers()["s"].combine_chunks()], names=["x", "s"]
    ),
    "mapping_of_lists": lambda: dict(NUMBERS),
    "mapping_of_arrays": lambda: {name: pyarrow.array(column) for name, column in NUMBERS.items()},
    "mapping_of_chunked_arrays": lambda: {name: numbers()[name] for name in NUMBERS},
    "stream_alone": lambda: Stream(numbers()),
    "pandas": of_pandas,
    "polars": of_polars,
    "duckdb": of_duckdb,
    "nanoarrow": of_nanoarrow,
    "dataframe": lambda: SessionContext().from_pydict(NUMBERS),
    "stream_of_a_dataframe": lambda: SessionContext().from_pydict(NUMBERS).execute_stream(),
}

of_kinds = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
EXPECTED = [(1, "a"), (2, None), (3, "c")]


@of_kinds
def test_an_object_with_rows_is_a_table(either, make):
    either.register_table("t", make())
    assert sorted_rows(either.sql("SELECT x, s FROM t WHERE x > 0")) == EXPECTED


@of_kinds
def test_an_object_with_rows_is_a_table_of_the_device(device_ctx, make):
    device_ctx.register_device_table("t", make())
    assert sorted_rows(device_ctx.sql("SELECT x, s FROM t WHERE x > 0")) == EXPECTED


@of_kinds
def test_an_object_with_rows_is_a_result(either, make):
    assert sorted_rows(either.from_arrow(make())) == EXPECTED


def test_arrays_of_numpy_are_columns(either):
    numpy = pytest.importorskip("numpy")
    columns = {"x": numpy.arange(4), "y": numpy.array([0.5, 1.5, 2.5, 3.5], numpy.float32)}
    either.register_table("t", columns)
    frame = either.sql("SELECT sum(x) AS x, max(y) AS y FROM t")
    assert frame.to_pylist() == [{"x": 6, "y": 3.5}]


def test_an_array_alone_is_a_table_with_the_column_value(either):
    numpy = pytest.importorskip("numpy")
    either.register_table("arrow", pyarrow.array([1, None, 3]))
    either.register_table("tensor", numpy.array([1, 2, 3]))
    for name, expected in [("arrow", 4), ("tensor", 6)]:
        assert either.sql(f"SELECT sum(value) AS s FROM {name}").to_pydict() == {"s": [expected]}


def test_a_table_without_rows_has_its_columns(either):
    either.register_table("t", numbers().slice(0, 0))
    table = either.table("t").to_arrow_table()
    assert table.num_rows == 0
    assert table.schema.equals(numbers().schema)
    totals = either.sql("SELECT count(*) AS n, sum(x) AS s FROM t")
    assert totals.to_pylist() == [{"n": 0, "s": None}]


def test_partitions_of_batches_are_one_table(either):
    batches = numbers().to_batches(max_chunksize=1)
    either.register_record_batches("t", [batches[:1], batches[1:]])
    assert sorted_rows(either.table("t")) == EXPECTED


def test_partitions_may_be_iterators(either):
    batches = numbers().to_batches(max_chunksize=1)
    either.register_record_batches("t", (iter([batch]) for batch in batches))
    assert either.table("t").count() == 3


def test_batches_with_other_columns_are_refused(either):
    other = pyarrow.record_batch({"y": [1.0]})
    with pytest.raises(ValueError):
        either.register_record_batches("t", [numbers().to_batches(), [other]])
    with pytest.raises(ValueError, match="record batch"):
        either.register_record_batches("t", [])
    with pytest.raises(ValueError, match="register_table takes it"):
        either.register_record_batches("t", numbers())
    assert not either.table_exist("t")
    either.register_record_batches("t", [numbers(), numbers()])
    assert either.table("t").count() == 2 * numbers().num_rows


def test_a_reader_gives_its_rows_to_one_query(either):
    either.register_table("t", numbers().to_reader())
    assert either.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [6]}
    with pytest.raises(devicefusion.ExecutionError, match="read_all"):
        either.sql("SELECT sum(x) AS s FROM t").collect()


def test_other_tables_give_their_rows_to_each_query(either):
    either.register_table("t", numbers())
    joined = "SELECT count(*) AS n FROM t AS a JOIN t AS b ON a.x = b.x"
    for _ in range(3):
        assert either.sql(joined).to_pydict() == {"n": [3]}


def test_a_table_outlives_the_name_of_its_object(either):
    rows = numbers()
    either.register_table("t", rows)
    del rows
    gc.collect()
    assert sorted_rows(either.table("t")) == EXPECTED


@pytest.mark.parametrize("value", [7, "text", None, object(), b"bytes"])
def test_an_object_without_rows_is_a_type_error(either, value):
    with pytest.raises(TypeError, match=type(value).__name__):
        either.register_table("t", value)
    with pytest.raises(TypeError, match=type(value).__name__):
        either.from_arrow(value)


def test_columns_of_several_lengths_are_refused_with_their_names(either):
    with pytest.raises(ValueError, match="short"):
        either.register_table("t", {"long": [1, 2, 3], "short": [1]})


def test_a_column_that_is_no_array_is_refused_with_its_name(either):
    with pytest.raises(TypeError, match="wrong"):
        either.register_table("t", {"right": [1], "wrong": object()})


def test_arrays_that_are_no_columns_are_refused_with_their_names(either):
    numpy = pytest.importorskip("numpy")
    with pytest.raises(ValueError, match="matrix.*one dimension"):
        either.register_table("t", {"matrix": numpy.zeros((2, 2))})
    with pytest.raises(ValueError, match="sparse.*ascontiguousarray"):
        either.register_table("t", {"sparse": numpy.arange(10)[::2]})


# Names


def test_the_catalog_lists_tables(ctx):
    ctx.register_table("t", numbers())
    ctx.sql("CREATE SCHEMA archive")
    ctx.register_table("archive.old", numbers())
    schemas = ctx.catalog()["datafusion"]
    assert schemas["public"] == ["t"]
    assert schemas["archive"] == ["old"]
    assert ctx.sql("SELECT sum(x) AS s FROM archive.old").to_pydict() == {"s": [6]}


def test_a_session_shows_itself(ctx):
    ctx.register_table("t", numbers())
    assert repr(ctx).startswith("SessionContext(")


def test_tables_of_one_session_are_not_in_another(ctx, host):
    ctx.register_table("t", numbers())
    assert not host.table_exist("t")


def test_a_missing_table_is_a_key_error_with_its_name(ctx):
    assert not ctx.table_exist("missing")
    for call in [ctx.table, ctx.deregister_table]:
        with pytest.raises(KeyError, match="missing"):
            call("missing")


def test_a_table_of_a_missing_schema_is_a_key_error(ctx):
    with pytest.raises(KeyError, match="nowhere"):
        ctx.table("nowhere.t")


def test_a_taken_name_is_a_value_error_until_the_table_is_deregistered(ctx):
    ctx.register_table("t", numbers())
    for register in [ctx.register_table, ctx.register_device_table]:
        with pytest.raises(ValueError, match="t exists already"):
            register("t", {"y": [1]})
    with pytest.raises(ValueError, match="t exists already"):
        ctx.register_record_batches("t", [numbers().to_batches()])
    with pytest.raises(ValueError, match="t exists already"):
        ctx.register_csv("t", "/nowhere.csv")
    ctx.deregister_table("t")
    assert not ctx.table_exist("t")
    ctx.register_table("t", {"y": [1]})
    assert ctx.table("t").to_pydict() == {"y": [1]}


def test_a_view_takes_its_name(ctx):
    ctx.sql("CREATE VIEW v AS SELECT 1 AS x")
    assert ctx.table_exist("v")
    with pytest.raises(ValueError, match="v exists already"):
        ctx.register_table("v", numbers())


def test_names_without_quotes_are_of_one_case(ctx):
    ctx.register_table("Prices", numbers())
    assert ctx.table_exist("prices") and ctx.table_exist("PRICES")
    assert ctx.sql("SELECT count(*) AS n FROM pRiCeS").to_pydict() == {"n": [3]}
    with pytest.raises(ValueError, match="exists already"):
        ctx.register_table("PRICES", numbers())


def test_names_in_quotes_keep_their_case(ctx):
    ctx.register_table('"Prices"', numbers())
    assert ctx.table('"Prices"').count() == 3
    assert not ctx.table_exist("prices")
    assert ctx.sql('SELECT count(*) AS n FROM "Prices"').to_pydict() == {"n": [3]}


def test_a_planned_query_reads_its_table_after_that_is_deregistered(either):
    either.register_table("t", numbers())
    frame = either.sql("SELECT sum(x) AS s FROM t")
    either.deregister_table("t")
    either.register_table("t", {"x": [100]})
    assert frame.to_pydict() == {"s": [6]}
    assert either.sql("SELECT sum(x) AS s FROM t").to_pydict() == {"s": [100]}


def test_table_gives_all_rows(either):
    either.register_table("t", numbers())
    assert either.table("t").to_arrow_table().equals(numbers())


def test_a_table_of_the_schema_device_is_resident(device_ctx):
    device_ctx.register_table("device.t", numbers())
    assert device_ctx.catalog()["datafusion"]["device"] == ["t"]
    assert sorted_rows(device_ctx.table("device.t")) == EXPECTED
    plan = device_ctx.sql("SELECT sum(x) FROM device.t").explain()
    assert "DeviceScanExec" in plan and "HostToDeviceExec" not in plan
    device_ctx.deregister_table("device.t")
    with pytest.raises(KeyError):
        device_ctx.table("device.t")


# Data as results


def test_from_arrow_gives_the_source(either):
    assert either.from_arrow(numbers()).to_arrow_table().equals(numbers())


def test_from_pydict_gives_the_source(either):
    assert either.from_pydict(NUMBERS).to_pydict() == NUMBERS


def test_from_pylist_gives_the_source(either):
    rows = numbers().to_pylist()
    assert either.from_pylist(rows).to_pylist() == rows


def test_from_pylist_fills_missing_values(either):
    frame = either.from_pylist([{"x": 1, "y": "a"}, {"x": 2, "y": None}, {"x": 3}])
    assert frame.to_pydict() == {"x": [1, 2, 3], "y": ["a", None, None]}


def test_from_pandas_gives_the_source(either):
    pandas = pytest.importorskip("pandas")
    source = pandas.DataFrame(
        {
            "i": [1, 2, 3],
            "f": [0.5, float("nan"), 2.5],
            "b": [True, False, True],
            "s": ["a", "b", "c"],
            "t": pandas.to_datetime(["2024-02-29 12:00", "1970-01-01 00:00", "2100-12-31 23:59"]),
            "c": pandas.Categorical(["low", "high", "low"]),
        }
    )
    expected = pyarrow.Table.from_pandas(source, preserve_index=False).to_pandas()
    pandas.testing.assert_frame_equal(either.from_pandas(source).to_pandas(), expected)


def test_from_pandas_keeps_an_index_that_is_no_count_of_rows(either):
    pandas = pytest.importorskip("pandas")
    source = pandas.DataFrame({"x": [1, 2]}, index=pandas.Index(["first", "second"], name="key"))
    assert either.from_pandas(source).to_pydict() == {"x": [1, 2], "key": ["first", "second"]}
    assert either.from_pandas(source.reset_index(drop=True)).to_pydict() == {"x": [1, 2]}


def test_partition_columns_are_names(ctx, tmp_path):
    with pytest.raises(TypeError, match="names"):
        ctx.register_parquet("t", tmp_path, [("year", pyarrow.int32())])


def test_variables_are_found_within_comprehensions(ctx):
    numbers = {"x": (1, 2, 3)}
    assert [ctx.sql(f"SELECT sum(x) + {n} AS s FROM numbers").to_pydict() for n in (0, 1)] == [
        {"s": [6]},
        {"s": [7]},
    ]


class Restarted:
    """Gives its rows to each reader, and has no length."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


def test_an_object_without_a_length_is_read_in_each_query(either):
    source = Restarted(pyarrow.table({"x": [1, 2, 3]}))
    either.register_table("t", source)
    for _ in range(2):
        joined = either.sql("SELECT count(*) AS n FROM t AS a JOIN t AS b ON a.x <= b.x")
        assert joined.to_pydict() == joined.to_pydict() == {"n": [6]}


def test_from_polars_gives_the_source(either):
    polars = pytest.importorskip("polars")
    testing = pytest.importorskip("polars.testing")
    source = polars.DataFrame(
        {
            "i": [1, None, 3],
            "f": [0.5, 1.5, None],
            "s": ["a", None, "a string of more than twelve bytes"],
            "l": [[1, 2], None, []],
            "d": polars.Series(["2024-02-29", None, "1970-01-01"]).str.to_date(),
        }
    )
    testing.assert_frame_equal(either.from_polars(source).to_polars(), source)


def test_results_of_data_can_be_queried_further(either):
    frame = either.from_pydict({"x": [1, 2, 3]})
    assert either.sql("SELECT sum(x) AS s FROM frame").to_pydict() == {"s": [6]}


def test_a_source_with_a_name_is_a_table_too(ctx):
    rows = ctx.from_pydict({"x": [1, 2]}, name="named")
    assert rows.to_pydict() == {"x": [1, 2]}
    assert ctx.sql("SELECT sum(x) AS s FROM named").to_pydict() == {"s": [3]}
    with pytest.raises(ValueError, match="named"):
        ctx.from_pylist([{"x": 1}], "named")
