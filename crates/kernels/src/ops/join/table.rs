// SPDX-License-Identifier: Apache-2.0
//! The build side of a join: from rows to a table that leads from keys to rows.
//!
//! 1. `join_key_ranges` finds the least and greatest value of each key field.
//! 2. `join_insert_packed` or `join_insert_hashed` gives each row its slot, and each slot its first
//!    row. A slot of packed keys that are hashed is two words, the key and the row: one sector.
//! 3. If a slot has several rows, `join_count_rows` and `join_fill_rows` list the rows by slot.
//!
//! The length of the longest list limits the rows that a launch of a probe takes.

use std::fmt;
use std::sync::OnceLock;

use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, Queue};

use super::bloom::{BloomFilter, cached_table_bytes};
use super::keys::{KeyEncoding, PackedKey, RowKeys};
use super::search::NONE;
use super::{Join, JoinKind, joined_types};
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::launch::primitives::{Lengths, Primitives};
use crate::ops::launch::program::{
    FixedProgram, Kernel, Program, check_failed_row, grid_for, prefetched_row_loop, read_u64, row_loop,
};
use crate::ops::launch::projection::error_source;
use crate::ops::launch::source::Source;
use crate::ops::{Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// Most rows of a build side: there are up to twice as many slots, which 32 bits number.
const MAX_ROWS: usize = 1 << 30;

/// Most packed keys of a perfect hash, for so many rows.
fn max_perfect_hash(rows: u128, options: &Options) -> u128 {
    (options.threshold(1 << 19) as u128).max(rows * 8).min(1 << 31)
}

/// The same for keys that may be unique. An array that is mostly empty is read in order if the
/// probe side has the order of the keys, as fact tables have. With a list of rows for each key it
/// would be too large.
fn max_unique_perfect_hash(rows: u128, options: &Options) -> u128 {
    (rows * 256).min(options.threshold(1 << 23) as u128).max(max_perfect_hash(rows, options))
}

/// Greatest share of the packed keys in the range of a table that makes a useful filter.
const MAX_FILTER_DENSITY: f64 = 0.4;
/// Rows of a table that is small enough to be a cheap filter.
const CHEAP_FILTER_ROWS: u64 = 4096;

/// How keys lead to slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TableKind {
    /// There are no keys: every row matches.
    AllRows,
    /// By the packed key: it is the slot (a perfect hash), or is hashed.
    Packed { perfect_hash: bool },
    /// By a hash and a comparison.
    Hashed,
}

/// The properties of a table that the kernels depend on that search it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TableLayout {
    pub kind: TableKind,
    /// Whether a slot has one row.
    pub unique: bool,
    /// Whether searches probe the Bloom filter alone.
    pub bloom_only: bool,
}

/// Programs that insert rows.
#[derive(Debug, Clone)]
enum InsertPrograms {
    /// Without keys there is nothing to insert.
    AllRows,
    /// A key is a string.
    Hashed(Box<Program>),
    /// Packed keys if they fit 64 bits. The program of packed keys has the kernels [`KEY_RANGES`]
    /// and [`INSERT_PACKED`].
    Packed { packed: Box<Program>, hashed: Box<Program> },
}

/// Kernels of the program of packed keys.
const KEY_RANGES: usize = 0;
const INSERT_PACKED: usize = 1;
/// Kernel of the program of hashed keys.
const INSERT_HASHED: usize = 0;

/// Builds [`JoinTable`]s.
#[derive(Debug, Clone)]
pub struct JoinBuild {
    pub(super) source: Source,
    keys: Vec<Expr>,
    encodings: Vec<KeyEncoding>,
    /// Least and greatest value of each key field, if all are proven.
    proven_ranges: Option<Vec<(u64, u64)>>,
    null_equals_null: bool,
    pub(super) options: Options,
    primitives: Primitives,
    /// Generated on first use.
    inserts: OnceLock<InsertPrograms>,
    lists: FixedProgram,
    /// Bytes of a table that the caches hold.
    pub(super) cached_table_bytes: usize,
}

/// A build side on the device.
pub struct JoinTable {
    batch: DeviceBatch,
    num_rows: usize,
    layout: TableLayout,
    /// Number of slots, less one. Hashed keys have a power of two.
    mask: u64,
    /// By slot, of hashed keys: the packed key and the first row, or a tag with that row.
    keys: Buffer,
    /// By slot of a perfect hash: the first row. If the table is not unique, the rows of all slots.
    rows: Buffer,
    /// By slot: the position of its first row in `rows`.
    starts: Buffer,
    /// The most rows of a key, at least 1.
    max_rows_per_key: usize,
    encodings: Vec<KeyEncoding>,
    fields: Vec<KeyField>,
    /// The most rows whose keys can match, of a table of packed keys.
    matchable_rows: u64,
    /// Whether a row has keys that can match.
    has_matchable_rows: bool,
    /// The Bloom filter of the keys, if searches or dynamic filters probe one.
    pub(super) bloom: Option<BloomFilter>,
}

/// The range and weight of a key field in packed keys.
#[derive(Debug, Clone, Copy, Default)]
struct KeyField {
    least: u64,
    /// Greatest value less the least.
    span: u64,
    stride: u64,
}

impl JoinBuild {
    /// The build side of `join`, which follows the joins `before` of a chain with a probe side of
    /// types `probe`.
    ///
    /// # Errors
    /// `Unsupported` if a key is not supported on the device.
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
            let encoding = KeyEncoding::of(left.ctype, right.ctype);
            Ok((encoding, encoding.proven_range(&right)))
        });
        let (encodings, proven): (Vec<_>, Vec<_>) = keys.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        let keys: Vec<Expr> = join.keys.iter().map(|(_, build)| build.clone()).collect();
        let null_equals_null = join.null_equals_null;
        let lists = FixedProgram::new("JoinBuild", &options, |options| vec![count_kernel(options), fill_kernel(options)]);
        let primitives = Primitives::new(&options);
        let proven_ranges = proven.into_iter().collect();
        let cached_table_bytes = cached_table_bytes(&options);
        Ok(JoinBuild {
            source,
            keys,
            encodings,
            proven_ranges,
            null_equals_null,
            options,
            primitives,
            inserts: OnceLock::new(),
            lists,
            cached_table_bytes,
        })
    }

    /// Computes the ranges of keys from the rows even if they are proven, for dynamic filters that
    /// push them down.
    #[must_use]
    pub fn with_found_ranges(self) -> JoinBuild {
        JoinBuild { proven_ranges: None, ..self }
    }

    fn inserts(&self) -> Result<&InsertPrograms> {
        if let Some(inserts) = self.inserts.get() {
            return Ok(inserts);
        }
        let kernels = self.kernels();
        let program = |kernels| Box::new(Program::new("JoinBuild", &self.options, kernels));
        let inserts = if self.keys.is_empty() {
            InsertPrograms::AllRows
        } else if self.encodings.contains(&KeyEncoding::Bytes) {
            InsertPrograms::Hashed(program(vec![kernels.insert_hashed()?]))
        } else {
            let packed = program(vec![kernels.key_ranges()?, kernels.insert_packed()?]);
            InsertPrograms::Packed { packed, hashed: program(vec![kernels.insert_hashed()?]) }
        };
        Ok(self.inserts.get_or_init(|| inserts))
    }

    /// Names and sources of the kernels that most builds run.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        match self.inserts() {
            Ok(InsertPrograms::AllRows) => vec![],
            Ok(InsertPrograms::Hashed(program) | InsertPrograms::Packed { packed: program, .. }) => program.kernel_source(),
            Err(error) => vec![error_source(&error)],
        }
    }

    /// The kernel sources as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let (inserts, kinds) = match self.inserts() {
            Ok(InsertPrograms::AllRows) | Err(_) => (vec![], vec![]),
            Ok(InsertPrograms::Hashed(hashed)) => (vec![hashed], vec![TableKind::Hashed]),
            Ok(InsertPrograms::Packed { packed, hashed }) => {
                let packed_kinds = [true, false].map(|perfect_hash| TableKind::Packed { perfect_hash });
                (vec![packed, hashed], packed_kinds.into_iter().chain([TableKind::Hashed]).collect())
            }
        };
        let blooms: Vec<Program> = kinds.into_iter().filter_map(|kind| self.bloom_program(kind).ok()).collect();
        let programs = inserts.into_iter().map(AsRef::as_ref).chain([&*self.lists]).chain(&blooms);
        programs.map(|program| program.source().into()).chain([self.primitives.source().into()]).collect()
    }

    pub(super) fn kernels(&self) -> BuildKernels<'_> {
        let JoinBuild { source, keys, encodings, null_equals_null, options, .. } = self;
        BuildKernels { source, encodings, keys, null_equals_null: *null_equals_null, options }
    }

    /// Builds the table of a whole side, which is one batch, or `None` if it has no rows.
    ///
    /// # Errors
    /// `Row` with the lowest row of which a key cannot be computed, `Unsupported` for too many
    /// rows.
    pub async fn build(&self, queue: &Queue, batch: Option<DeviceBatch>) -> Result<JoinTable> {
        let mut table = self.empty_table(queue, batch)?;
        match self.inserts()? {
            InsertPrograms::AllRows => {
                table.layout.unique = table.num_rows <= 1;
                table.max_rows_per_key = table.num_rows.max(1);
            }
            InsertPrograms::Hashed(hashed) => self.build_hashed(queue, hashed, &mut table).await?,
            InsertPrograms::Packed { packed, hashed } => match self.find_fields(queue, packed, &mut table).await? {
                Some(packed_keys) => self.build_packed(queue, packed, packed_keys, &mut table).await?,
                None => self.build_hashed(queue, hashed, &mut table).await?,
            },
        }
        Ok(table)
    }

    /// The table before rows are inserted.
    fn empty_table(&self, queue: &Queue, batch: Option<DeviceBatch>) -> Result<JoinTable> {
        let num_rows = batch.as_ref().map_or(0, DeviceBatch::num_rows);
        let batch = match batch {
            Some(batch) if num_rows > 0 => batch,
            _ => DeviceBatch::blank(queue, &self.source.schema, &self.source.types)?,
        };
        if num_rows > MAX_ROWS {
            return Err(Error::Unsupported(format!(
                "a build side of {num_rows} rows is over the limit of {MAX_ROWS}; filter it, or let the other side be built"
            )));
        }
        Ok(JoinTable {
            batch,
            num_rows,
            layout: TableLayout { kind: TableKind::AllRows, unique: true, bloom_only: false },
            mask: 0,
            keys: queue.filled(8, 0xff)?,
            rows: queue.filled(4, 0xff)?,
            starts: queue.alloc(4)?,
            max_rows_per_key: 1,
            encodings: self.encodings.clone(),
            fields: vec![KeyField::default(); self.encodings.iter().map(|encoding| encoding.fields()).sum()],
            matchable_rows: 0,
            has_matchable_rows: self.encodings.is_empty() && num_rows > 0,
            bloom: None,
        })
    }

    /// Inserts rows by packed keys, of which `packed_keys` are possible.
    async fn build_packed(&self, queue: &Queue, program: &Program, packed_keys: u128, table: &mut JoinTable) -> Result<()> {
        if table.num_rows == 0 {
            return Ok(());
        }
        let rows = u128::from(table.matchable_rows);
        table.alloc_slots(queue, packed_keys, packed_keys <= max_unique_perfect_hash(rows, &self.options))?;
        let mut slot_of = self.claim_slots(queue, program, INSERT_PACKED, table).await?;
        let is_too_sparse = packed_keys > max_perfect_hash(rows, &self.options);
        if !table.layout.unique && is_too_sparse && table.layout.kind == (TableKind::Packed { perfect_hash: true }) {
            table.alloc_slots(queue, packed_keys, false)?;
            slot_of = self.claim_slots(queue, program, INSERT_PACKED, table).await?;
        }
        self.list_rows(queue, &slot_of, table).await
    }

    /// Inserts rows by hashes.
    async fn build_hashed(&self, queue: &Queue, program: &Program, table: &mut JoinTable) -> Result<()> {
        table.layout.kind = TableKind::Hashed;
        if table.num_rows == 0 {
            return Ok(());
        }
        let slots = (table.num_rows * 2).next_power_of_two();
        (table.keys, table.mask) = (queue.filled(slots * 8, 0xff)?, slots as u64 - 1);
        let slot_of = self.claim_slots(queue, program, INSERT_HASHED, table).await?;
        self.list_rows(queue, &slot_of, table).await
    }

    /// Finds the ranges of the key fields. Returns the number of possible packed keys, `None` if
    /// they do not fit 64 bits.
    async fn find_fields(&self, queue: &Queue, program: &Program, table: &mut JoinTable) -> Result<Option<u128>> {
        let n = table.num_rows;
        table.layout.kind = TableKind::Packed { perfect_hash: true };
        if n == 0 {
            return Ok(Some(0));
        }
        // Proven ranges save a pass over the keys and a wait, if a perfect hash of these ranges is
        // small enough.
        if let Some(proven) = &self.proven_ranges
            && let Some(packed_keys) = table.set_fields(&self.encodings, proven, self.null_equals_null)
            && packed_keys <= max_unique_perfect_hash(n as u128, &self.options)
        {
            table.matchable_rows = n as u64;
            return Ok(Some(packed_keys));
        }
        let loaded = program.load(queue).await?;
        // The lowest failing row, the number of matchable rows, and the range of each field.
        let mut words = vec![u64::MAX, 0];
        words.extend(table.fields.iter().flat_map(|_| [u64::MAX, 0]));
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let stats = queue.alloc(bytes.len())?;
        queue.write(&stats, 0, &bytes)?;
        let named = vec![("n", Arg::U64(n as u64)), ("stats", Arg::Buffer(&stats))];
        let bound = self.source.bind(&table.batch)?;
        loaded.launch_on(queue, KEY_RANGES, grid_for(queue, &self.options, n), &bound, Some(&stats), named)?;
        let answer = queue.read(&stats, 0..bytes.len()).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        table.matchable_rows = read_u64(&answer, 1)?;
        let range = |field| Ok((read_u64(&answer, 2 + 2 * field)?, read_u64(&answer, 3 + 2 * field)?));
        let ranges = (0..table.fields.len()).map(range).collect::<Result<Vec<_>>>()?;
        Ok(table.set_fields(&self.encodings, &ranges, self.null_equals_null))
    }

    /// Gives rows their slots. Finds out whether a slot has several rows, and whether any row is
    /// matchable.
    async fn claim_slots(&self, queue: &Queue, program: &Program, kernel: usize, table: &mut JoinTable) -> Result<Buffer> {
        let n = table.num_rows;
        let loaded = program.load(queue).await?;
        let grid = grid_for(queue, &self.options, n);
        let slot_of = queue.filled(n * 4, 0xff)?;
        // The lowest failing row, a flag for slots with a second row, and a flag for slots with any
        // row.
        let control = queue.alloc(24)?;
        queue.write(&control, 0, &[[0xff; 8], [0; 8], [0; 8]].concat())?;
        let names = JoinTable::arg_names("t", table.fields.len());
        let bound = self.source.bind(&table.batch)?;
        let mut named: Vec<_> = names.iter().map(String::as_str).zip(table.args()).collect();
        named.extend([("n", Arg::U64(n as u64)), ("slot_of", Arg::Buffer(&slot_of)), ("control", Arg::Buffer(&control))]);
        loaded.launch_on(queue, kernel, grid, &bound, Some(&control), named)?;
        let answer = queue.read(&control, 0..24).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        table.layout.unique = read_u64(&answer, 1)? == 0;
        table.has_matchable_rows = read_u64(&answer, 2)? != 0;
        Ok(slot_of)
    }

    /// Lists the rows by slot, if slots have several.
    async fn list_rows(&self, queue: &Queue, slot_of: &Buffer, table: &mut JoinTable) -> Result<()> {
        if table.layout.unique {
            return Ok(());
        }
        let n = table.num_rows;
        let grid = grid_for(queue, &self.options, n);
        // The length of the longest list, and the number of rows.
        let control = queue.zeroed(16)?;
        let (lists, primitives) = (self.lists.load(queue).await?, self.primitives.load(queue).await?);
        let slots = table.slots();
        let (starts, ranks) = (queue.zeroed((slots + 1) * 4)?, queue.alloc(n * 4)?);
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
        primitives.offsets(Lengths::of_u32(&starts, slots), &control, 1)?;
        lists.launch(queue, 1, grid, args.to_vec())?;
        let answer = queue.read(&control, 0..8).await?;
        (table.starts, table.rows, table.max_rows_per_key) = (starts, rows, read_u64(&answer, 0)? as usize);
        Ok(())
    }
}

/// Generates the kernels of a build.
pub(super) struct BuildKernels<'a> {
    pub source: &'a Source,
    pub encodings: &'a [KeyEncoding],
    pub keys: &'a [Expr],
    pub null_equals_null: bool,
    pub options: &'a Options,
}

impl BuildKernels<'_> {
    /// The keys with the values of a row.
    pub fn row_keys<'b>(&'b self, values: &'b [Value]) -> RowKeys<'b> {
        RowKeys { encodings: self.encodings, values, null_equals_null: self.null_equals_null }
    }

    fn key_ranges(&self) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, stats) = (params.named("n", "u64"), params.named("stats", "G u64 *"));
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        let matchable = self.row_keys(&values).matchable();
        let mut fields = 0;
        writer.guarded(matchable.as_deref().unwrap_or("1"), |writer| {
            writer.push("++count;");
            for (encoding, value) in self.encodings.iter().zip(&values) {
                for field in encoding.fields_of(writer, value) {
                    let valid = if self.null_equals_null { value.valid_code() } else { "1" };
                    writer.push(&format!(
                        "if ({valid}) {{ if ({field} < low{fields}) low{fields} = {field}; if ({field} > high{fields}) high{fields} = {field}; }}"
                    ));
                    fields += 1;
                }
            }
            Ok(())
        })?;
        let statements = writer.statements();
        let declared: String = (0..fields).map(|field| format!(", low{field} = NO_ROW, high{field} = 0")).collect();
        let merge = |to: &str| -> String {
            let ranges = (0..fields).map(|field| {
                let (low, high) = (2 + 2 * field, 3 + 2 * field);
                format!("    A_MIN64(&{to}[{low}], low{field}); A_MAX64(&{to}[{high}], high{field});\n")
            });
            format!("    A_ADD64(&{to}[1], count);\n{}", ranges.collect::<String>())
        };
        let words = 2 + 2 * fields;
        let rows = row_loop(self.options.profile, "row", &n, &statements);
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
        Ok(Kernel::new("join_key_ranges", params, body))
    }

    fn insert_packed(&self) -> Result<Kernel> {
        let packed = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let key = self.row_keys(values).packed(writer, "t");
            writer.params().need(Section::Hash);
            let [mask, perfect_hash] =
                [("t_mask", "u64"), ("t_perfect_hash", "u32")].map(|(name, ty)| writer.params().named(name, ty));
            (key, mask, perfect_hash)
        };
        let first = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let (PackedKey { condition, code }, mask, perfect_hash) = packed(writer, values);
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let rows = writer.params().named("t_rows", "volatile G u32 *");
            (
                condition,
                format!("if ({perfect_hash}) PREFETCH(&{rows}[{code}]); else PREFETCH(&{slots}[2 * (hash64({code}) & {mask})]);"),
            )
        };
        self.insert("join_insert_packed", first, |writer, values| {
            let (PackedKey { condition, code }, mask, perfect_hash) = packed(writer, values);
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let rows = writer.params().named("t_rows", "volatile G u32 *");
            let control = writer.params().named("control", "volatile G u64 *");
            // Once a slot has two rows, `list_rows` lists all of them again.
            writer.push(&format!(
                "if ({condition}) {{
  if ({perfect_hash}) {{
    slot = {code};
    again = !((const G u64 *){control})[1] && ({rows}[slot] != {NONE} || A_CAS32(&{rows}[slot], {NONE}, (u32)row) != {NONE});
  }}
  else for (u64 h = hash64({code}) & {mask};; h = (h + 1) & {mask}) {{
    u64 seen = {slots}[2 * h];
    if (seen == NO_ROW) seen = A_CAS64(&{slots}[2 * h], NO_ROW, {code});
    if (seen == NO_ROW) {slots}[2 * h + 1] = row;
    else if (seen != {code}) continue;
    slot = h;
    again = seen != NO_ROW;
    break;
  }}
}}"
            ));
            Ok(())
        })
    }

    fn insert_hashed(&self) -> Result<Kernel> {
        let first = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let keys = self.row_keys(values);
            let hash = keys.hash(writer);
            let mask = writer.params().named("t_mask", "u64");
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            (keys.matchable().unwrap_or_else(|| "1".into()), format!("PREFETCH(&{slots}[{hash} & {mask}]);"))
        };
        self.insert("join_insert_hashed", first, |writer, values| {
            let keys = self.row_keys(values);
            let hash = keys.hash(writer);
            let fields = keys.fields(writer);
            let matchable = keys.matchable().unwrap_or_else(|| "1".into());
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let mask = writer.params().named("t_mask", "u64");
            let profile = writer.profile();
            let mut other = self.source.writer(profile, writer.params()).with_names("other", "y");
            let others = self.keys.iter().map(|key| other.eval(key)).collect::<Result<Vec<_>>>()?;
            let other_fields = self.row_keys(&others).fields(&mut other);
            let statements = other.statements();
            let equal = keys.equal(&fields, &others, &other_fields);
            writer.push(&format!(
                "if ({matchable}) for (u64 h = {hash} & {mask};; h = (h + 1) & {mask}) {{
  u64 seen = {slots}[h];
  if (seen == NO_ROW) seen = A_CAS64(&{slots}[h], NO_ROW, {hash} >> 32 << 32 | row);
  if (seen == NO_ROW) {{ slot = h; break; }}
  if ((u32)(seen >> 32) != (u32)({hash} >> 32)) continue;
  u64 other = seen & 0xffffffffu;
{statements}  if ({equal}) {{ slot = h; again = 1; break; }}
}}"
            ));
            Ok(())
        })
    }

    /// The kernel that puts rows into slots. `find` sets the `slot` of the row, and `again` if the
    /// slot had a row. `first` gives C of whether the row has a slot, and that prefetches what the
    /// row reads first.
    fn insert(
        &self,
        name: &str,
        first: impl FnOnce(&mut RowWriter<'_>, &[Value]) -> (String, String),
        find: impl FnOnce(&mut RowWriter<'_>, &[Value]) -> Result<()>,
    ) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let n = params.named("n", "u64");
        let mut prefetching = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| prefetching.eval(key)).collect::<Result<Vec<_>>>()?;
        // To hash a string twice may take longer than to wait for its slot.
        let prefetch = (!self.encodings.contains(&KeyEncoding::Bytes)).then(|| {
            let (condition, prefetch) = first(&mut prefetching, &values);
            prefetching.push(&format!("if ({condition}) {{ {prefetch} }}"));
            prefetching.statements()
        });
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        writer.push("u64 slot = NO_ROW;\ni32 again = 0;");
        find(&mut writer, &values)?;
        let slot_of = writer.params().named("slot_of", "G u32 *RESTRICT");
        let control = writer.params().named("control", "volatile G u64 *");
        // Plain reads of the second and third word come first, so that not every row writes to the
        // shared cache line.
        writer.push(&format!(
            "if (slot != NO_ROW) {{
  {slot_of}[row] = (u32)slot;
  if (!((const G u64 *){control})[2]) {control}[2] = 1;
  if (again && !((const G u64 *){control})[1]) {control}[1] = 1;
}}"
        ));
        let statements = writer.statements();
        let body = match prefetch {
            Some(prefetch) => prefetched_row_loop(self.options.profile, "row", &n, &prefetch, &statements),
            None => row_loop(self.options.profile, "row", &n, &statements),
        };
        Ok(Kernel::new(name, params, body))
    }
}

fn count_kernel(options: &Options) -> Kernel {
    let named = [
        ("n", "u64"),
        ("slot_of", "const G u32 *RESTRICT"),
        ("starts", "volatile G u32 *"),
        ("ranks", "G u32 *RESTRICT"),
        ("longest", "volatile G u64 *"),
    ];
    let statements = format!(
        "    u32 slot = slot_of[row];
    if (slot != {NONE}) {{
      u32 rank = A_ADD32(&starts[slot + (u64)1], 1u);
      ranks[row] = rank;
      if (rank >= most) most = (u64)rank + 1;
    }}
"
    );
    let prefetch = format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) PREFETCH(&starts[slot + (u64)1]);\n");
    let rows = prefetched_row_loop(options.profile, "row", "n", &prefetch, &statements);
    // Most work-items read that another list is as long, and do not write.
    let body = format!("  u64 most = 0;\n{rows}  if (most > longest[0]) A_MAX64(&longest[0], most);\n");
    fixed_kernel("join_count_rows", &named, body)
}

fn fill_kernel(options: &Options) -> Kernel {
    let named = [
        ("n", "u64"),
        ("slot_of", "const G u32 *RESTRICT"),
        ("starts", "const G u32 *RESTRICT"),
        ("ranks", "const G u32 *RESTRICT"),
        ("rows", "G u32 *RESTRICT"),
    ];
    let statements =
        format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) rows[(u64)starts[slot] + ranks[row]] = (u32)row;\n");
    let prefetch = format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) PREFETCH(&starts[slot]);\n");
    fixed_kernel("join_fill_rows", &named, prefetched_row_loop(options.profile, "row", "n", &prefetch, &statements))
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
    /// The rows of the build side; one row that no slot refers to if it has none.
    pub fn batch(&self) -> &DeviceBatch {
        &self.batch
    }

    /// Number of rows of the build side.
    pub fn num_rows(&self) -> usize {
        self.num_rows
    }

    /// Sets the ranges of the key fields. Returns the number of possible packed keys, `None` if
    /// they do not fit 64 bits.
    fn set_fields(&mut self, encodings: &[KeyEncoding], ranges: &[(u64, u64)], null_equals_null: bool) -> Option<u128> {
        let mut total = 1u128;
        let first_of_key = |encoding: &KeyEncoding| (0..encoding.fields()).map(|position| position == 0);
        let mut first_fields = encodings.iter().flat_map(first_of_key).collect::<Vec<_>>();
        for (field, (least, greatest)) in self.fields.iter_mut().zip(ranges).rev() {
            // If the least is above the greatest, no row has a value.
            let (least, span) = greatest.checked_sub(*least).map_or((0, 0), |span| (*least, span));
            let null = u128::from(null_equals_null && first_fields.pop().unwrap_or(false));
            *field = KeyField { least, span, stride: u64::try_from(total).ok()? };
            total = total.checked_mul(u128::from(span) + 1 + null).filter(|total| *total <= u128::from(u64::MAX))?;
        }
        Some(total)
    }

    /// Allocates empty slots for so many packed keys, as a perfect hash or hashed.
    fn alloc_slots(&mut self, queue: &Queue, packed_keys: u128, perfect_hash: bool) -> Result<()> {
        let slots = if perfect_hash { packed_keys as usize } else { (self.matchable_rows as usize * 2).next_power_of_two() };
        self.layout.kind = TableKind::Packed { perfect_hash };
        if perfect_hash {
            self.rows = queue.filled(slots * 4, 0xff)?;
        } else {
            (self.rows, self.keys) = (queue.filled(4, 0xff)?, queue.filled(slots * 16, 0xff)?);
        }
        self.mask = slots as u64 - 1;
        Ok(())
    }

    /// Whether no two rows have equal keys.
    pub fn is_unique(&self) -> bool {
        self.layout.unique
    }

    /// Whether the table can serve [`Join::dynamic_filter`]s with so many keys, and is likely to
    /// remove rows: it lacks most keys of its range.
    pub fn filters(&self, keys: usize) -> bool {
        self.can_filter(keys) && (self.layout.kind != TableKind::Hashed || self.bloom.is_some())
    }

    /// The same for a table that gets a Bloom filter.
    pub(super) fn can_filter(&self, keys: usize) -> bool {
        let span: f64 = self.fields.iter().map(|field| field.span as f64 + 1.0).product();
        let selective = match self.layout.kind {
            TableKind::AllRows => false,
            TableKind::Packed { perfect_hash } => {
                let rows = self.matchable_rows;
                !perfect_hash || rows < CHEAP_FILTER_ROWS || rows as f64 <= span * MAX_FILTER_DENSITY
            }
            TableKind::Hashed => true,
        };
        // A filter does not know the number of fields that the join chose for integers of 128 bits
        // and more.
        let has_known_fields = |encoding: &KeyEncoding| match encoding {
            KeyEncoding::Single | KeyEncoding::Bytes => true,
            KeyEncoding::Multiple(_) => false,
        };
        selective && self.encodings.len() == keys && self.encodings.iter().all(has_known_fields)
    }

    /// Whether the search of the join itself probes the Bloom filter before the table.
    pub(super) fn probes_bloom_first(&self) -> bool {
        self.bloom.as_ref().is_some_and(|bloom| bloom.probe_first)
    }

    /// The layout for dynamic filters.
    pub(super) fn filter_layout(&self) -> TableLayout {
        match self.bloom {
            Some(_) => TableLayout { unique: true, bloom_only: true, ..self.layout },
            None => self.layout,
        }
    }

    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.mask as usize + 1
    }

    /// The most rows whose keys can match, of a table of packed keys.
    pub(super) fn matchable_rows(&self) -> u64 {
        self.matchable_rows
    }

    /// Whether a join of this kind gives no rows, whatever its probe side has. DataFusion decides
    /// it before it reads that:
    ///
    /// - the build side has no rows, or
    /// - the result has only matches, and each build row has a NULL among its keys.
    pub fn gives_nothing(&self, kind: JoinKind) -> bool {
        self.num_rows() == 0 || kind.needs_match() && !self.has_matchable_rows
    }

    /// Number of key fields.
    pub(super) fn num_fields(&self) -> usize {
        self.fields.len()
    }

    /// The least and the greatest key field of each of so many keys; the sign bit of signed
    /// integers is flipped.
    ///
    /// `None` unless the table has packed keys of one field each, and a matchable row.
    pub fn key_ranges(&self, keys: usize) -> Option<Vec<(u64, u64)>> {
        let ranges = || self.fields.iter().map(|field| (field.least, field.least + field.span)).collect();
        let is_packed = match self.layout.kind {
            TableKind::Packed { .. } => true,
            TableKind::AllRows | TableKind::Hashed => false,
        };
        (is_packed && self.fields.len() == keys && self.matchable_rows > 0).then(ranges)
    }

    /// The most rows of a key, at least 1; without keys, all rows.
    pub fn max_rows_per_key(&self) -> usize {
        self.max_rows_per_key
    }

    pub(super) fn layout(&self) -> TableLayout {
        self.layout
    }

    /// Names of [`args`](Self::args), after `prefix`.
    pub(super) fn arg_names(prefix: &str, fields: usize) -> Vec<String> {
        let fixed = ["keys", "rows", "starts", "mask", "perfect_hash", "n", "bloom", "bloom_words"].map(String::from);
        let fields = (0..fields).flat_map(|field| ["least", "span", "stride"].map(|what| format!("{what}{field}")));
        fixed.into_iter().chain(fields).map(|name| format!("{prefix}_{name}")).collect()
    }

    pub(super) fn args(&self) -> Vec<Arg<'_>> {
        let mut args = vec![
            Arg::Buffer(&self.keys),
            Arg::Buffer(&self.rows),
            Arg::Buffer(&self.starts),
            Arg::U64(self.mask),
            Arg::U32(u32::from(self.layout.kind == TableKind::Packed { perfect_hash: true })),
            Arg::U64(self.num_rows as u64),
            Arg::Buffer(self.bloom.as_ref().map_or(&self.keys, |bloom| &bloom.buffer)),
            Arg::U64(self.bloom.as_ref().map_or(0, |bloom| bloom.words)),
        ];
        args.extend(self.fields.iter().flat_map(|field| [field.least, field.span, field.stride].map(Arg::U64)));
        args
    }
}

impl fmt::Debug for JoinTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinTable").field("rows", &self.num_rows).field("layout", &self.layout).finish_non_exhaustive()
    }
}
