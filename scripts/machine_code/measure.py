# SPDX-License-Identifier: Apache-2.0
"""The figures of a kernel's machine code that concern its speed.

The *row loop* is the outermost loop with global loads; of several, the one with the most. A kernel
without such a loop, where a work-item has one row, is one iteration as a whole.
"""

import collections
import dataclasses
import math
import re

from . import sass

# A work-group of the gpu profile, unless the source defines GROUP_ITEMS.
WORK_GROUP = 256
# Shared memory of a multiprocessor in bytes. Each block takes 1 KiB more than it asks for.
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10}
REGISTERS, WARPS, BLOCKS = 1 << 16, 64, 32


@dataclasses.dataclass
class Usage:
    """Resources that the assembler reports (`--ptxas-options=-v`)."""

    registers: int = 0
    shared: int = 0
    stack: int = 0
    spills: int = 0


@dataclasses.dataclass
class Measured:
    """A kernel. Instructions, loads and bytes are those of an iteration of its row loop."""

    registers: int
    shared: int
    spills: int
    occupancy: int
    # Whether the numbers are of a loop, or of the whole kernel.
    looped: bool
    instructions: int
    loads: int
    # Bytes that an iteration loads and stores at most.
    bytes: int
    # Rows of an iteration: how often the compiler unrolled the loop.
    rows: int
    # Most independent loads under way at once.
    in_flight: int
    # 64-bit atomics in shared memory that spin, in the whole kernel.
    spins: int
    # Functions that loops with global loads call.
    calls: int
    # The longest chain of byte loads at consecutive addresses.
    byte_chain: int
    # Places of the source, inlined functions' too, where a loop loads byte by byte.
    byte_loops: int
    # By field: lines of the source where its value arises, the innermost inlined function first.
    places: dict[str, tuple[int, ...]]
    # Names of the called functions.
    called: tuple[str, ...]


def usage(log):
    """Resources by kernel, from the log of a compilation."""
    kernels, current = {}, None
    for line in log.splitlines():
        if found := re.search(r"Compiling entry function '([^']+)'", line):
            current = kernels[found[1]] = Usage()
        if current is None:
            continue

        def before(unit):
            found = re.search(rf"(\d+) {unit}", line)
            return int(found[1]) if found else 0

        current.registers = max(current.registers, before("registers"))
        current.shared = max(current.shared, before("bytes smem"))
        current.stack += before("bytes stack frame")
        current.spills += before("bytes spill stores") + before("bytes spill loads")
    return kernels


def occupancy(registers, shared, architecture, work_group=WORK_GROUP):
    """Percent of a multiprocessor's warps that the kernel can fill."""
    warps = (work_group + 31) // 32
    # Registers are given to a warp in units of 256, from four partitions.
    per_warp = max(-(-registers * 32 // 256), 1) * 256
    by_registers = 4 * (REGISTERS // 4 // per_warp) // warps
    by_shared = SHARED[architecture] // (-(-shared // 128) * 128 + 1024)
    return 100 * min(by_registers, by_shared, WARPS // warps, BLOCKS) * warps // WARPS


def measure(function, used, architecture, work_group=WORK_GROUP):
    """Measures a function of `sass.parse` with its resources."""
    blocks = function.blocks()
    following = [rest for _, rest in blocks]

    def code(numbers):
        return [instruction for number in sorted(numbers) for instruction in blocks[number][0]]

    def loaded(loop):
        return sum(one.is_global_load for one in code(loop.blocks))

    outermost = sass.loops(following)
    row_loops = [loop for loop in outermost if loaded(loop)]
    row_loop = max(row_loops, key=loaded, default=None)
    numbers = row_loop.blocks if row_loop else sass.reachable(following)
    header = row_loop.header if row_loop else 0
    inside = code(numbers)
    loads = [one for one in inside if one.is_global_load]
    stores = [one for one in inside if one.operation in ("STG", "ST")]
    places = {}
    in_flight, places["in_flight"] = most_in_flight(blocks, numbers, header)
    spins = [one for one in function.instructions if one.opcode.startswith("ATOMS.CAST.SPIN")]
    places["spins"] = spins[0].lines if spins else ()
    calls = [one for loop in row_loops for one in code(loop.blocks) if one.is_call]
    called = tuple(sorted({plain(one.target or one.operands) for one in calls}))
    places["calls"] = calls[0].lines if calls else ()
    byte_chain, places["byte_chain"] = longest_byte_chain(function.instructions)
    # Also in called functions, which no path from the kernel's begin reaches.
    everywhere = sass.loops(following, set(range(len(blocks))))
    byte_loops = [found for loop in everywhere for found in loops_over_bytes(loop, code)]
    places["byte_loops"] = byte_loops[0] if byte_loops else ()
    return Measured(
        registers=used.registers,
        shared=used.shared,
        spills=used.spills,
        occupancy=occupancy(used.registers, used.shared, architecture, work_group),
        looped=row_loop is not None,
        instructions=len(inside),
        loads=len(loads),
        bytes=sum(one.width for one in loads + stores),
        rows=unrolled(row_loop, code) if row_loop else 1,
        in_flight=in_flight,
        spins=len(spins),
        calls=len(called),
        byte_chain=byte_chain,
        byte_loops=len({lines[:1] for lines in byte_loops}),
        places=places,
        called=called,
    )


def plain(symbol):
    """The name of a function in a symbol, which NVRTC mangles with its file's."""
    symbol = symbol.rsplit("$", 1)[-1]
    if file := re.match(r"_ZN(\d+)_INTERNAL_", symbol):
        name = re.match(r"(\d+)(\w+)", symbol[file.end(1) + int(file[1]) :])
        return name[2][: int(name[1])]
    return symbol


def unrolled(loop, code):
    """Rows of an iteration: each line's memory accesses have as many copies, or a multiple."""
    nested = set().union(*(inner.blocks for inner in loop.inner))
    once_a_row = ("LDG", "LD", "STG", "ST", "ATOMS", "ATOMG", "RED", "VOTE")
    copies = collections.Counter(
        (one.lines, one.opcode) for one in code(loop.blocks - nested) if one.operation in once_a_row
    )
    factor = math.gcd(*copies.values())
    # Compilers unroll by powers of two; two copies are often both ends of a range.
    return factor if factor in (4, 8, 16, 32) else 1


def most_in_flight(blocks, numbers, header):
    """The most independent loads that a path has under way at once, and the place of the last.

    Follows a loop twice, by the predecessor with the most loads under way. A load ends where its
    register is used or overwritten, and earlier loads end with it. Loads from the same 16 bytes
    count once: one wide load would do.
    """
    order = reverse_postorder(blocks, numbers, header)
    ends = {}
    most, place = 0, ()
    for _ in range(2):
        for number in order:
            before = [ends[other] for other in numbers if other in ends and number in blocks[other][1]]
            pending, writers = max(before, key=lambda state: weight(state[0]), default=([], {}))
            pending, writers = list(pending), dict(writers)
            for one in blocks[number][0]:
                touched = one.registers()
                waits = [at for at, (registers, _) in enumerate(pending) if not touched.isdisjoint(registers)]
                if waits:
                    pending = pending[waits[-1] + 1 :]
                if one.is_global_load:
                    register, offset = one.address() or (None, 0)
                    source = (register, writers.get(register), offset // 16) if register is not None else one.offset
                    pending.append((frozenset(one.written()), source))
                    if weight(pending) > most:
                        most, place = weight(pending), one.lines
                for register in one.written():
                    writers[register] = one.offset
            ends[number] = (pending, writers)
    return most, place


def weight(pending):
    return len({source for _, source in pending})


def reverse_postorder(blocks, numbers, header):
    seen, order, work = {header}, [], [(header, iter(blocks[header][1]))]
    while work:
        node, rest = work[-1]
        for other in rest:
            if other in numbers and other not in seen:
                seen.add(other)
                work.append((other, iter(blocks[other][1])))
                break
        else:
            order.append(node)
            work.pop()
    return order[::-1]


def longest_byte_chain(instructions):
    """The most byte loads at consecutive offsets of a register, and the place of the first."""
    longest, place, chains = 0, (), {}
    for one in instructions:
        address = one.address() if one.is_byte_load else None
        if address:
            chain = chains.setdefault(address[0], {})
            chain.setdefault(address[1], one.lines)
            start = end = address[1]
            while start - 1 in chain:
                start -= 1
            while end + 1 in chain:
                end += 1
            if end + 1 - start > longest:
                longest, place = end + 1 - start, chain[start]
        for register in one.written():
            chains.pop(register, None)
            chains.pop(register - 1, None)
    return longest, place


def loops_over_bytes(loop, code):
    """Lines of the first load of each innermost loop that loads bytes and advances by one byte."""
    if loop.inner:
        return [found for inner in loop.inner for found in loops_over_bytes(inner, code)]
    body = code(loop.blocks)
    loads = [one for one in body if one.is_global_load]
    if not loads or not all(one.is_byte_load for one in loads):
        return []
    depends = {int(found[1]) for one in body if (found := re.fullmatch(r"R(\d+), (?:U?P\w+, )*R\1(?:\.reuse)?, 0x1(?:, RZ)?", one.operands))}
    for _ in range(len(body)):
        grown = {register for one in body if not depends.isdisjoint(one.registers()) and not one.is_global_load
                 for register in one.written()} | depends
        if grown == depends:
            break
        depends = grown
    return [one.lines for one in loads if (one.address() or (None,))[0] in depends][:1]
