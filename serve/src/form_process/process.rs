//! A process that follows forms, as the server has it.

use super::FormProcesses;
use super::places::Place;
use super::wire::{Answer, Request};
use super::worker::TOO_MUCH;
use std::io::{self, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// More than the process itself allows, for one that is stopped, or on a machine that is; and for one that begins, behind the steps of texts.
const NO_ANSWER: Duration = Duration::from_secs(30);
const NOT_READY: Duration = Duration::from_secs(60);
/// How long it may take to end when its pipes are closed.
const ENDING: Duration = Duration::from_millis(100);
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
    /// By itself, or it has said what it should not.
    Crashed,
}

/// What a thread beside it looks at.
#[derive(Debug)]
struct Watched {
    child: Mutex<Child>,
    /// When it is to have said something.
    due: Mutex<Option<Instant>>,
    /// It was ended because it had not.
    is_late: AtomicBool,
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
        let watched = Watched {
            child: Mutex::new(child),
            due: Mutex::new(Some(Instant::now() + NOT_READY)),
            is_late: AtomicBool::new(false),
        };
        let watched = Arc::new(watched);
        let (to, from) = pipes.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let process = Process { watched, to, from: BufReader::new(from), place };
        let looked_at = Arc::downgrade(&process.watched);
        std::thread::Builder::new().name("form-watch".into()).spawn(move || watch(&looked_at))?;
        Ok(process)
    }

    /// What it says; `None` if it has ended, or says nothing.
    pub(super) fn ask(&mut self, request: &Request) -> Option<Answer> {
        *locked(&self.watched.due) = Some(Instant::now() + NO_ANSWER);
        request.write(&mut self.to).ok()?;
        self.answer()
    }

    pub(super) fn answer(&mut self) -> Option<Answer> {
        let answer = Answer::read(&mut self.from).ok();
        *locked(&self.watched.due) = None;
        answer
    }

    /// How it has ended; it is made to, if it has not.
    pub(super) fn end(self) -> Ended {
        let by_itself = self.watched.ended_within(ENDING);
        let status = by_itself.or_else(|| self.watched.end());
        let is_late = self.watched.is_late.load(Ordering::Acquire);
        if is_late || status.and_then(|status| status.code()) == Some(TOO_MUCH) {
            return Ended::ByItsLimits;
        }
        #[cfg(unix)]
        if by_itself.and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)) == Some(KILLED) {
            return Ended::FromOutside;
        }
        Ended::Crashed
    }

    /// Whether it is there still.
    pub(super) fn is_running(&self) -> bool {
        self.watched.ended_within(Duration::ZERO).is_none()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.watched.end();
    }
}

impl Watched {
    /// How the process has ended, if it has within this time.
    fn ended_within(&self, time: Duration) -> Option<ExitStatus> {
        let since = Instant::now();
        loop {
            if let Some(status) = locked(&self.child).try_wait().ok()? {
                return Some(status);
            }
            if since.elapsed() >= time {
                return None;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

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
        if locked(&process.due).is_some_and(|due| due < Instant::now()) {
            process.is_late.store(true, Ordering::Release);
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
