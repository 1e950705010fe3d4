// SPDX-License-Identifier: Apache-2.0
//! Writes the cases of characters, see `build/cases.rs`, and the rules of all time zones as tables:
//! `zones_by_instant.bin` and `zones_by_local_time.bin`, which `src/codegen/zone.rs` and `prelude/zone.h` read.
//!
//! The rules are asked from chrono-tz, whose they are in DataFusion: every three days, and where two answers differ,
//! the second of the change is searched for between them by bisection.

#[path = "build/cases.rs"]
mod cases;

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use chrono::{DateTime, NaiveDateTime, Offset, TimeZone};
use chrono_tz::Tz;

/// Seconds from 1840 to 2100. chrono-tz has rules of 1845 to 2099; the first and the last offset hold
/// before and after.
const PROBED: std::ops::Range<i64> = -4_102_444_800..4_102_444_800;
/// Between two probes. Two changes that cancel each other out within it would go unseen; the closest two of the tz database
/// are four days apart (Africa/Freetown).
const STEP: usize = 3 * 86_400;
/// The offset of local times that are missing, or twice there. `NO_OFFSET` of the prelude.
const NO_OFFSET: i64 = 0x7_ffff;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/cases.rs");
    let mut zones = chrono_tz::TZ_VARIANTS;
    zones.sort_unstable_by_key(|zone| zone.name());
    let rules = zones.iter().map(rules).collect::<Option<Vec<_>>>().ok_or("a moment beyond the calendar")?;
    let folder = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&folder).join("cases.bin"), cases::table()?)?;
    for (file, part) in [("zones_by_instant.bin", 0), ("zones_by_local_time.bin", 1)] {
        let rows = zones.iter().zip(&rules).map(|(zone, rules)| (zone.name(), &rules[part][..]));
        std::fs::write(Path::new(&folder).join(file), bytes(rows.collect())?)?;
    }
    Ok(())
}

/// The number of zones and three words of 0; then of each zone, by name, where its name is in these bytes, the
/// length of its name, where its table is, and the number of words of its table; then what these point to. All
/// little endian; tables are words of 64 bits and aligned, all others of 32.
fn bytes(zones: Vec<(&str, &[i64])>) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut head = vec![u32::try_from(zones.len())?, 0, 0, 0];
    let mut body: Vec<u8> = Vec::new();
    let start = 16 * (1 + zones.len());
    let mut known: HashMap<&[i64], usize> = HashMap::new();
    for (_, table) in &zones {
        known.entry(table).or_insert_with(|| {
            let at = start + body.len();
            body.extend(table.iter().flat_map(|word| word.to_le_bytes()));
            at
        });
    }
    for (name, table) in &zones {
        for word in [start + body.len(), name.len(), known[table], table.len()] {
            head.push(u32::try_from(word)?);
        }
        body.extend(name.bytes());
    }
    let mut bytes: Vec<u8> = head.into_iter().flat_map(u32::to_le_bytes).chain(body).collect();
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    Ok(bytes)
}

/// A zone's tables, by instant and by local time. Of a word, the high 44 bits are a second, and the low 20 the
/// offset from then on, plus 2^19; the first word's offset holds before it, too.
fn rules(zone: &Tz) -> Option<[Vec<i64>; 2]> {
    let first = offset_at(zone, PROBED.start)?;
    let mut changes = Vec::new();
    let (mut before, mut offset) = (PROBED.start, first);
    for after in PROBED.step_by(STEP).skip(1) {
        while offset_at(zone, after)? != offset {
            let mut at = after;
            while at - before > 1 {
                let middle = before + (at - before) / 2;
                if offset_at(zone, middle)? == offset { before = middle } else { at = middle }
            }
            let next = offset_at(zone, at)?;
            changes.push((at, offset, next));
            (before, offset) = (at, next);
        }
        before = after;
    }
    let instants = changes.iter().map(|(at, _, next)| (*at, *next)).collect();
    // Local time begins or ceases to be unique only where a clock stands before or after a change.
    let mut clocks: Vec<i64> = changes.iter().flat_map(|(at, last, next)| [at + last, at + next]).collect();
    clocks.sort_unstable();
    let locals = clocks.into_iter().map(|clock| Some((clock, offset_of_local(zone, clock)?))).collect::<Option<_>>()?;
    Some([table(first, instants), table(first, locals)])
}

fn table(first: i64, rows: Vec<(i64, i64)>) -> Vec<i64> {
    let mut rows = [vec![(-1 << 43, first)], rows].concat();
    rows.dedup_by_key(|(_, offset)| *offset);
    rows.into_iter().map(|(second, offset)| second << 20 | (offset + (1 << 19))).collect()
}

fn offset_at(zone: &Tz, second: i64) -> Option<i64> {
    Some(zone.offset_from_utc_datetime(&moment(second)?).fix().local_minus_utc().into())
}

fn offset_of_local(zone: &Tz, second: i64) -> Option<i64> {
    let offset = zone.offset_from_local_datetime(&moment(second)?).single();
    Some(offset.map_or(NO_OFFSET, |offset| offset.fix().local_minus_utc().into()))
}

fn moment(second: i64) -> Option<NaiveDateTime> {
    Some(DateTime::from_timestamp(second, 0)?.naive_utc())
}
