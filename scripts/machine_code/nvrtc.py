# SPDX-License-Identifier: Apache-2.0
"""NVRTC through ctypes: source of kernels to machine code, as `crates/device` compiles it."""

import ctypes
import pathlib

# Those of `crates/device/src/drivers/cuda/nvrtc.rs`; lines of the source for reports, which do not
# change the code; the log has the resources.
OPTIONS = [
    "--std=c++17",
    "-default-device",
    "--fmad=false",
    "-diag-suppress=177",
    "-lineinfo",
    "--ptxas-options=-v",
]


class Nvrtc:
    """The library in a folder, as `scripts/nvrtc.sh` prints it."""

    def __init__(self, folder):
        folder = pathlib.Path(folder)
        # NVRTC opens its builtins by name, so they are loaded first.
        self.builtins = ctypes.CDLL(str(next(folder.glob("libnvrtc-builtins.so.*"))))
        self.library = ctypes.CDLL(str(next(folder.glob("libnvrtc.so.*"))))

    def compile(self, source, architecture):
        """A cubin and the log. Raises ValueError with the log."""
        library, program = self.library, ctypes.c_void_p()
        if library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None):
            raise ValueError("nvrtcCreateProgram fails")
        try:
            options = [option.encode() for option in [*OPTIONS, f"--gpu-architecture={architecture}"]]
            status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
            log = self.read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if status:
                raise ValueError(log)
            return self.read(program, "CUBIN"), log
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(program))

    def read(self, program, what):
        size = ctypes.c_size_t()
        if getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)):
            raise ValueError(f"nvrtcGet{what}Size fails")
        buffer = ctypes.create_string_buffer(size.value)
        if getattr(self.library, f"nvrtcGet{what}")(program, buffer):
            raise ValueError(f"nvrtcGet{what} fails")
        return buffer.raw
