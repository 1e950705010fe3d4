// SPDX-License-Identifier: Apache-2.0
//! The holders of a pool's memory, by the names of meters.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use super::Pool;
use crate::Meter;
use crate::error::human;

/// Most names in an error.
const SHOWN: usize = 4;

impl Pool {
    /// The memory that [named](Meter::named) meters of this pool's queues hold now: name and bytes,
    /// the largest first. Meters of one name are summed up.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use device::{Context, DeviceConfig, Meter};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// let queue = context.queue()?.metered(&Arc::new(Meter::named("a sort")));
    /// let buffer = queue.alloc(1000)?;
    /// assert_eq!(context.pool().held(), [("a sort".to_owned(), 1024)]);
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn held(&self) -> Vec<(String, u64)> {
        let mut by_name = BTreeMap::new();
        for meter in self.0.holders.lock().iter().filter_map(Weak::upgrade) {
            if let (Some(name), bytes @ 1..) = (meter.name(), meter.allocated_bytes()) {
                *by_name.entry(name.to_owned()).or_default() += bytes;
            }
        }
        let mut held: Vec<(String, u64)> = by_name.into_iter().collect();
        held.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        held
    }

    /// Lists a meter, if it has a name.
    pub(crate) fn list(&self, meter: &Arc<Meter>) {
        if meter.name().is_none() {
            return;
        }
        let mut holders = self.0.holders.lock();
        holders.retain(|known| known.strong_count() > 0);
        if !holders.iter().any(|known| known.as_ptr() == Arc::as_ptr(meter)) {
            holders.push(Arc::downgrade(meter));
        }
    }

    /// The largest holders, for errors.
    pub(super) fn largest_holders(&self) -> String {
        let held = self.held().into_iter().take(SHOWN);
        held.map(|(name, bytes)| format!("{name} {}", human(bytes as usize))).collect::<Vec<_>>().join(", ")
    }
}
