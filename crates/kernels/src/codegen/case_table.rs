// SPDX-License-Identifier: Apache-2.0
//! Upper and lower case of all characters: a constant buffer on the device, built by
//! `build/cases.rs`.

use super::zone::Aligned;

static CASES: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/cases.bin")));

/// The table that [`Param::Cases`](super::Param::Cases) is bound to.
pub(super) fn all() -> &'static [u8] {
    &CASES.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPPER: usize = 0;
    const LOWER: usize = 1;
    const PROPERTIES: usize = 3;

    /// The lookup of `case_of` in `prelude/cases.h`.
    fn answers(words: &[u32], kind: usize, c: char) -> Vec<u32> {
        let code = u32::from(c);
        let block = words[kind * 0x1100 + (code >> 8) as usize] as usize;
        let answer = if block == 0 { code } else { words[block + (code & 0xff) as usize] };
        match answer >> 31 {
            0 => vec![answer],
            _ => words[(answer & 0x7fff_ffff) as usize..][..3].iter().copied().filter(|code| *code != 0).collect(),
        }
    }

    /// All characters, compared with the standard library.
    #[test]
    fn table_agrees_with_rust() {
        assert!((all().as_ptr() as usize).is_multiple_of(128));
        let words: Vec<u32> = all().as_chunks().0.iter().copied().map(u32::from_le_bytes).collect();
        println!("{} bytes", all().len());
        for c in '\0'..=char::MAX {
            assert!(c.to_uppercase().map(u32::from).eq(answers(&words, UPPER, c)), "{c:?}");
            assert!(c.to_lowercase().map(u32::from).eq(answers(&words, LOWER, c)), "{c:?}");
            let properties = answers(&words, PROPERTIES, c)[0];
            assert_eq!(properties & 4 != 0, c.is_alphanumeric(), "{c:?}");
            // A capital sigma behind a letter is final, unless a separator is between them.
            let ends = format!("A{c}Σ").to_lowercase().ends_with('ς');
            assert_eq!(properties & 3 != 0, ends, "{c:?}");
        }
    }
}
