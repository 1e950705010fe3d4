// SPDX-License-Identifier: Apache-2.0
//! Handles: the pointers that C has for objects. They are numbers to look up, never addresses.
//!
//! A number is used once. So NULL, a freed object and an object of another kind are errors. An
//! object freed by one thread stays alive for a thread that uses it.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::error::{Failure, Result};

/// The next number, for all kinds. Numbers start where addresses could: debuggers show these well.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// The live objects of one kind. Their handles are pointers to `H`.
pub(crate) struct Registry<H, T> {
    /// Name of the kind, for messages.
    kind: &'static str,
    objects: RwLock<BTreeMap<usize, Arc<T>>>,
    handle: std::marker::PhantomData<fn(*mut H)>,
}

impl<H, T> Registry<H, T> {
    pub const fn new(kind: &'static str) -> Self {
        Self { kind, objects: RwLock::new(BTreeMap::new()), handle: std::marker::PhantomData }
    }

    /// Adds an object and returns its handle.
    pub fn insert(&self, object: T) -> *mut H {
        let number = NEXT.fetch_add(0x10, Ordering::Relaxed);
        self.objects.write().insert(number, Arc::new(object));
        ptr::without_provenance_mut(number)
    }

    /// The object of a handle.
    pub fn get(&self, handle: *const H) -> Result<Arc<T>> {
        self.objects.read().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// Removes the object of a handle.
    pub fn take(&self, handle: *const H) -> Result<Arc<T>> {
        self.objects.write().remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: *const H) -> Failure {
        match handle.is_null() {
            true => Failure::program(format!("the {} is NULL", self.kind)),
            false => Failure::program(format!("{handle:p} is not a {}: it was freed, or is something else", self.kind)),
        }
    }
}
