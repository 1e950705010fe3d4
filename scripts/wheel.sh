#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package for Linux of 2018 and later (manylinux_2_28) into target/wheels, and
# prints its path and size. Installs its tools from PyPI into the virtual environment target/wheel.
set -eu
cd "$(dirname "$0")/.."

tools="maturin==1.16.0 ziglang==0.17.1 auditwheel==6.8.2"
environment=$PWD/target/wheel

say() { echo "wheel.sh: $*" >&2; }

if [ "$(cat "$environment/installed" 2>/dev/null)" != "$tools" ]; then
    say "installing $tools into $environment"
    rm -rf "$environment"
    python3 -m venv "$environment"
    # shellcheck disable=SC2086 # a list of words
    "$environment/bin/python" -m pip install --quiet --disable-pip-version-check $tools
    echo "$tools" >"$environment/installed"
fi
PATH=$environment/bin:$PATH
export PATH

rm -f target/wheels/devicefusion-*.whl
maturin build --manifest-path crates/python/Cargo.toml --profile wheel --zig --compatibility manylinux_2_28 --out target/wheels
shown=$(auditwheel show target/wheels/devicefusion-*.whl)
echo "$shown"
echo "$shown" | tr '\n' ' ' | grep -q manylinux_2_28 || { say "the wheel needs a later system than manylinux_2_28"; exit 1; }
du --bytes target/wheels/devicefusion-*.whl

# The wheel works where nothing else is: README's lines, then the tests, with a driver and without.
# Tests with peers that are absent are skipped.
empty=$environment/empty
rm -rf "$empty"
python3 -m venv "$empty"
empty=$empty/bin/python
"$empty" -m pip install --quiet --disable-pip-version-check target/wheels/devicefusion-*.whl
sed -n '/^```python$/,/^```$/p' README.md | grep -v '^```' | "$empty" -
"$empty" -m pip install --quiet --disable-pip-version-check "$(echo target/wheels/devicefusion-*.whl)[adbc]" pytest numpy
cd crates/python
"$empty" -c 'import devicefusion; print(devicefusion.SessionContext().device() or exit("wheel.sh: there is no device"))'
"$empty" -B -m pytest -q -p no:cacheprovider tests
OCL_ICD_VENDORS=/nonexistent "$empty" -B -m pytest -q -p no:cacheprovider tests
