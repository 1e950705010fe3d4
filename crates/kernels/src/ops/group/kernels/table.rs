// SPDX-License-Identifier: Apache-2.0
//! Kernels over all groups: growth of the states, slots of a larger table, and which groups have
//! rows.

use super::{GroupKernels, STATES};
use crate::codegen::Params;
use crate::ops::group::table::{INSERT_INLINE, INSERT_WIDE};
use crate::ops::group::{GroupMode, Occupancy};
use crate::ops::launch::compact::mask_body;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::prelude::Section;

impl GroupKernels {
    /// The kernel that copies states to a larger array and initializes the rest. Merges copies if
    /// their number decreases.
    pub fn grow_kernel(&self) -> Kernel {
        let mut params = Params::new();
        self.accumulators.need(&mut params);
        params.need(Section::Base);
        for (name, c_type) in [
            ("old", "const G u64 *RESTRICT"),
            ("old_capacity", "u64"),
            ("old_copies", "u64"),
            ("states", "G u64 *RESTRICT"),
            ("n", "u64"),
            ("copies", "u64"),
        ] {
            params.named(name, c_type);
        }
        let slot_count = self.state_slots();
        let mut body =
            format!("    for (u64 c = 0; c < copies; ++c) {{\n      G u64 *s = states + (c * n + g) * {slot_count};\n");
        let mut merges = String::new();
        for state in &self.accumulators.states {
            for (slot, init) in state.slot_names(|slot| format!("s[{slot}]")).iter().zip(state.kind.init()) {
                body.push_str(&format!("      {slot} = (u64){init:#x}UL;\n"));
            }
            let to = state.slot_names(|slot| format!("s[{slot}]"));
            merges.push_str(&format!("        {}\n", state.kind.merge(&to, &state.slot_names(|slot| format!("f[{slot}]")))));
        }
        body.push_str("    }\n    if (g < old_capacity) {\n      for (u64 c = 0; c < old_copies; ++c) {\n");
        body.push_str(&format!(
            "        const G u64 *f = old + (c * old_capacity + g) * {slot_count};\n        G u64 *s = states + ((c < copies ? c : 0) * n + g) * {slot_count};\n{merges}      }}\n    }}\n"
        ));
        Kernel::new("group_grow", params, row_loop(self.options.profile, "g", "n", &body))
    }

    pub fn insert_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Hash);
        for (name, c_type) in [("n", "u64"), ("slots", "volatile G u64 *"), ("mask", "u64")] {
            params.named(name, c_type);
        }
        let body = match self.mode {
            GroupMode::Wide => {
                params.named("hashes", "const G u64 *RESTRICT");
                INSERT_WIDE
            }
            GroupMode::Dense { .. } | GroupMode::Inline { .. } => {
                params.named("keys", "const G u64 *RESTRICT");
                params.named("null_group", "u64");
                INSERT_INLINE
            }
        };
        Kernel::new("group_insert", params, row_loop(self.options.profile, "g", "n", body))
    }

    pub fn occupied_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        let count = match self.occupancy {
            Occupancy::Count(count) => count,
            Occupancy::Bits => {
                let occupied = params.named("occupied", "const G u32 *RESTRICT");
                let body = mask_body(&mut params, &self.options, "", &format!("({occupied}[row >> 5] >> (row & 31) & 1)"));
                return Kernel::new("group_occupied", params, body);
            }
        };
        for (name, c_type) in [("states", STATES), ("capacity", "u64"), ("copies", "u64")] {
            params.named(name, c_type);
        }
        let slot = self.accumulators.states.get(count).map_or(0, |state| state.first_slot);
        let statements = format!(
            "    u64 rows = 0;\n    for (u64 c = 0; c < copies; ++c) rows += states[(c * capacity + row) * {} + {slot}];\n",
            self.state_slots().max(1)
        );
        let body = mask_body(&mut params, &self.options, &statements, "(rows != 0)");
        Kernel::new("group_occupied", params, body)
    }
}
