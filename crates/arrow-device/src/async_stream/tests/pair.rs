// SPDX-License-Identifier: Apache-2.0
//! This crate's producer with its consumer.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use futures::executor::{LocalPool, block_on};
use futures::task::LocalSpawnExt;
use futures::{StreamExt, TryStreamExt, future, stream};

use super::support::*;
use crate::async_stream::{
    AsyncBatch, AsyncDeviceStream, AsyncHandler, AsyncStreamOptions, ProduceOptions, produce, produce_on_thread,
};
use crate::ffi::ArrowDeviceType;
use crate::schema::batch_field;
use crate::{Error, cpu};

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

fn consume(in_flight: usize) -> (AsyncHandler, AsyncDeviceStream) {
    consumer(AsyncStreamOptions::default().with_in_flight(in_flight))
}

async fn lengths(stream: AsyncDeviceStream) -> crate::Result<Vec<usize>> {
    stream.map_ok(|array| array.len()).try_collect().await
}

#[test]
fn all_batches_arrive_in_order_in_one_thread_and_over_two() {
    for in_flight in [1, 2, 7] {
        for look_ahead in [true, false] {
            for n in [0, 1, 2, 50] {
                let live = LiveCount::default();
                let options = || ProduceOptions::default().with_look_ahead(look_ahead);
                let expected: Vec<usize> = (1..=n).collect();

                let (handler, stream) = consume(in_flight);
                let producer = produce(arrays(&live, n), &field(), CPU, handler, options());
                let (read, ()) = block_on(future::join(lengths(stream), producer));
                assert_eq!(read.unwrap(), expected);

                let (handler, stream) = consume(in_flight);
                let mut pool = LocalPool::new();
                pool.spawner().spawn_local(produce(arrays(&live, n), &field(), CPU, handler, options())).unwrap();
                assert_eq!(pool.run_until(lengths(stream)).unwrap(), expected);
                pool.run();

                let (handler, stream) = consume(in_flight);
                let thread = produce_on_thread(arrays(&live, n), &field(), CPU, handler, options()).unwrap();
                assert_eq!(block_on(lengths(stream)).unwrap(), expected);
                thread.join().unwrap();
                assert_eq!(live.count(), 0);
            }
        }
    }
}

#[test]
fn r31_record_batches_go_through_with_their_schema() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "", "ü"]));
    let batch = RecordBatch::try_from_iter([("n", numbers), ("s", names)]).unwrap();
    let schema = batch.schema().as_ref().clone().with_metadata([("table".into(), "t".into())].into());
    let batch = batch.with_schema(schema.clone().into()).unwrap();
    let parts = [batch.clone(), batch.slice(1, 2), batch.slice(0, 0)];

    let (handler, mut stream) = consume(2);
    let source = stream::iter(parts.clone()).map(|batch| cpu::export_batch(&batch));
    let producer = produce(source, &batch_field(&schema), CPU, handler, ProduceOptions::default());
    block_on(future::join(producer, async {
        assert_eq!(*stream.schema().await.unwrap(), schema);
        for part in parts {
            assert_eq!(cpu::import_batch(stream.next().await.unwrap().unwrap()).unwrap(), part);
        }
        assert!(stream.next().await.is_none());
    }));
}

#[test]
fn r90_metadata_goes_through() {
    let live = LiveCount::default();
    let pair = |key: &str| vec![(key.to_string(), format!("of {key}"))];
    let (handler, mut stream) = consume(1);
    let batches = [Ok(AsyncBatch::from(array(&live, 1)).with_metadata(pair("batch"))), Err(failure())];
    let options = ProduceOptions::default().with_metadata(pair("stream")).with_error_metadata(move |_| pair("error"));
    let thread = produce_on_thread(stream::iter(batches), &field(), CPU, handler, options).unwrap();
    block_on(async {
        stream.schema().await.unwrap();
        assert_eq!(stream.producer_metadata(), pair("stream"));
        stream.next().await.unwrap().unwrap();
        assert_eq!(*stream.batch_metadata(), pair("batch"));
        let error = stream.next().await.unwrap().unwrap_err();
        assert_eq!(error.errno(), libc::ENOMEM);
        assert_eq!(stream.error_metadata(), pair("error"));
    });
    thread.join().unwrap();
    drop(stream);
    assert_eq!(live.count(), 0);
}

#[test]
fn errors_keep_their_errno_and_message() {
    for error in [failure(), Error::Invalid("i".into()), Error::Unsupported("u".into()), Error::Other("o".into())] {
        let (handler, stream) = consume(1);
        let source = stream::iter([Err::<AsyncBatch, _>(error.clone())]);
        let producer = produce(source, &field(), CPU, handler, ProduceOptions::default());
        let (read, ()) = block_on(future::join(lengths(stream), producer));
        let Err(Error::Foreign { code, message, .. }) = read else { panic!("{read:?}") };
        assert_eq!((code, message), (error.errno(), Some(error.to_string())));
    }
}

#[test]
fn r95_a_deferred_batch_that_fails_ends_both_sides() {
    let live = LiveCount::default();
    let (handler, stream) = consume(2);
    let batches = [Ok(AsyncBatch::from(array(&live, 1))), Ok(AsyncBatch::deferred(|| Err(failure())))];
    let source = stream::iter(batches).chain(arrays(&live, 9).map_ok(AsyncBatch::from));
    let producer = produce(source, &field(), CPU, handler, ProduceOptions::default());
    let (read, ()) = block_on(future::join(stream.map(|item| outcome(Some(item)).unwrap()).collect::<Vec<_>>(), producer));
    assert_eq!(read, [Ok(1), Err(format!("extract_data failed with {}", libc::ENOMEM))]);
    assert_eq!(live.count(), 0);
}

#[test]
fn a_reader_that_leaves_ends_the_producer() {
    for read in 0..5 {
        let live = LiveCount::default();
        let (handler, mut stream) = consume(2);
        let source = arrays(&live, 1000).chain(stream::pending());
        let thread = produce_on_thread(source, &field(), CPU, handler, ProduceOptions::default()).unwrap();
        for n in 1..=read {
            assert_eq!(outcome(block_on(stream.next())), Some(Ok(n)));
        }
        drop(stream);
        thread.join().unwrap();
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r96_arrays_outlive_stream_and_producer() {
    let live = LiveCount::default();
    let (handler, stream) = consume(3);
    let thread = produce_on_thread(arrays(&live, 9), &field(), CPU, handler, ProduceOptions::default()).unwrap();
    let arrays: Vec<_> = block_on(stream.try_collect()).unwrap();
    thread.join().unwrap();
    assert_eq!((arrays.len(), live.count()), (9, 9));
    drop(arrays);
    assert_eq!(live.count(), 0);
}

#[test]
fn arrays_need_not_be_record_batches() {
    let (handler, mut stream) = consume(1);
    let column = Int64Array::from(vec![Some(1), None]);
    let source = stream::iter([cpu::export_array(&column)]);
    let producer = produce(source, &cpu::field_of(&column), CPU, handler, ProduceOptions::default());
    block_on(future::join(producer, async {
        assert_eq!(*stream.field().await.unwrap(), cpu::field_of(&column));
        let error = stream.schema().await.unwrap_err().to_string();
        assert_eq!(error, "async stream: its arrays are Int64 and not record batches; use `field` instead of `schema`");
        let array = cpu::import_array(stream.next().await.unwrap().unwrap()).unwrap();
        assert_eq!(array.as_ref(), &column as &dyn arrow::array::Array);
    }));
}
