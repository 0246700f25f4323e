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
"$@" || exit
if [ $tool = memcheck ]; then
    echo "========= Invalid __global__ write of size 4 bytes"
    echo "=========     at unary+0x1b0"
    echo "========= ERROR SUMMARY: 1 error"
    exit $code
fi
echo "========= ERROR SUMMARY: 0 errors"
"#;

/// Says something and hangs.
const HANGS: &str = r#"
echo "========= ERROR SUMMARY: 2 errors"
echo SCALE
sleep 1000 &
echo $! >>started
wait
"#;

const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];

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

    /// What is wrong with each tool, a line each.
    fn wrong(&self) -> Vec<&str> {
        self.part["wrong"].as_array().unwrap().iter().map(|why| why.as_str().unwrap()).collect()
    }
}

/// What each tool came to, all of them the same.
fn all(result: &str) -> [(&str, &str); 4] {
    TOOLS.map(|tool| (tool, result))
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
    assert_eq!(checked.results(), all("clean"));
    let report = &checked.part["report"];
    assert_eq!(report[0]["summary"], serde_json::json!(["ERROR SUMMARY: 0 errors"]));
    assert_eq!(
        report[1]["summary"],
        serde_json::json!(["RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"])
    );
    for row in report.as_array().unwrap() {
        assert!(row["conformance"][0]["cases"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(row["said"], serde_json::json!([]));
    }
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

/// Also where it ends as if nothing were.
#[test]
fn every_number_of_a_summary_counts() {
    for summary in ["ERROR SUMMARY: 3 errors", "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)"] {
        let body = format!("\"$@\" || exit\necho \"========= {summary}\"\necho \"========= ERROR SUMMARY: 0 errors\"");
        let checked = check(Some(&body), &[]);
        assert_eq!(checked.output.status.code(), Some(1));
        assert_eq!(checked.results(), all("errors"));
        assert!(checked.wrong().iter().all(|why| why.contains(summary)), "{:?}", checked.wrong());
    }
}

/// A program that fails under it, a tool without a summary, and one that says it is clean and has run nothing.
#[test]
fn a_tool_that_checks_nothing_is_wrong() {
    let checked = check(Some("[ $tool != synccheck ] || exec \"$@\"\nexit 1"), &[]);
    assert_eq!(checked.output.status.code(), Some(1));
    assert_eq!(checked.results(), all("failed"));
    let wrong = checked.wrong();
    for (tool, why) in TOOLS.iter().zip(&wrong[..3]) {
        assert_eq!(*why, format!("{tool}: gpu-check under it: exit status: 1"));
    }
    assert_eq!(wrong[3..], ["synccheck: it ended without a summary, so that it has checked nothing"]);

    let checked = check(Some("echo \"========= ERROR SUMMARY: 0 errors\""), &[]);
    assert_eq!(checked.output.status.code(), Some(1));
    assert_eq!(checked.results(), all("failed"));
    let why = "gpu-check under it ran no case on CUDA0, so that nothing was checked";
    assert_eq!(checked.wrong(), TOOLS.map(|tool| format!("{tool}: {why}")));
}

#[test]
fn a_tool_that_hangs_is_ended_with_what_it_has_started() {
    let start = Instant::now();
    let checked = check(Some(HANGS), &["--sanitizer-limit", "1"]);
    assert_eq!(checked.output.status.code(), Some(1));
    assert_eq!(checked.results(), all("failed"));
    assert!(checked.wrong().iter().all(|why| why.contains("did not end within 1s")), "{:?}", checked.wrong());
    for row in checked.part["report"].as_array().unwrap() {
        assert_eq!(row["summary"], serde_json::json!(["ERROR SUMMARY: 2 errors"]));
        assert_eq!(row["said"], serde_json::json!(["ERROR SUMMARY: 2 errors", "SCALE"]));
        assert!(row["seconds"].as_f64().unwrap() >= 1.0, "{row}");
    }
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
fn what_keeps_the_output_of_a_tool_open_is_not_waited_for() {
    let checked = check(Some(&format!("setsid sleep 60 2>/dev/null &{SOUND}")), &[]);
    assert_eq!(checked.results(), all("clean"));
    for row in checked.part["report"].as_array().unwrap() {
        assert_eq!(row["summary"].as_array().unwrap().len(), 1, "{row}");
        assert!(row["seconds"].as_f64().unwrap() < 30.0, "{row}");
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
