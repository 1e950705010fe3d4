// SPDX-License-Identifier: Apache-2.0
//! How many statements have ended, and how.

use std::fmt;
use std::time::Duration;

#[derive(Debug, Default)]
pub struct Tally {
    pub statements: usize,
    /// Statements that met the limit of device memory.
    pub out_of_memory: usize,
    /// How long each cancelled statement went on after its cancel was due.
    pub cancels: Vec<Duration>,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.statements += other.statements;
        self.out_of_memory += other.out_of_memory;
        self.cancels.extend(other.cancels);
    }

    pub fn median_cancel(&self) -> Option<Duration> {
        let mut cancels = self.cancels.clone();
        cancels.sort_unstable();
        cancels.get(cancels.len() / 2).copied()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { statements, out_of_memory, cancels } = self;
        let (median, most) = (self.median_cancel().unwrap_or_default(), cancels.iter().max().copied().unwrap_or_default());
        write!(f, "{statements} statements, {out_of_memory} out of memory, {} cancelled ", cancels.len())?;
        write!(f, "(which took {median:?} in the middle and {most:?} at most)")
    }
}
