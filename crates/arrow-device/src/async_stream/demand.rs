// The producer object for a C consumer: it counts requested batches and wakes the producer's
// future.
//
// `request` and `cancel` come from any thread, even within the consumer's callbacks. They only
// record the request; the future makes all callbacks (R86).

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::Arc;

use futures::task::AtomicWaker;
use parking_lot::Mutex;

use crate::Error;
use crate::callback::guard;
use crate::ffi::{ArrowDeviceType, FFI_ArrowAsyncProducer};

/// The consumer's demand: requested batches, cancellation and failure.
///
/// The producer's future and every delivered batch hold a reference, because consumers call
/// `request` before they extract, and even after their release (R96).
pub(super) struct Demand {
    state: Mutex<DemandState>,
    /// Wakes the producer's future.
    pub waker: AtomicWaker,
    raw: NonNull<FFI_ArrowAsyncProducer>,
    /// The bytes behind `additional_metadata` (R90).
    _metadata: Option<Vec<u8>>,
}

// SAFETY: `raw` is written before it is shared, and freed with the last reference.
unsafe impl Send for Demand {}
// SAFETY: as above; the rest is synchronised.
unsafe impl Sync for Demand {}

impl Drop for Demand {
    fn drop(&mut self) {
        // SAFETY: boxed in `new`; the handler is released and every batch extracted.
        drop(unsafe { Box::from_raw(self.raw.as_ptr()) });
    }
}

#[derive(Default)]
struct DemandState {
    /// Batches requested and not yet delivered.
    credit: i64,
    /// Whether there was a request.
    started: bool,
    cancelled: bool,
    /// The first failed request or extraction.
    failure: Option<Error>,
    /// Whether the handler is released, or about to be.
    closed: bool,
}

/// The next action of the producer's future.
pub(super) enum Action {
    /// Wait for the first request, without polling the source.
    Idle,
    /// Deliver up to this many batches, which may be 0.
    Batches(i64),
    /// Report the error and end.
    Fail(Error),
    /// End without a report.
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
        // SAFETY: `raw` is not shared yet. The pointer is valid as long as `raw`.
        unsafe { (*raw.as_ptr()).private_data = Arc::as_ptr(&demand).cast_mut().cast() };
        demand
    }

    pub fn raw(&self) -> *mut FFI_ArrowAsyncProducer {
        self.raw.as_ptr()
    }

    /// The next action. Cancellation takes precedence, because a cancelled stream must not end in
    /// an error (R89).
    pub fn next_action(&self) -> Action {
        let state = self.state.lock();
        match &state.failure {
            _ if state.cancelled => Action::Cancel,
            Some(error) => Action::Fail(error.clone()),
            None if state.started => Action::Batches(state.credit),
            None => Action::Idle,
        }
    }

    /// Deducts a batch that is about to be delivered.
    pub fn spend(&self) {
        let mut state = self.state.lock();
        state.credit = state.credit.saturating_sub(1);
    }

    /// Records the failed extraction of a delivered batch (R95).
    pub fn fail(&self, error: Error) {
        self.update(|state| {
            state.failure.get_or_insert(error);
        });
    }

    /// Ignores further requests, and returns whether the consumer has cancelled.
    pub fn close(&self) -> bool {
        let mut state = self.state.lock();
        state.closed = true;
        state.cancelled
    }

    fn request(&self, n: i64) {
        self.update(|state| {
            if n > 0 {
                state.credit = state.credit.saturating_add(n);
                state.started = true;
            } else {
                let message = format!("async stream: request({n}): the number of batches must be positive (R87)");
                state.failure.get_or_insert(Error::Invalid(message));
            }
        });
    }

    fn cancel(&self) {
        self.update(|state| state.cancelled = true);
    }

    /// Changes the state and wakes the future, unless the stream is ending anyway (R88).
    fn update(&self, change: impl FnOnce(&mut DemandState)) {
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
    // Only the waker can panic, after the request is recorded.
    let _ = guard("request", || {
        // SAFETY: valid, as the consumer guarantees.
        if let Some(demand) = unsafe { demand(producer) } {
            demand.request(n);
        }
        Ok(())
    });
}

unsafe extern "C" fn cancel(producer: *mut FFI_ArrowAsyncProducer) {
    // As in `request`.
    let _ = guard("cancel", || {
        // SAFETY: valid, as the consumer guarantees.
        if let Some(demand) = unsafe { demand(producer) } {
            demand.cancel();
        }
        Ok(())
    });
}

/// The demand behind a producer, kept alive during a call, because the woken future may end
/// meanwhile.
///
/// # Safety
/// `producer` is null, or one of `Demand::new` with a handler not released or a batch not
/// extracted.
unsafe fn demand(producer: *mut FFI_ArrowAsyncProducer) -> Option<Arc<Demand>> {
    // SAFETY: live, if not null.
    let private_data = unsafe { producer.as_ref() }?.private_data.cast::<Demand>();
    // SAFETY: an `Arc` of `Demand::new` with a live reference.
    unsafe {
        Arc::increment_strong_count(private_data);
        Some(Arc::from_raw(private_data))
    }
}
