// SPDX-License-Identifier: Apache-2.0
//! Rows that a run keeps for several readers, in device memory and on disk.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::future::{BoxFuture, Shared};
use futures::{StreamExt, TryStreamExt, stream};

use super::DeviceBatchStream;
use super::memory::free_bytes;
use super::spill::{Spill, SpillWriter, SpilledBatches};

/// Rows that are computed when the first reader polls them.
pub(super) type RowsOfRun = Shared<BoxFuture<'static, Result<Arc<KeptRows>, Arc<DataFusionError>>>>;

/// Rows in device memory, then those on disk.
pub(super) struct KeptRows {
    in_memory: Vec<DeviceBatch>,
    on_disk: Option<(Spill, SpilledBatches)>,
}

impl KeptRows {
    /// Keeps rows in memory, as many as a quarter of what is free now: readers, and rows of other
    /// subplans, need the rest. `spill` is `None` where rows cannot be stored.
    pub async fn of(
        mut rows: DeviceBatchStream,
        queue: &Queue,
        batch_rows: usize,
        spill: impl Fn() -> Option<Spill>,
    ) -> Result<KeptRows> {
        let (mut bytes, most) = (0, free_bytes(queue) / 4);
        let (mut in_memory, mut file, mut may_spill) = (vec![], None::<(Spill, SpillWriter)>, true);
        while let Some(batch) = rows.try_next().await? {
            bytes += batch.row_bytes();
            if may_spill && file.is_none() && bytes > most {
                file = spill().map(|spill| Ok::<_, DataFusionError>((spill.clone(), spill.writer(queue)?))).transpose()?;
                may_spill = file.is_some();
            }
            match &mut file {
                None => in_memory.push(batch),
                Some((_, writer)) => {
                    for piece in batch.chunks(batch_rows) {
                        writer.write(&piece).await?;
                    }
                }
            }
        }
        let on_disk = match file {
            None => None,
            Some((spill, writer)) => writer.finish().await?.map(|batches| (spill, batches)),
        };
        Ok(KeptRows { in_memory, on_disk })
    }

    /// The rows for a reader.
    pub fn read(self: Arc<KeptRows>, queue: &Queue) -> Result<DeviceBatchStream> {
        let on_disk = match &self.on_disk {
            None => stream::empty().boxed(),
            Some((spill, batches)) => spill.read(queue, batches.clone())?,
        };
        let in_memory = (0..self.in_memory.len()).map(move |index| Ok(self.in_memory[index].clone()));
        Ok(stream::iter(in_memory).chain(on_disk).boxed())
    }
}
