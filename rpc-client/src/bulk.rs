//! The bulk threads of an endpoint: for each its connection, and a task for each queue that moves large payloads on it.

use crate::link::Shared;
use crate::queue::QueueInner;
use crate::replies;
use crate::transport::{self, Conn, Opened, Purpose, runtime};
use outboard_core::Result;
use std::sync::Arc;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Starts a thread; it connects at once.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<UnboundedSender<Arc<QueueInner>>> {
    let runtime = runtime().map_err(|e| shared.lost(format!("no event loop: {e}")))?;
    let (queues, todo) = unbounded_channel();
    let state = shared.clone();
    let spawned = std::thread::Builder::new().name(format!("bulk {}", shared.name)).spawn(move || {
        runtime.block_on(run(&state, todo));
        runtime.shutdown_background();
    });
    spawned.map_err(|e| shared.lost(format!("no thread: {e}")))?;
    Ok(queues)
}

async fn run(shared: &Arc<Shared>, mut todo: UnboundedReceiver<Arc<QueueInner>>) {
    let opening = transport::open(&shared.dialer, &shared.counters, Purpose::Bulk);
    let Opened { conn, mut driver, .. } = match tokio::time::timeout(shared.options.connect_timeout, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(e)) => return shared.kill(e),
        Err(_) => return shared.kill(shared.lost("no connection for bulk data within the deadline")),
    };
    tokio::select! {
        why = &mut driver => {
            if !shared.leaving() {
                shared.kill(shared.lost(why));
            }
        }
        () = streams(shared, &conn, &mut todo) => {}
        () = shared.until_over() => {}
    }
}

async fn streams(shared: &Arc<Shared>, conn: &Conn, todo: &mut UnboundedReceiver<Arc<QueueInner>>) {
    while let Some(queue) = todo.recv().await {
        tokio::spawn(replies::receive_bulk(shared.clone(), conn.clone(), queue));
    }
}
