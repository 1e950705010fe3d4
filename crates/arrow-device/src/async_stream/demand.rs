// SPDX-License-Identifier: Apache-2.0
//! The producer object that a consumer in C gets: it counts what is asked for, and wakes the producer's task.
//!
//! `request` and `cancel` come from any thread, also from inside the consumer's callbacks. They only note what was asked:
//! the task makes all callbacks (R86).

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use futures::task::AtomicWaker;
use parking_lot::Mutex;

use crate::Error;
use crate::callback::guard;
use crate::ffi::{ArrowDeviceType, FFI_ArrowAsyncProducer};

/// What a consumer has asked for.
///
/// The task of the producer and every delivered batch hold one reference each: consumers call `request` before they
/// extract, also after they were released (R96).
pub(super) struct Demand {
    state: Mutex<State>,
    /// The task of the producer.
    pub waker: AtomicWaker,
    raw: NonNull<FFI_ArrowAsyncProducer>,
    /// What `additional_metadata` points to (R90).
    _metadata: Option<Vec<u8>>,
}

// SAFETY: `raw` is written before it is shared, and freed when nobody shares it.
unsafe impl Send for Demand {}
// SAFETY: the same; all else is synchronised.
unsafe impl Sync for Demand {}

impl Drop for Demand {
    fn drop(&mut self) {
        // SAFETY: a box, by `new`; the handler is released and every batch extracted.
        drop(unsafe { Box::from_raw(self.raw.as_ptr()) });
    }
}

#[derive(Default)]
struct State {
    /// Batches requested and not delivered.
    credit: i64,
    /// There was a request.
    started: bool,
    cancelled: bool,
    /// A request or an extraction that failed; the first one counts.
    failure: Option<Error>,
    /// The handler is released, or about to be.
    closed: bool,
}

/// What the task of the producer has to do.
pub(super) enum Wish {
    /// Nothing: not even the source is to be started.
    Idle,
    /// So many batches, which may be none.
    Batches(i64),
    /// To report this and end.
    Fail(Error),
    /// To end.
    Cancel,
}

impl Demand {
    pub fn new(device_type: ArrowDeviceType, metadata: Option<Vec<u8>>) -> Arc<Self> {
        let raw = NonNull::from(Box::leak(Box::new(FFI_ArrowAsyncProducer {
            device_type,
            request: Some(request),
            cancel: Some(cancel),
            additional_metadata: metadata.as_ref().map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast::<c_char>()),
            private_data: std::ptr::null_mut(),
        })));
        let demand = Arc::new(Self { state: Mutex::default(), waker: AtomicWaker::new(), raw, _metadata: metadata });
        // SAFETY: nobody has `raw` yet. The pointer is good for as long as `raw` is.
        unsafe { (*raw.as_ptr()).private_data = Arc::as_ptr(&demand).cast_mut().cast() };
        demand
    }

    pub fn raw(&self) -> *mut FFI_ArrowAsyncProducer {
        self.raw.as_ptr()
    }

    /// What is to be done now. A cancel comes before all else: none may end in an error (R89).
    pub fn wish(&self) -> Wish {
        let state = self.state.lock();
        match &state.failure {
            _ if state.cancelled => Wish::Cancel,
            Some(error) => Wish::Fail(error.clone()),
            None if state.started => Wish::Batches(state.credit),
            None => Wish::Idle,
        }
    }

    /// Counts a batch that is about to be delivered.
    pub fn spend(&self) {
        let mut state = self.state.lock();
        state.credit = state.credit.saturating_sub(1);
    }

    /// Notes that a delivered batch could not be extracted (R95).
    pub fn fail(&self, error: Error) {
        self.note(|state| {
            state.failure.get_or_insert(error);
        });
    }

    /// Ends all notes, and tells whether the consumer has cancelled.
    pub fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.closed = true;
        state.cancelled
    }

    fn request(&self, n: i64) {
        self.note(|state| {
            if n > 0 {
                state.credit = state.credit.saturating_add(n);
                state.started = true;
            } else {
                let text = format!("async stream: request({n}): the number of batches must be positive (R87)");
                state.failure.get_or_insert(Error::Invalid(text));
            }
        });
    }

    fn cancel(&self) {
        self.note(|state| state.cancelled = true);
    }

    /// Changes the state and wakes the task, unless the stream is ending anyway (R88).
    fn note(&self, change: impl FnOnce(&mut State)) {
        {
            let mut state = self.state.lock();
            if state.closed || state.cancelled {
                return;
            }
            change(&mut state);
        }
        self.waker.wake();
    }
}

unsafe extern "C" fn request(producer: *mut FFI_ArrowAsyncProducer, n: i64) {
    // What is asked for is noted before anything can panic: a waker.
    let _ = guard("request", || {
        // SAFETY: as the consumer must see to.
        if let Some(demand) = unsafe { demand(producer) } {
            demand.request(n);
        }
        Ok(())
    });
}

unsafe extern "C" fn cancel(producer: *mut FFI_ArrowAsyncProducer) {
    // As in `request`.
    let _ = guard("cancel", || {
        // SAFETY: as the consumer must see to.
        if let Some(demand) = unsafe { demand(producer) } {
            demand.cancel();
        }
        Ok(())
    });
}

/// The demand behind a producer, kept alive during a call: the task that it wakes may end meanwhile.
///
/// # Safety
/// `producer` is null, or one of `Demand::new` whose handler is not released or with a batch not extracted.
unsafe fn demand(producer: *mut FFI_ArrowAsyncProducer) -> Option<Arc<Demand>> {
    // SAFETY: live, if not null.
    let private_data = unsafe { producer.as_ref() }?.private_data.cast::<Demand>();
    // SAFETY: an `Arc` of `Demand::new`, of which a reference exists.
    unsafe {
        Arc::increment_strong_count(private_data);
        Some(Arc::from_raw(private_data))
    }
}
