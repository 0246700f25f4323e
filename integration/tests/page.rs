//! The page of `outboard serve` in a browser.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Server, Serving, model, skip, small_model};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

const KEY: &str = "0123456789abcdef-tester";

/// Where Debian has it, or what `OUTBOARD_TEST_CHROMIUM` names.
fn chromium() -> Option<PathBuf> {
    let named = std::env::var_os("OUTBOARD_TEST_CHROMIUM").map(PathBuf::from);
    let found = named.clone().unwrap_or_else(|| "/usr/bin/chromium".into());
    // Whoever names a browser wants the test to run.
    assert!(named.is_none() || found.is_file(), "there is no {} of OUTBOARD_TEST_CHROMIUM", found.display());
    found.is_file().then_some(found)
}

/// The folder of packages, if it has those of this test.
fn packages() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("OUTBOARD_TEST_NODE")?).join("node_modules");
    ["puppeteer-core", "axe-core"].iter().all(|name| folder.join(name).is_dir()).then_some(folder)
}

/// The script, with what it asks for.
struct Script {
    child: Child,
    stdin: ChildStdin,
}

impl Script {
    fn start(packages: &Path, browser: &Path, args: &[&str]) -> Script {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page/page.cjs");
        let mut node = Command::new("node");
        node.arg(script).args(args).env("NODE_PATH", packages).env("CHROMIUM", browser);
        // Pictures to look at.
        node.args(std::env::var("OUTBOARD_TEST_PICTURES"));
        let mut child =
            node.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("node starts");
        let stdin = child.stdin.take().unwrap();
        Script { child, stdin }
    }

    /// Does what it asks for, until its end; its last line must be `done`.
    fn run(mut self, mut act: impl FnMut(&str)) {
        let mut err = self.child.stderr.take().unwrap();
        let said = std::thread::spawn(move || {
            let mut text = String::new();
            let _ = err.read_to_string(&mut text);
            text
        });
        let mut last = String::new();
        for line in BufReader::new(self.child.stdout.take().unwrap()).lines().map_while(Result::ok) {
            if line != "done" {
                act(&line);
                let _ = writeln!(self.stdin);
            }
            last = line;
        }
        let (status, said) = (self.child.wait().unwrap(), said.join().unwrap());
        assert!(status.success() && last == "done", "{status}, last: {last}\n{said}");
        println!("{said}");
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_page_chats_shows_the_cluster_and_says_what_is_wrong() {
    let Some(file) = model("smollm2") else { return };
    let (Some(packages), Some(browser)) = (packages(), chromium()) else {
        return skip(
            "no chromium, or OUTBOARD_TEST_NODE names no folder: npm install --prefix FOLDER puppeteer-core axe-core",
        );
    };
    let mut servers = ["cpu:1,cpu:1"; 2].map(|devices| Server::start(&["-d", devices]));
    let rpc = format!("{},{}", servers[0].addr, servers[1].addr);
    let serving = Serving::start(file.to_str().unwrap(), &["--rpc", &rpc, "-np", "2", "-c", "2048"]);
    let dir = tempfile::tempdir().unwrap();
    let (small, keys) = (small_model(dir.path()), dir.path().join("keys"));
    std::fs::write(&keys, format!("tester {KEY}\n")).unwrap();
    let one = ["-t", "1", "-np", "1", "--max-waiting", "0", "-c", "8192", "--api-key-file", keys.to_str().unwrap()];
    let guarded = Serving::start(small.to_str().unwrap(), &one);
    let urls = [serving.addr, guarded.addr].map(|addr| format!("http://{addr}/"));
    let mut serving = Some(serving);
    Script::start(&packages, &browser, &[&urls[0], &urls[1], KEY]).run(|what| match what {
        "lose" => servers[0].kill(),
        "end" => drop(serving.take()),
        other => panic!("it asks for {other}"),
    });
}
