// SPDX-License-Identifier: Apache-2.0
//! Typed buffers: numbers of one type.

use std::marker::PhantomData;
use std::ops::Range;

use bytes::Bytes;

use crate::{Arg, Buffer, Queue, Result};

/// A number with the same bytes on host and device: an integer of 8 to 64 bits or a float.
///
/// Sealed: implemented for those types only.
pub trait Scalar: Copy + Send + Sync + 'static + private::Sealed {}

mod private {
    pub trait Sealed {}
}

macro_rules! scalars {
    ($($type:ty),*) => {
        $(impl private::Sealed for $type {}
        impl Scalar for $type {})*
    };
}
scalars!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// Numbers in device memory. Clones share the memory.
///
/// # Examples
/// ```
/// # use device::{Context, DeviceConfig};
/// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
/// let queue = context.queue()?;
/// let squares = queue.upload_values(vec![0i32, 1, 4, 9])?;
/// assert_eq!((squares.len(), squares.buffer().len()), (4, 16));
/// assert_eq!(futures::executor::block_on(queue.read_values(&squares, 1..3))?, [1, 4]);
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Values<T> {
    buffer: Buffer,
    element: PhantomData<T>,
}

impl<T: Scalar> Values<T> {
    /// Interprets a buffer as numbers, without the bytes of an incomplete last one.
    pub fn of(buffer: Buffer) -> Self {
        Self { buffer, element: PhantomData }
    }

    /// The count of numbers.
    pub fn len(&self) -> usize {
        self.buffer.len() / size_of::<T>()
    }

    /// Whether the count is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer of the bytes.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl<'a, T: Scalar> From<&'a Values<T>> for Arg<'a> {
    fn from(values: &'a Values<T>) -> Self {
        Self::Buffer(&values.buffer)
    }
}

impl Queue {
    /// Allocates `len` numbers, contents undefined.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_values<T: Scalar>(&self, len: usize) -> Result<Values<T>> {
        self.alloc(bytes_of::<T>(len)).map(Values::of)
    }

    /// Puts numbers onto the device. A device that shares the host's memory uses them in place;
    /// then they must not be written.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn upload_values<T: Scalar>(&self, values: Vec<T>) -> Result<Values<T>> {
        self.upload(Bytes::from_owner(HostValues(values))).map(Values::of)
    }

    /// Writes numbers from index `at` on; they are copied before this returns.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_values<T: Scalar>(&self, to: &Values<T>, at: usize, values: &[T]) -> Result<()> {
        self.write(&to.buffer, bytes_of::<T>(at), as_bytes(values))
    }

    /// Reads the numbers of a range after everything enqueued so far.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_values<T: Scalar>(
        &self,
        from: &Values<T>,
        range: Range<usize>,
    ) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        let bytes = self.read(&from.buffer, bytes_of::<T>(range.start)..bytes_of::<T>(range.end));
        async move { Ok(to_values(&bytes.await?)) }
    }
}

/// Bytes of `len` numbers. Saturates, so that an impossible length is refused.
fn bytes_of<T>(len: usize) -> usize {
    len.saturating_mul(size_of::<T>())
}

/// Numbers of the host as bytes.
struct HostValues<T>(Vec<T>);

impl<T: Scalar> AsRef<[u8]> for HostValues<T> {
    fn as_ref(&self) -> &[u8] {
        as_bytes(&self.0)
    }
}

fn as_bytes<T: Scalar>(values: &[T]) -> &[u8] {
    // SAFETY: a scalar has no padding, so each of its bytes is initialised, and bytes need no
    // alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

fn to_values<T: Scalar>(bytes: &[u8]) -> Vec<T> {
    let len = bytes.len() / size_of::<T>();
    let mut values = Vec::<T>::with_capacity(len);
    // SAFETY: the capacity is `len` numbers, and every bit pattern is a number.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast::<u8>(), len * size_of::<T>());
        values.set_len(len);
    }
    values
}
