// SPDX-License-Identifier: Apache-2.0
//! Reasons for EXPLAIN and error messages.

/// Why something is not supported on the device, as a user would say it.
pub(crate) type Reason = String;
