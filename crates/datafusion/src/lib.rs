// SPDX-License-Identifier: Apache-2.0
//! Apache DataFusion on devices.
//!
//! [`session`] gives a `SessionContext` whose plans run on a GPU, or on a CPU through an OpenCL
//! driver. [`SessionStateBuilderExt::with_device`] adds the same to an existing session state.
//! EXPLAIN shows which operators run on the device, and why the others stay on the host.
//!
//! | folder | content |
//! |---|---|
//! | `session` | sessions, settings, the device runtime, profiles of runs as HTML and JSON |
//! | `planner` | offloading of operators, and the reasons against it |
//! | `expr` | translation of expressions, aggregates and window functions |
//! | `exec` | the physical operators |
//! | `graph` | lowering of device operators to stages |
//! | `run` | execution of stages |
//! | `table` | resident tables |
//! | `exchange` | device arrays of other libraries, and results for them |
//! | `futhark` | SQL functions from compiled Futhark libraries |
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! let ctx = devicefusion::session()?;
//! ctx.sql("SELECT value % 10 AS digit, count(*) FROM generate_series(1, 100000) GROUP BY digit").await?.show().await?;
//! # datafusion::common::Result::<()>::Ok(())
//! # })?;
//! # datafusion::common::Result::<()>::Ok(())
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

/// The Rust blocks of the book, as documentation tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../README.md")]
    struct Readme;

    #[doc = include_str!("../../../docs/rust.md")]
    struct RustPage;

    #[doc = include_str!("../../../docs/device-data.md")]
    struct DeviceData;

    #[doc = include_str!("../../../docs/futhark-device.md")]
    struct FutharkOnTheDevice;
}

mod error;
mod exchange;
pub mod exec;
mod expr;
mod futhark;
mod graph;
mod planner;
mod reason;
mod run;
mod session;
mod table;

pub use self::futhark::{FutharkFunctions, register_futhark};
pub use error::{error_text, is_device_error};
pub use exchange::{AsyncDeviceStreamTable, DeviceResult, DeviceStreamTable};
pub use exec::panic_text;
pub use planner::{
    DevicePlanner, HostOperator, HostReasons, Placement, PlacementKind, ProjectionKeeper, SubqueryColumns, WindowFilters,
    placement,
};
pub use run::DeviceBatchStream;
pub use session::{
    AdaptiveStart, Cost, DeviceOptions, DeviceRuntime, Fallback, Profile, ProfileSetting, STACK_BYTES, SessionStateBuilderExt,
    SettingDoc, SpillSetting, check_nesting, execute_logical_plan, execute_logical_plan_watched, has_device, parse_bytes,
    parse_statements, plan_for_explain, session, session_with, with_enough_stack, with_file_tables, with_large_stack,
    with_parameters, with_rows_of_parameters,
};
pub use table::{DeviceTable, register_schema};
