// SPDX-License-Identifier: Apache-2.0
//! The keys of a table as bits, which dynamic filters ask instead of a table that the caches do not hold, and searches that find
//! few matches before they ask that.
//!
//! Where keys are numbers that index an array, each number has its bit. Else the bits are a Bloom filter: a hash sets four bits of
//! one word of 64, so that a row reads one place. With 16 bits for each row of the build side about one row of a hundred passes that
//! has no match, and finds none in the join itself later. Words are found by the high half of a product, not by a division.

use device::{Arg, Buffer, Queue};

use super::keys::{self, KeyForm};
use super::table::{Draft, JoinBuild, JoinTable, Shape};
use crate::Result;
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::ops::program::{Kernel, Program, for_rows, spread};
use crate::prelude::Section;

/// Bits of a Bloom filter for each row: how many keys these have nobody has counted.
const BITS_OF_ROW: u64 = 16;

/// Bytes of a table that the cache of a core, or of a GPU, holds beside what else a kernel reads.
fn cached(profile: Profile) -> usize {
    match profile {
        Profile::Cpu => 1 << 18,
        Profile::Gpu => 1 << 23,
    }
}

/// Who asks the bits of a table's keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BitsFor {
    /// Dynamic filters.
    pub filters: bool,
    /// The join's own search, of which most rows are likely to find nothing.
    pub search: bool,
}

/// The bits of a table's keys.
pub(super) struct Bits {
    pub buffer: Buffer,
    /// Words of 64 bits.
    pub words: u64,
    /// Whether the join's own search asks them first.
    pub first: bool,
}

/// C of where a row's bits are: whether it can have any, the position of a word, and the bits of that.
struct BitsPlace {
    condition: String,
    word: String,
    mask: String,
}

impl BitsPlace {
    fn of(
        writer: &mut RowWriter<'_>,
        (forms, values): (&[KeyForm], &[Value]),
        null_equals_null: bool,
        table: &str,
        shape: Shape,
    ) -> BitsPlace {
        let known = keys::known(values, null_equals_null);
        let (condition, hash) = match shape {
            Shape::Number { dense } => {
                let (inside, number) = keys::number(writer, forms, values, null_equals_null, table);
                let condition = known.map_or(inside.clone(), |known| format!("{inside} & {known}"));
                if dense {
                    return BitsPlace { condition, word: format!("{number} >> 6"), mask: format!("(u64)1 << ({number} & 63)") };
                }
                (condition, writer.local(CType::U64, &format!("hash64({number})")))
            }
            _ => (known.unwrap_or_else(|| "1".into()), keys::hash(writer, forms, values)),
        };
        writer.params().need(Section::Hash);
        let words = writer.params().named(&format!("{table}_words"), "u64");
        BitsPlace { condition, word: format!("bloom_word({hash}, {words})"), mask: format!("bloom_bits({hash})") }
    }
}

/// Appends what sets `answer` to `yes` for a row whose bits are all there.
pub(super) fn ask(
    writer: &mut RowWriter<'_>,
    keys: (&[KeyForm], &[Value]),
    null_equals_null: bool,
    (table, shape): (&str, Shape),
    (answer, yes): (&str, &str),
) -> Result<()> {
    let BitsPlace { condition, word, mask } = BitsPlace::of(writer, keys, null_equals_null, table, shape);
    writer.guarded(&condition, |writer| {
        let bits = writer.params().named(&format!("{table}_bits"), "const G u64 *RESTRICT");
        writer.push(&format!("u64 mask = {mask};\nif (({bits}[{word}] & mask) == mask) {answer} = {yes};"));
        Ok(())
    })
}

/// Appends what asks the caches for where a row's bits are.
pub(super) fn fetch(
    writer: &mut RowWriter<'_>,
    keys: (&[KeyForm], &[Value]),
    null_equals_null: bool,
    (table, shape): (&str, Shape),
) -> Result<()> {
    let BitsPlace { condition, word, .. } = BitsPlace::of(writer, keys, null_equals_null, table, shape);
    writer.guarded(&condition, |writer| {
        let bits = writer.params().named(&format!("{table}_bits"), "const G u64 *RESTRICT");
        writer.push(&format!("PREFETCH(&{bits}[{word}]);"));
        Ok(())
    })
}

impl Draft<'_> {
    /// The kernel that sets the bits of each row.
    fn bits(&self, shape: Shape) -> Result<Kernel> {
        let mut params = Params::new();
        params.need(Section::Base);
        let n = params.named("n", "u64");
        let mut writer = self.source.writer(self.options.profile, &mut params);
        let values = self.keys.iter().map(|key| writer.eval(key)).collect::<Result<Vec<_>>>()?;
        let BitsPlace { condition, word, mask } = BitsPlace::of(&mut writer, (self.forms, &values), self.nulls, "t", shape);
        let bits = writer.params().named("t_bits", "volatile G u64 *");
        writer.push(&format!(
            "if ({condition}) {{
  u64 mask = {mask};
  volatile G u64 *bits = &{bits}[{word}];
  if ((*bits & mask) != mask) A_OR64(bits, mask);
}}"
        ));
        let statements = writer.statements();
        let body = for_rows(self.options.profile, "row", &n, &statements);
        Ok(Kernel::new("join_bits", params, body))
    }
}

impl JoinBuild {
    /// Makes bits of a table's keys for those who had better ask these: the caches do not hold the table, or a filter lacks the
    /// columns that its search would compare. Where there is no memory for them, there are none.
    ///
    /// # Errors
    /// Those of the device.
    pub async fn add_bits(&self, queue: &Queue, table: &mut JoinTable, wanted: BitsFor) -> Result<()> {
        let shape = table.form().shape;
        let Some(words) = table.words_of_bits(shape) else { return Ok(()) };
        let cached = self.cached.unwrap_or_else(|| cached(self.options.profile));
        let uncached = table.searched_bytes(shape) > cached;
        // A number that indexes an array finds its row with one read, or that there is none.
        let first = wanted.search && uncached && shape != (Shape::Number { dense: true });
        let filters = wanted.filters && (uncached || shape == Shape::Wide) && table.can_filter(self.draft().keys.len());
        if !first && !filters {
            return Ok(());
        }
        let program = self.bits_program(shape)?;
        let loaded = program.load(queue).await?;
        let buffer = match queue.zeroed(words as usize * 8) {
            // The join goes without.
            Err(device::Error::OutOfMemory { .. } | device::Error::TooLarge { .. }) => return Ok(()),
            buffer => buffer?,
        };
        table.bits = Some(Bits { buffer, words, first });
        // Nobody reads it: each key has been computed before.
        let control = queue.filled(8, 0xff)?;
        let n = table.num_rows();
        let names = JoinTable::arg_names("t", table.digits());
        let bound = self.source.bind(table.batch())?;
        let mut named: Vec<_> = names.iter().map(String::as_str).zip(table.args()).collect();
        named.push(("n", Arg::U64(n as u64)));
        loaded.launch_on(queue, 0, spread(queue, &self.options, n), &bound, Some(&control), named)
    }

    /// The same where the caches hold so many bytes: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_cache(mut self, bytes: usize) -> JoinBuild {
        self.cached = Some(bytes);
        self
    }

    pub(super) fn bits_program(&self, shape: Shape) -> Result<Program> {
        Program::try_new("JoinBuild", &self.options, vec![self.draft().bits(shape)?])
    }
}

impl JoinTable {
    /// Bytes of the bits of its keys, 0 where there are none and all ask the table itself.
    pub fn filter_bytes(&self) -> usize {
        self.bits.as_ref().map_or(0, |bits| bits.buffer.len())
    }

    /// The words that bits of a table of this shape take; `None` where it has no keys.
    fn words_of_bits(&self, shape: Shape) -> Option<u64> {
        let of_rows = |rows: u64| (rows * BITS_OF_ROW).div_ceil(64);
        let words = match shape {
            Shape::All => None,
            Shape::Number { dense: true } => Some((self.slots() as u64).div_ceil(64)),
            Shape::Number { dense: false } => Some(of_rows(self.known())),
            Shape::Wide => Some(of_rows(self.num_rows() as u64)),
        };
        words.filter(|_| self.num_rows() > 0)
    }

    /// The bytes that searches of a table of this shape read anywhere in.
    fn searched_bytes(&self, shape: Shape) -> usize {
        let key = if shape == (Shape::Number { dense: true }) { 0 } else { 8 };
        self.slots() * (key + if self.is_unique() { 4 } else { 8 })
    }
}
