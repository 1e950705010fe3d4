// SPDX-License-Identifier: Apache-2.0
//! The pointers that C gets for our objects: numbers that are looked up, never addresses that are followed.
//!
//! A number is never given out twice. So whatever C passes in (NULL, an object that was freed, one of another kind) is
//! noticed, and an object that one thread frees stays whole for the thread that is using it.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use crate::error::{Failure, Result};

/// The next number, of whatever kind. They begin where an address could, which debuggers show better.
static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// The living objects of one kind, which C knows by pointers to `H`.
pub(crate) struct Registry<H, T> {
    /// What C calls such an object.
    kind: &'static str,
    objects: RwLock<BTreeMap<usize, Arc<T>>>,
    handle: std::marker::PhantomData<fn(*mut H)>,
}

impl<H, T> Registry<H, T> {
    pub const fn new(kind: &'static str) -> Self {
        Self { kind, objects: RwLock::new(BTreeMap::new()), handle: std::marker::PhantomData }
    }

    /// Gives an object away.
    pub fn insert(&self, object: T) -> *mut H {
        let number = NEXT.fetch_add(0x10, Ordering::Relaxed);
        self.objects.write().insert(number, Arc::new(object));
        ptr::without_provenance_mut(number)
    }

    /// The object behind a pointer.
    pub fn get(&self, handle: *const H) -> Result<Arc<T>> {
        self.objects.read().get(&handle.addr()).cloned().ok_or_else(|| self.unknown(handle))
    }

    /// The object behind a pointer that is no longer good.
    pub fn take(&self, handle: *const H) -> Result<Arc<T>> {
        self.objects.write().remove(&handle.addr()).ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: *const H) -> Failure {
        match handle.is_null() {
            true => Failure::program(format!("the {} is NULL", self.kind)),
            false => Failure::program(format!("{handle:p} is no {}: it has been freed, or is something else", self.kind)),
        }
    }
}
