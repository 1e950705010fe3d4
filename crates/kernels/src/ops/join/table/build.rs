// SPDX-License-Identifier: Apache-2.0
//! The steps of a build, from rows to their table:
//!
//! 1. `join_key_ranges` finds the least and greatest value of each key field.
//! 2. `join_insert_packed` or `join_insert_hashed` gives each row its slot, and each slot its first
//!    row. A slot of packed keys that are hashed is two words, the key and the row: one sector.
//! 3. If a slot has several rows, `join_count_rows` and `join_fill_rows` list the rows by slot.
//!
//! The length of the longest list limits the rows that a launch of a probe takes.

use std::sync::OnceLock;

use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::kernels::{BuildKernels, count_kernel, fill_kernel};
use super::{JoinTable, KeyField, TableKind, TableLayout, slots_of};
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::ops::join::bloom::cached_table_bytes;
use crate::ops::join::keys::KeyEncoding;
use crate::ops::join::{Join, joined_types};
use crate::ops::launch::primitives::{Lengths, Primitives};
use crate::ops::launch::program::{FixedProgram, Program, check_failed_row, read_u64};
use crate::ops::launch::projection::error_source;
use crate::ops::launch::ranges::{RangedLaunch, grid_in_ranges};
use crate::ops::launch::source::Source;
use crate::ops::launch::throttle::Throttle;
use crate::ops::{Input, Options};
use crate::{Error, Result};

/// Most rows of a build side: there are up to twice as many slots, which 32 bits number.
const MAX_ROWS: usize = 1 << 30;

/// Most packed keys of a perfect hash, for so many rows.
fn max_perfect_hash(rows: u128, options: &Options) -> u128 {
    (options.threshold(1 << 19) as u128).max(rows * 8).min(1 << 31)
}

/// The same for keys that may be unique. A mostly empty array is read in order if the probe side
/// has the order of the keys, as fact tables have. With a list of rows for each key it would be too
/// large.
fn max_unique_perfect_hash(rows: u128, options: &Options) -> u128 {
    (rows * 256).min(options.threshold(1 << 23) as u128).max(max_perfect_hash(rows, options))
}

/// Most packed keys of a perfect hash that takes a sixteenth of the free memory, or about the bytes
/// of a hash table. A chain of joins has several tables at once.
fn max_affordable_perfect_hash(rows: u128, queue: &Queue) -> u128 {
    let pool = queue.context().pool();
    affordable_perfect_hash(rows, pool.available())
}

fn affordable_perfect_hash(rows: u128, free: usize) -> u128 {
    ((free / 16 / size_of::<u32>()) as u128).max(rows * 8)
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
    pub(in crate::ops::join) source: Source,
    keys: Vec<Expr>,
    encodings: Vec<KeyEncoding>,
    /// Least and greatest value of each key field, if all are proven.
    proven_ranges: Option<Vec<(u64, u64)>>,
    null_equals_null: bool,
    pub(in crate::ops::join) options: Options,
    primitives: Primitives,
    /// Generated on first use.
    inserts: OnceLock<InsertPrograms>,
    lists: FixedProgram,
    /// Bytes of a table that the caches hold.
    pub(in crate::ops::join) cached_table_bytes: usize,
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

    /// Computes even proven ranges of keys from the rows, for dynamic filters that push them down.
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

    /// About the device bytes of a table of so many rows, beside the rows: at most those while it
    /// is built.
    pub fn table_bytes(&self, rows: usize) -> usize {
        // Beside the slots: the slot of each row, and the rows of all slots in lists.
        let with_lists = |slots: usize, bytes: usize| slots * (bytes + size_of::<u32>()) + 3 * rows * size_of::<u32>();
        let slots = slots_of(rows);
        match &self.encodings {
            encodings if encodings.is_empty() => 0,
            encodings if encodings.contains(&KeyEncoding::Bytes) => with_lists(slots, size_of::<u64>()),
            // A perfect hash of keys that repeat has up to eight slots for each row.
            _ => with_lists(slots, 2 * size_of::<u64>()).max(with_lists(rows * 8, size_of::<u32>())),
        }
    }

    /// The programs that most builds run, as they are compiled.
    pub fn likely_programs(&self) -> Vec<ProgramSource> {
        let own = match self.inserts() {
            Ok(InsertPrograms::AllRows) | Err(_) => return vec![],
            Ok(InsertPrograms::Hashed(program) | InsertPrograms::Packed { packed: program, .. }) => program.source(),
        };
        vec![own, self.lists.source(), self.primitives.source()]
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
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
        programs.map(|program| program.source()).chain([self.primitives.source()]).collect()
    }

    pub(in crate::ops::join) fn kernels(&self) -> BuildKernels<'_> {
        let JoinBuild { source, keys, encodings, null_equals_null, options, .. } = self;
        BuildKernels { source, encodings, keys, null_equals_null: *null_equals_null, options }
    }

    /// Builds the table of a whole side: one batch, or `None` if it has no rows.
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
        let most = max_unique_perfect_hash(rows, &self.options).min(max_affordable_perfect_hash(rows, queue));
        table.alloc_slots(queue, packed_keys, packed_keys <= most)?;
        let mut slot_of = self.claim_slots(queue, program, INSERT_PACKED, table).await?;
        let is_too_sparse = packed_keys > max_perfect_hash(rows, &self.options);
        if !table.layout.unique && is_too_sparse && table.layout.kind == (TableKind::Packed { perfect_hash: true }) {
            // The array goes before the slots come.
            drop(slot_of);
            table.rows = queue.filled(4, 0xff)?;
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
        let slots = slots_of(table.num_rows);
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
            && packed_keys <= max_unique_perfect_hash(n as u128, &self.options).min(max_affordable_perfect_hash(n as u128, queue))
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
        let grid = grid_in_ranges(queue, &self.options, n);
        let launch = RangedLaunch { kernel: KEY_RANGES, rows: n, grid, columns: bound.as_ref(), error: Some(&stats), named };
        loaded.launch_in_ranges(queue, launch, &mut Throttle::default()).await?;
        let answer = queue.read(&stats, 0..bytes.len()).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        table.matchable_rows = read_u64(&answer, 1)?;
        let range = |field| Ok((read_u64(&answer, 2 + 2 * field)?, read_u64(&answer, 3 + 2 * field)?));
        let ranges = (0..table.fields.len()).map(range).collect::<Result<Vec<_>>>()?;
        Ok(table.set_fields(&self.encodings, &ranges, self.null_equals_null))
    }

    /// Gives rows their slots. Looks for slots of several rows, and for matchable rows.
    async fn claim_slots(&self, queue: &Queue, program: &Program, kernel: usize, table: &mut JoinTable) -> Result<Buffer> {
        let n = table.num_rows;
        let loaded = program.load(queue).await?;
        let slot_of = queue.filled(n * 4, 0xff)?;
        // The lowest failing row, a flag for slots with a second row, and a flag for slots with any
        // row.
        let control = queue.alloc(24)?;
        queue.write(&control, 0, &[[0xff; 8], [0; 8], [0; 8]].concat())?;
        let names = JoinTable::arg_names("t", table.fields.len());
        let bound = self.source.bind(&table.batch)?;
        let mut named: Vec<_> = names.iter().map(String::as_str).zip(table.args()).collect();
        named.extend([("n", Arg::U64(n as u64)), ("slot_of", Arg::Buffer(&slot_of)), ("control", Arg::Buffer(&control))]);
        let grid = grid_in_ranges(queue, &self.options, n);
        let launch = RangedLaunch { kernel, rows: n, grid, columns: bound.as_ref(), error: Some(&control), named };
        loaded.launch_in_ranges(queue, launch, &mut Throttle::default()).await?;
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
        let grid = grid_in_ranges(queue, &self.options, n);
        let over_rows = |kernel| RangedLaunch { kernel, rows: n, grid, columns: &[], error: None, named: args.to_vec() };
        let mut throttle = Throttle::default();
        lists.launch_in_ranges(queue, over_rows(0), &mut throttle).await?;
        primitives.offsets(Lengths::of_u32(&starts, slots), &control, 1)?;
        lists.launch_in_ranges(queue, over_rows(1), &mut throttle).await?;
        let answer = queue.read(&control, 0..8).await?;
        (table.starts, table.rows, table.max_rows_per_key) = (starts, rows, read_u64(&answer, 0)? as usize);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_perfect_hash_takes_little_of_the_free_memory() {
        assert_eq!(affordable_perfect_hash(1000, 64 << 20), 1 << 20);
        assert_eq!(affordable_perfect_hash(1 << 20, 64 << 20), 8 << 20, "as much as a hash table");
    }
}
