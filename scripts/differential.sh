#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The long run of the differential test: SHAPES shapes of CASES cases each, in pieces of 100 shapes with a process and a
# log of their own. Run again, it goes on where it stopped.
#
#     scripts/differential.sh FOLDER TEST_BINARY [SEED [FIRST_PIECE LAST_PIECE]]
#
# The binary is the one that `cargo test --release --workspace --test suite --no-run` names.
set -eu
folder=$1 binary=$2 seed=${3:-1} first=${4:-0} last=${5:-19}
cases=${CASES:-50}
mkdir -p "$folder"
# Kernels that run once or twice are not worth the compiler's time.
export DEVICEFUSION_TEST_COMPILE_OPTIONS="${DEVICEFUSION_TEST_COMPILE_OPTIONS--cl-opt-disable}"
export DEVICEFUSION_SEED="$seed" DEVICEFUSION_CASES_PER_SHAPE="$cases" DEVICEFUSION_CASES=$((cases * 100))
# DataFusion panics in some cases, which do not count.
export RUST_BACKTRACE=0
status=0
for piece in $(seq "$first" "$last"); do
    log=$folder/seed-$seed-piece-$piece.txt
    grep -q '^test result: ok' "$log" 2>/dev/null && continue
    result=ok
    DEVICEFUSION_FIRST=$((piece * 100)) "$binary" --exact differential::the_device_answers_as_datafusion_does --nocapture \
        >"$log" 2>&1 || result=FAILED status=1
    echo "$log: $result $(grep '^all ' "$log")"
done
exit $status
