// SPDX-License-Identifier: Apache-2.0
//! Keys of a grouped aggregation: evaluation, packing, comparison, output.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, i256};
use columnar::{ColumnType, DeviceColumn, Layout};

use crate::codegen::{CType, Params, RowWriter, Value, wide_literal};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::launch::output::{Output, OutputBuffers, carrier};
use crate::ops::launch::primitives::LoadedPrimitives;
use crate::ops::launch::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// One key.
#[derive(Debug, Clone)]
pub(super) struct GroupKey {
    /// C type of the values.
    pub ctype: CType,
    pub nullable: bool,
    /// Proven bounds of integers.
    pub bounds: Option<(i128, i128)>,
    /// The key store of the key, if the table does not have it.
    pub store: Output,
    pub output: KeyOutput,
    /// Whether both zeros of a float are one key.
    folds: bool,
}

/// How a key is given in the result.
#[derive(Debug, Clone)]
pub(super) enum KeyOutput {
    /// As it is stored.
    Plain,
    /// Codes of a dictionary with known bounds, as of a resident table: the same in every batch,
    /// except for values at its end. The column of the source.
    Codes(usize),
    /// Strings of a dictionary column, which get a dictionary again.
    Dictionary(Output),
}

impl GroupKey {
    /// Plans a key over an input, `alone` or beside others. Returns also the expression that
    /// kernels evaluate.
    ///
    /// -0.0 and 0.0 are two keys if they are a `distinct` value or in a dictionary.
    pub fn plan(
        source: &mut Source,
        index: usize,
        expr: &Expr,
        field: &Field,
        distinct: bool,
        alone: bool,
        options: &Options,
    ) -> Result<(GroupKey, Expr)> {
        let plain = source.plain(expr).filter(|(_, ty)| ty.data_type == *field.data_type());
        let dictionary =
            plain.map(|(column, ty)| (column, ty.clone())).filter(|(_, ty)| matches!(ty.layout, Layout::Dictionary { .. }));
        if let Some((column, ty)) = &dictionary
            && ty.bounds.is_some()
        {
            let codes = source.codes(*column)?;
            let value = evaluate(source, &codes, options)?;
            let ty = ColumnType { nullable: ty.nullable || source.may_be_absent(*column), ..ty.clone() };
            let store = Output::new(ty.clone(), value.ctype, &index.to_string());
            let key = GroupKey {
                ctype: value.ctype,
                nullable: ty.nullable,
                bounds: ty.bounds,
                store,
                output: KeyOutput::Codes(*column),
                folds: false,
            };
            return Ok((key, codes));
        }
        let value = evaluate(source, expr, options)?;
        let nullable = value.valid.is_some();
        let name = index.to_string();
        let (store, output) = match (&dictionary, field.data_type()) {
            // Codes of less than 32 bits cannot number the groups, so their strings stay plain. So
            // do strings beside other keys: groups repeat them, but another code must be another
            // value.
            (Some((_, ty)), DataType::Dictionary(code, inner))
                if alone && value.ctype == CType::Str && code.primitive_width() >= Some(4) =>
            {
                // The values of a dictionary are never NULL; the codes have the validity.
                let store = Output::of(&value, inner, &name)?;
                let codes = CType::native(code).ok_or_else(|| Error::Internal(format!("codes of type {code}")))?;
                let layout = Layout::Dictionary { codes: carrier(codes)?, values: Box::new(store.ty.layout.clone()) };
                let ty = ColumnType { data_type: ty.data_type.clone(), nullable, layout, bounds: None };
                (store, KeyOutput::Dictionary(Output::new(ty, codes, &format!("codes{index}"))))
            }
            (_, data_type) => (Output::of(&value, data_type, &name)?, KeyOutput::Plain),
        };
        let bounds = value.bounds.filter(|_| value.ctype != CType::Bool);
        let folds = !distinct && !matches!(field.data_type(), DataType::Dictionary(_, _));
        Ok((GroupKey { ctype: value.ctype, nullable, bounds, store, output, folds }, expr.clone()))
    }

    /// Bytes of a stored key, without those of a string.
    pub fn store_bytes(&self) -> usize {
        self.ctype.width().max(size_of::<u64>()) + usize::from(self.nullable)
    }

    /// Type and layout of the finished column.
    pub fn ty(&self) -> &ColumnType {
        match &self.output {
            KeyOutput::Dictionary(codes) => &codes.ty,
            KeyOutput::Plain | KeyOutput::Codes(_) => &self.store.ty,
        }
    }

    /// The finished column of `rows` groups, of buffers that the result kernels wrote and those of
    /// the key store.
    pub fn finish(
        &self,
        primitives: &LoadedPrimitives<'_>,
        rows: usize,
        (written, stored): (Option<OutputBuffers>, Option<OutputBuffers>),
        dictionary: Option<Arc<DeviceColumn>>,
    ) -> Result<DeviceColumn> {
        let values = |buffers: &OutputBuffers| buffers.values.clone().into_iter().collect();
        match (&self.output, written, stored) {
            (KeyOutput::Codes(_), Some(buffers), _) | (KeyOutput::Codes(_), None, Some(buffers)) => {
                primitives.column(&self.store.ty, rows, values(&buffers), buffers.valid.as_ref(), dictionary)
            }
            (KeyOutput::Dictionary(codes), Some(buffers), Some(stored)) => {
                check_codes(codes.ctype, rows)?;
                let ty = Arc::new(ColumnType { nullable: false, ..(*self.store.ty).clone() });
                let strings = self.store.finish(primitives, rows, OutputBuffers { valid: None, ..stored }, Some(ty))?;
                let dictionary = Some(Arc::new(strings));
                primitives.column(&codes.ty, rows, values(&buffers), buffers.valid.as_ref(), dictionary)
            }
            (KeyOutput::Plain | KeyOutput::Dictionary(_), Some(buffers), _)
            | (KeyOutput::Plain | KeyOutput::Dictionary(_), None, Some(buffers)) => {
                self.store.finish(primitives, rows, buffers, None)
            }
            (_, None, None) => Err(Error::Internal("a result without buffers".into())),
        }
    }

    /// Number of possible values of the key, with NULL; `None` if unknown.
    pub fn span(&self) -> Option<u64> {
        let range = match self.ctype {
            CType::Bool => Some((0, 1)),
            CType::I8 | CType::U8 => self.bounds.or(self.ctype.range()),
            _ => self.bounds,
        };
        let (least, most) = range?;
        let span = most.checked_sub(least)?.checked_add(1 + i128::from(self.nullable))?;
        u64::try_from(span).ok()
    }

    /// Bits for any value except NULL; `None` if they may be more than 64.
    pub fn bits(&self) -> Option<u32> {
        match (self.ctype, self.bounds) {
            (CType::Str, _) => None,
            (CType::Bool, _) => Some(1),
            (_, Some((least, most))) => {
                let span = most.checked_sub(least)?;
                let bits = (128 - span.leading_zeros()).max(1);
                (bits <= 64).then_some(bits)
            }
            (CType::I128 | CType::I256, None) => None,
            (ctype, None) => Some(ctype.width() as u32 * 8),
        }
    }

    /// Evaluates the key for the writer's row, in the C type of the key.
    pub fn eval(&self, writer: &mut RowWriter<'_>, expr: &Expr) -> Result<Value> {
        let mut value = writer.eval(expr)?;
        if value.ctype != self.ctype {
            value.code = value.to_ctype(self.ctype);
            value.ctype = self.ctype;
            value = writer.store(value);
        }
        // Both zeros are one group, with the positive zero as its key.
        match value.ctype {
            _ if !self.folds => {}
            CType::F64 => value.code = writer.local(CType::F64, &format!("f64_fold({})", value.code)),
            CType::F32 => value.code = writer.local(CType::F32, &format!("f32_fold({})", value.code)),
            _ => {}
        }
        Ok(value)
    }

    /// C: the value as an unsigned number below 2^[`bits`](Self::bits).
    pub fn pack(&self, value: &Value) -> String {
        let code = &value.code;
        match (self.ctype, self.bounds) {
            (CType::F64, _) => format!("F64_BITS({code})"),
            (CType::F32, _) => format!("(u64)F32_BITS({code})"),
            (CType::I256, Some((least, _))) => format!("({code}.w[0] - (u64){:#x}UL)", least as u64),
            (CType::I128, Some((least, _))) => format!("({code}.lo - (u64){:#x}UL)", least as u64),
            (_, Some((0, _))) => format!("(u64){code}"),
            (CType::U64, Some((least, _))) => format!("({code} - (u64){:#x}UL)", least as u64),
            (_, Some((least, _))) => format!("((u64)(i64){code} - (u64){:#x}UL)", least as u64),
            (CType::I8, None) => format!("(u64)(u8){code}"),
            (CType::I16, None) => format!("(u64)(u16){code}"),
            (CType::I32, None) => format!("(u64)(u32){code}"),
            _ => format!("(u64){code}"),
        }
    }

    /// C: the value of a [packed](Self::pack) number.
    pub fn unpack(&self, packed: &str) -> String {
        match (self.ctype, self.bounds) {
            (CType::F64, _) => format!("BITS_F64({packed})"),
            (CType::F32, _) => format!("BITS_F32({packed})"),
            // NULL is packed as 2, and bits are made from bytes of 0 and 1.
            (CType::Bool, _) => format!("(i32)({packed} & 1)"),
            (CType::I128, Some((least, _))) => {
                format!(
                    "i128_add(i128_make({packed}, 0), i128_make((u64){:#x}UL, (u64){:#x}UL))",
                    least as u64,
                    (least >> 64) as u64
                )
            }
            (CType::I256, Some((least, _))) => {
                format!("i256_add(i256_of_u64({packed}), {})", wide_literal(i256::from_i128(least)))
            }
            (ctype, Some((least, _))) => format!("({})({packed} + (u64){:#x}UL)", ctype.local(), least as u64),
            (ctype, None) => format!("({})({packed})", ctype.local()),
        }
    }

    /// Appends statements that mix the value into `hash`.
    pub fn hash(&self, writer: &mut RowWriter<'_>, hash: &str, value: &Value) {
        let code = &value.code;
        let mixed = match self.ctype {
            CType::Str => format!("hash_bytes({hash}, {code})"),
            CType::I128 => format!("hash64(hash64({hash} ^ {code}.lo) + {code}.hi)"),
            CType::I256 => {
                let rest = |mixed, word| format!("hash64({mixed} + {code}.w[{word}])");
                (1..4).fold(format!("hash64({hash} ^ {code}.w[0])"), rest)
            }
            CType::F64 => format!("hash64({hash} ^ F64_BITS({code}))"),
            CType::F32 => format!("hash64({hash} ^ (u64)F32_BITS({code}))"),
            _ => format!("hash64({hash} ^ (u64){code})"),
        };
        let null = "(u64)0x5bd1e995u";
        writer.push(&match &value.valid {
            None => format!("{hash} = {mixed};"),
            Some(valid) => format!("if ({valid}) {hash} = {mixed}; else {hash} = hash64({hash} + {null});"),
        });
    }

    /// The stored value of group `group`, as C.
    pub fn stored(&self, params: &mut Params, group: &str) -> Value {
        let [values, valid, heap] = self.store.names();
        let valid = match self.store.is_null() {
            // A type that is always NULL is not stored.
            true => Some("0".to_string()),
            false => self.nullable.then(|| format!("{}[{group}]", params.named(valid, "const G u8 *RESTRICT"))),
        };
        let code = match &self.store.ty.layout {
            Layout::Null => self.ctype.zero().into(),
            Layout::Bytes(width) => {
                let values = params.named(values, "const G u8 *RESTRICT");
                format!("str_make({values} + (u64)({group}) * {width}u, {width}u)")
            }
            Layout::Offsets64 => {
                let values = params.named(values, "const G i64 *RESTRICT");
                let heap = params.named(heap, "const G u8 *RESTRICT");
                format!("str_make({heap} + {values}[{group}], (u32)({values}[({group}) + 1] - {values}[{group}]))")
            }
            _ => format!("{}[{group}]", params.named(values, &format!("const G {} *RESTRICT", self.ctype.name()))),
        };
        Value { data_type: self.store.ty.data_type.clone(), ctype: self.ctype, code, valid, bounds: self.bounds }
    }

    /// Adds the sections of the prelude that the statements need.
    pub fn need(&self, params: &mut Params) {
        params.need_type(self.ctype);
        params.need(Section::Hash);
    }
}

/// Fails if codes of a C type cannot number so many groups.
fn check_codes(ctype: CType, groups: usize) -> Result<()> {
    match ctype.range() {
        Some((_, most)) if groups as i128 - 1 > most => {
            Err(Error::Unsupported(format!("{groups} groups do not fit a dictionary with keys of type {}", ctype.name())))
        }
        _ => Ok(()),
    }
}

fn evaluate(source: &Source, expr: &Expr, options: &Options) -> Result<Value> {
    let mut params = Params::new();
    source.writer(options.profile, &mut params).eval(expr)
}
