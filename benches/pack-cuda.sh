#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs the binaries for benches/cuda.sh, stripped and compressed, into the ignored folder .cuda/.
# These are the benchmark harness, the device tests, the sqllogictest runner, the shell and the
# library of the Python package.
#
#     benches/pack-cuda.sh [--profile NAME] [--limit MIB] [--level N] [--only REGEX] [--nvrtc]
#
# - --profile: cargo's profile (release; dev tries the scripts without a release build)
# - --limit: limit of .cuda/ and the tracked files together, in MiB (64)
# - --level: zstd's level (19; level 6 takes a tenth of the time for a quarter more size)
# - --only: packs only the names that match
# - --nvrtc: packs NVRTC 13.0 from PyPI too (34 MiB); otherwise the machine must have NVRTC
#
# Binaries are packed in the order of the list below as long as they fit. The script names the rest,
# which a second pack with --only can hold.
set -euo pipefail
cd "$(dirname "$0")/.."

profile=release limit=64 level=19 only=. nvrtc=
while (($#)); do
    case $1 in
        --profile) profile=$2; shift 2 ;;
        --limit) limit=$2; shift 2 ;;
        --level) level=$2; shift 2 ;;
        --only) only=$2; shift 2 ;;
        --nvrtc) nvrtc=1; shift ;;
        *) sed -n '3,17s/^# \?//p' "$0"; exit 2 ;;
    esac
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --profile "$profile" --workspace --bins --message-format=json-render-diagnostics >"$work/messages"
cargo test --profile "$profile" --workspace --no-run --message-format=json-render-diagnostics >>"$work/messages"

rm -rf .cuda
mkdir -p .cuda/bin .cuda/lib
pwd >.cuda/root
git describe --always --dirty=+changes >.cuda/commit

# The target machine may lack zstd.
cp "$(command -v zstd)" .cuda/lib/
ldd "$(command -v zstd)" | awk '$3 ~ /lib(z|lzma|lz4|zstd)\.so/ { print $3 }' | xargs -r cp -t .cuda/lib/
if [[ $nvrtc ]]; then
    python3 -m pip download --quiet --no-deps --only-binary=:all: --dest "$work/wheel" nvidia-cuda-nvrtc==13.0.88
    (cd "$work/wheel" && python3 -m zipfile -e ./*.whl .)
    find "$work/wheel" \( -name libnvrtc.so.13 -o -name libnvrtc-builtins.so.13.0 \) -print0 |
        xargs -0 zstd -q -T0 "-$level" --output-dir-flat .cuda/lib
fi

# Writes three lists:
# - order: name and file, by priority
# - tests.tsv: name of a test and its working directory
# - links.tsv: path at which tests look for a binary, and its name
python3 - "$work" <<'PYTHON'
import json, os, sys

work = sys.argv[1]
# Unlisted tests follow in alphabetical order, as far as they fit.
WANTED = [
    "devicefusion-bench", "devicefusion-sqllogictest",
    "test-device-device", "test-device-nvrtc", "test-device-cuda", "test-kernels-select", "test-kernels-reduce",
    "test-kernels-group", "test-kernels-join", "test-kernels-sort", "test-kernels-window", "test-kernels-expressions",
    "test-kernels-kernels", "test-columnar-columnar", "test-datafusion-suite", "devicefusion", "test-cli-shell",
    "lib_devicefusion.so",
]
# These use no device, or need tools and sources that the target machine lacks. cuda.sh itself runs
# the records of test-sqllogictest-sql.
LEFT_OUT = {
    "test-benches-devicefusion-bench", "test-cli-devicefusion", "test-datafusion-devicefusion", "test-datafusion-docs",
    "test-kernels-gates", "test-sqllogictest-devicefusion-sqllogictest", "test-sqllogictest-sql",
}
files, tests, links = {}, {}, {}
for line in open(f"{work}/messages"):
    message = json.loads(line)
    if message["reason"] != "compiler-artifact":
        continue
    for file in message["filenames"]:
        if file.endswith("/lib_devicefusion.so"):
            files["lib_devicefusion.so"] = file
    if not message["executable"]:
        continue
    name, path = message["target"]["name"], message["executable"]
    folder = os.path.relpath(os.path.dirname(message["manifest_path"]))
    if message["profile"]["test"]:
        name = f"test-{os.path.basename(folder)}-{name}"
        tests[name] = folder
    elif message["target"]["kind"] == ["bin"]:
        links[name] = path
    else:
        continue
    if name not in LEFT_OUT:
        files[name] = path
missing = [name for name in WANTED if name not in files]
assert not missing, f"there is no {', '.join(missing)}: correct the list in benches/pack-cuda.sh"
order = WANTED + sorted(files.keys() - set(WANTED))
for file, pairs in [(f"{work}/order", [(name, files[name]) for name in order]),
                    (".cuda/tests.tsv", [(name, tests[name]) for name in order if name in tests]),
                    (".cuda/links.tsv", [(path, name) for name, path in links.items()])]:
    with open(file, "w") as text:
        text.writelines(f"{a}\t{b}\n" for a, b in pairs)
PYTHON

# One file per binary, so that the size of each is known. The first binary is the zstd dictionary of
# the others, which share much of its code. That saves a tenth.
tracked=$(git ls-files -z | xargs -0 stat --format=%s 2>/dev/null | awk '{ bytes += $1 } END { print bytes + 0 }')
left=$((limit * 1048576 - tracked - $(du -sb .cuda | cut -f1) - 262144))
room=$left first='' left_out=()
while IFS=$'\t' read -r name path; do
    [[ $name =~ $only ]] || continue
    strip -o "$work/$name" "$path"
    packed=.cuda/bin/$name.zst
    zstd -q -T0 "-$level" --long=30 ${first:+"--patch-from=$work/$first"} "$work/$name" -o "$packed"
    bytes=$(stat --format=%s "$packed")
    printf '%-34s %6.1f MiB, %5.1f packed\n' "$name" "$(stat --format=%s "$work/$name" | awk '{ print $1 / 1048576 }')" \
        "$(awk -v bytes="$bytes" 'BEGIN { print bytes / 1048576 }')"
    if ((bytes > left)); then
        left_out+=("$name")
        rm "$packed"
    else
        left=$((left - bytes))
        [[ $first ]] || first=$name
        echo "$name" >>.cuda/order
    fi
    [[ $name == "$first" ]] || rm "$work/$name"
done <"$work/order"
[[ $first ]] || { echo "nothing fits into $room bytes, or matches $only" >&2; exit 1; }
echo ".cuda/ and the tracked files have $(((limit * 1048576 - 262144 - left) / 1048576)) of $limit MiB"
if ((${#left_out[@]})); then echo "left out for size: ${left_out[*]}"; fi
