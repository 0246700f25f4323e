//! Where a dialer connects to.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

use outboard_net::{Carrier, ClientTls, Dialer, Endpoint, Meter, QuicListener, ServerTls, TlsFiles, accept};
use rcgen::{CertificateParams, KeyPair};
use std::net::SocketAddr;

/// A name that no lookup finds.
const NAME: &str = "gpu.invalid";

#[derive(Clone, Debug)]
struct Uncounted;

impl Meter for Uncounted {
    fn sent(&self, _: usize) {}
    fn received(&self, _: usize) {}
}

/// What a server of that name shows, and how clients know it.
fn tls(dir: &std::path::Path) -> (ServerTls, ClientTls) {
    let (cert, key) = (dir.join("cert.pem"), dir.join("key.pem"));
    let pair = KeyPair::generate().unwrap();
    let own = CertificateParams::new([NAME.to_owned()]).unwrap().self_signed(&pair).unwrap();
    std::fs::write(&cert, own.pem()).unwrap();
    std::fs::write(&key, pair.serialize_pem()).unwrap();
    let files = TlsFiles { ca: Some(cert.clone()), ..Default::default() };
    (ServerTls::load(&cert, &key, None).unwrap(), ClientTls::load(files).unwrap())
}

#[test]
fn a_name_whose_address_is_known_is_not_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let (server, client) = tls(dir.path());
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        let plain = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let secret = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let quic = QuicListener::bind(udp, &server).unwrap();
        let at = |carrier: Carrier, address: SocketAddr| {
            let endpoint = Endpoint::parse(&format!("{NAME}:{}", address.port())).unwrap().by(carrier);
            let known = Dialer::at(endpoint.clone(), vec![address], client.clone());
            (known, Dialer::new(endpoint, client.clone()))
        };
        let cases = [
            at(Carrier::Tcp, plain.local_addr().unwrap()),
            at(Carrier::Tls, secret.local_addr().unwrap()),
            at(Carrier::Auto, secret.local_addr().unwrap()),
            at(Carrier::Quic, udp),
        ];
        let serve = async {
            loop {
                tokio::select! {
                    socket = secret.accept() => {
                        let (socket, tls) = (socket.unwrap().0, server.clone());
                        tokio::spawn(async move { accept(socket, Some(&tls), Uncounted).await.map(drop) });
                    }
                    Some(incoming) = quic.next(|| false) => {
                        tokio::spawn(async move { incoming.accept().await.unwrap().stream(Uncounted).await.map(drop) });
                    }
                }
            }
        };
        let dial = async {
            for (known, unknown) in cases {
                let opened = known.open(Uncounted).await;
                assert!(opened.is_ok(), "{}: {:?}", known.endpoint(), opened.err());
                let error = unknown.open(Uncounted).await.unwrap_err();
                assert!(error.contains("cannot connect: ") || error.contains("cannot find its address"), "{error}");
            }
        };
        tokio::select! {
            () = dial => {}
            () = serve => {}
        }
    });
}
