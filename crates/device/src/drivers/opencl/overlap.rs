// SPDX-License-Identifier: Apache-2.0
//! A workaround for PoCL up to release 5: launches of one kernel with different widths must not
//! overlap.
//!
//! PoCL keeps loaded copies of a kernel, by work-group size and by growing grid width. It returns a
//! copy by kernel and work-group size alone (`pocl_release_dlhandle_cache` in its
//! `lib/CL/devices/common.c`). Concurrent launches with different copies confuse its counts, and
//! the process aborts.
//!
//! So only launches of one width overlap: the first launch of another width waits for them, and
//! later launches wait for it. Contexts cannot wait for each other. Concurrent contexts therefore
//! compile each source with different options.

use std::collections::{BTreeSet, HashMap};
use std::ptr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::api::types::{cl_command_queue, cl_event};
use super::api::{event, is_pocl};
use crate::info::DeviceInfo;

/// Whether the device's driver has the fault.
pub(super) fn needs_overlap_guard(info: &DeviceInfo) -> bool {
    let release = info.driver_version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    is_pocl(info) && release.is_none_or(|major| major < 6)
}

/// The numbers of the live contexts.
static LIVE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// Keeps conflicting launches of a context apart, from each other and from other contexts.
pub(super) struct OverlapGuard {
    number: usize,
    option: String,
    /// By kernel: a program that is built again has the same copies.
    launches: Mutex<HashMap<KernelKey, Weak<Mutex<KernelLaunches>>>>,
}

/// Hash of the program's source, and the kernel's name.
type KernelKey = (u64, String);

impl Default for OverlapGuard {
    fn default() -> Self {
        let mut live = LIVE.lock();
        let number = (0..).find(|number| !live.contains(number)).unwrap_or_default();
        live.insert(number);
        // Without an option the first context finds earlier builds in the driver's disk cache.
        let option = if number == 0 { String::new() } else { format!("-DDEVICEFUSION_CONTEXT={number}") };
        OverlapGuard { number, option, launches: Mutex::default() }
    }
}

impl Drop for OverlapGuard {
    fn drop(&mut self) {
        LIVE.lock().remove(&self.number);
    }
}

impl OverlapGuard {
    /// The compiler option that distinguishes this context's builds.
    pub(super) fn option(&self) -> &str {
        &self.option
    }

    /// The launches of the kernel `name` of a program whose source has the hash `program`.
    pub(super) fn launches(&self, program: u64, name: &str) -> Arc<Mutex<KernelLaunches>> {
        let mut all = self.launches.lock();
        let key = (program, name.to_owned());
        if let Some(launches) = all.get(&key).and_then(Weak::upgrade) {
            return launches;
        }
        all.retain(|_, launches| launches.strong_count() > 0);
        let launches = Arc::new(Mutex::new(KernelLaunches { guarded: true, sizes: HashMap::new() }));
        all.insert(key, Arc::downgrade(&launches));
        launches
    }
}

/// The running launches of a kernel, by work-group size. Always empty for drivers without the
/// fault.
#[derive(Default)]
pub(super) struct KernelLaunches {
    guarded: bool,
    sizes: HashMap<usize, Overlap>,
}

/// Launches that may run at the same time.
#[derive(Default)]
struct Overlap {
    /// Work-items of each launch.
    width: usize,
    /// The first launch, which the others wait for.
    first: Option<(cl_command_queue, RetainedEvent)>,
    /// The last launch in each queue.
    last: HashMap<cl_command_queue, RetainedEvent>,
}

/// An event, retained until the drop.
struct RetainedEvent(cl_event);

// SAFETY: events may be used from any thread, and queues are only compared.
unsafe impl Send for KernelLaunches {}

impl RetainedEvent {
    /// # Safety
    /// The event is live.
    unsafe fn new(event: cl_event) -> Option<RetainedEvent> {
        // SAFETY: the caller's promise.
        unsafe { event::retain_event(event) }.ok().map(|()| RetainedEvent(event))
    }

    /// Whether its launch has neither completed nor failed.
    fn is_pending(&self) -> bool {
        let status = event::get_event_data(self.0, event::CL_EVENT_COMMAND_EXECUTION_STATUS);
        let status = status.ok().and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
        status > 0
    }
}

impl Drop for RetainedEvent {
    fn drop(&mut self) {
        // SAFETY: retained when this was created.
        let _ = unsafe { event::release_event(self.0) };
    }
}

impl KernelLaunches {
    /// The events that a launch of `work_items` on `queue` must wait for. Events of the same queue
    /// are left out.
    pub(super) fn before(&mut self, queue: cl_command_queue, work_group_size: usize, work_items: usize) -> Vec<cl_event> {
        let Some(overlap) = self.sizes.get_mut(&work_group_size) else { return vec![] };
        // Events keep their queues alive.
        overlap.first.take_if(|(_, event)| !event.is_pending());
        overlap.last.retain(|_, event| event.is_pending());
        let elsewhere = |other: &cl_command_queue| !ptr::eq(*other, queue);
        match work_items == overlap.width {
            true => overlap.first.iter().filter(|(other, _)| elsewhere(other)).map(|(_, event)| event.0).collect(),
            false => overlap.last.iter().filter(|(other, _)| elsewhere(other)).map(|(_, event)| event.0).collect(),
        }
    }

    /// Adds a launch that waits for the events of [`before`](Self::before).
    ///
    /// # Safety
    /// The event is live, and that of the launch.
    pub(super) unsafe fn launched(
        &mut self,
        queue: cl_command_queue,
        work_group_size: usize,
        work_items: usize,
        event: cl_event,
    ) {
        if !self.guarded {
            return;
        }
        let overlap = self.sizes.entry(work_group_size).or_default();
        // SAFETY: the caller's promise.
        let retained = || unsafe { RetainedEvent::new(event) };
        if work_items != overlap.width {
            overlap.width = work_items;
            overlap.first = retained().map(|event| (queue, event));
            // Launches that wait for this one thereby wait for those before it.
            overlap.last.clear();
        }
        if let Some(event) = retained() {
            overlap.last.insert(queue, event);
        }
    }
}
