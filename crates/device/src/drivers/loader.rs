// SPDX-License-Identifier: Apache-2.0
//! The dynamic loader, which opens the libraries of all drivers.

/// The dynamic loader's message. The error itself names only the function that failed.
pub(super) fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).unwrap_or(error).to_string()
}
