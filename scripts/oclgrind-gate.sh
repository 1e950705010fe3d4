#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs each kind of kernel on small data under Oclgrind, which reports data races and out-of-bounds
# accesses. Fails without Oclgrind (Debian, Ubuntu: apt-get install oclgrind).
set -eu
cd "$(dirname "$0")/.."
DEVICEFUSION_REQUIRE_OCLGRIND=1 exec cargo test --quiet --workspace --test gates oclgrind:: "$@"
