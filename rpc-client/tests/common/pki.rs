//! CAs and certificates of tests.

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    dir: PathBuf,
    pub file: PathBuf,
}

pub struct Pair {
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl Ca {
    pub fn new(dir: &Path, name: &str) -> Ca {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let file = dir.join(format!("{name}.pem"));
        std::fs::write(&file, params.self_signed(&key).unwrap().pem()).unwrap();
        Ca { issuer: Issuer::new(params, key), dir: dir.to_owned(), file }
    }

    fn pair(&self, file: &str, names: &[&str], purposes: &[ExtendedKeyUsagePurpose], days: [i64; 2]) -> Pair {
        let mut params = CertificateParams::new(names.iter().map(|n| n.to_string()).collect::<Vec<_>>()).unwrap();
        params.extended_key_usages = purposes.to_vec();
        let now = OffsetDateTime::now_utc();
        params.not_before = now + Duration::days(days[0]);
        params.not_after = now + Duration::days(days[1]);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let path = |end: &str| self.dir.join(format!("{file}{end}"));
        let pair = Pair { cert: path(".pem"), key: path("-key.pem") };
        std::fs::write(&pair.cert, cert.pem()).unwrap();
        std::fs::write(&pair.key, key.serialize_pem()).unwrap();
        pair
    }

    /// A certificate for servers, which are clients of other servers, valid from and to so many days from now.
    pub fn server(&self, names: &[&str], days: [i64; 2]) -> Pair {
        self.pair("server", names, &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth], days)
    }

    /// A certificate that is good for nothing but to be a server.
    pub fn server_only(&self, name: &str, days: [i64; 2]) -> Pair {
        self.pair("server-only", &[name], &[ExtendedKeyUsagePurpose::ServerAuth], days)
    }

    /// A certificate for a client.
    pub fn client(&self, name: &str, days: [i64; 2]) -> Pair {
        self.pair(&format!("client-{name}"), &[name], &[ExtendedKeyUsagePurpose::ClientAuth], days)
    }
}
