//! A relay between two ends that can go silent, as a cut cable or a stopped process does, and break single connections.

#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub struct Proxy {
    pub addr: SocketAddr,
    silent: Arc<AtomicBool>,
    refuse: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<Connection>>>,
}

/// A connection that goes through.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Bytes that may still go to the server.
    allowed: Arc<AtomicU64>,
    /// Nothing goes to the server for now.
    held: Arc<AtomicBool>,
}

impl Proxy {
    pub fn start(to: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let proxy = Proxy { addr, silent: Arc::default(), refuse: Arc::default(), connections: Arc::default() };
        let (silent, refuse, connections) = (proxy.silent.clone(), proxy.refuse.clone(), proxy.connections.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if refuse.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(server) = TcpStream::connect(to) else { return };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let clone = |socket: &TcpStream| socket.try_clone().unwrap();
                let allowed = Arc::new(AtomicU64::new(u64::MAX));
                let held = Arc::<AtomicBool>::default();
                let kept = Connection {
                    client: clone(&client),
                    server: clone(&server),
                    allowed: allowed.clone(),
                    held: held.clone(),
                };
                connections.lock().unwrap().push(kept);
                relay(clone(&client), clone(&server), vec![silent.clone(), held], Some(allowed));
                relay(server, client, vec![silent.clone()], None);
            }
        });
        proxy
    }

    /// From now on nothing gets through, and nobody is told.
    pub fn go_silent(&self) {
        self.silent.store(true, Ordering::SeqCst);
    }

    /// New connections are closed at once.
    pub fn refuse(&self) {
        self.refuse.store(true, Ordering::SeqCst);
    }

    /// New connections get through again.
    pub fn admit(&self) {
        self.refuse.store(false, Ordering::SeqCst);
    }

    /// Connections that there were.
    pub fn count(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Only this many more bytes get through to the server on a connection.
    pub fn allow(&self, connection: usize, bytes: u64) {
        self.connections.lock().unwrap()[connection].allowed.store(bytes, Ordering::SeqCst);
    }

    /// Keeps back what goes to the server on a connection.
    pub fn hold(&self, connection: usize) {
        self.connections.lock().unwrap()[connection].held.store(true, Ordering::SeqCst);
    }

    /// Lets what was kept back go on.
    pub fn release(&self, connection: usize) {
        self.connections.lock().unwrap()[connection].held.store(false, Ordering::SeqCst);
    }

    /// Breaks a connection.
    pub fn cut(&self, connection: usize) {
        let connections = self.connections.lock().unwrap();
        let Connection { client, server, .. } = &connections[connection];
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    }
}

fn relay(mut from: TcpStream, mut to: TcpStream, held: Vec<Arc<AtomicBool>>, allowed: Option<Arc<AtomicU64>>) {
    std::thread::spawn(move || {
        let mut buf = vec![0; 1 << 16];
        loop {
            match from.read(&mut buf) {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    while held.iter().any(|held| held.load(Ordering::SeqCst)) {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    let mut n = n;
                    if let Some(allowed) = &allowed
                        && allowed.load(Ordering::SeqCst) != u64::MAX
                    {
                        n = n.min(allowed.load(Ordering::SeqCst) as usize);
                        allowed.fetch_sub(n as u64, Ordering::SeqCst);
                    }
                    if to.write_all(&buf[..n]).is_err() {
                        break;
                    }
                }
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
