// SPDX-License-Identifier: Apache-2.0
//! TPC-H data in Parquet, generated once per scale factor.
//!
//! A table is one file. Threads generate and encode its row groups, which are independent, so the
//! bytes do not depend on the number of cores. The folder gets its final name when it is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::Result;
use indicatif::{ProgressBar, ProgressStyle};
use parquet::arrow::arrow_writer::{ArrowColumnChunk, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator, RegionGenerator,
    SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

/// The eight tables, largest first.
pub const TABLES: [&str; 8] = ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"];

const ROW_GROUP_ROWS: f64 = 1_048_576.0;
const BATCH_ROWS: usize = 32_768;

// No group of its own: the arguments are flattened into those of the commands.
#[derive(clap::Args)]
#[group(skip)]
pub struct DataArguments {
    /// Scale factor: 1 is about 1 GB of text, 6 million rows in lineitem.
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// Folder of the generated data [default: data/tpch-sfSCALE].
    #[arg(long)]
    pub data: Option<PathBuf>,
}

/// Generates the data unless its folder exists. Returns the folder.
pub fn run(arguments: &DataArguments) -> Result<PathBuf> {
    let folder = arguments.data.clone().unwrap_or_else(|| PathBuf::from(format!("data/tpch-sf{}", arguments.scale)));
    if !folder.is_dir() {
        generate(&folder, arguments.scale)?;
    }
    Ok(folder)
}

fn generate(folder: &Path, scale: f64) -> Result<()> {
    let begin = Instant::now();
    let total: f64 = TABLES.iter().map(|table| base_rows(table) * scale_of(table, scale)).sum();
    let progress = ProgressBar::new(total as u64);
    if let Ok(style) = ProgressStyle::with_template("{msg} {bar:40} {percent:>3} %  {human_pos} rows  {eta}") {
        progress.set_style(style);
    }
    let message = format!("generating TPC-H scale {scale} into {}", folder.display());
    if !std::io::stderr().is_terminal() {
        eprintln!("{message}");
    }
    progress.set_message(message);

    let unfinished = Unfinished::create(folder)?;
    write_tables(&unfinished.0, scale, &progress)?;
    progress.finish_and_clear();
    // Another process may have generated the same data meanwhile.
    if let Err(error) = fs::rename(&unfinished.0, folder)
        && !folder.is_dir()
    {
        return Err(error.into());
    }
    eprintln!("generated {} in {:.1} s", folder.display(), begin.elapsed().as_secs_f64());
    Ok(())
}

/// A temporary folder beside the final one, removed on drop unless renamed.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Unfinished {
    fn create(folder: &Path) -> Result<Self> {
        let mut name = folder.as_os_str().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let path = PathBuf::from(name);
        fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

/// A row group to generate.
struct Part {
    table: usize,
    index: usize,
}

fn write_tables(folder: &Path, scale: f64, progress: &ProgressBar) -> Result<()> {
    let parts_of = TABLES.map(|table| (base_rows(table) * scale_of(table, scale) / ROW_GROUP_ROWS).ceil().max(1.0) as usize);
    let mut parts = Vec::new();
    let mut writers = Vec::new();
    let mut factories = Vec::new();
    for (table, name) in TABLES.iter().enumerate() {
        parts.extend((0..parts_of[table]).map(|index| Part { table, index }));
        let schema = schema_of(name);
        let mut properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        add_encoded_arrow_schema_to_metadata(&schema, &mut properties);
        let parquet_schema = ArrowSchemaConverter::new().convert(&schema)?;
        let file = File::create(folder.join(format!("{name}.parquet")))?;
        let writer = SerializedFileWriter::new(file, parquet_schema.root_schema_ptr(), Arc::new(properties))?;
        factories.push(ArrowRowGroupWriterFactory::new(&writer, schema));
        writers.push(RowGroups { writer, next: 0, early: BTreeMap::new() });
    }

    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, |cores| cores.get());
    thread::scope(|scope| {
        // The bound limits the row groups that wait for a slow disk.
        let (sender, receiver) = mpsc::sync_channel(workers);
        for _ in 0..workers {
            let (sender, parts, next, factories) = (sender.clone(), &parts, &next, &factories);
            scope.spawn(move || {
                while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let chunks = encode(&factories[part.table], part, parts_of[part.table], scale, progress);
                    if sender.send((part, chunks)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for (part, chunks) in receiver {
            writers[part.table].push(part.index, chunks?)?;
        }
        Ok::<_, datafusion::error::DataFusionError>(())
    })?;
    for row_groups in writers {
        row_groups.writer.close()?;
    }
    Ok(())
}

/// Generates and encodes one row group.
fn encode(
    factory: &ArrowRowGroupWriterFactory,
    part: &Part,
    parts: usize,
    scale: f64,
    progress: &ProgressBar,
) -> Result<Vec<ArrowColumnChunk>> {
    let name = TABLES[part.table];
    let schema = schema_of(name);
    let mut columns = factory.create_column_writers(part.index)?;
    for batch in batches_of(name, scale, part.index as i32 + 1, parts as i32) {
        let batch = batch?;
        for ((field, array), column) in schema.fields().iter().zip(batch.columns()).zip(&mut columns) {
            for leaf in compute_leaves(field, array)? {
                column.write(&leaf)?;
            }
        }
        progress.inc(batch.num_rows() as u64);
    }
    columns.into_iter().map(|column| Ok(column.close()?)).collect()
}

/// A table's file. Row groups that are ready too early wait in `early`.
struct RowGroups {
    writer: SerializedFileWriter<File>,
    next: usize,
    early: BTreeMap<usize, Vec<ArrowColumnChunk>>,
}

impl RowGroups {
    fn push(&mut self, index: usize, chunks: Vec<ArrowColumnChunk>) -> Result<()> {
        self.early.insert(index, chunks);
        while let Some(chunks) = self.early.remove(&self.next) {
            let mut row_group = self.writer.next_row_group()?;
            for chunk in chunks {
                chunk.append_to_row_group(&mut row_group)?;
            }
            row_group.close()?;
            self.next += 1;
        }
        Ok(())
    }
}

/// Rows at scale factor 1.
fn base_rows(table: &str) -> f64 {
    match table {
        "lineitem" => 6_001_215.0,
        "orders" => 1_500_000.0,
        "partsupp" => 800_000.0,
        "part" => 200_000.0,
        "customer" => 150_000.0,
        "supplier" => 10_000.0,
        "nation" => 25.0,
        _ => 5.0,
    }
}

fn scale_of(table: &str, scale: f64) -> f64 {
    if matches!(table, "nation" | "region") { 1.0 } else { scale }
}

fn schema_of(table: &str) -> SchemaRef {
    match table {
        "lineitem" => LineItemArrow::schema_ref(),
        "orders" => OrderArrow::schema_ref(),
        "partsupp" => PartSuppArrow::schema_ref(),
        "part" => PartArrow::schema_ref(),
        "customer" => CustomerArrow::schema_ref(),
        "supplier" => SupplierArrow::schema_ref(),
        "nation" => NationArrow::schema_ref(),
        _ => RegionArrow::schema_ref(),
    }
}

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

/// Part `part` of `parts` of a table, counted from 1.
fn batches_of(table: &str, scale: f64, part: i32, parts: i32) -> Batches {
    match table {
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
        _ => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, parts)).with_batch_size(BATCH_ROWS)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_scale_is_written_whole_and_once() {
        let parent = std::env::temp_dir().join(format!("devicefusion-bench-{}", std::process::id()));
        let arguments = DataArguments { scale: 0.001, data: Some(parent.join("sf")) };
        let folder = run(&arguments).unwrap();
        for table in TABLES {
            let file = File::open(folder.join(format!("{table}.parquet"))).unwrap();
            let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            assert_eq!(reader.schema(), &schema_of(table));
            let rows = reader.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum::<usize>();
            let expected = base_rows(table) * scale_of(table, 0.001);
            assert!((rows as f64 - expected).abs() <= expected * 0.01, "{table}: {rows} rows");
        }
        run(&arguments).unwrap();
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 1, "no temporary folder is left");
        fs::remove_dir_all(parent).unwrap();
    }
}
