// SPDX-License-Identifier: Apache-2.0
//! Random tables and queries: the device's answers against plain DataFusion's.
//!
//! A *shape* is a schema and a query; its cases vary rows and constants, so that kernels are
//! reused. What a case is depends on seed, shape and case number alone. Variables:
//! `DEVICEFUSION_CASES` (how many), `DEVICEFUSION_SEED`, `DEVICEFUSION_SHAPE` (one shape only),
//! `DEVICEFUSION_FIRST` (shape to start at), `DEVICEFUSION_PROFILE` (`cpu` or `gpu` only).

mod case;
mod compare;
mod data;
mod expr;
mod query;
mod types;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use self::case::{Case, Outcome, Settings, Sides};
use self::data::Rows;
use self::query::Query;
use crate::harness::{self, block_on};

const CASES: usize = 3000;
const CASES_PER_SHAPE: usize = 12;
const SHRINK_ATTEMPTS: usize = 250;
/// Differing shapes after which the run ends early.
const ENOUGH: usize = 20;

/// What the cases came to.
#[derive(Debug, Default)]
struct Tally {
    shapes: usize,
    same: usize,
    non_empty: usize,
    several_batches: usize,
    computed: usize,
    both_fail: usize,
    refused: BTreeMap<String, usize>,
    differing: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.shapes += other.shapes;
        self.same += other.same;
        self.non_empty += other.non_empty;
        self.several_batches += other.several_batches;
        self.computed += other.computed;
        self.both_fail += other.both_fail;
        for (reason, count) in other.refused {
            *self.refused.entry(reason).or_default() += count;
        }
        self.differing.extend(other.differing);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn the_device_answers_as_datafusion_does() {
    let seed = number("DEVICEFUSION_SEED").unwrap_or(1);
    let cases = number("DEVICEFUSION_CASES").map_or(CASES, |cases| cases as usize);
    let first = number("DEVICEFUSION_SHAPE").or(number("DEVICEFUSION_FIRST")).unwrap_or(0) as usize;
    let last = match number("DEVICEFUSION_SHAPE") {
        Some(_) => first + 1,
        None => first + cases.div_ceil(CASES_PER_SHAPE),
    };
    println!("seed {seed}, shapes {first} to {}", last - 1);
    let start = Instant::now();
    let (next, differing) = (Arc::new(AtomicUsize::new(first)), Arc::new(AtomicUsize::new(0)));
    let tally = block_on(async {
        let workers: Vec<_> = (0..harness::threads())
            .map(|_| {
                let (next, differing) = (Arc::clone(&next), Arc::clone(&differing));
                tokio::spawn(async move {
                    let sides = Sides { plain: harness::plain(1), device: harness::strict(1) };
                    let mut tally = Tally::default();
                    loop {
                        let shape = next.fetch_add(1, Ordering::Relaxed);
                        if shape >= last || differing.load(Ordering::Relaxed) >= ENOUGH {
                            return tally;
                        }
                        let result = run_shape(&sides, seed, shape).await;
                        differing.fetch_add(result.differing.len(), Ordering::Relaxed);
                        tally.add(result);
                    }
                })
            })
            .collect();
        let mut tally = Tally::default();
        for worker in workers {
            tally.add(worker.await.unwrap());
        }
        tally
    });
    report(&tally, start);
    assert!(tally.differing.is_empty(), "{} shapes differ (seed {seed}); see above", tally.differing.len());
    // A few cases say nothing about shares.
    if cases >= CASES / 4 && number("DEVICEFUSION_SHAPE").is_none() {
        let share = |part: usize| part * 100 / tally.same.max(1);
        assert!(share(tally.non_empty) >= 60, "{} % of the results are not empty, fewer than 60 %", share(tally.non_empty));
        assert!(
            share(tally.several_batches) >= 20,
            "{} % of the results have several batches, fewer than 20 %",
            share(tally.several_batches)
        );
        assert!(tally.refused.is_empty(), "some queries have no device form; see above");
    }
}

fn report(tally: &Tally, start: Instant) {
    let percent = |part: usize| 100.0 * part as f64 / tally.same.max(1) as f64;
    println!(
        "{} cases of {} shapes agree ({:.1} % not empty, {:.1} % over several batches, {:.1} % with device operators), {} fail on both sides",
        tally.same,
        tally.shapes,
        percent(tally.non_empty),
        percent(tally.several_batches),
        percent(tally.computed),
        tally.both_fail
    );
    if let Some(counters) = harness::shared_runtime().counters() {
        println!("{counters:?}, {:.0} s", start.elapsed().as_secs_f64());
    }
    for (reason, count) in &tally.refused {
        println!("refused {count} times: {reason}");
    }
    for case in &tally.differing {
        println!("\n{case}");
    }
}

/// The shape of a number: schema, query and settings, the same at each call.
fn shape(seed: u64, shape: usize) -> (Case, StdRng) {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(shape as u64));
    let columns = data::columns(&mut rng);
    let partitions = *[1, 1, 2, 3].choose(&mut rng).unwrap();
    let query = Query::random(&mut rng, &columns, partitions == 1);
    let mut profile = if shape.is_multiple_of(2) { "cpu" } else { "gpu" };
    match std::env::var("DEVICEFUSION_PROFILE").as_deref() {
        Ok("cpu") => profile = "cpu",
        Ok("gpu") => profile = "gpu",
        _ => {}
    }
    let profile = harness::profile(profile);
    let settings = Settings { profile, host_batch_rows: 8192, device_batch_rows: 0, partitions, resident: rng.random_bool(0.2) };
    let rows = Rows { schema: data::schema(&columns), partitions: vec![Vec::new()] };
    (Case { columns, rows, query, settings }, rng)
}

async fn run_shape(sides: &Sides, seed: u64, number: usize) -> Tally {
    let (mut case, mut rng) = shape(seed, number);
    let mut tally = Tally { shapes: 1, ..Tally::default() };
    // Narrow carriers of resident tables depend on the values: a kernel for nearly each case.
    let cases = if case.settings.resident { CASES_PER_SHAPE / 3 } else { CASES_PER_SHAPE };
    for index in 0..cases {
        if index > 0 {
            case.query.vary(&mut rng);
        }
        case.rows = Rows::random(&mut rng, &case.columns, case.settings.partitions);
        case.settings.host_batch_rows = *[8192, 64, 16, 16].choose(&mut rng).unwrap();
        case.settings.device_batch_rows = *[0, 0, 100, 37].choose(&mut rng).unwrap();
        match case.run(sides).await {
            Outcome::Same { rows, batches, computed } => {
                tally.same += 1;
                tally.non_empty += usize::from(rows > 0);
                tally.several_batches += usize::from(batches > 1);
                tally.computed += usize::from(computed);
            }
            Outcome::BothFail => tally.both_fail += 1,
            Outcome::Invalid => {
                tally.shapes = 0;
                return tally;
            }
            Outcome::Refused(reason) => {
                if std::env::var("DEVICEFUSION_SHAPE").is_ok() {
                    println!("{}", case.reproducer());
                }
                *tally.refused.entry(reason).or_default() += 1;
                return tally;
            }
            Outcome::Differs(_) => {
                let (case, reason) = case.shrunk(sides, SHRINK_ATTEMPTS).await;
                let text = format!("-- seed {seed}, shape {number}, case {index}: {reason}\n{}", case.reproducer());
                println!("{text}");
                tally.differing.push(text);
                return tally;
            }
        }
    }
    tally
}
