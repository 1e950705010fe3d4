// SPDX-License-Identifier: Apache-2.0
//! Joins of the cpu profile in blocks of rows: each filter and each search is a loop over the
//! remaining rows.
//!
//! A core overlaps cache misses only within its window of instructions. The code of one row through
//! several tables is long and has many branches. A loop over one table is short, and mostly without
//! branches.

use columnar::ColumnType;

use super::lookup::{Lookup, LookupStep};
use crate::Result;
use crate::codegen::{Params, Profile, RowWriter};
use crate::prelude::Section;

/// Rows of a block. Their offsets and matches fit the first-level cache.
pub(super) const BLOCK: u32 = 256;

impl Lookup {
    /// C that loops over blocks of the rows from `from` to `to`. `searches` is the result of
    /// [`block`](Self::block). `kept` is C for the `left` rows of a block that stay; the number of
    /// a row is `base + at`.
    pub(in crate::ops) fn blocks(&self, count: usize, from: &str, to: &str, searches: &str, kept: &str) -> String {
        let matches: String = self.recorded(count).map(|number| format!("    u32 match{number}[{BLOCK}];\n")).collect();
        format!(
            "  for (u64 base = {from}; base < {to}; base += {BLOCK}) {{
    u32 left = {to} - base < {BLOCK} ? (u32)({to} - base) : {BLOCK};
    u16 list[{BLOCK}];
{matches}{searches}{kept}  }}
"
        )
    }

    /// C that takes the `left` rows from `base` on through the filters and the first `count`
    /// searches.
    ///
    /// Afterwards `left` rows stay, with their offsets in `list`. The matches of recorded searches
    /// are in `match0` and so on, by offset.
    pub(in crate::ops) fn block(&self, params: &mut Params, types: &[ColumnType], count: usize) -> Result<String> {
        params.need(Section::Base);
        let mut block = String::new();
        for (index, step) in self.steps(count).into_iter().enumerate() {
            let mut writer = self.block_writer(params, types, step);
            writer.push("i32 kept = 1;");
            self.step(&mut writer, types, step)?;
            if let LookupStep::Search { number, .. } = step
                && self.searches[number].kind.reads_match()
            {
                writer.push(&format!("match{number}[at] = b{number};"));
            }
            let statements = writer.statements();
            let at = if index == 0 { "i" } else { "list[i]" };
            let prefetched = self.prefetch(params, types, step)?.map_or(String::new(), |prefetch| {
                format!(
                    "    for (u32 i = 0; i < left; ++i) {{
      u32 at = {at};
      u64 row = base + at;
{prefetch}    }}
"
                )
            });
            block.push_str(&format!(
                "{prefetched}    {{ u32 many = left; left = 0;
    for (u32 i = 0; i < many; ++i) {{
      u32 at = {at};
      u64 row = base + at;
{statements}      list[left] = (u16)at;
      left += (u32)kept;
    }} }}
"
            ));
        }
        Ok(block)
    }

    /// C that prefetches the first read of a step.
    fn prefetch(&self, params: &mut Params, types: &[ColumnType], step: LookupStep) -> Result<Option<String>> {
        let mut writer = self.block_writer(params, types, step);
        let prefetches = match step {
            LookupStep::Filter { .. } => false,
            LookupStep::ProbeBloom { number } => self.searches[number].prefetch_bloom(&mut writer)?,
            LookupStep::Search { number, .. } => self.searches[number].prefetch(&mut writer)?,
        };
        Ok(prefetches.then(|| writer.statements()))
    }

    /// A writer for the row `at` of a block before a step.
    fn block_writer<'a>(&'a self, params: &'a mut Params, types: &'a [ColumnType], step: LookupStep) -> RowWriter<'a> {
        let (LookupStep::Filter { number, .. } | LookupStep::ProbeBloom { number } | LookupStep::Search { number, .. }) = step;
        let mut writer = RowWriter::new(types, Profile::Cpu, params).with_row_refs(self.row_refs());
        self.locate(&mut writer, number);
        writer
    }

    /// C that runs `statements` for each remaining row of a block.
    pub(in crate::ops) fn each_kept(statements: &str) -> String {
        format!(
            "    for (u32 i = 0; i < left; ++i) {{
      u32 at = list[i];
      u64 row = base + at;
{statements}    }}
"
        )
    }

    /// Appends the matches of the row `at` of a block: those of the recorded searches among the
    /// first `count`.
    pub(in crate::ops) fn locate(&self, writer: &mut RowWriter<'_>, count: usize) {
        for number in self.recorded(count) {
            writer.push(&self.searches[number].declare_match(&format!("match{number}[at]")));
        }
    }

    /// The searches among the first `count` whose matches are read later.
    pub(in crate::ops) fn recorded(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        (0..count).filter(|number| self.searches[*number].kind.reads_match())
    }
}
