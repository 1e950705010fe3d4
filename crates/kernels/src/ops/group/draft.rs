// SPDX-License-Identifier: Apache-2.0
//! The kernels of a [`GroupBy`](super::GroupBy): what is planned of it, and the texts that come of that.

use super::key::{Form, Key};
use super::table::{
    FETCHED_GROUPS, INSERT_INLINE, INSERT_WIDE, NO_GROUP, NUMBER_WIDE, UNRESOLVED, claimed, find_blocks, glance_inline,
    glance_wide, number_inline, probe_inline, probe_wide, slot_inline,
};
use super::var_width_min_max::{STORED, VarWidthMinMax};
use super::{Feed, Mode};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, Evaluator, StateKind};
use crate::ops::compact::{mask_body, tallied_body};
use crate::ops::join::Lookup;
use crate::ops::program::{Kernel, for_rows, run_of_rows};
use crate::ops::project::Rows;
use crate::ops::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// How many rows ahead of an update the cpu profile fetches its states.
const AHEAD: usize = 32;

/// The parameter of states that a kernel only reads.
const STATES: &str = "const G u64 *RESTRICT";

/// An aggregation by keys before its kernels are written.
pub(super) struct Draft {
    pub options: Options,
    pub mode: Mode,
    pub keys: Vec<Key>,
    pub accumulators: Accumulators,
    pub bests: Vec<VarWidthMinMax>,
    /// Whether items have private copies of the states.
    pub private: bool,
}

impl Draft {
    fn words(&self) -> usize {
        self.accumulators.slots
    }

    /// The kernels of one input.
    pub fn feed(&self, feed: usize, source: Source, keys: Vec<Expr>, kernels: &mut Vec<Kernel>) -> Result<Feed> {
        let mut planned = Feed { source, keys, find: None, keep: vec![], updates: vec![] };
        if !matches!(self.mode, Mode::Dense { .. }) {
            planned.find = Some(kernels.len());
            kernels.push(self.find_kernel(feed, &planned)?);
        }
        if matches!(self.mode, Mode::Wide) {
            for index in 0..self.keys.len() {
                let keep = kernels.len();
                kernels.push(self.keep_kernel(feed, &planned, index, false)?);
                let bytes = self.keys[index].store.is_str().then_some(kernels.len());
                if bytes.is_some() {
                    kernels.push(self.keep_kernel(feed, &planned, index, true)?);
                }
                planned.keep.push((keep, bytes));
            }
        }
        let own: Vec<usize> =
            (0..self.accumulators.states.len()).filter(|index| self.accumulators.states[*index].feed == feed).collect();
        let mut pending = vec![own];
        while let Some(part) = pending.pop() {
            if part.is_empty() {
                continue;
            }
            let kernel = self.update_kernel(feed, planned.updates.len(), &planned, &part)?;
            if !kernel.fits(&self.options) && part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                pending.extend([second.to_vec(), first.to_vec()]);
                continue;
            }
            planned.updates.push(kernels.len());
            kernels.push(kernel);
        }
        Ok(planned)
    }

    /// Runs `body` for rows that pass the source's filter and joins.
    fn filtered<'a>(
        &self,
        source: &Source,
        writer: &mut RowWriter<'a>,
        body: impl FnOnce(&mut RowWriter<'a>) -> Result<()>,
    ) -> Result<()> {
        match source.kept(writer)? {
            None => body(writer),
            Some(condition) => writer.guarded(&condition, body),
        }
    }

    fn evaluate(&self, writer: &mut RowWriter<'_>, feed: &Feed) -> Result<Vec<Value>> {
        for key in &self.keys {
            key.need(writer.params());
        }
        self.keys.iter().zip(&feed.keys).map(|(key, expr)| key.eval(writer, expr)).collect()
    }

    /// Writes the row's group number of a dense aggregation to a new local `g`.
    fn dense_number(&self, writer: &mut RowWriter<'_>, values: &[Value]) {
        let mut number = String::from("0");
        for (key, value) in self.keys.iter().zip(values) {
            let span = key.span().unwrap_or(1);
            let packed = format!("(u32){}", key.pack(value));
            let place = match &value.valid {
                Some(valid) => format!("({valid} ? {packed} : {}u)", span - 1),
                None => packed,
            };
            number = if number == "0" { place } else { format!("({number}) * {span}u + {place}") };
        }
        writer.push(&format!("u32 g = {number};"));
        // The value of an expression that failed may lie outside of its bounds.
        if let (Mode::Dense { groups }, true) = (&self.mode, writer.params().can_fail()) {
            writer.push(&format!("if (g >= {groups}u) g = 0;"));
        }
    }

    fn find_kernel(&self, feed: usize, planned: &Feed) -> Result<Kernel> {
        let profile = self.options.profile;
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
        if matches!(self.mode, Mode::Wide) {
            for (name, c_type) in [("origins", "G u32 *RESTRICT"), ("places", "G u32 *RESTRICT"), ("hashes", "G u64 *RESTRICT")] {
                params.named(name, c_type);
            }
        } else {
            params.named("keys", "G u64 *RESTRICT");
        }
        // Where to begin, with the filter around; what follows on a GPU stands in the same branch.
        let mut own = Vec::new();
        let mut writer = planned.source.writer(profile, &mut params);
        writer.params().need(Section::Hash);
        self.filtered(&planned.source, &mut writer, |writer| {
            own = self.evaluate(writer, planned)?;
            match &self.mode {
                Mode::Inline { null_slot } => {
                    self.pack(writer, &own, *null_slot);
                    writer.push(&slot_inline(*null_slot));
                }
                _ => {
                    writer.push("key = (u64)0x9e3779b97f4a7c15UL;");
                    for (key, value) in self.keys.iter().zip(&own) {
                        key.hash(writer, "key", value);
                    }
                    writer.push("h = key & mask;");
                }
            }
            if profile == Profile::Gpu {
                writer.push("@PROBE@");
            }
            Ok(())
        })?;
        let slot = writer.statements();
        let mut again = String::new();
        if profile == Profile::Cpu && matches!(self.mode, Mode::Wide) {
            let mut writer = planned.source.writer(profile, &mut params);
            own = self.evaluate(&mut writer, planned)?;
            again = writer.statements();
        }
        let (glance, number, probe) = match &self.mode {
            Mode::Inline { null_slot } => {
                let number = number_inline(*null_slot);
                let probe = probe_inline(&claimed(profile, &number));
                (glance_inline(), number, probe)
            }
            _ => {
                let (row, group) = self.comparisons(planned, &own, &mut params)?;
                (glance_wide(), NUMBER_WIDE.into(), again + &probe_wide(&row, &group, &claimed(profile, NUMBER_WIDE)))
            }
        };
        let body = match profile {
            Profile::Cpu => find_blocks(&slot, &glance, &probe, &number),
            Profile::Gpu => {
                let text = slot.replace("@PROBE@", &format!("u64 seen = slots[2 * h];\n{probe}"));
                for_rows(
                    profile,
                    "row",
                    "n",
                    &format!("    u64 key = 0, h = 0;\n    u32 id = {NO_GROUP};\n{text}    ids[row] = id;\n"),
                )
            }
        };
        Ok(Kernel::new(format!("group_find{feed}"), params, body))
    }

    /// Texts that compare the values `own` with the row `other`, and with what is kept of the group
    /// `other`, setting `equal`.
    fn comparisons(&self, planned: &Feed, own: &[Value], params: &mut Params) -> Result<(String, String)> {
        let equal = |others: &[Value]| {
            let all = self.keys.iter().zip(own).zip(others).map(|((key, own), other)| key.equal(own, other));
            format!("equal = {};", all.collect::<Vec<_>>().join(" && "))
        };
        let mut writer = planned.source.writer(self.options.profile, params).with_names("other", "y");
        let others = self.evaluate(&mut writer, planned)?;
        writer.push(&equal(&others));
        let row = writer.statements();
        let kept: Vec<Value> = self.keys.iter().map(|key| key.stored(params, "other")).collect();
        Ok((row, format!("      {}", equal(&kept))))
    }

    /// Writes `key` (and `is_null`) of inline keys.
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

    /// Copies key `index` of the batch's new groups to the store: values or lengths, or bytes.
    fn keep_kernel(&self, feed: usize, planned: &Feed, index: usize, bytes: bool) -> Result<Kernel> {
        let mut params = Params::new();
        let n = params.named("n", "u64");
        let first = params.named("first", "u64");
        let origins = params.named("origins", "const G u32 *RESTRICT");
        let key = &self.keys[index];
        key.need(&mut params);
        let mut writer = planned.source.writer(self.options.profile, &mut params);
        writer.push(&format!("u64 g = {first} + i, row = {origins}[g];"));
        let value = key.eval(&mut writer, &planned.keys[index])?;
        if bytes {
            key.store.write_bytes(&mut writer, &value, "g")?;
        } else {
            key.store.write(&mut writer, &value, "g");
        }
        let statements = writer.statements();
        let name = format!("group_keep{feed}_{index}{}", if bytes { "_bytes" } else { "" });
        Ok(Kernel::new(name, params, for_rows(self.options.profile, "i", &n, &statements)))
    }

    /// Adds the rows to the states of a part of the accumulators.
    fn update_kernel(&self, feed: usize, number: usize, planned: &Feed, part: &[usize]) -> Result<Kernel> {
        let profile = self.options.profile;
        let words = self.words();
        let mut own = self.accumulators.clone();
        own.states
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| !part.contains(index))
            .for_each(|(_, state)| state.feed = usize::MAX);
        let mut params = Params::new();
        let n = params.named("n", "u64");
        let states = params.named("states", if self.private { "G u64 *RESTRICT" } else { "volatile G u64 *" });
        let capacity = params.named("capacity", "u64");
        // Few dense groups have a replica in shared memory.
        let shared = match self.mode {
            Mode::Dense { groups } if !self.private && groups * words * 8 <= self.options.shared_bytes => Some(groups * words),
            _ => None,
        };
        // Rivals' values, each with its statements; their locals are of the winners' loop alone.
        let mut rivals = Vec::new();
        for best in self.bests.iter().filter(|best| part.contains(&best.accumulator)) {
            let mut writer = planned.source.writer(profile, &mut params).with_names("other", &format!("y{}_", best.accumulator));
            let argument = self.accumulators.states[best.accumulator].argument()?;
            let value = writer.eval(argument)?;
            rivals.push((best, writer.statements(), value));
        }
        let mut writer = planned.source.writer(profile, &mut params);
        let group = |writer: &mut RowWriter<'_>| -> Result<()> {
            if words > 0 {
                writer.push(&match (self.private, shared) {
                    (true, _) => format!("G u64 *s = {states} + ((u64)GRP() * {capacity} + g) * {words};"),
                    (_, Some(_)) => format!("volatile L u64 *s = replica + g * {words};"),
                    (_, None) => format!("volatile G u64 *s = {states} + (u64)g * {words};"),
                });
            }
            own.write(writer, feed, &mut |writer, index, values| {
                let state = &own.states[index];
                if let (Some((best, statements, rival)), [value]) =
                    (rivals.iter().find(|(best, ..)| best.accumulator == index), values)
                {
                    let text = best.compete(writer.params(), state.kind, value, statements, rival);
                    writer.push(&text);
                } else if self.private {
                    let places = state.slot_names(|word| format!("s[{word}]"));
                    writer.push(&state.kind.update(&places, values));
                } else {
                    let places = state.slot_names(|word| format!("(s + {word})"));
                    writer.push(&state.kind.atomic_update(&places, values, if shared.is_some() { 'l' } else { 'g' })?);
                }
                Ok(())
            })
        };
        let lookup = planned.source.lookup().filter(|_| profile == Profile::Cpu);
        match (&self.mode, lookup) {
            (Mode::Dense { .. }, Some(lookup)) => {
                lookup.locate(&mut writer, lookup.joins());
                let values = self.evaluate(&mut writer, planned)?;
                self.dense_number(&mut writer, &values);
                group(&mut writer)?;
            }
            (_, Some(_)) => return Err(Error::Internal("joins below groups that a table numbers".into())),
            (Mode::Dense { .. }, None) => self.filtered(&planned.source, &mut writer, |writer| {
                let values = self.evaluate(writer, planned)?;
                self.dense_number(writer, &values);
                group(writer)
            })?,
            (_, None) => {
                // The look-up has applied the filter.
                let ids = writer.params().named("ids", "const G u32 *RESTRICT");
                let slots = writer.params().named("slots", "const G u64 *RESTRICT");
                if self.private && words > 0 {
                    writer.push(&format!(
                        "if ({capacity} >= {FETCHED_GROUPS}) {{\n\
                         \x20 u64 soon = {ids}[row + {AHEAD} < {n} ? row + {AHEAD} : row];\n\
                         \x20 PREFETCH({states} + ((u64)GRP() * {capacity} + (soon < {capacity} ? soon : 0)) * {words});\n\
                         }}"
                    ));
                }
                writer.push(&format!("u32 g = {ids}[row];"));
                writer.guarded(&format!("g != {NO_GROUP}"), |writer| {
                    writer.push(&format!("if (g & {UNRESOLVED}) g = (u32){slots}[2 * (u64)(g & ~{UNRESOLVED}) + 1];"));
                    group(writer)
                })?;
            }
        }
        let statements = writer.statements();
        let rows = match lookup {
            None => for_rows(profile, "row", &n, &statements),
            Some(lookup) => {
                let searches = lookup.block(&mut params, &planned.source.types, lookup.joins())?;
                let kept = format!("{}    tally{} += left;\n", Lookup::each_kept(&statements), lookup.tallies());
                format!("{}{}", run_of_rows(&n), lookup.blocks(lookup.joins(), "begin", "end", &searches, &kept))
            }
        };
        let body = match shared {
            None => rows,
            Some(total) => {
                let work_group_size = self.options.work_group_size;
                let mut init = String::new();
                let mut flush = String::new();
                for index in part {
                    let state = &self.accumulators.states[*index];
                    for (place, word) in
                        state.slot_names(|word| format!("replica[g * {words} + {word}]")).iter().zip(state.kind.init())
                    {
                        init.push_str(&format!("    {place} = (u64){word:#x}UL;\n"));
                    }
                    let to = state.slot_names(|word| format!("({states} + (u64)g * {words} + {word})"));
                    let from = state.slot_names(|word| format!("replica[g * {words} + {word}]"));
                    flush.push_str(&match state.kind {
                        StateKind::VarWidthMin | StateKind::VarWidthMax => String::new(),
                        kind => format!("    {}\n", kind.atomic_merge(&to, &from, 'g')?),
                    });
                }
                let groups = total / words.max(1);
                let every = format!("  for (u32 g = LID(); g < {groups}u; g += {work_group_size}u) {{\n");
                format!(
                    "  SHARED(u64, replica, {});\n{every}{init}  }}\n  SYNC();\n{rows}  SYNC();\n{every}{flush}  }}\n",
                    total.max(1)
                )
            }
        };
        let body = tallied_body(&mut params, profile, &body, planned.source.tallies());
        Ok(Kernel::new(format!("group_update{feed}_{number}"), params, body))
    }

    /// Copies states to a larger array, merging copies where there are to be fewer, and begins the rest.
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
        let words = self.words();
        let mut body = format!("    for (u64 c = 0; c < copies; ++c) {{\n      G u64 *s = states + (c * n + g) * {words};\n");
        let mut merges = String::new();
        for state in &self.accumulators.states {
            for (place, word) in state.slot_names(|word| format!("s[{word}]")).iter().zip(state.kind.init()) {
                body.push_str(&format!("      {place} = (u64){word:#x}UL;\n"));
            }
            let to = state.slot_names(|word| format!("s[{word}]"));
            merges.push_str(&format!("        {}\n", state.kind.merge(&to, &state.slot_names(|word| format!("f[{word}]")))));
        }
        body.push_str("    }\n    if (g < old_capacity) {\n      for (u64 c = 0; c < old_copies; ++c) {\n");
        body.push_str(&format!(
            "        const G u64 *f = old + (c * old_capacity + g) * {words};\n        G u64 *s = states + ((c < copies ? c : 0) * n + g) * {words};\n{merges}      }}\n    }}\n"
        ));
        Kernel::new("group_grow", params, for_rows(self.options.profile, "g", "n", &body))
    }

    pub fn insert_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Hash);
        for (name, c_type) in [("n", "u64"), ("slots", "volatile G u64 *"), ("mask", "u64")] {
            params.named(name, c_type);
        }
        let body = match self.mode {
            Mode::Wide => {
                params.named("hashes", "const G u64 *RESTRICT");
                INSERT_WIDE
            }
            _ => {
                params.named("keys", "const G u64 *RESTRICT");
                params.named("null_group", "u64");
                INSERT_INLINE
            }
        };
        Kernel::new("group_insert", params, for_rows(self.options.profile, "g", "n", body))
    }

    pub fn seal_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        for (name, c_type) in [
            ("n", "u64"),
            ("first", "u64"),
            ("slots", "G u64 *RESTRICT"),
            ("places", "const G u32 *RESTRICT"),
            ("hashes", "const G u64 *RESTRICT"),
        ] {
            params.named(name, c_type);
        }
        let body = "    u64 g = first + i;\n    slots[2 * (u64)places[g]] = (hashes[g] >> 32) << 32 | 0x80000000u | g;\n";
        Kernel::new("group_seal", params, for_rows(self.options.profile, "i", "n", body))
    }

    pub fn occupied_kernel(&self, count: usize) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        for (name, c_type) in [("states", STATES), ("capacity", "u64"), ("copies", "u64")] {
            params.named(name, c_type);
        }
        let word = self.accumulators.states.get(count).map_or(0, |state| state.first_slot);
        let statements = format!(
            "    u64 rows = 0;\n    for (u64 c = 0; c < copies; ++c) rows += states[(c * capacity + row) * {} + {word}];\n",
            self.words().max(1)
        );
        let body = mask_body(&mut params, &self.options, &statements, "(rows != 0)");
        Kernel::new("group_occupied", params, body)
    }

    /// The kernels that move an aggregate's winners to the store.
    pub fn winner_kernels(&self, best: &mut VarWidthMinMax, source: &Source, kernels: &mut Vec<Kernel>) -> Result<()> {
        let profile = self.options.profile;
        let argument = self.accumulators.states[best.accumulator].argument()?;
        let name = format!("group_winners{}", best.accumulator);
        let is_str = best.ctype == CType::Str;
        for bytes in [false, true] {
            if !bytes && !is_str {
                continue;
            }
            let mut params = Params::new();
            params.need_type(best.ctype);
            let n = params.named("n", "u64");
            let refs = best.refs(&mut params);
            let mut writer = source.writer(profile, &mut params);
            let value = writer.eval(argument)?;
            let statements = writer.statements();
            let kept = best.stored(&mut params, "g", &value.data_type);
            let mut body = format!("    u64 seen = {refs}[g], row = seen - 1;\n");
            let branches = match (is_str, bytes) {
                (true, false) => {
                    let offsets = params.named("new_offsets", "G i64 *RESTRICT");
                    [
                        format!("{offsets}[g + 1] = {}.len;", kept.code),
                        format!("{offsets}[g + 1] = {}.len;", value.code),
                        format!("{offsets}[g + 1] = 0;"),
                    ]
                }
                (true, true) => {
                    let offsets = params.named("new_offsets", "const G i64 *RESTRICT");
                    let heap = params.named("heap", "G u8 *RESTRICT");
                    let copy = |code: &str| {
                        format!("str from = {code}; for (u32 i = 0; i < from.len; ++i) {heap}[{offsets}[g] + i] = from.p[i];")
                    };
                    [copy(&kept.code), format!("{} {refs}[g] = {STORED};", copy(&value.code)), String::new()]
                }
                _ => [String::new(), format!("{} = {}; {refs}[g] = {STORED};", kept.code, value.code), String::new()],
            };
            let [old, new, none] = branches;
            body.push_str(&format!(
                "    if (seen == {STORED}) {{ {old} }}\n    else if (seen) {{\n{statements}      {new}\n    }}\n    else {{ {none} }}\n"
            ));
            if bytes {
                best.bytes = kernels.len();
            } else {
                best.lengths = kernels.len();
            }
            let suffix = if bytes { "" } else { "_lengths" };
            kernels.push(Kernel::new(format!("{name}{suffix}"), params, for_rows(profile, "g", &n, &body)));
        }
        Ok(())
    }

    /// The value of a key of the group `row`.
    fn key_value(&self, writer: &mut RowWriter<'_>, index: usize) -> Result<Value> {
        let key = &self.keys[index];
        key.need(writer.params());
        let (packed, null) = match &self.mode {
            Mode::Dense { .. } => {
                let stride: u64 = self.keys[index + 1..].iter().filter_map(Key::span).product();
                let span = key.span().unwrap_or(1);
                let place = writer.local(CType::U64, &format!("row / {stride}u % {span}u"));
                (place.clone(), key.nullable.then(|| format!("({place} == {}u)", span - 1)))
            }
            Mode::Inline { null_slot } => {
                let keys = writer.params().named("keys", "const G u64 *RESTRICT");
                if *null_slot {
                    let group = writer.params().named("null_group", "u64");
                    (format!("{keys}[row]"), Some(format!("(row == {group})")))
                } else {
                    let shift: u32 = self.keys[..index].iter().map(|key| key.bits().unwrap_or(0) + u32::from(key.nullable)).sum();
                    let bits = key.bits().unwrap_or(64);
                    let mask = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                    let place = writer.local(CType::U64, &format!("{keys}[row] >> {shift} & (u64){mask:#x}UL"));
                    (place, key.nullable.then(|| format!("(i32)({keys}[row] >> {} & 1)", shift + bits)))
                }
            }
            Mode::Wide => match &key.form {
                // The codes of a new dictionary: each group has its own.
                Form::Dictionary(codes) => {
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
                _ => return Ok(key.stored(writer.params(), "row")),
            },
        };
        let null = null.map(|null| writer.flag(&null));
        let mut code = key.unpack(&packed);
        if let (Some(null), Form::Codes(_)) = (&null, &key.form) {
            // A code of NULL still is one of the dictionary's.
            code = format!("{null} ? 0 : {code}");
        }
        let valid = null.map(|null| format!("!{null}"));
        Ok(writer.store(Value { data_type: key.store.ty.data_type.clone(), ctype: key.ctype, code, valid, bounds: key.bounds }))
    }

    fn best_value(&self, writer: &mut RowWriter<'_>, evaluator: &Evaluator) -> Option<Value> {
        let best = self.bests.iter().find(|best| best.accumulator == evaluator.state)?;
        writer.params().need_type(best.ctype);
        let refs = best.refs(writer.params());
        let found = writer.flag(&format!("{refs}[row] != 0"));
        let kept = best.stored(writer.params(), "row", evaluator.data_type());
        let name = writer.local(best.ctype, best.ctype.zero());
        writer.push(&format!("if ({found}) {name} = {};", kept.code));
        let value = Value { code: name, valid: Some(found), ..kept };
        Some(if evaluator.is_sort_key() { writer.interval_of_sort_key(value, evaluator.data_type()) } else { value })
    }
}

impl Rows for Draft {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&[], self.options.profile, params)
    }

    /// Merges the copies of the group's states to the locals `s0`, `s1`, …; without copies, a state is loaded where it is used,
    /// for a group may have more words than a device has registers.
    fn prepare(&self, writer: &mut RowWriter<'_>) -> Result<()> {
        let words = self.words();
        self.accumulators.need(writer.params());
        if words == 0 || !self.private {
            return Ok(());
        }
        let states = writer.params().named("states", STATES);
        let capacity = writer.params().named("capacity", "u64");
        let mut loads = String::new();
        let mut merges = String::new();
        for state in &self.accumulators.states {
            for (word, place) in state.slot_names(|word| format!("s{word}")).iter().enumerate() {
                loads.push_str(&format!("u64 {place} = {states}[row * {words} + {}];\n", state.first_slot + word));
            }
            let from = state.slot_names(|word| format!("f[{word}]"));
            merges.push_str(&format!("  {}\n", state.kind.merge(&state.slot_names(|word| format!("s{word}")), &from)));
        }
        let copies = writer.params().named("copies", "u64");
        writer.push(&format!(
            "{loads}for (u64 c = 1; c < {copies}; ++c) {{\n  const G u64 *f = {states} + (c * {capacity} + row) * {words};\n{merges}}}"
        ));
        Ok(())
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        if output < self.keys.len() {
            return self.key_value(writer, output);
        }
        let evaluator = &self.accumulators.evaluators[output - self.keys.len()];
        if let Some(value) = self.best_value(writer, evaluator) {
            return Ok(value);
        }
        let (states, words) = (writer.params().named("states", STATES), self.words());
        let word = |word: usize| match self.private {
            true => format!("s{word}"),
            false => format!("{states}[row * {words} + {word}]"),
        };
        self.accumulators.evaluate(writer, evaluator, &word)
    }
}
