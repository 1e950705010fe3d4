// SPDX-License-Identifier: Apache-2.0
//! Random wrong arrays, schemas and streams of C, through every way in.
//!
//! A producer in C cannot be trusted, but it must be believed where an importer cannot look. The
//! interface passes addresses without sizes, so an importer sees these lies:
//! - Counts, lengths, offsets, null counts and flags that cannot be, or do not fit each other.
//! - NULL and misaligned pointers, released structs, missing callbacks, memory of other devices.
//! - Formats, names and metadata that are not what the interface defines.
//! - Children that are too short. A child says how long it is.
//! - Values against their type or their neighbours: offsets, sizes, views, codes, run ends, type
//!   ids, UTF-8. Variadic buffers have stated lengths.
//!
//! It cannot see:
//! - A pointer to memory of something else, and a text without an end.
//! - A table that is shorter than its count.
//! - A buffer that is shorter than length, offset and type require.
//! - A string buffer that ends before its last offset, a variadic buffer shorter than stated.
//! - Metadata that ends before its own lengths do.
//!
//! So each input is a random array and some lies ([`lies`]), and then its buffers are made as long
//! as the lies promise. All memory is of exact size ([`producer`]); `scripts/fuzz.sh` runs this
//! under AddressSanitizer. The outcome must be an error without a panic, or an array whose values
//! can all be read and pass arrow-rs's full validation. An input without lies must arrive as it is.
//! After each input every struct must have been released.
//!
//! - `DEVICEFUSION_FUZZ_INPUTS`: number of inputs, ten of each seed.
//! - `DEVICEFUSION_FUZZ_SEED`: the first seed; the next ones follow. An input that fails prints its
//!   own seed.
//! - `DEVICEFUSION_FUZZ_SHOW`: prints each seed before its input, to find one that crashes.

mod arrays;
mod lies;
mod producer;
mod ways;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use arrow_device::ffi::ArrowDeviceType;
use arrow_device::{ImportedArray, cpu, schema};
use device::Queue;
use futures::executor::block_on;
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::{assert_same, default_queue, discrete_queue};
use crate::{ColumnType, Error, ResidentBuilder, download, exchange, natural_types, upload};
use arrays::Generator;
use producer::{Alive, Node, Schema};
use ways::{Fault, Source, WAYS, Way};

/// Elements of all nodes of an array that the tests read.
const MAX_READ: usize = 1 << 12;

/// Inputs of one seed: one is true, the others are wrong in a different way each.
const INPUTS_PER_SEED: u64 = 10;

#[test]
fn wrong_arrays_are_arrays_or_errors() {
    let mut outcomes = BTreeMap::new();
    let generator = Generator::new();
    for_each_seed(10_000, |rng| {
        let way = WAYS[rng.random_range(0..WAYS.len())];
        let (source, truth) = source(&generator, way, rng);
        let (arrays, error) = source.clone().import(way);
        assert!(error.is_none(), "{way:?}: {error:?}");
        assert_eq!(arrays, truth);
        drop(arrays);
        for _ in 1..INPUTS_PER_SEED {
            let (arrays, error) = wrong(&source, rng).import(way);
            arrays.iter().for_each(check_array);
            check_refusal(&error);
            drop(arrays);
            assert_eq!(Arc::strong_count(&source.alive), 1, "{way:?}: structs are not released");
            count(&mut outcomes, format!("{way:?}"), error.is_none());
        }
    });
    report(&outcomes);
}

#[test]
fn wrong_batches_reach_the_device_whole_or_not_at_all() {
    let mut outcomes = BTreeMap::new();
    let generator = Generator::new();
    let queues = [default_queue(), discrete_queue()];
    for_each_seed(500, |rng| {
        let queue = &queues[rng.random_range(0..queues.len())];
        let (source, _) = source(&generator, Way::Batch, rng);
        for number in 0..INPUTS_PER_SEED {
            let mut source = if number == 0 { source.clone() } else { wrong(&source, rng) };
            // A driver must believe that a handle is one of its own.
            source.device_type = ArrowDeviceType::CPU;
            let given = source.imported().and_then(cpu::import_batch);
            let device = source.imported().map(|imported| on_device(queue, imported));
            let is_accepted = given.is_ok();
            match (given, device) {
                (Ok(batch), Ok(device)) => {
                    let batch = batch.project(&supported_columns(&batch.schema())).unwrap();
                    match device {
                        Ok(device) => {
                            check_batch(&device, &batch);
                            check_upload(queue, &batch);
                        }
                        // For the device NULLs within a dictionary are NULLs of the column.
                        Err(Error::Nulls { .. }) => {}
                        Err(error) => assert!(error.to_string().contains("non-nullable child"), "{error}"),
                    }
                }
                (Ok(_), Err(error)) => panic!("the first import accepted what the second refused: {error}"),
                (Err(error), device) => {
                    assert!(number > 0, "{error}");
                    assert!(!device.is_ok_and(|device| device.is_ok()), "the device accepted what the host refused: {error}");
                }
            }
            block_on(queue.finish()).unwrap();
            count(&mut outcomes, "Device".into(), is_accepted);
        }
        let start = Instant::now();
        while Arc::strong_count(&source.alive) > 1 {
            assert!(start.elapsed() < Duration::from_secs(10), "structs are not released");
            std::thread::sleep(Duration::from_micros(50));
        }
    });
    report(&outcomes);
}

/// Accepted and refused wrong inputs of each way in.
type Outcomes = BTreeMap<String, [usize; 2]>;

fn count(outcomes: &mut Outcomes, way: String, is_accepted: bool) {
    outcomes.entry(way).or_default()[usize::from(!is_accepted)] += 1;
}

fn report(outcomes: &Outcomes) {
    for (way, [accepted, refused]) in outcomes {
        println!("{way}: {accepted} accepted, {refused} refused");
    }
}

fn check_refusal(error: &Option<arrow_device::Error>) {
    let message = error.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(!message.contains("panicked"), "{message}");
}

/// Runs inputs by seeds, each with its own random numbers.
fn for_each_seed(default: u64, mut run: impl FnMut(&mut StdRng)) {
    /// Prints the seed of an input that panics.
    struct Seed(u64);
    impl Drop for Seed {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("DEVICEFUSION_FUZZ_SEED={} DEVICEFUSION_FUZZ_INPUTS=1", self.0);
            }
        }
    }
    let number = |name| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let inputs = number("DEVICEFUSION_FUZZ_INPUTS").unwrap_or(default);
    let first = number("DEVICEFUSION_FUZZ_SEED").unwrap_or_else(|| rand::rng().next_u64() >> 1);
    let show = std::env::var_os("DEVICEFUSION_FUZZ_SHOW").is_some();
    println!("DEVICEFUSION_FUZZ_SEED={first} DEVICEFUSION_FUZZ_INPUTS={inputs}");
    for seed in first..first + inputs.div_ceil(INPUTS_PER_SEED) {
        if show {
            eprintln!("{seed}");
        }
        let _seed = Seed(seed);
        run(&mut StdRng::seed_from_u64(seed));
    }
}

/// A source that tells the truth, and its arrays.
fn source(generator: &Generator, way: Way, rng: &mut StdRng) -> (Source, Vec<ArrayRef>) {
    let field = if way == Way::Array { generator.any(rng) } else { generator.batch(rng) };
    let count = if matches!(way, Way::Array | Way::Batch) { 1 } else { rng.random_range(0..3) };
    let truth: Vec<ArrayRef> = (0..count).map(|_| generator.values(&field, rng)).collect();
    let node = |array: &ArrayRef| {
        // SAFETY: exported here.
        let imported = unsafe { ImportedArray::import(cpu::export_array(array).unwrap(), &field).unwrap() };
        Node::of(&imported.view())
    };
    let source = Source {
        schema: Schema::of(&schema::export_field(&field).unwrap()),
        arrays: truth.iter().map(node).collect(),
        fault: Fault::None,
        device_type: ArrowDeviceType::CPU,
        has_event: false,
        alive: Alive::default(),
    };
    (source, truth)
}

/// The same source with lies.
fn wrong(source: &Source, rng: &mut StdRng) -> Source {
    let mut source = source.clone();
    loop {
        let index = rng.random_range(0..source.arrays.len().max(1));
        match (rng.random_range(0..40), source.arrays.get_mut(index)) {
            (0, _) => {
                let types = [ArrowDeviceType::CUDA_HOST, ArrowDeviceType::OPENCL, ArrowDeviceType(0), ArrowDeviceType(-1)];
                source.device_type = types[rng.random_range(0..types.len())];
            }
            (1, _) => source.has_event = true,
            (2, _) => {
                let faults = [Fault::NoSchema, Fault::NoNext, Fault::NoError, Fault::SchemaFails, Fault::NextFails];
                source.fault = faults[rng.random_range(0..faults.len())];
            }
            (3..10, _) | (_, None) => lies::about_schema(&mut source.schema, rng),
            (_, Some(array)) => lies::about_array(array, rng),
        }
        if rng.random_bool(0.6) {
            break;
        }
    }
    for array in &mut source.arrays {
        lies::keep_promises(&source.schema, array, rng);
    }
    source
}

/// Reads all values of an accepted array.
fn check_array(array: &ArrayRef) {
    fn elements(data: &ArrayData) -> usize {
        data.child_data().iter().map(elements).fold(data.len(), usize::saturating_add)
    }
    let data = array.to_data();
    if elements(&data) > MAX_READ {
        return;
    }
    data.validate_full().unwrap();
    let options = FormatOptions::new().with_display_error(true);
    // Time zones by name need a feature of arrow-rs.
    if let Ok(values) = ArrayFormatter::try_new(array, &options) {
        for row in 0..array.len() {
            let _ = values.value(row).to_string();
        }
    }
    // SAFETY: exported here.
    let again = unsafe { ImportedArray::import(cpu::export_array(array).unwrap(), &cpu::field_of(array)) };
    assert_eq!(&cpu::import_array(again.unwrap()).unwrap(), array);
}

/// The columns of a type that the device has.
fn supported_columns(schema: &arrow::datatypes::Schema) -> Vec<usize> {
    let is_supported = |data_type: &DataType| ColumnType::of(data_type, true).is_some() && !loses_rows(data_type);
    let fields = schema.fields().iter().enumerate();
    fields.filter(|(_, field)| is_supported(field.data_type())).map(|(index, _)| index).collect()
}

/// Whether arrow-rs loses rows of the type in casts of dictionaries: their values are empty.
/// Nothing can compare them.
fn loses_rows(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, value) => **value == DataType::FixedSizeBinary(0),
        DataType::FixedSizeList(_, 0) => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => loses_rows(item.data_type()),
        _ => false,
    }
}

/// The array by way of the device.
fn on_device(queue: &Queue, array: ImportedArray) -> crate::Result<RecordBatch> {
    let Some(schema) = array.schema() else { return Err(arrow_device::Error::Invalid("no batch".into()).into()) };
    let columns = supported_columns(&schema);
    let batch = block_on(exchange::import(queue, array, &Arc::new(schema), &columns))?;
    block_on(download(queue, &batch))
}

fn check_batch(actual: &RecordBatch, expected: &RecordBatch) {
    assert_eq!((actual.schema(), actual.num_rows()), (expected.schema(), expected.num_rows()));
    for (actual, expected) in actual.columns().iter().zip(expected.columns()) {
        assert_same(actual, expected, expected.data_type());
    }
}

/// Uploads a batch, and inserts it twice into a resident table.
fn check_upload(queue: &Queue, batch: &RecordBatch) {
    let schema = batch.schema();
    let uploaded = upload(queue, &schema, &natural_types(&schema).unwrap(), std::slice::from_ref(batch)).unwrap();
    check_batch(&block_on(download(queue, &uploaded)).unwrap(), batch);

    let mut builder = ResidentBuilder::try_new(queue, &schema).unwrap();
    builder.push(batch.clone()).unwrap();
    builder.push(batch.clone()).unwrap();
    let table = block_on(builder.finish()).unwrap();
    let rows = batch.num_rows();
    for stored in &table.batches {
        check_batch(&block_on(download(queue, &stored.slice(0, rows))).unwrap(), batch);
        check_batch(&block_on(download(queue, &stored.slice(rows, rows))).unwrap(), batch);
    }
}
