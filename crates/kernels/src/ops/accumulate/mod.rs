// SPDX-License-Identifier: Apache-2.0
//! States of aggregates, as slots of 64 bits: initial values, updates, merges, results.
//!
//! Aggregates share states: `SUM(x)`, `AVG(x)` and `COUNT(x)` have one sum and one count between
//! them. A value is lifted to a state of its own first. So an update, a merge of partial states
//! and an atomic update are the same operation.
//!
//! - [`plan`]: the states of an aggregate.
//! - [`state`]: slots and initial values, [`update`]: updates and merges.
//! - [`evaluate`]: results, with [`average`] and [`statistics`].

mod average;
mod evaluate;
mod plan;
mod state;
mod statistics;
mod update;

use super::Options;
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::{Error, Result};

pub(super) use evaluate::Evaluator;
pub(super) use state::{Content, StateKind, Sum};

/// Slots that a work-item of the gpu profile keeps in registers. CUDA has 255 of 32 bits; values
/// need some.
const REGISTER_SLOTS: usize = 40;

/// A state and its inputs.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Accumulator {
    pub kind: StateKind,
    /// Input: 0 is the aggregation's own, others are distinct values.
    pub feed: usize,
    pub filter: Option<Expr>,
    /// Empty for a count of rows.
    pub arguments: Vec<Expr>,
    /// First slot in a group's state.
    pub first_slot: usize,
}

impl Accumulator {
    /// The only argument.
    pub fn argument(&self) -> Result<&Expr> {
        match self.arguments.as_slice() {
            [argument] => Ok(argument),
            arguments => Err(Error::Internal(format!("{:?} of {} arguments", self.kind, arguments.len()))),
        }
    }

    /// C of the slots, each by `slot`.
    pub fn slot_names(&self, slot: impl Fn(usize) -> String) -> Vec<String> {
        (self.first_slot..self.first_slot + self.kind.slots()).map(slot).collect()
    }
}

/// Appends the statements that update a state with the values of its arguments.
type Update<'a> = dyn FnMut(&mut RowWriter<'_>, usize, &[Value]) -> Result<()> + 'a;

/// All states of an aggregation.
#[derive(Debug, Clone, Default)]
pub(super) struct Accumulators {
    pub states: Vec<Accumulator>,
    pub evaluators: Vec<Evaluator>,
    /// Slots of all states.
    pub slots: usize,
    /// Whether there are group keys. As in DataFusion, the variance of a single value that is not
    /// finite is NaN with keys, and 0 without.
    pub keyed: bool,
}

/// Use of states, which decides their kinds.
#[derive(Debug, Clone, Copy)]
pub(super) struct StateUse {
    /// Whether several work-items update one state at the same time.
    pub atomic: bool,
    /// Whether only groups with rows have states.
    pub grouped: bool,
}

impl Accumulators {
    /// Adds a count of an input's rows; its position.
    pub fn count_rows(&mut self, feed: usize) -> usize {
        self.add(StateKind::Count, feed, &None, Vec::new())
    }

    /// Adds a state, unless an equal one is there; its position.
    fn add(&mut self, kind: StateKind, feed: usize, filter: &Option<Expr>, arguments: Vec<Expr>) -> usize {
        let same =
            |known: &Accumulator| (known.kind, known.feed, &known.filter, &known.arguments) == (kind, feed, filter, &arguments);
        if let Some(known) = self.states.iter().position(same) {
            return known;
        }
        let first_slot = self.slots;
        self.slots += kind.slots();
        self.states.push(Accumulator { kind, feed, filter: filter.clone(), arguments, first_slot });
        self.states.len() - 1
    }

    /// The slots of a group without rows.
    pub fn init(&self) -> Vec<u64> {
        self.states.iter().flat_map(|state| state.kind.init()).copied().collect()
    }

    /// Whether a work-item keeps the states of `part` in registers. In the cpu profile states that
    /// do not fit are in its cache.
    pub fn fit_registers(&self, part: &[usize], options: &Options) -> bool {
        let slots = part.iter().map(|index| self.states[*index].kind.slots()).sum::<usize>();
        options.profile == Profile::Cpu || slots <= REGISTER_SLOTS
    }

    /// Flags the sections of the prelude that the states need.
    pub fn need(&self, params: &mut Params) {
        self.states.iter().for_each(|state| state.kind.need(params));
    }

    /// Appends the updates of the states of `feed` by the current row, with the statements of
    /// `update`. A filter or argument is evaluated once, and only where it is reached.
    pub fn write(&self, writer: &mut RowWriter<'_>, feed: usize, update: &mut Update<'_>) -> Result<()> {
        self.need(writer.params());
        let fed: Vec<usize> = (0..self.states.len()).filter(|index| self.states[*index].feed == feed).collect();
        for of_filter in classes(&fed, |index| &self.states[index].filter) {
            let mut body = |writer: &mut RowWriter<'_>| -> Result<()> {
                for of_arguments in classes(&of_filter, |index| &self.states[index].arguments) {
                    let arguments = &self.states[of_arguments[0]].arguments;
                    let values = arguments.iter().map(|argument| writer.eval(argument)).collect::<Result<Vec<_>>>()?;
                    let mut updates =
                        |writer: &mut RowWriter<'_>| of_arguments.iter().try_for_each(|index| update(writer, *index, &values));
                    let valid: Vec<&str> = values.iter().filter_map(|value| value.valid.as_deref()).collect();
                    match valid.as_slice() {
                        [] => updates(writer)?,
                        [valid] => writer.guarded(valid, updates)?,
                        several => writer.guarded(&format!("({})", several.join(" && ")), updates)?,
                    }
                }
                Ok(())
            };
            match &self.states[of_filter[0]].filter {
                None => body(writer)?,
                Some(filter) => {
                    let condition = writer.eval(filter)?.is_true();
                    writer.guarded(&condition, body)?;
                }
            }
        }
        Ok(())
    }
}

/// Groups indices by an attribute, in the order of its first occurrences.
fn classes<'a, T: PartialEq + 'a>(indices: &[usize], attribute: impl Fn(usize) -> &'a T) -> Vec<Vec<usize>> {
    let mut classes: Vec<Vec<usize>> = Vec::new();
    for index in indices {
        match classes.iter_mut().find(|class| attribute(class[0]) == attribute(*index)) {
            Some(class) => class.push(*index),
            None => classes.push(vec![*index]),
        }
    }
    classes
}
