//! Servers as processes, against clients and files that want to end or fill them by way of weights.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use outboard_fuzz::blobs::{Sender, blob, digest};
use outboard_integration::Server;
use outboard_proto::limits::MAX_BLOBS;
use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(20);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// Threads and file descriptors of a process.
fn held(pid: u32) -> [usize; 2] {
    ["task", "fd"].map(|what| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count())
}

#[test]
fn calls_that_are_reset_leave_nothing_behind() {
    /// Threads, or descriptors, that calls of one client may have at a time.
    const MOST: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let large = vec![5; 64 << 20];
    fs::write(dir.path().join(digest(&large).to_string()), &large).unwrap();
    let server = Server::start(&["-d", "cpu:1,cpu:1", "-c", dir.path().to_str().unwrap()]);
    run(async {
        let addr = server.addr.parse().unwrap();
        let client = Sender::new(addr, None, large.len() as u64).await;
        assert_eq!(client.place(&[(blob(&large), 0)]).await, Ok(vec![1]));
        assert_eq!(client.check(&[(blob(&large), 0)]).await, Ok(vec![1]));
        let before = held(server.pid());
        let endless = vec![(blob(&large), 0); MAX_BLOBS];
        let mut calls = VecDeque::new();
        let mut most = before;
        for n in 0..300 {
            calls.push_back(match n % 3 {
                0 => client.checking(&endless).await,
                _ => client.placing(&endless).await,
            });
            // Some are long under way when they are reset, some have just come. A session may have sixteen at a time.
            if calls.len() > 12 {
                calls.pop_front();
            }
            if n % 10 == 0 {
                assert_eq!(client.asking(&[blob(&large)]).await.next().await.unwrap().unwrap()[..], [10, 1, 1]);
            }
            let now = held(server.pid());
            most = [most[0].max(now[0]), most[1].max(now[1])];
        }
        drop(calls);
        println!("threads and descriptors: {before:?} before, {most:?} at most");
        assert!(most[0] < before[0] + MOST && most[1] < before[1] + MOST, "{before:?} have become {most:?}");
        let end = Instant::now() + WAIT;
        while held(server.pid()) != before {
            assert!(Instant::now() < end, "{before:?} have become {:?}", held(server.pid()));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It works as before.
        assert_eq!(client.place(&[(blob(&large), 0)]).await, Ok(vec![1]));
    });
}

/// A file with a head of many texts, of some megabytes.
fn model(path: &Path) -> u64 {
    let mut writer = outboard_gguf::GgufWriter::new();
    writer.texts("texts", &vec!["x"; 1 << 19]);
    let file = writer.finish().unwrap();
    fs::write(path, &file).unwrap();
    file.len() as u64
}

/// Tells a thread that it is over, also when a test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_model_file_that_is_cut_while_it_is_looked_at_ends_no_server() {
    const FILES: usize = 48;
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..FILES).map(|i| dir.path().join(format!("{i:02}.gguf"))).collect();
    let len = paths.iter().map(|path| model(path)).max().unwrap();
    let files: Vec<_> = paths.iter().map(|path| fs::File::options().write(true).open(path).unwrap()).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for file in &files {
                    // To the middle of the head, and back to what could be texts.
                    file.set_len(len / 4).unwrap();
                    file.set_len(len).unwrap();
                }
            }
        });
        let over = Over(&done);
        let mut server = Server::start(&["-d", "cpu:1", "--models", dir.path().to_str().unwrap()]);
        run(async {
            // It has looked at all of them when it does not wait any more.
            let client = Sender::new(server.addr.parse().unwrap(), None, 64).await;
            let mut answered = client.asking(&[blob(b"x")]).await.next().await;
            let end = Instant::now() + WAIT;
            while answered.is_ok() && Instant::now() < end {
                let start = Instant::now();
                answered = client.asking(&[blob(b"x")]).await.next().await;
                if start.elapsed() < Duration::from_secs(1) {
                    break;
                }
            }
            assert!(answered.is_ok(), "{answered:?}");
        });
        drop(over);
        assert!(server.is_running(), "the server has been ended");
    });
}
