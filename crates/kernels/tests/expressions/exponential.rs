// SPDX-License-Identifier: Apache-2.0
//! `exp`, logarithms and powers agree with the host's C library to the bit.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Float64Array};
use arrow::datatypes::DataType;
use kernels::codegen::Profile;
use kernels::expr::{Expr, LiteralValue};
use kernels::function::{Function, LibmCall};
use kernels::libm::{self, FUNCTIONS};
use kernels::support::supports;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::data;
use crate::harness::{PROFILES, batch, evaluate, natural, upload};
use crate::strings::call;

/// A column of floats, with a trailing NULL.
fn column(data_type: &DataType, values: impl Iterator<Item = f64>) -> ArrayRef {
    match data_type {
        DataType::Float32 => Arc::new(values.map(|value| Some(value as f32)).chain([None]).collect::<Float32Array>()),
        _ => Arc::new(values.map(Some).chain([None]).collect::<Float64Array>()),
    }
}

/// The device's results for pairs of numbers, as bits, and the first failing row.
fn computed(function: Function, data_type: &DataType, pairs: &[(f64, f64)], profile: Profile) -> (Vec<u64>, Option<u64>) {
    let columns = [column(data_type, pairs.iter().map(|pair| pair.0)), column(data_type, pairs.iter().map(|pair| pair.1))];
    let arity = function.row().overloads[0].arguments.len();
    let rows = batch(columns[..arity].to_vec());
    let types = natural(&rows);
    let expr = call(function, (0..arity).map(Expr::Column).collect(), data_type);
    let mut computed = evaluate(&upload(&rows, &types), &types, &[expr], 0, profile).remove(0);
    assert_eq!(computed.values.pop(), Some(LiteralValue::Null));
    let bits = |value: &LiteralValue| match (value, data_type) {
        (LiteralValue::Float(value), DataType::Float32) => (*value as f32).to_bits().into(),
        (LiteralValue::Float(value), _) => value.to_bits(),
        _ => panic!("{value:?} is no float"),
    };
    (computed.values.iter().map(bits).collect(), computed.failed)
}

/// Compares with the host; powers that fail are excluded.
#[track_caller]
fn agrees(function: Function, data_type: &DataType, pairs: &[(f64, f64)], profile: Profile) {
    let (bits, failed) = computed(function, data_type, pairs, profile);
    assert_eq!(failed, None);
    let host = function.row().libm.unwrap();
    for ((a, b), bits) in pairs.iter().zip(bits) {
        let expected = libm::host(host, data_type, *a, *b);
        assert!(
            bits == expected,
            "{profile:?}: {}({a:e} = {:#x}, {b:e} = {:#x}) of {data_type}: {bits:#x}, not {expected:#x}",
            function.name(),
            a.to_bits(),
            b.to_bits()
        );
    }
}

/// The function that makes a call of the host's C library.
fn function_of(call: LibmCall) -> Function {
    *Function::PLAIN.iter().find(|function| function.row().libm == Some(call)).unwrap()
}

fn functions() -> impl Iterator<Item = (Function, DataType)> {
    let all = Function::PLAIN.iter().copied().filter(|function| function.row().libm.is_some());
    let typed = all.flat_map(|function| data::floats().into_iter().map(move |data_type| (function, data_type)));
    typed.filter(|(function, data_type)| *function != Function::Power || *data_type == DataType::Float64)
}

/// The functions in which this host agrees; see `this_host_agrees`.
fn comparable() -> impl Iterator<Item = (Function, DataType)> {
    functions().filter(|(function, data_type)| {
        let agrees = libm::host_agrees(*function, data_type);
        if !agrees {
            println!("this host computes {} of {data_type} in another way", function.name());
        }
        agrees
    })
}

#[test]
fn device_results_have_the_known_digests() {
    for profile in PROFILES {
        for known in &FUNCTIONS {
            let pairs: Vec<(f64, f64)> = known.samples().collect();
            let function = function_of(known.call);
            let (bits, _) = computed(function, &known.data_type, &pairs, profile);
            let digest = libm::digest(bits.into_iter());
            assert!(digest == known.digest, "{profile:?}: {} of {}: {digest:#x}", function.name(), known.data_type);
        }
    }
}

/// Kernels repeat the operations of glibc.
#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[test]
fn this_host_agrees() {
    if std::arch::is_x86_feature_detected!("fma") && std::arch::is_x86_feature_detected!("avx2") {
        for (function, data_type) in functions() {
            assert!(libm::host_agrees(function, &data_type), "{} of {data_type}", function.name());
        }
    }
}

/// Numbers of many kinds: random bits, around 1, small, large and whole ones, subnormals, and
/// around the limits of `exp`.
fn number(random: &mut StdRng, data_type: &DataType) -> f64 {
    let value = match random.random_range(0..12) {
        0 | 1 => f64::from_bits(random.random()),
        2 => f32::from_bits(random.random()).into(),
        3 => 1.0 + random.random_range(-0.125..0.125),
        4 => 1.0 + f64::from(random.random_range(-2000..2000)) * f64::EPSILON,
        5 => random.random_range(-1000.0..1000.0),
        6 => random.random_range(-1.0..1.0) * 2f64.powi(random.random_range(-60..60)),
        7 => random.random_range(-40..40).into(),
        8 => f64::from(random.random_range(-200..200)) / 2.0,
        9 => f64::from_bits(random.random_range(0..1u64 << 52) >> random.random_range(0..52)),
        10 => random.random_range(-750.0..-700.0),
        _ => random.random_range(0.0..4.0),
    };
    if *data_type == DataType::Float32 { f64::from(value as f32) } else { value }
}

fn fails(function: Function, (a, b): &(f64, f64)) -> bool {
    function == Function::Power && *a == 0.0 && *b < 0.0
}

#[test]
fn random_numbers() {
    device::skip_unless_turn!(7);
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for (function, data_type) in comparable() {
        for profile in PROFILES {
            let pairs = (0..1 << 19).map(|_| (number(&mut random, &data_type), number(&mut random, &data_type)));
            let pairs: Vec<(f64, f64)> = pairs.filter(|pair| !fails(function, pair)).collect();
            agrees(function, &data_type, &pairs, profile);
        }
    }
}

/// Special numbers:
/// - zeros, infinities, quiet and signaling NaNs of both signs,
/// - the least and greatest numbers, and the numbers next to 1,
/// - odd and even integers, halves, and the greatest odd integers.
fn edges(data_type: &DataType) -> Vec<f64> {
    let mut edges = vec![0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 10.0, 1000.0, f64::INFINITY];
    edges.extend([52, 53, 62, 63, 64, 65, 127, 128, 1000, -65, -66, -149, -150].map(|power| 2f64.powi(power)));
    edges.extend([52, 53].map(|power| 2f64.powi(power) - 1.0));
    edges.extend([709.78, 709.79, 744.44, 745.13, 745.14, 708.39, 708.4, 512.0, 1024.0, 88.72, 88.73, 103.97, 103.98]);
    if *data_type == DataType::Float32 {
        edges.extend(
            [1, 2, 0x007f_ffff, 0x0080_0000, 0x3f7f_ffff, 0x3f80_0001, 0x7f7f_ffff].map(|bits| f64::from(f32::from_bits(bits))),
        );
        edges.extend([f64::from(f32::from_bits(0x7fc0_0123)), f64::NAN]);
        edges.iter_mut().for_each(|edge| *edge = f64::from(*edge as f32));
    } else {
        let bits = [1, 2, (1 << 52) - 1, 1 << 52, (1023 << 52) - 1, (1023 << 52) + 1, (2047 << 52) - 1];
        edges.extend(bits.map(f64::from_bits));
        edges.extend([0x7ff0_0000_0000_0001, 0x7ff8_0000_0000_0123, 0x7ff8_0000_0000_0000].map(f64::from_bits));
    }
    edges.iter().flat_map(|edge| [*edge, -*edge]).collect()
}

#[test]
fn edges_of_the_range() {
    for (function, data_type) in comparable() {
        let edges = edges(&data_type);
        let pairs: Vec<(f64, f64)> = edges.iter().flat_map(|a| edges.iter().map(|b| (*a, *b))).collect();
        let (failing, pairs): (Vec<_>, Vec<_>) = pairs.into_iter().partition(|pair| fails(function, pair));
        for profile in PROFILES {
            agrees(function, &data_type, &pairs, profile);
        }
        for pair in failing {
            assert_eq!(computed(function, &data_type, &[(1.0, 1.0), pair], Profile::Gpu).1, Some(1), "{pair:?}");
        }
    }
}

#[test]
fn every_batch_size() {
    let random = &mut StdRng::seed_from_u64(1);
    let edges = edges(&DataType::Float64);
    for (function, data_type) in comparable() {
        for rows in [0, 1, 3, 257] {
            let pairs: Vec<(f64, f64)> = (0..rows).map(|_| (edges.choose(random).copied().unwrap_or(1.0), 3.0)).collect();
            PROFILES.iter().for_each(|profile| agrees(function, &data_type, &pairs, *profile));
        }
    }
}

/// DataFusion's `power` takes `Float64` only.
#[test]
fn power_of_float32_is_refused() {
    let rows = batch(vec![column(&DataType::Float32, [1.0].into_iter())]);
    let power = call(Function::Power, vec![Expr::Column(0), Expr::Column(0)], &DataType::Float32);
    assert_eq!(supports(&power, &rows.schema()), Err("power(Float32, Float32) is not supported on the device".into()));
}
