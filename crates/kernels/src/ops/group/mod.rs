// SPDX-License-Identifier: Apache-2.0
//! Aggregation by keys.
//!
//! The types of the keys decide how a row finds the number of its group, before anything runs:
//!
//! - *dense*: the keys have known bounds whose product is small. The number is computed, and one
//!   kernel does everything.
//! - *inline*: the keys pack into 64 bits, which a hash table stores (see [`table`]).
//! - *wide*: other keys. The table stores references, and a key store has the keys of the groups.
//!
//! The states are one array, with the state slots of a group together. On CPUs each work-item has a
//! private copy of the array, so that nothing is atomic. It always has the same share of a batch,
//! so that float sums repeat. On GPUs there is one array of atomics; few dense groups have
//! replicas in the shared memory of each work-group.
//!
//! Where the groups do not fit device memory, rows of further groups are set aside (see
//! [`set_aside`]).
//!
//! DISTINCT is an inner aggregation by the keys and the argument. Its groups are fed to the outer
//! one at the end, as an input of its own.

mod distinct;
mod growth;
mod kernels;
mod key;
mod plan;
mod set_aside;
mod table;
mod var_width_min_max;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, Grid, ProgramSource, Queue};

use super::Options;
use super::accumulate::Accumulators;
use super::join::FusedJoinCounts;
use super::launch::compact::Survivors;
use super::launch::output::OutputBuffers;
use super::launch::primitives::{Lengths, Primitives};
use super::launch::program::{Program, check_failed_row, read_u64, work_group_size};
use super::launch::projection::{ProjectedRows, Projection};
use super::launch::source::Source;
use super::launch::{Launch, NamedArgs, dictionary};
use super::select::Select;
use crate::codegen::{CType, Profile};
use crate::{Error, Result};
use growth::grown_heap;
use key::{GroupKey, KeyOutput};
use set_aside::SetAside;
use table::{HashTable, MOST_GROUPS, control};
use var_width_min_max::{VarWidthMinMax, VarWidthStore};

/// Aggregation by keys; without keys, of a whole input to one row.
#[derive(Debug, Clone)]
pub struct GroupBy {
    /// Computes keys and arguments that must be columns.
    materialized: Option<Box<Select>>,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    options: Options,
    primitives: Primitives,
    program: Program,
    mode: GroupMode,
    occupancy: Occupancy,
    keys: Vec<GroupKey>,
    accumulators: Accumulators,
    /// MIN and MAX of values that exceed a state slot.
    extremes: Vec<VarWidthMinMax>,
    /// Whether work-items have private copies of the states.
    private: bool,
    feeds: Vec<Feed>,
    /// Inner aggregations: number `i` gives the input of feed `i + 1`.
    distincts: Vec<GroupBy>,
    results: Projection,
    kernels: KernelIndices,
}

/// How a row finds the number of its group.
#[derive(Debug, Clone, Copy)]
enum GroupMode {
    Dense { groups: usize },
    Inline { null_slot: bool },
    Wide,
}

impl GroupMode {
    /// Whether group numbers are computed, without a hash table.
    fn is_dense(&self) -> bool {
        match self {
            GroupMode::Dense { .. } => true,
            GroupMode::Inline { .. } | GroupMode::Wide => false,
        }
    }

    /// Whether the keys of groups are in a key store.
    fn stores_keys(&self) -> bool {
        match self {
            GroupMode::Wide => true,
            GroupMode::Dense { .. } | GroupMode::Inline { .. } => false,
        }
    }
}

/// How dense groups are known to have rows.
#[derive(Debug, Clone, Copy)]
enum Occupancy {
    /// By a count of rows, the state at this position.
    Count(usize),
    /// By a bit for each group: so many groups have no replicas, and most may be empty.
    Bits,
}

impl Occupancy {
    fn has_bits(self) -> bool {
        match self {
            Occupancy::Bits => true,
            Occupancy::Count(_) => false,
        }
    }
}

/// An input: that of the aggregation, or distinct values.
#[derive(Debug, Clone)]
struct Feed {
    source: Source,
    keys: Vec<crate::expr::Expr>,
    /// The look-up kernel, of hashed modes.
    find: Option<usize>,
    /// The kernels that store the keys of the wide mode: values of [`KEYS_OF_STORE`] each.
    store_keys: Vec<usize>,
    /// For each of these keys, the kernel to store its bytes if it is a string.
    store_bytes: Vec<Option<usize>>,
    updates: Vec<usize>,
}

/// Positions of the kernels that all feeds share.
#[derive(Debug, Clone, Default)]
struct KernelIndices {
    /// Copies states to a larger array.
    grow: usize,
    /// Inserts the groups into a larger table.
    insert: usize,
    /// Masks the dense groups that have rows.
    occupied: usize,
}

/// The state of an aggregation between batches.
#[derive(Debug, Default)]
pub struct GroupByState {
    groups: usize,
    null_group: u64,
    /// The groups of hashed modes, after the first batch.
    hashed: Option<HashedGroups>,
    /// The states, after the first batch.
    states: Option<States>,
    dictionaries: Vec<Option<Arc<DeviceColumn>>>,
    distincts: Vec<GroupByState>,
    /// Counters of the source's joins.
    tallies: Option<Buffer>,
    further_groups: FurtherGroups,
}

/// The fate of rows whose groups the state does not have.
#[derive(Debug, Default)]
enum FurtherGroups {
    /// Their groups are added.
    #[default]
    Added,
    /// They are set aside: the state is frozen.
    SetAside(Box<SetAside>),
}

impl FurtherGroups {
    /// The kernels of a frozen state.
    fn set_aside(&self) -> Option<&SetAside> {
        match self {
            FurtherGroups::Added => None,
            FurtherGroups::SetAside(set_aside) => Some(set_aside),
        }
    }
}

/// The groups of the modes inline and wide.
#[derive(Debug)]
struct HashedGroups {
    table: HashTable,
    keys: KeyStore,
}

/// The keys of the groups.
#[derive(Debug)]
struct KeyStore {
    /// Inline keys; hashes of wide keys.
    words: Buffer,
    /// Row and slot of the groups that the current batch added.
    origins: Buffer,
    new_slots: Buffer,
    capacity: usize,
    columns: Vec<OutputBuffers>,
    columns_capacity: usize,
    heap_bytes: Vec<usize>,
}

/// The states of the groups, in one or more copies.
#[derive(Debug)]
struct States {
    /// The state slots of all groups, copy after copy.
    slots: Buffer,
    /// A bit for each group with rows.
    occupied: Option<Buffer>,
    capacity: usize,
    copies: usize,
    extremes: Vec<VarWidthStore>,
}

/// Groups in the first arrays of states and keys, where the table has as many.
const FEWEST_STATES: usize = 1 << 14;

/// Keys that a kernel stores together. It loads and writes one after the other.
const KEYS_OF_STORE: usize = 8;

/// The result of looking up the rows of a batch.
enum LookUp {
    Done {
        groups: usize,
        null_group: u64,
    },
    /// The table is too small.
    Full,
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

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        let mut sources: Vec<_> = self.materialized.iter().flat_map(|select| select.kernel_source()).collect();
        sources.extend(self.program.kernel_source());
        sources.extend(self.distincts.iter().flat_map(GroupBy::kernel_source));
        sources
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let mut programs: Vec<_> = self.materialized.iter().flat_map(|select| select.programs()).collect();
        programs.extend([self.primitives.source(), self.program.source()]);
        programs.extend(self.may_freeze().then(|| set_aside::program(&self.options).source()));
        programs.extend(self.distincts.iter().flat_map(GroupBy::programs));
        programs
    }

    /// How rows find their groups, for EXPLAIN: `dense`, `inline` or `wide`.
    pub fn mode(&self) -> &'static str {
        match self.mode {
            GroupMode::Dense { .. } => "dense",
            GroupMode::Inline { .. } => "inline",
            GroupMode::Wide => "wide",
        }
    }

    /// The state before the first batch.
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
    /// `Row` with the lowest failing row. The state must not be used afterwards.
    pub async fn push(&self, queue: &Queue, state: &mut GroupByState, batch: &DeviceBatch) -> Result<()> {
        match self.push_known(queue, state, batch).await? {
            None => Ok(()),
            Some(_) => Err(Error::Internal("rows that a frozen state does not aggregate".into())),
        }
    }

    /// As [`push`](Self::push). A state that is [frozen](Self::freeze) aggregates the rows of its
    /// groups; the others are the result, for [`push_set_aside`](Self::push_set_aside).
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub async fn push_known(&self, queue: &Queue, state: &mut GroupByState, batch: &DeviceBatch) -> Result<Option<DeviceBatch>> {
        match &self.materialized {
            Some(select) if batch.num_rows() > 0 => {
                let computed = select.run(queue, batch).await?;
                self.push_set_aside(queue, state, &computed).await
            }
            Some(_) | None => self.push_set_aside(queue, state, batch).await,
        }
    }

    /// As [`push_known`](Self::push_known), for rows that another state of the aggregation has set
    /// aside.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub async fn push_set_aside(
        &self,
        queue: &Queue,
        state: &mut GroupByState,
        batch: &DeviceBatch,
    ) -> Result<Option<DeviceBatch>> {
        if batch.num_rows() == 0 {
            return Ok(None);
        }
        let ids = self.push_feed(queue, state, 0, batch).await?;
        let (Some(set_aside), Some(ids)) = (state.further_groups.set_aside(), ids) else {
            self.push_values(queue, &mut state.distincts, batch).await?;
            return Ok(None);
        };
        let launch = self.launch(queue).await?;
        if !self.distincts.is_empty()
            && let Some(known) = set_aside.known_rows(&launch, batch, &ids).await?
            && let Err(error) = self.push_values(queue, &mut state.distincts, &known.batch).await
        {
            return Err(known.error(queue, error).await);
        }
        set_aside.further_rows(&launch, batch, &ids).await
    }

    /// Collects the values of DISTINCTs.
    async fn push_values(&self, queue: &Queue, states: &mut [GroupByState], batch: &DeviceBatch) -> Result<()> {
        for (inner, state) in self.distincts.iter().zip(states) {
            Box::pin(inner.push(queue, state, batch)).await?;
        }
        Ok(())
    }

    /// Aggregates values of DISTINCT number `number`, each once.
    async fn feed_values(&self, queue: &Queue, state: &mut GroupByState, number: usize, values: &DeviceBatch) -> Result<()> {
        let ids = self.push_feed(queue, state, number + 1, values).await?;
        if let (Some(set_aside), Some(ids)) = (state.further_groups.set_aside(), ids)
            && set_aside.has_further_groups(&self.launch(queue).await?, values.num_rows(), &ids).await?
        {
            return Err(Error::Internal("values of a DISTINCT without their groups".into()));
        }
        Ok(())
    }

    /// The row counts of the joins of an aggregation [over joins](Self::over_joins).
    ///
    /// # Errors
    /// Errors of the device.
    pub fn joined_rows(
        &self,
        queue: &Queue,
        state: &GroupByState,
    ) -> impl Future<Output = Result<FusedJoinCounts>> + Send + use<> {
        FusedJoinCounts::read(queue, self.feeds[0].source.tallies(), state.tallies.as_ref())
    }

    /// The groups, in no particular order. No batch without groups; one row without keys.
    pub async fn finish(&self, queue: &Queue, mut state: GroupByState) -> Result<Vec<DeviceBatch>> {
        let inner = std::mem::take(&mut state.distincts);
        for (index, (distinct, inner)) in self.distincts.iter().zip(inner).enumerate() {
            for batch in Box::pin(distinct.finish(queue, inner)).await? {
                self.feed_values(queue, &mut state, index, &batch).await?;
            }
        }
        let launch = self.launch(queue).await?;
        if let GroupMode::Dense { groups } = self.mode
            && (self.keys.is_empty() || state.states.is_some())
        {
            state.groups = groups;
            self.reserve_states(&launch, &mut state, groups)?;
        }
        let Some(states) = &state.states else { return Ok(vec![]) };
        let mut extra = self.state_args(states);
        if let Some(hashed) = &state.hashed {
            extra.extend(self.key_args(&hashed.keys));
        }
        extra.push(("null_group", Arg::U64(state.null_group)));
        let survivors = match self.mode {
            GroupMode::Dense { groups } if !self.keys.is_empty() => {
                Some(Survivors::find(&launch, self.kernels.occupied, &[], groups, &extra).await?)
            }
            GroupMode::Dense { .. } | GroupMode::Inline { .. } | GroupMode::Wide => None,
        };
        let (count, rows) = match &survivors {
            Some(survivors) => (survivors.count, ProjectedRows::surviving(&[], survivors)),
            None => (state.groups, ProjectedRows::all(&[], state.groups)),
        };
        if count == 0 {
            return Ok(vec![]);
        }
        let written = self.results.run(&launch, rows.with_args(&extra)).await.map_err(|error| match error {
            // Only an AVG can fail here; the row is the number of a group.
            Error::Row { .. } => Error::AverageOverflow,
            other => other,
        })?;
        drop(extra);
        let columns = self.result_columns(&launch, state, written, count)?;
        Ok(vec![DeviceBatch::try_new(self.schema.clone(), columns, count)?])
    }

    /// The columns of the result, of written buffers and stored keys.
    fn result_columns(
        &self,
        launch: &Launch<'_>,
        state: GroupByState,
        written: Vec<Option<OutputBuffers>>,
        rows: usize,
    ) -> Result<Vec<DeviceColumn>> {
        let stored = state.hashed.map(|hashed| hashed.keys.columns).unwrap_or_default();
        let mut stored = stored.into_iter();
        let is_wide = self.mode.stores_keys();
        let mut columns = Vec::with_capacity(self.types.len());
        for (index, buffers) in written.into_iter().enumerate() {
            columns.push(match (self.keys.get(index), buffers) {
                (Some(key), buffers) => {
                    let stored = if is_wide { stored.next() } else { None };
                    let dictionary = state.dictionaries[index].clone();
                    key.finish(&launch.primitives, rows, (buffers, stored), dictionary)?
                }
                (None, Some(buffers)) => {
                    let output = self.results.outputs[index].as_ref();
                    let output = output.ok_or_else(|| Error::Internal("an aggregate without a column".into()))?;
                    output.finish(&launch.primitives, rows, buffers, None)?
                }
                (None, None) => return Err(Error::Internal("a result without buffers".into())),
            });
        }
        Ok(columns)
    }

    async fn launch<'a>(&'a self, queue: &'a Queue) -> Result<Launch<'a>> {
        Launch::load(queue, &self.options, &self.program, &self.primitives).await
    }

    /// Aggregates a batch of one of the inputs. Returns the group ids of its rows, where they are
    /// looked up.
    async fn push_feed(
        &self,
        queue: &Queue,
        state: &mut GroupByState,
        feed: usize,
        batch: &DeviceBatch,
    ) -> Result<Option<Buffer>> {
        let n = batch.num_rows();
        if n == 0 {
            return Ok(None);
        }
        if n >= 1 << 31 {
            return Err(Error::Unsupported("grouping batches of 2^31 rows or more is not supported on the device".into()));
        }
        let plan = &self.feeds[feed];
        let launch = self.launch(queue).await?;
        let columns = self.unify_dictionaries(&launch, state, feed, plan.source.columns(batch)?).await?;
        let bound = plan.source.bind_columns(&columns)?;
        let ids = match self.mode {
            GroupMode::Dense { groups } => {
                state.groups = groups;
                None
            }
            GroupMode::Inline { .. } | GroupMode::Wide => Some(self.find(&launch, state, plan, &bound, n).await?),
        };
        self.reserve_states(&launch, state, state.groups)?;
        if plan.source.tallies() > 0 && state.tallies.is_none() {
            state.tallies = Some(queue.zeroed(plan.source.tallies() * 8)?);
        }
        self.update(&launch, state, plan, &bound, n, ids.as_ref()).await?;
        if feed == 0 {
            self.store_winners(&launch, state, &bound).await?;
        }
        Ok(ids)
    }

    /// Looks up the rows of a batch: a group id for each. Numbers new groups and stores their keys.
    async fn find(
        &self,
        launch: &Launch<'_>,
        state: &mut GroupByState,
        feed: &Feed,
        bound: &[DeviceColumn],
        n: usize,
    ) -> Result<Buffer> {
        let queue = launch.queue;
        let ids = queue.alloc(n * 4)?;
        let (mut table, mut keys) = match state.hashed.take() {
            Some(HashedGroups { table, keys }) => (table, Some(keys)),
            None => (HashTable::new(queue, self.options.initial_groups.min(n))?, None),
        };
        loop {
            let store = self.reserve_keys(queue, keys.take(), table.capacity(), state.groups)?;
            let mut hashed = HashedGroups { table, keys: store };
            match self.look_up(launch, state, feed, bound, (&ids, n), &hashed).await? {
                LookUp::Done { groups, null_group } => {
                    state.null_group = null_group;
                    let first = std::mem::replace(&mut state.groups, groups);
                    if self.mode.stores_keys() && groups > first {
                        self.store_keys(launch, &mut hashed, feed, bound, (first, groups)).await?;
                    }
                    state.hashed = Some(hashed);
                    return Ok(ids);
                }
                LookUp::Full => {
                    let HashedGroups { table: full, keys: store } = hashed;
                    // A larger table. The last one must suffice: it has room for every row of the
                    // batch.
                    let enough = state.groups + n;
                    let groups = (full.capacity() * 8).min(enough.max(full.capacity() * 2));
                    let groups = if full.capacity() < MOST_GROUPS { groups.min(MOST_GROUPS) } else { groups };
                    drop(full);
                    table = self.table_of_groups(launch, state, &store, groups)?;
                    keys = Some(store);
                }
            }
        }
    }

    /// Runs the look-up kernel.
    async fn look_up(
        &self,
        launch: &Launch<'_>,
        state: &GroupByState,
        feed: &Feed,
        bound: &[DeviceColumn],
        (ids, n): (&Buffer, usize),
        hashed: &HashedGroups,
    ) -> Result<LookUp> {
        let queue = launch.queue;
        let find = feed.find.ok_or_else(|| Error::Internal("an input without a look-up".into()))?;
        let mut words = [0u64; control::WORDS];
        words[control::ERROR] = u64::MAX;
        words[control::GROUPS] = state.groups as u64;
        words[control::NULL_GROUP] = state.null_group;
        let control_bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let control = queue.alloc(control_bytes.len())?;
        queue.write(&control, 0, &control_bytes)?;
        let mut named: NamedArgs<'_> =
            vec![("n", Arg::U64(n as u64)), ("ids", Arg::Buffer(ids)), ("control", Arg::Buffer(&control))];
        named.extend(hashed.table.args(if state.further_groups.set_aside().is_some() { 0 } else { hashed.table.capacity() }));
        named.extend(self.key_args(&hashed.keys));
        launch.run_on(find, launch.grid(n), bound, Some(&control), named)?;
        let answer = queue.read(&control, 0..control_bytes.len()).await?;
        // Work-items stop once the table is full, some of them before the lowest failing row.
        if read_u64(&answer, control::FULL)? != 0 {
            return Ok(LookUp::Full);
        }
        check_failed_row(read_u64(&answer, control::ERROR)?)?;
        let groups = read_u64(&answer, control::GROUPS)? as usize;
        Ok(LookUp::Done { groups, null_group: read_u64(&answer, control::NULL_GROUP)? })
    }

    /// Copies the keys of the groups from `first` to `end` to the key store, and points their slots
    /// to it.
    async fn store_keys(
        &self,
        launch: &Launch<'_>,
        hashed: &mut HashedGroups,
        feed: &Feed,
        bound: &[DeviceColumn],
        (first, end): (usize, usize),
    ) -> Result<()> {
        let HashedGroups { table, keys: store } = hashed;
        let (queue, new) = (launch.queue, end - first);
        self.reserve_key_columns(queue, store, end)?;
        let grid = launch.grid(new);
        let range = [("n", Arg::U64(new as u64)), ("first", Arg::U64(first as u64))];
        let error = queue.filled(8, 0xff)?;
        let totals = queue.alloc(self.keys.len().max(1) * 8)?;
        let keys = self.keys.chunks(KEYS_OF_STORE).zip(store.columns.chunks(KEYS_OF_STORE));
        for (index, ((keys, columns), kernel)) in keys.zip(&feed.store_keys).enumerate() {
            let mut named: NamedArgs<'_> = range.to_vec();
            named.push(("origins", Arg::Buffer(&store.origins)));
            named.extend(keys.iter().zip(columns).flat_map(|(key, buffers)| key.store.args(buffers)));
            if index == 0 {
                named.push(("slots", Arg::Buffer(&table.slots)));
                named.extend([("new_slots", Arg::Buffer(&store.new_slots)), ("hashes", Arg::Buffer(&store.words))]);
            }
            launch.run_on(*kernel, grid, bound, Some(&error), named)?;
        }
        if feed.store_bytes.iter().any(Option::is_some) {
            for (index, (buffers, bytes)) in store.columns.iter().zip(&feed.store_bytes).enumerate() {
                if let (Some(_), Some(values)) = (bytes, &buffers.values) {
                    let base = store.heap_bytes[index] as u64;
                    let lengths = Lengths { from: first, base, ..Lengths::of(values, new) };
                    launch.primitives.offsets(lengths, &totals, index as u32)?;
                }
            }
            let answer = queue.read(&totals, 0..self.keys.len() * 8).await?;
            for (index, (key, bytes)) in self.keys.iter().zip(&feed.store_bytes).enumerate() {
                let Some(kernel) = bytes else { continue };
                let buffers = &mut store.columns[index];
                let used = store.heap_bytes[index];
                let needed = used + read_u64(&answer, index)? as usize;
                let heap = grown_heap(queue, buffers.heap.take(), used, needed)?;
                let mut named: NamedArgs<'_> = range.to_vec();
                named.extend([("origins", Arg::Buffer(&store.origins)), ("heap", Arg::Buffer(&heap))]);
                named.extend(key.store.args(buffers));
                launch.run_on(*kernel, grid, bound, Some(&error), named)?;
                buffers.heap = Some(heap);
                store.heap_bytes[index] = needed;
            }
        }
        Ok(())
    }

    /// Updates the states.
    async fn update(
        &self,
        launch: &Launch<'_>,
        state: &GroupByState,
        feed: &Feed,
        bound: &[DeviceColumn],
        n: usize,
        ids: Option<&Buffer>,
    ) -> Result<()> {
        let Some(states) = &state.states else { return Err(Error::Internal("groups without states".into())) };
        let grid = match self.private {
            true => Grid { work_groups: states.copies as u32, work_group_size: work_group_size(&self.options) },
            false => launch.grid_for_candidates(n, feed.source.max_candidates()),
        };
        let error = launch.error_buffer(feed.updates.iter().copied())?;
        for kernel in &feed.updates {
            let mut named: NamedArgs<'_> = vec![("n", Arg::U64(n as u64))];
            named.extend(ids.map(|ids| ("ids", Arg::Buffer(ids))));
            if let Some(hashed) = &state.hashed {
                named.extend(hashed.table.args(hashed.table.capacity()));
            }
            named.extend(self.state_args(states));
            named.extend(feed.source.args(state.tallies.as_ref()));
            launch.run_on(*kernel, grid, bound, error.as_ref(), named)?;
        }
        if let Some(error) = &error {
            check_failed_row(read_u64(&launch.queue.read(error, 0..8).await?, 0)?)?;
        }
        Ok(())
    }

    /// Copies the winning values of a batch to the stores of MIN and MAX.
    async fn store_winners(&self, launch: &Launch<'_>, state: &mut GroupByState, bound: &[DeviceColumn]) -> Result<()> {
        let (queue, n) = (launch.queue, state.groups);
        let Some(states) = &mut state.states else { return Ok(()) };
        let grid = launch.grid(n);
        for (extreme, store) in self.extremes.iter().zip(&mut states.extremes) {
            let error = queue.filled(8, 0xff)?;
            let mut named: NamedArgs<'_> = vec![("n", Arg::U64(n as u64))];
            if extreme.ctype != CType::Str {
                named.extend(extreme.args(store));
                launch.run_on(extreme.bytes, grid, bound, Some(&error), named)?;
                continue;
            }
            let offsets = queue.alloc((n + 1) * 8)?;
            queue.fill(&offsets, 0, 8, 0)?;
            named.extend(extreme.args(store));
            named.push(("new_offsets", Arg::Buffer(&offsets)));
            launch.run_on(extreme.lengths, grid, bound, Some(&error), named.clone())?;
            let total = queue.alloc(8)?;
            launch.primitives.offsets(Lengths::of(&offsets, n), &total, 0)?;
            let heap = queue.alloc(read_u64(&queue.read(&total, 0..8).await?, 0)? as usize)?;
            named.push(("heap", Arg::Buffer(&heap)));
            launch.run_on(extreme.bytes, grid, bound, Some(&error), named)?;
            (store.offsets, store.values) = (offsets, heap);
        }
        Ok(())
    }

    /// The arguments of look-ups for the keys.
    fn key_args<'a>(&'a self, keys: &'a KeyStore) -> NamedArgs<'a> {
        let mut args = vec![
            ("keys", Arg::Buffer(&keys.words)),
            ("hashes", Arg::Buffer(&keys.words)),
            ("origins", Arg::Buffer(&keys.origins)),
            ("new_slots", Arg::Buffer(&keys.new_slots)),
        ];
        for (key, buffers) in self.keys.iter().zip(&keys.columns) {
            args.extend(key.store.args(buffers));
        }
        args
    }

    fn state_args<'a>(&'a self, states: &'a States) -> NamedArgs<'a> {
        let mut args = vec![
            ("states", Arg::Buffer(&states.slots)),
            ("capacity", Arg::U64(states.capacity as u64)),
            ("copies", Arg::U64(states.copies as u64)),
        ];
        args.extend(states.occupied.iter().map(|occupied| ("occupied", Arg::Buffer(occupied))));
        for (extreme, store) in self.extremes.iter().zip(&states.extremes) {
            args.extend(extreme.args(store));
        }
        args
    }

    /// The columns with dictionary codes that agree with those of earlier batches.
    async fn unify_dictionaries(
        &self,
        launch: &Launch<'_>,
        state: &mut GroupByState,
        feed: usize,
        mut columns: Vec<DeviceColumn>,
    ) -> Result<Vec<DeviceColumn>> {
        for (index, key) in self.keys.iter().enumerate() {
            let KeyOutput::Codes(column) = key.output else { continue };
            // The columns of distinct values begin with the keys.
            let at = if feed == 0 { column } else { index };
            let column = columns.get_mut(at).ok_or_else(|| Error::Internal(format!("a batch without column {at}")))?;
            let most = key.bounds.map_or(0, |(_, most)| most as usize + 1);
            let known = &mut state.dictionaries[index];
            if let Some(unified) = dictionary::unify(launch.queue, &launch.primitives, known, column, most).await? {
                *column = unified;
            }
        }
        Ok(columns)
    }
}

/// Whether work-items have private copies of the states.
fn private(options: &Options) -> bool {
    match options.profile {
        Profile::Cpu => true,
        Profile::Gpu => false,
    }
}
