// SPDX-License-Identifier: Apache-2.0
//! The search for a row's matches, as C within the row's code.

use std::ops::Range;

use columnar::ColumnType;
use device::Arg;

use super::bits;
use super::keys::{self, KeyForm};
use super::table::{Form, JoinTable, Shape};
use super::{Join, JoinKind};
use crate::Result;
use crate::codegen::{CType, Params, Profile, RowRef, RowWriter, Value};
use crate::expr::Expr;

/// Stands for "no row" in 32 bits.
pub(super) const NONE: &str = "0xffffffffu";

/// A join of a chain with the columns around it.
#[derive(Debug, Clone)]
pub(super) struct Search {
    pub kind: JoinKind,
    /// Position in the chain, part of names.
    pub number: usize,
    /// Its build side's columns among all.
    pub columns: Range<usize>,
    /// Whether the rows that it removes are counted.
    pub tallied: bool,
    /// Whether rows ask the table's bits before the table.
    pub asks_first: bool,
    form: Form,
    forms: Vec<KeyForm>,
    /// Over all columns, both sides.
    keys: Vec<(Expr, Expr)>,
    null_equals_null: bool,
    residual: Option<Expr>,
}

impl Search {
    /// The search of join `number`, whose build side's columns begin at `first` of all the columns of `types`.
    pub fn try_new(
        join: &Join,
        number: usize,
        first: usize,
        types: &[ColumnType],
        form: Form,
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
        let forms = keys.iter().map(|(probe, build)| Ok(KeyForm::of(ctype(probe)?, ctype(build)?))).collect::<Result<_>>()?;
        Ok(Search {
            kind: join.kind,
            number,
            columns: first..first + join.types.len(),
            tallied: join.tallied,
            asks_first: false,
            form,
            forms,
            keys,
            null_equals_null: join.null_equals_null,
            residual: join.residual.clone(),
        })
    }

    /// Whether the match is needed after the search: by columns of the build side, or as a mark.
    pub fn is_noted(&self) -> bool {
        !matches!(self.kind, JoinKind::RightSemi | JoinKind::RightAnti)
    }

    /// Where the build side's columns are read once the search is over.
    pub fn place(&self) -> RowRef {
        let found = self.kind.keeps_probe().then(|| format!("f{}", self.number));
        RowRef { row: format!("r{}", self.number), found, is_mark: false }
    }

    /// C that names what [`place`](Self::place) needs, from the row that was found or [`NONE`].
    pub fn found(&self, row: &str) -> String {
        let k = self.number;
        format!("u32 b{k} = {row};\ni32 f{k} = b{k} != {NONE};\nu32 r{k} = f{k} ? b{k} : 0;")
    }

    /// Appends the search for the current row's matches; `body` is what happens for each, whose row has the name that it is
    /// given, and may go no further by [`stop`](Self::stop).
    pub fn matches(
        &self,
        writer: &mut RowWriter<'_>,
        columns: (&[ColumnType], &[Option<RowRef>]),
        row: &str,
        body: &mut dyn FnMut(&mut RowWriter<'_>, &str) -> Result<()>,
    ) -> Result<()> {
        self.visit(writer, columns, row, None, body)
    }

    /// Appends the number of the current row's matches to the integer `count`; one by one only where they must be looked at.
    pub fn count(
        &self,
        writer: &mut RowWriter<'_>,
        columns: (&[ColumnType], &[Option<RowRef>]),
        row: &str,
        count: &str,
    ) -> Result<()> {
        self.visit(writer, columns, row, Some(count), &mut |writer, _| {
            writer.push(&format!("++{count};"));
            Ok(())
        })
    }

    fn visit(
        &self,
        writer: &mut RowWriter<'_>,
        (types, places): (&[ColumnType], &[Option<RowRef>]),
        row: &str,
        count: Option<&str>,
        body: &mut dyn FnMut(&mut RowWriter<'_>, &str) -> Result<()>,
    ) -> Result<()> {
        let count = count.filter(|_| self.residual.is_none());
        let k = self.number;
        let table = format!("t{k}");
        let candidate = format!("c{k}");
        let mut inner = places.to_vec();
        for column in self.columns.clone() {
            inner[column] = Some(RowRef { row: candidate.clone(), found: None, is_mark: false });
        }
        let mut visit = |writer: &mut RowWriter<'_>| -> Result<()> {
            let Some(residual) = &self.residual else { return body(writer, &candidate) };
            let mut other = other_writer(writer, types, &inner, row, k);
            let condition = other.eval(residual)?.is_true();
            let statements = other.statements();
            writer.push(&statements);
            writer.guarded(&condition, |writer| body(writer, &candidate))
        };
        if self.form.shape == Shape::All {
            let n = writer.params().named(&format!("{table}_n"), "u64");
            if let Some(count) = count {
                writer.push(&format!("{count} += (i64){n};"));
                return Ok(());
            }
            writer.push(&format!("for (u32 {candidate} = 0; {candidate} < {n}; ++{candidate})"));
            return writer.guarded("1", visit);
        }
        let values = self.keys.iter().map(|(probe, _)| writer.eval(probe)).collect::<Result<Vec<_>>>()?;
        let known = keys::known(&values, self.null_equals_null);
        let slot = writer.local(CType::U64, "NO_ROW");
        match self.form.shape {
            shape if self.form.bits => {
                let keys = (self.forms.as_slice(), values.as_slice());
                bits::ask(writer, keys, self.null_equals_null, (&table, shape), (&slot, "0"))?;
                return writer.guarded(&format!("{slot} != NO_ROW"), |writer| {
                    writer.push(&format!("u32 {candidate} = 0;"));
                    visit(writer)
                });
            }
            Shape::Number { dense } => self.find_number(writer, &values, known, &table, &slot, dense)?,
            _ => self.find_wide(writer, &values, known, &table, &slot, (types, &inner), row)?,
        }
        writer.guarded(&format!("{slot} != NO_ROW"), |writer| {
            let rows = writer.params().named(&format!("{table}_rows"), "const G u32 *RESTRICT");
            if self.form.unique {
                writer.push(&format!("u32 {candidate} = {rows}[{slot}];"));
                return writer.guarded(&format!("{candidate} != {NONE}"), visit);
            }
            let starts = writer.params().named(&format!("{table}_starts"), "const G i64 *RESTRICT");
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

    /// Appends what asks the caches for where the current row's search begins, of tables that are hashed. `false`: nothing does,
    /// since a search that reads one place has no branch that would wait for it.
    pub fn fetch(&self, writer: &mut RowWriter<'_>) -> Result<bool> {
        let table = format!("t{}", self.number);
        if !matches!(self.form.shape, Shape::Number { dense: false } | Shape::Wide) {
            return Ok(false);
        }
        if self.form.bits {
            return self.fetch_bits(writer);
        }
        let values = self.keys.iter().map(|(probe, _)| writer.eval(probe)).collect::<Result<Vec<_>>>()?;
        let known = keys::known(&values, self.null_equals_null);
        let (condition, hash) = match self.form.shape {
            Shape::Number { .. } => {
                let (inside, number) = keys::number(writer, &self.forms, &values, self.null_equals_null, &table);
                (Some(known.map_or(inside.clone(), |known| format!("{inside} & {known}"))), format!("hash64({number})"))
            }
            _ => (known, keys::hash(writer, &self.forms, &values)),
        };
        writer.params().need(crate::prelude::Section::Hash);
        writer.guarded(condition.as_deref().unwrap_or("1"), |writer| {
            let mask = writer.params().named(&format!("{table}_mask"), "u64");
            let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
            let behind = match self.form.unique {
                true => writer.params().named(&format!("{table}_rows"), "const G u32 *RESTRICT"),
                false => writer.params().named(&format!("{table}_starts"), "const G i64 *RESTRICT"),
            };
            writer.push(&format!("u64 h = {hash} & {mask};\nPREFETCH(&{slots}[h]);\nPREFETCH(&{behind}[h]);"));
            Ok(())
        })?;
        Ok(true)
    }

    /// Appends what sets the integer `kept` to 0 where the table's bits tell that the current row has no match.
    pub fn ask_bits(&self, writer: &mut RowWriter<'_>, kept: &str) -> Result<()> {
        let values = self.keys.iter().map(|(probe, _)| writer.eval(probe)).collect::<Result<Vec<_>>>()?;
        let table = format!("t{}", self.number);
        let answer = writer.flag("0");
        bits::ask(writer, (&self.forms, &values), self.null_equals_null, (&table, self.form.shape), (&answer, "1"))?;
        writer.push(&format!("{kept} &= {answer};"));
        Ok(())
    }

    /// Appends what asks the caches for the bits that the current row asks. `false`: nothing does, since to hash a text twice may
    /// take longer than to wait for a word.
    pub fn fetch_bits(&self, writer: &mut RowWriter<'_>) -> Result<bool> {
        if self.forms.contains(&KeyForm::Text) {
            return Ok(false);
        }
        let values = self.keys.iter().map(|(probe, _)| writer.eval(probe)).collect::<Result<Vec<_>>>()?;
        let table = format!("t{}", self.number);
        bits::fetch(writer, (&self.forms, &values), self.null_equals_null, (&table, self.form.shape))?;
        Ok(true)
    }

    /// Whether its probe side is read even if the table has no rows, as DataFusion's joins by a condition alone do: what fails
    /// there fails the query.
    pub fn reads_all(&self) -> bool {
        self.meets_all() && (self.residual.is_some() || self.kind != JoinKind::Inner)
    }

    /// Whether every row of the table has the key of every row.
    pub fn meets_all(&self) -> bool {
        self.form.shape == Shape::All
    }

    /// Whether a pair of rows with equal keys may be no match: all that have them must be looked at.
    pub fn is_conditional(&self) -> bool {
        self.residual.is_some()
    }

    /// What leaves the loop over a row's matches, where there is one.
    pub fn stop(&self) -> &'static str {
        if self.form.unique && self.form.shape != Shape::All { "" } else { "break;" }
    }

    fn find_number(
        &self,
        writer: &mut RowWriter<'_>,
        values: &[Value],
        known: Option<String>,
        table: &str,
        slot: &str,
        dense: bool,
    ) -> Result<()> {
        let (inside, number) = keys::number(writer, &self.forms, values, self.null_equals_null, table);
        let condition = known.map_or(inside.clone(), |known| format!("{inside} & {known}"));
        writer.guarded(&condition, |writer| {
            if dense {
                writer.push(&format!("{slot} = {number};"));
                return Ok(());
            }
            let mask = writer.params().named(&format!("{table}_mask"), "u64");
            let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
            writer.params().need(crate::prelude::Section::Hash);
            writer.push(&format!(
                "for (u64 h = hash64({number}) & {mask};; h = (h + 1) & {mask}) {{
  u64 seen = {slots}[h];
  if (seen == {number}) {slot} = h;
  if (seen == {number} || seen == NO_ROW) break;
}}"
            ));
            Ok(())
        })
    }

    #[allow(clippy::too_many_arguments)]
    fn find_wide(
        &self,
        writer: &mut RowWriter<'_>,
        values: &[Value],
        known: Option<String>,
        table: &str,
        slot: &str,
        (types, places): (&[ColumnType], &[Option<RowRef>]),
        row: &str,
    ) -> Result<()> {
        writer.guarded(known.as_deref().unwrap_or("1"), |writer| {
            let hash = keys::hash(writer, &self.forms, values);
            let digits = keys::digits(writer, &self.forms, values);
            let mask = writer.params().named(&format!("{table}_mask"), "u64");
            let slots = writer.params().named(&format!("{table}_keys"), "const G u64 *RESTRICT");
            let mut other = other_writer(writer, types, places, row, self.number);
            let others = self.keys.iter().map(|(_, build)| other.eval(build)).collect::<Result<Vec<_>>>()?;
            let other_digits = keys::digits(&mut other, &self.forms, &others);
            let statements = other.statements();
            let equal = keys::equal(&self.forms, (values, &digits), (&others, &other_digits), self.null_equals_null);
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

    /// The arguments by which kernels know the table.
    pub fn args<'a>(&self, names: &'a Names, table: &'a JoinTable) -> Vec<(&'a str, Arg<'a>)> {
        table.args().into_iter().zip(&names.0).map(|(arg, name)| (name.as_str(), arg)).collect()
    }

    /// The names of those arguments.
    pub fn names(&self) -> Names {
        Names(JoinTable::arg_names(&format!("t{}", self.number), self.digits()))
    }

    fn digits(&self) -> usize {
        self.forms.iter().map(|form| form.digits()).sum()
    }
}

/// Names of a table's arguments in a kernel.
#[derive(Debug, Clone)]
pub(super) struct Names(Vec<String>);

/// A writer for another row of the same columns, within the code of the first.
fn other_writer<'a>(
    writer: &'a mut RowWriter<'_>,
    types: &'a [ColumnType],
    places: &'a [Option<RowRef>],
    row: &str,
    number: usize,
) -> RowWriter<'a> {
    let profile = writer.profile();
    RowWriter::new(types, profile, writer.params()).with_row_refs(places).with_names(row, &format!("y{number}_"))
}
