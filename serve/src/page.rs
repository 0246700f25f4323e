//! The page at `/`: its files are part of the program. It gets all that it shows from the same paths as other programs, with the same key.

use axum::Router;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::StatusCode;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Whether there is a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Page {
    /// At `/`, for browsers.
    #[default]
    Shown,
    /// None: there is nothing at `/`.
    Absent,
}

/// What a browser may load for it, and where it may send something: nothing but what this server has. Text of a model never becomes markup; if it did,
/// it could do nothing.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// A file of it.
struct File {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! file {
    ($path:literal, $kind:ident, $file:literal) => {
        File { path: $path, kind: $kind, text: include_str!(concat!("../page/", $file)) }
    };
}

const FILES: [File; 9] = [
    file!("/", HTML, "index.html"),
    file!("/page/style.css", CSS, "style.css"),
    file!("/page/icon.svg", SVG, "icon.svg"),
    file!("/page/main.js", SCRIPT, "main.js"),
    file!("/page/api.js", SCRIPT, "api.js"),
    file!("/page/chat.js", SCRIPT, "chat.js"),
    file!("/page/cluster.js", SCRIPT, "cluster.js"),
    file!("/page/dom.js", SCRIPT, "dom.js"),
    file!("/page/markdown.js", SCRIPT, "markdown.js"),
];

/// Whether a path is one of its files, which say nothing of a model or its users.
pub(crate) fn has(path: &str) -> bool {
    FILES.iter().any(|file| file.path == path)
}

/// The path of a file of it as metrics name it.
pub(crate) fn name_of(path: &str) -> &'static str {
    if path == "/" { "/" } else { "/page/{file}" }
}

/// Its routes.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.iter().fold(Router::new(), |router, file| {
        let tag = tag(file.text);
        router.route(file.path, get(move |headers: HeaderMap| std::future::ready(answer(file, &tag, &headers))))
    })
}

/// Says which text it is.
fn tag(text: &str) -> HeaderValue {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish())).unwrap_or(HeaderValue::from_static("\"\""))
}

fn answer(file: &File, tag: &HeaderValue, asked: &HeaderMap) -> Response {
    let same = asked.get(IF_NONE_MATCH).is_some_and(|known| known == tag);
    let mut response = if same { StatusCode::NOT_MODIFIED.into_response() } else { file.text.into_response() };
    let fixed: [(HeaderName, &'static str); 6] = [
        (CONTENT_TYPE, file.kind),
        // Asked for each time, and sent again only when the program is another one.
        (CACHE_CONTROL, "no-cache"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
    ];
    let headers = response.headers_mut();
    fixed.into_iter().for_each(|(name, value)| drop(headers.insert(name, HeaderValue::from_static(value))));
    headers.insert(ETAG, tag.clone());
    response
}
