// SPDX-License-Identifier: Apache-2.0
//! The native half of the Python package `devicefusion`, whose other half is in `python/`.
//!
//! | file | content |
//! |---|---|
//! | `session` | sessions: statements, tables, functions, settings |
//! | `frame` | one statement's result, which runs for each call |
//! | `host_rows` | rows in host memory, as batches and as a stream |
//! | `device_rows` | rows on the device, and their columns |
//! | `source` | Python objects as tables |
//! | `tensor` | tensors of other libraries, by DLPack |
//! | `cuda_array` | arrays of CUDA libraries without DLPack |
//! | `variables` | variables of the calling program as tables |
//! | `functions` | SQL functions that Python computes |
//! | `foreign_session` | plans of datafusion-python's sessions |
//! | `foreign_query` | a query within a plan of another DataFusion |
//! | `foreign_table` | a table of another DataFusion |
//! | `handle_codec` | writes and reads plans with handles |
//! | `handles` | objects that cross to another DataFusion by a handle |
//! | `capsule` | the PyCapsule interfaces of Arrow and of datafusion-python |
//! | `calls` | calls of Python by threads of queries, up to the end of the interpreter |
//! | `producer` | streams that Python produces |
//! | `runtime` | the threads of queries, and calls that wait for them |
//! | `shell` | the SQL shell, for `python -m devicefusion` |
//! | `errors` | DataFusion's errors as exceptions |
//!
//! Conveniences of Python alone, such as conversions to pandas, are Python.

mod calls;
mod capsule;
mod cuda_array;
mod device_rows;
mod errors;
mod foreign_query;
mod foreign_session;
mod foreign_table;
mod frame;
mod functions;
mod handle_codec;
mod handles;
mod host_rows;
mod producer;
mod runtime;
mod session;
mod shell;
mod source;
mod tensor;
mod variables;

use mimalloc::MiMalloc;

/// Plans of queries are thousands of small allocations. That of glibc takes a tenth of the time of
/// a short query.
#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

/// The module `devicefusion._devicefusion`.
#[pyo3::pymodule]
mod _devicefusion {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::calls::end;
    #[pymodule_export]
    use crate::device_rows::{DeviceColumn, DeviceRows};
    #[pymodule_export]
    use crate::errors::{DeviceError, ExecutionError};
    #[pymodule_export]
    use crate::frame::{Frame, Profile, Task};
    #[pymodule_export]
    use crate::functions::HostArray;
    #[pymodule_export]
    use crate::handle_codec::Codec;
    #[pymodule_export]
    use crate::host_rows::{HostRows, RowStream};
    #[pymodule_export]
    use crate::session::{Session, devices};
    #[pymodule_export]
    use crate::shell::shell;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("__datafusion_version__", datafusion::DATAFUSION_VERSION)
    }
}

/// The ADBC driver, for the module `devicefusion.dbapi`.
pub use devicefusion_adbc::AdbcDriverInit;
