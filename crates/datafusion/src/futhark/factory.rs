// SPDX-License-Identifier: Apache-2.0
//! `CREATE FUNCTION name() LANGUAGE futhark AS '/path/program.json'`.
//!
//! Functions of one library share it and its context. If one of its files has changed, new
//! functions open it again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, config_err, exec_datafusion_err, plan_datafusion_err, plan_err};
use datafusion::execution::context::{FunctionFactory, RegisterFunction};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{CreateFunction, Expr, Volatility};
use futhark::{Context, ContextConfig, Library};
use futures::future::BoxFuture;

use crate::futhark::aggregate::FutharkAggregate;
use crate::futhark::function::Function;
use crate::futhark::parameter::Nulls;
use crate::futhark::registration::registration;
use crate::futhark::returns::{Conventions, Returns};
use crate::futhark::scalar::FutharkScalar;
use crate::futhark::table::FutharkTable;
use crate::session::{DeviceOptions, DeviceRuntime};

/// Makes functions of `LANGUAGE futhark`; the session's former factory makes those of other
/// languages.
#[derive(Debug)]
pub(crate) struct FutharkFactory {
    next: Option<Arc<dyn FunctionFactory>>,
}

impl FutharkFactory {
    /// A factory that leaves other languages to `next`.
    pub fn new(next: Option<Arc<dyn FunctionFactory>>) -> FutharkFactory {
        FutharkFactory { next }
    }
}

impl FunctionFactory for FutharkFactory {
    // Not `async`, see CONTRIBUTING.md.
    fn create<'factory, 'session, 'function>(
        &'factory self,
        state: &'session SessionState,
        statement: CreateFunction,
    ) -> BoxFuture<'function, Result<RegisterFunction>>
    where
        'factory: 'function,
        'session: 'function,
        Self: 'function,
    {
        self.made(state, statement)
    }
}

impl FutharkFactory {
    fn made<'a>(&'a self, state: &'a SessionState, statement: CreateFunction) -> BoxFuture<'a, Result<RegisterFunction>> {
        Box::pin(self.make(state, statement))
    }

    async fn make(&self, state: &SessionState, statement: CreateFunction) -> Result<RegisterFunction> {
        let language = statement.params.language.as_ref().map(|language| language.value.as_str());
        if !language.is_some_and(|language| language.eq_ignore_ascii_case("futhark")) {
            return match &self.next {
                Some(next) => next.create(state, statement).await,
                // DataFusion's message without a factory.
                None => config_err!("Function factory has not been configured; without one there is LANGUAGE futhark only"),
            };
        }
        if !DeviceOptions::of(state.config_options()).futhark {
            return plan_err!(
                "device.futhark = false forbids CREATE FUNCTION … LANGUAGE futhark, which loads native code into this process; \
                 the program that makes the session allows it by device.futhark = true"
            );
        }
        let name = statement.name.as_str();
        name_is_free(state, name, statement.or_replace)?;
        let FunctionSource { path, entry_point, conventions, tuning } = source(statement.params.function_body.as_ref(), name)?;
        let device = DeviceRuntime::of(state.config()).and_then(|runtime| runtime.opened());
        let context = match contexts_of(state)
            .find(|context| is_of(context, &path) && shares(context, device.as_ref()) && context.tuning() == tuning)
        {
            Some(context) => context.clone(),
            None => open(path, tuning, state).await?,
        };
        let types: Option<Vec<DataType>> =
            statement.args.filter(|args| !args.is_empty()).map(|args| args.into_iter().map(|arg| arg.data_type).collect());
        let function = Function::new(name, &entry_point, conventions, &context)
            .and_then(|function| function.declared(types.as_deref(), statement.return_type.as_ref()))
            .map_err(|reason| plan_datafusion_err!("CREATE FUNCTION {name}: {reason}"))?;
        if statement.or_replace {
            stays_of_its_kind(state, name, function.returns())?;
        }
        Ok(registration(function, statement.params.behavior.unwrap_or(Volatility::Immutable)))
    }
}

/// Opens a library and makes a context, in a blocking thread. The context shares the session's
/// device if its back end can.
async fn open(path: PathBuf, tuning: Vec<(String, usize)>, state: &SessionState) -> Result<Context> {
    let (runtime, options) = (DeviceRuntime::of(state.config()), DeviceOptions::of(state.config_options()));
    let open = move || {
        // SAFETY: by device.futhark the user vouches that libraries named in SQL are what their
        // manifests say.
        let library = unsafe { Library::open(&path) }?;
        // Without a device the library opens one itself, and functions work in host memory.
        let shares = library.manifest().backend.driver().is_some();
        let device = runtime.as_ref().filter(|_| shares).and_then(|runtime| runtime.try_context(&options).ok());
        let config = ContextConfig { profiling: options.futhark_profiling, tuning, ..ContextConfig::default() };
        let context = match device.filter(|device| library.can_share(device.info().driver)) {
            Some(device) => Context::on_device(&library, config, &device)?,
            None => Context::new(&library, config)?,
        };
        if let Some(runtime) = runtime {
            runtime.join_report(&context);
        }
        Ok(context)
    };
    let opened = SpawnedTask::spawn_blocking(open).join().await;
    let opened = opened.map_err(|error| exec_datafusion_err!("opening a Futhark library: {error}"))?;
    opened.map_err(|error: futhark::Error| exec_datafusion_err!("{error}"))
}

/// The parts of `AS 'path#entry_point?nulls=mask'`.
struct FunctionSource {
    /// The manifest.
    path: PathBuf,
    /// The function's name, if none is given.
    entry_point: String,
    conventions: Conventions,
    /// Tuning parameters of the library's context, by name.
    tuning: Vec<(String, usize)>,
}

fn source(body: Option<&Expr>, name: &str) -> Result<FunctionSource> {
    let source = match body {
        Some(Expr::Literal(value, _)) => value.try_as_str().flatten(),
        _ => None,
    };
    let Some(source) = source else {
        return plan_err!("CREATE FUNCTION {name} needs the path of a manifest: AS '/path/program.json'");
    };
    // A path may contain `?` and `#` before the name of its file.
    let is_convention = |rest: &str| !rest.contains('/') && rest.contains('=');
    let (source, stated) = source.rsplit_once('?').filter(|(_, stated)| is_convention(stated)).unwrap_or((source, ""));
    let (mut conventions, mut tuning) = (Conventions::default(), Vec::new());
    for part in stated.split('&').filter(|part| !part.is_empty()) {
        match part {
            "nulls=strict" => conventions.nulls = Nulls::Strict,
            "nulls=mask" => conventions.nulls = Nulls::Mask,
            "returns=struct" => conventions.returns_struct = true,
            "returns=table" => conventions.returns_struct = false,
            part => match part.strip_prefix("tuning.").and_then(|tuned| tuned.split_once('=')) {
                Some((parameter, value)) => match value.parse() {
                    Ok(value) => tuning.push((parameter.to_owned(), value)),
                    Err(_) => return plan_err!("CREATE FUNCTION {name}: {part}: {value} is no natural number"),
                },
                None => {
                    return plan_err!(
                        "CREATE FUNCTION {name}: {part}: must be nulls=strict, nulls=mask, returns=table, returns=struct or \
                         tuning.NAME=NUMBER"
                    );
                }
            },
        }
    }
    tuning.sort();
    let (path, entry_point) = match source.rsplit_once('#') {
        Some((path, entry_point)) if !entry_point.contains('/') => (path, entry_point),
        _ => (source, name),
    };
    Ok(FunctionSource { path: PathBuf::from(path), entry_point: entry_point.to_owned(), conventions, tuning })
}

/// Checks that a function name is free.
pub(crate) fn name_is_free(state: &SessionState, name: &str, or_replace: bool) -> Result<()> {
    let taken = kinds(state, name).next();
    match taken {
        Some(kind) if !or_replace => {
            plan_err!("there is a function {name} already, of the kind {kind}; CREATE OR REPLACE replaces it")
        }
        _ => Ok(()),
    }
}

/// Checks that a replaced function stays of its kind. DataFusion would find the function of the
/// other kind first.
fn stays_of_its_kind(state: &SessionState, name: &str, returns: &Returns) -> Result<()> {
    let new = returns.kind();
    match kinds(state, name).find(|kind| *kind != new) {
        Some(old) => plan_err!("the function {name} is of the kind {old}, and would be {new} too; DROP FUNCTION {name} before"),
        None => Ok(()),
    }
}

fn kinds(state: &SessionState, name: &str) -> impl Iterator<Item = &'static str> {
    let found = [
        (state.scalar_functions().contains_key(name), "scalar"),
        (state.aggregate_functions().contains_key(name), "aggregate"),
        (state.window_functions().contains_key(name), "window"),
        (state.table_functions().contains_key(name), "table"),
    ];
    found.into_iter().filter_map(|(is, kind)| is.then_some(kind))
}

/// The contexts of a session's functions.
fn contexts_of(state: &SessionState) -> impl Iterator<Item = &Context> {
    let scalars = state.scalar_functions().values();
    let scalars = scalars.filter_map(|function| function.inner().downcast_ref::<FutharkScalar>()).map(FutharkScalar::function);
    let aggregates = state.aggregate_functions().values();
    let aggregates =
        aggregates.filter_map(|function| function.inner().downcast_ref::<FutharkAggregate>()).map(FutharkAggregate::function);
    let tables = state.table_functions().values();
    let tables = tables.filter_map(|table| {
        let function: &dyn std::any::Any = table.function().as_ref();
        function.downcast_ref::<FutharkTable>().map(FutharkTable::function)
    });
    scalars.chain(aggregates).chain(tables).map(Function::context)
}

/// Whether a context shares the session's device, as far as its library can.
fn shares(context: &Context, device: Option<&device::Context>) -> bool {
    match (context.device(), device) {
        (Some(own), Some(device)) => own.same(device),
        (None, Some(device)) => !context.library().can_share(device.info().driver),
        (_, None) => true,
    }
}

/// Whether a manifest now describes the library of a context.
fn is_of(context: &Context, manifest: &Path) -> bool {
    let library = context.library();
    let same = match (library.manifest_path().canonicalize(), manifest.canonicalize()) {
        (Ok(opened), Ok(asked)) => opened == asked,
        _ => false,
    };
    same && library.is_current()
}
