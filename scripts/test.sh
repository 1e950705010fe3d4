#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests of the workspace. Where cargo-nextest is installed each test has a process of its own, so
# that a driver that crashes takes one test with it; documentation's examples need cargo's own runner.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

if $cargo nextest --version >/dev/null 2>&1; then
    status=0
    $cargo nextest run --workspace || status=$?
    $cargo test --workspace --doc || status=$?
    exit "$status"
fi
exec $cargo test --workspace --no-fail-fast
