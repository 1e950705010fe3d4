// SPDX-License-Identifier: Apache-2.0
//! Words of the dynamic loader, which opens the libraries of both drivers.

/// What the dynamic loader says; the error itself names only the function that failed.
pub(crate) fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).unwrap_or(error).to_string()
}
