// SPDX-License-Identifier: Apache-2.0
//! Statements that update and merge states.

use super::StateKind;
use super::state::Entry;
use crate::codegen::Value;
use crate::{Error, Result};

impl StateKind {
    /// The statement that updates the state in `to` with one value.
    pub fn update(self, to: &[String], values: &[Value]) -> String {
        match (self.content().entry(), values) {
            (Entry::Welford, [value]) => format!("welford_add(&{}, &{}, &{}, (f64){});", to[0], to[1], to[2], value.code),
            (Entry::Rank, [rank]) => format!("(&{})[{1} >> 2] += (u64)1 << 16 * ({1} & 3);", to[0], rank.code),
            // A register's rank and its previous rank, 0 if none.
            (Entry::Rank, [rank, before]) => format!(
                "(&{0})[{1} >> 2] += (u64)1 << 16 * ({1} & 3); (&{0})[{2} >> 2] -= (u64)({2} != 0) << 16 * ({2} & 3);",
                to[0], rank.code, before.code
            ),
            (Entry::Merge | Entry::Welford | Entry::Rank, _) => self.merge(to, &self.lift(values)),
        }
    }

    /// The statement that retracts a value from the state in `to`; `None` for states without an
    /// exact inverse.
    pub fn retract(self, to: &[String], values: &[Value]) -> Option<String> {
        let is_invertible = match self {
            StateKind::Count | StateKind::Sum64 => true,
            StateKind::Sum128
            | StateKind::Sum192
            | StateKind::Sum256
            | StateKind::SumF64
            | StateKind::Min
            | StateKind::Max
            | StateKind::Min128
            | StateKind::Max128
            | StateKind::Min256
            | StateKind::Max256
            | StateKind::And
            | StateKind::Or
            | StateKind::Xor
            | StateKind::Welford
            | StateKind::PowerSums
            | StateKind::CrossSums
            | StateKind::RankCounts
            | StateKind::VarWidthMin
            | StateKind::VarWidthMax => false,
        };
        is_invertible.then(|| format!("{} -= {};", to[0], self.lift(values)[0]))
    }

    /// The statement to merge the state in `from` into that in `to`, private to the work-item.
    pub fn merge(self, to: &[String], from: &[String]) -> String {
        match self {
            StateKind::Count | StateKind::Sum64 => format!("{} += {};", to[0], from[0]),
            StateKind::And => format!("{} &= {};", to[0], from[0]),
            StateKind::Or => format!("{} |= {};", to[0], from[0]),
            StateKind::Xor => format!("{} ^= {};", to[0], from[0]),
            StateKind::SumF64 => format!("{0} = F64_BITS(f64_add(BITS_F64({0}), BITS_F64({1})));", to[0], from[0]),
            StateKind::Min | StateKind::Max => {
                let below = if self.is_greatest() { ">" } else { "<" };
                format!("{{ u64 v_ = {1}; {0} = v_ {below} {0} ? v_ : {0}; }}", to[0], from[0])
            }
            StateKind::Sum128 => {
                format!("{{ u64 v_ = {0} + {2}; {1} += {3} + (v_ < {0}); {0} = v_; }}", to[0], to[1], from[0], from[1])
            }
            StateKind::Sum192 => format!(
                "{{ u64 v_ = {0} + {3}, c_ = v_ < {0}, w_ = {1} + c_; {0} = v_; c_ = w_ < c_; v_ = w_ + {4}; c_ += v_ < w_; {1} = v_; {2} += {5} + c_; }}",
                to[0], to[1], to[2], from[0], from[1], from[2]
            ),
            StateKind::Min128 | StateKind::Max128 => {
                let (a, b) = if self.is_greatest() { ("w_", "v_") } else { ("v_", "w_") };
                format!(
                    "{{ i128 v_ = i128_make({2}, {3}), w_ = i128_make({0}, {1}); if (i128_lt({a}, {b})) {{ {0} = v_.lo; {1} = v_.hi; }} }}",
                    to[0], to[1], from[0], from[1]
                )
            }
            StateKind::Sum256 => format!(
                "{{ i256 v_ = i256_add(i256_make({}), i256_make({})); {} }}",
                to.join(", "),
                from.join(", "),
                assigned(to, "v_")
            ),
            StateKind::Min256 | StateKind::Max256 => {
                let (a, b) = if self.is_greatest() { ("w_", "v_") } else { ("v_", "w_") };
                format!(
                    "{{ i256 v_ = i256_make({}), w_ = i256_make({}); if (i256_lt({a}, {b})) {{ {} }} }}",
                    from.join(", "),
                    to.join(", "),
                    assigned(to, "v_")
                )
            }
            StateKind::Welford => {
                format!("welford_merge(&{}, &{}, &{}, {}, {}, {});", to[0], to[1], to[2], from[0], from[1], from[2])
            }
            StateKind::PowerSums | StateKind::CrossSums => (0..self.slots() / 2)
                .map(|sum| {
                    let (hi, lo) = (&to[sum * 2], &to[sum * 2 + 1]);
                    format!("twofold_add(&{hi}, &{lo}, {}, {}); ", from[sum * 2], from[sum * 2 + 1])
                })
                .collect(),
            StateKind::RankCounts => to.iter().zip(from).map(|(to, from)| format!("{to} += {from}; ")).collect(),
            StateKind::VarWidthMin | StateKind::VarWidthMax => String::new(),
        }
    }

    /// The statement that merges the state in `from` into the one at `to`. Other work-items update
    /// it too. `space` is the address space: `g` (global) or `l` (local).
    pub fn atomic_merge(self, to: &[String], from: &[String], space: char) -> Result<String> {
        Ok(match self {
            StateKind::Count | StateKind::Sum64 => format!("add64_{space}({}, {});", to[0], from[0]),
            StateKind::And => format!("A_AND64({}, {});", to[0], from[0]),
            StateKind::Or => format!("A_OR64({}, {});", to[0], from[0]),
            StateKind::Xor => format!("A_XOR64({}, {});", to[0], from[0]),
            // Most values change nothing: a plain load precedes the atomic operation.
            StateKind::Min => format!("{{ u64 v_ = {1}; if (v_ < *{0}) A_MIN64({0}, v_); }}", to[0], from[0]),
            StateKind::Max => format!("{{ u64 v_ = {1}; if (v_ > *{0}) A_MAX64({0}, v_); }}", to[0], from[0]),
            StateKind::SumF64 => format!("add_f64_{space}({}, BITS_F64({}));", to[0], from[0]),
            StateKind::Sum128 => format!(
                "{{ u64 w_ = {3} + add64_{space}({0}, {2}); if (w_) add64_{space}({1}, w_); }}",
                to[0], to[1], from[0], from[1]
            ),
            StateKind::Sum192 => format!(
                "{{ u64 c_ = add64_{space}({0}, {3}), w_ = {4} + c_, t_ = {5} + (w_ < c_) + (w_ ? add64_{space}({1}, w_) : 0); \
                 if (t_) add64_{space}({2}, t_); }}",
                to[0], to[1], to[2], from[0], from[1], from[2]
            ),
            StateKind::PowerSums | StateKind::CrossSums => (0..self.slots() / 2)
                .map(|sum| {
                    let (hi, lo) = (&to[sum * 2], &to[sum * 2 + 1]);
                    format!("twofold_atomic_{space}({hi}, {lo}, BITS_F64({}), BITS_F64({})); ", from[sum * 2], from[sum * 2 + 1])
                })
                .collect(),
            StateKind::RankCounts => {
                let step = |(to, from)| format!("{{ u64 v_ = {from}; if (v_) add64_{space}({to}, v_); }} ");
                to.iter().zip(from).map(step).collect()
            }
            StateKind::Sum256 => {
                let step = |(to, from): (&String, &String)| {
                    format!("v_ = {from} + c_; c_ = v_ < c_; if (v_) c_ += add64_{space}({to}, v_); ")
                };
                format!("{{ u64 c_ = 0, v_; {}}}", to.iter().zip(from).map(step).collect::<String>())
            }
            StateKind::Min128
            | StateKind::Max128
            | StateKind::Min256
            | StateKind::Max256
            | StateKind::Welford
            | StateKind::VarWidthMin
            | StateKind::VarWidthMax => {
                return Err(Error::Internal(format!("{self:?} has no atomic merge")));
            }
        })
    }

    /// The statement that updates the state at the addresses `to` with one value, as
    /// [`atomic_merge`](Self::atomic_merge).
    pub fn atomic_update(self, to: &[String], values: &[Value], space: char) -> Result<String> {
        match (self.content().entry(), values) {
            (Entry::Rank, [rank]) => Ok(format!("add64_{space}({} + ({1} >> 2), (u64)1 << 16 * ({1} & 3));", to[0], rank.code)),
            (Entry::Merge | Entry::Welford | Entry::Rank, _) => self.atomic_merge(to, &self.lift(values), space),
        }
    }
}

/// Statements that assign a value of 256 bits to its slots.
fn assigned(to: &[String], value: &str) -> String {
    to.iter().enumerate().map(|(word, to)| format!("{to} = {value}.w[{word}]; ")).collect()
}
