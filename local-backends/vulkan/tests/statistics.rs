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
    for kernel in outboard_vulkan::statistics().unwrap() {
        println!("{kernel}");
        for (name, value) in &kernel.numbers {
            assert!(!name.starts_with("Spilled") && name != "Scratch size" || *value == 0, "{kernel}");
            assert!(name != "Subgroups per SIMD" || *value >= WAVES, "{kernel}");
        }
    }
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

/// Vector instructions of the longest loop of a kernel, from its disassembly.
fn longest_loop(code: &str) -> usize {
    let lines: Vec<&str> = code.lines().take_while(|line| !line.is_empty()).collect();
    let label = |line: &str| line.strip_suffix(':').filter(|name| name.starts_with("BB")).map(str::to_owned);
    let places: HashMap<_, _> = lines.iter().enumerate().filter_map(|(i, line)| Some((label(line)?, i))).collect();
    let back = lines.iter().enumerate().filter_map(|(end, line)| {
        let mut words = line.split_whitespace();
        words.next().filter(|name| name.contains("branch"))?;
        let begin = *places.get(words.next()?)?;
        (begin < end).then_some(begin..end)
    });
    let longest = back.max_by_key(ExactSizeIterator::len).unwrap_or_default();
    lines[longest].iter().filter(|line| line.trim_start().starts_with("v_")).count()
}

/// What limits products with one column on gfx1100, an RX 7900 XTX: 960 GB/s, and 192 SIMDs at 2.3 GHz with a vector instruction for 32 lanes
/// each. A loop takes four rows, 16 elements of each an invocation.
fn limits(kernels: &[(&str, usize)]) -> String {
    let mut table = String::from("| | bytes | vector instructions | GB/s by instructions | over the memory's |\n");
    for (line, instructions) in kernels.iter().filter(|(line, _)| line.starts_with("mul_mat_vec")) {
        let Some((name, "columns=1 rows=4")) = line["mul_mat_vec ".len()..].split_once(' ').map(|(a, b)| (a, &b[..16]))
        else {
            continue;
        };
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == name).unwrap();
        let bytes = dtype.row_bytes(1024).unwrap() as f64;
        let needed = *instructions as f64 * 1024.0 / (32.0 * 16.0 * 4.0);
        let rate = bytes / needed * 192.0 * 2.3;
        writeln!(table, "| {name} | {bytes} | {needed:.0} | {rate:.0} | {:.2} |", rate / 960.0).unwrap();
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
