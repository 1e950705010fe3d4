// SPDX-License-Identifier: Apache-2.0
//! Kernels that copy the winning values of MIN and MAX to their store.

use super::GroupKernels;
use crate::Result;
use crate::codegen::{CType, Params};
use crate::ops::group::var_width_min_max::{STORED, VarWidthMinMax};
use crate::ops::launch::program::{Kernel, row_loop};
use crate::ops::launch::source::Source;

/// The part of winning values that a kernel copies.
#[derive(Clone, Copy)]
enum Winner {
    Lengths,
    Bytes,
    Values,
}

impl GroupKernels {
    /// The kernels that copy the winning values of an aggregate to its store: lengths and bytes of
    /// strings, or values.
    pub fn winner_kernels(&self, extreme: &mut VarWidthMinMax, source: &Source, kernels: &mut Vec<Kernel>) -> Result<()> {
        if extreme.ctype == CType::Str {
            extreme.lengths = kernels.len();
            kernels.push(self.winner_kernel(extreme, source, Winner::Lengths)?);
            extreme.bytes = kernels.len();
            kernels.push(self.winner_kernel(extreme, source, Winner::Bytes)?);
        } else {
            extreme.bytes = kernels.len();
            kernels.push(self.winner_kernel(extreme, source, Winner::Values)?);
        }
        Ok(())
    }

    fn winner_kernel(&self, extreme: &VarWidthMinMax, source: &Source, winner: Winner) -> Result<Kernel> {
        let profile = self.options.profile;
        let argument = self.accumulators.states[extreme.accumulator].argument()?;
        let mut params = Params::new();
        params.need_type(extreme.ctype);
        let n = params.named("n", "u64");
        let refs = extreme.refs(&mut params);
        let mut writer = source.writer(profile, &mut params);
        let value = writer.eval(argument)?;
        let statements = writer.statements();
        let kept = extreme.stored(&mut params, "g", &value.data_type);
        // For a group with a stored value, with a row of the batch as the winner, and without a
        // value.
        let [old, new, none] = match winner {
            Winner::Lengths => {
                let offsets = params.named("new_offsets", "G i64 *RESTRICT");
                [
                    format!("{offsets}[g + 1] = {}.len;", kept.code),
                    format!("{offsets}[g + 1] = {}.len;", value.code),
                    format!("{offsets}[g + 1] = 0;"),
                ]
            }
            Winner::Bytes => {
                let offsets = params.named("new_offsets", "const G i64 *RESTRICT");
                let heap = params.named("heap", "G u8 *RESTRICT");
                let copy = |code: &str| {
                    format!("str from = {code}; for (u32 i = 0; i < from.len; ++i) {heap}[{offsets}[g] + i] = from.p[i];")
                };
                [copy(&kept.code), format!("{} {refs}[g] = {STORED};", copy(&value.code)), String::new()]
            }
            Winner::Values => [String::new(), format!("{} = {}; {refs}[g] = {STORED};", kept.code, value.code), String::new()],
        };
        let body = format!(
            "    u64 seen = {refs}[g], row = seen - 1;
    if (seen == {STORED}) {{ {old} }}\n    else if (seen) {{\n{statements}      {new}\n    }}\n    else {{ {none} }}\n"
        );
        let suffix = match winner {
            Winner::Lengths => "_lengths",
            Winner::Bytes | Winner::Values => "",
        };
        let name = format!("group_winners{}{suffix}", extreme.accumulator);
        Ok(Kernel::new(name, params, row_loop(profile, "g", &n, &body)))
    }
}
