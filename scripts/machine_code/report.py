# SPDX-License-Identifier: Apache-2.0
"""Tables of measured kernels, and what fails."""

import dataclasses
import pathlib

from . import limits
from .measure import Measured

HEADINGS = ["kind", "kernels", "registers", "shared", "warps %", "instructions", "bytes", "in flight", "misses"]
# Comments around the tables of the page.
BEGIN, END = "<!-- {} -->\n\n", "\n\n<!-- end -->"


@dataclasses.dataclass
class Kernel:
    """A kernel in the sample, on one architecture."""

    name: str
    path: pathlib.Path
    architecture: str
    measured: Measured

    def place(self, rule):
        """Where the value of a rule arises: lines of the source, the inlined function's first."""
        numbers = self.measured.places.get(rule, ())
        lines = self.path.read_text().split("\n")
        said = " in ".join(f"{number}: {lines[number - 1].strip()}" for number in numbers)
        return f"{self.name} of {self.path.name} on {self.architecture}" + (f"\n    line {said}" if said else "")


def span(values):
    least, most = min(values), max(values)
    return f"{least}" if least == most else f"{least}–{most}"


def rows(budget, by_kind):
    """A row of the table for each kind: its worst resources, and the range of work for a row."""
    for kind, kernels in sorted(by_kind.items()):
        all_measured = [kernel.measured for kernel in kernels]
        newest = [kernel.measured for kernel in kernels if kernel.architecture == kernels[0].architecture]
        loops = [one.in_flight for one in all_measured if one.looped]
        yield [
            kind,
            str(len(newest)),
            str(max(one.registers for one in all_measured)),
            str(max(one.shared for one in all_measured)),
            str(min(one.occupancy for one in all_measured)),
            span([one.instructions // one.rows for one in newest]),
            span([one.bytes // one.rows for one in newest]),
            span(loops) if loops else "no loop",
            ", ".join(limits.broken(budget, kind, kernels)),
        ]


def table(budget, by_kind):
    """The table as aligned text."""
    cells = [HEADINGS, *rows(budget, by_kind)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEADINGS))]
    aligned = [0, len(HEADINGS) - 1]
    for row in cells:
        yield "  ".join(cell.ljust(width) if at in aligned else cell.rjust(width)
                        for at, (cell, width) in enumerate(zip(row, widths))).rstrip()


def failures(budget, by_kind):
    """The numbers that got worse, each with its kind and its place."""
    found = []
    for kind, rule, kernel, allowed in limits.check(budget, by_kind):
        value, (_, meaning) = getattr(kernel.measured, rule), limits.RULES[rule]
        called = f": {', '.join(kernel.measured.called)}" if rule == "calls" else ""
        found.append(f"{kind}: {value} instead of {allowed} {meaning}{called}\n  {kernel.place(rule)}")
    return found


def markdown(cells):
    yield "| " + " | ".join(cells[0]) + " |"
    yield "|" + "---|" * len(cells[0])
    for row in cells[1:]:
        yield "| " + " | ".join(row) + " |"


def broken_table(budget):
    """The rules that kinds break, in the order of the file: the worst first."""
    rows = [
        [f"`{one.rule}`", "`" + ", ".join(f"{kind} {value}" for kind, value in one.worst.items()) + "`", one.because]
        for one in budget.broken
    ]
    return markdown([["rule", "kinds and their worst values", "cause"], *rows])


def page(text, budget, by_kind):
    """The page with new tables. Leaves out kinds that only sort, for instance."""
    text = replaced(text, "broken", broken_table(budget))
    shown = [row for row in rows(budget, by_kind) if row[-1] or budget.needs_loads(row[0])]
    return replaced(text, "kinds", markdown([HEADINGS, *shown]))


def replaced(text, name, lines):
    return text.replace(BEGIN.format(name) + between(text, name), BEGIN.format(name) + "\n".join(lines), 1)


def between(text, name):
    """The lines of the page between the comments of a table."""
    return text.partition(BEGIN.format(name))[2].partition(END)[0]
