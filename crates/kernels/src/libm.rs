// SPDX-License-Identifier: Apache-2.0
//! Check that the host's C library computes `exp`, logarithms and powers to the bits of the
//! kernels.
//!
//! Kernels repeat glibc's operations on processors with fused multiply-adds (`prelude/exp.h` and
//! its siblings). DataFusion calls the host's C library, which may be another one. The check
//! digests the host's results for some thousand inputs and compares the digest with that of the
//! kernels' results.
//!
//! - A correctly rounding library differs in one result of 100 to 1000.
//! - glibc without fused multiply-adds differs in one of 100,000; some of those inputs are
//!   included.

use std::sync::OnceLock;

use arrow::datatypes::DataType;

use crate::function::{Function, LibmCall};

/// A function of floats of one type, with the digest of its results on kernels.
#[derive(Debug)]
pub struct LibmFunction {
    /// The function.
    pub call: LibmCall,
    /// The type of its arguments.
    pub data_type: DataType,
    /// Arguments whose results differ in glibc without fused multiply-adds.
    fused: &'static [(f64, f64)],
    /// The [`digest`] of the kernels' results for the samples.
    pub digest: u64,
    agrees: OnceLock<bool>,
}

/// All checked functions.
pub static FUNCTIONS: [LibmFunction; 9] = [
    LibmFunction::new(
        LibmCall::Exp,
        DataType::Float64,
        &[
            (1.877417836918709, 0.0),
            (-1.7396386310222267, 0.0),
            (-0.7772292750144234, 0.0),
            (-164.24147944180913, 0.0),
            (9.607728833527451, 0.0),
            (-356.6735671125784, 0.0),
        ],
        0x4e3f_e060_6d8f_7159,
    ),
    LibmFunction::new(
        LibmCall::Exp,
        DataType::Float32,
        &[(32.564632415771484, 0.0), (-63.09946060180664, 0.0)],
        0x1934_7689_e61b_fe43,
    ),
    LibmFunction::new(
        LibmCall::Ln,
        DataType::Float64,
        &[
            (1.0489421930778347, 0.0),
            (0.9603318678504259, 0.0),
            (0.9584314490705883, 0.0),
            (2.5123002188930954, 0.0),
            (0.9058567970456508, 0.0),
            (28.569715434822, 0.0),
        ],
        0xa89b_f6c9_a66a_e8c4,
    ),
    LibmFunction::new(LibmCall::Ln, DataType::Float32, &[], 0x315d_01b6_6101_bf1b),
    LibmFunction::new(
        LibmCall::Log2,
        DataType::Float64,
        &[
            (1.013863728255981, 0.0),
            (0.9746803927108383, 0.0),
            (0.9673937939387978, 0.0),
            (4.293861715570856, 0.0),
            (3.7065544753978656, 0.0),
            (1.4813671715177463, 0.0),
        ],
        0x800e_2ebb_4457_98bd,
    ),
    LibmFunction::new(LibmCall::Log2, DataType::Float32, &[], 0x1c93_e4ea_40de_dc2c),
    LibmFunction::new(
        LibmCall::Log10,
        DataType::Float64,
        &[
            (1.0219066275799014, 0.0),
            (1.054693002784802, 0.0),
            (1.0454477239414535, 0.0),
            (46.22434221929153, 0.0),
            (1.199397572517519, 0.0),
            (40.02812804911703, 0.0),
        ],
        0x60ec_2c5d_6507_417f,
    ),
    LibmFunction::new(LibmCall::Log10, DataType::Float32, &[], 0xb402_0eb4_c49b_4a3c),
    LibmFunction::new(
        LibmCall::Power,
        DataType::Float64,
        &[
            (2.297256201678204, 10.893049672695035),
            (3.7801446792960753, 4.887893679591611),
            (2.301541003400553, -15.400346009985512),
            (0.7308535129713105, 9.536411696790307),
            (0.9472623471514385, -19.439112350035536),
            (3.7262267142889947, -0.08826161631144913),
        ],
        0x141c_673b_6c58_fb47,
    ),
];

/// Whether host and kernels agree to the bit, for any function but [`Function::Inexact`].
pub fn host_agrees(function: Function, data_type: &DataType) -> bool {
    let Some(call) = function.row().libm.map(checked_call) else { return true };
    // `Float32` results hide most differences of an algorithm, so that `Float64` is checked as
    // well.
    let checked = |other: &&LibmFunction| other.call == call && [&DataType::Float64, data_type].contains(&&other.data_type);
    FUNCTIONS.iter().filter(checked).all(LibmFunction::host_agrees)
}

/// The call whose check decides about another.
fn checked_call(call: LibmCall) -> LibmCall {
    match call {
        LibmCall::Exp | LibmCall::Ln | LibmCall::Log2 | LibmCall::Log10 | LibmCall::Power => call,
        // A quotient of two.
        LibmCall::Log => LibmCall::Ln,
    }
}

impl LibmFunction {
    const fn new(call: LibmCall, data_type: DataType, fused: &'static [(f64, f64)], digest: u64) -> LibmFunction {
        LibmFunction { call, data_type, fused, digest, agrees: OnceLock::new() }
    }

    fn host_agrees(&self) -> bool {
        *self.agrees.get_or_init(|| {
            let results = self.samples().map(|(a, b)| host(self.call, &self.data_type, a, b));
            digest(results) == self.digest
        })
    }

    /// A fixed sequence of arguments: all over the range, and many near 1, where logarithms take
    /// another path.
    pub fn samples(&self) -> impl Iterator<Item = (f64, f64)> {
        let single = self.data_type == DataType::Float32;
        let numbers = (0..4096).map(move |index| {
            let (word, other) = (mixed(2 * index), mixed(2 * index + 1));
            // From -1 to 1.
            let fraction = |word: u64| (word >> 10) as f64 / (1u64 << 53) as f64 - 1.0;
            let a = match self.call {
                LibmCall::Exp if single => fraction(word) * 100.0,
                LibmCall::Exp => fraction(word) * 2f64.powi((other % 11) as i32),
                LibmCall::Power => fraction(word).abs() * 2f64.powi((other % 31) as i32 - 15),
                LibmCall::Ln | LibmCall::Log | LibmCall::Log2 | LibmCall::Log10 => {
                    if other.is_multiple_of(2) {
                        1.0 + fraction(word) / 8.0
                    } else if single {
                        f32::from_bits(word as u32 % f32::INFINITY.to_bits()).into()
                    } else {
                        f64::from_bits(word % f64::INFINITY.to_bits())
                    }
                }
            };
            let a = if single { f64::from(a as f32) } else { a };
            (a, fraction(mixed(other)) * 2f64.powi((other >> 8 & 7) as i32))
        });
        numbers.chain(self.fused.iter().copied())
    }
}

/// Bits of the host's result.
pub fn host(call: LibmCall, data_type: &DataType, a: f64, b: f64) -> u64 {
    if *data_type == DataType::Float32 {
        let a = a as f32;
        let result = match call {
            LibmCall::Exp => a.exp(),
            LibmCall::Ln => a.ln(),
            LibmCall::Log => (b as f32).log(a),
            LibmCall::Log2 => a.log2(),
            LibmCall::Log10 => a.log10(),
            LibmCall::Power => a.powf(b as f32),
        };
        return result.to_bits().into();
    }
    let result = match call {
        LibmCall::Exp => a.exp(),
        LibmCall::Ln => a.ln(),
        LibmCall::Log => b.log(a),
        LibmCall::Log2 => a.log2(),
        LibmCall::Log10 => a.log10(),
        LibmCall::Power => a.powf(b),
    };
    result.to_bits()
}

/// Digest of many results.
pub fn digest(results: impl Iterator<Item = u64>) -> u64 {
    results.fold(0, |digest, bits| mixed(digest ^ bits))
}

/// SplitMix64: a pseudorandom number.
fn mixed(number: u64) -> u64 {
    let word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_checked() {
        for call in Function::PLAIN.iter().filter_map(|function| function.row().libm) {
            let checked = FUNCTIONS.iter().any(|known| known.call == checked_call(call));
            assert!(checked, "{call:?} has no digest");
        }
    }
}
