#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs playwright-core (from npm) into target/browser, and prints that folder. Uses no network
# if it is installed. Needs Chromium and Node.js. Tests of HTML pages run this script.
set -eu

package=playwright-core@1.65.1
target=$(cd "$(dirname "$0")/.." && pwd)/target/browser

say() { echo "browser.sh: $*" >&2; }

for tool in "${CHROMIUM:-chromium}" node npm; do
    command -v "$tool" >/dev/null || { say "no $tool: on Debian or Ubuntu: apt-get install chromium nodejs npm"; exit 1; }
done
if [ "$(cat "$target/installed" 2>/dev/null)" != "$package" ]; then
    say "installing $package into $target"
    mkdir -p "$target"
    npm install --silent --no-audit --no-fund --prefix "$target" "$package" >&2 || { say "npm cannot install it"; exit 1; }
    echo "$package" >"$target/installed"
fi
echo "$target"
