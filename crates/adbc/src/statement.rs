// SPDX-License-Identifier: Apache-2.0
//! Statements: SQL with parameters, or a bulk ingest.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::mem;
use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionStatement, OptionValue};
use adbc_core::{CancelHandle, Optionable, PartitionedResult};
use arrow::array::{RecordBatch, RecordBatchIterator, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use devicefusion::{check_nesting, parse_statements, with_enough_stack};

use crate::bind::Bound;
use crate::cancel::{CancelSignal, Canceller};
use crate::error::{error, from_datafusion, not_implemented};
use crate::ingest::Ingest;
use crate::parameters::Binding;
use crate::reader::{BoxedReader, PlanReader};
use crate::runtime::DatabaseRuntime;

/// Statement option: the number of rows written by the last execution, -1 if unknown.
/// `adbc_core` returns it from `execute_update` only.
pub(crate) const ROWS_AFFECTED: &CStr = c"devicefusion.rows_affected";

/// Statement option of ADBC 1.2, which Python's driver manager sets for parameters in a dictionary.
const BIND_BY_NAME: &str = "adbc.statement.bind_by_name";

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
    binding: Binding,
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
            binding: Binding::default(),
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

    /// The prepared plan, or a new one. Of several statements it is the last one's, and `run` gets
    /// the others.
    fn plan(&self, signal: &CancelSignal, mut run: impl FnMut(Statement) -> Result<()>) -> Result<LogicalPlan> {
        if let Query::Prepared(plan) = &self.query {
            return Ok(plan.as_ref().clone());
        }
        let mut statements = self.statements()?;
        let last = statements.pop_back().ok_or_else(|| error(Status::InvalidArguments, "the query has no statement"))?;
        statements.into_iter().try_for_each(&mut run)?;
        self.planned(signal, last)
    }

    /// The statements of the query's text.
    fn statements(&self) -> Result<VecDeque<Statement>> {
        let Query::Text(sql) = &self.query else { return Err(error(Status::InvalidState, "the statement has no query")) };
        let state = self.session.state();
        check_nesting(state.config_options(), sql).map_err(from_datafusion)?;
        parse_statements(state.config_options(), sql).map_err(from_datafusion)
    }

    /// The plan of the only statement.
    fn only_plan(&self) -> Result<LogicalPlan> {
        self.plan(&self.signal(), |_| Err(error(Status::InvalidState, "several statements have no schema before they run")))
    }

    fn planned(&self, signal: &CancelSignal, statement: Statement) -> Result<LogicalPlan> {
        let state = self.session.state();
        let planned = async { state.statement_to_plan(statement).await };
        self.runtime.block_on(&mut signal.clone(), planned)?.map_err(from_datafusion)
    }

    /// Runs the statement once for each bound row, or once if no rows are bound. The bound rows are
    /// used up, also where they do not fit the statement.
    ///
    /// Of several statements the others run to their end first. Bound rows are the last one's.
    fn run(&mut self) -> Result<PlanReader> {
        with_enough_stack(|| self.run_query())
    }

    fn run_query(&mut self) -> Result<PlanReader> {
        let bound = self.bound.take();
        let mut signal = self.signal();
        let plan = self.plan(&signal, |statement| {
            let plan = self.planned(&signal, statement)?;
            let mut reader = self.reader(&plan, vec![plan.clone()], signal.clone())?;
            while reader.advance()?.is_some() {}
            Ok(())
        })?;
        let names = plan.get_parameter_names().map_err(from_datafusion)?;
        let columns = bound.as_ref().map_or_else(|| Arc::new(Schema::empty()), Bound::schema);
        self.binding.check(&names, &columns)?;
        let plans = match bound {
            None => vec![plan.clone()],
            Some(bound) => {
                let rows = self.runtime.block_on(&mut signal, bound.collect())??;
                let rows = self.binding.rows(&rows)?;
                devicefusion::with_rows_of_parameters(&plan, rows).map_err(from_datafusion)?
            }
        };
        self.reader(&plan, plans, signal)
    }

    fn reader(&self, plan: &LogicalPlan, plans: Vec<LogicalPlan>, signal: CancelSignal) -> Result<PlanReader> {
        PlanReader::begin(Arc::clone(&self.runtime), self.session.clone(), plan, plans, signal)
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

impl Optionable for DeviceFusionStatement {
    type Option = OptionStatement;

    fn set_option(&mut self, key: OptionStatement, value: OptionValue) -> Result<()> {
        if key.as_ref() != BIND_BY_NAME {
            return self.ingest.set(key, value);
        }
        match bool::try_from(&value) {
            Ok(by_name) => self.binding = Binding::of(by_name),
            Err(refusal) => {
                // The rows were bound for this option.
                self.bound = None;
                return Err(refusal);
            }
        }
        Ok(())
    }

    fn get_option_string(&self, key: OptionStatement) -> Result<String> {
        if key.as_ref() == BIND_BY_NAME {
            return Ok((self.binding == Binding::ByName).to_string());
        }
        self.ingest.get(&key)
    }

    fn get_option_bytes(&self, key: OptionStatement) -> Result<Vec<u8>> {
        self.get_option_string(key).map(String::into_bytes)
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

impl adbc_core::Statement for DeviceFusionStatement {
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
        with_enough_stack(|| Ok(self.only_plan()?.schema().as_arrow().clone()))
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        not_implemented("a partitioned result")
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        let types = with_enough_stack(|| self.only_plan()?.get_parameter_types().map_err(from_datafusion))?;
        let mut types: Vec<_> = types.into_iter().collect();
        // $2 comes before $10.
        types.sort_by_key(|(name, _)| (name.trim_start_matches('$').parse().unwrap_or(usize::MAX), name.clone()));
        let field = |(name, data_type): (String, Option<DataType>)| Field::new(name, data_type.unwrap_or(DataType::Null), true);
        Ok(Schema::new(types.into_iter().map(field).collect::<Vec<_>>()))
    }

    fn prepare(&mut self) -> Result<()> {
        // Each of several statements may need what those before have done, so they stay a text.
        if matches!(self.query, Query::Text(_)) && with_enough_stack(|| self.statements())?.len() > 1 {
            return Ok(());
        }
        let plan = with_enough_stack(|| self.only_plan())?;
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
