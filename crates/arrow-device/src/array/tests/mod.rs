// SPDX-License-Identifier: Apache-2.0
//! Accepted and refused imports, and the content of exports.

mod export;
mod import;
mod view;
