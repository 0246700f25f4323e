//! Ops that are named with `--ops`, on the emulator.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_cuda_emulator::Emulator;
use std::process::{Command, Output};

fn check(part: &str, ops: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    command.args(["-d", "cuda0", "--quick", "--only", part, "--ops", ops]).current_dir(folder.path());
    command.env("LD_PRELOAD", Emulator::file().unwrap()).output().unwrap()
}

/// Whatever part is asked for.
#[test]
fn one_that_no_case_has_is_refused() {
    for (ops, name) in [("NOSUCH", "NOSUCH"), ("nosuch", "nosuch"), ("SCALE,NOSUCH", "NOSUCH"), ("", "")] {
        for part in ["conformance", "kernels"] {
            let output = check(part, ops);
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(said.contains(&format!("no case has the op {name:?}: name some of ABS, ")), "{said}");
            assert!(said.contains(", SCALE, "), "{said}");
        }
    }
}

#[test]
fn one_that_cases_have_is_run_in_either_case() {
    for ops in ["SCALE", "scale"] {
        let output = check("conformance", ops);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        assert!(said.lines().any(|line| line.starts_with("SCALE ")), "{said}");
    }
}
