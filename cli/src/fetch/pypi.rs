//! A client of Python package indexes: finds and downloads a wheel by the simple repository API, as JSON (PEP 691) or, for
//! indexes and mirrors that only have that, HTML (PEP 503).

use anyhow::{Context, Result, anyhow, bail};
use base64::Engine;
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use ureq::tls::{PemItem, RootCerts, TlsConfig};

const DEFAULT_INDEX: &str = "https://pypi.org/simple";
const ACCEPT: &str = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";
/// Where systems keep the certificates that they trust; where there are none of these, Mozilla's are used.
const SYSTEM_ROOTS: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// Longest list of a package's files: packages with thousands of releases have some MiB.
const MAX_PAGE: u64 = 32 << 20;
/// What a wheel may be longer than the file in it.
const MAX_EXTRA: u64 = 16 << 20;
/// How often a request is tried that failed in a way that may pass.
const TRIES: u32 = 3;

/// A package index, and how to talk to it.
pub(super) struct Index {
    /// Without credentials and without a slash at the end.
    url: String,
    /// `Authorization` header for the index's own host.
    credentials: Option<String>,
    agent: ureq::Agent,
}

/// A wheel as the index lists it.
#[derive(Debug, PartialEq)]
struct Wheel {
    name: String,
    url: String,
    sha256: Option<String>,
}

impl Index {
    /// The index that OUTBOARD_PYPI_INDEX or pip's PIP_INDEX_URL names, or else PyPI. Proxies come from the usual variables,
    /// certificates from the file that PIP_CERT, SSL_CERT_FILE or REQUESTS_CA_BUNDLE names, or else the system's.
    pub(super) fn from_env() -> Result<Index> {
        let var = |name| std::env::var(name).ok().filter(|v: &String| !v.is_empty());
        let index = var("OUTBOARD_PYPI_INDEX").or_else(|| var("PIP_INDEX_URL")).unwrap_or(DEFAULT_INDEX.into());
        let roots =
            match ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"].into_iter().find_map(|n| Some((n, var(n)?))) {
                Some((name, path)) => roots(&path).with_context(|| format!("{name}={path}"))?,
                None => system_roots(),
            };
        Index::new(&index, roots)
    }

    /// The index at an address, with the public certificates.
    #[cfg(test)]
    pub(super) fn at(index: &str) -> Result<Index> {
        Index::new(index, RootCerts::WebPki)
    }

    fn new(index: &str, roots: RootCerts) -> Result<Index> {
        let (url, credentials) = split_credentials(index.trim_end_matches('/'));
        if !(url.starts_with("https://") || url.starts_with("http://")) {
            bail!("the package index \"{url}\" is not an http or https address");
        }
        let config = ureq::Agent::config_builder()
            .user_agent(concat!("outboard/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(roots).build())
            .timeout_connect(Some(Duration::from_secs(15)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .timeout_per_read(Some(Duration::from_secs(60)))
            .build();
        Ok(Index { url, credentials, agent: config.into() })
    }

    /// The index as it may be shown: credentials are not in it.
    pub(super) fn shown(&self) -> &str {
        &self.url
    }

    /// Downloads a package's wheel and checks the sum that the index gives. `bytes` is the length of the file in it.
    pub(super) fn download(
        &self,
        package: &str,
        version: &str,
        bytes: u64,
        to: &mut File,
        bar: &ProgressBar,
    ) -> Result<()> {
        let wheel = self.retry(|| self.find(package, version))?;
        self.retry(|| {
            to.rewind()?;
            to.set_len(0)?;
            let mut response = self.get(&wheel.url, "*/*")?;
            bar.set_length(response.body().content_length().unwrap_or(bytes));
            let mut sum = Sha256::new();
            let limit = bytes + MAX_EXTRA;
            let mut body = response.body_mut().with_config().limit(limit).reader();
            super::copy(&mut body, to, &mut sum, |done| bar.set_position(done))
                .with_context(|| format!("{}: the download broke off", wheel.url))?;
            let sum = super::hex(sum);
            match &wheel.sha256 {
                Some(expected) if !expected.eq_ignore_ascii_case(&sum) => {
                    bail!("{}: SHA-256 is {sum}, the index says {expected}", wheel.url)
                }
                _ => Ok(()),
            }
        })
    }

    /// Looks a wheel up in the package's list.
    fn find(&self, package: &str, version: &str) -> Result<Wheel> {
        let page = format!("{}/{package}/", self.url);
        let mut response = self.get(&page, ACCEPT)?;
        let is_json = response.body().mime_type().is_some_and(|m| m.ends_with("json"));
        let mut text = String::new();
        let mut reader = response.body_mut().with_config().limit(MAX_PAGE).reader();
        reader.read_to_string(&mut text).with_context(|| page.clone())?;
        let wheels = if is_json { from_json(&text) } else { Some(from_html(&text)) };
        let wheels = wheels.with_context(|| format!("{page}: this is not a package index's answer"))?;
        // In file names, PEP 427 writes an underscore for what separates words.
        let prefix = format!("{}-{version}-", package.replace(['-', '.'], "_")).to_lowercase();
        let wheel = wheels.into_iter().find(|w| w.name.to_lowercase().starts_with(&prefix) && w.name.ends_with(".whl"));
        let mut wheel = wheel.with_context(|| format!("{page} has no wheel of version {version}"))?;
        wheel.url = join(&page, &wheel.url);
        Ok(wheel)
    }

    fn get(&self, url: &str, accept: &str) -> Result<ureq::http::Response<ureq::Body>> {
        let mut request = self.agent.get(url).header("Accept", accept);
        if let Some(credentials) = &self.credentials
            && origin(url) == origin(&self.url)
        {
            request = request.header("Authorization", credentials);
        }
        request.call().map_err(|e| anyhow!(Failure::new(url, e)))
    }

    fn retry<T>(&self, mut action: impl FnMut() -> Result<T>) -> Result<T> {
        let mut tried = 1;
        loop {
            match action() {
                Err(e) if tried < TRIES && may_pass(&e) => {
                    std::thread::sleep(Duration::from_millis(500 << tried));
                    tried += 1;
                }
                result => return result,
            }
        }
    }
}

/// A request that failed.
#[derive(Debug)]
struct Failure {
    text: String,
    may_pass: bool,
}

impl Failure {
    fn new(url: &str, error: ureq::Error) -> Failure {
        let (why, may_pass) = match &error {
            ureq::Error::StatusCode(401 | 403) => {
                ("access is denied (credentials go into PIP_INDEX_URL)".into(), false)
            }
            ureq::Error::StatusCode(404) => ("the index does not have it".into(), false),
            ureq::Error::StatusCode(code) => (format!("the server answers {code}"), *code == 429 || *code >= 500),
            ureq::Error::HostNotFound => ("the host is not found (is this machine offline?)".into(), false),
            ureq::Error::Timeout(_) => ("no answer in time".into(), true),
            ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => {
                ("the connection is refused (is this machine offline?)".into(), false)
            }
            ureq::Error::Io(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                (format!("{e} (if this network has certificates of its own, name their file in SSL_CERT_FILE)"), false)
            }
            // A name that cannot be resolved comes as an error of no kind.
            ureq::Error::Io(e) => (format!("{e} (is this machine offline?)"), e.kind() != std::io::ErrorKind::Other),
            other => (other.to_string(), false),
        };
        Failure { text: format!("{url}: {why}"), may_pass }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

fn may_pass(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Failure>() {
        Some(failure) => failure.may_pass,
        // A download that broke off, but not a full disk.
        None => error.root_cause().downcast_ref::<std::io::Error>().is_some_and(|e| {
            use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, TimedOut, UnexpectedEof};
            matches!(e.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | TimedOut | UnexpectedEof)
        }),
    }
}

/// The system's certificates, or the public ones where it has none.
pub(crate) fn system_roots() -> RootCerts {
    SYSTEM_ROOTS.iter().find_map(|path| roots(path).ok()).unwrap_or(RootCerts::WebPki)
}

pub(crate) fn roots(path: impl AsRef<Path>) -> Result<RootCerts> {
    let pem = std::fs::read(path)?;
    let mut certs = Vec::new();
    for item in ureq::tls::parse_pem(&pem) {
        if let Ok(PemItem::Certificate(cert)) = item {
            certs.push(cert);
        }
    }
    if certs.is_empty() {
        bail!("the file has no certificates");
    }
    Ok(RootCerts::new_with_certs(&certs))
}

/// Takes `user:password@` out of an address and gives it as an `Authorization` header.
fn split_credentials(url: &str) -> (String, Option<String>) {
    let Some((scheme, rest)) = url.split_once("://") else { return (url.to_owned(), None) };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let Some((user_info, host)) = authority.rsplit_once('@') else { return (url.to_owned(), None) };
    let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
    let mut plain = percent_decode(user);
    plain.push(b':');
    plain.extend(percent_decode(password));
    let encoded = base64::engine::general_purpose::STANDARD.encode(plain);
    (format!("{scheme}://{host}{path}"), Some(format!("Basic {encoded}")))
}

fn percent_decode(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = match (byte, tail) {
            (b'%', [a, b, ..]) => char::from(*a).to_digit(16).zip(char::from(*b).to_digit(16)),
            _ => None,
        };
        match code {
            Some((high, low)) => {
                out.push((high * 16 + low) as u8);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

/// Scheme and host of an address.
fn origin(url: &str) -> &str {
    let start = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(start..).and_then(|rest| rest.find(['/', '?', '#'])).map_or(url.len(), |at| start + at);
    url.get(..end).unwrap_or(url)
}

/// The address that a link on a page means.
fn join(page: &str, link: &str) -> String {
    if link.contains("://") {
        return link.to_owned();
    }
    if let Some(rest) = link.strip_prefix("//") {
        return format!("{}://{rest}", page.split("://").next().unwrap_or("https"));
    }
    let origin = origin(page);
    if link.starts_with('/') {
        return format!("{origin}{link}");
    }
    let folder = page.get(origin.len()..).and_then(|path| path.rsplit_once('/')).map_or("", |(folder, _)| folder);
    let mut path: Vec<&str> = folder.split('/').collect();
    for step in link.split('/') {
        match step {
            "." => {}
            ".." if path.len() > 1 => _ = path.pop(),
            ".." => {}
            step => path.push(step),
        }
    }
    format!("{origin}{}", path.join("/"))
}

fn from_json(text: &str) -> Option<Vec<Wheel>> {
    let page: serde_json::Value = serde_json::from_str(text).ok()?;
    let wheels = page.get("files")?.as_array()?.iter().filter_map(|file| {
        Some(Wheel {
            name: file.get("filename")?.as_str()?.to_owned(),
            url: file.get("url")?.as_str()?.to_owned(),
            sha256: file.pointer("/hashes/sha256").and_then(|v| v.as_str()).map(str::to_owned),
        })
    });
    Some(wheels.collect())
}

fn from_html(text: &str) -> Vec<Wheel> {
    static LINK: LazyLock<Option<regex::Regex>> =
        LazyLock::new(|| regex::Regex::new(r#"(?is)<a\s[^>]*?href\s*=\s*["']([^"']*)["'][^>]*>([^<]*)</a"#).ok());
    let Some(link) = &*LINK else { return Vec::new() };
    let wheels = link.captures_iter(text).map(|c| {
        let (_, [href, name]) = c.extract();
        let href = href.replace("&amp;", "&");
        let (url, fragment) = href.split_once('#').unwrap_or((&href, ""));
        Wheel {
            name: name.trim().to_owned(),
            url: url.to_owned(),
            sha256: fragment.strip_prefix("sha256=").map(str::to_owned),
        }
    });
    wheels.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_as_html_and_json() {
        let html = r##"<body><h1>x</h1><A class=a HREF='../../f/a_b-1.0-py3-none-any.whl?x=1&amp;y=2#sha256=AB' >
            a_b-1.0-py3-none-any.whl </a><br/><a href="b.tar.gz">b.tar.gz</a>"##;
        let wheels = from_html(html);
        assert_eq!(wheels.len(), 2);
        let url = "../../f/a_b-1.0-py3-none-any.whl?x=1&y=2".to_owned();
        let wheel = Wheel { name: "a_b-1.0-py3-none-any.whl".into(), url, sha256: Some("AB".into()) };
        assert_eq!(wheels[0], wheel);
        let json = r#"{"files": [{"filename": "a_b-1.0-py3-none-any.whl", "hashes": {"sha256": "AB"},
            "url": "../../f/a_b-1.0-py3-none-any.whl?x=1&y=2"}, {"filename": 3}]}"#;
        assert_eq!(from_json(json).unwrap(), [wheel]);
        assert!(from_json("{}").is_none() && from_json("<html>").is_none());
    }

    #[test]
    fn links_are_joined() {
        let page = "https://h:8080/a/simple/x/";
        assert_eq!(join(page, "../../f/x.whl"), "https://h:8080/a/f/x.whl");
        assert_eq!(join(page, "../../../../../x.whl"), "https://h:8080/x.whl");
        assert_eq!(join(page, "/x.whl"), "https://h:8080/x.whl");
        assert_eq!(join(page, "x.whl"), "https://h:8080/a/simple/x/x.whl");
        assert_eq!(join(page, "//g/x.whl"), "https://g/x.whl");
        assert_eq!(join(page, "http://g/x.whl"), "http://g/x.whl");
    }

    #[test]
    fn credentials_leave_the_address() {
        let (url, auth) = split_credentials("https://me%40x:p%3aw@host:1/simple");
        assert_eq!((&*url, auth.as_deref()), ("https://host:1/simple", Some("Basic bWVAeDpwOnc=")));
        assert_eq!(split_credentials("https://h/a@b"), ("https://h/a@b".into(), None));
        assert_eq!(percent_decode("%4"), b"%4");
    }

    #[test]
    fn origins() {
        assert_eq!(origin("https://h:1/a/b"), "https://h:1");
        assert_ne!(origin("https://host.evil/a"), origin("https://host/a"));
        assert_eq!(origin("https://h"), "https://h");
    }
}
