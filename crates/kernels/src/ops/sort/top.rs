// SPDX-License-Identifier: Apache-2.0
//! The rows of a batch that can still be among the first.
//!
//! Once as many rows as are wanted have been sorted, the last one of them is a threshold: by one word of its keys (see
//! [`coarse`](super::key::coarse)), and where strings tie in that by more of their bytes, most rows of later batches are left
//! out before they are kept. What is kept has its own strings, so that few rows do not keep the heaps of all batches.

use arrow::datatypes::SchemaRef;
use columnar::{Carrier, ColumnType, DeviceBatch};
use device::{Arg, Buffer, Grid, Queue};

use super::SortKey;
use super::key::{self, Field, Key};
use super::rank::str_chunk;
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::ops::compact::{Survivors, mask_body, write_body};
use crate::ops::forms::LoadedForms;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Program, work_group_size};
use crate::ops::{Options, Take};
use crate::prelude::Section;
use crate::{Error, Result};

const WITHIN: usize = 0;
const NUMBERS: usize = 1;
const THRESHOLD: usize = 2;

/// Most bytes of a string that a threshold has, behind its word and their number.
const THRESHOLD_BYTES: usize = 256;

/// Keeps rows of batches that are no worse than a threshold.
#[derive(Debug, Clone)]
pub(super) struct Top {
    take: Take,
    program: Program,
    options: Options,
}

impl Top {
    /// For batches of `schema` in the layouts of `types`, with keys in the columns `places`.
    pub fn try_new(
        schema: &SchemaRef,
        types: &[ColumnType],
        keys: &[SortKey],
        places: &[usize],
        options: &Options,
    ) -> Result<Top> {
        let take = Take::detached(schema.clone(), types.to_vec(), options.clone())?;
        let plan = |types: &[ColumnType]| -> Result<(Vec<Key>, Vec<Field>, bool)> {
            let planned = keys.iter().zip(places).map(|(key, place)| Key::plan(*place, types, key, options.profile));
            let planned = planned.collect::<Result<Vec<_>>>()?;
            let (fields, exact) = key::coarse(&planned);
            Ok((planned, fields, exact))
        };
        let (before, fields, exact) = plan(types)?;
        let (kept, kept_fields, _) = plan(take.output_types())?;
        if kept_fields != fields {
            return Err(Error::Internal("keys that lie otherwise once they are kept".into()));
        }
        let kernels = vec![
            within(types, &before, &fields, exact, options)?,
            numbers(options),
            threshold(take.output_types(), &kept, &fields, options)?,
        ];
        Ok(Top { take, program: Program::try_new("Sort", options, kernels)?, options: options.clone() })
    }

    /// Types of what is kept.
    pub fn output_types(&self) -> &[ColumnType] {
        self.take.output_types()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let own = self.program.text().to_owned();
        self.take.programs().into_iter().chain([own]).collect()
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.program.kernel_text().into_iter().chain(self.take.kernel_text()).collect()
    }

    /// The rows of a batch that are within the threshold, all where there is none yet. Waits where there is one, and for strings.
    pub async fn keep(
        &self,
        queue: &Queue,
        primitives: &LoadedPrimitives<'_>,
        forms: &LoadedForms<'_>,
        batch: &DeviceBatch,
        threshold: Option<&Buffer>,
    ) -> Result<DeviceBatch> {
        let n = batch.num_rows();
        let (Some(threshold), true) = (threshold, n > 0) else {
            let all = forms.number(queue, Carrier::U32, n)?;
            return self.take.run(queue, batch, &all, n).await;
        };
        let loaded = self.program.load(queue).await?;
        let extra = [("threshold", Arg::Buffer(threshold))];
        let within = Survivors::find(queue, &self.options, primitives, n, &extra, |grid, named, _| {
            loaded.launch_on(queue, WITHIN, grid, batch, None, named)
        })
        .await?;
        let numbers = queue.alloc(within.count * size_of::<u32>())?;
        if within.count > 0 {
            let mut named = within.args();
            named.push(("numbers", Arg::Buffer(&numbers)));
            loaded.launch(queue, NUMBERS, within.grid(), named)?;
        }
        self.take.run(queue, batch, &numbers, within.count).await
    }

    /// The threshold that the last one of sorted rows is.
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

/// Finds the rows within the threshold. Rows that tie with it in all keys come later, and so are none.
fn within(types: &[ColumnType], keys: &[Key], fields: &[Field], exact: bool, options: &Options) -> Result<Kernel> {
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
            let order = if key.descending { "-" } else { "" };
            // No key follows the last one. Longer strings than the threshold has may tie with it and yet differ.
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

/// The key of which the last field has a string's first bytes, and its position.
fn prefix<'a>(keys: &'a [Key], fields: &[Field]) -> Option<(usize, &'a Key)> {
    let index = fields.last()?.prefix_of()?;
    keys.get(index).map(|key| (index, key))
}

fn numbers(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let numbers = params.named("numbers", "G u32 *RESTRICT");
    let body = write_body(&mut params, options, &format!("    {numbers}[o] = (u32)row;\n"));
    Kernel::new("sort_numbers", params, body)
}

fn threshold(types: &[ColumnType], keys: &[Key], fields: &[Field], options: &Options) -> Result<Kernel> {
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
