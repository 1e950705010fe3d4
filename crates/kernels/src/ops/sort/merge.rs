// SPDX-License-Identifier: Apache-2.0
//! Merges of sorted runs that do not fit device memory together.
//!
//! A run is cut into sorted blocks. Some blocks of all runs are concatenated and sorted again, up
//! to a row that no other block has rows before. The rows that each block has left are its
//! end, a slice.
//!
//! Equal rows keep the order of runs, and within a run their own: all sorts are stable.

use columnar::{ColumnType, DeviceBatch};
use device::{Buffer, ProgramSource, Queue};

use super::{Sort, SortKey, SortState};
use crate::expr::Expr;
use crate::ops::Input;
use crate::{Error, Result};

/// Merges the sorted runs of a [`Sort`].
#[derive(Debug, Clone)]
pub struct SortMerge {
    /// Sorts rows of runs by the columns of their keys.
    sort: Sort,
    types: Vec<ColumnType>,
}

/// The first rows of several blocks, in order.
#[derive(Debug)]
pub struct Merged {
    /// Outputs and keys.
    pub rows: DeviceBatch,
    /// How many rows each block gave.
    pub taken: Vec<usize>,
}

impl Sort {
    /// The merge of this sort's runs; `None` if the result would not have the layouts of a sort in
    /// memory.
    ///
    /// # Errors
    /// As [`try_new`](Sort::try_new).
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::Expr;
    /// use kernels::ops::{Input, Options, Sort, SortKey};
    ///
    /// # futures::executor::block_on(async {
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let rows = |values| RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(values)) as _)]);
    /// let parts = [rows(vec![5, 1, 3])?, rows(vec![4, 2])?];
    /// let (schema, types) = (parts[0].schema(), natural_types(&parts[0].schema())?);
    /// let input = Input { schema: schema.clone(), types: types.clone(), filter: None };
    /// let key = SortKey { expr: Expr::Column(0), descending: false, nulls_first: false };
    /// let output = (Expr::Column(0), schema.field(0).clone());
    /// let sort = Sort::try_new(input, vec![key], vec![output], None, Options::new(Profile::Cpu))?;
    ///
    /// let mut runs = vec![];
    /// for part in &parts {
    ///     let batch = upload(&queue, &schema, &types, std::slice::from_ref(part))?;
    ///     let mut state = sort.start();
    ///     sort.push(&queue, &mut state, &batch).await?;
    ///     runs.extend(sort.finish_run(&queue, state).await?);
    /// }
    /// let merge = sort.merge()?.ok_or("layouts differ")?;
    /// let merged = merge.merge(&queue, &runs, Some(1)).await?;
    /// let first = download(&queue, &sort.outputs(&merged.rows)?).await?;
    /// assert_eq!(first.column(0).as_ref(), &Int64Array::from(vec![1, 2, 3, 4]));
    /// assert_eq!(merged.taken, [2, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn merge(&self) -> Result<Option<SortMerge>> {
        let schema = self.select.schema().clone();
        let types = self.cut.output_types().to_vec();
        let keys = self.keys.iter().map(|key| SortKey {
            expr: Expr::Column(key.column),
            descending: key.order.descending,
            nulls_first: key.order.nulls_first,
        });
        let outputs = schema.fields().iter().enumerate();
        let outputs = outputs.map(|(index, field)| (Expr::Column(index), field.as_ref().clone())).collect();
        let input = Input { schema, types: types.clone(), filter: None };
        let sort = Sort::try_new(input, keys.collect(), outputs, None, self.options.clone())?;
        // A step of few rows takes the memory of others: operators above share what it leaves.
        let sort = Sort { few: None, ..sort };
        let same = sort.types == types && types.get(..self.types.len()) == Some(&self.types[..]);
        Ok(same.then_some(SortMerge { sort, types }))
    }

    /// The sorted rows with their keys, no more than the result has: a run. `None` without rows.
    ///
    /// # Errors
    /// As [`finish`](Sort::finish).
    pub async fn finish_run(&self, queue: &Queue, state: SortState) -> Result<Option<DeviceBatch>> {
        let Some(all) = self.concat.run(queue, state.batches).await? else { return Ok(None) };
        let order = self.order(queue, &all).await?;
        let rows = self.fetch.map_or(all.num_rows(), |fetch| fetch.min(all.num_rows()));
        self.cut.run(queue, &all, &order, rows).await.map(Some)
    }

    /// The outputs of rows of runs, without keys.
    ///
    /// # Errors
    /// `Columnar` for a batch of other columns.
    pub fn outputs(&self, rows: &DeviceBatch) -> Result<DeviceBatch> {
        let columns = rows.columns().iter().take(self.types.len()).cloned().collect();
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, rows.num_rows())?)
    }
}

impl SortMerge {
    /// Types and layouts of the rows of runs.
    pub fn types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and types of the rows of runs.
    pub fn schema(&self) -> &arrow::datatypes::SchemaRef {
        &self.sort.schema
    }

    /// The programs, as they are compiled, for inputs that need them.
    pub fn programs(&self) -> Vec<ProgramSource> {
        self.sort.programs()
    }

    /// About the device bytes that a merge of so many blocks takes beside them.
    pub fn step_bytes(&self, blocks: usize, rows: usize, row_bytes: usize) -> usize {
        self.sort.finish_bytes(blocks, rows, row_bytes)
    }

    /// The first and the last row of each block of `block_rows` rows of a sorted batch.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn ends(&self, queue: &Queue, batch: &DeviceBatch, block_rows: usize) -> Result<DeviceBatch> {
        let n = batch.num_rows();
        let starts = (0..n).step_by(block_rows.max(1));
        let ends: Vec<u8> = starts
            .flat_map(|start| [start, (start + block_rows).min(n) - 1])
            .flat_map(|row| (row as u32).to_le_bytes())
            .collect();
        let indices = queue.alloc(ends.len())?;
        queue.write(&indices, 0, &ends)?;
        self.sort.gather.run(queue, batch, &indices, ends.len() / size_of::<u32>()).await
    }

    /// The numbers of all rows of `blocks`, one after another, in the order of the keys.
    ///
    /// # Errors
    /// As [`finish`](Sort::finish).
    pub async fn order(&self, queue: &Queue, blocks: Vec<DeviceBatch>) -> Result<Vec<u32>> {
        let Some(all) = self.sort.concat.run(queue, blocks).await? else { return Ok(vec![]) };
        let order = self.sort.order(queue, &all).await?;
        read_numbers(queue, &order, all.num_rows()).await
    }

    /// Merges sorted blocks up to the last row of block `last`, or of all blocks.
    ///
    /// # Errors
    /// As [`finish`](Sort::finish); `Internal` if there is no such block, or no rows.
    pub async fn merge(&self, queue: &Queue, blocks: &[DeviceBatch], last: Option<usize>) -> Result<Merged> {
        let missing = || Error::Internal("a merge of no rows".into());
        let ends: Vec<usize> = blocks
            .iter()
            .scan(0, |end, block| {
                *end += block.num_rows();
                Some(*end)
            })
            .collect();
        let all = self.sort.concat.run(queue, blocks.to_vec()).await?.ok_or_else(missing)?;
        let order = self.sort.order(queue, &all).await?;
        let Some(last) = last else {
            let rows = self.sort.gather.run(queue, &all, &order, all.num_rows()).await?;
            return Ok(Merged { rows, taken: blocks.iter().map(DeviceBatch::num_rows).collect() });
        };
        let numbers = read_numbers(queue, &order, all.num_rows()).await?;
        let last_row = ends.get(last).and_then(|end| end.checked_sub(1)).ok_or_else(missing)?;
        let position = numbers.iter().position(|number| *number as usize == last_row).ok_or_else(missing)?;
        let mut taken = vec![0; blocks.len()];
        for number in &numbers[..=position] {
            taken[ends.partition_point(|end| *end <= *number as usize)] += 1;
        }
        let rows = self.sort.gather.run(queue, &all, &order, position + 1).await?;
        Ok(Merged { rows, taken })
    }
}

/// The first `n` row numbers of a buffer.
async fn read_numbers(queue: &Queue, numbers: &Buffer, n: usize) -> Result<Vec<u32>> {
    let bytes = queue.read(numbers, 0..n * size_of::<u32>()).await?;
    let numbers = bytes.chunks_exact(size_of::<u32>()).filter_map(|bytes| bytes.try_into().ok());
    Ok(numbers.map(u32::from_le_bytes).collect())
}
