// SPDX-License-Identifier: Apache-2.0
//! Launches of one kernel that a driver must not run side by side.
//!
//! PoCL keeps a loaded copy of a kernel for each group size and for each grid wider than all before it. Up to
//! release 5 it gives a copy back by kernel and group size alone (`pocl_release_dlhandle_cache` in its
//! `lib/CL/devices/common.c`), so that launches which use different copies at the same time confuse its counts, and
//! the process aborts. So a launch wider than those before it waits for them, and those after it wait for it. Contexts
//! cannot wait for each other: those that live at the same time build each text in a way of their own.

use std::collections::{BTreeSet, HashMap};
use std::ptr;

use cl3::event;
use cl3::types::{cl_command_queue, cl_event};
use parking_lot::Mutex;

use crate::DeviceInfo;

/// Whether the device's driver has the fault.
pub(super) fn must_not_overlap(info: &DeviceInfo) -> bool {
    let release = info.driver_version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    info.platform.contains("Portable Computing Language") && release.is_none_or(|major| major < 6)
}

/// The numbers of the living contexts.
static LIVING: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

/// A context among those that live: their kernels are not the same to the driver.
pub(super) struct Apart {
    number: usize,
    option: String,
}

impl Default for Apart {
    fn default() -> Self {
        let mut living = LIVING.lock();
        let number = (0..).find(|number| !living.contains(number)).unwrap_or_default();
        living.insert(number);
        // The first one's builds are those that the driver's cache on disk has from earlier processes.
        let option = if number == 0 { String::new() } else { format!("-DDEVICEFUSION_CONTEXT={number}") };
        Apart { number, option }
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
}

/// What was launched of a kernel, by group size.
#[derive(Default)]
pub(super) struct Launches(HashMap<usize, Copies>);

/// Launches of one group size.
#[derive(Default)]
struct Copies {
    /// Items of the widest grid so far, and its launch.
    widest: usize,
    wide: Option<(cl_command_queue, Event)>,
    /// The last launch on each queue.
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
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: this owner has a reference, and gives it up here.
        let _ = unsafe { event::release_event(self.0) };
    }
}

impl Launches {
    /// What a launch on `queue` of `items` in groups of `group` must wait for; its own queue does so anyway.
    pub(super) fn before(&self, queue: cl_command_queue, group: usize, items: usize) -> Vec<cl_event> {
        let Some(copies) = self.0.get(&group) else { return vec![] };
        match &copies.wide {
            Some((other, wide)) if items <= copies.widest && !ptr::eq(*other, queue) => vec![wide.0],
            _ if items <= copies.widest => vec![],
            _ => copies.last.iter().filter(|(other, _)| !ptr::eq(**other, queue)).map(|(_, event)| event.0).collect(),
        }
    }

    /// Notes a launch.
    ///
    /// # Safety
    /// The event is alive, and that of the launch.
    pub(super) unsafe fn launched(&mut self, queue: cl_command_queue, group: usize, items: usize, event: cl_event) {
        let copies = self.0.entry(group).or_default();
        // SAFETY: the caller promises an event that is alive.
        unsafe {
            if items > copies.widest {
                copies.widest = items;
                copies.wide = Event::of(event).map(|event| (queue, event));
                // Whoever waits for this one waits for all before it.
                copies.last.clear();
            }
            if let Some(event) = Event::of(event) {
                copies.last.insert(queue, event);
            }
        }
    }
}
