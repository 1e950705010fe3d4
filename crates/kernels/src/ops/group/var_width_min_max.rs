// SPDX-License-Identifier: Apache-2.0
//! MIN and MAX of strings and wide integers: a reference per group, and a store of winners.
//!
//! A reference is 0 (no value), a row of the batch plus 1, or [`STORED`] (the value in the store).
//! Each row compares its value with the referenced one and replaces it by compare-and-swap. After a
//! batch the winners are copied to the store, strings to a new heap.

use device::{Arg, Buffer, Queue};

use crate::Result;
use crate::codegen::{CType, Params, Value};
use crate::ops::accumulate::StateKind;

/// The reference to the value in the store.
pub(super) const STORED: &str = "((u64)1 << 63)";

/// A minimum or maximum of variable width.
#[derive(Debug, Clone)]
pub(super) struct VarWidthMinMax {
    /// Position among the accumulators.
    pub accumulator: usize,
    pub ctype: CType,
    /// Position of the kernel that measures the winners of a batch.
    pub lengths: usize,
    /// Position of the kernel that copies them.
    pub bytes: usize,
    refs: String,
    offsets: String,
    values: String,
}

impl VarWidthMinMax {
    pub fn new(accumulator: usize, ctype: CType) -> VarWidthMinMax {
        VarWidthMinMax {
            accumulator,
            ctype,
            lengths: 0,
            bytes: 0,
            refs: format!("extreme{accumulator}"),
            offsets: format!("extreme{accumulator}_offsets"),
            values: format!("extreme{accumulator}_values"),
        }
    }

    /// The stored value of a group.
    pub fn stored(&self, params: &mut Params, group: &str, data_type: &arrow::datatypes::DataType) -> Value {
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

    /// The name of the writable references.
    pub fn refs(&self, params: &mut Params) -> String {
        params.named(&self.refs, "volatile G u64 *")
    }

    /// C by which the current row, of value `own`, replaces a worse value of group `g`. `rival` is
    /// the value of the row `other`, computed by `statements`.
    pub fn compete(&self, params: &mut Params, kind: StateKind, own: &Value, statements: &str, rival: &Value) -> String {
        let stored = self.stored(params, "g", &own.data_type);
        let refs = self.refs(params);
        let zero = self.ctype.zero();
        let (better, worse) = if kind.is_greatest() { ("held", own.code.as_str()) } else { (own.code.as_str(), "held") };
        let less = match self.ctype {
            CType::Str => format!("str_cmp({better}, {worse}) < 0"),
            ctype => format!("{}_lt({better}, {worse})", ctype.name()),
        };
        format!(
            "for (u64 seen = {refs}[g];;) {{
  {c_type} held = {zero};
  if (seen == {STORED}) held = {};
  else if (seen) {{
    u64 other = seen - 1;
{statements}    held = {};
  }}
  if (seen && !({less})) break;
  u64 old = A_CAS64(&{refs}[g], seen, row + 1);
  if (old == seen) break;
  seen = old;
}}",
            stored.code,
            rival.code,
            c_type = self.ctype.name(),
        )
    }

    pub fn args<'a>(&'a self, store: &'a VarWidthStore) -> Vec<(&'a str, Arg<'a>)> {
        vec![
            (self.refs.as_str(), Arg::Buffer(&store.refs)),
            (self.offsets.as_str(), Arg::Buffer(&store.offsets)),
            (self.values.as_str(), Arg::Buffer(&store.values)),
        ]
    }
}

/// Device memory of a [`VarWidthMinMax`].
#[derive(Debug)]
pub(super) struct VarWidthStore {
    pub refs: Buffer,
    /// Offsets of strings, for the groups of the last batch.
    pub offsets: Buffer,
    /// Bytes of strings, or wide integers by group.
    pub values: Buffer,
}

impl VarWidthStore {
    pub fn new(queue: &Queue, state: &VarWidthMinMax, capacity: usize) -> Result<VarWidthStore> {
        let values = if state.ctype == CType::Str { 0 } else { capacity * state.ctype.width() };
        Ok(VarWidthStore { refs: queue.zeroed(capacity * 8)?, offsets: queue.zeroed(8)?, values: queue.alloc(values)? })
    }

    /// Grows to more groups.
    pub fn grow(&mut self, queue: &Queue, state: &VarWidthMinMax, from: usize, to: usize) -> Result<()> {
        let refs = queue.zeroed(to * 8)?;
        queue.copy(&self.refs, 0, &refs, 0, from * 8)?;
        self.refs = refs;
        if state.ctype != CType::Str {
            let width = state.ctype.width();
            let values = queue.alloc(to * width)?;
            queue.copy(&self.values, 0, &values, 0, from * width)?;
            self.values = values;
        }
        Ok(())
    }
}
