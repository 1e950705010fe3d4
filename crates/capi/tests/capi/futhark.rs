// SPDX-License-Identifier: Apache-2.0
//! SQL functions from Futhark libraries, created through C.

use devicefusion_capi::config::*;

use crate::fixture::{Fixture, OutputStyle};
use crate::support::{Context, c};

#[test]
fn programs_in_c_create_functions_of_libraries() {
    let fixture = Fixture::new(OutputStyle::Output);
    let create = |name: &str| format!("CREATE FUNCTION {name}() LANGUAGE futhark AS '{}'", fixture.manifest().display());
    let forbidding = Context::on_host();
    let error = forbidding.failed(2, forbidding.try_execute(&create("scale")));
    assert!(error.contains("device.futhark = false forbids CREATE FUNCTION"), "{error}");
    drop(forbidding);

    let config = devicefusion_context_config_new();
    for (name, value) in [("device.selector", "none"), ("device.futhark", "true")] {
        let (name, value) = (c(name), c(value));
        // SAFETY: C strings.
        assert_eq!(unsafe { devicefusion_context_config_set_option(config, name.as_ptr(), value.as_ptr()) }, 0);
    }
    let context = Context::of(config);
    context.execute(&create("scale"));
    context.execute(&create("pick"));
    assert_eq!(context.query("SELECT scale(v, 2) FROM (VALUES (1.5), (NULL)) AS t(v)").rows(), ["3.0", ""]);
    let error = context.failed(2, context.try_execute("SELECT pick(v, 9) FROM (VALUES (1)) AS t(v)"));
    assert!(error.contains("pick: futhark_entry_pick: Error: index is out of bounds"), "{error}");
    context.execute("DROP FUNCTION pick");
    drop(context);
    fixture.assert_clean();
}
