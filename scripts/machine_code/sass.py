# SPDX-License-Identifier: Apache-2.0
"""Machine code as `nvdisasm -c -gi` prints it: instructions, basic blocks and loops."""

import dataclasses
import re

SECTION = re.compile(r"^\.text\.(\S+):")
LABEL = re.compile(r"^([.$\w]+):")
LINE = re.compile(r'//## File "[^"]*", line (\d+)( inlined at "[^"]*", line \d+)?')
INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+\{?\s*(?:@(!?\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
TARGET = re.compile(r"`\(([^)]+)\)")
TARGETS = re.compile(r'BRANCH_TARGETS ([^"]*)"')
REGISTER = re.compile(r"(?<![\w.])R(\d+)(\.64)?")


@dataclasses.dataclass
class Instruction:
    """One instruction. Its lines of the source begin with the innermost inlined function's."""

    offset: int
    predicate: str | None
    opcode: str
    operands: str
    lines: tuple[int, ...]

    @property
    def operation(self):
        return self.opcode.split(".", 1)[0]

    @property
    def target(self):
        found = TARGET.search(self.operands)
        return found[1] if found else None

    @property
    def is_jump(self):
        """On sm_80 the assembler leaves a loop by a CALL to a local label, which never returns."""
        local_call = self.operation == "CALL" and (self.target or "").startswith(".L")
        return self.operation in ("BRA", "JMP") or local_call

    @property
    def is_call(self):
        return self.operation == "CALL" and not self.is_jump

    @property
    def is_global_load(self):
        """LDG reads global memory; LD reads what the compiler could not tell from it."""
        return self.operation in ("LDG", "LD")

    @property
    def is_byte_load(self):
        return self.is_global_load and re.search(r"\.[US]8\b", self.opcode) is not None

    @property
    def width(self):
        """Bytes of a load or store of a thread."""
        for bits, width in (("128", 16), ("64", 8), ("8", 1), ("16", 2)):
            if re.search(rf"\.[US]?{bits}\b", self.opcode):
                return width
        return 4

    def registers(self):
        """Registers that the instruction reads or writes, halves of wide ones too."""
        wide = self.operation[0] == "D" or re.search(r"64|WIDE|128", self.opcode)
        found = set()
        for number, address in REGISTER.findall(self.operands):
            number = int(number)
            found.add(number)
            if address or wide and number % 2 == 0:
                found.add(number + 1)
            if "128" in self.opcode and number % 4 == 0:
                found.update((number + 2, number + 3))
        return found

    def written(self):
        """Registers written by the instruction: its first operand, where it is a register."""
        if self.operation in ("STG", "STS", "ST", "STL", "RED", "BRA", "CALL", "RET", "ISETP", "BAR"):
            return range(0)
        # A predicate may precede the destination.
        found = re.match(r"(?:U?P[\dT]+, )*R(\d+)\b", self.operands)
        if not found:
            return range(0)
        first, count = int(found[1]), 1
        if self.operation[0] == "D" or re.search(r"WIDE|(?<!\.[FUS])64\b|^(F2F|I2F)\.F64", self.opcode):
            count = 2
        if "128" in self.opcode:
            count = 4
        return range(first, first + count)

    def address(self):
        """(register, offset) of the memory operand, or None."""
        found = re.search(r"\[R(\d+)(?:\.64|\.U32)?(?:\+U?R\d+)?(?:\+(-?0x[0-9a-f]+))?\]", self.operands)
        return (int(found[1]), int(found[2] or "0", 16)) if found else None


@dataclasses.dataclass
class Function:
    """A kernel, with the functions that it calls."""

    name: str
    instructions: list[Instruction]
    labels: dict[str, int]

    def blocks(self):
        """Basic blocks as (instructions, numbers of following blocks), by address."""
        code = self.instructions
        index = {instruction.offset: number for number, instruction in enumerate(code)}
        labels = {name: index.get(offset, len(code)) for name, offset in self.labels.items()}
        starts = {0, *labels.values()}
        starts.update(number + 1 for number, instruction in enumerate(code) if ends_block(instruction))
        starts = sorted(start for start in starts if start < len(code))
        number_of = {start: number for number, start in enumerate(starts)}
        blocks = []
        for start, end in zip(starts, starts[1:] + [len(code)]):
            last = code[end - 1]
            following = [number_of[labels[name]] for name in targets(last) if labels.get(name, len(code)) < len(code)]
            if falls_through(last) and end in number_of:
                following.append(number_of[end])
            blocks.append((code[start:end], following))
        return blocks


def ends_block(instruction):
    return instruction.operation in ("BRA", "BRX", "JMP", "JMX", "EXIT", "RET", "CALL")


def targets(instruction):
    """Labels that a jump may reach. Calls return, and a divergent vote's path comes back."""
    if instruction.operation in ("BRX", "JMX"):
        found = TARGETS.search(instruction.operands)
        return [label.strip() for label in found[1].split(",")] if found else []
    if instruction.is_jump and ".DIV" not in instruction.opcode:
        return [instruction.target] if instruction.target else []
    return []


def falls_through(instruction):
    if instruction.is_jump:
        conditional = instruction.predicate or ".DIV" in instruction.opcode or not instruction.operands.startswith("`")
        return bool(conditional)
    return instruction.operation not in ("BRX", "JMX", "EXIT", "RET") or instruction.predicate is not None


def parse(text):
    """The functions of a disassembly."""
    functions, current, lines, inlined = [], None, (), False
    offset = 0
    for row in text.splitlines():
        if found := SECTION.match(row):
            current = Function(found[1], [], {})
            functions.append(current)
        elif current is None:
            continue
        elif found := LABEL.match(row):
            current.labels[found[1]] = offset
        elif found := LINE.search(row):
            lines = (*lines, int(found[1])) if inlined else (int(found[1]),)
            inlined = found[2] is not None
        elif found := INSTRUCTION.match(row):
            inlined = False
            place, predicate, opcode, operands = found.groups()
            if opcode != "NOP":
                current.instructions.append(Instruction(int(place, 16), predicate, opcode, operands, lines))
            offset = int(place, 16) + 16
        elif row.lstrip().startswith(".section"):
            current, offset, lines = None, 0, ()
    return functions


def components(following, nodes):
    """Strongly connected sets of nodes that hold a circle: Tarjan's algorithm, not recursive."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(following[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for other in rest:
                if other not in nodes:
                    continue
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(following[other])))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    members = set()
                    while node not in members:
                        members.add(stack.pop())
                    on_stack -= members
                    if len(members) > 1 or node in following[node]:
                        found.append(members)
    return found


def reachable(following):
    seen, work = set(), [0]
    while work:
        node = work.pop()
        if node not in seen:
            seen.add(node)
            work.extend(following[node])
    return seen


@dataclasses.dataclass
class Loop:
    """Blocks of a loop, the one where it is entered, and the loops in it."""

    header: int
    blocks: set[int]
    inner: list["Loop"]


def loops(following, nodes=None):
    """The outermost loops among the blocks, with those in them."""
    nodes = reachable(following) if nodes is None else nodes
    found = []
    for members in components(following, nodes):
        entered = {other for node in nodes - members for other in following[node] if other in members}
        header = min(entered or members)
        without = [[] if node not in members else [other for other in rest if other != header]
                   for node, rest in enumerate(following)]
        found.append(Loop(header, members, loops(without, members)))
    return sorted(found, key=lambda loop: loop.header)
