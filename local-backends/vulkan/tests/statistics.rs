//! What Mesa's compiler for AMD cards makes of the kernels, for cards that are not there: no spills, enough waves, and nothing that has changed
//! unseen. `OUTBOARD_UPDATE_GOLDEN=1` writes the numbers anew.
#![allow(clippy::unwrap_used, clippy::expect_used)]

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
fn kernels_compile_for_amd_cards() {
    if !Path::new(RADV).exists() {
        return println!("skipped: {RADV} is not here (mesa-vulkan-drivers)");
    }
    for family in ["gfx1100", "navi21"] {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "of_the_named_card", "--nocapture"])
            .envs([("RADV_FORCE_FAMILY", family), ("VK_ICD_FILENAMES", RADV)])
            .output()
            .unwrap();
        let said = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "{family}: {said}{}", String::from_utf8_lossy(&out.stderr));
        let got: String =
            said.lines().filter(|line| line.contains(" VGPRs ")).map(|line| format!("{line}\n")).collect();
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
}

/// The version that the numbers are of.
const MESA: &str = "22.3.6";

/// The version of the package that has RADV, without Debian's part.
fn mesa() -> Option<&'static str> {
    let out = Command::new("dpkg-query").args(["-W", "-f", "${Version}", "mesa-vulkan-drivers"]).output().ok()?;
    let version = String::from_utf8(out.stdout).ok()?;
    Some(if version.starts_with(&format!("{MESA}-")) { MESA } else { "another" })
}
