// SPDX-License-Identifier: Apache-2.0
//! Domains of join keys: columns of several tables and types that take their values from one pool.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::types::{self, Kind};

/// Domain of row numbers: the id columns, and the columns that refer to them.
pub const IDS: usize = 0;

/// Set of types whose columns share values, so that they can be equal.
#[derive(Debug, Clone)]
pub struct Domain {
    /// Type whose values fit all other types.
    base: DataType,
    /// Types of its columns.
    pub types: Vec<DataType>,
}

impl Domain {
    /// Domain of row numbers.
    pub fn ids() -> Domain {
        Domain { base: DataType::Int32, types: vec![DataType::Int32, DataType::Int64, DataType::UInt32] }
    }

    pub fn random(rng: &mut StdRng) -> Domain {
        use DataType::*;
        let dictionary = |codes: DataType, values: DataType| Dictionary(Box::new(codes), Box::new(values));
        let (base, types) = match rng.random_range(0..10) {
            0..=2 => (UInt8, vec![Int16, Int32, Int64, UInt32, UInt64]),
            3 => (
                Decimal128(7, 2),
                vec![Decimal128(15, 2), Decimal64(12, 3), Decimal128(9, 4), Decimal32(7, 2), Decimal128(38, 10)],
            ),
            4 | 5 => (Utf8, vec![Utf8, Utf8View, LargeUtf8, dictionary(Int32, Utf8), dictionary(Int16, Utf8View)]),
            6 => (Date32, vec![Date32, Timestamp(TimeUnit::Nanosecond, None), Timestamp(TimeUnit::Millisecond, None)]),
            7 => (Float32, vec![Float32, Float64]),
            // One value type, with all of its values. The codes of a dictionary may not count those
            // of a large pool.
            _ => {
                let data_type = types::value_type(&types::data_type(rng)).clone();
                (data_type.clone(), vec![data_type])
            }
        };
        Domain { base, types }
    }

    /// Whether a pool can have one value for each row, so that a key finds few matches.
    pub fn spreads(&self) -> bool {
        !matches!(types::kind(&self.base), Kind::Bool | Kind::Binary)
            && self.types != [DataType::Int8]
            && self.types != [DataType::UInt8]
    }

    /// One value for each of `size` rows.
    fn spread(&self, size: usize) -> Vec<ScalarValue> {
        let number = |row: usize| ScalarValue::Int64(Some(row as i64));
        let value = |row: usize| match (types::kind(&self.base), &self.base) {
            (Kind::Int, _) => number(row),
            (Kind::Decimal, _) => ScalarValue::Decimal128(Some(row as i128 * 25), 15, 2),
            (Kind::Text, _) if row.is_multiple_of(3) => ScalarValue::from(format!("a key too long for a view: {row}")),
            (Kind::Text, _) => ScalarValue::from(format!("k{row}")),
            (_, data_type @ (DataType::Date32 | DataType::Time32(_))) => {
                number(row).cast_to(&DataType::Int32).and_then(|value| value.cast_to(data_type)).unwrap()
            }
            (_, DataType::Date64) => ScalarValue::Date64(Some(row as i64 * 86_400_000)),
            (_, data_type) => number(row).cast_to(data_type).unwrap(),
        };
        (0..size).map(value).collect()
    }
}

/// Values that the columns of a domain have in one set of tables.
#[derive(Debug, Clone)]
struct Pool {
    values: Vec<ScalarValue>,
    /// Half of all rows have the first value.
    skewed: bool,
    /// Most rows have the value at their own number, so that several keys match in the same row.
    aligned: bool,
    null_share: f64,
}

/// One pool for each domain.
#[derive(Debug, Clone, Default)]
pub struct Pools {
    pools: Vec<Pool>,
    /// Row numbers have gaps and are not ascending.
    scattered: bool,
}

impl Pools {
    /// Pools for tables of up to `rows` rows. With `spread` they have about one value for each row.
    pub fn random(rng: &mut StdRng, domains: &[Domain], spread: bool, rows: usize) -> Pools {
        let scattered = rng.random_bool(0.5);
        let pools = domains.iter().enumerate().map(|(index, domain)| {
            let size = rows.max(1);
            let values = if index == IDS {
                (0..size).map(|row| id(row, scattered)).collect()
            } else if spread && domain.spreads() {
                domain.spread(size)
            } else {
                // Few values, so that keys find matches.
                let (few, size) = (rng.random_bool(0.3), usize::min(*[1, 2, 5, 20, 80].choose(rng).unwrap(), size.div_ceil(2)));
                (0..size).map(|_| types::value(rng, &domain.base, few, true)).collect()
            };
            let skewed = !spread && rng.random_bool(0.6);
            let null_share = *[0.0, 0.0, 0.0, 0.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.5, 1.0].choose(rng).unwrap();
            let aligned = spread && rng.random_bool(0.85);
            // Distinct keys have few NULLs, since NULLs may equal one another.
            Pool { values, skewed, aligned, null_share: if spread { f64::min(null_share, 0.1) } else { null_share } }
        });
        Pools { pools: pools.collect(), scattered }
    }

    /// Value of a row from a domain, as one of its types. It may be NULL if `nullable`.
    pub fn value(&self, rng: &mut StdRng, domain: usize, data_type: &DataType, nullable: bool, row: usize) -> ScalarValue {
        let pool = &self.pools[domain];
        if nullable && rng.random_bool(pool.null_share) {
            return ScalarValue::try_new_null(data_type).unwrap();
        }
        let value = if pool.aligned && rng.random_bool(0.8) {
            &pool.values[row % pool.values.len()]
        } else if pool.skewed && rng.random_bool(0.5) {
            &pool.values[0]
        } else {
            pool.values.choose(rng).unwrap()
        };
        value.cast_to(data_type).unwrap()
    }

    /// A constant to compare with a column of the domain.
    pub fn constant(&self, rng: &mut StdRng, domain: usize, data_type: &DataType) -> Option<ScalarValue> {
        self.pools.get(domain)?.values.choose(rng)?.cast_to(data_type).ok()
    }

    /// Number of a row, unique in its table.
    pub fn id(&self, row: usize) -> ScalarValue {
        id(row, self.scattered)
    }
}

fn id(row: usize, scattered: bool) -> ScalarValue {
    // The factor is coprime to the prime modulus, which makes a permutation.
    ScalarValue::Int32(Some(if scattered { (row * 40_503 % 65_537) as i32 } else { row as i32 }))
}
