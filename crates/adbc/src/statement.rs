// SPDX-License-Identifier: Apache-2.0
//! Statements: SQL with parameters, or a bulk ingest.

use std::ffi::CStr;
use std::mem;
use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionStatement, OptionValue};
use adbc_core::{CancelHandle, Optionable, PartitionedResult, Statement};
use arrow::array::{ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use devicefusion::{check_nesting, with_enough_stack};

use crate::bind::Bound;
use crate::cancel::{CancelSignal, Canceller};
use crate::error::{error, from_datafusion, not_implemented};
use crate::ingest::Ingest;
use crate::reader::{BoxedReader, PlanReader};
use crate::runtime::DatabaseRuntime;

/// Statement option: the number of rows that the last execution has written, -1 if unknown.
/// `adbc_core` returns it from `execute_update` only.
pub(crate) const ROWS_AFFECTED: &CStr = c"devicefusion.rows_affected";

/// The query of a statement.
enum Query {
    None,
    Text(String),
    Prepared(Box<LogicalPlan>),
}

/// A statement of SQL, or rows to ingest.
pub struct DeviceFusionStatement {
    runtime: Arc<DatabaseRuntime>,
    session: SessionContext,
    connection_canceller: Canceller,
    canceller: Canceller,
    query: Query,
    bound: Option<Bound>,
    ingest: Ingest,
    /// Of the last execution.
    rows_affected: Option<i64>,
}

impl DeviceFusionStatement {
    pub(crate) fn new(
        runtime: Arc<DatabaseRuntime>,
        session: SessionContext,
        connection_canceller: Canceller,
    ) -> DeviceFusionStatement {
        DeviceFusionStatement {
            runtime,
            session,
            connection_canceller,
            canceller: Canceller::default(),
            query: Query::None,
            bound: None,
            ingest: Ingest::default(),
            rows_affected: None,
        }
    }

    fn signal(&self) -> CancelSignal {
        CancelSignal::of(&[&self.canceller, &self.connection_canceller])
    }

    /// Drops the query before, whose plan may be deep.
    fn set_query(&mut self, query: Query) {
        let last = mem::replace(&mut self.query, query);
        with_enough_stack(move || drop(last));
    }

    /// The prepared plan, or a new one.
    fn plan(&self, signal: &mut CancelSignal) -> Result<LogicalPlan> {
        let sql = match &self.query {
            Query::None => return Err(error(Status::InvalidState, "the statement has no query")),
            Query::Text(sql) => sql,
            Query::Prepared(plan) => return Ok(plan.as_ref().clone()),
        };
        let state = self.session.state();
        check_nesting(state.config_options(), sql).map_err(from_datafusion)?;
        let planned = async { state.create_logical_plan(sql).await };
        self.runtime.block_on(signal, planned)?.map_err(from_datafusion)
    }

    /// Runs the statement once for each bound row, or once if no rows are bound. The bound rows are
    /// used up, also where they do not fit the statement.
    fn run(&mut self) -> Result<PlanReader> {
        with_enough_stack(|| self.run_query())
    }

    fn run_query(&mut self) -> Result<PlanReader> {
        let bound = self.bound.take();
        let mut signal = self.signal();
        let plan = self.plan(&mut signal)?;
        let expected = plan.get_parameter_names().map_err(from_datafusion)?.len();
        let columns = bound.as_ref().map_or(0, |bound| bound.schema().fields().len());
        if columns != expected {
            return Err(error(Status::InvalidState, format!("the query has {expected} parameters, and {columns} are bound")));
        }
        let plans = match bound {
            None => vec![plan.clone()],
            Some(bound) => {
                let rows = self.runtime.block_on(&mut signal, bound.collect())??;
                devicefusion::with_rows_of_parameters(&plan, parameters(rows)?).map_err(from_datafusion)?
            }
        };
        PlanReader::begin(Arc::clone(&self.runtime), self.session.clone(), &plan, plans, signal)
    }

    /// Ingests the bound rows and returns how many there were.
    fn run_ingest(&mut self) -> Result<i64> {
        let mut signal = self.signal();
        let Some(bound) = self.bound.take() else {
            return Err(error(Status::InvalidState, "no rows are bound for the ingest"));
        };
        self.runtime.block_on(&mut signal, self.ingest.run(&self.session, bound))?
    }
}

impl Drop for DeviceFusionStatement {
    fn drop(&mut self) {
        self.set_query(Query::None);
    }
}

/// The parameter values of each bound row.
fn parameters(batches: Vec<RecordBatch>) -> Result<Vec<ParamValues>> {
    let mut rows = Vec::new();
    for batch in batches {
        for row in 0..batch.num_rows() {
            let value = |column: &ArrayRef| ScalarValue::try_from_array(column, row).map_err(from_datafusion);
            rows.push(ParamValues::from(batch.columns().iter().map(value).collect::<Result<Vec<_>>>()?));
        }
    }
    Ok(rows)
}

impl Optionable for DeviceFusionStatement {
    type Option = OptionStatement;

    fn set_option(&mut self, key: OptionStatement, value: OptionValue) -> Result<()> {
        self.ingest.set(key, value)
    }

    fn get_option_string(&self, key: OptionStatement) -> Result<String> {
        self.ingest.get(&key)
    }

    fn get_option_bytes(&self, key: OptionStatement) -> Result<Vec<u8>> {
        self.ingest.get(&key).map(String::into_bytes)
    }

    fn get_option_int(&self, key: OptionStatement) -> Result<i64> {
        if ROWS_AFFECTED.to_bytes() == key.as_ref().as_bytes() {
            return Ok(self.rows_affected.unwrap_or(-1));
        }
        Err(error(Status::NotFound, format!("the option {} is not a number", key.as_ref())))
    }

    fn get_option_double(&self, key: OptionStatement) -> Result<f64> {
        Err(error(Status::NotFound, format!("the option {} is not a number", key.as_ref())))
    }
}

impl Statement for DeviceFusionStatement {
    fn bind(&mut self, batch: RecordBatch) -> Result<()> {
        self.bound = Some(Bound::Batch(batch));
        Ok(())
    }

    fn bind_stream(&mut self, reader: Box<dyn RecordBatchReader + Send>) -> Result<()> {
        self.bound = Some(Bound::Stream(reader));
        Ok(())
    }

    fn execute(&mut self) -> Result<BoxedReader> {
        if self.ingest.has_target() {
            self.execute_update()?;
            return Ok(Box::new(RecordBatchIterator::new([], Arc::new(Schema::empty()))));
        }
        self.rows_affected = None;
        let reader = self.run()?;
        self.rows_affected = reader.rows_affected();
        Ok(Box::new(reader))
    }

    fn execute_update(&mut self) -> Result<Option<i64>> {
        self.rows_affected = None;
        self.rows_affected = if self.ingest.has_target() {
            Some(self.run_ingest()?)
        } else {
            let mut reader = self.run()?;
            while reader.advance()?.is_some() {}
            reader.rows_affected()
        };
        Ok(self.rows_affected)
    }

    fn execute_schema(&mut self) -> Result<Schema> {
        with_enough_stack(|| Ok(self.plan(&mut self.signal())?.schema().as_arrow().clone()))
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        not_implemented("a partitioned result")
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        let types = with_enough_stack(|| self.plan(&mut self.signal())?.get_parameter_types().map_err(from_datafusion))?;
        let mut types: Vec<_> = types.into_iter().collect();
        // $2 comes before $10.
        types.sort_by_key(|(name, _)| (name.trim_start_matches('$').parse().unwrap_or(usize::MAX), name.clone()));
        let field = |(name, data_type): (String, Option<DataType>)| Field::new(name, data_type.unwrap_or(DataType::Null), true);
        Ok(Schema::new(types.into_iter().map(field).collect::<Vec<_>>()))
    }

    fn prepare(&mut self) -> Result<()> {
        let plan = with_enough_stack(|| self.plan(&mut self.signal()))?;
        self.set_query(Query::Prepared(Box::new(plan)));
        Ok(())
    }

    fn set_sql_query(&mut self, query: impl AsRef<str>) -> Result<()> {
        // Here already: what follows needs the stack that the check asks for.
        check_nesting(self.session.state().config_options(), query.as_ref()).map_err(from_datafusion)?;
        self.set_query(Query::Text(query.as_ref().to_owned()));
        self.ingest = Ingest::default();
        Ok(())
    }

    fn set_substrait_plan(&mut self, _: impl AsRef<[u8]>) -> Result<()> {
        not_implemented("a Substrait plan")
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.canceller.clone())
    }
}
