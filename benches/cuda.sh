#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests and benchmarks on a machine that has a CUDA GPU and no toolchain, from the binaries that
# benches/pack-cuda.sh has put into .cuda/. Takes nine minutes at most; each part has a limit of its own, and a
# part that fails or runs out of time does not stop the next. Closes with a summary and the tables of numbers.
#
#   SCALE=10 RUNS=7 OUT=cuda-results benches/cuda.sh [devices|tests|sanitizer|tpch|sinks|micro|cold …]
#
# Everything printed goes into cuda.log, summary.txt, tpch.json, sinks.json, micro.json and cold.json under $OUT (.cuda/out)
# too. QUERIES are those of TPC-H: SCALE=30 benches/cuda.sh tpch is a call of its own.
# DEVICEFUSION_TEST_DEVICE=opencl tries the script on a machine without a GPU; TESTS is a regular expression for the
# names of the binaries whose tests run.
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${OUT:-.cuda/out}
SCALE=${SCALE:-10}
RUNS=${RUNS:-7}
ROWS=${ROWS:-10000000}
QUERIES=${QUERIES:-$(seq -s, 1 22)}
TESTS=${TESTS:-.}
SECONDS_IN_ALL=${SECONDS_IN_ALL:-540}
export DEVICEFUSION_TEST_DEVICE=${DEVICEFUSION_TEST_DEVICE:-cuda} RUST_BACKTRACE=1
# Sessions that read their settings from the environment: the shell's and the examples'.
export DATAFUSION_DEVICE_SELECTOR=$DEVICEFUSION_TEST_DEVICE
# Of the differential test; the shapes that they come from are compiled one by one.
export DEVICEFUSION_CASES=${DEVICEFUSION_CASES:-1500}
parts=("$@")
((${#parts[@]})) || parts=(devices tests sanitizer tpch sinks micro cold)
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
    # The dynamic loader's path finds toolkits and wheels that nothing else announces. Carried ones come first.
    found=$(find "$bin" /usr/local/cuda*/ /opt /usr/lib -name 'libnvrtc.so.1[23]*' -printf '%h\n' 2>/dev/null | awk '!seen[$0]++')
    export PATH=$bin:$PATH LD_LIBRARY_PATH=$bin:${LD_LIBRARY_PATH:-}:$(paste -sd: <<<"$found")
    # For the tests of NVRTC itself.
    [[ ${NVRTC_PATH:-} || ! $found ]] || export NVRTC_PATH=${found%%$'\n'*}
    DEVICEFUSION_COMMIT=$(cat .cuda/commit)
    export DEVICEFUSION_COMMIT
    # Tests look for sources and binaries where they were built.
    path=$(cat .cuda/root)
    [[ -e $path ]] || { mkdir -p "$(dirname "$path")" && ln -s "$root" "$path"; }
    while IFS=$'\t' read -r path name; do
        mkdir -p "$(dirname "$path")" "$(dirname "$path")/../tmp"
        if [[ -x $bin/$name && ! -e $path ]]; then ln -sf "$bin/$name" "$path"; fi
    done <.cuda/links.tsv
}

# part SECONDS COMMAND…: runs it within its limit and within what is left of the whole.
part() {
    local limit=$1 left=$((SECONDS_IN_ALL - SECONDS)) code=0
    shift
    ((left < 5)) && return 124
    timeout --kill-after=5 "$((limit < left ? limit : left))" "$@" || code=$?
    return "$code"
}

# named NAME COMMAND…: says what became of it, unless all is well.
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

# beside NAME COMMAND…: runs it in the background; `together` waits for all of them and prints what they said.
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

# Correctness only, so all at once.
tests() {
    local name folder
    while IFS=$'\t' read -r name folder; do
        [[ $name =~ $TESTS ]] || continue
        if [[ -x $bin/$name ]]; then
            beside "$name" in_folder "$folder" part 240 "$bin/$name" --test-threads=8
        else
            echo "$name: not carried"
        fi
    done <.cuda/tests.tsv
    if [[ ! sql-tests =~ $TESTS ]]; then
        :
    elif [[ -x $bin/devicefusion-sqllogictest ]]; then
        beside sql-tests part 240 devicefusion-sqllogictest --device "$DEVICEFUSION_TEST_DEVICE" --strict sql-tests
    else
        echo "sql-tests: not carried"
    fi
    together
}

in_folder() {
    cd "$1" && "${@:2}"
}

# Memory errors, races in shared memory and wrong barriers, in the small tests of the kernels.
sanitizer() {
    local tool=compute-sanitizer check name filter
    command -v $tool >/dev/null || tool=$(find /usr/local/cuda*/ /opt -name compute-sanitizer -type f -perm -u+x 2>/dev/null | head -1)
    [[ $tool ]] || { echo "no compute-sanitizer"; return; }
    while read -r check name filter; do
        [[ -x $bin/$name ]] || { echo "$name: not carried"; continue; }
        beside "$check-$name" part 60 "$tool" --tool "$check" --error-exitcode 9 "$bin/$name" --test-threads=2 $filter
    done <<'CHECKS'
memcheck test-kernels-select
memcheck test-kernels-reduce
memcheck test-kernels-group a_key_of_each_kind
racecheck test-kernels-reduce the_order_of_floats_is_total
racecheck test-kernels-group a_key_of_each_kind
synccheck test-kernels-reduce
CHECKS
    together
}

tpch() {
    # Plain DataFusion runs beside it, which takes most of the time.
    named tpch part 240 devicefusion-bench tpch --scale "$SCALE" --data "$data" --queries "$QUERIES" --tables resident \
        --devices "$DEVICEFUSION_TEST_DEVICE" --runs 3 --json "$OUT/tpch.json"
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
    if [[ " ${parts[*]} " == *" tpch "* ]]; then
        # Beside the tests, which are not timed.
        part 300 devicefusion-bench generate --scale "$SCALE" --data "$data" &
        generator=$!
    fi
    for name in "${parts[@]}"; do
        # What is timed has the machine to itself.
        if [[ $name =~ ^(tpch|sinks|micro|cold)$ && $generator ]]; then
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
                awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
                     END { printf "tests: %d passed, %d failed, %d ignored\n", passed, failed, ignored }' "$log"
                tail -n 12 "$bin/logs/sql-tests" 2>/dev/null
                ;;
            sanitizer) echo "sanitizer: $(grep -c 'SUMMARY: 0 \(errors\|hazards\)' "$log") clean runs" ;;
        esac
    done
    grep -h '^FAILED\|^stopped\|^test .* FAILED$\|not carried$' "$bin"/*.log | sort | uniq -c
    for name in devices tpch sinks micro cold; do
        if [[ -e $bin/$name.log ]]; then cat "$bin/$name.log"; fi
    done
}

unpack
data=$root/data/tpch-sf$SCALE
everything 2>&1 | tee "$OUT/cuda.log"
summary | tee "$OUT/summary.txt"
! grep -q '^FAILED\|^stopped' "$bin"/*.log
