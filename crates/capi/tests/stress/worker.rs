// SPDX-License-Identifier: Apache-2.0
//! One thread: it draws statements, runs them, and judges how they end.

use std::fmt::Display;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::board::Board;
use crate::crew::Crew;
use crate::engine::{CANCELLED, Session};
use crate::tally::{Kind, Tally};
use crate::workload::{
    self, BATCH, CONSTANTS, COPY, COUNT_BATCHES, COUNT_COPY, ENDLESS, FAILURES, HUNGRY, LIMIT, Query, Workload, own_table,
};

/// A larger table is replaced. Each batch of a table is a launch of its readers.
const MOST_BATCHES: i64 = 32;

pub struct Worker<'a> {
    number: usize,
    session: Box<dyn Session + 'a>,
    workload: &'a Workload,
    board: &'a Board,
    rng: StdRng,
    /// The least and most batches that the thread's own table may have.
    own: (i64, i64),
    /// Batches of the shared table, when last counted.
    log: i64,
    /// Whether no other thread works. Then nothing is cancelled, and all memory is free.
    pub is_alone: bool,
    pub tally: Tally,
}

/// How a statement has ended.
#[derive(Debug)]
enum Ended {
    Rows(Vec<String>),
    Failed(String),
    Cancelled,
    OutOfMemory,
}

impl<'a> Worker<'a> {
    pub fn new(crew: &'a Crew, number: usize, workload: &'a Workload, board: &'a Board, seed: u64) -> Self {
        Self {
            number,
            session: crew.engine.connect(),
            workload,
            board,
            rng: StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number as u64)),
            own: (1, 1),
            log: 1,
            is_alone: false,
            tally: Tally::default(),
        }
    }

    /// Runs each kind of statement once.
    pub fn run_each_once(&mut self) {
        for query in self.workload.reads.iter().step_by(CONSTANTS.len()) {
            self.read(query);
        }
        for replaces in [true, false] {
            self.write_own(replaces);
            self.write_log(replaces);
        }
        self.create_and_drop();
        FAILURES.iter().for_each(|failure| self.fail(*failure));
        self.run_endless();
        self.fail(HUNGRY);
    }

    /// Runs some statement.
    pub fn run_any(&mut self) {
        let replaces = self.rng.random_bool(0.1);
        match self.rng.random_range(0..20) {
            0 | 1 => self.write_own(replaces || self.own.1 >= MOST_BATCHES),
            2 | 3 => self.write_log(replaces || self.log >= MOST_BATCHES),
            4 => self.create_and_drop(),
            5 | 6 => {
                let failure = *FAILURES.choose(&mut self.rng).unwrap();
                self.fail(failure);
            }
            7 => self.run_endless(),
            8 => self.fail(HUNGRY),
            _ => {
                let query = self.workload.reads.choose(&mut self.rng).unwrap();
                self.read(query);
            }
        }
    }

    fn read(&mut self, query: &Query) {
        let Some(rows) = self.rows(&query.sql) else { return };
        if rows != query.rows {
            self.wrong(&query.sql, format_args!("{rows:?}, not {:?}", query.rows));
        }
        self.tally.count(Kind::Read);
    }

    /// Adds a batch to the thread's own table, or replaces the table by one.
    fn write_own(&mut self, replaces: bool) {
        let table = own_table(self.number);
        let verb = if replaces { format!("CREATE OR REPLACE TABLE {table} AS") } else { format!("INSERT INTO {table}") };
        let written = self.write(Kind::WriteOwn, &format!("{verb} {BATCH}"));
        let (least, most) = self.own;
        self.own = match (written, replaces) {
            (Some(true), true) => (1, 1),
            (None, true) => (1, most),
            (Some(true), false) => (least + 1, most + 1),
            (None, false) => (least, most + 1),
            (Some(false), _) => (least, most),
        };
        if let Some(batches) = self.batches_in(&table) {
            let (least, most) = self.own;
            if !(least..=most).contains(&batches) {
                self.wrong(&table, format_args!("{batches} batches, not {least} to {most}"));
            }
            self.own = (batches, batches);
        }
    }

    /// Adds a batch to the table that all threads write, or replaces all rows by one.
    fn write_log(&mut self, replaces: bool) {
        let verb = if replaces { "INSERT OVERWRITE" } else { "INSERT INTO" };
        self.write(Kind::WriteLog, &format!("{verb} device.log {BATCH}"));
        if let Some(batches) = self.batches_in("device.log") {
            self.log = batches;
        }
    }

    fn create_and_drop(&mut self) {
        let table = format!("device.copy_{}", self.number);
        let created = self.write(Kind::Create, &format!("CREATE TABLE {table} AS {COPY}"));
        let sql = format!("{COUNT_COPY} {table}");
        match self.run(&sql) {
            Ended::Rows(rows) if created != Some(false) && rows == self.workload.copy => {}
            Ended::Failed(message) if created != Some(true) && message.contains("not found") => {}
            Ended::Cancelled | Ended::OutOfMemory => {}
            other => self.wrong(&sql, format_args!("{other:?}, created: {created:?}")),
        }
        let sql = format!("DROP TABLE IF EXISTS {table}");
        match self.run_until(&sql, None) {
            Ended::Rows(_) => {}
            other => self.wrong(&sql, format_args!("{other:?}")),
        }
    }

    /// Runs a statement that fails, with the reason in its message.
    fn fail(&mut self, (sql, reason): (&str, &str)) {
        match self.run(sql) {
            Ended::Failed(message) if message.contains(reason) => self.tally.count(Kind::Failure),
            Ended::Cancelled | Ended::OutOfMemory => {}
            other => self.wrong(sql, format_args!("{other:?}, not: {reason}")),
        }
    }

    fn run_endless(&mut self) {
        let after = self.delay();
        match self.run_until(ENDLESS, Some(after)) {
            Ended::Cancelled => self.tally.count(Kind::Endless),
            Ended::OutOfMemory => {}
            other => self.wrong(ENDLESS, format_args!("{other:?}, although it was cancelled")),
        }
    }

    /// The number of batches in a table, which has whole ones only. `None` if the count had no end.
    fn batches_in(&mut self, table: &str) -> Option<i64> {
        let sql = format!("{COUNT_BATCHES} {table}");
        let numbers = workload::numbers(&self.rows(&sql)?);
        let batch = self.workload.batch;
        let batches = numbers[0] / batch[0];
        if batches == 0 || numbers != batch.map(|number| batches * number) {
            self.wrong(&sql, format_args!("{numbers:?}, not a multiple of {batch:?}"));
        }
        Some(batches)
    }

    /// Runs a statement that writes. Whether it has written. `None` if a cancel leaves this open.
    fn write(&mut self, kind: Kind, sql: &str) -> Option<bool> {
        match self.run(sql) {
            // The result of an INSERT is its number of rows.
            Ended::Rows(rows) if sql.starts_with("CREATE") || workload::numbers(&rows) == self.workload.batch[..1] => {
                self.tally.count(kind);
                Some(true)
            }
            Ended::OutOfMemory => Some(false),
            Ended::Cancelled => None,
            other => self.wrong(sql, format_args!("{other:?}")),
        }
    }

    /// Rows of a query that has no reason to fail. `None` if it met a cancel or the limit.
    fn rows(&mut self, sql: &str) -> Option<Vec<String>> {
        match self.run(sql) {
            Ended::Rows(rows) => Some(rows),
            Ended::Cancelled | Ended::OutOfMemory => None,
            Ended::Failed(message) => self.wrong(sql, message),
        }
    }

    /// Runs a statement, which is cancelled now and then.
    fn run(&mut self, sql: &str) -> Ended {
        let cancel = (!self.is_alone && self.rng.random_bool(0.25)).then(|| self.delay());
        self.run_until(sql, cancel)
    }

    fn run_until(&mut self, sql: &str, cancel: Option<Duration>) -> Ended {
        self.board.begin(self.number, sql);
        let begun = Instant::now();
        let result = self.session.run(sql, cancel);
        let took = begun.elapsed();
        self.board.end(self.number);
        if let (Err(message), Some(after)) = (&result, cancel)
            && message.contains(CANCELLED)
        {
            self.tally.cancels.push(took.saturating_sub(after));
            return Ended::Cancelled;
        }
        self.tally.others.push(took);
        match result {
            Ok(batches) => Ended::Rows(workload::rows(sql, &batches)),
            Err(message) if !self.is_alone && message.contains(LIMIT) => {
                self.tally.out_of_memory += 1;
                Ended::OutOfMemory
            }
            Err(message) => Ended::Failed(message),
        }
    }

    /// Time until a cancel: within 20 ms, or also within a second. Threads wait for a core before
    /// they plan.
    fn delay(&mut self) -> Duration {
        let most = if self.rng.random_bool(0.5) { 20_000 } else { 1_000_000 };
        Duration::from_micros(self.rng.random_range(0..=most))
    }

    /// Ends the test: a statement did not end as it must.
    fn wrong(&self, sql: &str, how: impl Display) -> ! {
        panic!("thread {}: {sql}: {how}", self.number)
    }
}
