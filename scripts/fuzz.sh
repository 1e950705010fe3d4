#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Hands random wrong Arrow data to every way in, under AddressSanitizer: a million inputs, or as
# many as the first argument says. The second argument is a number of inputs up to the device,
# by default none. Its run searches no leaks, because drivers have their own, and leaves the signal
# stack to LLVM. Needs a nightly toolchain, without `rust-src`.
#
# DEVICEFUSION_FUZZ_SEED is the first seed; an input that fails prints its own. To see the seed of
# an input that crashes, set DEVICEFUSION_FUZZ_SHOW.
set -eu
cd "$(dirname "$0")/.."

run() {
    RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address" DEVICEFUSION_FUZZ_INPUTS="$1" \
        ASAN_OPTIONS="$2:malloc_context_size=2:quarantine_size_mb=8${ASAN_OPTIONS:+:$ASAN_OPTIONS}" \
        "${CARGO:-cargo}" +nightly test --package columnar --lib --target x86_64-unknown-linux-gnu \
        --config profile.dev.package.columnar.opt-level=1 --config profile.dev.package.arrow-device.opt-level=1 \
        -- --nocapture --exact "tests::fuzz::$3"
}

run "${1:-1000000}" detect_leaks=1 wrong_arrays_are_arrays_or_errors
if [ "${2:-0}" -gt 0 ]; then
    run "$2" detect_leaks=0:use_sigaltstack=0 wrong_batches_reach_the_device_whole_or_not_at_all
fi
