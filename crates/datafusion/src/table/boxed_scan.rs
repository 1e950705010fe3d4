// SPDX-License-Identifier: Apache-2.0
//! The method `scan` of tables that hold expressions, plans or sessions.

/// Writes `TableProvider::scan` without `async`, for the reason in CONTRIBUTING.md. The body is a
/// boxed future.
macro_rules! boxed_scan {
    (|$table:ident, $session:ident, $projection:ident, $filters:ident, $limit:ident| $future:expr) => {
        fn scan<'table, 'session, 'columns, 'filters, 'scan>(
            &'table self,
            $session: &'session dyn Session,
            $projection: Option<&'columns Vec<usize>>,
            $filters: &'filters [Expr],
            $limit: Option<usize>,
        ) -> BoxFuture<'scan, Result<Arc<dyn ExecutionPlan>>>
        where
            'table: 'scan,
            'session: 'scan,
            'columns: 'scan,
            'filters: 'scan,
            Self: 'scan,
        {
            let $table = self;
            $future
        }
    };
}
pub(crate) use boxed_scan;
