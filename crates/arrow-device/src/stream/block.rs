// SPDX-License-Identifier: Apache-2.0
//! A future stream as a blocking iterator, on whatever thread asks, without a runtime (R62).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use futures::Stream;

/// Each `next` polls the stream and parks its thread until the stream has something.
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
        // Each call has a waker of its own: the next may come from another thread (R59).
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
    // Others may unpark the thread for reasons of their own.
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
