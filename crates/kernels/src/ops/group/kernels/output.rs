// SPDX-License-Identifier: Apache-2.0
//! The columns of the result: keys and aggregates.

use super::{GroupKernels, STATES};
use crate::Result;
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::ops::accumulate::Evaluator;
use crate::ops::group::GroupMode;
use crate::ops::group::key::{GroupKey, KeyOutput};
use crate::ops::launch::projection::Rows;

impl GroupKernels {
    /// The value of a key of the group `row`.
    fn key_value(&self, writer: &mut RowWriter<'_>, index: usize) -> Result<Value> {
        let key = &self.keys[index];
        key.need(writer.params());
        let (packed, null) = match &self.mode {
            GroupMode::Dense { .. } => {
                let stride: u64 = self.keys[index + 1..].iter().filter_map(GroupKey::span).product();
                let span = key.span().unwrap_or(1);
                // A division of 64 bits is slow.
                let packed = match (index, stride) {
                    (0, 1) => "row".to_string(),
                    (0, _) => writer.local(CType::U64, &format!("row / {stride}u")),
                    (_, 1) => writer.local(CType::U64, &format!("row % {span}u")),
                    _ => writer.local(CType::U64, &format!("row / {stride}u % {span}u")),
                };
                (packed.clone(), key.nullable.then(|| format!("({packed} == {}u)", span - 1)))
            }
            GroupMode::Inline { null_slot } => {
                let keys = writer.params().named("keys", "const G u64 *RESTRICT");
                if *null_slot {
                    let group = writer.params().named("null_group", "u64");
                    (format!("{keys}[row]"), Some(format!("(row == {group})")))
                } else {
                    let shift: u32 = self.keys[..index].iter().map(|key| key.bits().unwrap_or(0) + u32::from(key.nullable)).sum();
                    let bits = key.bits().unwrap_or(64);
                    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                    let packed = writer.local(CType::U64, &format!("{keys}[row] >> {shift} & (u64){mask:#x}UL"));
                    (packed, key.nullable.then(|| format!("(i32)({keys}[row] >> {} & 1)", shift + bits)))
                }
            }
            GroupMode::Wide => match &key.output {
                // The codes of a new dictionary with a value for each group.
                KeyOutput::Dictionary(codes) => {
                    let valid = key.nullable.then(|| key.stored(writer.params(), "row").valid_code().to_string());
                    let value = Value {
                        data_type: codes.ty.data_type.clone(),
                        ctype: codes.ctype,
                        code: format!("({})row", codes.ctype.local()),
                        valid,
                        bounds: None,
                    };
                    return Ok(writer.store(value));
                }
                KeyOutput::Plain | KeyOutput::Codes(_) => return Ok(key.stored(writer.params(), "row")),
            },
        };
        let null = null.map(|null| writer.flag(&null));
        let mut code = key.unpack(&packed);
        if let (Some(null), KeyOutput::Codes(_)) = (&null, &key.output) {
            // The code of NULL must be valid in the dictionary.
            code = format!("{null} ? 0 : {code}");
        }
        let valid = null.map(|null| format!("!{null}"));
        Ok(writer.store(Value { data_type: key.store.ty.data_type.clone(), ctype: key.ctype, code, valid, bounds: key.bounds }))
    }

    fn extreme_value(&self, writer: &mut RowWriter<'_>, evaluator: &Evaluator) -> Option<Value> {
        let extreme = self.extremes.iter().find(|extreme| extreme.accumulator == evaluator.state)?;
        writer.params().need_type(extreme.ctype);
        let refs = extreme.refs(writer.params());
        let found = writer.flag(&format!("{refs}[row] != 0"));
        let kept = extreme.stored(writer.params(), "row", evaluator.data_type());
        let name = writer.local(extreme.ctype, extreme.ctype.zero());
        writer.push(&format!("if ({found}) {name} = {};", kept.code));
        let value = Value { code: name, valid: Some(found), ..kept };
        Some(if evaluator.is_sort_key() { writer.interval_of_sort_key(value, evaluator.data_type()) } else { value })
    }
}

impl Rows for GroupKernels {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&[], self.options.profile, params)
    }

    /// Merges the copies of the group's states to the locals `s0`, `s1`, …
    ///
    /// Without copies a state is loaded where it is used: a group may have more state slots than
    /// registers.
    fn prepare(&self, writer: &mut RowWriter<'_>) -> Result<()> {
        let slot_count = self.state_slots();
        self.accumulators.need(writer.params());
        if slot_count == 0 || !self.private {
            return Ok(());
        }
        let states = writer.params().named("states", STATES);
        let capacity = writer.params().named("capacity", "u64");
        let mut loads = String::new();
        let mut merges = String::new();
        for state in &self.accumulators.states {
            for (slot, local) in state.slot_names(|slot| format!("s{slot}")).iter().enumerate() {
                loads.push_str(&format!("u64 {local} = {states}[row * {slot_count} + {}];\n", state.first_slot + slot));
            }
            let from = state.slot_names(|slot| format!("f[{slot}]"));
            merges.push_str(&format!("  {}\n", state.kind.merge(&state.slot_names(|slot| format!("s{slot}")), &from)));
        }
        let copies = writer.params().named("copies", "u64");
        writer.push(&format!(
            "{loads}for (u64 c = 1; c < {copies}; ++c) {{\n  const G u64 *f = {states} + (c * {capacity} + row) * {slot_count};\n{merges}}}"
        ));
        Ok(())
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        if output < self.keys.len() {
            return self.key_value(writer, output);
        }
        let evaluator = &self.accumulators.evaluators[output - self.keys.len()];
        if let Some(value) = self.extreme_value(writer, evaluator) {
            return Ok(value);
        }
        let (states, slot_count) = (writer.params().named("states", STATES), self.state_slots());
        let slot = |slot: usize| match self.private {
            true => format!("s{slot}"),
            false => format!("{states}[row * {slot_count} + {slot}]"),
        };
        self.accumulators.evaluate(writer, evaluator, &slot)
    }
}
