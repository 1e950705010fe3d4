// SPDX-License-Identifier: Apache-2.0
//! Time zones: how far their local time is ahead of UTC.
//!
//! A zone's rules become two tables, by instant and by local time, which a kernel searches. They are
//! asked from arrow-rs, so that kernels answer as it does: every three days, and where two answers differ, the
//! second of the change is searched for between them by bisection.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arrow::array::timezone::Tz;
use arrow::datatypes::DataType;
use chrono::{DateTime, NaiveDateTime, Offset, TimeZone};
use parking_lot::Mutex;

use super::row::{RowWriter, unsupported};
use super::value::CType;
use crate::Result;
use crate::expr::{Literal, LiteralValue};
use crate::prelude::Section;

/// Seconds from 1800 to 2200. chrono-tz has rules of 1845 to 2099; the first and the last offset hold
/// before and after.
const PROBED: std::ops::Range<i64> = -5_364_662_400..7_258_118_400;
/// Between two probes. Two changes that cancel each other out within it would go unseen.
const STEP: usize = 3 * 86_400;
/// The offset of local times that are missing, or twice there. `NO_OFFSET` of the prelude.
const NO_OFFSET: i64 = 0x7_ffff;

/// Names of UTC.
const UTC: [&str; 18] = [
    "Etc/GMT",
    "Etc/GMT+0",
    "Etc/GMT-0",
    "Etc/GMT0",
    "Etc/Greenwich",
    "Etc/UCT",
    "Etc/UTC",
    "Etc/Universal",
    "Etc/Zulu",
    "GMT",
    "GMT+0",
    "GMT-0",
    "GMT0",
    "Greenwich",
    "UCT",
    "UTC",
    "Universal",
    "Zulu",
];

/// Offsets of a zone.
#[derive(Debug, Clone)]
pub(super) enum Zone {
    /// Seconds east of UTC, always.
    Fixed(i64),
    /// By the rules of a named zone.
    Rules(Arc<Rules>),
}

/// Tables of a named zone, sorted: a word has a first second in its high 44 bits and in its low 20 the
/// offset from then on.
#[derive(Debug)]
pub(super) struct Rules {
    instants: Arc<[i64]>,
    locals: Arc<[i64]>,
}

impl Zone {
    /// The zone of that name, refused where arrow-rs knows none. No name is UTC.
    pub(super) fn of(name: Option<&str>) -> Result<Zone> {
        static NAMED: Mutex<BTreeMap<String, Zone>> = Mutex::new(BTreeMap::new());
        let Some(name) = name.filter(|name| !UTC.contains(name)) else {
            return Ok(Zone::Fixed(0));
        };
        let mut named = NAMED.lock();
        if let Some(zone) = named.get(name) {
            return Ok(zone.clone());
        }
        let zone = match name.parse().ok().and_then(|zone: Tz| probe(&zone, name.starts_with(['+', '-']))) {
            Some(zone) => zone,
            None => return unsupported(format!("the time zone {name} is not known")),
        };
        named.insert(name.into(), zone.clone());
        Ok(zone)
    }
}

/// The names of all zones, as text: those of UTC, and those of all others.
pub(super) fn names() -> &'static [Vec<Literal>; 2] {
    static NAMES: LazyLock<[Vec<Literal>; 2]> = LazyLock::new(|| {
        let text = |name: &str| Literal { data_type: DataType::Utf8, value: LiteralValue::Bytes(name.into()) };
        let all = chrono_tz::TZ_VARIANTS.map(|zone| zone.name());
        [true, false].map(|utc| all.iter().filter(|name| UTC.contains(name) == utc).map(|name| text(name)).collect())
    });
    &NAMES
}

impl RowWriter<'_> {
    /// C for the offset of a zone at an instant, given in seconds.
    pub(super) fn offset_at(&mut self, zone: &Zone, second: &str) -> Result<String> {
        match zone {
            Zone::Fixed(offset) => Ok(format!("({offset})")),
            Zone::Rules(rules) => self.offset_in(&rules.instants, second),
        }
    }

    /// C for the offset of a zone at a local time, given in seconds, and for whether there is no such
    /// offset, or more than one.
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

    fn offset_in(&mut self, table: &Arc<[i64]>, second: &str) -> Result<String> {
        self.params.need(Section::Zone);
        self.costly();
        let (words, len) = self.params.table(table)?;
        Ok(self.local(CType::I64, &format!("zone_offset({words}, {len}, {second})")))
    }
}

/// The tables of a zone, or its one offset.
fn probe(zone: &Tz, fixed: bool) -> Option<Zone> {
    let first = offset_at(zone, PROBED.start)?;
    let mut changes = Vec::new();
    let (mut before, mut offset) = (PROBED.start, first);
    for after in PROBED.step_by(STEP).skip(1).filter(|_| !fixed) {
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
    if changes.is_empty() {
        return Some(Zone::Fixed(first));
    }
    let instants = changes.iter().map(|(at, _, next)| (*at, *next)).collect();
    // Local time begins or ceases to be unique only where a clock stands before or after a change.
    let mut clocks: Vec<i64> = changes.iter().flat_map(|(at, last, next)| [at + last, at + next]).collect();
    clocks.sort_unstable();
    let locals = clocks.into_iter().map(|clock| Some((clock, offset_of_local(zone, clock)?))).collect::<Option<_>>()?;
    Some(Zone::Rules(Arc::new(Rules { instants: table(first, instants), locals: table(first, locals) })))
}

fn table(first: i64, rows: Vec<(i64, i64)>) -> Arc<[i64]> {
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

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// As a kernel searches.
    fn lookup(table: &[i64], second: i64) -> i64 {
        let at = table.partition_point(|word| *word <= (second << 20 | 0xf_ffff)).saturating_sub(1);
        (table[at] & 0xf_ffff) - (1 << 19)
    }

    /// Each zone that there is, where its tables change and anywhere in the calendar.
    #[test]
    fn tables_are_the_rules() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for name in chrono_tz::TZ_VARIANTS.map(|zone| zone.name()) {
            let zone: Tz = name.parse().unwrap();
            let rules = probe(&zone, false).unwrap();
            assert_eq!(UTC.contains(&name), matches!(rules, Zone::Fixed(0)), "{name}");
            let (instants, locals) = match rules {
                Zone::Fixed(offset) => (table(offset, vec![]), table(offset, vec![])),
                Zone::Rules(rules) => (rules.instants.clone(), rules.locals.clone()),
            };
            for (table, oracle) in [(instants, offset_at as fn(&Tz, i64) -> _), (locals, offset_of_local)] {
                let mut seconds: Vec<i64> = table[1..].iter().flat_map(|word| [(word >> 20) - 1, word >> 20]).collect();
                seconds.extend((0..3000).map(|_| random.random_range(PROBED)));
                seconds.extend((0..200).map(|_| random.random_range(-8_334_601_228_800..8_210_266_876_800)));
                for second in seconds {
                    assert_eq!(Some(lookup(&table, second)), oracle(&zone, second), "{name} at {second}");
                }
            }
        }
    }
}
