#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the diagrams of the book as SVG files in docs/diagrams.

diagrams.py writes the files. diagrams.py --check compares them with the committed ones, and exits
with 1 where one differs. Coordinates are in pixels, y grows downwards.
"""

import sys
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "diagrams"

INK, PAPER, LINE = "#1f2933", "#ffffff", "#7b8794"
HOST, DEVICE, MOVE, PLAIN = "#e4e7eb", "#c6f0d8", "#ffe3b3", "#dbeafe"
SANS = "font-family='Helvetica, Arial, sans-serif'"
MONO = "font-family='Menlo, Consolas, monospace'"


class Drawing:
    """A list of SVG elements on white paper."""

    def __init__(self, title, width, height):
        self.title, self.width, self.height, self.parts = title, width, height, []

    def text(self, x, y, words, size=13, anchor="start", mono=False, bold=False, colour=INK):
        style = MONO if mono else SANS
        weight = " font-weight='bold'" if bold else ""
        self.parts.append(
            f"<text x='{x}' y='{y}' font-size='{size}' {style}{weight} text-anchor='{anchor}' "
            f"fill='{colour}' xml:space='preserve'>{escape(words)}</text>"
        )

    def box(self, x, y, width, height, lines=(), fill=PLAIN, mono=False, size=13, dashed=False):
        """A rectangle with centred lines; the first line is bold unless all are code."""
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self.parts.append(
            f"<rect x='{x}' y='{y}' width='{width}' height='{height}' rx='6' fill='{fill}' "
            f"stroke='{LINE}'{dash}/>"
        )
        step = size + 4
        top = y + height / 2 - step * (len(lines) - 1) / 2 + size / 3
        for index, line in enumerate(lines):
            self.text(x + width / 2, round(top + index * step, 1), line, size, "middle", mono,
                      bold=not mono and index == 0)

    def arrow(self, x1, y1, x2, y2, label=None, dashed=False):
        dash = " stroke-dasharray='5 4'" if dashed else ""
        self.parts.append(
            f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{LINE}' stroke-width='1.5'{dash} "
            f"marker-end='url(#head)'/>"
        )
        if label:
            self.text((x1 + x2) / 2 + 6, (y1 + y2) / 2 + 4, label, 11)

    def svg(self):
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}' "
            f"width='{self.width}' height='{self.height}' role='img'>\n"
            f"<!-- Written by scripts/diagrams.py. -->\n<title>{escape(self.title)}</title>\n"
            "<defs><marker id='head' viewBox='0 0 10 10' refX='9' refY='5' markerWidth='7' "
            f"markerHeight='7' orient='auto'><path d='M0 0 L10 5 L0 10 z' fill='{LINE}'/></marker></defs>\n"
            f"<rect width='{self.width}' height='{self.height}' fill='{PAPER}'/>\n"
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def crates():
    """The crates from the languages down to the drivers."""
    d = Drawing("The crates: each uses only those below it", 760, 430)
    d.text(20, 28, "A crate uses only crates below it.", 13)
    d.box(20, 45, 150, 52, ["sqllogictest", "runner of SQL tests"], HOST)
    d.box(190, 45, 100, 52, ["cli", "the shell"], HOST)
    d.box(330, 45, 120, 52, ["python", "its package"], HOST)
    d.box(490, 45, 120, 52, ["adbc", "the ADBC driver"], HOST)
    d.box(650, 45, 90, 52, ["capi", "C library"], HOST)
    d.arrow(330, 71, 292, 71)
    d.arrow(450, 71, 488, 71)
    d.arrow(650, 71, 612, 71)
    d.box(20, 140, 720, 64, ["datafusion (package devicefusion)",
                             "planner · exec · graph · run · table · exchange · session"], PLAIN)
    for x in (95, 240, 390, 550, 695):
        d.arrow(x, 97, x, 138)
    d.box(20, 250, 150, 60, ["futhark", "compiled libraries"], DEVICE)
    d.box(210, 250, 530, 60, ["kernels", "expressions to C, the operators' kernels, their launches"],
          DEVICE)
    d.arrow(95, 204, 95, 248)
    d.arrow(475, 204, 475, 248)
    d.box(210, 345, 190, 60, ["columnar", "Arrow columns in memory"], DEVICE)
    d.box(420, 345, 150, 60, ["device", "one trait, two drivers"], DEVICE)
    d.box(590, 345, 150, 60, ["arrow-device", "C structs, protocol"], MOVE)
    d.arrow(305, 310, 305, 343)
    d.arrow(495, 310, 495, 343)
    d.arrow(400, 375, 418, 375)
    d.parts.append(
        f"<path d='M305 405 L305 418 L665 418 L665 407' fill='none' stroke='{LINE}' "
        f"stroke-width='1.5' marker-end='url(#head)'/>"
    )
    d.parts.append(
        f"<path d='M95 310 L95 333 L495 333' fill='none' stroke='{LINE}' stroke-width='1.5'/>"
    )
    return d


def plan():
    """A host plan, and the same plan behind DevicePlanner."""
    d = Drawing("A plan before and after the planner", 800, 470)
    d.text(20, 28, "Before: DataFusion's plan", 14, bold=True)
    d.text(420, 28, "After DevicePlanner", 14, bold=True)
    before = ["SortPreservingMergeExec", "SortExec", "AggregateExec: FinalPartitioned",
              "RepartitionExec: Hash", "AggregateExec: Partial", "FilterExec", "DataSourceExec"]
    after = [("DeviceToHostExec", MOVE, "downloads the result"), ("DeviceSortExec", DEVICE, None),
             ("DeviceAggregateExec", DEVICE, "one for both halves"),
             ("DeviceFilterExec", DEVICE, "fused into the aggregate"),
             ("HostToDeviceExec", MOVE, "uploads three columns"),
             ("DataSourceExec", HOST, "decodes Parquet")]
    for index, name in enumerate(before):
        y = 45 + index * 60
        d.box(20, y, 270, 36, [name], HOST, mono=True)
        if index:
            d.arrow(155, y, 155, y - 22)
    joined = [(0, 1), (1, 1), (2, 2), (3, 2), (4, 2), (5, 3), (6, 5)]
    for index, (name, fill, note) in enumerate(after):
        y = 60 + index * 68
        d.box(420, y, 190, 36, [name], fill, mono=True)
        if note:
            d.text(620, y + 23, note, 12)
        if index:
            d.arrow(515, y, 515, y - 30)
    for old, new in joined:
        d.arrow(292, 63 + old * 60, 416, 78 + new * 68, dashed=True)
    return d


def fusion():
    """Filter, projection and aggregate as one loop."""
    d = Drawing("A pipeline fused into one kernel", 800, 330)
    d.text(20, 28, "Operators", 14, bold=True)
    d.text(330, 28, "One kernel, one launch for each batch", 14, bold=True)
    rows = [("DeviceAggregateExec: sum(price * (1 - discount))", DEVICE), ("DeviceProjectionExec: price * (1 - discount)", DEVICE),
            ("DeviceFilterExec: shipdate >= $1", DEVICE), ("HostToDeviceExec: columns=3", MOVE)]
    for index, (name, fill) in enumerate(rows):
        head, _, tail = name.partition(": ")
        y = 50 + index * 66
        d.box(20, y, 250, 44, [head, tail], fill, mono=True, size=11)
        if index:
            d.arrow(145, y, 145, y - 20)
    d.box(330, 45, 450, 262, [], "#f5f7fa")
    code = [("for (row = first; row < last; ++row) {", None),
            ("  if (shipdate[row] < from) continue;", "the filter"),
            ("  value = price[row] * (ONE - discount[row]);", "the projection"),
            ("  sum += value;", "the aggregate"),
            ("}", None),
            ("partial[work_item] = sum;", "merged by a second kernel")]
    for index, (line, note) in enumerate(code):
        y = 78 + index * 38
        d.text(346, y, line, 13, mono=True)
        if note:
            d.text(346 + 28, y + 16, note, 11, colour="#52606d")
    for y in (72, 138, 204, 270):
        d.arrow(274, y, 326, y, dashed=True)
    return d


def queues():
    """Uploads and kernels on two in-order queues."""
    d = Drawing("A timeline of the queues", 800, 230)
    d.text(20, 28, "Time runs to the right; a dashed arrow is a wait on the device, not on the host.", 12)
    for y, name in ((70, "host"), (130, "upload queue"), (190, "kernel queue")):
        d.text(20, y + 5, name, 13, bold=True)
        d.parts.append(f"<line x1='130' y1='{y}' x2='780' y2='{y}' stroke='{HOST}' stroke-width='2'/>")

    def spans(y, fill, items):
        for x, width, label in items:
            d.box(x, y - 15, width, 30, [label], fill, size=11)

    spans(70, HOST, [(140, 90, "decode 1"), (235, 90, "decode 2"), (330, 90, "decode 3"), (649, 70, "batches")])
    spans(130, MOVE, [(235, 60, "batch 1"), (330, 60, "batch 2"), (425, 60, "batch 3")])
    spans(190, DEVICE, [(300, 75, "kernel 1"), (395, 75, "kernel 2"), (490, 75, "kernel 3"), (570, 35, "end")])
    spans(190, MOVE, [(612, 72, "download")])
    for x in (295, 390, 485):
        d.arrow(x, 145, x + 7, 173, dashed=True)
    d.arrow(684, 174, 684, 88)
    return d


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        print(__doc__.strip())
        return 2
    failed = 0
    for draw in (crates, plan, fusion, queues):
        path, svg = FOLDER / f"{draw.__name__}.svg", draw().svg()
        if not check:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(svg, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != svg:
            failed = 1
            print(f"{path.relative_to(FOLDER.parent.parent)} is not what scripts/diagrams.py draws: run it")
    return failed


if __name__ == "__main__":
    sys.exit(main())
