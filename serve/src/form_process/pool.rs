//! Forms are tried in a process of their own before this one compiles them.
//!
//! A form comes from strangers, and llguidance makes of it what it says. What that costs is counted before (`outboard_llm`), but not everything that a schema may
//! do to a program is known. A form that crashes, or takes too much time or memory, ends the process that tries it, and is refused.

use outboard::{Error, Form, Model, Result};
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// More than the process itself allows, for one that is stopped, or on a machine that is.
const NO_ANSWER: Duration = Duration::from_secs(30);
/// How often the process looks at itself.
const LOOK: Duration = Duration::from_millis(10);
/// Bytes of an answer.
const MOST_ANSWER: u64 = 64 << 10;
/// Processes that are kept for the next forms.
const KEPT: usize = 2;
/// How a process ends that has taken too much.
const TOO_MUCH: i32 = 3;

/// How processes that try forms are started: a program that calls [`try_forms`], with these arguments and the model's file behind them.
#[derive(Clone, Debug)]
pub struct FormTrials {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, before the model's file.
    pub args: Vec<OsString>,
}

/// Processes that try forms for a model.
#[derive(Debug)]
pub(crate) struct Trials {
    how: FormTrials,
    model: PathBuf,
    idle: Mutex<Vec<Trial>>,
}

/// A process that tries forms, one at a time.
#[derive(Debug)]
struct Trial {
    process: Arc<Mutex<Child>>,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Trials {
    pub(crate) fn new(how: FormTrials, model: &Path) -> Trials {
        Trials { how, model: model.to_owned(), idle: Mutex::default() }
    }

    /// Tries a form. Fails with [`Error::Request`], which says what is wrong with it, or that it takes too much; with another error if it cannot be tried.
    pub(crate) fn check(&self, form: &Form) -> Result<()> {
        let idle = self.idle().pop();
        if let Some(mut trial) = idle {
            if let Some(said) = trial.ask(form) {
                return self.keep(trial, said);
            }
            // Else it may have ended before it was asked.
            let code = trial.end();
            if code == Some(TOO_MUCH) {
                return Err(too_much(form, code));
            }
        }
        let cannot = |e: io::Error| Error::Bug(format!("there is no process that tries forms: {e}"));
        let mut trial = self.start().map_err(cannot)?;
        match trial.ask(form) {
            Some(said) => self.keep(trial, said),
            None => Err(too_much(form, trial.end())),
        }
    }

    fn keep(&self, trial: Trial, said: std::result::Result<(), String>) -> Result<()> {
        let mut idle = self.idle();
        if idle.len() < KEPT {
            idle.push(trial);
        }
        said.map_err(Error::Request)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Trial>> {
        locked(&self.idle)
    }

    fn start(&self) -> io::Result<Trial> {
        let mut command = Command::new(&self.how.program);
        command.args(&self.how.args).arg(&self.model);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A Ctrl-C is for the server, whose texts go on for a while.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process = command.spawn()?;
        let lost = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (to, from) = (process.stdin.take().ok_or_else(lost)?, process.stdout.take().ok_or_else(lost)?);
        Ok(Trial { process: Arc::new(Mutex::new(process)), to, from: BufReader::new(from) })
    }
}

impl Trial {
    /// What the process says of a form; `None` if it has ended, or says nothing.
    fn ask(&mut self, form: &Form) -> Option<std::result::Result<(), String>> {
        let (_done, is_done) = channel::<()>();
        let process = self.process.clone();
        let watch = std::thread::Builder::new().name("form-trial".into()).spawn(move || {
            if is_done.recv_timeout(NO_ANSWER) == Err(RecvTimeoutError::Timeout) {
                end(&process);
            }
        });
        watch.ok()?;
        let mut line = serde_json::to_vec(form).ok()?;
        line.push(b'\n');
        self.to.write_all(&line).ok()?;
        let mut answer = Vec::new();
        (&mut self.from).take(MOST_ANSWER).read_until(b'\n', &mut answer).ok()?;
        let answer: Option<String> = serde_json::from_slice(&answer).ok()?;
        Some(answer.map_or(Ok(()), Err))
    }

    /// How it has ended; it is made to, if it has not.
    fn end(self) -> Option<i32> {
        end(&self.process)
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        end(&self.process);
    }
}

/// Ends a process, and says how it has ended, by itself if it has before.
fn end(process: &Mutex<Child>) -> Option<i32> {
    let mut process = locked(process);
    // Fails only if it has ended.
    let _ = process.kill();
    process.wait().ok()?.code()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn too_much(form: &Form, code: Option<i32>) -> Error {
    let kind = form.kind();
    let why = if code == Some(TOO_MUCH) { "takes too long, or too much memory" } else { "cannot be compiled" };
    tracing::warn!("a {kind} has ended the process that tries forms: it {why}");
    Error::Request(format!("the {kind} cannot be used: it {why}"))
}

/// What a form may take before the process that tries it ends. A large one takes seconds.
#[derive(Clone, Copy, Debug)]
pub struct TrialLimits {
    /// To be compiled; a few seconds less than those that are waited for an answer (30).
    pub time: Duration,
    /// Bytes of memory, where the system says what a process has.
    pub memory: u64,
}

/// Tries forms for [`FormTrials`] of the model of this file, in a process of its own, until there are no more: one is a line of `input`, what is wrong with it, or `null`,
/// one of `output`. Ends the process when a form takes too long or too much memory.
pub fn try_forms(model: &Path, limits: TrialLimits, input: impl BufRead, mut output: impl Write) -> Result<()> {
    let failed = |e: io::Error| Error::Request(format!("forms cannot be tried: {e}"));
    let model = Model::open(model)?;
    // What it needs of the model takes time and memory as well.
    let _ = model.constraint(&Form::JsonObject);
    let most = resident().saturating_add(limits.memory);
    // When the form was begun that is tried.
    let begun = Arc::new(Mutex::new(None::<Instant>));
    let seen = begun.clone();
    let watch = std::thread::Builder::new().name("watch".into()).spawn(move || {
        loop {
            std::thread::sleep(LOOK);
            let begun = *locked(&seen);
            if begun.is_some_and(|begun| begun.elapsed() > limits.time) || resident() > most {
                std::process::exit(TOO_MUCH);
            }
        }
    });
    watch.map_err(failed)?;
    for line in input.lines() {
        let form: Form = serde_json::from_str(&line.map_err(failed)?).map_err(|e| failed(e.into()))?;
        *locked(&begun) = Some(Instant::now());
        let wrong = match model.constraint(&form) {
            Err(Error::Request(why)) => Some(why),
            // Something of the model, which shows again where it is used.
            Ok(_) | Err(_) => None,
        };
        *locked(&begun) = None;
        writeln!(output, "{}", serde_json::Value::from(wrong)).and_then(|()| output.flush()).map_err(failed)?;
        // What is freed may not be given back to the system.
        if resident() > most / 2 {
            break;
        }
    }
    Ok(())
}

/// Bytes of memory that this process has, where the system says so in a file.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// What is said of a form by processes that run this script.
    fn said(script: &str, forms: usize) -> Vec<String> {
        let how = FormTrials { program: "sh".into(), args: ["-c", script].map(OsString::from).to_vec() };
        let trials = Trials::new(how, Path::new("model.gguf"));
        let mut said = Vec::new();
        for _ in 0..forms {
            said.push(trials.check(&Form::JsonObject).map_or_else(|e| e.to_string(), |()| "taken".into()));
        }
        said
    }

    #[test]
    fn a_form_that_ends_its_process_is_refused() {
        assert_eq!(said("while read form; do echo null; done", 3), ["taken"; 3]);
        assert_eq!(said(r#"read form; echo '"it is odd"'; read form"#, 1), ["it is odd"]);
        // One that ends while nobody asks is no reason to refuse what comes next.
        assert_eq!(said("read form; echo null", 3), ["taken"; 3]);
        // One that a form ends is not tried again with it.
        let once = said("read form; echo null; read form; exit 3", 2);
        assert!(once[0] == "taken" && once[1].contains("takes too long"), "{once:?}");
        for (script, why) in [
            ("read form; exit 3", "takes too long, or too much memory"),
            ("read form; kill -ABRT $$", "cannot be compiled"),
            ("read form; echo what", "cannot be compiled"),
            ("exit 0", "cannot be compiled"),
        ] {
            let said = said(script, 2);
            assert!(said.iter().all(|said| said.contains(why)), "{script}: {said:?}");
        }
        let how = FormTrials { program: "/no/such/program".into(), args: Vec::new() };
        let trials = Trials::new(how, Path::new("model.gguf"));
        assert!(matches!(trials.check(&Form::JsonObject), Err(Error::Bug(why)) if why.contains("no process")));
    }
}
