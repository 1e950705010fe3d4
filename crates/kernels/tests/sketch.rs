// SPDX-License-Identifier: Apache-2.0
//! HyperLogLog sketches: hashes compared with foldhash, estimates with their definition,
//! aggregations with both.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, Date32Array, Decimal128Array, Decimal256Array, FixedSizeBinaryArray,
    Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray, StringViewArray, TimestampMicrosecondArray, UInt32Array,
    UInt64Array,
};
use arrow::datatypes::{DataType, Field, Int32Type, UInt8Type, UInt16Type, UInt64Type, i256};
use device::{Grid, ProgramSource};
use foldhash::quality::FixedState;
use futures::executor::block_on;
use kernels::expr::AggregateFunction::ApproxDistinct;
use kernels::expr::{CompareOp, Expr};
use kernels::function::Function;
use kernels::prelude::{Section, Sections};
use support::*;

const REGISTERS: usize = 1 << 14;

fn hash(value: impl std::hash::Hash) -> u64 {
    FixedState::with_seed(0).hash_one(value)
}

fn register_and_rank(hash: u64) -> (u16, u8) {
    ((hash % REGISTERS as u64) as u16, ((hash >> 14) | 1 << 50).trailing_zeros() as u8 + 1)
}

/// The hash of a string in a view; a short one is hashed as its view.
fn view(bytes: &[u8]) -> u64 {
    if bytes.len() > 12 {
        return hash(bytes);
    }
    let mut view = [0; 16];
    view[0] = bytes.len() as u8;
    view[4..4 + bytes.len()].copy_from_slice(bytes);
    hash(u128::from_le_bytes(view))
}

/// A column of each supported type, with the hashes of its values. Strings have every length up to
/// 400.
fn columns(n: usize, salt: u64) -> Vec<(&'static str, ArrayRef, Vec<Option<u64>>)> {
    let known = |i: usize| !random(i, salt).is_multiple_of(5);
    let number = |i: usize| known(i).then(|| random(i, salt + 1) as i64 >> (random(i, salt + 2) % 60));
    let text = |i: usize| {
        let letters = ["a", "ß", "漢", "0", "\0"];
        let mut text: String = (0..random(i, salt + 3) % 400).map(|k| letters[random(i, k) as usize % 5]).collect();
        text.truncate(text.floor_char_boundary(i % 401));
        known(i).then_some(text)
    };
    let numbers: Vec<Option<i64>> = (0..n).map(number).collect();
    let texts: Vec<Option<String>> = (0..n).map(text).collect();
    fn hashes<T, H: std::hash::Hash>(values: &[Option<T>], of: impl Fn(&T) -> H) -> Vec<Option<u64>> {
        values.iter().map(|value| value.as_ref().map(|value| hash(of(value)))).collect()
    }
    let views: Vec<Option<u64>> = texts.iter().map(|text| text.as_ref().map(|text| view(text.as_bytes()))).collect();
    let bytes = || texts.iter().map(|text| text.as_ref().map(|text| text.as_bytes()));
    let fixed = numbers.iter().map(|number| number.map(|number| number.to_be_bytes()[3..].to_vec()));
    let narrow = |number: &i64| *number as i32;
    let decimals: Decimal128Array = numbers.iter().map(|number| number.map(|number| i128::from(number) << 40)).collect();
    let factor = i256::from_parts(0x1234_5678_9abc_def0, 1 << 30);
    let wide = |number: &i64| i256::from_i128(i128::from(*number)).wrapping_mul(factor);
    let wides: Decimal256Array = numbers.iter().map(|number| number.as_ref().map(wide)).collect();
    let times = TimestampMicrosecondArray::from_iter(numbers.iter().copied());
    vec![
        (
            "i32",
            Arc::new(numbers.iter().map(|number| number.as_ref().map(narrow)).collect::<Int32Array>()),
            hashes(&numbers, narrow),
        ),
        ("i64", Arc::new(Int64Array::from(numbers.clone())), hashes(&numbers, |number| *number)),
        (
            "u32",
            Arc::new(numbers.iter().map(|number| number.map(|number| number as u32)).collect::<UInt32Array>()),
            hashes(&numbers, |number| *number as u32),
        ),
        (
            "u64",
            Arc::new(numbers.iter().map(|number| number.map(|number| number as u64)).collect::<UInt64Array>()),
            hashes(&numbers, |number| *number as u64),
        ),
        (
            "date",
            Arc::new(numbers.iter().map(|number| number.as_ref().map(narrow)).collect::<Date32Array>()),
            hashes(&numbers, narrow),
        ),
        ("time", Arc::new(times.with_timezone("Europe/Berlin")), hashes(&numbers, |number| *number)),
        (
            "decimal",
            Arc::new(decimals.with_precision_and_scale(38, 2).unwrap()),
            hashes(&numbers, |number| i128::from(*number) << 40),
        ),
        ("wide", Arc::new(wides.with_precision_and_scale(76, 2).unwrap()), hashes(&numbers, wide)),
        ("text", Arc::new(StringArray::from(texts.clone())), hashes(&texts, String::clone)),
        ("large", Arc::new(LargeStringArray::from(texts.clone())), hashes(&texts, String::clone)),
        ("view", Arc::new(StringViewArray::from_iter(texts.clone())), views.clone()),
        ("bytes", Arc::new(BinaryArray::from_iter(bytes())), hashes(&texts, |text| text.as_bytes().to_vec())),
        ("byte_view", Arc::new(BinaryViewArray::from_iter(bytes())), views),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed, 5).unwrap()),
            hashes(&numbers, |number| number.to_be_bytes()[3..].to_vec()),
        ),
    ]
}

fn data(n: usize, salt: u64) -> (RecordBatch, Vec<Vec<Option<u64>>>) {
    let columns = columns(n, salt);
    let hashes = columns.iter().map(|(.., hashes)| hashes.clone()).collect();
    let key: ArrayRef =
        Arc::new((0..n).map(|i| Some((random(i, salt + 9) % 40) as i32).filter(|k| *k > 0)).collect::<Int32Array>());
    let columns = columns.into_iter().map(|(name, array, _)| (name, array, true));
    (batch(columns.chain([("key", key, true)]).collect()), hashes)
}

/// The estimate of Ertl's "New cardinality estimation algorithms for HyperLogLog sketches", by the
/// number of registers of each rank.
fn estimate(ranks: &[u32; 52]) -> u64 {
    let m = REGISTERS as f64;
    let below = 1.0 - f64::from(ranks[51]) / m;
    let mut tau = 0.0;
    if ranks[51] > 0 && below > 0.0 {
        let (mut x, mut weight, mut before) = (below, 1.0, f64::NAN);
        tau = 1.0 - x;
        while tau != before {
            before = tau;
            x = x.sqrt();
            weight /= 2.0;
            tau -= (1.0 - x) * (1.0 - x) * weight;
        }
        tau /= 3.0;
    }
    let sum = ranks[1..51].iter().rfold(m * tau, |sum, count| (sum + f64::from(*count)) / 2.0);
    let empty = f64::from(ranks[0]) / m;
    let (mut x, mut weight, mut sigma, mut before) = (empty, 1.0, empty, f64::NAN);
    while sigma != before && empty < 1.0 {
        before = sigma;
        x *= x;
        sigma += x * weight;
        weight *= 2.0;
    }
    if empty == 1.0 {
        sigma = f64::INFINITY;
    }
    (0.5 / 2f64.ln() * m * m / (sum + m * sigma)).round() as u64
}

fn sketched(hashes: impl Iterator<Item = u64>) -> u64 {
    let mut registers = vec![0u8; REGISTERS];
    for (register, rank) in hashes.map(register_and_rank) {
        registers[register as usize] = registers[register as usize].max(rank);
    }
    let mut ranks = [0; 52];
    registers.iter().for_each(|rank| ranks[*rank as usize] += 1);
    estimate(&ranks)
}

#[test]
fn hashes_agree_with_the_host() {
    let (batch, hashes) = data(3000, 1);
    for options in profiles() {
        for (index, hashes) in hashes.iter().enumerate() {
            let call = |function, data_type| Expr::Call { function, arguments: vec![col(index)], data_type };
            let outputs = [
                (call(Function::SketchRegister, DataType::UInt16), Field::new("register", DataType::UInt16, true)),
                (call(Function::SketchRank, DataType::UInt8), Field::new("rank", DataType::UInt8, true)),
            ];
            let result = select(&batch, None, &outputs, &options);
            let (registers, ranks) =
                (result.column(0).as_primitive::<UInt16Type>(), result.column(1).as_primitive::<UInt8Type>());
            for (row, (hash, actual)) in hashes.iter().zip(registers.iter().zip(ranks)).enumerate() {
                let name = batch.schema_ref().field(index).name();
                assert_eq!(actual.0.zip(actual.1), hash.map(register_and_rank), "{name}, row {row}, {:?}", options.profile);
            }
        }
    }
}

/// Includes register counts that no rows produce.
#[test]
fn estimates_agree_with_the_host() {
    let mut cases = vec![[0; 52]; 400];
    for (index, ranks) in cases.iter_mut().enumerate() {
        let mut left = REGISTERS as u32;
        for at in 0..60 {
            let count = match at {
                0 if index % 3 == 0 => left,
                at if at > 40 => left,
                at => (random(index, at) % u64::from(left / 2 + 1)) as u32,
            };
            let rank = match index % 4 {
                0 => random(index, 100 + at) % 12,
                1 => random(index, 100 + at) % 52,
                2 => 40 + random(index, 100 + at) % 12,
                _ => (at + random(index, 100)) % 52,
            };
            ranks[rank as usize] += count;
            left -= count;
        }
    }
    cases.extend((0..52).map(|rank| std::array::from_fn(|at| if at == rank { REGISTERS as u32 } else { 0 })));
    let words: Vec<u64> = (cases.iter())
        .flat_map(|ranks| {
            (0..13).map(|word| {
                (0..4)
                    .map(|lane| match word * 4 + lane {
                        0 => 0,
                        rank => u64::from(ranks[rank]) << (16 * lane),
                    })
                    .sum()
            })
        })
        .collect();
    let mut sections = Sections::default();
    sections.need(Section::Sketch);
    let arguments: Vec<String> = (0..13).map(|word| format!("words[i * 13 + {word}]")).collect();
    let text = format!(
        "{}KERNEL void counts(const G u64 *words, G u64 *counts) {{ u64 i = GID(); counts[i] = sketch_count({}); }}\n",
        sections.source(),
        arguments.join(", ")
    );
    let queue = queue();
    let (from, to) = (queue.upload_values(words).unwrap(), queue.alloc_values::<u64>(cases.len()).unwrap());
    let program = block_on(queue.compile(ProgramSource::new(text, "tests"))).unwrap();
    let grid = Grid { work_groups: cases.len() as u32, work_group_size: 1 };
    queue.launch(&program.kernel("counts").unwrap(), grid, &[(&from).into(), (&to).into()]).unwrap();
    let counts = block_on(queue.read_values(&to, 0..cases.len())).unwrap();
    for (ranks, count) in cases.iter().zip(counts) {
        assert_eq!(count, estimate(ranks), "{ranks:?}");
    }
}

#[test]
fn every_size_with_and_without_keys_and_filter() {
    device::skip_unless_turn!(3);
    let key = 14;
    for options in profiles() {
        for n in [0, 1, 5, 257, (1 << 17) + 1] {
            let (first, second) = (data(n, 21), data(n / 3, 22));
            let schema = first.0.schema();
            let mut aggregates: Vec<_> =
                [1, 7, 8, 10].map(|at| aggregate(ApproxDistinct, Some(col(at)), DataType::UInt64)).into();
            let positive = compare(CompareOp::Gt, col(0), int(0, DataType::Int32));
            aggregates.push(aggregates[2].clone());
            aggregates[4].0.filter = Some(positive.clone());
            let mut expected: BTreeMap<Option<i32>, Vec<Vec<u64>>> = BTreeMap::new();
            for (batch, hashes) in [&first, &second] {
                let keys = batch.column(key).as_primitive::<Int32Type>();
                let numbers = batch.column(0).as_primitive::<Int32Type>();
                let hash = |column: usize, row: usize| hashes[column][row];
                for row in 0..batch.num_rows() {
                    let group = expected.entry(keys.is_valid(row).then(|| keys.value(row))).or_insert_with(|| vec![vec![]; 5]);
                    for (at, column) in [1, 7, 8, 10, 8].into_iter().enumerate() {
                        let kept = at < 4 || numbers.is_valid(row) && numbers.value(row) > 0;
                        group[at].extend(hash(column, row).filter(|_| kept));
                    }
                }
            }
            let batches = [first.0, second.0];
            let counts = |result: &RecordBatch, at: usize, row: usize| result.column(at).as_primitive::<UInt64Type>().value(row);
            let whole = try_reduce(&schema, &batches, None, &aggregates, &options).unwrap();
            for at in 0..5 {
                let hashes = expected.values().flat_map(|group| group[at].iter().copied());
                assert_eq!(counts(&whole, at, 0), sketched(hashes), "aggregate {at} of {n} rows, {:?}", options.profile);
            }
            let keys = [(col(key), schema.field(key).clone())];
            let groups = group_with(input(&schema, None), &batches, &keys, &aggregates, &options).unwrap();
            assert_eq!(groups.num_rows(), expected.len());
            let found = groups.column(0).as_primitive::<Int32Type>();
            for row in 0..groups.num_rows() {
                let group = &expected[&found.is_valid(row).then(|| found.value(row))];
                for (at, hashes) in group.iter().enumerate() {
                    let sketched = sketched(hashes.iter().copied());
                    assert_eq!(counts(&groups, at + 1, row), sketched, "aggregate {at} of {n} rows, {:?}", options.profile);
                }
            }
        }
    }
}
