// SPDX-License-Identifier: Apache-2.0
//! A [`futures::Stream`] as a blocking iterator, on the calling thread and without a runtime (R62).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures::Stream;

/// Each `next` polls the stream and parks its thread until an item is ready.
pub(super) struct Blocking<S> {
    stream: Pin<Box<S>>,
}

impl<S> Blocking<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream: Box::pin(stream) }
    }
}

impl<S: Stream> Iterator for Blocking<S> {
    type Item = S::Item;

    fn next(&mut self) -> Option<S::Item> {
        // Each call has its own waker: the next call may come from another thread (R59).
        let parked = Arc::new(Parked { thread: thread::current(), woken: AtomicBool::new(false) });
        let waker = Waker::from(Arc::clone(&parked));
        let mut context = Context::from_waker(&waker);
        loop {
            match self.stream.as_mut().poll_next(&mut context) {
                Poll::Ready(item) => return item,
                Poll::Pending => parked.wait(),
            }
        }
    }
}

struct Parked {
    thread: Thread,
    // Tells a wake from a spurious unpark.
    woken: AtomicBool,
}

impl Parked {
    fn wait(&self) {
        while !self.woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
