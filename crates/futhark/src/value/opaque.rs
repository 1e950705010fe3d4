// SPDX-License-Identifier: Apache-2.0
//! Opaque values: records, sum types, and serialised values.

use std::ffi::c_void;

use libffi::middle::{Arg, Type, arg};

use super::{Handle, Origins, ResultSlot};
use crate::call::LibraryCall;
use crate::library::{ContentFns, FnAddress, OpaqueFns, ProjectFn, Raw, RecordFns, SumFns};
use crate::manifest::{Kind, OpaqueType, Record, Sum};
use crate::{Context, Error, Library, Result, Value};

/// A value whose layout only the library knows. Records and sums can be taken apart.
#[derive(Debug)]
pub struct Opaque {
    pub(super) handle: Handle,
}

impl Opaque {
    /// The name of the value's type.
    pub fn type_name(&self) -> &str {
        &self.handle.type_name
    }

    pub(crate) fn library(&self) -> &Library {
        self.handle.context.library()
    }

    /// The fields of a record or tuple in the manifest's order; for an array of records, one array
    /// per field.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is not a record; else the library's failure.
    pub fn fields(&self) -> Result<Vec<Value>> {
        let context = &self.handle.context;
        let (record, functions) = context.record_fns(self.type_name())?;
        let field = |(field, project): (&crate::manifest::Field, &ProjectFn)| {
            let mut slot = ResultSlot::EMPTY;
            context.with(|raw| {
                // SAFETY: the record is live, and the slot holds a scalar or a pointer.
                let status = unsafe { project(raw, (&raw mut slot).cast(), self.handle.raw) };
                context.check(raw, &field.project, status)?;
                let value = context.adopt(raw, &field.project, &field.type_name, slot, self.handle.origins.clone())?;
                context.sync_held(raw, &field.project)?;
                Ok(value)
            })
        };
        record.fields.iter().zip(&functions.project).map(field).collect()
    }

    /// The variant of a value of a sum type, and its payload.
    ///
    /// # Errors
    /// [`Error::Usage`] if the type is not a sum type; else the library's failure.
    pub fn variant(&self) -> Result<(usize, Vec<Value>)> {
        let context = &self.handle.context;
        let (sum, functions) = context.sum_fns(self.type_name())?;
        context.with(|raw| {
            // SAFETY: the value is live.
            let number = unsafe { (functions.variant)(raw, self.handle.raw) };
            let index = usize::try_from(number).unwrap_or(usize::MAX);
            let (Some(variant), Some((_, destruct))) = (sum.variants.get(index), functions.variants.get(index)) else {
                let type_name = self.type_name();
                let problem = format!("a value of type {type_name} has the unknown variant {number}");
                return Err(Error::Usage(problem));
            };
            let outputs: Vec<&str> = variant.payload.iter().map(String::as_str).collect();
            let call = LibraryCall {
                name: &variant.destruct,
                function: *destruct,
                outputs: &outputs,
                arguments: &[arg(&self.handle.raw)],
                types: &[Type::pointer()],
            };
            let payload = context.invoke(raw, &call, |_| self.handle.origins.clone())?;
            Ok((index, payload))
        })
    }

    /// Serialises the value for [`Context::restore`] of the same library, built by the same
    /// compiler.
    ///
    /// # Errors
    /// [`Error::Usage`] if the type has no such function; else the library's failure.
    pub fn store(&self) -> Result<Vec<u8>> {
        let context = &self.handle.context;
        let type_name = self.type_name();
        let store = context.opaque_fns(type_name)?.store;
        let store = store.ok_or_else(|| Error::Usage(format!("values of type {type_name} cannot be stored")))?;
        let call = format!("storing a value of type {type_name}");
        context.with(|raw| {
            let mut len = 0;
            // SAFETY: the value is live; with a null output it only returns the length.
            let status = unsafe { store(raw, self.handle.raw, std::ptr::null_mut(), &raw mut len) };
            context.check(raw, &call, status)?;
            let mut bytes = vec![0u8; len];
            let mut output: Raw = bytes.as_mut_ptr().cast();
            if len > 0 {
                // SAFETY: the output has the requested length.
                let status = unsafe { store(raw, self.handle.raw, &raw mut output, &raw mut len) };
                context.check(raw, &call, status)?;
                context.sync_held(raw, &call)?;
            }
            Ok(bytes)
        })
    }
}

impl Context {
    /// Builds a record from its fields in the manifest's order, or an array of records from one
    /// array per field. It shares their memory.
    ///
    /// # Errors
    /// [`Error::Usage`] if the type is not a record, or the fields do not fit; else the library's
    /// failure.
    pub fn record(&self, type_name: &str, fields: &[Value]) -> Result<Opaque> {
        let (record, functions) = self.record_fns(type_name)?;
        let types: Vec<&str> = record.fields.iter().map(|field| field.type_name.as_str()).collect();
        self.construct(type_name, &record.new, functions.new, &types, fields)
    }

    /// Builds a value of a sum type from the variant's index in the manifest. It shares the
    /// payload's memory.
    ///
    /// # Errors
    /// [`Error::Usage`] if the type is not a sum type, or the payload does not fit; else the
    /// library's failure.
    pub fn variant(&self, type_name: &str, variant: usize, payload: &[Value]) -> Result<Opaque> {
        let (sum, functions) = self.sum_fns(type_name)?;
        let (Some(found), Some((construct, _))) = (sum.variants.get(variant), functions.variants.get(variant)) else {
            return Err(Error::Usage(format!("the type {type_name} has {} variants, not {variant}", sum.variants.len())));
        };
        let types: Vec<&str> = found.payload.iter().map(String::as_str).collect();
        self.construct(type_name, &found.construct, *construct, &types, payload)
    }

    /// Restores a value from the bytes of [`Opaque::store`].
    ///
    /// # Errors
    /// [`Error::Usage`] for a type without such a function; [`Error::Failed`] if the library
    /// returns no value.
    ///
    /// # Safety
    /// The bytes are those of a value of this type, from the same program built by the same
    /// compiler.
    pub unsafe fn restore(&self, type_name: &str, bytes: &[u8]) -> Result<Opaque> {
        let restore = self.opaque_fns(type_name)?.restore;
        let restore = restore.ok_or_else(|| Error::Usage(format!("values of type {type_name} cannot be restored")))?;
        let call = format!("restoring a value of type {type_name}");
        self.with(|context| {
            // SAFETY: the caller upholds the contract.
            let value = unsafe { restore(context, bytes.as_ptr().cast::<c_void>()) };
            if value.is_null() {
                return Err(self.failure(context, &call, 1));
            }
            let value = self.adopt(context, &call, type_name, ResultSlot { raw: value }, Origins::fresh())?;
            self.sync_held(context, &call)?;
            opaque(value)
        })
    }

    fn construct(&self, type_name: &str, call: &str, function: FnAddress, types: &[&str], parts: &[Value]) -> Result<Opaque> {
        self.check_arguments(call, types, &parts.iter().collect::<Vec<_>>())?;
        let mut origins = Origins::default();
        parts.iter().for_each(|part| origins.extend(&part.origins()));
        let arguments: Vec<Arg<'_>> = parts.iter().map(Value::ffi).collect();
        let ffi = types.iter().map(|name| self.ffi(name)).collect::<Vec<_>>();
        let outputs = [type_name];
        let call = LibraryCall { name: call, function, outputs: &outputs, arguments: &arguments, types: &ffi };
        let mut values = self.with(|context| self.invoke(context, &call, |_| origins.clone()))?;
        values.pop().map_or_else(|| Err(Error::Usage(format!("{} returned no value", call.name))), opaque)
    }

    pub(crate) fn opaque_fns(&self, type_name: &str) -> Result<&OpaqueFns> {
        self.library().opaque(type_name).ok_or_else(|| Error::Usage(format!("{type_name} is not an opaque type of the library")))
    }

    fn record_fns(&self, type_name: &str) -> Result<(&Record, &RecordFns)> {
        let functions = &self.opaque_fns(type_name)?.content;
        match (self.library().manifest().kind(type_name), functions) {
            (Some(Kind::Opaque(OpaqueType { record: Some(record), .. })), ContentFns::Record(functions)) => {
                Ok((record, functions))
            }
            _ => Err(Error::Usage(format!("{type_name} is not a record"))),
        }
    }

    fn sum_fns(&self, type_name: &str) -> Result<(&Sum, &SumFns)> {
        let functions = &self.opaque_fns(type_name)?.content;
        match (self.library().manifest().kind(type_name), functions) {
            (Some(Kind::Opaque(OpaqueType { sum: Some(sum), .. })), ContentFns::Sum(functions)) => Ok((sum, functions)),
            _ => Err(Error::Usage(format!("{type_name} is not a sum type"))),
        }
    }
}

fn opaque(value: Value) -> Result<Opaque> {
    match value {
        Value::Opaque(opaque) => Ok(opaque),
        other => Err(Error::Usage(format!("{} is not an opaque type", other.type_name()))),
    }
}
