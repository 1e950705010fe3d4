// SPDX-License-Identifier: Apache-2.0
//! What is left in memory while no statement runs.

use crate::crew::Crew;
use crate::{heap, memory};

/// Bytes that stay after statements, where the system tells.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
pub struct Rest {
    pub resident: Option<u64>,
    /// Of the heap, without fragments.
    in_use: Option<u64>,
    /// Free device memory that the pool of each crew keeps.
    cached: [u64; 3],
    /// Kernels that have run so far.
    pub first_launches: u64,
}

impl Rest {
    pub fn of(crews: &[Crew; 3]) -> Rest {
        Rest {
            resident: memory::resident_bytes(),
            in_use: heap::bytes_in_use(),
            cached: crews.each_ref().map(Crew::cached_bytes),
            first_launches: crews.iter().map(Crew::first_launches).sum(),
        }
    }
}
