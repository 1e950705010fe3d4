// SPDX-License-Identifier: Apache-2.0
//! Time zones: offsets of local time from UTC.
//!
//! A zone has two tables, by instant and by local time, which a kernel searches. `build.rs` writes
//! them and documents the format. A kernel gets tables in two ways:
//! - those of the zones in its types, among its literals,
//! - those of all zones by local time, as a constant buffer, for parsed strings that may name one.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use chrono::{DateTime, Offset, TimeZone};
use parking_lot::Mutex;

use super::row::{RowWriter, unsupported};
use super::value::CType;
use crate::Result;
use crate::prelude::Section;

static BY_INSTANT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/zones_by_instant.bin"));
static BY_LOCAL_TIME: &[u8] = &ALIGNED.0;

/// Data with the alignment of a buffer that kernels read in place.
#[repr(align(128))]
pub(super) struct Aligned<T: ?Sized>(pub T);
static ALIGNED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/zones_by_local_time.bin")));

/// Offsets of a zone from UTC.
#[derive(Debug, Clone)]
pub(super) enum Zone {
    /// A constant offset, in seconds east of UTC.
    Fixed(i64),
    /// The rules of a named zone.
    Rules(Arc<ZoneRules>),
}

/// Tables of a named zone.
#[derive(Debug)]
pub(super) struct ZoneRules {
    instants: Arc<[i64]>,
    locals: Arc<[i64]>,
}

impl Zone {
    /// Looks up a zone; names that arrow-rs does not know are refused, no name is UTC.
    pub(super) fn of(name: Option<&str>) -> Result<Zone> {
        static NAMED: Mutex<BTreeMap<String, Zone>> = Mutex::new(BTreeMap::new());
        let Some(name) = name else {
            return Ok(Zone::Fixed(0));
        };
        let mut named = NAMED.lock();
        if let Some(zone) = named.get(name) {
            return Ok(zone.clone());
        }
        let zone = match (find(BY_INSTANT, name), find(BY_LOCAL_TIME, name)) {
            (Some(instants), Some(locals)) => match instants[..] {
                [only] => Zone::Fixed(offset(only)),
                _ => Zone::Rules(Arc::new(ZoneRules { instants, locals })),
            },
            _ => match name.parse::<Tz>() {
                // The name is an offset.
                Ok(zone) => {
                    let epoch = DateTime::UNIX_EPOCH.naive_utc();
                    Zone::Fixed(zone.offset_from_utc_datetime(&epoch).fix().local_minus_utc().into())
                }
                Err(_) => return unsupported(format!("the time zone {name} is not known")),
            },
        };
        named.insert(name.into(), zone.clone());
        Ok(zone)
    }
}

/// Names and tables of all zones by local time, which [`Param::Zones`](super::Param::Zones) is
/// bound to.
pub(super) fn all() -> &'static [u8] {
    BY_LOCAL_TIME
}

impl RowWriter<'_> {
    /// C of a zone's offset at an instant, in seconds.
    pub(super) fn offset_at(&mut self, zone: &Zone, second: &str) -> Result<String> {
        match zone {
            Zone::Fixed(offset) => Ok(format!("({offset})")),
            Zone::Rules(rules) => self.offset_in(&rules.instants, second),
        }
    }

    /// C of a zone's offset at a local time, in seconds, and of the condition that the local time
    /// is skipped or repeated.
    pub(super) fn offset_of_local(&mut self, zone: &Zone, second: &str) -> Result<(String, Option<String>)> {
        match zone {
            Zone::Fixed(offset) => Ok((format!("({offset})"), None)),
            Zone::Rules(rules) => {
                let offset = self.offset_in(&rules.locals, second)?;
                let none = format!("({offset} == NO_OFFSET)");
                Ok((offset, Some(none)))
            }
        }
    }

    /// C of the instant of a local time, in seconds, and of the condition that none exists.
    /// `offset` is that of the instant which `date_trunc` truncates.
    pub(super) fn instant_of_local(&mut self, zone: &Zone, local: &str, offset: &str) -> Result<(String, Option<String>)> {
        match zone {
            Zone::Fixed(offset) => Ok((self.local(CType::I64, &format!("{local} - ({offset})")), None)),
            Zone::Rules(rules) => {
                self.params.need(Section::ZoneLocal);
                self.costly();
                let (instants, count) = self.params.table(&rules.instants)?;
                let (locals, local_count) = self.params.table(&rules.locals)?;
                let call = format!("zone_instant({instants}, {count}, {locals}, {local_count}, {local}, {offset})");
                let instant = self.local(CType::I64, &call);
                let none = format!("({instant} == NO_INSTANT)");
                Ok((instant, Some(none)))
            }
        }
    }

    fn offset_in(&mut self, table: &Arc<[i64]>, second: &str) -> Result<String> {
        self.params.need(Section::Zone);
        self.costly();
        let (words, len) = self.params.table(table)?;
        Ok(self.local(CType::I64, &format!("zone_offset({words}, {len}, {second})")))
    }
}

/// Looks up a zone's table by name, as `leave_zone` of the prelude does.
fn find(zones: &[u8], name: &str) -> Option<Arc<[i64]>> {
    let word = |at: usize| Some(u32::from_le_bytes(*zones.get(at * 4..)?.first_chunk()?) as usize);
    let bytes = |at: usize, len: usize| zones.get(at..at + len);
    let (mut from, mut to) = (0, word(0)?);
    while from < to {
        let middle = (from + to) / 2;
        let entry = 4 + middle * 4;
        match bytes(word(entry)?, word(entry + 1)?)?.cmp(name.as_bytes()) {
            Ordering::Less => from = middle + 1,
            Ordering::Greater => to = middle,
            Ordering::Equal => return Some(words(bytes(word(entry + 2)?, word(entry + 3)? * 8)?).collect()),
        }
    }
    None
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes.as_chunks().0.iter().copied().map(i64::from_le_bytes)
}

fn offset(word: i64) -> i64 {
    (word & 0xf_ffff) - (1 << 19)
}

#[cfg(test)]
mod tests {
    use chrono::NaiveDateTime;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// The search of `zone_offset` in the prelude.
    fn lookup(table: &[i64], second: i64) -> Option<i64> {
        let at = table.partition_point(|word| *word <= (second << 20 | 0xf_ffff)).saturating_sub(1);
        Some(offset(table[at])).filter(|offset| *offset != 0x7_ffff)
    }

    fn date_time(second: i64) -> NaiveDateTime {
        DateTime::from_timestamp(second, 0).unwrap().naive_utc()
    }

    /// All zones compared with arrow-rs, at the changes in their tables and at random instants.
    #[test]
    fn tables_agree_with_arrow() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for name in chrono_tz::TZ_VARIANTS.map(|zone| zone.name()) {
            let zone: Tz = name.parse().unwrap();
            let by_instant = |second| Some(zone.offset_from_utc_datetime(&date_time(second)).fix().local_minus_utc().into());
            let by_local = |second| {
                let offset = zone.offset_from_local_datetime(&date_time(second)).single()?;
                Some(offset.fix().local_minus_utc().into())
            };
            let oracles: [&dyn Fn(i64) -> Option<i64>; 2] = [&by_instant, &by_local];
            for (zones, oracle) in [BY_INSTANT, BY_LOCAL_TIME].into_iter().zip(oracles) {
                let table = find(zones, name).unwrap();
                let mut seconds: Vec<i64> = table[1..].iter().flat_map(|word| [(word >> 20) - 1, word >> 20]).collect();
                seconds.extend((0..3000).map(|_| random.random_range(-5_364_662_400..7_258_118_400)));
                seconds.extend((0..200).map(|_| random.random_range(-8_334_601_228_800..8_210_266_876_800)));
                for second in seconds {
                    assert_eq!(lookup(&table, second), oracle(second), "{name} at {second}");
                }
            }
        }
    }

    #[test]
    fn zones_are_names_or_offsets() {
        assert!(matches!(Zone::of(None), Ok(Zone::Fixed(0))));
        assert!(matches!(Zone::of(Some("Zulu")), Ok(Zone::Fixed(0))));
        assert!(matches!(Zone::of(Some("-03:30")), Ok(Zone::Fixed(-12_600))));
        assert!(matches!(Zone::of(Some("Etc/GMT+12")), Ok(Zone::Fixed(-43_200))));
        assert!(matches!(Zone::of(Some("Asia/Tokyo")), Ok(Zone::Rules(_))));
        assert!(Zone::of(Some("europe/berlin")).is_err());
        assert!(find(BY_INSTANT, "").is_none());
        assert!((BY_LOCAL_TIME.as_ptr() as usize).is_multiple_of(128));
    }
}
