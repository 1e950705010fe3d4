// SPDX-License-Identifier: Apache-2.0
//! One context of the C library, which the threads share.

use std::ptr;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use devicefusion_capi::config::devicefusion_context_config_set_memory_limit;
use devicefusion_capi::context::devicefusion_context_clear_caches;
use devicefusion_capi::query::{devicefusion_query_cancel, devicefusion_query_new, devicefusion_query_stream};

use super::{Engine, Session, cancelling};
use crate::support::{self, Context, Query};

struct CEngine(Context);

pub fn open(limit: usize) -> Box<dyn Engine> {
    let config = support::config();
    assert_eq!(devicefusion_context_config_set_memory_limit(config, limit), 0);
    Box::new(CEngine(Context::of(config)))
}

impl Engine for CEngine {
    fn connect(&self) -> Box<dyn Session + '_> {
        Box::new(CSession(&self.0))
    }

    fn report(&self) -> serde_json::Value {
        self.0.report()
    }

    fn trim(&self) {
        self.0.ok(devicefusion_context_clear_caches(self.0.raw));
    }
}

struct CSession<'a>(&'a Context);

impl Session for CSession<'_> {
    fn run(&mut self, sql: &str, cancel: Option<Duration>) -> Result<Vec<RecordBatch>, String> {
        let context = self.0;
        let (sql, mut raw) = (support::c(sql), ptr::null_mut());
        // SAFETY: a C string, and a pointer for the query.
        if unsafe { devicefusion_query_new(context.raw, sql.as_ptr(), &raw mut raw) } != 0 {
            return Err(context.error().unwrap());
        }
        let query = Query { context, raw };
        let address = raw.addr();
        let cancel_query = move || assert_eq!(devicefusion_query_cancel(ptr::without_provenance_mut(address)), 0);
        cancelling(cancel, cancel_query, || {
            let mut stream = FFI_ArrowArrayStream::empty();
            // SAFETY: a pointer for the stream.
            if unsafe { devicefusion_query_stream(query.raw, &raw mut stream) } != 0 {
                return Err(context.error().unwrap());
            }
            let batches = ArrowArrayStreamReader::try_new(stream).and_then(|reader| reader.collect());
            batches.map_err(|error| error.to_string())
        })
    }
}
