# SPDX-License-Identifier: Apache-2.0
"""Rules for machine code, and the ceilings of kinds that break one today."""

import dataclasses
import fnmatch
import re

# By rule, a field of `Measured`: the aim, and what the number counts.
RULES = {
    "spills": (0, "bytes of spilled registers"),
    "spins": (0, "64-bit atomics in shared memory that spin (ATOMS.CAST.SPIN)"),
    "calls": (0, "functions that a loop with global loads calls"),
    "byte_chain": (3, "byte loads in a row at consecutive addresses"),
    "byte_loops": (0, "places where a loop loads byte by byte"),
    "in_flight": (4, "independent global loads under way at once in a row loop, at least"),
    "occupancy": (50, "percent of a multiprocessor's warps, at least"),
}
# More is better there.
AT_LEAST = {"in_flight", "occupancy"}


@dataclasses.dataclass
class Break:
    """Kinds that break a rule for one reason, with today's worst values."""

    rule: str
    because: str
    worst: dict[str, int]


@dataclasses.dataclass
class Limits:
    """The file `machine-code.toml`."""

    # Patterns of kinds by family; `in_flight` holds for these only.
    families: dict[str, list[str]]
    broken: list[Break]

    def needs_loads(self, kind):
        return any(fnmatch.fnmatch(kind, pattern) for kinds in self.families.values() for pattern in kinds)

    def allowed(self, rule, kind):
        """The ceiling of a kind: today's worst value, or the rule's aim. None without a rule."""
        for one in self.broken:
            if one.rule == rule and kind in one.worst:
                return one.worst[kind]
        return None if rule == "in_flight" and not self.needs_loads(kind) else RULES[rule][0]


def load(path):
    import tomllib

    data = tomllib.loads(path.read_text())
    return Limits(data["families"], [Break(**entry) for entry in data["broken"]])


def worse(rule, value, limit):
    return value < limit if rule in AT_LEAST else value > limit


def worst(rule, kernels):
    """The kernel with the worst value. `in_flight` counts in loops only."""
    candidates = [one for one in kernels if rule != "in_flight" or one.measured.looped]
    choose = min if rule in AT_LEAST else max
    return choose(candidates, key=lambda one: getattr(one.measured, rule), default=None)


def check(limits, by_kind):
    """(kind, rule, worst kernel, allowed value) of each kind that got worse."""
    for kind, kernels in sorted(by_kind.items()):
        for rule in RULES:
            allowed, one = limits.allowed(rule, kind), worst(rule, kernels)
            if allowed is not None and one and worse(rule, getattr(one.measured, rule), allowed):
                yield kind, rule, one, allowed


def broken(limits, kind, kernels):
    """Rules whose aim the kind misses, as {rule: (worst kernel, value)}."""
    found = {}
    for rule, (aim, _) in RULES.items():
        one = worst(rule, kernels)
        if one and limits.allowed(rule, kind) is not None and worse(rule, getattr(one.measured, rule), aim):
            found[rule] = one
    return found


def updated(text, by_kind):
    """The text of `machine-code.toml` with today's values. Kinds outside the sample keep theirs."""
    rule, rows = None, []
    for row in text.split("\n"):
        if found := re.fullmatch(r'rule = "(\w+)"', row):
            rule = found[1]
        found = re.fullmatch(r"(\w+) = \d+", row)
        if found and (one := worst(rule, by_kind.get(found[1], []))):
            row = f"{found[1]} = {getattr(one.measured, rule)}"
        rows.append(row)
    return "\n".join(rows)
