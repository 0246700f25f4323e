//! Certificates, keys and trusted CAs of each side, as configurations of TLS 1.3.
//!
//! Crypto is ring's, which was the faster in bulk when measured, passed explicitly: there is no process-wide default to race for.
//! AES-128 comes first, for the same reason. Sessions are not resumed: every connection proves anew who is at its ends.

use crate::explain::Side;
use crate::limits::{QUIC_INCOMING, QUIC_INCOMING_BYTES};
use crate::pem::{certificates, private_key, wrong};
use crate::quic::transport;
use outboard_core::{Error, Result};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// What is spoken on a TLS connection: HTTP/2, as gRPC has it.
const ALPN_TCP: &[u8] = b"h2";
/// The same where programs of others are served.
const ALPN_HTTP: &[u8] = b"http/1.1";
/// What is spoken on a QUIC connection: HTTP/2 on each stream.
const ALPN_QUIC: &[u8] = b"outboard/1";

/// The files of a client, as the user named them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA that servers' certificates must be signed by, in place of those that the system trusts.
    pub ca: Option<PathBuf>,
    /// The client's certificate, for servers that want one; together with `key`.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`.
    pub key: Option<PathBuf>,
}

/// The flags that have named the files, for errors: of the CA, the certificate, the key.
type Flags = [&'static str; 3];

const CLIENT_FLAGS: Flags = ["--ca", "--cert", "--key"];
const PEER_FLAGS: Flags = ["--peer-ca", "--tls-cert", "--tls-key"];

/// How a client knows servers and proves who it is. The default trusts the CAs that the system trusts, read when first needed.
///
/// The system's list (rustls-native-certs), not Mozilla's compiled in (webpki-roots): hosts of a network seldom have certificates
/// of a public CA, and who runs a CA of their own has put it into the system's list already.
#[derive(Clone, Debug, Default)]
pub struct ClientTls(Arc<Client>);

#[derive(Debug, Default)]
struct Client {
    files: TlsFiles,
    flags: Option<Flags>,
    configs: OnceLock<Result<ClientConfigs>>,
}

#[derive(Clone, Debug)]
pub(crate) struct ClientConfigs {
    pub(crate) tcp: Arc<ClientConfig>,
    pub(crate) quic: quinn::ClientConfig,
}

impl ClientTls {
    /// Reads the files. Errors name the file and what is wrong with it.
    pub fn load(files: TlsFiles) -> Result<ClientTls> {
        if files == TlsFiles::default() {
            return Ok(ClientTls::default());
        }
        let configs = client_configs(&files, CLIENT_FLAGS)?;
        Ok(ClientTls(Arc::new(Client { files, flags: Some(CLIENT_FLAGS), configs: Ok(configs).into() })))
    }

    /// What a server shows other servers, and how it knows them. Without a CA, those that the system trusts are read when they
    /// are first needed: a system may have none.
    pub fn for_peers(files: TlsFiles) -> Result<ClientTls> {
        let configs = match files.ca {
            Some(_) => Ok(client_configs(&files, PEER_FLAGS)?).into(),
            None => OnceLock::new(),
        };
        Ok(ClientTls(Arc::new(Client { files, flags: Some(PEER_FLAGS), configs })))
    }

    pub(crate) fn configs(&self) -> Result<&ClientConfigs> {
        self.0
            .configs
            .get_or_init(|| client_configs(&self.0.files, self.0.flags.unwrap_or(CLIENT_FLAGS)))
            .as_ref()
            .map_err(Clone::clone)
    }
}

/// How a server proves who it is and which clients it lets in.
#[derive(Clone, Debug)]
pub struct ServerTls {
    pub(crate) tcp: Arc<ServerConfig>,
    pub(crate) quic: quinn::ServerConfig,
    asks_clients: bool,
}

impl ServerTls {
    /// Reads the server's certificate (its chain, its own first) and key, and the CA that clients' certificates must be signed by,
    /// if there is one. Errors name the file and what is wrong with it.
    pub fn load(cert: &Path, key: &Path, client_ca: Option<&Path>) -> Result<ServerTls> {
        let chain = certificates("--tls-cert", cert)?;
        let private = private_key("--tls-key", key)?;
        let builder = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(bug)?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let roots = Arc::new(roots("--client-ca", file)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider()).build();
                builder.with_client_cert_verifier(verifier.map_err(|e| wrong("--client-ca", file, e))?)
            }
        };
        let mut tcp =
            builder.with_single_cert(chain, private).map_err(|e| pair("--tls-cert", cert, "--tls-key", key, &e))?;
        tcp.send_tls13_tickets = 0;
        let mut quic = tcp.clone();
        tcp.alpn_protocols = vec![ALPN_TCP.to_vec()];
        quic.alpn_protocols = vec![ALPN_QUIC.to_vec()];
        let quic = QuicServerConfig::try_from(quic).map_err(bug)?;
        let mut quic = quinn::ServerConfig::with_crypto(Arc::new(quic));
        quic.transport_config(transport(Side::Server)).max_incoming(QUIC_INCOMING);
        quic.incoming_buffer_size_total(QUIC_INCOMING_BYTES);
        Ok(ServerTls { tcp: Arc::new(tcp), quic, asks_clients: client_ca.is_some() })
    }

    /// The same for a server of HTTP/1.1 on TCP, whose clients are known otherwise.
    pub fn load_http(cert: &Path, key: &Path) -> Result<ServerTls> {
        let mut tls = ServerTls::load(cert, key, None)?;
        let mut tcp = ServerConfig::clone(&tls.tcp);
        tcp.alpn_protocols = vec![ALPN_HTTP.to_vec()];
        tls.tcp = Arc::new(tcp);
        Ok(tls)
    }

    /// Whether clients have to show a certificate.
    pub fn asks_clients(&self) -> bool {
        self.asks_clients
    }
}

fn client_configs(files: &TlsFiles, [ca_flag, cert_flag, key_flag]: Flags) -> Result<ClientConfigs> {
    let builder = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[&TLS13]).map_err(bug)?;
    let builder = builder.with_root_certificates(match &files.ca {
        Some(file) => roots(ca_flag, file)?,
        None => system_roots(ca_flag)?,
    });
    let mut tcp = match (&files.cert, &files.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => {
            let (chain, private) = (certificates(cert_flag, cert)?, private_key(key_flag, key)?);
            builder.with_client_auth_cert(chain, private).map_err(|e| pair(cert_flag, cert, key_flag, key, &e))?
        }
        (Some(cert), None) => {
            return Err(wrong(cert_flag, cert, format!("its private key is missing: give {key_flag} as well")));
        }
        (None, Some(key)) => {
            return Err(wrong(key_flag, key, format!("its certificate is missing: give {cert_flag} as well")));
        }
    };
    tcp.resumption = Resumption::disabled();
    let mut quic = tcp.clone();
    tcp.alpn_protocols = vec![ALPN_TCP.to_vec()];
    quic.alpn_protocols = vec![ALPN_QUIC.to_vec()];
    let quic = QuicClientConfig::try_from(quic).map_err(bug)?;
    let mut quic = quinn::ClientConfig::new(Arc::new(quic));
    quic.transport_config(transport(Side::Client));
    Ok(ClientConfigs { tcp: Arc::new(tcp), quic })
}

fn provider() -> Arc<CryptoProvider> {
    use ring::cipher_suite::{TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256};
    let cipher_suites = vec![TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256];
    Arc::new(CryptoProvider { cipher_suites, ..ring::default_provider() })
}

fn roots(what: &str, file: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(what, file)? {
        roots.add(certificate).map_err(|e| wrong(what, file, format!("it cannot be used as a CA: {e}")))?;
    }
    Ok(roots)
}

fn system_roots(flag: &str) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let (good, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match good {
        0 => Err(Error::Request(format!(
            "this system has no list of trusted CAs; name the CA of the servers with {flag}"
        ))),
        _ => Ok(roots),
    }
}

/// What is wrong with a certificate and a key that are read well.
fn pair(cert_flag: &str, cert: &Path, key_flag: &str, key: &Path, error: &rustls::Error) -> Error {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            wrong(key_flag, key, format!("it is not the key of the certificate {}", cert.display()))
        }
        rustls::Error::InvalidCertificate(e) => wrong(cert_flag, cert, format!("the certificate is damaged: {e}")),
        e => wrong(
            key_flag,
            key,
            format!("this kind of key cannot be used (RSA, ECDSA P-256/P-384 and Ed25519 can): {e}"),
        ),
    }
}

fn bug(e: impl std::fmt::Display) -> Error {
    Error::Misuse(format!("TLS is not set up right: {e}; this is a bug of Outboard"))
}

/// The name in a client's certificate: the first of its DNS names.
pub(crate) fn name_of(chain: &[CertificateDer<'_>]) -> Option<String> {
    let cert = webpki::EndEntityCert::try_from(chain.first()?).ok()?;
    cert.valid_dns_names().next().map(str::to_owned)
}
