# SPDX-License-Identifier: Apache-2.0
"""Random arrays of random nested types."""

import pyarrow as pa

LEAVES = [
    (pa.bool_(), lambda rng: rng.random() < 0.5),
    (pa.int8(), lambda rng: rng.randrange(-128, 128)),
    (pa.int64(), lambda rng: rng.getrandbits(63)),
    (pa.float64(), lambda rng: rng.random()),
    (pa.timestamp("ns", "UTC"), lambda rng: rng.getrandbits(60)),
    (pa.string(), lambda rng: "ü€x"[: rng.randrange(4)] * rng.randrange(9)),
    (pa.large_binary(), lambda rng: rng.randbytes(rng.randrange(9))),
    (pa.string_view(), lambda rng: "text " * rng.randrange(6)),
    (pa.binary(3), lambda rng: rng.randbytes(3)),
]


def random_array(rng, length, depth=3):
    """An array of `length` elements; sliced below the root, so that offsets nest."""
    before, after = rng.randrange(3), rng.randrange(3)
    return whole(rng, before + length + after, depth).slice(before, length)


def whole(rng, length, depth):
    kind = rng.randrange(10) if depth > 0 else 0
    if kind <= 1:
        ty, value = rng.choice(LEAVES)
        return pa.array([None if rng.random() < 0.2 else value(rng) for _ in range(length)], ty)
    below = rng.randrange(2 * length + 1)
    if kind == 2:
        ends = sorted(rng.randrange(below + 1) for _ in range(length + 1))
        ty = rng.choice([pa.ListArray, pa.LargeListArray])
        offsets = pa.array(ends, pa.int32() if ty is pa.ListArray else pa.int64())
        return ty.from_arrays(offsets, random_array(rng, below, depth - 1), mask=nulls(rng, length))
    if kind == 3:
        offsets = [rng.randrange(below + 1) for _ in range(length)]
        sizes = [rng.randrange(min(below - offset, 4) + 1) for offset in offsets]
        values = random_array(rng, below, depth - 1)
        offsets, sizes = pa.array(offsets, pa.int32()), pa.array(sizes, pa.int32())
        return pa.ListViewArray.from_arrays(offsets, sizes, values, mask=nulls(rng, length))
    if kind == 4:
        size = rng.randrange(1, 4)
        values = random_array(rng, size * length, depth - 1)
        return pa.FixedSizeListArray.from_arrays(values, type=pa.list_(values.type, size), mask=nulls(rng, length))
    if kind in (5, 6):
        members = [random_array(rng, length, depth - 1) for _ in range(rng.randrange(1, 4))]
        return pa.StructArray.from_arrays(members, names=[f"f{i}" for i in range(len(members))], mask=nulls(rng, length))
    if kind == 7:
        values = random_array(rng, below + 1, depth - 1)
        indices = [None if rng.random() < 0.2 else rng.randrange(below + 1) for _ in range(length)]
        return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), values)
    if kind == 8:
        members = [random_array(rng, length, depth - 1) for _ in range(2)]
        ids = pa.array([rng.randrange(2) for _ in range(length)], pa.int8())
        return pa.UnionArray.from_sparse(ids, members)
    ends, end = [], 0
    while end < max(length, 1):
        end += rng.randrange(1, 4)
        ends.append(end)
    values = random_array(rng, len(ends), 0)
    return pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), values).slice(0, length)


def nulls(rng, length):
    """A random null mask, or None."""
    return pa.array([rng.random() < 0.2 for _ in range(length)], pa.bool_()) if rng.random() < 0.6 else None
