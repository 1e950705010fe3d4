// SPDX-License-Identifier: Apache-2.0
//! `devicefusion`: a SQL shell whose queries run on a device.
//!
//! The shell stands on the library of `datafusion-cli`, which brings the interactive editor, the
//! output formats, the backslash commands and object stores by URL. This crate adds what that
//! library leaves to its binary (arguments, reading of files, exit codes) and what a device needs:
//! choosing one, listing them, and streaming `CREATE TABLE device.t AS SELECT …`.

mod args;
mod devices;
mod run;
mod session;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use datafusion::common::Result;
use devicefusion::DeviceRuntime;
use mimalloc::MiMalloc;
use nix::sys::signal::{SigSet, Signal};

use crate::args::{Args, Subcommand};
use crate::run::Outcome;

#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    env_logger::init();
    let args = Args::parse();
    if let Some(Subcommand::Devices) = args.subcommand {
        print!("{}", devices::table(&device::devices()));
        return ExitCode::SUCCESS;
    }
    if args.is_interactive()
        && let Err(error) = leave_interrupts_to_one_thread()
    {
        eprintln!("Warning: Ctrl-C may end the shell while a kernel is linked: {error}");
    }
    let mut device = None;
    let code = match run(args, &mut device) {
        Ok(Outcome::AllStatementsSucceeded) => ExitCode::SUCCESS,
        Ok(Outcome::StatementsFailed) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("Error: {}", run::told(&error));
            ExitCode::FAILURE
        }
    };
    if let Some(context) = device.and_then(|device| device.opened()) {
        // What a failed query began may take longer than the end of a process waits. Its failures are nobody's any more.
        _ = context.synchronize();
    }
    code
}

/// Ctrl-C at a terminal reaches the processes by which a driver links kernels as well, and a driver whose linker was interrupted
/// ends the process. What this thread and those it starts from now on run as processes never hear of it.
fn leave_interrupts_to_one_thread() -> std::io::Result<()> {
    std::thread::Builder::new().name("interrupts".into()).spawn(|| {
        loop {
            std::thread::park();
        }
    })?;
    Ok(SigSet::from_iter([Signal::SIGINT]).thread_block()?)
}

/// Nothing of a query is left on the host's threads once this returns.
#[tokio::main]
async fn run(args: Args, device: &mut Option<Arc<DeviceRuntime>>) -> Result<Outcome> {
    run::run(args, device).await
}
