//! The binary as a process: usage, and what its exit status says. What needs servers or models is in `integration`; `cargo test --workspace` builds
//! the binary for it because this file is here.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use std::process::Command;

/// Exit status, stdout and stderr.
fn outboard(args: &[&str]) -> (Option<i32>, String, String) {
    let out = Command::new(env!("CARGO_BIN_EXE_outboard")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code(), text(out.stdout), text(out.stderr))
}

#[test]
fn help_names_every_command_and_the_version_is_that_of_the_package() {
    let (status, help, _) = outboard(&["--help"]);
    assert_eq!(status, Some(0));
    for command in ["demo", "devices", "run", "serve", "top", "bench", "plan", "perplexity", "smoke", "fetch"] {
        assert!(help.lines().any(|line| line.trim_start().starts_with(&format!("{command} "))), "{command}: {help}");
        assert_eq!(outboard(&[command, "--help"]).0, Some(0), "{command}");
    }
    assert_eq!(outboard(&["--version"]).1.trim(), format!("outboard {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_usage_is_status_2_and_work_that_fails_is_1_with_nothing_on_stdout() {
    for bad in
        [&[][..], &["--no-such-flag"], &["no-such-command"], &["run"], &["serve", "-m", "x.gguf", "--port", "70000"]]
    {
        let (status, out, error) = outboard(bad);
        assert!(status == Some(2) && out.is_empty() && !error.is_empty(), "{bad:?}: {status:?} {error}");
    }
    for args in [&["run", "-p", "Once"][..], &["serve"]] {
        let (status, out, error) = outboard(&[args, &["-m", "no-such-folder/model.gguf"]].concat());
        assert!(
            status == Some(1) && out.is_empty() && error.contains("no-such-folder/model.gguf"),
            "{status:?} {error}"
        );
    }
}
