#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what benches/cuda.sh runs on a machine with a CUDA GPU and no toolchain: release builds of the
# benchmark harness, the tests, the sqllogictest runner and the shell, stripped and compressed into the
# ignored folder .cuda/.
#
#   benches/pack-cuda.sh [--limit MIB] [--level N] [--nvrtc]
#
# --limit  size that .cuda/ and the tracked files may have together (64); what does not fit, the shell
#          first, is left out, and said
# --level  zstd's level (19; 12 packs in a quarter of the time and is a quarter larger)
# --nvrtc  carries NVRTC 13.0 from PyPI too; without it the machine's own is used
set -euo pipefail
cd "$(dirname "$0")/.."

limit=64 level=19 nvrtc=
while (($#)); do
    case $1 in
        --limit) limit=$2; shift 2 ;;
        --level) level=$2; shift 2 ;;
        --nvrtc) nvrtc=1; shift ;;
        *) sed -n '3,13s/^# \?//p' "$0"; exit 2 ;;
    esac
done

messages=$(mktemp)
trap 'rm -f "$messages"' EXIT
cargo build --release --workspace --bins
cargo test --release --workspace --no-run --message-format=json >"$messages"

rm -rf .cuda
mkdir -p .cuda/bin .cuda/lib
pwd >.cuda/root
git describe --always --dirty=+changes >.cuda/commit

# bin/, tests.tsv (name, folder to run in) and order (most wanted first).
python3 - "$messages" <<'PYTHON'
import json, os, shutil, subprocess, sys

target = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version=1", "--no-deps"]))["target_directory"]
tests = []
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message["reason"] == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
        folder = os.path.relpath(os.path.dirname(message["manifest_path"]))
        name = f"test-{os.path.basename(folder)}-{message['target']['name']}"
        tests.append((name, folder, message["executable"]))

def take(name, path):
    packed = f".cuda/bin/{name}"
    shutil.copy(path, packed)
    subprocess.check_call(["strip", packed])
    return name, os.path.getsize(packed)

def release(name):
    return take(name, f"{target}/release/{name}")

order = [release("devicefusion-bench")]
order += sorted((take(name, path) for name, _, path in tests), key=lambda item: item[1])
order += [release("devicefusion-sqllogictest"), release("devicefusion")]
with open(".cuda/order", "w") as file:
    file.writelines(f"{name}\n" for name, _ in order)
with open(".cuda/tests.tsv", "w") as file:
    file.writelines(f"{name}\t{folder}\n" for name, folder, _ in sorted(tests))
PYTHON

# The machine may lack zstd, and NVRTC.
cp "$(command -v zstd)" .cuda/lib/
ldd "$(command -v zstd)" | awk '$3 ~ /lib(z|lzma|lz4|zstd)\.so/ { print $3 }' | xargs -r cp -t .cuda/lib/
if [[ $nvrtc ]]; then
    wheel=$(mktemp -d)
    python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheel" nvidia-cuda-nvrtc==13.0.88
    (cd "$wheel" && python3 -m zipfile -e ./*.whl .)
    find "$wheel" -name 'libnvrtc.so.13' -o -name 'libnvrtc-builtins.so.13.0' | xargs zstd -q -T0 "-$level" --output-dir-flat .cuda/lib
    rm -rf "$wheel"
fi

# One archive: the binaries share most of their code, and a long window finds it.
mapfile -t names <.cuda/order
tracked=$(git ls-files -z | xargs -0 stat --format=%s 2>/dev/null | awk '{ bytes += $1 } END { print bytes + 0 }')
carried=$(du -sb .cuda/lib | cut -f1)
room=$((limit * 1048576 - tracked - carried - 262144))
left_out=()
while true; do
    (cd .cuda/bin && tar --create --owner=0 --group=0 "${names[@]}") | zstd -q -T0 "-$level" --long=30 -f -o .cuda/bin.tar.zst
    packed=$(stat --format=%s .cuda/bin.tar.zst)
    ((packed > room && ${#names[@]} > 1)) || break
    left_out=("${names[-1]}" "${left_out[@]}")
    unset 'names[-1]'
done
rm -rf .cuda/bin .cuda/order
echo ".cuda/: ${#names[@]} binaries in $((packed / 1048576)) MiB, with the tracked files $(((tracked + carried + packed) / 1048576)) of $limit MiB"
if ((${#left_out[@]})); then echo "left out for size: ${left_out[*]}"; fi
((packed <= room)) || { echo "$packed bytes do not fit into $room" >&2; exit 1; }
