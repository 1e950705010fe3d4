// SPDX-License-Identifier: Apache-2.0
//! Settings for databases only, and the report, which is an option too.

use adbc_core::error::{Result, Status};
use adbc_core::options::{OptionConnection, OptionDatabase};
use adbc_core::{Database, Optionable};
use devicefusion::DeviceOptions;

use crate::support::{database, query};

/// Settings that run native code or use files, each with another value than its default.
const UNSAFE: [(&str, &str); 7] = [
    ("device.allow_unsafe_settings", "true"),
    ("device.cache_dir", "/nowhere"),
    ("device.compile_options", "-cl-mad-enable"),
    ("device.dump_programs", "/nowhere"),
    ("device.futhark", "true"),
    ("device.load_programs", "/nowhere"),
    ("device.nvrtc_path", "/nowhere"),
];

/// The text of a connection's options may be a stranger's, as its SQL.
#[test]
fn a_connection_sets_neither_native_code_nor_files() -> Result<()> {
    let documented = DeviceOptions::documentation().iter().filter(|doc| doc.program_only);
    assert_eq!(documented.map(|doc| doc.key).collect::<Vec<_>>(), UNSAFE.map(|(key, _)| key));
    let database = database();
    let mut connection = database.new_connection()?;
    for (key, value) in UNSAFE {
        let option = || OptionConnection::Other(key.into());
        let before = connection.get_option_string(option())?;
        assert_ne!(before, value);
        let refusals = [
            connection.set_option(option(), value.into()).unwrap_err(),
            database.new_connection_with_opts([(option(), value.into())]).err().unwrap(),
            query(&mut connection, &format!("SET {key} = '{value}'")).unwrap_err(),
        ];
        let wanted =
            format!("{key} cannot change from '{before}' to '{value}' by SQL, because it runs native code or uses files");
        for refusal in refusals {
            assert_eq!(refusal.status, Status::InvalidArguments, "{refusal}");
            assert!(refusal.message.contains(&wanted) && refusal.message.contains("program sets it"), "{refusal}");
        }
        assert_eq!(connection.get_option_string(option())?, before);
    }
    Ok(())
}

#[test]
fn a_database_sets_native_code_and_files_for_its_connections() -> Result<()> {
    for (key, value) in UNSAFE {
        let mut database = database();
        database.set_option(OptionDatabase::from(key), value.into())?;
        assert_eq!(database.new_connection()?.get_option_string(OptionConnection::Other(key.into()))?, value);
    }
    Ok(())
}

/// A number of the report.
fn number(report: &str, key: &str) -> usize {
    let (_, rest) = report.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key} in {report}"));
    rest.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn the_report_of_the_device_counts_its_memory() -> Result<()> {
    let database = database();
    let mut connection = database.new_connection()?;
    let unopened = database.get_option_string("devicefusion.report".into()).unwrap_err();
    assert!(unopened.status == Status::InvalidState && unopened.message.contains("no device is open"), "{unopened}");
    query(&mut connection, "CREATE TABLE device.t AS SELECT value * 2 AS x FROM generate_series(1, 20000)")?;
    let of_database = database.get_option_string("devicefusion.report".into())?;
    let of_connection = connection.get_option_string("devicefusion.report".into())?;
    for report in [of_database, of_connection] {
        // The values fit 32 bits.
        assert!(number(&report, "in_use") >= 20_000 * 4 && number(&report, "launches") > 0, "{report}");
    }
    let set = connection.set_option("devicefusion.report".into(), "{}".into()).unwrap_err();
    assert_eq!(set.status, Status::InvalidArguments, "{set}");
    Ok(())
}
