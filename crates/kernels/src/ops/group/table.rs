// SPDX-License-Identifier: Apache-2.0
//! The hash table of a grouped aggregation: open addressing, linear probing, slots of two u64.
//!
//! - A row claims the first word of a slot by compare-and-swap. The word does not change while rows
//!   are looked up.
//! - The claiming row takes the next group number and stores it in the second word.
//! - Another row that finds the slot earlier does not wait. Its id is the slot instead of the
//!   group, and the update resolves it.
//! - `inline`: the first word is the key, packed into 64 bits.
//! - `wide`: the first word is a tag of 32 hash bits and a reference to a row of the batch. Once a
//!   batch is committed it refers to the group. Keys are compared through the columns of the batch
//!   or the key store.
//!
//! Look-ups do not change states. If a table turns out too small, a larger one is filled with the
//! groups of earlier batches, and the batch is looked up again.

use device::{Arg, Buffer, Queue};

use crate::codegen::Profile;
use crate::ops::launch::program::contiguous_rows;
use crate::{Error, Result};

/// Probes after which a table counts as full.
pub(super) const MAX_PROBES: u32 = 512;
/// Probes less one between two looks at whether the table is full: a power of two less one.
const MISSES: u32 = 7;
/// Flag of an id that is the number of a slot.
pub(super) const UNRESOLVED: &str = "0x80000000u";
/// The id of rows without a group.
pub(super) const NO_GROUP: &str = "0xffffffffu";

/// The id of rows whose group is not among those of a frozen state (see
/// [`set_aside`](super::set_aside)). Its table has the limit 0, and is never full.
pub(super) const SET_ASIDE: &str = "0xfffffffeu";

/// Positions in the control buffer, an array of u64. Each value has a cache line of its own.
pub(super) mod control {
    /// Lowest failing row.
    pub const ERROR: usize = 0;
    /// Next group number.
    pub const GROUPS: usize = 8;
    /// Whether the table is too small.
    pub const FULL: usize = 16;
    /// Group of the NULL key, if it has a slot of its own.
    pub const NULL_GROUP: usize = 24;
    /// Length of the buffer.
    pub const WORDS: usize = 32;
}

/// Rows of a block. The cpu profile prefetches the slots of a block while it looks up the block
/// before.
const BLOCK: usize = 128;
/// Slots of 16 bytes from which on the caches of a core miss often enough for prefetching to pay,
/// and groups.
const PREFETCHED_SLOTS: usize = 1 << 16;
pub(super) const PREFETCHED_GROUPS: usize = 1 << 15;

/// C to set `id` and `found` if the slot `h` has the inline key of the row. Without branches.
pub(super) fn first_slot_inline() -> String {
    format!(
        "      u64 at = h == NO_ROW ? 0 : h, g = ((const G u64 *)slots)[2 * at + 1];
      i32 found = ((const G u64 *)slots)[2 * at] == (h > mask ? 0 : key);
      u32 id = g == NO_ROW ? (u32)h | {UNRESOLVED} : (u32)g;
      if (h == NO_ROW) {{ id = {NO_GROUP}; found = 1; }}
"
    )
}

/// The same for wide keys: none is found, since comparing them takes branches.
pub(super) fn first_slot_wide() -> String {
    format!("      i32 found = h == NO_ROW;\n      u32 id = {NO_GROUP};\n")
}

/// C that sets `h` to the first slot of a probe for `key`. Reads `is_null` if NULL has a slot of
/// its own.
pub(super) fn slot_inline(null_slot: bool) -> String {
    let null = if null_slot { "if (is_null) { key = 0; h = mask + 2; }\n" } else { "" };
    format!("h = hash64(key) & mask;\nif (key == NO_ROW) h = mask + 1;\n{null}")
}

/// C to make the row that claimed slot `h` the group `g`.
pub(super) fn number_inline(null_slot: bool) -> String {
    let null = if null_slot { format!("if (h == mask + 2) control[{}] = g; ", control::NULL_GROUP) } else { String::new() };
    format!("{null}keys[g] = key; slots[2 * h + 1] = g;")
}

/// The same for wide keys.
pub(super) const NUMBER_WIDE: &str = "origins[g] = (u32)row; new_slots[g] = (u32)h; hashes[g] = key; slots[2 * h + 1] = g;";

/// C after a claim: the gpu profile numbers the group at once. The cpu profile numbers all claims
/// of a block together, since a shared counter is slow.
pub(super) fn claimed(profile: Profile, number: &str) -> String {
    match profile {
        Profile::Cpu => format!("claims[claim_count++] = i; all_slots[here + i] = h; id = (u32)h | {UNRESOLVED};"),
        Profile::Gpu => {
            format!("u64 g = A_NEXT64(&control[{}]); if (g < limit) {{ {number} id = (u32)g; }}", control::GROUPS)
        }
    }
}

/// C to probe for `key` from slot `h` on, whose first word is `seen`, and to set `id`.
pub(super) fn probe_inline(claimed: &str) -> String {
    format!(
        "u64 stored = h > mask ? 0 : key;
for (u32 step = 0; step < {MAX_PROBES}u || !limit; ++step) {{
  if (seen == NO_ROW) {{
    if (!limit) {{ id = {SET_ASIDE}; break; }}
    if (control[{full}]) break;
    seen = A_CAS64(&slots[2 * h], NO_ROW, stored);
    if (seen == NO_ROW) {{ {claimed} break; }}
  }}
  if (seen == stored) {{
    u64 g = slots[2 * h + 1];
    id = g == NO_ROW ? (u32)h | {UNRESOLVED} : (u32)g;
    break;
  }}
  h = (h + 1) & mask;
  seen = slots[2 * h];
  if ({is_full}) break;
}}
if (id == {NO_GROUP}) control[{full}] = 1;",
        full = control::FULL,
        is_full = is_full(),
    )
}

/// C after a missed probe: whether the table is known to be full. Chains get long then, so rows
/// must not follow them all.
fn is_full() -> String {
    format!("(step & {MISSES}u) == {MISSES}u && control[{}]", control::FULL)
}

/// C to probe for the keys with the hash `key` from slot `h` on, whose first word is `seen`, and to
/// set `id`.
///
/// `other_row` compares with the row `other` and `other_group` with the stored key of the group
/// `other`. Both set `equal`.
pub(super) fn probe_wide(other_row: &str, other_group: &str, claimed: &str) -> String {
    format!(
        "u32 tag = (u32)(key >> 32);
for (u32 step = 0; step < {MAX_PROBES}u || !limit; ++step) {{
  if (seen == NO_ROW) {{
    if (!limit) {{ id = {SET_ASIDE}; break; }}
    if (control[{full}]) break;
    seen = A_CAS64(&slots[2 * h], NO_ROW, (u64)tag << 32 | row);
    if (seen == NO_ROW) {{ {claimed} break; }}
  }}
  if ((u32)(seen >> 32) == tag) {{
    i32 equal = 0;
    u64 other = seen & 0x7fffffffu;
    if (seen & {UNRESOLVED}) {{
{other_group}
    }} else {{
{other_row}
    }}
    if (equal) {{
      u64 g = slots[2 * h + 1];
      id = g == NO_ROW ? (u32)h | {UNRESOLVED} : (u32)g;
      break;
    }}
  }}
  h = (h + 1) & mask;
  seen = slots[2 * h];
  if ({is_full}) break;
}}
if (id == {NO_GROUP}) control[{full}] = 1;",
        full = control::FULL,
        is_full = is_full(),
    )
}

/// The look-up of the cpu profile, over blocks of rows.
///
/// - `slot` sets `key` and `h` of `row`; `h` stays all ones if the row has no group.
/// - `first_slot` finds most rows.
/// - `probe` sets `id` of the others.
/// - `number` numbers a claim.
pub(super) fn find_blocks(slot: &str, first_slot: &str, probe: &str, number: &str) -> String {
    format!(
        "{run}  u64 first = begin, all_keys[{twice}], all_slots[{twice}];
  u32 missed[{BLOCK}], claims[{BLOCK}];
  u32 width = 0, here = 0;
  /* A table that is full is replaced anyway. */
  while (!control[{full}]) {{
    u64 next = first + width;
    u32 coming = end - next < {BLOCK} ? (u32)(end - next) : {BLOCK}u, there = {BLOCK} - here;
    if (width + coming == 0) break;
    for (u32 i = 0; i < coming; ++i) {{
      u64 row = next + i, key = 0, h = NO_ROW;
{slot}      all_keys[there + i] = key;
      all_slots[there + i] = h;
    }}
    if (mask >= {PREFETCHED_SLOTS}) for (u32 i = 0; i < coming; ++i) PREFETCH(&slots[all_slots[there + i] == NO_ROW ? 0 : 2 * all_slots[there + i]]);
    u32 missed_count = 0, claim_count = 0;
    for (u32 i = 0; i < width; ++i) {{
      u64 key = all_keys[here + i], h = all_slots[here + i];
{first_slot}      ids[first + i] = id;
      missed[missed_count] = i;
      missed_count += !found;
    }}
    for (u32 m = 0; m < missed_count; ++m) {{
      u32 i = missed[m], id = {NO_GROUP};
      u64 row = first + i, key = all_keys[here + i], h = all_slots[here + i], seen = slots[2 * h];
{probe}
      ids[row] = id;
    }}
    if (claim_count) {{
      u64 g = A_ADD64(&control[{groups}], (u64)claim_count);
      if (g + claim_count > limit) {{ control[{full}] = 1; claim_count = 0; }}
      for (u32 c = 0; c < claim_count; ++c, ++g) {{
        u64 row = first + claims[c], key = all_keys[here + claims[c]], h = all_slots[here + claims[c]];
        {number}
        ids[row] = (u32)g;
      }}
    }}
    first = next;
    width = coming;
    here = there;
  }}
",
        run = contiguous_rows("n"),
        twice = 2 * BLOCK,
        full = control::FULL,
        groups = control::GROUPS,
    )
}

/// C that inserts group `g` of an earlier batch into a new table of inline keys.
pub(super) const INSERT_INLINE: &str = "    u64 key = keys[g], stored = key, h = hash64(key) & mask;
    if (g == null_group) { stored = 0; h = mask + 2; }
    else if (key == NO_ROW) { stored = 0; h = mask + 1; }
    while (A_CAS64(&slots[2 * h], NO_ROW, stored) != NO_ROW) h = (h + 1) & mask;
    slots[2 * h + 1] = g;
";

/// The same for wide keys.
pub(super) const INSERT_WIDE: &str = "    u64 hash = hashes[g], h = hash & mask, word = (hash >> 32) << 32 | 0x80000000u | g;
    while (A_CAS64(&slots[2 * h], NO_ROW, word) != NO_ROW) h = (h + 1) & mask;
    slots[2 * h + 1] = g;
";

/// Most groups of a table. The [`UNRESOLVED`] ids number its slots in 31 bits, with two special
/// ones.
pub(super) const MOST_GROUPS: usize = 1 << 29;

/// Slots for so many groups at half load.
fn slots(groups: usize) -> Result<usize> {
    if groups > MOST_GROUPS {
        return Err(Error::Unsupported(format!("more than {MOST_GROUPS} groups at once are not supported on the device")));
    }
    Ok((groups.max(1) * 2).next_power_of_two())
}

/// The hash table on the device.
#[derive(Debug)]
pub(super) struct HashTable {
    pub slots: Buffer,
    /// Number of slots without the two special ones, less one.
    pub mask: u64,
}

impl HashTable {
    /// An empty table with room for `groups` groups at half load.
    pub fn new(queue: &Queue, groups: usize) -> Result<HashTable> {
        let slots = slots(groups)?;
        Ok(HashTable { slots: queue.filled((slots + 2) * 16, 0xff)?, mask: slots as u64 - 1 })
    }

    /// The number of groups that the table has room for.
    pub fn capacity(&self) -> usize {
        (self.mask as usize).div_ceil(2)
    }

    /// With a `limit` of 0 the table takes no new groups.
    pub fn args<'a>(&'a self, limit: usize) -> [(&'a str, Arg<'a>); 3] {
        [("slots", Arg::Buffer(&self.slots)), ("mask", Arg::U64(self.mask)), ("limit", Arg::U64(limit as u64))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_number_all_slots() {
        assert_eq!([0, 1, 2, 3].map(|groups| slots(groups).unwrap()), [2, 2, 4, 8]);
        let last = slots(MOST_GROUPS).unwrap() + 1;
        assert!(last < 1 << 31);
        assert!(slots(MOST_GROUPS + 1).unwrap_err().to_string().contains("more than 536870912 groups"));
    }
}
