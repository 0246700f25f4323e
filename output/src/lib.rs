//! Standard output and standard error of the programs: nothing else writes to them.
//!
//! `print!` and `eprintln!` panic when the reader of a pipe has gone or a disk is full. Here that is an error, [`Lost`]. A command
//! returns it like any other error, so that everything it has on servers is freed on the way; then `main` ends the program.
//!
//! * Standard output has the result of the work. If it cannot be written, the work has failed: one line on standard error, status 1.
//! * Standard error has messages for people. If one cannot be written, the work goes on, but [`finish`] gives status 1.
//! * If whoever reads either of them has gone, the program ends without a word, as other programs of the platform do: on Unix,
//!   SIGPIPE ends it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::print_stdout, clippy::print_stderr))]

use std::fmt::{self, Display};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU8, Ordering};

/// One of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

impl Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stream::Output => "standard output",
            Stream::Error => "standard error",
        })
    }
}

/// A stream could not be written to.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// The other end of the pipe is closed.
    #[error("nobody reads {0} any more")]
    Reader(Stream),
    /// Something else, such as a full disk.
    #[error("cannot write to {stream}: {why}")]
    Failed {
        /// Which stream.
        stream: Stream,
        /// What the system says.
        why: io::Error,
    },
}

impl Lost {
    fn new(stream: Stream, why: io::Error) -> Lost {
        match why.kind() {
            ErrorKind::BrokenPipe => Lost::Reader(stream),
            _ => Lost::Failed { stream, why },
        }
    }
}

/// What became of standard error: bits of [`READER_GONE`] and [`FAILED`]. Many who write to it cannot return an error.
static STANDARD_ERROR: AtomicU8 = AtomicU8::new(0);
const READER_GONE: u8 = 1;
const FAILED: u8 = 2;

fn write(to: &mut impl Write, text: impl Display) -> io::Result<()> {
    // As one piece, so that lines of several threads do not mix.
    to.write_all(text.to_string().as_bytes())?;
    to.flush()
}

/// Takes note of how a write to standard error ended. An error only if its reader has gone.
fn note(written: io::Result<()>) -> Result<(), Lost> {
    let Err(why) = written else { return Ok(()) };
    let lost = Lost::new(Stream::Error, why);
    let bit = if matches!(lost, Lost::Reader(_)) { READER_GONE } else { FAILED };
    STANDARD_ERROR.fetch_or(bit, Ordering::Relaxed);
    check()
}

/// An error if the reader of standard error has gone. For work that writes nothing for long and cannot return the error of a message.
pub fn check() -> Result<(), Lost> {
    match STANDARD_ERROR.load(Ordering::Relaxed) & READER_GONE {
        0 => Ok(()),
        _ => Err(Lost::Reader(Stream::Error)),
    }
}

/// Writes a piece of the result to standard output, and flushes it.
pub fn out(text: impl Display) -> Result<(), Lost> {
    write(&mut io::stdout().lock(), text).map_err(|why| Lost::new(Stream::Output, why))
}

/// Writes a line of the result to standard output.
pub fn outln(text: impl Display) -> Result<(), Lost> {
    out(format_args!("{text}\n"))
}

/// Writes a piece of a message to standard error. An error only if the reader has gone.
pub fn err(text: impl Display) -> Result<(), Lost> {
    note(write(&mut io::stderr().lock(), text))
}

/// Writes a line of messages to standard error. An error only if the reader has gone.
pub fn errln(text: impl Display) -> Result<(), Lost> {
    err(format_args!("{text}\n"))
}

/// Whether standard error is a terminal: progress is shown there only.
pub fn err_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether standard output is a terminal.
pub fn out_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Standard error for a log: a line that cannot be written is lost, and whoever logs does not see it.
#[derive(Clone, Copy, Debug)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // `finish` tells of it.
        let _ = note(io::stderr().lock().write_all(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Ends a program whose work is done with this status. The status is 1 in place of 0 if a message was lost. If the reader of standard
/// error has gone, this does not return on Unix.
pub fn finish(code: ExitCode) -> ExitCode {
    match STANDARD_ERROR.load(Ordering::Relaxed) {
        lost if lost & READER_GONE != 0 => reader_gone(),
        0 => code,
        _ if code == ExitCode::SUCCESS => ExitCode::FAILURE,
        _ => code,
    }
}

/// Ends a program whose work has failed, with a line that says why, and this status. Control characters are left out of the line.
pub fn fail(why: impl Display, code: ExitCode) -> ExitCode {
    let _ = errln(format_args!("error: {}", one_line(&why.to_string())));
    finish(code)
}

/// Ends a program that has lost a stream. Does not return on Unix if a reader has gone.
pub fn fail_without(lost: &Lost) -> ExitCode {
    match lost {
        Lost::Reader(_) => reader_gone(),
        Lost::Failed { .. } => fail(lost, ExitCode::FAILURE),
    }
}

/// Ends a program whose arguments were wrong (status 2), or asked for help or the version (status 0).
pub fn fail_usage(usage: &clap::Error) -> ExitCode {
    let code = u8::try_from(usage.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from);
    match usage.print().and_then(|()| io::stdout().flush()) {
        Err(why) if !usage.use_stderr() => fail_without(&Lost::new(Stream::Output, why)),
        written => {
            let _ = note(written);
            finish(code)
        }
    }
}

/// Text as one line without control characters: errors may quote what a file or a server said.
pub fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Ends the process as SIGPIPE ends a program that does not handle it.
#[cfg(unix)]
fn reader_gone() -> ExitCode {
    let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
    ExitCode::FAILURE
}

/// There is no such signal here.
#[cfg(not(unix))]
fn reader_gone() -> ExitCode {
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(one_line("a  b\n\tc\u{1b}[31md "), "a b c [31md");
    }

    #[test]
    fn a_closed_pipe_is_not_a_failure() {
        let lost = |kind| Lost::new(Stream::Output, io::Error::from(kind));
        assert!(matches!(lost(ErrorKind::BrokenPipe), Lost::Reader(Stream::Output)));
        let full = lost(ErrorKind::StorageFull).to_string();
        assert!(full.starts_with("cannot write to standard output: "), "{full}");
    }

    #[test]
    fn a_log_never_fails() {
        assert!(Log.write_all(b"").is_ok() && Log.flush().is_ok() && check().is_ok());
    }
}
