// SPDX-License-Identifier: Apache-2.0
//! Arrays: copies from and to the host, and device memory shared with buffers.

use std::sync::Arc;

use device::{Buffer, Queue};
use libffi::middle::arg;

use super::{Handle, Origins, ResultSlot};
use crate::library::{ArrayFns, FnAddress, Raw};
use crate::{Context, Element, Error, Primitive, Result, Value};

/// An array in the library's memory.
#[derive(Debug)]
pub struct Array {
    pub(super) handle: Handle,
    pub(super) element: Primitive,
    pub(super) shape: Vec<usize>,
}

impl Array {
    /// The name of the array's type.
    pub fn type_name(&self) -> &str {
        &self.handle.type_name
    }

    /// The element type.
    pub fn element(&self) -> Primitive {
        self.element
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements in row-major order.
    ///
    /// # Errors
    /// [`Error::Usage`] if `T` is not the element type; else the library's failure.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::PRIMITIVE != self.element {
            let (actual, requested) = (self.element.name(), T::PRIMITIVE.name());
            return Err(Error::Usage(format!("an array of {actual} is read as {requested}")));
        }
        let mut values = vec![T::default(); self.len()];
        // SAFETY: elements have no padding, `read` writes only valid ones, and the bytes are the
        // vector's.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), std::mem::size_of_val(values.as_slice())) };
        self.read(bytes)?;
        Ok(values)
    }

    /// Copies the elements in row-major order to aligned memory. A `bool` is a byte, 0 or 1.
    ///
    /// # Errors
    /// [`Error::Usage`] if the memory has another size or alignment; else the library's failure.
    pub fn read(&self, bytes: &mut [u8]) -> Result<()> {
        check_memory(self.element, &self.shape, bytes)?;
        let context = &self.handle.context;
        let fns = context.array_fns(self.type_name())?;
        let call = format!("reading a value of type {}", self.type_name());
        context.with(|raw| {
            // SAFETY: the array is live, and the memory has its size.
            let status = unsafe { (fns.values)(raw, self.handle.raw, bytes.as_mut_ptr().cast()) };
            context.check(raw, &call, status)?;
            context.sync_held(raw, &call)
        })?;
        if self.element == Primitive::Bool {
            // Rust allows only 0 and 1.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(())
    }

    /// The elements as a buffer of the shared device; a `bool` is a byte.
    ///
    /// The buffer is the array's memory, and keeps the array alive. For the back end `cuda` it is a
    /// copy, made on the device. The context is used during this call only, not when the future is
    /// polled.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the context shares no device, or the manifest lacks `values_raw`.
    /// - [`Error::Device`].
    pub fn into_buffer(self, queue: &Queue) -> impl Future<Output = Result<Buffer>> + Send + use<> {
        let found = self.memory(queue.context());
        let bytes = self.len() * self.element.bytes();
        let begun = found.and_then(|memory| match memory {
            None => Ok(Err(queue.alloc(0).map_err(Error::Device)?)),
            Some(memory) if self.handle.context.foreign_context().is_some() => {
                // SAFETY: as below.
                let copy = unsafe { queue.copy_from(memory as u64, bytes, Arc::new(self)) };
                Ok(Err(copy.map_err(Error::Device)?))
            }
            // SAFETY: a `cl_mem` of the library, which is live as long as the array, the guardian.
            // Every call has completed. Only calls that consume an array write to it, and none can
            // consume the guardian.
            Some(memory) => Ok(Ok(unsafe { queue.adopt(memory as u64, Some(bytes), Arc::new(self)) })),
        });
        async move {
            match begun? {
                Ok(adopted) => adopted.await.map_err(Error::Device),
                Err(copy) => Ok(copy),
            }
        }
    }

    /// The address of the elements in the device's memory; `None` for an empty array.
    fn memory(&self, device: &device::Context) -> Result<Option<Raw>> {
        let context = &self.handle.context;
        context.check_shared(self.type_name(), device)?;
        if self.len() == 0 {
            return Ok(None);
        }
        self.raw_memory().map(Some)
    }

    /// The elements' memory, as the library exposes it.
    pub(crate) fn raw_memory(&self) -> Result<Raw> {
        let context = &self.handle.context;
        let (_, values_raw) = context.raw_fns(self.type_name())?;
        // SAFETY: the array is live.
        let memory = context.with(|raw| unsafe { values_raw(raw, self.handle.raw) });
        if memory.is_null() {
            let call = format!("the memory of a value of type {}", self.type_name());
            return Err(Error::Failed { call, code: 0, message: "it is null".to_owned() });
        }
        Ok(memory)
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Context {
    /// Makes an array by copying `values`, which are in row-major order.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the library has no such array type, or the shape does not fit.
    /// - [`Error::OutOfMemory`] if the library allocates none.
    pub fn array<T: Element>(&self, shape: &[usize], values: &[T]) -> Result<Array> {
        // SAFETY: elements have no padding; the bytes are the slice's.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) };
        self.array_of_bytes(T::PRIMITIVE, shape, bytes)
    }

    /// As [`array`](Self::array), for an element type known at run time. The bytes have C's
    /// alignment; a `bool` is a byte.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn array_of_bytes(&self, element: Primitive, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        check_memory(element, shape, bytes)?;
        // The library only reads it.
        let data: Raw = bytes.as_ptr().cast_mut().cast();
        let type_name = self.library().array_type(element, shape.len())?;
        self.new_array(type_name, self.array_fns(type_name)?.new, data, shape, Origins::fresh())
    }

    /// An array of one element, 0.
    pub(crate) fn array_of_zero(&self, element: Primitive) -> Result<Array> {
        // A `u64` is aligned for every element type.
        let zero = [0u64];
        // SAFETY: within the `u64`, whose bytes are valid for every element type.
        let bytes = unsafe { std::slice::from_raw_parts(zero.as_ptr().cast(), element.bytes()) };
        self.array_of_bytes(element, &[1], bytes)
    }

    /// Makes an array over a buffer from [`prepare_buffer`](Self::prepare_buffer), from its start
    /// and without a copy. A `bool` is a byte.
    ///
    /// Writes to the buffer must have completed. An entry point may consume the array only if it
    /// has the last handle of the buffer.
    ///
    /// # Errors
    /// - [`Error::Usage`] if the context does not share the buffer's device, or the buffer is too
    ///   small.
    /// - [`Error::Usage`] if the library has no such array type, or the manifest lacks its
    ///   `new_raw`.
    /// - [`Error::OutOfMemory`] if the library allocates none.
    pub fn array_from_buffer(&self, element: Primitive, shape: &[usize], buffer: Buffer) -> Result<Array> {
        let type_name = self.library().array_type(element, shape.len())?;
        let shared = self.device().is_some_and(|device| device.owns(&buffer));
        if !shared || self.foreign_context().is_some_and(|context| !context.contains(&buffer)) {
            return Err(Error::Usage(format!("{type_name} over memory that the context does not share")));
        }
        let needed = shape.iter().try_fold(element.bytes(), |total, dim| total.checked_mul(*dim));
        if needed.is_none_or(|needed| needed > buffer.len()) {
            let have = buffer.len();
            return Err(Error::Usage(format!("{have} bytes are too few for {} with the shape {shape:?}", element.name())));
        }
        let (new_raw, _) = self.raw_fns(type_name)?;
        self.new_array(type_name, new_raw, buffer.raw().handle as Raw, shape, Origins::over(buffer))
    }

    /// Calls `array *new(context, data, dimension…)`, and waits.
    fn new_array(&self, type_name: &str, new: FnAddress, data: Raw, shape: &[usize], origins: Origins) -> Result<Array> {
        let dims: Vec<i64> = shape.iter().map(|dim| *dim as i64).collect();
        let mut types = vec![libffi::middle::Type::pointer(); 2];
        types.resize(2 + dims.len(), libffi::middle::Type::i64());
        let call = format!("making an array of type {type_name}");
        self.with(|context| {
            let mut arguments = vec![arg(&context), arg(&data)];
            arguments.extend(dims.iter().map(arg));
            let cif = libffi::middle::Cif::new(types, libffi::middle::Type::pointer());
            // SAFETY: the manifest's rank gives the type; the data has the size of the dimensions.
            let array: Raw = unsafe { cif.call(new.into(), &arguments) };
            if array.is_null() {
                // There is no return code. With data of the right size, only the allocation can
                // fail.
                return Err(self.failure(context, &call, 3));
            }
            let slot = ResultSlot { raw: array };
            let Value::Array(array) = self.adopt(context, &call, type_name, slot, origins)? else {
                return Err(Error::Usage(format!("{type_name} is not an array")));
            };
            // The copy may be asynchronous.
            self.sync_held(context, &call)?;
            Ok(array)
        })
    }

    pub(crate) fn array_fns(&self, type_name: &str) -> Result<&ArrayFns> {
        self.library().array(type_name).ok_or_else(|| Error::Usage(format!("{type_name} is not an array type of the library")))
    }

    /// `new_raw` and `values_raw` of an array type.
    fn raw_fns(&self, type_name: &str) -> Result<(FnAddress, unsafe extern "C" fn(Raw, Raw) -> Raw)> {
        let raw = self.array_fns(type_name)?.raw;
        raw.ok_or_else(|| Error::Usage(format!("the manifest names no new_raw of the type {type_name}")))
    }

    fn check_shared(&self, type_name: &str, with: &device::Context) -> Result<()> {
        match self.device() {
            Some(device) if device.same(with) => Ok(()),
            _ => Err(Error::Usage(format!("a value of type {type_name} is not in that device's memory"))),
        }
    }
}

/// Checks the size and alignment of memory for an array.
fn check_memory(element: Primitive, shape: &[usize], bytes: &[u8]) -> Result<()> {
    let needed = shape.iter().try_fold(element.bytes(), |total, dim| total.checked_mul(*dim));
    if needed.filter(|needed| *needed <= isize::MAX as usize) != Some(bytes.len()) {
        let have = bytes.len();
        return Err(Error::Usage(format!("{have} bytes do not fit {} with the shape {shape:?}", element.name())));
    }
    match bytes.as_ptr().align_offset(element.bytes()) {
        0 => Ok(()),
        _ => Err(Error::Usage(format!("memory is not aligned for {}", element.name()))),
    }
}
