// SPDX-License-Identifier: Apache-2.0
//! Which test enforces which rule of `docs/conformance.md`.
//!
//! The recorder checks more than a test's name says: each rule marked "every test" is checked on every callback, by the
//! file in brackets, whatever the test is about.

/// Each rule in a few words, with its tests, or why there is none.
const RULES: [(&str, &str, &str); 100] = [
    ("R1", "layout of ArrowDeviceArray", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R2", "layout of ArrowDeviceArrayStream", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R3", "layout of ArrowAsyncTask", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    (
        "R4",
        "layout of ArrowAsyncProducer, as the shipped headers have it",
        "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust",
    ),
    ("R5", "layout of ArrowAsyncDeviceStreamHandler", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    (
        "R6",
        "device types are 32-bit numbers, those of DLPack",
        "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust",
    ),
    (
        "R7",
        "the three include guards are kept",
        "header::r7_header_is_c99_and_cpp17_and_keeps_the_guards, header::r7_header_goes_with_that_of_arrow_cpp",
    ),
    ("R8", "an unknown device type is an error, not a crash", "arrays::r8_an_unknown_device_is_carried_but_not_read"),
    ("R9", "the structs never grow", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R10", "buffers are memory of the device type", "columnar::every_plain_type_keeps_its_memory"),
    (
        "R11",
        "everything else can be read by the CPU",
        "every test [data.c]: the recorder reads the structs, and all data of the CPU's",
    ),
    (
        "R12",
        "the device type can access every buffer",
        "columnar::every_plain_type_keeps_its_memory, columnar::mismatched_arrays_are_refused_and_released",
    ),
    (
        "R13",
        "the device id tells devices of one type apart",
        "columnar::every_plain_type_keeps_its_memory, columnar::another_context_gets_a_copy",
    ),
    (
        "R14",
        "-1 where a type has no ids",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    ("R15", "one device for the whole tree", "no test: an export has one device by its type"),
    ("R16", "what is pointed to lives until release", "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere"),
    ("R17", "release state lives in the array itself", "every test [data.c]: the recorder calls the one callback"),
    (
        "R18",
        "release frees buffers and event",
        "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere, columnar::release_on_another_thread_gives_the_memory_back",
    ),
    ("R19", "reserved is zero", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    (
        "R20",
        "with an event, data is complete once it fires",
        "device::memory_of_this_context_is_used_in_place, engine::rows_pass_from_engine_to_engine_without_leaving_the_device",
    ),
    ("R21", "without one, data is complete", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed"),
    (
        "R22",
        "no event for types that have none",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    ("R23", "an event may be missing for any type", "arrays::r8_an_unknown_device_is_carried_but_not_read"),
    ("R24", "the event is behind a pointer", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait"),
    ("R25", "a producer of EXT_DEV documents its event", "no test: this is no producer of EXT_DEV"),
    ("R26", "shared data is not changed", "every test [data.c]: buffers and tables of the recorder come back as they were"),
    (
        "R27",
        "the producer fills the consumer's struct, and forgets its address",
        "every test [data.c]: outputs are moved and overwritten as soon as they are filled",
    ),
    (
        "R28",
        "lengths, offsets and buffers of the base interface hold",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    (
        "R29",
        "release frees the tree, wherever the struct has been moved",
        "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere, every test [data.c]",
    ),
    (
        "R30",
        "callbacks on any thread, and nothing unwinds through C",
        "arrays::r39_r30_an_import_is_released_once_on_whatever_thread_is_last, \
             pull_producer::r30_r60_a_panic_of_the_source_is_an_error_for_good, \
             async_producer::r30_r83_a_panic_of_the_source_is_told",
    ),
    (
        "R31",
        "a record batch is a struct array; metadata travels in the schema",
        "async_consumer::r31_arrays_that_are_no_batches_flow_too, \
             arrays::r31_metadata_of_a_schema_reaches_c_and_comes_back, \
             arrays::r31_r46_an_array_that_is_no_batch_is_imported",
    ),
    ("R32", "shape and type travel in the schema", "every test: a schema comes before its arrays"),
    (
        "R33",
        "exported batches have no offset or validity of their own",
        "arrays::r33_sliced_batches_have_no_offset_of_their_own, every test [data.c]",
    ),
    (
        "R34",
        "exported null counts are real",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]",
    ),
    (
        "R35",
        "the lengths of views' buffers are host memory",
        "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed",
    ),
    (
        "R36",
        "every field of an output is filled",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, every test [data.c, pull.c]",
    ),
    (
        "R37",
        "the event is waited for before buffers are read",
        "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait, \
             pull_consumer::r37_arrays_with_events_keep_them, async_consumer::r37_arrays_with_events_keep_them",
    ),
    ("R38", "no event, no wait", "arrays::r28_r46_arrays_of_every_shape_are_imported"),
    (
        "R39",
        "released once, and never a child alone",
        "arrays::r39_r30_an_import_is_released_once_on_whatever_thread_is_last, every test [data.c]",
    ),
    ("R40", "a move leaves the source marked as released", "arrays::r40_an_import_can_be_handed_on"),
    (
        "R41",
        "private_data is the producer's, a released struct nobody's",
        "every test [data.c, core.c]: pointers come back as given, and freed memory stays as it was",
    ),
    ("R42", "the event is the producer's", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait"),
    ("R43", "released behind our own last use", "device::lender_gets_memory_back_after_the_last_use_only"),
    (
        "R44",
        "outputs are zeroed before a call, reserved is ignored",
        "pull_consumer::r44_r52_r53_all_batches_come_whatever_else_is_left_in_the_outputs, every test [pull.c, async.c]",
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
        "the event's type per device type",
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
        "get_schema gives 0 or an errno, one schema for all",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, every test [data.c]",
    ),
    (
        "R52",
        "get_next gives 0 or an errno; a released array is the end",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, \
             pull_consumer::r44_r52_r53_all_batches_come_whatever_else_is_left_in_the_outputs",
    ),
    (
        "R53",
        "the end is looked for after each success",
        "pull_consumer::r44_r52_r53_all_batches_come_whatever_else_is_left_in_the_outputs, every test [data.c]",
    ),
    (
        "R54",
        "no call on a released stream",
        "pull_consumer::r54_r55_r56_every_failing_call_is_told_and_ends_the_stream, every test [pull.c]",
    ),
    (
        "R55",
        "get_last_error right after a failure only",
        "pull_consumer::r54_r55_r56_every_failing_call_is_told_and_ends_the_stream, \
             pull_consumer::r55_failures_pass_the_other_thread, \
             pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good, every test [pull.c]",
    ),
    (
        "R56",
        "its text lives until the next call",
        "pull_consumer::r54_r55_r56_every_failing_call_is_told_and_ends_the_stream, \
             pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good",
    ),
    (
        "R57",
        "release is there, frees all, and chunks outlive it",
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
        "after the end or an error, the same again",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, \
             pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good, \
             pull_producer::r30_r60_a_panic_of_the_source_is_an_error_for_good",
    ),
    (
        "R61",
        "errno by kind of failure",
        "pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good, \
             async_producer::r83_r61_a_failure_of_the_source_is_told_after_the_batches_before, every test [pull.c, handler.c]",
    ),
    ("R62", "get_next may block any thread", "pull_producer::r57_a_stream_released_anywhere_frees_its_source"),
    (
        "R63",
        "a handler takes calls at once",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, \
             async_producer::r63_a_handler_that_lacks_something_is_refused_and_released, \
             async_consumer::r63_a_handler_that_no_producer_takes_ends_its_stream",
    ),
    ("R64", "the producer is looked at from on_schema on", "every test of async_consumer [async.c]"),
    (
        "R65",
        "on_schema moves the schema out",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, every test [async.c]",
    ),
    (
        "R66",
        "request starts the flow, also from inside callbacks",
        "async_consumer::r66_nothing_is_requested_before_it_is_wanted, async_consumer::r66_r71_r86_all_of_it_may_happen_inside_of_callbacks, every test [async.c]",
    ),
    (
        "R67",
        "a NULL task is the end; others are copied out",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, every test [async.c]",
    ),
    (
        "R68",
        "extract_data once for each accepted task",
        "async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains, \
             async_consumer::r68_a_stream_dropped_before_its_producer_starts_refuses_the_schema, \
             async_producer::r97_r68_batches_that_are_not_wanted_are_freed, every test [async.c]",
    ),
    ("R69", "the array is ours, apart from the task", "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order"),
    (
        "R70",
        "metadata and texts are copied",
        "async_consumer::r70_r71_r94_failures_at_every_step_are_told_after_the_batches_before, \
             async_consumer::r90_r70_metadata_of_all_kinds_is_copied",
    ),
    (
        "R71",
        "on_error and release call no producer",
        "async_consumer::r70_r71_r94_failures_at_every_step_are_told_after_the_batches_before, every test [async.c]",
    ),
    (
        "R72",
        "after cancel, more calls may come",
        "async_consumer::r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains",
    ),
    (
        "R73",
        "a failed extraction's output is not used",
        "async_consumer::r73_a_failed_extraction_is_told_once_and_its_output_is_not_used, \
             async_producer::r73_r95_a_batch_that_cannot_be_made_is_told_next",
    ),
    ("R74", "private_data of task and producer is not ours", "every test [async.c, handler.c]"),
    (
        "R75",
        "no request or cancel after release",
        "async_consumer::r75_a_cancel_from_another_thread_never_meets_a_producer_that_is_gone, \
             async_consumer::r75_a_drop_at_any_moment_is_safe, every test [async.c]",
    ),
    (
        "R76",
        "the end marker may be missing; release is the last call",
        "async_consumer::r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error",
    ),
    (
        "R77",
        "waiting tasks are drained with NULL",
        "async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains",
    ),
    (
        "R78",
        "the handler lives until its own release",
        "tools::all_tests_are_clean_under_valgrind; that release becomes NULL: async_stream::tests",
    ),
    (
        "R79",
        "the producer is there before any callback",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R80",
        "on_schema once and first",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R81",
        "after a refused schema, release alone",
        "async_producer::r81_nothing_but_release_follows_a_refused_schema, \
             async_consumer::r45_r47_r81_a_malformed_schema_is_refused, every test [handler.c]",
    ),
    (
        "R82",
        "after a refused task, no on_error",
        "async_producer::r82_nothing_but_release_follows_a_refused_task, every test [handler.c]",
    ),
    (
        "R83",
        "on_error, then release, and nothing between",
        "async_producer::r83_r61_a_failure_of_the_source_is_told_after_the_batches_before, \
             async_producer::r83_r89_a_producer_dropped_at_any_poll_says_so_and_releases, every test [handler.c]",
    ),
    (
        "R84",
        "no more tasks than requested",
        "async_producer::r84_back_pressure_holds_until_more_is_requested, \
             async_producer::r84_nothing_flows_without_a_request_but_the_schema, async_producer::r84_many_batches_flow_one_by_one, \
             async_consumer::r84_no_more_is_requested_than_there_is_room_for, every test [handler.c]",
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
        "request calls back later, never at once",
        "async_producer::r87_a_request_that_is_not_positive_is_an_error_told_later, every test [handler.c]",
    ),
    (
        "R87",
        "request of nothing is an error, told later",
        "async_producer::r87_a_request_that_is_not_positive_is_an_error_told_later",
    ),
    (
        "R88",
        "request after cancel does nothing",
        "async_producer::r88_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_producer::r88_a_bad_request_after_a_cancel_is_nothing",
    ),
    (
        "R89",
        "cancel on any thread, any number of times, without on_error",
        "async_producer::r88_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_producer::r89_cancels_from_other_threads_race_with_everything, async_producer::r89_a_cancel_ends_a_source_that_never_has_anything, every test [handler.c]",
    ),
    (
        "R90",
        "metadata is encoded as a schema's, for as long as its owner",
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
        "tasks come in the data's order",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted",
    ),
    (
        "R93",
        "extract_data is quick, on any thread",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted",
    ),
    (
        "R94",
        "on_error and release with or without a request",
        "async_producer::r94_a_source_that_waits_is_asked_only_after_a_request, \
             async_consumer::r70_r71_r94_failures_at_every_step_are_told_after_the_batches_before",
    ),
    (
        "R95",
        "after a failed extraction, on_error and release alone",
        "async_producer::r73_r95_a_batch_that_cannot_be_made_is_told_next, every test [handler.c]",
    ),
    (
        "R96",
        "the producer outlives the last task",
        "async_producer::r96_tasks_are_extracted_and_more_is_requested_after_release_as_arrow_cpp_does",
    ),
    (
        "R97",
        "extract_data fills all of the output, or takes none",
        "async_producer::r97_r68_batches_that_are_not_wanted_are_freed, every test [handler.c, data.c]",
    ),
    ("R98", "capsules have their names, release what nobody took, and serve once", "Python [test_capsules.py]"),
    ("R99", "unknown keywords and schemas that do not fit are refused", "Python [test_capsules.py]"),
    ("R100", "methods for the CPU give CPU memory or refuse", "Python [test_capsules.py]"),
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
        // With devices, in the crates above this one.
        ("device", include_str!("../../../device/src/tests/foreign.rs")),
        ("columnar", include_str!("../../../columnar/src/tests/exchange.rs")),
        ("engine", include_str!("../../../datafusion/tests/suite/exchange.rs")),
    ];
    for (index, (rule, _, tests)) in RULES.iter().enumerate() {
        assert_eq!(*rule, format!("R{}", index + 1));
        for word in tests.split([' ', ',', ';']) {
            let Some((module, test)) = word.split_once("::") else { continue };
            let Some((_, source)) = sources.iter().find(|(name, _)| *name == module) else { continue };
            assert!(source.contains(&format!("fn {test}()")), "{rule}: {word}");
        }
    }
    // And each test that names rules is in the table.
    for (module, source) in sources {
        for line in source.lines().filter_map(|line| line.strip_prefix("fn r")) {
            let Some((test, _)) = line.split_once("()") else { continue };
            let name = format!("{module}::r{test}");
            let numbered = test.starts_with(|first: char| first.is_ascii_digit());
            assert!(!numbered || RULES.iter().any(|(_, _, tests)| tests.contains(&name)), "{name}");
        }
    }
}

/// `docs/conformance.md` is this table; `DEVICEFUSION_WRITE_DOCS=1` writes it anew.
#[test]
fn the_page_is_the_table() {
    let mut page = String::from(
        "# Conformance\n\n\
         The rules of the Arrow C Device data interface (array, stream, async stream) in the numbering of this project, each with the\n\
         tests that enforce it. The crates' comments and tests name rules by these numbers. This page is written by a test of\n\
         `arrow-device` from the table that it checks: a rule without a test is seen.\n\n\
         `header` to `tools` are modules of `crates/arrow-device/tests/recorder`, where a strict peer in C is the other side; \"every\n\
         test\" are its checks on every callback, in the file in brackets. `Python` is `crates/arrow-device/tests/python`. `device`, `columnar` and `engine` are the tests with\n\
         devices: `crates/device/src/tests/foreign.rs`, `crates/columnar/src/tests/exchange.rs`,\n\
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
    assert!(written == page, "docs/conformance.md is not what the table says; DEVICEFUSION_WRITE_DOCS=1 writes it");
}
