// SPDX-License-Identifier: Apache-2.0
//! Translation of DataFusion's expressions, aggregates and window functions to those of the
//! kernels.
//!
//! A function here gives the kernels' expression, or the [reason](crate::reason) for which it is
//! not supported on the device.

mod aggregate;
mod builtin;
mod computed_strings;
mod device_function;
mod evaluation;
mod functions;
mod library;
mod list_key;
mod translate;
mod window;

pub(crate) use aggregate::{AggregateCall, rank_rule};
pub(crate) use builtin::{is_builtin, is_builtin_aggregate, skips_nulls};
pub(crate) use computed_strings::{ComputedStrings, concatenates, support_of_aggregate, support_of_expr, support_of_output};
pub(crate) use device_function::DeviceFunction;
pub(crate) use evaluation::Evaluation;
pub(crate) use library::LibraryFunctions;
pub(crate) use list_key::{KEY_TYPE, as_key, as_sort_key, is_list};
#[cfg(test)]
pub(crate) use translate::asked;
pub(crate) use translate::{awaits_subquery, lower, may_fail, must_be_column, supported};
pub(crate) use window::{describe_window, lower_window};
