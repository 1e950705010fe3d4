// SPDX-License-Identifier: Apache-2.0
//! The threads that share an engine, and its tables.

use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::workload::{BATCH, TABLES, own_table};

pub struct Crew {
    pub name: &'static str,
    /// Numbers of the threads.
    pub threads: Range<usize>,
    pub engine: Box<dyn Engine>,
}

impl Crew {
    /// Names and rows of the tables: those that all threads share, and one of each thread.
    fn tables(&self) -> impl Iterator<Item = (String, &'static str)> {
        let shared = TABLES.into_iter().map(|(table, rows)| (table.to_owned(), rows));
        shared.chain(self.threads.clone().map(|number| (own_table(number), BATCH)))
    }

    pub fn create_tables(&self) {
        let mut session = self.engine.connect();
        self.tables().for_each(|(table, rows)| _ = session.run(&format!("CREATE TABLE {table} AS {rows}"), None).unwrap());
    }

    /// Makes the driver compile a kernel that no cache has: an expression of a random shape.
    ///
    /// A driver loads its compiler then, and keeps it: PoCL's takes some 37 MB in each context.
    /// Else this would happen at any time, with the first kernel that is in no cache.
    pub fn compile_anew(&self) {
        let shape: u64 = rand::random();
        let operators = (0..30).map(|digit| ["+", "-", "*"][(shape / 3_u64.pow(digit) % 3) as usize]);
        let expression = operators.fold("k".to_owned(), |left, operator| format!("({left} {operator} k)"));
        let sql = format!("SELECT count(*) AS n FROM device.dims WHERE {expression} <> 3");
        println!("{}: {sql}", self.name);
        self.engine.connect().run(&sql, None).unwrap();
    }

    pub fn drop_tables(&self) {
        let mut session = self.engine.connect();
        self.tables().for_each(|(table, _)| _ = session.run(&format!("DROP TABLE {table}"), None).unwrap());
    }

    /// Number of the different kernels that were launched so far.
    pub fn kernels(&self) -> usize {
        self.engine.report()["kernels"].as_array().unwrap().len()
    }

    /// Bytes of free device memory that the pool keeps.
    pub fn cached_bytes(&self) -> u64 {
        self.engine.report()["memory"]["cached"].as_u64().unwrap()
    }

    /// Bytes of device memory in use.
    fn bytes_in_use(&self) -> u64 {
        self.engine.report()["memory"]["in_use"].as_u64().unwrap()
    }

    /// Kernels launched so far.
    pub fn launches(&self) -> u64 {
        let report = self.engine.report();
        report["kernels"].as_array().unwrap().iter().filter_map(|kernel| kernel["launches"].as_u64()).sum()
    }

    /// The least bytes in use within half a second: work of a cancelled statement may be ending.
    pub fn bytes_at_rest(&self) -> u64 {
        let look = |_| {
            thread::sleep(Duration::from_millis(50));
            self.bytes_in_use()
        };
        (0..10).map(look).min().unwrap()
    }

    /// Waits until no more bytes are in use than `before`.
    pub fn assert_returned(&self, before: u64) {
        let begun = Instant::now();
        loop {
            let bytes = self.bytes_in_use();
            if bytes <= before {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{}: {bytes} bytes in use, {before} before", self.name);
            thread::sleep(Duration::from_millis(5));
        }
    }
}
