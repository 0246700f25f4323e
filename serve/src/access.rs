//! Whom a service answers: the host that a request has asked for, and the key that it shows.

use crate::api::RequestId;
use crate::error::ApiError;
use crate::options::Hosts;
use crate::page::{self, Page};
use crate::queue::Client;
use crate::service::Service;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use http::{Method, StatusCode, Uri};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use tracing::Level;

/// Whether a path says nothing of a model or its users, so that nobody needs a key for it: for those who look whether the server lives, and the page,
/// which asks for one.
fn is_open(service: &Service, path: &str) -> bool {
    path == "/health" || (service.options().page == Page::Shown && page::has(path))
}

/// Lets a request through, with its [`Client`], or answers it.
pub(crate) async fn admit(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    match client(&service, &request) {
        Ok(client) => {
            let asked = tracing::enabled!(Level::INFO).then(|| Asked::new(&request, &client));
            request.extensions_mut().insert(client);
            let mut response = next.run(request).await;
            if let Some(asked) = asked {
                asked.log(&response);
            }
            if service.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
        Err(error) => {
            let is_unknown = error.status == StatusCode::UNAUTHORIZED;
            let why = if is_unknown { "key" } else { "host" };
            service.metrics().refused(why);
            let status = error.status.as_u16();
            tracing::info!("{} {:?} {status}: refused for its {why}", request.method(), path(&request));
            let mut response = error.into_response();
            if is_unknown {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

/// What the log has of a request's path.
fn path(request: &Request) -> String {
    request.uri().path().chars().take(100).collect()
}

/// What the log says of a request that was let through, for those who look: never a text.
struct Asked {
    method: Method,
    path: String,
    client: String,
    id: String,
    since: Instant,
}

impl Asked {
    fn new(request: &Request, client: &Client) -> Asked {
        Asked {
            method: request.method().clone(),
            path: path(request),
            client: client.to_string(),
            id: request.extensions().get::<RequestId>().map(|id| id.0.clone()).unwrap_or_default(),
            since: Instant::now(),
        }
    }

    /// A stream goes on behind its head.
    fn log(&self, response: &Response) {
        let Asked { method, path, client, id, since } = self;
        let (status, ms) = (response.status().as_u16(), since.elapsed().as_millis());
        tracing::info!("{method} {path:?} {status} {ms} ms, {client}, {id}");
    }
}

fn client<B>(service: &Service, request: &http::Request<B>) -> Result<Client, ApiError> {
    // The hosts before this one, if there are any, may have looked at another one than is looked at here.
    if request.headers().get_all(HOST).iter().count() > 1 {
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "the request has more than one Host"));
    }
    let options = service.options();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let address = || peer.map_or(Client::Unknown, Client::at);
    let Some(keys) = &options.keys else {
        // Old programs say no host; browsers always do.
        let Some(host) = host(request.headers(), request.uri()) else { return Ok(address()) };
        let is_good = match &options.hosts {
            Hosts::Any => true,
            Hosts::Local => is_local(host),
            Hosts::Private(names) => is_private(host, names),
        };
        return if is_good { Ok(address()) } else { Err(refused_host(host, &options.hosts)) };
    };
    if is_open(service, request.uri().path()) {
        return Ok(address());
    }
    let unknown = |message: &str| ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key");
    let key = key(request.headers()).ok_or_else(|| {
        unknown("this server asks for a key: send it as 'Authorization: Bearer KEY', or as 'x-api-key: KEY'")
    })?;
    keys.name_of(key).map(Client::Key).ok_or_else(|| unknown("this key is not known here; it may have been replaced"))
}

/// The error of a request whose host is a name that somebody outside may have made to mean this one.
fn refused_host(host: &str, hosts: &Hosts) -> ApiError {
    let names = match hosts {
        Hosts::Local => "IP addresses and localhost",
        Hosts::Private(_) | Hosts::Any => "IP addresses and names of a private network",
    };
    let host: String = host.chars().take(100).collect();
    let message = format!(
        "the Host of this request, '{host}', is refused: without keys (--api-key-file), so that no page of somebody else can use it, this server answers to \
         {names} alone, and to names that it is started with (--allow-host)"
    );
    ApiError::new(StatusCode::FORBIDDEN, message)
}

/// The key that a request shows, as programs for OpenAI's API do or as those for Anthropic's.
fn key(headers: &HeaderMap) -> Option<&str> {
    let Some(shown) = headers.get(AUTHORIZATION) else {
        return headers.get("x-api-key")?.to_str().ok().map(str::trim);
    };
    let (scheme, key) = shown.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// The host that a request has asked for, without its port; nothing that is a host if it is not written as one.
fn host<'r>(headers: &'r HeaderMap, uri: &'r Uri) -> Option<&'r str> {
    let said = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
    let host = said.or_else(|| uri.host())?;
    Some(match host.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, port)) if port.is_empty() || port.starts_with(':') => address,
            _ => "",
        },
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    })
}

/// Whether a host is an address, or a name that means this host everywhere.
fn is_local(host: &str) -> bool {
    let name = host.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || host.parse::<IpAddr>().is_ok()
}

/// Whether it is that, one of these names, or a name that nobody can have outside of a private network.
fn is_private(host: &str, names: &[String]) -> bool {
    const ENDINGS: [&str; 4] = [".local", ".lan", ".internal", ".home.arpa"];
    let name = host.to_ascii_lowercase();
    let is_plain = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    is_local(host)
        || is_plain
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
        || names.iter().any(|own| own.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_do_not_mean_this_host() {
        let with = |host: &str, good: &dyn Fn(&str) -> bool| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            super::host(&headers, &Uri::from_static("/")).is_none_or(good)
        };
        let local = |host: &str| with(host, &is_local);
        let private = |host: &str| with(host, &|host| is_private(host, &["gpu.example.org".into()]));
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "10.0.0.1", "a.localhost:80"] {
            assert!(local(host) && private(host), "{host}");
        }
        for host in ["gpubox", "gpubox:8080", "GPUBOX.lan:8080", "a.b.home.arpa", "gpu.example.org:8080"] {
            assert!(private(host) && !local(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8080",
            "localhost.evil.example",
            "lan.evil.example",
            "",
            "evillan.",
            "[::1",
            "[::1]evil",
        ] {
            assert!(!local(host) && !private(host), "{host}");
        }
        assert!(!local("[evil]") && !local("notlocalhost"));
        assert_eq!(super::host(&HeaderMap::new(), &Uri::from_static("/")), None);
    }

    #[test]
    fn keys_come_in_two_headers() {
        let with = |name: &'static str, value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            key(&headers).map(str::to_owned)
        };
        assert_eq!(with("authorization", "bearer  abc ").as_deref(), Some("abc"));
        assert_eq!(with("x-api-key", "abc").as_deref(), Some("abc"));
        assert_eq!(
            [with("authorization", "Basic abc"), with("authorization", "abc"), with("cookie", "abc")],
            [const { None }; 3]
        );
    }
}
