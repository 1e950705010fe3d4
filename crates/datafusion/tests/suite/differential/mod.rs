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
//! - `DEVICEFUSION_SHAPE`: the only shape; prints why DataFusion cannot plan it, or memory ends
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

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use device::UnifiedMemory;
use device::testing::{self, PARTS};
use devicefusion::{DeviceRuntime, PlacementKind};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use self::case::{Case, Memory, Outcome, Settings, Sides};
use self::data::{Rows, Table};
use self::one_table::OneTableQuery;
use self::pools::{Domain, Pools};
use self::query::Query;
use self::relational::RelationalQuery;
use self::tally::{Counts, Tally};
use crate::harness::{self, block_on};

const CASES: usize = 360;
/// Number of cases in little memory, whose tables have more rows.
const CASES_OF_LITTLE_MEMORY: usize = 192;
/// Number of these on the CUDA emulator, where two compilers take each kernel.
const CASES_ON_EMULATOR: usize = 96;
const CASES_PER_SHAPE: usize = 6;
/// Row limit of a joined table.
const MOST_ROWS: usize = 5000;
/// Row limit of any table in little memory. The keys of 16 bits can count them.
const MOST_ROWS_OF_LITTLE_MEMORY: usize = 30_000;
/// Row limit of a resident table in little memory, a part of which it takes.
const MOST_ROWS_OF_RESIDENT: usize = 2000;
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
    let cases = cases(CASES);
    let tally = run(Memory::Ample, &cases);
    // The shares of few cases are not significant.
    if cases.are_all {
        assert_shares(&tally.all, [55.0, 15.0, 95.0, 75.0, 0.0]);
        assert!(tally.host_runs > 0, "no first run was the host's");
    }
}

/// Operators that must spill give the same answers. Those that cannot name the setting to change.
#[test]
fn the_device_answers_in_little_memory_as_datafusion_does() {
    let cases = cases(CASES_OF_LITTLE_MEMORY);
    let tally = run(Memory::Little, &cases);
    if cases.are_all {
        assert_shares(&tally.all, [55.0, 15.0, 95.0, 75.0, 33.0]);
        let failed: usize = tally.out_of_memory.values().sum();
        assert!(failed * 6 < tally.all.same, "{failed} cases fail, {} do not", tally.all.same);
    }
}

/// The same on the CUDA emulator, whose memory is apart from the host's.
#[test]
fn the_cuda_emulator_answers_in_little_memory_as_datafusion_does() {
    let Some(mut again) = testing::emulated(std::env::current_exe().unwrap()).unwrap() else {
        eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
        return;
    };
    if testing::parts().unwrap().len() == PARTS {
        again.env("DEVICEFUSION_CASES", CASES_ON_EMULATOR.to_string());
    }
    let test = "differential::the_device_answers_in_little_memory_as_datafusion_does";
    let status = again.args(["--exact", test, "--nocapture"]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

/// Shapes of a run.
struct Cases {
    shapes: Range<usize>,
    per_shape: usize,
    /// Whether these are all cases of the test, not a part of them or one shape.
    are_all: bool,
}

/// As many cases as the environment says: by default `all`, or the part of them.
fn cases(all: usize) -> Cases {
    let (sample, skipped) = match testing::parts().unwrap().as_slice() {
        [part] => (all.div_ceil(PARTS), part * all / PARTS),
        _ => (all, 0),
    };
    let cases = number("DEVICEFUSION_CASES").map_or(sample, |cases| cases as usize);
    let per_shape = number("DEVICEFUSION_CASES_PER_SHAPE").map_or(CASES_PER_SHAPE, |cases| cases as usize);
    let only = number("DEVICEFUSION_SHAPE");
    let first = only.or(number("DEVICEFUSION_FIRST")).map_or(skipped / per_shape, |first| first as usize);
    let count = if only.is_some() { 1 } else { cases.div_ceil(per_shape) };
    Cases { shapes: first..first + count, per_shape, are_all: cases >= all && only.is_none() }
}

fn assert_shares(counts: &Counts, least: [f64; 5]) {
    for ((name, share), least) in counts.shares().into_iter().zip(least) {
        assert!(share >= least, "{name}: {share:.1} %, less than {least} %");
    }
}

/// Sessions of one worker. Shapes take them in turn.
fn sessions(memory: Memory) -> Vec<Sides> {
    let sides = |device, context| Sides { plain: harness::plain(1), device, context, host_runs: AtomicUsize::new(0) };
    match memory {
        Memory::Ample => vec![sides(harness::strict(1), None)],
        Memory::Little => [UnifiedMemory::Auto, UnifiedMemory::Never]
            .map(|unified| {
                let config = harness::device_config().with_memory_bytes(case::LITTLE_BYTES).with_unified_memory(unified);
                let context = harness::context(config);
                sides(harness::strict_on(1, DeviceRuntime::with_context(context.clone())), Some(context))
            })
            .into(),
    }
}

/// Runs the cases, as many at once as there are threads, and prints what came of them.
fn run(memory: Memory, cases: &Cases) -> Tally {
    let seed = number("DEVICEFUSION_SEED").unwrap_or(1);
    println!("seed {seed}, shapes {:?}", cases.shapes);
    let start = Instant::now();
    let (last, per_shape) = (cases.shapes.end, cases.per_shape);
    let (next, differing) = (Arc::new(AtomicUsize::new(cases.shapes.start)), Arc::new(AtomicUsize::new(0)));
    let tally = block_on(async {
        let workers: Vec<_> = (0..harness::threads())
            .map(|_| {
                let (next, differing) = (Arc::clone(&next), Arc::clone(&differing));
                tokio::spawn(async move {
                    let sessions = sessions(memory);
                    let mut tally = Tally::default();
                    loop {
                        let shape = next.fetch_add(1, Ordering::Relaxed);
                        if shape >= last || differing.load(Ordering::Relaxed) >= ENOUGH {
                            tally.host_runs = sessions.iter().map(|sides| sides.host_runs.load(Ordering::Relaxed)).sum();
                            return tally;
                        }
                        // Profiles alternate too.
                        let sides = &sessions[shape / 2 % sessions.len()];
                        let result = run_shape(sides, memory, seed, shape, per_shape).await;
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
    println!("{tally}");
    if memory == Memory::Ample
        && let Some(counters) = harness::shared_runtime().counters()
    {
        println!("{counters:?}");
    }
    println!("{:.0} s", start.elapsed().as_secs_f64());
    assert!(tally.differing.is_empty(), "{} shapes differ (seed {seed}); see above", tally.differing.len());
    tally
}

/// Columns, query and settings of the shape with the given number. Each call returns the same.
fn shape(memory: Memory, seed: u64, shape: usize) -> (Case, Vec<Domain>, StdRng) {
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
        starts_on_host: memory == Memory::Ample && shape % 4 == 1,
        memory,
    };
    (Case { tables, query, settings }, domains, rng)
}

/// Replaces the rows of the tables and the constants of the query.
fn vary(case: &mut Case, domains: &[Domain], index: usize, rng: &mut StdRng) {
    let is_little = case.settings.memory == Memory::Little;
    // Joins of many rows by keys with many matches would have too many rows.
    let spread = is_little || rng.random_bool(0.5);
    let most = match &case.query {
        Query::OneTable(_) => 0,
        Query::Relational(query) => query.most_rows(spread, if is_little { MOST_ROWS_OF_LITTLE_MEMORY } else { MOST_ROWS }),
    };
    let partitions = case.settings.partitions;
    let pools = Pools::random(rng, domains, spread, most);
    case.query.vary(rng, &pools);
    for table in &mut case.tables {
        if !table.resident || index.is_multiple_of(CASES_PER_RESIDENT) {
            let rows = match (is_little, most) {
                (true, _) if table.resident => data::row_count_of_little_memory(rng, most.clamp(1, MOST_ROWS_OF_RESIDENT)),
                (true, 0) => data::row_count_of_little_memory(rng, MOST_ROWS_OF_LITTLE_MEMORY),
                (true, most) => data::row_count_of_little_memory(rng, most),
                (false, 0) => data::row_count(rng),
                (false, most) => data::row_count_of_joins(rng, most),
            };
            table.rows = Rows::random(rng, &table.columns, &pools, rows, partitions);
        }
    }
    let (host, device): ([usize; 4], [usize; 4]) = match is_little {
        true => ([8192, 8192, 1000, 300], [0, 0, 1000, 300]),
        false => ([8192, 64, 16, 8], [0, 100, 37, 16]),
    };
    case.settings.host_batch_rows = *host.choose(rng).unwrap();
    case.settings.device_batch_rows = *device.choose(rng).unwrap();
}

async fn run_shape(sides: &Sides, memory: Memory, seed: u64, number: usize, cases: usize) -> Tally {
    let (mut case, domains, mut rng) = shape(memory, seed, number);
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
            Outcome::Same { rows, batches, placement, launches, spills } => {
                counts.same += 1;
                counts.non_empty += usize::from(rows > 0);
                counts.several_batches += usize::from(batches > 1);
                counts.computing += usize::from(placement != PlacementKind::ScanOnly);
                counts.on_device += usize::from(placement == PlacementKind::Whole);
                counts.launching += usize::from(launches > 0);
                counts.spilling += usize::from(spills);
            }
            Outcome::OutOfMemory(operator, message) => {
                if std::env::var("DEVICEFUSION_SHAPE").is_ok() {
                    println!("case {index}: {message}\n{}", case.sql());
                }
                *tally.out_of_memory.entry(operator).or_default() += 1;
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
