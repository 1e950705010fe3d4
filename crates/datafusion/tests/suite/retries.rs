// SPDX-License-Identifier: Apache-2.0
//! Queries at once, whose memory suffices for one of them.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::prelude::SessionContext;
use device::UnifiedMemory;
use futures::future::try_join_all;

use crate::harness::{assert_returned, block_on, ordered_lines, plain, text};
use crate::spill::{ROWS, lines, register, session};

/// A window over all rows, which never spills.
const SQL: &str = "SELECT value, sum(value) OVER () AS total FROM t";

/// Enough for one such query.
const LIMIT: usize = 9 << 20;

fn numbers() -> RecordBatch {
    let numbers = Int64Array::from_iter_values((0..ROWS as i64).map(|row| row * 7 % 1_000_003));
    RecordBatch::try_from_iter([("value", Arc::new(numbers) as ArrayRef)]).unwrap()
}

async fn sorted_lines(ctx: &SessionContext) -> datafusion::common::Result<Vec<String>> {
    let mut lines = ordered_lines(&ctx.sql(SQL).await?.collect().await?);
    lines.sort();
    Ok(lines)
}

#[test]
fn a_query_waits_for_the_memory_of_others() {
    block_on(async {
        let (rows, folder) = (numbers(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        let mut expected = lines(&host, SQL).await;
        expected.sort();
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (ctx, context) = session(LIMIT, unified, folder.path(), None);
            register(&ctx, "t", &rows);
            // A query that holds most of the memory.
            let held = (context.queue().unwrap().alloc(LIMIT / 4 * 3).unwrap(), context.begin_query(1));
            // It does nothing, so no other query waits for it long.
            let error = text(&sorted_lines(&ctx).await.unwrap_err());
            assert!(error.contains("raise device.memory_bytes or run fewer queries at once"), "{error}");
            let waiting = tokio::spawn({
                let ctx = ctx.clone();
                async move { sorted_lines(&ctx).await }
            });
            tokio::time::sleep(Duration::from_millis(200)).await;
            assert!(!waiting.is_finished());
            drop(held);
            assert!(waiting.await.unwrap().unwrap() == expected, "unified memory {unified:?}");
            let at_once = try_join_all((0..8).map(|_| sorted_lines(&ctx))).await;
            assert!(at_once.unwrap().into_iter().all(|lines| lines == expected), "unified memory {unified:?}");
            assert_returned(&context, 0);
        }
    });
}
