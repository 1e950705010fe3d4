// SPDX-License-Identifier: Apache-2.0
//! MIN and MAX of values too wide for one word: a reference for each group, and a store of winners.
//!
//! A reference is 0 (none), a row of the batch plus 1, or [`KEPT`]: the value in the store. Rows
//! compete by compare-and-swap, each comparing with what the reference means. After each batch the
//! winners move to the store, strings to a new heap.

use device::{Arg, Buffer, Queue};

use crate::Result;
use crate::codegen::{CType, Params, Value};
use crate::ops::accumulate::Kind;

/// The reference to the store.
pub(super) const KEPT: &str = "((u64)1 << 63)";

/// One such aggregate state.
#[derive(Debug, Clone)]
pub(super) struct Best {
    /// Position among the accumulators.
    pub accumulator: usize,
    pub ctype: CType,
    /// Kernels of each commit, by position in the program.
    pub lengths: usize,
    pub bytes: usize,
    refs: String,
    offsets: String,
    values: String,
}

impl Best {
    pub fn new(accumulator: usize, ctype: CType) -> Best {
        Best {
            accumulator,
            ctype,
            lengths: 0,
            bytes: 0,
            refs: format!("best{accumulator}"),
            offsets: format!("best{accumulator}_offsets"),
            values: format!("best{accumulator}_values"),
        }
    }

    /// The value in the store of group `group`.
    pub fn kept(&self, params: &mut Params, group: &str, data_type: &arrow::datatypes::DataType) -> Value {
        let code = match self.ctype {
            CType::Str => {
                let offsets = params.named(&self.offsets, "const G i64 *RESTRICT");
                let values = params.named(&self.values, "const G u8 *RESTRICT");
                format!("str_make({values} + {offsets}[{group}], (u32)({offsets}[({group}) + 1] - {offsets}[{group}]))")
            }
            ctype => format!("{}[{group}]", params.named(&self.values, &format!("G {} *RESTRICT", ctype.name()))),
        };
        Value { data_type: data_type.clone(), ctype: self.ctype, code, valid: None, bounds: None }
    }

    /// The references, writable.
    pub fn refs(&self, params: &mut Params) -> String {
        params.named(&self.refs, "volatile G u64 *")
    }

    /// Text by which the current row, of value `own`, competes for group `g`. `rival` is the value of
    /// the row `other`, after `statements`.
    pub fn compete(&self, params: &mut Params, kind: Kind, own: &Value, statements: &str, rival: &Value) -> String {
        let kept = self.kept(params, "g", &own.data_type);
        let refs = self.refs(params);
        let zero = self.ctype.zero();
        let (better, worse) = if kind == Kind::BestMin { (own.code.as_str(), "held") } else { ("held", own.code.as_str()) };
        let less = match self.ctype {
            CType::Str => format!("str_cmp({better}, {worse}) < 0"),
            ctype => format!("{}_lt({better}, {worse})", ctype.name()),
        };
        format!(
            "for (u64 seen = {refs}[g];;) {{
  {c_type} held = {zero};
  if (seen == {KEPT}) held = {};
  else if (seen) {{
    u64 other = seen - 1;
{statements}    held = {};
  }}
  if (seen && !({less})) break;
  u64 old = A_CAS64(&{refs}[g], seen, row + 1);
  if (old == seen) break;
  seen = old;
}}",
            kept.code,
            rival.code,
            c_type = self.ctype.name(),
        )
    }

    pub fn args<'a>(&'a self, store: &'a BestStore) -> Vec<(&'a str, Arg<'a>)> {
        vec![
            (self.refs.as_str(), Arg::Buffer(&store.refs)),
            (self.offsets.as_str(), Arg::Buffer(&store.offsets)),
            (self.values.as_str(), Arg::Buffer(&store.values)),
        ]
    }
}

/// What a [`Best`] has on the device.
#[derive(Debug)]
pub(super) struct BestStore {
    pub refs: Buffer,
    /// Offsets of strings, of as many groups as there were at the last commit.
    pub offsets: Buffer,
    /// Bytes of strings, or values by group.
    pub values: Buffer,
}

impl BestStore {
    pub fn new(queue: &Queue, best: &Best, capacity: usize) -> Result<BestStore> {
        let values = if best.ctype == CType::Str { 0 } else { capacity * best.ctype.width() };
        Ok(BestStore { refs: queue.zeroed(capacity * 8)?, offsets: queue.zeroed(8)?, values: queue.alloc(values)? })
    }

    /// Room for more groups.
    pub fn grow(&mut self, queue: &Queue, best: &Best, from: usize, to: usize) -> Result<()> {
        let refs = queue.zeroed(to * 8)?;
        queue.copy(&self.refs, 0, &refs, 0, from * 8)?;
        self.refs = refs;
        if best.ctype != CType::Str {
            let width = best.ctype.width();
            let values = queue.alloc(to * width)?;
            queue.copy(&self.values, 0, &values, 0, from * width)?;
            self.values = values;
        }
        Ok(())
    }
}
