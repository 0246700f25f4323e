#!/usr/bin/env python3
"""Counts what llama.cpp's CUDA kernels for a quantized matrix and one column execute and read, beside Outboard's. It needs no
graphics card and no nvcc: llama.cpp's code is compiled to PTX by NVRTC and runs on the emulator (local-backends/cuda-emulator).

    pip install numpy nvidia-cuda-nvrtc-cu12==12.2.140 nvidia-cuda-runtime-cu12==12.2.140
    cargo build -p outboard-cuda-emulator
    python3 bench/ptx/count.py LLAMA_CPP_CHECKOUT [--types Q4_0 Q8_0] [--compute 80] [--keep FILE.ptx]

Compiled with -use_fast_math, as llama.cpp's CMakeLists.txt has it. Grids and arguments are those of quantize.cu and mmvq.cu; the result
is compared with the product of what llama.cpp's gguf-py makes of the same bytes. Outboard's lines are those of
local-backends/cuda/tests/data/counts.md: the same emulator, shape and counters, for compute capability 8.0.

What is compiled, as it is there but for `#include` of files and one `__host__`, which NVRTC refuses:
- ggml-common.h, vecdotq.cuh and unary.cuh: all;
- common.cuh: from STRINGIZE up to ggml_cuda_device_info, which is all that kernels call, and the struct of what is fused;
- mmvq.cu: up to calc_launch_params, behind which the code is the host's;
- quantize.cu: the kernel quantize_q8_1;
- two enums of ggml.h, and three macros (GGML_CUDA_RESTRICT, MMVQ_MAX_BATCH_SIZE, CUDA_QUANTIZE_BLOCK_SIZE).
HOST and STANDARD stand for the headers of the host, as far as the compiler must know a name.

A matrix of a model has more rows, so that what the column costs is less of it than here.

What the figures are not: times. A sector that a cache would give counts as read, and instructions are those of PTX, not what the
driver makes of them.
"""
import argparse
import ctypes
import os
import pathlib
import re
import sys
import types

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools" / "ptx"))
from build import Nvrtc  # noqa: E402

LENGTH, ROWS = 4096, 256  # as in local-backends/cuda/tests/counts.rs
TYPES = "Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4".split()
# Where blocks have their scales of 16 bits, which must be numbers of a usual size; other bytes may be anything.
SCALES = dict(Q4_0=[0], Q4_1=[0, 2], Q5_0=[0], Q5_1=[0, 2], Q8_0=[0], Q2_K=[80, 82], Q3_K=[108], Q4_K=[0, 2], Q5_K=[0, 2], Q6_K=[208])
SCALES |= dict(IQ4_NL=[0], IQ4_XS=[0], MXFP4=[])

HOST = """
#define CUDART_VERSION 12020
#define GGML_CUDA_NO_VMM
#define GGML_COMMON_DECL_CUDA
#define GGML_COMMON_IMPL_CUDA
#include <sm_61_intrinsics.hpp>
#include <cuda_fp16.h>
#include <cstdint>
#define FLT_MAX 3.402823466e+38f
#define INFINITY __int_as_float(0x7f800000)
#define GGML_UNUSED(x) (void)(x)
template <typename... T> __host__ __device__ constexpr void GGML_UNUSED_VARS(T &&...) {}
#define GGML_ASSERT(x)
#define GGML_ABORT(...)
#define GGML_RESTRICT __restrict__
#define __extension__
struct ggml_tensor { void * data; size_t nb[4]; };
struct ggml_backend_cuda_context;
enum cublasStatus_t { CUBLAS_STATUS_SUCCESS };
const char * cublasGetStatusString(cublasStatus_t);
"""
# That the host would launch what is launched here: a row a block, and no kernel for short rows.
PLAIN = f"""
static_assert(calc_rows_per_block(1, get_device_table_id()) == 1);
static_assert({LENGTH} / ggml_cuda_type_traits<TYPE>::qk >=
    calc_nwarps(TYPE, 1, get_device_table_id()) * (get_vdr_mmvq(TYPE) * 32 / ggml_cuda_type_traits<TYPE>::qi));
"""
STANDARD = """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; typedef unsigned short uint16_t;
typedef int int32_t; typedef unsigned uint32_t; typedef long long int64_t; typedef unsigned long long uint64_t;
typedef unsigned long uintptr_t;
namespace std {
template <typename A, typename B> inline constexpr bool is_same_v = false;
template <typename A> inline constexpr bool is_same_v<A, A> = true;
template <typename T> struct numeric_limits { static constexpr T max() { return T(-1); } };
}
"""


def to_ptx(nvrtc, text, names, compute):
    """The PTX, and what the compiler calls what C++ calls by these names."""
    library, program = nvrtc.library, ctypes.c_void_p()
    header, name = (ctypes.c_char_p * 1)(STANDARD.encode()), (ctypes.c_char_p * 1)(b"cstdint")
    library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"llama.cu", 1, header, name)
    for name in names:
        library.nvrtcAddNameExpression(program, name.encode())
    options = [f"--gpu-architecture=compute_{compute}", "--std=c++17", "-default-device", "-use_fast_math", "-w", f"-I{nvrtc.include}"]
    failed = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*map(str.encode, options)))
    if failed:
        sys.exit(nvrtc.text(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"))
    lowered = ctypes.c_char_p()
    found = []
    for name in names:
        library.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered))
        found.append(lowered.value)
    return nvrtc.text(program, "nvrtcGetPTXSize", "nvrtcGetPTX").rstrip("\0"), found


def between(text, start, end, after=False):
    """The text from `start` up to `end`, or with it."""
    first = text.find(start)
    last = text.find(end, first)
    if first < 0 or last < 0:
        sys.exit(f"{start!r} or {end!r} is not there: it is another version of llama.cpp")
    return text[first : last + (len(end) if after else 0)]


def source(llama, kinds):
    """One file with their kernels."""
    ggml = llama / "ggml"
    cuda = ggml / "src" / "ggml-cuda"
    read = lambda file: file.read_text().replace("#pragma once", "")
    common, mmvq, quantize = read(cuda / "common.cuh"), read(cuda / "mmvq.cu"), read(cuda / "quantize.cu")
    enums = [between(read(ggml / "include" / "ggml.h"), f"enum {name} {{", "};", True) for name in ("ggml_type", "ggml_glu_op")]
    parts = [
        *enums,
        "bool ggml_is_quantized(ggml_type);",
        read(ggml / "src" / "ggml-common.h"),
        between(common, "#define STRINGIZE_IMPL", "struct ggml_cuda_device_info {"),
        between(common, "# if (defined(GGML_CUDA_USE_PDL) && __CUDA_ARCH__", "# endif", True),
        between(common, "struct ggml_cuda_mm_fusion_args_device {", "\n};", True),
        read(cuda / "unary.cuh"),
        read(cuda / "vecdotq.cuh"),
        re.search(r"#define MMVQ_MAX_BATCH_SIZE.*", read(cuda / "mmvq.cuh"))[0],
        between(mmvq, "typedef float (*vec_dot_q_cuda_t)", "template<ggml_type type>\nstatic std::pair<dim3, dim3> calc_launch_params"),
        re.search(r"#define CUDA_QUANTIZE_BLOCK_SIZE .*", read(cuda / "quantize.cuh"))[0],
        between(quantize, "__launch_bounds__(CUDA_QUANTIZE_BLOCK_SIZE, 1)\nstatic __global__ void quantize_q8_1(", "\n}\n", True),
        *(PLAIN.replace("TYPE", f"GGML_TYPE_{kind}") for kind in kinds),
    ]
    text = HOST + "\n".join(parts)
    return re.sub(r'#include ".*"', "", text).replace("static __host__ ", "static ")

class Counts(ctypes.Structure):
    """`Counts` of local-backends/cuda-emulator/src/count.rs."""

    NAMES = "load_requests load_sectors load_bytes store_requests store_sectors store_bytes atomic_lanes shared_requests"
    NAMES += " bank_conflicts local_requests mma_products"
    _fields_ = [("instructions", ctypes.c_uint64 * 19), *((name, ctypes.c_uint64) for name in NAMES.split())]


class Launch(ctypes.Structure):
    """`RawLaunch` of local-backends/cuda-emulator/src/control.rs."""

    _fields_ = [("kernel", ctypes.c_char * 1024), ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("counts", Counts)]


class Card:
    """The emulator's card, by the driver's own functions."""

    def __init__(self, library, ptx):
        self.library, self.ptx, self.module, context = ctypes.CDLL(str(library)), ptx, ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuCtxCreate_v2", ctypes.byref(context), 0, 0)
        self.call("cuModuleLoadData", ctypes.byref(self.module), ptx.encode())

    def call(self, name, *arguments):
        failed = getattr(self.library, name)(*arguments)
        if failed:
            sys.exit(f"{name}: CUDA's error {failed}")

    def empty(self, size):
        """Memory that nobody has written: the emulator finds who reads it."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def put(self, array):
        address = self.empty(array.nbytes)
        self.call("cuMemcpyHtoD_v2", address, array.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(array.nbytes))
        return address

    def get(self, address, count):
        array = numpy.empty(count, numpy.float32)
        self.call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), address, ctypes.c_size_t(array.nbytes))
        return array

    def launch(self, name, grid, block, arguments):
        """Runs a kernel; what it counted."""
        function, launch = ctypes.c_void_p(), Launch()
        wanted = len(re.findall(r"\.param", self.ptx.split(f".entry {name.decode()}(")[1].split(")")[0]))
        if wanted != len(arguments):
            sys.exit(f"{name.decode()} has {wanted} parameters, not {len(arguments)}: it is another version of llama.cpp")
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name)
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
        self.library.emulator_forget()
        self.call("cuLaunchKernel", function, *grid, *block, 0, None, places, None)
        self.call("cuCtxSynchronize")
        assert self.library.emulator_launch(ctypes.c_size_t(0), ctypes.byref(launch)) == 1
        return launch.counts


def u32(*values):
    """Parameters of 32 bits: a number each, or three as of `uint3`."""
    return [(ctypes.c_uint32 * 3)(*value) if isinstance(value, tuple) else ctypes.c_uint32(value) for value in values]


def product(card, gguf, kernels, kind, warps):
    """Bytes of the weights, and what both kernels counted for a product of random weights, whose result is looked at."""
    random = numpy.random.default_rng(1)
    quantization = gguf.constants.GGMLQuantizationType[kind]
    length, size = gguf.constants.GGML_QUANT_SIZES[quantization]
    blocks = random.integers(0, 256, (ROWS * LENGTH // length, size), numpy.uint8)
    for at in SCALES[kind]:
        blocks[:, at : at + 2] = random.uniform(0.01, 0.02, len(blocks)).astype(numpy.float16)[:, None].view(numpy.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = random.integers(120, 130, len(blocks))
    # Whole numbers up to 127 in every block of the column: nothing is lost when it is quantized.
    column = random.integers(-7, 8, LENGTH).astype(numpy.float32)
    column[::32] = 127
    weights, x, y = card.put(blocks), card.put(column), card.empty(LENGTH // 32 * 36)
    result = card.empty(4 * ROWS)
    one = (1, 0, 1)  # init_fastdiv_values(1)
    # quantize_row_q8_1_cuda: x, y, ne00, s01, s02, s03, ne0, ne1, ne2
    arguments = [x, y, *[ctypes.c_uint64(LENGTH)] * 5, *u32(1, one)]
    counts = [card.launch(kernels["quantize_q8_1"], (LENGTH // 256, 1, 1), (256, 1, 1), arguments)]
    # mul_mat_vec_q_switch_ncols_dst with one channel, one sample, no ids and nothing fused
    row, column_y = LENGTH // length, LENGTH // 32
    arguments = [weights, y, ctypes.c_uint64(0), (ctypes.c_uint64 * 6)(), result, *u32(LENGTH, (0, 0, 0), row, column_y, ROWS)]
    arguments += u32(one, row * ROWS, column_y, ROWS, one, row * ROWS, column_y, ROWS, 0)
    counts.append(card.launch(kernels[kind], (ROWS, 1, 1), (32, warps, 1), arguments))
    matrix = gguf.quants.dequantize(blocks, quantization).reshape(ROWS, LENGTH).astype(numpy.float64)
    wrong = numpy.abs(card.get(result, ROWS) - matrix @ column) / (numpy.abs(matrix) @ numpy.abs(column))
    if not wrong.max() < 1e-5:
        sys.exit(f"{kind}: the result is wrong by {wrong.max():.1e} of the sum of the products' sizes")
    return blocks.nbytes, counts


def figures(size, counts):
    """Columns of a line, as local-backends/cuda/tests/counts.rs makes them."""
    total = lambda of: sum(of(each) for each in counts)
    loaded, wanted = total(lambda c: 32 * c.load_sectors), total(lambda c: c.load_bytes)
    column, every = sum(counts[0].instructions) / size, total(lambda c: sum(c.instructions)) / size
    # Of the column as numbers, and as the blocks that are made of it.
    needed = size + 4 * LENGTH + LENGTH // 32 * 36
    more = f"{total(lambda c: c.bank_conflicts)} | {total(lambda c: c.local_requests)} | |"
    return f"{len(counts)} | {every:.3f} | {column:.3f} | {loaded / needed:.2f} | | {100 * wanted / loaded:.0f} % | {more}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama", type=pathlib.Path, help="a checkout of llama.cpp")
    parser.add_argument("--compute", type=int, default=80, choices=[61, 70, 75, 80, 86, 89], help="what the PTX is for")
    parser.add_argument("--types", nargs="+", default=TYPES, choices=TYPES, metavar="TYPE")
    parser.add_argument("--emulator", type=pathlib.Path, default=ROOT / "target/debug/liboutboard_cuda_emulator.so")
    parser.add_argument("--keep", type=pathlib.Path, help="where the PTX is written to, if anywhere")
    arguments = parser.parse_args()
    names = ["quantize_q8_1", *(f"mul_mat_vec_q<GGML_TYPE_{kind}, 1, false>" for kind in arguments.types)]
    ptx, lowered = to_ptx(Nvrtc(), source(arguments.llama, arguments.types), names, arguments.compute)
    if arguments.keep:
        arguments.keep.write_text(ptx)
    kernels = dict(zip(["quantize_q8_1", *arguments.types], lowered))
    # Of the package only quants.py is wanted, not what the rest of it imports.
    gguf = types.ModuleType("gguf")
    gguf.__path__ = [str(arguments.llama / "gguf-py" / "gguf")]
    sys.modules["gguf"] = gguf
    import gguf.constants
    import gguf.quants
    os.environ["OUTBOARD_CUDA_EMULATOR"] = f"cc={arguments.compute}"
    card = Card(arguments.emulator, ptx)
    head, line, *rest = (ROOT / "local-backends/cuda/tests/data/counts.md").read_text().splitlines()[2:]
    rest = rest[: rest.index("")]
    ours = {cells[0].strip(): "|".join(cells[1:]) for cells in (row.strip("|").split("|") for row in rest)}
    print(head.replace("| weights |", "| weights | whose |"), line.replace("|---|", "|---|---|", 1), sep="\n")
    for kind in arguments.types:
        threads = re.search(re.escape(kernels[kind].decode()) + r"\([^{]*\.maxntid (\d+)", ptx)[1]
        theirs = figures(*product(card, gguf, kernels, kind, int(threads) // 32))
        print(f"| {kind} | llama.cpp | {theirs} |\n| | Outboard |{ours[kind]}|", flush=True)


if __name__ == "__main__":
    main()
