# SPDX-License-Identifier: Apache-2.0
"""Limits, the sample and the page."""

import dataclasses
import pathlib
import unittest

from . import limits, measure, report, sample
from .test_sass import recorded

HERE = pathlib.Path(__file__).parent
BUDGET = limits.Limits(
    {"scan": ["select_mask"], "probe": ["probe_*"]},
    [limits.Break("in_flight", "one row an iteration", {"select_mask": 2})],
)


def kernel(name, **changes):
    measured = measure.measure(recorded("select_mask.sm_80"), measure.Usage(registers=16), "sm_80")
    return report.Kernel(name, HERE / "recorded/select_mask.sm_80.sass", "sm_80", dataclasses.replace(measured, **changes))


def failing(name, **changes):
    return [(kind, rule) for kind, rule, _, _ in limits.check(BUDGET, {name: [kernel(name), kernel(name, **changes)]})]


class Ceilings(unittest.TestCase):
    def test_worse_than_the_ceiling_fails(self):
        self.assertEqual(failing("select_mask", in_flight=2), [("select_mask", "in_flight")])
        better = {"select_mask": [kernel("select_mask", in_flight=2)]}
        self.assertEqual(list(limits.check(BUDGET, better)), [])

    def test_aim_holds_without_a_ceiling(self):
        for rule, value in (("spins", 1), ("spills", 4), ("calls", 1), ("byte_chain", 4), ("byte_loops", 1), ("occupancy", 49)):
            self.assertEqual(failing("views", **{rule: value}), [("views", rule)])
        self.assertEqual(failing("views", byte_chain=3, occupancy=50), [])

    def test_loads_under_way_count_in_scans_only(self):
        self.assertEqual(failing("views", in_flight=1), [])

    def test_a_ceiling_is_a_miss_still(self):
        kernels = [kernel("select_mask", in_flight=2)]
        self.assertEqual(list(limits.broken(BUDGET, "select_mask", kernels)), ["in_flight"])

    def test_new_kind_of_a_family_has_the_aim(self):
        self.assertEqual(failing("probe_new"), [("probe_new", "in_flight")])
        self.assertEqual(failing("probe_new", in_flight=4), [("probe_new", "in_flight")])

    def test_failure_names_the_place(self):
        failure = report.failures(BUDGET, {"views": [kernel("views", spins=7, places={"spins": (1,)})]})[0]
        self.assertIn("views: 7 instead of 0 64-bit atomics", failure)
        self.assertIn("line 1: .text.select_mask:", failure)

    def test_values_are_updated(self):
        text = 'rule = "spins"\nbecause = "a = 1"\na = 1\nab = 1\nrule = "in_flight"\na = 1'
        by_kind = {"a": [kernel("a", spins=3, in_flight=3), kernel("a", spins=2, in_flight=2)]}
        wanted = 'rule = "spins"\nbecause = "a = 1"\na = 3\nab = 1\nrule = "in_flight"\na = 2'
        self.assertEqual(limits.updated(text, by_kind), wanted)


class File(unittest.TestCase):
    def setUp(self):
        try:
            self.budget = limits.load(HERE.parent / "machine-code.toml")
        except ModuleNotFoundError:
            self.skipTest("needs tomllib of Python 3.11")

    def test_kinds_break_rules_once_and_have_a_family(self):
        seen = set()
        for one in self.budget.broken:
            self.assertTrue(one.because)
            for kind, value in one.worst.items():
                self.assertTrue(one.rule != "in_flight" or self.budget.needs_loads(kind), kind)
                self.assertNotIn((one.rule, kind), seen)
                self.assertTrue(limits.worse(one.rule, value, limits.RULES[one.rule][0]), (one.rule, kind, value))
                seen.add((one.rule, kind))

    def test_page_lists_what_is_broken(self):
        text = (HERE.parents[1] / "docs/machine-code.md").read_text()
        self.assertEqual(report.between(text, "broken"), "\n".join(report.broken_table(self.budget)))


class Sample(unittest.TestCase):
    def test_kinds(self):
        names = ["group_update0_0", "group_store_bytes0_1", "select_mask", "window2_write10", "remap_u0"]
        wanted = ["group_update", "group_store_bytes", "select_mask", "window_write", "remap_u"]
        self.assertEqual([sample.kind(name) for name in names], wanted)

    def test_extremes_and_features_are_chosen(self):
        def source(name, kernels, helpers=""):
            return sample.Source(pathlib.Path(name), "// Select, profile gpu\n" + helpers + "".join(
                f"KERNEL void {kernel}() {{\n{body}\n}}\n" for kernel, body in kernels.items()))

        helper = "FN u64 hash64(u64 x) { return x; }\n"
        sources = [source(f"{length}.cl", {"select_mask": "x" * length}) for length in (0, 8, 16, 80, 81)]
        sources.append(source("unused.cl", {"select_mask": "x" * 20}, helper))
        sources.append(source("helper.cl", {"select_mask": "y = hash64(1);"}, helper))
        sources.append(source("longer.cl", {"select_mask": "y = hash64(11);"}, helper))
        sources.append(source("division.cl", {"select_mask": "long_name = x % other;"}))
        sources.append(source("constant.cl", {"select_mask": "y = x % 10u;"}))
        chosen = [one.path.name for one in sample.choose(sources, 2)]
        self.assertEqual(chosen, ["0.cl", "81.cl", "division.cl", "helper.cl"])
        self.assertEqual(len(sample.choose(sources, 100)), len(sources))

    def test_work_group_of_the_source(self):
        self.assertEqual(sample.Source(HERE, "#define GROUP_ITEMS 512\n").work_group, 512)
        self.assertEqual(sample.Source(HERE, "").work_group, 256)


if __name__ == "__main__":
    unittest.main()
