// SPDX-License-Identifier: Apache-2.0
//! `tpch('lineitem', 0.1)`: a table function for the tables of TPC-H at a scale factor.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::error::ArrowError;
use datafusion::catalog::{MemTable, TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::Expr;
use parking_lot::Mutex;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator, RegionGenerator,
    SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

/// The table function.
#[derive(Debug)]
pub struct Tpch;

impl Tpch {
    /// Name of the function in SQL.
    pub const NAME: &str = "tpch";
}

impl TableFunctionImpl for Tpch {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        match args.exprs() {
            [Expr::Literal(ScalarValue::Utf8(Some(table)), _), Expr::Literal(ScalarValue::Float64(Some(scale)), _)] => {
                table_at(table, *scale)
            }
            _ => plan_err!("{} takes the name of a table and a scale factor, as in tpch('lineitem', 0.1)", Self::NAME),
        }
    }
}

/// The table, generated once for all sessions. The first call generates it while the others wait.
fn table_at(name: &str, scale: f64) -> Result<Arc<dyn TableProvider>> {
    /// Tables by name and bits of the scale factor.
    type Tables = HashMap<(String, u64), Arc<MemTable>>;
    static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);
    let mut tables = TABLES.lock();
    let key = (name.to_string(), scale.to_bits());
    if let Some(table) = tables.get(&key) {
        return Ok(Arc::clone(table) as _);
    }
    let batches = match name {
        "lineitem" => batches(LineItemArrow::new(LineItemGenerator::new(scale, 1, 1))),
        "orders" => batches(OrderArrow::new(OrderGenerator::new(scale, 1, 1))),
        "partsupp" => batches(PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1))),
        "part" => batches(PartArrow::new(PartGenerator::new(scale, 1, 1))),
        "customer" => batches(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1))),
        "supplier" => batches(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1))),
        "nation" => batches(NationArrow::new(NationGenerator::new(scale, 1, 1))),
        "region" => batches(RegionArrow::new(RegionGenerator::new(scale, 1, 1))),
        _ => return plan_err!("TPC-H has no table {name}"),
    }?;
    let Some(first) = batches.first() else {
        return plan_err!("TPC-H's table {name} is empty at scale factor {scale}");
    };
    let table = Arc::new(MemTable::try_new(first.schema(), vec![batches])?);
    tables.insert(key, Arc::clone(&table));
    Ok(table)
}

fn batches(generated: impl Iterator<Item = Result<RecordBatch, ArrowError>>) -> Result<Vec<RecordBatch>> {
    Ok(generated.collect::<Result<_, _>>()?)
}
