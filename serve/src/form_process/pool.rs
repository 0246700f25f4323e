//! Processes that follow forms, as the server has them.

use super::wire::{Answer, Request};
use super::worker::TOO_MUCH;
use outboard::llm::{self, FormedText, TokenSet};
use outboard::{Constraint, Error, Form, Model, Result};
use std::ffi::OsString;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, SendError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// More than the process itself allows, for one that is stopped, or on a machine that is.
const NO_ANSWER: Duration = Duration::from_secs(30);
/// How often it is looked whether one has said nothing for so long.
const LOOK: Duration = Duration::from_secs(1);

/// How processes that follow forms are started: a program that calls [`follow_forms`](super::follow_forms), with these arguments and the model's file behind them.
#[derive(Clone, Debug)]
pub struct FormProcesses {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, before the model's file.
    pub args: Vec<OsString>,
}

/// Processes that follow forms for a model: one for each text that has a form, and those that wait for the next one.
#[derive(Debug)]
pub(crate) struct Pool {
    how: FormProcesses,
    model: PathBuf,
    /// Tokens of the vocabulary.
    n_vocab: usize,
    idle: Mutex<Vec<Process>>,
    /// Processes that are kept for the next forms, at most.
    most_idle: usize,
}

impl Pool {
    /// For so many texts of a model at a time.
    pub(crate) fn new(how: FormProcesses, model: &Model, places: usize) -> Pool {
        Pool::of_file(how, model.path(), model.tokenizer().n_vocab(), places)
    }

    fn of_file(how: FormProcesses, model: &Path, n_vocab: usize, most_idle: usize) -> Pool {
        Pool { how, model: model.to_owned(), n_vocab, idle: Mutex::default(), most_idle }
    }

    /// Compiles a form, in a process that another text may have then. Fails with [`Error::Request`], which says what is wrong with it, or that it takes too much; with
    /// another error if there is no process.
    pub(crate) fn constraint(self: &Arc<Self>, form: Form) -> Result<Constraint> {
        let (process, first) = self.compile(&form)?;
        self.keep(process);
        let (pool, form) = (self.clone(), Arc::new(form));
        Ok(Constraint::new(self.n_vocab, move || Box::new(Text::begin(&pool, &form, first.clone()))))
    }

    /// A process that has compiled a form, and what a text of it may begin with.
    fn compile(&self, form: &Form) -> Result<(Process, TokenSet)> {
        let request = Request::Form(serde_json::to_vec(form).map_err(|e| Error::Bug(e.to_string()))?);
        let idle = self.idle().pop();
        if let Some(mut process) = idle {
            if let Some(answer) = process.ask(&request) {
                return self.compiled(process, answer);
            }
            // Else it may have ended before it was asked.
            let code = process.end();
            if code == Some(TOO_MUCH) {
                return Err(too_much(form, code));
            }
        }
        let mut process = self.start()?;
        match process.ask(&request) {
            Some(answer) => self.compiled(process, answer),
            None => Err(too_much(form, process.end())),
        }
    }

    fn compiled(&self, process: Process, answer: Answer) -> Result<(Process, TokenSet)> {
        match answer {
            Answer::Tokens(words) => Ok((process, TokenSet::of_words(self.n_vocab, words))),
            Answer::Wrong(why) => {
                self.keep(process);
                Err(Error::Request(why))
            }
            Answer::Ready | Answer::Complete => {
                Err(Error::Bug("a process for forms did not say what it was asked".into()))
            }
        }
    }

    /// Keeps a process for the next form.
    fn keep(&self, mut process: Process) {
        if process.ask(&Request::End) != Some(Answer::Ready) {
            return;
        }
        let mut idle = self.idle();
        if idle.len() < self.most_idle {
            idle.push(process);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Process>> {
        locked(&self.idle)
    }

    fn start(&self) -> Result<Process> {
        let cannot = |why: String| Error::Bug(format!("there is no process for forms: {why}"));
        let mut process = Process::start(&self.how, &self.model).map_err(|e| cannot(e.to_string()))?;
        match process.answer() {
            Some(Answer::Ready) => Ok(process),
            Some(Answer::Wrong(why)) => Err(cannot(why)),
            Some(Answer::Tokens(_) | Answer::Complete) | None => Err(cannot("it ended before it was asked".into())),
        }
    }
}

/// A process that follows the form of one text at a time.
#[derive(Debug)]
struct Process {
    watched: Arc<Watched>,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What a thread beside it looks at.
#[derive(Debug)]
struct Watched {
    child: Mutex<Child>,
    /// Since when it has been at work.
    asked: Mutex<Option<Instant>>,
}

impl Process {
    fn start(how: &FormProcesses, model: &Path) -> io::Result<Process> {
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
        let process = Process { watched, to, from: BufReader::new(from) };
        let looked_at = Arc::downgrade(&process.watched);
        std::thread::Builder::new().name("form-watch".into()).spawn(move || watch(&looked_at))?;
        Ok(process)
    }

    /// What it says; `None` if it has ended, or says nothing.
    fn ask(&mut self, request: &Request) -> Option<Answer> {
        *locked(&self.watched.asked) = Some(Instant::now());
        request.write(&mut self.to).ok()?;
        self.answer()
    }

    fn answer(&mut self) -> Option<Answer> {
        let answer = Answer::read(&mut self.from).ok();
        *locked(&self.watched.asked) = None;
        answer
    }

    /// How it has ended; it is made to, if it has not.
    fn end(self) -> Option<i32> {
        self.watched.end()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.watched.end();
    }
}

impl Watched {
    /// Ends the process, and says how it has ended, by itself if it has before.
    fn end(&self) -> Option<i32> {
        let mut child = locked(&self.child);
        // Fails only if it has ended.
        let _ = child.kill();
        child.wait().ok()?.code()
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

/// A text that a process follows.
struct Text {
    pool: Arc<Pool>,
    kind: &'static str,
    first: TokenSet,
    process: At,
}

/// Where its process is.
enum At {
    /// It compiles the form, while the prompt is read.
    Compiling(Receiver<Result<Process>>),
    Following(Process),
    /// It has ended.
    Lost(llm::Error),
}

impl Text {
    /// At its beginning.
    fn begin(pool: &Arc<Pool>, form: &Arc<Form>, first: TokenSet) -> Text {
        let (sender, compiled) = channel();
        let (kind, compiling, form) = (form.kind(), pool.clone(), form.clone());
        let compile = move || {
            let process = compiling.compile(&form).map(|(process, _)| process);
            // The text may have ended.
            if let Err(SendError(Ok(process))) = sender.send(process) {
                compiling.keep(process);
            }
        };
        let process = match std::thread::Builder::new().name("outboard-form".into()).spawn(compile) {
            Ok(_) => At::Compiling(compiled),
            Err(e) => At::Lost(llm::Error::Busy(format!("there is no thread for the text's form: {e}"))),
        };
        Text { pool: pool.clone(), kind, first, process }
    }

    /// Waits until its process has compiled the form.
    fn compiled(&mut self) -> llm::Result<&mut Process> {
        if let At::Compiling(compiled) = &self.process {
            self.process = match compiled.recv() {
                Ok(Ok(process)) => At::Following(process),
                Ok(Err(Error::Request(why))) => At::Lost(llm::Error::Request(why)),
                Ok(Err(other)) => At::Lost(llm::Error::Internal(other.to_string())),
                Err(_) => At::Lost(llm::Error::Internal("the thread of a text's form has ended".into())),
            };
        }
        match &mut self.process {
            At::Following(process) => Ok(process),
            At::Lost(error) => Err(error.clone()),
            At::Compiling(_) => Err(llm::Error::Internal("a form is still being compiled".into())),
        }
    }
}

impl FormedText for Text {
    fn first(&self) -> TokenSet {
        self.first.clone()
    }

    fn push(&mut self, id: u32) -> llm::Result<Option<TokenSet>> {
        let (kind, n_vocab) = (self.kind, self.pool.n_vocab);
        match self.compiled()?.ask(&Request::Token(id)) {
            Some(Answer::Tokens(words)) => Ok(Some(TokenSet::of_words(n_vocab, words))),
            Some(Answer::Complete) => Ok(None),
            Some(Answer::Wrong(why)) => Err(llm::Error::Request(why)),
            Some(Answer::Ready) => {
                Err(llm::Error::Internal("a process for forms did not say what it was asked".into()))
            }
            None => {
                tracing::warn!("a {kind} has ended the process that followed a text of it");
                let why = format!(
                    "the text cannot go on as its form wants it: to find out what may come next of this {kind} takes too long, or too much memory"
                );
                let error = llm::Error::Request(why);
                self.process = At::Lost(error.clone());
                Err(error)
            }
        }
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        let ended = At::Lost(llm::Error::Internal("the text has ended".into()));
        let process = match std::mem::replace(&mut self.process, ended) {
            At::Following(process) => Some(process),
            // One that comes later stays with who has it compile.
            At::Compiling(compiled) => compiled.try_recv().ok().and_then(Result::ok),
            At::Lost(_) => None,
        };
        if let Some(process) = process {
            self.pool.keep(process);
        }
    }
}

fn too_much(form: &Form, code: Option<i32>) -> Error {
    let kind = form.kind();
    let why = if code == Some(TOO_MUCH) { "takes too long, or too much memory" } else { "cannot be compiled" };
    tracing::warn!("a {kind} has ended the process that compiled it: it {why}");
    Error::Request(format!("the {kind} cannot be used: it {why}"))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A pool of processes that run this script: `\x72\0\0\0\0` is [`Answer::Ready`].
    fn pool(script: &str) -> Arc<Pool> {
        let said = r"ready() { printf 'r\0\0\0\0'; }; give() { printf 's\4\0\0\0\3\0\0\0'; }; wrong() { printf 'w\3\0\0\0odd'; }; next() { dd bs=1 count=$1 of=/dev/null 2>/dev/null; }; ";
        let how = FormProcesses {
            program: "sh".into(),
            args: ["-c", &format!("{said}{script}")].map(OsString::from).to_vec(),
        };
        Arc::new(Pool::of_file(how, Path::new("model.gguf"), 8, 1))
    }

    /// What is said of a form by processes that run this script.
    fn said(script: &str, forms: usize) -> Vec<String> {
        let pool = pool(script);
        let taken = |_| pool.constraint(Form::JsonObject).map_or_else(|e| e.to_string(), |_| "taken".into());
        (0..forms).map(taken).collect()
    }

    /// Bytes of the form `"JsonObject"` and of the other requests.
    const FORM: &str = "next 17";
    const END: &str = "next 5";
    const TOKEN: &str = "next 9";

    #[test]
    fn a_form_that_ends_its_process_is_refused() {
        assert_eq!(said(&format!("ready; while {FORM}; do give; {END}; ready; done"), 3), ["taken"; 3]);
        assert_eq!(said(&format!("ready; {FORM}; wrong; {END}"), 1), ["odd"]);
        // One that ends while nobody asks is no reason to refuse what comes next.
        assert_eq!(said(&format!("ready; {FORM}; give; {END}; ready"), 3), ["taken"; 3]);
        // One that a form ends is not tried again with it.
        let once = said(&format!("ready; {FORM}; give; {END}; ready; {FORM}; exit 3"), 2);
        assert!(once[0] == "taken" && once[1].contains("takes too long"), "{once:?}");
        for (script, why) in [
            ("ready; next 17; exit 3", "takes too long, or too much memory"),
            ("ready; next 17; kill -ABRT $$", "cannot be compiled"),
            ("ready; next 17; echo what", "cannot be compiled"),
            ("wrong", "no process for forms: odd"),
            ("exit 0", "no process for forms: it ended"),
        ] {
            let said = said(script, 2);
            assert!(said.iter().all(|said| said.contains(why)), "{script}: {said:?}");
        }
        let how = FormProcesses { program: "/no/such/program".into(), args: Vec::new() };
        let none = Arc::new(Pool::of_file(how, Path::new("model.gguf"), 8, 1));
        assert!(matches!(none.constraint(Form::JsonObject), Err(Error::Bug(why)) if why.contains("no process")));
    }

    #[test]
    fn a_token_that_ends_a_process_ends_its_own_text_alone() {
        // A process follows one text to its end, and is ended by the second token of the next one.
        let script = format!(
            "ready; {FORM}; give; {END}; ready; {FORM}; give; {TOKEN}; give; {END}; ready; {FORM}; give; {TOKEN}; give; {TOKEN}; exit 3"
        );
        let pool = pool(&script);
        let form = pool.constraint(Form::JsonObject).unwrap();
        let mut text = form.begin();
        assert!(text.first().has(1) && !text.first().has(2));
        assert!(text.push(1).unwrap().is_some_and(|set| set.has(0)));
        drop(text);
        assert_eq!(pool.idle().len(), 1, "the process is there for the next text");
        let mut text = form.begin();
        assert!(text.push(1).is_ok());
        for _ in 0..2 {
            assert!(text.push(1).unwrap_err().to_string().contains("too long, or too much memory"));
        }
        drop(text);
        assert_eq!(pool.idle().len(), 0);
    }
}
