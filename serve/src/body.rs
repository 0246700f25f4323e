//! The body of a request: read within limits of size, time, and of what all bodies have together.

use crate::blocking::Length;
use crate::error::{ApiError, Result};
use crate::limits::Limits;
use crate::params::{Params, parsed_bytes};
use crate::queue::Client;
use crate::room::Room;
use crate::service::Service;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use std::sync::Arc;
use tokio::time::Instant;

/// Reads the parameters of a request, and chooses the model that it means. The room is what it takes of that for all bodies, until it has become tokens.
pub(crate) async fn read(service: Service, request: Request) -> Result<(Service, Params, Arc<Room>)> {
    let limits = &service.options().limits;
    let until = Instant::now() + limits.body_time;
    if let Err(error) = check_head(limits, request.headers()) {
        // Who asks first has not sent it.
        if !request.headers().contains_key(EXPECT) {
            throw_away(request.into_body(), until).await;
        }
        return Err(error);
    }
    let late = |_| {
        let seconds = limits.body_time.as_secs();
        ApiError::new(StatusCode::REQUEST_TIMEOUT, format!("the body did not come within {seconds} s"))
    };
    let client = request.extensions().get::<Client>().cloned().unwrap_or(Client::Unknown);
    let mut body = request.into_body();
    let reading = collect(&mut body, limits.body, service.rooms().enter(client));
    let (bytes, mut room) = match tokio::time::timeout_at(until, reading).await.map_err(late)? {
        Err(error) if error.status == StatusCode::PAYLOAD_TOO_LARGE => {
            throw_away(body, until).await;
            return Err(error);
        }
        collected => collected?,
    };
    room.hold(parsed_bytes(&bytes))?;
    let room = Arc::new(room);
    // Large ones are parsed where no connection waits for it.
    let mut params = match Length::of(&room) {
        Length::Short => Params::parse(&bytes)?,
        Length::Long | Length::Form => service.work(&room, move |_| Params::parse(&bytes)).await?,
    };
    Ok((service.of(&mut params)?, params, room))
}

/// Refuses what can be refused before the body comes.
fn check_head(limits: &Limits, headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    // What pages may send anywhere without asking is of another type.
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "the body must be JSON, with 'Content-Type: application/json'";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let is_plain = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        let message = "the body must come as it is, without 'Content-Encoding'";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > limits.body as u64) { Err(too_large(limits.body)) } else { Ok(()) }
}

fn too_large(most: usize) -> ApiError {
    let message = format!("a body has at most {most} bytes; pictures and sound are not read here");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("request_too_large")
}

/// Reads a body that is not taken, to a limit: many clients read no answer before they have sent all, and would only see that the connection is closed.
async fn throw_away(mut body: Body, until: Instant) {
    const MOST: usize = 64 << 20;
    let reading = async {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, Bytes::len);
            if read > MOST {
                break;
            }
        }
    };
    // The answer is the same.
    let _ = tokio::time::timeout_at(until, reading).await;
}

async fn collect(body: &mut Body, most: usize, mut room: Room) -> Result<(Vec<u8>, Room)> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let broken = |_| ApiError::new(StatusCode::BAD_REQUEST, "the body has broken off");
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if data.len() > most - bytes.len() {
            return Err(too_large(most));
        }
        room.grow(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok((bytes, room))
}
