// SPDX-License-Identifier: Apache-2.0
//! Statements: SQL with parameters, or a bulk ingest.

use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionStatement, OptionValue};
use adbc_core::{CancelHandle, Optionable, PartitionedResult, Statement};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt64Type};
use datafusion::common::{ParamValues, ScalarValue};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;

use crate::cancel::{Cancel, Cancelled};
use crate::connection::Rows;
use crate::error::{error, not_implemented, of_datafusion};
use crate::ingest::Ingest;
use crate::reader::Reader;
use crate::threads::Threads;

/// A query, a command, or rows to ingest.
pub struct DeviceFusionStatement {
    threads: Arc<Threads>,
    session: SessionContext,
    connection: Cancel,
    own: Cancel,
    sql: Option<String>,
    /// The plan of `sql` where it was prepared.
    prepared: Option<LogicalPlan>,
    bound: Vec<RecordBatch>,
    bound_schema: Option<SchemaRef>,
    ingest: Ingest,
}

impl DeviceFusionStatement {
    pub(crate) fn new(threads: Arc<Threads>, session: SessionContext, connection: Cancel) -> DeviceFusionStatement {
        DeviceFusionStatement {
            threads,
            session,
            connection,
            own: Cancel::default(),
            sql: None,
            prepared: None,
            bound: Vec::new(),
            bound_schema: None,
            ingest: Ingest::default(),
        }
    }

    fn cancelled(&self) -> Cancelled {
        Cancelled::by(&[&self.own, &self.connection])
    }

    /// The plan, prepared now if it was not.
    fn plan(&self, cancelled: &mut Cancelled) -> Result<LogicalPlan> {
        if let Some(plan) = &self.prepared {
            return Ok(plan.clone());
        }
        let Some(sql) = &self.sql else { return Err(error(Status::InvalidState, "the statement has no query")) };
        let planned = async { self.session.state().create_logical_plan(sql).await };
        self.threads.wait(cancelled, planned)?.map_err(of_datafusion)
    }

    /// The values of each bound row.
    fn parameters(&self, plan: &LogicalPlan) -> Result<Vec<ParamValues>> {
        let wanted = plan.get_parameter_names().map_err(of_datafusion)?.len();
        let columns = self.bound_schema.as_ref().map_or(0, |schema| schema.fields().len());
        if columns != wanted {
            return Err(error(Status::InvalidState, format!("the query has {wanted} parameters, and {columns} are bound")));
        }
        let mut rows = Vec::new();
        for batch in &self.bound {
            for row in 0..batch.num_rows() {
                let value = |column: &ArrayRef| ScalarValue::try_from_array(column, row).map_err(of_datafusion);
                rows.push(ParamValues::from(batch.columns().iter().map(value).collect::<Result<Vec<_>>>()?));
            }
        }
        Ok(rows)
    }

    /// Runs the query once for each row of parameters, once where there are none.
    fn run(&mut self) -> Result<Reader> {
        let mut cancelled = self.cancelled();
        let plan = self.plan(&mut cancelled)?;
        let parameters = self.parameters(&plan)?;
        let plans = match self.bound_schema.take() {
            None => vec![plan.clone()],
            Some(_) => {
                self.bound.clear();
                devicefusion::with_rows_of_parameters(&plan, parameters).map_err(of_datafusion)?
            }
        };
        Reader::begin(Arc::clone(&self.threads), self.session.clone(), plan.schema().as_arrow(), plans, cancelled)
    }
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
        Err(error(Status::NotFound, format!("the option {} is no number", key.as_ref())))
    }

    fn get_option_double(&self, key: OptionStatement) -> Result<f64> {
        Err(error(Status::NotFound, format!("the option {} is no number", key.as_ref())))
    }
}

impl Statement for DeviceFusionStatement {
    fn bind(&mut self, batch: RecordBatch) -> Result<()> {
        self.bound_schema = Some(batch.schema());
        self.bound = vec![batch];
        Ok(())
    }

    fn bind_stream(&mut self, reader: Box<dyn RecordBatchReader + Send>) -> Result<()> {
        let schema = reader.schema();
        self.bound = reader.map(|batch| Ok(batch?)).collect::<Result<_>>()?;
        self.bound_schema = Some(schema);
        Ok(())
    }

    fn execute(&mut self) -> Result<Rows> {
        if self.ingest.is_wanted() {
            self.execute_update()?;
            let none = Reader::begin(Arc::clone(&self.threads), self.session.clone(), &Schema::empty(), vec![], self.cancelled());
            return Ok(Box::new(none?));
        }
        Ok(Box::new(self.run()?))
    }

    fn execute_update(&mut self) -> Result<Option<i64>> {
        if self.ingest.is_wanted() {
            let mut cancelled = self.cancelled();
            let Some(schema) = self.bound_schema.take() else {
                return Err(error(Status::InvalidState, "no rows are bound to be ingested"));
            };
            let batches = std::mem::take(&mut self.bound);
            let rows = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
            self.threads.wait(&mut cancelled, self.ingest.run(&self.session, schema, batches))??;
            return Ok(Some(rows as i64));
        }
        let mut reader = self.run()?;
        let schema = reader.schema();
        let is_count =
            matches!(schema.fields().as_ref(), [field] if field.name() == "count" && *field.data_type() == DataType::UInt64);
        let mut count = 0;
        while let Some(batch) = reader.advance()? {
            if let Some(counts) = batch.columns().first().and_then(|column| total(column)).filter(|_| is_count) {
                count += counts;
            }
        }
        Ok(is_count.then_some(count))
    }

    fn execute_schema(&mut self) -> Result<Schema> {
        let plan = self.plan(&mut self.cancelled())?;
        Ok(plan.schema().as_arrow().clone())
    }

    fn execute_partitions(&mut self) -> Result<PartitionedResult> {
        not_implemented("a result in partitions")
    }

    fn get_parameter_schema(&self) -> Result<Schema> {
        let plan = self.plan(&mut self.cancelled())?;
        let mut types: Vec<_> = plan.get_parameter_types().map_err(of_datafusion)?.into_iter().collect();
        // $2 comes before $10.
        types.sort_by_key(|(name, _)| (name.trim_start_matches('$').parse().unwrap_or(usize::MAX), name.clone()));
        let field = |(name, data_type): (String, Option<DataType>)| Field::new(name, data_type.unwrap_or(DataType::Null), true);
        Ok(Schema::new(types.into_iter().map(field).collect::<Vec<_>>()))
    }

    fn prepare(&mut self) -> Result<()> {
        self.prepared = Some(self.plan(&mut self.cancelled())?);
        Ok(())
    }

    fn set_sql_query(&mut self, query: impl AsRef<str>) -> Result<()> {
        self.sql = Some(query.as_ref().to_owned());
        self.prepared = None;
        self.ingest = Ingest::default();
        Ok(())
    }

    fn set_substrait_plan(&mut self, _: impl AsRef<[u8]>) -> Result<()> {
        not_implemented("a Substrait plan")
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.own.clone())
    }
}

/// The sum of a column of counts.
fn total(column: &dyn Array) -> Option<i64> {
    Some(column.as_primitive_opt::<UInt64Type>()?.iter().flatten().sum::<u64>() as i64)
}
