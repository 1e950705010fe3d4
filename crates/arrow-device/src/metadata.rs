// SPDX-License-Identifier: Apache-2.0
//! Key-value pairs in the encoding of `ArrowSchema.metadata`, which async streams also use for
//! tasks and errors (R90).
//!
//! The encoding, with integers in native byte order:
//! - `int32` number of pairs
//! - per pair: `int32` length of the key, the key, `int32` length of the value, the value
//!
//! It has no total length, so [`MAX_METADATA_BYTES`] bounds a reader.

use std::ffi::c_char;

use crate::{Error, Result};

/// Size limit of metadata in bytes: 64 MiB. Larger metadata is refused as corrupt.
pub const MAX_METADATA_BYTES: usize = 64 << 20;

/// Encodes pairs; the bytes must outlive the C pointers to them.
///
/// # Errors
/// `Invalid` if the result would be larger than [`MAX_METADATA_BYTES`].
///
/// # Examples
/// ```
/// use arrow_device::metadata::{decode_slice, encode};
///
/// let bytes = encode([("origin", "cuda:0")])?;
/// assert_eq!(decode_slice(&bytes)?, [("origin".to_string(), "cuda:0".to_string())]);
/// # Ok::<(), arrow_device::Error>(())
/// ```
pub fn encode<K: AsRef<[u8]>, V: AsRef<[u8]>>(pairs: impl IntoIterator<Item = (K, V)>) -> Result<Vec<u8>> {
    let mut count = 0i32;
    let mut bytes = count.to_ne_bytes().to_vec();
    for (key, value) in pairs {
        for part in [key.as_ref(), value.as_ref()] {
            let len = i32::try_from(part.len()).ok().filter(|_| bytes.len() + 4 + part.len() <= MAX_METADATA_BYTES);
            let len = len.ok_or_else(too_large)?;
            bytes.extend(len.to_ne_bytes());
            bytes.extend(part);
        }
        // Each pair takes 8 bytes, so the bound on bytes bounds the count.
        count += 1;
    }
    bytes.splice(..4, count.to_ne_bytes());
    Ok(bytes)
}

/// Decodes pairs from a C pointer, in order; a null pointer gives no pairs.
///
/// # Errors
/// `Invalid` for negative counts and lengths, strings that are not UTF-8, and more than
/// [`MAX_METADATA_BYTES`].
///
/// # Safety
/// `metadata` is null or points to an encoding as [this module](self) describes. Its counts and
/// lengths may be wrong only in ways that this function reports as errors.
pub unsafe fn decode(metadata: *const c_char) -> Result<Vec<(String, String)>> {
    if metadata.is_null() {
        return Ok(Vec::new());
    }
    let mut position = 0usize;
    pairs(|len| {
        if len > MAX_METADATA_BYTES - position {
            return Err(too_large());
        }
        // SAFETY: the lengths so far cover these bytes, by this function's contract.
        let part = unsafe { std::slice::from_raw_parts(metadata.cast::<u8>().add(position), len) };
        position += len;
        Ok(part)
    })
}

/// Decodes pairs from bytes, which may be truncated or corrupt.
///
/// # Errors
/// As [`decode`], and `Invalid` if the bytes end too early.
pub fn decode_slice(bytes: &[u8]) -> Result<Vec<(String, String)>> {
    let mut rest = bytes;
    pairs(|len| {
        let (part, after) = rest.split_at_checked(len).ok_or_else(|| {
            Error::Invalid(format!("metadata: {len} bytes expected at byte {}, {} left", bytes.len() - rest.len(), rest.len()))
        })?;
        rest = after;
        Ok(part)
    })
}

/// Reads all pairs through `take`, which returns the next `len` bytes.
fn pairs<'a>(mut take: impl FnMut(usize) -> Result<&'a [u8]>) -> Result<Vec<(String, String)>> {
    let number = |what: &str, take: &mut dyn FnMut(usize) -> Result<&'a [u8]>| {
        let bytes = take(4)?.try_into().map_err(|_| too_large())?;
        let number = i32::from_ne_bytes(bytes);
        usize::try_from(number).map_err(|_| Error::Invalid(format!("metadata: {what} must not be negative, got {number}")))
    };
    let count = number("the number of pairs", &mut take)?;
    if count > MAX_METADATA_BYTES / 8 {
        return Err(too_large());
    }
    // No capacity from `count`: it may be wrong.
    let mut pairs = Vec::new();
    for index in 0..count {
        let mut string = |what: &str| {
            let len = number(what, &mut take)?;
            let string = std::str::from_utf8(take(len)?);
            string.map(str::to_string).map_err(|error| Error::Invalid(format!("metadata: {what} {index} is not UTF-8: {error}")))
        };
        pairs.push((string("key")?, string("value")?));
    }
    Ok(pairs)
}

fn too_large() -> Error {
    Error::Invalid(format!("metadata is larger than {MAX_METADATA_BYTES} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ne(numbers: &[i32]) -> Vec<u8> {
        numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
    }

    #[test]
    fn r90_pairs_come_back_in_order() {
        let pairs = [("b", "2"), ("a", ""), ("", "ü"), ("b", "again")];
        let bytes = encode(pairs).unwrap();
        let owned = pairs.map(|(key, value)| (key.to_string(), value.to_string()));
        assert_eq!(decode_slice(&bytes).unwrap(), owned);
        // SAFETY: the bytes are an encoding.
        assert_eq!(unsafe { decode(bytes.as_ptr().cast()) }.unwrap(), owned);
    }

    #[test]
    fn r90_null_and_no_pairs_are_empty() {
        // SAFETY: null is allowed.
        assert_eq!(unsafe { decode(std::ptr::null()) }.unwrap(), []);
        assert_eq!(decode_slice(&encode::<&str, &str>([]).unwrap()).unwrap(), []);
    }

    #[test]
    fn r90_the_encoding_is_that_of_arrow_rs() {
        use arrow::datatypes::{DataType, Field};
        use arrow::ffi::FFI_ArrowSchema;
        let field = Field::new("x", DataType::Int8, false).with_metadata([("key".into(), "value".into())].into());
        let schema = FFI_ArrowSchema::try_from(&field).unwrap();
        // SAFETY: arrow-rs wrote the encoding.
        let pairs = unsafe { decode(schema.metadata) }.unwrap();
        assert_eq!(pairs, [("key".to_string(), "value".to_string())]);
    }

    #[test]
    fn hostile_bytes_are_errors() {
        let says = |bytes: &[u8]| decode_slice(bytes).unwrap_err().to_string();
        assert_eq!(says(&[1, 0]), "metadata: 4 bytes expected at byte 0, 2 left");
        assert_eq!(says(&ne(&[-1])), "metadata: the number of pairs must not be negative, got -1");
        assert_eq!(says(&ne(&[1, -5])), "metadata: key must not be negative, got -5");
        assert_eq!(says(&ne(&[1, 0, i32::MAX])), "metadata: 2147483647 bytes expected at byte 12, 0 left");
        assert_eq!(says(&ne(&[i32::MAX])), "metadata is larger than 67108864 bytes");
        let mut invalid = ne(&[1, 1]);
        invalid.extend([0xff]);
        invalid.extend(ne(&[0]));
        assert!(says(&invalid).starts_with("metadata: key 0 is not UTF-8"));
    }

    #[test]
    fn too_large_a_pair_is_refused_before_it_is_read() {
        let bytes = ne(&[1, i32::MAX]);
        // SAFETY: the length is refused before the read.
        let error = unsafe { decode(bytes.as_ptr().cast()) }.unwrap_err();
        assert_eq!(error.to_string(), "metadata is larger than 67108864 bytes");
        encode([("key", vec![0u8; MAX_METADATA_BYTES])]).unwrap_err();
    }
}
