// SPDX-License-Identifier: Apache-2.0
//! Values: scalars, arrays, and opaque values such as records and sums.

mod array;
mod opaque;

use std::sync::Arc;

use device::Buffer;
use libffi::middle::{Arg, arg};

use crate::library::{FreeFn, Raw};
use crate::manifest::Kind;
use crate::{Context, Error, Result, Scalar};

pub use array::Array;
pub use opaque::Opaque;

/// A value of a library.
#[derive(Debug)]
pub enum Value {
    /// A value of a primitive type.
    Scalar(Scalar),
    /// An array of a primitive type.
    Array(Array),
    /// Anything else.
    Opaque(Opaque),
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Value {
        Value::Scalar(scalar)
    }
}

impl From<Array> for Value {
    fn from(array: Array) -> Value {
        Value::Array(array)
    }
}

impl From<Opaque> for Value {
    fn from(opaque: Opaque) -> Value {
        Value::Opaque(opaque)
    }
}

impl Value {
    /// The name of the value's type.
    pub fn type_name(&self) -> &str {
        match self {
            Value::Scalar(scalar) => scalar.primitive().name(),
            Value::Array(array) => array.type_name(),
            Value::Opaque(opaque) => opaque.type_name(),
        }
    }

    pub(crate) fn handle(&self) -> Option<&Handle> {
        match self {
            Value::Scalar(_) => None,
            Value::Array(array) => Some(&array.handle),
            Value::Opaque(opaque) => Some(&opaque.handle),
        }
    }

    /// The argument for C.
    pub(crate) fn ffi(&self) -> Arg<'_> {
        match self {
            Value::Scalar(scalar) => scalar.ffi(),
            Value::Array(Array { handle, .. }) | Value::Opaque(Opaque { handle, .. }) => arg(&handle.raw),
        }
    }

    /// The memory that the value may share with others.
    pub(crate) fn origins(&self) -> Origins {
        self.handle().map(|handle| handle.origins.clone()).unwrap_or_default()
    }
}

/// A value's pointer, freed on drop.
#[derive(Debug)]
pub(crate) struct Handle {
    pub context: Context,
    pub type_name: String,
    pub raw: Raw,
    pub origins: Origins,
    free: FreeFn,
}

// SAFETY: the pointer is used under the context's lock only, and the API is not tied to a thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.discard(self.raw, self.free);
    }
}

/// The origins of a value's memory, which track aliasing.
///
/// Two values that may share memory have a common origin. A buffer among the origins lives as long
/// as they.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(Vec<Arc<Option<Buffer>>>);

impl Origins {
    /// New memory, shared with no other value.
    pub fn fresh() -> Origins {
        Origins(vec![Arc::new(None)])
    }

    /// The memory of a buffer.
    pub fn over(buffer: Buffer) -> Origins {
        Origins(vec![Arc::new(Some(buffer))])
    }

    /// The origins that are buffers.
    pub fn buffers(&self) -> Origins {
        Origins(self.0.iter().filter(|origin| origin.is_some()).cloned().collect())
    }

    /// Adds the origins of another value.
    pub fn extend(&mut self, others: &Origins) {
        for other in &others.0 {
            if !self.0.iter().any(|own| Arc::ptr_eq(own, other)) {
                self.0.push(Arc::clone(other));
            }
        }
    }

    /// Whether no other value shares the memory, and no other handle the buffers.
    pub fn are_sole(&self) -> bool {
        self.0.iter().all(|origin| Arc::strong_count(origin) == 1 && (**origin).as_ref().is_none_or(Buffer::is_unique))
    }
}

/// The output of a C call for one result: a scalar's bytes or a pointer.
#[derive(Clone, Copy)]
pub(crate) union ResultSlot {
    raw: Raw,
    bytes: [u8; 8],
}

impl ResultSlot {
    pub const EMPTY: ResultSlot = ResultSlot { bytes: [0; 8] };
}

impl Context {
    /// Takes ownership of a C call's result.
    pub(crate) fn adopt(&self, context: Raw, call: &str, type_name: &str, slot: ResultSlot, origins: Origins) -> Result<Value> {
        let kind = self.library().manifest().kind(type_name);
        if let Some(Kind::Scalar(primitive)) = kind {
            // SAFETY: any bytes are valid.
            let scalar = Scalar::from_bytes(primitive, unsafe { &slot.bytes });
            return scalar.map(Value::Scalar).ok_or_else(|| Error::Usage(format!("{type_name} is too wide")));
        }
        // SAFETY: every other result is a pointer, and null if unwritten.
        let raw = unsafe { slot.raw };
        if raw.is_null() {
            return Err(Error::Failed { call: call.to_owned(), code: 0, message: "it returned no value".to_owned() });
        }
        let handle = |free| Handle { context: self.clone(), type_name: type_name.to_owned(), raw, origins, free };
        if !matches!(kind, Some(Kind::Array(_))) {
            return Ok(Value::Opaque(Opaque { handle: handle(self.opaque_fns(type_name)?.free) }));
        }
        let fns = self.array_fns(type_name)?;
        // SAFETY: the array is live; its shape has as many dimensions as its rank, and lives as
        // long.
        let shape = unsafe { std::slice::from_raw_parts((fns.shape)(context, raw), fns.rank) };
        let shape = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        Ok(Value::Array(Array { handle: handle(fns.free), element: fns.element, shape }))
    }
}
