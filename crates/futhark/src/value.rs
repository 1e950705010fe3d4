// SPDX-License-Identifier: Apache-2.0
//! Values: scalars, arrays, and opaque ones such as records and sums.

use std::ffi::c_void;
use std::sync::Arc;

use device::{Buffer, Queue};
use libffi::middle::{Arg, arg};

use crate::library::{ArrayFns, Code, FreeFn, OpaqueFns, Raw};
use crate::manifest::{Kind, Record, Sum};
use crate::{Context, Element, Error, Library, Primitive, Result, Scalar};

/// A value of a library.
#[derive(Debug)]
pub enum Value {
    /// Of a primitive type.
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

    /// How C is given the value.
    pub(crate) fn ffi(&self) -> Arg<'_> {
        match self {
            Value::Scalar(scalar) => scalar.ffi(),
            Value::Array(Array { handle, .. }) | Value::Opaque(Opaque { handle, .. }) => arg(&handle.raw),
        }
    }

    /// What memory the value may share with others.
    pub(crate) fn origins(&self) -> Origins {
        self.handle().map(|handle| handle.origins.clone()).unwrap_or_default()
    }
}

/// A value's place in the library, freed with this.
#[derive(Debug)]
pub(crate) struct Handle {
    pub context: Context,
    pub type_name: String,
    pub raw: Raw,
    pub origins: Origins,
    free: FreeFn,
}

// SAFETY: the pointer is used under the context's lock only, and the API is bound to no thread.
unsafe impl Send for Handle {}
// SAFETY: likewise.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.discard(self.raw, self.free);
    }
}

/// What a value's memory comes from. Two values that may share memory have an origin in common; one that is a buffer lives as
/// long as they.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(Vec<Arc<Option<Buffer>>>);

impl Origins {
    /// Memory that nothing else has.
    pub fn fresh() -> Origins {
        Origins(vec![Arc::new(None)])
    }

    /// The memory of a buffer.
    pub fn over(buffer: Buffer) -> Origins {
        Origins(vec![Arc::new(Some(buffer))])
    }

    /// Those of them that are buffers.
    pub fn buffers(&self) -> Origins {
        Origins(self.0.iter().filter(|origin| origin.is_some()).cloned().collect())
    }

    /// Adds those of another value.
    pub fn extend(&mut self, others: &Origins) {
        for other in &others.0 {
            if !self.0.iter().any(|own| Arc::ptr_eq(own, other)) {
                self.0.push(Arc::clone(other));
            }
        }
    }

    /// Whether no other value has one of these, and nobody else the memory.
    pub fn are_sole(&self) -> bool {
        self.0.iter().all(|origin| Arc::strong_count(origin) == 1 && (**origin).as_ref().is_none_or(Buffer::is_unique))
    }
}

/// Where C writes a result: a scalar's bytes or a pointer.
#[derive(Clone, Copy)]
pub(crate) union Room {
    raw: Raw,
    bytes: [u8; 8],
}

impl Room {
    pub const EMPTY: Room = Room { bytes: [0; 8] };
}

/// An array in the library's memory.
#[derive(Debug)]
pub struct Array {
    handle: Handle,
    element: Primitive,
    shape: Vec<usize>,
}

impl Array {
    /// The name of the array's type.
    pub fn type_name(&self) -> &str {
        &self.handle.type_name
    }

    /// What it holds.
    pub fn element(&self) -> Primitive {
        self.element
    }

    /// The length of each dimension.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its elements, row by row.
    ///
    /// # Errors
    /// [`Error::Usage`] if `T` is not the array's type; else what the library says.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::PRIMITIVE != self.element {
            let (is, wanted) = (self.element.name(), T::PRIMITIVE.name());
            return Err(Error::Usage(format!("an array of {is} is asked for {wanted}")));
        }
        let mut values = vec![T::default(); self.len()];
        // SAFETY: elements have no padding, any bytes that `read` leaves are elements, and the bytes are those of the vector.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), std::mem::size_of_val(values.as_slice())) };
        self.read(bytes)?;
        Ok(values)
    }

    /// Copies the elements, row by row, to memory that is aligned for them. A `bool` is a byte, 0 or 1.
    ///
    /// # Errors
    /// [`Error::Usage`] if the memory has another size or alignment; else what the library says.
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
            // Rust knows two bools only.
            bytes.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok(())
    }

    /// Its elements as a buffer of the device that the context shares; a `bool` is a byte. In place, which keeps the array; of the back
    /// end `cuda` a copy, made on the device.
    ///
    /// The context is asked now, and no more when the future is polled.
    ///
    /// # Errors
    /// [`Error::Usage`] if the context shares no device or the manifest names no `values_raw`; [`Error::Device`].
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
            // SAFETY: a `cl_mem` of the library's, which keeps it as long as the array, the guardian. Every call has been waited
            // for, and no later one writes to an array but one that consumes it, which the guardian never is.
            Some(memory) => Ok(Ok(unsafe { queue.adopt(memory as u64, Some(bytes), Arc::new(self)) })),
        });
        async move {
            match begun? {
                Ok(adopted) => adopted.await.map_err(Error::Device),
                Err(made) => Ok(made),
            }
        }
    }

    /// Where its elements are in the memory of a device; nowhere if there are none.
    fn memory(&self, device: &device::Context) -> Result<Option<Raw>> {
        let context = &self.handle.context;
        context.shares_memory(self.type_name(), device)?;
        if self.len() == 0 {
            return Ok(None);
        }
        self.raw_memory().map(Some)
    }

    /// What the library shows as its elements' memory.
    pub(crate) fn raw_memory(&self) -> Result<Raw> {
        let context = &self.handle.context;
        let (_, values_raw) = context.raw_fns(self.type_name())?;
        // SAFETY: the array is live.
        let memory = context.with(|raw| unsafe { values_raw(raw, self.handle.raw) });
        if memory.is_null() {
            let call = format!("the memory of a value of type {}", self.type_name());
            return Err(Error::Failed { call, code: 0, message: "there is none".to_owned() });
        }
        Ok(memory)
    }

    fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A value that only the library understands; records and sums can be taken apart.
#[derive(Debug)]
pub struct Opaque {
    handle: Handle,
}

impl Opaque {
    /// The name of the value's type.
    pub fn type_name(&self) -> &str {
        &self.handle.type_name
    }

    pub(crate) fn library(&self) -> &Library {
        self.handle.context.library()
    }

    /// The fields of a record or tuple, in the manifest's order; of an array of them an array for each field.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is no record; else what the library says.
    pub fn fields(&self) -> Result<Vec<Value>> {
        let context = &self.handle.context;
        let (record, (_, projections)) = context.record_fns(self.type_name())?;
        let field = |(field, project): (&crate::manifest::Field, &unsafe extern "C" fn(Raw, Raw, Raw) -> i32)| {
            let mut room = Room::EMPTY;
            context.with(|raw| {
                // SAFETY: the record is live, and there is room for a scalar or a pointer.
                let status = unsafe { project(raw, (&raw mut room).cast(), self.handle.raw) };
                context.check(raw, &field.project, status)?;
                let value = context.adopt(raw, &field.project, &field.type_name, room, self.handle.origins.clone())?;
                context.sync_held(raw, &field.project)?;
                Ok(value)
            })
        };
        record.fields.iter().zip(projections).map(field).collect()
    }

    /// Which variant of its sum type the value is, and its payload.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is of no sum type; else what the library says.
    pub fn variant(&self) -> Result<(usize, Vec<Value>)> {
        let context = &self.handle.context;
        let (sum, (variant_of, codes)) = context.sum_fns(self.type_name())?;
        context.with(|raw| {
            // SAFETY: the value is live.
            let number = unsafe { variant_of(raw, self.handle.raw) };
            let index = usize::try_from(number).unwrap_or(usize::MAX);
            let (Some(variant), Some((_, destruct))) = (sum.variants.get(index), codes.get(index)) else {
                let of = self.type_name();
                return Err(Error::Usage(format!("a value of type {of} has the variant {number}, which the manifest has not")));
            };
            let outputs: Vec<&str> = variant.payload.iter().map(String::as_str).collect();
            let payload = context.invoke(
                raw,
                &variant.destruct,
                *destruct,
                &outputs,
                &[arg(&self.handle.raw)],
                &[libffi::middle::Type::pointer()],
                |_| self.handle.origins.clone(),
            )?;
            Ok((index, payload))
        })
    }

    /// The value as bytes that [`Context::restore`] of the same library, built by the same compiler, understands.
    ///
    /// # Errors
    /// [`Error::Usage`] if the type has no such function; else what the library says.
    pub fn store(&self) -> Result<Vec<u8>> {
        let context = &self.handle.context;
        let of = self.type_name();
        let store = context.opaque_fns(of)?.store;
        let store = store.ok_or_else(|| Error::Usage(format!("values of type {of} cannot be stored")))?;
        let call = format!("storing a value of type {of}");
        context.with(|raw| {
            let mut len = 0;
            // SAFETY: the value is live; without a place it only tells the length.
            let status = unsafe { store(raw, self.handle.raw, std::ptr::null_mut(), &raw mut len) };
            context.check(raw, &call, status)?;
            let mut bytes = vec![0u8; len];
            let mut place: Raw = bytes.as_mut_ptr().cast();
            if len > 0 {
                // SAFETY: the place has as many bytes as were asked for.
                let status = unsafe { store(raw, self.handle.raw, &raw mut place, &raw mut len) };
                context.check(raw, &call, status)?;
                context.sync_held(raw, &call)?;
            }
            Ok(bytes)
        })
    }
}

impl Context {
    /// An array of `values`, row by row, which are copied.
    ///
    /// # Errors
    /// [`Error::Usage`] if the library has no such arrays or the shape does not fit; [`Error::OutOfMemory`] if it makes none.
    pub fn array<T: Element>(&self, shape: &[usize], values: &[T]) -> Result<Array> {
        // SAFETY: elements have no padding; the bytes are those of the slice.
        let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) };
        self.array_of_bytes(T::PRIMITIVE, shape, bytes)
    }

    /// As [`array`](Self::array), of elements whose type is known at run time, aligned as they are in C. A `bool` is a byte.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn array_of_bytes(&self, element: Primitive, shape: &[usize], bytes: &[u8]) -> Result<Array> {
        check_memory(element, shape, bytes)?;
        // The library only reads.
        let data: Raw = bytes.as_ptr().cast_mut().cast();
        let type_name = self.library().array_type(element, shape.len())?;
        self.new_array(type_name, self.array_fns(type_name)?.new, data, shape, Origins::fresh())
    }

    /// An array of one element, 0.
    pub(crate) fn array_of_zero(&self, element: Primitive) -> Result<Array> {
        // Words are aligned for each element.
        let word = [0u64];
        // SAFETY: within the word, of which any byte will do.
        let bytes = unsafe { std::slice::from_raw_parts(word.as_ptr().cast(), element.bytes()) };
        self.array_of_bytes(element, &[1], bytes)
    }

    /// An array in a buffer that [`place`](Self::place) has given, from its beginning and without a copy. A `bool` is a byte.
    ///
    /// What writes the buffer must have completed. An entry point may consume the array only if this is the buffer's last handle.
    ///
    /// # Errors
    /// [`Error::Usage`] if the context shares no device or not the buffer's, the library has no such arrays, its manifest names no
    /// `new_raw`, or the buffer is too small; [`Error::OutOfMemory`] if it makes none.
    pub fn array_over(&self, element: Primitive, shape: &[usize], buffer: Buffer) -> Result<Array> {
        let type_name = self.library().array_type(element, shape.len())?;
        let shared = self.device().is_some_and(|device| device.owns(&buffer));
        if !shared || self.foreign_context().is_some_and(|foreign| !foreign.contains(&buffer)) {
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

    /// Calls `array *new(context, data, dimension…)`, and waits for it.
    fn new_array(&self, type_name: &str, new: Code, data: Raw, shape: &[usize], origins: Origins) -> Result<Array> {
        let dims: Vec<i64> = shape.iter().map(|dim| *dim as i64).collect();
        let mut types = vec![libffi::middle::Type::pointer(); 2];
        types.resize(2 + dims.len(), libffi::middle::Type::i64());
        let call = format!("making an array of type {type_name}");
        self.with(|context| {
            let mut arguments = vec![arg(&context), arg(&data)];
            arguments.extend(dims.iter().map(arg));
            let cif = libffi::middle::Cif::new(types, libffi::middle::Type::pointer());
            // SAFETY: the manifest's rank gives the type; the data have the size that the dimensions give.
            let array: Raw = unsafe { cif.call(new.into(), &arguments) };
            if array.is_null() {
                // There is no code here, and nothing else that can go wrong with memory of the right size.
                return Err(self.failure(context, &call, 3));
            }
            let room = Room { raw: array };
            let Value::Array(array) = self.adopt(context, &call, type_name, room, origins)? else {
                return Err(Error::Usage(format!("{type_name} is no array")));
            };
            // The copy may still be under way.
            self.sync_held(context, &call)?;
            Ok(array)
        })
    }

    /// A record of its fields, in the manifest's order; or an array of records, of an array for each field. It shares their memory.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is no record type or the fields do not fit; else what the library says.
    pub fn record(&self, type_name: &str, fields: &[Value]) -> Result<Opaque> {
        let (record, (new, _)) = self.record_fns(type_name)?;
        let types: Vec<&str> = record.fields.iter().map(|field| field.type_name.as_str()).collect();
        self.construct(type_name, &record.new, *new, &types, fields)
    }

    /// A value of a variant of a sum type, by the manifest's number. It shares the payload's memory.
    ///
    /// # Errors
    /// [`Error::Usage`] if it is no sum type, or the payload does not fit; else what the library says.
    pub fn variant(&self, type_name: &str, variant: usize, payload: &[Value]) -> Result<Opaque> {
        let (sum, (_, codes)) = self.sum_fns(type_name)?;
        let (Some(of), Some((construct, _))) = (sum.variants.get(variant), codes.get(variant)) else {
            return Err(Error::Usage(format!("the type {type_name} has {} variants, not {variant}", sum.variants.len())));
        };
        let types: Vec<&str> = of.payload.iter().map(String::as_str).collect();
        self.construct(type_name, &of.construct, *construct, &types, payload)
    }

    /// A value from the bytes that [`Opaque::store`] gave.
    ///
    /// # Errors
    /// [`Error::Usage`] if the type has no such function; [`Error::Failed`] if the library makes no value of the bytes.
    ///
    /// # Safety
    /// The bytes are those of a value of this type, of the same program built by the same compiler.
    pub unsafe fn restore(&self, type_name: &str, bytes: &[u8]) -> Result<Opaque> {
        let restore = self.opaque_fns(type_name)?.restore;
        let restore = restore.ok_or_else(|| Error::Usage(format!("values of type {type_name} cannot be restored")))?;
        let call = format!("restoring a value of type {type_name}");
        self.with(|context| {
            // SAFETY: the caller's promise.
            let value = unsafe { restore(context, bytes.as_ptr().cast::<c_void>()) };
            if value.is_null() {
                return Err(self.failure(context, &call, 1));
            }
            let value = self.adopt(context, &call, type_name, Room { raw: value }, Origins::fresh())?;
            self.sync_held(context, &call)?;
            opaque(value)
        })
    }

    /// Takes over what C has written to a room.
    pub(crate) fn adopt(&self, context: Raw, call: &str, type_name: &str, room: Room, origins: Origins) -> Result<Value> {
        let kind = self.library().manifest().kind(type_name);
        if let Some(Kind::Scalar(primitive)) = kind {
            // SAFETY: any bytes will do.
            let scalar = Scalar::from_bytes(primitive, unsafe { &room.bytes });
            return scalar.map(Value::Scalar).ok_or_else(|| Error::Usage(format!("{type_name} is too wide")));
        }
        // SAFETY: nothing else than a scalar is a pointer; where nothing was written, NULL.
        let raw = unsafe { room.raw };
        if raw.is_null() {
            return Err(Error::Failed { call: call.to_owned(), code: 0, message: "it gave no value".to_owned() });
        }
        let handle = |free| Handle { context: self.clone(), type_name: type_name.to_owned(), raw, origins, free };
        if !matches!(kind, Some(Kind::Array(_))) {
            return Ok(Value::Opaque(Opaque { handle: handle(self.opaque_fns(type_name)?.free) }));
        }
        let fns = self.array_fns(type_name)?;
        // SAFETY: the array is live; its shape is as long as its rank, and lives as long as it.
        let shape = unsafe { std::slice::from_raw_parts((fns.shape)(context, raw), fns.rank) };
        let shape = shape.iter().map(|dim| usize::try_from(*dim).unwrap_or(0)).collect();
        Ok(Value::Array(Array { handle: handle(fns.free), element: fns.element, shape }))
    }

    fn construct(&self, type_name: &str, call: &str, code: Code, types: &[&str], parts: &[Value]) -> Result<Opaque> {
        self.check_arguments(call, types, &parts.iter().collect::<Vec<_>>())?;
        let mut origins = Origins::default();
        parts.iter().for_each(|part| origins.extend(&part.origins()));
        let arguments: Vec<Arg<'_>> = parts.iter().map(Value::ffi).collect();
        let ffi = types.iter().map(|of| self.ffi(of)).collect::<Vec<_>>();
        let mut made =
            self.with(|context| self.invoke(context, call, code, &[type_name], &arguments, &ffi, |_| origins.clone()))?;
        made.pop().map_or_else(|| Err(Error::Usage(format!("{call} gave nothing"))), opaque)
    }

    pub(crate) fn array_fns(&self, type_name: &str) -> Result<&ArrayFns> {
        self.library().array(type_name).ok_or_else(|| Error::Usage(format!("{type_name} is no array type of the library")))
    }

    /// `new_raw` and `values_raw` of an array type.
    fn raw_fns(&self, type_name: &str) -> Result<(Code, unsafe extern "C" fn(Raw, Raw) -> Raw)> {
        let raw = self.array_fns(type_name)?.raw;
        raw.ok_or_else(|| Error::Usage(format!("the manifest names no new_raw of the type {type_name}")))
    }

    fn shares_memory(&self, type_name: &str, with: &device::Context) -> Result<()> {
        match self.device() {
            Some(device) if device.same(with) => Ok(()),
            _ => Err(Error::Usage(format!("a value of type {type_name} does not lie in that device's memory"))),
        }
    }

    pub(crate) fn opaque_fns(&self, type_name: &str) -> Result<&OpaqueFns> {
        self.library().opaque(type_name).ok_or_else(|| Error::Usage(format!("{type_name} is no opaque type of the library")))
    }

    #[expect(clippy::type_complexity, reason = "a pair of what two other modules call by name")]
    fn record_fns(&self, type_name: &str) -> Result<(&Record, &(Code, Vec<unsafe extern "C" fn(Raw, Raw, Raw) -> i32>))> {
        let fns = self.opaque_fns(type_name)?.record.as_ref();
        let record = match self.library().manifest().kind(type_name) {
            Some(Kind::Opaque(opaque)) => opaque.record.as_ref(),
            _ => None,
        };
        record.zip(fns).ok_or_else(|| Error::Usage(format!("{type_name} is no record")))
    }

    #[expect(clippy::type_complexity, reason = "as above")]
    fn sum_fns(&self, type_name: &str) -> Result<(&Sum, &(FreeFn, Vec<(Code, Code)>))> {
        let fns = self.opaque_fns(type_name)?.sum.as_ref();
        let sum = match self.library().manifest().kind(type_name) {
            Some(Kind::Opaque(opaque)) => opaque.sum.as_ref(),
            _ => None,
        };
        sum.zip(fns).ok_or_else(|| Error::Usage(format!("{type_name} is no sum type")))
    }
}

fn opaque(value: Value) -> Result<Opaque> {
    match value {
        Value::Opaque(opaque) => Ok(opaque),
        other => Err(Error::Usage(format!("{} is no opaque type", other.type_name()))),
    }
}

/// Whether memory holds as many elements as a shape has, aligned for C.
fn check_memory(element: Primitive, shape: &[usize], bytes: &[u8]) -> Result<()> {
    let needed = shape.iter().try_fold(element.bytes(), |total, dim| total.checked_mul(*dim));
    if needed.filter(|needed| *needed <= isize::MAX as usize) != Some(bytes.len()) {
        let have = bytes.len();
        return Err(Error::Usage(format!("{have} bytes are not those of {} with the shape {shape:?}", element.name())));
    }
    match bytes.as_ptr().align_offset(element.bytes()) {
        0 => Ok(()),
        _ => Err(Error::Usage(format!("memory is not aligned for {}", element.name()))),
    }
}
