// SPDX-License-Identifier: Apache-2.0
//! Producers that fall silent: registrations time out, and whatever waits is cancelled.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use arrow::ffi_stream::ArrowArrayStreamReader;
use arrow_device::async_stream::{AsyncHandler, ProduceOptions, produce_on_thread};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowDeviceArray};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{cpu, schema};
use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::query::*;
use devicefusion_capi::table::*;
use futures::stream;

use crate::support::{Context, Query, config, prices};

type Handler = FFI_ArrowAsyncDeviceStreamHandler;

const KINDS: [c_int; 3] = [DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE];

/// A strict context whose registrations wait as long for a silent producer.
fn waiting(milliseconds: usize) -> Context {
    let config = config();
    assert_eq!(devicefusion_context_config_set_producer_timeout(config, milliseconds), 0);
    Context::of(config)
}

/// Registers the table `t` of a producer.
fn register(
    context: &Context,
    produce: unsafe extern "C" fn(*mut c_void, *mut Handler),
    data: *mut c_void,
    kind: c_int,
) -> c_int {
    // SAFETY: a C string, and a function that follows the interface with its data.
    unsafe { devicefusion_register_async_stream(context.raw, c"t".as_ptr(), Some(produce), data, kind) }
}

/// A producer that makes no call during the registration of its table.
struct Silent {
    handler: *mut Handler,
    /// The context that it cancels at its start, or NULL.
    cancels: *mut devicefusion_context,
    /// Gets a message when it is started.
    started: Option<Sender<()>>,
}

impl Silent {
    fn new() -> Self {
        Self { handler: ptr::null_mut(), cancels: ptr::null_mut(), started: None }
    }

    /// Fails to register the table, and returns the message. Later calls of the producer are
    /// refused.
    #[track_caller]
    fn fail(mut self, context: &Context, kind: c_int) -> String {
        let error = context.failed(1, register(context, keep_silent, (&raw mut self).cast(), kind));
        let mut columns = schema::export_schema(&prices().schema()).unwrap();
        // SAFETY: the handler is live until its release, and has all callbacks.
        unsafe {
            assert_eq!((*self.handler).on_schema.unwrap()(self.handler, &raw mut columns), libc::ECANCELED);
            drop(AsyncHandler::from_raw(self.handler).unwrap());
        }
        assert!(columns.release.is_none(), "it is moved in any case");
        error
    }
}

/// The `produce` callback of a `Silent` at `data`.
unsafe extern "C" fn keep_silent(data: *mut c_void, handler: *mut Handler) {
    // SAFETY: the producer lives as long as the registration, which waits for this call.
    let silent = unsafe { &mut *data.cast::<Silent>() };
    silent.handler = handler;
    if let Some(started) = &silent.started {
        started.send(()).unwrap();
    }
    if !silent.cancels.is_null() {
        assert_eq!(devicefusion_context_cancel(silent.cancels), 0);
    }
}

/// The data of `give_schema`, and a receiver of requests for rows. Its sender drops when the
/// producer ends.
fn rowless() -> (*mut c_void, Receiver<()>) {
    let (requested, requests) = channel::<()>();
    (Box::into_raw(Box::new(requested)).cast(), requests)
}

/// A `produce` callback: a producer with a schema, and without rows until it is cancelled.
unsafe extern "C" fn give_schema(data: *mut c_void, handler: *mut Handler) {
    // SAFETY: the data of `rowless`, taken once.
    let requested = unsafe { Box::from_raw(data.cast::<Sender<()>>()) };
    let rows = stream::poll_fn(move |_| -> Poll<Option<arrow_device::Result<FFI_ArrowDeviceArray>>> {
        // The test may have received a request already.
        _ = requested.send(());
        Poll::Pending
    });
    // SAFETY: a handler from the library.
    let handler = unsafe { AsyncHandler::from_raw(handler) }.unwrap();
    let field = schema::batch_field(&prices().schema());
    produce_on_thread(rows, &field, ArrowDeviceType::CPU, handler, ProduceOptions::default()).unwrap();
}

/// A `produce` callback: a producer that starts late.
unsafe extern "C" fn start_late(_: *mut c_void, handler: *mut Handler) {
    // SAFETY: a handler from the library.
    let handler = unsafe { AsyncHandler::from_raw(handler) }.unwrap();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        let (field, arrays) = (schema::batch_field(&prices().schema()), stream::iter([cpu::export_batch(&prices())]));
        produce_on_thread(arrays, &field, ArrowDeviceType::CPU, handler, ProduceOptions::default()).unwrap();
    });
}

/// Asserts that the producer without rows ends, as a cancelled one does.
#[track_caller]
fn assert_ended(requests: &Receiver<()>) {
    loop {
        match requests.recv_timeout(Duration::from_secs(60)) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => panic!("the producer was not cancelled"),
        }
    }
}

/// Calls `cancel` once rows are requested, which `wait` waits for. Its result; the producer ends.
#[track_caller]
fn cancelled<T>(requests: Receiver<()>, cancel: impl FnOnce() + Send, wait: impl FnOnce() -> T) -> T {
    let (result, requests) = thread::scope(|scope| {
        let cancelling = scope.spawn(move || {
            let requested = requests.recv_timeout(Duration::from_secs(300));
            cancel();
            assert_eq!(requested, Ok(()));
            requests
        });
        (wait(), cancelling.join().unwrap())
    });
    assert_ended(&requests);
    result
}

#[test]
fn a_registration_waits_for_a_silent_producer_until_its_time_out() {
    let context = waiting(100);
    for kind in KINDS {
        let error = Silent::new().fail(&context, kind);
        let expected = "the table t: its producer did not call on_schema within 100ms; \
                        devicefusion_context_config_set_producer_timeout sets another limit";
        assert_eq!(error, expected, "{kind}");
    }
    // The schema comes from another thread, which may wait for a core.
    let context = waiting(1000);
    for kind in [DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        let (data, requests) = rowless();
        let error = context.failed(1, register(&context, give_schema, data, kind));
        assert!(error.contains("the table t: its producer did not call on_next_task within 1s"), "{error}");
        assert_ended(&requests);
    }
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_HOST));
}

#[test]
fn a_slow_producer_needs_a_longer_time_out_or_none() {
    let context = waiting(50);
    context.failed(1, register(&context, start_late, ptr::null_mut(), DEVICEFUSION_TABLE_HOST));
    for milliseconds in [60_000, 0] {
        let context = waiting(milliseconds);
        context.ok(register(&context, start_late, ptr::null_mut(), DEVICEFUSION_TABLE_HOST));
        assert_eq!(context.rows("SELECT sum(items) FROM t"), ["9"]);
    }
}

#[test]
fn a_registration_is_cancelled_from_another_thread() {
    const CANCELLED: &str = "the registration of the table t was cancelled";
    let context = waiting(0);
    for kind in KINDS {
        let (context, (started, has_started)) = (&context, channel());
        let silent = Silent { started: Some(started), ..Silent::new() };
        let error = thread::scope(|scope| {
            scope.spawn(move || {
                // A cancel before the registration would not count.
                has_started.recv_timeout(Duration::from_secs(60)).unwrap();
                thread::sleep(Duration::from_millis(50));
                context.cancel();
            });
            silent.fail(context, kind)
        });
        assert_eq!(error, CANCELLED, "{kind}");
    }
    for kind in [DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        let (data, requests) = rowless();
        let error = cancelled(requests, || context.cancel(), || context.failed(1, register(&context, give_schema, data, kind)));
        assert_eq!(error, CANCELLED, "{kind}");
    }
    // Also while the producer is started.
    let silent = Silent { cancels: context.raw, ..Silent::new() };
    assert_eq!(silent.fail(&context, DEVICEFUSION_TABLE_HOST), CANCELLED);
    // Later calls are not affected.
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_HOST));
}

fn run(query: &Query<'_>) -> String {
    // SAFETY: the pointer for the number may be NULL.
    query.context.failed(1, unsafe { devicefusion_query_run(query.raw, ptr::null_mut()) })
}

fn read(query: &Query<'_>) -> String {
    ArrowArrayStreamReader::try_new(query.stream()).unwrap().next().unwrap().unwrap_err().to_string()
}

fn read_on_device(query: &Query<'_>) -> String {
    // SAFETY: a stream from the library.
    let mut reader = unsafe { ArrowDeviceArrayStreamReader::try_new(query.device_stream()) }.unwrap();
    reader.next().unwrap().unwrap_err().to_string()
}

#[test]
fn a_query_that_waits_for_a_silent_producer_is_cancelled() {
    const CANCELLED: &str = "the query was cancelled";
    let context = Context::new();
    let table_without_rows = || {
        let (data, requests) = rowless();
        context.ok(register(&context, give_schema, data, DEVICEFUSION_TABLE_STREAM));
        requests
    };
    let waits: [fn(&Query<'_>) -> String; 3] = [run, read, read_on_device];
    for (wait, by_context) in waits.into_iter().flat_map(|wait| [(wait, false), (wait, true)]) {
        let requests = table_without_rows();
        let query = context.query("SELECT items FROM t");
        let raw = query.raw.addr();
        let cancel = || match by_context {
            true => context.cancel(),
            false => context.ok(devicefusion_query_cancel(ptr::without_provenance_mut(raw))),
        };
        let error = cancelled(requests, cancel, || wait(&query));
        assert!(error.contains(CANCELLED), "{error}");
        context.execute("DROP TABLE t");
    }
    let requests = table_without_rows();
    let error = cancelled(requests, || context.cancel(), || context.failed(1, context.try_execute("SELECT items FROM t")));
    assert_eq!(error, CANCELLED);
    assert_eq!(context.rows("SELECT 1"), ["1"]);
}
