//! Programs of Outboard that lie beside this one.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

/// Longest time for a program.
const LONGEST: Duration = Duration::from_secs(600);
/// Longest time for what is left of one: its output when it has ended, its end when it is killed.
const REST: Duration = Duration::from_secs(2);
/// Time between two looks at whether it has ended.
const TICK: Duration = Duration::from_millis(10);
/// Bytes of its output that are kept, the last ones, and bytes of one line.
const MOST_TEXT: usize = 1 << 20;
/// Lines of it that are kept from all of its output, and bytes of such a line.
const MOST_MARKED: usize = 16;
const LONGEST_MARKED: usize = 1 << 10;
/// Lines that are read before somebody takes them.
const WAITING: usize = 16;

/// One of them.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    let path = std::env::current_exe().context("where this program is")?.with_file_name(name);
    if !path.exists() {
        bail!("{} is not there: put it beside this program", path.display());
    }
    Ok(path)
}

/// What a program came to.
#[derive(Default)]
pub(crate) struct Ran {
    /// The last of what it wrote to stdout.
    pub(crate) text: String,
    /// Lines that were asked for, from all of it.
    pub(crate) marked: Vec<String>,
    /// How many more of them there were.
    pub(crate) left_out: usize,
    /// How it ended; none if it had to be ended.
    pub(crate) status: Option<ExitStatus>,
}

impl Ran {
    fn add(&mut self, line: &str, marks: fn(&str) -> bool) {
        self.text += line;
        self.text.push('\n');
        // Only now and then, because it moves the rest.
        if self.text.len() > 2 * MOST_TEXT {
            self.cut();
        }
        if !marks(line) {
            return;
        }
        if self.marked.len() < MOST_MARKED && line.len() <= LONGEST_MARKED {
            self.marked.push(line.to_owned());
        } else {
            self.left_out += 1;
        }
    }

    /// Leaves the last of the text.
    fn cut(&mut self) {
        let most = self.text.len().saturating_sub(MOST_TEXT);
        // A character has 4 bytes at most.
        let from = (most..most + 4).find(|&at| self.text.is_char_boundary(at)).unwrap_or(self.text.len());
        self.text.drain(..from);
    }
}

/// What a program writes to stdout, and whether it ended well. One that hangs, as with a card that does, is ended.
pub(crate) fn output(command: &mut Command) -> Result<(String, ExitStatus)> {
    let ran = run(command, LONGEST, |_| false, |child| _ = child.kill())?;
    let status = ran.status.with_context(|| format!("{command:?} did not end within {LONGEST:?}"))?;
    Ok((ran.text, status))
}

/// Runs a program that starts others. Where it does not end within so long, they are ended with it.
pub(crate) fn run_group(command: &mut Command, longest: Duration, marks: fn(&str) -> bool) -> Result<Ran> {
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(command, 0);
    run(command, longest, marks, |child| {
        #[cfg(unix)]
        let _ =
            rustix::process::kill_process_group(rustix::process::Pid::from_child(child), rustix::process::Signal::KILL);
        let _ = child.kill();
    })
}

fn run(
    command: &mut Command,
    longest: Duration,
    marks: fn(&str) -> bool,
    kill: impl FnOnce(&mut Child),
) -> Result<Ran> {
    let out = command.stdout(Stdio::piped()).spawn();
    let mut child = out.with_context(|| format!("{command:?} does not start"))?;
    let lines = lines(&mut child)?;
    let end = Instant::now() + longest;
    let (mut ran, mut until) = (Ran::default(), end);
    while Instant::now() < until {
        match lines.recv_timeout(TICK) {
            Ok(line) => ran.add(&line, marks),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if ran.status.is_none() {
            ran.status = child.try_wait()?;
            // Something it has started may keep its stdout open.
            until = if ran.status.is_some() { end.min(Instant::now() + REST) } else { end };
        }
    }
    if ran.status.is_none() {
        ran.status = ended(&mut child, end)?;
    }
    if ran.status.is_none() {
        kill(&mut child);
        // A call of a driver that hangs keeps even one that is killed.
        ended(&mut child, Instant::now() + REST)?;
    }
    ran.cut();
    Ok(ran)
}

/// How a program ended, if it does until then.
fn ended(child: &mut Child, until: Instant) -> Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= until {
            return Ok(status);
        }
        std::thread::sleep(TICK);
    }
}

/// The lines that a program writes to stdout, as they come, until it closes it.
pub(crate) fn lines(child: &mut Child) -> Result<Receiver<String>> {
    let mut out = BufReader::new(child.stdout.take().context("its output")?);
    let (sender, lines) = sync_channel(WAITING);
    let read = move || {
        while let Some(line) = line(&mut out) {
            // A receiver that is gone ends nothing: the program can still write.
            let _ = sender.send(line);
        }
    };
    std::thread::Builder::new().name("output of a program".into()).spawn(read)?;
    Ok(lines)
}

/// The next line, or a piece of one that is very long.
fn line(out: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    out.take(MOST_TEXT as u64).read_until(b'\n', &mut line).ok().filter(|&read| read > 0)?;
    let line = line.strip_suffix(b"\n").unwrap_or(&line);
    Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned())
}

/// What a program prints as JSON.
pub(crate) fn json_of(command: &mut Command) -> Result<Value> {
    let (text, status) = output(command)?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    serde_json::from_str(&text).with_context(|| format!("{command:?} prints no JSON"))
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests {
    use super::*;

    fn shell(body: &str, longest: u64) -> Ran {
        let mut command = Command::new("sh");
        let marks = |line: &str| line.contains("SUMMARY");
        run_group(command.args(["-c", body]), Duration::from_secs(longest), marks).unwrap()
    }

    #[test]
    fn output_without_an_end_takes_little_memory() {
        for flood in ["exec yes ===", "yes | tr -d '\\n'"] {
            let ran = shell(&format!("echo first SUMMARY; {flood}"), 2);
            assert!(ran.status.is_none());
            assert!((MOST_TEXT / 2..=MOST_TEXT).contains(&ran.text.len()), "{}", ran.text.len());
            assert_eq!(ran.marked, ["first SUMMARY"]);
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(kib < 256 << 10, "{kib} KiB");
    }

    #[test]
    fn lines_that_are_asked_for_are_bounded() {
        let ran = shell("yes 'SUMMARY: 0 errors' | head -n 20; printf 'SUMMARY%02000d\\n' 0", 60);
        assert_eq!((ran.marked.len(), ran.left_out), (MOST_MARKED, 5));
        assert!(ran.status.unwrap().success());
    }

    #[test]
    fn a_line_that_is_no_text_ends_nothing() {
        let ran = shell("printf 'a\\377b\\nlast, without an end'", 60);
        assert_eq!(ran.text, "a\u{fffd}b\nlast, without an end\n");
    }

    #[test]
    fn what_is_said_before_a_program_hangs_is_kept() {
        let ran = shell("echo SUMMARY; exec sleep 1000", 1);
        assert_eq!((ran.text.as_str(), ran.status), ("SUMMARY\n", None));
        let ran = shell("echo SUMMARY; exec >&-; exec sleep 1000", 1);
        assert_eq!((ran.text.as_str(), ran.status), ("SUMMARY\n", None));
    }

    #[test]
    fn what_keeps_stdout_open_is_not_waited_for() {
        let begun = Instant::now();
        let ran = shell("setsid sleep 20 2>/dev/null & echo SUMMARY", 600);
        assert!(ran.status.unwrap().success());
        assert_eq!(ran.marked, ["SUMMARY"]);
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }
}
