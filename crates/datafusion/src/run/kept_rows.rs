// SPDX-License-Identifier: Apache-2.0
//! Rows that a run keeps for several readers, in device memory and on disk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};

use super::DeviceBatchStream;
use super::memory::free_bytes;
use super::spill::{Spill, SpillWriter, SpilledBatches};
use crate::exec::ReadableRows;

/// Device bytes of the rows that a run keeps in memory, for all readers of all subplans.
#[derive(Default)]
pub(super) struct KeptBytes(Arc<AtomicUsize>);

/// The bytes of some of these rows, until they are dropped.
struct Share {
    kept: Arc<AtomicUsize>,
    bytes: usize,
}

impl KeptBytes {
    fn share(&self) -> Share {
        Share { kept: Arc::clone(&self.0), bytes: 0 }
    }
}

impl Share {
    /// Adds `bytes` if all kept rows then have at most a quarter of the memory. Free memory
    /// and these rows count; readers, and operators beside them, need the rest.
    fn try_grow(&mut self, bytes: usize, queue: &Queue) -> bool {
        let grown = |kept: usize| {
            let most = (free_bytes(queue) + kept) / 4;
            (kept + bytes <= most).then_some(kept + bytes)
        };
        let fits = self.kept.fetch_update(Relaxed, Relaxed, grown).is_ok();
        if fits {
            self.bytes += bytes;
        }
        fits
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.kept.fetch_sub(self.bytes, Relaxed);
    }
}

/// Rows in device memory, then those on disk.
pub(super) struct KeptRows {
    in_memory: Vec<DeviceBatch>,
    _share: Share,
    on_disk: Option<(Spill, SpilledBatches)>,
}

impl KeptRows {
    /// Keeps rows in memory, as many as their share of `kept` has room for. `spill` is `None` where
    /// rows cannot be stored: all of them stay in memory then.
    pub async fn of(
        mut rows: DeviceBatchStream,
        queue: &Queue,
        kept: &KeptBytes,
        batch_rows: usize,
        spill: impl Fn() -> Option<Spill>,
    ) -> Result<KeptRows> {
        let mut share = kept.share();
        let (mut in_memory, mut file, mut may_spill) = (vec![], None::<(Spill, SpillWriter)>, true);
        while let Some(batch) = rows.try_next().await? {
            if may_spill && file.is_none() && !share.try_grow(batch.row_bytes(), queue) {
                file = spill().map(|spill| Ok::<_, DataFusionError>((spill.clone(), spill.writer(queue)?))).transpose()?;
                may_spill = file.is_some();
            }
            match &mut file {
                None => in_memory.push(batch),
                Some((_, writer)) => {
                    for chunk in batch.chunks(batch_rows) {
                        writer.write(&chunk).await?;
                    }
                }
            }
        }
        let on_disk = match file {
            None => None,
            Some((spill, writer)) => writer.finish().await?.map(|batches| (spill, batches)),
        };
        Ok(KeptRows { in_memory, _share: share, on_disk })
    }
}

impl ReadableRows for KeptRows {
    fn read(self: Arc<Self>, queue: &Queue) -> Result<DeviceBatchStream> {
        let on_disk = match &self.on_disk {
            None => stream::empty().boxed(),
            Some((spill, batches)) => spill.read(queue, batches.clone())?,
        };
        let in_memory = (0..self.in_memory.len()).map(move |index| Ok(self.in_memory[index].clone()));
        Ok(stream::iter(in_memory).chain(on_disk).boxed())
    }
}

#[cfg(test)]
mod tests {
    use device::Context;
    use device::testing::config;

    use super::*;

    #[test]
    fn all_kept_rows_have_one_quarter_of_the_memory() {
        let queue = Context::new(config().unwrap().with_memory_bytes(1 << 20)).unwrap().queue().unwrap();
        let kept = KeptBytes::default();
        let (mut first, mut second) = (kept.share(), kept.share());
        assert!(first.try_grow(192 << 10, &queue));
        let _rows = queue.alloc(192 << 10).unwrap();
        assert!(!second.try_grow(100 << 10, &queue), "the first has its part");
        assert!(second.try_grow(48 << 10, &queue));
        let of_second = queue.alloc(48 << 10).unwrap();
        assert!(!first.try_grow(48 << 10, &queue));
        drop((second, of_second));
        assert!(first.try_grow(48 << 10, &queue), "what was dropped is free again");
    }
}
