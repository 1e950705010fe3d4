// SPDX-License-Identifier: Apache-2.0
//! CUDA without a GPU: the driver and the crate above it, on a fake `libcuda.so.1` with the real
//! NVRTC.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod context;
mod driver;
mod fake;
