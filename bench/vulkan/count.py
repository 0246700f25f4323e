#!/usr/bin/env python3
"""Counts vector instructions of llama.cpp's products, by Vulkan, for AMD cards that are not there.

    bench/vulkan/count.py LIBGGML_VULKAN [FAMILY]

The kernels are taken out of libggml-vulkan.so by their names (`nm`, which needs a library that was not stripped), and compiled by RADV (mesa-vulkan-drivers) as
local-backends/vulkan/tests/statistics.rs compiles ours. Printed is what 1024 weights take with one column, and with many columns what a lane takes for 256 products
of four numbers with four, as in BENCHMARKS.md.
"""

import os
import subprocess
import sys
import tempfile

RADV = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json"
# Lanes of a workgroup, and of the instructions that are counted.
LANES, WAVE = 64, 32

# Of each kernel its type, the rows of a workgroup that llama.cpp chooses on RDNA, and weights of a row that a lane has in the longest loop (its source: K_PER_ITER times an
# unrolled 4; sixteen of a block of 256).
KERNELS = [
    ("mul_mat_vec_q4_0_f32_f32", "Q4_0", 1, 32),
    ("mul_mat_vec_q8_0_f32_f32", "Q8_0", 1, 32),
    ("mul_mat_vec_q4_k_f32_f32", "Q4_K", 2, 16),
    ("mul_mat_vec_q2_k_f32_f32", "Q2_K", 2, 16),
    ("mul_mat_vec_q3_k_f32_f32", "Q3_K", 2, 16),
    ("mul_mat_vec_q6_k_f32_f32", "Q6_K", 2, 16),
    ("mul_mat_vec_q4_0_q8_1_f32", "Q4_0, whole numbers", 1, 32),
    ("mul_mat_vec_q8_0_q8_1_f32", "Q8_0, whole numbers", 1, 32),
    ("mul_mat_vec_q4_k_q8_1_f32", "Q4_K, whole numbers", 1, 64),
    ("mul_mat_vec_q2_k_q8_1_f32", "Q2_K, whole numbers", 1, 64),
    ("mul_mat_vec_q3_k_q8_1_f32", "Q3_K, whole numbers", 1, 64),
    ("mul_mat_vec_q6_k_q8_1_f32", "Q6_K, whole numbers", 1, 64),
]

# Products of whole numbers with many columns, and what llama.cpp chooses for them on RDNA: lanes, rows and columns of a tile, its depth, rows and columns of a wave, how
# its rows are divided, results of a lane, lanes of a wave.
TILES = [
    ("matmul_q4_0_q8_1", "Q4_0, many columns", [128, 128, 128, 32, 64, 64, 2, 4, 4, 1, 32]),
    ("matmul_q8_0_q8_1", "Q8_0, many columns", [128, 128, 128, 32, 64, 64, 2, 4, 4, 1, 32]),
    ("matmul_q4_k_q8_1", "Q4_K, many columns", [128, 128, 128, 32, 64, 64, 1, 4, 4, 1, 32]),
]
# How often a tile's inner loop runs in its outer one (BK_STEP), each time over the tile's depth.
STEPS = 4


def symbols(library):
    lines = subprocess.run(["nm", library], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1]: int(line.split()[0], 16) for line in lines if len(line.split()) == 3}


def code_of(data, places, name):
    """The SPIR-V behind a symbol: read-only data lies in the file where it lies in memory."""
    if f"{name}_data" not in places:
        sys.exit(f"there is no {name} in the library: it is not ggml's of Vulkan, of another version, or stripped")
    at, end = places[f"{name}_data"], places[f"{name}_len"]
    length = int.from_bytes(data[end : end + 8], "little")
    code = data[at : at + length]
    if code[:4] != b"\x03\x02\x23\x07":
        sys.exit(f"{name} is not where the library says: its sections are moved in the file")
    return code


def loops(said):
    """The loops of a disassembly, each as its places and its vector instructions, those with most of them first."""
    lines = said.split("\ndisasm:\n", 1)[1].split("\n\n", 1)[0].splitlines()
    places = {line[:-1]: i for i, line in enumerate(lines) if line.startswith("BB") and line.endswith(":")}
    found = []
    for end, line in enumerate(lines):
        words = line.split()
        if len(words) > 1 and "branch" in words[0] and places.get(words[1], end) < end:
            begin = places[words[1]]
            found.append((begin, end, sum(line.lstrip().startswith("v_") for line in lines[begin:end])))
    if not found:
        sys.exit("a kernel has no loop: another compiler, or another form of what it says")
    return sorted(found, key=lambda loop: -loop[2])


def of_tile(said, constants):
    """What a lane takes for 256 products of four."""
    lanes, rows, columns, depth = constants[:4]
    (begin, end, outer), *others = loops(said)
    inner = next((count for first, last, count in others if begin < first and last < end), None)
    if inner is None:
        sys.exit("the tile has no inner loop any more: STEPS is wrong")
    products = rows * columns * depth * STEPS / lanes / 4
    return (outer + (STEPS - 1) * inner) * 256 / products


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    library, family = sys.argv[1], (sys.argv[2:] or ["gfx1100"])[0]
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    subprocess.run(["cargo", "build", "-q", "-p", "outboard-vulkan", "--example", "foreign"], cwd=root, check=True)
    places = symbols(library)
    with open(library, "rb") as file:
        data = file.read()
    environment = {**os.environ, "RADV_FORCE_FAMILY": family, "VK_ICD_FILENAMES": RADV, "RADV_DEBUG": "shaders,nocache"}
    with tempfile.TemporaryDirectory() as folder:

        def compiled(name, constants):
            """What the driver says of a kernel."""
            module = os.path.join(folder, "kernel.spv")
            with open(module, "wb") as file:
                file.write(code_of(data, places, name))
            program = os.path.join(root, "target/debug/examples/foreign")
            run = subprocess.run([program, module, *map(str, constants)], env=environment, capture_output=True, text=True)
            if run.returncode:
                sys.exit(f"{name}: {run.stderr[-300:]}")
            return run.stderr

        for name, what, rows, weights in KERNELS:
            count = loops(compiled(name, [LANES, rows, 1]))[0][2]
            print(f"{what:22} {count:5} instructions of a loop, {count * 1024 / (WAVE * weights * rows):6.0f} for 1024 weights")
        for name, what, constants in TILES:
            print(f"{what:22} {of_tile(compiled(name, constants), constants):6.0f} instructions for 256 products")


if __name__ == "__main__":
    main()
