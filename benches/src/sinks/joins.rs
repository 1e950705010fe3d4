// SPDX-License-Identifier: Apache-2.0
//! Hash joins on 8-byte keys, build and probe apart.
//!
//! Times are relative to the device's random reads. The minimum of any hash table is counted:
//!
//! - build: one slot per row,
//! - probe: one slot per row, and for each pair one column of the build row.
//!
//! Sequential reads of the rows are not counted. A table that fits the caches can exceed 100 %.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, Int64Array};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::internal_err;
use datafusion::error::Result;
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::ops::{BloomFilterUse, Input, Join, JoinBuild, JoinChain, JoinKind, JoinRole, JoinTable};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{BATCH_ROWS, SinkBench, external, millions, percent};
use crate::report::{Table, milliseconds};

/// A join to time.
#[derive(Debug, Clone, Copy)]
pub struct JoinCase {
    build_rows: usize,
    probe_rows: usize,
    /// Rows of the build side that share a key.
    rows_per_key: usize,
    /// Percent of probe rows that find their key.
    hit_percent: usize,
    /// Whether keys are consecutive integers, so that the table is an array.
    dense: bool,
}

impl Display for JoinCase {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let keys = match (self.rows_per_key, self.dense) {
            (1, false) => "unique keys".to_string(),
            (1, true) => "dense keys".to_string(),
            (rows, _) => format!("keys of {rows} rows"),
        };
        write!(f, "{keys}, {} rows, {} % hits", self.build_rows, self.hit_percent)
    }
}

/// Small, medium and large tables for `rows` probe rows; dense keys; repeated keys.
pub fn cases(rows: usize) -> Vec<JoinCase> {
    let mut sizes: Vec<usize> = [1 << 16, 1 << 20, 1 << 24].map(|size: usize| size.min(rows)).to_vec();
    sizes.dedup();
    let case = |build_rows, hit_percent| JoinCase { build_rows, probe_rows: rows, rows_per_key: 1, hit_percent, dense: false };
    let mut cases: Vec<JoinCase> = sizes.iter().flat_map(|&size| [100, 10].map(|hits| case(size, hits))).collect();
    let medium = (1 << 20).min(rows);
    cases.push(JoinCase { dense: true, ..case(medium, 100) });
    cases.push(JoinCase { rows_per_key: 4, probe_rows: rows / 4, ..case(medium, 100) });
    cases
}

/// Times of a join.
#[derive(Debug)]
pub struct JoinTimes {
    build_seconds: f64,
    probe_seconds: f64,
    /// Probe with the Bloom filter first, for sparse keys.
    bloom_first_seconds: Option<f64>,
    /// Dynamic filter of the probe rows by the table.
    filter_seconds: f64,
    /// Dynamic filter by the Bloom filter, if the table has one.
    bloom_filter_seconds: Option<f64>,
    pairs: usize,
    sectors_per_second: f64,
}

impl JoinTimes {
    fn build_share(&self, case: JoinCase) -> f64 {
        case.build_rows as f64 / self.build_seconds / self.sectors_per_second
    }

    fn probe_share(&self, case: JoinCase) -> f64 {
        (case.probe_rows + self.pairs) as f64 / self.probe_seconds / self.sectors_per_second
    }

    pub fn json(&self, device: &str, case: JoinCase) -> Value {
        json!({
            "device": device,
            "build_rows": case.build_rows,
            "probe_rows": case.probe_rows,
            "rows_per_key": case.rows_per_key,
            "hit_percent": case.hit_percent,
            "dense": case.dense,
            "pairs": self.pairs,
            "build_seconds": self.build_seconds,
            "build_percent_of_random_sectors": self.build_share(case) * 100.0,
            "probe_seconds": self.probe_seconds,
            "probe_percent_of_random_sectors": self.probe_share(case) * 100.0,
            "probe_bloom_first_seconds": self.bloom_first_seconds,
            "filter_seconds": self.filter_seconds,
            "bloom_filter_seconds": self.bloom_filter_seconds,
        })
    }
}

/// A line for each join.
pub fn print(results: &[(String, JoinCase, JoinTimes)]) {
    let mut table = Table::new([
        "join",
        "device",
        "build ms",
        "M rows/s",
        "of random",
        "probing rows",
        "probe ms",
        "M rows/s",
        "of random",
        "pairs",
        "Bloom first",
        "filter ms",
        "by Bloom",
    ]);
    for (device, case, timed) in results {
        let or_none = |seconds: Option<f64>| seconds.map_or("–".into(), milliseconds);
        table.push([
            case.to_string(),
            device.clone(),
            milliseconds(timed.build_seconds),
            millions(case.build_rows, timed.build_seconds),
            percent(timed.build_share(*case)),
            case.probe_rows.to_string(),
            milliseconds(timed.probe_seconds),
            millions(case.probe_rows, timed.probe_seconds),
            percent(timed.probe_share(*case)),
            timed.pairs.to_string(),
            or_none(timed.bloom_first_seconds),
            milliseconds(timed.filter_seconds),
            or_none(timed.bloom_filter_seconds),
        ]);
    }
    print!("{}", table.render());
}

/// Builds the table and probes it.
pub async fn measure(bench: &SinkBench, case: JoinCase) -> Result<JoinTimes> {
    let (built, probing) = sides(case)?;
    let (input, probing) = bench.upload(probing)?;
    let (build_input, built) = bench.upload(built)?;
    let join = inner_join(build_input);
    let filter = dynamic_filter(&input);
    let outputs = vec![
        (Expr::Column(1), Field::new("p", DataType::Int64, false)),
        (Expr::Column(3), Field::new("b", DataType::Int64, false)),
    ];

    let queue = &bench.queue;
    let options = || bench.options.clone();
    let builder = JoinBuild::try_new(&input.types, &[], &join, options()).map_err(external)?;
    let (build_seconds, table) = bench.time(async || builder.build(queue, Some(built.clone())).await).await.map_err(external)?;
    let mut with_bloom = builder.build(queue, Some(built.clone())).await.map_err(external)?;
    let wanted = BloomFilterUse { dynamic_filters: true, search: true };
    builder.add_bloom_filter(queue, &mut with_bloom, wanted).await.map_err(external)?;
    let table = Arc::new(table);
    let with_bloom = (with_bloom.filter_bytes() > 0).then(|| Arc::new(with_bloom));

    let probe = async |chain: &JoinChain| {
        let (mut state, mut rows) = (chain.start(), 0);
        for batch in probing.chunks(BATCH_ROWS) {
            chain.push(&mut state, &batch);
            while let Some(joined) = chain.next(queue, &mut state).await? {
                rows += joined.num_rows();
            }
        }
        kernels::Result::Ok(rows)
    };
    let time = async |join: &Join, table: &Arc<JoinTable>, outputs: &[(Expr, Field)]| {
        let (joins, tables) = (std::slice::from_ref(join), std::slice::from_ref(table));
        let chain = JoinChain::try_new(input.clone(), joins, Some(tables), outputs.to_vec(), options()).map_err(external)?;
        bench.time(async || probe(&chain).await).await.map_err(external)
    };
    let (probe_seconds, pairs) = time(&join, &table, &outputs).await?;
    let (filter_seconds, _) = time(&filter, &table, &outputs[..1]).await?;
    let (mut bloom_first_seconds, mut bloom_filter_seconds) = (None, None);
    if let Some(table) = &with_bloom {
        let (seconds, same) = time(&join, table, &outputs).await?;
        bloom_first_seconds = (!case.dense).then_some(seconds);
        bloom_filter_seconds = Some(time(&filter, table, &outputs[..1]).await?.0);
        if same != pairs {
            return internal_err!("a join of {case} gave {pairs} pairs, and {same} with the Bloom filter first");
        }
    }
    if case.hit_percent == 100 && pairs != case.probe_rows * case.rows_per_key {
        return internal_err!("a join of {case} gave {pairs} pairs");
    }
    Ok(JoinTimes {
        build_seconds,
        probe_seconds,
        bloom_first_seconds,
        filter_seconds,
        bloom_filter_seconds,
        pairs,
        sectors_per_second: bench.sectors_per_second,
    })
}

/// Multiplier of keys: odd, so they stay distinct, and large, so they fill 64 bits.
const SPREAD: i64 = 0x9e37_79b9_7f4a_7c15_u64 as i64;

/// Rows of the build side and of the probe side.
fn sides(case: JoinCase) -> Result<(RecordBatch, RecordBatch)> {
    let JoinCase { build_rows, probe_rows, rows_per_key, hit_percent, dense } = case;
    let keys = build_rows / rows_per_key;
    let key = |number: usize| if dense { number as i64 } else { (number as i64).wrapping_mul(SPREAD) };
    let mut random = StdRng::seed_from_u64(1);
    let mut numbers: Vec<usize> = (0..build_rows).map(|row| row % keys).collect();
    numbers.shuffle(&mut random);
    let built = rows("b", numbers.into_iter().map(key))?;
    let probing = rows(
        "p",
        (0..probe_rows).map(|_| {
            let found = random.random_range(0..keys);
            key(if random.random_range(0..100) < hit_percent { found } else { keys + found })
        }),
    )?;
    Ok((built, probing))
}

/// The join on the first columns.
fn inner_join(build_input: Input) -> Join {
    Join {
        kind: JoinKind::Inner,
        keys: vec![(Expr::Column(0), Expr::Column(0))],
        null_equals_null: false,
        null_aware: false,
        residual: None,
        schema: build_input.schema,
        types: build_input.types,
        role: JoinRole::Query,
    }
}

/// The dynamic filter of probe rows by their first column.
fn dynamic_filter(input: &Input) -> Join {
    let null = Expr::Literal(Literal { data_type: input.types[0].data_type.clone(), value: LiteralValue::Null });
    Join::dynamic_filter(vec![(Expr::Column(0), null)], false)
}

/// A batch of keys and row numbers.
fn rows(name: &str, keys: impl Iterator<Item = i64>) -> Result<RecordBatch> {
    let keys = Int64Array::from_iter_values(keys);
    let numbers = Int64Array::from_iter_values(0..keys.values().len() as i64);
    Ok(RecordBatch::try_from_iter([("key", Arc::new(keys) as ArrayRef), (name, Arc::new(numbers))])?)
}
