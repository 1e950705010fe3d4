// SPDX-License-Identifier: Apache-2.0
//! The build side of a join: from rows to a table that leads from keys to rows.
//!
//! Kernels: `join_ranges` finds each digit's least and greatest value; `join_number` and `join_wide` give each row
//! its slot, and the slot its first row; where a slot got a second one, `join_count` and `join_fill` list the rows
//! slot by slot. How long the longest list is tells how many rows a launch of a probe may take.

use std::fmt;

use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, Queue};

use super::bits::Bits;
use super::keys::{self, KeyForm};
use super::search::NONE;
use super::{Join, JoinKind, joined_types};
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::primitives::Primitives;
use crate::ops::program::{Kernel, Program, check_row, for_fetched_rows, for_rows, spread, word};
use crate::ops::source::Source;
use crate::ops::{Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// The most rows of a build side: twice as many slots have numbers of 32 bits.
const MOST_ROWS: usize = 1 << 30;

/// Numbers up to which they index an array, for so many rows.
fn dense_numbers(rows: u128) -> u128 {
    (1 << 19).max(rows * 8).min(1 << 31)
}

/// The same where keys are unique, as far as is known. An array that is mostly empty is read in order where the probe side
/// lies in the order of the keys, as fact tables do; a list of rows for each number would be too much.
fn dense_unique_numbers(rows: u128) -> u128 {
    (rows * 256).min(1 << 23).max(dense_numbers(rows))
}

/// The share of the numbers between the least and the greatest that a table may have to be of use as a filter.
const MOST_OF_FILTER: f64 = 0.4;
/// Rows of a table that is so small that asking it costs little.
const FEW_OF_FILTER: u64 = 4096;

/// How keys lead to slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    /// There are no keys: every row matches.
    All,
    /// By a number, which is the slot, or leads to it.
    Number { dense: bool },
    /// By a hash and a comparison.
    Wide,
}

/// What is known of a table when kernels are written that search it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Form {
    pub shape: Shape,
    /// Whether a slot has one row.
    pub unique: bool,
    /// Whether it is asked by the bits of its keys alone.
    pub bits: bool,
}

/// Makes [`JoinTable`]s.
#[derive(Debug, Clone)]
pub struct JoinBuild {
    pub(super) source: Source,
    keys: Vec<Expr>,
    forms: Vec<KeyForm>,
    /// Least and greatest value of each digit, where all are proven.
    proven: Option<Vec<(u64, u64)>>,
    null_equals_null: bool,
    pub(super) options: Options,
    primitives: Primitives,
    /// Ranges and numbers, where no key is text.
    number: Option<Program>,
    wide: Option<Program>,
    lists: Program,
    /// Bytes of a table that the caches hold, where tests say so.
    pub(super) cached: Option<usize>,
}

/// A build side on the device.
pub struct JoinTable {
    batch: DeviceBatch,
    rows_in_all: usize,
    form: Form,
    mask: u64,
    /// Numbers, or tags and rows, by slot.
    keys: Buffer,
    /// Row of each slot; of a table that is not unique, the rows slot by slot.
    rows: Buffer,
    /// Where a slot's rows begin.
    starts: Buffer,
    /// The most rows that a key leads to, at least 1.
    longest: usize,
    forms: Vec<KeyForm>,
    digits: Vec<Digit>,
    /// The most rows whose keys can match, of a table of numbers.
    known: u64,
    /// Whether a row has keys that can match.
    has_matchable_rows: bool,
    /// The keys as bits, for those who had better ask these than the table.
    pub(super) bits: Option<Bits>,
}

/// A digit of the numbers.
#[derive(Debug, Clone, Copy, Default)]
struct Digit {
    least: u64,
    /// Greatest value less the least.
    most: u64,
    stride: u64,
}

impl JoinBuild {
    /// The build side of `join`, which joins `before` a chain's probe side of types `probe`.
    ///
    /// # Errors
    /// `Unsupported` where a key is not supported on the device.
    pub fn try_new(probe: &[ColumnType], before: &[Join], join: &Join, options: Options) -> Result<JoinBuild> {
        let input = Input { schema: join.schema.clone(), types: join.types.clone(), filter: None };
        let source = Source::try_new(input)?;
        let probe = joined_types(probe, before);
        let profile = options.profile;
        let value = |expr: &Expr, types: &[ColumnType]| {
            let mut params = Params::new();
            RowWriter::new(types, profile, &mut params).eval(expr)
        };
        let keys = join.keys.iter().map(|(left, right)| {
            let (left, right) = (value(left, &probe)?, value(right, &join.types)?);
            let form = KeyForm::of(left.ctype, right.ctype);
            Ok((form, form.proven_range(&right)))
        });
        let (forms, proven): (Vec<_>, Vec<_>) = keys.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let exprs: Vec<Expr> = join.keys.iter().map(|(_, build)| build.clone()).collect();
        let draft = Draft { source: &source, forms: &forms, keys: &exprs, nulls: join.null_equals_null, options: &options };
        let numbered = !exprs.is_empty() && forms.iter().all(|form| *form != KeyForm::Text);
        let number = match numbered {
            true => Some(Program::try_new("JoinBuild", &options, vec![draft.ranges()?, draft.number()?])?),
            false => None,
        };
        let wide = match exprs.is_empty() {
            false => Some(Program::try_new("JoinBuild", &options, vec![draft.wide()?])?),
            true => None,
        };
        let lists = Program::try_new("JoinBuild", &options, vec![count_kernel(&options), fill_kernel(&options)])?;
        let primitives = Primitives::try_new(&options)?;
        let proven = proven.into_iter().collect();
        let null_equals_null = join.null_equals_null;
        Ok(JoinBuild {
            source,
            keys: exprs,
            forms,
            proven,
            null_equals_null,
            options,
            primitives,
            number,
            wide,
            lists,
            cached: None,
        })
    }

    /// The same with the ranges of keys always found among the rows, for those who tell others of them.
    #[must_use]
    pub fn with_found_ranges(self) -> JoinBuild {
        JoinBuild { proven: None, ..self }
    }

    /// Names and texts of the kernels that most builds run.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.number.as_ref().or(self.wide.as_ref()).map(Program::kernel_text).unwrap_or_default()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let numbers = self.number.iter().flat_map(|_| [true, false].map(|dense| Shape::Number { dense }));
        let shapes = numbers.chain(self.wide.iter().map(|_| Shape::Wide));
        let bits: Vec<Program> = shapes.filter_map(|shape| self.bits_program(shape).ok()).collect();
        let programs = self.number.iter().chain(&self.wide).chain([&self.lists]).chain(&bits);
        programs.map(|program| program.text().into()).chain([self.primitives.text().into()]).collect()
    }

    pub(super) fn draft(&self) -> Draft<'_> {
        let JoinBuild { source, keys, forms, null_equals_null: nulls, options, .. } = self;
        Draft { source, forms, keys, nulls: *nulls, options }
    }

    /// Builds the table of a whole side, which is one batch, or `None` where it has no rows.
    ///
    /// # Errors
    /// `Row` with the lowest row of which a key cannot be computed, `Unsupported` for too many rows.
    pub async fn build(&self, queue: &Queue, batch: Option<DeviceBatch>) -> Result<JoinTable> {
        let rows_in_all = batch.as_ref().map_or(0, DeviceBatch::num_rows);
        let batch = match batch {
            Some(batch) if rows_in_all > 0 => batch,
            _ => DeviceBatch::blank(queue, &self.source.schema, &self.source.types)?,
        };
        if rows_in_all > MOST_ROWS {
            return Err(Error::Unsupported(format!(
                "a build side of {rows_in_all} rows is over the limit of {MOST_ROWS}; filter it, or let the other side be built"
            )));
        }
        let mut table = JoinTable {
            batch,
            rows_in_all,
            form: Form { shape: Shape::All, unique: true, bits: false },
            mask: 0,
            keys: queue.filled(8, 0xff)?,
            rows: queue.filled(4, 0xff)?,
            starts: queue.alloc(16)?,
            longest: 1,
            forms: self.forms.clone(),
            digits: vec![Digit::default(); self.forms.iter().map(|form| form.digits()).sum()],
            known: 0,
            has_matchable_rows: self.forms.is_empty() && rows_in_all > 0,
            bits: None,
        };
        if self.forms.is_empty() {
            table.form.unique = rows_in_all <= 1;
            table.longest = rows_in_all.max(1);
            return Ok(table);
        }
        if let Some(program) = &self.number
            && let Some(numbers) = self.find_digits(queue, program, &mut table).await?
        {
            if rows_in_all == 0 {
                return Ok(table);
            }
            let rows = u128::from(table.known);
            table.clear_numbers(queue, numbers, numbers <= dense_unique_numbers(rows))?;
            let mut slot_of = self.claim(queue, program, 1, &mut table).await?;
            if !table.form.unique && numbers > dense_numbers(rows) && table.form.shape == (Shape::Number { dense: true }) {
                table.clear_numbers(queue, numbers, false)?;
                slot_of = self.claim(queue, program, 1, &mut table).await?;
            }
            self.list(queue, &slot_of, &mut table).await?;
            return Ok(table);
        }
        table.form.shape = Shape::Wide;
        if let Some(program) = &self.wide
            && rows_in_all > 0
        {
            let slots = (rows_in_all * 2).next_power_of_two();
            (table.keys, table.mask) = (queue.filled(slots * 8, 0xff)?, slots as u64 - 1);
            table.rows = queue.filled(slots * 4, 0xff)?;
            let slot_of = self.claim(queue, program, 0, &mut table).await?;
            self.list(queue, &slot_of, &mut table).await?;
        }
        Ok(table)
    }

    /// Sets the digits of a table of numbers: how many numbers they make, `None` where these would not fit 64 bits.
    async fn find_digits(&self, queue: &Queue, program: &Program, table: &mut JoinTable) -> Result<Option<u128>> {
        let n = table.rows_in_all;
        table.form.shape = Shape::Number { dense: true };
        if n == 0 {
            return Ok(Some(0));
        }
        // What is proven of the keys saves a pass over them and a wait, if an array of that many numbers is small enough.
        if let Some(proven) = &self.proven
            && let Some(numbers) = table.set_digits(&self.forms, proven, self.null_equals_null)
            && numbers <= dense_unique_numbers(n as u128)
        {
            table.known = n as u64;
            return Ok(Some(numbers));
        }
        let loaded = program.load(queue).await?;
        let mut words = vec![u64::MAX, 0];
        words.extend(table.digits.iter().flat_map(|_| [u64::MAX, 0]));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stats = queue.alloc(bytes.len())?;
        queue.write(&stats, 0, &bytes)?;
        let named = vec![("n", Arg::U64(n as u64)), ("stats", Arg::Buffer(&stats))];
        let bound = self.source.bind(&table.batch)?;
        loaded.launch_on(queue, 0, spread(queue, &self.options, n), &bound, Some(&stats), named)?;
        let answer = queue.read(&stats, 0..bytes.len()).await?;
        check_row(word(&answer, 0)?)?;
        table.known = word(&answer, 1)?;
        let range = |digit| Ok((word(&answer, 2 + 2 * digit)?, word(&answer, 3 + 2 * digit)?));
        let ranges = (0..table.digits.len()).map(range).collect::<Result<Vec<_>>>()?;
        Ok(table.set_digits(&self.forms, &ranges, self.null_equals_null))
    }

    /// Gives rows their slots, by a kernel of `program`; finds out whether a slot has several.
    async fn claim(&self, queue: &Queue, program: &Program, kernel: usize, table: &mut JoinTable) -> Result<Buffer> {
        let n = table.rows_in_all;
        let loaded = program.load(queue).await?;
        let grid = spread(queue, &self.options, n);
        let slot_of = queue.filled(n * 4, 0xff)?;
        // The error word, whether some slot has a second row, and whether some slot has any.
        let control = queue.alloc(24)?;
        queue.write(&control, 0, &[[0xff; 8], [0; 8], [0; 8]].concat())?;
        let names = JoinTable::arg_names("t", table.digits.len());
        let bound = self.source.bind(&table.batch)?;
        let mut named: Vec<_> = names.iter().map(String::as_str).zip(table.args()).collect();
        named.extend([("n", Arg::U64(n as u64)), ("slot_of", Arg::Buffer(&slot_of)), ("control", Arg::Buffer(&control))]);
        loaded.launch_on(queue, kernel, grid, &bound, Some(&control), named)?;
        let answer = queue.read(&control, 0..24).await?;
        check_row(word(&answer, 0)?)?;
        table.form.unique = word(&answer, 1)? == 0;
        table.has_matchable_rows = word(&answer, 2)? != 0;
        Ok(slot_of)
    }

    /// Lists the rows slot by slot, where slots have several.
    async fn list(&self, queue: &Queue, slot_of: &Buffer, table: &mut JoinTable) -> Result<()> {
        if table.form.unique {
            return Ok(());
        }
        let n = table.rows_in_all;
        let grid = spread(queue, &self.options, n);
        // The longest list, and the number of rows in all.
        let control = queue.zeroed(16)?;
        let (lists, primitives) = (self.lists.load(queue).await?, self.primitives.load(queue).await?);
        let slots = table.rows.len() / 4;
        let (starts, ranks) = (queue.zeroed((slots + 1) * 8)?, queue.alloc(n * 4)?);
        let rows = queue.alloc(n * 4)?;
        let args = [
            ("n", Arg::U64(n as u64)),
            ("slot_of", Arg::Buffer(slot_of)),
            ("starts", Arg::Buffer(&starts)),
            ("ranks", Arg::Buffer(&ranks)),
            ("rows", Arg::Buffer(&rows)),
            ("longest", Arg::Buffer(&control)),
        ];
        lists.launch(queue, 0, grid, args.to_vec())?;
        primitives.offsets(queue, &starts, 0, slots, 0, &control, 1)?;
        lists.launch(queue, 1, grid, args.to_vec())?;
        let answer = queue.read(&control, 0..8).await?;
        (table.starts, table.rows, table.longest) = (starts, rows, word(&answer, 0)? as usize);
        Ok(())
    }
}

/// What the kernels of a build are written from.
pub(super) struct Draft<'a> {
    pub source: &'a Source,
    pub forms: &'a [KeyForm],
    pub keys: &'a [Expr],
    pub nulls: bool,
    pub options: &'a Options,
}

impl Draft<'_> {
    fn ranges(&self) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, stats) = (params.named("n", "u64"), params.named("stats", "G u64 *"));
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        let known = keys::known(&values, self.nulls);
        let mut digit = 0;
        writer.guarded(known.as_deref().unwrap_or("1"), |writer| {
            writer.push("++count;");
            for (form, value) in self.forms.iter().zip(&values) {
                for word in form.digits_of(writer, value) {
                    let valid = if self.nulls { value.valid_code() } else { "1" };
                    writer.push(&format!(
                        "if ({valid}) {{ if ({word} < low{digit}) low{digit} = {word}; if ({word} > high{digit}) high{digit} = {word}; }}"
                    ));
                    digit += 1;
                }
            }
            Ok(())
        })?;
        let statements = writer.statements();
        let declared: String = (0..digit).map(|digit| format!(", low{digit} = NO_ROW, high{digit} = 0")).collect();
        let merge = |to: &str| -> String {
            let digits = (0..digit).map(|digit| {
                let (low, high) = (2 + 2 * digit, 3 + 2 * digit);
                format!("    A_MIN64(&{to}[{low}], low{digit}); A_MAX64(&{to}[{high}], high{digit});\n")
            });
            format!("    A_ADD64(&{to}[1], count);\n{}", digits.collect::<String>())
        };
        let words = 2 + 2 * digit;
        let rows = for_rows(self.options.profile, "row", &n, &statements);
        let body = match self.options.profile {
            Profile::Cpu => format!("  u64 count = 0{declared};\n{rows}  if (count) {{\n{}  }}\n", merge(&stats)),
            Profile::Gpu => format!(
                "  SHARED(u64, part, {words});
  for (u32 word = LID(); word < {words}; word += LSZ()) part[word] = word & 1 ? 0 : NO_ROW;
  SYNC();
  u64 count = 0{declared};
{rows}  if (count) {{
{merge}  }}
  SYNC();
  if (LID() == 0 && part[1]) {{
    A_ADD64(&{stats}[1], part[1]);
    for (u32 word = 2; word < {words}; word += 2) {{
      A_MIN64(&{stats}[word], part[word]);
      A_MAX64(&{stats}[word + 1], part[word + 1]);
    }}
  }}
",
                merge = merge("part")
            ),
        };
        Ok(Kernel::new("join_ranges", params, body))
    }

    fn number(&self) -> Result<Kernel> {
        let number_of = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let (inside, number) = keys::number(writer, self.forms, values, self.nulls, "t");
            let condition = keys::known(values, self.nulls).map_or(inside.clone(), |known| format!("{inside} & {known}"));
            writer.params().need(Section::Hash);
            let [mask, dense] = [("t_mask", "u64"), ("t_dense", "u32")].map(|(name, ty)| writer.params().named(name, ty));
            (condition, number, mask, dense)
        };
        let first = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let (condition, number, mask, dense) = number_of(writer, values);
            (condition, format!("{dense} ? {number} : hash64({number}) & {mask}"))
        };
        self.insert("join_number", first, |writer, values| {
            let (condition, number, mask, dense) = number_of(writer, values);
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            writer.push(&format!(
                "u64 slot = NO_ROW;
if ({condition}) {{
  if ({dense}) slot = {number};
  else for (u64 h = hash64({number}) & {mask};; h = (h + 1) & {mask}) {{
    u64 seen = {slots}[h];
    if (seen == NO_ROW) seen = A_CAS64(&{slots}[h], NO_ROW, {number});
    if (seen == NO_ROW || seen == {number}) {{ slot = h; break; }}
  }}
}}"
            ));
            Ok(())
        })
    }

    fn wide(&self) -> Result<Kernel> {
        let first = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let hash = keys::hash(writer, self.forms, values);
            let mask = writer.params().named("t_mask", "u64");
            (keys::known(values, self.nulls).unwrap_or_else(|| "1".into()), format!("{hash} & {mask}"))
        };
        self.insert("join_wide", first, |writer, values| {
            let hash = keys::hash(writer, self.forms, values);
            let digits = keys::digits(writer, self.forms, values);
            let known = keys::known(values, self.nulls).unwrap_or_else(|| "1".into());
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let mask = writer.params().named("t_mask", "u64");
            let profile = writer.profile();
            let mut other = self.source.writer(profile, writer.params()).with_names("other", "y");
            let others = self.keys.iter().map(|key| other.eval(key)).collect::<Result<Vec<_>>>()?;
            let other_digits = keys::digits(&mut other, self.forms, &others);
            let statements = other.statements();
            let equal = keys::equal(self.forms, (values, &digits), (&others, &other_digits), self.nulls);
            writer.push(&format!(
                "u64 slot = NO_ROW;
if ({known}) for (u64 h = {hash} & {mask};; h = (h + 1) & {mask}) {{
  u64 seen = {slots}[h];
  if (seen == NO_ROW) seen = A_CAS64(&{slots}[h], NO_ROW, {hash} >> 32 << 32 | row);
  if (seen == NO_ROW) {{ slot = h; break; }}
  if ((u32)(seen >> 32) != (u32)({hash} >> 32)) continue;
  u64 other = seen & 0xffffffffu;
{statements}  if ({equal}) {{ slot = h; break; }}
}}"
            ));
            Ok(())
        })
    }

    /// The kernel that puts rows into slots, where `find` declares the row's `slot`; `first` gives C of whether the row has one, and
    /// of the slot that it asks first.
    fn insert(
        &self,
        name: &str,
        first: impl FnOnce(&mut RowWriter<'_>, &[Value]) -> (String, String),
        find: impl FnOnce(&mut RowWriter<'_>, &[Value]) -> Result<()>,
    ) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let n = params.named("n", "u64");
        let rows = params.named("t_rows", "volatile G u32 *");
        let slots = params.named("t_keys", "volatile G u64 *");
        let mut fetching = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| fetching.eval(key)).collect::<Result<Vec<_>>>()?;
        // To hash a text twice may take longer than to wait for its slot.
        let fetch = (!self.forms.contains(&KeyForm::Text)).then(|| {
            let (condition, slot) = first(&mut fetching, &values);
            fetching.push(&format!("if ({condition}) {{ u64 h = {slot}; PREFETCH(&{slots}[h]); PREFETCH(&{rows}[h]); }}"));
            fetching.statements()
        });
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        find(&mut writer, &values)?;
        let slot_of = writer.params().named("slot_of", "G u32 *RESTRICT");
        let control = writer.params().named("control", "volatile G u64 *");
        // The third word is looked at first, so that not every row writes to the one line that all share.
        writer.push(&format!(
            "if (slot != NO_ROW) {{
  {slot_of}[row] = (u32)slot;
  if (!((const G u64 *){control})[2]) {control}[2] = 1;
  if ({rows}[slot] != {NONE} || A_CAS32(&{rows}[slot], {NONE}, (u32)row) != {NONE}) {control}[1] = 1;
}}"
        ));
        let statements = writer.statements();
        let body = match fetch {
            Some(fetch) => for_fetched_rows(self.options.profile, "row", &n, &fetch, &statements),
            None => for_rows(self.options.profile, "row", &n, &statements),
        };
        Ok(Kernel::new(name, params, body))
    }
}

fn count_kernel(options: &Options) -> Kernel {
    let named = [
        ("n", "u64"),
        ("slot_of", "const G u32 *RESTRICT"),
        ("starts", "volatile G i64 *"),
        ("ranks", "G u32 *RESTRICT"),
        ("longest", "volatile G u64 *"),
    ];
    let statements = format!(
        "    u32 slot = slot_of[row];
    if (slot != {NONE}) {{
      u64 rank = A_ADD64((volatile G u64 *)&starts[slot + (u64)1], (u64)1);
      ranks[row] = (u32)rank;
      if (rank >= most) most = rank + 1;
    }}
"
    );
    let fetch = format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) PREFETCH(&starts[slot + (u64)1]);\n");
    let rows = for_fetched_rows(options.profile, "row", "n", &fetch, &statements);
    // Most items see that another's list is as long, and leave the word alone.
    let body = format!("  u64 most = 0;\n{rows}  if (most > longest[0]) A_MAX64(&longest[0], most);\n");
    fixed_kernel("join_count", &named, body)
}

fn fill_kernel(options: &Options) -> Kernel {
    let named = [
        ("n", "u64"),
        ("slot_of", "const G u32 *RESTRICT"),
        ("starts", "const G i64 *RESTRICT"),
        ("ranks", "const G u32 *RESTRICT"),
        ("rows", "G u32 *RESTRICT"),
    ];
    let statements =
        format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) rows[(u64)starts[slot] + ranks[row]] = (u32)row;\n");
    let fetch = format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) PREFETCH(&starts[slot]);\n");
    fixed_kernel("join_fill", &named, for_fetched_rows(options.profile, "row", "n", &fetch, &statements))
}

fn fixed_kernel(name: &str, named: &[(&str, &str)], body: String) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    Kernel::new(name, params, body)
}

impl JoinTable {
    /// The rows of the side; where it has none, one row that nothing refers to.
    pub fn batch(&self) -> &DeviceBatch {
        &self.batch
    }

    /// Number of rows of the side.
    pub fn num_rows(&self) -> usize {
        self.rows_in_all
    }

    /// Sets the digits to their ranges: how many numbers they make, `None` where these would not fit 64 bits.
    fn set_digits(&mut self, forms: &[KeyForm], ranges: &[(u64, u64)], null_equals_null: bool) -> Option<u128> {
        let mut total = 1u128;
        let mut first_digits = forms.iter().flat_map(|form| (0..form.digits()).map(|place| place == 0)).collect::<Vec<_>>();
        for (digit, (least, greatest)) in self.digits.iter_mut().zip(ranges).rev() {
            // Where the least is above the greatest no row has a value.
            let (least, most) = greatest.checked_sub(*least).map_or((0, 0), |most| (*least, most));
            let null = u128::from(null_equals_null && first_digits.pop().unwrap_or(false));
            *digit = Digit { least, most, stride: u64::try_from(total).ok()? };
            total = total.checked_mul(u128::from(most) + 1 + null).filter(|total| *total <= u128::from(u64::MAX))?;
        }
        Some(total)
    }

    /// Makes room for so many numbers, as an array or hashed.
    fn clear_numbers(&mut self, queue: &Queue, numbers: u128, dense: bool) -> Result<()> {
        let slots = if dense { numbers as usize } else { (self.known as usize * 2).next_power_of_two() };
        self.form.shape = Shape::Number { dense };
        self.rows = queue.filled(slots * 4, 0xff)?;
        if !dense {
            (self.keys, self.mask) = (queue.filled(slots * 8, 0xff)?, slots as u64 - 1);
        }
        Ok(())
    }

    /// Whether no two rows have equal keys.
    pub fn is_unique(&self) -> bool {
        self.form.unique
    }

    /// Whether the table can serve [`Join::dynamic_filter`]s with as many keys, and is likely to remove rows: it does not
    /// have most of the numbers between its least and its greatest.
    pub fn filters(&self, keys: usize) -> bool {
        self.can_filter(keys) && (self.form.shape != Shape::Wide || self.bits.is_some())
    }

    /// The same of a table whose bits are still to come.
    pub(super) fn can_filter(&self, keys: usize) -> bool {
        let span: f64 = self.digits.iter().map(|digit| digit.most as f64 + 1.0).product();
        let selective = match self.form.shape {
            Shape::All => false,
            Shape::Number { dense } => !dense || self.known < FEW_OF_FILTER || self.known as f64 <= span * MOST_OF_FILTER,
            Shape::Wide => true,
        };
        // Of integers of 128 bits and more a filter does not know on how many digits the join has agreed.
        selective && self.forms.len() == keys && self.forms.iter().all(|form| matches!(form, KeyForm::Word | KeyForm::Text))
    }

    /// Whether the join's own search asks bits before the table.
    pub(super) fn asks_bits_first(&self) -> bool {
        self.bits.as_ref().is_some_and(|bits| bits.first)
    }

    /// What dynamic filters ask.
    pub(super) fn filter_form(&self) -> Form {
        match self.bits {
            Some(_) => Form { unique: true, bits: true, ..self.form },
            None => self.form,
        }
    }

    /// Slots that keys lead to.
    pub(super) fn slots(&self) -> usize {
        if self.form.unique { self.rows.len() / 4 } else { self.starts.len() / 8 - 1 }
    }

    /// The most rows whose keys can match, of a table of numbers.
    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// Whether a join of this kind gives nothing, whatever its probe side has, as DataFusion sees before it reads that: there are no
    /// rows, or, where only matches are kept, none that can match, as each has a NULL among its keys.
    pub fn gives_nothing(&self, kind: JoinKind) -> bool {
        let keeps_matches = matches!(kind, JoinKind::Inner | JoinKind::LeftSemi | JoinKind::RightSemi);
        self.num_rows() == 0 || keeps_matches && !self.has_matchable_rows
    }

    /// Number of digits of the keys.
    pub(super) fn digits(&self) -> usize {
        self.digits.len()
    }

    /// The least and the greatest digit of each of so many keys, of a table of numbers that has any, where each key is one
    /// digit: of signed integers the value with its sign bit turned.
    pub fn key_ranges(&self, keys: usize) -> Option<Vec<(u64, u64)>> {
        let ranges = || self.digits.iter().map(|digit| (digit.least, digit.least + digit.most)).collect();
        let of_words = matches!(self.form.shape, Shape::Number { .. }) && self.digits.len() == keys;
        (of_words && self.known > 0).then(ranges)
    }

    /// The most rows that a key leads to, at least 1; without keys, all.
    pub fn longest_list(&self) -> usize {
        self.longest
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Names of [`args`](Self::args), after `prefix`.
    pub(super) fn arg_names(prefix: &str, digits: usize) -> Vec<String> {
        let fixed = ["keys", "rows", "starts", "mask", "dense", "n", "bits", "words"].map(String::from);
        let digits = (0..digits).flat_map(|digit| ["least", "most", "stride"].map(|what| format!("{what}{digit}")));
        fixed.into_iter().chain(digits).map(|name| format!("{prefix}_{name}")).collect()
    }

    pub(super) fn args(&self) -> Vec<Arg<'_>> {
        let mut args = vec![
            Arg::Buffer(&self.keys),
            Arg::Buffer(&self.rows),
            Arg::Buffer(&self.starts),
            Arg::U64(self.mask),
            Arg::U32(u32::from(self.form.shape == Shape::Number { dense: true })),
            Arg::U64(self.rows_in_all as u64),
            Arg::Buffer(self.bits.as_ref().map_or(&self.keys, |bits| &bits.buffer)),
            Arg::U64(self.bits.as_ref().map_or(0, |bits| bits.words)),
        ];
        args.extend(self.digits.iter().flat_map(|digit| [digit.least, digit.most, digit.stride].map(Arg::U64)));
        args
    }
}

impl fmt::Debug for JoinTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinTable").field("rows", &self.rows_in_all).field("form", &self.form).finish_non_exhaustive()
    }
}
