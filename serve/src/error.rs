//! What a client is told when it does not get what it asked for.

use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Extensions, StatusCode};
use outboard::Error;
use serde_json::{Value, json};
use std::fmt;
use std::time::Duration;

/// An error as programs get it: [`ApiError::openai`] and [`ApiError::anthropic`] are its shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    message: String,
    /// The parameter that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
    retry_after: Option<Duration>,
}

/// A code of Anthropic's: its programs go on without threads then, and send what was said before.
pub(crate) const NO_THREADS: &str = "thread_unsupported_request";

/// Result with [`ApiError`].
pub(crate) type Result<T> = std::result::Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A parameter is wrong.
    pub(crate) fn of_param(param: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError { param: Some(param.into()), ..ApiError::new(StatusCode::BAD_REQUEST, message) }
    }

    /// A parameter is one that this server does not have.
    pub(crate) fn unsupported(param: impl Into<String>, why: &str) -> ApiError {
        let param = param.into();
        ApiError::of_param(param.clone(), format!("'{param}' is not supported here: {why}"))
            .with_code("unsupported_parameter")
    }

    pub(crate) fn with_status(self, status: StatusCode) -> ApiError {
        ApiError { status, ..self }
    }

    pub(crate) fn with_code(self, code: &'static str) -> ApiError {
        ApiError { code: Some(code), ..self }
    }

    /// It is this parameter that is wrong.
    pub(crate) fn about(self, param: &str) -> ApiError {
        ApiError { param: Some(param.to_owned()), ..self }
    }

    /// When to ask again, in whole seconds.
    pub(crate) fn retry_after(self, wait: Duration) -> ApiError {
        ApiError { retry_after: Some(wait), ..self }
    }

    /// The server stops.
    pub(crate) fn stopping() -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "the server stops; ask again in a moment")
            .with_code("stopping")
            .retry_after(Duration::from_secs(5))
    }

    /// As OpenAI's API has it.
    pub(crate) fn openai(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}})
    }

    /// As Anthropic's API has it.
    pub(crate) fn anthropic(&self) -> Value {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => "invalid_request_error",
        };
        let mut error = json!({"type": kind, "message": self.message});
        if let (Some(code @ NO_THREADS), Some(param)) = (self.code, &self.param) {
            error["details"] = json!({"error_code": code, "unsupported": [param]});
        }
        json!({"type": "error", "error": error})
    }

    /// The answer with a body of this shape.
    pub(crate) fn response(self, body: &Value) -> Response {
        let mut response = (self.status, body.to_string()).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs().max(1)));
        }
        response.extensions_mut().insert(self);
        response
    }

    /// Says it to who runs the server: what is a fault of the server or its devices at once, what the client is told anyway to who looks.
    pub(crate) fn log(&self, what: fmt::Arguments<'_>) {
        let (status, code, param) = (self.status.as_u16(), self.code, self.param.as_deref());
        let said = |what: &str, text: Option<&str>| text.map(|text| format!("{what}{text:?}")).unwrap_or_default();
        // Those that ask again later are no fault.
        let is_fault = self.status.is_server_error() && !matches!(self.code, Some("stopping" | "crowded"));
        if is_fault {
            tracing::warn!("{what}: {status}, {}", self.message);
        } else {
            tracing::info!("{what}: {status}{}{}", said(", code ", code), said(", parameter ", param));
        }
    }

    /// That of an answer that is an error, for another shape.
    pub(crate) fn of(extensions: &mut Extensions) -> Option<ApiError> {
        extensions.remove()
    }
}

/// A prompt of so many tokens does not fit. Programs know it by these words, Anthropic's and OpenAI's, and make their prompt shorter then.
fn too_long(tokens: usize, most: usize, n_ctx: usize) -> ApiError {
    let answer = if most < n_ctx { ", with one for the answer at least" } else { "" };
    let message = format!(
        "prompt is too long: {tokens} tokens > {most} maximum: this model's maximum context length is {n_ctx} tokens{answer}"
    );
    ApiError::new(StatusCode::BAD_REQUEST, message).with_code("context_length_exceeded")
}

/// The error of a text that is only read: it has no answer.
pub(crate) fn read_error(error: Error) -> ApiError {
    match error {
        Error::ContextFull { tokens, n_ctx, .. } => too_long(tokens, n_ctx, n_ctx),
        other => other.into(),
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.openai();
        self.response(&body)
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> ApiError {
        let message = error.to_string();
        let of = |status| ApiError::new(status, message.clone());
        match error {
            // One of them is for the answer.
            Error::ContextFull { tokens, used, n_ctx } => {
                too_long((used + tokens).saturating_sub(1), n_ctx.saturating_sub(1), n_ctx)
            }
            Error::CacheFull { .. } => of(StatusCode::BAD_REQUEST).with_code("context_length_exceeded"),
            Error::Request(_) => of(StatusCode::BAD_REQUEST),
            Error::Busy(_) => {
                of(StatusCode::SERVICE_UNAVAILABLE).with_code("crowded").retry_after(Duration::from_secs(1))
            }
            // Of a model that was opened: what it lacks, such as a template for chats.
            Error::Model { detail, .. } => ApiError::new(StatusCode::BAD_REQUEST, detail),
            Error::Cancelled => ApiError::stopping(),
            Error::Peer { .. }
            | Error::Device { .. }
            | Error::Timeout { .. }
            | Error::OutOfMemory { .. }
            | Error::DoesNotFit { .. } => {
                of(StatusCode::SERVICE_UNAVAILABLE).with_code("devices_failed").retry_after(Duration::from_secs(5))
            }
            _ => of(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }
}
