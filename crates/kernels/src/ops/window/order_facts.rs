// SPDX-License-Identifier: Apache-2.0
//! Order facts: columns that functions read, computed from the rows in the order of a column's
//! values.
//!
//! - The nearest row of the partition with the same value, for DISTINCT.
//! - The rank of a value among all, for MIN and MAX of strings and for quantiles.
//! - The rank of a sketch's register before a row, for approx_distinct; from the order of the
//!   registers.
//!
//! Sorts are stable, so that the rows of a partition with one value or register are adjacent.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::bounds::same_peer;
use super::frame::PartitionIndex;
use crate::codegen::{Params, RowWriter, Value};
use crate::expr::Expr;
use crate::function::Function;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::ops::launch::{Launch, NamedArgs};
use crate::ops::{Input, Options, Sort, SortKey};
use crate::prelude::Section;
use crate::{Error, Result};

/// A fact of a row, as a u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OrderFact {
    /// One more than the number of the nearest row before in its partition with the same value; 0
    /// without one.
    Before,
    /// The same for the nearest row after it.
    After,
    /// The position of the row, from 0, in the order of the values of all rows.
    Rank,
    /// The rank of the register for the row's value in the sketch of approx_distinct, before the
    /// row; at most the value's own. One work-item goes along all rows of a partition with the
    /// register.
    RegisterBefore,
}

impl OrderFact {
    /// The sort key, over column `column`.
    fn key(self, column: usize) -> Expr {
        match self {
            OrderFact::RegisterBefore => of_hash(Function::SketchRegister, DataType::UInt16, column),
            OrderFact::Before | OrderFact::After | OrderFact::Rank => Expr::Column(column),
        }
    }
}

/// The columns of facts, after those of the input.
#[derive(Debug, Clone)]
pub(super) struct OrderFacts {
    /// Position of the first fact.
    first: usize,
    sorts: Vec<ValueSort>,
    facts: Vec<FactColumn>,
}

/// A sort of the rows by a key over one column.
#[derive(Debug, Clone)]
struct ValueSort {
    column: usize,
    key: Expr,
    sort: Sort,
}

/// A fact, with the positions of its sort and of its kernel.
#[derive(Debug, Clone)]
struct FactColumn {
    fact: OrderFact,
    sort: usize,
    kernel: usize,
}

impl OrderFacts {
    /// No facts yet, after so many columns.
    pub fn after(columns: usize) -> OrderFacts {
        OrderFacts { first: columns, sorts: vec![], facts: vec![] }
    }

    /// The type of the columns.
    pub fn ty(nullable: bool) -> ColumnType {
        ColumnType { data_type: DataType::UInt32, nullable, layout: Layout::Fixed(Carrier::U32), bounds: None }
    }

    /// Position of the fact of column `column`, a new one unless it exists already. Appends the
    /// kernel of a new fact.
    pub fn add(
        &mut self,
        fact: OrderFact,
        column: usize,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<usize> {
        let key = fact.key(0);
        let sort = match self.sorts.iter().position(|known| (known.column, &known.key) == (column, &key)) {
            Some(known) => known,
            None => {
                let sort = sort(column, key.clone(), types, options)?;
                self.sorts.push(ValueSort { column, key, sort });
                self.sorts.len() - 1
            }
        };
        let known = self.facts.iter().position(|known| (known.fact, known.sort) == (fact, sort));
        if known.is_none() {
            self.facts.push(FactColumn { fact, sort, kernel: kernels.len() });
            let name = self.facts.len().to_string();
            kernels.push(match fact {
                OrderFact::Rank => ranks_kernel(&name, options),
                OrderFact::RegisterBefore => registers_kernel(&name, column, types, options)?,
                OrderFact::Before => occurrences_kernel(&name, false, column, types, options)?,
                OrderFact::After => occurrences_kernel(&name, true, column, types, options)?,
            });
        }
        Ok(self.first + known.unwrap_or(self.facts.len() - 1))
    }

    /// Whether there is no fact.
    pub fn is_empty(&self) -> bool {
        self.facts.is_empty()
    }

    /// Number of the orders.
    pub fn sort_count(&self) -> usize {
        self.sorts.len()
    }

    /// Position of the order that a fact is from.
    pub fn order_of(&self, fact: usize) -> usize {
        self.facts.get(fact - self.first).map_or(0, |fact| fact.sort)
    }

    /// Types of the columns.
    pub fn types(&self) -> impl Iterator<Item = ColumnType> {
        self.facts.iter().map(|_| Self::ty(false))
    }

    /// Names and sources of the kernels that sort.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        self.sorts.iter().flat_map(|values| values.sort.kernel_source()).collect()
    }

    /// The kernel sources that sort, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        self.sorts.iter().flat_map(|values| values.sort.programs()).collect()
    }

    /// Row numbers in the order of each sort, u32 each.
    pub async fn orders(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Vec<Buffer>> {
        let mut orders = Vec::with_capacity(self.sorts.len());
        for ValueSort { column, sort, .. } in &self.sorts {
            let values = batch.columns().get(*column).ok_or_else(|| Error::Internal(format!("no column {column}")))?;
            let schema = Arc::new(key_schema(&values.ty().data_type));
            let values = DeviceBatch::try_new(schema, vec![values.clone()], batch.num_rows())?;
            orders.push(sort.rows(queue, &values).await?);
        }
        Ok(orders)
    }

    /// The columns. `orders`: the row numbers of each sort.
    pub fn columns(
        &self,
        launch: &Launch<'_>,
        batch: &DeviceBatch,
        partitions: &PartitionIndex,
        orders: &[Buffer],
    ) -> Result<Vec<DeviceColumn>> {
        let n = batch.num_rows();
        let ty = Arc::new(Self::ty(false));
        let column = |FactColumn { fact, sort, kernel }: &FactColumn| {
            let values = launch.queue.alloc(n * size_of::<u32>())?;
            let mut named: NamedArgs<'_> =
                vec![(ROWS, Arg::Buffer(&orders[*sort])), (FACT, Arg::Buffer(&values)), ("n", Arg::U64(n as u64))];
            match fact {
                OrderFact::Rank => {}
                OrderFact::Before | OrderFact::After | OrderFact::RegisterBefore => {
                    named.push(("parts", Arg::Buffer(&partitions.parts)));
                }
            }
            launch.run_on(*kernel, launch.grid(n), batch.columns(), None, named)?;
            launch.primitives.column(&ty, n, vec![values], None, None)
        };
        self.facts.iter().map(column).collect()
    }
}

/// Parameter of the row numbers in the order of their values.
pub(super) const ROWS: &str = "sorted_rows";
/// Parameter of the fact.
const FACT: &str = "fact";

fn key_schema(data_type: &DataType) -> Schema {
    Schema::new(vec![Field::new("key", data_type.clone(), true)])
}

fn sort(column: usize, key: Expr, types: &[ColumnType], options: &Options) -> Result<Sort> {
    let ty = types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}")))?;
    let input = Input { schema: Arc::new(key_schema(&ty.data_type)), types: vec![ty.clone()], filter: None };
    let key = SortKey { expr: key, descending: false, nulls_first: true };
    Sort::try_new(input, vec![key], vec![], None, options.clone())
}

/// The rank that a value of a column gives its register.
pub(super) fn sketch_rank(column: usize) -> Expr {
    of_hash(Function::SketchRank, DataType::UInt8, column)
}

fn of_hash(function: Function, data_type: DataType, column: usize) -> Expr {
    Expr::Call { function, arguments: vec![Expr::Column(column)], data_type }
}

fn ranks_kernel(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(FACT, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let statements = format!("    {FACT}[{ROWS}[i]] = (u32)i;\n");
    Kernel::new(format!("window_ranks{name}"), params, row_loop(options.profile, "i", &n, &statements))
}

/// The parameters of kernels that compare rows in the order of their values.
fn compare_params() -> Params {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(FACT, "G u32 *RESTRICT");
    params.named("parts", "const G i64 *RESTRICT");
    params.named("n", "u64");
    params
}

/// C of an expression for the row that a C variable numbers: statements and value.
struct RowValue(String, Value);

impl RowValue {
    fn of(
        expr: &Expr,
        types: &[ColumnType],
        options: &Options,
        params: &mut Params,
        (row, prefix): (&str, &str),
    ) -> Result<RowValue> {
        let mut writer = RowWriter::new(types, options.profile, params).with_names(row, prefix);
        let value = writer.eval(expr)?;
        Ok(RowValue(writer.statements(), value))
    }
}

/// The kernel that compares each row with the adjacent one in the order.
fn occurrences_kernel(name: &str, after: bool, column: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = compare_params();
    let value = Expr::Column(column);
    let RowValue(first, left) = RowValue::of(&value, types, options, &mut params, ("row", "x"))?;
    let RowValue(second, right) = RowValue::of(&value, types, options, &mut params, ("other", "y"))?;
    let other = if after { "i + 1 < n ? i + 1 : i" } else { "i ? i - 1 : i" };
    let statements = format!(
        "    u64 row = {ROWS}[i], other = {ROWS}[{other}];\n{first}{second}    i32 same = other != row && parts[row + 1] == parts[other + 1] && {};\n    {FACT}[row] = same ? (u32)other + 1 : 0;\n",
        same_peer(&left, &right)
    );
    Ok(Kernel::new(format!("window_occurrences{name}"), params, row_loop(options.profile, "i", "n", &statements)))
}

/// The kernel that goes along the rows of each register of each partition.
fn registers_kernel(name: &str, column: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = compare_params();
    let register = OrderFact::RegisterBefore.key(column);
    let RowValue(first, own) = RowValue::of(&register, types, options, &mut params, ("row", "x"))?;
    let RowValue(second, before) = RowValue::of(&register, types, options, &mut params, ("other", "y"))?;
    let RowValue(third, next) = RowValue::of(&register, types, options, &mut params, ("at", "z"))?;
    let RowValue(fourth, rank) = RowValue::of(&sketch_rank(column), types, options, &mut params, ("at", "w"))?;
    let statements = format!(
        "    u64 row = {ROWS}[i], other = {ROWS}[i ? i - 1 : 0];
{first}{second}    if (i == 0 || parts[row + 1] != parts[other + 1] || !{same}) {{
      u32 most = 0;
      for (u64 k = i; k < n; ++k) {{
        u64 at = {ROWS}[k];
{third}        if (parts[at + 1] != parts[row + 1] || !{same_register}) break;
{fourth}        u32 rank = {valid} ? {rank} : 0;
        {FACT}[at] = rank < most ? rank : most;
        most = rank > most ? rank : most;
      }}
    }}
",
        same = same_peer(&own, &before),
        same_register = same_peer(&own, &next),
        valid = rank.valid_code(),
        rank = rank.code,
    );
    Ok(Kernel::new(format!("window_registers{name}"), params, row_loop(options.profile, "i", "n", &statements)))
}
