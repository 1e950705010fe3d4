// SPDX-License-Identifier: Apache-2.0
//! The kernels of a build.

use crate::Result;
use crate::codegen::{Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::join::keys::{KeyEncoding, PackedKey, RowKeys};
use crate::ops::join::search::NONE;
use crate::ops::launch::program::{Kernel, prefetched_row_loop, row_loop};
use crate::ops::launch::source::Source;
use crate::prelude::Section;

/// Generates the kernels of a build.
pub(in crate::ops::join) struct BuildKernels<'a> {
    pub source: &'a Source,
    pub encodings: &'a [KeyEncoding],
    pub keys: &'a [Expr],
    pub null_equals_null: bool,
    pub options: &'a Options,
}

impl BuildKernels<'_> {
    /// The keys with the values of a row.
    pub fn row_keys<'b>(&'b self, values: &'b [Value]) -> RowKeys<'b> {
        RowKeys { encodings: self.encodings, values, null_equals_null: self.null_equals_null }
    }

    pub(super) fn key_ranges(&self) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let (n, stats) = (params.named("n", "u64"), params.named("stats", "G u64 *"));
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        let matchable = self.row_keys(&values).matchable();
        let mut fields = 0;
        writer.guarded(matchable.as_deref().unwrap_or("1"), |writer| {
            writer.push("++count;");
            for (encoding, value) in self.encodings.iter().zip(&values) {
                for field in encoding.fields_of(writer, value) {
                    let valid = if self.null_equals_null { value.valid_code() } else { "1" };
                    writer.push(&format!(
                        "if ({valid}) {{ if ({field} < low{fields}) low{fields} = {field}; if ({field} > high{fields}) high{fields} = {field}; }}"
                    ));
                    fields += 1;
                }
            }
            Ok(())
        })?;
        let statements = writer.statements();
        let declared: String = (0..fields).map(|field| format!(", low{field} = NO_ROW, high{field} = 0")).collect();
        let merge = |to: &str| -> String {
            let ranges = (0..fields).map(|field| {
                let (low, high) = (2 + 2 * field, 3 + 2 * field);
                format!("    A_MIN64(&{to}[{low}], low{field}); A_MAX64(&{to}[{high}], high{field});\n")
            });
            format!("    A_ADD64(&{to}[1], count);\n{}", ranges.collect::<String>())
        };
        let words = 2 + 2 * fields;
        let rows = row_loop(self.options.profile, "row", &n, &statements);
        let body = match self.options.profile {
            Profile::Cpu => format!("  u64 count = 0{declared};\n{rows}  if (count) {{\n{}  }}\n", merge(&stats)),
            Profile::Gpu => format!(
                "  SHARED(u64, part, {words});
  for (u32 word = LID(); word < {words}; word += LSZ()) part[word] = word & 1 ? 0 : NO_ROW;
  SYNC();
  u64 count = 0{declared};
{rows}  if (count) {{
{merge}  }}
  SYNC();
  if (LID() == 0 && part[1]) {{
    A_ADD64(&{stats}[1], part[1]);
    for (u32 word = 2; word < {words}; word += 2) {{
      A_MIN64(&{stats}[word], part[word]);
      A_MAX64(&{stats}[word + 1], part[word + 1]);
    }}
  }}
",
                merge = merge("part")
            ),
        };
        Ok(Kernel::new("join_key_ranges", params, body).in_ranges(self.options.profile))
    }

    pub(super) fn insert_packed(&self) -> Result<Kernel> {
        let packed = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let key = self.row_keys(values).packed(writer, "t");
            writer.params().need(Section::Hash);
            let [mask, perfect_hash] =
                [("t_mask", "u64"), ("t_perfect_hash", "u32")].map(|(name, ty)| writer.params().named(name, ty));
            (key, mask, perfect_hash)
        };
        let first = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let (PackedKey { condition, code }, mask, perfect_hash) = packed(writer, values);
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let rows = writer.params().named("t_rows", "volatile G u32 *");
            (
                condition,
                format!("if ({perfect_hash}) PREFETCH(&{rows}[{code}]); else PREFETCH(&{slots}[2 * (hash64({code}) & {mask})]);"),
            )
        };
        self.insert("join_insert_packed", first, |writer, values| {
            let (PackedKey { condition, code }, mask, perfect_hash) = packed(writer, values);
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let rows = writer.params().named("t_rows", "volatile G u32 *");
            let control = writer.params().named("control", "volatile G u64 *");
            // Once a slot has two rows, `list_rows` lists all of them again.
            writer.push(&format!(
                "if ({condition}) {{
  if ({perfect_hash}) {{
    slot = {code};
    again = !((const G u64 *){control})[1] && ({rows}[slot] != {NONE} || A_CAS32(&{rows}[slot], {NONE}, (u32)row) != {NONE});
  }}
  else for (u64 h = hash64({code}) & {mask};; h = (h + 1) & {mask}) {{
    u64 seen = {slots}[2 * h];
    if (seen == NO_ROW) seen = A_CAS64(&{slots}[2 * h], NO_ROW, {code});
    if (seen == NO_ROW) {slots}[2 * h + 1] = row;
    else if (seen != {code}) continue;
    slot = h;
    again = seen != NO_ROW;
    break;
  }}
}}"
            ));
            Ok(())
        })
    }

    pub(super) fn insert_hashed(&self) -> Result<Kernel> {
        let first = |writer: &mut RowWriter<'_>, values: &[Value]| {
            let keys = self.row_keys(values);
            let hash = keys.hash(writer);
            let mask = writer.params().named("t_mask", "u64");
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            (keys.matchable().unwrap_or_else(|| "1".into()), format!("PREFETCH(&{slots}[{hash} & {mask}]);"))
        };
        self.insert("join_insert_hashed", first, |writer, values| {
            let keys = self.row_keys(values);
            let hash = keys.hash(writer);
            let fields = keys.fields(writer);
            let matchable = keys.matchable().unwrap_or_else(|| "1".into());
            let slots = writer.params().named("t_keys", "volatile G u64 *");
            let mask = writer.params().named("t_mask", "u64");
            let profile = writer.profile();
            let mut other = self.source.writer(profile, writer.params()).with_names("other", "y");
            let others = self.keys.iter().map(|key| other.eval(key)).collect::<Result<Vec<_>>>()?;
            let other_fields = self.row_keys(&others).fields(&mut other);
            let statements = other.statements();
            let equal = keys.equal(&fields, &others, &other_fields);
            writer.push(&format!(
                "if ({matchable}) for (u64 h = {hash} & {mask};; h = (h + 1) & {mask}) {{
  u64 seen = {slots}[h];
  if (seen == NO_ROW) seen = A_CAS64(&{slots}[h], NO_ROW, {hash} >> 32 << 32 | row);
  if (seen == NO_ROW) {{ slot = h; break; }}
  if ((u32)(seen >> 32) != (u32)({hash} >> 32)) continue;
  u64 other = seen & 0xffffffffu;
{statements}  if ({equal}) {{ slot = h; again = 1; break; }}
}}"
            ));
            Ok(())
        })
    }

    /// The kernel that puts rows into slots. `find` sets the `slot` of the row, and `again` if the
    /// slot had a row. `first` gives two parts of C: whether the row has a slot, and a prefetch of
    /// the row's first read.
    fn insert(
        &self,
        name: &str,
        first: impl FnOnce(&mut RowWriter<'_>, &[Value]) -> (String, String),
        find: impl FnOnce(&mut RowWriter<'_>, &[Value]) -> Result<()>,
    ) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let n = params.named("n", "u64");
        let mut prefetching = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| prefetching.eval(key)).collect::<Result<Vec<_>>>()?;
        // To hash a string twice may take longer than to wait for its slot.
        let prefetch = (!self.encodings.contains(&KeyEncoding::Bytes)).then(|| {
            let (condition, prefetch) = first(&mut prefetching, &values);
            prefetching.push(&format!("if ({condition}) {{ {prefetch} }}"));
            prefetching.statements()
        });
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        writer.push("u64 slot = NO_ROW;\ni32 again = 0;");
        find(&mut writer, &values)?;
        let slot_of = writer.params().named("slot_of", "G u32 *RESTRICT");
        let control = writer.params().named("control", "volatile G u64 *");
        // Plain reads of the second and third word come first, so that not every row writes to the
        // shared cache line.
        writer.push(&format!(
            "if (slot != NO_ROW) {{
  {slot_of}[row] = (u32)slot;
  if (!((const G u64 *){control})[2]) {control}[2] = 1;
  if (again && !((const G u64 *){control})[1]) {control}[1] = 1;
}}"
        ));
        let statements = writer.statements();
        let body = match prefetch {
            Some(prefetch) => prefetched_row_loop(self.options.profile, "row", &n, &prefetch, &statements),
            None => row_loop(self.options.profile, "row", &n, &statements),
        };
        Ok(Kernel::new(name, params, body).in_ranges(self.options.profile))
    }
}

pub(super) fn count_kernel(options: &Options) -> Kernel {
    let named = [
        ("n", "u64"),
        ("slot_of", "const G u32 *RESTRICT"),
        ("starts", "volatile G u32 *"),
        ("ranks", "G u32 *RESTRICT"),
        ("longest", "volatile G u64 *"),
    ];
    let statements = format!(
        "    u32 slot = slot_of[row];
    if (slot != {NONE}) {{
      u32 rank = A_ADD32(&starts[slot + (u64)1], 1u);
      ranks[row] = rank;
      if (rank >= most) most = (u64)rank + 1;
    }}
"
    );
    let prefetch = format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) PREFETCH(&starts[slot + (u64)1]);\n");
    let rows = prefetched_row_loop(options.profile, "row", "n", &prefetch, &statements);
    // Most work-items read that another list is as long, and do not write.
    let body = format!("  u64 most = 0;\n{rows}  if (most > longest[0]) A_MAX64(&longest[0], most);\n");
    fixed_kernel("join_count_rows", &named, body, options)
}

pub(super) fn fill_kernel(options: &Options) -> Kernel {
    let named = [
        ("n", "u64"),
        ("slot_of", "const G u32 *RESTRICT"),
        ("starts", "const G u32 *RESTRICT"),
        ("ranks", "const G u32 *RESTRICT"),
        ("rows", "G u32 *RESTRICT"),
    ];
    let statements =
        format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) rows[(u64)starts[slot] + ranks[row]] = (u32)row;\n");
    let prefetch = format!("    u32 slot = slot_of[row];\n    if (slot != {NONE}) PREFETCH(&starts[slot]);\n");
    let body = prefetched_row_loop(options.profile, "row", "n", &prefetch, &statements);
    fixed_kernel("join_fill_rows", &named, body, options)
}

fn fixed_kernel(name: &str, named: &[(&str, &str)], body: String, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    Kernel::new(name, params, body).in_ranges(options.profile)
}
