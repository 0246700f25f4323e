//! What Mesa's compiler for AMD cards makes of the kernels, for cards that are not there: no spills, enough waves, and nothing that has changed
//! unseen. `OUTBOARD_UPDATE_GOLDEN=1` writes the numbers anew; `--nocapture` shows what limits products with one column on gfx1100.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_core::DType;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

/// RADV's description file.
const RADV: &str = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json";
/// Waves that a SIMD holds at least, so that one computes while others wait for memory.
const WAVES: u64 = 8;

/// Of the driver that the environment names; on its own it says nothing.
#[test]
fn of_the_named_card() {
    if std::env::var_os("RADV_FORCE_FAMILY").is_none() {
        return println!("skipped: RADV_FORCE_FAMILY names no card");
    }
    let kernels = outboard_vulkan::statistics().unwrap();
    kernels.iter().for_each(|kernel| println!("{kernel}"));
    let is_wrong = |(name, value): (&String, &u64)| match name.as_str() {
        "Subgroups per SIMD" => *value < WAVES,
        "Scratch size" => *value > 0,
        name => name.starts_with("Spilled") && *value > 0,
    };
    let wrong: Vec<_> = kernels.iter().filter(|kernel| kernel.numbers.iter().any(is_wrong)).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn kernels_compile_for_rdna3() {
    compile_for("gfx1100");
}

#[test]
fn kernels_compile_for_rdna2() {
    compile_for("navi21");
}

/// In a process of its own, because the card is chosen by its environment.
fn compile_for(family: &str) {
    if !Path::new(RADV).exists() {
        return println!("skipped: {RADV} is not here (mesa-vulkan-drivers)");
    }
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "of_the_named_card", "--nocapture"])
        .envs([("RADV_FORCE_FAMILY", family), ("VK_ICD_FILENAMES", RADV), ("RADV_DEBUG", "shaders,nocache")])
        .output()
        .unwrap();
    let said = String::from_utf8(out.stdout).unwrap();
    let code = String::from_utf8_lossy(&out.stderr);
    let errors: Vec<_> = code.lines().rev().take(20).collect();
    assert!(out.status.success(), "{family}: {said}{errors:#?}");
    let loops = code.split("\ndisasm:\n").skip(1).map(longest_loop);
    let lines: Vec<_> = said.lines().filter(|line| line.contains(" VGPRs ")).zip(loops).collect();
    let got: String = lines.iter().map(|(line, length)| format!("{line} Loop {length:>5}\n")).collect();
    if family == "gfx1100" {
        print!("{}", limits(&lines));
    }
    assert!(got.lines().count() > 100, "{family}: {said}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{family}.txt"));
    if std::env::var_os("OUTBOARD_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    let changed: Vec<_> = got.lines().zip(want.lines()).filter(|(got, want)| got != want).collect();
    let other = got.lines().count() != want.lines().count();
    // Another Mesa compiles otherwise: then spills and waves are all that counts.
    match mesa() {
        Some(MESA) => assert!(changed.is_empty() && !other, "{family}: now and before: {changed:#?}"),
        version => println!("skipped: the numbers are of Mesa {MESA}, not {version:?}"),
    }
}

/// Vector instructions of the loop of a kernel that has most of them, from its disassembly.
fn longest_loop(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().take_while(|line| !line.is_empty()).collect();
    let label = |line: &str| line.strip_suffix(':').filter(|name| name.starts_with("BB")).map(str::to_owned);
    let places: HashMap<_, _> = lines.iter().enumerate().filter_map(|(i, line)| Some((label(line)?, i))).collect();
    let loops = lines.iter().enumerate().filter_map(|(end, line)| {
        let mut words = line.split_whitespace();
        words.next().filter(|name| name.contains("branch"))?;
        let begin = *places.get(words.next()?)?;
        (begin < end).then_some(begin..end)
    });
    let of_vectors = |line: &&&str| line.trim_start().starts_with("v_");
    loops.map(|range| lines[range].iter().filter(of_vectors).count()).max().unwrap_or_default()
}

/// What limits products on gfx1100, an RX 7900 XTX: 960 GB/s, and 192 SIMDs at 2.3 GHz with a vector instruction for 32 lanes each. With one column: how many
/// times as fast as memory instructions would be, in floats and in whole numbers; a loop takes four rows, 16 elements of each an invocation. In a tile: vector
/// instructions for 64 elements of a row, of which an invocation multiplies four with four columns.
fn limits(kernels: &[(&str, usize)]) -> String {
    let of = |name: String| kernels.iter().find(|(line, _)| line.starts_with(&name)).map(|(_, loop_)| *loop_ as f64);
    let mut table = String::from(
        "| | bytes | floats | over the memory's | whole numbers | over the memory's | tile | of whole numbers |\n",
    );
    for dtype in DType::ALL {
        let (Some(floats), Some(tile)) =
            (of(format!("mul_mat_vec {dtype} columns=1 rows=4 ")), of(format!("mul_mat {dtype} ")))
        else {
            continue;
        };
        let bytes = dtype.row_bytes(1024).unwrap() as f64;
        let needed = |instructions: f64| instructions * 1024.0 / (32.0 * 16.0 * 4.0);
        let over = |instructions: f64| bytes / needed(instructions) * 192.0 * 2.3 / 960.0;
        write!(table, "| {dtype} | {bytes} | {:.0} | {:.2} ", needed(floats), over(floats)).unwrap();
        match of(format!("mul_mat_vec_dot {dtype} columns=1 rows=4 ")) {
            Some(whole) => {
                write!(table, "| {:.0} | {:.2} ", needed(whole), over(whole)).unwrap();
                assert!(over(whole) > 1.0, "{dtype}: instructions are the limit, and not memory");
            }
            None => table += "| | ",
        }
        let whole = of(format!("mul_mat_dot {dtype} ")).map_or_else(String::new, |whole| whole.to_string());
        writeln!(table, "| {} | {whole} |", 4.0 * tile).unwrap();
    }
    table
}

/// The version that the numbers are of.
const MESA: &str = "22.3.6";

/// The version of the package that has RADV, without Debian's part.
fn mesa() -> Option<&'static str> {
    let out = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "mesa-vulkan-drivers"]).output().ok()?;
    let version = String::from_utf8(out.stdout).ok()?;
    Some(if version.starts_with(&format!("{MESA}-")) { MESA } else { "another" })
}
