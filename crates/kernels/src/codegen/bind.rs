// SPDX-License-Identifier: Apache-2.0
//! Binding of a batch and literals to the arguments of a launch.

use std::slice;

use columnar::DeviceColumn;
use device::{Arg, Buffer, Queue};

use super::params::{Constant, LiteralPart, Param, Params, SCRATCH};
use super::value::CType;
use super::{case_table, zone};
use crate::{Error, Result};

/// Inputs of [`Params::bind`] besides the batch.
#[derive(Default)]
pub struct Bindings<'a> {
    /// Result of [`Params::upload`].
    pub constants: Option<&'a Constants>,
    /// The error flag of a kernel that can fail.
    pub error: Option<&'a Buffer>,
    /// The tables of [`Params::dictionary_predicates`].
    pub dictionary_predicates: &'a [Buffer],
    /// The sink's own parameters, in any order. Where [`Params::scratch_bytes`] is not 0, a buffer
    /// of that size is among them as [`SCRATCH`](super::SCRATCH).
    pub named: Vec<(&'a str, Arg<'a>)>,
}

/// Constant buffers of a kernel.
#[derive(Debug, Clone, Default)]
pub struct Constants {
    literals: Option<Buffer>,
    zones: Option<Buffer>,
    cases: Option<Buffer>,
}

impl Params {
    /// Enqueues the upload of string literals and lists, and of constant tables that the device
    /// lacks.
    pub fn upload(&self, queue: &Queue) -> Result<Constants> {
        let literals = self.literal_heap().map(|heap| {
            let bytes = bytes::Bytes::from_owner(arrow::buffer::ScalarBuffer::<u8>::from(heap));
            queue.upload(bytes)
        });
        let zones = self.iter().any(|param| *param == Param::Zones).then(|| queue.constant(zone::all()));
        let cases = self.iter().any(|param| *param == Param::Cases).then(|| queue.constant(case_table::all()));
        Ok(Constants { literals: literals.transpose()?, zones: zones.transpose()?, cases: cases.transpose()? })
    }

    /// The arguments for a batch's columns, in the order of the parameters.
    pub fn bind<'a>(&self, columns: &'a [DeviceColumn], mut bindings: Bindings<'a>) -> Result<Vec<Arg<'a>>> {
        self.iter().map(|param| self.arg(param, columns, &mut bindings)).collect()
    }

    fn arg<'a>(&self, param: &Param, columns: &'a [DeviceColumn], bindings: &mut Bindings<'a>) -> Result<Arg<'a>> {
        let column = |index: usize| {
            columns.get(index).ok_or_else(|| Error::Internal(format!("column {index} of a batch of {}", columns.len())))
        };
        let dictionary = |index: usize| -> Result<&'a DeviceColumn> {
            let dictionary = column(index)?.dictionary();
            dictionary.map(|column| &**column).ok_or_else(|| Error::Internal(format!("column {index} has no dictionary")))
        };
        let constants = bindings.constants;
        Ok(match param {
            Param::Data { column: index, buffer } => data(column(*index)?, *buffer)?,
            Param::Offset { column: index } => Arg::U64(column(*index)?.offset() as u64),
            Param::Validity { column: index } => Arg::Buffer(validity(column(*index)?, *index)?.0),
            Param::ValidityOffset { column: index } => Arg::U64(validity(column(*index)?, *index)?.1 as u64),
            Param::DictData { column, buffer } => data(dictionary(*column)?, *buffer)?,
            Param::DictOffset { column } => Arg::U64(dictionary(*column)?.offset() as u64),
            Param::OfElements { column: index, param } => {
                let elements = column(*index)?.elements();
                let elements = elements.ok_or_else(|| Error::Internal(format!("column {index} has no lists")))?;
                self.arg(param, slice::from_ref(elements.as_ref()), bindings)?
            }
            Param::Literal { index, part } => self.literal_arg(*index, *part)?,
            Param::LiteralHeap => {
                let literals = constants.and_then(|constants| constants.literals.as_ref());
                Arg::Buffer(literals.ok_or_else(|| unbound("literals"))?)
            }
            Param::DictionaryPredicate { index } => {
                let table = bindings.dictionary_predicates.get(*index);
                Arg::Buffer(table.ok_or_else(|| unbound("a dictionary predicate"))?)
            }
            Param::Zones => {
                let zones = constants.and_then(|constants| constants.zones.as_ref());
                Arg::Buffer(zones.ok_or_else(|| unbound("time zones"))?)
            }
            Param::Cases => {
                let cases = constants.and_then(|constants| constants.cases.as_ref());
                Arg::Buffer(cases.ok_or_else(|| unbound("the cases of characters"))?)
            }
            Param::Scratch => named(bindings, SCRATCH)?,
            Param::Error => Arg::Buffer(bindings.error.ok_or_else(|| unbound("the error flag"))?),
            Param::Named(name) => named(bindings, name)?,
        })
    }

    fn literal_arg(&self, index: usize, part: LiteralPart) -> Result<Arg<'static>> {
        Ok(match (self.constants.get(index), part) {
            (Some(Constant::Int(CType::I128, value)), LiteralPart::Word(_)) => Arg::U64((*value >> 64) as u64),
            (Some(Constant::Wide(value)), part) => {
                let (low, high) = value.to_parts();
                Arg::U64(match part {
                    LiteralPart::Word(1) => (low >> 64) as u64,
                    LiteralPart::Word(2) => high as u64,
                    LiteralPart::Word(_) => (high >> 64) as u64,
                    _ => low as u64,
                })
            }
            (Some(Constant::Int(CType::I128 | CType::U64, value)), _) => Arg::U64(*value as u64),
            (Some(Constant::Int(CType::I64, value)), _) => Arg::I64(*value as i64),
            (Some(Constant::Int(CType::U32, value)), _) => Arg::U32(*value as u32),
            (Some(Constant::Int(_, value)), _) => Arg::I32(*value as i32),
            (Some(Constant::F32(value)), _) => Arg::F32(*value),
            (Some(Constant::F64(value)), _) => Arg::F64(*value),
            (Some(Constant::Heap { at, .. }), LiteralPart::At) => Arg::U32(*at),
            (Some(Constant::Heap { len, .. }), _) => Arg::U32(*len),
            (None, _) => return Err(Error::Internal(format!("literal {index} is unknown"))),
        })
    }
}

fn named<'a>(bindings: &mut Bindings<'a>, name: &str) -> Result<Arg<'a>> {
    let index = bindings.named.iter().position(|(known, _)| *known == name).ok_or_else(|| unbound(name))?;
    Ok(bindings.named.swap_remove(index).1)
}

fn data(column: &DeviceColumn, buffer: usize) -> Result<Arg<'_>> {
    let buffers = column.buffers();
    buffers
        .get(buffer)
        .map(Arg::Buffer)
        .ok_or_else(|| Error::Internal(format!("buffer {buffer} of a column of {}", buffers.len())))
}

fn validity(column: &DeviceColumn, index: usize) -> Result<(&Buffer, usize)> {
    column.validity().ok_or_else(|| Error::Internal(format!("column {index} of a nullable source has no validity")))
}

fn unbound(name: &str) -> Error {
    Error::Internal(format!("kernel parameter {name} was not bound"))
}
