// SPDX-License-Identifier: Apache-2.0
//! Partitions of rows by a hash of their keys, for operators whose rows do not fit device memory.
//!
//! Rows with equal keys are in one partition. A partition of the groups of an aggregation is
//! aggregated on its own. Both sides of a join are partitioned alike, and pairs of partitions are
//! joined. This is the Grace hash join (Kitsuregawa, Tanaka and Moto-oka, 1983).

use std::ops::Range;
use std::sync::OnceLock;

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, ProgramSource, Queue};

use super::join::{KeyEncoding, RowKeys};
use super::launch::Launch;
use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program, check_failed_row, read_u64, row_loop};
use super::launch::source::Source;
use super::sort::{Radix, WordRowPairs};
use super::{Gather, Input, Options, check_rows};
use crate::codegen::{CType, Params, RowWriter};
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};

/// Bits of a partition's number.
const PARTITION_BITS: u32 = 5;

/// Kernels by position.
const HASH: usize = 0;
const STARTS: usize = 1;

/// The keys of rows that are partitioned alike.
#[derive(Debug, Clone)]
pub(super) struct PartitionKeys {
    pub keys: Vec<Expr>,
    /// How each key is represented, also where its types differ.
    pub encodings: Vec<KeyEncoding>,
    pub null_equals_null: bool,
}

/// Orders the rows of batches by the partitions of their keys.
#[derive(Debug, Clone)]
pub struct HashPartition {
    source: Source,
    keys: PartitionKeys,
    gather: Gather,
    radix: Radix,
    primitives: Primitives,
    options: Options,
    /// Generated on first use.
    program: OnceLock<Program>,
}

/// The rows of a batch, ordered by partition.
#[derive(Debug)]
pub struct PartitionedRows {
    /// All rows of the batch.
    pub rows: DeviceBatch,
    /// Whether the key of a row is NULL. False where NULLs are equal.
    pub has_null_keys: bool,
    /// The first row of each partition, and the number of rows.
    starts: Vec<usize>,
}

impl PartitionedRows {
    /// The positions of a partition's rows; empty for a partition that does not exist.
    pub fn of(&self, partition: usize) -> Range<usize> {
        match self.starts.get(partition..partition + 2) {
            Some([start, end]) => *start..*end,
            _ => 0..0,
        }
    }
}

impl HashPartition {
    /// Number of partitions.
    pub const PARTITIONS: usize = 1 << PARTITION_BITS;

    /// Device bytes of a row while a batch is partitioned, beside a copy of the row.
    pub const BYTES_PER_ROW: usize = 2 * (size_of::<u64>() + size_of::<u32>());

    /// Partitions rows by `keys`, of which NULLs are equal.
    ///
    /// # Errors
    /// `Unsupported` if a key or a column is not supported on the device.
    pub(super) fn of_keys(input: Input, keys: Vec<Expr>, options: Options) -> Result<HashPartition> {
        let encodings = keys.iter().map(|key| {
            let mut params = Params::new();
            let value = RowWriter::new(&input.types, options.profile, &mut params).eval(key)?;
            Ok(KeyEncoding::of(value.ctype, value.ctype))
        });
        let encodings = encodings.collect::<Result<_>>()?;
        Self::try_new(input, PartitionKeys { keys, encodings, null_equals_null: true }, options)
    }

    /// Partitions batches of `input`, which has no filter.
    pub(super) fn try_new(input: Input, keys: PartitionKeys, options: Options) -> Result<HashPartition> {
        Ok(HashPartition {
            gather: Gather::try_new(input.schema.clone(), input.types.clone(), options.clone())?,
            source: Source::try_new(input)?,
            keys,
            radix: Radix::new(&options),
            primitives: Primitives::new(&options),
            options,
            program: OnceLock::new(),
        })
    }

    /// Names and types of the batches. Strings with 32-bit offsets are partitioned to strings with
    /// offsets of 64 bits.
    pub fn input(&self) -> (SchemaRef, Vec<ColumnType>) {
        self.source.input()
    }

    fn generated(&self) -> Result<&Program> {
        if let Some(program) = self.program.get() {
            return Ok(program);
        }
        let kernels = vec![self.hash_kernel()?, starts_kernel(&self.options)];
        Ok(self.program.get_or_init(|| Program::new("HashPartition", &self.options, kernels)))
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let own = self.generated().map(|program| program.source()).ok();
        let others = [self.radix.source(), self.primitives.source()];
        own.into_iter().chain(others).chain(self.gather.programs()).collect()
    }

    /// Orders the rows of a batch by partition; rows of a partition keep their order. Each `seed`
    /// makes other partitions.
    ///
    /// # Errors
    /// `Row` with the lowest row of which a key failed; `Unsupported` for more than 2^31 - 1 rows.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use columnar::{natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::Expr;
    /// use kernels::ops::{HashPartition, Join, JoinBuild, JoinKind, JoinRole, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("k", Arc::new(Int64Array::from_iter_values(0..1000)) as _)])?;
    /// let (schema, types) = (host.schema(), natural_types(&host.schema())?);
    /// let join = Join {
    ///     kind: JoinKind::Inner,
    ///     keys: vec![(Expr::Column(0), Expr::Column(0))],
    ///     null_equals_null: false,
    ///     null_aware: false,
    ///     residual: None,
    ///     schema: schema.clone(),
    ///     types: types.clone(),
    ///     role: JoinRole::Query,
    /// };
    /// let build = JoinBuild::try_new(&types, &[], &join, Options::new(Profile::Cpu))?;
    /// let partition = HashPartition::of_build_side(&build, schema.clone(), types.clone())?;
    ///
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let batch = upload(&queue, &schema, &types, &[host])?;
    /// let partitioned = partition.run(&queue, &batch, 0).await?;
    /// let rows = (0..HashPartition::PARTITIONS).map(|number| partitioned.of(number).len());
    /// assert_eq!(rows.sum::<usize>(), 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch, seed: u64) -> Result<PartitionedRows> {
        let n = batch.num_rows();
        check_rows("HashPartition", n)?;
        if n == 0 {
            let starts = vec![0; Self::PARTITIONS + 1];
            return Ok(PartitionedRows { rows: batch.clone(), has_null_keys: false, starts });
        }
        let launch = Launch::load(queue, &self.options, self.generated()?, &self.primitives).await?;
        let bound = self.source.bind(batch)?;
        // The lowest failing row, the first row of each partition, and 0 if a row has a NULL key.
        let control = queue.filled((2 + Self::PARTITIONS) * size_of::<u64>(), 0xff)?;
        let (words, rows) = (queue.alloc(n * size_of::<u64>())?, queue.alloc(n * size_of::<u32>())?);
        let named = vec![
            ("n", Arg::U64(n as u64)),
            ("seed", Arg::U64(seed)),
            ("words", Arg::Buffer(&words)),
            ("rows", Arg::Buffer(&rows)),
            ("control", Arg::Buffer(&control)),
        ];
        launch.run_on(HASH, launch.grid(n), &bound, Some(&control), named)?;
        let sorted = self.radix.load(&launch).await?.sort(WordRowPairs { words, rows }, n).await?;
        let named = vec![("n", Arg::U64(n as u64)), ("words", Arg::Buffer(&sorted.words)), ("control", Arg::Buffer(&control))];
        launch.run(STARTS, launch.grid(n), named)?;
        let answer = queue.read(&control, 0..control.len()).await?;
        check_failed_row(read_u64(&answer, 0)?)?;
        let mut starts = vec![n; Self::PARTITIONS + 1];
        for partition in (0..Self::PARTITIONS).rev() {
            // A partition without rows begins where the next one does.
            starts[partition] = match read_u64(&answer, 1 + partition)? {
                u64::MAX => starts[partition + 1],
                start => usize::try_from(start).map_err(|_| Error::Internal(format!("row {start} of {n}")))?,
            };
        }
        let rows = self.gather.run(queue, batch, &sorted.rows, n).await?;
        let has_null_keys = read_u64(&answer, 1 + Self::PARTITIONS)? == 0;
        Ok(PartitionedRows { rows, has_null_keys, starts })
    }

    fn hash_kernel(&self) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let [n, seed] = ["n", "seed"].map(|name| params.named(name, "u64"));
        let words = params.named("words", "G u64 *RESTRICT");
        let rows = params.named("rows", "G u32 *RESTRICT");
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let PartitionKeys { keys, encodings, null_equals_null } = &self.keys;
        let values = keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        let keys = RowKeys { encodings, values: &values, null_equals_null: *null_equals_null };
        let mut hash = keys.hash(&mut writer);
        if let Some(matchable) = keys.matchable() {
            // Rows with a NULL key have no match, so any partition will do. One might not hold all.
            hash = writer.local(CType::U64, &format!("({matchable}) ? {hash} : hash64(row)"));
            let control = writer.params().named("control", "G u64 *");
            writer.push(&format!("if (!({matchable})) {control}[{}] = 0;", 1 + Self::PARTITIONS));
        }
        // Tables take the lower bits of a hash of the same keys.
        let shift = u64::BITS - PARTITION_BITS;
        writer.push(&format!("{words}[row] = hash64({hash} ^ {seed}) >> {shift};\n{rows}[row] = (u32)row;"));
        let statements = writer.statements();
        Ok(Kernel::new("partition_hash", params, row_loop(self.options.profile, "row", &n, &statements)))
    }
}

fn starts_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let n = params.named("n", "u64");
    let words = params.named("words", "const G u64 *RESTRICT");
    let control = params.named("control", "G u64 *RESTRICT");
    let statements = format!(
        "    u64 partition = {words}[row];
    if (row == 0 || {words}[row - 1] != partition) {control}[1 + partition] = row;
"
    );
    Kernel::new("partition_starts", params, row_loop(options.profile, "row", &n, &statements))
}
