# SPDX-License-Identifier: Apache-2.0
# Entry points. Each target installs its requirements, so `make demo` works in a fresh clone.

CARGO ?= cargo

# Finds or installs an OpenCL driver for the CPU, and exports its location to the command.
OPENCL = opencl="$$(scripts/setup-opencl.sh)" && eval "$$opencl"

# Always the whole workspace: a single package would rebuild dependencies with other features.
BUILD = $(CARGO) build --release --workspace
BIN = $${CARGO_TARGET_DIR:-target}/release

# Prefix of `make install`, and the commands that install a file and the static library. The latter
# hides internal symbols.
PREFIX ?= /usr/local
INSTALL ?= install -m 644
INSTALL_STATIC ?= scripts/static-library.sh
# The folder of ADBC's driver manifests, which driver managers search.
ADBC_DRIVERS ?= $(if $(filter /usr /usr/local,$(abspath $(PREFIX))),/etc,$(abspath $(PREFIX))/etc)/adbc/drivers
VERSION = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

# A missing tool fails its gate; elsewhere the gate is skipped.
REQUIRE_TOOLS = DEVICEFUSION_REQUIRE_C=1 DEVICEFUSION_REQUIRE_CLANG=1 DEVICEFUSION_REQUIRE_OCLGRIND=1 \
	DEVICEFUSION_REQUIRE_NVRTC=1 DEVICEFUSION_REQUIRE_PYTHON=1 DEVICEFUSION_REQUIRE_BROWSER=1

.PHONY: help demo shell capi wheel install test test-full test-scripts prose lint docs

help:
	@echo "make demo   SQL on the device and on plain DataFusion, over TPC-H data that is generated once"
	@echo "make shell  the SQL shell"
	@echo "make capi   the C library; make install puts it under PREFIX ($(PREFIX)), below DESTDIR where that is set"
	@echo "make wheel  the Python package, in target/wheels"
	@echo "make test   the tests, on an OpenCL driver for the CPU; a part of the cases of long tests"
	@echo "make test-full  all cases, documentation, NVRTC over every kernel of the tests, and their budget of machine code; needs the tools of .ci/run and scripts/browser.sh"
	@echo "make test-scripts  the tests of scripts, in a second; needs Python only"
	@echo "make lint   prose, links, import circles, formatting and clippy"
	@echo "make docs   the Rust documentation, and the book where mdbook is installed"

demo:
	@echo "The first release build takes about 20 minutes on two cores; later ones start at once."
	@$(OPENCL) && $(BUILD) --bin devicefusion-bench && $(BIN)/devicefusion-bench demo

shell:
	@$(OPENCL) && $(BUILD) --bin devicefusion && $(BIN)/devicefusion

capi:
	$(BUILD)

wheel:
	@$(OPENCL) && CARGO="$(CARGO)" scripts/wheel.sh

install:
	@test -e "$(BIN)/libdevicefusion_capi.so" || { echo "there is nothing to install yet: run make capi" >&2; exit 1; }
	@set -e; root="$(DESTDIR)$(PREFIX)"; mkdir -p "$$root/include/devicefusion" "$$root/lib/pkgconfig" "$$root/lib/cmake/devicefusion"; \
	$(INSTALL) crates/capi/include/devicefusion.h "$$root/include/devicefusion/devicefusion.h"; \
	$(INSTALL) crates/arrow-device/include/arrow_device.h "$$root/include/devicefusion/arrow_device.h"; \
	$(INSTALL_STATIC) "$(BIN)/libdevicefusion_capi.a" "$$root/lib/libdevicefusion.a"; \
	$(INSTALL) "$(BIN)/libdevicefusion_capi.so" "$$root/lib/libdevicefusion.so.$(VERSION)"; \
	ln -sf "libdevicefusion.so.$(VERSION)" "$$root/lib/libdevicefusion.so.0"; \
	ln -sf libdevicefusion.so.0 "$$root/lib/libdevicefusion.so"; \
	sed 's/@VERSION@/$(VERSION)/' crates/capi/pkg/devicefusion.pc >"$$root/lib/pkgconfig/devicefusion.pc"; \
	for file in devicefusion-config.cmake devicefusion-config-version.cmake; do \
	    sed 's/@VERSION@/$(VERSION)/' crates/capi/pkg/$$file >"$$root/lib/cmake/devicefusion/$$file"; \
	done; \
	{ mkdir -p "$(DESTDIR)$(ADBC_DRIVERS)" && \
	sed 's/@VERSION@/$(VERSION)/; s|@LIBRARY@|$(abspath $(PREFIX))/lib/libdevicefusion.so|' crates/capi/pkg/devicefusion.toml >"$(DESTDIR)$(ADBC_DRIVERS)/devicefusion.toml"; } || \
	    echo "no driver manifest: set ADBC_DRIVERS to a folder that can be written" >&2; \
	echo "installed in $$root"

test:
	@$(OPENCL) && CARGO="$(CARGO)" scripts/test.sh

test-full: docs test-scripts
	@rm -rf target/test-full && mkdir -p target/test-full && $(OPENCL) && \
	NVRTC_PATH=$$(scripts/nvrtc.sh) && export NVRTC_PATH && \
	$(REQUIRE_TOOLS) DEVICEFUSION_TEST_PART=all DEVICEFUSION_DUMP_KERNELS="$(CURDIR)/target/test-full" CARGO="$(CARGO)" PROFILE=full scripts/test.sh
	PROFILE=full scripts/nvrtc-gate.sh target/test-full

test-scripts:
	python3 -m unittest discover --start-directory scripts --top-level-directory scripts

prose:
	scripts/check-prose.py
	scripts/check-imports.py
	scripts/check-links.py
	scripts/diagrams.py --check
	$(CARGO) fmt --all --check

lint: prose
	$(CARGO) clippy --workspace --all-targets -- -D warnings

docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	@if command -v mdbook >/dev/null; then mdbook build docs; else \
	    printf '\n%s\n' "THE BOOK IS NOT BUILT: mdbook is missing. Install it with: cargo install mdbook --locked" >&2; fi
