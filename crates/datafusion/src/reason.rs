// SPDX-License-Identifier: Apache-2.0
//! Reasons for EXPLAIN and error messages.

/// Why something is not supported on the device, in a user's words.
pub(crate) type Reason = String;
