//! What comes back on the streams of a queue.

use crate::connection::Connection;
use crate::queue::QueueInner;
use crate::transport::{Conn, describe};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use outboard_core::Error;
use outboard_proto::chunk::{ChunkReader, Direction, Piece};
use outboard_proto::error::from_status;
use outboard_proto::v1::{self, reply::Reply};
use std::sync::Arc;
use tonic::{Code, Status};

/// Runs the stream of a queue until it ends.
pub(crate) async fn receive(connection: Arc<Connection>, conn: Conn, queue: Arc<QueueInner>) {
    let error = match conn.stream::<v1::Reply>("Queue", queue.lane.clone()).await {
        Err(why) => connection.lost(why),
        Ok(mut stream) => loop {
            match stream.message().await {
                Ok(Some(reply)) => handle(&connection, &queue, reply),
                Ok(None) => break connection.lost("the server has closed a queue"),
                Err(status) => break from_status(&status, &connection.name),
            }
        },
    };
    settle(&connection).await;
    queue.fail(&error);
}

fn handle(connection: &Connection, queue: &QueueInner, reply: v1::Reply) {
    match reply.reply {
        Some(Reply::Data(data)) => queue.data(data.request, data.data),
        Some(Reply::Done(done)) => queue.done(done.request, done.error.map(|e| connection.error(e))),
        Some(Reply::Failed(error)) => queue.poisoned(connection.error(error)),
        Some(Reply::Opened(_)) | None => {}
    }
}

/// Runs the bulk stream of a queue until it ends.
pub(crate) async fn receive_bulk(connection: Arc<Connection>, conn: Conn, queue: Arc<QueueInner>) {
    let error = match conn.open("/outboard.v1.Bulk/Transfer", queue.bulk.clone()).await {
        Err(why) => connection.lost(why),
        Ok(response) => chunks(&connection, &queue, response.into_body()).await,
    };
    settle(&connection).await;
    queue.fail(&error);
}

/// Hands out chunks until the stream ends, and says why it did.
async fn chunks(connection: &Connection, queue: &QueueInner, mut body: Incoming) -> Error {
    let mut reader = ChunkReader::new(Direction::Down);
    loop {
        let mut input = match body.frame().await {
            None => return connection.lost("the server has closed a bulk stream"),
            Some(Err(e)) => return connection.lost(describe(&e)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    let status = frame.trailers_ref().and_then(Status::from_header_map);
                    match status.filter(|s| s.code() != Code::Ok) {
                        Some(status) => return from_status(&status, &connection.name),
                        None => continue,
                    }
                }
            },
        };
        loop {
            match reader.next(&mut input) {
                Ok(Some(Piece::Data { transfer, data })) => queue.chunk(transfer, &data),
                Ok(Some(Piece::Message(_))) => {}
                Ok(None) => break,
                Err(e) => return connection.lost(e.to_string()),
            }
        }
    }
}

/// A stream that ends with its connection lets that one say why.
async fn settle(connection: &Connection) {
    if !connection.leaving() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
