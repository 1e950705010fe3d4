// SPDX-License-Identifier: Apache-2.0
//! Registration of entry points with DataFusion.

use std::sync::Arc;

use datafusion::execution::context::RegisterFunction;
use datafusion::logical_expr::{AggregateUDF, ScalarUDF, Volatility};

use crate::expr::LibraryFunctions;
use crate::futhark::aggregate::FutharkAggregate;
use crate::futhark::device_aggregate::function_of;
use crate::futhark::function::Function;
use crate::futhark::reasons::{aggregate_reason, scalar_reason};
use crate::futhark::returns::Returns;
use crate::futhark::scalar::FutharkScalar;
use crate::futhark::table::FutharkTable;

/// The function that DataFusion registers. Translation of expressions knows functions of libraries
/// from here on.
pub(super) fn registration(function: Function, volatility: Volatility) -> RegisterFunction {
    let shares_device = |aggregate: &AggregateUDF| function_of(aggregate).is_some();
    LibraryFunctions { scalar_reason, aggregate_reason, shares_device }.install();
    match function.returns() {
        Returns::Column(..) | Returns::Value(_) | Returns::Struct(..) => {
            RegisterFunction::Scalar(Arc::new(ScalarUDF::new_from_impl(FutharkScalar::new(function, volatility))))
        }
        Returns::Aggregate(_) => {
            RegisterFunction::Aggregate(Arc::new(AggregateUDF::new_from_impl(FutharkAggregate::new(function, volatility))))
        }
        Returns::Table(_) => RegisterFunction::Table(function.name().to_string(), Arc::new(FutharkTable::new(function))),
    }
}
