#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compares the device, strict, with plain DataFusion beyond two limits: 2 GiB of strings in a column
# and 2^31 rows. Also checks the messages when memory is exhausted. Needs 24 GB of memory and ten
# minutes, so it is not part of CI.
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
    echo "answers: $(wc -l <"$answers/device") lines, all equal"
else
    echo "answers differ" && status=1
fi

# fails QUERY MESSAGE: the query must fail with `Resources exhausted` and this message.
fails() {
    message=$("$shell" --strict -q -c "$1" 2>&1 >/dev/null || true)
    case $message in
    *"Resources exhausted"*"$2"*) echo "as it should: $1
    $message" ;;
    *) echo "$1 does not fail with '$2' but with
    $message" && status=1 ;;
    esac
}
many='generate_series(1, 2500000000)'
fails "SELECT count(*) FROM $many a JOIN generate_series(1, 10) b ON a.value = b.value" 'DeviceJoinExec holds all rows of its build side'
fails "SELECT count(r) FROM (SELECT row_number() OVER (ORDER BY value) AS r FROM $many)" 'DeviceWindowExec holds all rows of its input'
fails "SELECT count(*) FROM (SELECT value FROM $many ORDER BY value % 1000003 OFFSET 10)" 'DeviceSortExec holds all rows of its input'
fails "SELECT count(DISTINCT value) FROM $many" 'DeviceAggregateExec'
exit $status
