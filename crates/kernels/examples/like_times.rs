// SPDX-License-Identifier: Apache-2.0
//! Times of LIKE and ILIKE on the device, and of arrow's on the host, for patterns that are hard to
//! search. These are long ones with one mismatch, and random ones of periodic parts. The device is
//! `DEVICEFUSION_TEST_DEVICE`. `ONLY=long` takes the strings of 400 KB, `PATTERNS` is the number of
//! random patterns.
//!
//! A launch takes a fraction of a millisecond, whatever its kernel does: as long as `LIKE '%'`. The
//! times of a row are without it. The last lines tell how many ratios above 3 are due to it.
//!
//! `cargo run --release -p kernels --example like_times [-- gpu]`
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{Array, Datum, RecordBatch, Scalar, StringArray};
use arrow::compute::kernels::comparison::{ilike, like};
use arrow::datatypes::{DataType, Field, Schema};
use columnar::{ColumnType, DeviceBatch, upload};
use device::{Context, DeviceConfig, Queue, testing};
use futures::executor::block_on;
use kernels::codegen::Profile;
use kernels::expr::{Aggregate, AggregateFunction, Expr, Literal, LiteralValue};
use kernels::ops::{Input, Options, Reduce};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

struct Data {
    name: &'static str,
    strings: StringArray,
    batch: DeviceBatch,
    input: Input,
}

struct Ratio {
    host: f64,
    ratio: f64,
    /// The ratio without the launch.
    of_search: f64,
    text: String,
}

fn main() {
    let profile = if std::env::args().any(|arg| arg == "gpu") { Profile::Gpu } else { Profile::Cpu };
    let context =
        Context::new(DeviceConfig::default().with_selector(testing::selector().expect("a selector"))).expect("a device");
    let queue = context.queue().expect("a queue");
    println!("{} ({profile:?})", context.info().name);
    let only = std::env::var("ONLY").unwrap_or_default();
    let count: usize = std::env::var("PATTERNS").ok().map_or(50, |count| count.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(19);
    let mut ratios = Vec::new();
    for data in data(&queue).iter().filter(|data| data.name.contains(&only)) {
        let mut patterns: Vec<(bool, String)> = vec![
            (false, format!("%{}c%", "a_".repeat(500))),
            (true, format!("%{}b%", "a".repeat(1000))),
            (false, format!("%{}b%", "a".repeat(1000))),
            (false, "%special%requests%".into()),
            (false, "%a_b%".into()),
            (true, "%Special%".into()),
            (false, "%aabaabaabaa%".into()),
            (false, "%a_____________b%".into()),
            (false, "spec%deposits%s_".into()),
            (true, "%REQUESTS%sleep".into()),
        ];
        patterns.extend((0..count).map(|_| (rng.random_range(0..4) == 0, pattern(&mut rng))));
        let (launch, _) = on_device(&queue, profile, data, false, "%");
        println!("{:<12} a launch takes {launch:.2} ms", data.name);
        for (ignores_case, pattern) in patterns {
            ratios.push(measure(&queue, profile, data, launch, ignores_case, &pattern));
        }
    }
    ratios.sort_by(|a, b| b.ratio.total_cmp(&a.ratio));
    println!("\nthe highest ratios of those that take the host more than 5 ms:");
    let hard: Vec<&Ratio> = ratios.iter().filter(|ratio| ratio.host > 5.0).collect();
    for ratio in hard.iter().take(12) {
        println!("{}", ratio.text);
    }
    for (name, all) in [("all", ratios.iter().collect()), ("above 5 ms", hard)] {
        let above: Vec<&&Ratio> = all.iter().filter(|ratio| ratio.ratio > 3.0).collect();
        let launches = above.iter().filter(|ratio| ratio.of_search <= 3.0).count();
        let median = all.get(all.len() / 2).map_or(0.0, |ratio| ratio.ratio);
        let above = above.len();
        println!(
            "{name}: {} patterns, the median ratio {median:.2}, above 3: {above}, {launches} of them by the launch",
            all.len()
        );
    }
}

/// Strings of 400 KB and short ones, of one letter, periodic, and random.
fn data(queue: &Queue) -> Vec<Data> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut all = Vec::new();
    for (size, count, len) in [("long", 8, 400_000), ("short", 100_000, 40)] {
        let mut add = |name: &'static str, make: &mut dyn FnMut() -> String| {
            let strings = StringArray::from_iter_values((0..count).map(|_| make()));
            let schema = Arc::new(Schema::new(vec![Field::new("s", DataType::Utf8, false)]));
            let types = vec![ColumnType::of(&DataType::Utf8, false).unwrap()];
            let rows = RecordBatch::try_new(schema.clone(), vec![Arc::new(strings.clone())]).unwrap();
            let batch = upload(queue, &schema, &types, &[rows]).unwrap();
            all.push(Data { name, strings, batch, input: Input { schema, types, filter: None } });
        };
        let is_long = size == "long";
        add(if is_long { "long a" } else { "short a" }, &mut || "a".repeat(len));
        add(if is_long { "long aab" } else { "short aab" }, &mut || "aab".repeat(len / 3));
        add(if is_long { "long random" } else { "short random" }, &mut || {
            (0..len).map(|_| if rng.random_range(0..8) == 0 { 'b' } else { 'a' }).collect()
        });
        let mut rng = StdRng::seed_from_u64(8);
        add(if is_long { "long terms" } else { "short terms" }, &mut || {
            let terms = ["special ", "packages ", "requests ", "sleep ", "é ", "carefully ", "deposits "];
            let mut text = String::new();
            while text.len() < len {
                text.push_str(terms[rng.random_range(0..terms.len())]);
            }
            text
        });
    }
    all
}

/// Segments of repeated parts, of which some letters are `_`, each with a last letter.
fn pattern(rng: &mut StdRng) -> String {
    let mut pattern = "%".to_string();
    for _ in 0..rng.random_range(1..4) {
        let part = ["a", "ab", "aab", "a_", "_a", "aa_", "é"][rng.random_range(0..7)];
        let times = [3, 20, 100, 400][rng.random_range(0..4)];
        for _ in 0..times {
            pattern.push_str(part);
            if rng.random_range(0..200) == 0 {
                pattern.push('_');
            }
        }
        pattern.push_str(["", "b", "c", "_b", "aa"][rng.random_range(0..5)]);
        pattern.push('%');
    }
    pattern
}

fn measure(queue: &Queue, profile: Profile, data: &Data, launch: f64, ignores_case: bool, pattern: &str) -> Ratio {
    let (device, found) = on_device(queue, profile, data, ignores_case, pattern);
    let (host, expected) = on_host(data, ignores_case, pattern);
    let ratio = device / host;
    let search = (device - launch).max(0.0);
    let name = if ignores_case { "ILIKE" } else { "LIKE" };
    let shown: String = pattern.chars().take(24).collect();
    let of_row = |ms: f64| ms * 1e6 / data.strings.len() as f64;
    let mut text = format!(
        "{:<12} {name:<5} {shown:<24} of {:4}: {device:9.2} ms, host {host:9.2} ms, {ratio:6.2}, a row {:9.0} ns, host {:9.0} ns",
        data.name,
        pattern.len(),
        of_row(search),
        of_row(host),
    );
    if found != expected {
        text.push_str(&format!(" WRONG: {found} instead of {expected}"));
    }
    println!("{text}");
    Ratio { host, ratio, of_search: search / host, text }
}

/// Milliseconds on the device, and the number of rows that match.
fn on_device(queue: &Queue, profile: Profile, data: &Data, ignores_case: bool, pattern: &str) -> (f64, usize) {
    let literal = LiteralValue::Bytes(pattern.as_bytes().to_vec());
    let pattern_expr = Expr::Literal(Literal { data_type: DataType::Utf8, value: literal });
    let filter = Expr::Like { ignores_case, expr: Arc::new(Expr::Column(0)), pattern: Arc::new(pattern_expr) };
    let input = Input { filter: Some(filter), ..data.input.clone() };
    let count = Aggregate {
        function: AggregateFunction::Count,
        arguments: vec![],
        filter: None,
        distinct: false,
        data_type: DataType::Int64,
    };
    let field = Field::new("n", DataType::Int64, false);
    let reduce = Reduce::try_new(input, vec![(count, field)], Options::new(profile)).unwrap();
    let mut found = 0;
    let time = best(|| {
        block_on(async {
            let mut state = reduce.start();
            reduce.push(queue, &mut state, &data.batch).await.unwrap();
            let result = reduce.finish(queue, state).await.unwrap();
            queue.finish().await.unwrap();
            let batch = columnar::download(queue, &result).await.unwrap();
            found = batch.column(0).as_any().downcast_ref::<arrow::array::Int64Array>().unwrap().value(0) as usize;
        });
    });
    (time, found)
}

/// The same of the host.
fn on_host(data: &Data, ignores_case: bool, pattern: &str) -> (f64, usize) {
    let scalar = Scalar::new(StringArray::from(vec![pattern]));
    let mut expected = 0;
    let time = best(|| {
        let scalar: &dyn Datum = &scalar;
        let matches = if ignores_case { ilike(&data.strings, scalar) } else { like(&data.strings, scalar) };
        expected = matches.unwrap().true_count();
    });
    (time, expected)
}

/// The least milliseconds of several runs, after one that compiles.
fn best(mut run: impl FnMut()) -> f64 {
    run();
    let begin = Instant::now();
    let mut best = f64::MAX;
    for _ in 0..12 {
        let start = Instant::now();
        run();
        best = best.min(start.elapsed().as_secs_f64() * 1e3);
        if begin.elapsed().as_secs_f64() > 0.6 {
            break;
        }
    }
    best
}
