#!/usr/bin/env python3
"""Assembles PTX for cards as a driver would, and says what each kernel takes: registers, shared memory, and what is spilled to memory.

    pip install nvidia-cuda-nvcc-cu12==12.9.86
    python3 tools/ptx/assemble.py FOLDER TABLE [--check]

Of the files `NAME.sm_XX.ptx` of a folder a card gets the highest one that it has. The table is written anew; with --check it must be what comes out.
Spills are an error either way.
"""
import argparse
import concurrent.futures
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

# Compute capabilities: GeForce 10, 20, 30 and 40, A100, H100, B200, GeForce 50.
CARDS = (61, 75, 80, 86, 89, 90, 100, 120)
VERSION = "12.9"


def assembler():
    """The program, of an installed package of NVIDIA's."""
    spec = importlib.util.find_spec("nvidia.cuda_nvcc")
    if spec is None:
        sys.exit(f"nvidia.cuda_nvcc is not installed: see the head of {__file__}")
    program = pathlib.Path(list(spec.submodule_search_locations)[0]) / "bin" / "ptxas"
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    if f"release {VERSION}," not in said:
        sys.exit(f"{program} is not of CUDA {VERSION}:\n{said}")
    return program


def files(folder, card):
    """Of each kernel, the file for a card."""
    best = {}
    for file in folder.glob("*.ptx"):
        name, compute = re.fullmatch(r"(\w+)\.sm_(\d+)\.ptx", file.name).groups()
        if int(compute) <= card and int(compute) > best.get(name, (0, None))[0]:
            best[name] = (int(compute), file)
    return sorted(file for _, file in best.values())


def assemble(program, file, card):
    """Of each function of a file: registers, bytes of shared memory, bytes of its stack, bytes of spills."""
    with tempfile.TemporaryDirectory() as folder:
        command = [program, f"-arch=sm_{card}", "-v", file, "-o", f"{folder}/out"]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{file.name} for sm_{card}:\n{done.stderr}")
    found = {}
    for part in done.stderr.split("Compiling entry function '")[1:]:
        number = lambda pattern: sum(int(n) for n in re.findall(pattern, part))
        spilled = number(r"(\d+) bytes spill (?:stores|loads)")
        registers, shared = number(r"Used (\d+) registers"), number(r"(\d+) bytes smem")
        found[part.split("'")[0]] = (registers, shared, number(r"(\d+) bytes stack frame"), spilled)
    return found


def table(folder):
    """The table, and functions that spill."""
    program, tasks = assembler(), [(file, card) for card in CARDS for file in files(folder, card)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda task: assemble(program, *task), tasks))
    of, spills = {}, []
    for (_, card), found in zip(tasks, results):
        for name, (registers, shared, stack, spilled) in found.items():
            of.setdefault(name, {})[card] = (f"{registers} + {stack}" if stack else str(registers), shared)
            if spilled:
                spills.append(f"{name} for sm_{card}: {spilled} bytes")
    lines = [
        "Registers of a thread, with bytes of its stack where it has one, by compute capability; and bytes of shared memory of a block, before",
        f"a launch adds some (ptxas {VERSION}). Nothing is spilled to memory. `tools/ptx/assemble.py` writes this.",
        "",
        "| function | " + " | ".join(f"{card // 10}.{card % 10}" for card in CARDS) + " | shared memory |",
        "|---|" + "--:|" * (len(CARDS) + 1),
    ]
    for name, cards in sorted(of.items()):
        registers = [cards[card][0] if card in cards else "" for card in CARDS]
        shared = sorted({shared for _, shared in cards.values()})
        lines.append(f"| {name} | {' | '.join(registers)} | {', '.join(map(str, shared))} |")
    return "\n".join(lines) + "\n", spills


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("--check", action="store_true", help="compare with what is committed")
    arguments = parser.parse_args()
    text, spills = table(arguments.folder)
    if not arguments.check:
        arguments.table.write_text(text)
    elif not arguments.table.exists() or arguments.table.read_text() != text:
        spills.append(f"{arguments.table} is not what comes out: run this without --check")
    if spills:
        sys.exit("\n".join(spills))


if __name__ == "__main__":
    main()
