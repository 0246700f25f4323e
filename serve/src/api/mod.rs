//! What is where.

mod chat;
mod cluster;
mod common;
mod completions;
mod embeddings;
mod messages;
mod responses;
mod status;
mod tokens;

use crate::access::admit;
use crate::error::ApiError;
use crate::page::{self, Page};
use crate::service::Service;
use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};
use http::{Method, StatusCode};
use std::any::Any;
use std::sync::LazyLock;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// Every path, with what answers it.
fn routes() -> [(&'static str, MethodRouter<Service>); 16] {
    [
        ("/health", get(status::health)),
        ("/cluster", get(cluster::cluster)),
        ("/metrics", get(status::metrics)),
        ("/props", get(status::props)),
        ("/slots", get(status::slots)),
        ("/tokenize", post(tokens::tokenize)),
        ("/detokenize", post(tokens::detokenize)),
        ("/tokenizer_info", get(tokens::info)),
        ("/v1/models", get(status::models)),
        ("/v1/models/{model}", get(status::model)),
        ("/v1/completions", post(completions::answer)),
        ("/v1/embeddings", post(embeddings::answer)),
        ("/v1/chat/completions", post(chat::answer)),
        ("/v1/responses", post(responses::answer)),
        ("/v1/messages", post(messages::answer)),
        ("/v1/messages/count_tokens", post(messages::count)),
    ]
}

/// Every path, as metrics name it.
static PATHS: LazyLock<Vec<&str>> = LazyLock::new(|| routes().map(|(path, _)| path).into());

/// The routes of a service.
pub(crate) fn router(service: &Service) -> Router {
    let page = match service.options().page {
        Page::Shown => page::router(),
        Page::Absent => Router::new(),
    };
    let routes = routes().into_iter().fold(page, |router, (path, answer)| router.route(path, answer));
    let routes = routes.method_not_allowed_fallback(wrong_method).fallback(nothing_here).with_state(service.clone());
    let routes = routes.layer(from_fn_with_state(service.clone(), admit)).layer(CatchPanicLayer::custom(panicked));
    let routes = routes.layer(from_fn_with_state(service.clone(), count));
    match cors(service) {
        Some(cors) => routes.layer(cors),
        None => routes,
    }
}

fn cors(service: &Service) -> Option<CorsLayer> {
    let origins = service.origins();
    let origin = match origins {
        [] => return None,
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        origins => AllowOrigin::list(origins.iter().cloned()),
    };
    // Clients of OpenAI and Anthropic send headers of their own from a page.
    let headers = AllowHeaders::mirror_request();
    let layer = CorsLayer::new()
        .allow_origin(origin)
        .allow_headers(headers)
        .expose_headers([vec![RETRY_AFTER], REQUEST_IDS.to_vec()].concat());
    Some(layer.allow_methods([Method::GET, Method::POST]))
}

/// What a request is called in the log and in its answer.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// As OpenAI and Anthropic call it.
const REQUEST_IDS: [HeaderName; 2] = [HeaderName::from_static("x-request-id"), HeaderName::from_static("request-id")];

/// Counts answers, and gives errors the shape that programs for the API of their path know.
async fn count(State(service): State<Service>, mut request: Request, next: Next) -> Response {
    let id = RequestId(common::id("req_"));
    request.extensions_mut().insert(id.clone());
    let mut response = counted(&service, request, next, &id).await;
    for name in REQUEST_IDS {
        if let Ok(id) = HeaderValue::from_str(&id.0) {
            response.headers_mut().insert(name, id);
        }
    }
    response
}

async fn counted(service: &Service, request: Request, next: Next, RequestId(id): &RequestId) -> Response {
    let path = request.uri().path();
    let is_anthropic = path.starts_with("/v1/messages");
    let matched = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let shown = match PATHS.iter().find(|known| **known == matched) {
        Some(known) => known,
        None if page::has(path) => page::name_of(path),
        None => "other",
    };
    let mut response = next.run(request).await;
    service.metrics().request(shown, response.status().as_u16());
    let error = ApiError::of(response.extensions_mut());
    if let Some(error) = &error {
        error.log(format_args!("{shown}, {id}"));
    }
    match error.filter(|_| is_anthropic) {
        Some(error) => {
            let body = error.anthropic();
            let headers = std::mem::take(response.headers_mut());
            let mut response = error.response(&body);
            let others = headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
            for (name, value) in others.filter(|(name, _)| name != http::header::CONTENT_LENGTH) {
                response.headers_mut().insert(name, value);
            }
            response
        }
        None => response,
    }
}

async fn nothing_here(request: Request) -> ApiError {
    let path: String = request.uri().path().chars().take(100).collect();
    let message = format!("there is nothing at {path}; there are {}", PATHS.join(", "));
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_url")
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("{} is not a method of {}", request.method(), request.uri().path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_allowed")
}

fn panicked(_: Box<dyn Any + Send + 'static>) -> Response {
    let message = "a bug of the server: the request could not be worked on; its log has more";
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use http_body_util::BodyExt;
    use tower::Service as _;

    #[test]
    fn a_panic_is_an_answer() {
        async fn broken() -> &'static str {
            panic!("this is what the test is about")
        }
        let mut router: Router = Router::new().route("/", get(broken)).layer(CatchPanicLayer::custom(panicked));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (status, body) = runtime.block_on(async {
            let answer = router.call(http::Request::new(Body::empty())).await.unwrap();
            (answer.status(), answer.into_body().collect().await.unwrap().to_bytes())
        });
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status.as_u16(), body["error"]["type"].as_str()), (500, Some("server_error")));
    }
}
