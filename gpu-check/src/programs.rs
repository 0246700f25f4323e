//! Programs of Outboard that lie beside this one.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Longest time for a program.
const LONGEST: Duration = Duration::from_secs(600);

/// One of them.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe().context("where this program is")?.with_file_name(name);
    if !path.exists() {
        bail!("{} is not there: put it beside this program", path.display());
    }
    Ok(path)
}

/// What a program writes to stdout, and whether it ended well. One that hangs, as with a card that does, is ended.
pub(crate) fn output(command: &mut Command) -> Result<(String, ExitStatus)> {
    output_within(command, LONGEST, |child| Ok(child.kill()?))
}

/// The same of a program that starts others, which end with it, within so long.
pub(crate) fn output_of_group(command: &mut Command, longest: Duration) -> Result<(String, ExitStatus)> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    output_within(command, longest, |child| {
        #[cfg(unix)]
        rustix::process::kill_process_group(rustix::process::Pid::from_child(child), rustix::process::Signal::KILL)?;
        Ok(child.kill()?)
    })
}

fn output_within(
    command: &mut Command,
    longest: Duration,
    kill: impl FnOnce(&mut Child) -> Result<()>,
) -> Result<(String, ExitStatus)> {
    let out = command.stdout(Stdio::piped()).spawn();
    let mut child = out.with_context(|| format!("{command:?} does not start"))?;
    let lines = lines(&mut child)?;
    let end = Instant::now() + longest;
    let mut text = String::new();
    while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        text += &line;
        text.push('\n');
    }
    while child.try_wait()?.is_none() {
        if Instant::now() > end {
            kill(&mut child)?;
            child.wait()?;
            bail!("{command:?} did not end within {longest:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((text, child.wait()?))
}

/// The lines that a program writes to stdout, as they come, until it closes it.
pub(crate) fn lines(child: &mut Child) -> Result<Receiver<String>> {
    let out = child.stdout.take().context("its output")?;
    let (sender, lines) = channel();
    // A receiver that is gone ends nothing: the program can still write.
    let read = move || BufReader::new(out).lines().map_while(|line| line.ok()).for_each(|line| _ = sender.send(line));
    std::thread::Builder::new().name("output of a program".into()).spawn(read)?;
    Ok(lines)
}

/// What a program prints as JSON.
pub(crate) fn json_of(command: &mut Command) -> Result<Value> {
    let (text, status) = output(command)?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    serde_json::from_str(&text).with_context(|| format!("{command:?} prints no JSON"))
}
