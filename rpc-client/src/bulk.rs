//! The bulk threads of an endpoint: for each its connection, and a task for each queue that moves large payloads on it.

use crate::connection::Connection;
use crate::queue::QueueInner;
use crate::replies;
use crate::transport::{self, Opened, Purpose, runtime};
use outboard_core::Result;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

/// A connection that no queue has used for this long is closed: most have their time when weights are loaded.
const IDLE: Duration = Duration::from_secs(5);

/// Starts the thread of a connection; it connects at once.
pub(crate) fn start(connection: &Arc<Connection>, number: usize) -> Result<UnboundedSender<Arc<QueueInner>>> {
    let runtime = runtime().map_err(|e| connection.lost(format!("no event loop: {e}")))?;
    let (queues, todo) = unbounded_channel();
    let state = connection.clone();
    let spawned = std::thread::Builder::new().name(format!("bulk {}", connection.name)).spawn(move || {
        runtime.block_on(run(&state, number, todo));
        runtime.shutdown_background();
    });
    spawned.map_err(|e| connection.lost(format!("no thread: {e}")))?;
    Ok(queues)
}

async fn run(connection: &Arc<Connection>, number: usize, mut todo: UnboundedReceiver<Arc<QueueInner>>) {
    let opening = transport::open(&connection.dialer, &connection.counters, Purpose::Bulk);
    let Opened { conn, mut driver, .. } = match tokio::time::timeout(connection.options.connect_timeout, opening).await
    {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => return connection.kill(e),
        Err(_) => return connection.kill(connection.lost("no connection for bulk data within the deadline")),
    };
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            why = &mut driver => {
                // One that nobody uses is no loss: the next queue gets another.
                let unused = streams.is_empty() && connection.leave_bulk(number, &todo);
                if !unused && !connection.leaving() {
                    connection.kill(connection.lost(why));
                }
                return;
            }
            Some(queue) = todo.recv() => {
                streams.spawn(replies::receive_bulk(connection.clone(), conn.clone(), queue));
            }
            Some(_) = streams.join_next() => {}
            () = tokio::time::sleep(IDLE), if streams.is_empty() => {
                if connection.leave_bulk(number, &todo) {
                    return;
                }
            }
            () = connection.until_over() => return,
        }
    }
}
