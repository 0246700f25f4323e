//! The process that follows forms, one text after the other.

use super::wire::{Answer, Request};
use outboard::llm::{FormedText, TokenSet};
use outboard::{Error, Form, Model, Result};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often the process looks at itself.
const LOOK: Duration = Duration::from_millis(10);
/// How long it waits for the next form. Then its memory is worth more than the moment that another process takes to begin.
const IDLE: Duration = Duration::from_secs(600);
/// The priority of what takes long, as a niceness.
#[cfg(target_os = "linux")]
const BEHIND: i32 = 5;
/// How a process ends that has taken too much.
pub(super) const TOO_MUCH: i32 = 3;

/// What a form may take before the process that follows it ends.
#[derive(Clone, Copy, Debug)]
pub struct FormLimits {
    /// Of a processor, to be compiled and behind each token. A large form takes seconds.
    pub time: Duration,
    /// Bytes of memory, where the system says what a process has.
    pub memory: u64,
}

/// How long it may work when it does not get a processor: less than what is waited for an answer (30 s).
const MOST_WAIT: Duration = Duration::from_secs(25);

/// What the process is at work on since when, and what processors had done for it then; or for how long it has had nothing to do.
#[derive(Clone, Copy)]
enum Work {
    Since(Instant, Duration),
    IdleSince(Instant),
}

/// Follows forms for [`FormProcesses`](super::FormProcesses) of the model of this file, in a process of its own, until there are no more or none comes for ten minutes. Ends the
/// process when a form takes too long or too much memory. `ready` is called when all is there that the model needs, before strangers are listened to, with the bytes of addresses that this process has then (`u64::MAX` if the system does not say).
pub fn follow_forms(
    model: &Path,
    limits: FormLimits,
    mut input: impl Read,
    mut output: impl Write,
    ready: impl FnOnce(u64),
) -> Result<()> {
    let failed = |e: io::Error| Error::Request(format!("forms cannot be followed: {e}"));
    // What forms need of the model takes time and memory as well.
    let open = || Model::open(model).and_then(|model| model.constraint(&Form::JsonObject).map(|_| model));
    let model = match behind_others(open).map_err(failed)? {
        Ok(model) => model,
        Err(e) => {
            Answer::Wrong(e.to_string()).write(output).map_err(failed)?;
            return Err(e);
        }
    };
    ready(own_bytes("VmSize:").unwrap_or(u64::MAX));
    let most = resident().saturating_add(limits.memory);
    let work = Arc::new(Mutex::new(Work::IdleSince(Instant::now())));
    watch(work.clone(), limits.time, most).map_err(failed)?;
    let digest = model.tokenizer().digest();
    Answer::Ready(digest).write(&mut output).map_err(failed)?;
    let note = |now: Work| *work.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let mut text: Option<Box<dyn FormedText>> = None;
    while let Some(request) = Request::read(&mut input).map_err(failed)? {
        note(Work::Since(Instant::now(), processor_time()));
        let answer = match request {
            Request::Form(json) => {
                let form = serde_json::from_slice::<Form>(&json).map_err(|e| Error::Request(e.to_string()));
                let compile = || form.and_then(|form| model.constraint(&form));
                match behind_others(compile).map_err(failed)? {
                    Ok(constraint) => tokens(&text.insert(constraint.begin()).first()),
                    Err(e) => Answer::Wrong(reason(e)),
                }
            }
            Request::Token(id) => match text.as_mut().map(|text| text.push(id)) {
                Some(Ok(Some(set))) => tokens(&set),
                Some(Ok(None)) => Answer::Complete,
                Some(Err(e)) => Answer::Wrong(e.to_string()),
                None => Answer::Wrong("there is no form yet".into()),
            },
            Request::End => {
                text = None;
                // What is freed may not be given back to the system.
                if resident() > most - limits.memory / 2 {
                    break;
                }
                Answer::Ready(digest)
            }
        };
        note(Work::IdleSince(Instant::now()));
        answer.write(&mut output).map_err(failed)?;
    }
    Ok(())
}

fn tokens(set: &TokenSet) -> Answer {
    Answer::Tokens(set.words().to_vec())
}

/// What is wrong with a form, in the words of the error.
fn reason(error: Error) -> String {
    match error {
        Error::Request(why) => why,
        other => other.to_string(),
    }
}

/// Does what takes long on a thread that the steps of texts go before, where threads have a priority of their own.
fn behind_others<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let work = || {
        // Without it, the work is done all the same.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, BEHIND);
        work()
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("form".into()).spawn_scoped(scope, work)?;
        thread.join().map_err(|_| io::Error::other("a thread has panicked"))
    })
}

/// Ends the process when it has worked for too long, has too much memory, or has had nothing to do for long.
fn watch(work: Arc<Mutex<Work>>, time: Duration, memory: u64) -> io::Result<()> {
    let look = move || {
        loop {
            std::thread::sleep(LOOK);
            let now = *work.lock().unwrap_or_else(PoisonError::into_inner);
            match now {
                Work::IdleSince(since) if since.elapsed() > IDLE => std::process::exit(0),
                Work::IdleSince(_) => {}
                Work::Since(since, before) => {
                    let worked = processor_time().saturating_sub(before);
                    if worked > time || since.elapsed() > MOST_WAIT || resident() > memory {
                        std::process::exit(TOO_MUCH);
                    }
                }
            }
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(look).map(drop)
}

/// What processors have done for this process.
fn processor_time() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
    }
    // Elsewhere all time counts.
    #[cfg(not(target_os = "linux"))]
    {
        static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        BEGUN.get_or_init(Instant::now).elapsed()
    }
}

/// Bytes of memory that this process has, 0 where the system does not say.
fn resident() -> u64 {
    own_bytes("VmRSS:").unwrap_or(0)
}

/// What the system says of this process in a file, by the beginning of the line.
fn own_bytes(name: &str) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()?.saturating_mul(1024))
}
