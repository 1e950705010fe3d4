// SPDX-License-Identifier: Apache-2.0
//! Sources of stream tables: one stream, or a new stream for each scan.

use std::fmt;
use std::pin::Pin;

use arrow::datatypes::SchemaRef;
use arrow_device::ImportedArray;
use datafusion::common::{Result, exec_err};
use futures::Stream;
use parking_lot::Mutex;

/// Device arrays of another library.
pub(crate) type ImportedArrayStream = Pin<Box<dyn Stream<Item = arrow_device::Result<ImportedArray>> + Send>>;

/// Makes a new stream for each scan.
pub(super) type StreamFactory = Box<dyn Fn() -> Result<ImportedArrayStream> + Send + Sync>;

/// The arrays behind a table.
pub(crate) struct Source {
    /// Name in EXPLAIN.
    name: &'static str,
    schema: SchemaRef,
    arrays: Arrays,
}

enum Arrays {
    /// `None` after they were read.
    Once(Mutex<Option<ImportedArrayStream>>),
    PerScan(StreamFactory),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("name", &self.name).field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Source {
    pub fn once(name: &'static str, schema: SchemaRef, arrays: ImportedArrayStream) -> Self {
        Source { name, schema, arrays: Arrays::Once(Mutex::new(Some(arrays))) }
    }

    pub fn each(name: &'static str, schema: SchemaRef, factory: StreamFactory) -> Self {
        Source { name, schema, arrays: Arrays::PerScan(factory) }
    }

    /// Name in EXPLAIN.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The schema of all arrays.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The arrays of one scan.
    ///
    /// # Errors
    /// The factory's; or if the one stream was read before.
    pub fn open(&self) -> Result<ImportedArrayStream> {
        match &self.arrays {
            Arrays::PerScan(factory) => factory(),
            Arrays::Once(stream) => match stream.lock().take() {
                Some(stream) => Ok(stream),
                None => exec_err!(
                    "the rows of this {} have been read, and it gives them once; make the table from a factory of streams, or \
                     CREATE TABLE device.t AS SELECT * of it, to read them again",
                    self.name
                ),
            },
        }
    }
}
