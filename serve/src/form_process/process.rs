//! A process that follows forms, as the server has it.

use super::FormProcesses;
use super::places::Place;
use super::wire::{Answer, Request};
use super::worker::TOO_MUCH;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// More than the process itself allows, for one that is stopped, or on a machine that is.
const NO_ANSWER: Duration = Duration::from_secs(30);
/// How often it is looked whether one has said nothing for so long.
const LOOK: Duration = Duration::from_secs(1);
/// The signal that nothing can be done about.
#[cfg(unix)]
const KILLED: i32 = 9;

/// A process that follows the form of one text at a time.
#[derive(Debug)]
pub(super) struct Process {
    watched: Arc<Watched>,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// Where it counts.
    pub(super) place: Place,
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// What it was asked took too much.
    ByItsLimits,
    /// Somebody else has ended it, as a system without memory does.
    FromOutside,
    Crashed,
}

/// What a thread beside it looks at.
#[derive(Debug)]
struct Watched {
    child: Mutex<Child>,
    /// Since when it has been at work.
    asked: Mutex<Option<Instant>>,
}

impl Process {
    /// One that begins: its first [`answer`](Self::answer) says that it is ready.
    pub(super) fn start(how: &FormProcesses, model: &Path, place: Place) -> io::Result<Process> {
        let mut command = Command::new(&how.program);
        command.args(&how.args).arg(model);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A Ctrl-C is for the server, whose texts go on for a while.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let watched = Arc::new(Watched { child: Mutex::new(child), asked: Mutex::new(Some(Instant::now())) });
        let (to, from) = pipes.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let process = Process { watched, to, from: BufReader::new(from), place };
        let looked_at = Arc::downgrade(&process.watched);
        std::thread::Builder::new().name("form-watch".into()).spawn(move || watch(&looked_at))?;
        Ok(process)
    }

    /// What it says; `None` if it has ended, or says nothing.
    pub(super) fn ask(&mut self, request: &Request) -> Option<Answer> {
        *locked(&self.watched.asked) = Some(Instant::now());
        request.write(&mut self.to).ok()?;
        self.answer()
    }

    pub(super) fn answer(&mut self) -> Option<Answer> {
        let answer = Answer::read(&mut self.from).ok();
        *locked(&self.watched.asked) = None;
        answer
    }

    /// How it has ended; it is made to, if it has not.
    pub(super) fn end(self) -> Ended {
        let status = self.watched.end();
        if status.and_then(|status| status.code()) == Some(TOO_MUCH) {
            return Ended::ByItsLimits;
        }
        #[cfg(unix)]
        if status.and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)) == Some(KILLED) {
            return Ended::FromOutside;
        }
        Ended::Crashed
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.watched.end();
    }
}

impl Watched {
    /// Ends the process, and says how it has ended, by itself if it has before.
    fn end(&self) -> Option<ExitStatus> {
        let mut child = locked(&self.child);
        // Fails only if it has ended.
        let _ = child.kill();
        child.wait().ok()
    }
}

/// Ends a process that says nothing: nobody else would, while its pipes are waited for.
fn watch(process: &Weak<Watched>) {
    while let Some(process) = process.upgrade() {
        if locked(&process.asked).is_some_and(|asked| asked.elapsed() > NO_ANSWER) {
            process.end();
            return;
        }
        drop(process);
        std::thread::sleep(LOOK);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
