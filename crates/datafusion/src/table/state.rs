// SPDX-License-Identifier: Apache-2.0
//! The current snapshot of a resident table.

use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use parking_lot::{Mutex, RwLock};

use crate::error::LOST;
use crate::session::ReleaseLost;
use crate::table::snapshot::Snapshot;

/// State that scans and inserts of a table share.
pub(crate) struct TableState {
    /// `None` after the device was lost.
    snapshot: RwLock<Option<Arc<Snapshot>>>,
    /// Locked by an insert while it makes the next snapshot.
    pub publishing: tokio::sync::Mutex<()>,
    holders: Mutex<Vec<Weak<dyn SnapshotHolder>>>,
}

/// Holders of the current snapshot that no running query needs, such as kept plans.
pub(crate) trait SnapshotHolder: fmt::Debug + Send + Sync {
    /// Drops the snapshot: the table has another one, or is gone.
    fn release_snapshot(&self);
}

impl TableState {
    pub fn new(snapshot: Snapshot) -> Self {
        let snapshot = RwLock::new(Some(Arc::new(snapshot)));
        TableState { snapshot, publishing: tokio::sync::Mutex::new(()), holders: Mutex::default() }
    }

    /// The current snapshot.
    ///
    /// # Errors
    /// If the rows were lost with their device.
    pub fn current(&self) -> Result<Arc<Snapshot>> {
        let snapshot = self.snapshot.read().clone();
        snapshot.filter(|snapshot| !snapshot.context().has_met_fatal_fault()).ok_or_else(|| exec_datafusion_err!("{LOST}"))
    }

    /// Makes a snapshot the current one.
    ///
    /// # Errors
    /// If their device was lost meanwhile.
    pub fn publish(&self, snapshot: Snapshot) -> Result<()> {
        let mut current = self.snapshot.write();
        // Checked under the lock: a later loss is found by `release_lost`.
        if snapshot.context().has_met_fatal_fault() {
            return exec_err!("{LOST}");
        }
        let last = current.replace(Arc::new(snapshot));
        drop(current);
        drop(last);
        self.release_holders();
        Ok(())
    }

    /// Tells a holder of the current snapshot when this is no longer current.
    pub fn add_holder(&self, holder: Weak<dyn SnapshotHolder>) {
        let mut holders = self.holders.lock();
        holders.retain(|known| known.strong_count() > 0);
        holders.push(holder);
    }

    fn release_holders(&self) {
        // A holder may be the last owner of another table, which locks its own list.
        let holders = std::mem::take(&mut *self.holders.lock());
        holders.iter().filter_map(Weak::upgrade).for_each(|holder| holder.release_snapshot());
    }
}

impl Drop for TableState {
    fn drop(&mut self) {
        self.release_holders();
    }
}

impl ReleaseLost for TableState {
    fn release_lost(&self) {
        let lost = self.snapshot.write().take_if(|snapshot| snapshot.context().has_met_fatal_fault());
        if lost.is_some() {
            self.release_holders();
        }
    }
}

impl fmt::Debug for TableState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TableState").field(&*self.snapshot.read()).finish()
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch};
    use device::Context;
    use device::testing::{FaultPlan, config};

    use super::*;
    use crate::session::{DeviceOptions, DeviceRuntime};
    use crate::table::snapshot::SnapshotBuilder;

    async fn snapshot(context: &Context) -> Snapshot {
        let column = Arc::new(Int64Array::from_iter_values(0..10)) as _;
        let rows = RecordBatch::try_from_iter([("i", column)]).unwrap();
        let mut builder = SnapshotBuilder::new(context, rows.schema_ref()).unwrap();
        builder.push(rows).unwrap();
        builder.finish().await.unwrap()
    }

    /// Loses the device, and makes the context notice it.
    fn lose(plan: &FaultPlan, context: &Context) {
        plan.lose_device();
        context.queue().and_then(|queue| queue.alloc(1 << 20)).unwrap_err();
        assert!(context.has_met_fatal_fault());
    }

    #[tokio::test]
    async fn rows_of_a_lost_device_are_released_and_not_published() {
        let plan = FaultPlan::new();
        let context = Context::new(config().unwrap().with_wrap(plan.wrap())).unwrap();
        let runtime = DeviceRuntime::with_context(context.clone());
        let early = Arc::new(TableState::new(snapshot(&context).await));
        runtime.watch(&early);
        let (late, next) = (Arc::new(TableState::new(snapshot(&context).await)), snapshot(&context).await);

        lose(&plan, &context);
        runtime.try_context(&DeviceOptions::default()).unwrap();
        assert!(early.snapshot.read().is_none());
        assert!(early.publish(next).unwrap_err().to_string().contains(LOST));
        runtime.watch(&late);
        assert!(late.snapshot.read().is_none());

        // A table with new rows is still watched.
        let context = runtime.try_context(&DeviceOptions::default()).unwrap();
        early.publish(snapshot(&context).await).unwrap();
        lose(&plan, &context);
        assert!(early.snapshot.read().is_some() && early.current().is_err());
        runtime.try_context(&DeviceOptions::default()).unwrap();
        assert!(early.snapshot.read().is_none());
    }
}
