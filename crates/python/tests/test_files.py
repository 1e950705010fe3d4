# SPDX-License-Identifier: Apache-2.0
"""Files: written and read back, registered, and found by their names."""

import datetime
import decimal
import json
import pathlib

import pyarrow
import pyarrow.csv
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
