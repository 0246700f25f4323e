//! The bulk threads of an endpoint: for each its connection, and a task for each queue that moves large payloads on it.

use crate::link::Shared;
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
pub(crate) fn start(shared: &Arc<Shared>, number: usize) -> Result<UnboundedSender<Arc<QueueInner>>> {
    let runtime = runtime().map_err(|e| shared.lost(format!("no event loop: {e}")))?;
    let (queues, todo) = unbounded_channel();
    let state = shared.clone();
    let spawned = std::thread::Builder::new().name(format!("bulk {}", shared.name)).spawn(move || {
        runtime.block_on(run(&state, number, todo));
        runtime.shutdown_background();
    });
    spawned.map_err(|e| shared.lost(format!("no thread: {e}")))?;
    Ok(queues)
}

async fn run(shared: &Arc<Shared>, number: usize, mut todo: UnboundedReceiver<Arc<QueueInner>>) {
    let opening = transport::open(&shared.dialer, &shared.counters, Purpose::Bulk);
    let Opened { conn, mut driver, .. } = match tokio::time::timeout(shared.options.connect_timeout, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => return shared.kill(e),
        Err(_) => return shared.kill(shared.lost("no connection for bulk data within the deadline")),
    };
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            why = &mut driver => {
                // One that nobody uses is no loss: the next queue gets another.
                let unused = streams.is_empty() && shared.leave_bulk(number, &todo);
                if !unused && !shared.leaving() {
                    shared.kill(shared.lost(why));
                }
                return;
            }
            Some(queue) = todo.recv() => {
                streams.spawn(replies::receive_bulk(shared.clone(), conn.clone(), queue));
            }
            Some(_) = streams.join_next() => {}
            () = tokio::time::sleep(IDLE), if streams.is_empty() => {
                if shared.leave_bulk(number, &todo) {
                    return;
                }
            }
            () = shared.until_over() => return,
        }
    }
}
