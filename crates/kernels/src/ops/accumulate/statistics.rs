// SPDX-License-Identifier: Apache-2.0
//! Results of variances and of statistics of two arguments.

use super::evaluate::{Slots, foreign};
use super::state::Content;
use super::{Accumulators, StateKind};
use crate::Result;
use crate::codegen::Value;

impl Accumulators {
    pub(super) fn variance(&self, kind: StateKind, slots: &Slots, sample: bool, root: bool, result: Value) -> Result<Value> {
        let own = &slots.own;
        let is_welford = match kind.content() {
            Content::Welford => true,
            Content::PowerSums => false,
            Content::Sum(_)
            | Content::Least
            | Content::Greatest
            | Content::WideExtreme
            | Content::RowReference
            | Content::RankCounts
            | Content::Other => return foreign(kind, "a variance"),
        };
        let n = if is_welford { &own[0] } else { &slots.count };
        let distances = match is_welford {
            true => format!("BITS_F64({})", own[2]),
            false => format!(
                "twofold_distances({n}, BITS_F64({}), BITS_F64({}), BITS_F64({}), BITS_F64({}))",
                own[0], own[1], own[2], own[3]
            ),
        };
        let divisor = if sample { format!("(f64)({n} - 1)") } else { format!("(f64){n}") };
        // The mean, or the sum, of a single value.
        let single = format!("BITS_F64({})", own[usize::from(is_welford)]);
        let single = if self.keyed { format!("({single} - {single})") } else { "0.0".into() };
        let variance = format!("({n} > 1 ? {distances} / {divisor} : {single})");
        let code = if root { format!("sqrt({variance})") } else { variance };
        Ok(Value { code, valid: Some(format!("({n} > {})", i32::from(sample))), ..result })
    }
}

impl Slots {
    /// A statistic by its C templates, see
    /// [`Bivariate`](crate::expr::AggregateFamily::Bivariate). The slots are
    /// [`CrossSums`](StateKind::CrossSums): y, x, y², x² and x·y, as high and low part.
    pub(super) fn bivariate(&self, value: &str, valid: &str, result: Value) -> Value {
        let n = &self.count;
        let float = |index: usize| format!("BITS_F64({})", self.own[index]);
        // The low part of an infinity is NaN.
        let sum = |index: usize| {
            let (high, low) = (float(index), float(index + 1));
            format!("({high} - {high} != 0.0 ? {high} : {high} + {low})")
        };
        let parts = |indices: &[usize]| {
            let parts: Vec<String> = indices.iter().flat_map(|index| [float(*index), float(index + 1)]).collect();
            parts.join(", ")
        };
        let substituted = [
            ("$mean_y", format!("({} / (f64){n})", sum(0))),
            ("$mean_x", format!("({} / (f64){n})", sum(2))),
            ("$syy", format!("twofold_distances({n}, {})", parts(&[0, 4]))),
            ("$sxx", format!("twofold_distances({n}, {})", parts(&[2, 6]))),
            ("$sxy", format!("twofold_products({n}, {})", parts(&[0, 2, 8]))),
            ("$n", n.clone()),
        ];
        let code = |template: &str| {
            substituted.iter().fold(template.to_string(), |code, (placeholder, value)| code.replace(placeholder, value))
        };
        Value { code: code(value), valid: Some(code(valid)), ..result }
    }
}
