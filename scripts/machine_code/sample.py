# SPDX-License-Identifier: Apache-2.0
"""Kernel sources in a folder, and a sample of them that has every kind of kernel."""

import collections
import dataclasses
import pathlib
import re

from . import measure

KERNEL = re.compile(r"^KERNEL void (\w+)\(", re.M)
HELPER = re.compile(r"^(?:COLD_)?FN \w+ \*?(\w+)\(", re.M)


@dataclasses.dataclass
class Source:
    """A text with kernels for GPUs."""

    path: pathlib.Path
    text: str

    @property
    def work_group(self):
        found = re.search(r"^#define GROUP_ITEMS (\d+)", self.text, re.M)
        return int(found[1]) if found else measure.WORK_GROUP

    def kernels(self):
        """(name, text) of each kernel."""
        starts = list(KERNEL.finditer(self.text))
        ends = [found.start() for found in starts[1:]] + [len(self.text)]
        return [(found[1], self.text[found.start() : end]) for found, end in zip(starts, ends)]

    def features(self):
        """(kind, function or operator) for what decides a kernel's code: helpers and divisions."""
        helpers = set(HELPER.findall(self.text))
        for name, text in self.kernels():
            called = helpers.intersection(re.findall(r"\b(\w+)\(", text))
            # Not divisions by constants, as of indices.
            divisions = re.findall(r" ([/%]) [a-z(]", text)
            for feature in called.union(divisions):
                yield kind(name), feature


def kind(name):
    """The kind of a kernel: its name without numbers."""
    return re.sub(r"_+", "_", re.sub(r"\d+", "", name)).strip("_")


def sources(folder, base):
    """Sources for GPUs in a folder, without those of the crate `device`.

    The first line of an operator's source has its profile. Sources of the tests of expressions
    begin with `base`, the first section of the prelude.
    """
    for path in sorted(pathlib.Path(folder).glob("*.cl")):
        text = path.read_text()
        if text.split("\n", 1)[0].endswith("profile gpu") or text.startswith(base):
            # A projection of plain columns has no kernel.
            if KERNEL.search(text):
                yield Source(path, text)


def choose(found, of_each):
    """Sources with the shortest and the longest kernels of each kind, and with each feature of one.

    Kernels with one column have the fewest loads under way; those with many take most registers.
    A feature is in the shortest source that has it. So the choice changes little with new tests.
    """
    kinds, features = collections.defaultdict(list), {}
    for source in found:
        size = (len(source.text), source.path.name)
        for name, text in source.kernels():
            kinds[kind(name)].append((len(text), *size, source))
        for feature in source.features():
            features[feature] = min(features.get(feature, (*size, source)), (*size, source), key=lambda one: one[:2])
    chosen = {source.path: source for *_, source in features.values()}
    for kernels in kinds.values():
        kernels.sort(key=lambda kernel: kernel[:3])
        few, many = (of_each + 1) // 2, of_each // 2
        for *_, source in kernels[:few] + kernels[max(len(kernels) - many, few) :]:
            chosen[source.path] = source
    return [chosen[path] for path in sorted(chosen)]
