// SPDX-License-Identifier: Apache-2.0
//! Serialised opaque values with an authentication tag.
//!
//! A library trusts the bytes that it restores a value from. A tag with keys of this process proves
//! that `store` wrote them for a value of this type.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;

use crate::{Context, Error, Opaque, Result};

/// The size of the tag in bytes.
const TAG: usize = 16;

/// Secret keys of this process.
static KEYS: LazyLock<[RandomState; 2]> = LazyLock::new(Default::default);

fn tag(library: u64, type_name: &str, bytes: &[u8]) -> [u8; TAG] {
    let hashes = KEYS.each_ref().map(|key| key.hash_one((library, type_name, bytes)));
    let mut tag = [0; TAG];
    for (bytes, hash) in tag.chunks_exact_mut(8).zip(hashes) {
        bytes.copy_from_slice(&hash.to_ne_bytes());
    }
    tag
}

impl Opaque {
    /// Serialises the value with a tag, for [`Context::unseal`] in this process and with this
    /// library alone.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn seal(&self) -> Result<Vec<u8>> {
        let bytes = self.store()?;
        let tag = tag(self.library().number(), self.type_name(), &bytes);
        Ok([&tag, bytes.as_slice()].concat())
    }
}

impl Context {
    /// Restores a value from the bytes of [`Opaque::seal`].
    ///
    /// # Errors
    /// [`Error::Usage`] for any other bytes; else as [`restore`](Self::restore).
    pub fn unseal(&self, type_name: &str, sealed: &[u8]) -> Result<Opaque> {
        let bytes = sealed.split_at_checked(TAG).filter(|(own, bytes)| *own == tag(self.library().number(), type_name, bytes));
        let Some((_, bytes)) = bytes else {
            return Err(Error::Usage(format!("these bytes are not a value of type {type_name} from this library")));
        };
        // SAFETY: the tag proves that `store` wrote them for a value of this type and library.
        unsafe { self.restore(type_name, bytes) }
    }
}
