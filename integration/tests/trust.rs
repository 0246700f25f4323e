//! `outboard cert`, servers that others can reach, and clients with and without credentials, as processes.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outboard_integration::{Client, Finished, Server, program};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const NEW_TOKEN: &str = "fedcba9876543210fedcba9876543210";

/// A folder with certificates.
struct Site(tempfile::TempDir);

impl Site {
    fn new() -> Site {
        let site = Site(tempfile::tempdir().unwrap());
        let done = Client::run(&["cert", &site.file("pki"), "--client", "laptop"], LIMIT);
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        println!("{}", done.stdout);
        site
    }

    fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Arguments of a server with the certificate.
    fn server(&self, more: &[&str]) -> Vec<String> {
        let (cert, key) = (self.file("pki/server.pem"), self.file("pki/server-key.pem"));
        let args = ["-d", "cpu:1", "--tls-cert", &cert, "--tls-key", &key];
        args.iter().chain(more).map(|a| (*a).to_owned()).collect()
    }

    fn start(&self, more: &[&str]) -> Server {
        let args = self.server(more);
        Server::start(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Arguments of a client with its certificate.
    fn client(&self) -> Vec<String> {
        let files = [("--ca", "ca"), ("--cert", "client"), ("--key", "client-key")];
        files.iter().flat_map(|(flag, file)| [(*flag).to_owned(), self.file(&format!("pki/{file}.pem"))]).collect()
    }
}

fn port(server: &Server) -> &str {
    server.addr.rsplit_once(':').unwrap().1
}

fn devices<S: AsRef<str>>(endpoint: &str, more: &[S]) -> Finished {
    let args = ["devices", "--rpc", endpoint, "--json"];
    let more = more.iter().map(AsRef::as_ref);
    Client::run(&args.into_iter().chain(more).collect::<Vec<&str>>(), LIMIT)
}

/// Whether the listing worked, with a device of this endpoint in it.
fn lists(done: &Finished, endpoint: &str) {
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(done.stdout.contains(&format!("\"{endpoint}/CPU0\"")), "{}", done.stdout);
}

/// What a server says that does not start.
fn refused(args: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(program("rpc-server")).args(["-p", "0"]).args(args).output().unwrap();
    assert!(!String::from_utf8_lossy(&out.stdout).contains("listening"), "{out:?}");
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    let error = stderr.lines().last().unwrap_or_default().to_owned();
    println!("{error}");
    assert!(error.starts_with("error: "), "{stderr}");
    (out.status.code(), error)
}

#[test]
fn the_commands_that_cert_prints() {
    let site = Site::new();
    let ca = site.file("pki/ca.pem");
    let server = site.start(&["-H", "0.0.0.0", "--client-ca", &ca]);
    for scheme in ["grpcs", "quic"] {
        let endpoint = format!("{scheme}://localhost:{}", port(&server));
        lists(&devices(&endpoint, &site.client()), &endpoint);
        // The same from the environment.
        let vars = site.client();
        let vars = [("OUTBOARD_CA", vars[1].as_str()), ("OUTBOARD_CERT", &vars[3]), ("OUTBOARD_KEY", &vars[5])];
        let done = Client::start_with(&["devices", "--rpc", &endpoint, "--json"], &vars).wait(LIMIT);
        lists(&done, &endpoint);
        // Without credentials.
        let done = devices(&endpoint, &["--ca", &ca]);
        println!("{}", done.error());
        assert!(done.error().contains("wants a client certificate"), "{}", done.stderr);
        assert!(devices::<&str>(&endpoint, &[]).error().contains("--ca"));
    }
    // By a name that the certificate does not have, and not encrypted at all.
    let done = devices(&format!("grpcs://127.0.0.2:{}", port(&server)), &site.client());
    assert!(done.error().contains("not for 127.0.0.2"), "{}", done.stderr);
    let done = devices::<&str>(&format!("localhost:{}", port(&server)), &[]);
    assert!(done.error().contains("speaks TLS only"), "{}", done.stderr);
}

#[test]
fn everything_that_smoke_checks_works_encrypted() {
    let site = Site::new();
    let (a, b) = (site.start(&[]), site.start(&[]));
    let rpc = format!("grpcs://localhost:{},quic://localhost:{}", port(&a), port(&b));
    let done = Client::run(&["smoke", "--rpc", &rpc, "--ca", &site.file("pki/ca.pem")], LIMIT);
    assert_eq!(done.code, Some(0), "{}{}", done.stdout, done.stderr);
}

#[test]
fn certificates_are_not_overwritten_and_keys_are_private() {
    let site = Site::new();
    let dir = site.file("pki");
    let read = || std::fs::read(site.file("pki/ca.pem")).unwrap();
    let before = read();
    let done = Client::run(&["cert", &dir], LIMIT);
    assert!(done.error().contains("ca.pem is there already"), "{}", done.stderr);
    assert_eq!(read(), before);
    let other = site.file("other");
    let done = Client::run(&["cert", &other, "--signed-by", &dir, "--name", "127.0.0.9"], LIMIT);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    // Signed by the CA of the first folder, and for the other name.
    let (cert, key) = (site.file("other/server.pem"), site.file("other/server-key.pem"));
    let server = Server::start(&["-H", "127.0.0.9", "-d", "cpu:1", "--tls-cert", &cert, "--tls-key", &key]);
    let endpoint = format!("grpcs://{}", server.addr);
    lists(&devices(&endpoint, &["--ca", &site.file("pki/ca.pem")]), &endpoint);
    #[cfg(unix)]
    for entry in std::fs::read_dir(&dir).unwrap().chain(std::fs::read_dir(&other).unwrap()) {
        use std::os::unix::fs::PermissionsExt;
        let path: PathBuf = entry.unwrap().path();
        let mode = path.metadata().unwrap().permissions().mode() & 0o777;
        let secret = path.to_str().unwrap().ends_with("key.pem");
        assert_eq!(mode & 0o077, if secret { 0 } else { mode & 0o044 }, "{}: {mode:o}", path.display());
    }
    let done = Client::run(&["cert", &dir, "--force"], LIMIT);
    assert!(done.code == Some(0) && read() != before, "{}", done.stderr);
    let itself = ["cert", &dir, "--force", "--signed-by", &dir];
    for bad in [&["cert"][..], &["cert", &dir, "--name", "a b"], &["cert", &dir, "--days", "0"], &itself] {
        assert_eq!(Client::run(bad, LIMIT).code, Some(2), "{bad:?}");
    }
}

#[test]
fn tokens() {
    let site = Site::new();
    let (file, ca) = (site.file("tokens"), site.file("pki/ca.pem"));
    let write = |text: &str| std::fs::write(Path::new(&file), text).unwrap();
    write(&format!("laptop {TOKEN}\n"));
    let server = site.start(&["-H", "0.0.0.0", "--token-file", &file]);
    let endpoint = format!("grpcs://localhost:{}", port(&server));
    let with = |token: &str| {
        let args = ["devices", "--rpc", &endpoint, "--ca", &ca, "--json"];
        Client::start_with(&args, &[("OUTBOARD_TOKEN", token)]).wait(LIMIT)
    };
    lists(&with(TOKEN), &endpoint);
    lists(&devices(&endpoint, &["--ca", &ca, "--token-file", &file]), &endpoint);
    let vars = [("MY_TOKEN", TOKEN)];
    let args = ["devices", "--rpc", &endpoint, "--ca", &ca, "--json", "--token-env", "MY_TOKEN"];
    lists(&Client::start_with(&args, &vars).wait(LIMIT), &endpoint);
    assert!(with("").error().contains("wants a token"));
    let done = with(NEW_TOKEN);
    assert!(done.error().contains("does not know this token") && !done.stderr.contains(NEW_TOKEN), "{}", done.stderr);
    // Another token, without a restart.
    write(&format!("laptop {NEW_TOKEN}\n"));
    lists(&with(NEW_TOKEN), &endpoint);
    assert!(with(TOKEN).error().contains("does not know this token"));
    let done = with("much-too-short");
    assert!(done.error().contains("OUTBOARD_TOKEN") && !done.stderr.contains("much-too"), "{}", done.stderr);
}

#[test]
fn a_server_that_others_can_reach_needs_credentials() {
    let site = Site::new();
    let start = Instant::now();
    let (code, error) = refused(&["-H", "0.0.0.0"]);
    assert!(code == Some(2) && error.contains("refusing to listen") && error.contains("--tls-cert"), "{error}");
    let args = site.server(&["-H", "0.0.0.0"]);
    let (code, error) = refused(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(code == Some(2) && error.contains("--client-ca or --token-file"), "{error}");
    std::fs::write(site.file("tokens"), format!("laptop {TOKEN}\n")).unwrap();
    let (code, error) = refused(&["-H", "0.0.0.0", "--token-file", &site.file("tokens"), "--insecure"]);
    assert!(code == Some(2) && error.contains("unencrypted"), "{error}");
    // Files that are wrong are named.
    let (cert, key, ca) = (site.file("pki/server.pem"), site.file("pki/server-key.pem"), site.file("pki/ca.pem"));
    let (client_key, bad) = (site.file("pki/client-key.pem"), site.file("bad"));
    std::fs::write(&bad, "laptop\n").unwrap();
    for (args, named, what) in [
        (vec!["--tls-cert", &ca, "--tls-key", &key], "server-key.pem", "not the key of the certificate"),
        (vec!["--tls-cert", &cert, "--tls-key", &client_key], "client-key.pem", "not the key of the certificate"),
        (vec!["--tls-cert", &key, "--tls-key", &key], "server-key.pem", "private key where a certificate"),
        (vec!["--tls-cert", &cert, "--tls-key", "/no/such/key"], "/no/such/key", "no such file"),
        (vec!["--tls-cert", &cert, "--tls-key", &key, "--client-ca", &bad], "bad", "no certificate"),
        (vec!["--token-file", &bad], "bad", "line 1"),
    ] {
        let (code, error) = refused(&args);
        assert!(code == Some(1) && error.contains(named) && error.contains(what), "{args:?}: {error}");
    }
    assert!(start.elapsed() < LIMIT);
    // A client's own files, before it connects to anything.
    for (args, what) in [
        (["--ca", &bad], "no certificate"),
        (["--ca", "/no/such/ca"], "no such file"),
        (["--token-file", "/no/such/token"], "/no/such/token"),
    ] {
        let done = devices("grpcs://localhost:1", &args);
        assert!(done.code == Some(1) && done.error().contains(what), "{}", done.stderr);
    }
    assert_eq!(devices("grpcs://localhost:1", &["--cert", &cert]).code, Some(2));
}
