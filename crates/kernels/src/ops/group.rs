// SPDX-License-Identifier: Apache-2.0
//! Aggregation by keys.
use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::Queue;
use super::{Input, Options};
use crate::expr::{Aggregate, Expr};
use crate::{Error, Result};
/// Aggregation by keys.
#[derive(Debug, Clone)]
pub struct GroupBy { schema: SchemaRef, types: Vec<ColumnType> }
/// What has been aggregated so far.
#[derive(Debug)]
pub struct GroupByState;
#[allow(missing_docs, clippy::unused_async)]
impl GroupBy {
    pub fn try_new(input: Input, _keys: Vec<(Expr, Field)>, _aggregates: Vec<(Aggregate, Field)>, _options: Options) -> Result<GroupBy> {
        let _ = input;
        Err(Error::Unsupported("GROUP BY has no device form yet".into()))
    }
    pub fn schema(&self) -> &SchemaRef { &self.schema }
    pub fn output_types(&self) -> &[ColumnType] { &self.types }
    pub fn kernel_text(&self) -> Vec<(String, String)> { vec![] }
    pub fn programs(&self) -> Vec<String> { vec![] }
    pub fn start(&self) -> GroupByState { GroupByState }
    pub async fn push(&self, _queue: &Queue, _state: &mut GroupByState, _batch: &DeviceBatch) -> Result<()> { Ok(()) }
    pub async fn finish(&self, _queue: &Queue, _state: GroupByState) -> Result<Vec<DeviceBatch>> { Ok(vec![]) }
}
