// SPDX-License-Identifier: Apache-2.0
//! Columns of files that stay on the device: the next query reads them there.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use arrow::datatypes::DataType;
use columnar::{ColumnType, DeviceColumn, memory_bytes};
use datafusion::common::ScalarValue;
use datafusion::object_store::ObjectMeta;
use datafusion::object_store::path::Path;
use device::{Context, Reclaim};
use parking_lot::Mutex;

use crate::session::ReleaseLost;

/// The holder of the memory, in `device_memory()`.
pub(crate) const COLUMNS_OF_FILES: &str = "columns of files";

/// A file as a listing found it. A changed file has another size, time or tag.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileVersion {
    /// URL of the store.
    store: String,
    location: Path,
    size: u64,
    /// Nanoseconds since 1970.
    modified: Option<i64>,
    e_tag: Option<String>,
    version: Option<String>,
    /// Values of the table's partition columns, which a table provider may choose.
    partition: Vec<ScalarValue>,
}

impl FileVersion {
    pub fn new(store: &str, meta: &ObjectMeta, partition: &[ScalarValue]) -> FileVersion {
        FileVersion {
            store: store.to_owned(),
            location: meta.location.clone(),
            size: meta.size,
            modified: meta.last_modified.timestamp_nanos_opt(),
            e_tag: meta.e_tag.clone(),
            version: meta.version.clone(),
            partition: partition.to_vec(),
        }
    }

    /// Whether a store's answer is about the same file, unchanged. A listing may lack the tag.
    pub fn is_current(&self, meta: &ObjectMeta) -> bool {
        let same = |known: &Option<String>, now: &Option<String>| known.is_none() || now.is_none() || known == now;
        (self.size, self.modified) == (meta.size, meta.last_modified.timestamp_nanos_opt())
            && same(&self.e_tag, &meta.e_tag)
            && same(&self.version, &meta.version)
    }
}

/// A column of a file, as a table reads it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct FileColumn {
    pub name: String,
    pub data_type: DataType,
    /// Whether the column is a part of the file's path.
    pub is_partition: bool,
}

/// Consecutive row groups of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct RowGroupRange {
    pub first: usize,
    pub number: usize,
}

/// A column of row groups.
type Key = (RowGroupRange, FileColumn);

/// Values of one column in some row groups.
#[derive(Debug)]
struct Entry {
    values: Arc<[DeviceColumn]>,
    bytes: usize,
    /// Number of the last run that read or wrote it.
    run: usize,
    hits: usize,
}

#[derive(Debug, Default)]
struct Entries {
    /// `None` once its device is lost: its last holder prevents a new context.
    context: Option<Context>,
    by_file: HashMap<Arc<FileVersion>, HashMap<Key, Entry>>,
    bytes: usize,
}

impl Entries {
    /// Takes out entries of at least `bytes`, those of the oldest runs first, none of `run`.
    fn take_oldest(&mut self, bytes: usize, run: Option<usize>) -> Vec<Entry> {
        let of_file = |(file, entries): (&Arc<FileVersion>, &HashMap<Key, Entry>)| {
            let others = entries.iter().filter(|(_, entry)| run != Some(entry.run));
            others.map(|(key, entry)| (entry.run, Arc::clone(file), key.clone())).collect::<Vec<_>>()
        };
        let mut by_age: Vec<_> = self.by_file.iter().flat_map(of_file).collect();
        by_age.sort_unstable_by_key(|(run, _, _)| *run);
        let (mut taken, mut freed) = (Vec::new(), 0);
        for (_, file, key) in by_age {
            if freed >= bytes {
                break;
            }
            if let Some(entry) = self.by_file.get_mut(&file).and_then(|entries| entries.remove(&key)) {
                freed += entry.bytes;
                taken.push(entry);
            }
        }
        self.by_file.retain(|_, entries| !entries.is_empty());
        self.bytes -= freed;
        taken
    }
}

/// Share of a cache that is freed at once: each search for the oldest columns reads all.
const FREED_SHARE: usize = 16;

/// Columns of row groups in a context's memory.
///
/// A query that needs the memory takes it: see [`Reclaim`].
pub(crate) struct FileCache {
    entries: Mutex<Entries>,
    /// Bytes that running queries may hold as well.
    lent: AtomicUsize,
    runs: AtomicUsize,
}

impl fmt::Debug for FileCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCache").field("bytes", &self.entries.lock().bytes).finish_non_exhaustive()
    }
}

/// A row of what a cache holds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CachedColumn {
    /// Path in its store.
    pub file: String,
    pub column: String,
    pub encoding: String,
    pub row_groups: usize,
    pub rows: usize,
    pub bytes: usize,
    pub hits: usize,
}

impl FileCache {
    /// An empty cache in the memory of a context.
    pub fn new(context: &Context) -> Arc<FileCache> {
        let entries = Mutex::new(Entries { context: Some(context.clone()), ..Entries::default() });
        let (lent, runs) = Default::default();
        let cache = Arc::new(FileCache { entries, lent, runs });
        context.pool().add_cache(&cache);
        cache
    }

    /// Whether it is in the memory of this context.
    pub fn is_of(&self, context: &Context) -> bool {
        self.entries.lock().context.as_ref().is_some_and(|known| known.same(context))
    }

    /// The bytes of all columns.
    pub fn bytes(&self) -> usize {
        self.entries.lock().bytes
    }

    /// A run's view of the cache, of at most `capacity` bytes.
    pub fn reader(self: &Arc<FileCache>, capacity: usize) -> RunFileCache {
        let run = self.runs.fetch_add(1, Relaxed) + 1;
        RunFileCache { cache: Arc::clone(self), run, capacity, lent: AtomicUsize::new(0), is_full: AtomicBool::new(false) }
    }

    /// The columns by file, the largest first.
    pub fn columns(&self) -> Vec<CachedColumn> {
        let mut columns: HashMap<(String, String, String), CachedColumn> = HashMap::new();
        let entries = self.entries.lock();
        let by_file = entries.by_file.iter();
        for (file, (range, column), entry) in by_file.flat_map(|(file, of)| of.iter().map(move |(key, entry)| (file, key, entry)))
        {
            let encoding = entry.values.first().map_or_else(String::new, |values| values.ty().layout.to_string());
            let (file, column) = (file.location.to_string(), column.name.clone());
            let row = columns.entry((file.clone(), column.clone(), encoding.clone())).or_insert_with(|| CachedColumn {
                file,
                column,
                encoding,
                row_groups: 0,
                rows: 0,
                bytes: 0,
                hits: 0,
            });
            row.row_groups += range.number;
            row.rows += entry.values.iter().map(DeviceColumn::len).sum::<usize>();
            row.bytes += entry.bytes;
            row.hits += entry.hits;
        }
        drop(entries);
        let mut columns: Vec<CachedColumn> = columns.into_values().collect();
        columns.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| (&a.file, &a.column).cmp(&(&b.file, &b.column))));
        columns
    }
}

impl Reclaim for FileCache {
    fn reclaimable(&self) -> usize {
        self.bytes().saturating_sub(self.lent.load(Relaxed))
    }

    fn reclaim(&self, bytes: usize) -> usize {
        let mut entries = self.entries.lock();
        let bytes = bytes.max(entries.bytes / FREED_SHARE);
        let taken = entries.take_oldest(bytes, None);
        drop(entries);
        taken.iter().map(|entry| entry.bytes).sum()
    }
}

impl ReleaseLost for FileCache {
    fn release_lost(&self) {
        let mut entries = self.entries.lock();
        let is_lost = entries.context.as_ref().is_some_and(Context::has_met_fatal_fault);
        let lost = is_lost.then(|| std::mem::take(&mut *entries));
        drop(entries);
        drop(lost);
    }
}

/// The cache as one run uses it. Its columns count as the run's memory until it ends.
#[derive(Debug)]
pub(crate) struct RunFileCache {
    cache: Arc<FileCache>,
    run: usize,
    capacity: usize,
    lent: AtomicUsize,
    /// Whether the run's own columns fill the cache.
    is_full: AtomicBool,
}

impl Drop for RunFileCache {
    fn drop(&mut self) {
        self.cache.lent.fetch_sub(*self.lent.get_mut(), Relaxed);
    }
}

impl RunFileCache {
    /// Whether the cache has a column of a file.
    pub fn knows(&self, file: &FileVersion) -> bool {
        self.cache.entries.lock().by_file.contains_key(file)
    }

    /// The values of a column in row groups, in parts.
    pub fn get(
        &self,
        file: &Arc<FileVersion>,
        row_groups: RowGroupRange,
        column: &FileColumn,
        ty: &ColumnType,
    ) -> Option<Arc<[DeviceColumn]>> {
        let mut entries = self.cache.entries.lock();
        let entry = entries.by_file.get_mut(file)?.get_mut(&(row_groups, column.clone()))?;
        if !entry.values.iter().all(|values| values.ty().as_ref() == ty) {
            return None;
        }
        let is_first = std::mem::replace(&mut entry.run, self.run) != self.run;
        entry.hits += 1;
        if is_first {
            self.lend(entry.bytes);
        }
        Some(Arc::clone(&entry.values))
    }

    /// Keeps the values of a column in row groups, if older columns leave room.
    pub fn insert(&self, file: &Arc<FileVersion>, row_groups: RowGroupRange, column: &FileColumn, values: Vec<DeviceColumn>) {
        if self.is_full.load(Relaxed) {
            return;
        }
        // Without the lock: an allocation beyond the limit has the cache drop columns.
        let Some(context) = self.cache.entries.lock().context.clone() else { return };
        if values.iter().any(|values| values.count_in_place(context.pool()).is_err()) {
            return;
        }
        let bytes = memory_bytes(&values);
        let mut entries = self.cache.entries.lock();
        let surplus = (entries.bytes + bytes).saturating_sub(self.capacity);
        let taken = match surplus {
            0 => Vec::new(),
            surplus => entries.take_oldest(surplus.max(self.capacity / FREED_SHARE), Some(self.run)),
        };
        let mut replaced = None;
        self.is_full.store(entries.bytes + bytes > self.capacity, Relaxed);
        if entries.context.is_some() && !self.is_full.load(Relaxed) {
            let of_file = entries.by_file.entry(Arc::clone(file)).or_default();
            replaced =
                of_file.insert((row_groups, column.clone()), Entry { values: values.into(), bytes, run: self.run, hits: 0 });
            entries.bytes = entries.bytes + bytes - replaced.as_ref().map_or(0, |entry| entry.bytes);
            self.lend(bytes);
        }
        drop(entries);
        drop((taken, replaced));
    }

    fn lend(&self, bytes: usize) {
        self.lent.fetch_add(bytes, Relaxed);
        self.cache.lent.fetch_add(bytes, Relaxed);
    }
}
