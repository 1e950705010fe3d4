# SPDX-License-Identifier: Apache-2.0
"""Files: written and read back, registered, and found by their names."""

import datetime
import decimal
import gzip
import json
import pathlib

import pyarrow
import pyarrow.csv
import pyarrow.dataset
import pyarrow.ipc
import pyarrow.parquet
import pytest

import devicefusion
from conftest import sorted_rows
from devicefusion import SessionContext

ROWS = [(1, "tea", 3.5), (2, None, 2.25), (3, 'naïve, "quoted"\n', None)]


@pytest.fixture
def table():
    n, item, price = zip(*ROWS, strict=True)
    columns = {"n": pyarrow.array(n), "item": pyarrow.array(item), "price": pyarrow.array(price)}
    return pyarrow.table(columns)


@pytest.fixture
def frame(either, table):
    return either.from_arrow(table)


def long(number):
    """Avro's form of an integer."""
    number = (number << 1) ^ (number >> 63)
    octets = bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    octets.append(number)
    return bytes(octets)


def sized(octets):
    return long(len(octets)) + octets


def write_avro(path, rows):
    fields = [{"name": "n", "type": "long"}, {"name": "item", "type": ["null", "string"]}]
    schema = {"type": "record", "name": "row", "fields": fields}
    metadata = {"avro.schema": json.dumps(schema), "avro.codec": "null"}
    pairs = b"".join(sized(key.encode()) + sized(text.encode()) for key, text in metadata.items())
    sync = bytes(range(16))
    records = b"".join(
        long(n) + (long(0) if item is None else long(1) + sized(item.encode())) for n, item in rows
    )
    block = long(len(rows)) + sized(records) + sync
    path.write_bytes(b"Obj\x01" + long(len(metadata)) + pairs + long(0) + sync + block)


def write_arrow(path, table):
    with pyarrow.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


# Written and read back


def test_parquet_is_written_and_read_back(either, frame, table, tmp_path):
    path = tmp_path / "rows.parquet"
    assert frame.write_parquet(path) == 3
    assert pyarrow.parquet.read_table(path).to_pylist() == table.to_pylist()
    assert sorted_rows(either.read_parquet(path)) == ROWS


def test_csv_is_written_and_read_back(either, frame, tmp_path):
    path = tmp_path / "rows.csv"
    assert frame.write_csv(path) == 3
    assert path.read_text(encoding="utf-8").startswith("n,item,price\n1,tea,3.5\n")
    rows = either.read_csv(path).to_pylist()
    assert rows[0] == {"n": 1, "item": "tea", "price": 3.5}
    assert [row["price"] for row in rows] == [3.5, 2.25, None]
    assert rows[2]["item"] == ROWS[2][1]


def test_json_is_written_and_read_back(either, frame, tmp_path):
    path = tmp_path / "rows.json"
    assert frame.write_json(path) == 3
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(row["n"], row.get("item"), row.get("price")) for row in rows] == ROWS
    read = either.read_json(path).to_pylist()
    assert [(row["n"], row["item"], row["price"]) for row in read] == ROWS


def test_types_of_parquet_come_back(either, tmp_path):
    day, moment = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 34, 56, 789012)
    source = pyarrow.table(
        {
            "d": pyarrow.array([decimal.Decimal("1.25"), None], pyarrow.decimal128(15, 2)),
            "day": pyarrow.array([day, None]),
            "t": pyarrow.array([moment, None], pyarrow.timestamp("us", "UTC")),
            "l": pyarrow.array([[1, 2], None]),
            "r": pyarrow.array([{"x": 1}, None]),
            "b": pyarrow.array([b"\x00\xff", None]),
            "f": pyarrow.array([True, None]),
        }
    )
    path = tmp_path / "types.parquet"
    either.from_arrow(source).write_parquet(path)
    assert either.read_parquet(path).to_pylist() == source.to_pylist()


def test_a_query_of_the_device_is_written(device_ctx, tmp_path):
    query = "SELECT value % 3 AS k, sum(value) AS s FROM generate_series(1, 9) GROUP BY k"
    assert device_ctx.sql(query).write_parquet(tmp_path / "sums.parquet") == 3
    rows = pyarrow.parquet.read_table(tmp_path / "sums.parquet").to_pylist()
    assert {row["k"]: row["s"] for row in rows} == {0: 18, 1: 12, 2: 15}


def test_a_path_that_ends_with_a_slash_is_a_folder(either, tmp_path):
    frame = either.sql("SELECT value FROM generate_series(1, 1000)")
    assert frame.write_parquet(f"{tmp_path}/rows/") == 1000
    assert (tmp_path / "rows").is_dir()
    assert pyarrow.parquet.read_table(tmp_path / "rows").num_rows == 1000
    assert either.read_parquet(f"{tmp_path}/rows/").count() == 1000


def test_a_path_may_be_a_string_or_a_path(frame, tmp_path):
    path = tmp_path / "rows.parquet"
    frame.write_parquet(str(path))
    first = path.read_bytes()
    frame.write_parquet(pathlib.Path(path))
    assert len(path.read_bytes()) == len(first)


def test_a_file_that_exists_is_replaced(either, tmp_path):
    path = tmp_path / "rows.csv"
    for count in [100, 2]:
        frame = either.sql(f"SELECT value FROM generate_series(1, {count})")
        assert frame.write_csv(path) == count
        assert len(path.read_text().splitlines()) == count + 1


def test_options_of_parquet_choose_the_compression(frame, tmp_path):
    for option, codec in [("zstd(3)", "ZSTD"), ("uncompressed", "UNCOMPRESSED")]:
        path = tmp_path / f"{codec}.parquet"
        frame.write_parquet(path, compression=option)
        column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0)
        assert column.compression == codec


def test_options_of_parquet_are_for_single_columns_too(frame, tmp_path):
    path = tmp_path / "rows.parquet"
    frame.write_parquet(path, **{"compression::item": "zstd(1)", "compression": "snappy"})
    group = pyarrow.parquet.ParquetFile(path).metadata.row_group(0)
    codecs = {group.column(i).path_in_schema: group.column(i).compression for i in range(3)}
    assert codecs == {"n": "SNAPPY", "item": "ZSTD", "price": "SNAPPY"}


def test_options_of_parquet_choose_row_groups_and_encodings(either, tmp_path):
    path = tmp_path / "rows.parquet"
    frame = either.sql("SELECT value, value % 3 AS k FROM generate_series(1, 10000)")
    options = {"max_row_group_size": 2048, "created_by": "the tests", "dictionary_enabled": False}
    frame.write_parquet(path, **options, **{"dictionary_enabled::k": True})
    metadata = pyarrow.parquet.ParquetFile(path).metadata
    assert metadata.created_by == "the tests"
    assert metadata.num_row_groups == 5
    assert metadata.row_group(0).num_rows == 2048
    value, k = (metadata.row_group(0).column(index) for index in range(2))
    assert "RLE_DICTIONARY" in k.encodings
    assert "RLE_DICTIONARY" not in value.encodings
    assert (value.statistics.min, value.statistics.max) == (1, 2048)


def test_options_of_parquet_choose_statistics_and_bloom_filters(frame, tmp_path):
    path = tmp_path / "rows.parquet"
    frame.write_parquet(path, statistics_enabled="none", bloom_filter_on_write=True)
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0)
    assert not column.is_stats_set
    assert column.bloom_filter_offset is not None
    frame.write_parquet(path)
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(0)
    assert column.is_stats_set
    assert column.bloom_filter_offset is None


@pytest.mark.parametrize("compression", ["zstd(99)", "gzip(10)", "brotli(12)", "zstd(high)", "zip"])
def test_a_compression_that_parquet_has_not_is_an_error(frame, tmp_path, compression):
    with pytest.raises((ValueError, RuntimeError), match="compression"):
        frame.write_parquet(tmp_path / "rows.parquet", compression=compression)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_value_of_an_option_is_an_error_with_the_value(frame, tmp_path):
    with pytest.raises((ValueError, RuntimeError), match="many"):
        frame.write_parquet(tmp_path / "rows.parquet", max_row_group_size="many")
    with pytest.raises(ValueError, match=r"\|\|"):
        frame.write_csv(tmp_path / "rows.csv", delimiter="||")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_compressed_files_are_written_and_read_back(either, frame, tmp_path, kind):
    path = tmp_path / f"rows.{kind}.gz"
    assert getattr(frame, f"write_{kind}")(path, compression="gzip") == 3
    assert gzip.decompress(path.read_bytes()).count(b"\n") >= 3
    options = {"format.compression": "gzip"}
    read = getattr(either, f"read_{kind}")(path, options=options)
    assert [row["n"] for row in read.to_pylist()] == [1, 2, 3]


def test_options_of_csv_choose_header_and_delimiter(either, tmp_path):
    path = tmp_path / "rows.csv"
    frame = either.sql("SELECT 1 AS a, 'x' AS b")
    frame.write_csv(path, has_header=False)
    assert path.read_text() == "1,x\n"
    frame.write_csv(path, delimiter=";")
    assert path.read_text() == "a;b\n1;x\n"


def test_an_unknown_option_is_a_value_error_with_its_name(frame, tmp_path):
    for write in [frame.write_parquet, frame.write_csv, frame.write_json]:
        with pytest.raises(ValueError, match="colour"):
            write(tmp_path / "rows", colour="blue")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_error(frame):
    for write in [frame.write_csv, frame.write_json]:
        with pytest.raises((OSError, devicefusion.ExecutionError)):
            write("/proc/no/such/rows")


def test_an_error_of_the_query_is_raised_when_it_is_written(either, tmp_path):
    either.register_table("t", {"x": [1, 0]})
    with pytest.raises(ZeroDivisionError):
        either.sql("SELECT 1 / x AS y FROM t").write_csv(tmp_path / "rows.csv")


# Registered


def test_a_file_of_avro_or_arrow_is_a_result(either, tmp_path):
    rows = [(1, "tea"), (2, None)]
    write_avro(tmp_path / "rows.avro", rows)
    n, item = zip(*rows, strict=True)
    write_arrow(tmp_path / "rows.arrow", pyarrow.table({"n": n, "item": item}))
    for frame in [
        either.read_avro(tmp_path / "rows.avro"),
        either.read_arrow(tmp_path / "rows.arrow"),
    ]:
        assert sorted_rows(frame) == rows
        assert frame.count() == 2


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "arrow", "avro"])
def test_a_file_of_each_kind_is_a_table(either, table, tmp_path, kind):
    path, rows = tmp_path / f"rows.{kind}", table.select(["n", "item"]).slice(0, 2)
    writers = {
        "parquet": lambda: pyarrow.parquet.write_table(rows, path),
        "csv": lambda: pyarrow.csv.write_csv(rows, path),
        "json": lambda: path.write_text('{"n": 1, "item": "tea"}\n{"n": 2, "item": null}\n'),
        "arrow": lambda: write_arrow(path, rows),
        "avro": lambda: write_avro(path, [row[:2] for row in ROWS[:2]]),
    }
    writers[kind]()
    register = getattr(either, f"register_{kind}")
    register("t", path)
    assert either.table_exist("t")
    # Columns of JSON are sorted by their names.
    assert sorted(either.table("t").schema.names) == ["item", "n"]
    assert sorted_rows(either.sql("SELECT n, item FROM t WHERE n = 1")) == [(1, "tea")]
    assert either.sql("SELECT sum(n) AS s FROM t").to_pydict() == {"s": [3]}
    with pytest.raises(ValueError, match="t exists already"):
        register("t", path)
    either.deregister_table("t")
    register("t", str(path))
    assert either.table("t").count() == 2


def test_a_csv_file_may_have_no_header_and_another_delimiter(either, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_text("1;tea\n2;rye\n")
    either.register_csv("t", path, has_header=False, delimiter=";")
    rows = either.sql("SELECT column_1, column_2 FROM t ORDER BY column_1").to_pylist()
    assert rows == [{"column_1": 1, "column_2": "tea"}, {"column_1": 2, "column_2": "rye"}]


def test_options_of_a_csv_file_are_those_of_external_tables(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("# a comment\nn,item\n1,'a,b'\n")
    options = {"format.comment": "#", "format.quote": "'"}
    either.register_csv("t", path, options=options)
    assert either.table("t").to_pylist() == [{"n": 1, "item": "a,b"}]


def test_options_of_a_csv_file_tell_lines_and_escapes(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('n,item\n1,"two\nlines"\n2,"a \\"quote\\""\n')
    options = {"format.newlines_in_values": True, "format.escape": "\\"}
    rows = either.read_csv(path, options=options).to_pydict()
    assert rows == {"n": [1, 2], "item": ["two\nlines", 'a "quote"']}


def test_lines_of_a_csv_file_may_lack_columns(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n,item\n1,tea\n2\n")
    with pytest.raises((ValueError, RuntimeError)):
        either.read_csv(path).collect()
    rows = either.read_csv(path, options={"format.truncated_rows": True})
    assert rows.to_pydict() == {"n": [1, 2], "item": ["tea", None]}


def test_rows_that_tell_the_types_of_a_csv_file_are_an_option(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\ntwo\n")
    assert either.read_csv(path).schema.field("n").type == pyarrow.string()
    first = either.read_csv(path, options={"format.schema_infer_max_rec": 1})
    assert first.schema.field("n").type == pyarrow.int64()
    with pytest.raises((ValueError, RuntimeError), match="two"):
        first.collect()


def test_a_delimiter_of_a_csv_file_is_one_character(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n")
    with pytest.raises(ValueError, match="wrong"):
        either.register_csv("t", path, delimiter="wrong")
    assert not either.table_exist("t")


GZIP = {"format.compression": "gzip"}


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_compressed_files_are_tables_alone_and_in_a_folder(either, tmp_path, kind):
    texts = {"csv": "n,item\n{0},tea\n", "json": '{{"n": {0}, "item": "tea"}}\n'}
    for n in (1, 2):
        text = texts[kind].format(n).encode()
        (tmp_path / f"{n}.{kind}.gz").write_bytes(gzip.compress(text))
    register = getattr(either, f"register_{kind}")
    register("one", tmp_path / f"1.{kind}.gz", options=GZIP)
    register("both", tmp_path, options=GZIP)
    assert either.sql("SELECT item, n FROM one").to_pylist() == [{"item": "tea", "n": 1}]
    assert either.sql("SELECT sum(n) AS s FROM both").to_pydict() == {"s": [3]}


def test_a_plain_file_is_no_compressed_one(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n")
    with pytest.raises((ValueError, RuntimeError, OSError)):
        either.read_csv(path, options=GZIP).collect()
    with pytest.raises(NotImplementedError, match="RAR"):
        either.read_csv(path, options={"format.compression": "rar"})


def test_an_unknown_option_of_a_file_is_an_error_with_its_name(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n")
    with pytest.raises((ValueError, RuntimeError), match="colour"):
        either.register_csv("t", path, options={"format.colour": "blue"})
    assert not either.table_exist("t")


def test_a_folder_of_files_is_one_table(either, tmp_path):
    for n in range(4):
        pyarrow.parquet.write_table(pyarrow.table({"n": [n, n + 10]}), tmp_path / f"{n}.parquet")
    either.register_parquet("t", tmp_path)
    assert either.sql("SELECT count(*) AS c, sum(n) AS s FROM t").to_pylist() == [{"c": 8, "s": 52}]


def test_several_paths_are_one_table(either, tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.txt", tmp_path / "more" / "c.csv"]
    paths[2].parent.mkdir()
    for n, path in enumerate(paths):
        path.write_text(f"n,item\n{n},tea\n")
    either.register_csv("t", [paths[0], str(paths[1]), paths[2].as_uri()])
    query = "SELECT count(*) AS c, sum(n) AS s FROM t"
    assert either.sql(query).to_pylist() == [{"c": 3, "s": 3}]
    assert either.read_csv(tuple(paths[:2])).count() == 2
    assert either.read_csv([paths[0]]).to_pydict() == {"n": [0], "item": ["tea"]}


@pytest.mark.parametrize("kind", ["parquet", "json", "arrow", "avro"])
def test_several_files_of_each_kind_are_one_table(either, tmp_path, kind):
    writers = {
        "parquet": lambda path, rows: pyarrow.parquet.write_table(rows, path),
        "json": lambda path, rows: SessionContext().from_arrow(rows).write_json(path),
        "arrow": write_arrow,
        "avro": lambda path, rows: write_avro(path, [(n, "tea") for n in rows["n"].to_pylist()]),
    }
    paths = [tmp_path / f"{n}.{kind}" for n in range(3)]
    for n, path in enumerate(paths):
        writers[kind](path, pyarrow.table({"n": [n, 10], "item": ["tea", "tea"]}))
    rows = getattr(either, f"read_{kind}")(paths)
    assert sorted(rows.to_pydict()["n"]) == [0, 1, 2, 10, 10, 10]
    getattr(either, f"register_{kind}")("t", paths[:2])
    assert either.sql("SELECT sum(n) AS s FROM t").to_pydict() == {"s": [21]}


def test_several_paths_that_are_no_one_table_are_refused(either, tmp_path):
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("other\n1\n")
    for paths, reason in [(["a", "b"], "same schema"), (["a", "a"], "Duplicate"), ([], "no path")]:
        with pytest.raises(ValueError, match=reason):
            either.register_csv("t", [tmp_path / f"{path}.csv" for path in paths])
    assert not either.table_exist("t")


def test_names_of_folders_are_columns(either, tmp_path):
    for year in [2023, 2024]:
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pyarrow.parquet.write_table(pyarrow.table({"n": [year, 1]}), folder / "rows.parquet")
    either.register_parquet("t", tmp_path, table_partition_cols=["year"])
    assert set(either.table("t").schema.names) == {"n", "year"}
    query = "SELECT CAST(year AS VARCHAR) AS y, max(n) AS m FROM t GROUP BY year"
    assert sorted_rows(either.sql(query)) == [("2023", 2023), ("2024", 2024)]
    pruned = either.sql("SELECT sum(n) AS s FROM t WHERE year = '2024'")
    assert pruned.to_pydict() == {"s": [2025]}


def partitioned(folder, write, ending):
    for year in [2023, 2024]:
        (folder / f"year={year}").mkdir()
        write(pyarrow.table({"n": [year, 1]}), folder / f"year={year}" / f"rows.{ending}")


def test_files_that_are_read_have_columns_of_folders(either, tmp_path):
    partitioned(tmp_path, pyarrow.csv.write_csv, "csv")
    rows = either.read_csv(tmp_path, table_partition_cols=["year"])
    assert set(rows.schema.names) == {"n", "year"}
    assert either.sql("SELECT max(n) AS m FROM rows WHERE year = '2023'").to_pydict() == {
        "m": [2023]
    }


def test_columns_of_folders_have_the_types_of_a_statement(either, tmp_path):
    partitioned(tmp_path, pyarrow.parquet.write_table, "parquet")
    either.sql(
        "CREATE EXTERNAL TABLE t (n BIGINT, year INT) STORED AS PARQUET "
        f"PARTITIONED BY (year) LOCATION '{tmp_path}/'"
    )
    schema = either.table("t").schema
    assert (schema.field("n").type, schema.field("year").type) == (pyarrow.int64(), pyarrow.int32())
    rows = either.sql("SELECT year + 1 AS y, sum(n) AS s FROM t WHERE year > 2023 GROUP BY year")
    assert rows.to_pylist() == [{"y": 2025, "s": 2025}]


def test_a_statement_tells_the_types_of_a_file(either, tmp_path):
    (tmp_path / "rows.csv").write_text("n,item\n1,tea\n")
    either.sql(
        "CREATE EXTERNAL TABLE t (n SMALLINT, item VARCHAR) STORED AS CSV "
        f"LOCATION '{tmp_path}/rows.csv' OPTIONS ('format.has_header' 'true')"
    )
    assert either.table("t").schema.field("n").type == pyarrow.int16()
    assert either.table("t").to_pydict() == {"n": [1], "item": ["tea"]}


def test_a_statement_tells_the_order_of_a_file(host, tmp_path):
    (tmp_path / "rows.csv").write_text("n\n1\n2\n3\n")
    for name, order in [("plain", ""), ("ordered", "WITH ORDER (n)")]:
        host.sql(
            f"CREATE EXTERNAL TABLE {name} (n BIGINT) STORED AS CSV {order} "
            f"LOCATION '{tmp_path}/rows.csv' OPTIONS ('format.has_header' 'true')"
        )
        sorts = "SortExec" in host.sql(f"SELECT n FROM {name} ORDER BY n").explain()
        assert sorts == (name == "plain")


def test_a_copy_writes_folders_by_a_column(either, tmp_path):
    either.register_table("t", {"n": [1, 2, 3], "item": ["tea", "rye", "tea"]})
    either.sql(f"COPY t TO '{tmp_path}/rows/' STORED AS PARQUET PARTITIONED BY (item)")
    assert sorted(path.name for path in (tmp_path / "rows").iterdir()) == ["item=rye", "item=tea"]
    either.register_parquet("back", tmp_path / "rows", ["item"])
    rows = either.sql("SELECT sum(n) AS s FROM back WHERE item = 'tea'")
    assert rows.to_pydict() == {"s": [4]}


def test_quotes_in_paths_are_no_sql(either, tmp_path):
    folder = tmp_path / "o'clock"
    folder.mkdir()
    (folder / "rows.csv").write_text("n\n1\n")
    either.register_csv("t", folder / "rows.csv")
    assert either.table("t").to_pydict() == {"n": [1]}
    assert either.read_csv(folder / "rows.csv").to_pydict() == {"n": [1]}
    assert either.from_pydict({"n": [7]}).write_csv(folder / "more.csv") == 1
    assert (folder / "more.csv").read_text() == "n\n7\n"


def test_names_of_file_tables_are_like_those_of_other_tables(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n")
    either.register_csv("Prices", path)
    assert either.table_exist("prices") and either.table_exist("PRICES")
    assert either.sql("SELECT n FROM Prices").to_pydict() == {"n": [1]}
    either.register_csv('"Prices"', path)
    assert either.sql('SELECT n FROM "Prices"').to_pydict() == {"n": [1]}
    either.sql("CREATE SCHEMA archive")
    either.register_csv("archive.old", path)
    assert either.table("archive.old").to_pydict() == {"n": [1]}


def test_a_missing_file_is_an_error_with_its_name(either, tmp_path):
    path = tmp_path / "missing.parquet"
    for call in [either.read_parquet, lambda path: either.register_parquet("t", path)]:
        with pytest.raises((OSError, ValueError), match="missing.parquet"):
            frame = call(path)
            (frame or either.table("t")).collect()


def test_a_file_that_is_none_of_its_kind_is_an_error(either, tmp_path):
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"this is no Parquet file at all")
    with pytest.raises((ValueError, RuntimeError), match="(?i)parquet"):
        either.register_parquet("t", path)
        either.table("t").collect()


def test_rows_inserted_into_a_folder_are_files(either, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), folder / "first.parquet")
    either.register_parquet("t", folder)
    assert either.sql("INSERT INTO t VALUES (3)").to_pydict() == {"count": [1]}
    assert len(list(folder.iterdir())) == 2
    assert either.sql("SELECT sum(n) AS s FROM t").to_pydict() == {"s": [6]}


# By their names


def test_a_file_is_a_table_by_its_path(either, table, tmp_path):
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "more.csv").write_text("n,x\n1,10\n3,30\n")
    (tmp_path / "tabs.tsv").write_text("n\tx\n1\t10\n")
    (tmp_path / "lines.ndjson").write_text('{"n": 1}\n{"n": 4}\n')
    query = "SELECT a.item, b.x FROM '{0}/rows.parquet' AS a JOIN '{0}/more.csv' AS b ON a.n = b.n"
    assert sorted_rows(either.sql(query.format(tmp_path))) == [(ROWS[2][1], 30), ("tea", 10)]
    assert either.sql(f"SELECT n + x AS s FROM '{tmp_path}/tabs.tsv'").to_pydict() == {"s": [11]}
    lines = either.sql(f"SELECT sum(n) AS s FROM '{tmp_path}/lines.ndjson'")
    assert lines.to_pydict() == {"s": [5]}


def test_a_pattern_is_a_table_of_the_files_that_match(either, tmp_path):
    for name in ["a1", "a2", "b1"]:
        (tmp_path / f"{name}.csv").write_text("n\n1\n")
    assert either.read_csv(f"{tmp_path}/a*.csv").count() == 2


def test_a_url_of_a_file_is_a_table(either, table, tmp_path):
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(table, path)
    assert either.read_parquet(path.as_uri()).count() == 3
    either.register_parquet("t", path.as_uri())
    assert either.table("t").count() == 3


def test_files_are_found_without_variables(table, tmp_path):
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    session = SessionContext(find_variables=False)
    assert session.sql(f"SELECT n FROM '{tmp_path}/rows.parquet'").count() == 3
    assert session.read_parquet(tmp_path / "rows.parquet").count() == 3


# Datasets of pyarrow


def test_a_dataset_is_a_table_for_each_query(either, table, tmp_path):
    for name, count in [("a", 1), ("b", 2)]:
        pyarrow.parquet.write_table(table.slice(0, count), tmp_path / f"{name}.parquet")
    either.register_dataset("t", pyarrow.dataset.dataset(tmp_path))
    assert either.table("t").schema.names == ["n", "item", "price"]
    joined = "SELECT count(*) AS c, sum(a.n) AS s FROM t AS a JOIN t AS b ON a.n = b.n"
    for _ in range(2):
        assert either.sql("SELECT n FROM t WHERE item IS NULL").to_pydict() == {"n": [2]}
        assert either.sql("SELECT count(*) AS c, sum(n) AS s FROM t").to_pylist() == [
            {"c": 3, "s": 4}
        ]
        assert either.sql(joined).to_pylist() == [{"c": 5, "s": 6}]


def test_a_dataset_has_columns_of_folders_and_filters(either, tmp_path):
    partitioned(tmp_path, pyarrow.parquet.write_table, "parquet")
    rows = pyarrow.dataset.dataset(tmp_path, partitioning="hive")
    either.register_dataset("t", rows.filter(pyarrow.dataset.field("year") == 2024))
    query = "SELECT year, max(n) AS m FROM t GROUP BY year"
    assert either.sql(query).to_pylist() == [{"year": 2024, "m": 2024}]


def test_a_dataset_is_read_once_a_query_reads_it(either, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\n2\n")
    either.register_dataset("t", pyarrow.dataset.dataset(path, format="csv"))
    path.unlink()
    with pytest.raises((OSError, RuntimeError), match="rows.csv"):
        either.table("t").collect()
    path.write_text("n\n1\n2\n")
    assert either.sql("SELECT sum(n) AS s FROM t").to_pydict() == {"s": [3]}


def test_a_dataset_without_rows_has_its_columns(either, table):
    either.register_dataset("t", pyarrow.dataset.dataset(table.slice(0, 0)))
    assert either.table("t").to_arrow_table().schema.names == table.schema.names
    assert either.table("t").count() == 0


def test_an_object_that_is_no_dataset_is_a_type_error(either):
    with pytest.raises(TypeError, match="dataset.*dict"):
        either.register_dataset("t", {"x": [1]})
    either.register_table("t", {"x": [1]})
    with pytest.raises(ValueError, match="t exists already"):
        either.register_dataset("t", pyarrow.dataset.dataset(pyarrow.table({"x": [1]})))


# Object stores


def test_an_object_store_is_registered_by_its_url(either, frame):
    either.register_object_store("memory:///")
    assert frame.write_parquet("memory:///folder/rows.parquet") == 3
    assert sorted_rows(either.read_parquet("memory:///folder/rows.parquet")) == ROWS
    either.register_parquet("t", "memory:///folder/")
    assert either.sql("SELECT sum(n) AS s FROM t").to_pydict() == {"s": [6]}
    copied = either.sql("COPY t TO 'memory:///copy.csv'")
    assert copied.to_pydict() == {"count": [3]}


def test_options_of_an_object_store_are_those_of_its_kind(either):
    options = {"aws_region": "eu-central-1", "aws_skip_signature": True}
    either.register_object_store("s3://a-bucket", options)


def test_a_url_without_an_object_store_is_a_value_error(either):
    for url in ["no url", "unknown://host/path"]:
        with pytest.raises(ValueError, match=url.split(":")[0]):
            either.register_object_store(url)
