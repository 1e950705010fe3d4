// SPDX-License-Identifier: Apache-2.0
//! Foreign arrays: uncounted NULLs, columns outside the projection, foreign events.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::Waker;
use std::time::Duration;

use arrow::array::{RecordBatchOptions, StringArray};
use device::{Buffer, Grid, ProgramSource};

use super::*;

/// A user event of a queue's OpenCL context.
struct UserEvent(opencl3::types::cl_event);

impl Drop for UserEvent {
    fn drop(&mut self) {
        // SAFETY: created in `new`; every waiting command retains it.
        unsafe { opencl3::event::release_event(self.0) }.unwrap();
    }
}

impl UserEvent {
    /// `None` for a driver other than OpenCL.
    fn new(queue: &Queue) -> Option<Self> {
        if queue.context().info().driver == DriverKind::Cuda {
            println!("skipped: CUDA has no events that the host completes");
            return None;
        }
        let buffer = queue.alloc(8).unwrap();
        let context =
            opencl3::memory::get_mem_object_data(buffer.raw().handle as *mut _, opencl3::memory::CL_MEM_CONTEXT).unwrap();
        let context = usize::from_ne_bytes(context.try_into().unwrap()) as *mut _;
        Some(Self(opencl3::event::create_user_event(context).unwrap()))
    }

    fn set(&self, status: i32) {
        opencl3::event::set_user_event_status(self.0, status).unwrap();
    }
}

/// Whether an array has been released.
#[derive(Clone, Default)]
struct Released(Arc<AtomicBool>);

/// Owner of an exported array, which records its release.
struct ReleaseRecorder(Released);

impl Drop for ReleaseRecorder {
    fn drop(&mut self) {
        self.0.0.store(true, SeqCst);
    }
}

impl Released {
    fn is_set(&self) -> bool {
        self.0.load(SeqCst)
    }

    /// Waits: the queue's thread releases the array shortly after the queue is finished.
    #[track_caller]
    fn assert_soon(&self) {
        (0..5000).take_while(|_| !self.is_set()).for_each(|_| thread::sleep(Duration::from_millis(1)));
        assert!(self.is_set(), "not released");
    }
}

fn handle(buffer: &Buffer) -> *const c_void {
    buffer.raw().handle as *const c_void
}

/// Exports the only column of a batch with an unknown null count.
fn uncounted(batch: &DeviceBatch) -> ArrayExport {
    let column = &batch.columns()[0];
    let validity = column.validity().map_or(ptr::null(), |(bits, _)| handle(bits));
    let buffers = std::iter::once(validity).chain(column.buffers().iter().map(handle)).collect();
    ArrayExport::new(column.len()).offset(column.offset()).null_count(None).buffers(buffers).owner(Box::new(batch.clone()))
}

fn exported(queue: &Queue, root: ArrayExport, event: *mut c_void) -> FFI_ArrowDeviceArray {
    let (device_type, id) = exported_device(queue.context().info());
    root.export(device_type, id, event).unwrap()
}

/// Exports a batch with `event`, and a flag that its release sets.
fn export_with_event(event: &UserEvent, queue: &Queue, batch: &DeviceBatch) -> (FFI_ArrowDeviceArray, Released) {
    let released = Released::default();
    let cell = Box::new(event.0 as u64);
    let sync_event = (&raw const *cell).cast_mut().cast();
    let root = ArrayExport::batch(batch.num_rows(), vec![uncounted(batch)]).unwrap();
    let owner = Box::new((cell, ReleaseRecorder(released.clone())));
    (exported(queue, root.owner(owner), sync_event), released)
}

fn numbers(queue: &Queue) -> (ArrayRef, DeviceBatch) {
    let array: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1000));
    let batch = up(queue, std::slice::from_ref(&array)).unwrap();
    block_on(queue.finish()).unwrap();
    (array, batch)
}

#[test]
fn uncounted_nulls_are_found() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in [DataType::Boolean, DataType::Int8, DataType::Int64, DataType::Decimal128(20, 2), DataType::Utf8] {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                for (offset, len) in [(0, 300), (77, 100), (299, 1)] {
                    let case = format!("{data_type} from {offset} on, {len}, {nulls:?}");
                    let array = array(&data_type, 300, nulls, &mut rng);
                    let batch = up(&queue, std::slice::from_ref(&array)).unwrap().slice(offset, len);
                    let root = ArrayExport::batch(len, vec![uncounted(&batch)]).unwrap();
                    let back = import(&queue, exported(&queue, root, ptr::null_mut()), batch.schema()).unwrap();
                    assert_eq!(back.columns()[0].null_count(), None, "{case}");
                    assert_same(&down(&queue, &back).unwrap(), &array.slice(offset, len), case);
                }
            }
        }
    }
}

#[test]
fn rows_that_may_be_null_are_refused() {
    let queue = default_queue();
    let bits = queue.filled(128, 0xff).unwrap();
    for (validity, null_count, refused) in
        [(handle(&bits), None, true), (handle(&bits), Some(3), true), (handle(&bits), Some(0), false), (ptr::null(), None, false)]
    {
        let (array, batch) = numbers(&queue);
        let rows = ArrayExport::new(1000).null_count(null_count).buffers(vec![validity]).children(vec![uncounted(&batch)]);
        let imported = import(&queue, exported(&queue, rows, ptr::null_mut()), batch.schema());
        match imported {
            Err(error) if refused => assert_eq!(
                error.to_string(),
                "import of a device array: rows of a record batch must not be null, and their validity has nulls or is \
                 not counted"
            ),
            result => {
                assert!(!refused);
                assert_same(&down(&queue, &result.unwrap()).unwrap(), &array, format!("null_count {null_count:?}"));
            }
        }
    }
}

#[test]
fn rows_without_columns_are_counted() {
    let queue = default_queue();
    let (array, batch) = numbers(&queue);
    let rows_of = |array: FFI_ArrowDeviceArray, schema: &SchemaRef| {
        let back = block_on(exchange::import(&queue, imported(array, schema), schema, &[])).unwrap();
        assert_eq!((back.columns().len(), back.schema().fields().len()), (0, 0));
        assert_eq!(block_on(download(&queue, &back)).unwrap().num_rows(), back.num_rows());
        back.num_rows()
    };
    assert_eq!(rows_of(exchange::export(&queue, &batch).unwrap(), batch.schema()), 1000);
    let mut part = exchange::export(&queue, &batch).unwrap();
    (part.array.offset, part.array.length) = (990, 10);
    assert_eq!(rows_of(part, batch.schema()), 10);
    assert_eq!(rows_of(exchange::export(&queue, &batch.slice(0, 0)).unwrap(), batch.schema()), 0);
    let host = batch_of(&array);
    assert_eq!(rows_of(cpu::export_batch(&host).unwrap(), batch.schema()), 1000);

    let none = batch.project(&[]).unwrap();
    assert_eq!(rows_of(exchange::export(&queue, &none).unwrap(), none.schema()), 1000);
    let options = RecordBatchOptions::new().with_row_count(Some(7));
    let none = RecordBatch::try_new_with_options(Arc::clone(none.schema()), vec![], &options).unwrap();
    assert_eq!(rows_of(cpu::export_batch(&none).unwrap(), &none.schema()), 7);
}

#[test]
fn other_columns_than_the_schema_has_are_refused_by_name() {
    let queue = default_queue();
    let schema = |types: &[DataType]| {
        let fields = types.iter().zip(["a", "b", "c"]).map(|(data_type, name)| Field::new(name, data_type.clone(), true));
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    };
    let given = schema(&[DataType::Int32, DataType::Utf8]);
    let columns: Vec<ArrayRef> = vec![Arc::new(Int32Array::from(vec![1, 2])), Arc::new(StringArray::from(vec!["x", "y"]))];
    let host = RecordBatch::try_new(Arc::clone(&given), columns).unwrap();
    let batch = upload(&queue, &given, &natural_types(&given).unwrap(), std::slice::from_ref(&host)).unwrap();
    let error = |wanted: &SchemaRef, columns: &[usize], on_device: bool| {
        let array = if on_device { exchange::export(&queue, &batch).unwrap() } else { cpu::export_batch(&host).unwrap() };
        let error = block_on(exchange::import(&queue, imported(array, &given), wanted, columns)).unwrap_err();
        (error.to_string(), error)
    };

    let more = schema(&[DataType::Int32, DataType::Utf8, DataType::Int8]);
    let fewer = schema(&[DataType::Int32]);
    let other = schema(&[DataType::Int32, DataType::LargeUtf8]);
    let (text, _) = error(&more, &[0], true);
    assert_eq!(text, "import of a device array: expected 3 columns, got 2: \"c\" is missing");
    let (text, _) = error(&fewer, &[0], true);
    assert_eq!(text, "import of a device array: expected 1 columns, got 2: \"b\" is not in the schema");
    let (text, refused) = error(&other, &[1], true);
    assert_eq!(text, "column \"b\": expected LargeUtf8, got Utf8");
    assert!(matches!(refused, Error::Type { .. }));
    for wanted in [&more, &fewer, &other] {
        let (text, _) = error(wanted, &[0], false);
        assert!(text.contains("\"b\""), "{text}");
    }
    // A mismatch outside the projection is no error.
    let array = exchange::export(&queue, &batch).unwrap();
    let back = block_on(exchange::import(&queue, imported(array, &given), &other, &[0])).unwrap();
    assert_eq!(block_on(download(&queue, &back)).unwrap(), host.project(&[0]).unwrap());
    let (text, _) = error(&given, &[0, 2], true);
    assert!(text.contains("project index 2 out of bounds"), "{text}");
}

/// Z5: a queue waits only for events of its own context, so a thread waits. There is no copy.
#[test]
fn event_of_another_context_is_waited_for() {
    for queue in [default_queue(), discrete_queue()] {
        let Some(event) = UserEvent::new(&default_queue()) else { return };
        let (expected, batch) = numbers(&queue);
        let (array, released) = export_with_event(&event, &queue, &batch);
        let mut import = Box::pin(exchange::import(&queue, imported(array, batch.schema()), batch.schema(), &[0]));
        assert!(import.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending());
        event.set(0);
        let back = block_on(import).unwrap();
        assert_same_memory(&back.columns()[0], &batch.columns()[0], "in place");
        assert_same(&down(&queue, &back).unwrap(), &expected, "after an event");
        assert!(!released.is_set());
        drop(back);
        block_on(queue.finish()).unwrap();
        released.assert_soon();
    }
}

/// Z6: the failed event may be of any context.
#[test]
fn event_that_has_failed_is_an_error_and_the_array_released() {
    let queue = default_queue();
    for other in [default_queue(), queue.clone()] {
        let Some(event) = UserEvent::new(&other) else { return };
        event.set(-5);
        let (_, batch) = numbers(&queue);
        let (array, released) = export_with_event(&event, &queue, &batch);
        let refused = import(&queue, array, batch.schema());
        assert!(matches!(refused, Err(Error::Device(_))), "{refused:?}");
        released.assert_soon();
    }
}

/// A kernel waits for the array's event, and the array is not released before the kernel's end.
#[test]
fn arrays_are_released_after_their_last_use_only() {
    const SUM: &str = "kernel void sum(global const int *x, global int *out, int n) {
        int sum = 0;
        for (int turn = 0; turn < 100; turn++) for (int i = 0; i < n; i++) sum += x[i] * (turn % 2 * 2 - 1) + turn / 99 * x[i];
        out[0] = sum;
    }";
    for queue in [default_queue(), discrete_queue()] {
        let Some(event) = UserEvent::new(&queue) else { return };
        let (_, batch) = numbers(&queue);
        let (array, released) = export_with_event(&event, &queue, &batch);
        let schema = Arc::clone(batch.schema());
        let in_use = queue.context().pool().in_use();
        drop(batch);
        let back = import(&queue, array, &schema).unwrap();
        let program = block_on(queue.compile(ProgramSource::new(SUM, "tests"))).unwrap();
        let out = queue.alloc(4).unwrap();
        let args = [(&back.columns()[0].buffers()[0]).into(), (&out).into(), 1000i32.into()];
        queue.launch(&program.kernel("sum").unwrap(), Grid { work_groups: 1, work_group_size: 1 }, &args).unwrap();
        let sum = queue.read(&out, 0..4);
        drop(back);
        assert!(!released.is_set(), "released before the kernel that reads it");
        assert!(queue.context().pool().in_use() >= in_use);
        event.set(0);
        assert_eq!(block_on(sum).unwrap()[..], 499_500i32.to_ne_bytes());
        released.assert_soon();
    }
}
