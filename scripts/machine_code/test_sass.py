# SPDX-License-Identifier: Apache-2.0
"""The parser and its loops, over short texts and recorded disassemblies."""

import pathlib
import unittest

from . import sass

RECORDED = pathlib.Path(__file__).parent / "recorded"


def recorded(name):
    """The function of a recorded disassembly."""
    (function,) = sass.parse((RECORDED / f"{name}.sass").read_text())
    return function


def function(code):
    """A function of instructions and labels; offsets are added."""
    rows, offset = [".text.kernel:"], 0
    for row in code.strip().split("\n"):
        if row.strip().endswith(":"):
            rows.append(row.strip())
        else:
            rows.append(f"        /*{offset:04x}*/                   {row.strip()} ;")
            offset += 16
    return sass.parse("\n".join(rows))[0]


def found_loops(code):
    return sass.loops([following for _, following in code.blocks()])


class Parser(unittest.TestCase):
    def test_instruction_has_its_parts(self):
        code = function("@!P0 LDG.E.64.CONSTANT R4, desc[UR6][R4.64+-0x8]")
        (one,) = code.instructions
        self.assertEqual((one.predicate, one.operation, one.width), ("!P0", "LDG", 8))
        self.assertEqual((one.address(), list(one.written())), ((4, -8), [4, 5]))
        self.assertTrue(one.is_global_load and not one.is_byte_load)

    def test_registers_have_their_halves(self):
        code = function("LDG.E R4, [R2.64]\nIMAD.WIDE.U32 R2, R0, 0x8, R6\nDADD R8, R8, R4\nI2F.F64 R2, R5\nISETP.GE.AND P0, PT, R7, R3, PT")
        read = [one.registers() for one in code.instructions]
        self.assertEqual(read, [{2, 3, 4}, {0, 1, 2, 3, 6, 7}, {4, 5, 8, 9}, {2, 3, 5}, {3, 7}])
        written = [list(one.written()) for one in code.instructions]
        self.assertEqual(written, [[4], [2, 3], [8, 9], [2, 3], []])

    def test_widths(self):
        loads = function("LDG.E.U8 R1, [R2.64]\nLDG.E.S16 R1, [R2.64]\nLDG.E R1, [R2.64]\nLDG.E.128 R4, [R2.64]")
        self.assertEqual([one.width for one in loads.instructions], [1, 2, 4, 16])

    def test_lines_begin_with_the_inlined_function(self):
        predicate = recorded("dictionary_predicate.sm_90")
        bytes_loaded = [one for one in predicate.instructions if one.is_byte_load]
        self.assertEqual({one.lines for one in bytes_loaded}, {(284, 626)})

    def test_sections_are_functions(self):
        text = ".text.a:\n        /*0000*/                   EXIT ;\n\t.section .text.b\n" \
               ".text.b:\n        /*0000*/                   NOP;\n        /*0010*/                   EXIT ;\n"
        self.assertEqual([(one.name, len(one.instructions)) for one in sass.parse(text)], [("a", 1), ("b", 1)])


class Loops(unittest.TestCase):
    def test_inner_loop_is_in_the_outer(self):
        (outer,) = found_loops(recorded("dictionary_predicate.sm_90"))
        self.assertEqual(len(outer.inner), 1)
        self.assertLess(outer.inner[0].blocks, outer.blocks)

    def test_divergent_vote_is_outside_of_the_loop(self):
        # Its path calls a function, only where a warp's lanes are apart.
        code = recorded("select_mask.sm_80")
        blocks = code.blocks()
        inside = {number for loop in found_loops(code) for number in loop.blocks}
        self.assertTrue(any(one.is_call for one in code.instructions))
        self.assertFalse(any(one.is_call for number in inside for one in blocks[number][0]))

    def test_call_of_a_local_label_is_a_jump(self):
        code = function("""
            .L_x_1:
            LDG.E R0, [R2.64]
            @P0 CALL.REL.NOINC `(.L_x_2)
            BRA `(.L_x_1)
            .L_x_2:
            EXIT""")
        self.assertFalse(any(one.is_call for one in code.instructions))
        (loop,) = found_loops(code)
        self.assertEqual(len(loop.blocks), 2)

    def test_jump_table_reaches_its_targets(self):
        code = function("""
            .L_x_1:
            BRX R2 -0x10     (*"BRANCH_TARGETS .L_x_2,.L_x_3"*)
            .L_x_2:
            BRA `(.L_x_1)
            .L_x_3:
            EXIT""")
        (loop,) = found_loops(code)
        self.assertEqual(loop.blocks, {0, 1})

    def test_code_behind_an_exit_is_unreachable(self):
        self.assertEqual(found_loops(function("EXIT\n.L_x_1:\nBRA `(.L_x_1)")), [])


if __name__ == "__main__":
    unittest.main()
