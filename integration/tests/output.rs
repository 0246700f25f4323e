//! Readers that leave, disks that are full, streams that are closed: every command of both programs ends as other programs do, and
//! nothing of it stays on a server.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Server, model, program};
use std::fs::File;
use std::io::{PipeReader, Read, pipe};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);
/// What is freed sooner was freed by its client, not by the end of a lease (10 s).
const FREED: Duration = Duration::from_secs(4);
const SIGPIPE: i32 = 13;
/// What a full disk is called.
const FULL: &str = "No space left on device";

/// What is at the other end of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// A reader that stays.
    Stays,
    /// A reader that leaves after so many bytes; with 0, before the program starts.
    Leaves(usize),
    /// A full disk.
    Full,
    /// Nothing: the program is started without the stream.
    Closed,
}

/// A program that ended.
#[derive(Debug)]
struct Done {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Done {
    /// A reader that has left ends a program by SIGPIPE, without a word.
    fn by_signal(&self, what: &str) {
        assert_eq!(self.status.signal(), Some(SIGPIPE), "{what}: {self:?}");
        self.no_complaint(what);
    }

    fn no_complaint(&self, what: &str) {
        assert!(!self.stderr.contains("panicked") && !self.stderr.contains("error:"), "{what}: {self:?}");
    }

    /// Status 1, and one line that says why.
    fn with_error(&self, what: &str, why: &str) {
        assert_eq!(self.status.code(), Some(1), "{what}: {self:?}");
        let errors: Vec<&str> = self.stderr.lines().filter(|l| l.starts_with("error:")).collect();
        assert!(errors.len() == 1 && errors[0].contains(why), "{what}: {self:?}");
        assert!(self.stderr.trim_end().ends_with(errors[0]) && !self.stderr.contains("panicked"), "{what}: {self:?}");
    }
}

/// A program with these ends of its streams.
fn start(program_name: &str, args: &[&str], [out, err]: [End; 2]) -> (Child, [Option<PipeReader>; 2]) {
    let path = program(program_name);
    let mut command = Command::new(&path);
    if [out, err].contains(&End::Closed) {
        let closes = format!("exec \"$0\" \"$@\"{}{}", closes(out, 1), closes(err, 2));
        command = Command::new("sh");
        command.args(["-c", &closes]).arg(&path);
    }
    let mut readers = [None, None];
    for (i, end) in [out, err].into_iter().enumerate() {
        let stream = match end {
            End::Closed => Stdio::null(),
            End::Full => File::options().write(true).open("/dev/full").unwrap().into(),
            End::Leaves(0) => pipe().unwrap().1.into(),
            End::Leaves(_) | End::Stays => {
                let (reader, writer) = pipe().unwrap();
                readers[i] = Some(reader);
                writer.into()
            }
        };
        if i == 0 {
            command.stdout(stream)
        } else {
            command.stderr(stream)
        };
    }
    for name in ["OUTBOARD_RPC", "OUTBOARD_TOKEN", "OUTBOARD_CA", "OUTBOARD_CERT", "OUTBOARD_KEY"] {
        command.env_remove(name);
    }
    (command.args(args).stdin(Stdio::null()).spawn().unwrap(), readers)
}

fn closes(end: End, stream: usize) -> String {
    if end == End::Closed { format!(" {stream}>&-") } else { String::new() }
}

/// What comes, or the first bytes of it.
fn read(reader: PipeReader, end: End) -> String {
    let mut bytes = Vec::new();
    let most = if let End::Leaves(n) = end { n as u64 } else { u64::MAX };
    reader.take(most).read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Runs a program to its end. `meanwhile` is called when readers have got what they wanted.
fn run_with(name: &str, args: &[&str], ends: [End; 2], meanwhile: impl FnOnce()) -> Done {
    let (mut child, [out, err]) = start(name, args, ends);
    let err = err.map(|reader| std::thread::spawn(move || read(reader, ends[1])));
    let stdout = match out {
        None => String::new(),
        Some(mut reader) => match ends[0] {
            End::Leaves(n) => {
                let mut bytes = vec![0; n];
                reader.read_exact(&mut bytes).unwrap();
                meanwhile();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            end => read(reader, end),
        },
    };
    let stderr = err.map(|thread| thread.join().unwrap()).unwrap_or_default();
    Done { status: wait(&mut child, args), stdout, stderr }
}

fn wait(child: &mut Child, args: &[&str]) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{args:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn run(name: &str, args: &[&str], out: End, err: End) -> Done {
    run_with(name, args, [out, err], || {})
}

/// A command, and what it does with its streams.
struct Case<'a> {
    program: &'static str,
    args: Vec<&'a str>,
    /// Whether it has messages on standard error when all is well.
    talks: bool,
}

fn quiet<'a>(program: &'static str, args: &[&'a str]) -> Case<'a> {
    Case { program, args: args.to_vec(), talks: false }
}

fn talks<'a>(args: &[&'a str]) -> Case<'a> {
    Case { talks: true, ..quiet("outboard", args) }
}

fn server() -> Server {
    Server::start(&["-d", "cpu:1", "--memory-limit", "1G", "--metrics", "127.0.0.1:0"])
}

/// A command with every end that its streams can have. Nothing of it is left on the server.
fn all_ends(case: &Case<'_>, server: &Server, before_each: &dyn Fn()) {
    let Case { program, args, talks } = case;
    let what = format!("{program} {}", args.join(" "));
    let once = |out, err| {
        before_each();
        let start = Instant::now();
        let done = run(program, args, out, err);
        server.wait_for_none("outboard_sessions", FREED);
        println!("{what}: {out:?}, {err:?}: {} after {:?}", done.status, start.elapsed());
        done
    };
    once(End::Leaves(0), End::Stays).by_signal(&format!("{what}, standard output has no reader"));
    once(End::Full, End::Stays).with_error(&format!("{what} on a full disk"), FULL);
    // Without a reader of its messages: what is not written is no reason to end for a command that has none.
    let what = format!("{what}, standard error is lost");
    let lost = once(End::Stays, End::Leaves(0));
    if *talks {
        lost.by_signal(&what)
    } else {
        assert!(lost.status.success() && !lost.stdout.is_empty(), "{what}: {lost:?}")
    }
    let full = once(End::Stays, End::Full);
    assert_eq!(full.status.code(), Some(i32::from(*talks)), "{what}: {full:?}");
    assert!(!full.stdout.is_empty(), "{what}: a message that is lost ends the work: {full:?}");
    let closed = once(End::Stays, End::Closed);
    assert!(closed.status.success() && !closed.stdout.is_empty(), "{what}: {closed:?}");
    let both = once(End::Full, End::Full);
    assert_eq!(both.status.code(), Some(1), "{what}: {both:?}");
}

#[test]
fn commands_that_need_no_model() {
    let server = server();
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    let fresh = || drop(std::fs::remove_dir_all(&certs));
    let certs_arg = certs.to_str().unwrap();
    for case in [
        quiet("outboard", &["devices", "--rpc", &server.addr]),
        quiet("outboard", &["devices", "--rpc", &server.addr, "--json"]),
        quiet("outboard", &["smoke", "--rpc", &server.addr]),
        quiet("outboard", &["cert", certs_arg]),
        quiet("outboard", &["fetch"]),
        quiet("outboard", &["rpc-server", "--list-devices"]),
        quiet("rpc-server", &["--list-devices"]),
        quiet("outboard", &["--help"]),
        quiet("outboard", &["--version"]),
        quiet("outboard", &["run", "--help"]),
        quiet("rpc-server", &["--help"]),
        quiet("rpc-server", &["--version"]),
    ] {
        all_ends(&case, &server, &fresh);
    }
}

/// A command with a model on a server.
fn on<'a>(command: &'a str, model: &'a str, server: &'a Server, more: &[&'a str]) -> Vec<&'a str> {
    [&[command, "-m", model, "--rpc", &server.addr], more].concat()
}

/// What writes text behind a prompt, for so many tokens.
fn writing<'a>(model: &'a str, server: &'a Server, tokens: &'a str) -> Vec<&'a str> {
    on("run", model, server, &["-p", "Once upon a time", "--ignore-eos", "-c", "512", "-n", tokens])
}

#[test]
fn commands_that_run_a_model() {
    let Some(path) = model("smollm2") else { return };
    let (server, model) = (server(), path.to_str().unwrap());
    let short = writing(model, &server, "4");
    for case in [
        quiet("outboard", &["tokenize", "-m", model, "-p", "some words"]),
        quiet("outboard", &["tokenize", "-m", model, "-p", "some words", "--json"]),
        quiet("outboard", &["fetch", "smollm2"]),
        talks(&short),
        talks(&[&short[..], &["--json"]].concat()),
        talks(&["demo"]),
        talks(&["demo", "--json"]),
    ] {
        all_ends(&case, &server, &|| {});
    }
}

#[test]
fn commands_that_measure_a_model() {
    let Some(path) = model("smollm2") else { return };
    let (server, model) = (server(), path.to_str().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text");
    std::fs::write(&text, "The sea was calm, and the ship lay still. ".repeat(20)).unwrap();
    let bench = on("bench", model, &server, &["-p", "16", "-n", "4", "-r", "1"]);
    let plan = on("plan", model, &server, &["-c", "40"]);
    let small = ["-c", "64", "--chunks", "2", "-f", text.to_str().unwrap()];
    let perplexity = on("perplexity", model, &server, &small);
    for case in [
        quiet("outboard", &bench),
        quiet("outboard", &[&bench[..], &["-o", "json"]].concat()),
        quiet("outboard", &plan),
        quiet("outboard", &[&plan[..], &["--json"]].concat()),
        talks(&perplexity),
        talks(&[&perplexity[..], &["--json"]].concat()),
    ] {
        all_ends(&case, &server, &|| {});
    }
}

/// Of those that write for a while. (The servers of a demo are its own.)
#[test]
fn readers_that_leave_in_the_middle() {
    let Some(path) = model("smollm2") else { return };
    let (server, model) = (server(), path.to_str().unwrap());
    for (args, bytes) in [
        (writing(model, &server, "400"), 20),
        (on("bench", model, &server, &["-p", "16", "-n", "4,5", "-r", "1"]), 20),
        (vec!["demo"], 60),
    ] {
        let has_session = || args.contains(&"demo") || server.metric("outboard_sessions") > 0.0;
        let open = || assert!(has_session(), "{args:?}: there is no session to be ended");
        let done = run_with("outboard", &args, [End::Leaves(bytes), End::Stays], open);
        done.by_signal(&format!("{args:?}, its reader leaves"));
        server.wait_for_none("outboard_sessions", FREED);
    }
}

#[test]
fn one_pipe_for_both() {
    let Some(path) = model("smollm2") else { return };
    let server = server();
    let args = ["run", "-m", path.to_str().unwrap(), "--rpc", &server.addr, "-p", "Once", "-n", "400", "--ignore-eos"];
    // As `outboard run .. 2>&1 | head -c N`: in the messages, and in the text.
    for bytes in [10, 1000] {
        let (mut reader, writer) = pipe().unwrap();
        let mut command = Command::new(program("outboard"));
        command.args(args).stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
        let mut child = command.spawn().unwrap();
        drop(command);
        reader.read_exact(&mut vec![0; bytes]).unwrap();
        drop(reader);
        assert_eq!(wait(&mut child, &args).signal(), Some(SIGPIPE));
        server.wait_for_none("outboard_sessions", FREED);
    }
}

#[test]
fn commands_that_fail() {
    for (name, args, code) in [
        ("outboard", &["run"][..], 2),
        ("outboard", &["run", "-m", "x", "-p", "y", "--temp", "-1"], 2),
        ("outboard", &["no-such-command"], 2),
        ("outboard", &["devices", "--rpc", "127.0.0.1:1"], 1),
        ("outboard", &["rpc-server", "-d", "no-such-device"], 2),
        ("rpc-server", &["--no-such-flag"], 2),
        ("rpc-server", &["-H", "0.0.0.0"], 2),
        ("rpc-server", &["--token-file", "/no/such/file", "-p", "0"], 1),
    ] {
        let what = format!("{name} {args:?}");
        let plain = run(name, args, End::Stays, End::Stays);
        assert!(plain.status.code() == Some(code) && plain.stdout.is_empty(), "{what}: {plain:?}");
        assert!(plain.stderr.contains("error: "), "{what}: {plain:?}");
        for err in [End::Full, End::Closed] {
            assert_eq!(run(name, args, End::Stays, err).status.code(), Some(code), "{what}, {err:?}");
        }
        assert_eq!(run(name, args, End::Stays, End::Leaves(0)).status.signal(), Some(SIGPIPE), "{what}");
        // Standard output does not matter to who has nothing to write there.
        assert_eq!(run(name, args, End::Full, End::Stays).status.code(), Some(code), "{what}");
    }
}

/// A server whose start nobody can learn of ends; one that has lost its log does not, and says so by its status in the end.
#[test]
fn servers() {
    for (name, command) in [("rpc-server", &[][..]), ("outboard", &["rpc-server"])] {
        let args = [command, &["-p", "0", "-d", "cpu:1"]].concat();
        let what = format!("{name} {args:?}");
        let unheard = run(name, &args, End::Leaves(0), End::Stays);
        assert_eq!(unheard.status.signal(), Some(SIGPIPE), "{what}: {unheard:?}");
        assert!(!unheard.stderr.contains("panicked"), "{what}: {unheard:?}");
        run(name, &args, End::Full, End::Stays).with_error(&what, FULL);
        for (err, status) in [
            (End::Stays, (Some(0), None)),
            (End::Closed, (Some(0), None)),
            (End::Full, (Some(1), None)),
            (End::Leaves(0), (None, Some(SIGPIPE))),
        ] {
            let (mut child, [out, log]) = start(name, &args, [End::Stays, err]);
            // What it logs is read, so that it never waits for that.
            let log = log.map(|reader| std::thread::spawn(move || read(reader, End::Stays)));
            let addr = listens(out.unwrap());
            let client = run("outboard", &["devices", "--rpc", &addr], End::Stays, End::Stays);
            assert!(client.status.success(), "{what}, {err:?}: {client:?}");
            assert!(child.try_wait().unwrap().is_none(), "{what}, {err:?}: it has ended");
            signal(&child);
            let ended = wait(&mut child, &args);
            assert_eq!((ended.code(), ended.signal()), status, "{what}, {err:?}");
            let log = log.map(|thread| thread.join().unwrap()).unwrap_or_default();
            assert!(!log.contains("panicked"), "{what}, {err:?}: {log}");
        }
    }
}

/// The address that a server listens on; its reader leaves.
fn listens(mut out: PipeReader) -> String {
    let mut text = String::new();
    while !text.ends_with('\n') || !text.contains("listening on ") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "it has ended: {text}");
        text.push(byte[0].into());
    }
    text.lines().last().and_then(|l| l.strip_prefix("listening on ")).unwrap().to_owned()
}

fn signal(child: &Child) {
    let status = Command::new("kill").args(["-TERM", &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// What is written beside the streams does not matter to them: files of commands are whole.
#[test]
fn files_are_written_before_the_result() {
    let dir = tempfile::tempdir().unwrap();
    let certs = dir.path().join("certs");
    run("outboard", &["cert", certs.to_str().unwrap()], End::Full, End::Stays).with_error("cert", FULL);
    assert!(Path::new(&certs).join("client-key.pem").is_file());
}
