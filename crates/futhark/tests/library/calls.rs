// SPDX-License-Identifier: Apache-2.0
//! Calls of entry points: arguments, results, failures, consumption.

use futhark::{Argument, Context, ContextConfig, Error, Library, Scalar, Value};
use half::f16;

use crate::fixture::{Fixture, OutputStyle};

fn library(fixture: &Fixture) -> Library {
    // SAFETY: the manifest is the program's.
    unsafe { Library::open(fixture.manifest()) }.unwrap()
}

fn context(fixture: &Fixture) -> Context {
    Context::new(&library(fixture), ContextConfig::default()).unwrap()
}

fn numbers(context: &Context, values: &[i64]) -> Value {
    context.array(&[values.len()], values).unwrap().into()
}

#[track_caller]
fn vector(value: &Value) -> Vec<i64> {
    let Value::Array(array) = value else { panic!("{value:?}") };
    array.to_vec().unwrap()
}

#[test]
fn arrays_and_scalars_go_in_and_come_out() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let prices = context.array(&[3], &[1.0, 2.0, 4.0]).unwrap();
    let scaled = context.call("scale", vec![prices.into(), Scalar::F64(0.5).into()]).unwrap();
    let [Value::Array(scaled)] = scaled.as_slice() else { panic!("{scaled:?}") };
    assert_eq!(scaled.to_vec::<f64>().unwrap(), [0.5, 1.0, 2.0]);

    let (xs, ys) = (numbers(&context, &[1, 2, 3]), numbers(&context, &[10, 20, 30]));
    // Borrowed arguments can be reused.
    for _ in 0..2 {
        assert_eq!(vector(&context.call("add", vec![(&xs).into(), (&ys).into()]).unwrap()[0]), [11, 22, 33]);
    }
    assert!(matches!(context.call("sum", vec![(&xs).into()]).unwrap().as_slice(), [Value::Scalar(Scalar::I64(6))]));
    assert!(matches!(
        context.call("triple", vec![Scalar::I32(-7).into()]).unwrap().as_slice(),
        [Value::Scalar(Scalar::I32(-21))]
    ));
    let positives = context.call("positives", vec![numbers(&context, &[3, -1, 0, 5]).into()]).unwrap();
    assert_eq!(vector(&positives[0]), [3, 5]);
    drop((context, xs, ys, positives));
    // `scaled` is still alive.
    assert_eq!(fixture.counter("fixture_contexts"), 1);
}

#[test]
fn scalars_of_all_widths_are_passed_as_c_passes_them() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let (xs, ys) = (numbers(&context, &[0; 3]), numbers(&context, &[0; 4]));
    let arguments: Vec<Argument<'_>> = vec![
        Scalar::I8(-100).into(),
        xs.into(),
        Scalar::F32(0.5).into(),
        Scalar::U16(60_000).into(),
        Scalar::Bool(true).into(),
        Scalar::F16(f16::ONE).into(),
        Scalar::F64(0.25).into(),
        Scalar::I64(-5_000_000_000).into(),
        Scalar::U8(250).into(),
        Scalar::I32(-2_000_000_000).into(),
        Scalar::F32(0.125).into(),
        Scalar::U64(1 << 40).into(),
        ys.into(),
        Scalar::I16(-30_000).into(),
        Scalar::U32(4_000_000_000).into(),
        Scalar::F64(1e-3).into(),
        Scalar::F32(2.0).into(),
    ];
    let expected = -100.0 + 3.0 + 0.5 + 60_000.0 + 1.0 + 1.0 + 0.25 - 5e9 + 250.0 - 2e9 + 0.125 + (1u64 << 40) as f64 + 4.0
        - 30_000.0
        + 4e9
        + 1e-3
        + 2.0;
    let mixed = context.call("mix", arguments).unwrap();
    let [Value::Scalar(Scalar::F64(mixed))] = mixed.as_slice() else { panic!("{mixed:?}") };
    assert!((mixed - expected).abs() < 1e-3, "{mixed}, not {expected}");
    drop(context);
    fixture.assert_clean();
}

#[test]
fn several_results_work_in_both_styles() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let fixture = Fixture::new(style);
        let context = context(&fixture);
        let mut results = context.call("divmod", vec![numbers(&context, &[7, 9]).into(), Scalar::I64(4).into()]).unwrap();
        if let [Value::Opaque(tuple)] = results.as_slice() {
            results = tuple.fields().unwrap();
        }
        assert_eq!(results.iter().map(vector).collect::<Vec<_>>(), [[1, 2], [3, 1]]);
        let error = context.call("divmod", vec![numbers(&context, &[7]).into(), Scalar::I64(0).into()]).unwrap_err();
        assert_eq!(error.to_string(), "futhark_entry_divmod: Error: division by zero");
        drop((context, results));
        fixture.assert_clean();
    }
}

#[test]
fn failures_are_reported_at_the_call_or_at_the_wait() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let fail = |entry: &str| context.call(entry, vec![numbers(&context, &[1, -1]).into()]).unwrap_err();
    let at_once = fail("checked");
    assert!(matches!(at_once, Error::Program { .. }), "{at_once}");
    assert_eq!(at_once.to_string(), "futhark_entry_checked: Error: assertion failed");
    // The entry point succeeds and returns a result, but waiting fails.
    let late = fail("late");
    assert!(matches!(late, Error::Program { .. }), "{late}");
    assert_eq!(late.to_string(), "futhark_entry_late: Error: the kernel failed");
    let hungry = fail("hungry");
    assert!(matches!(hungry, Error::OutOfMemory { .. }), "{hungry}");
    assert_eq!(hungry.to_string(), "futhark_entry_hungry: out of memory: no memory for 1 TiB");
    // The context stays usable.
    assert_eq!(vector(&context.call("checked", vec![numbers(&context, &[1]).into()]).unwrap()[0]), [1]);
    context.sync().unwrap();
    drop(context);
    fixture.assert_clean();
}

#[test]
fn consumed_arguments_must_be_owned_and_unshared() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let problem = |argument: Argument<'_>| context.call("bump", vec![argument]).unwrap_err().to_string();
    let own = numbers(&context, &[1, 2]);
    assert_eq!(problem((&own).into()), "bump consumes argument 1, which must be owned, not borrowed");
    // `checked` returns its argument's memory.
    let alias = context.call("checked", vec![(&own).into()]).unwrap().pop().unwrap();
    assert_eq!(problem(own.into()), "bump consumes argument 1, which shares its memory with another value");
    // The refused value is freed, and the other one has the memory alone.
    let bumped = context.call("bump", vec![alias.into()]).unwrap();
    assert_eq!(vector(&bumped[0]), [2, 3]);
    // A unique result can be consumed at once.
    assert_eq!(vector(&context.call("bump", bumped.into_iter().map(Argument::from).collect()).unwrap()[0]), [3, 4]);
    // So can a field, once its record and the other fields are freed.
    let made = context.call("listing", vec![Scalar::I64(2).into()]).unwrap();
    let [Value::Opaque(table)] = made.as_slice() else { panic!("{made:?}") };
    let key = table.fields().unwrap().pop().unwrap();
    assert!(problem(key.into()).contains("shares its memory"));
    let key = table.fields().unwrap().pop().unwrap();
    drop(made);
    assert_eq!(vector(&context.call("bump", vec![key.into()]).unwrap()[0]), [1, 2]);
    drop(context);
    fixture.assert_clean();
}

#[test]
fn unfit_arguments_never_reach_the_library() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let (context, other) = (context(&fixture), context(&fixture));
    let problem = |entry: &str, arguments| context.call(entry, arguments).unwrap_err().to_string();
    assert!(problem("summ", vec![]).starts_with("there is no entry point summ; there are add, any_set, area, "));
    assert_eq!(problem("sum", vec![]), "sum takes 1 arguments, not 0");
    assert_eq!(problem("sum", vec![Scalar::I64(1).into()]), "argument 1 of sum is of type i64, must be []i64");
    let floats = context.array(&[1], &[1.0f64]).unwrap();
    assert_eq!(problem("sum", vec![floats.into()]), "argument 1 of sum is of type []f64, must be []i64");
    let foreign = numbers(&other, &[1]);
    assert_eq!(problem("sum", vec![(&foreign).into()]), "argument 1 of sum belongs to another context");
    drop((context, foreign, other));
    fixture.assert_clean();
}

#[test]
fn threads_are_serialised() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    std::thread::scope(|scope| {
        for thread in 0..4i64 {
            let context = &context;
            scope.spawn(move || {
                for round in 0..200 {
                    let xs: Vec<i64> = (0..round % 17).map(|value| value * thread).collect();
                    let total = context.call("sum", vec![numbers(context, &xs).into()]).unwrap();
                    assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(total))] if *total == xs.iter().sum::<i64>()));
                }
            });
        }
    });
    drop(context);
    fixture.assert_clean();
}
