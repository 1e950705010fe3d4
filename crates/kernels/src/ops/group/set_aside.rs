// SPDX-License-Identifier: Apache-2.0
//! Aggregations whose groups do not fit device memory: rows of further groups are set aside.
//!
//! A *frozen* state takes no new groups. Rows of its groups are aggregated, the others are given
//! back, for an aggregation of their own. So each group is whole in one of them.

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, StorageFormat};
use device::{Arg, Buffer, Queue};

use super::key::KeyOutput;
use super::table::SET_ASIDE;
use super::{FurtherGroups, GroupBy, GroupByState};
use crate::codegen::Params;
use crate::expr::Expr;
use crate::ops::launch::compact::{Survivors, mask_body, row_indices};
use crate::ops::launch::program::{FixedProgram, Kernel};
use crate::ops::launch::{Launch, NamedArgs};
use crate::ops::{Gather, HashPartition, Input, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// Positions of the kernels.
const MASK: usize = 0;
const ROW_INDICES: usize = 1;

/// Splits batches by whether a frozen state has the groups of their rows.
#[derive(Debug)]
pub(super) struct SetAside {
    program: FixedProgram,
    gather: Gather,
    /// The layouts of the input. Gathered rows may have wider ones. `None` for lists.
    format: Option<StorageFormat>,
}

/// The rows of a batch to select.
#[derive(Debug, Clone, Copy)]
enum SelectedRows {
    /// Those of groups in the state, and those that a filter removes.
    KnownGroups,
    /// Those of further groups.
    FurtherGroups,
}

/// Rows of a batch whose groups a frozen state has, in the layouts of the batch.
pub(super) struct KnownRows {
    pub batch: DeviceBatch,
    /// Their numbers in the batch, unless they are all of it.
    indices: Option<Buffer>,
}

impl SetAside {
    /// The rows with groups in the state, by their group ids. Waits for their number.
    pub async fn known_rows(&self, launch: &Launch<'_>, batch: &DeviceBatch, ids: &Buffer) -> Result<Option<KnownRows>> {
        let rows = self.selected(launch, batch.num_rows(), ids, SelectedRows::KnownGroups).await?;
        if rows.count == batch.num_rows() {
            return Ok(Some(KnownRows { batch: batch.clone(), indices: None }));
        }
        let Some((gathered, indices)) = self.gathered(launch, batch, &rows).await? else { return Ok(None) };
        let format = self.format.as_ref().ok_or_else(|| Error::Internal("known rows with lists".into()))?;
        let stored = format.store(launch.queue, &gathered).await?;
        let batch = format.restore(launch.queue, &stored, &format.columns(&gathered))?;
        Ok(Some(KnownRows { batch, indices: Some(indices) }))
    }

    /// The rows without groups in the state, by their group ids. Waits for their number.
    pub async fn further_rows(&self, launch: &Launch<'_>, batch: &DeviceBatch, ids: &Buffer) -> Result<Option<DeviceBatch>> {
        let rows = self.selected(launch, batch.num_rows(), ids, SelectedRows::FurtherGroups).await?;
        Ok(self.gathered(launch, batch, &rows).await?.map(|(batch, _)| batch))
    }

    /// Whether the state lacks the group of one of so many rows.
    pub async fn has_further_groups(&self, launch: &Launch<'_>, rows: usize, ids: &Buffer) -> Result<bool> {
        Ok(self.selected(launch, rows, ids, SelectedRows::FurtherGroups).await?.count > 0)
    }

    async fn selected(&self, launch: &Launch<'_>, rows: usize, ids: &Buffer, selected: SelectedRows) -> Result<Survivors> {
        let known = match selected {
            SelectedRows::KnownGroups => 1,
            SelectedRows::FurtherGroups => 0,
        };
        let launch = launch.with_program(&self.program).await?;
        let extra = [("ids", Arg::Buffer(ids)), ("known", Arg::U64(known))];
        Survivors::find(&launch, MASK, &[], rows, &extra).await
    }

    /// Selected rows, and their numbers. `None` without rows.
    async fn gathered(
        &self,
        launch: &Launch<'_>,
        batch: &DeviceBatch,
        rows: &Survivors,
    ) -> Result<Option<(DeviceBatch, Buffer)>> {
        if rows.count == 0 {
            return Ok(None);
        }
        let (queue, launch) = (launch.queue, launch.with_program(&self.program).await?);
        let indices = queue.alloc(rows.count * size_of::<u32>())?;
        let mut named: NamedArgs<'_> = rows.args();
        named.push(("indices", Arg::Buffer(&indices)));
        launch.run(ROW_INDICES, rows.grid(), named)?;
        let gathered = self.gather.run(queue, batch, &indices, rows.count).await?;
        Ok(Some((gathered, indices)))
    }
}

impl KnownRows {
    /// An error of these rows, with the failing row's number in the batch they come from.
    pub async fn error(&self, queue: &Queue, error: Error) -> Error {
        let (Error::Row { row }, Some(indices)) = (&error, &self.indices) else { return error };
        let at = *row as usize * size_of::<u32>();
        match queue.read(indices, at..at + size_of::<u32>()).await {
            Ok(bytes) => Error::Row { row: bytes.iter().rev().fold(0, |row, byte| row << 8 | u64::from(*byte)) },
            Err(error) => error.into(),
        }
    }
}

impl GroupByState {
    /// Number of groups so far.
    pub fn groups(&self) -> usize {
        self.groups
    }
}

impl GroupBy {
    /// Whether a state can be frozen: its groups are in a table.
    pub fn may_freeze(&self) -> bool {
        !self.mode.is_dense()
    }

    /// Makes a state take no further groups.
    ///
    /// # Errors
    /// `Unsupported` if a column of the input cannot be gathered; `Internal` without
    /// [`may_freeze`](Self::may_freeze).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use arrow::datatypes::{DataType, Field};
    /// use columnar::{natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::Expr;
    /// use kernels::ops::{GroupBy, Input, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let of = |numbers: Vec<i64>| RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(numbers)) as _)]);
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let (schema, first, second) = (of(vec![])?.schema(), of(vec![7, 8])?, of(vec![8, 9, 9])?);
    /// let types = natural_types(&schema)?;
    ///
    /// let input = Input { schema: schema.clone(), types: types.clone(), filter: None };
    /// let keys = vec![(Expr::Column(0), Field::new("x", DataType::Int64, true))];
    /// let group = GroupBy::try_new(input, keys, vec![], Options::new(Profile::Cpu))?;
    /// let mut state = group.start();
    /// group.push(&queue, &mut state, &upload(&queue, &schema, &types, &[first])?).await?;
    /// group.freeze(&mut state)?;
    /// let second = upload(&queue, &schema, &types, &[second])?;
    /// let others = group.push_known(&queue, &mut state, &second).await?.ok_or("9 is new")?;
    /// assert_eq!((state.groups(), others.num_rows()), (2, 2));
    ///
    /// // Rows of one group are in one partition.
    /// let partitions = group.set_aside_partition()?.run(&queue, &others, 0).await?;
    /// assert_eq!(partitions.rows.num_rows(), 2);
    /// let mut rest = group.start();
    /// group.push_set_aside(&queue, &mut rest, &others).await?;
    /// assert_eq!(rest.groups(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn freeze(&self, state: &mut GroupByState) -> Result<()> {
        let feed = self.feeds.first().filter(|_| self.may_freeze());
        let feed = feed.ok_or_else(|| Error::Internal("an aggregation that cannot be frozen".into()))?;
        let (schema, types) = feed.source.input();
        let format = StorageFormat::of(&schema, &types);
        let gather = Gather::try_new(schema, types, self.options.clone())?;
        state.further_groups = FurtherGroups::SetAside(Box::new(SetAside { program: program(&self.options), gather, format }));
        Ok(())
    }

    /// Partitions rows that are set aside by their groups.
    ///
    /// # Errors
    /// `Internal` for an aggregation without an input; `Unsupported` if a column cannot be
    /// gathered.
    pub fn set_aside_partition(&self) -> Result<HashPartition> {
        let feed = self.feeds.first().ok_or_else(|| Error::Internal("an aggregation without an input".into()))?;
        let (schema, types) = feed.source.input();
        let gathered = Gather::try_new(schema.clone(), types, self.options.clone())?;
        let input = Input { schema, types: gathered.output_types().to_vec(), filter: None };
        // Codes of one value may differ between batches.
        let keys = self.keys.iter().zip(&feed.keys).map(|(key, expr)| match key.output {
            KeyOutput::Codes(column) => Expr::Column(column),
            KeyOutput::Plain | KeyOutput::Dictionary(_) => expr.clone(),
        });
        HashPartition::of_keys(input, keys.collect(), self.options.clone())
    }

    /// Schema and types of the rows that [`push_set_aside`](Self::push_set_aside) takes. Strings
    /// with 32-bit offsets are set aside with offsets of 64 bits.
    ///
    /// # Errors
    /// `Internal` for an aggregation without an input.
    pub fn set_aside_types(&self) -> Result<(SchemaRef, Vec<ColumnType>)> {
        let feed = self.feeds.first().ok_or_else(|| Error::Internal("an aggregation without an input".into()))?;
        Ok(feed.source.input())
    }
}

/// The kernels that split batches.
pub(super) fn program(options: &Options) -> FixedProgram {
    FixedProgram::new("GroupBy", options, |options| vec![mask_kernel(options), row_indices("group_set_aside_rows", options)])
}

fn mask_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let (ids, known) = (params.named("ids", "const G u32 *RESTRICT"), params.named("known", "u64"));
    let body = mask_body(&mut params, options, "", &format!("({ids}[row] == {SET_ASIDE}) == ({known} == 0)"));
    Kernel::new("group_set_aside", params, body)
}
