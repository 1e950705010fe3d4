// SPDX-License-Identifier: Apache-2.0
//! Writes upper and lower case of all characters as a table, `cases.bin`, which `src/codegen/letters.rs` and
//! `prelude/cases.h` read.
//!
//! Rust's own functions are asked, whose answers are DataFusion's; for what `ILIKE` takes for one letter, the syntax of
//! regular expressions that arrow matches with.

use std::collections::HashMap;
use std::error::Error;
use std::ops::RangeInclusive;

use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

/// Where characters have cases, or stand within a word without being letters. A test looks at the others.
const PROBED: [RangeInclusive<char>; 2] = ['\0'..='\u{3ffff}', '\u{e0000}'..='\u{e0fff}'];
/// Characters of a block, of which the table's first part has the places.
const BLOCK: usize = 256;
const BLOCKS: usize = 0x11_0000 / BLOCK;

/// What is told of a character; the order of [`KINDS`].
type Answer = fn(char) -> Vec<u32>;

/// Upper case, lower case, the least character of those that differ in case only, and properties.
const KINDS: [Answer; 4] =
    [|c| c.to_uppercase().map(u32::from).collect(), |c| c.to_lowercase().map(u32::from).collect(), fold, properties];

/// Words of 32 bits, little endian: for each kind of answer, the places of the blocks, or 0 where each of a block's
/// characters is its own answer; then the blocks. An answer is a number; several begin at the word that the number says
/// without its highest bit, which is set, and three there are, with zeros behind those that are fewer.
pub fn table() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut words = vec![0u32; KINDS.len() * BLOCKS];
    let mut known: HashMap<Vec<u32>, u32> = HashMap::new();
    for (kind, answer) in KINDS.into_iter().enumerate() {
        for block in 0..BLOCKS {
            let first = (block * BLOCK) as u32;
            let own: Vec<u32> = (first..first + BLOCK as u32).collect();
            let mut answers = Vec::with_capacity(BLOCK);
            for code in &own {
                let c = char::from_u32(*code).filter(|c| PROBED.iter().any(|range| range.contains(c)));
                answers.push(match (c.map(answer).as_deref(), kind) {
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
            if answers == own {
                continue;
            }
            words[kind * BLOCKS + block] = match known.get(&answers) {
                Some(at) => *at,
                None => {
                    let at = u32::try_from(words.len())?;
                    words.extend(&answers);
                    known.insert(answers, at);
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

/// 1: a letter with a case, 2: what is passed over within a word, 4: a letter or a digit.
///
/// Rust tells the first two by what it makes of a capital sigma, which at the end of a word is another letter.
fn properties(c: char) -> Vec<u32> {
    let is_final = |text: String| text.to_lowercase().ends_with('ς');
    let cased = is_final(format!("{c}Σ"));
    let ignored = !cased && is_final(format!("A{c}Σ"));
    vec![u32::from(cased) | u32::from(ignored) << 1 | u32::from(c.is_alphanumeric()) << 2]
}
