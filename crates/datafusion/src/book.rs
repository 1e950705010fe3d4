// SPDX-License-Identifier: Apache-2.0
//! The Rust blocks of the book, as documentation tests.

#[doc = include_str!("../../../README.md")]
struct Readme;

#[doc = include_str!("../../../docs/rust.md")]
struct RustPage;

#[doc = include_str!("../../../docs/device-data.md")]
struct DeviceData;

#[doc = include_str!("../../../docs/futhark-device.md")]
struct FutharkOnTheDevice;
