// SPDX-License-Identifier: Apache-2.0
//! SQL functions from compiled Futhark libraries.
//!
//! The crate `futhark` loads and calls libraries. Here their entry points become functions of
//! DataFusion:
//!
//! | file | content |
//! |---|---|
//! | `factory` | `CREATE FUNCTION … LANGUAGE futhark` |
//! | `function`, `parameter`, `returns` | entry points as SQL functions, by their types |
//! | `accepts`, `convert`, `sum_type` | argument types, and conversion between Arrow and Futhark |
//! | `scalar`, `aggregate`, `table` | functions in host memory |
//! | `device_call`, `device_aggregate`, `resident` | calls on a device that the library shares |
//! | `reasons` | reasons why a function stays on the host |
//! | `registration`, `listing` | registration with DataFusion, and SHOW FUNCTIONS |

mod accepts;
mod aggregate;
mod convert;
mod device_aggregate;
mod device_call;
mod factory;
mod function;
mod listing;
mod parameter;
mod reasons;
mod registration;
mod resident;
mod returns;
mod scalar;
mod sum_type;
mod table;

use datafusion::common::{Result, internal_err, plan_datafusion_err};
use datafusion::execution::FunctionRegistry;
use datafusion::execution::context::{RegisterFunction, SessionContext};
use datafusion::logical_expr::Volatility;
use futhark::Context;

pub(crate) use crate::futhark::device_aggregate::{DeviceAggregate, function_of as fold_function, row_of, types_of};
pub(crate) use crate::futhark::device_call::{DeviceCall, LibraryCalls, unreached};
pub(crate) use crate::futhark::factory::FutharkFactory;
use crate::futhark::factory::name_is_free;
pub(crate) use crate::futhark::function::Function;
pub(crate) use crate::futhark::listing::TableFunctionsListed;
use crate::futhark::registration::registration;
use crate::futhark::returns::Conventions;
use crate::session::DeviceRuntime;

/// The outcome of [`register_futhark`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FutharkFunctions {
    /// Entry points that SQL can call.
    pub registered: Vec<String>,
    /// The other entry points, with reasons.
    pub refused: Vec<(String, String)>,
}

/// Registers the entry points of a Futhark library under their own names.
///
/// From SQL, `CREATE FUNCTION … LANGUAGE futhark` registers them one by one. Here the caller has
/// opened the library and tuned its context. No setting is checked: the caller
/// vouches for the library by opening it.
///
/// # Errors
/// If the session refuses a function.
///
/// # Examples
/// ```no_run
/// use futhark::{Context, ContextConfig, Library};
///
/// let ctx = devicefusion::session()?;
/// // SAFETY: built from the program beside it, with the manifest that came with it.
/// let library = unsafe { Library::open("prices.json") }.map_err(|error| error.to_string())?;
/// let context = Context::new(&library, ContextConfig::default()).map_err(|error| error.to_string())?;
/// for (name, reason) in devicefusion::register_futhark(&ctx, &context)?.refused {
///     eprintln!("{name}: {reason}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn register_futhark(ctx: &SessionContext, context: &Context) -> Result<FutharkFunctions> {
    if let Some(runtime) = DeviceRuntime::of(&ctx.copied_config()) {
        runtime.join_report(context);
    }
    let mut functions = FutharkFunctions::default();
    for name in context.library().manifest().entry_points.keys() {
        let function = name_is_free(&ctx.state(), name, false).and_then(|()| {
            Function::new(name, name, Conventions::default(), context).map_err(|reason| plan_datafusion_err!("{reason}"))
        });
        match function {
            Ok(function) => {
                register(ctx, registration(function, Volatility::Immutable))?;
                functions.registered.push(name.clone());
            }
            Err(error) => functions.refused.push((name.clone(), error.message().into_owned())),
        }
    }
    Ok(functions)
}

fn register(ctx: &SessionContext, function: RegisterFunction) -> Result<()> {
    let state = ctx.state_ref();
    let mut state = state.write();
    match function {
        RegisterFunction::Scalar(function) => _ = state.register_udf(function)?,
        RegisterFunction::Aggregate(function) => _ = state.register_udaf(function)?,
        RegisterFunction::Table(name, function) => state.register_udtf(&name, function),
        RegisterFunction::Window(_) | RegisterFunction::HigherOrder(_) => {
            return internal_err!("no entry point is a window function or one of a higher order");
        }
    }
    Ok(())
}
