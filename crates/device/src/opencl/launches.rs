// SPDX-License-Identifier: Apache-2.0
//! Launches of one kernel that a driver must not run side by side.
//!
//! PoCL keeps loaded copies of a kernel, for each group size and for grids of growing width. Up to release 5 it gives a
//! copy back by kernel and group size alone (`pocl_release_dlhandle_cache` in its `lib/CL/devices/common.c`), so that
//! launches which use different copies at the same time confuse its counts, and the process aborts. So only launches of
//! one width overlap: the first one of another width waits for them, and those after it wait for it.
//!
//! Contexts cannot wait for each other: those that live at the same time build each text in a way of their own.

use std::collections::{BTreeSet, HashMap};
use std::ptr;
use std::sync::{Arc, Weak};

use cl3::event;
use cl3::types::{cl_command_queue, cl_event};
use parking_lot::Mutex;

use super::is_pocl;
use crate::DeviceInfo;

/// Whether the device's driver has the fault.
pub(super) fn must_not_overlap(info: &DeviceInfo) -> bool {
    let release = info.driver_version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    is_pocl(info) && release.is_none_or(|major| major < 6)
}

/// The numbers of the living contexts.
static LIVING: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// A context whose launches are kept apart, from each other and from those of other contexts.
pub(super) struct Apart {
    number: usize,
    option: String,
    /// By kernel: a program that is built again has the same copies.
    launches: Mutex<HashMap<KernelKey, Weak<Mutex<Launches>>>>,
}

/// Hash of the program's text, and the kernel's name.
type KernelKey = (u64, String);

impl Default for Apart {
    fn default() -> Self {
        let mut living = LIVING.lock();
        let number = (0..).find(|number| !living.contains(number)).unwrap_or_default();
        living.insert(number);
        // The first one's builds are those that the driver's cache on disk has from earlier processes.
        let option = if number == 0 { String::new() } else { format!("-DDEVICEFUSION_CONTEXT={number}") };
        Apart { number, option, launches: Mutex::default() }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        LIVING.lock().remove(&self.number);
    }
}

impl Apart {
    /// The option that sets builds apart.
    pub(super) fn option(&self) -> &str {
        &self.option
    }

    /// What was launched of the kernel `name` of a program whose text has the hash `program`.
    pub(super) fn launches(&self, program: u64, name: &str) -> Arc<Mutex<Launches>> {
        let mut all = self.launches.lock();
        let key = (program, name.to_owned());
        if let Some(launches) = all.get(&key).and_then(Weak::upgrade) {
            return launches;
        }
        all.retain(|_, launches| launches.strong_count() > 0);
        let launches = Arc::new(Mutex::new(Launches { apart: true, sizes: HashMap::new() }));
        all.insert(key, Arc::downgrade(&launches));
        launches
    }
}

/// What was launched of a kernel, by group size. Remembers nothing for drivers without the fault.
#[derive(Default)]
pub(super) struct Launches {
    apart: bool,
    sizes: HashMap<usize, Overlap>,
}

/// Launches that may run at the same time.
#[derive(Default)]
struct Overlap {
    /// Items of each.
    width: usize,
    /// The first of them, for which the others wait.
    first: Option<(cl_command_queue, Event)>,
    /// The last one on each queue.
    last: HashMap<cl_command_queue, Event>,
}

/// An event with a reference of its own.
struct Event(cl_event);

// SAFETY: events may be used from any thread, and queues are only compared.
unsafe impl Send for Launches {}

impl Event {
    /// # Safety
    /// The event is alive.
    unsafe fn of(event: cl_event) -> Option<Event> {
        // SAFETY: the caller promises an event that is alive.
        unsafe { event::retain_event(event) }.ok().map(|()| Event(event))
    }

    /// Whether its launch is still to end, and nothing says that it failed.
    fn is_pending(&self) -> bool {
        let status = event::get_event_data(self.0, event::CL_EVENT_COMMAND_EXECUTION_STATUS);
        let status = status.ok().and_then(|bytes| bytes.try_into().ok()).map_or(0, i32::from_ne_bytes);
        status > 0
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this owner has a reference, and gives it up here.
        let _ = unsafe { event::release_event(self.0) };
    }
}

impl Launches {
    /// What a launch on `queue` of `items` in groups of `group` must wait for; its own queue does so anyway.
    pub(super) fn before(&mut self, queue: cl_command_queue, group: usize, items: usize) -> Vec<cl_event> {
        let Some(overlap) = self.sizes.get_mut(&group) else { return vec![] };
        // Events hold their queues.
        overlap.first.take_if(|(_, event)| !event.is_pending());
        overlap.last.retain(|_, event| event.is_pending());
        let elsewhere = |other: &cl_command_queue| !ptr::eq(*other, queue);
        match items == overlap.width {
            true => overlap.first.iter().filter(|(other, _)| elsewhere(other)).map(|(_, event)| event.0).collect(),
            false => overlap.last.iter().filter(|(other, _)| elsewhere(other)).map(|(_, event)| event.0).collect(),
        }
    }

    /// Notes a launch that waits for what [`before`](Self::before) gave.
    ///
    /// # Safety
    /// The event is alive, and that of the launch.
    pub(super) unsafe fn launched(&mut self, queue: cl_command_queue, group: usize, items: usize, event: cl_event) {
        if !self.apart {
            return;
        }
        let overlap = self.sizes.entry(group).or_default();
        // SAFETY: the caller promises an event that is alive.
        let retained = || unsafe { Event::of(event) };
        if items != overlap.width {
            overlap.width = items;
            overlap.first = retained().map(|event| (queue, event));
            // Whoever waits for this one waits for those before it.
            overlap.last.clear();
        }
        if let Some(event) = retained() {
            overlap.last.insert(queue, event);
        }
    }
}
