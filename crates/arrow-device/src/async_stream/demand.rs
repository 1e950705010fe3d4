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
    phase: Mutex<Phase>,
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

/// The state of the consumer's demand. A failed stream can still be cancelled.
#[derive(Default)]
enum Phase {
    /// There was no request.
    #[default]
    Idle,
    /// This many batches are requested and not yet delivered, maybe 0.
    Requested(i64),
    /// The first failed request or extraction.
    Failed(Error),
    Cancelled,
    /// The handler is released, or about to be.
    Closed,
}

impl Phase {
    /// Whether the stream is ending, and ignores requests (R88).
    fn is_ending(&self) -> bool {
        match self {
            Self::Idle | Self::Requested(_) | Self::Failed(_) => false,
            Self::Cancelled | Self::Closed => true,
        }
    }
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
        let demand = Arc::new(Self { phase: Mutex::default(), waker: AtomicWaker::new(), raw, _metadata: metadata });
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
        match &*self.phase.lock() {
            Phase::Idle => Action::Idle,
            Phase::Requested(credit) => Action::Batches(*credit),
            Phase::Failed(error) => Action::Fail(error.clone()),
            Phase::Cancelled | Phase::Closed => Action::Cancel,
        }
    }

    /// Deducts a batch that is about to be delivered.
    pub fn spend(&self) {
        match &mut *self.phase.lock() {
            Phase::Requested(credit) => *credit = credit.saturating_sub(1),
            Phase::Idle | Phase::Failed(_) | Phase::Cancelled | Phase::Closed => {}
        }
    }

    /// Records the failed extraction of a delivered batch (R95).
    pub fn fail(&self, error: Error) {
        self.update(|phase| match phase {
            Phase::Idle | Phase::Requested(_) => *phase = Phase::Failed(error),
            Phase::Failed(_) | Phase::Cancelled | Phase::Closed => {}
        });
    }

    /// Ignores further requests, and returns whether the consumer has cancelled.
    pub fn close(&self) -> bool {
        let phase = std::mem::replace(&mut *self.phase.lock(), Phase::Closed);
        match phase {
            Phase::Cancelled => true,
            Phase::Idle | Phase::Requested(_) | Phase::Failed(_) | Phase::Closed => false,
        }
    }

    fn request(&self, n: i64) {
        if n <= 0 {
            let message = format!("async stream: request({n}): the number of batches must be positive (R87)");
            return self.fail(Error::Invalid(message));
        }
        self.update(|phase| match phase {
            Phase::Idle => *phase = Phase::Requested(n),
            Phase::Requested(credit) => *credit = credit.saturating_add(n),
            Phase::Failed(_) | Phase::Cancelled | Phase::Closed => {}
        });
    }

    fn cancel(&self) {
        self.update(|phase| *phase = Phase::Cancelled);
    }

    /// Changes the phase and wakes the future, unless the stream is ending anyway.
    fn update(&self, change: impl FnOnce(&mut Phase)) {
        {
            let mut phase = self.phase.lock();
            if phase.is_ending() {
                return;
            }
            change(&mut phase);
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
