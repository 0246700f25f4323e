//! Certificates and keys in PEM files.

use crate::limits::PEM_FILE;
use outboard_core::{Error, Result};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::io::Read;
use std::path::Path;

/// An error about a file that the user has named.
pub(crate) fn wrong(what: &str, file: &Path, why: impl std::fmt::Display) -> Error {
    Error::Request(format!("{what} {}: {why}", file.display()))
}

fn read(what: &str, path: &Path) -> Result<Vec<u8>> {
    let fail = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => wrong(what, path, "there is no such file"),
        std::io::ErrorKind::PermissionDenied => wrong(what, path, "this user may not read it"),
        _ => wrong(what, path, format!("cannot be read: {e}")),
    };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(fail)?;
    file.take(PEM_FILE + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > PEM_FILE {
        Err(wrong(what, path, format!("it has more than {PEM_FILE} bytes; that is no PEM file")))
    } else {
        Ok(bytes)
    }
}

fn explain(e: PemError) -> String {
    match e {
        PemError::MissingSectionEnd { .. } => "it is cut off: a PEM section has no END line".into(),
        PemError::IllegalSectionStart { .. } => "it has a PEM section whose BEGIN line is wrong".into(),
        PemError::Base64Decode(_) => "the base64 in it is damaged".into(),
        e => format!("it is not a good PEM file: {e}"),
    }
}

/// The certificates of a file: one at least.
pub(crate) fn certificates(what: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let bytes = read(what, path)?;
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let all = all.map_err(|e| wrong(what, path, explain(e)))?;
    if all.is_empty() {
        let found = if bytes.windows(11).any(|w| w == b"PRIVATE KEY") {
            "it has a private key where a certificate (BEGIN CERTIFICATE) should be"
        } else {
            "there is no certificate (BEGIN CERTIFICATE) in it"
        };
        return Err(wrong(what, path, found));
    }
    Ok(all)
}

/// The private key of a file.
pub(crate) fn private_key(what: &str, path: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes = read(what, path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| {
        let text = String::from_utf8_lossy(&bytes);
        let why = match e {
            PemError::NoItemsFound if text.contains("BEGIN ENCRYPTED PRIVATE KEY") => {
                "the key is protected by a password; decrypt it with: openssl pkey -in FILE -out NEW".into()
            }
            PemError::NoItemsFound if text.contains("BEGIN CERTIFICATE") => {
                "it has a certificate where a private key (BEGIN PRIVATE KEY) should be".into()
            }
            PemError::NoItemsFound => "there is no private key (BEGIN PRIVATE KEY) in it".into(),
            e => explain(e),
        };
        wrong(what, path, why)
    })
}

/// A sentence about a secret file that other users of this host may read; `None` if all is well, or where files have no modes.
pub fn warn_if_readable(path: &Path) -> Option<String> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(path).ok()?.permissions().mode();
        if mode & 0o077 != 0 {
            let name = path.display();
            return Some(format!("{name} is secret, but others on this host may read it (chmod 600 {name})"));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bad_file_is_named_with_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["a".to_owned()]).unwrap();
        let (cert, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let file = dir.path().join("f.pem");
        let with = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let text = |e: Error| e.to_string();
            (
                certificates("--tls-cert", &file).map(|c| c.len()).map_err(text),
                private_key("--tls-key", &file).map_err(text),
            )
        };
        let (certs, keys) = with(&format!("{key}{cert}{cert}"));
        assert!(certs == Ok(2) && keys.is_ok());
        for (text, cert_error, key_error) in [
            ("", "no certificate", "no private key"),
            ("hello", "no certificate", "no private key"),
            (&cert[..cert.len() - 30], "cut off", "cut off"),
            (&cert.replace('M', "*"), "base64", "base64"),
            (&key, "private key where", ""),
            (&cert, "", "certificate where"),
            ("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n", "", "password"),
        ] {
            let (certs, keys) = with(text);
            for (what, found, expected) in
                [("--tls-cert", certs.err(), cert_error), ("--tls-key", keys.err(), key_error)]
            {
                if expected.is_empty() {
                    continue;
                }
                let found = found.unwrap();
                assert!(found.contains(what) && found.contains("f.pem") && found.contains(expected), "{found}");
            }
        }
        std::fs::remove_file(&file).unwrap();
        assert!(certificates("--ca", &file).unwrap_err().to_string().contains("no such file"));
        assert!(certificates("--ca", dir.path()).is_err());
    }
}
