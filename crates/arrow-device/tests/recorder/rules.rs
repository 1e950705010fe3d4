// SPDX-License-Identifier: Apache-2.0
//! Which test enforces which rule of `docs/conformance.md`.
//!
//! The recorder checks more than a test's name says: each rule marked "every test" is checked on every callback, by the
//! file in brackets, whatever the test is about.

/// Each rule with its tests, or why there is none here.
const RULES: [(&str, &str); 97] = [
    ("R1", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R2", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R3", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R4", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R5", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R6", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R7", "header::r7_header_is_c99_and_cpp17_and_keeps_the_guards, header::r7_header_goes_with_that_of_arrow_cpp"),
    ("R8", "arrays::r8_an_unknown_device_is_carried_but_not_read"),
    ("R9", "header::r1_to_r6_layout_and_constants_are_the_same_in_c_and_rust"),
    ("R10", "not here: needs a device"),
    ("R11", "every test [data.c]: the recorder reads the structs, and all data of the CPU's"),
    ("R12", "not here: needs a device"),
    ("R13", "not here: needs a device"),
    ("R14", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    ("R15", "not here: an export has one device by its type"),
    ("R16", "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere"),
    ("R17", "every test [data.c]: the recorder calls the one callback"),
    ("R18", "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere; events need a device"),
    ("R19", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    ("R20", "not here: needs a device"),
    ("R21", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed"),
    ("R22", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    ("R23", "arrays::r8_an_unknown_device_is_carried_but_not_read"),
    ("R24", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait"),
    ("R25", "not here: for producers of EXT_DEV"),
    ("R26", "every test [data.c]: buffers and tables of the recorder come back as they were"),
    ("R27", "every test [data.c]: outputs are moved and overwritten as soon as they are filled"),
    ("R28", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    ("R29", "arrays::r16_r29_r39_exported_memory_lives_until_the_release_elsewhere, every test [data.c]"),
    (
        "R30",
        "arrays::r39_r30_an_import_is_released_once_on_whatever_thread_is_last, \
             pull_producer::r30_r60_a_panic_of_the_source_is_an_error_for_good, \
             async_producer::r30_r83_a_panic_of_the_source_is_told",
    ),
    (
        "R31",
        "async_consumer::r31_arrays_that_are_no_batches_flow_too, \
             arrays::r31_metadata_of_a_schema_reaches_c_and_comes_back, \
             arrays::r31_r46_an_array_that_is_no_batch_is_imported",
    ),
    ("R32", "every test: a schema comes before its arrays"),
    ("R33", "arrays::r33_sliced_batches_have_no_offset_of_their_own, every test [data.c]"),
    ("R34", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed, every test [data.c]"),
    ("R35", "arrays::r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed"),
    ("R36", "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, every test [data.c, pull.c]"),
    (
        "R37",
        "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait, \
             pull_consumer::r37_arrays_with_events_keep_them, async_consumer::r37_arrays_with_events_keep_them",
    ),
    ("R38", "arrays::r28_r46_arrays_of_every_shape_are_imported"),
    ("R39", "arrays::r39_r30_an_import_is_released_once_on_whatever_thread_is_last, every test [data.c]"),
    ("R40", "arrays::r40_an_import_can_be_handed_on"),
    ("R41", "every test [data.c, core.c]: pointers come back as given, and freed memory stays as it was"),
    ("R42", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait"),
    ("R43", "not here: needs a device"),
    ("R44", "pull_consumer::r44_r52_r53_all_batches_come_whatever_else_is_left_in_the_outputs, every test [pull.c, async.c]"),
    (
        "R45",
        "arrays::r45_r47_malformed_arrays_are_refused_and_released, \
             pull_consumer::r45_r47_a_malformed_array_ends_the_stream_and_is_released, \
             async_consumer::r45_r47_a_malformed_array_ends_the_stream_and_is_released, \
             arrays::r45_r47_malformed_schemas_are_refused_and_released, \
             pull_consumer::r45_r47_a_malformed_schema_is_refused_and_its_stream_released, \
             async_consumer::r45_r47_r81_a_malformed_schema_is_refused",
    ),
    ("R46", "arrays::r28_r46_arrays_of_every_shape_are_imported, arrays::r46_offsets_of_nested_types_count_once"),
    (
        "R47",
        "arrays::r45_r47_malformed_arrays_are_refused_and_released, \
             arrays::r47_a_type_that_does_not_fit_is_refused_and_released",
    ),
    ("R48", "arrays::r37_r42_data_behind_an_event_is_read_only_after_the_wait; real events need a device"),
    (
        "R49",
        "pull_consumer::r49_an_array_of_another_device_type_is_refused_and_released, \
             pull_producer::r49_an_array_of_another_device_type_is_an_error",
    ),
    ("R50", "not here: a stream has one device type by its type"),
    ("R51", "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, every test [data.c]"),
    (
        "R52",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, \
             pull_consumer::r44_r52_r53_all_batches_come_whatever_else_is_left_in_the_outputs",
    ),
    ("R53", "pull_consumer::r44_r52_r53_all_batches_come_whatever_else_is_left_in_the_outputs, every test [data.c]"),
    ("R54", "pull_consumer::r54_r55_r56_every_failing_call_is_told_and_ends_the_stream, every test [pull.c]"),
    (
        "R55",
        "pull_consumer::r54_r55_r56_every_failing_call_is_told_and_ends_the_stream, \
             pull_consumer::r55_failures_pass_the_other_thread, \
             pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good, every test [pull.c]",
    ),
    (
        "R56",
        "pull_consumer::r54_r55_r56_every_failing_call_is_told_and_ends_the_stream, \
             pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good",
    ),
    (
        "R57",
        "pull_consumer::r57_a_stream_dropped_anywhere_is_released_once, \
             pull_producer::r57_a_stream_released_anywhere_frees_its_source, every test [pull.c]",
    ),
    ("R58", "pull_consumer::r58_r59_another_thread_pulls_and_one_call_runs_at_a_time, every test [pull.c]"),
    ("R59", "pull_consumer::r58_r59_another_thread_pulls_and_one_call_runs_at_a_time, every test [pull.c]"),
    (
        "R60",
        "pull_producer::r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good, \
             pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good, \
             pull_producer::r30_r60_a_panic_of_the_source_is_an_error_for_good",
    ),
    (
        "R61",
        "pull_producer::r55_r56_r60_r61_failures_have_their_code_and_text_for_good, \
             async_producer::r83_r61_a_failure_of_the_source_is_told_after_the_batches_before, every test [pull.c, handler.c]",
    ),
    ("R62", "pull_producer::r57_a_stream_released_anywhere_frees_its_source"),
    (
        "R63",
        "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, \
             async_producer::r63_a_handler_that_lacks_something_is_refused_and_released, \
             async_consumer::r63_a_handler_that_no_producer_takes_ends_its_stream",
    ),
    ("R64", "every test of async_consumer [async.c]"),
    ("R65", "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, every test [async.c]"),
    (
        "R66",
        "async_consumer::r66_nothing_is_requested_before_it_is_wanted, async_consumer::r66_r71_r86_all_of_it_may_happen_inside_of_callbacks, every test [async.c]",
    ),
    ("R67", "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order, every test [async.c]"),
    (
        "R68",
        "async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains, \
             async_consumer::r68_a_stream_dropped_before_its_producer_starts_refuses_the_schema, \
             async_producer::r97_r68_batches_that_are_not_wanted_are_freed, every test [async.c]",
    ),
    ("R69", "async_consumer::r63_r65_r66_r67_r68_r80_all_batches_come_in_order"),
    (
        "R70",
        "async_consumer::r70_r71_r94_failures_at_every_step_are_told_after_the_batches_before, \
             async_consumer::r90_r70_metadata_of_all_kinds_is_copied",
    ),
    ("R71", "async_consumer::r70_r71_r94_failures_at_every_step_are_told_after_the_batches_before, every test [async.c]"),
    (
        "R72",
        "async_consumer::r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains",
    ),
    (
        "R73",
        "async_consumer::r73_a_failed_extraction_is_told_once_and_its_output_is_not_used, \
             async_producer::r73_r95_a_batch_that_cannot_be_made_is_told_next",
    ),
    ("R74", "every test [async.c, handler.c]"),
    (
        "R75",
        "async_consumer::r75_a_cancel_from_another_thread_never_meets_a_producer_that_is_gone, \
             async_consumer::r75_a_drop_at_any_moment_is_safe, every test [async.c]",
    ),
    ("R76", "async_consumer::r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error"),
    ("R77", "async_consumer::r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains"),
    ("R78", "tools::all_tests_are_clean_under_valgrind; that release becomes NULL: async_stream::tests"),
    (
        "R79",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R80",
        "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    (
        "R81",
        "async_producer::r81_nothing_but_release_follows_a_refused_schema, \
             async_consumer::r45_r47_r81_a_malformed_schema_is_refused, every test [handler.c]",
    ),
    ("R82", "async_producer::r82_nothing_but_release_follows_a_refused_task, every test [handler.c]"),
    (
        "R83",
        "async_producer::r83_r61_a_failure_of_the_source_is_told_after_the_batches_before, \
             async_producer::r83_r89_a_producer_dropped_at_any_poll_says_so_and_releases, every test [handler.c]",
    ),
    (
        "R84",
        "async_producer::r84_back_pressure_holds_until_more_is_requested, \
             async_producer::r84_nothing_flows_without_a_request_but_the_schema, async_producer::r84_many_batches_flow_one_by_one, \
             async_consumer::r84_no_more_is_requested_than_there_is_room_for, every test [handler.c]",
    ),
    (
        "R85",
        "async_producer::r85_the_producer_may_be_polled_on_another_thread_each_time, \
             async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted, \
             every test [handler.c]",
    ),
    ("R86", "async_producer::r87_a_request_that_is_not_positive_is_an_error_told_later, every test [handler.c]"),
    ("R87", "async_producer::r87_a_request_that_is_not_positive_is_an_error_told_later"),
    (
        "R88",
        "async_producer::r88_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_producer::r88_a_bad_request_after_a_cancel_is_nothing",
    ),
    (
        "R89",
        "async_producer::r88_r89_a_cancel_at_any_point_ends_without_an_error, \
             async_producer::r89_cancels_from_other_threads_race_with_everything, async_producer::r89_a_cancel_ends_a_source_that_never_has_anything, every test [handler.c]",
    ),
    (
        "R90",
        "async_producer::r90_metadata_of_the_stream_its_batches_and_its_error_is_encoded, \
             async_consumer::r90_r70_metadata_of_all_kinds_is_copied, every test [handler.c]",
    ),
    (
        "R91",
        "async_producer::r91_an_array_of_another_device_type_is_an_error, \
             async_consumer::r91_an_array_of_another_device_type_is_refused, every test [data.c]",
    ),
    ("R92", "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted"),
    ("R93", "async_producer::r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted"),
    (
        "R94",
        "async_producer::r94_a_source_that_waits_is_asked_only_after_a_request, \
             async_consumer::r70_r71_r94_failures_at_every_step_are_told_after_the_batches_before",
    ),
    ("R95", "async_producer::r73_r95_a_batch_that_cannot_be_made_is_told_next, every test [handler.c]"),
    ("R96", "async_producer::r96_tasks_are_extracted_and_more_is_requested_after_release_as_arrow_cpp_does"),
    ("R97", "async_producer::r97_r68_batches_that_are_not_wanted_are_freed, every test [handler.c, data.c]"),
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
    ];
    for (index, (rule, tests)) in RULES.iter().enumerate() {
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
            assert!(!numbered || RULES.iter().any(|(_, tests)| tests.contains(&name)), "{name}");
        }
    }
}
