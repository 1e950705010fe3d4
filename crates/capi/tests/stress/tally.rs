// SPDX-License-Identifier: Apache-2.0
//! How many statements have ended, and how.

use std::fmt;
use std::time::Duration;

/// A kind of statement that each crew makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A query over tables that do not change, with the right answer.
    Read,
    /// An INSERT into the thread's own table, or its replacement.
    WriteOwn,
    /// An INSERT into the table of all threads, or its replacement.
    WriteLog,
    /// A table that a query makes.
    Create,
    /// A statement that fails as it must.
    Failure,
    /// A query that only a cancel ends.
    Endless,
}

impl Kind {
    const ALL: [Kind; 6] = [Kind::Read, Kind::WriteOwn, Kind::WriteLog, Kind::Create, Kind::Failure, Kind::Endless];
}

#[derive(Debug, Default)]
pub struct Tally {
    /// Statements of each kind that have ended as they must.
    done: [usize; Kind::ALL.len()],
    /// Statements that met the limit of device memory.
    pub out_of_memory: usize,
    /// How long each cancelled statement went on after its cancel was due.
    pub cancels: Vec<Duration>,
    /// How long each other statement took.
    pub others: Vec<Duration>,
}

impl Tally {
    pub fn count(&mut self, kind: Kind) {
        self.done[kind as usize] += 1;
    }

    pub fn add(&mut self, other: Tally) {
        self.done.iter_mut().zip(other.done).for_each(|(done, others)| *done += others);
        self.out_of_memory += other.out_of_memory;
        self.cancels.extend(other.cancels);
        self.others.extend(other.others);
    }

    /// Asserts that each kind of statement has ended as it must, at least `fewest` times. As many
    /// were cancelled, and as many met the limit of memory.
    pub fn assert_mixed(&self, crew: &str, fewest: usize) {
        for kind in Kind::ALL {
            assert!(self.done[kind as usize] >= fewest, "{crew}: {kind:?} fewer than {fewest} times: {self}");
        }
        assert!(self.cancels.len() >= fewest && self.out_of_memory >= fewest, "{crew}: {self}");
    }

    /// Asserts that a cancel is fast: in the middle within a second, or thrice the time of other
    /// statements. Both are mostly a wait for a core, which is long on a slow machine.
    pub fn assert_cancels_are_fast(&self, crew: &str) {
        let most = Duration::from_secs(1).max(3 * median(&self.others));
        assert!(median(&self.cancels) < most, "{crew}: cancels take longer than {most:?}: {self}");
    }
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { done, out_of_memory, cancels, others } = self;
        write!(f, "{} statements", cancels.len() + others.len())?;
        Kind::ALL.into_iter().zip(done).try_for_each(|(kind, done)| write!(f, ", {done} {kind:?}"))?;
        let most = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
        let (usual, slowest) = (median(others), most(others));
        write!(f, ", {out_of_memory} out of memory; {usual:?} in the middle and {slowest:?} at most, ")?;
        write!(f, "{} cancelled within {:?} in the middle and {:?} at most", cancels.len(), median(cancels), most(cancels))
    }
}
