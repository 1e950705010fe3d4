// SPDX-License-Identifier: Apache-2.0
//! `devicefusion`: a SQL shell whose queries run on a device. [`shell`] is the whole program.
//!
//! - The library of `datafusion-cli` plans statements, opens object stores by URL, and has some of
//!   the backslash commands.
//! - This crate adds arguments, the prompt, reading of files, printing of results and exit codes.
//! - For devices it adds the choice and the list of devices, and the streaming of
//!   `CREATE TABLE device.t AS SELECT …`.

mod args;
mod completion;
mod devices;
mod printer;
mod profile;
pub mod progress;
mod prompt;
mod run;
mod session;
mod statement;
mod summarize;
mod table;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use datafusion::common::Result;
use devicefusion::{DeviceOptions, DeviceRuntime, STACK_BYTES, with_large_stack};
use nix::sys::signal::{SigSet, Signal};
use tokio::runtime::Builder;

use crate::args::{Args, Subcommand};
use crate::printer::print_to_stderr;
use crate::run::Outcome;

/// Runs the shell with arguments, of which the first is the name of the program.
///
/// It logs by `env_logger`, and ends the process for arguments that are wrong, or ask for help.
pub fn shell(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    // A program that embeds the shell may have a logger.
    _ = env_logger::try_init();
    let args = Args::of(arguments).unwrap_or_else(|error| error.exit());
    place_caches();
    if let Some(subcommand) = args.subcommand.as_ref().filter(|subcommand| !matches!(subcommand, Subcommand::Profile(_))) {
        // A reader that has gone needs no message.
        _ = subcommand.write(std::io::stdout());
        return ExitCode::SUCCESS;
    }
    if args.is_interactive()
        && let Err(error) = deliver_interrupts_to_one_thread()
    {
        print_to_stderr(&format!("Warning: Ctrl-C may end the shell while a kernel is linked: {error}"));
    }
    let mut device = None;
    let code = match run(args, &mut device) {
        Ok(Outcome::AllStatementsSucceeded) => ExitCode::SUCCESS,
        Ok(Outcome::StatementsFailed) => ExitCode::FAILURE,
        Err(error) => {
            run::print_error(&error);
            ExitCode::FAILURE
        }
    };
    if let Some(context) = device.and_then(|device| device.opened()) {
        // Work of a failed query may still run on the device. Its errors no longer matter.
        _ = context.synchronize();
    }
    code
}

/// Places PoCL's programs in the folder of `device.cache_dir`, while this is the only thread.
fn place_caches() {
    // Problems of the variables are reported where the session begins.
    let Ok(DeviceOptions { cache_dir, .. }) = DeviceOptions::from_env() else { return };
    if !["", "auto"].contains(&cache_dir.as_str()) {
        device::place_pocl_cache(&Path::new(&cache_dir).join("pocl"));
    }
}

/// Blocks SIGINT on this thread and all later ones, except a new thread that only sleeps.
///
/// Ctrl-C at a terminal also reaches the linker processes that a driver starts. A driver whose
/// linker is interrupted ends the shell. Child processes inherit the blocked signal, so linkers
/// ignore it.
fn deliver_interrupts_to_one_thread() -> std::io::Result<()> {
    std::thread::Builder::new().name("interrupts".into()).spawn(|| {
        loop {
            std::thread::park();
        }
    })?;
    Ok(SigSet::from_iter([Signal::SIGINT]).thread_block()?)
}

/// Runs the shell on a tokio runtime. When this returns, no host thread runs a query.
fn run(args: Args, device: &mut Option<Arc<DeviceRuntime>>) -> Result<Outcome> {
    let runtime = Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build()?;
    with_large_stack(|| runtime.block_on(run::run(args, device)))
}
