// SPDX-License-Identifier: Apache-2.0
//! DataFusion's built-in functions. Other libraries register functions of the same names.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::LazyLock;

use datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};

/// Types of the built-in functions by name.
type BuiltinTypes = LazyLock<HashMap<String, TypeId>>;

/// Whether a scalar function is DataFusion's built-in function of its name.
pub(crate) fn is_builtin(function: &ScalarUDF) -> bool {
    static TYPES: BuiltinTypes = LazyLock::new(|| {
        let nested = datafusion::functions_nested::all_default_nested_functions();
        let functions = datafusion::functions::all_default_functions();
        functions.iter().chain(&nested).map(|function| entry(function.name(), function.inner().as_ref())).collect()
    });
    has(&TYPES, function.name(), function.inner().as_ref())
}

/// As [`is_builtin`] for aggregates.
pub(crate) fn is_builtin_aggregate(function: &AggregateUDF) -> bool {
    static TYPES: BuiltinTypes = LazyLock::new(|| {
        let functions = datafusion::functions_aggregate::all_default_aggregate_functions();
        functions.iter().map(|function| entry(function.name(), function.inner().as_ref())).collect()
    });
    has(&TYPES, function.name(), function.inner().as_ref())
}

/// As [`is_builtin`] for window functions.
pub(crate) fn is_builtin_window(function: &WindowUDF) -> bool {
    static TYPES: BuiltinTypes = LazyLock::new(|| {
        let functions = datafusion::functions_window::all_default_window_functions();
        functions.iter().map(|function| entry(function.name(), function.inner().as_ref())).collect()
    });
    has(&TYPES, function.name(), function.inner().as_ref())
}

fn entry(name: &str, function: &dyn Any) -> (String, TypeId) {
    (name.to_string(), function.type_id())
}

fn has(types: &BuiltinTypes, name: &str, function: &dyn Any) -> bool {
    types.get(name) == Some(&function.type_id())
}

/// See [`skips_nulls`].
const SKIP_NULLS: [&str; 31] = [
    "any_value",
    "approx_distinct",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar_pop",
    "covar_samp",
    "max",
    "median",
    "min",
    "percentile_cont",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev",
    "stddev_pop",
    "string_agg",
    "sum",
    "var",
    "var_pop",
];

/// Whether a built-in aggregate skips rows with a NULL argument.
pub(crate) fn skips_nulls(name: &str) -> bool {
    SKIP_NULLS.contains(&name)
}
