// SPDX-License-Identifier: Apache-2.0
//! The order of a few rows by one kernel: each row counts the rows before it.

use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::key::{self, Comparison, PackedSortKey};
use super::strings::{MAX_COMPARED_BYTES, compared_bytes, string_or_empty};
use crate::codegen::{Params, Profile, RowWriter};
use crate::ops::Options;
use crate::ops::launch::program::{Kernel, Program, grid_for_candidates, row_loop};
use crate::prelude::Section;
use crate::{Error, Result};

/// Most keys of such a sort. A kernel keeps those of two rows in registers.
pub(super) const MOST_KEYS: usize = 16;

/// Sorts up to [`max_rows`] rows without a wait. Rows of equal keys keep their order.
#[derive(Debug, Clone)]
pub(super) struct FewRows {
    program: Program,
    options: Options,
    /// Columns of keys that are strings.
    strings: Vec<usize>,
}

/// Launches of a radix sort take a CPU about as long as so many rows squared. A GPU compares more
/// in that time.
fn max_rows(options: &Options) -> usize {
    options.threshold(match options.profile {
        Profile::Cpu => 256,
        Profile::Gpu => 1024,
    })
}

impl FewRows {
    pub fn try_new(keys: &[PackedSortKey], types: &[ColumnType], options: &Options) -> Result<FewRows> {
        let strings = keys.iter().filter(|key| key.is_str()).map(|key| key.column).collect();
        let program = Program::new("Sort", options, vec![kernel(keys, types, options)?]);
        Ok(FewRows { program, options: options.clone(), strings })
    }

    /// The program, as it is compiled.
    pub fn source(&self) -> ProgramSource {
        self.program.source()
    }

    /// Name and source of the kernel.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        self.program.kernel_source()
    }

    /// Whether these rows are few, and their strings short.
    pub fn takes(&self, columns: &[DeviceColumn], n: usize) -> bool {
        let strings = self.strings.iter().filter_map(|column| columns.get(*column));
        let bytes = strings.map(|column| compared_bytes(column, n)).fold(0, usize::saturating_add);
        n <= max_rows(&self.options) && bytes <= MAX_COMPARED_BYTES
    }

    /// The row numbers in the order of the keys, u32 each.
    pub async fn order(&self, queue: &Queue, columns: &[DeviceColumn], n: usize) -> Result<Buffer> {
        let program = self.program.load(queue).await?;
        let order = queue.alloc(n * size_of::<u32>())?;
        let named = vec![("order", Arg::Buffer(&order)), ("n", Arg::U64(n as u64))];
        program.launch_on(queue, 0, grid_for_candidates(queue, &self.options, n, n), columns, None, named)?;
        Ok(order)
    }
}

fn kernel(keys: &[PackedSortKey], types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(if keys.iter().any(PackedSortKey::is_str) { Section::Str } else { Section::Base });
    let order = params.named("order", "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let comparisons = key::comparisons(keys);
    let mut side = |row: &str, prefix: &str| {
        let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(row, prefix);
        let mut codes = Vec::with_capacity(comparisons.len());
        for comparison in &comparisons {
            codes.push(match comparison {
                Comparison::Word(fields) => key::word(&mut writer, keys, fields, row)?,
                Comparison::String(key) => string_or_empty(&mut writer, key.column)?,
            });
        }
        Ok::<_, Error>((writer.statements(), codes))
    };
    let ((own_statements, own), (other_statements, other)) = (side("row", "x")?, side("other", "y")?);
    let mut compared = String::new();
    for ((comparison, own), other) in comparisons.iter().zip(own).zip(other) {
        compared.push_str(&match comparison {
            Comparison::Word(_) => {
                format!("      if (!sign) {{ u64 a = {other}, b = {own}; sign = (a > b) - (a < b); }}\n")
            }
            Comparison::String(key) => {
                let (a, b) = if key.order.descending { (own, other) } else { (other, own) };
                format!("      if (!sign) sign = str_cmp({a}, {b});\n")
            }
        });
    }
    let statements = format!(
        "{own_statements}    u32 before = 0;
    for (u64 other = 0; other < {n}; ++other) {{
{other_statements}      i32 sign = 0;
{compared}      before += sign < 0 || (!sign && other < row);
    }}
    {order}[before] = (u32)row;
"
    );
    Ok(Kernel::new("sort_few", params, row_loop(options.profile, "row", &n, &statements)))
}
