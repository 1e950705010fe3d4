// SPDX-License-Identifier: Apache-2.0
//! The memory and kernels left while no statement runs.

use crate::crew::Crew;
use crate::{heap, memory};

/// Bytes left after statements, where the system tells.
#[derive(Debug)]
#[expect(dead_code, reason = "printed")]
pub struct Rest {
    pub resident: Option<u64>,
    /// Of the heap, without fragments.
    in_use: Option<u64>,
    /// Free device memory that the pool of each crew keeps.
    cached: [u64; 3],
    /// Of all crews.
    pub kernels: usize,
}

impl Rest {
    pub fn of(crews: &[Crew; 3]) -> Rest {
        Rest {
            resident: memory::resident_bytes(),
            in_use: heap::bytes_in_use(),
            cached: crews.each_ref().map(Crew::cached_bytes),
            kernels: crews.iter().map(Crew::kernels).sum(),
        }
    }
}
