// SPDX-License-Identifier: Apache-2.0
//! CUDA without a GPU: the driver and the crate above it, on the emulator, with the real
//! NVRTC.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod context;
mod driver;
mod emulator;
mod grid;
