// SPDX-License-Identifier: Apache-2.0
//! Aggregation by keys.
//!
//! Three ways to a row's group number, chosen from the keys' types before anything runs:
//! - *dense*: the keys' bounds are known and their product is small; the number is computed, and one
//!   kernel does everything;
//! - *inline*: the keys pack into 64 bits, which a hash table holds (see [`table`]);
//! - *wide*: anything else; the table holds references, and the keys of the groups lie in a key store.
//!
//! States lie in one array, the words of a group together. On CPUs each item has a private copy of the
//! array, always for the same share of a batch, so nothing is atomic and float sums repeat; on GPUs
//! there is one array of atomics, and for few dense groups a replica in each group's shared memory.
//!
//! DISTINCT goes to an inner aggregation by the keys and the argument, whose groups are fed to the
//! outer one at the end as an input of their own.

mod best;
mod draft;
mod key;
mod plan;
mod table;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, Grid, Queue};

use super::Options;
use super::accumulate::Accumulators;
use super::compact::Survivors;
use super::dictionary;
use super::join::JoinedRows;
use super::output::Buffers;
use super::primitives::{LoadedPrimitives, Primitives};
use super::program::{Loaded, Program, check_row, spread, spread_work, word, work_group_size};
use super::project::Projection;
use super::select::Select;
use super::source::Source;
use crate::codegen::{CType, Profile};
use crate::{Error, Result};
use best::{Best, BestStore};
use key::{Form, Key};
use table::{Table, control};

/// Aggregation by keys; without keys, of a whole input to one row.
#[derive(Debug, Clone)]
pub struct GroupBy {
    /// Computes keys and arguments where they must be columns.
    before: Option<Box<Select>>,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    options: Options,
    primitives: Primitives,
    program: Program,
    mode: Mode,
    keys: Vec<Key>,
    accumulators: Accumulators,
    bests: Vec<Best>,
    /// Whether items have private copies of the states.
    private: bool,
    feeds: Vec<Feed>,
    /// Inner aggregations, each for the feed after its position.
    distincts: Vec<GroupBy>,
    results: Projection,
    kernels: Kernels,
}

/// The way to a group number.
#[derive(Debug, Clone)]
enum Mode {
    Dense { groups: usize },
    Inline { null_slot: bool },
    Wide,
}

/// An input: the aggregation's own, or distinct values.
#[derive(Debug, Clone)]
struct Feed {
    source: Source,
    keys: Vec<crate::expr::Expr>,
    find: Option<usize>,
    /// For each key, the kernels that keep its values, and its bytes if it is a string.
    keep: Vec<(usize, Option<usize>)>,
    updates: Vec<usize>,
}

/// Kernels that no feed has of its own, by position in the program.
#[derive(Debug, Clone, Default)]
struct Kernels {
    /// Makes room for states.
    grow: usize,
    /// Fills a larger table.
    insert: usize,
    /// Points wide slots to kept keys.
    seal: usize,
    /// Marks the dense groups that have rows.
    occupied: usize,
}

/// What has been aggregated so far.
#[derive(Debug, Default)]
pub struct GroupByState {
    groups: usize,
    null_group: u64,
    table: Option<Table>,
    keys: Option<KeyStore>,
    states: Option<States>,
    bests: Vec<BestStore>,
    dictionaries: Vec<Option<Arc<DeviceColumn>>>,
    distincts: Vec<GroupByState>,
    /// What the source's joins count.
    tallies: Option<Buffer>,
}

/// The keys of the groups.
#[derive(Debug)]
struct KeyStore {
    /// Inline keys; hashes of wide ones.
    words: Buffer,
    /// Row and slot of the groups that the current batch added.
    origins: Buffer,
    places: Buffer,
    capacity: usize,
    columns: Vec<Buffers>,
    columns_capacity: usize,
    heap_bytes: Vec<usize>,
}

/// The states of the groups, in one or more copies.
#[derive(Debug)]
struct States {
    words: Buffer,
    capacity: usize,
    copies: usize,
}

impl GroupBy {
    /// Names and types of the result: the keys, then the aggregates.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let mut texts: Vec<_> = self.before.iter().flat_map(|before| before.kernel_text()).collect();
        texts.extend(self.program.kernel_text());
        texts.extend(self.distincts.iter().flat_map(GroupBy::kernel_text));
        texts
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let mut programs: Vec<_> = self.before.iter().flat_map(|before| before.programs()).collect();
        programs.extend([self.primitives.text().into(), self.program.text().into()]);
        programs.extend(self.distincts.iter().flat_map(GroupBy::programs));
        programs
    }

    /// The way to group numbers, for people: `dense`, `inline` or `wide`.
    pub fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Dense { .. } => "dense",
            Mode::Inline { .. } => "inline",
            Mode::Wide => "wide",
        }
    }

    /// Nothing aggregated yet.
    pub fn start(&self) -> GroupByState {
        GroupByState {
            null_group: u64::MAX,
            dictionaries: vec![None; self.keys.len()],
            distincts: self.distincts.iter().map(GroupBy::start).collect(),
            ..GroupByState::default()
        }
    }

    /// Aggregates a batch.
    ///
    /// # Errors
    /// `Row` with the lowest failing row. The state is useless afterwards.
    pub async fn push(&self, queue: &Queue, state: &mut GroupByState, batch: &DeviceBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let computed = match &self.before {
            None => None,
            Some(before) => Some(before.run(queue, batch).await?),
        };
        let batch = computed.as_ref().unwrap_or(batch);
        for (inner, state) in self.distincts.iter().zip(&mut state.distincts) {
            Box::pin(inner.push(queue, state, batch)).await?;
        }
        self.push_feed(queue, state, 0, batch).await
    }

    /// What the joins of an aggregation [over joins](Self::over_joins) have counted so far.
    ///
    /// # Errors
    /// Those of the device.
    pub fn joined_rows(&self, queue: &Queue, state: &GroupByState) -> impl Future<Output = Result<JoinedRows>> + Send + use<> {
        JoinedRows::read(queue, self.feeds[0].source.tallies(), state.tallies.as_ref())
    }

    /// The groups, in no particular order. No batch where there are no groups; one row, if there are no
    /// keys.
    pub async fn finish(&self, queue: &Queue, mut state: GroupByState) -> Result<Vec<DeviceBatch>> {
        let inner = std::mem::take(&mut state.distincts);
        for (index, (distinct, inner)) in self.distincts.iter().zip(inner).enumerate() {
            for batch in Box::pin(distinct.finish(queue, inner)).await? {
                self.push_feed(queue, &mut state, index + 1, &batch).await?;
            }
        }
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        if let Mode::Dense { groups } = self.mode
            && (self.keys.is_empty() || state.states.is_some())
        {
            state.groups = groups;
            self.room(queue, &loaded, &mut state, groups)?;
        }
        let Some(states) = &state.states else { return Ok(vec![]) };
        let nothing = DeviceBatch::try_new(Arc::new(arrow::datatypes::Schema::empty()), vec![], 0)?;
        let mut extra = self.state_args(&state, states);
        if let Some(keys) = &state.keys {
            extra.extend(self.key_args(keys));
        }
        extra.push(("null_group", Arg::U64(state.null_group)));
        let survivors = match self.mode {
            Mode::Dense { groups } if !self.keys.is_empty() => Some(
                Survivors::find(queue, &self.options, &primitives, groups, &extra, |grid, named, error| {
                    loaded.launch_on(queue, self.kernels.occupied, grid, &nothing, Some(error), named)
                })
                .await?,
            ),
            _ => None,
        };
        let rows = survivors.as_ref().map_or(state.groups, |survivors| survivors.count);
        if rows == 0 {
            return Ok(vec![]);
        }
        let written = self
            .results
            .run(queue, &self.options, &self.program, &loaded, &primitives, &nothing, survivors.as_ref(), rows, &extra)
            .await
            .map_err(|error| match error {
                // All that can fail here is an AVG; the row is a group's number.
                Error::Row { .. } => Error::AverageOverflow,
                other => other,
            })?;
        drop(extra);
        let mut kept = state.keys.map(|keys| keys.columns).unwrap_or_default().into_iter();
        let mut columns = Vec::with_capacity(self.types.len());
        for (index, buffers) in written.into_iter().enumerate() {
            let key = self.keys.get(index);
            let store = if matches!(self.mode, Mode::Wide) && key.is_some() { kept.next() } else { None };
            columns.push(match (key, store, buffers) {
                (Some(key), store, Some(buffers)) => match (&key.form, store) {
                    (Form::Codes(_), _) => {
                        let dictionary = state.dictionaries[index].clone();
                        let values = buffers.values.into_iter().collect();
                        primitives.column(queue, &key.store.ty, rows, values, buffers.valid.as_ref(), dictionary)?
                    }
                    (Form::Dictionary(codes), Some(store)) => {
                        limit(codes.ctype, rows)?;
                        let ty = Arc::new(ColumnType { nullable: false, ..(*key.store.ty).clone() });
                        let values = key.store.finish(queue, &primitives, rows, Buffers { valid: None, ..store }, Some(ty))?;
                        let codes_buffer = buffers.values.into_iter().collect();
                        primitives.column(queue, &codes.ty, rows, codes_buffer, buffers.valid.as_ref(), Some(Arc::new(values)))?
                    }
                    _ => key.store.finish(queue, &primitives, rows, buffers, None)?,
                },
                (Some(key), Some(store), None) if matches!(key.form, Form::Codes(_)) => {
                    let dictionary = state.dictionaries[index].clone();
                    let values = store.values.into_iter().collect();
                    primitives.column(queue, &key.store.ty, rows, values, store.valid.as_ref(), dictionary)?
                }
                (Some(key), Some(store), None) => key.store.finish(queue, &primitives, rows, store, None)?,
                (None, _, Some(buffers)) => {
                    let output = self.results.outputs[index]
                        .as_ref()
                        .ok_or_else(|| Error::Internal("an aggregate without a column".into()))?;
                    output.finish(queue, &primitives, rows, buffers, None)?
                }
                _ => return Err(Error::Internal("a result without buffers".into())),
            });
        }
        Ok(vec![DeviceBatch::try_new(self.schema.clone(), columns, rows)?])
    }

    async fn push_feed(&self, queue: &Queue, state: &mut GroupByState, feed: usize, batch: &DeviceBatch) -> Result<()> {
        let n = batch.num_rows();
        if n == 0 {
            return Ok(());
        }
        if n >= 1 << 31 {
            return Err(Error::Unsupported("grouping batches of 2^31 rows or more is not supported on the device".into()));
        }
        let plan = &self.feeds[feed];
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let columns = self.agreed(queue, &primitives, state, feed, plan.source.columns(batch)?).await?;
        let bound = plan.source.bind_columns(&columns)?;
        let ids = match self.mode {
            Mode::Dense { groups } => {
                state.groups = groups;
                None
            }
            _ => Some(self.find(queue, &loaded, &primitives, state, plan, &bound, n).await?),
        };
        self.room(queue, &loaded, state, state.groups)?;
        if plan.source.tallies() > 0 && state.tallies.is_none() {
            state.tallies = Some(queue.zeroed(plan.source.tallies() * 8)?);
        }
        self.update(queue, &loaded, state, plan, &bound, n, ids.as_ref()).await?;
        if feed == 0 {
            self.keep_winners(queue, &loaded, &primitives, state, &bound).await?;
        }
        Ok(())
    }

    /// Looks up the batch's rows: an id for each. New groups are numbered, and their keys kept.
    #[allow(clippy::too_many_arguments)]
    async fn find(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        state: &mut GroupByState,
        feed: &Feed,
        bound: &[DeviceColumn],
        n: usize,
    ) -> Result<Buffer> {
        let find = feed.find.ok_or_else(|| Error::Internal("an input without a look-up".into()))?;
        let ids = queue.alloc(n * 4)?;
        loop {
            let table = match state.table.take() {
                Some(table) => table,
                None => Table::new(queue, self.options.initial_groups)?,
            };
            self.room_for_keys(queue, state, table.limit())?;
            let mut words = [0u64; control::WORDS];
            words[control::ERROR] = u64::MAX;
            words[control::GROUPS] = state.groups as u64;
            words[control::NULL_GROUP] = state.null_group;
            let control_bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let control = queue.alloc(control_bytes.len())?;
            queue.write(&control, 0, &control_bytes)?;
            let keys = state.keys.as_ref().ok_or_else(|| Error::Internal("a table without keys".into()))?;
            let mut named = vec![("n", Arg::U64(n as u64)), ("ids", Arg::Buffer(&ids)), ("control", Arg::Buffer(&control))];
            named.extend(table.args());
            named.extend(self.key_args(keys));
            loaded.launch_on(queue, find, spread(queue, &self.options, n), bound, Some(&control), named)?;
            let answer = queue.read(&control, 0..control_bytes.len()).await?;
            // Items stop at a full table, some before the lowest row that fails.
            if word(&answer, control::FULL)? == 0 {
                check_row(word(&answer, control::ERROR)?)?;
                let groups = word(&answer, control::GROUPS)? as usize;
                state.null_group = word(&answer, control::NULL_GROUP)?;
                state.table = Some(table);
                let first = std::mem::replace(&mut state.groups, groups);
                if matches!(self.mode, Mode::Wide) && groups > first {
                    self.keep_keys(queue, loaded, primitives, state, feed, bound, first).await?;
                }
                return Ok(ids);
            }
            // Too small: a larger table, up to one that must suffice.
            let enough = state.groups + n;
            let groups = (table.limit() * 8).min(enough.max(table.limit() * 2));
            drop(table);
            let table = Table::new(queue, groups)?;
            if state.groups > 0 {
                let keys = state.keys.as_ref().ok_or_else(|| Error::Internal("groups without keys".into()))?;
                let mut named = vec![("n", Arg::U64(state.groups as u64)), ("null_group", Arg::U64(state.null_group))];
                named.extend(table.args());
                named.extend(self.key_args(keys));
                loaded.launch(queue, self.kernels.insert, spread(queue, &self.options, state.groups), named)?;
            }
            state.table = Some(table);
        }
    }

    /// Copies the keys of the groups from `first` on to the key store, and points their slots to it.
    #[allow(clippy::too_many_arguments)]
    async fn keep_keys(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        state: &mut GroupByState,
        feed: &Feed,
        bound: &[DeviceColumn],
        first: usize,
    ) -> Result<()> {
        let (Some(store), Some(table)) = (&mut state.keys, &state.table) else {
            return Err(Error::Internal("groups without a table".into()));
        };
        let new = state.groups - first;
        if store.columns_capacity < state.groups {
            let capacity = state.groups.next_power_of_two().max(self.options.initial_groups);
            for (key, buffers) in self.keys.iter().zip(&mut store.columns) {
                let mut grown = key.store.alloc(queue, capacity)?;
                grown.heap = buffers.heap.take();
                for (old, new) in [(&buffers.values, &grown.values), (&buffers.valid, &grown.valid)] {
                    if let (Some(old), Some(new)) = (old, new) {
                        queue.copy(old, 0, new, 0, old.len().min(new.len()))?;
                    }
                }
                *buffers = grown;
            }
            store.columns_capacity = capacity;
        }
        let grid = spread(queue, &self.options, new);
        let range = [("n", Arg::U64(new as u64)), ("first", Arg::U64(first as u64))];
        let error = queue.filled(8, 0xff)?;
        let totals = queue.alloc(self.keys.len().max(1) * 8)?;
        let mut strings = false;
        for ((key, buffers), (kernel, bytes)) in self.keys.iter().zip(&store.columns).zip(&feed.keep) {
            let mut named = range.to_vec();
            named.push(("origins", Arg::Buffer(&store.origins)));
            named.extend(key.store.args(buffers));
            loaded.launch_on(queue, *kernel, grid, bound, Some(&error), named)?;
            strings |= bytes.is_some();
        }
        if strings {
            for (index, (buffers, (_, bytes))) in store.columns.iter().zip(&feed.keep).enumerate() {
                if let (Some(_), Some(offsets)) = (bytes, &buffers.values) {
                    primitives.offsets(queue, offsets, first, new, store.heap_bytes[index] as u64, &totals, index as u32)?;
                }
            }
            let answer = queue.read(&totals, 0..self.keys.len() * 8).await?;
            for (index, (key, (_, bytes))) in self.keys.iter().zip(&feed.keep).enumerate() {
                let Some(kernel) = bytes else { continue };
                let buffers = &mut store.columns[index];
                let used = store.heap_bytes[index];
                let needed = used + word(&answer, index)? as usize;
                let heap = match buffers.heap.take() {
                    Some(heap) if heap.len() >= needed => heap,
                    old => {
                        let heap = queue.alloc(needed.next_power_of_two())?;
                        if let Some(old) = old.filter(|_| used > 0) {
                            queue.copy(&old, 0, &heap, 0, used)?;
                        }
                        heap
                    }
                };
                let mut named = range.to_vec();
                named.extend([("origins", Arg::Buffer(&store.origins)), ("heap", Arg::Buffer(&heap))]);
                named.extend(key.store.args(buffers));
                loaded.launch_on(queue, *kernel, grid, bound, Some(&error), named)?;
                buffers.heap = Some(heap);
                store.heap_bytes[index] = needed;
            }
        }
        let mut named = range.to_vec();
        named.extend(table.args());
        named.extend([("places", Arg::Buffer(&store.places)), ("hashes", Arg::Buffer(&store.words))]);
        loaded.launch(queue, self.kernels.seal, grid, named)
    }

    /// Updates the states.
    #[allow(clippy::too_many_arguments)]
    async fn update(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        state: &GroupByState,
        feed: &Feed,
        bound: &[DeviceColumn],
        n: usize,
        ids: Option<&Buffer>,
    ) -> Result<()> {
        let Some(states) = &state.states else { return Err(Error::Internal("groups without states".into())) };
        let grid = match self.private {
            true => Grid { work_groups: states.copies as u32, work_group_size: work_group_size(&self.options) },
            false => spread_work(queue, &self.options, n, feed.source.meets()),
        };
        let fails = feed.updates.iter().any(|kernel| self.program.can_fail(*kernel));
        let error = if fails { Some(queue.filled(8, 0xff)?) } else { None };
        for kernel in &feed.updates {
            let mut named: Vec<(&str, Arg<'_>)> = vec![("n", Arg::U64(n as u64))];
            named.extend(ids.map(|ids| ("ids", Arg::Buffer(ids))));
            if let Some(table) = &state.table {
                named.extend(table.args());
            }
            named.extend(self.state_args(state, states));
            named.extend(feed.source.args(state.tallies.as_ref()));
            loaded.launch_on(queue, *kernel, grid, bound, error.as_ref(), named)?;
        }
        if let Some(error) = &error {
            check_row(word(&queue.read(error, 0..8).await?, 0)?)?;
        }
        Ok(())
    }

    /// Moves the winners among the batch's rows to the store.
    async fn keep_winners(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        state: &mut GroupByState,
        bound: &[DeviceColumn],
    ) -> Result<()> {
        let n = state.groups;
        let grid = spread(queue, &self.options, n);
        for (best, store) in self.bests.iter().zip(&mut state.bests) {
            let error = queue.filled(8, 0xff)?;
            let mut named = vec![("n", Arg::U64(n as u64))];
            if best.ctype != CType::Str {
                named.extend(best.args(store));
                loaded.launch_on(queue, best.bytes, grid, bound, Some(&error), named)?;
                continue;
            }
            let offsets = queue.alloc((n + 1) * 8)?;
            queue.fill(&offsets, 0, 8, 0)?;
            named.extend(best.args(store));
            named.push(("new_offsets", Arg::Buffer(&offsets)));
            loaded.launch_on(queue, best.lengths, grid, bound, Some(&error), named.clone())?;
            let total = queue.alloc(8)?;
            primitives.offsets(queue, &offsets, 0, n, 0, &total, 0)?;
            let heap = queue.alloc(word(&queue.read(&total, 0..8).await?, 0)? as usize)?;
            named.push(("heap", Arg::Buffer(&heap)));
            loaded.launch_on(queue, best.bytes, grid, bound, Some(&error), named)?;
            (store.offsets, store.values) = (offsets, heap);
        }
        Ok(())
    }

    /// Makes room for the states of `groups` groups.
    fn room(&self, queue: &Queue, loaded: &Loaded<'_>, state: &mut GroupByState, groups: usize) -> Result<()> {
        if state.states.as_ref().is_some_and(|states| states.capacity >= groups) {
            return Ok(());
        }
        let words = self.accumulators.words;
        let (old, old_capacity, old_copies) = match state.states.take() {
            Some(states) => (states.words, states.capacity, states.copies),
            None => (queue.alloc(8)?, 0, 1),
        };
        let capacity = match self.mode {
            Mode::Dense { groups } => groups,
            _ => groups.next_power_of_two().max(self.options.initial_groups),
        };
        let most = if words == 0 { usize::MAX } else { self.options.private_bytes / (capacity * words * 8).max(1) };
        let wanted = match self.options.max_work_groups {
            0 => queue.context().info().compute_units.max(1),
            chosen => chosen,
        };
        let copies = if self.private { (wanted as usize).min(most).max(1) } else { 1 };
        let fresh = queue.alloc((copies * capacity * words * 8).max(8))?;
        if words > 0 {
            let named = vec![
                ("old", Arg::Buffer(&old)),
                ("old_capacity", Arg::U64(old_capacity as u64)),
                ("old_copies", Arg::U64(old_copies as u64)),
                ("states", Arg::Buffer(&fresh)),
                ("n", Arg::U64(capacity as u64)),
                ("copies", Arg::U64(copies as u64)),
            ];
            loaded.launch(queue, self.kernels.grow, spread(queue, &self.options, capacity), named)?;
        }
        if state.bests.is_empty() {
            state.bests = self.bests.iter().map(|best| BestStore::new(queue, best, capacity)).collect::<Result<_>>()?;
        } else {
            for (best, store) in self.bests.iter().zip(&mut state.bests) {
                store.grow(queue, best, old_capacity, capacity)?;
            }
        }
        state.states = Some(States { words: fresh, capacity, copies });
        Ok(())
    }

    /// Makes room for the keys of `limit` groups.
    fn room_for_keys(&self, queue: &Queue, state: &mut GroupByState, limit: usize) -> Result<()> {
        let wide = matches!(self.mode, Mode::Wide);
        let old = state.keys.take();
        if let Some(keys) = old.as_ref()
            && keys.capacity >= limit
        {
            state.keys = old;
            return Ok(());
        }
        let words = queue.alloc(limit * 8)?;
        let small = if wide { limit * 4 } else { 0 };
        let (origins, places) = (queue.alloc(small)?, queue.alloc(small)?);
        let mut keys = KeyStore {
            words,
            origins,
            places,
            capacity: limit,
            columns: vec![],
            columns_capacity: 0,
            heap_bytes: vec![0; self.keys.len()],
        };
        match old {
            Some(old) => {
                queue.copy(&old.words, 0, &keys.words, 0, state.groups * 8)?;
                keys.columns = old.columns;
                keys.columns_capacity = old.columns_capacity;
                keys.heap_bytes = old.heap_bytes;
            }
            None if wide => {
                for key in &self.keys {
                    let mut buffers = key.store.alloc(queue, 0)?;
                    buffers.heap = if key.store.is_str() { Some(queue.alloc(0)?) } else { None };
                    keys.columns.push(buffers);
                }
            }
            None => {}
        }
        state.keys = Some(keys);
        Ok(())
    }

    /// The arguments that look-ups take of the keys.
    fn key_args<'a>(&'a self, keys: &'a KeyStore) -> Vec<(&'a str, Arg<'a>)> {
        let mut args = vec![
            ("keys", Arg::Buffer(&keys.words)),
            ("hashes", Arg::Buffer(&keys.words)),
            ("origins", Arg::Buffer(&keys.origins)),
            ("places", Arg::Buffer(&keys.places)),
        ];
        for (key, buffers) in self.keys.iter().zip(&keys.columns) {
            args.extend(key.store.args(buffers));
        }
        args
    }

    fn state_args<'a>(&'a self, state: &'a GroupByState, states: &'a States) -> Vec<(&'a str, Arg<'a>)> {
        let mut args = vec![
            ("states", Arg::Buffer(&states.words)),
            ("capacity", Arg::U64(states.capacity as u64)),
            ("copies", Arg::U64(states.copies as u64)),
        ];
        for (best, store) in self.bests.iter().zip(&state.bests) {
            args.extend(best.args(store));
        }
        args
    }

    /// The columns with codes that agree with those of the batches before them.
    async fn agreed(
        &self,
        queue: &Queue,
        primitives: &LoadedPrimitives<'_>,
        state: &mut GroupByState,
        feed: usize,
        mut columns: Vec<DeviceColumn>,
    ) -> Result<Vec<DeviceColumn>> {
        for (index, key) in self.keys.iter().enumerate() {
            let Form::Codes(column) = key.form else { continue };
            // Distinct values have the keys first.
            let at = if feed == 0 { column } else { index };
            let column = columns.get_mut(at).ok_or_else(|| Error::Internal(format!("a batch without column {at}")))?;
            let most = key.bounds.map_or(0, |(_, most)| most as usize + 1);
            if let Some(agreed) = dictionary::agree(queue, primitives, &mut state.dictionaries[index], column, most).await? {
                *column = agreed;
            }
        }
        Ok(columns)
    }
}

/// Whether codes of a C type can number so many values.
fn limit(ctype: CType, rows: usize) -> Result<()> {
    match ctype.range() {
        Some((_, most)) if rows as i128 - 1 > most => {
            Err(Error::Unsupported(format!("{rows} groups do not fit a dictionary with keys of type {}", ctype.name())))
        }
        _ => Ok(()),
    }
}

/// Whether states are private to items, in this profile.
fn private(options: &Options) -> bool {
    options.profile == Profile::Cpu
}
