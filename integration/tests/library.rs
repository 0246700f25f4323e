//! The library over servers: a program outside the workspace, and what becomes of texts when a server is lost.
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../rpc-client/tests/common/proxy.rs"]
#[allow(unreachable_pub)]
mod proxy;

use outboard::{ConnectOptions, Devices, Error, Model, PlaceOptions, Request, RunOptions, Runner, Split, devices};
use outboard_integration::{Server, small_model};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Ten lines, of which the last match an error on its type.
const PROGRAM: &str = r#"use outboard::{ConnectOptions, Error, Model, PlaceOptions, Request, devices};
fn main() -> Result<(), Error> {
    let [file, servers] = [1, 2].map(|n| std::env::args().nth(n).unwrap_or_default());
    let devices = devices::connect(&servers, &ConnectOptions::default());
    if let Err(Error::Peer { endpoint, .. }) = &devices { println!("no server at {endpoint}"); }
    let runner = Model::open(file)?.place(&devices?, &PlaceOptions::default())?.run()?;
    println!("on {}", runner.plan().devices.iter().map(|d| d.id.as_str()).collect::<Vec<_>>().join(" and "));
    println!("{}", runner.generate(Request::new("abcd").max_tokens(12).ignore_eos())?.complete()?.text);
    Ok(())
}
"#;

fn servers() -> [Server; 2] {
    [(); 2].map(|()| Server::start(&["-d", "cpu:1"]))
}

/// Builds it against the library as the workspace has built it: as a package with a dependency, all that the library needs would be compiled
/// once more, with other features.
fn build(dir: &Path) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("liboutboard-") && name.ends_with(".rlib")
    };
    let built = |path: &PathBuf| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let files = std::fs::read_dir(deps).unwrap().map(|file| file.unwrap().path());
    let library = files.filter(is_library).max_by_key(built).unwrap();
    let (source, program) = (dir.join("ten_lines.rs"), dir.join("ten-lines"));
    std::fs::write(&source, PROGRAM).unwrap();
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.arg("--edition=2024").arg("-L").arg(format!("dependency={}", deps.display()));
    rustc.arg("--extern").arg(format!("outboard={}", library.display())).arg("-o").arg(&program).arg(source);
    let done = rustc.output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    program
}

#[test]
fn a_program_of_ten_lines_outside_the_workspace() {
    assert_eq!(PROGRAM.lines().count(), 10);
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path());
    let run = |args: &[&str]| Command::new(&program).args(args).output().unwrap();
    let file = small_model(dir.path());
    let model = Model::open(&file).unwrap();
    let local = model.place(&devices::local(Some(1)).unwrap(), &PlaceOptions::default()).unwrap().run().unwrap();
    let expected = local.generate(Request::new("abcd").max_tokens(12).ignore_eos()).unwrap().complete().unwrap();
    let [mut one, two] = servers();
    let list = format!("{},{}", one.addr, two.addr);
    let done = run(&[file.to_str().unwrap(), &list]);
    let out = String::from_utf8(done.stdout).unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(out, format!("on {}/CPU0 and {}/CPU0\n{}\n", one.addr, two.addr, expected.text));
    one.kill();
    let done = run(&[file.to_str().unwrap(), &list]);
    assert_eq!(String::from_utf8(done.stdout).unwrap(), format!("no server at {}\n", one.addr));
    assert_eq!(done.status.code(), Some(1));
}

#[test]
fn a_lost_server_ends_every_text_or_none() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::open(small_model(dir.path())).unwrap();
    let options = PlaceOptions {
        sequences: 2,
        context: Some(2048),
        split: Split::Parts(vec![1.0, 1.0]),
        ..PlaceOptions::default()
    };
    let request = || Request::new("abcd").max_tokens(400).ignore_eos();
    let alone =
        model.place(&devices::local(Some(1)).unwrap(), &PlaceOptions { split: Split::First, ..options.clone() });
    let expected = alone.unwrap().run().unwrap().generate(request()).unwrap().complete().unwrap().tokens;
    for goes_on in [true, false] {
        let [one, mut two] = servers();
        let on = devices::connect(&format!("{},{}", one.addr, two.addr), &ConnectOptions::default()).unwrap();
        let recoveries = Arc::new(AtomicUsize::new(0));
        let noted = recoveries.clone();
        let run = RunOptions::default().on_recovery(move |_| {
            noted.fetch_add(1, Ordering::Relaxed);
        });
        let run = if goes_on { run } else { run.without_failover() };
        let runner = model.place(&on, &options).unwrap().run_with(run).unwrap();
        let mut texts = [(); 3].map(|()| runner.generate(request()).unwrap());
        assert!(texts[0].next().unwrap().is_ok());
        two.kill();
        let ended: Vec<_> = texts.into_iter().map(outboard::Text::complete).collect();
        if goes_on {
            assert!(recoveries.load(Ordering::Relaxed) > 0);
            ended.into_iter().for_each(|text| assert_eq!(text.unwrap().tokens, expected));
        } else {
            let is_lost = |e: &Error| matches!(e, Error::Peer { endpoint, .. } if *endpoint == two.addr);
            assert!(ended.iter().all(|text| text.as_ref().is_err_and(is_lost)), "{ended:?}");
            // What is asked for later is told the same.
            assert!(is_lost(&runner.generate(request()).unwrap().complete().unwrap_err()));
        }
    }
}

/// What a client frees, its server has free within this time; a lease is longer (10 s).
const FREED: Duration = Duration::from_secs(5);

/// A model on two servers, of which the first has no room for all of it.
struct Tight {
    dir: tempfile::TempDir,
    servers: [Server; 2],
}

impl Tight {
    fn new() -> Tight {
        let dir = tempfile::tempdir().unwrap();
        let whole = Server::start(&["-d", "cpu:1", "--memory-limit", "64M"]);
        let (limit, model) = (whole.memory_free(), Model::open(small_model(dir.path())).unwrap());
        let runner = model.place(&on(std::slice::from_ref(&whole)), &PlaceOptions::default()).unwrap().run().unwrap();
        let needed = limit - whole.memory_free();
        drop(runner);
        let most = (needed * 4 / 5).to_string();
        let servers = [Server::start(&["-d", "cpu:1", "--memory-limit", &most]), Server::start(&["-d", "cpu:1"])];
        Tight { dir, servers }
    }

    fn run(&self, options: RunOptions) -> Runner {
        let model = Model::open(self.dir.path().join("small.gguf")).unwrap();
        let place = PlaceOptions { split: Split::Parts(vec![1.0, 1.0]), ..PlaceOptions::default() };
        model.place(&on(&self.servers), &place).unwrap().run_with(options).unwrap()
    }

    /// Another process in place of the second server.
    fn restart(&mut self) {
        self.servers[1] = Server::start_at(&self.servers[1].addr, &["-d", "cpu:1"]);
    }
}

fn on(servers: &[Server]) -> Devices {
    let list: Vec<&str> = servers.iter().map(|server| server.addr.as_str()).collect();
    devices::connect(&list.join(","), &ConnectOptions::default()).unwrap()
}

fn long_text() -> Request {
    Request::new("abcd").max_tokens(400).ignore_eos()
}

#[test]
fn a_runner_goes_on_when_a_server_that_was_missed_is_back() {
    let mut tight = Tight::new();
    let free = tight.servers[0].memory_free();
    let runner = tight.run(RunOptions::default());
    let expected = runner.generate(long_text()).unwrap().complete().unwrap().tokens;
    let used = tight.servers[0].memory_free();
    assert!(used < free);
    let mut texts = [(); 2].map(|()| runner.generate(long_text()).unwrap());
    assert!(texts[0].next().unwrap().is_ok());
    tight.servers[1].kill();
    let is_lost = |e: &Error| matches!(e, Error::Peer { endpoint, .. } if *endpoint == tight.servers[1].addr);
    for text in texts {
        let ended = text.complete();
        assert!(ended.as_ref().is_err_and(is_lost), "{ended:?}");
    }
    // Nothing of it stays on the one that is left, which others may use.
    let start = Instant::now();
    while tight.servers[0].memory_free() < free {
        assert!(start.elapsed() < FREED, "not freed");
    }
    assert!(runner.generate(long_text()).unwrap().complete().as_ref().is_err_and(is_lost), "it is still away");
    tight.restart();
    assert_eq!(runner.generate(long_text()).unwrap().complete().unwrap().tokens, expected);
    assert_eq!(tight.servers[0].memory_free(), used);
}

#[test]
fn a_server_that_is_restarted_in_time_is_waited_for() {
    let mut tight = Tight::new();
    let recoveries = Arc::new(AtomicUsize::new(0));
    let noted = recoveries.clone();
    let options = RunOptions::default().patience(Duration::from_secs(60)).on_recovery(move |recovery| {
        println!("{recovery}");
        noted.fetch_add(1, Ordering::Relaxed);
    });
    let runner = tight.run(options);
    let expected = runner.generate(long_text()).unwrap().complete().unwrap().tokens;
    let mut text = runner.generate(long_text()).unwrap();
    let first = text.next().unwrap().unwrap();
    tight.servers[1].kill();
    // Longer than a run without patience asks for it.
    std::thread::sleep(Duration::from_secs(4));
    tight.restart();
    let rest: Vec<u32> = text.filter_map(|piece| piece.unwrap().token).collect();
    assert_eq!(first.token.into_iter().chain(rest).collect::<Vec<_>>(), expected);
    assert_eq!(recoveries.load(Ordering::Relaxed), 1);
}

#[test]
fn a_runner_without_failover_goes_on_when_only_the_connection_was_lost() {
    let dir = tempfile::tempdir().unwrap();
    let model = Model::open(small_model(dir.path())).unwrap();
    let server = Server::start(&["-d", "cpu:1", "--memory-limit", "64M"]);
    let proxy = proxy::Proxy::start(server.addr.parse().unwrap());
    let on = devices::connect(&proxy.addr.to_string(), &ConnectOptions::default()).unwrap();
    let placed = model.place(&on, &PlaceOptions::default()).unwrap();
    let runner = placed.run_with(RunOptions::default().without_failover()).unwrap();
    let expected = runner.generate(long_text()).unwrap().complete().unwrap().tokens;
    let used = server.memory_free();
    let mut text = runner.generate(long_text()).unwrap();
    assert!(text.next().unwrap().is_ok());
    (0..proxy.count()).for_each(|connection| proxy.cut(connection));
    let ended = text.complete();
    assert!(matches!(&ended, Err(Error::Peer { endpoint, .. }) if *endpoint == proxy.addr.to_string()), "{ended:?}");
    assert_eq!(runner.generate(long_text()).unwrap().complete().unwrap().tokens, expected);
    assert_eq!(server.memory_free(), used);
}
