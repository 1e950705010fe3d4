// SPDX-License-Identifier: Apache-2.0
//! Lowering of device operators to stages; pure, without a device.
//!
//! Row-wise operators (filter, projection, probe) are substituted into the operator that ends their
//! [`Pipeline`](pipeline). The other operators become [`Stage`]s. Each reads the batches of the
//! stages below.

mod aggregate;
mod estimate;
#[cfg(test)]
pub(crate) mod failing;
mod joins;
mod lowering;
mod partitions;
mod pipeline;
mod programs;
mod stage;

pub(crate) use aggregate::{AggregateOp, AggregateState, OverJoins};
pub(crate) use estimate::input_bytes;
pub(crate) use joins::{BuildSide, BuildSideJoin, ChainPlan, Joins, ScalarSide, ScanFilter, Side};
pub(crate) use lowering::lower;
pub(crate) use stage::{Checks, LibraryAggregate, LibraryCall, ListOutput, Origin, Stage, StageKind};
