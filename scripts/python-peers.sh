#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs pytest and the libraries that tests exchange data with (from PyPI) into the virtual
# environment target/python-peers, and prints the path of its interpreter. Uses no network if they
# are installed. The tests with these peers run this script. PyTorch is Debian's, if it is there
# (apt-get install python3-torch): that of PyPI comes with 3 GB of CUDA.
set -eu

peers="pyarrow==26.0.1 nanoarrow==0.9.0 adbc-driver-manager==1.13.0 numpy==2.4.6 pandas==3.1.1 polars==2.1.0"
peers="$peers duckdb==2.0.1 datafusion==55.0.0 jax==0.10.2 tqdm==4.70.1 ipywidgets==8.1.9 pytest==9.2.0 mypy==2.4.1 pyright[nodejs]==1.1.414"
packages=${PYTHON_PEERS:-$peers}
target=$(cd "$(dirname "$0")/.." && pwd)/target/python-peers
python=$target/bin/python
pip="pip --disable-pip-version-check"

say() { echo "python-peers.sh: $*" >&2; }

present() { [ "$(cat "$target/installed" 2>/dev/null)" = "$packages" ] && "$python" -c "" 2>/dev/null; }

# Prefers the pip outside the environment: Debian's python3 has none to install into it.
install() {
    rm -rf "$target"
    if python3 -m pip --version >/dev/null 2>&1; then
        python3 -m venv --without-pip "$target" && pip="python3 -m $pip --python $python"
    else
        python3 -m venv "$target" && pip="$python -m $pip"
    fi >&2 || return 1
    # shellcheck disable=SC2086 # lists of words
    $pip install --quiet --retries 1 --timeout 20 --only-binary=:all: $packages >&2
}

# Debian's packages come behind those of the environment.
borrow_torch() {
    path=$(echo "$target"/lib/python3*/site-packages)/torch.pth
    echo "/usr/lib/python3/dist-packages" >"$path"
    # It is for one version of Python.
    "$python" -W ignore -c "import torch" >/dev/null 2>&1 || rm "$path"
}

# Tests run in parallel; the lock lets one of them install.
mkdir -p "$(dirname "$target")"
if ! present && command -v flock >/dev/null && [ -z "${PYTHON_PEERS_LOCKED:-}" ]; then
    PYTHON_PEERS_LOCKED=1 exec flock "$target.lock" "$0"
fi
if ! present; then
    say "installing $packages into $target"
    if ! install; then
        say "not installed: needs python3 with venv and pip (on Debian or Ubuntu: apt-get install python3-venv), and PyPI"
        exit 1
    fi
    borrow_torch
    # Written last, so that an interrupted install is repeated.
    echo "$packages" >"$target/installed"
fi
echo "$python"
