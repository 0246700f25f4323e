//! Whom a service answers: the host that a request has asked for, and the key that it shows.

use crate::error::ApiError;
use crate::page::{self, Page};
use crate::queue::Client;
use crate::service::{Hosts, Service};
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderMap, HeaderValue, WWW_AUTHENTICATE};
use http::{StatusCode, Uri};
use std::net::{IpAddr, SocketAddr};

/// Whether a path says nothing of a model or its users, so that nobody needs a key for it: for those who look whether the server lives, and the page,
/// which asks for one.
fn is_open(service: &Service, path: &str) -> bool {
    path == "/health" || (service.options().page == Page::Shown && page::has(path))
}

/// Lets a request through, with its [`Client`], or answers it.
pub(crate) async fn admit(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    match client(&service, &request) {
        Ok(client) => {
            request.extensions_mut().insert(client);
            let mut response = next.run(request).await;
            if service.is_draining() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
        Err(error) => {
            let is_unknown = error.status == StatusCode::UNAUTHORIZED;
            service.metrics().refused(if is_unknown { "key" } else { "host" });
            let mut response = error.into_response();
            if is_unknown {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

fn client<B>(service: &Service, request: &http::Request<B>) -> Result<Client, ApiError> {
    let options = service.options();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip());
    let address = || peer.map_or(Client::Unknown, Client::at);
    let Some(keys) = &options.keys else {
        if options.hosts == Hosts::Local && !is_local(request.headers(), request.uri()) {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "this server is for programs of this host: say localhost or an address, or start it with --api-key-file",
            ));
        }
        return Ok(address());
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

/// The key that a request shows, as programs for OpenAI's API do or as those for Anthropic's.
fn key(headers: &HeaderMap) -> Option<&str> {
    let Some(shown) = headers.get(AUTHORIZATION) else {
        return headers.get("x-api-key")?.to_str().ok().map(str::trim);
    };
    let (scheme, key) = shown.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Whether a request has asked for an address, or for a name that means this host everywhere.
fn is_local(headers: &HeaderMap, uri: &Uri) -> bool {
    let said = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
    // Old programs say nothing; browsers always do.
    let Some(host) = said.or_else(|| uri.host()) else { return true };
    let bare = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    bare.eq_ignore_ascii_case("localhost")
        || bare.to_ascii_lowercase().ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_do_not_mean_this_host() {
        let local = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            is_local(&headers, &Uri::from_static("/"))
        };
        for host in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:8080", "10.0.0.1", "a.localhost:80"] {
            assert!(local(host), "{host}");
        }
        for host in ["evil.example", "evil.example:8080", "localhost.evil.example", "", "[evil]", "notlocalhost"] {
            assert!(!local(host), "{host}");
        }
        assert!(is_local(&HeaderMap::new(), &Uri::from_static("/")));
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
