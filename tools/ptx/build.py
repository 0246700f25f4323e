#!/usr/bin/env python3
"""Compiles CUDA C to PTX with NVRTC 12.2, so that the PTX (.version 8.2) is old enough for most drivers.

    pip install nvidia-cuda-nvrtc-cu12==12.2.140 nvidia-cuda-runtime-cu12==12.2.140
    python3 tools/ptx/build.py FOLDER... [--check]

Every `NAME.cu` of a folder becomes `ptx/NAME.sm_XX.ptx` for each number that its first line names, as in `// compute: 61 80`. With
--check nothing is written: what is committed must be what comes out.
"""
import argparse
import ctypes
import importlib.util
import pathlib
import re
import sys

VERSION = (12, 2)


def package(name):
    """The folder of an installed package of NVIDIA's."""
    spec = importlib.util.find_spec(f"nvidia.{name}")
    if spec is None:
        sys.exit(f"nvidia.{name} is not installed: see the head of {__file__}")
    return pathlib.Path(list(spec.submodule_search_locations)[0])


class Nvrtc:
    """The compiler, as a library."""

    def __init__(self):
        self.include = package("cuda_runtime") / "include"
        self.library = ctypes.CDLL(str(package("cuda_nvrtc") / "lib" / "libnvrtc.so.12"))
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        if (major.value, minor.value) != VERSION:
            sys.exit(f"NVRTC is {major.value}.{minor.value}, not {VERSION[0]}.{VERSION[1]}")

    def text(self, program, size, get):
        """A text that the compiler has of a program."""
        count = ctypes.c_size_t()
        getattr(self.library, size)(program, ctypes.byref(count))
        buffer = ctypes.create_string_buffer(count.value)
        getattr(self.library, get)(program, buffer)
        return buffer.value.decode()

    def compile(self, source, compute):
        """The PTX of a file; warnings are errors, too."""
        options = [f"--gpu-architecture=compute_{compute}", "--std=c++17", "-lineinfo"]
        options += [f"-I{self.include}", f"-I{source.parent}"]
        array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        program = ctypes.c_void_p()
        self.library.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
        failed = self.library.nvrtcCompileProgram(program, len(options), array)
        said = self.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog").strip()
        if failed or said:
            sys.exit(f"{source} for compute_{compute}:\n{said}")
        ptx = self.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        # Where the headers and the sources lie is of this machine alone.
        for folder in (self.include, source.parent.resolve(), pathlib.Path.cwd()):
            ptx = ptx.replace(f"{folder}/", "")
        # The compiler counts calls over all that it has compiled.
        return re.sub(r"callseq \d+", "callseq", ptx.rstrip("\0"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="compare with what is committed")
    arguments = parser.parse_args()
    nvrtc, wrong, expected = Nvrtc(), [], set()
    for folder in arguments.folders:
        for source in sorted(folder.glob("*.cu")):
            first = source.read_text().splitlines()[0]
            if not first.startswith("// compute:"):
                sys.exit(f"{source}: the first line does not say for which architectures it is")
            for compute in first.removeprefix("// compute:").split():
                target = folder / "ptx" / f"{source.stem}.sm_{compute}.ptx"
                expected.add(target)
                ptx = nvrtc.compile(source, compute)
                if not arguments.check:
                    target.parent.mkdir(exist_ok=True)
                    target.write_text(ptx)
                elif not target.exists() or target.read_text() != ptx:
                    wrong.append(f"{target} is not what {source} compiles to")
        wrong += [f"{old} has no source" for old in sorted(folder.glob("ptx/*.ptx")) if old not in expected]
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{len(expected)} files {'are current' if arguments.check else 'written'}")


if __name__ == "__main__":
    main()
