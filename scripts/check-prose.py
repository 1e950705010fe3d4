#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the prose of comments, documentation and messages, and prints each breach as FILE:LINE.

- A comment, or a line of Markdown outside tables and code, has at most 100 columns.
- A sentence has at most 25 words, in messages of Rust sources too. Code in backticks, links and
  placeholders count as one word.
- A sentence of a comment or of documentation has at most one subordinate clause, by the words of
  SUBORDINATORS.
- The subject is a component: no sentence, string or test name has one of SUBJECTS, and no sentence
  begins with "What". Questions may, and titles in Markdown, which end without a full stop.

`check-prose.py [PATH...]` checks files or folders, the whole repository without any.
`check-prose.py --summary [PATH...]` prints counts and the average words of a sentence.
`scripts/prose-exceptions.txt` lists at most ten exceptions: a path, a space, a part of the line.
"""

import pathlib
import re
import subprocess
import sys

COLUMNS = 100
WORDS = 25
EXCEPTIONS = 10
SUBJECTS = re.compile(r"\b(nobody|somebody|anybody|everybody|whoever|whomever|who|whom)\b", re.I)
NAMES = re.compile(r"\bfn (\w*(?:nobody|somebody|anybody|whoever|(?<![a-z])who(?![a-z]))\w*)")
WHAT = re.compile(r"[\W_]*What\b(?!.*\?\W*$)")
SUBORDINATORS = re.compile(
    r"\b(that(?! of\b| is,)|which|where|if|when|whose|because|since|unless|while|although|whether|until)\b", re.I
)
# Uses of these words without a clause: "as if", and "that" for a thing.
NO_CLAUSES = re.compile(
    r"\bas if\b|\b(so|than|like|unlike|of|to|for|with|in|as|by|from|after|before|beside|below|on|at) that\b(?=[ .,;]|$)"
)
SLASHES = {".rs", ".h", ".c", ".cc", ".cu", ".cpp"}
HASHES = {".py", ".sh", ".toml", ".slt", ".part", ".yml"}
DASHES = {".sql"}
# Tokens of Rust that may contain a quote.
TOKENS = re.compile(r'''//[^\n]*|/\*.*?\*/|\b[bc]?r(#*)"(?P<raw>.*?)"\1|'(?:\\.|[^\\'])'|"(?P<string>(?:[^"\\]|\\.)*)"''', re.S)
# Signs of code and SQL, which no message has: braces, brackets of arrays, statements.
CODE = re.compile(r"[{}]|\[\]|;\s*(\n|$)|\bSELECT\b|^\s*(CREATE|DROP|EXPLAIN|INSERT|SET|WITH)\b")
# Foreign files, and records of runs.
LEFT_OUT = ("LICENSE", "Cargo.lock", "docs/log/")

root = pathlib.Path(__file__).resolve().parent.parent


def comments(path, lines):
    """Yields (line number, text, line) of each comment line. Text None ends a paragraph."""
    suffix = path.suffix
    if suffix in SLASHES:
        block = False
        for number, line in enumerate(lines, 1):
            bare = line.strip()
            if block:
                block = "*/" not in bare
                yield number, bare.removesuffix("*/").lstrip("* "), line
                continue
            if bare.startswith("/*"):
                block = "*/" not in bare
                yield number, bare.lstrip("/*! ").removesuffix("*/"), line
                continue
            found = re.match(r"//[/!]? ?(.*)", bare)
            if found:
                yield number, found[1], line
                continue
            yield number, None, line
            found = re.search(r"[;,{}()] // (.*)", line)
            if found and "http" not in found[1]:
                yield number, found[1], None
                yield number, None, None
    elif suffix in HASHES | DASHES or path.name in ("Makefile", "run"):
        prefix = "--" if suffix in DASHES else "#"
        docstring, string, example, above = False, False, False, "#"
        for number, line in enumerate(lines, 1):
            bare = line.strip()
            # Documentation begins its line, at the head of a module or of a definition.
            heads = bare.split('"""')[0] in ("", "r") and (above.endswith(":") or above.startswith("#"))
            above = bare or above
            if suffix == ".py" and bare.count('"""') == 1 and (string or not docstring and not heads):
                string = not string
                yield number, None, line
            elif string:
                yield number, None, line
            elif suffix == ".py" and bare.count('"""') == 1:
                docstring, example = not docstring, False
                yield number, bare.replace('"""', "").removeprefix("r"), line
            elif docstring:
                # An example of doctest goes on to the next empty line.
                example = bare.startswith(">>>") or example and bare != ""
                yield number, None if example else bare, line
            elif suffix == ".py" and bare.removeprefix("r").startswith('"""'):
                yield number, bare.removeprefix("r").replace('"""', ""), line
            elif bare.startswith(prefix) and not bare.startswith("#!"):
                yield number, bare.lstrip(prefix + " "), line
            else:
                yield number, None, line


def paragraphs(path, text):
    """Yields (line number, text) of each paragraph, list item, heading and cell, and long lines."""
    lines = text.split("\n")
    markdown = path.suffix == ".md"
    stream = ((n, line, line) for n, line in enumerate(lines, 1)) if markdown else comments(path, lines)
    start, words, fence, table = 0, [], None, False
    for number, said, line in stream:
        bare = "" if said is None else said.strip()
        if said is not None and re.match(r"(```|~~~)", bare):
            fence = None if fence else bare[:3]
            if words:
                yield start, " ".join(words)
            words = []
            continue
        if said is None:
            fence = None
        elif fence:
            continue
        table = bare.startswith("|")
        if line is not None and said is not None and len(line) > COLUMNS and not table:
            # A line with an unbreakable word, such as a URL, may be long.
            if max((len(word) for word in bare.split()), default=0) < COLUMNS - 20:
                yield number, None
        begins = re.match(r"([-*+] |\d+\. |#|>|\||:? {4,})", bare) or not bare
        indented = said is not None and not markdown and said.startswith("    ")
        if begins and words:
            yield start, " ".join(words)
            words = []
        if indented or re.match(r"#+ ?!?\[|SPDX|\|[-|: ]*\|$|\[[^]]*\]: ", bare):
            continue
        if table:
            for cell in re.split(r"(?<!\\)\|", bare):
                yield number, cell
            continue
        if bare:
            if not words:
                start = number
            words.append(re.sub(r"^([-*+]|\d+\.|#+|>) ", "", bare))
    if words:
        yield start, " ".join(words)


def sentences(text):
    text = re.sub(r"`[^`]*`", "`code`", text)
    text = re.sub(r"!?\[([^]]*)\](\([^)]*\)|\[[^]]*\])?", r"\1", text)
    text = re.sub(r"\b(e\.g|i\.e|cf|vs|etc|approx|incl)\. ?", r"\1 ", text)
    for sentence in re.split(r"(?:(?<=[.!?])|(?<=[.!?][\"')\]*_]))\s+(?=[A-Z0-9`\"'(*_\[])|:\s+(?=[A-Z`])", text):
        count = len([word for word in sentence.split() if re.search(r"\w", word)])
        if count:
            yield sentence, count


def strings(text):
    """Yields (line number, text) of each string of a Rust source, tests' modules included."""
    number, at = 1, 0
    for found in TOKENS.finditer(text):
        string = found["string"] or found["raw"]
        if string:
            number += text.count("\n", at, found.start())
            at = found.start()
            yield number, re.sub(r"\\\n\s*", "", string)


def message(string):
    """The text of a string that is a message: with one word for each placeholder. None for code."""
    string = string.replace("\\n", "\n").replace('\\"', '"')
    string = re.sub(r"\{[\w.]*(:[^{}\s]*)?\}", "code", string)
    return None if CODE.search(string) else string


def breaches(path, name, totals):
    text = path.read_text(errors="replace")
    for number, paragraph in paragraphs(path, text):
        if paragraph is None:
            totals["long lines"] += 1
            yield number, f"more than {COLUMNS} columns"
            continue
        for sentence, count in sentences(paragraph):
            totals["sentences"] += 1
            totals["words"] += count
            if count > WORDS:
                totals["long sentences"] += 1
                yield number, f"a sentence of {count} words: {sentence[:70]}"
            clauses = len(SUBORDINATORS.findall(NO_CLAUSES.sub("", sentence)))
            if clauses > 1:
                totals["subordinate clauses"] += 1
                yield number, f"{clauses} subordinate clauses: {sentence[:70]}"
            found = SUBJECTS.search(sentence)
            if found:
                totals["subjects"] += 1
                yield number, f"'{found[0]}' is no component: {sentence[:70]}"
            is_title = path.suffix == ".md" and not re.search(r"[.:]\W*$", sentence)
            if WHAT.match(sentence) and not is_title:
                totals["subjects"] += 1
                yield number, f"'What' as the subject is no component: {sentence[:70]}"
    if path.suffix == ".rs":
        for number, string in strings(text):
            found = SUBJECTS.search(string)
            if found and " " in string:
                totals["subjects"] += 1
                yield number, f"'{found[0]}' in a string: {string[:70]}"
            for line in (message(string) or "").split("\n"):
                for sentence, count in sentences(line):
                    if count > WORDS:
                        totals["long sentences"] += 1
                        yield number, f"a sentence of {count} words in a string: {sentence[:70]}"
        for found in NAMES.finditer(text):
            totals["subjects"] += 1
            yield text.count("\n", 0, found.start()) + 1, f"a name with a person in it: {found[1]}"


def files(paths):
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *paths],
        cwd=root, check=True, capture_output=True, text=True,
    ).stdout.split("\n")
    for name in sorted(set(listed)):
        path = root / name
        kinds = SLASHES | HASHES | DASHES | {".md"}
        known = path.suffix in kinds or path.name == "Makefile" or name == ".ci/run"
        if name and known and path.is_file() and not any(part in name for part in LEFT_OUT):
            yield path, name


def main():
    arguments = sys.argv[1:]
    summary = "--summary" in arguments
    paths = [str(pathlib.Path(path).resolve().relative_to(root)) for path in arguments if path != "--summary"]
    listed = root / "scripts/prose-exceptions.txt"
    exceptions = []
    if listed.exists():
        exceptions = [line.split(" ", 1) for line in listed.read_text().splitlines() if line and line[0] != "#"]
    if len(exceptions) > EXCEPTIONS:
        print(f"{listed.relative_to(root)}: more than {EXCEPTIONS} exceptions")
        return 1
    totals = dict.fromkeys(("sentences", "words", "long lines", "long sentences", "subordinate clauses", "subjects"), 0)
    failed = 0
    for path, name in files(paths or ["."]):
        for number, breach in breaches(path, name, totals):
            if any(name == file and part in breach for file, part in exceptions):
                continue
            failed += 1
            if not summary:
                print(f"{name}:{number}: {breach}")
    if summary:
        average = totals["words"] / max(totals["sentences"], 1)
        print(f"{average:.1f} words a sentence, " + ", ".join(f"{totals[key]} {key}" for key in totals if key != "words"))
    elif failed:
        print(f"{failed} breaches of the rules for prose, which stand in {pathlib.Path(__file__).name}")
    return 0 if summary or not failed else 1


if __name__ == "__main__":
    sys.exit(main())
