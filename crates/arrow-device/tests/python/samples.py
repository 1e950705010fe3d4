# SPDX-License-Identifier: Apache-2.0
"""Arrays of six elements of every type, under the names of the same arrays in `peer/samples.rs`.

Each is made of plain Python values, so that equality compares the bytes.
"""

from decimal import Decimal, localcontext

import pyarrow as pa

# Types of the library that pyarrow cannot make, but nanoarrow can.
WITHOUT_PYARROW = ["interval_months", "interval_day_time"]


def values(ty, *items):
    return pa.array(items, ty)


TEXTS = ["a", None, "", "more than twelve bytes of text", "ü€𝄞", "exactly 12 b"]
BYTES = [b"a", None, b"", b"more than twelve bytes \x00\xff", b"\x00", b"exactly 12 b"]
LONGS = [1, None, 1_700_000_000_123, -4_000_000, 5, 0]
CLOCK = [1, None, 86_399_999_999, 4, 5, 0]
SECONDS = [1, None, 86_399, 43_200, 5, 0]
INF = float("inf")


def integers():
    for width in (8, 16, 32, 64):
        top = 1 << (width - 1)
        yield f"int{width}", values(getattr(pa, f"int{width}")(), 1, None, top - 1, -top, 5, 0)
        yield f"uint{width}", values(getattr(pa, f"uint{width}")(), 1, None, 2 * top - 1, 4, 5, 0)


def numbers():
    yield "null", pa.nulls(6)
    yield "bool", pa.array([True, None, False, True, True, False])
    yield "int64, no nulls", pa.array([1, 2, 3, 4, 5, 6])
    yield "float16", values(pa.float16(), 1, None, 3, -4, 5, 0)
    yield "float32", values(pa.float32(), 1.5, None, 3.4028234663852886e38, -INF, 0.1, 0.0)
    yield "float64", values(pa.float64(), 1.5, None, 1.7976931348623157e308, -INF, 0.1, 0.0)


def times():
    yield "date32", pa.array([1, None, 20_000, -4, 5, 0], pa.int32()).cast(pa.date32())
    days = [86_400_000, None, 1_728_000_000_000, -86_400_000, 864_000_000, 0]
    yield "date64", pa.array(days, pa.int64()).cast(pa.date64())
    for unit in ("s", "ms"):
        yield f"time32[{unit}]", values(pa.time32(unit), *SECONDS)
    for unit in ("us", "ns"):
        yield f"time64[{unit}]", values(pa.time64(unit), *CLOCK)
    for unit in ("s", "ms", "us", "ns"):
        yield f"timestamp[{unit}]", values(pa.timestamp(unit), *LONGS)
        yield f"duration[{unit}]", values(pa.duration(unit), *LONGS)
    for unit, zone in (("s", "UTC"), ("ms", "+05:30"), ("ns", "Europe/Zurich")):
        yield f"timestamp[{unit}, {zone}]", values(pa.timestamp(unit, zone), *LONGS)
    low, high, long = -(1 << 31), (1 << 31) - 1, (1 << 63) - 1
    intervals = [(1, 2, 3), None, (-4, 5, -6), (high, low, long), (0, 1, 0), (0, 0, -long - 1)]
    yield "interval_month_day_nano", values(pa.month_day_nano_interval(), *intervals)


def decimals():
    with localcontext() as context:
        context.prec = 100

        def scaled(ty, *numbers):
            return values(ty, *(None if n is None else Decimal(n).scaleb(-ty.scale) for n in numbers))

        for ty in (pa.decimal32(7, 2), pa.decimal64(18, 3), pa.decimal128(38, 10), pa.decimal256(76, 5)):
            top = 10**ty.precision - 1
            name = f"decimal{ty.bit_width}({ty.precision}, {ty.scale})"
            yield name, scaled(ty, 1, None, -top, top, 5, 0)
        yield "decimal128(15, -2)", scaled(pa.decimal128(15, -2), 1, None, -3, 4, 5, 0)


def strings():
    for name in ("string", "large_string", "string_view"):
        yield name, pa.array(TEXTS, getattr(pa, name)())
    long = [None if index == 4 else f"string number {index} is a long one" for index in range(6)]
    yield "string_view, several buffers", pa.array(long, pa.string_view())
    yield "string_view, all inline", pa.array(["a", "b", "", "c", "d", "eeeeeeeeeeee"], pa.string_view())
    for name in ("binary", "large_binary", "binary_view"):
        yield name, pa.array(BYTES, getattr(pa, name)())
    yield "fixed_size_binary(3)", values(pa.binary(3), b"abc", None, b"\0\0\0", b"\xff\xff\xff", b"def", b"ghi")


def lists():
    yield "list<int32>", values(pa.list_(pa.int32()), [1, None], None, [3], [], [-4, 5], [6])
    texts = [["a", None], None, [""], [], [TEXTS[3], TEXTS[4]], [TEXTS[5]]]
    yield "list<string>", values(pa.list_(pa.string()), *texts)
    yield "large_list<string>", values(pa.large_list(pa.string()), *texts)
    views = [[TEXTS[3], TEXTS[4]], None, [None], ["a", None], [], ["", TEXTS[3]]]
    yield "list_view<string>", values(pa.list_view(pa.string()), *views)
    yield "large_list_view<string>", values(pa.large_list_view(pa.string()), *views)
    pairs = values(pa.list_(pa.int32(), 2), [0, 1], None, [4, None], [6, 7], [8, 9], [10, 11])
    yield "fixed_size_list<int32, 2>", pairs
    yield "fixed_size_list<int32, 0>", values(pa.list_(pa.int32(), 0), [], None, [], [], [], [])
    inner = [[1, 2], None, [3], [], [4, 5], [6]]
    outer = [[inner[0]], None, [], [inner[3]], [inner[4]], [inner[5]]]
    yield "list<list<int16>>", values(pa.list_(pa.list_(pa.int16())), *outer)
    row = [None if index == 2 else {"i": i, "s": TEXTS[index]} for index, i in enumerate(NUMBERS)]
    rows = [[row[0], row[1]], None, [row[2]], [], [row[3], row[4]], [row[5]]]
    yield "list<struct>", values(pa.list_(ROW), *rows)


NUMBERS = [1, None, 3, -4, 5, 0]
ROW = pa.struct([("i", pa.int32()), ("s", pa.string())])


def structs():
    rows = [None if index == 2 else {"i": i, "s": TEXTS[index]} for index, i in enumerate(NUMBERS)]
    yield "struct", values(ROW, *rows)
    metre = pa.field("n", pa.int64(), nullable=False, metadata={"unit": "metre"})
    outer = [None if index == 1 else {"rows": row, "n": index + 1} for index, row in enumerate(rows)]
    yield "struct<struct>", values(pa.struct([pa.field("rows", ROW), metre]), *outer)
    yield "struct<>", values(pa.struct([]), {}, None, {}, {}, {}, {})
    entries = [[("a", 1)], None, [], [("b", None), ("c", 3)], [("d", 4)], [("e", 5), ("f", 6), ("g", None)]]
    yield "map<string, int32>", values(pa.map_(pa.string(), pa.int32()), *entries)
    ids, texts = pa.array([0, 5, 5, 0, 5, 0], pa.int8()), pa.array(TEXTS)
    members = [pa.array(NUMBERS, pa.int32()), texts]
    sparse = pa.UnionArray.from_sparse(ids, members, ["i", "s"], [0, 5])
    yield "sparse_union", sparse
    places = pa.array([0, 0, 3, 1, 4, 5], pa.int32())
    yield "dense_union", pa.UnionArray.from_dense(ids, places, members, ["i", "s"], [0, 5])


def encoded():
    for key in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        indices = pa.array([0, None, 1, 0, 2, 2], getattr(pa, key)())
        yield f"dictionary<{key}>", pa.DictionaryArray.from_arrays(indices, pa.array(["x", "y", "z"]))
    rows = dict(structs())["struct"]
    indices = pa.array([0, None, 2, 1, 5, 5], pa.int32())
    yield "dictionary<struct>", pa.DictionaryArray.from_arrays(indices, rows)
    indices = pa.array([0, None, 1, 0, 2, 2], pa.int16())
    items = pa.DictionaryArray.from_arrays(indices, pa.array(["x", "y", "z"]))
    valid = pa.array([False, True, False, False, False, False])
    yield "list<dictionary>", pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 3, 5, 6], pa.int32()), items, mask=valid)
    for width in (16, 32, 64):
        ends = pa.array([2, 3, 6], getattr(pa, f"int{width}")())
        yield f"run_end_encoded<int{width}>", pa.RunEndEncodedArray.from_arrays(ends, pa.array(["x", None, "y"]))


def samples():
    """All samples by name, in order."""
    kinds = (numbers(), integers(), times(), decimals(), strings(), lists(), structs(), encoded())
    return dict(sorted((name, array) for kind in kinds for name, array in kind))


def long_samples():
    """The samples repeated five times: more than a byte of validity."""
    return {name: pa.concat_arrays([array] * 5) for name, array in samples().items()}
