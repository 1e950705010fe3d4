#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Texts beyond 2 GiB in a column and more than 2^31 rows: answers of the device, strict, against plain DataFusion's, and what is
# said where memory ends. Wants 24 GB of memory and ten minutes; not part of CI.
#
#     scripts/limits.sh [SHELL]      (target/release/devicefusion)
set -eu
here=$(dirname "$0") shell=${1:-target/release/devicefusion}
answers=$(mktemp -d)
trap 'rm -rf "$answers"' EXIT
status=0

"$shell" --device none -q --format csv -f "$here/limits.sql" >"$answers/plain"
"$shell" --strict -q --format csv -f "$here/limits.sql" >"$answers/device"
if diff "$answers/plain" "$answers/device"; then
    echo "answers: $(wc -l <"$answers/device") lines, none differs"
else
    echo "answers differ" && status=1
fi

# A query that must fail, and what its message must say.
fails() {
    message=$("$shell" --strict -q -c "$1" 2>&1 >/dev/null || true)
    case $message in
    *"Resources exhausted"*"$2"*) echo "as it should: $1
    $message" ;;
    *) echo "$1 does not say '$2' but
    $message" && status=1 ;;
    esac
}
many='generate_series(1, 2500000000)'
fails "SELECT count(*) FROM $many a JOIN generate_series(1, 10) b ON a.value = b.value" 'DeviceJoinExec holds all rows of its build side'
fails "SELECT count(r) FROM (SELECT row_number() OVER (ORDER BY value) AS r FROM $many)" 'DeviceWindowExec holds all rows of its input'
fails "SELECT count(*) FROM (SELECT value FROM $many ORDER BY value % 1000003 OFFSET 10)" 'DeviceSortExec holds all rows of its input'
fails "SELECT count(DISTINCT value) FROM $many" 'DeviceAggregateExec'
exit $status
