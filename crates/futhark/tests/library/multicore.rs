// SPDX-License-Identifier: Apache-2.0
//! Libraries of the back end `multicore`: host memory, and their own threads.

use futhark::manifest::Backend;
use futhark::{Context, ContextConfig, Library, Scalar, Value};

use crate::fixture::{Fixture, OutputStyle};

/// Threads of the fixture.
const THREADS: i64 = 4;

fn context(fixture: &Fixture) -> Context {
    // SAFETY: the manifest is the program's.
    let library = unsafe { Library::open(fixture.manifest()) }.unwrap();
    assert_eq!(library.manifest().backend, Backend::Multicore);
    Context::new(&library, ContextConfig::default()).unwrap()
}

#[test]
fn the_librarys_threads_share_the_work() {
    let fixture = Fixture::multicore();
    let context = context(&fixture);
    for (calls, len) in [0i32, 1, 3, 257, (1 << 17) + 1].into_iter().enumerate() {
        let xs: Vec<f64> = (0..len).map(f64::from).collect();
        let scaled = context.call("scale", vec![context.array(&[xs.len()], &xs).unwrap().into(), Scalar::F64(0.5).into()]);
        let scaled = scaled.unwrap();
        let [Value::Array(scaled)] = scaled.as_slice() else { panic!("{scaled:?}") };
        assert_eq!(scaled.to_vec::<f64>().unwrap(), xs.iter().map(|x| x * 0.5).collect::<Vec<_>>());
        assert_eq!(fixture.counter("fixture_slices"), THREADS * (calls as i64 + 1));
    }
    assert_eq!(fixture.counter("fixture_threads"), THREADS);
    drop(context);
    assert_eq!(fixture.counter("fixture_threads"), 0);
    fixture.assert_clean();
}

#[test]
fn the_thread_count_is_set() {
    let fixture = Fixture::multicore();
    let library = context(&fixture).library().clone();
    for (threads, are) in [(1, 1), (3, 3), (0, 1)] {
        let config = ContextConfig { threads: Some(threads), ..ContextConfig::default() };
        let context = Context::new(&library, config).unwrap();
        let total = context.call("sum", vec![context.array(&[5], &[1i64, 2, 3, 4, 5]).unwrap().into()]).unwrap();
        assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(15))]));
        assert_eq!(fixture.counter("fixture_threads"), are);
    }
    // Other back ends have none.
    let sequential = Fixture::new(OutputStyle::Outputs);
    // SAFETY: the manifest is the program's.
    let library = unsafe { Library::open(sequential.manifest()) }.unwrap();
    let error = Context::new(&library, ContextConfig { threads: Some(2), ..ContextConfig::default() }).unwrap_err();
    assert_eq!(error.to_string(), "a library of the back end c has no thread count to set");
}

#[test]
fn callers_threads_and_library_threads_do_not_clash() {
    let fixture = Fixture::multicore();
    let (one, other) = (context(&fixture), context(&fixture));
    std::thread::scope(|scope| {
        for context in [&one, &other, &one, &other] {
            scope.spawn(move || {
                for len in 0..200i64 {
                    let xs: Vec<i64> = (0..len).collect();
                    let total = context.call("sum", vec![context.array(&[xs.len()], &xs).unwrap().into()]).unwrap();
                    assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(total))] if *total == xs.iter().sum::<i64>()));
                }
            });
        }
    });
    assert_eq!(fixture.counter("fixture_threads"), 2 * THREADS);
    drop((one, other));
    assert_eq!(fixture.counter("fixture_threads"), 0);
    fixture.assert_clean();
}
