//! Asks a service for its cluster, or an rpc-server for its metrics.

use super::metrics::{Metrics, Sample};
use super::seen::Cluster;
use crate::args::usage;
use crate::fetch::pypi::{roots, system_roots};
use anyhow::{Context, Result, anyhow};
use outboard_output as output;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use ureq::http::StatusCode;
use ureq::tls::TlsConfig;

/// A server that has not answered after this long is told of.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest answer that is read.
const MOST: u64 = 16 << 20;

/// What has come, or why nothing has.
pub(super) type Answer = std::result::Result<Seen, String>;

/// What a server says.
#[derive(Clone, Debug)]
pub(super) enum Seen {
    Cluster(Box<Cluster>),
    Metrics(Metrics),
}

/// A server, and how to ask it.
pub(super) struct Source {
    agent: ureq::Agent,
    url: String,
    /// Which of its models.
    model: Option<String>,
    key: Option<String>,
    /// Metrics of the last answer, for rates.
    before: Option<Sample>,
}

impl Source {
    pub(super) fn new(url: &str, model: Option<&str>, key: Option<&Path>, ca: Option<&Path>) -> Result<Source> {
        // Where somebody has copied it from.
        let url = url.trim_end_matches('/').trim_end_matches("/v1").trim_end_matches("/metrics");
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(usage(format_args!("{url}: should be a URL such as http://127.0.0.1:8080")));
        }
        let roots = match ca {
            Some(path) => roots(path).with_context(|| format!("--ca {}", path.display()))?,
            None => system_roots(),
        };
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).http_status_as_error(false);
        let config = config.tls_config(TlsConfig::builder().root_certs(roots).build());
        let key = key.map(read_key).transpose()?;
        let (url, model) = (url.to_owned(), model.map(str::to_owned));
        Ok(Source { agent: config.build().into(), url, model, key, before: None })
    }

    pub(super) fn ask(&mut self) -> Answer {
        let (status, text) = self.get("/cluster")?;
        match status {
            StatusCode::OK => {
                let seen = serde_json::from_str(&text).map_err(|e| format!("/cluster says something else: {e}"))?;
                Ok(Seen::Cluster(Box::new(seen)))
            }
            StatusCode::NOT_FOUND if self.model.is_some() => {
                Err("it has no such model: /v1/models has their names".into())
            }
            // An rpc-server has metrics alone.
            StatusCode::NOT_FOUND => match self.get("/metrics")? {
                (StatusCode::OK, text) => Ok(Seen::Metrics(self.metrics(&text))),
                (status, _) => Err(format!("it has neither /cluster nor /metrics: status {}", status.as_u16())),
            },
            StatusCode::UNAUTHORIZED => {
                Err("it asks for a key: give --api-key-file, or one with another key in it".into())
            }
            status => Err(format!("it answers with status {}", status.as_u16())),
        }
    }

    fn metrics(&mut self, text: &str) -> Metrics {
        let now = Sample::parse(text);
        let metrics = Metrics::between(self.before.as_ref(), &now);
        self.before = Some(now);
        metrics
    }

    fn get(&self, path: &str) -> std::result::Result<(StatusCode, String), String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(model) = self.model.as_ref().filter(|_| path == "/cluster") {
            request = request.query("model", model);
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let told = |e: ureq::Error| match e {
            ureq::Error::Io(e) if e.kind() == ErrorKind::ConnectionRefused => {
                "nothing listens there: is `outboard serve` running, and on this port?".into()
            }
            e => output::one_line(&e.to_string()),
        };
        let mut response = request.call().map_err(told)?;
        let text = response.body_mut().with_config().limit(MOST).read_to_string().map_err(told)?;
        Ok((response.status(), text))
    }
}

/// The key of a file: the last word of its first line, so that a server's own file with `name key` serves, too.
fn read_key(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).with_context(|| format!("--api-key-file {}", path.display()))?;
    let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let key = line.and_then(|line| line.split_whitespace().last());
    key.map(str::to_owned).ok_or_else(|| anyhow!("--api-key-file {}: there is no key in it", path.display()))
}
