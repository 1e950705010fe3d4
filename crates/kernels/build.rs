// SPDX-License-Identifier: Apache-2.0
//! Writes constant tables of the kernels: the cases of characters (`build/cases.rs`), and the rules
//! of all time zones.
//!
//! `zones_by_instant.bin` and `zones_by_local_time.bin` are read by `src/codegen/zone.rs` and
//! `prelude/zone.h`. The rules come from chrono-tz, as in DataFusion. Its offset is probed every
//! three days; between two probes that differ, bisection finds the second of the change.

#[path = "build/cases.rs"]
mod cases;

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;

use chrono::{DateTime, NaiveDateTime, Offset, TimeZone};
use chrono_tz::Tz;

/// Probed seconds: 1840 to 2100. chrono-tz has rules of 1845 to 2099; the first and the last offset
/// hold before and after.
const PROBED: std::ops::Range<i64> = -4_102_444_800..4_102_444_800;
/// Seconds between two probes. They would miss two changes that cancel out in between; the closest
/// two changes of the tz database are four days apart (Africa/Freetown).
const STEP: usize = 3 * 86_400;
/// Offset of skipped and repeated local times: `NO_OFFSET` of the prelude.
const NO_OFFSET: i64 = 0x7_ffff;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/cases.rs");
    let mut zones = chrono_tz::TZ_VARIANTS;
    zones.sort_unstable_by_key(|zone| zone.name());
    let rules = zones.iter().map(rules).collect::<Option<Vec<_>>>().ok_or("a second beyond the calendar")?;
    let folder = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&folder).join("cases.bin"), cases::table()?)?;
    for (file, part) in [("zones_by_instant.bin", 0), ("zones_by_local_time.bin", 1)] {
        let rows = zones.iter().zip(&rules).map(|(zone, rules)| (zone.name(), &rules[part][..]));
        std::fs::write(Path::new(&folder).join(file), bytes(rows.collect())?)?;
    }
    Ok(())
}

/// Bytes of a file of tables, little-endian:
/// 1. the number of zones and three zeros, as u32,
/// 2. four u32 for each zone, by name: offset and length of the name, offset of the table, number
///    of its entries,
/// 3. names, and tables as aligned u64 entries.
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

/// A zone's tables, by instant and by local time. An entry has a second in the high 44 bits, and in
/// the low 20 the offset from that second on, plus 2^19. The first offset holds before its second
/// as well.
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
    // The offset of a local time changes only at the local times before and after a change.
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
    Some(zone.offset_from_utc_datetime(&date_time(second)?).fix().local_minus_utc().into())
}

fn offset_of_local(zone: &Tz, second: i64) -> Option<i64> {
    let offset = zone.offset_from_local_datetime(&date_time(second)?).single();
    Some(offset.map_or(NO_OFFSET, |offset| offset.fix().local_minus_utc().into()))
}

fn date_time(second: i64) -> Option<NaiveDateTime> {
    Some(DateTime::from_timestamp(second, 0)?.naive_utc())
}
