#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests and benchmarks on a machine with a CUDA GPU and no toolchain, with the binaries of
# benches/pack-cuda.sh in .cuda/. Takes at most nine minutes. Each part has its own time limit. A
# failed part does not stop the next one. Ends with a summary and the benchmarks' tables.
#
#     SCALE=10 RUNS=7 OUT=cuda-results benches/cuda.sh [PART …]
#
# - PART: devices, tests, python, sanitizer, tpch, batches, sinks, micro, cold; all by default
# - OUT: folder of cuda.log, summary.txt and a JSON file per benchmark (.cuda/out)
# - SCALE, QUERIES: of TPC-H, as in: SCALE=30 benches/cuda.sh tpch
# - BATCH_ROWS: rows of device batches that `batches` compares (1048576,67108864)
# - TESTS: regular expression for the names of the test binaries
# - DEVICEFUSION_TEST_DEVICE: opencl tries the script on a machine without a GPU
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-.cuda/out}
SCALE=${SCALE:-10}
RUNS=${RUNS:-7}
ROWS=${ROWS:-10000000}
QUERIES=${QUERIES:-$(seq -s, 1 22)}
BATCH_ROWS=${BATCH_ROWS:-1048576,67108864}
TESTS=${TESTS:-.}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-540}
export DEVICEFUSION_TEST_DEVICE=${DEVICEFUSION_TEST_DEVICE:-cuda} RUST_BACKTRACE=1
# For the shell and the examples, whose sessions read settings from the environment.
export DATAFUSION_DEVICE_SELECTOR=$DEVICEFUSION_TEST_DEVICE
# Cases of the differential test, few because each shape compiles its kernels.
export DEVICEFUSION_CASES=${DEVICEFUSION_CASES:-1500}
parts=("$@")
((${#parts[@]})) || parts=(devices tests python sanitizer tpch batches sinks micro cold)
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
root=$PWD
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
mkdir "$bin/logs"

unpack() {
    local zstd=zstd first='' name library path found
    if ! command -v zstd >/dev/null; then
        export LD_LIBRARY_PATH=$root/.cuda/lib:${LD_LIBRARY_PATH:-}
        zstd=$root/.cuda/lib/zstd
    fi
    while read -r name; do
        "$zstd" -q -d --long=30 ${first:+"--patch-from=$bin/$first"} ".cuda/bin/$name.zst" -o "$bin/$name" || exit 1
        chmod +x "$bin/$name"
        first=${first:-$name}
    done <.cuda/order
    for library in .cuda/lib/*.so*.zst; do
        [[ -e $library ]] && "$zstd" -q -d -f "$library" -o "$bin/$(basename "$library" .zst)"
    done
    # Finds NVRTC in toolkits and wheels outside the loader's default path. A packed one goes first.
    found=$(find "$bin" /usr/local/cuda*/ /opt /usr/lib -name 'libnvrtc.so.1[23]*' -printf '%h\n' 2>/dev/null | awk '!seen[$0]++')
    export PATH=$bin:$PATH LD_LIBRARY_PATH=$bin:${LD_LIBRARY_PATH:-}:$(paste -sd: <<<"$found")
    # For the NVRTC tests.
    [[ ${NVRTC_PATH:-} || ! $found ]] || export NVRTC_PATH=${found%%$'\n'*}
    DEVICEFUSION_COMMIT=$(cat .cuda/commit)
    export DEVICEFUSION_COMMIT
    # Tests look for sources and binaries at the paths of the build.
    path=$(cat .cuda/root)
    [[ -e $path ]] || { mkdir -p "$(dirname "$path")" && ln -s "$root" "$path"; }
    while IFS=$'\t' read -r path name; do
        mkdir -p "$(dirname "$path")" "$(dirname "$path")/../tmp"
        if [[ -x $bin/$name && ! -e $path ]]; then ln -sf "$bin/$name" "$path"; fi
    done <.cuda/links.tsv
}

# part SECONDS COMMAND…: runs the command within this limit and within the remaining total time.
part() {
    local limit=$1 left=$((SECONDS_IN_ALL - SECONDS)) code=0
    shift
    ((left < 5)) && return 124
    timeout --kill-after=5 "$((limit < left ? limit : left))" "$@" || code=$?
    return "$code"
}

# named NAME COMMAND…: runs the command and reports a failure or a timeout.
named() {
    local name=$1 code=0
    shift
    "$@" || code=$?
    case $code in
        0) ;;
        124 | 137) echo "stopped $name: out of time" ;;
        *) echo "FAILED $name" ;;
    esac
}

# beside NAME COMMAND…: runs the command in the background. `together` waits and prints all output.
names=() ids=()
beside() {
    local name=$1
    shift
    named "$name" "$@" >"$bin/logs/$name" 2>&1 </dev/null &
    names+=("$name") ids+=($!)
}

together() {
    local name
    ((${#ids[@]})) && wait "${ids[@]}"
    for name in "${names[@]}"; do
        printf '== %s\n' "$name"
        cat "$bin/logs/$name"
    done
    names=() ids=()
}

devices() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv || true
    echo "NVRTC: ${NVRTC_PATH:-none found}"
    if [[ -x $bin/devicefusion ]]; then part 30 devicefusion devices; fi
}

# Each test has a process of its own, since a faulty kernel ruins the context of its process. Tests
# measure nothing, so as many run at once as there are cores.
tests() {
    local name folder
    mkdir -p "$bin/logs/tests"
    export bin
    while IFS=$'\t' read -r name folder; do
        [[ $name =~ $TESTS ]] || continue
        if [[ -x $bin/$name ]]; then
            (cd "$folder" && "$bin/$name" --list --format terse 2>/dev/null) |
                sed -n "s|^\(.*\): test$|$name $folder \1|p"
        else
            echo "$name: not carried" >&2
        fi
    done <.cuda/tests.tsv >"$bin/logs/list"
    if [[ ! sql-tests =~ $TESTS ]]; then
        :
    elif [[ -x $bin/devicefusion-sqllogictest ]]; then
        beside sql-tests part 240 devicefusion-sqllogictest --device "$DEVICEFUSION_TEST_DEVICE" --strict sql-tests
    else
        echo "sql-tests: not carried"
    fi
    named tests part 240 xargs -r -a "$bin/logs/list" -P "$(nproc)" -L1 bash -c "$(declare -f one_test); one_test \"\$@\"" -
    together
}

# one_test BINARY FOLDER TEST: runs one test. A failed one prints the end of its output.
one_test() {
    local log=$bin/logs/tests/$1-${3//:/_} code=0
    cd "$2" && timeout --kill-after=5 100 "$bin/$1" --exact "$3" --nocapture >"$log" 2>&1 </dev/null || code=$?
    if ((code)); then
        echo "test $1 $3 ... FAILED"
        tail -n 25 "$log" | cut -c1-600 | sed 's/^/    /'
    elif grep -q '^test result: .* 0 passed; 0 failed; [1-9][0-9]* ignored' "$log"; then
        echo "test $1 $3 ... ignored"
    else
        echo "test $1 $3 ... ok"
    fi
}

# The Python package with tensors of the GPU, those of CuPy and cuDF where they are installed.
python() {
    local site=$bin/site
    [[ -e $bin/lib_devicefusion.so ]] || { echo "lib_devicefusion.so: not carried"; return; }
    python3 -c 'import pytest, pyarrow' || { echo "python: not run, for want of pytest or pyarrow"; return; }
    mkdir -p "$site"
    cp -r crates/python/python/devicefusion "$site/"
    cp "$bin/lib_devicefusion.so" "$site/devicefusion/_devicefusion.abi3.so"
    PYTHONPATH=$site named python part 120 python3 -B -m pytest -q -rs -p no:cacheprovider crates/python/tests/test_cuda.py
}

# Checks the small kernel tests for memory errors, races in shared memory and wrong barriers.
sanitizer() {
    local tool=compute-sanitizer check name filter
    command -v $tool >/dev/null || tool=$(find /usr/local/cuda*/ /opt -name compute-sanitizer -type f -perm -u+x 2>/dev/null | head -1)
    [[ $tool ]] || { echo "no compute-sanitizer"; return; }
    while read -r check name filter; do
        [[ -x $bin/$name ]] || { echo "$name: not carried"; continue; }
        beside "$check-$name" part 60 "$tool" --tool "$check" $([[ $check != memcheck ]] || echo --report-api-errors no) --error-exitcode 9 "$bin/$name" --test-threads=2 $filter
    done <<'CHECKS'
memcheck test-kernels-select
memcheck test-kernels-reduce
memcheck test-kernels-group a_key_of_each_kind
racecheck test-kernels-reduce extremes_of_floats_follow_total_order
racecheck test-kernels-group a_key_of_each_kind
synccheck test-kernels-reduce
CHECKS
    together
}

tpch() {
    # Plain DataFusion, which this runs for comparison, takes most of the time.
    named tpch part 240 devicefusion-bench tpch --scale "$SCALE" --data "$data" --queries "$QUERIES" --tables resident \
        --devices "$DEVICEFUSION_TEST_DEVICE" --runs 3 --json "$OUT/tpch.json"
}

# Without plain DataFusion, so that the scale is the device's alone to hold.
batches() {
    local rows
    for rows in ${BATCH_ROWS//,/ }; do
        named "batches of $rows rows" part 240 devicefusion-bench tpch --scale "$SCALE" --data "$data" --queries "$QUERIES" \
            --tables resident --devices "$DEVICEFUSION_TEST_DEVICE" --without-plain --runs "$RUNS" \
            --set "device.batch_rows=$rows" --set "device.resident_batch_rows=$rows" --json "$OUT/tpch-batches-$rows.json"
    done
}

sinks() {
    named sinks part 60 devicefusion-bench sinks --devices "$DEVICEFUSION_TEST_DEVICE" --runs "$RUNS" --json "$OUT/sinks.json"
}

micro() {
    named micro part 60 devicefusion-bench micro --rows "$ROWS" --devices "$DEVICEFUSION_TEST_DEVICE" \
        --runs "$RUNS" --json "$OUT/micro.json"
}

cold() {
    named cold part 30 devicefusion-bench cold --devices "$DEVICEFUSION_TEST_DEVICE" --runs "$RUNS" --json "$OUT/cold.json"
}

everything() {
    local name begin generator=
    if [[ " ${parts[*]} " =~ \ (tpch|batches)\  ]]; then
        # In parallel with the tests, which measure nothing.
        part 300 devicefusion-bench generate --scale "$SCALE" --data "$data" &
        generator=$!
    fi
    for name in "${parts[@]}"; do
        # Benchmarks run alone.
        if [[ $name =~ ^(tpch|batches|sinks|micro|cold)$ && $generator ]]; then
            wait "$generator"
            generator=
        fi
        begin=$SECONDS
        printf '\n=== %s\n' "$name"
        "$name" >"$bin/$name.log" 2>&1
        cat "$bin/$name.log"
        echo "($((SECONDS - begin)) s)"
    done
}

summary() {
    local name log
    printf '\n=== summary, commit %s, on %s, %s s\n' "$DEVICEFUSION_COMMIT" "$DEVICEFUSION_TEST_DEVICE" "$SECONDS"
    for name in "${parts[@]}"; do
        log=$bin/$name.log
        case $name in
            tests)
                awk '/^test .* ok$/ { passed++ } /^test .* FAILED$/ { failed++ } /^test .* ignored$/ { ignored++ }
                     END { printf "tests: %d passed, %d failed, %d ignored, of %d\n", passed, failed, ignored, listed }' \
                    listed="$(wc -l <"$bin/logs/list")" "$log"
                tail -n 12 "$bin/logs/sql-tests" 2>/dev/null
                ;;
            python) echo "python: $(tail -n 1 "$log")" ;;
            sanitizer) echo "sanitizer: $(grep -c 'SUMMARY: 0 \(errors\|hazards\)' "$log") clean runs" ;;
        esac
    done
    grep -h '^FAILED\|^stopped\|^test .* FAILED$\|not carried$' "$bin"/*.log | sort | uniq -c
    for name in devices tpch batches sinks micro cold; do
        if [[ -e $bin/$name.log ]]; then cat "$bin/$name.log"; fi
    done
}

unpack
data=$root/data/tpch-sf$SCALE
everything 2>&1 | tee "$OUT/cuda.log"
summary | tee "$OUT/summary.txt"
! grep -q '^FAILED\|^stopped' "$bin"/*.log
