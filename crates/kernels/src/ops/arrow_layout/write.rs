// SPDX-License-Identifier: Apache-2.0
//! Columns that kernels write.

use columnar::{ColumnType, DeviceBatch, Layout};
use device::{Buffer, Queue};

use super::ArrowLayout;
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::launch::Launch;
use crate::ops::launch::output::{Output, OutputBuffers};
use crate::ops::launch::primitives::LoadedPrimitives;
use crate::ops::launch::program::{Kernel, Program};
use crate::ops::launch::projection::{ProjectedRows, Projection, Rows};
use crate::{Error, Result};

/// Kernels that write some of the columns.
#[derive(Debug, Clone)]
pub(super) struct ColumnWrites {
    projection: Projection,
    /// For each column, whether its values are packed to bits.
    bits: Vec<bool>,
}

/// The output that kernels write for a column.
#[derive(Debug, Clone)]
pub(super) struct ColumnWrite {
    pub(super) kind: WrittenKind,
    pub(super) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WrittenKind {
    /// The value.
    Value,
    /// The code in the dictionary of the column.
    Code,
    /// A view over the heap of the value.
    View,
}

/// The written buffers of a column.
pub(super) struct WrittenValues {
    pub(super) values: Option<Buffer>,
    pub(super) heap: Option<Buffer>,
}

impl ColumnWrites {
    /// Appends the kernels, named after `prefix`.
    pub(super) fn try_new(
        prefix: &str,
        types: &[ColumnType],
        writes: Vec<Option<ColumnWrite>>,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<ColumnWrites> {
        let mut types = types.to_vec();
        for (ty, write) in types.iter_mut().zip(&writes) {
            // Only strings read validity: other values of NULLs are arbitrary.
            ty.nullable &= write.as_ref().is_none_or(|write| write.kind == WrittenKind::View || write.output.is_str());
        }
        let outputs: Vec<_> = writes.iter().map(|write| write.as_ref().map(|write| write.output.clone())).collect();
        let bits = outputs.iter().map(|output| output.as_ref().is_some_and(|output| output.ty.layout == Layout::Bits)).collect();
        let rows = WrittenRows { types, profile: options.profile, writes };
        let projection = Projection::try_new(prefix, &rows, outputs, false, options, kernels)?;
        Ok(ColumnWrites { projection, bits })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.projection.outputs.iter().all(Option::is_none)
    }

    /// Writes the columns by kernels of `program`.
    pub(super) async fn run(
        &self,
        queue: &Queue,
        op: &ArrowLayout,
        program: &Program,
        batch: &DeviceBatch,
    ) -> Result<Vec<Option<WrittenValues>>> {
        if self.is_empty() {
            return Ok(vec![]);
        }
        let n = batch.num_rows();
        let launch = Launch::load(queue, &op.options, program, &op.primitives).await?;
        let written = self.projection.run(&launch, ProjectedRows::all(batch.columns(), n)).await?;
        let values = written
            .into_iter()
            .zip(&self.bits)
            .map(|(buffers, bits)| buffers.map(|buffers| written_values(&launch.primitives, buffers, n, *bits)).transpose());
        values.collect()
    }
}

fn written_values(primitives: &LoadedPrimitives<'_>, buffers: OutputBuffers, n: usize, bits: bool) -> Result<WrittenValues> {
    let values = match buffers.values {
        Some(bytes) if bits => Some(primitives.pack(&bytes, n)?),
        values => values,
    };
    Ok(WrittenValues { values, heap: buffers.heap })
}

/// The rows that [`ColumnWrites`] reads.
struct WrittenRows {
    types: Vec<ColumnType>,
    profile: Profile,
    writes: Vec<Option<ColumnWrite>>,
}

impl Rows for WrittenRows {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&self.types, self.profile, params)
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let Some(Some(ColumnWrite { kind, output: write })) = self.writes.get(output) else {
            return Err(Error::Internal(format!("column {output} is not written")));
        };
        let value = match kind {
            WrittenKind::Value => writer.eval(&Expr::Column(output))?,
            WrittenKind::Code => writer.code(output)?,
            WrittenKind::View => return writer.view(output),
        };
        writer.params().need_type(write.ctype);
        Ok(Value { code: value.to_ctype(write.ctype), ctype: write.ctype, ..value })
    }
}
