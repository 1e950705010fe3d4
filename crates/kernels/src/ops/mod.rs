// SPDX-License-Identifier: Apache-2.0
//! Sinks: the loops around generated rows.
