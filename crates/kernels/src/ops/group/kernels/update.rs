// SPDX-License-Identifier: Apache-2.0
//! Kernels that update the states of groups.

use super::GroupKernels;
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, StateKind};
use crate::ops::group::table::{PREFETCHED_GROUPS, SET_ASIDE, UNRESOLVED};
use crate::ops::group::var_width_min_max::VarWidthMinMax;
use crate::ops::group::{Feed, GroupMode};
use crate::ops::join::Lookup;
use crate::ops::launch::compact::tallied_body;
use crate::ops::launch::program::{Kernel, contiguous_rows, row_loop};
use crate::prelude::Section;
use crate::{Error, Result};

/// Rows ahead of an update whose states the cpu profile prefetches.
const PREFETCH_AHEAD: usize = 32;

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
    /// As many replicas as half of the shared memory holds, but at least one. `None` if one does
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
        // Neither without a group nor set aside.
        writer.guarded(&format!("g < {SET_ASIDE}"), |writer| {
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
    /// The kernel that updates the states of a part of the accumulators.
    pub(super) fn update_kernel(&self, feed: usize, number: usize, planned: &Feed, part: &[usize]) -> Result<Kernel> {
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

    /// The body of an update kernel whose work-groups update replicas in shared memory, then add
    /// them to the states.
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
}
