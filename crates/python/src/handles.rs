// SPDX-License-Identifier: Apache-2.0
//! Objects that cross to another copy of DataFusion in this process by a handle instead of a value.
//!
//! datafusion-python is another library with a DataFusion of its own. Plans pass between both as
//! bytes of `datafusion-proto`, which cannot hold tables of memory, functions of a user or device
//! operators. A codec writes a handle in their place, and the reader of the bytes takes the object.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use datafusion::catalog::TableProvider;
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;

/// How long an object waits for a reader. A plan that is never read leaves some.
const PATIENCE: Duration = Duration::from_secs(60);

/// An object of a plan.
#[derive(Debug)]
pub(crate) enum Object {
    Table(Arc<dyn TableProvider>),
    Scalar(Arc<ScalarUDF>),
    Aggregate(Arc<AggregateUDF>),
    Window(Arc<WindowUDF>),
    Query(Arc<dyn ExecutionPlan>),
}

/// The objects of this process that wait for a reader, oldest first.
#[derive(Debug)]
pub(crate) struct Handles {
    process: u64,
    waiting: Mutex<(u64, BTreeMap<u64, Waiting>)>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    object: Object,
}

/// Those of this process.
pub(crate) static HANDLES: LazyLock<Handles> =
    LazyLock::new(|| Handles { process: RandomState::new().hash_one(std::process::id()), waiting: Mutex::default() });

impl Handles {
    /// Lets an object wait, and writes its handle.
    pub fn put(&self, object: Object, bytes: &mut Vec<u8>) {
        let mut waiting = self.waiting.lock();
        let (next, objects) = &mut *waiting;
        *next += 1;
        objects.insert(*next, Waiting { since: Instant::now(), object });
        let mut gone = Vec::new();
        while let Some(oldest) = objects.first_entry()
            && oldest.get().since.elapsed() > PATIENCE
        {
            gone.push(oldest.remove());
        }
        bytes.extend(self.process.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        drop(waiting);
        // Outside of the lock: drops may call Python.
        drop(gone);
    }

    /// The object of a handle. `name` names it in errors.
    ///
    /// # Errors
    /// If the object was taken before, or the bytes are of another process.
    pub fn take(&self, bytes: &[u8], name: &str) -> Result<Object> {
        let numbers = bytes.split_first_chunk().and_then(|(process, rest)| Some((process, rest.try_into().ok()?)));
        let number = numbers
            .and_then(|(process, number)| (u64::from_le_bytes(*process) == self.process).then_some(u64::from_le_bytes(number)));
        let found = number.and_then(|number| self.waiting.lock().1.remove(&number));
        found.map(|found| found.object).ok_or_else(|| {
            plan_datafusion_err!(
                "{name} passes between datafusion and devicefusion within one process and once; these bytes of a plan were \
                 read before, or come from another process"
            )
        })
    }
}
