// SPDX-License-Identifier: Apache-2.0
//! Kernels that look up the groups of rows and store the keys of new ones.

use super::GroupKernels;
use crate::Result;
use crate::codegen::{CType, NEXT_ROW, Params, Profile, RowWriter, Value};
use crate::ops::group::key::GroupKey;
use crate::ops::group::table::{
    NO_GROUP, NUMBER_WIDE, claimed, find_blocks, first_slot_inline, first_slot_wide, number_inline, probe_inline, probe_wide,
    slot_inline,
};
use crate::ops::group::{Feed, GroupMode, KEYS_OF_STORE};
use crate::ops::launch::equality::equal;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::prelude::Section;

/// Words (of 64 bits) of keys that a work-item of the gpu profile keeps in registers. CUDA has 255
/// of 32 bits; those of another row are compared beside them.
const KEPT_WORDS: usize = 24;

/// Where the gpu profile probes, within the statements of [`GroupKernels::first_probe`].
const PROBE: &str = "@PROBE@";

impl GroupKernels {
    /// The parameters of [`find_kernel`](Self::find_kernel) that do not depend on the input.
    fn find_params(&self) -> Params {
        let mut params = Params::new();
        for (name, c_type) in [
            ("n", "u64"),
            ("ids", "G u32 *RESTRICT"),
            ("control", "volatile G u64 *"),
            ("slots", "volatile G u64 *"),
            ("mask", "u64"),
            ("limit", "u64"),
        ] {
            params.named(name, c_type);
        }
        if self.mode.stores_keys() {
            for (name, c_type) in
                [("origins", "G u32 *RESTRICT"), ("new_slots", "G u32 *RESTRICT"), ("hashes", "G u64 *RESTRICT")]
            {
                params.named(name, c_type);
            }
        } else {
            params.named("keys", "G u64 *RESTRICT");
        }
        params
    }

    /// C that sets the first slot of a probe, within the filter, and the values of the keys. The
    /// gpu profile probes in the same branch, at [`PROBE`].
    fn first_probe(&self, planned: &Feed, params: &mut Params) -> Result<(String, Vec<Value>)> {
        let profile = self.options.profile;
        let mut own = Vec::new();
        let mut writer = planned.source.writer(profile, params);
        writer.params().need(Section::Hash);
        self.filtered(&planned.source, &mut writer, |writer| {
            match &self.mode {
                GroupMode::Inline { null_slot } => {
                    own = self.evaluate(writer, planned)?;
                    self.pack(writer, &own, *null_slot);
                    writer.push(&slot_inline(*null_slot));
                }
                GroupMode::Dense { .. } | GroupMode::Wide => {
                    writer.push("key = (u64)0x9e3779b97f4a7c15UL;");
                    for (key, expr) in self.keys.iter().zip(&planned.keys) {
                        key.need(writer.params());
                        let value = key.eval(writer, expr)?;
                        key.hash(writer, "key", &value);
                        own.push(value);
                    }
                    writer.push("h = key & mask;");
                }
            }
            if profile == Profile::Gpu {
                writer.push(PROBE);
            }
            Ok(())
        })?;
        Ok((writer.statements(), own))
    }

    /// The kernel that looks up the group of each row, and adds the new groups.
    pub(super) fn find_kernel(&self, feed: usize, planned: &Feed) -> Result<Kernel> {
        let profile = self.options.profile;
        let mut params = self.find_params();
        let (slot, mut own) = self.first_probe(planned, &mut params)?;
        let mut evaluated = String::new();
        if profile == Profile::Cpu && self.mode.stores_keys() {
            let mut writer = planned.source.writer(profile, &mut params);
            own = self.evaluate(&mut writer, planned)?;
            evaluated = writer.statements();
        }
        let (first_slot, number, probe) = match &self.mode {
            GroupMode::Inline { null_slot } => {
                let number = number_inline(*null_slot);
                let probe = probe_inline(&claimed(profile, &number));
                (first_slot_inline(), number, probe)
            }
            GroupMode::Dense { .. } | GroupMode::Wide => {
                let (row, group) = match self.keys_fit_registers() {
                    true => self.comparisons(planned, &own, &mut params)?,
                    false => self.comparisons_by_key(planned, &mut params)?,
                };
                (first_slot_wide(), NUMBER_WIDE.into(), evaluated + &probe_wide(&row, &group, &claimed(profile, NUMBER_WIDE)))
            }
        };
        let body = match profile {
            Profile::Cpu => find_blocks(&slot, &first_slot, &probe, &number),
            Profile::Gpu => {
                // A work-item that finds the table full is done: the look-up is repeated.
                let find = slot.replace(PROBE, &format!("u64 seen = slots[2 * h];\n{probe}\nif (id == {NO_GROUP}) break;"));
                row_loop(
                    profile,
                    "row",
                    "n",
                    &format!("    u64 key = 0, h = 0;\n    u32 id = {NO_GROUP};\n{find}    ids[row] = id;\n"),
                )
            }
        };
        Ok(Kernel::new(format!("group_find{feed}"), params, body))
    }

    /// C that compares the values `own` with those of the row `other`, and C for the stored keys of
    /// the group `other`. Both set `equal`.
    fn comparisons(&self, planned: &Feed, own: &[Value], params: &mut Params) -> Result<(String, String)> {
        let equal_keys = |others: &[Value]| {
            let all = own.iter().zip(others).map(|(own, other)| equal(own, other));
            format!("equal = {};", all.collect::<Vec<_>>().join(" && "))
        };
        let mut writer = planned.source.writer(self.options.profile, params).with_names("other", "y");
        let others = self.evaluate(&mut writer, planned)?;
        writer.push(&equal_keys(&others));
        let row = writer.statements();
        let stored: Vec<Value> = self.keys.iter().map(|key| key.stored(params, "other")).collect();
        Ok((row, format!("      {}", equal_keys(&stored))))
    }

    /// Whether a work-item keeps its keys during a probe.
    fn keys_fit_registers(&self) -> bool {
        let words = |key: &GroupKey| if key.ctype == CType::Str { 2 } else { key.ctype.width().div_ceil(8).max(1) };
        self.options.profile == Profile::Cpu || self.keys.iter().map(words).sum::<usize>() <= KEPT_WORDS
    }

    /// As [`comparisons`](Self::comparisons), for more keys than registers hold: one key after the
    /// other is loaded again.
    fn comparisons_by_key(&self, planned: &Feed, params: &mut Params) -> Result<(String, String)> {
        let mut row = String::from("u64 own = row;\nFORGET(own);\nequal = 1;\n");
        let mut group = row.clone();
        for (key, expr) in self.keys.iter().zip(&planned.keys) {
            let mut writer = planned.source.writer(self.options.profile, params).with_names("own", "x");
            let own = key.eval(&mut writer, expr)?;
            let loads = writer.statements();
            let mut writer = planned.source.writer(self.options.profile, params).with_names("other", "y");
            let other = key.eval(&mut writer, expr)?;
            let loads_other = writer.statements();
            row.push_str(&format!("if (equal) {{\n{NEXT_ROW}{loads}{loads_other}equal = {};\n}}\n", equal(&own, &other)));
            let stored = key.stored(params, "other");
            group.push_str(&format!("if (equal) {{\n{NEXT_ROW}{loads}equal = {};\n}}\n", equal(&own, &stored)));
        }
        Ok((row, group))
    }

    /// Appends `key` (and `is_null`) of inline keys.
    fn pack(&self, writer: &mut RowWriter<'_>, values: &[Value], null_slot: bool) {
        if null_slot {
            let null = match &values[0].valid {
                Some(valid) => format!("!{valid}"),
                None => "0".into(),
            };
            writer.push(&format!("i32 is_null = {null};\nkey = {};", self.keys[0].pack(&values[0])));
            return;
        }
        writer.push("key = 0;");
        let mut shift = 0;
        for (key, value) in self.keys.iter().zip(values) {
            let bits = key.bits().unwrap_or(64);
            let packed = format!("{} << {shift}", key.pack(value));
            writer.push(&match &value.valid {
                None => format!("key |= {packed};"),
                Some(valid) => format!("key |= {valid} ? {packed} : (u64)1 << {};", shift + bits),
            });
            shift += bits + u32::from(key.nullable);
        }
    }

    /// The kernel that copies values and lengths of [`KEYS_OF_STORE`] keys of a batch's new groups
    /// to the store. That of the first ones also points the slots to the store.
    pub(super) fn store_keys_kernel(&self, feed: usize, planned: &Feed, first_key: usize) -> Result<Kernel> {
        let mut params = Params::new();
        let n = params.named("n", "u64");
        let mut statements = self.new_group(&mut params);
        if first_key == 0 {
            let slots = params.named("slots", "G u64 *RESTRICT");
            let new_slots = params.named("new_slots", "const G u32 *RESTRICT");
            let hashes = params.named("hashes", "const G u64 *RESTRICT");
            statements
                .push_str(&format!("    {slots}[2 * (u64){new_slots}[g]] = ({hashes}[g] >> 32) << 32 | 0x80000000u | g;\n"));
        }
        let keys = self.keys.iter().zip(&planned.keys).skip(first_key).take(KEYS_OF_STORE);
        let mut writer = planned.source.writer(self.options.profile, &mut params);
        for (key, expr) in keys {
            key.need(writer.params());
            let value = key.eval(&mut writer, expr)?;
            key.store.write(&mut writer, &value, "g");
        }
        statements.push_str(&writer.statements());
        let name = format!("group_store{feed}_{first_key}");
        Ok(Kernel::new(name, params, row_loop(self.options.profile, "i", &n, &statements)))
    }

    /// The kernel that copies the bytes of string key `index` of a batch's new groups to the store.
    pub(super) fn store_bytes_kernel(&self, feed: usize, planned: &Feed, index: usize) -> Result<Kernel> {
        let mut params = Params::new();
        let n = params.named("n", "u64");
        let mut statements = self.new_group(&mut params);
        let key = &self.keys[index];
        key.need(&mut params);
        let mut writer = planned.source.writer(self.options.profile, &mut params);
        let value = key.eval(&mut writer, &planned.keys[index])?;
        key.store.write_bytes(&mut writer, &value, "g")?;
        statements.push_str(&writer.statements());
        let name = format!("group_store_bytes{feed}_{index}");
        Ok(Kernel::new(name, params, row_loop(self.options.profile, "i", &n, &statements)))
    }

    /// C that declares the number of a new group, and the row of its keys.
    fn new_group(&self, params: &mut Params) -> String {
        let first = params.named("first", "u64");
        let origins = params.named("origins", "const G u32 *RESTRICT");
        format!("    u64 g = {first} + i, row = {origins}[g];\n")
    }
}
