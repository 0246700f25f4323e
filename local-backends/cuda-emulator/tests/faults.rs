//! Every check: a kernel that is broken on purpose is found and named, its mended twin passes.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]
mod common;

use common::{Card, code, emulator};
use outboard_cuda_emulator::Fault::{self, *};

/// Kernel, fault, code that the caller sees, whether y is to be left unwritten.
const CASES: &[(&str, Fault, u32, bool)] = &[
    ("bounds", OutOfBounds, 700, false),
    ("store", OutOfBounds, 700, false),
    ("shared_bounds", OutOfBounds, 700, false),
    ("local_bounds", OutOfBounds, 700, false),
    ("constant", ReadOnly, 700, false),
    ("aligned", Misaligned, 716, false),
    ("written", Uninitialised, 719, true),
    ("shared_written", Uninitialised, 719, false),
    ("local_written", Uninitialised, 719, false),
    ("race", Race, 719, false),
    ("reuse", Race, 719, false),
    ("bytes", Race, 719, false),
    ("wait", MissingWait, 719, false),
    ("group", MissingWait, 719, false),
    ("lanes", MissingLanes, 719, false),
    ("barrier", DivergentBarrier, 719, false),
    ("deadlock", Deadlock, 702, false),
    ("trap", Trap, 719, false),
];

fn run(kernel: &str, unwritten: bool) -> Result<Vec<i32>, u32> {
    let card = Card::with(0, "faults.sm_80");
    let x: Vec<i32> = (0..64).map(|i| i.max(1)).collect();
    let dx = card.put(&x);
    let dy = if unwritten { card.empty::<i32>(64) } else { card.put(&[1i32; 64]) };
    card.launch(kernel, 1, (64, 1), 0, &[&dx, &dy]).map_err(code)?;
    card.get(dy, 64).map_err(code)
}

#[test]
fn broken_kernels_are_found_and_named() {
    for &(name, fault, wanted, unwritten) in CASES {
        let kernel = format!("{name}_broken");
        assert_eq!(run(&kernel, unwritten), Err(wanted), "{kernel}");
        let findings = emulator().findings(&kernel);
        let found =
            findings.iter().find(|f| f.fault == Some(fault)).unwrap_or_else(|| panic!("{kernel}: {findings:?}"));
        for part in [kernel.as_str(), "PTX line ", "faults.cu:", "block (0,0,0)", "lane "] {
            assert!(found.text.contains(part), "{part} is not in {}", found.text);
        }
    }
}

#[test]
fn mended_kernels_pass() {
    for &(name, _, _, unwritten) in CASES {
        let kernel = format!("{name}_mended");
        let answer = run(&kernel, unwritten);
        assert!(answer.is_ok(), "{kernel}: {answer:?} {:?}", emulator().findings(&kernel));
        assert_eq!(emulator().findings(&kernel), [], "{kernel}");
    }
}

/// The line of the source that a finding names is the one at fault.
#[test]
fn the_line_of_the_source_is_named() {
    let _ = run("bounds_broken", false);
    let source = include_str!("kernels/faults.cu");
    let line = 1 + source.lines().position(|l| l.contains("bounds_broken")).unwrap();
    let found = &emulator().findings("bounds_broken")[0].text;
    assert!(found.contains(&format!("faults.cu:{line})")), "{found}");
    assert!(found.contains("lane 31") && found.contains("warp 1"), "{found}");
}

/// Instructions and modifiers that the emulator does not know are told when a module is loaded.
#[test]
fn what_is_not_known_is_refused_at_once() {
    let text = |body: &str| {
        format!(
            ".version 8.2\n.target sm_80\n.address_size 64\n.visible .entry k()\n{{\n.reg .b32 %r<4>;\n.reg .f32 %f<4>;\n.reg .b64 %rd<4>;\n.reg .pred %p<4>;\n{body}\nret;\n}}\n"
        )
    };
    let load = |text: &str| Card::new(0).load(text).map(drop).map_err(code);
    assert_eq!(load(&text("add.s32 %r1, %r2, %r3;")), Ok(()));
    for body in [
        "add.cc.u32 %r1, %r2, %r3;",
        "vadd4.u32.u32.u32 %r1, %r2, %r3, %r3;",
        "tex.2d.v4.f32.s32 {%f0,%f1,%f2,%f3}, [%rd1, {%r1,%r2}];",
        "add.s32.unheard %r1, %r2, %r3;",
        "add.s32 %r1, %r2;",
        "add.s32 %r1, %rd2, %r3;",
        "ld.global.u32 %r1, [missing];",
        "bra nowhere;",
        "mov.u32 %r9, 1;",
        "cvt.rna.tf32.f32 %r1, %f1;",
        "bar.red.popc.u32 %r1, 0, %p1;",
        "wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1}, [%rd1];",
        "call.uni missing, ();",
    ] {
        assert_eq!(load(&text(body)), Err(218), "{body}");
    }
    assert_eq!(load(&text("").replace("8.2", "8.7")), Err(222));
    assert_eq!(load(&text("").replace("sm_80", "sm_100")), Err(209));
    assert_eq!(load("not PTX"), Err(218));
    assert_eq!(load(""), Ok(()));
}
