// SPDX-License-Identifier: Apache-2.0
//! Arrays and opaque values: round trips, and frees at the right time.

use futhark::{Array, Context, ContextConfig, Element, Error, Scalar, Value};
use half::f16;

use crate::fixture::{Fixture, OutputStyle};

fn context(fixture: &Fixture) -> Context {
    // SAFETY: the manifest is the program's.
    let library = unsafe { futhark::Library::open(fixture.manifest()) }.unwrap();
    Context::new(&library, ContextConfig::default()).unwrap()
}

fn check<T: Element + PartialEq + std::fmt::Debug>(context: &Context, values: [T; 12]) {
    for shape in [vec![12], vec![3, 4], vec![2, 3, 2]] {
        let array = context.array(&shape, &values).unwrap();
        assert_eq!(array.shape(), shape);
        assert_eq!(array.element(), T::PRIMITIVE);
        assert_eq!(array.type_name(), format!("{}{}", "[]".repeat(shape.len()), T::PRIMITIVE.name()));
        assert_eq!(array.to_vec::<T>().unwrap(), values);
    }
    let empty = context.array::<T>(&[0], &[]).unwrap();
    assert_eq!(empty.to_vec::<T>().unwrap(), []);
}

#[test]
fn arrays_of_all_types_and_ranks_round_trip() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    check(&context, [i8::MIN, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, i8::MAX]);
    check(&context, [i16::MIN, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, i16::MAX]);
    check(&context, [i32::MIN, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, i32::MAX]);
    check(&context, [i64::MIN, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, i64::MAX]);
    check(&context, [0u8, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, u8::MAX]);
    check(&context, [0u16, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, u16::MAX]);
    check(&context, [0u32, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, u32::MAX]);
    check(&context, [0u64, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, u64::MAX]);
    check(&context, [0.0, -0.0, 1.5, -2.0, 65504.0, 6e-8, 3.0, 4.0, 5.0, 6.0, 7.0, f32::INFINITY].map(f16::from_f32));
    check(&context, [0.0f32, -0.0, 1.5, -2.0, f32::MAX, f32::MIN_POSITIVE, 3.0, 4.0, 5.0, 6.0, 7.0, f32::INFINITY]);
    check(&context, [0.0f64, -0.0, 1.5, -2.0, f64::MAX, f64::MIN_POSITIVE, 3.0, 4.0, 5.0, 6.0, 7.0, f64::INFINITY]);
    check(&context, [true, false, false, true, true, true, false, false, false, true, false, true]);
    drop(context);
    fixture.assert_clean();
}

#[test]
fn bytes_other_than_0_and_1_become_true() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let array = context.array_of_bytes(futhark::Primitive::Bool, &[3], &[0, 2, 255]).unwrap();
    assert_eq!(array.to_vec::<bool>().unwrap(), [false, true, true]);
}

#[test]
fn unfit_memory_is_refused() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let problem = |result: futhark::Result<Array>| result.unwrap_err().to_string();
    assert_eq!(problem(context.array(&[3], &[1i32, 2])), "8 bytes do not fit i32 with the shape [3]");
    assert!(problem(context.array(&[usize::MAX, usize::MAX], &[1i32])).contains("do not fit i32"));
    assert_eq!(problem(context.array(&[1, 1, 1, 1], &[1i32])), "the library has no arrays of type [][][][]i32");
    let bytes = [0u64; 2];
    // SAFETY: within the vector, whose bytes are valid for every element type.
    let skewed = unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>().add(1), 8) };
    assert_eq!(problem(context.array_of_bytes(futhark::Primitive::I64, &[1], skewed)), "memory is not aligned for i64");
    let array = context.array(&[1], &[1i32]).unwrap();
    assert_eq!(array.to_vec::<u32>().unwrap_err().to_string(), "an array of i32 is read as u32");
    assert!(array.read(&mut [0; 3]).is_err());
}

#[test]
fn records_are_built_and_projected() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let made = context.call("listing", vec![Scalar::I64(3).into()]).unwrap();
    let [Value::Opaque(table)] = made.as_slice() else { panic!("{made:?}") };
    assert_eq!(table.type_name(), "table");
    let fields = table.fields().unwrap();
    let again = context.record("table", &fields).unwrap();
    // Fields outlive their record, and the reverse.
    drop((made, fields));
    let fields = again.fields().unwrap();
    drop(again);
    let [Value::Array(even), Value::Array(half), Value::Array(key)] = fields.as_slice() else { panic!("{fields:?}") };
    assert_eq!(even.to_vec::<bool>().unwrap(), [true, false, true]);
    assert_eq!(half.to_vec::<f64>().unwrap(), [0.0, 0.5, 1.0]);
    assert_eq!(key.to_vec::<i64>().unwrap(), [0, 1, 2]);

    let rect = context.record("rect", &[Scalar::F64(2.0).into(), Scalar::F64(3.5).into()]).unwrap();
    assert!(matches!(rect.fields().unwrap().as_slice(), [Value::Scalar(Scalar::F64(2.0)), Value::Scalar(Scalar::F64(3.5))]));
    let problem = |result: futhark::Result<futhark::Opaque>| result.unwrap_err().to_string();
    assert_eq!(problem(context.record("rect", &[])), "futhark_new_opaque_rect takes 2 arguments, not 0");
    assert_eq!(problem(context.record("answer", &[])), "answer is not a record");
    assert_eq!(problem(context.record("circle", &[])), "circle is not an opaque type of the library");
    let area = context.call("area", vec![rect.into()]).unwrap();
    assert!(matches!(area.as_slice(), [Value::Scalar(Scalar::F64(7.0))]));
    drop((context, fields));
    fixture.assert_clean();
}

#[test]
fn arrays_of_records_are_zipped_and_projected() {
    let fixture = Fixture::new(OutputStyle::Output);
    let context = context(&fixture);
    let keys = context.array(&[2], &[3i64, 4]).unwrap();
    let values = context.array(&[2], &[0.5, 2.0]).unwrap();
    let grades = context.record("[]grade", &[keys.into(), values.into()]).unwrap();
    let fields = grades.fields().unwrap();
    let scored = context.call("score", vec![grades.into()]).unwrap();
    let ([Value::Array(score)], [Value::Array(keys), Value::Array(values)]) = (scored.as_slice(), fields.as_slice()) else {
        panic!("{scored:?}, {fields:?}")
    };
    assert_eq!(score.to_vec::<f64>().unwrap(), [1.5, 8.0]);
    assert_eq!((keys.to_vec::<i64>().unwrap(), values.to_vec::<f64>().unwrap()), (vec![3, 4], vec![0.5, 2.0]));
    let short = context.array(&[1], &[0.5]).unwrap();
    let error = context.record("[]grade", &[context.array(&[2], &[3i64, 4]).unwrap().into(), short.into()]).unwrap_err();
    assert_eq!(error.to_string(), "futhark_zip_opaque_arr1d_grade: Error: key and value differ in size");
    drop((context, scored, fields));
    fixture.assert_clean();
}

#[test]
fn sums_are_constructed_and_destructed() {
    let fixture = Fixture::new(OutputStyle::Output);
    let context = context(&fixture);
    let classify = |x| {
        let mut made = context.call("classify", vec![Scalar::I64(x).into()]).unwrap();
        let Some(Value::Opaque(answer)) = made.pop() else { panic!("{made:?}") };
        answer
    };
    assert!(matches!(classify(-5).variant().unwrap(), (0, payload) if payload.is_empty()));
    let (number, payload) = classify(4).variant().unwrap();
    assert_eq!(number, 1);
    let [Value::Scalar(Scalar::I64(4)), Value::Array(array)] = payload.as_slice() else { panic!("{payload:?}") };
    assert_eq!(array.to_vec::<i64>().unwrap(), [0, 1, 2, 3]);

    let made = context.variant("answer", 1, &payload).unwrap();
    drop(payload);
    let described = context.call("describe", vec![made.into()]).unwrap();
    assert!(matches!(described.as_slice(), [Value::Scalar(Scalar::I64(404))]));
    let none = context.variant("answer", 0, &[]).unwrap();
    assert!(matches!(context.call("describe", vec![none.into()]).unwrap().as_slice(), [Value::Scalar(Scalar::I64(-1))]));
    assert_eq!(context.variant("answer", 2, &[]).unwrap_err().to_string(), "the type answer has 2 variants, not 2");
    assert_eq!(classify(1).fields().unwrap_err().to_string(), "answer is not a record");
    drop(context);
    fixture.assert_clean();
}

#[test]
fn stored_values_are_restored() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let rect = context.record("rect", &[Scalar::F64(2.0).into(), Scalar::F64(3.5).into()]).unwrap();
    let bytes = rect.store().unwrap();
    drop(rect);
    // SAFETY: the bytes of a value of this type.
    let rect = unsafe { context.restore("rect", &bytes) }.unwrap();
    assert!(matches!(context.call("area", vec![rect.into()]).unwrap().as_slice(), [Value::Scalar(Scalar::F64(7.0))]));
    drop(context);
    fixture.assert_clean();
}

#[test]
fn only_sealed_values_are_unsealed() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let rect = context.record("rect", &[Scalar::F64(2.0).into(), Scalar::F64(3.5).into()]).unwrap();
    let sealed = rect.seal().unwrap();
    drop(rect);
    let again = context.unseal("rect", &sealed).unwrap();
    assert!(matches!(context.call("area", vec![again.into()]).unwrap().as_slice(), [Value::Scalar(Scalar::F64(7.0))]));
    let mut other = sealed.clone();
    *other.last_mut().unwrap() ^= 1;
    // SAFETY: the manifest is the program's.
    let elsewhere = unsafe { futhark::Library::open(fixture.manifest()) }.unwrap();
    let elsewhere = Context::new(&elsewhere, ContextConfig::default()).unwrap();
    for (context, of, bytes) in [
        (&context, "rect", &other[..]),
        (&context, "span", &sealed),
        (&elsewhere, "rect", &sealed),
        (&context, "rect", &sealed[..9]),
    ] {
        let error = context.unseal(of, bytes).unwrap_err();
        assert_eq!(error.to_string(), format!("these bytes are not a value of type {of} from this library"));
    }
    drop((context, elsewhere));
    fixture.assert_clean();
}

#[test]
fn values_keep_their_context_alive() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let array = context.array(&[2], &[1i64, 2]).unwrap();
    drop(context);
    assert_eq!(fixture.counter("fixture_contexts"), 1);
    assert_eq!(array.to_vec::<i64>().unwrap(), [1, 2]);
    drop(array);
    fixture.assert_clean();
}

#[test]
fn drop_waits_for_no_other_thread() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    let context = context(&fixture);
    let array = context.array(&[2], &[1i64, 2]).unwrap();
    context.locked(|| {
        // A drop that waits would deadlock: this thread waits for it.
        std::thread::scope(|scope| scope.spawn(|| drop(array)).join().unwrap());
        assert_eq!(fixture.counter("fixture_freed"), 0);
    });
    context.sync().unwrap();
    assert_eq!(fixture.counter("fixture_freed"), 1);
    drop(context);
    fixture.assert_clean();
}

#[test]
fn out_of_memory_is_reported() {
    let fixture = Fixture::new(OutputStyle::Outputs);
    // SAFETY: the manifest is the program's.
    let library = unsafe { futhark::Library::open(fixture.manifest()) }.unwrap();
    let config = ContextConfig { tuning: vec![("program.memory".to_owned(), 100)], ..ContextConfig::default() };
    let context = Context::new(&library, config).unwrap();
    let error = context.array(&[100], &[0i64; 100]).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    assert_eq!(error.to_string(), "making an array of type []i64: out of memory: the array is larger than the memory");
    context.array(&[10], &[0i64; 10]).unwrap();
    drop((context, library));
    fixture.assert_clean();
}
