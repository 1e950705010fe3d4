// SPDX-License-Identifier: Apache-2.0
//! The ways to load a table.

use std::fs::File;
use std::path::{Path, PathBuf};

use adbc_core::options::{IngestMode, OptionDatabase, OptionStatement, OptionValue};
use adbc_core::{Connection, Database, Driver, Optionable, Statement};
use clap::ValueEnum;
use datafusion::error::{DataFusionError, Result};
use devicefusion_adbc::{DeviceFusionDriver, DeviceFusionStatement};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

use crate::engine::{Engine, Setting};
use crate::process::{SessionArguments, value_name_of};

use super::meter::{Memory, Meter};

/// Rows of an ingested batch.
const BATCH_ROWS: usize = 65_536;

/// A query that loads the drivers and their compiler.
const WARM_UP: &str = "SELECT sum(value) FROM generate_series(1, 100000)";

/// A way to load lineitem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// CREATE TABLE … AS of plain DataFusion.
    Host,
    /// CREATE TABLE device.l AS … by SessionContext::sql, which collects the rows first.
    Sql,
    /// The same by devicefusion::execute_logical_plan, as in the shell and the C library.
    Stream,
    /// The same by the ADBC driver.
    Adbc,
    /// Bulk ingest by the ADBC driver. The reader of Parquet is the client.
    Ingest,
}

/// The load of one process: its way, file, wait and session.
#[derive(clap::Args)]
pub struct LoadArguments {
    #[arg(long)]
    pub way: Way,
    #[arg(long)]
    pub file: PathBuf,
    #[arg(long)]
    pub settle: u64,
    #[command(flatten)]
    pub session: SessionArguments,
}

impl LoadArguments {
    pub fn command_line(&self) -> Vec<String> {
        let (file, settle) = (self.file.display().to_string(), self.settle.to_string());
        let arguments = ["load", "--way", &value_name_of(&self.way), "--file", &file, "--settle", &settle].map(str::to_string);
        [arguments.to_vec(), self.session.command_line()].concat()
    }

    /// Loads the table.
    pub async fn measure(&self) -> Result<Value> {
        let rows = reader(&self.file)?.metadata().file_metadata().num_rows();
        let Memory { seconds, base, peak, settled } = match self.way {
            Way::Host | Way::Sql | Way::Stream => self.in_session().await?,
            // ADBC's calls block, which a thread of the runtime must not do.
            Way::Adbc | Way::Ingest => match std::thread::scope(|scope| scope.spawn(|| self.through_adbc()).join()) {
                Ok(memory) => memory?,
                Err(panic) => std::panic::resume_unwind(panic),
            },
        };
        let row_bytes = |bytes: u64| (bytes as f64 - base as f64) / rows as f64;
        Ok(json!({
            "way": value_name_of(&self.way),
            "rows": rows,
            "seconds": seconds,
            "base_bytes": base,
            "peak_bytes": peak,
            "settled_bytes": settled,
            "peak_bytes_per_row": row_bytes(peak),
            "settled_bytes_per_row": row_bytes(settled),
        }))
    }

    async fn in_session(&self) -> Result<Memory> {
        let SessionArguments { device, partitions, settings } = &self.session;
        let engine = match self.way {
            Way::Host => Engine::plain(*partitions).await?,
            _ => Engine::device(device, *partitions, settings).await?,
        };
        engine.register("lineitem", &self.file).await?;
        let session = engine.session();
        session.sql(WARM_UP).await?.collect().await?;
        let meter = Meter::start()?;
        let schema = if self.way == Way::Host { "resident" } else { "device" };
        let sql = format!("CREATE TABLE {schema}.l AS SELECT * FROM parquet.lineitem");
        match self.way {
            Way::Stream => {
                let plan = session.state().create_logical_plan(&sql).await?;
                devicefusion::execute_logical_plan(session, plan).await?;
            }
            _ => _ = session.sql(&sql).await?,
        }
        meter.finish(self.settle)
    }

    fn through_adbc(&self) -> Result<Memory> {
        let mut statement = self.statement().map_err(adbc_error)?;
        let file = self.file.display().to_string().replace('\'', "''");
        let external = format!("CREATE EXTERNAL TABLE lineitem STORED AS PARQUET LOCATION '{file}'");
        for sql in [external.as_str(), WARM_UP] {
            statement.set_sql_query(sql).map_err(adbc_error)?;
            statement.execute().map_err(adbc_error)?.collect::<Result<Vec<_>, _>>()?;
        }
        let meter = Meter::start()?;
        if self.way == Way::Ingest {
            let reader = reader(&self.file)?.with_batch_size(BATCH_ROWS).build()?;
            let target: [(_, OptionValue); 3] = [
                (OptionStatement::TargetTable, "l".into()),
                (OptionStatement::TargetDbSchema, "device".into()),
                (OptionStatement::IngestMode, IngestMode::Create.into()),
            ];
            for (key, value) in target {
                statement.set_option(key, value).map_err(adbc_error)?;
            }
            statement.bind_stream(Box::new(reader)).map_err(adbc_error)?;
        } else {
            statement.set_sql_query("CREATE TABLE device.l AS SELECT * FROM lineitem").map_err(adbc_error)?;
        }
        statement.execute_update().map_err(adbc_error)?;
        meter.finish(self.settle)
    }

    /// A statement of a new database.
    fn statement(&self) -> adbc_core::error::Result<DeviceFusionStatement> {
        let SessionArguments { device, partitions, settings } = &self.session;
        let own = [("device.selector", device.clone()), ("datafusion.execution.target_partitions", partitions.to_string())];
        let own = own.map(|(key, value)| (OptionDatabase::from(key), OptionValue::from(value)));
        let set = |Setting { key, value }: &Setting| (OptionDatabase::from(key.as_str()), OptionValue::from(value.as_str()));
        let options = own.into_iter().chain(settings.iter().map(set));
        DeviceFusionDriver::default().new_database_with_opts(options)?.new_connection()?.new_statement()
    }
}

fn reader(file: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    Ok(ParquetRecordBatchReaderBuilder::try_new(File::open(file)?)?)
}

fn adbc_error(error: adbc_core::error::Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}
