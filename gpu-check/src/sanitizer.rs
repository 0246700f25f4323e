//! What NVIDIA's compute-sanitizer finds: this program runs again, with some cases of every op, under each of its tools.

use crate::programs::{self, Ran};
use crate::{Args, Outcome};
use anyhow::{Context, Result, bail};
use outboard_core::Device;
use outboard_output as output;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROGRAM: &str = "compute-sanitizer";
const TOOLS: [&str; 4] = ["memcheck", "racecheck", "initcheck", "synccheck"];
/// What it ends with if it finds something; otherwise it ends as the program under it does.
const FOUND: i32 = 86;
/// How its own lines begin.
const ITS_LINE: &str = "=========";
/// Lines of a tool that the report has beside its summary.
const MOST_LINES: usize = 60;

pub(crate) fn run(devices: &[Arc<dyn Device>], args: &Args) -> Result<Outcome> {
    let cuda = devices.iter().map(|device| device.info()).filter(|info| info.backend == "cuda");
    let ids: Vec<_> = cuda.map(|info| info.id.as_str()).collect();
    if ids.is_empty() {
        return skipped("no CUDA device among those that are checked");
    }
    let Some(sanitizer) = find(args.sanitizer.as_deref())? else {
        return skipped(&format!(
            "no {PROGRAM} on PATH; it comes with NVIDIA's CUDA toolkit; --sanitizer FILE names one elsewhere"
        ));
    };
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for tool in TOOLS {
        let (row, of_tool) = match check(&sanitizer, tool, &ids, args) {
            Ok(checked) => checked,
            Err(why) => (json!({ "tool": tool, "result": "failed" }), vec![format!("{why:#}")]),
        };
        output::out(format_args!("{tool}: {}\n", in_short(&row)))?;
        rows.push(row);
        wrong.extend(of_tool.into_iter().map(|why| format!("{tool}: {why}")));
    }
    Ok(Outcome { report: rows.into(), wrong })
}

fn skipped(why: &str) -> Result<Outcome> {
    let line = format!("skipped: {why}");
    output::out(format_args!("{line}\n"))?;
    Ok(Outcome { report: line.into(), ..Outcome::default() })
}

/// The one that is named, or one on PATH.
fn find(named: Option<&Path>) -> Result<Option<PathBuf>> {
    if let Some(named) = named {
        if !named.is_file() {
            bail!(
                "there is no {PROGRAM} at {}: name its file, or leave --sanitizer and OUTBOARD_SANITIZER out",
                named.display()
            );
        }
        return Ok(Some(named.to_owned()));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let file = format!("{PROGRAM}{}", std::env::consts::EXE_SUFFIX);
    Ok(std::env::split_paths(&folders).map(|folder| folder.join(&file)).find(|path| path.is_file()))
}

/// Runs some cases under a tool: what it says, and what is wrong.
fn check(sanitizer: &Path, tool: &str, ids: &[&str], args: &Args) -> Result<(Value, Vec<String>)> {
    let file = args.scratch.join(format!("gpu-check-{tool}-{}.json", std::process::id()));
    // One that a process of the same number has left is not of this run.
    let _ = std::fs::remove_file(&file);
    let mut command = Command::new(sanitizer);
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string()]);
    command.arg(std::env::current_exe().context("where this program is")?);
    command.args(["-d", &ids.join(",").to_lowercase(), "--only", "conformance", "--quick", "--json"]).arg(&file);
    if !args.ops.is_empty() {
        command.args(["--ops", &args.ops.join(",")]);
    }
    let begun = Instant::now();
    let ran = programs::run_group(&mut command, Duration::from_secs(args.sanitizer_limit), is_summary);
    let report = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    let ran = ran?;
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    let (result, wrong) = judge(&ran, &report["conformance"], ids, args.sanitizer_limit);
    let row = json!({
        "tool": tool,
        "result": result,
        "summary": summary(&ran),
        "said": said(&ran, result),
        "conformance": report["conformance"]["report"],
        "seconds": begun.elapsed().as_secs_f64(),
    });
    Ok((row, wrong))
}

/// What a tool came to, and what is wrong. It is clean only if it says so and the cases were run.
fn judge(ran: &Ran, cases: &Value, ids: &[&str], limit: u64) -> (&'static str, Vec<String>) {
    let summary = summary(ran);
    let Some(status) = ran.status else {
        let why = format!("it did not end within {limit}s: give it more by --sanitizer-limit, or fewer cases by --ops");
        return ("failed", vec![why]);
    };
    let found = summary.iter().any(|line| !is_zero(line));
    match status.code() {
        Some(0) if found => {
            ("errors", vec![format!("it has found something, and ends with 0: {}", summary.join("; "))])
        }
        Some(0) => match unproven(ran, cases, ids) {
            wrong if wrong.is_empty() => ("clean", wrong),
            wrong => ("failed", wrong),
        },
        Some(FOUND) => ("errors", vec![format!("it has found errors: {}", summary.join("; "))]),
        _ => {
            let ended = std::iter::once(format!("gpu-check under it: {status}"));
            ("failed", ended.chain(wrong_of(cases)).collect())
        }
    }
}

/// What is missing to call a tool clean that has ended with 0.
fn unproven(ran: &Ran, cases: &Value, ids: &[&str]) -> Vec<String> {
    let mut wrong: Vec<_> = wrong_of(cases).collect();
    if ran.marked.is_empty() {
        wrong.push("it ended without a summary, so that it has checked nothing".into());
    }
    if ran.left_out > 0 {
        wrong.push(format!("{} lines of its summary are too many or too long to be read", ran.left_out));
    }
    let rows = cases["report"].as_array().map_or(&[][..], Vec::as_slice);
    for id in ids {
        let row = rows.iter().find(|row| row["device"] == *id);
        let number = |name: &str| row.and_then(|row| row[name].as_u64()).unwrap_or(0);
        if number("cases") <= number("unsupported") {
            wrong.push(format!("gpu-check under it ran no case on {id}, so that nothing was checked"));
        }
    }
    wrong
}

/// What was wrong with the cases themselves.
fn wrong_of(cases: &Value) -> impl Iterator<Item = String> {
    let wrong = cases["wrong"].as_array().map_or(&[][..], Vec::as_slice);
    wrong.iter().filter_map(Value::as_str).map(str::to_owned)
}

fn is_summary(line: &str) -> bool {
    line.starts_with(ITS_LINE) && line.contains("SUMMARY")
}

/// Whether a line of a summary has numbers, and each of them is 0.
fn is_zero(line: &str) -> bool {
    let mut digits = line.chars().filter(char::is_ascii_digit).peekable();
    digits.peek().is_some() && digits.all(|digit| digit == '0')
}

fn summary(ran: &Ran) -> Vec<String> {
    ran.marked.iter().map(|line| words(line)).collect()
}

/// The lines of the report: where errors begin, or what came last before a failure.
fn said(ran: &Ran, result: &str) -> Vec<String> {
    let lines = || ran.text.lines();
    match result {
        "clean" => Vec::new(),
        "errors" => lines().filter(|line| line.starts_with(ITS_LINE)).take(MOST_LINES).map(words).collect(),
        _ => lines().skip(lines().count().saturating_sub(MOST_LINES)).map(words).collect(),
    }
}

/// What a tool says in one of its lines.
fn words(line: &str) -> String {
    line.trim_start_matches('=').trim().to_owned()
}

fn in_short(row: &Value) -> String {
    let summary = row["summary"].as_array().map_or(&[][..], Vec::as_slice);
    let lines = summary.iter().filter_map(Value::as_str);
    row["result"].as_str().into_iter().chain(lines).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_a_summary_has_to_be_0() {
        for clean in ["ERROR SUMMARY: 0 errors", "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"] {
            assert!(is_zero(clean), "{clean}");
        }
        for not in [
            "ERROR SUMMARY: 3 errors",
            "ERROR SUMMARY: 10 errors",
            "RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)",
            "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 1 warnings)",
            "ERROR SUMMARY: errors",
        ] {
            assert!(!is_zero(not), "{not}");
        }
    }

    #[test]
    fn every_device_needs_a_case_that_was_run() {
        let ran = Ran { marked: vec!["========= ERROR SUMMARY: 0 errors".into()], ..Ran::default() };
        let row = |id: &str, cases: u64, unsupported: u64| json!({ "device": id, "cases": cases, "unsupported": unsupported });
        let wrong =
            |rows: Value, wrong: Value| unproven(&ran, &json!({ "report": rows, "wrong": wrong }), &["CUDA0", "CUDA1"]);
        let both = json!([row("CUDA0", 3, 0), row("CUDA1", 3, 1)]);
        assert!(wrong(both.clone(), json!([])).is_empty());
        assert_eq!(wrong(both, json!(["CUDA1: SCALE x: off"])), ["CUDA1: SCALE x: off"]);
        for rows in [
            json!([row("CUDA0", 3, 0)]),
            json!([row("CUDA0", 3, 0), row("CUDA1", 0, 0)]),
            json!([row("CUDA0", 3, 0), row("CUDA1", 3, 3)]),
        ] {
            let found = wrong(rows, json!([]));
            assert_eq!(found, ["gpu-check under it ran no case on CUDA1, so that nothing was checked"]);
        }
        let cut = Ran { left_out: 1, ..ran };
        let rows = json!({ "report": [row("CUDA0", 3, 0)], "wrong": [] });
        assert_eq!(unproven(&cut, &rows, &["CUDA0"]), ["1 lines of its summary are too many or too long to be read"]);
    }
}
