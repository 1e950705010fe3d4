// SPDX-License-Identifier: Apache-2.0
//! Keys of a grouped aggregation: how they are evaluated, packed, compared and given back.

use arrow::datatypes::{DataType, Field, i256};
use columnar::{ColumnType, Layout};

use crate::codegen::{CType, Params, RowWriter, Value, wide_literal};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::output::{Output, carrier};
use crate::ops::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// One key.
#[derive(Debug, Clone)]
pub(super) struct Key {
    /// The value's C type.
    pub ctype: CType,
    pub nullable: bool,
    /// Of integers, where they are proven.
    pub bounds: Option<(i128, i128)>,
    /// How the key is kept for each group, where the table does not hold it itself.
    pub store: Output,
    pub form: Form,
    /// Whether both zeros of a float are one key.
    folds: bool,
}

/// How a key comes out.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// As it is kept.
    Plain,
    /// Codes of a dictionary whose bounds are known: a resident table's, the same in every batch but
    /// for values at its end. The column of the source that has it.
    Codes(usize),
    /// Strings of a dictionary column, which get a dictionary again.
    Dictionary(Output),
}

impl Key {
    /// Plans a key over an input, `alone` or beside others; the expression that kernels evaluate for it. The zeros of a `distinct`
    /// value are two, and those in a dictionary.
    pub fn plan(
        source: &mut Source,
        index: usize,
        expr: &Expr,
        field: &Field,
        distinct: bool,
        alone: bool,
        options: &Options,
    ) -> Result<(Key, Expr)> {
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
            let key = Key {
                ctype: value.ctype,
                nullable: ty.nullable,
                bounds: ty.bounds,
                store,
                form: Form::Codes(*column),
                folds: false,
            };
            return Ok((key, codes));
        }
        let value = evaluate(source, expr, options)?;
        let nullable = value.valid.is_some();
        let name = index.to_string();
        let (store, form) = match (&dictionary, field.data_type()) {
            // Codes of less than 32 bits cannot number the groups: their strings stay plain. So do those beside other keys, which
            // groups repeat: another code is another value.
            (Some((_, ty)), DataType::Dictionary(code, inner))
                if alone && value.ctype == CType::Str && code.primitive_width() >= Some(4) =>
            {
                // What a dictionary holds is never NULL; validity goes with the codes.
                let store = Output::of(&value, inner, &name)?;
                let codes = CType::native(code).ok_or_else(|| Error::Internal(format!("codes of type {code}")))?;
                let layout = Layout::Dictionary { codes: carrier(codes)?, values: Box::new(store.ty.layout.clone()) };
                let ty = ColumnType { data_type: ty.data_type.clone(), nullable, layout, bounds: None };
                (store, Form::Dictionary(Output::new(ty, codes, &format!("codes{index}"))))
            }
            (_, data_type) => (Output::of(&value, data_type, &name)?, Form::Plain),
        };
        let bounds = value.bounds.filter(|_| value.ctype != CType::Bool);
        let folds = !distinct && !matches!(field.data_type(), DataType::Dictionary(_, _));
        Ok((Key { ctype: value.ctype, nullable, bounds, store, form, folds }, expr.clone()))
    }

    /// Type and layout of the finished column.
    pub fn ty(&self) -> &ColumnType {
        match &self.form {
            Form::Dictionary(codes) => &codes.ty,
            _ => &self.store.ty,
        }
    }

    /// Number of values that the key can have, NULL among them, where that is few.
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

    /// Bits that hold any value, without NULL; `None` where they may be more than 64.
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

    /// Evaluates the key for the writer's row, in the key's C type.
    pub fn eval(&self, writer: &mut RowWriter<'_>, expr: &Expr) -> Result<Value> {
        let mut value = writer.eval(expr)?;
        if value.ctype != self.ctype {
            value.code = value.to_ctype(self.ctype);
            value.ctype = self.ctype;
            value = writer.store(value);
        }
        // Both zeros are one group, whose key is the positive one.
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

    /// C: the value of what [`pack`](Self::pack) gave.
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

    /// Appends `hash`, mixed with the value.
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

    /// C: whether two values, one perhaps NULL, are one group's.
    pub fn equal(&self, left: &Value, right: &Value) -> String {
        let (a, b) = (&left.code, &right.code);
        let equal = match self.ctype {
            CType::Str => format!("str_eq({a}, {b})"),
            CType::I128 | CType::I256 => format!("{}_eq({a}, {b})", self.ctype.name()),
            CType::F64 => format!("F64_BITS({a}) == F64_BITS({b})"),
            CType::F32 => format!("F32_BITS({a}) == F32_BITS({b})"),
            _ => format!("{a} == {b}"),
        };
        match (&left.valid, &right.valid) {
            (None, None) => format!("({equal})"),
            _ => format!("({0} == {1} && (!{0} || {equal}))", left.valid_code(), right.valid_code()),
        }
    }

    /// The value that is kept for group `group`, as C.
    pub fn stored(&self, params: &mut Params, group: &str) -> Value {
        let [values, valid, heap] = self.store.names();
        let valid = match self.store.is_null() {
            // Nothing is kept of what is always NULL.
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

    /// Marks the sections of the prelude that the statements need.
    pub fn need(&self, params: &mut Params) {
        params.need_type(self.ctype);
        params.need(Section::Hash);
    }
}

fn evaluate(source: &Source, expr: &Expr, options: &Options) -> Result<Value> {
    let mut params = Params::new();
    source.writer(options.profile, &mut params).eval(expr)
}
