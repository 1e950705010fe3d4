# SPDX-License-Identifier: Apache-2.0
"""Rules over recorded disassemblies and short texts with a fault."""

import unittest

from . import measure
from .test_sass import function, recorded


def measured(code):
    return measure.measure(code, measure.Usage(registers=32), "sm_90")


LOOP = """
    .L_x_1:
    {}
    @!P0 BRA `(.L_x_1)
    EXIT"""


def loop(*rows):
    return measured(function(LOOP.format("\n".join(rows))))


class RowLoops(unittest.TestCase):
    def test_mask_keeps_one_load_under_way(self):
        one = measured(recorded("select_mask.sm_80"))
        self.assertEqual((one.looped, one.in_flight, one.loads, one.rows, one.bytes), (True, 1, 1, 1, 8))
        # A line may have a path outside of the loop, which calls.
        self.assertEqual((one.calls, one.spins, one.byte_loops), (0, 0, 0))

    def test_call_in_a_row_loop_has_its_name(self):
        one = measured(recorded("select_bytes.sm_90"))
        self.assertEqual((one.calls, one.called), (1, ("append_reversed",)))

    def test_plain_names(self):
        mangled = "$evaluate$_ZN41_INTERNAL_00000000_10_kernels_cu_evaluate11u256_divmodE4i256S0_PS0_"
        self.assertEqual(measure.plain(mangled), "u256_divmod")
        self.assertEqual(measure.plain("$__internal_0_$__cuda_sm20_div_u64"), "__cuda_sm20_div_u64")

    def test_spinning_atomics_are_counted(self):
        one = measured(recorded("join_key_ranges.sm_80"))
        self.assertEqual((one.spins, one.in_flight), (3, 1))

    def test_kernel_without_a_loop_is_an_iteration(self):
        one = measured(function("LDG.E R0, [R2.64]\nSTG.E [R4.64], R0\nEXIT"))
        self.assertEqual((one.looped, one.instructions, one.bytes), (False, 3, 8))

    def test_unrolled_rows(self):
        loads = [f"LDG.E R{at}, [R20.64+{hex(1024 * at)}]" for at in range(4)]
        stores = [f"STG.E [R22.64+{hex(1024 * at)}], R{at}" for at in range(4)]
        one = loop(*loads, *stores)
        self.assertEqual((one.rows, one.in_flight, one.bytes), (4, 4, 32))


class InFlight(unittest.TestCase):
    def test_load_waits_for_its_address(self):
        self.assertEqual(loop("LDG.E.64 R2, [R4.64]", "LDG.E R6, [R2.64]", "STS [R8], R6").in_flight, 1)

    def test_use_ends_a_load_and_those_before(self):
        rows = ["LDG.E R0, [R10.64]", "LDG.E R1, [R12.64]", "IADD3 R1, R1, 0x1, RZ", "LDG.E R2, [R14.64]"]
        self.assertEqual(loop(*rows, "STS [R8], R2").in_flight, 2)

    def test_upper_half_of_a_wide_load_ends_it(self):
        rows = ["LDG.E.64 R0, [R10.64]", "IADD3 R9, R1, 0x1, RZ", "LDG.E R2, [R14.64]"]
        self.assertEqual(loop(*rows, "STS [R8], R2").in_flight, 1)

    def test_words_of_16_bytes_count_once(self):
        self.assertEqual(measured(recorded("concat_views.sm_90")).in_flight, 1)

    def test_changed_register_is_another_address(self):
        rows = ["LDG.E R0, [R10.64]", "IADD3 R10, P1, R10, 0x400, RZ", "LDG.E R1, [R10.64]"]
        self.assertEqual(loop(*rows).in_flight, 2)

    def test_loads_stay_under_way_into_the_next_iteration(self):
        rows = ["LDG.E R0, [R10.64]", "STS [R8], R1", "STS [R8], R0", "LDG.E R1, [R12.64]"]
        self.assertEqual(loop(*rows).in_flight, 2)

    def test_path_with_the_most_loads_counts(self):
        rows = ["LDG.E R0, [R10.64]", "@P1 BRA `(.L_x_2)", "LDG.E R1, [R12.64]", ".L_x_2:", "LDG.E R2, [R14.64]"]
        self.assertEqual(loop(*rows, "IADD3 R3, R0, R1, R2").in_flight, 3)

    def test_one_of_two_branches_counts(self):
        code = """
            .L_x_1:
            LDG.E R0, [R10.64]
            @P0 BRA `(.L_x_2)
            LDG.E R1, [R12.64]
            BRA `(.L_x_3)
            .L_x_2:
            LDG.E R2, [R14.64]
            .L_x_3:
            IADD3 R3, R0, R1, R2
            @!P1 BRA `(.L_x_1)
            EXIT"""
        self.assertEqual(measured(function(code)).in_flight, 2)


class Bytes(unittest.TestCase):
    def test_chain(self):
        rows = [f"LDG.E.U8 R{at}, [R20.64+{hex(at)}]" for at in (0, 1, 2, 3)]
        self.assertEqual(loop(*rows).byte_chain, 4)
        self.assertEqual(loop(*rows, "LDG.E.U8 R9, [R20.64+0x6]").byte_chain, 4)

    def test_changed_register_begins_another_chain(self):
        rows = ["LDG.E.U8 R0, [R20.64]", "IADD3 R20, R20, R2, RZ", "LDG.E.U8 R1, [R20.64+0x1]"]
        self.assertEqual(loop(*rows).byte_chain, 1)

    def test_words_are_no_chain(self):
        rows = [f"LDG.E R{at}, [R20.64+{hex(4 * at)}]" for at in range(4)]
        self.assertEqual((loop(*rows).byte_chain, loop(*rows).byte_loops), (0, 0))

    def test_rolled_loop_over_bytes(self):
        one = measured(recorded("dictionary_predicate.sm_90"))
        self.assertEqual((one.byte_loops, one.places["byte_loops"]), (1, (284, 626)))

    def test_loop_over_rows_of_bytes_is_none(self):
        one = loop("LDG.E.U8 R0, [R20.64]", "IADD3 R20, P1, R20, 0x400, RZ")
        self.assertEqual(one.byte_loops, 0)


class Resources(unittest.TestCase):
    def test_usage_of_a_log(self):
        log = """ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 30 registers, used 1 barriers, 5120 bytes smem, 400 bytes cmem[0]"""
        self.assertEqual(measure.usage(log), {"a": measure.Usage(30, 5120, 8, 16)})

    def test_occupancy(self):
        # As NVIDIA's calculator: blocks of 256 threads.
        self.assertEqual(measure.occupancy(32, 0, "sm_90"), 100)
        self.assertEqual(measure.occupancy(33, 0, "sm_90"), 75)
        self.assertEqual(measure.occupancy(64, 0, "sm_80"), 50)
        self.assertEqual(measure.occupancy(94, 13312, "sm_80"), 25)
        self.assertEqual(measure.occupancy(32, 40000, "sm_80"), 50)
        self.assertEqual(measure.occupancy(32, 40000, "sm_90"), 62)


if __name__ == "__main__":
    unittest.main()
