// SPDX-License-Identifier: Apache-2.0
//! What the order of a column's values tells of each row, as a column that functions read: where the same value stands nearest
//! in the partition, for DISTINCT, and which number a value has among all, for the least and the greatest text and for quantiles.
//! The order of the registers that take the values tells what a value does to a sketch.
//!
//! Rows of one value or register keep their order when they are sorted, so those of a partition stand beside one another.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::bounds::equal;
use super::frame::Places;
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::function::Function;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, for_rows, spread};
use crate::ops::{Input, Options, Sort, SortKey};
use crate::prelude::Section;
use crate::{Error, Result};

/// What is told of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tell {
    /// The number, from 1, of the nearest row before it in its partition that has its value; 0 where there is none.
    Before,
    /// Of the nearest row behind it.
    Behind,
    /// The number, from 0, of its value among all rows' in their order.
    Number,
    /// Of the register that takes its value in the sketch of approx_distinct: its rank before the row, from 0, but never more
    /// than the value's own. One item goes along all rows of a partition that have the register.
    RankBefore,
}

impl Tell {
    /// What rows are sorted by, of column `column`.
    fn key(self, column: usize) -> Expr {
        match self {
            Tell::RankBefore => of_hash(Function::SketchRegister, DataType::UInt16, column),
            _ => Expr::Column(column),
        }
    }
}

/// The columns that are told, behind those of the input.
#[derive(Debug, Clone)]
pub(super) struct Sorted {
    first: usize,
    /// Each of a column, by a key over this column alone.
    sorts: Vec<(usize, Expr, Sort)>,
    /// Each with the position of its sort and of its kernel.
    told: Vec<(Tell, usize, usize)>,
}

impl Sorted {
    /// None yet, behind so many columns.
    pub fn behind(columns: usize) -> Sorted {
        Sorted { first: columns, sorts: vec![], told: vec![] }
    }

    /// The type of the columns.
    pub fn ty(nullable: bool) -> ColumnType {
        ColumnType { data_type: DataType::UInt32, nullable, layout: Layout::Fixed(Carrier::U32), bounds: None }
    }

    /// The position of a column that tells of column `column`, a new one where there is none; its kernel is appended.
    pub fn tell(
        &mut self,
        tell: Tell,
        column: usize,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<usize> {
        let key = tell.key(0);
        let sort = match self.sorts.iter().position(|(known, by, _)| (*known, by) == (column, &key)) {
            Some(known) => known,
            None => {
                self.sorts.push((column, key.clone(), sort(column, key, types, options)?));
                self.sorts.len() - 1
            }
        };
        let same = |(known, of, _): &(Tell, usize, usize)| (*known, *of) == (tell, sort);
        let told = self.told.iter().position(same);
        if told.is_none() {
            self.told.push((tell, sort, kernels.len()));
            let name = self.told.len().to_string();
            kernels.push(match tell {
                Tell::Number => numbers(&name, options),
                Tell::RankBefore => ranks_before(&name, column, types, options)?,
                _ => neighbours(&name, tell == Tell::Behind, column, types, options)?,
            });
        }
        Ok(self.first + told.unwrap_or(self.told.len() - 1))
    }

    /// The sort whose order a column of numbers is of.
    pub fn sort_of(&self, told: usize) -> usize {
        self.told.get(told - self.first).map_or(0, |(_, sort, _)| *sort)
    }

    /// Types of the columns.
    pub fn types(&self) -> impl Iterator<Item = ColumnType> {
        self.told.iter().map(|_| Self::ty(false))
    }

    /// Names and texts of the kernels that sort.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.sorts.iter().flat_map(|(_, _, sort)| sort.kernel_text()).collect()
    }

    /// The programs that sort, as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        self.sorts.iter().flat_map(|(_, _, sort)| sort.programs()).collect()
    }

    /// Sorts the rows by each column; the rows in these orders, 32 bits each.
    pub async fn orders(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Vec<Buffer>> {
        let mut orders = Vec::with_capacity(self.sorts.len());
        for (column, _, sort) in &self.sorts {
            let values = batch.columns().get(*column).ok_or_else(|| Error::Internal(format!("no column {column}")))?;
            let schema = Arc::new(key_schema(&values.ty().data_type));
            let values = DeviceBatch::try_new(schema, vec![values.clone()], batch.num_rows())?;
            orders.push(sort.rows(queue, &values).await?);
        }
        Ok(orders)
    }

    /// The columns, of rows in these orders.
    #[allow(clippy::too_many_arguments)]
    pub fn columns(
        &self,
        queue: &Queue,
        options: &Options,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        batch: &DeviceBatch,
        places: &Places,
        orders: &[Buffer],
    ) -> Result<Vec<DeviceColumn>> {
        let n = batch.num_rows();
        let ty = Arc::new(Self::ty(false));
        let column = |(tell, sort, kernel): &(Tell, usize, usize)| {
            let told = queue.alloc(n * size_of::<u32>())?;
            let mut named = vec![(ROWS, Arg::Buffer(&orders[*sort])), (TOLD, Arg::Buffer(&told)), ("n", Arg::U64(n as u64))];
            if *tell != Tell::Number {
                named.push(("parts", Arg::Buffer(&places.parts)));
            }
            loaded.launch_on(queue, *kernel, spread(queue, options, n), batch, None, named)?;
            primitives.column(queue, &ty, n, vec![told], None, None)
        };
        self.told.iter().map(column).collect()
    }
}

/// The rows in the order of their values.
pub(super) const ROWS: &str = "sorted_rows";
const TOLD: &str = "told";

fn key_schema(data_type: &DataType) -> Schema {
    Schema::new(vec![Field::new("key", data_type.clone(), true)])
}

fn sort(column: usize, key: Expr, types: &[ColumnType], options: &Options) -> Result<Sort> {
    let ty = types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}")))?;
    let input = Input { schema: Arc::new(key_schema(&ty.data_type)), types: vec![ty.clone()], filter: None };
    let key = SortKey { expr: key, descending: false, nulls_first: true };
    Sort::try_new(input, vec![key], vec![], None, options.clone())
}

/// The rank that the value of a column gives to its register.
pub(super) fn sketch_rank(column: usize) -> Expr {
    of_hash(Function::SketchRank, DataType::UInt8, column)
}

fn of_hash(function: Function, data_type: DataType, column: usize) -> Expr {
    Expr::Call { function, arguments: vec![Expr::Column(column)], data_type }
}

fn numbers(name: &str, options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(TOLD, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let text = format!("    {TOLD}[{ROWS}[i]] = (u32)i;\n");
    Kernel::new(format!("window_numbers{name}"), params, for_rows(options.profile, "i", &n, &text))
}

/// Compares each row with the one beside it in the order.
fn neighbours(name: &str, behind: bool, column: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(TOLD, "G u32 *RESTRICT");
    params.named("parts", "const G i64 *RESTRICT");
    let n = params.named("n", "u64");
    let mut load = |row: &str, prefix: &str| {
        let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(row, prefix);
        let value = writer.eval(&Expr::Column(column))?;
        Ok::<_, Error>((writer.statements(), value))
    };
    let ((first, left), (second, right)) = (load("row", "x")?, load("other", "y")?);
    let other = if behind { format!("i + 1 < {n} ? i + 1 : i") } else { "i ? i - 1 : i".into() };
    let text = format!(
        "    u64 row = {ROWS}[i], other = {ROWS}[{other}];\n{first}{second}    i32 same = other != row && parts[row + 1] == parts[other + 1] && {};\n    {TOLD}[row] = same ? (u32)other + 1 : 0;\n",
        equal(&left, &right)
    );
    Ok(Kernel::new(format!("window_neighbours{name}"), params, for_rows(options.profile, "i", &n, &text)))
}

/// Goes along the rows of each register of each partition.
fn ranks_before(name: &str, column: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(TOLD, "G u32 *RESTRICT");
    params.named("parts", "const G i64 *RESTRICT");
    let n = params.named("n", "u64");
    let mut load = |row: &str, prefix: &str, expr: &Expr| {
        let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(row, prefix);
        let value = writer.eval(expr)?;
        Ok::<_, Error>((writer.statements(), value))
    };
    let register = Tell::RankBefore.key(column);
    let (first, own) = load("row", "x", &register)?;
    let (second, before) = load("other", "y", &register)?;
    let (third, next) = load("at", "z", &register)?;
    let (fourth, rank) = load("at", "w", &sketch_rank(column))?;
    let text = format!(
        "    u64 row = {ROWS}[i], other = {ROWS}[i ? i - 1 : 0];
{first}{second}    if (i == 0 || parts[row + 1] != parts[other + 1] || !{same}) {{
      u32 most = 0;
      for (u64 k = i; k < {n}; ++k) {{
        u64 at = {ROWS}[k];
{third}        if (parts[at + 1] != parts[row + 1] || !{goes_on}) break;
{fourth}        u32 rank = {known} ? {rank} : 0;
        {TOLD}[at] = rank < most ? rank : most;
        most = rank > most ? rank : most;
      }}
    }}
",
        same = equal(&own, &before),
        goes_on = equal(&own, &next),
        known = rank.valid_code(),
        rank = rank.code,
    );
    Ok(Kernel::new(format!("window_ranks_before{name}"), params, for_rows(options.profile, "i", &n, &text)))
}
