// SPDX-License-Identifier: Apache-2.0
//! Injected device failures, at each call in turn.

use std::time::Duration;

use arrow::datatypes::DataType;
use device::testing::Fault;

use super::data::{Nulls, array, generator, random_chunks};
use super::*;
use crate::{BatchCoalescer, Error, exchange};

#[test]
fn the_nth_refusal_is_an_error_and_leaves_nothing_behind() {
    let mut rng = generator();
    let types = [DataType::Int64, DataType::Utf8View, DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))];
    for (fault, data_type) in [Fault::Alloc, Fault::Copy].into_iter().flat_map(|fault| types.iter().map(move |ty| (fault, ty))) {
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let context = Context::new(config().with_wrap(plan.wrap())).unwrap();
        let queue = context.queue().unwrap();
        let array = array(data_type, 1000, Nulls::Some, &mut rng);
        let parts = random_chunks(&array, &mut rng);
        let mut refused = 0;
        loop {
            context.trim();
            plan.fail(fault, refused + 1, u64::MAX);
            let coalesced = || {
                let schema = schema_of(&array);
                let mut coalescer = BatchCoalescer::new(&queue, &schema, &natural_types(&schema)?, array.len());
                parts.iter().try_for_each(|part| coalescer.push(batch_of(part)))?;
                coalescer.finish()?.into_iter().try_for_each(|batch| down(&queue, &batch).map(drop))
            };
            let result = up(&queue, &parts).and_then(|batch| down(&queue, &batch)).and_then(|back| coalesced().map(|()| back));
            plan.heal();
            match result {
                Err(error) => assert!(matches!(error, Error::Device(_)), "{data_type}: {error}"),
                Ok(back) => {
                    assert_same(&back, &array, data_type);
                    break;
                }
            }
            refused += 1;
            assert!(refused < 1000, "{data_type}: never works");
        }
        assert!(refused > 1, "{data_type}: nothing was refused");
        drop((queue, context));
        plan.wait_until_nothing_is_alive(Duration::from_secs(10)).unwrap();
    }
}

/// Failures of the export's own event, and of the work that writes the batch.
#[test]
fn failed_events_fail_exports_and_leave_nothing_behind() {
    let mut rng = generator();
    let array = array(&DataType::Utf8, 1000, Nulls::Some, &mut rng);
    for fault in [Fault::Record, Fault::Wait] {
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let context = Context::new(config().with_wrap(plan.wrap())).unwrap();
        let queue = context.queue().unwrap();
        let work_fails = fault == Fault::Wait;
        plan.fail(fault, u64::from(work_fails), u64::MAX);
        let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
        assert_eq!(block_on(queue.finish()).is_err(), work_fails);
        plan.fail(fault, 1, u64::MAX);
        let refused = exchange::export(&queue, &batch);
        assert!(matches!(refused, Err(Error::Device(_))), "{fault:?}: {refused:?}");
        let refused = block_on(exchange::export_to_host(&queue, &batch));
        assert!(matches!(refused, Err(Error::Device(_))), "{fault:?}: {refused:?}");
        plan.heal();
        drop((batch, queue, context));
        plan.wait_until_nothing_is_alive(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn the_nth_refusal_fails_an_export_to_the_host() {
    let mut rng = generator();
    let array = array(&DataType::Utf8, 1000, Nulls::Some, &mut rng);
    // Three buffers; one fence after the last copy may serve all of them.
    for (fault, least) in [(Fault::Alloc, 3), (Fault::Copy, 3), (Fault::Record, 1)] {
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let context = Context::new(config().with_wrap(plan.wrap())).unwrap();
        let queue = context.queue().unwrap();
        let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
        let mut refused = 0;
        loop {
            block_on(queue.finish()).unwrap();
            context.trim();
            plan.fail(fault, refused + 1, u64::MAX);
            let exported = block_on(exchange::export_to_host(&queue, &batch));
            plan.heal();
            match exported {
                Err(error) => assert!(matches!(error, Error::Device(_)), "{fault:?}: {error}"),
                Ok(_) => break,
            }
            refused += 1;
            assert!(refused < 100, "{fault:?}: never works");
        }
        assert!(refused >= least, "{fault:?}: {refused} refusals");
        drop((batch, queue, context));
        plan.wait_until_nothing_is_alive(Duration::from_secs(10)).unwrap();
    }
}
