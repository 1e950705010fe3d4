#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# CPU time per run of the kernels of TPC-H queries from Parquet on PoCL, sampled by `perf`. Other
# programs on the machine affect it less than wall-clock time.
#
#     benches/kernel-cpu.sh SHELL QUERY...
#     benches/kernel-cpu.sh target/release/devicefusion 9 8 19
#
# DATA is the folder of `devicefusion-bench generate` (data/tpch-sf1).
set -eu
shell=$1
shift
root=$(cd "$(dirname "$0")/.." && pwd)
eval "$("$root/scripts/setup-opencl.sh")"
data=${DATA:-$root/data/tpch-sf1}
runs=8
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
for query in "$@"; do
    {
        for file in "$data"/*.parquet; do
            echo "CREATE EXTERNAL TABLE $(basename "$file" .parquet) STORED AS PARQUET LOCATION '$file';"
        done
        for _ in $(seq $runs); do
            cat "$root/benches/queries/q$query.sql"
            echo ';'
        done
    } >"$folder/q.sql"
    perf record --quiet --output "$folder/perf.data" --freq 2000 --event task-clock "$shell" --device opencl -q -f "$folder/q.sql" >/dev/null 2>&1
    perf report --input "$folder/perf.data" --no-children --show-nr-samples --stdio --sort symbol 2>/dev/null |
        awk -v query="$query" -v runs=$runs '
            match($0, /_pocl_kernel_[a-z0-9_]*/) {
                ms = $2 / 2 / runs
                total += ms
                name = substr($0, RSTART + 13, RLENGTH - 13)
                sub(/_workgroup$/, "", name)
                if (ms > 2) parts = parts sprintf(" %s %.1f", name, ms)
            }
            END { printf "Q%s: kernels %.1f CPU ms:%s\n", query, total, parts }'
done
