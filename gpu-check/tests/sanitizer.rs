//! The part `sanitizer`, with a script in place of NVIDIA's compute-sanitizer and the emulator in place of a card.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_cuda_emulator::Emulator;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Runs what it is given and says what the real one does.
const SOUND: &str = r#"
echo "========= COMPUTE-SANITIZER"
"$@" || exit
case $tool in
racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
*) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
"#;

/// Finds something with one tool.
const FINDS: &str = r#"
echo "========= COMPUTE-SANITIZER"
if [ $tool = memcheck ]; then
    echo "========= Invalid __global__ write of size 4 bytes"
    echo "=========     at unary+0x1b0"
    echo "========= ERROR SUMMARY: 1 error"
    exit $code
fi
echo "========= ERROR SUMMARY: 0 errors"
"#;

struct Checked {
    folder: TempDir,
    output: Output,
    /// What the report has of the part.
    part: Value,
}

impl Checked {
    fn said(&self) -> String {
        let Output { stdout, stderr, .. } = &self.output;
        format!("{}{}", String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr))
    }

    /// What each tool came to.
    fn results(&self) -> Vec<(&str, &str)> {
        let rows = self.part["report"].as_array().unwrap_or_else(|| panic!("{}", self.said()));
        rows.iter().map(|row| (row["tool"].as_str().unwrap(), row["result"].as_str().unwrap())).collect()
    }
}

/// Makes a program of a script that begins behind the sanitizer's own arguments.
fn script(path: &Path, body: &str) {
    let text =
        format!("#!/bin/sh\n[ \"$1 $3\" = \"--tool --error-exitcode\" ] || exit 2\ntool=$2 code=$4\nshift 4\n{body}");
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// Runs the part where PATH has a compute-sanitizer of this script, or none.
fn check(body: Option<&str>, more: &[&str]) -> Checked {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().display();
    let path = if body.is_some() { format!("{own}:/bin:/usr/bin") } else { own.to_string() };
    if let Some(body) = body {
        script(&folder.path().join("compute-sanitizer"), body);
    }
    let json = folder.path().join("report.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-check"));
    command.args(["-d", "cuda0", "--only", "sanitizer", "--ops", "SCALE", "--scratch"]).arg(folder.path());
    command.arg("--json").arg(&json).args(more).current_dir(folder.path()).env_remove("OUTBOARD_SANITIZER");
    command.env("PATH", path).env("LD_PRELOAD", Emulator::file().unwrap());
    let output = command.output().unwrap();
    let report = std::fs::read_to_string(&json).unwrap_or_default();
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    Checked { folder, output, part: report["sanitizer"].clone() }
}

#[test]
fn every_tool_runs_the_cases() {
    let checked = check(Some(SOUND), &[]);
    assert!(checked.output.status.success(), "{}", checked.said());
    let tools = ["memcheck", "racecheck", "initcheck", "synccheck"];
    assert_eq!(checked.results(), tools.map(|tool| (tool, "clean")));
    let report = &checked.part["report"];
    assert_eq!(report[0]["summary"], serde_json::json!(["ERROR SUMMARY: 0 errors"]));
    assert_eq!(
        report[1]["summary"],
        serde_json::json!(["RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"])
    );
    assert!(report[3]["conformance"][0]["cases"].as_u64().unwrap() > 0, "{report}");
    assert!(checked.said().contains("memcheck: clean, ERROR SUMMARY: 0 errors"), "{}", checked.said());
}

#[test]
fn what_a_tool_finds_is_wrong() {
    let checked = check(Some(FINDS), &[]);
    assert_eq!(checked.output.status.code(), Some(1));
    let clean = ["racecheck", "initcheck", "synccheck"].map(|tool| (tool, "clean"));
    assert_eq!(checked.results(), [[("memcheck", "errors")].as_slice(), &clean].concat());
    assert_eq!(checked.part["wrong"], serde_json::json!(["memcheck: it has found errors: ERROR SUMMARY: 1 error"]));
    let said = checked.part["report"][0]["said"].to_string();
    assert!(said.contains("Invalid __global__ write of size 4 bytes"), "{said}");
}

/// A program that fails under it, and a tool that has checked nothing.
#[test]
fn a_tool_that_checks_nothing_is_wrong() {
    let checked = check(Some("[ $tool != synccheck ] || exit 0\nexit 1"), &[]);
    assert_eq!(checked.output.status.code(), Some(1));
    assert!(checked.results().iter().all(|(_, result)| *result == "failed"), "{}", checked.said());
    let wrong = checked.part["wrong"].as_array().unwrap();
    assert!(wrong[0].as_str().unwrap().contains("memcheck: gpu-check under it: exit status: 1"), "{wrong:?}");
    assert!(wrong[3].as_str().unwrap().contains("synccheck: it ended without a summary"), "{wrong:?}");
}

#[test]
fn a_tool_that_hangs_is_ended_with_what_it_has_started() {
    let start = Instant::now();
    let checked = check(Some("sleep 1000 &\necho $! >>started\nwait"), &["--sanitizer-limit", "1"]);
    assert_eq!(checked.output.status.code(), Some(1));
    assert!(checked.results().iter().all(|(_, result)| *result == "failed"), "{}", checked.said());
    assert!(checked.part["wrong"][0].as_str().unwrap().contains("did not end within 1s"), "{}", checked.part);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let started = std::fs::read_to_string(checked.folder.path().join("started")).unwrap();
    assert_eq!(started.lines().count(), 4);
    for process in started.lines() {
        // One that has ended and that nobody has waited for still has an entry.
        let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }
}

#[test]
fn without_it_a_line_says_so() {
    let checked = check(None, &[]);
    assert!(checked.output.status.success(), "{}", checked.said());
    let line = "skipped: no compute-sanitizer on PATH; it comes with NVIDIA's CUDA toolkit; --sanitizer FILE names one elsewhere";
    assert_eq!(checked.part, serde_json::json!({ "report": line, "wrong": [] }));
    assert!(checked.said().lines().any(|said| said == line), "{}", checked.said());
    // One that is named and is not there is another matter.
    let checked = check(None, &["--sanitizer", "nowhere"]);
    assert_eq!(checked.output.status.code(), Some(1));
    assert!(checked.said().contains("there is no compute-sanitizer at nowhere"), "{}", checked.said());
}
