// SPDX-License-Identifier: Apache-2.0
//! DataFusion's built-in functions. Other libraries register functions of the same names.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::LazyLock;

use datafusion::logical_expr::{AggregateUDF, ScalarUDF, WindowUDF};
use kernels::expr::AggregateFunction;

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

/// Whether a built-in aggregate skips rows with a NULL argument, by the kernels' table.
pub(crate) fn skips_nulls(name: &str) -> bool {
    AggregateFunction::from_sql(name).is_some_and(|(_, named)| named.skips_nulls)
}
