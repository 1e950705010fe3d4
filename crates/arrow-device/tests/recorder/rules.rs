// SPDX-License-Identifier: Apache-2.0
//! The tests of each rule of `docs/conformance.md`.
//!
//! The recorder checks more than a test's name says: each rule with "every test" is checked on
//! every callback, by the file in brackets.

/// Each rule in short, with its tests, or the reason for having none.
const RULES: [(&str, &str, &str); 100] = [
    ("R1", "layout of ArrowDeviceArray", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R2", "layout of ArrowDeviceArrayStream", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R3", "layout of ArrowAsyncTask", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    (
        "R4",
        "layout of ArrowAsyncProducer, as in the shipped headers",
        "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust",
    ),
    ("R5", "layout of ArrowAsyncDeviceStreamHandler", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R6", "device types are the 32-bit numbers of DLPack", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    (
        "R7",
        "the three include guards are kept",
        "header::r7_header_is_c99_and_cpp17_and_keeps_the_guards, header::r7_header_works_with_that_of_arrow_cpp",
    ),
    ("R8", "an unknown device type is an error, not a crash", "arrays::r8_an_unknown_device_is_kept_but_not_read"),
    ("R9", "the structs never grow", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R10", "buffers are memory of the device type", "columnar::every_plain_type_keeps_its_memory"),
    ("R11", "everything else is readable by the CPU", "every test [data.c]: the recorder reads the structs, and all CPU data"),
    (
        "R12",
        "the device type can access every buffer",
        "columnar::every_plain_type_keeps_its_memory, columnar::mismatched_arrays_are_refused_and_released",
    ),
    (
        "R13",
        "the device id distinguishes devices of one type",
        "columnar::every_plain_type_keeps_its_memory, columnar::another_context_gets_a_copy",
    ),
    (
        "R14",
        "the device id is -1 for types without ids",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    ("R15", "one device for the whole tree", "no test: an export has one device by its type"),
    ("R16", "pointers are valid until release", "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere"),
    ("R17", "the embedded array has the only release callback", "every test [data.c]: the recorder calls the one callback"),
    (
        "R18",
        "release frees buffers and event",
        "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere, columnar::release_on_another_thread_gives_the_memory_back",
    ),
    ("R19", "reserved is zero", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    (
        "R20",
        "with an event, data is complete once the event is",
        "device::memory_of_this_context_is_used_in_place, engine::rows_pass_from_engine_to_engine_without_leaving_the_device",
    ),
    ("R21", "without an event, data is complete", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed"),
    (
        "R22",
        "no event for types without events",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    ("R23", "the event is optional for every type", "arrays::r8_an_unknown_device_is_kept_but_not_read"),
    ("R24", "the event is behind a pointer", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait"),
    ("R25", "a producer of EXT_DEV documents its event", "no test: this is no producer of EXT_DEV"),
    ("R26", "shared data is immutable", "every test [data.c]: buffers and tables of the recorder come back unchanged"),
    (
        "R27",
        "the producer fills the consumer's struct, and keeps no pointer to it",
        "every test [data.c]: outputs are moved and overwritten as soon as they are filled",
    ),
    (
        "R28",
        "lengths, offsets and buffers follow the base interface",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    (
        "R29",
        "release frees the tree, wherever the struct was moved",
        "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere, every test [data.c]",
    ),
    (
        "R30",
        "callbacks may come on any thread, and never unwind through C",
        "arrays::r39_r30_an_import_is_released_once_on_the_last_thread, \
             pull_producer::r30_r60_a_panic_of_the_source_is_an_error_for_good, \
             async_producer::r30_r83_a_panic_of_the_source_is_reported",
    ),
    (
        "R31",
        "a record batch is a struct array; its metadata is in the schema",
        "async_consumer::r31_arrays_other_than_batches_flow_too, \
             arrays::r31_metadata_of_a_schema_survives_a_round_trip, \
             arrays::r31_r46_an_array_other_than_a_batch_is_imported",
    ),
    ("R32", "shape and type are in the schema", "every test: a schema comes before its arrays"),
    (
        "R33",
        "exported batches have neither offset nor validity at the root",
        "arrays::r33_sliced_batches_have_no_offset_of_their_own, every test [data.c]",
    ),
    (
        "R34",
        "exported null counts are real",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    (
        "R35",
        "the lengths of variadic buffers are host memory",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed",
    ),
    (
        "R36",
        "every field of an output is filled",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, every test [data.c, pull.c]",
    ),
    (
        "R37",
        "consumers wait for the event before they read buffers",
        "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait, \
             pull_consumer::r37_arrays_with_events_keep_them, async_consumer::r37_arrays_with_events_keep_them",
    ),
    ("R38", "without an event there is no wait", "arrays::r28_r46_arrays_of_every_shape_are_imported"),
    (
        "R39",
        "an array is released once, and a child only with its parent",
        "arrays::r39_r30_an_import_is_released_once_on_the_last_thread, every test [data.c]",
    ),
    ("R40", "a move leaves the source flagged as released", "arrays::r40_an_import_can_be_passed_on"),
    (
        "R41",
        "private_data is the producer's; a released struct is not used",
        "every test [data.c, core.c]: pointers come back unchanged, and freed memory is not written",
    ),
    ("R42", "the event is the producer's", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait"),
    ("R43", "release comes after the consumer's last use on the device", "device::adopted_memory_is_released_after_the_last_use"),
    (
        "R44",
        "outputs are zeroed before a call, reserved is ignored",
        "pull_consumer::r44_r52_r53_all_batches_come_despite_garbage_in_the_outputs, every test [pull.c, async.c]",
    ),
    (
        "R45",
        "malformed arrays are refused",
        "arrays::r45_r47_malformed_arrays_are_refused_and_released, \
             pull_consumer::r45_r47_a_malformed_array_ends_the_stream_and_is_released, \
             async_consumer::r45_r47_a_malformed_array_ends_the_stream_and_is_released, \
             arrays::r45_r47_malformed_schemas_are_refused_and_released, \
             pull_consumer::r45_r47_a_malformed_schema_is_refused_and_its_stream_released, \
             async_consumer::r45_r47_r81_a_malformed_schema_is_refused",
    ),
    (
        "R46",
        "offsets, -1, missing validity and empty arrays are accepted",
        "arrays::r28_r46_arrays_of_every_shape_are_imported, arrays::r46_offsets_of_nested_types_count_once",
    ),
    (
        "R47",
        "a failed import releases its argument",
        "arrays::r45_r47_malformed_arrays_are_refused_and_released, \
             arrays::r47_a_type_that_does_not_fit_is_refused_and_released",
    ),
    (
        "R48",
        "the event's type depends on the device type",
        "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait, device::memory_of_this_context_is_used_in_place",
    ),
    (
        "R49",
        "chunks are of the stream's device type",
        "pull_consumer::r49_an_array_of_another_device_type_is_refused_and_released, \
             pull_producer::r49_an_array_of_another_device_type_is_an_error",
    ),
    ("R50", "one stream for each device type", "no test: a stream has one device type by its type"),
    (
        "R51",
        "get_schema returns 0 or an errno; one schema for all arrays",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, every test [data.c]",
    ),
    (
        "R52",
        "get_next returns 0 or an errno; a released array is the end",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, \
             pull_consumer::r44_r52_r53_all_batches_come_despite_garbage_in_the_outputs",
    ),
    (
        "R53",
        "consumers check for the end after each success",
        "pull_consumer::r44_r52_r53_all_batches_come_despite_garbage_in_the_outputs, every test [data.c]",
    ),
    (
        "R54",
        "no call on a released stream",
        "pull_consumer::r54_r55_r56_every_failing_call_is_reported_and_ends_the_stream, every test [pull.c]",
    ),
    (
        "R55",
        "get_last_error follows a failure directly",
        "pull_consumer::r54_r55_r56_every_failing_call_is_reported_and_ends_the_stream, \
             pull_consumer::r55_failures_pass_the_other_thread, \
             pull_producer::r55_r56_r60_r61_failures_keep_their_errno_and_message, every test [pull.c]",
    ),
    (
        "R56",
        "its message is valid until the next call",
        "pull_consumer::r54_r55_r56_every_failing_call_is_reported_and_ends_the_stream, \
             pull_producer::r55_r56_r60_r61_failures_keep_their_errno_and_message",
    ),
    (
        "R57",
        "release is set and frees the stream; chunks outlive it",
        "pull_consumer::r57_a_stream_dropped_anywhere_is_released_once, \
             pull_producer::r57_a_stream_released_anywhere_frees_its_source, every test [pull.c]",
    ),
    (
        "R58",
        "private_data is the producer's",
        "pull_consumer::r58_r59_another_thread_pulls_and_one_call_runs_at_a_time, every test [pull.c]",
    ),
    (
        "R59",
        "calls are serialised",
        "pull_consumer::r58_r59_another_thread_pulls_and_one_call_runs_at_a_time, every test [pull.c]",
    ),
    (
        "R60",
        "the end and errors repeat",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, \
             pull_producer::r55_r56_r60_r61_failures_keep_their_errno_and_message, \
             pull_producer::r30_r60_a_panic_of_the_source_is_an_error_for_good",
    ),
    (
        "R61",
        "the errno tells the kind of failure",
        "pull_producer::r55_r56_r60_r61_failures_keep_their_errno_and_message, \
             async_producer::r83_r61_a_failure_of_the_source_is_reported_after_earlier_batches, every test [pull.c, handler.c]",
    ),
    ("R62", "get_next may block the calling thread", "pull_producer::r57_a_stream_released_anywhere_frees_its_source"),
    (
        "R63",
        "a handler accepts calls immediately",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, \
             async_producer::r63_an_incomplete_handler_is_refused_and_released, \
             async_consumer::r63_a_handler_without_a_producer_ends_its_stream",
    ),
    ("R64", "the producer is read from on_schema on", "every test of async_consumer [async.c]"),
    (
        "R65",
        "on_schema moves the schema out",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, every test [async.c]",
    ),
    (
        "R66",
        "request starts the flow, even within callbacks",
        "async_consumer::r66_nothing_is_requested_before_the_first_poll, async_consumer::r66_r71_r86_a_reader_may_run_inside_callbacks, every test [async.c]",
    ),
    (
        "R67",
        "a NULL task is the end; other tasks are copied",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, every test [async.c]",
    ),
    (
        "R68",
        "extract_data is called once for each accepted task",
        "async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains, \
             async_consumer::r68_a_stream_dropped_before_its_producer_starts_refuses_the_schema, \
             async_producer::r97_r68_unwanted_batches_are_freed, every test [async.c]",
    ),
    ("R69", "the array outlives the task", "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order"),
    (
        "R70",
        "metadata and messages are copied",
        "async_consumer::r70_r71_r94_failures_at_every_step_are_reported_after_earlier_batches, \
             async_consumer::r90_r70_metadata_of_all_kinds_is_copied",
    ),
    (
        "R71",
        "on_error and release do not call the producer",
        "async_consumer::r70_r71_r94_failures_at_every_step_are_reported_after_earlier_batches, every test [async.c]",
    ),
    (
        "R72",
        "more calls may come after cancel",
        "async_consumer::r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains",
    ),
    (
        "R73",
        "a failed extraction's output is not used",
        "async_consumer::r73_a_failed_extraction_is_reported_once_and_its_output_is_not_used, \
             async_producer::r73_r95_a_failed_deferred_batch_is_reported_next",
    ),
    ("R74", "private_data of task and producer is the producer's", "every test [async.c, handler.c]"),
    (
        "R75",
        "no request or cancel after release",
        "async_consumer::r75_a_cancel_on_another_thread_never_calls_a_freed_producer, \
             async_consumer::r75_a_drop_at_any_moment_is_safe, every test [async.c]",
    ),
    (
        "R76",
        "the end marker may be missing; release is the last call",
        "async_consumer::r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error",
    ),
    (
        "R77",
        "waiting tasks are dismissed with NULL",
        "async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains",
    ),
    (
        "R78",
        "the handler lives until its own release",
        "tools::all_tests_are_clean_under_valgrind; that release becomes NULL: async_stream::tests",
    ),
    (
        "R79",
        "the producer is set before any callback",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R80",
        "on_schema comes once and first",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R81",
        "only release follows a refused schema",
        "async_producer::r81_only_release_follows_a_refused_schema, \
             async_consumer::r45_r47_r81_a_malformed_schema_is_refused, every test [handler.c]",
    ),
    (
        "R82",
        "no on_error follows a refused task",
        "async_producer::r82_only_release_follows_a_refused_task, every test [handler.c]",
    ),
    (
        "R83",
        "release follows on_error directly",
        "async_producer::r83_r61_a_failure_of_the_source_is_reported_after_earlier_batches, \
             async_producer::r83_r89_a_producer_dropped_at_any_poll_reports_it_and_releases, every test [handler.c]",
    ),
    (
        "R84",
        "tasks do not exceed requests",
        "async_producer::r84_back_pressure_holds_until_more_is_requested, \
             async_producer::r84_only_the_schema_flows_without_a_request, async_producer::r84_many_batches_flow_one_by_one, \
             async_consumer::r84_requests_stay_within_the_limit, every test [handler.c]",
    ),
    (
        "R85",
        "callbacks are serialised",
        "async_producer::r85_the_producer_may_be_polled_on_another_thread_each_time, \
             async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R86",
        "request never calls back inline",
        "async_producer::r87_a_request_that_is_not_positive_is_reported_later, every test [handler.c]",
    ),
    (
        "R87",
        "a request that is not positive is reported later",
        "async_producer::r87_a_request_that_is_not_positive_is_reported_later",
    ),
    (
        "R88",
        "request after cancel is ignored",
        "async_producer::r88_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_producer::r88_a_bad_request_after_a_cancel_is_ignored",
    ),
    (
        "R89",
        "cancel works on any thread, repeatedly, without on_error",
        "async_producer::r88_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_producer::r89_cancels_from_other_threads_race_with_everything, async_producer::r89_a_cancel_ends_a_source_that_is_always_pending, every test [handler.c]",
    ),
    (
        "R90",
        "metadata is encoded as a schema's, and valid as long as its owner",
        "async_producer::r90_metadata_of_the_stream_its_batches_and_its_error_is_encoded, \
             async_consumer::r90_r70_metadata_of_all_kinds_is_copied, every test [handler.c]",
    ),
    (
        "R91",
        "arrays are of the announced device type",
        "async_producer::r91_an_array_of_another_device_type_is_an_error, \
             async_consumer::r91_an_array_of_another_device_type_is_refused, every test [data.c]",
    ),
    (
        "R92",
        "tasks come in the order of the data",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted",
    ),
    (
        "R93",
        "extract_data is quick, and works on any thread",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted",
    ),
    (
        "R94",
        "on_error and release need no request",
        "async_producer::r94_a_pending_source_is_polled_only_after_a_request, \
             async_consumer::r70_r71_r94_failures_at_every_step_are_reported_after_earlier_batches",
    ),
    (
        "R95",
        "only on_error and release follow a failed extraction",
        "async_producer::r73_r95_a_failed_deferred_batch_is_reported_next, every test [handler.c]",
    ),
    (
        "R96",
        "the producer outlives the last task",
        "async_producer::r96_tasks_are_extracted_and_more_is_requested_after_release_as_arrow_cpp_does",
    ),
    (
        "R97",
        "extract_data fills the whole output, or accepts NULL",
        "async_producer::r97_r68_unwanted_batches_are_freed, every test [handler.c, data.c]",
    ),
    ("R98", "capsules have their names, release unused structs, and serve once", "Python [test_capsules.py]"),
    ("R99", "unknown keywords and unfit schemas are refused", "Python [test_capsules.py]"),
    ("R100", "CPU methods return CPU memory or refuse", "Python [test_capsules.py]"),
];

#[test]
fn every_rule_has_its_tests_and_they_exist() {
    let sources = [
        ("arrays", include_str!("arrays.rs")),
        ("async_consumer", include_str!("async_consumer.rs")),
        ("async_producer", include_str!("async_producer.rs")),
        ("header", include_str!("header.rs")),
        ("pull_consumer", include_str!("pull_consumer.rs")),
        ("pull_producer", include_str!("pull_producer.rs")),
        ("tools", include_str!("tools.rs")),
        // Tests with devices, in crates that depend on this one.
        ("device", include_str!("../../../device/src/tests/foreign.rs")),
        ("columnar", include_str!("../../../columnar/src/tests/exchange.rs")),
        ("engine", include_str!("../../../datafusion/tests/suite/exchange.rs")),
    ];
    for (index, (rule, _, tests)) in RULES.iter().enumerate() {
        assert_eq!(*rule, format!("R{}", index + 1));
        for part in tests.split([' ', ',', ';']) {
            let Some((module, test)) = part.split_once("::") else { continue };
            let Some((_, source)) = sources.iter().find(|(name, _)| *name == module) else { continue };
            assert!(source.contains(&format!("fn {test}()")), "{rule}: {part}");
        }
    }
    // Each test that names rules is in the table.
    for (module, source) in sources {
        for line in source.lines().filter_map(|line| line.strip_prefix("fn r")) {
            let Some((test, _)) = line.split_once("()") else { continue };
            let name = format!("{module}::r{test}");
            let numbered = test.starts_with(|first: char| first.is_ascii_digit());
            assert!(!numbered || RULES.iter().any(|(_, _, tests)| tests.contains(&name)), "{name}");
        }
    }
}

/// `docs/conformance.md` is generated from this table; `DEVICEFUSION_WRITE_DOCS=1` writes it.
#[test]
fn the_page_matches_the_table() {
    let mut page = String::from(
        "# Conformance\n\n\
         The rules of the Arrow C Device data interface (array, stream, async stream), numbered by this\n\
         project, with the tests that enforce them. Comments and test names cite rules by these numbers.\n\
         A test of `arrow-device` generates this page from a table, and fails for a rule without a test.\n\n\
         The modules in the table:\n\n\
         - `header` to `tools`: `crates/arrow-device/tests/recorder`, with a strict peer in C. \"every test\"\n  \
           stands for the peer's checks on every callback, in the file in brackets.\n\
         - `Python`: `crates/arrow-device/tests/python`.\n\
         - Tests with devices: `device` is `crates/device/src/tests/foreign.rs`, `columnar` is\n  \
           `crates/columnar/src/tests/exchange.rs`, `engine` is\n  \
           `crates/datafusion/tests/suite/exchange.rs`.\n\n\
         | rule | what | tests |\n|---|---|---|\n",
    );
    for (rule, what, tests) in RULES {
        let tests = tests.split(", ").map(|test| if test.contains("::") { format!("`{test}`") } else { test.to_owned() });
        page.push_str(&format!("| {rule} | {what} | {} |\n", tests.collect::<Vec<_>>().join(", ")));
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/conformance.md");
    if std::env::var_os("DEVICEFUSION_WRITE_DOCS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(written == page, "docs/conformance.md does not match the table; DEVICEFUSION_WRITE_DOCS=1 writes it");
}
