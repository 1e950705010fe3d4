#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks links, anchors and paths of README.md, CONTRIBUTING.md, CHANGELOG.md and docs.

- A link names a file of the repository.
- An anchor names a heading of its page.
- A path in backticks, such as `crates/device/src/lib.rs`, exists. docs/log is exempt.
- docs/SUMMARY.md lists every page of the book.

Prints `file:line: problem` for each violation, and then exits with 1. Needs no network.

    scripts/check-links.py [FILE...]
"""

import re
import sys
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "docs" / "log"

# The target in [label](target "title") and ![image](target), and in definitions: [label]: target
INLINE = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+[\"'(][^)]*)?\)")
DEFINITION = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)>?")
HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
EXPLICIT = re.compile(r"<[^>]*\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']")
FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
PATH = re.compile(r"`((?:crates|docs|benches|examples|scripts|sql-tests|\.ci)/[^`\s]*)`")
EXTERNAL = re.compile(r"^(?:[a-z][a-z0-9+.-]*:|//)", re.IGNORECASE)


def prose(path):
    """Yields the numbered lines of a page outside code blocks."""
    fence = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        prefix = FENCE.match(line)
        if fence is None and prefix:
            fence = prefix[1]
        elif fence is not None:
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = None
        else:
            yield number, line


def slug(heading):
    """The anchor that GitHub and mdBook give a heading."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return text.replace(" ", "-")


def anchors(path, known={}):
    """The anchors of a page. Repeated headings are numbered."""
    if path not in known:
        found, seen = set(), {}
        for _, line in prose(path):
            found.update(EXPLICIT.findall(line))
            if heading := HEADING.match(line):
                name = slug(heading[1])
                count = seen.get(name, 0)
                seen[name] = count + 1
                found.add(f"{name}-{count}" if count else name)
        known[path] = found
    return known[path]


def links(path):
    for number, line in prose(path):
        line = CODE.sub("", line)
        for target in INLINE.findall(line) + DEFINITION.findall(line):
            yield number, target


def paths(page):
    """Yields the missing paths in backticks of a page, with line numbers."""
    if LOG in page.parents:
        return
    for number, line in prose(page):
        for path in PATH.findall(line):
            # An ellipsis or a star stands for several files; a colon or # names a part of a file.
            path = re.split(r"[…*{<]|[:#]", path)[0]
            if not (ROOT / path.rstrip("/")).exists():
                yield number, path


def problem(page, target):
    """The problem of a link, or None."""
    if not target:
        return "a link without a target"
    if EXTERNAL.match(target):
        return None
    name, _, anchor = target.partition("#")
    name = unquote(name)
    if name.startswith("/"):
        return f"{target} is absolute: write it relative to this page"
    file = (page.parent / name).resolve() if name else page
    if not file.is_relative_to(ROOT):
        return f"{target} lies outside of the repository"
    if not file.exists():
        return f"{target}: no such file"
    if anchor and file.suffix == ".md" and unquote(anchor) not in anchors(file):
        return f"{target}: no heading of {file.relative_to(ROOT)} has the anchor #{anchor}"
    return None


def main():
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    if not pages:
        pages = [page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if page.exists()]
        pages += [page for page in (ROOT / "CHANGELOG.md",) if page.exists()]
        pages += sorted((ROOT / "docs").rglob("*.md"))
    failures, checked = [], 0
    for page in pages:
        for number, target in links(page):
            checked += 1
            if reason := problem(page, target):
                failures.append(f"{page.relative_to(ROOT)}:{number}: {reason}")
        for number, path in paths(page):
            failures.append(f"{page.relative_to(ROOT)}:{number}: {path}: no such path")
    summary = ROOT / "docs" / "SUMMARY.md"
    if summary in pages:
        listed = {(summary.parent / target.partition("#")[0]).resolve() for _, target in links(summary)}
        for page in sorted(summary.parent.rglob("*.md")):
            if page != summary and page not in listed:
                failures.append(f"docs/SUMMARY.md: does not list {page.relative_to(summary.parent)}")
    print("\n".join(failures + [f"{checked} links in {len(pages)} pages, {len(failures)} broken"]))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
