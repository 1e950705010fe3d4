// SPDX-License-Identifier: Apache-2.0
//! The case table `cases.bin`, read by `src/codegen/case_table.rs` and `prelude/cases.h`: upper and
//! lower case of all characters.
//!
//! Cases are those of Rust's standard library, as in DataFusion. The folding of `ILIKE` is that of
//! `regex-syntax`, with which arrow matches.

use std::collections::HashMap;
use std::error::Error;
use std::ops::RangeInclusive;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// Code points with cases or properties. A test checks that others have none.
const PROBED: [RangeInclusive<char>; 2] = ['\0'..='\u{3ffff}', '\u{e0000}'..='\u{e0fff}'];
/// Characters of a block.
const BLOCK: usize = 256;
const BLOCKS: usize = 0x11_0000 / BLOCK;

/// Entry of a character: one code point, or up to three.
type Entry = fn(char) -> Vec<u32>;

/// Kinds of entries: upper case, lower case, the least character that differs in case only,
/// properties.
const KINDS: [Entry; 4] =
    [|c| c.to_uppercase().map(u32::from).collect(), |c| c.to_lowercase().map(u32::from).collect(), fold, properties];

/// The table as little-endian u32:
/// 1. for each kind, the offset of each block, or 0 for a block of characters that map to
///    themselves,
/// 2. the blocks, an entry per character.
///
/// An entry is a code point. With the highest bit set, the rest is the offset of three code points;
/// zeros fill up fewer.
pub fn table() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut words = vec![0u32; KINDS.len() * BLOCKS];
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    for (kind, entry) in KINDS.into_iter().enumerate() {
        for block in 0..BLOCKS {
            let first = (block * BLOCK) as u32;
            let unchanged: Vec<u32> = (first..first + BLOCK as u32).collect();
            let mut entries = Vec::with_capacity(BLOCK);
            for code in &unchanged {
                let c = char::from_u32(*code).filter(|c| PROBED.iter().any(|range| range.contains(c)));
                entries.push(match (c.map(entry).as_deref(), kind) {
                    (Some([one]), _) => *one,
                    (Some(several), _) => {
                        let at = u32::try_from(words.len())?;
                        words.extend(several.iter().copied().chain([0; 3]).take(3));
                        1 << 31 | at
                    }
                    (None, 3) => 0,
                    (None, _) => *code,
                });
            }
            if entries == unchanged {
                continue;
            }
            words[kind * BLOCKS + block] = match known.get(&entries) {
                Some(at) => *at,
                None => {
                    let at = u32::try_from(words.len())?;
                    words.extend(&entries);
                    known.insert(entries, at);
                    at
                }
            };
        }
    }
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

fn fold(c: char) -> Vec<u32> {
    let mut class = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
    class.case_fold_simple();
    vec![class.iter().next().map_or(c, ClassUnicodeRange::start).into()]
}

/// 1: a cased letter, 2: a character that Final_Sigma ignores, 4: a letter or a digit.
///
/// The first two follow from the lower case of a capital sigma, which depends on its context.
fn properties(c: char) -> Vec<u32> {
    let is_final = |string: String| string.to_lowercase().ends_with('ς');
    let cased = is_final(format!("{c}Σ"));
    let ignored = !cased && is_final(format!("A{c}Σ"));
    vec![u32::from(cased) | u32::from(ignored) << 1 | u32::from(c.is_alphanumeric()) << 2]
}
