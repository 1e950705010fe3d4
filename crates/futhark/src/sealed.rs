// SPDX-License-Identifier: Apache-2.0
//! Opaque values as bytes that anybody may hold, and nobody can make up.
//!
//! A library believes the bytes that it restores a value from. A seal before them, made with keys of this process, says that they
//! are those of a value of this type.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::{Context, Error, Opaque, Result};

/// Bytes of a seal.
const SEAL: usize = 16;

/// Keys that nothing outside of the process knows.
static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

fn seal(library: u64, type_name: &str, bytes: &[u8]) -> [u8; SEAL] {
    let words = KEYS.each_ref().map(|key| key.hash_one((library, type_name, bytes)));
    let mut seal = [0; SEAL];
    for (bytes, word) in seal.chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    seal
}

impl Opaque {
    /// The value as bytes that [`Context::unseal`] makes it of again, in this process and with this library alone.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn seal(&self) -> Result<Vec<u8>> {
        let bytes = self.store()?;
        let seal = seal(self.library().number(), self.type_name(), &bytes);
        Ok([&seal, bytes.as_slice()].concat())
    }
}

impl Context {
    /// The value whose bytes [`Opaque::seal`] gave.
    ///
    /// # Errors
    /// [`Error::Usage`] for any other bytes; else as [`restore`](Self::restore).
    pub fn unseal(&self, type_name: &str, sealed: &[u8]) -> Result<Opaque> {
        let bytes = sealed.split_at_checked(SEAL).filter(|(own, bytes)| *own == seal(self.library().number(), type_name, bytes));
        let Some((_, bytes)) = bytes else {
            return Err(Error::Usage(format!("these bytes are no value of type {type_name} that the library gave")));
        };
        // SAFETY: the seal says that `store` gave them for a value of this type, of this library.
        unsafe { self.restore(type_name, bytes) }
    }
}
