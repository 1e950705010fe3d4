// SPDX-License-Identifier: Apache-2.0
//! The rows of a batch that can still be among the first k.
//!
//! Once k rows have been sorted, the last one is a threshold, which removes most rows of later
//! batches. It has one word of the keys (see [`threshold_word`](super::key::threshold_word)), and
//! more bytes of a string that ties in that. The bytes of views are copied, so that a few rows do
//! not keep the heaps of all batches in memory.

use arrow::datatypes::SchemaRef;
use columnar::{Carrier, ColumnType, DeviceBatch};
use device::{Arg, Buffer, Grid, ProgramSource, Queue};

use super::SortKey;
use super::key::{self, PackedSortKey, SortField};
use super::rank::str_chunk;
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::ops::launch::compact::{Survivors, mask_body, row_indices};
use crate::ops::launch::layout_kernels::LoadedLayoutKernels;
use crate::ops::launch::primitives::Primitives;
use crate::ops::launch::program::{Kernel, Program, work_group_size};
use crate::ops::launch::{Launch, NamedArgs};
use crate::ops::{Gather, Options};
use crate::prelude::Section;
use crate::{Error, Result};

const WITHIN: usize = 0;
const ROW_INDICES: usize = 1;
const THRESHOLD: usize = 2;

/// Most bytes of a string in a threshold, after its word and the number of bytes.
const THRESHOLD_BYTES: usize = 256;

/// Keeps the rows of batches that are before a threshold.
#[derive(Debug, Clone)]
pub(super) struct TopK {
    gather: Gather,
    program: Program,
    options: Options,
}

impl TopK {
    /// For batches of `schema` in the layouts of `types`, with the keys in the columns
    /// `key_columns`.
    pub fn try_new(
        schema: &SchemaRef,
        types: &[ColumnType],
        keys: &[SortKey],
        key_columns: &[usize],
        options: &Options,
    ) -> Result<TopK> {
        let gather = Gather::with_copied_views(schema.clone(), types.to_vec(), options.clone())?;
        let plan = |types: &[ColumnType]| -> Result<(Vec<PackedSortKey>, Vec<SortField>, bool)> {
            let planned = keys.iter().zip(key_columns);
            let planned = planned.map(|(key, column)| PackedSortKey::plan(*column, types, key, options.profile));
            let planned = planned.collect::<Result<Vec<_>>>()?;
            let (fields, exact) = key::threshold_word(&planned);
            Ok((planned, fields, exact))
        };
        let (before, fields, exact) = plan(types)?;
        let (kept, kept_fields, _) = plan(gather.output_types())?;
        if kept_fields != fields {
            return Err(Error::Internal("keys that have another layout once they are kept".into()));
        }
        let kernels = vec![
            within(types, &before, &fields, exact, options)?,
            row_indices("sort_row_indices", options),
            threshold(gather.output_types(), &kept, &fields, options)?,
        ];
        Ok(TopK { gather, program: Program::new("Sort", options, kernels), options: options.clone() })
    }

    /// Types of the kept rows.
    pub fn output_types(&self) -> &[ColumnType] {
        self.gather.output_types()
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let own = self.program.source();
        self.gather.programs().into_iter().chain([own]).collect()
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        self.program.kernel_source().into_iter().chain(self.gather.kernel_source()).collect()
    }

    /// The rows of a batch before the threshold; all rows without one. Waits if there is a
    /// threshold, and for strings.
    pub async fn keep(
        &self,
        queue: &Queue,
        primitives: &Primitives,
        layout_kernels: &LoadedLayoutKernels<'_>,
        batch: &DeviceBatch,
        threshold: Option<&Buffer>,
    ) -> Result<DeviceBatch> {
        let n = batch.num_rows();
        let (Some(threshold), true) = (threshold, n > 0) else {
            let all = layout_kernels.row_numbers(Carrier::U32, n)?;
            return self.gather.run(queue, batch, &all, n).await;
        };
        let launch = Launch::load(queue, &self.options, &self.program, primitives).await?;
        let extra = [("threshold", Arg::Buffer(threshold))];
        let within = Survivors::find(&launch, WITHIN, batch.columns(), n, &extra).await?;
        let indices = queue.alloc(within.count * size_of::<u32>())?;
        if within.count > 0 {
            let mut named: NamedArgs<'_> = within.args();
            named.push(("indices", Arg::Buffer(&indices)));
            launch.run(ROW_INDICES, within.grid(), named)?;
        }
        self.gather.run(queue, batch, &indices, within.count).await
    }

    /// The threshold of the last one of sorted rows.
    pub async fn threshold(&self, queue: &Queue, sorted: &DeviceBatch) -> Result<Option<Buffer>> {
        let Some(last) = sorted.num_rows().checked_sub(1) else { return Ok(None) };
        let loaded = self.program.load(queue).await?;
        let to = queue.alloc(2 * size_of::<u64>() + THRESHOLD_BYTES)?;
        let grid = Grid { work_groups: 1, work_group_size: work_group_size(&self.options) };
        let named = vec![("row", Arg::U64(last as u64)), ("threshold", Arg::Buffer(&to))];
        loaded.launch_on(queue, THRESHOLD, grid, sorted, None, named)?;
        Ok(Some(to))
    }
}

/// The kernel that masks the rows before the threshold. Rows with the keys of the threshold come
/// later, and so are removed.
fn within(types: &[ColumnType], keys: &[PackedSortKey], fields: &[SortField], exact: bool, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let threshold = params.named("threshold", "const G u64 *RESTRICT");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let word = key::word(&mut writer, keys, fields, "row")?;
    writer.push(&format!("u64 keys = {word};"));
    writer.push(&format!("i32 within = keys < {threshold}[0];"));
    match prefix(keys, fields) {
        Some((index, key)) => {
            let value = writer.eval(&Expr::Column(key.column))?;
            let order = if key.order.descending { "-" } else { "" };
            // Of the last key, strings that exceed the bytes of the threshold may tie with it and
            // yet differ.
            let tie = if index + 1 == keys.len() { format!("{threshold}[1] >= {THRESHOLD_BYTES}") } else { "1".into() };
            let (code, valid) = (&value.code, value.valid_code());
            writer.push(&format!(
                "if (keys == {threshold}[0]) {{
  u32 len = {code}.len < {THRESHOLD_BYTES} ? {code}.len : {THRESHOLD_BYTES};
  i32 order = {valid} ? {order}str_cmp(str_make({code}.p, len), str_make((const G u8 *)({threshold} + 2), (u32){threshold}[1])) : 0;
  within = order < 0 || (order == 0 && {tie});
}}"
            ));
        }
        None if exact => {}
        None => writer.push(&format!("within |= keys == {threshold}[0];")),
    }
    let statements = writer.statements();
    let body = mask_body(&mut params, options, &statements, "within");
    let mut kernel = Kernel::new("sort_within", params, body);
    if prefix(keys, fields).is_some() {
        // For both kernels that call it.
        kernel.params.function(str_chunk());
    }
    Ok(kernel)
}

/// Position of the key whose string prefix is the last field, and the key.
fn prefix<'a>(keys: &'a [PackedSortKey], fields: &[SortField]) -> Option<(usize, &'a PackedSortKey)> {
    let index = fields.last()?.prefix_of()?;
    keys.get(index).map(|key| (index, key))
}

fn threshold(types: &[ColumnType], keys: &[PackedSortKey], fields: &[SortField], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named("row", "u64");
    let threshold = params.named("threshold", "G u64 *RESTRICT");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let word = key::word(&mut writer, keys, fields, "row")?;
    writer.push(&format!("{threshold}[0] = {word};"));
    if let Some((_, key)) = prefix(keys, fields) {
        let value = writer.eval(&Expr::Column(key.column))?;
        let (code, valid) = (&value.code, value.valid_code());
        writer.push(&format!(
            "u32 len = !{valid} ? 0 : {code}.len < {THRESHOLD_BYTES} ? {code}.len : {THRESHOLD_BYTES};
{threshold}[1] = len;
for (u32 i = 0; i < len; ++i) ((G u8 *)({threshold} + 2))[i] = {code}.p[i];"
        ));
    }
    let body = format!("  if (GID() == 0) {{\n{}  }}\n", writer.statements());
    Ok(Kernel::new("sort_threshold", params, body))
}
