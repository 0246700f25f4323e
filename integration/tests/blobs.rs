//! Servers as processes, against clients and files that want to end or fill them by way of weights.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use outboard_fuzz::blobs::{Sender, blob};
use outboard_integration::Server;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const WAIT: Duration = Duration::from_secs(20);

fn run(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
}

/// A file with a head of many texts, of some megabytes.
fn model(path: &Path) -> u64 {
    let mut writer = outboard_gguf::GgufWriter::new();
    writer.texts("texts", &vec!["x"; 1 << 19]);
    let file = writer.finish();
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
