// SPDX-License-Identifier: Apache-2.0
//! Random tables and queries: compares the device's answers with those of plain DataFusion.
//!
//! A *shape* is the columns of the tables and a query. Its cases vary rows and constants, so that
//! kernels are reused. Seed, shape and case number alone determine a case. Environment variables:
//!
//! - `DEVICEFUSION_SEED`: seed of all shapes
//! - `DEVICEFUSION_CASES`: number of cases
//! - `DEVICEFUSION_CASES_PER_SHAPE`: number of cases of a shape
//! - `DEVICEFUSION_FIRST`: first shape
//! - `DEVICEFUSION_SHAPE`: the only shape
//! - `DEVICEFUSION_PROFILE`: the only profile, `cpu` or `gpu`

mod case;
mod compare;
mod data;
mod expr;
mod one_table;
mod part;
mod pools;
mod query;
mod relational;
mod select;
mod subqueries;
mod tally;
mod types;
mod windows;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use device::testing::{self, PARTS};
use devicefusion::PlacementKind;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use self::case::{Case, Outcome, Settings, Sides};
use self::data::{Rows, Table};
use self::one_table::OneTableQuery;
use self::pools::{Domain, Pools};
use self::query::Query;
use self::relational::RelationalQuery;
use self::tally::{Counts, Tally};
use crate::harness::{self, block_on};

const CASES: usize = 360;
const CASES_PER_SHAPE: usize = 6;
/// Number of cases that share the rows of a resident table. Column widths depend on values, and
/// kernels depend on widths.
const CASES_PER_RESIDENT: usize = 10;
const SHRINK_ATTEMPTS: usize = 400;
/// Number of differing shapes that ends the run early.
const ENOUGH: usize = 20;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn the_device_answers_as_datafusion_does() {
    let seed = number("DEVICEFUSION_SEED").unwrap_or(1);
    let (sample, skipped) = match testing::parts().unwrap().as_slice() {
        [part] => (CASES / PARTS, part * CASES / PARTS),
        _ => (CASES, 0),
    };
    let cases = number("DEVICEFUSION_CASES").map_or(sample, |cases| cases as usize);
    let per_shape = number("DEVICEFUSION_CASES_PER_SHAPE").map_or(CASES_PER_SHAPE, |cases| cases as usize);
    let first = number("DEVICEFUSION_SHAPE").or(number("DEVICEFUSION_FIRST"));
    let first = first.map_or(skipped / per_shape, |first| first as usize);
    let last = match number("DEVICEFUSION_SHAPE") {
        Some(_) => first + 1,
        None => first + cases.div_ceil(per_shape),
    };
    println!("seed {seed}, shapes {first} to {}", last - 1);
    let start = Instant::now();
    let (next, differing) = (Arc::new(AtomicUsize::new(first)), Arc::new(AtomicUsize::new(0)));
    let host_runs = Arc::new(AtomicUsize::new(0));
    let tally = block_on(async {
        let workers: Vec<_> = (0..harness::threads())
            .map(|_| {
                let (next, differing, host_runs) = (Arc::clone(&next), Arc::clone(&differing), Arc::clone(&host_runs));
                tokio::spawn(async move {
                    let sides = Sides { plain: harness::plain(1), device: harness::strict(1), host_runs };
                    let mut tally = Tally::default();
                    loop {
                        let shape = next.fetch_add(1, Ordering::Relaxed);
                        if shape >= last || differing.load(Ordering::Relaxed) >= ENOUGH {
                            return tally;
                        }
                        let result = run_shape(&sides, seed, shape, per_shape).await;
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
    let host_runs = host_runs.load(Ordering::Relaxed);
    println!("{tally}");
    println!("first runs of the host: {host_runs}");
    if let Some(counters) = harness::shared_runtime().counters() {
        println!("{counters:?}, {:.0} s", start.elapsed().as_secs_f64());
    }
    assert!(tally.differing.is_empty(), "{} shapes differ (seed {seed}); see above", tally.differing.len());
    // The shares of few cases are not significant.
    if cases >= CASES && number("DEVICEFUSION_SHAPE").is_none() {
        for ((what, share), least) in tally.all.shares().into_iter().zip([55.0, 15.0, 95.0, 75.0]) {
            assert!(share >= least, "{what}: {share:.1} %, less than {least} %");
        }
        assert!(host_runs > 0, "no first run was the host's");
    }
}

/// Columns, query and settings of the shape with the given number. Each call returns the same.
fn shape(seed: u64, shape: usize) -> (Case, Vec<Domain>, StdRng) {
    let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(shape as u64));
    let partitions = *[1, 1, 2, 3].choose(&mut rng).unwrap();
    let mut domains = vec![Domain::ids()];
    let (tables, query) = if rng.random_bool(0.2) {
        let table = Table::only(&mut rng);
        let query = OneTableQuery::random(&mut rng, &table.columns, partitions == 1);
        (vec![table], Query::OneTable(query))
    } else {
        domains.extend((0..rng.random_range(1..=3)).map(|_| Domain::random(&mut rng)));
        let tables = Table::several(&mut rng, &domains);
        let query = RelationalQuery::random(&mut rng, &tables, &domains);
        (tables, Query::Relational(query))
    };
    let mut profile = if shape.is_multiple_of(2) { "cpu" } else { "gpu" };
    match std::env::var("DEVICEFUSION_PROFILE").as_deref() {
        Ok("cpu") => profile = "cpu",
        Ok("gpu") => profile = "gpu",
        _ => {}
    }
    let profile = harness::profile(profile);
    let settings = Settings {
        profile,
        host_batch_rows: 8192,
        device_batch_rows: 0,
        partitions,
        strict: true,
        starts_on_host: shape % 4 == 1,
    };
    (Case { tables, query, settings }, domains, rng)
}

/// Replaces the rows of the tables and the constants of the query.
fn vary(case: &mut Case, domains: &[Domain], index: usize, rng: &mut StdRng) {
    let spread = rng.random_bool(0.5);
    let most = match &case.query {
        Query::OneTable(_) => 0,
        Query::Relational(query) => query.most_rows(spread),
    };
    let partitions = case.settings.partitions;
    let pools = Pools::random(rng, domains, spread, most);
    case.query.vary(rng, &pools);
    for table in &mut case.tables {
        if !table.resident || index.is_multiple_of(CASES_PER_RESIDENT) {
            let rows = if most == 0 { data::row_count(rng) } else { data::row_count_of_joins(rng, most) };
            table.rows = Rows::random(rng, &table.columns, &pools, rows, partitions);
        }
    }
    case.settings.host_batch_rows = *[8192, 64, 16, 8].choose(rng).unwrap();
    case.settings.device_batch_rows = *[0, 100, 37, 16].choose(rng).unwrap();
}

async fn run_shape(sides: &Sides, seed: u64, number: usize, cases: usize) -> Tally {
    let (mut case, domains, mut rng) = shape(seed, number);
    let mut tally = Tally::default();
    let mut counts = Counts { shapes: 1, ..Counts::default() };
    for index in 0..cases {
        vary(&mut case, &domains, index, &mut rng);
        let mut outcome = case.run(sides).await;
        if let Outcome::Refused(reason) = outcome {
            *tally.refused.entry(reason).or_default() += 1;
            case.settings.strict = false;
            outcome = case.run(sides).await;
        }
        let text = |case: &Case, reason: &str| {
            let (of, case) = (index + 1, case.reproducer());
            format!("-- DEVICEFUSION_SEED={seed} DEVICEFUSION_SHAPE={number} DEVICEFUSION_CASES_PER_SHAPE={of}: {reason}\n{case}")
        };
        match outcome {
            Outcome::Same { rows, batches, placement, launches } => {
                counts.same += 1;
                counts.non_empty += usize::from(rows > 0);
                counts.several_batches += usize::from(batches > 1);
                counts.computing += usize::from(placement != PlacementKind::ScanOnly);
                counts.on_device += usize::from(placement == PlacementKind::Whole);
                counts.launching += usize::from(launches > 0);
            }
            Outcome::NoAnswer => tally.no_answer += 1,
            Outcome::TwoAnswers => tally.two_answers += 1,
            Outcome::Invalid(reason) => {
                if std::env::var("DEVICEFUSION_SHAPE").is_ok() {
                    println!("not planned: {reason}\n{}", case.sql());
                }
                return Tally { invalid: 1, ..Tally::default() };
            }
            Outcome::Refused(reason) => {
                tally.differs(text(&case, &reason));
                break;
            }
            Outcome::Differs(first) => {
                let (case, reason) = case.shrunk(sides, &first, SHRINK_ATTEMPTS).await;
                tally.differs(text(&case, &reason));
                break;
            }
        }
    }
    tally.count(&case.query.features(), counts);
    tally
}
