// SPDX-License-Identifier: Apache-2.0
//! Export to host memory, and import by a consumer on the host.

use std::time::Duration;

use device::testing::Fault;

use super::*;
use crate::exchange::{export_to_host, exported_host_device};

/// Exports a batch to the host and imports it there.
fn on_host(queue: &Queue, batch: &DeviceBatch) -> RecordBatch {
    let exported = block_on(export_to_host(queue, batch)).unwrap();
    assert_eq!((exported.device_type, exported.device_id), exported_host_device(queue.context().info()));
    assert!(exported.sync_event.is_null());
    cpu::import_batch(imported(exported, batch.schema())).unwrap()
}

#[track_caller]
fn check(queue: &Queue, batch: &DeviceBatch, expected: &ArrayRef, case: impl std::fmt::Display) {
    let host = on_host(queue, batch);
    assert_same(host.column(0), expected, case);
}

#[test]
fn every_type_arrives_on_the_host() {
    device::skip_unless_turn!(6);
    const MANY: usize = (1 << 17) + 1;
    let mut rng = generator();
    let queues = [default_queue(), discrete_queue()];
    for data_type in plain_types().into_iter().chain(dictionary_types()) {
        for (len, nulls) in [
            (0, Nulls::Some),
            (1, Nulls::None),
            (1, Nulls::All),
            (257, Nulls::None),
            (257, Nulls::Some),
            (257, Nulls::All),
            (MANY, Nulls::Some),
        ] {
            let array = random_array(&data_type, len, nulls, &mut rng);
            for queue in &queues {
                let batch = up(queue, std::slice::from_ref(&array)).unwrap();
                check(queue, &batch, &array, format!("{data_type}, {len} rows, {nulls:?}"));
            }
        }
    }
}

#[test]
fn slices_arrive_by_their_offsets() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in plain_types().into_iter().chain(dictionary_types()) {
            for (nulls, offset, len) in
                [(Nulls::None, 77, 100), (Nulls::None, 300, 0), (Nulls::All, 1, 299), (Nulls::None, 299, 1)]
            {
                let array = random_array(&data_type, 300, nulls, &mut rng);
                let batch = up(&queue, std::slice::from_ref(&array)).unwrap().slice(offset, len);
                check(&queue, &batch, &array.slice(offset, len), format!("{data_type} from {offset} on, {len}, {nulls:?}"));
            }
        }
    }
}

#[test]
fn columns_arrive_together_and_none_at_all_too() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        let arrays = plain_types().into_iter().enumerate().map(|(index, data_type)| {
            let array = random_array(&data_type, 1000, Nulls::Some, &mut rng);
            (format!("column {index}"), array, true)
        });
        let host = RecordBatch::try_from_iter_with_nullable(arrays).unwrap();
        let schema = host.schema();
        let batch = upload(&queue, &schema, &natural_types(&schema).unwrap(), std::slice::from_ref(&host)).unwrap();
        assert_eq!(on_host(&queue, &batch), host);
        let none = batch.project(&[]).unwrap();
        assert_eq!((on_host(&queue, &none).num_rows(), on_host(&queue, &none).num_columns()), (1000, 0));
    }
}

#[test]
fn batches_without_arrow_layout_are_refused_before_any_copy() {
    let mut rng = generator();
    let queue = discrete_queue();
    let batch = up(&queue, &[array(&DataType::Int64, 300, Nulls::Some, &mut rng)]).unwrap().slice(1, 200);
    let error = block_on(export_to_host(&queue, &batch)).unwrap_err();
    assert_eq!(error.to_string(), "export of column \"x\" (Int64): it does not have Arrow's layout");
    assert_eq!(queue.context().counters().bytes_down, 0);
}

/// The future of the export is never polled.
#[test]
fn copies_start_before_the_wait() {
    let mut rng = generator();
    let plan = FaultPlan::masking(|info| info.unified_memory = false);
    let context = Context::new(config().with_wrap(plan.wrap())).unwrap();
    let queue = context.queue().unwrap();
    let batch = up(&queue, &[random_array(&DataType::Utf8, 300, Nulls::Some, &mut rng)]).unwrap();
    let before = plan.calls(Fault::Copy);
    let exported = export_to_host(&queue, &batch);
    // Copies of validity, offsets and heap.
    assert_eq!(plan.calls(Fault::Copy), before + 3);
    drop((exported, batch, queue, context));
    plan.wait_until_nothing_is_alive(Duration::from_secs(10)).unwrap();
}

/// R30: a consumer may release on any thread, also after the context is dropped.
#[test]
fn release_on_another_thread_gives_pinned_memory_back() {
    let plan = FaultPlan::masking(|info| info.unified_memory = false);
    let context = Context::new(config().with_wrap(plan.wrap())).unwrap();
    let queue = context.queue().unwrap();
    let array: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..100_000));
    let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
    let first = block_on(export_to_host(&queue, &batch)).unwrap();
    let second = block_on(export_to_host(&queue, &batch)).unwrap();
    let schema = Arc::clone(batch.schema());
    drop(batch);
    block_on(queue.finish()).unwrap();
    assert_eq!(context.pool().in_use(), 0);
    context.trim();
    assert_eq!(plan.live().pinned, 2);
    thread::spawn(move || drop(first)).join().unwrap();
    context.trim();
    assert_eq!(plan.live().pinned, 1);
    drop((queue, context));
    let host = cpu::import_batch(imported(second, &schema)).unwrap();
    assert_same(host.column(0), &array, "after the context");
    thread::spawn(move || drop(host)).join().unwrap();
    plan.wait_until_nothing_is_alive(Duration::from_secs(10)).unwrap();
}

#[test]
fn unified_memory_is_shared_and_freed_by_the_release() {
    let Some(queue) = unified_queue() else { return };
    let pool = queue.context().pool().clone();
    let column = DeviceColumn::try_new(
        Arc::new(crate::ColumnType::of(&DataType::UInt8, false).unwrap()),
        100_000,
        vec![queue.filled(100_000, 7).unwrap()],
        None,
        Some(0),
        None,
    );
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::UInt8, false)]));
    let batch = DeviceBatch::try_new(schema, vec![column.unwrap()], 100_000).unwrap();
    let memory = batch.columns()[0].buffers()[0].raw();
    let exported = block_on(export_to_host(&queue, &batch)).unwrap();
    let view = imported(exported, batch.schema());
    drop(batch);
    assert_eq!(view.view().child(0).unwrap().buffer(1).unwrap().ptr as usize, memory.host);
    assert_eq!(pool.in_use(), memory.bytes);
    thread::spawn(move || drop(view)).join().unwrap();
    assert_eq!(pool.in_use(), 0);
}
