// SPDX-License-Identifier: Apache-2.0
//! The kernels of a [`GroupBy`](super::GroupBy).

use super::key::{GroupKey, KeyOutput};
use super::table::{
    INSERT_INLINE, INSERT_WIDE, NO_GROUP, NUMBER_WIDE, PREFETCHED_GROUPS, UNRESOLVED, claimed, find_blocks, first_slot_inline,
    first_slot_wide, number_inline, probe_inline, probe_wide, slot_inline,
};
use super::var_width_min_max::{STORED, VarWidthMinMax};
use super::{Feed, GroupMode, Occupancy};
use crate::codegen::{CType, NEXT_ROW, Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, Evaluator, StateKind};
use crate::ops::join::Lookup;
use crate::ops::launch::compact::{mask_body, tallied_body};
use crate::ops::launch::equality::equal;
use crate::ops::launch::program::{Kernel, contiguous_rows, row_loop};
use crate::ops::launch::projection::Rows;
use crate::ops::launch::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// Rows ahead of an update whose states the cpu profile prefetches.
const PREFETCH_AHEAD: usize = 32;

/// Words (of 64 bits) of keys that a work-item of the gpu profile keeps in registers. CUDA has 255
/// of 32 bits; those of another row are compared beside them.
const KEPT_WORDS: usize = 24;

/// Where the gpu profile probes, within the statements of [`GroupKernels::first_probe`].
const PROBE: &str = "@PROBE@";

/// C type of states that a kernel only reads.
const STATES: &str = "const G u64 *RESTRICT";

/// A planned aggregation, which generates the kernels.
pub(super) struct GroupKernels {
    pub options: Options,
    pub mode: GroupMode,
    pub occupancy: Occupancy,
    pub keys: Vec<GroupKey>,
    pub accumulators: Accumulators,
    pub extremes: Vec<VarWidthMinMax>,
    /// Whether work-items have private copies of the states.
    pub private: bool,
}

/// How update kernels access the states.
enum StateAccess {
    /// A copy for each work-item.
    Private,
    /// Replicas of the state slots of a work-group, in shared memory.
    Replicas(Replicas),
    /// Atomics in global memory.
    Global,
}

/// Replicas of the states of few groups. Neighbouring work-items have different ones, since atomics
/// on one address wait for each other.
#[derive(Clone, Copy)]
struct Replicas {
    groups: usize,
    copies: usize,
    /// State slots from one replica to the next: an odd number, so that replicas lie in different
    /// banks of shared memory.
    stride: usize,
}

impl Replicas {
    /// As many replicas as half of the shared memory holds, but at least one. `None` if that does
    /// not fit.
    fn of(groups: usize, slots: usize, options: &Options) -> Option<Replicas> {
        let fits = |copies: &usize| copies * ((groups * slots) | 1) * 8 <= options.shared_bytes / 2;
        let copies = [32, 16, 8, 4, 2].into_iter().find(fits).unwrap_or(1);
        let stride = if copies == 1 { groups * slots } else { (groups * slots) | 1 };
        (stride * 8 <= options.shared_bytes).then_some(Replicas { groups, copies, stride })
    }
}

/// The value of another row that competes for MIN or MAX.
struct Rival<'a> {
    extreme: &'a VarWidthMinMax,
    statements: String,
    value: Value,
}

/// What a kernel copies of winning values.
#[derive(Clone, Copy)]
enum Winner {
    Lengths,
    Bytes,
    Values,
}

/// An update kernel, with the C names of its parameters.
struct UpdateKernel<'a> {
    kernels: &'a GroupKernels,
    feed: usize,
    /// The states that the kernel updates have a feed, the others none.
    own: Accumulators,
    access: StateAccess,
    n: String,
    states: String,
    capacity: String,
    /// The bits of groups with rows, if this kernel sets them.
    occupied: Option<String>,
    rivals: Vec<Rival<'a>>,
}

impl UpdateKernel<'_> {
    /// Appends the updates by the current row. The searches of joins, if any, come before.
    fn write_row(&self, writer: &mut RowWriter<'_>, planned: &Feed, lookup: Option<&Lookup>) -> Result<()> {
        match (&self.kernels.mode, lookup) {
            (GroupMode::Dense { .. }, Some(lookup)) => {
                lookup.locate(writer, lookup.joins());
                self.write_dense(writer, planned)
            }
            (GroupMode::Dense { .. }, None) => {
                self.kernels.filtered(&planned.source, writer, |writer| self.write_dense(writer, planned))
            }
            (GroupMode::Inline { .. } | GroupMode::Wide, None) => self.write_hashed(writer),
            (GroupMode::Inline { .. } | GroupMode::Wide, Some(_)) => {
                Err(Error::Internal("joins below groups that a table numbers".into()))
            }
        }
    }

    fn write_dense(&self, writer: &mut RowWriter<'_>, planned: &Feed) -> Result<()> {
        let values = self.kernels.evaluate(writer, planned)?;
        self.kernels.dense_number(writer, &values);
        self.write_group(writer)
    }

    /// Reads the id of the row; the look-up has applied the filter.
    fn write_hashed(&self, writer: &mut RowWriter<'_>) -> Result<()> {
        let UpdateKernel { n, states, capacity, .. } = self;
        let ids = writer.params().named("ids", "const G u32 *RESTRICT");
        let slots = writer.params().named("slots", "const G u64 *RESTRICT");
        let slot_count = self.kernels.state_slots();
        if self.kernels.private && slot_count > 0 {
            writer.push(&format!(
                "if ({capacity} >= {PREFETCHED_GROUPS}) {{\n\
                 \x20 u64 soon = {ids}[row + {PREFETCH_AHEAD} < {n} ? row + {PREFETCH_AHEAD} : row];\n\
                 \x20 PREFETCH({states} + ((u64)GRP() * {capacity} + (soon < {capacity} ? soon : 0)) * {slot_count});\n\
                 }}"
            ));
        }
        writer.push(&format!("u32 g = {ids}[row];"));
        writer.guarded(&format!("g != {NO_GROUP}"), |writer| {
            writer.push(&format!("if (g & {UNRESOLVED}) g = (u32){slots}[2 * (u64)(g & ~{UNRESOLVED}) + 1];"));
            self.write_group(writer)
        })
    }

    /// Appends the updates of the states of the group `g`.
    fn write_group(&self, writer: &mut RowWriter<'_>) -> Result<()> {
        let UpdateKernel { states, capacity, .. } = self;
        let slot_count = self.kernels.state_slots();
        if let Some(occupied) = &self.occupied {
            writer.push(&format!("if (!({occupied}[g >> 5] >> (g & 31) & 1)) A_OR32(&{occupied}[g >> 5], 1u << (g & 31));"));
        }
        if slot_count > 0 {
            writer.push(&match self.access {
                StateAccess::Private => format!("G u64 *s = {states} + ((u64)GRP() * {capacity} + g) * {slot_count};"),
                StateAccess::Replicas(Replicas { copies: 1, .. }) => format!("volatile L u64 *s = replica + g * {slot_count};"),
                StateAccess::Replicas(Replicas { copies, stride, .. }) => {
                    format!("volatile L u64 *s = replica + (LID() & {}u) * {stride}u + g * {slot_count};", copies - 1)
                }
                StateAccess::Global => format!("volatile G u64 *s = {states} + (u64)g * {slot_count};"),
            });
        }
        self.own.write(writer, self.feed, &mut |writer, index, values| {
            let state = &self.own.states[index];
            let rival = self.rivals.iter().find(|rival| rival.extreme.accumulator == index);
            if let (Some(Rival { extreme, statements, value: rival }), [value]) = (rival, values) {
                let update = extreme.compete(writer.params(), state.kind, value, statements, rival);
                writer.push(&update);
                return Ok(());
            }
            let address = |slot| format!("(s + {slot})");
            writer.push(&match self.access {
                StateAccess::Private => state.kind.update(&state.slot_names(|slot| format!("s[{slot}]")), values),
                StateAccess::Replicas(_) => state.kind.atomic_update(&state.slot_names(address), values, 'l')?,
                StateAccess::Global => state.kind.atomic_update(&state.slot_names(address), values, 'g')?,
            });
            Ok(())
        })
    }
}

impl GroupKernels {
    /// State slots of a group, u64 each.
    fn state_slots(&self) -> usize {
        self.accumulators.slots
    }

    /// The kernels of one input.
    pub fn feed(&self, feed: usize, source: Source, keys: Vec<Expr>, kernels: &mut Vec<Kernel>) -> Result<Feed> {
        let mut planned = Feed { source, keys, find: None, store_keys: vec![], updates: vec![] };
        if !self.mode.is_dense() {
            planned.find = Some(kernels.len());
            kernels.push(self.find_kernel(feed, &planned)?);
        }
        if self.mode.stores_keys() {
            for index in 0..self.keys.len() {
                let values = kernels.len();
                kernels.push(self.store_key_kernel(feed, &planned, index, false)?);
                let bytes = self.keys[index].store.is_str().then_some(kernels.len());
                if bytes.is_some() {
                    kernels.push(self.store_key_kernel(feed, &planned, index, true)?);
                }
                planned.store_keys.push((values, bytes));
            }
        }
        let own: Vec<usize> =
            (0..self.accumulators.states.len()).filter(|index| self.accumulators.states[*index].feed == feed).collect();
        let mut pending = vec![own];
        while let Some(part) = pending.pop() {
            if part.is_empty() && !self.sets_bits(feed, planned.updates.len()) {
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

    /// Whether an update kernel of a feed sets the bits of groups with rows: the first one of the
    /// input. Distinct values are of groups that it has.
    fn sets_bits(&self, feed: usize, number: usize) -> bool {
        feed == 0 && number == 0 && self.occupancy.has_bits()
    }

    /// Appends `body` for rows that pass the filter and the joins of the source.
    fn filtered<'a>(
        &self,
        source: &Source,
        writer: &mut RowWriter<'a>,
        body: impl FnOnce(&mut RowWriter<'a>) -> Result<()>,
    ) -> Result<()> {
        match source.write_filter(writer)? {
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

    /// Appends the group number of a dense aggregation, as a local `g`.
    fn dense_number(&self, writer: &mut RowWriter<'_>, values: &[Value]) {
        let mut number = String::from("0");
        for (key, value) in self.keys.iter().zip(values) {
            let span = key.span().unwrap_or(1);
            let packed = format!("(u32){}", key.pack(value));
            let value = match &value.valid {
                Some(valid) => format!("({valid} ? {packed} : {}u)", span - 1),
                None => packed,
            };
            number = if number == "0" { value } else { format!("({number}) * {span}u + {value}") };
        }
        writer.push(&format!("u32 g = {number};"));
        // The value of an expression that failed may be out of its bounds.
        if let (GroupMode::Dense { groups }, true) = (&self.mode, writer.params().can_fail()) {
            writer.push(&format!("if (g >= {groups}u) g = 0;"));
        }
    }

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

    /// C that sets the slot at which probing begins, within the filter, and the values of the keys.
    /// The gpu profile probes in the same branch, at [`PROBE`].
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

    /// The kernel that looks up the group of each row, and adds the groups that are new.
    fn find_kernel(&self, feed: usize, planned: &Feed) -> Result<Kernel> {
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

    /// C that compares the values `own` with those of the row `other`, and C that compares them
    /// with the stored keys of the group `other`. Both set `equal`.
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

    /// Whether a work-item keeps its keys while it probes.
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

    /// The kernel that copies key `index` of a batch's new groups to the store: values or lengths,
    /// or bytes.
    fn store_key_kernel(&self, feed: usize, planned: &Feed, index: usize, bytes: bool) -> Result<Kernel> {
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
        let name = format!("group_store_key{feed}_{index}{}", if bytes { "_bytes" } else { "" });
        Ok(Kernel::new(name, params, row_loop(self.options.profile, "i", &n, &statements)))
    }

    /// The kernel that updates the states of a part of the accumulators.
    fn update_kernel(&self, feed: usize, number: usize, planned: &Feed, part: &[usize]) -> Result<Kernel> {
        let profile = self.options.profile;
        let mut own = self.accumulators.clone();
        own.states
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| !part.contains(index))
            .for_each(|(_, state)| state.feed = usize::MAX);
        let mut params = Params::new();
        let sets_bits = self.sets_bits(feed, number);
        if sets_bits {
            params.need(Section::Base);
        }
        let update = UpdateKernel {
            kernels: self,
            feed,
            own,
            access: self.state_access(),
            n: params.named("n", "u64"),
            states: params.named("states", if self.private { "G u64 *RESTRICT" } else { "volatile G u64 *" }),
            capacity: params.named("capacity", "u64"),
            occupied: sets_bits.then(|| params.named("occupied", "volatile G u32 *")),
            rivals: self.rivals(planned, part, &mut params)?,
        };
        let lookup = planned.source.lookup().filter(|_| profile == Profile::Cpu);
        let mut writer = planned.source.writer(profile, &mut params);
        update.write_row(&mut writer, planned, lookup)?;
        let statements = writer.statements();
        let rows = match lookup {
            None => row_loop(profile, "row", &update.n, &statements),
            Some(lookup) => {
                let searches = lookup.block(&mut params, &planned.source.types, lookup.joins())?;
                let kept = format!("{}    tally{} += left;\n", Lookup::each_kept(&statements), lookup.tallies());
                let blocks = lookup.blocks(lookup.joins(), "begin", "end", &searches, &kept);
                format!("{}{blocks}", contiguous_rows(&update.n))
            }
        };
        let body = match update.access {
            StateAccess::Replicas(replicas) => {
                self.accumulators.need(&mut params);
                self.with_replicas(&rows, part, &update.states, replicas)?
            }
            StateAccess::Private | StateAccess::Global => rows,
        };
        let body = tallied_body(&mut params, profile, &body, planned.source.tallies());
        Ok(Kernel::new(format!("group_update{feed}_{number}"), params, body))
    }

    /// How update kernels access the states: few dense groups have replicas in shared memory.
    fn state_access(&self) -> StateAccess {
        let replicas = |groups| Replicas::of(groups, self.state_slots(), &self.options);
        match self.mode {
            _ if self.private => StateAccess::Private,
            _ if self.occupancy.has_bits() => StateAccess::Global,
            GroupMode::Dense { groups } => replicas(groups).map_or(StateAccess::Global, StateAccess::Replicas),
            GroupMode::Inline { .. } | GroupMode::Wide => StateAccess::Global,
        }
    }

    /// The values that compete with a row's for MIN and MAX, evaluated for the row `other`.
    fn rivals<'a>(&'a self, planned: &Feed, part: &[usize], params: &mut Params) -> Result<Vec<Rival<'a>>> {
        let extremes = self.extremes.iter().filter(|extreme| part.contains(&extreme.accumulator));
        let rivals = extremes.map(|extreme| {
            let prefix = format!("y{}_", extreme.accumulator);
            let mut writer = planned.source.writer(self.options.profile, params).with_names("other", &prefix);
            let value = writer.eval(self.accumulators.states[extreme.accumulator].argument()?)?;
            Ok(Rival { extreme, statements: writer.statements(), value })
        });
        rivals.collect()
    }

    /// The body of an update kernel whose work-groups update replicas in shared memory, which are
    /// then added to the states.
    fn with_replicas(&self, rows: &str, part: &[usize], states: &str, replicas: Replicas) -> Result<String> {
        let Replicas { groups, copies, stride } = replicas;
        let per_group = self.state_slots();
        let (mut init, mut merge, mut flush) = (String::new(), String::new(), String::new());
        for index in part {
            let state = &self.accumulators.states[*index];
            let first = state.slot_names(|slot| format!("replica[g * {per_group} + {slot}]"));
            let each = state.slot_names(|slot| format!("replica[c * {stride}u + g * {per_group} + {slot}]"));
            for (slot, value) in each.iter().zip(state.kind.init()) {
                init.push_str(&format!("    {slot} = (u64){value:#x}UL;\n"));
            }
            let to = state.slot_names(|slot| format!("({states} + (u64)g * {per_group} + {slot})"));
            match state.kind {
                StateKind::VarWidthMin | StateKind::VarWidthMax => {}
                kind => {
                    merge.push_str(&format!("      {}\n", kind.merge(&first, &each)));
                    flush.push_str(&format!("    {}\n", kind.atomic_merge(&to, &first, 'g')?));
                }
            }
        }
        let work_group_size = self.options.work_group_size;
        let all = groups * copies;
        let merge = match copies {
            1 => String::new(),
            _ => format!("    for (u32 c = 1; c < {copies}u; ++c) {{\n{merge}    }}\n"),
        };
        Ok(format!(
            "  SHARED(u64, replica, {});
  for (u32 i = LID(); i < {all}u; i += {work_group_size}u) {{
    u32 c = i / {groups}u, g = i % {groups}u;
{init}  }}
  SYNC();
{rows}  SYNC();
  for (u32 g = LID(); g < {groups}u; g += {work_group_size}u) {{
{merge}{flush}  }}
",
            (stride * copies).max(1)
        ))
    }

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

    pub fn commit_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        for (name, c_type) in [
            ("n", "u64"),
            ("first", "u64"),
            ("slots", "G u64 *RESTRICT"),
            ("new_slots", "const G u32 *RESTRICT"),
            ("hashes", "const G u64 *RESTRICT"),
        ] {
            params.named(name, c_type);
        }
        let body = "    u64 g = first + i;\n    slots[2 * (u64)new_slots[g]] = (hashes[g] >> 32) << 32 | 0x80000000u | g;\n";
        Kernel::new("group_commit", params, row_loop(self.options.profile, "i", "n", body))
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

    /// The kernels that copy the winning values of an aggregate to its store: lengths and bytes of
    /// strings, or values.
    pub fn winner_kernels(&self, extreme: &mut VarWidthMinMax, source: &Source, kernels: &mut Vec<Kernel>) -> Result<()> {
        if extreme.ctype == CType::Str {
            extreme.lengths = kernels.len();
            kernels.push(self.winner_kernel(extreme, source, Winner::Lengths)?);
            extreme.bytes = kernels.len();
            kernels.push(self.winner_kernel(extreme, source, Winner::Bytes)?);
        } else {
            extreme.bytes = kernels.len();
            kernels.push(self.winner_kernel(extreme, source, Winner::Values)?);
        }
        Ok(())
    }

    fn winner_kernel(&self, extreme: &VarWidthMinMax, source: &Source, winner: Winner) -> Result<Kernel> {
        let profile = self.options.profile;
        let argument = self.accumulators.states[extreme.accumulator].argument()?;
        let mut params = Params::new();
        params.need_type(extreme.ctype);
        let n = params.named("n", "u64");
        let refs = extreme.refs(&mut params);
        let mut writer = source.writer(profile, &mut params);
        let value = writer.eval(argument)?;
        let statements = writer.statements();
        let kept = extreme.stored(&mut params, "g", &value.data_type);
        // For a group with a stored value, with a row of the batch as the winner, and without a
        // value.
        let [old, new, none] = match winner {
            Winner::Lengths => {
                let offsets = params.named("new_offsets", "G i64 *RESTRICT");
                [
                    format!("{offsets}[g + 1] = {}.len;", kept.code),
                    format!("{offsets}[g + 1] = {}.len;", value.code),
                    format!("{offsets}[g + 1] = 0;"),
                ]
            }
            Winner::Bytes => {
                let offsets = params.named("new_offsets", "const G i64 *RESTRICT");
                let heap = params.named("heap", "G u8 *RESTRICT");
                let copy = |code: &str| {
                    format!("str from = {code}; for (u32 i = 0; i < from.len; ++i) {heap}[{offsets}[g] + i] = from.p[i];")
                };
                [copy(&kept.code), format!("{} {refs}[g] = {STORED};", copy(&value.code)), String::new()]
            }
            Winner::Values => [String::new(), format!("{} = {}; {refs}[g] = {STORED};", kept.code, value.code), String::new()],
        };
        let body = format!(
            "    u64 seen = {refs}[g], row = seen - 1;
    if (seen == {STORED}) {{ {old} }}\n    else if (seen) {{\n{statements}      {new}\n    }}\n    else {{ {none} }}\n"
        );
        let suffix = match winner {
            Winner::Lengths => "_lengths",
            Winner::Bytes | Winner::Values => "",
        };
        let name = format!("group_winners{}{suffix}", extreme.accumulator);
        Ok(Kernel::new(name, params, row_loop(profile, "g", &n, &body)))
    }

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
    /// Without copies a state is loaded where it is used, since a group may have more state slots
    /// than registers.
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
