// SPDX-License-Identifier: Apache-2.0
//! The search for the matches of a row, as C within the code of the row.

use std::ops::Range;

use columnar::ColumnType;
use device::Arg;

use super::keys::{KeyEncoding, PackedKey, RowKeys};
use super::table::{JoinTable, TableKind, TableLayout};
use super::{Join, JoinKind, bloom};
use crate::Result;
use crate::codegen::{CType, Params, Profile, RowRef, RowWriter, Value};
use crate::expr::Expr;
use crate::prelude::Section;

/// C for "no row", a u32.
pub(super) const NONE: &str = "0xffffffffu";

/// A join of a chain, and the columns around it.
#[derive(Debug, Clone)]
pub(super) struct Search {
    pub kind: JoinKind,
    /// Position in the chain, part of C names.
    pub number: usize,
    /// The columns of its build side among those of all sides.
    pub columns: Range<usize>,
    /// Whether its removed rows are counted.
    pub tallied: bool,
    /// Whether rows probe the Bloom filter before the table.
    pub probe_bloom_first: bool,
    layout: TableLayout,
    encodings: Vec<KeyEncoding>,
    /// Pairs of keys over the columns of all sides.
    keys: Vec<(Expr, Expr)>,
    null_equals_null: bool,
    residual: Option<Expr>,
}

/// The columns of all sides, and the C name of the current row.
#[derive(Clone, Copy)]
pub(super) struct SearchedRow<'a> {
    pub types: &'a [ColumnType],
    pub row_refs: &'a [Option<RowRef>],
    pub row: &'a str,
}

impl Search {
    /// The search of join `number`, whose build side begins at the column `first` of `types`.
    pub fn try_new(
        join: &Join,
        number: usize,
        first: usize,
        types: &[ColumnType],
        layout: TableLayout,
        profile: Profile,
    ) -> Result<Search> {
        let keys = join.keys.iter().map(|(probe, build)| {
            let build = build.over(&|column| Ok(Expr::Column(first + column)))?;
            Ok((probe.clone(), build))
        });
        let keys = keys.collect::<Result<Vec<_>>>()?;
        let ctype = |expr: &Expr| {
            let mut params = Params::new();
            RowWriter::new(types, profile, &mut params).eval(expr).map(|value| value.ctype)
        };
        let encodings = keys.iter().map(|(probe, build)| Ok(KeyEncoding::of(ctype(probe)?, ctype(build)?)));
        let encodings = encodings.collect::<Result<_>>()?;
        Ok(Search {
            kind: join.kind,
            number,
            columns: first..first + join.types.len(),
            tallied: join.counts_removed(),
            probe_bloom_first: false,
            layout,
            encodings,
            keys,
            null_equals_null: join.null_equals_null,
            residual: join.residual.clone(),
        })
    }

    /// The row of the build side's columns after the search.
    pub fn row_ref(&self) -> RowRef {
        let found = self.kind.keeps_unmatched_probe_rows().then(|| format!("f{}", self.number));
        RowRef { row: format!("r{}", self.number), found, is_mark: false }
    }

    /// C that declares the names of [`row_ref`](Self::row_ref), from the matching row or [`NONE`].
    pub fn declare_match(&self, row: &str) -> String {
        let k = self.number;
        format!("u32 b{k} = {row};\ni32 f{k} = b{k} != {NONE};\nu32 r{k} = f{k} ? b{k} : 0;")
    }

    /// Appends the search for the matches of the current row. `body` is appended for each match; it
    /// gets the C name of the build row, and may end the search by [`stop`](Self::stop).
    pub fn matches(
        &self,
        writer: &mut RowWriter<'_>,
        current: SearchedRow<'_>,
        body: &mut dyn FnMut(&mut RowWriter<'_>, &str) -> Result<()>,
    ) -> Result<()> {
        self.visit(writer, current, None, body)
    }

    /// Appends the number of matches of the current row to the integer `count`. Matches are visited
    /// only if there is another condition than equal keys.
    pub fn count(&self, writer: &mut RowWriter<'_>, current: SearchedRow<'_>, count: &str) -> Result<()> {
        self.visit(writer, current, Some(count), &mut |writer, _| {
            writer.push(&format!("++{count};"));
            Ok(())
        })
    }

    fn visit(
        &self,
        writer: &mut RowWriter<'_>,
        current: SearchedRow<'_>,
        count: Option<&str>,
        body: &mut dyn FnMut(&mut RowWriter<'_>, &str) -> Result<()>,
    ) -> Result<()> {
        let count = count.filter(|_| self.residual.is_none());
        let candidate = format!("c{}", self.number);
        let mut row_refs = current.row_refs.to_vec();
        for column in self.columns.clone() {
            row_refs[column] = Some(RowRef { row: candidate.clone(), found: None, is_mark: false });
        }
        let current = SearchedRow { row_refs: &row_refs, ..current };
        let mut visit = |writer: &mut RowWriter<'_>| -> Result<()> {
            let Some(residual) = &self.residual else { return body(writer, &candidate) };
            let mut other = self.other_writer(writer, current);
            let condition = other.eval(residual)?.is_true();
            let statements = other.statements();
            writer.push(&statements);
            writer.guarded(&condition, |writer| body(writer, &candidate))
        };
        let table = self.table();
        if self.compares_all_rows() {
            let n = writer.params().named(&format!("{table}_n"), "u64");
            if let Some(count) = count {
                writer.push(&format!("{count} += (i64){n};"));
                return Ok(());
            }
            writer.push(&format!("for (u32 {candidate} = 0; {candidate} < {n}; ++{candidate})"));
            return writer.guarded("1", visit);
        }
        let values = self.probe_values(writer)?;
        let keys = self.row_keys(&values);
        let slot = writer.local(CType::U64, "NO_ROW");
        if self.layout.bloom_only {
            bloom::probe(writer, keys, (&table, self.layout.kind), (&slot, "0"))?;
            return writer.guarded(&format!("{slot} != NO_ROW"), |writer| {
                writer.push(&format!("u32 {candidate} = 0;"));
                visit(writer)
            });
        }
        match self.layout.kind {
            TableKind::Packed { perfect_hash } => self.find_packed(writer, keys, &slot, perfect_hash)?,
            TableKind::AllRows | TableKind::Hashed => self.find_hashed(writer, keys, &slot, current)?,
        }
        writer.guarded(&format!("{slot} != NO_ROW"), |writer| {
            if self.layout.unique {
                let row = self.row_of_slot(writer, &slot);
                writer.push(&format!("u32 {candidate} = {row};"));
                return match self.layout.kind {
                    TableKind::Packed { perfect_hash: true } => writer.guarded(&format!("{candidate} != {NONE}"), visit),
                    TableKind::Packed { perfect_hash: false } | TableKind::Hashed | TableKind::AllRows => visit(writer),
                };
            }
            let rows = writer.params().named(&format!("{table}_rows"), "const G u32 *RESTRICT");
            let starts = writer.params().named(&format!("{table}_starts"), "const G u32 *RESTRICT");
            let first = writer.local(CType::U64, &format!("(u64){starts}[{slot}]"));
            let last = writer.local(CType::U64, &format!("(u64){starts}[{slot} + 1]"));
            if let Some(count) = count {
                writer.push(&format!("{count} += (i64)({last} - {first});"));
                return Ok(());
            }
            writer.push(&format!("for (; {first} < {last}; ++{first})"));
            writer.guarded("1", |writer| {
                writer.push(&format!("u32 {candidate} = {rows}[{first}];"));
                visit(writer)
            })
        })
    }

    /// Appends a prefetch of the slot that the search of the current row reads first, for hashed
    /// tables. Returns `false` without one: a search of one address has no branch that waits for
    /// it.
    pub fn prefetch(&self, writer: &mut RowWriter<'_>) -> Result<bool> {
        match self.layout.kind {
            TableKind::AllRows | TableKind::Packed { perfect_hash: true } => return Ok(false),
            TableKind::Packed { perfect_hash: false } | TableKind::Hashed => {}
        }
        if self.layout.bloom_only {
            return self.prefetch_bloom(writer);
        }
        let table = self.table();
        let values = self.probe_values(writer)?;
        let keys = self.row_keys(&values);
        let (condition, hash) = match self.layout.kind {
            TableKind::Packed { .. } => {
                let PackedKey { condition, code } = keys.packed(writer, &table);
                (Some(condition), format!("hash64({code})"))
            }
            TableKind::AllRows | TableKind::Hashed => (keys.matchable(), keys.hash(writer)),
        };
        writer.params().need(Section::Hash);
        writer.guarded(condition.as_deref().unwrap_or("1"), |writer| {
            let mask = writer.params().named(&format!("{table}_mask"), "u64");
            let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
            writer.push(&format!("u64 h = {hash} & {mask};\nPREFETCH(&{slots}[{} * h]);", self.words_of_slot()));
            if !self.layout.unique {
                let starts = writer.params().named(&format!("{table}_starts"), "const G u32 *RESTRICT");
                writer.push(&format!("PREFETCH(&{starts}[h]);"));
            }
            Ok(())
        })?;
        Ok(true)
    }

    /// Appends a probe of the Bloom filter: it sets the integer `kept` to 0 if the current row has
    /// no match.
    pub fn probe_bloom(&self, writer: &mut RowWriter<'_>, kept: &str) -> Result<()> {
        let values = self.probe_values(writer)?;
        let found = writer.flag("0");
        bloom::probe(writer, self.row_keys(&values), (&self.table(), self.layout.kind), (&found, "1"))?;
        writer.push(&format!("{kept} &= {found};"));
        Ok(())
    }

    /// Appends a prefetch of the word of the Bloom filter that the current row probes. Returns
    /// `false` if it appends nothing: to hash a string twice may take longer than to wait for a
    /// word.
    pub fn prefetch_bloom(&self, writer: &mut RowWriter<'_>) -> Result<bool> {
        if self.encodings.contains(&KeyEncoding::Bytes) {
            return Ok(false);
        }
        let values = self.probe_values(writer)?;
        bloom::prefetch(writer, self.row_keys(&values), (&self.table(), self.layout.kind))?;
        Ok(true)
    }

    /// Whether the probe side is read without build rows. Then its errors fail the query.
    /// DataFusion's nested loop joins do so.
    pub fn reads_all(&self) -> bool {
        self.compares_all_rows() && (self.residual.is_some() || self.kind.nested_loop_reads_all())
    }

    /// Whether every row of the table is a candidate for every probe row.
    pub fn compares_all_rows(&self) -> bool {
        match self.layout.kind {
            TableKind::AllRows => true,
            TableKind::Packed { .. } | TableKind::Hashed => false,
        }
    }

    /// Whether rows with equal keys may not match, so that each candidate is compared.
    pub fn is_conditional(&self) -> bool {
        self.residual.is_some()
    }

    /// C that leaves the loop over the matches of a row; empty without a loop.
    pub fn stop(&self) -> &'static str {
        if self.layout.unique && !self.compares_all_rows() { "" } else { "break;" }
    }

    /// C of the row of a slot, of a unique table.
    fn row_of_slot(&self, writer: &mut RowWriter<'_>, slot: &str) -> String {
        let table = self.table();
        match self.layout.kind {
            TableKind::Packed { perfect_hash: true } | TableKind::AllRows => {
                let rows = writer.params().named(&format!("{table}_rows"), "const G u32 *RESTRICT");
                format!("{rows}[{slot}]")
            }
            TableKind::Packed { perfect_hash: false } => {
                let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
                format!("(u32){slots}[2 * {slot} + 1]")
            }
            TableKind::Hashed => {
                let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
                format!("(u32){slots}[{slot}]")
            }
        }
    }

    /// Words of a slot in `keys`.
    fn words_of_slot(&self) -> usize {
        match self.layout.kind {
            TableKind::Packed { .. } => 2,
            TableKind::Hashed | TableKind::AllRows => 1,
        }
    }

    fn find_packed(&self, writer: &mut RowWriter<'_>, keys: RowKeys<'_>, slot: &str, perfect_hash: bool) -> Result<()> {
        let table = self.table();
        let PackedKey { condition, code } = keys.packed(writer, &table);
        writer.guarded(&condition, |writer| {
            if perfect_hash {
                writer.push(&format!("{slot} = {code};"));
                return Ok(());
            }
            let mask = writer.params().named(&format!("{table}_mask"), "u64");
            let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
            writer.params().need(Section::Hash);
            writer.push(&format!(
                "for (u64 h = hash64({code}) & {mask};; h = (h + 1) & {mask}) {{
  u64 seen = {slots}[2 * h];
  if (seen == {code}) {slot} = h;
  if (seen == {code} || seen == NO_ROW) break;
}}"
            ));
            Ok(())
        })
    }

    /// `current`: with the build side's columns at the candidate.
    fn find_hashed(&self, writer: &mut RowWriter<'_>, keys: RowKeys<'_>, slot: &str, current: SearchedRow<'_>) -> Result<()> {
        let table = self.table();
        let matchable = keys.matchable();
        writer.guarded(matchable.as_deref().unwrap_or("1"), |writer| {
            let hash = keys.hash(writer);
            let fields = keys.fields(writer);
            let mask = writer.params().named(&format!("{table}_mask"), "u64");
            let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
            let mut other = self.other_writer(writer, current);
            let others = self.keys.iter().map(|(_, build)| other.eval(build)).collect::<Result<Vec<_>>>()?;
            let other_fields = self.row_keys(&others).fields(&mut other);
            let statements = other.statements();
            let equal = keys.equal(&fields, &others, &other_fields);
            let candidate = format!("c{}", self.number);
            writer.push(&format!(
                "for (u64 h = {hash} & {mask};; h = (h + 1) & {mask}) {{
  u64 seen = {slots}[h];
  if (seen == NO_ROW) break;
  if ((u32)(seen >> 32) != (u32)({hash} >> 32)) continue;
  u32 {candidate} = (u32)seen;
{statements}  if ({equal}) {{ {slot} = h; break; }}
}}"
            ));
            Ok(())
        })
    }

    /// A writer for another row of the same columns, within the code of the current row.
    fn other_writer<'a>(&self, writer: &'a mut RowWriter<'_>, current: SearchedRow<'a>) -> RowWriter<'a> {
        let profile = writer.profile();
        let writer = RowWriter::new(current.types, profile, writer.params()).with_row_refs(current.row_refs);
        writer.with_names(current.row, &format!("y{}_", self.number))
    }

    fn probe_values(&self, writer: &mut RowWriter<'_>) -> Result<Vec<Value>> {
        self.keys.iter().map(|(probe, _)| writer.eval(probe)).collect()
    }

    fn row_keys<'a>(&'a self, values: &'a [Value]) -> RowKeys<'a> {
        RowKeys { encodings: &self.encodings, values, null_equals_null: self.null_equals_null }
    }

    /// Prefix of the table's arguments.
    fn table(&self) -> String {
        format!("t{}", self.number)
    }

    /// The kernel arguments for the table.
    pub fn args<'a>(&self, names: &'a TableArgNames, table: &'a JoinTable) -> Vec<(&'a str, Arg<'a>)> {
        table.args().into_iter().zip(&names.0).map(|(arg, name)| (name.as_str(), arg)).collect()
    }

    /// The names of these arguments.
    pub fn arg_names(&self) -> TableArgNames {
        let fields = self.encodings.iter().map(|encoding| encoding.fields()).sum();
        TableArgNames(JoinTable::arg_names(&self.table(), fields))
    }
}

/// Names of a table's arguments in a kernel.
#[derive(Debug, Clone)]
pub(super) struct TableArgNames(Vec<String>);
