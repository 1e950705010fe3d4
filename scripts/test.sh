#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs all tests of the workspace; with --no-run it builds them only. With cargo-nextest each test
# has its own process, so the crash of a driver fails one test only. Examples in documentation need
# `cargo test`. PROFILE is a profile of `Cargo.toml`.
set -eu
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
profile=${PROFILE:-test}

if $cargo nextest --version >/dev/null 2>&1; then
    status=0
    $cargo nextest run --cargo-profile "$profile" --workspace "$@" || status=$?
    [ "$#" -eq 0 ] || exit "$status"
    $cargo test --profile "$profile" --workspace --doc || status=$?
    exit "$status"
fi
exec $cargo test --profile "$profile" --workspace --no-fail-fast "$@"
