// SPDX-License-Identifier: Apache-2.0
//! Shared queues, raw values in and out, and rows as bytes.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, DictionaryArray, FixedSizeListArray, LargeStringArray, ListArray, RecordBatch, StringArray,
    StringViewArray,
};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use arrow::ffi::FFI_ArrowSchema;
use arrow::util::pretty::pretty_format_batches;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{cpu, schema};
use device::DriverKind;
use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::raw::*;
use devicefusion_capi::store::*;
use devicefusion_capi::table::*;

use crate::support::{Context, c, config, prices, thread_error};

/// The queue or stream that a context shares, and its driver.
fn shared(context: &Context) -> (*mut c_void, DriverKind) {
    let (opencl, cuda) = (devicefusion_context_get_command_queue(context.raw), devicefusion_context_get_cuda_stream(context.raw));
    assert!(opencl.is_null() != cuda.is_null());
    assert!(context.error().unwrap().contains("the context's device is "));
    if opencl.is_null() { (cuda, DriverKind::Cuda) } else { (opencl, DriverKind::OpenCl) }
}

fn share(config: *mut devicefusion_context_config, (queue, driver): (*mut c_void, DriverKind)) -> i32 {
    // SAFETY: the queue is live, or NULL.
    unsafe {
        match driver {
            DriverKind::OpenCl => devicefusion_context_config_set_command_queue(config, queue),
            DriverKind::Cuda => devicefusion_context_config_set_cuda_stream(config, queue),
        }
    }
}

/// The only array of a stream, with its schema.
fn only(stream: FFI_ArrowDeviceArrayStream) -> (FFI_ArrowDeviceArray, FFI_ArrowSchema) {
    // SAFETY: a stream from the library.
    let mut reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.unwrap();
    let columns = schema::export_field(reader.field()).unwrap();
    let array = reader.next().unwrap().unwrap().into_ffi();
    assert!(reader.next().is_none());
    (array, columns)
}

type RawValuesFunction = unsafe extern "C" fn(
    *mut devicefusion_context,
    *const FFI_ArrowDeviceArray,
    *const FFI_ArrowSchema,
    i64,
    *mut devicefusion_raw_values,
) -> i32;

fn call(
    function: RawValuesFunction,
    context: &Context,
    array: &FFI_ArrowDeviceArray,
    columns: &FFI_ArrowSchema,
    column: i64,
) -> Result<devicefusion_raw_values, String> {
    let mut out = std::mem::MaybeUninit::uninit();
    // SAFETY: structs from the library, and a pointer for the values, which are written on success.
    unsafe {
        match function(context.raw, array, columns, column, out.as_mut_ptr()) {
            0 => Ok(out.assume_init()),
            code => Err(context.failed(2, code)),
        }
    }
}

fn values(
    context: &Context,
    array: &FFI_ArrowDeviceArray,
    columns: &FFI_ArrowSchema,
    column: i64,
) -> Result<devicefusion_raw_values, String> {
    call(devicefusion_array_values_raw, context, array, columns, column)
}

fn elements(
    context: &Context,
    array: &FFI_ArrowDeviceArray,
    columns: &FFI_ArrowSchema,
    column: i64,
) -> Result<devicefusion_raw_values, String> {
    call(devicefusion_array_elements_raw, context, array, columns, column)
}

/// A `release` that counts its calls.
unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the counter outlives the context.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

struct Column(CString, CString, *mut c_void, *mut c_void);

impl Column {
    fn raw(&self) -> devicefusion_raw_column {
        let Column(name, format, memory, validity) = self;
        devicefusion_raw_column {
            name: name.as_ptr(),
            format: format.as_ptr(),
            memory: *memory,
            validity: *validity,
            data: ptr::null_mut(),
            data_bytes: 0,
            elements: ptr::null(),
            element_count: 0,
        }
    }
}

fn register_raw(context: &Context, columns: &[Column], length: i64, released: &AtomicUsize) -> i32 {
    let columns: Vec<_> = columns.iter().map(Column::raw).collect();
    register(context, &columns, length, released)
}

fn register(context: &Context, columns: &[devicefusion_raw_column], length: i64, released: &AtomicUsize) -> i32 {
    let data = ptr::from_ref(released).cast_mut().cast();
    // SAFETY: strings, memory and counter outlive the context.
    unsafe { devicefusion_register_raw(context.raw, c"raw".as_ptr(), columns.as_ptr(), columns.len(), length, Some(count), data) }
}

fn wait_for(released: &AtomicUsize) {
    for _ in 0..5000 {
        if released.load(Ordering::SeqCst) > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

#[test]
fn contexts_share_a_queue_and_with_it_memory() {
    let program = Context::new();
    let queue = shared(&program);
    assert_eq!(shared(&program), queue);
    let config = config();
    assert_eq!(share(config, queue), 0);
    let context = Context::of(config);
    assert_eq!(shared(&context), queue);

    program.ok(program.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let (mut array, mut columns) = only(program.query("SELECT items * 2 AS twice, price FROM t").device_stream());
    let raw = values(&program, &array, &columns, 0).unwrap();
    assert_eq!((raw.length, raw.bytes, raw.validity), (4, 32, ptr::null_mut()));
    let copies = || context.report()["copies"].clone();
    let before = copies();
    let released = AtomicUsize::new(0);
    let price = values(&program, &array, &columns, 1).unwrap();
    assert_eq!((raw.offset, price.offset, price.validity_offset), (0, 0, 0));
    let both = [Column(c("twice"), c("l"), raw.memory, raw.validity), Column(c("price"), c("g"), price.memory, price.validity)];
    context.ok(register_raw(&context, &both, 4, &released));
    // A few counts at most.
    let moved = |direction: &str| copies()[direction].as_u64().unwrap() - before[direction].as_u64().unwrap();
    assert!(moved("bytes_down") < 32, "{}", moved("bytes_down"));
    assert_eq!(context.rows("SELECT sum(twice), sum(price), count(price) FROM raw"), ["18 11.5 3"]);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    context.execute("DROP TABLE raw");
    wait_for(&released);
    // SAFETY: released once.
    unsafe {
        array.array.release.unwrap()(&raw mut array.array);
        columns.release.unwrap()(&raw mut columns);
    }
}

#[test]
fn unusable_queues_are_refused_when_they_are_set_or_opened() {
    let program = Context::new();
    let queue = shared(&program);
    let other = devicefusion_context_config_new();
    assert_eq!(share(other, (ptr::null_mut(), DriverKind::OpenCl)), 2);
    assert!(thread_error().contains("the cl_command_queue is NULL"));
    assert_eq!(share(other, (ptr::null_mut(), DriverKind::Cuda)), 2);
    assert!(thread_error().contains("the CUstream is NULL"));
    assert_eq!(share(program.config, queue), 2);
    assert!(thread_error().contains("frozen"));
    assert_eq!(share(ptr::null_mut(), queue), 2);
    assert_eq!(thread_error(), "the configuration is NULL");

    // The queue of one device, and the name of another.
    for (device, expected) in [("some other device", "the program's queue is one of #"), ("none", "device.selector = 'none'")] {
        assert_eq!(share(other, queue), 0);
        let device = c(device);
        // SAFETY: a C string.
        assert_eq!(unsafe { devicefusion_context_config_set_device(other, device.as_ptr()) }, 0);
        let context = devicefusion_context_new(other);
        let error = crate::support::take_string(devicefusion_context_get_error(context)).unwrap();
        assert!(error.contains(expected), "{error}");
        assert_eq!(devicefusion_context_free(context), 0);
    }
    assert_eq!(devicefusion_context_config_free(other), 0);

    let host = Context::on_host();
    assert!(devicefusion_context_get_command_queue(host.raw).is_null());
    assert_eq!(host.error().unwrap(), "the context has no device, so it has no queue");
    assert!(devicefusion_context_get_command_queue(ptr::null_mut()).is_null());
    assert_eq!(thread_error(), "the context is NULL");
}

#[test]
fn raw_values_are_those_of_slices_too_and_bad_ones_are_refused() {
    let context = Context::on_host();
    let batch = prices();
    let columns = schema::export_schema(&batch.schema()).unwrap();
    let mut array = cpu::export_batch(&batch.slice(1, 3)).unwrap();
    let raw = values(&context, &array, &columns, 1).unwrap();
    assert_eq!((raw.length, raw.bytes), (3, 24));
    let items = batch.column(1).as_primitive::<Int64Type>().values();
    assert_eq!(raw.memory.addr() + raw.offset, items[1..].as_ptr().addr());
    let raw = values(&context, &array, &columns, 2).unwrap();
    let price = batch.column(2).as_primitive::<Float64Type>();
    assert_eq!(raw.memory.addr() + raw.offset, price.values()[1..].as_ptr().addr());
    assert!(!raw.validity.is_null());

    let error = elements(&context, &array, &columns, 0).unwrap_err();
    assert_eq!(error, "column 0 \"city\" is Utf8, which has neither a dictionary nor elements");
    for column in [-1, 3] {
        let error = values(&context, &array, &columns, column).unwrap_err();
        assert_eq!(error, format!("there is no column {column}: the schema has 3, the array 3"));
    }
    let int = schema::export_field(&arrow::datatypes::Field::new("x", arrow::datatypes::DataType::Int64, false)).unwrap();
    assert!(values(&context, &array, &int, 0).unwrap_err().contains("is not that of a record batch"));
    let children = std::mem::replace(&mut array.array.children, ptr::null_mut());
    let error = values(&context, &array, &columns, 1).unwrap_err();
    assert_eq!(error, "the array does not have column 1: a pointer in its tables is NULL");
    array.array.children = children;
    // SAFETY: the array has three children.
    let child = unsafe { &mut **array.array.children.add(1) };
    let (release, length) = (child.release.take(), child.length);
    let error = values(&context, &array, &columns, 1).unwrap_err();
    assert!(error.ends_with("whose array has been released, or moved away"), "{error}");
    (child.release, child.length) = (release, -1);
    let error = values(&context, &array, &columns, 1).unwrap_err();
    assert!(error.ends_with("a length or offset of its array is negative"), "{error}");
    child.length = 0;
    let error = values(&context, &array, &columns, 1).unwrap_err();
    assert!(error.contains("which has 0 values; the batch has "), "{error}");
    child.length = length;
    // SAFETY: NULL pointers, which the test is about.
    unsafe {
        let mut out = std::mem::MaybeUninit::uninit();
        let call = |array, columns, out| context.failed(2, devicefusion_array_values_raw(context.raw, array, columns, 1, out));
        assert_eq!(call(ptr::null(), &raw const columns, out.as_mut_ptr()), "the array is NULL");
        assert_eq!(call(&raw const array, ptr::null(), out.as_mut_ptr()), "the schema is NULL");
        assert!(call(&raw const array, &raw const columns, ptr::null_mut()).contains("the pointer for the raw values"));
        array.device_type = ArrowDeviceType::VULKAN;
        assert!(call(&raw const array, &raw const columns, out.as_mut_ptr()).contains("the array is in memory of"));
        array.device_type = ArrowDeviceType::CPU;
        array.array.release.unwrap()(&raw mut array.array);
        assert!(call(&raw const array, &raw const columns, out.as_mut_ptr()).contains("has been released"));
    }
}

#[test]
fn without_a_device_raw_columns_are_memory_of_the_host() {
    let context = Context::on_host();
    let (mut items, validity, released) = ([3i64, 1, 4, 1], [0b1101u8; 8], AtomicUsize::new(0));
    let memory = items.as_mut_ptr().cast();
    let nulls = validity.as_ptr().cast_mut().cast();
    let columns = [Column(c("items"), c("l"), memory, ptr::null_mut()), Column(c("known"), c("l"), memory, nulls)];
    context.ok(register_raw(&context, &columns, 4, &released));
    assert_eq!(context.rows("SELECT sum(items), sum(known), count(known) FROM raw"), ["9 8 3"]);
    let again = AtomicUsize::new(0);
    let error = context.failed(2, register_raw(&context, &columns, 4, &again));
    assert_eq!(error, "the table raw exists already");
    wait_for(&again);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    context.execute("DROP TABLE raw");
    wait_for(&released);

    for (columns, length, expected) in [
        (vec![], 4, "a table needs columns, and there are none"),
        (vec![Column(c("x"), c("l"), memory, ptr::null_mut())], -1, "a table cannot have -1 rows"),
        (vec![Column(c("x"), c("n"), memory, ptr::null_mut())], 4, "column \"x\" is Null, which has no raw values"),
        (vec![Column(c("x"), c("+l"), memory, ptr::null_mut())], 4, "column \"x\" has lists, and its elements are NULL"),
        (
            vec![Column(c("x"), c("+w:2"), memory, ptr::null_mut())],
            4,
            "column \"x\" has the format \"+w:2\", which has no raw values",
        ),
        (vec![Column(c("x"), c("l"), ptr::null_mut(), ptr::null_mut())], 4, "the memory of column \"x\" is NULL"),
        (vec![Column(c("x"), c("nonsense"), memory, ptr::null_mut())], 4, "column \"x\" has the format \"nonsense\": "),
    ] {
        let released = AtomicUsize::new(0);
        let error = context.failed(2, register_raw(&context, &columns, length, &released));
        assert!(error.contains(expected), "{error}");
        wait_for(&released);
    }
    // Without a context as well.
    let released = AtomicUsize::new(0);
    let data = ptr::from_ref(&released).cast_mut().cast();
    // SAFETY: the counter outlives the call.
    let code = unsafe { devicefusion_register_raw(ptr::null_mut(), c"raw".as_ptr(), ptr::null(), 0, 0, Some(count), data) };
    assert_eq!((code, thread_error().as_str()), (2, "the context is NULL"));
    wait_for(&released);
}

#[test]
fn formats_that_no_value_can_have_are_refused_when_they_are_passed() {
    let mut memory = [0u64; 64];
    for context in [Context::new(), Context::on_host()] {
        for (format, problem) in [
            ("d:5,9", "scale 9 is greater than precision 5"),
            ("d:0,0", "precision cannot be 0"),
            ("d:39,2", "precision 39 is greater than max 38"),
            ("d:10,2,32", "precision 10 is greater than max 9"),
            ("d:19,2,64", "precision 19 is greater than max 18"),
            ("d:77,2,256", "precision 77 is greater than max 76"),
            ("d:9,2,16", "Only 32/64/128/256 bit wide decimals"),
            ("d:9", "The decimal pattern"),
            ("d:x,2", "integer precision"),
            ("w:0", "a value cannot have 0 bytes"),
            ("w:-4", "a value cannot have -4 bytes"),
            ("w:many", "integer parameter representing number of bytes"),
            ("tsu:Nowhere/Land", "Invalid timezone \"Nowhere/Land\""),
            ("tiX", "not supported"),
            ("", "not supported"),
        ] {
            let released = AtomicUsize::new(0);
            let column = Column(c("x"), c(format), memory.as_mut_ptr().cast(), ptr::null_mut());
            let error = context.failed(2, register_raw(&context, &[column], 4, &released));
            assert!(error.starts_with(&format!("column \"x\" has the format {format:?}: ")), "{error}");
            assert!(error.contains(problem), "{error}");
            wait_for(&released);
        }
    }
}

/// Reads values from host memory.
fn read<T: Copy>(memory: *mut c_void, offset: usize, count: usize) -> Vec<T> {
    // SAFETY: the library promises that many values.
    (0..count).map(|index| unsafe { memory.byte_add(offset).cast::<T>().add(index).read_unaligned() }).collect()
}

#[test]
fn raw_values_of_every_type_lie_where_the_library_says() {
    let context = Context::on_host();
    let truth = BooleanArray::from_iter((0..20).map(|i| (i != 12).then_some(i % 3 == 0)));
    let strings: Vec<_> = (0..20).map(|i| (i != 5).then(|| format!("text {i}, longer than twelve bytes"))).collect();
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>((0..20).map(|i| Some((0..i % 3).map(Some))));
    let pairs = FixedSizeListArray::from_iter_primitive::<Int64Type, _, _>((0..20).map(|i| Some([Some(i), Some(-i)])), 2);
    let terms: DictionaryArray<Int32Type> = (0..20).map(|i| if i % 2 == 0 { "even" } else { "odd" }).collect();
    let columns: [(&str, ArrayRef); 7] = [
        ("truth", Arc::new(truth)),
        ("text", Arc::new(StringArray::from(strings.clone()))),
        ("large", Arc::new(LargeStringArray::from(strings.clone()))),
        ("view", Arc::new(StringViewArray::from_iter(strings.clone()))),
        ("lists", Arc::new(lists)),
        ("pairs", Arc::new(pairs)),
        ("terms", Arc::new(terms)),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
    let schema = schema::export_schema(&batch.schema()).unwrap();
    let mut array = cpu::export_batch(&batch.slice(11, 6)).unwrap();
    let of = |column| values(&context, &array, &schema, column).unwrap();
    let within = |column| elements(&context, &array, &schema, column).unwrap();

    let raw = of(0);
    let bits: Vec<u8> = read(raw.memory, raw.offset, raw.bytes);
    let bit = |bits: &[u8], at: usize| bits[at / 8] >> (at % 8) & 1 == 1;
    assert_eq!((0..6).map(|i| bit(&bits, raw.bit + i)).collect::<Vec<_>>(), [false, false, false, false, true, false]);
    let known: Vec<u8> = read(raw.validity, 0, (raw.validity_offset + 6).div_ceil(8));
    assert_eq!((0..6).map(|i| bit(&known, raw.validity_offset + i)).collect::<Vec<_>>(), [true, false, true, true, true, true]);

    for (column, width) in [(1, 4), (2, 8)] {
        let raw = of(column);
        assert_eq!(raw.bytes, 7 * width);
        let offset = |at| match width {
            4 => read::<i32>(raw.memory, raw.offset, 7)[at] as usize,
            _ => read::<i64>(raw.memory, raw.offset, 7)[at] as usize,
        };
        let bytes: Vec<u8> = read(raw.data, offset(0), offset(1) - offset(0));
        assert_eq!(bytes, b"text 11, longer than twelve bytes");
    }
    let raw = of(3);
    let view: Vec<u32> = read(raw.memory, raw.offset, 4);
    assert_eq!((raw.bytes, view[0], view[2]), (6 * 16, 33, 0));
    assert!(raw.data_bytes >= view[3] as usize + 33);
    assert_eq!(read::<u8>(raw.data, view[3] as usize, 33), b"text 11, longer than twelve bytes");

    let (raw, inner) = (of(4), within(4));
    let offsets: Vec<i32> = read(raw.memory, raw.offset, 7);
    assert_eq!(offsets.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>(), [2, 0, 1, 2, 0, 1]);
    let first = inner.offset + 8 * offsets[0] as usize;
    assert_eq!(read::<i64>(inner.memory, first, 2), [0, 1]);
    let inner = within(5);
    assert_eq!((inner.length, read::<i64>(inner.memory, inner.offset, 3)), (12, vec![11, -11, 12]));
    let (raw, inner) = (of(6), within(6));
    assert_eq!((raw.bytes, read::<i32>(raw.memory, raw.offset, 2), inner.length), (24, vec![1, 0], 2));
    assert_eq!(read::<u8>(inner.data, 0, 7), b"evenodd");

    let error = values(&context, &array, &schema, 5).unwrap_err();
    assert!(error.contains("which has elements only: use devicefusion_array_elements_raw"), "{error}");
    // SAFETY: released once.
    unsafe { array.array.release.unwrap()(&raw mut array.array) };

    // The memory becomes a table again.
    let mut array = cpu::export_batch(&batch).unwrap();
    let raw = |column| values(&context, &array, &schema, column).unwrap();
    let inner = |column| elements(&context, &array, &schema, column).unwrap();
    let (numbers, spellings) = (inner(4), inner(6));
    let (l, u) = (c("l"), c("u"));
    let element = |format: &CString, raw: &devicefusion_raw_values| devicefusion_raw_column {
        name: ptr::null(),
        format: format.as_ptr(),
        memory: raw.memory,
        validity: raw.validity,
        data: raw.data,
        data_bytes: raw.data_bytes,
        elements: ptr::null(),
        element_count: 0,
    };
    let (numbers_of, spellings_of) = (element(&l, &numbers), element(&u, &spellings));
    let names = ["truth", "text", "large", "view", "lists", "terms"].map(c);
    let formats = ["b", "u", "U", "vu", "+l", "i"].map(c);
    let columns: Vec<_> = (0..6)
        .map(|index| {
            let mut column = element(&formats[index], &raw(if index == 5 { 6 } else { index as i64 }));
            column.name = names[index].as_ptr();
            match index {
                4 => (column.elements, column.element_count) = (&raw const numbers_of, numbers.length),
                5 => (column.elements, column.element_count) = (&raw const spellings_of, spellings.length),
                _ => {}
            }
            column
        })
        .collect();
    let released = AtomicUsize::new(0);
    context.ok(register(&context, &columns, 20, &released));
    let sql = "SELECT count(truth), count(*) FILTER (WHERE truth), max(text), min(large), max(view), sum(cardinality(lists)), min(terms) FROM raw";
    let least = "text 0, longer than twelve bytes";
    let most = "text 9, longer than twelve bytes";
    assert_eq!(context.rows(sql), [format!("19 6 {most} {least} {most} 19 even")]);
    context.execute("DROP TABLE raw");
    wait_for(&released);
    // Elements of a type without elements, and elements within elements.
    for (format, nested, expected) in
        [("g", false, "column \"x\" is Float64, which has no elements"), ("+l", true, "elements within elements")]
    {
        let (x, format, released) = (c("x"), c(format), AtomicUsize::new(0));
        let mut inner = element(&l, &numbers);
        inner.elements = if nested { &raw const numbers_of } else { ptr::null() };
        let mut column = element(&format, &numbers);
        (column.name, column.elements) = (x.as_ptr(), &raw const inner);
        let error = context.failed(2, register(&context, &[column], 2, &released));
        assert!(error.contains(expected), "{error}");
        wait_for(&released);
    }
    // SAFETY: released once.
    unsafe { array.array.release.unwrap()(&raw mut array.array) };
}

#[test]
fn nulls_among_a_raw_dictionarys_values_are_nulls() {
    let context = Context::on_host();
    let (codes, offsets, bytes, known) = ([0i32, 1, 2, 1], [0i32, 1, 1, 2], *b"ac", [0b101u8; 8]);
    let (name, i, u, released) = (c("x"), c("i"), c("u"), AtomicUsize::new(0));
    let strings = devicefusion_raw_column {
        name: ptr::null(),
        format: u.as_ptr(),
        memory: offsets.as_ptr().cast_mut().cast(),
        validity: known.as_ptr().cast_mut().cast(),
        data: bytes.as_ptr().cast_mut().cast(),
        data_bytes: 0,
        elements: ptr::null(),
        element_count: 0,
    };
    let column = devicefusion_raw_column {
        name: name.as_ptr(),
        format: i.as_ptr(),
        memory: codes.as_ptr().cast_mut().cast(),
        validity: ptr::null_mut(),
        data: ptr::null_mut(),
        elements: &raw const strings,
        element_count: 3,
        ..strings
    };
    // Offsets beyond the bytes.
    let (short, refused) = (devicefusion_raw_column { data_bytes: 1, ..strings }, AtomicUsize::new(0));
    let column_of_short = devicefusion_raw_column { elements: &raw const short, ..column };
    let error = context.failed(2, register(&context, &[column_of_short], 4, &refused));
    assert_eq!(error, "column \"item\" has values up to byte 2, of 1 bytes");
    wait_for(&refused);
    context.ok(register(&context, &[column], 4, &released));
    assert_eq!(context.rows("SELECT count(*) FILTER (WHERE x IS NULL), count(x), min(x), max(x) FROM raw"), ["2 2 a c"]);
    context.execute("DROP TABLE raw");
    wait_for(&released);
}

#[test]
fn booleans_and_texts_of_a_result_are_raw_columns_of_a_table() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let sql = "SELECT items > 2 AS many, price IS NULL AS free, arrow_cast(city, 'Utf8View') AS city, \
               concat(city, ', a city of some size') AS long FROM t";
    let (mut array, mut columns) = only(context.query(sql).device_stream());
    let formats: Vec<&str> = (0..4).map(|column| columns.child(column).format()).collect();
    let formats: Vec<CString> = formats.into_iter().map(c).collect();
    let names = ["many", "free", "city", "long"].map(c);
    let column = |index: usize| {
        let raw = values(&context, &array, &columns, index as i64).unwrap();
        assert_eq!((raw.length, raw.offset, raw.bit), (4, 0, 0));
        devicefusion_raw_column {
            name: names[index].as_ptr(),
            format: formats[index].as_ptr(),
            memory: raw.memory,
            validity: raw.validity,
            data: raw.data,
            data_bytes: raw.data_bytes,
            elements: ptr::null(),
            element_count: 0,
        }
    };
    let raw: Vec<_> = (0..4).map(column).collect();
    let released = AtomicUsize::new(0);
    context.ok(register(&context, &raw, 4, &released));
    let sql = "SELECT city, many, free, long FROM raw ORDER BY city, many";
    let rows = context.rows(sql);
    let long = "a city of some size";
    let expected = [
        format!("Bern true false Bern, {long}"),
        format!("Oslo false true Oslo, {long}"),
        format!("Oslo false false Oslo, {long}"),
        format!(" true false , {long}"),
    ];
    let sorted = |mut rows: Vec<String>| {
        rows.sort();
        rows
    };
    assert_eq!(sorted(rows), sorted(expected.to_vec()));
    context.execute("DROP TABLE raw");
    wait_for(&released);
    // SAFETY: released once.
    unsafe {
        array.array.release.unwrap()(&raw mut array.array);
        columns.release.unwrap()(&raw mut columns);
    }
}

/// The rows of a stream as an IPC stream.
fn store(context: &Context, mut stream: FFI_ArrowDeviceArrayStream) -> Vec<u8> {
    let (mut bytes, mut size) = (ptr::null_mut(), 0);
    // SAFETY: a stream from the library, and pointers for the bytes, which are copied and freed
    // once.
    unsafe {
        context.ok(devicefusion_store(context.raw, &raw mut stream, &raw mut bytes, &raw mut size));
        assert!(stream.release.is_none());
        let copy = std::slice::from_raw_parts(bytes.cast::<u8>(), size).to_vec();
        libc::free(bytes);
        copy
    }
}

fn restore(context: &Context, bytes: &[u8]) -> Result<FFI_ArrowDeviceArrayStream, String> {
    let mut stream = FFI_ArrowDeviceArrayStream::empty();
    // SAFETY: bytes with their length, and a pointer for the stream.
    match unsafe { devicefusion_restore(context.raw, bytes.as_ptr().cast(), bytes.len(), &raw mut stream) } {
        0 => Ok(stream),
        code => Err(context.failed(2, code)),
    }
}

fn sum_of(context: &Context, mut stream: FFI_ArrowDeviceArrayStream) -> Vec<String> {
    let kind = DEVICEFUSION_TABLE_HOST;
    let kind = if context.report()["device"].is_null() { kind } else { DEVICEFUSION_TABLE_DEVICE };
    // SAFETY: a C string and a stream from the library.
    context.ok(unsafe { devicefusion_register_device_stream(context.raw, c"back".as_ptr(), &raw mut stream, kind) });
    let rows = context.rows("SELECT count(*), count(city), sum(items), sum(price) FROM back");
    context.execute("DROP TABLE back");
    rows
}

/// Reads a stream in host memory to its end, and formats each value. Returns the number of rows.
fn read_to_the_end(stream: FFI_ArrowDeviceArrayStream) -> Result<usize, Box<dyn std::error::Error>> {
    // SAFETY: a stream from the library.
    let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }?;
    let batches = cpu::import_reader(reader)?.collect::<Result<Vec<RecordBatch>, _>>()?;
    let table = pretty_format_batches(&batches)?.to_string();
    Ok(table.lines().skip(3).filter(|line| line.starts_with('|')).count())
}

#[test]
fn rows_are_stored_as_bytes_and_restored_anywhere() {
    let (context, host) = (Context::new(), Context::on_host());
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let bytes = store(&context, context.query("SELECT * FROM t").device_stream());
    for target in [&context, &host] {
        assert_eq!(sum_of(target, restore(target, &bytes).unwrap()), ["4 3 9 11.5"]);
    }
    let many = "SELECT CAST(value AS VARCHAR) AS city, value AS items, 0.5 AS price FROM generate_series(1, 131073)";
    let bytes = store(&context, context.query(many).device_stream());
    for target in [&host, &context] {
        assert_eq!(sum_of(target, restore(target, &bytes).unwrap()), ["131073 131073 8590131201 65536.5"]);
    }
    // Empty, and from the host.
    let bytes = store(&context, context.query("SELECT * FROM t WHERE items > 100").device_stream());
    assert_eq!(sum_of(&context, restore(&context, &bytes).unwrap()), ["0 0  "]);
    let field = schema::batch_field(&prices().schema());
    let arrays = export_iterator(&field, ArrowDeviceType::CPU, [prices(), prices()].map(|batch| cpu::export_batch(&batch)));
    let bytes = store(&host, arrays.unwrap());
    assert_eq!(sum_of(&context, restore(&context, &bytes).unwrap()), ["8 6 18 23.0"]);

    let error = restore(&context, b"nonsense").map(drop).unwrap_err();
    assert!(error.starts_with("the bytes are not an IPC stream: "), "{error}");
    let error = restore(&context, &bytes[..bytes.len() / 2]).map(drop).unwrap_err();
    assert!(error.starts_with("the bytes are not an IPC stream: "), "{error}");
    // A damaged byte gives other rows, which can be read, or a program error.
    let mut rows = 0;
    for at in 0..bytes.len().min(1500) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0xff;
        match restore(&host, &damaged) {
            Ok(stream) => rows += read_to_the_end(stream).unwrap_or_else(|error| panic!("byte {at}: {error}")),
            Err(error) => assert!(error.starts_with("the bytes are not an IPC stream: "), "byte {at}: {error}"),
        }
    }
    assert!(rows > 0, "no damaged bytes are accepted");
    // SAFETY: pointers to nothing or to released structs, which the test is about.
    unsafe {
        let mut stream = FFI_ArrowDeviceArrayStream::empty();
        let (mut bytes, mut size) = (ptr::null_mut(), 0);
        let code = devicefusion_store(context.raw, &raw mut stream, &raw mut bytes, &raw mut size);
        assert_eq!(context.failed(2, code), "the stream has been released, or moved away");
        let code = devicefusion_store(context.raw, ptr::null_mut(), &raw mut bytes, &raw mut size);
        assert_eq!(context.failed(2, code), "the stream is NULL");
        let code = devicefusion_restore(context.raw, ptr::null(), 8, &raw mut stream);
        assert_eq!(context.failed(2, code), "the bytes are NULL");
        let code = devicefusion_restore(context.raw, [0u8; 8].as_ptr().cast(), 8, ptr::null_mut());
        assert!(context.failed(2, code).contains("the pointer for the stream"));
    }
    let mut stream = context.query("SELECT * FROM t").device_stream();
    // SAFETY: a stream from the library; the pointer for the bytes is NULL.
    let code = unsafe { devicefusion_store(context.raw, &raw mut stream, ptr::null_mut(), ptr::null_mut()) };
    assert!(context.failed(2, code).contains("the pointer for the bytes"));
    assert!(stream.release.is_none());
}
