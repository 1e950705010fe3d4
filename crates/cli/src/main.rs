// SPDX-License-Identifier: Apache-2.0
//! The program `devicefusion`.

use std::process::ExitCode;

use mimalloc::MiMalloc;

#[global_allocator]
static GLOBAL: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    devicefusion_cli::shell(std::env::args_os())
}
