//! Processes that follow forms: those of a model.

use super::FormProcesses;
use super::places::{Place, Places};
use super::process::{Ended, Process};
use super::wire::{Answer, Request};
use crate::blocking::FORMS;
use outboard::llm::{self, FormedText, TokenSet};
use outboard::{Constraint, Error, Form, Model, Result};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a form waits for a process.
const NO_PROCESS: Duration = Duration::from_secs(50);
/// How often it looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(50);

/// Processes that follow forms for a model.
#[derive(Debug)]
pub(crate) struct Pool {
    how: FormProcesses,
    file: PathBuf,
    vocabulary: Vocabulary,
    /// Those that compile forms that nobody has seen yet: what ends one of them leaves the texts of others theirs.
    compiling: Kept,
    /// One for each text that has a form.
    following: Kept,
}

/// What is known of a model's tokens.
#[derive(Clone, Copy, Debug)]
struct Vocabulary {
    len: usize,
    digest: u64,
}

/// Processes, and those among them that wait for the next form.
#[derive(Debug)]
struct Kept {
    idle: Mutex<Vec<Process>>,
    places: Arc<Places>,
}

/// A process, and whether it has just begun.
struct Taken {
    process: Process,
    is_new: bool,
}

impl Pool {
    /// For so many texts of a model at a time: [`form_processes_of`](super::form_processes_of) says how many processes these are.
    pub(crate) fn new(how: FormProcesses, model: &Model, texts: usize) -> Pool {
        let vocabulary = Vocabulary { len: model.tokenizer().n_vocab(), digest: model.tokenizer().digest() };
        Pool::of_file(how, model.path(), vocabulary, texts, FORMS)
    }

    fn of_file(how: FormProcesses, file: &Path, vocabulary: Vocabulary, texts: usize, compiled: usize) -> Pool {
        // A process whose text has ended may still be at work when the next one begins.
        let (compiling, following) = (Kept::new(compiled), Kept::new(texts + compiled));
        Pool { how, file: file.to_owned(), vocabulary, compiling, following }
    }

    /// Compiles a form. Fails with [`Error::Request`], which says what is wrong with it, or that it takes too much; with another error if there is no process.
    pub(crate) fn constraint(self: &Arc<Self>, form: Form) -> Result<Constraint> {
        let (mut process, first) = self.compile(&self.compiling, &form, &|| true)?;
        if is_ready(&mut process) {
            // Its text needs one as well, and may be the first.
            let unused = if self.following.is_empty() { self.following.adopt(process) } else { Some(process) };
            unused.into_iter().for_each(|process| self.compiling.keep(process));
        }
        let (pool, form) = (self.clone(), Arc::new(form));
        Ok(Constraint::new(self.vocabulary.len, move || {
            Box::new(Text { pool: pool.clone(), form: form.clone(), first: first.clone(), process: At::Nowhere })
        }))
    }

    /// A process that has compiled a form, and what a text of it may begin with.
    fn compile(&self, kept: &Kept, form: &Form, wanted: &dyn Fn() -> bool) -> Result<(Process, TokenSet)> {
        let request = Request::Form(serde_json::to_vec(form).map_err(|e| Error::Bug(e.to_string()))?);
        loop {
            let Taken { mut process, is_new } = kept.take(wanted, &|place| self.start(place))?;
            match process.ask(&request) {
                Some(Answer::Tokens(words)) => return Ok((process, self.vocabulary.set(words)?)),
                Some(Answer::Wrong(why)) => {
                    if is_ready(&mut process) {
                        kept.keep(process);
                    }
                    return Err(Error::Request(why));
                }
                Some(Answer::Ready(_) | Answer::Complete) => return Err(odd()),
                None => {
                    let ended = process.end();
                    // Else it may have ended before it was asked.
                    if is_new || ended == Ended::ByItsLimits {
                        return Err(refused(form, ended));
                    }
                }
            }
        }
    }

    fn start(&self, place: Place) -> Result<Process> {
        let file = |detail: String| Error::Io { path: self.file.clone(), kind: io::ErrorKind::InvalidData, detail };
        let cannot = |e: io::Error| Error::Bug(format!("there is no process for forms: {e}"));
        let mut process = Process::start(&self.how, &self.file, place).map_err(cannot)?;
        match process.answer() {
            Some(Answer::Ready(digest)) if digest == self.vocabulary.digest => Ok(process),
            Some(Answer::Ready(_)) => Err(file(
                "another model has taken its place, whose tokens are others: forms need the server to start again"
                    .into(),
            )),
            Some(Answer::Wrong(why)) => Err(file(format!("there is no process for forms: {why}"))),
            Some(Answer::Tokens(_) | Answer::Complete) => Err(odd()),
            None if process.end() == Ended::FromOutside => {
                Err(Error::Busy("somebody has ended the process for the form".into()))
            }
            None => Err(Error::Bug("there is no process for forms: it ended before it was asked".into())),
        }
    }
}

impl Vocabulary {
    fn set(self, words: Vec<u32>) -> Result<TokenSet> {
        TokenSet::of_words(self.len, words).ok_or_else(odd)
    }
}

impl Kept {
    /// So many processes at most.
    fn new(most: usize) -> Kept {
        Kept { idle: Mutex::default(), places: Places::new(most) }
    }

    /// A process that is idle, or a new one when there is a place for it.
    fn take(&self, wanted: &dyn Fn() -> bool, start: &dyn Fn(Place) -> Result<Process>) -> Result<Taken> {
        let since = Instant::now();
        loop {
            if let Some(process) = self.idle().pop() {
                return Ok(Taken { process, is_new: false });
            }
            if let Some((place, _beginning)) = self.places.begin() {
                return Ok(Taken { process: start(place)?, is_new: true });
            }
            if !wanted() || since.elapsed() > NO_PROCESS {
                return Err(Error::Busy("there is no process for the form, beside those of others".into()));
            }
            self.places.wait(LOOK);
        }
    }

    /// Keeps a process for the next form.
    fn keep(&self, process: Process) {
        self.idle().push(process);
        self.places.changed();
    }

    /// Keeps one of others, if there is a place.
    fn adopt(&self, mut process: Process) -> Option<Process> {
        let Some((place, _)) = self.places.begin() else { return Some(process) };
        process.place = place;
        self.keep(process);
        None
    }

    /// Whether no process waits. Those that have ended meanwhile are let go.
    fn is_empty(&self) -> bool {
        let mut idle = self.idle();
        idle.retain(Process::is_running);
        idle.is_empty()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Process>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A text that a process follows.
struct Text {
    pool: Arc<Pool>,
    form: Arc<Form>,
    first: TokenSet,
    process: At,
}

/// Where its process is.
enum At {
    Nowhere,
    Following(Process),
    /// It has ended.
    Lost(llm::Error),
}

impl FormedText for Text {
    fn first(&self) -> TokenSet {
        self.first.clone()
    }

    fn prepare(&mut self, wanted: &dyn Fn() -> bool) -> llm::Result<()> {
        let (process, _) = self.pool.compile(&self.pool.following, &self.form, wanted).map_err(of_text)?;
        self.process = At::Following(process);
        Ok(())
    }

    fn push(&mut self, id: u32) -> llm::Result<Option<TokenSet>> {
        let process = match &mut self.process {
            At::Following(process) => process,
            At::Lost(error) => return Err(error.clone()),
            At::Nowhere => return Err(llm::Error::Internal("the form of a text was not prepared".into())),
        };
        match process.ask(&Request::Token(id)) {
            Some(Answer::Tokens(words)) => self.pool.vocabulary.set(words).map(Some).map_err(of_text),
            Some(Answer::Complete) => Ok(None),
            Some(Answer::Wrong(why)) => Err(llm::Error::Request(why)),
            Some(Answer::Ready(_)) => Err(of_text(odd())),
            None => Err(self.lose()),
        }
    }
}

impl Text {
    /// Its process has ended.
    fn lose(&mut self) -> llm::Error {
        let At::Following(process) = std::mem::replace(&mut self.process, At::Nowhere) else {
            return of_text(odd());
        };
        let kind = self.form.kind();
        let ended = process.end();
        let why = match ended {
            Ended::ByItsLimits => {
                format!("to find out what may come next of this {kind} takes too long, or too much memory")
            }
            Ended::Crashed => format!("this {kind} has ended the process that finds out what may come next"),
            Ended::FromOutside => "somebody has ended the process that finds out what may come next".into(),
        };
        let why = format!("the text cannot go on as its form wants it: {why}");
        tracing::warn!("a text of a {kind}: {why}");
        let error = match ended {
            Ended::FromOutside => llm::Error::Busy(why),
            Ended::ByItsLimits | Ended::Crashed => llm::Error::Request(why),
        };
        self.process = At::Lost(error.clone());
        error
    }
}

impl Drop for Text {
    fn drop(&mut self) {
        if let At::Following(mut process) = std::mem::replace(&mut self.process, At::Nowhere)
            && is_ready(&mut process)
        {
            self.pool.following.keep(process);
        }
    }
}

/// Whether a process can have another form.
fn is_ready(process: &mut Process) -> bool {
    matches!(process.ask(&Request::End), Some(Answer::Ready(_)))
}

/// Why a form has ended the process that was to compile it.
fn refused(form: &Form, ended: Ended) -> Error {
    let kind = form.kind();
    let why = match ended {
        Ended::ByItsLimits => "takes too long, or too much memory",
        Ended::Crashed => "cannot be compiled",
        Ended::FromOutside => return Error::Busy("somebody has ended the process that compiles the form".into()),
    };
    tracing::warn!("a {kind} has ended the process that compiled it: it {why}");
    Error::Request(format!("the {kind} cannot be used: it {why}"))
}

fn odd() -> Error {
    Error::Bug("a process for forms did not say what it was asked".into())
}

/// An error of a text that has begun.
fn of_text(error: Error) -> llm::Error {
    match error {
        Error::Request(why) => llm::Error::Request(why),
        Error::Busy(why) => llm::Error::Busy(why),
        other => llm::Error::Internal(other.to_string()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::ffi::OsString;

    /// A pool of processes that run this script: it says what [`Answer`]s are, and takes so many bytes.
    fn pool(script: &str) -> Arc<Pool> {
        let said = r"ready() { printf 'r\10\0\0\0\7\0\0\0\0\0\0\0'; }; give() { printf 's\4\0\0\0\3\0\0\0'; }; wrong() { printf 'w\3\0\0\0odd'; }; next() { dd bs=1 count=$1 of=/dev/null 2>/dev/null; }; ";
        let how = FormProcesses {
            program: "sh".into(),
            args: ["-c", &format!("{said}{script}")].map(OsString::from).to_vec(),
        };
        Arc::new(Pool::of_file(how, Path::new("model.gguf"), Vocabulary { len: 8, digest: 7 }, 1, 1))
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
        let once = said(&format!("ready; {FORM}; give; {END}; ready; {FORM}; exit 3"), 3);
        assert!(once[1] == "taken" && once[2].contains("takes too long"), "{once:?}");
        for (script, why) in [
            ("ready; next 17; exit 3", "takes too long, or too much memory"),
            ("ready; next 17; kill -ABRT $$", "cannot be compiled"),
            ("ready; next 17; kill -KILL $$", "somebody has ended"),
            ("ready; next 17; echo what", "cannot be compiled"),
            ("ready; next 17; printf 's\\10\\0\\0\\0\\3\\0\\0\\0\\3\\0\\0\\0'", "did not say what it was asked"),
            ("ready; next 17; printf 's\\4\\0\\0\\0\\0\\1\\0\\0'", "did not say what it was asked"),
            ("wrong", "model.gguf: there is no process for forms: odd"),
            (r"printf 'r\10\0\0\0\6\0\0\0\0\0\0\0'", "another model has taken its place"),
            ("exit 0", "no process for forms: it ended"),
            ("kill -KILL $$", "somebody has ended"),
        ] {
            let said = said(script, 2);
            assert!(said.iter().all(|said| said.contains(why)), "{script}: {said:?}");
        }
        let how = FormProcesses { program: "/no/such/program".into(), args: Vec::new() };
        let none = Arc::new(Pool::of_file(how, Path::new("model.gguf"), Vocabulary { len: 8, digest: 7 }, 1, 1));
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
        text.prepare(&|| true).unwrap();
        assert!(text.first().has(1) && !text.first().has(2));
        assert!(text.push(1).unwrap().is_some_and(|set| set.has(0)));
        drop(text);
        assert_eq!(pool.following.idle().len(), 1, "the process is there for the next text");
        let mut text = form.begin();
        text.prepare(&|| true).unwrap();
        assert!(text.push(1).is_ok());
        for _ in 0..2 {
            assert!(text.push(1).unwrap_err().to_string().contains("too long, or too much memory"));
        }
        drop(text);
        assert_eq!(pool.following.idle().len(), 0);
    }

    #[test]
    fn a_form_waits_for_a_process_as_long_as_it_is_wanted() {
        let pool = pool(&format!("ready; while {FORM}; do give; {END}; ready; done"));
        let form = pool.constraint(Form::JsonObject).unwrap();
        let mut texts = [(); 3].map(|()| form.begin());
        texts[0].prepare(&|| true).unwrap();
        texts[1].prepare(&|| true).unwrap();
        let none = texts[2].prepare(&|| false).unwrap_err().to_string();
        assert!(none.contains("beside those of others"), "{none}");
        let [_held, given_back, mut waits] = texts;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waits.prepare(&|| true));
            std::thread::sleep(LOOK);
            drop(given_back);
            waiting.join().unwrap().unwrap();
        });
    }
}
