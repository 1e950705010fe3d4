// SPDX-License-Identifier: Apache-2.0
//! Columns that kernels write: the C to store a row's value, and the buffers for it.

use std::sync::Arc;

use arrow::datatypes::DataType;
use columnar::{Carrier, ColumnType, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::primitives::LoadedPrimitives;
use crate::codegen::{CType, RowWriter, Value};
use crate::expr::value_type;
use crate::{Error, Result};

/// How a computed column is written.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Output {
    /// Type and layout of the finished column.
    pub ty: Arc<ColumnType>,
    /// C type of the values. Strings write their lengths first.
    pub ctype: CType,
    values: String,
    valid: String,
    heap: String,
    limit: Option<ByteLimit>,
}

/// The most bytes of strings that a column may have.
#[derive(Debug, Clone)]
struct ByteLimit {
    /// The column's name, for the error.
    column: String,
    bytes: usize,
}

impl Output {
    /// The column for `value`; the names of its buffers in kernels end with `name`. A dictionary
    /// type is written as plain values, which a download encodes again.
    pub fn of(value: &Value, data_type: &DataType, name: &str) -> Result<Output> {
        let layout = match (value_type(data_type), value.ctype) {
            (DataType::Null, _) => Layout::Null,
            (_, CType::Bool) => Layout::Bits,
            (DataType::FixedSizeBinary(width), _) => {
                Layout::Bytes(u32::try_from(*width).map_err(|_| Error::Internal(format!("a width of {width}")))?)
            }
            (_, CType::Str | CType::ComposedString) => Layout::Offsets64,
            (_, ctype) => Layout::Fixed(carrier(ctype)?),
        };
        let ty = ColumnType { data_type: data_type.clone(), nullable: value.valid.is_some(), layout, bounds: value.bounds };
        Ok(Output::new(ty, value.ctype, name))
    }

    /// The column of a type and layout.
    pub fn new(ty: ColumnType, ctype: CType, name: &str) -> Output {
        let [values, valid, heap] = ["o", "v", "h"].map(|kind| format!("{kind}{name}"));
        Output { ty: Arc::new(ty), ctype, values, valid, heap, limit: None }
    }

    /// Limits the bytes of the column's strings.
    pub fn with_limit(mut self, column: &str, bytes: usize) -> Output {
        self.limit = Some(ByteLimit { column: column.into(), bytes });
        self
    }

    /// Fails for more bytes of strings than the column may have.
    pub fn check_bytes(&self, bytes: usize) -> Result<()> {
        match &self.limit {
            Some(limit) if bytes > limit.bytes => Err(columnar::Error::TooLarge {
                column: limit.column.clone(),
                data_type: self.ty.data_type.clone(),
                what: "bytes of strings",
                actual: bytes,
                limit: limit.bytes,
            }
            .into()),
            _ => Ok(()),
        }
    }

    /// Whether the column has no buffers.
    pub fn is_null(&self) -> bool {
        self.ty.layout == Layout::Null
    }

    /// Whether the column has strings: lengths become offsets, and another kernel copies the bytes.
    pub fn is_str(&self) -> bool {
        self.ty.layout == Layout::Offsets64
    }

    /// Names of the kernel parameters for values, validity and heap.
    pub fn names(&self) -> [&str; 3] {
        [&self.values, &self.valid, &self.heap]
    }

    /// Whether kernels write validity.
    pub fn nullable(&self) -> bool {
        self.ty.nullable && !self.is_null()
    }

    /// Appends the statements that store `value` at the C index `index`.
    pub fn write(&self, writer: &mut RowWriter<'_>, value: &Value, index: &str) {
        if self.is_null() {
            return;
        }
        if self.nullable() {
            let valid = writer.params().named(&self.valid, "G u8 *RESTRICT");
            writer.push(&format!("{valid}[{index}] = (u8)({});", value.valid_code()));
        }
        let known = value.valid_code();
        let code = &value.code;
        match &self.ty.layout {
            Layout::Bytes(width) => {
                let values = writer.params().named(&self.values, "G u8 *RESTRICT");
                writer.push(&format!(
                    "for (u32 i = 0; i < {width}u; ++i) {values}[({index}) * {width}u + i] = {known} ? {code}.p[i] : 0;"
                ));
            }
            Layout::Offsets64 => {
                let values = writer.params().named(&self.values, "G i64 *RESTRICT");
                let length = value.measured();
                let length = if known == "1" { format!("(i64){length}") } else { format!("{known} ? (i64){length} : 0") };
                writer.push(&format!("{values}[({index}) + 1] = {length};"));
            }
            _ => {
                let values = writer.params().named(&self.values, &format!("G {} *RESTRICT", self.ctype.name()));
                let value = match self.ctype {
                    CType::I128 | CType::I256 => code.clone(),
                    // The value of a NULL is arbitrary, and packing takes bytes of 0 and 1.
                    CType::Bool => format!("(u8)({code} & 1)"),
                    ctype => format!("({}){code}", ctype.name()),
                };
                writer.push(&format!("{values}[{index}] = {value};"));
            }
        }
    }

    /// Appends the statements that copy the bytes of a string to the heap, at the offset of
    /// `index`.
    pub fn write_bytes(&self, writer: &mut RowWriter<'_>, value: &Value, index: &str) -> Result<()> {
        let offsets = writer.params().named(&self.values, "const G i64 *RESTRICT");
        let heap = writer.params().named("heap", "G u8 *RESTRICT");
        writer.guarded(value.valid_code(), |writer| {
            writer.push(&format!("G u8 *to = {heap} + {offsets}[{index}];"));
            writer.push(&value.written("to"));
            Ok(())
        })
    }

    /// Buffers for `n` values.
    pub fn alloc(&self, queue: &Queue, n: usize) -> Result<OutputBuffers> {
        let values = match &self.ty.layout {
            Layout::Null => None,
            Layout::Bits => Some(queue.alloc(n)?),
            Layout::Bytes(width) => Some(queue.alloc(n * *width as usize)?),
            Layout::Offsets64 => {
                let offsets = queue.alloc((n + 1) * 8)?;
                queue.fill(&offsets, 0, 8, 0)?;
                Some(offsets)
            }
            _ => Some(queue.alloc(n * self.ctype.width())?),
        };
        let valid = if self.nullable() { Some(queue.alloc(n)?) } else { None };
        Ok(OutputBuffers { values, valid, heap: None })
    }

    /// The kernel arguments for the buffers.
    pub fn args<'a>(&'a self, buffers: &'a OutputBuffers) -> impl Iterator<Item = (&'a str, Arg<'a>)> {
        let all = [(&self.values, &buffers.values), (&self.valid, &buffers.valid), (&self.heap, &buffers.heap)];
        all.into_iter().filter_map(|(name, buffer)| buffer.as_ref().map(|buffer| (name.as_str(), Arg::Buffer(buffer))))
    }

    /// The column of `n` written values, of type `ty` if it differs from the planned one.
    pub fn finish(
        &self,
        primitives: &LoadedPrimitives<'_>,
        n: usize,
        buffers: OutputBuffers,
        ty: Option<Arc<ColumnType>>,
    ) -> Result<DeviceColumn> {
        let values = match (&self.ty.layout, buffers.values) {
            (_, None) => vec![],
            (Layout::Bits, Some(bytes)) => vec![primitives.pack(&bytes, n)?],
            (_, Some(values)) => vec![values],
        };
        let all = values.into_iter().chain(buffers.heap).collect();
        primitives.column(&ty.unwrap_or_else(|| self.ty.clone()), n, all, buffers.valid.as_ref(), None)
    }
}

/// The buffers that a column is written to.
#[derive(Debug)]
pub(in crate::ops) struct OutputBuffers {
    /// Values; offsets of strings; a byte for each Boolean.
    pub values: Option<Buffer>,
    /// Validity, a byte of 0 or 1 for each row.
    pub valid: Option<Buffer>,
    /// Bytes of strings, allocated once their number is known.
    pub heap: Option<Buffer>,
}

/// The carrier whose values have a C type.
pub(in crate::ops) fn carrier(ctype: CType) -> Result<Carrier> {
    Ok(match ctype {
        CType::I8 => Carrier::I8,
        CType::I16 => Carrier::I16,
        CType::I32 => Carrier::I32,
        CType::I64 => Carrier::I64,
        CType::I128 => Carrier::I128,
        CType::I256 => Carrier::I256,
        CType::U8 => Carrier::U8,
        CType::U16 => Carrier::U16,
        CType::U32 => Carrier::U32,
        CType::U64 => Carrier::U64,
        CType::F32 => Carrier::F32,
        CType::F64 => Carrier::F64,
        CType::Bool | CType::Str | CType::List | CType::ComposedString => {
            return Err(Error::Internal(format!("{} has no carrier", ctype.name())));
        }
    })
}
