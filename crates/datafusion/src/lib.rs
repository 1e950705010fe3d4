// SPDX-License-Identifier: Apache-2.0
//! Apache DataFusion on devices.
//!
//! [`session`] gives a `SessionContext` whose plans run on a GPU, or on a CPU through an OpenCL
//! driver; [`SessionStateBuilderExt::with_device`] adds the same to a state of one's own. EXPLAIN
//! shows what runs where, and why the rest stays on the host.
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

mod aggregate;
#[cfg(doctest)]
mod book;
mod device_function;
mod exchange;
pub mod exec;
mod expr;
mod functions;
mod futhark;
mod graph;
mod list_key;
mod metrics;
mod options;
mod own;
mod parameters;
mod planner;
mod run;
mod runtime;
mod session;
mod table;
mod texts;

pub use self::futhark::{FutharkFunctions, register_futhark};
pub use exchange::{AsyncDeviceStreamTable, DeviceResult, DeviceStreamTable};
pub use options::{Cost, DeviceOptions, Fallback, ProfileSetting, SettingDoc};
pub use parameters::{with_parameters, with_rows_of_parameters};
pub use planner::{
    DevicePlanner, HostOperator, HostReasons, Placement, PlacementKind, ProjectionKeeper, SubqueryColumns, WindowFilters,
    placement,
};
pub use run::DeviceBatchStream;
pub use runtime::DeviceRuntime;
pub use session::{SessionStateBuilderExt, has_device, session, session_with};
pub use table::{DeviceTable, register_schema};
