#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the imports between the files of each crate.

- A circle of imports has at most 7 files.
- `kernels/src/codegen` never imports `kernels/src/ops`.
- No two files of a crate declare a type of one name.

An import through a re-export counts as one of the file that declares the item. A re-export counts
as an import where its file uses the name. Unit tests do not count.

`check-imports.py --circles` prints the largest circle of each crate.
"""

import pathlib
import re
import sys

FILES = 7
FORBIDDEN = [("crates/kernels/src/codegen/", "crates/kernels/src/ops/")]

root = pathlib.Path(__file__).resolve().parent.parent


def code(path):
    """The source without comments, strings and unit tests."""
    text = path.read_text()
    text = re.sub(r"(?s)#\[cfg\(test\)\]\s*mod \w+ \{.*", "", text)
    text = re.sub(r'(?s)r#".*?"#|"(?:[^"\\]|\\.)*"', '""', text)
    return re.sub(r"//[^\n]*", "", text)


def use_paths(tree, prefix=()):
    """Yields (path, name) of each leaf of a use tree; the name is `*` for a glob."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if brace:
        base = prefix + tuple(part for part in re.split(r"::|\s+", head.strip()) if part)
        depth, start = 0, 0
        inner = rest[: rest.rindex("}")]
        for index, letter in enumerate(inner + ","):
            depth += (letter == "{") - (letter == "}")
            if letter == "," and depth == 0:
                if inner[start:index].strip():
                    yield from use_paths(inner[start:index], base)
                start = index + 1
        return
    path, _, alias = tree.partition(" as ")
    parts = prefix + tuple(part.strip() for part in path.split("::") if part.strip())
    if parts and parts[-1] == "self":
        parts = parts[:-1]
    yield parts, alias.strip() or (parts[-1] if parts else "")


class Crate:
    def __init__(self, folder):
        self.files = {}
        for path in sorted((folder / "src").rglob("*.rs")):
            module = path.relative_to(folder / "src").with_suffix("").parts
            if "tests" in module or "bin" in module:
                continue
            module = module[:-1] if module[-1] in ("mod", "lib", "main") else module
            self.files[module] = path
        self.code = {module: code(path) for module, path in self.files.items()}
        self.reexports = {module: self.exported(module) for module in self.files}

    def exported(self, module):
        found = []
        for tree in re.findall(r"\bpub(?:\([^)]*\))? use ([^;]+);", self.code[module]):
            found.extend(use_paths(tree))
        return found

    def absolute(self, module, path):
        """The path from the crate's root; None for another crate's."""
        if not path:
            return None
        if path[0] == "crate":
            return path[1:]
        if path[0] == "self":
            return module + path[1:]
        if path[0] == "super":
            while path and path[0] == "super":
                module, path = module[:-1], path[1:]
            return module + path
        return module + path if module + path[:1] in self.files else None

    def target(self, path, seen=()):
        """The module whose file declares the item at an absolute path."""
        module, rest = (), path
        while rest and module + rest[:1] in self.files:
            module, rest = module + rest[:1], rest[1:]
        if not rest or (module, rest[0]) in seen:
            return module
        name = rest[0]
        declares = rf"\b(?:fn|struct|enum|trait|type|const|static|union|macro_rules!)\s+{re.escape(name)}\b"
        if re.search(declares, self.code[module]):
            return module
        for exported, alias in self.reexports[module]:
            if alias == name or exported[-1:] == ("*",):
                absolute = self.absolute(module, exported[:-1] if exported[-1:] == ("*",) else exported)
                if absolute is None:
                    continue
                if exported[-1:] == ("*",):
                    found = self.target(absolute + (name,), seen + ((module, name),))
                    if re.search(declares, self.code[found]):
                        return found
                else:
                    return self.target(absolute, seen + ((module, name),))
        return module

    def imports(self):
        """Module → modules that it imports items of."""
        edges = {module: set() for module in self.files}
        for module, text in self.code.items():
            paths = []
            for tree in re.findall(r"(?<!pub )(?<!\) )\buse ([^;]+);", text):
                paths.extend(path for path, _ in use_paths(tree))
            body = re.sub(r"\buse [^;]+;", "", text)
            used = (path for path, name in self.reexports[module] if re.search(rf"\b{re.escape(name)}\b", body))
            paths.extend(used)
            paths.extend(tuple(found.split("::")) for found in re.findall(r"\b(?:crate|super|self)(?:::\w+)+", body))
            for path in paths:
                absolute = self.absolute(module, path[:-1] + (path[-1],) if path else path)
                if absolute is not None:
                    absolute = absolute[:-1] if absolute[-1:] == ("*",) else absolute
                    edges[module].add(self.target(absolute))
            edges[module].discard(module)
        return edges


def doubled_types(files):
    """(name, files) of each type that several files declare."""
    declares = r"(?m)^(?:pub(?:\([^)]*\))? )?(?:struct|enum|union|trait|type)\s+(\w+)"
    declared = {}
    for path, text in files.items():
        for name in set(re.findall(declares, text)):
            declared.setdefault(name, []).append(str(path.relative_to(root)))
    return [(name, sorted(paths)) for name, paths in sorted(declared.items()) if len(paths) > 1]


def circles(edges):
    """The strongly connected components, by Tarjan's algorithm."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on.add(node)
        for other in edges[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                on.discard(component[-1])
                if component[-1] == node:
                    break
            found.append(component)

    for node in edges:
        if node not in index:
            visit(node)
    return found


def main():
    sys.setrecursionlimit(10_000)
    failed = False
    for folder in sorted([*(root / "crates").iterdir(), root / "benches"]):
        if not (folder / "src").exists():
            continue
        crate = Crate(folder)
        edges = crate.imports()
        name = lambda module: str(crate.files[module].relative_to(root))
        largest = max(circles(edges), key=len)
        if "--circles" in sys.argv:
            print(f"{folder.name}: {len(largest)} of {len(edges)} files")
        if len(largest) > FILES:
            failed = True
            print(f"{folder.relative_to(root)}: a circle of {len(largest)} files imports itself, the limit is {FILES}:")
            for module in sorted(largest):
                inside = sorted(name(other) for other in edges[module] if other in largest)
                print(f"  {name(module)} -> {', '.join(inside)}")
        suites = [suite for suite in (folder / "tests").glob("*") if suite.is_dir()]
        sources = {path: crate.code[module] for module, path in crate.files.items()}
        for files in [sources, *({path: code(path) for path in suite.rglob("*.rs")} for suite in suites)]:
            for declared, paths in doubled_types(files):
                failed = True
                print(f"{declared} is declared by {', '.join(paths)}: a crate has one type of a name")
        for module, others in edges.items():
            for source, target in FORBIDDEN:
                bad = [name(other) for other in others if name(other).startswith(target)]
                if name(module).startswith(source) and bad:
                    failed = True
                    print(f"{name(module)} imports {', '.join(bad)}: {source} must not import {target}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
