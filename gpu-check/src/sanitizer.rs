//! What NVIDIA's compute-sanitizer finds: this program runs again, with some cases of every op, under each of its tools.

use crate::{Args, Outcome, programs};
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
/// Lines of a tool that are kept beside its summary.
const MOST_LINES: usize = 60;

pub(crate) fn run(devices: &[Arc<dyn Device>], args: &Args) -> Result<Outcome> {
    let cuda = devices.iter().map(|device| device.info()).filter(|info| info.backend == "cuda");
    let names: Vec<_> = cuda.map(|info| info.id.to_lowercase()).collect();
    if names.is_empty() {
        return skipped("no CUDA device among those that are checked");
    }
    let Some(sanitizer) = find(args.sanitizer.as_deref())? else {
        return skipped(&format!(
            "no {PROGRAM} on PATH; it comes with NVIDIA's CUDA toolkit; --sanitizer FILE names one elsewhere"
        ));
    };
    let (mut rows, mut wrong) = (Vec::new(), Vec::new());
    for tool in TOOLS {
        let (row, of_tool) = match check(&sanitizer, tool, &names.join(","), args) {
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
fn check(sanitizer: &Path, tool: &str, devices: &str, args: &Args) -> Result<(Value, Vec<String>)> {
    let file = args.scratch.join(format!("gpu-check-{tool}-{}.json", std::process::id()));
    let mut command = Command::new(sanitizer);
    command.args(["--tool", tool, "--error-exitcode", &FOUND.to_string()]);
    command.arg(std::env::current_exe().context("where this program is")?);
    command.args(["-d", devices, "--only", "conformance", "--quick", "--json"]).arg(&file);
    if !args.ops.is_empty() {
        command.args(["--ops", &args.ops.join(",")]);
    }
    let begun = Instant::now();
    let ran = programs::output_of_group(&mut command, Duration::from_secs(args.sanitizer_limit));
    let report = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    let (text, status) = ran?;
    let report: Value = serde_json::from_str(&report).unwrap_or_default();
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with(ITS_LINE)).collect();
    let summary: Vec<_> = lines.iter().filter(|line| line.contains("SUMMARY")).map(|line| words(line)).collect();
    let (result, wrong) = match status.code() {
        Some(0) if summary.is_empty() => {
            ("failed", vec!["it ended without a summary, so that it has checked nothing".into()])
        }
        Some(0) => ("clean", Vec::new()),
        Some(FOUND) => ("errors", vec![format!("it has found errors: {}", summary.join("; "))]),
        _ => ("failed", of_program(&report, &format!("gpu-check under it: {status}"))),
    };
    let said: Vec<_> =
        if result == "clean" { Vec::new() } else { lines.iter().take(MOST_LINES).map(|line| words(line)).collect() };
    let row = json!({
        "tool": tool,
        "result": result,
        "summary": summary,
        "said": said,
        "conformance": report["conformance"]["report"],
        "seconds": begun.elapsed().as_secs_f64(),
    });
    Ok((row, wrong))
}

/// What a tool says in one of its lines.
fn words(line: &str) -> String {
    line.trim_start_matches('=').trim().to_owned()
}

/// What was wrong with the cases themselves, or how the program ended.
fn of_program(report: &Value, ended: &str) -> Vec<String> {
    let wrong = report["conformance"]["wrong"].as_array().map_or(&[][..], Vec::as_slice);
    let of_cases = wrong.iter().filter_map(Value::as_str).map(str::to_owned);
    std::iter::once(ended.to_owned()).chain(of_cases).collect()
}

fn in_short(row: &Value) -> String {
    let summary = row["summary"].as_array().map_or(&[][..], Vec::as_slice);
    let lines = summary.iter().filter_map(Value::as_str);
    row["result"].as_str().into_iter().chain(lines).collect::<Vec<_>>().join(", ")
}
