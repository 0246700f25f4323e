//! A conversation in the terminal: lines that are typed, its end, and Ctrl-C while nothing is typed.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(unix)]

use outboard_integration::{program, small_model};
use std::io::{BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A conversation, and what it has said on stderr, byte by byte.
struct Chat {
    child: Child,
    said: Receiver<u8>,
}

impl Chat {
    fn start(dir: &Path) -> Chat {
        let mut command = Command::new(program("outboard"));
        command.arg("run").arg("-m").arg(small_model(dir)).args(["--chat", "-c", "256", "-n", "8", "--temp", "0"]);
        command.env_remove("OUTBOARD_RPC").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stderr = child.stderr.take().unwrap();
        let (to, said) = channel();
        std::thread::spawn(move || {
            BufReader::new(stderr).bytes().map_while(Result::ok).try_for_each(|byte| to.send(byte))
        });
        let chat = Chat { child, said };
        chat.wait_for_prompt();
        chat
    }

    fn wait_for_prompt(&self) {
        let mut last = 0;
        loop {
            let byte = self.said.recv_timeout(LIMIT).expect("it asks for something");
            if (last, byte) == (b'>', b' ') {
                return;
            }
            last = byte;
        }
    }

    fn type_in(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn ends(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_answers_line_by_line_and_ends_with_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(dir.path());
    for _ in 0..2 {
        chat.type_in("abcd\n");
        chat.wait_for_prompt();
    }
    chat.type_in("\n");
    assert_eq!(chat.ends().code(), Some(0));
    let mut answers = String::new();
    chat.child.stdout.take().unwrap().read_to_string(&mut answers).unwrap();
    assert_eq!(answers.lines().count(), 2, "{answers}");
}

#[test]
fn ctrl_c_ends_it_while_nothing_is_typed() {
    let dir = tempfile::tempdir().unwrap();
    let mut chat = Chat::start(dir.path());
    let pid = chat.child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    // Its standard input is still open.
    assert_eq!(chat.ends().code(), Some(130));
}
