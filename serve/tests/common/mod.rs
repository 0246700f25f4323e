//! A service over a small model, and a client that speaks HTTP by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, dead_code, unreachable_pub, unused_imports, missing_docs)]

mod http;
mod scripted;
#[path = "../../../integration/src/small.rs"]
mod small;

pub use http::{Answer, Events, write_request};
use outboard::{Model, PlaceOptions, Runner, devices};
use outboard_serve::{ServeOptions, Server, Service};
pub use scripted::{Kind, STOP, scripted_model};
use serde_json::Value;
pub use small::small_model;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

/// Nothing here takes as long.
pub const LIMIT: Duration = Duration::from_secs(60);

/// A service of so many places on a free port.
pub struct Served {
    pub server: Option<Server>,
    pub addr: SocketAddr,
    pub service: Service,
    _dir: tempfile::TempDir,
}

pub fn runner(dir: &Path, sequences: usize, context: usize) -> Runner {
    runner_of(&small_model(dir), sequences, context)
}

fn runner_of(model: &Path, sequences: usize, context: usize) -> Runner {
    let options = PlaceOptions { sequences, context: Some(context), ..PlaceOptions::default() };
    let devices = devices::local(Some(1)).unwrap();
    Model::open(model).unwrap().place(&devices, &options).unwrap().run().unwrap()
}

impl Served {
    pub fn new(sequences: usize, options: ServeOptions) -> Served {
        Served::with_context(sequences, 512, options)
    }

    pub fn with_context(sequences: usize, context: usize, options: ServeOptions) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let runner = runner(dir.path(), sequences, context);
        Served::of(Service::new(runner, options).unwrap(), dir)
    }

    /// Of a model that always writes the same.
    pub fn scripted(template: &str, answer: &str, kind: Kind) -> Served {
        let dir = tempfile::tempdir().unwrap();
        let runner = runner_of(&scripted_model(dir.path(), template, answer, kind), 2, 2048);
        Served::of(Service::new(runner, ServeOptions::default()).unwrap(), dir)
    }

    /// Over what was made elsewhere, of files in this folder.
    pub fn of(service: Service, dir: tempfile::TempDir) -> Served {
        let server = Server::start(service.clone(), ([127, 0, 0, 1], 0).into(), None).unwrap();
        Served { addr: server.local_addr(), server: Some(server), service, _dir: dir }
    }

    pub fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.addr).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        socket
    }

    pub fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], &body.to_string())
    }

    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut socket = self.connect();
        write_request(&mut socket, method, path, headers, body.as_bytes());
        Answer::read(socket)
    }

    /// Begins a request whose answer is a stream of events.
    pub fn stream(&self, path: &str, body: &Value) -> Events {
        let mut socket = self.connect();
        let headers = [("content-type", "application/json")];
        write_request(&mut socket, "POST", path, &headers, body.to_string().as_bytes());
        Events::read(socket)
    }

    /// Waits until something is so.
    pub fn wait(&self, what: &str, is_so: impl Fn(&Served) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LIMIT, "not so after {LIMIT:?}: {what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Places in which there is a text.
    pub fn busy(&self) -> usize {
        let slots = self.get("/slots").json();
        slots.as_array().unwrap().iter().filter(|slot| slot["is_processing"] == true).count()
    }

    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text();
        let line = |l: &str| match l.strip_prefix(name)? {
            rest if rest.starts_with([' ', '{']) => rest.rsplit(' ').next()?.parse::<f64>().ok(),
            _ => None,
        };
        text.lines().filter_map(line).sum()
    }
}
