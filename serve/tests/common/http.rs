//! A client that speaks HTTP by hand. Tests of other crates include this file.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

pub fn write_request(socket: &mut TcpStream, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) {
    let mut head = format!("{method} {path} HTTP/1.1\r\ncontent-length: {}\r\n", body.len());
    if !headers.iter().any(|(name, _)| *name == "connection") {
        head += "connection: close\r\n";
    }
    if !headers.iter().any(|(name, _)| *name == "host") {
        head += "host: localhost\r\n";
    }
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    // A server that does not want the body may close before all of it is written.
    let _ = socket.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| socket.write_all(body));
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

fn read_head(reader: &mut impl BufRead) -> (u16, String) {
    let mut head = String::new();
    loop {
        let mut line = String::new();
        let n = reader.read_line(&mut line).unwrap();
        if n == 0 || line == "\r\n" {
            break;
        }
        head += &line.to_ascii_lowercase();
    }
    let status = head.split_whitespace().nth(1).unwrap_or_else(|| panic!("no answer: {head:?}")).parse().unwrap();
    (status, head)
}

impl Answer {
    pub fn read(socket: impl Read) -> Answer {
        let mut reader = BufReader::new(socket);
        let (status, head) = read_head(&mut reader);
        let mut body = Vec::new();
        if head.contains("transfer-encoding: chunked") {
            while let Some(chunk) = read_chunk(&mut reader) {
                body.extend(chunk);
            }
        } else {
            let length = header(&head, "content-length").map_or(0, |n| n.parse().unwrap());
            body.resize(length, 0);
            reader.read_exact(&mut body).unwrap();
        }
        Answer { status, head, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    /// Its JSON; fails if it is an error.
    pub fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The error, in OpenAI's shape, with this status.
    pub fn error(&self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        let body: Value = serde_json::from_slice(&self.body).unwrap();
        let error = &body["error"];
        assert!(error["message"].is_string() && error["type"].is_string(), "{body}");
        assert!(error.get("param").is_some() && error.get("code").is_some(), "{body}");
        error.clone()
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn read_chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let size = usize::from_str_radix(line.trim(), 16).ok().filter(|size| *size > 0)?;
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).ok()?;
    chunk.truncate(size);
    Some(chunk)
}

/// An answer that comes as events.
pub struct Events {
    pub status: u16,
    pub head: String,
    reader: BufReader<TcpStream>,
    text: String,
}

impl Events {
    pub fn read(socket: TcpStream) -> Events {
        let mut reader = BufReader::new(socket);
        let (status, head) = read_head(&mut reader);
        Events { status, head, reader, text: String::new() }
    }

    /// The next event: its name, if it has one, and its data.
    pub fn next(&mut self) -> Option<(String, String)> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                let of = |name: &str| {
                    event.lines().find_map(|line| line.strip_prefix(name)).map(|text| text.trim().to_owned())
                };
                match of("data:") {
                    Some(data) => return Some((of("event:").unwrap_or_default(), data)),
                    // A comment: it is still there.
                    None => continue,
                }
            }
            let chunk = read_chunk(&mut self.reader)?;
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }

    /// All that come, as JSON; the last one of OpenAI's is none.
    pub fn all(mut self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.head);
        let mut all = Vec::new();
        while let Some((_, data)) = self.next() {
            if data == "[DONE]" {
                assert!(self.next().is_none());
                all.push(Value::Null);
                break;
            }
            all.push(serde_json::from_str(&data).unwrap());
        }
        all
    }
}
