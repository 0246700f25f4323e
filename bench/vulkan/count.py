#!/usr/bin/env python3
"""Counts vector instructions of llama.cpp's products with one column, by Vulkan, for AMD cards that are not there.

    bench/vulkan/count.py LIBGGML_VULKAN [FAMILY]

The kernels are taken out of libggml-vulkan.so by their names (`nm`, which needs a library that was not stripped), and compiled by RADV (mesa-vulkan-drivers) as
local-backends/vulkan/tests/statistics.rs compiles ours. Printed is what 1024 weights take in the longest loop, as in BENCHMARKS.md.
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


def longest_loop(said):
    """Vector instructions of the longest loop of a disassembly."""
    lines = said.split("\ndisasm:\n", 1)[1].split("\n\n", 1)[0].splitlines()
    places = {line[:-1]: i for i, line in enumerate(lines) if line.startswith("BB") and line.endswith(":")}
    longest = range(0)
    for end, line in enumerate(lines):
        words = line.split()
        if len(words) > 1 and "branch" in words[0] and places.get(words[1], end) < end:
            loop = range(places[words[1]], end)
            longest = max(longest, loop, key=len)
    return sum(lines[i].lstrip().startswith("v_") for i in longest)


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
        for name, what, rows, weights in KERNELS:
            module = os.path.join(folder, "kernel.spv")
            with open(module, "wb") as file:
                file.write(code_of(data, places, name))
            program = os.path.join(root, "target/debug/examples/foreign")
            run = subprocess.run([program, module, str(LANES), str(rows), "1"], env=environment, capture_output=True, text=True)
            if run.returncode:
                sys.exit(f"{name}: {run.stderr[-300:]}")
            loop = longest_loop(run.stderr)
            print(f"{what:22} {loop:5} instructions of a loop, {loop * 1024 / (WAVE * weights * rows):6.0f} for 1024 weights")


if __name__ == "__main__":
    main()
