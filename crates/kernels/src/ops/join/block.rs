// SPDX-License-Identifier: Apache-2.0
//! A block of rows on its way through joins, in the profile of CPUs: each filter and each search is a loop of its own over the
//! rows that are left.
//!
//! A core overlaps reads that miss the caches only as far ahead as it sees. One row's way through several tables is long and
//! full of branches; a loop over one table is short, and most often without any.

use columnar::ColumnType;

use super::lookup::{Lookup, Step};
use crate::Result;
use crate::codegen::{Params, Profile, RowWriter};
use crate::prelude::Section;

/// Rows of a block. Their offsets and matches lie in the first cache.
pub(super) const BLOCK: u32 = 256;

impl Lookup {
    /// C for the rows from `from` to `to`, block by block: `searches` are those of [`block`](Self::block), and `kept` is what
    /// happens to the `left` rows of a block that stay; each row's number is `base + at`.
    pub(in crate::ops) fn blocks(&self, count: usize, from: &str, to: &str, searches: &str, kept: &str) -> String {
        let matches: String = self.noted(count).map(|number| format!("    u32 match{number}[{BLOCK}];\n")).collect();
        format!(
            "  for (u64 base = {from}; base < {to}; base += {BLOCK}) {{
    u32 left = {to} - base < {BLOCK} ? (u32)({to} - base) : {BLOCK};
    u16 list[{BLOCK}];
{matches}{searches}{kept}  }}
"
        )
    }

    /// C that takes the `left` rows from `base` on through the filters and the first `count` searches. Behind it `left` of
    /// them stay, whose offsets are in `list`, and by their offsets, what each noted search has found in `match0` and so on.
    pub(in crate::ops) fn block(&self, params: &mut Params, types: &[ColumnType], count: usize) -> Result<String> {
        params.need(Section::Base);
        let mut text = String::new();
        for (index, step) in self.steps(count).into_iter().enumerate() {
            let mut writer = self.block_writer(params, types, step);
            writer.push("i32 kept = 1;");
            self.step(&mut writer, types, step)?;
            if let Step::Search { number, .. } = step
                && self.searches[number].is_noted()
            {
                writer.push(&format!("match{number}[at] = b{number};"));
            }
            let statements = writer.statements();
            let at = if index == 0 { "i" } else { "list[i]" };
            let fetched = self.fetch(params, types, step)?.map_or(String::new(), |fetch| {
                format!(
                    "    for (u32 i = 0; i < left; ++i) {{
      u32 at = {at};
      u64 row = base + at;
{fetch}    }}
"
                )
            });
            text.push_str(&format!(
                "{fetched}    {{ u32 many = left; left = 0;
    for (u32 i = 0; i < many; ++i) {{
      u32 at = {at};
      u64 row = base + at;
{statements}      list[left] = (u16)at;
      left += (u32)kept;
    }} }}
"
            ));
        }
        Ok(text)
    }

    /// C that asks the caches for where a row's search begins.
    fn fetch(&self, params: &mut Params, types: &[ColumnType], step: Step) -> Result<Option<String>> {
        let mut writer = self.block_writer(params, types, step);
        let fetches = match step {
            Step::Filter { .. } => false,
            Step::Ask { number } => self.searches[number].fetch_bits(&mut writer)?,
            Step::Search { number, .. } => self.searches[number].fetch(&mut writer)?,
        };
        Ok(fetches.then(|| writer.statements()))
    }

    /// A writer for the row `at` of a block before a step.
    fn block_writer<'a>(&'a self, params: &'a mut Params, types: &'a [ColumnType], step: Step) -> RowWriter<'a> {
        let (Step::Filter { number, .. } | Step::Ask { number } | Step::Search { number, .. }) = step;
        let mut writer = RowWriter::new(types, Profile::Cpu, params).with_row_refs(self.places());
        self.locate(&mut writer, number);
        writer
    }

    /// C that does `statements` for each of the rows that a block has left.
    pub(in crate::ops) fn each_kept(statements: &str) -> String {
        format!(
            "    for (u32 i = 0; i < left; ++i) {{
      u32 at = list[i];
      u64 row = base + at;
{statements}    }}
"
        )
    }

    /// Appends what names, for the row `at` of a block, the matches of the noted ones among the first `count` searches.
    pub(in crate::ops) fn locate(&self, writer: &mut RowWriter<'_>, count: usize) {
        for number in self.noted(count) {
            writer.push(&self.searches[number].found(&format!("match{number}[at]")));
        }
    }

    /// The searches among the first `count` whose matches are of use later.
    pub(in crate::ops) fn noted(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        (0..count).filter(|number| self.searches[*number].is_noted())
    }
}
