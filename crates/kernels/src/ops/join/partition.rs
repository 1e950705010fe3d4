// SPDX-License-Identifier: Apache-2.0
//! Partitions of both sides of a join.

use arrow::datatypes::SchemaRef;
use columnar::ColumnType;

use super::table::BuildKernels;
use super::{Join, JoinBuild};
use crate::Result;
use crate::expr::Expr;
use crate::ops::partition::PartitionKeys;
use crate::ops::{HashPartition, Input};

impl HashPartition {
    /// Partitions rows of the build side, which has these columns. Layouts of strings may differ
    /// from those of the table.
    ///
    /// # Errors
    /// `Unsupported` if a column cannot be gathered.
    pub fn of_build_side(build: &JoinBuild, schema: SchemaRef, types: Vec<ColumnType>) -> Result<HashPartition> {
        of_side(build, schema, types, build.kernels().keys.to_vec())
    }

    /// Partitions rows of the probe side as [`of_build_side`](Self::of_build_side) does those of
    /// the build side. `join`: over these columns.
    ///
    /// # Errors
    /// As [`of_build_side`](Self::of_build_side).
    pub fn of_probe_side(build: &JoinBuild, schema: SchemaRef, types: Vec<ColumnType>, join: &Join) -> Result<HashPartition> {
        of_side(build, schema, types, join.keys.iter().map(|(probe, _)| probe.clone()).collect())
    }
}

fn of_side(build: &JoinBuild, schema: SchemaRef, types: Vec<ColumnType>, keys: Vec<Expr>) -> Result<HashPartition> {
    let BuildKernels { encodings, null_equals_null, options, .. } = build.kernels();
    let keys = PartitionKeys { keys, encodings: encodings.to_vec(), null_equals_null };
    HashPartition::try_new(Input { schema, types, filter: None }, keys, options.clone())
}
