//! A client by hand, for weights as content: it says which digests, lengths and bytes it likes.

use crate::raw::{Conn, Stream};
use bytes::Bytes;
use outboard_core::Digest;
use outboard_proto::blobs::{Blob, Place, encode_places, encode_question};
use outboard_proto::limits::CHUNK;
use outboard_proto::v1::command::Command as C;
use outboard_proto::v1::control_request::Request as R;
use outboard_proto::v1::{self, reply::Reply};
use prost::Message;
use std::net::SocketAddr;

/// The device that these clients use.
pub const DEVICE: &str = "CPU0";

/// The digest of bytes.
pub fn digest(data: &[u8]) -> Digest {
    Digest(*blake3::hash(data).as_bytes())
}

/// Bytes as a blob.
pub fn blob(data: &[u8]) -> Blob {
    Blob { digest: digest(data), len: data.len() as u64 }
}

/// A digest that nothing has.
pub fn wrong(len: usize) -> Blob {
    Blob { digest: Digest([0x77; 32]), len: len as u64 }
}

/// A session. Its buffer 1 is on [`DEVICE`].
pub struct Sender {
    /// Its connection.
    pub conn: Conn,
    /// Its session.
    pub session: v1::Session,
    control: Stream,
    queues: u64,
}

impl Sender {
    /// With a buffer of `size` bytes.
    pub async fn new(addr: SocketAddr, token: Option<&str>, size: u64) -> Sender {
        let conn = Conn::open(addr).await.unwrap();
        let conn = token.into_iter().fold(conn, Conn::with_token);
        let session = conn.hello().await.unwrap().session.unwrap();
        let control = conn.control(R::Attach(session.clone())).await.unwrap();
        let mut sender = Sender { conn, session, control, queues: 0 };
        sender.alloc(1, size).await;
        sender
    }

    /// Makes a buffer, and waits until it is there.
    pub async fn alloc(&mut self, buffer: u64, size: u64) {
        let alloc = v1::Alloc { request: 1, buffer, device: DEVICE.into(), size, usage: "ANY".into() };
        self.control.request(R::Alloc(alloc));
        loop {
            let reply: v1::ControlReply = self.control.next_as().await.unwrap().unwrap();
            if let Some(v1::control_reply::Reply::Done(done)) = reply.reply {
                return assert_eq!(done.error, None);
            }
        }
    }

    /// Ends the session.
    pub async fn goodbye(mut self) {
        self.control.goodbye().await.unwrap();
    }

    /// A call to place blobs in the first buffer, without waiting for its answer.
    pub async fn placing(&self, places: &[(Blob, u64)]) -> Stream {
        let request = v1::PlaceBlobsRequest { session: Some(self.session.clone()), blobs: encoded(places) };
        self.start("PlaceBlobs", &request).await
    }

    /// A call to check blobs in the first buffer, without waiting for its answer.
    pub async fn checking(&self, places: &[(Blob, u64)]) -> Stream {
        let request = v1::CheckBlobsRequest { session: Some(self.session.clone()), blobs: encoded(places) };
        self.start("CheckBlobs", &request).await
    }

    /// A call that asks for blobs, without waiting for its answer.
    pub async fn asking(&self, blobs: &[Blob]) -> Stream {
        let request = v1::HaveBlobsRequest { session: Some(self.session.clone()), blobs: encode_question(blobs) };
        self.start("HaveBlobs", &request).await
    }

    async fn start(&self, method: &str, request: &impl Message) -> Stream {
        let mut call = self.conn.stream(&format!("outboard.v1.Outboard/{method}")).await.unwrap();
        call.send(request);
        call.close();
        call
    }

    /// Which of these were placed in the first buffer: one bit for each.
    pub async fn place(&self, places: &[(Blob, u64)]) -> Result<Vec<u8>, String> {
        let answer = self.placing(places).await.next().await?.ok_or("no answer")?;
        Ok(v1::PlaceBlobsResponse::decode(answer).unwrap().placed.to_vec())
    }

    /// Which of these were found in the first buffer: one bit for each.
    pub async fn check(&self, places: &[(Blob, u64)]) -> Result<Vec<u8>, String> {
        let answer = self.checking(places).await.next().await?.ok_or("no answer")?;
        Ok(v1::CheckBlobsResponse::decode(answer).unwrap().good.to_vec())
    }

    /// A new queue with its bulk stream.
    pub async fn queue(&mut self) -> Line {
        self.queues += 1;
        let commands = self.conn.queue(&self.session, self.queues, DEVICE).await.unwrap();
        let bulk = self.conn.bulk(&self.session, self.queues).await.unwrap();
        Line { commands, bulk }
    }

    /// Sends a blob on a queue of its own: the error that comes of it, if one does.
    pub async fn send(&mut self, blob: Blob, offset: u64, data: &[u8]) -> Option<String> {
        let mut line = self.queue().await;
        line.announce(1, blob, offset);
        line.data(1, data);
        line.finish().await
    }

    /// Bytes of the first buffer.
    pub async fn read(&mut self, offset: u64, len: u64) -> Vec<u8> {
        let mut line = self.queue().await;
        let mut all = Vec::new();
        for at in (0..len).step_by(1 << 16) {
            let src = Some(v1::Slice { buffer: 1, offset: offset + at, len: (len - at).min(1 << 16) });
            line.command(C::Read(v1::Read { request: 7, src, bulk: false }));
        }
        while (all.len() as u64) < len {
            match line.reply().await {
                Reply::Data(data) => all.extend_from_slice(&data.data),
                Reply::Opened(_) => {}
                other => panic!("{other:?}"),
            }
        }
        all
    }

    /// Fills the first bytes of the first buffer.
    pub async fn fill(&mut self, len: u64, value: u32) {
        let mut line = self.queue().await;
        line.command(C::Fill(v1::Fill { dst: Some(v1::Slice { buffer: 1, offset: 0, len }), value }));
        assert_eq!(line.finish().await, None);
    }
}

fn encoded(places: &[(Blob, u64)]) -> Bytes {
    let place = |&(blob, offset): &(Blob, u64)| Place { blob, buffer: 1, offset };
    encode_places(&places.iter().map(place).collect::<Vec<_>>())
}

/// A queue with its bulk stream.
pub struct Line {
    commands: Stream,
    bulk: Stream,
}

impl Line {
    /// Sends a command.
    pub fn command(&self, command: C) {
        self.commands.command(command);
    }

    /// Says that a blob comes to the first buffer.
    pub fn announce(&self, transfer: u64, blob: Blob, offset: u64) {
        let dst = Some(v1::Slice { buffer: 1, offset, len: blob.len });
        let digest = Bytes::copy_from_slice(&blob.digest.0);
        self.command(C::WriteBulk(v1::WriteBulk { transfer, dst, digest }));
    }

    /// Sends bytes of it.
    pub fn data(&self, transfer: u64, data: &[u8]) {
        for part in data.chunks(CHUNK) {
            self.bulk.chunk(transfer, Bytes::copy_from_slice(part));
        }
    }

    async fn reply(&mut self) -> Reply {
        self.commands.next_as::<v1::Reply>().await.unwrap().expect("a reply, and not the end").reply.unwrap()
    }

    /// Waits until everything is done: the error that the queue fails with, if it does.
    pub async fn finish(&mut self) -> Option<String> {
        self.command(C::Finish(v1::Finish { request: 9 }));
        let mut failed = None;
        loop {
            match self.reply().await {
                Reply::Failed(e) => failed = Some(format!("{e:?}")),
                Reply::Done(v1::Done { error, .. }) => return failed.or(error.map(|e| format!("{e:?}"))),
                Reply::Opened(_) | Reply::Data(_) => {}
            }
        }
    }
}
