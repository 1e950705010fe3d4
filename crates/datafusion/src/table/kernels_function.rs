// SPDX-License-Identifier: Apache-2.0
//! The table function `device_kernels()`: the kernels that have run, with their times.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Float64Array, RecordBatch, StringArray, UInt64Array};
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::MemTable;

use crate::session::DeviceRuntime;
use crate::table::memory_function::without_arguments;

/// Name of the function.
pub(super) const NAME: &str = "device_kernels";

/// Rows of the function, as they are when a query is planned. It does not open the device.
pub(super) struct DeviceKernels(pub Arc<DeviceRuntime>);

impl fmt::Debug for DeviceKernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl TableFunctionImpl for DeviceKernels {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        without_arguments(NAME, &args)?;
        let kernels = self.0.opened().map(|context| context.kernel_totals()).unwrap_or_default();
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("name", Arc::new(StringArray::from_iter_values(kernels.iter().map(|kernel| &*kernel.name))) as _, false),
            ("launches", Arc::new(UInt64Array::from_iter_values(kernels.iter().map(|kernel| kernel.launches))) as _, false),
            (
                "seconds",
                Arc::new(Float64Array::from_iter_values(kernels.iter().map(|kernel| kernel.time.as_secs_f64()))) as _,
                false,
            ),
        ])?;
        Ok(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?))
    }
}
