#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Long run of the differential test, in pieces of 100 shapes with CASES (50) cases each. Each piece
# has its own process and log. A restart continues after the last finished piece. Ends with the sums
# over all pieces in the folder.
#
#     scripts/differential.sh FOLDER TEST_BINARY [SEED [FIRST_PIECE LAST_PIECE]]
#
# `cargo test --workspace --test suite --no-run` prints the path of the binary.
set -eu
# DataFusion cannot plan some shapes, so 21 pieces give 100,000 cases.
folder=$1 binary=$2 seed=${3:-1} first=${4:-0} last=${5:-20}
cases=${CASES:-50}
mkdir -p "$folder"
# Kernels run once or twice, so optimization costs more time than it saves.
export DEVICEFUSION_TEST_COMPILE_OPTIONS="${DEVICEFUSION_TEST_COMPILE_OPTIONS--cl-opt-disable}"
export DEVICEFUSION_SEED="$seed" DEVICEFUSION_CASES_PER_SHAPE="$cases" DEVICEFUSION_CASES=$((cases * 100))
# DataFusion panics in some cases, which are not counted.
export RUST_BACKTRACE=0
status=0
for piece in $(seq "$first" "$last"); do
    log=$folder/seed-$seed-piece-$piece.txt
    grep -q '^test result: ok' "$log" 2>/dev/null && continue
    result=ok
    DEVICEFUSION_FIRST=$((piece * 100)) "$binary" --exact differential::the_device_answers_as_datafusion_does --nocapture \
        >"$log" 2>&1 || result=FAILED status=1
    echo "$log: $result"
done

# Each table line has name, shapes, cases and shares. Shares are weighted by cases.
awk '
    /^ +shapes +cases/ { if (!head) head = $0; table = 1; next }
    /^cases / { table = 0 }
    table {
        name = substr($0, 1, 30)
        n = split(substr($0, 31), field, " ")
        shapes[name] += field[1]
        cases[name] += field[2]
        for (i = 3; i <= n; i++) share[name, i] += field[i] * field[2]
    }
    END {
        print head
        for (name in shapes) {
            printf "%s %7d %8d", name, shapes[name], cases[name]
            for (i = 3; i <= 6; i++) printf " %13.1f", share[name, i] / (cases[name] ? cases[name] : 1)
            print ""
        }
    }
' "$folder/seed-$seed-piece-"*.txt | sort
exit $status
