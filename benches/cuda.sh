#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests and benchmarks on a machine that has a CUDA GPU and no toolchain, from the binaries that
# benches/pack-cuda.sh has put into .cuda/. Takes about nine minutes at most; each part has a limit of
# its own, and a part that fails or runs out of time does not stop the next. Closes with a summary.
#
#   SCALE=10 RUNS=7 OUT=cuda-results benches/cuda.sh [devices|tests|sql|sanitizer|tpch|micro …]
#
# Everything printed goes into cuda.log, summary.txt, tpch.json and micro.json under $OUT (.cuda/out) too.
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-.cuda/out}
SCALE=${SCALE:-10}
RUNS=${RUNS:-7}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-540}
parts=("$@")
((${#parts[@]})) || parts=(devices tests sql sanitizer tpch micro)
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
root=$PWD
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT

unpack() {
    local zstd=zstd
    if ! command -v zstd >/dev/null; then
        export LD_LIBRARY_PATH=$root/.cuda/lib:${LD_LIBRARY_PATH:-}
        zstd=$root/.cuda/lib/zstd
    fi
    "$zstd" -q -d --long=30 -c .cuda/bin.tar.zst | tar --extract --directory "$bin" || exit 1
    for library in .cuda/lib/*.so*.zst; do
        [[ -e $library ]] && "$zstd" -q -d -f "$library" -o "$bin/$(basename "$library" .zst)"
    done
    export PATH=$bin:$PATH LD_LIBRARY_PATH=$bin:${LD_LIBRARY_PATH:-}
    # The dynamic loader's path finds toolkits and wheels that nothing else announces.
    local found
    found=$(find /usr/local/cuda*/ /opt /usr/lib -name 'libnvrtc.so.1[23]*' -printf '%h\n' 2>/dev/null | sort -u | paste -sd:)
    export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$found
    export DEVICEFUSION_COMMIT DEVICEFUSION_TEST_DEVICE=cuda RUST_BACKTRACE=1
    DEVICEFUSION_COMMIT=$(cat .cuda/commit)
    # Tests look for their files where they were built.
    local built
    built=$(cat .cuda/root)
    [[ -e $built ]] || { mkdir -p "$(dirname "$built")" && ln -s "$root" "$built"; } || true
}

# part SECONDS COMMAND…: runs it within its limit and within what is left of the whole.
part() {
    local limit=$1 left=$((SECONDS_IN_ALL - SECONDS)) code=0
    shift
    ((left < 5)) && { echo "left out: no time"; return 1; }
    timeout --kill-after=5 "$((limit < left ? limit : left))" "$@" || code=$?
    ((code == 124 || code == 137)) && echo "stopped: out of time"
    return "$code"
}

devices() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
    if [[ -x $bin/devicefusion ]]; then part 30 devicefusion devices; fi
}

tests() {
    local name folder
    while IFS=$'\t' read -r name folder; do
        [[ -x $bin/$name ]] || { echo "$name: not carried"; continue; }
        echo "== $name"
        (cd "$folder" && part 100 "$bin/$name" --test-threads=8) || echo "FAILED $name"
    done <.cuda/tests.tsv
}

sql() {
    if [[ -x $bin/devicefusion-sqllogictest ]]; then
        part 60 devicefusion-sqllogictest --device cuda --strict sql-tests || echo "FAILED sql-tests"
    else
        echo "not carried"
    fi
}

# Memory errors in the small tests of the kernels.
sanitizer() {
    local tool=compute-sanitizer name
    command -v $tool >/dev/null || tool=$(find /usr/local/cuda*/ /opt -name compute-sanitizer -type f -perm -u+x 2>/dev/null | head -1)
    [[ $tool ]] || { echo "no compute-sanitizer"; return; }
    for name in $(cut -f1 .cuda/tests.tsv | grep '^test-kernels-' | grep -v gates); do
        [[ -x $bin/$name ]] || continue
        echo "== memcheck $name"
        part 40 "$tool" --tool memcheck --error-exitcode 9 "$bin/$name" --test-threads=1 || echo "FAILED memcheck $name"
    done
}

tpch() {
    part 150 devicefusion-bench tpch --scale "$SCALE" --data "$data" --queries 1,6 --devices cuda --runs "$RUNS" --json "$OUT/tpch.json" ||
        echo "FAILED tpch"
}

micro() {
    part 60 devicefusion-bench micro --devices cuda --runs "$RUNS" --json "$OUT/micro.json" || echo "FAILED micro"
}

everything() {
    local name begin generator=
    if [[ " ${parts[*]} " == *" tpch "* ]]; then
        # Beside the tests, which are not timed.
        devicefusion-bench generate --scale "$SCALE" --data "$data" &
        generator=$!
    fi
    for name in "${parts[@]}"; do
        if [[ $name == tpch && $generator ]]; then wait "$generator"; fi
        begin=$SECONDS
        printf '\n=== %s\n' "$name"
        "$name" >"$bin/$name.log" 2>&1
        cat "$bin/$name.log"
        echo "($((SECONDS - begin)) s)"
    done
}

summary() {
    local name log
    printf '\n=== summary, commit %s, %s s\n' "$DEVICEFUSION_COMMIT" "$SECONDS"
    for name in "${parts[@]}"; do
        log=$bin/$name.log
        case $name in
            tests) awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
                        END { printf "tests: %d passed, %d failed, %d ignored\n", passed, failed, ignored }' "$log" ;;
            sql) tail -n 12 "$log" ;;
            sanitizer) echo "sanitizer: $(grep -c 'ERROR SUMMARY: 0 errors' "$log") clean runs" ;;
            *) cat "$log" ;;
        esac
    done
    grep -h '^FAILED\|^stopped\|^test .* FAILED$\|not carried$' "$bin"/*.log
}

unpack
data=$root/data/tpch-sf$SCALE
everything 2>&1 | tee "$OUT/cuda.log"
summary | tee "$OUT/summary.txt"
! grep -q '^FAILED' "$bin"/*.log
