//! gRPC by hand: a client that can send what no generated code would.

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outboard_proto::chunk::{self, Direction};
use outboard_proto::frame::{FrameReader, HEADER};
use outboard_proto::limits::MAX_MESSAGE;
use outboard_proto::v1;
use outboard_proto::v1::command::Command;
use outboard_proto::v1::control_reply::Reply as ControlReply;
use outboard_proto::v1::control_request::Request;
use prost::Message;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::wrappers::UnboundedReceiverStream;

/// How long an answer may take that has to come.
pub const ANSWER: Duration = Duration::from_secs(20);

type Answer = Pin<Box<dyn Future<Output = hyper::Result<http::Response<Incoming>>> + Send>>;
type Body = StreamBody<UnboundedReceiverStream<Result<Frame<Bytes>, Infallible>>>;

/// A connection, without TLS.
#[derive(Clone, Debug)]
pub struct Conn {
    http: SendRequest<Body>,
    addr: SocketAddr,
    token: Option<String>,
}

/// Why there is no answer: what the server said, or how the connection broke.
pub type Refused = String;

impl Conn {
    /// Connects.
    pub async fn open(addr: SocketAddr) -> Result<Conn, Refused> {
        Conn::open_from(Ipv4Addr::LOCALHOST, addr).await
    }

    /// Connects from an address of the loopback interface.
    pub async fn open_from(from: Ipv4Addr, addr: SocketAddr) -> Result<Conn, Refused> {
        let open = async {
            let socket = connect_from(from, addr).await.map_err(|e| e.to_string())?;
            socket.set_nodelay(true).map_err(|e| e.to_string())?;
            Builder::new(TokioExecutor::new()).handshake(TokioIo::new(socket)).await.map_err(|e| e.to_string())
        };
        let (http, driver) = late(open).await??;
        tokio::spawn(driver);
        Ok(Conn { http, addr, token: None })
    }

    /// Shows a token with everything that it asks for.
    pub fn with_token(self, token: &str) -> Conn {
        Conn { token: Some(token.to_owned()), ..self }
    }

    /// Opens a stream to a method such as `outboard.v1.Outboard/Queue`.
    pub async fn stream(&self, method: &str) -> Result<Stream, Refused> {
        let (to, from) = unbounded_channel();
        let mut request =
            http::Request::post(format!("http://{}/{method}", self.addr)).header("content-type", "application/grpc");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(StreamBody::new(UnboundedReceiverStream::new(from))).map_err(|e| e.to_string())?;
        let mut http = self.http.clone();
        late(http.ready()).await?.map_err(|e| e.to_string())?;
        // A call is not answered before its message is there, so that nobody waits for the answer here.
        let answer = Box::pin(http.send_request(request));
        let frames = FrameReader::new(MAX_MESSAGE);
        Ok(Stream { to: Some(to), answer: Some(answer), from: None, frames, refused: None })
    }

    /// A call with one message, encoded, and its answer.
    pub async fn call(&self, method: &str, message: &[u8]) -> Result<Bytes, Refused> {
        let mut stream = self.stream(method).await?;
        stream.message(message);
        stream.close();
        stream.next().await?.ok_or_else(|| "no answer".into())
    }

    /// Opens a session.
    pub async fn hello(&self) -> Result<v1::HelloResponse, Refused> {
        let request = v1::HelloRequest { min_version: 1, max_version: 1, client: "hostile".into() };
        let answer = self.call("outboard.v1.Outboard/Hello", &request.encode_to_vec()).await?;
        v1::HelloResponse::decode(answer).map_err(|e| e.to_string())
    }

    /// Opens a control stream whose first request is this.
    pub async fn control(&self, first: Request) -> Result<Stream, Refused> {
        let stream = self.stream("outboard.v1.Outboard/Control").await?;
        stream.request(first);
        Ok(stream)
    }

    /// Opens a queue of a session, without waiting for the answer.
    pub async fn queue(&self, session: &v1::Session, queue: u64, device: &str) -> Result<Stream, Refused> {
        let stream = self.stream("outboard.v1.Outboard/Queue").await?;
        let session = Some(session.clone());
        stream.command(Command::Open(v1::OpenQueue { session, queue, device: device.into() }));
        Ok(stream)
    }

    /// Opens the bulk stream of a queue.
    pub async fn bulk(&self, session: &v1::Session, queue: u64) -> Result<Stream, Refused> {
        let stream = self.stream("outboard.v1.Bulk/Transfer").await?;
        let open = v1::OpenBulk { session: Some(session.clone()), queue };
        stream.send(&v1::BulkUp { part: Some(v1::bulk_up::Part::Open(open)) });
        Ok(stream)
    }

    /// Ends a session and waits until its server has freed what it had.
    pub async fn goodbye(&self, session: &v1::Session) -> Result<(), Refused> {
        let mut control = self.control(Request::Attach(session.clone())).await?;
        control.goodbye().await
    }
}

/// A socket that comes from this address.
pub async fn connect_from(from: Ipv4Addr, addr: SocketAddr) -> std::io::Result<tokio::net::TcpStream> {
    let socket = tokio::net::TcpSocket::new_v4()?;
    if from != Ipv4Addr::LOCALHOST {
        socket.bind((from, 0).into())?;
    }
    socket.connect(addr).await
}

/// A stream in both directions.
pub struct Stream {
    to: Option<UnboundedSender<Result<Frame<Bytes>, Infallible>>>,
    answer: Option<Answer>,
    from: Option<Incoming>,
    frames: FrameReader,
    refused: Option<Refused>,
}

impl Stream {
    /// Sends bytes as they are.
    pub fn bytes(&self, bytes: impl Into<Bytes>) {
        if let Some(to) = &self.to {
            let _ = to.send(Ok(Frame::data(bytes.into())));
        }
    }

    /// Sends a message, encoded, in a frame.
    pub fn message(&self, message: &[u8]) {
        self.bytes(framed(message));
    }

    /// Sends a message.
    pub fn send(&self, message: &impl Message) {
        self.message(&message.encode_to_vec());
    }

    /// Sends a request on a control stream.
    pub fn request(&self, request: Request) {
        self.send(&v1::ControlRequest { request: Some(request) });
    }

    /// Sends a command to a queue.
    pub fn command(&self, command: Command) {
        self.send(&v1::Command { command: Some(command) });
    }

    /// Sends a chunk on a bulk stream.
    pub fn chunk(&self, transfer: u64, data: impl Into<Bytes>) {
        let data = data.into();
        self.bytes(chunk::head(Direction::Up, transfer, &data));
        self.bytes(data);
    }

    /// Ends the session of a control stream, and waits until its server has freed what it had.
    pub async fn goodbye(&mut self) -> Result<(), Refused> {
        self.request(Request::Goodbye(v1::Goodbye {}));
        while let Some(reply) = self.next_as::<v1::ControlReply>().await? {
            if let Some(ControlReply::Bye(_)) = reply.reply {
                return Ok(());
            }
        }
        Err("no goodbye".into())
    }

    /// Says that nothing more will come.
    pub fn close(&mut self) {
        self.to = None;
    }

    /// The next message; `None` at the end. An error is a status that is not OK, a connection that breaks, or nothing for long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refused> {
        late(self.next_message()).await?
    }

    /// The next message as what it has to be.
    pub async fn next_as<M: Message + Default>(&mut self) -> Result<Option<M>, Refused> {
        Ok(self.next().await?.map(|message| M::decode(message).expect("what a server says")))
    }

    async fn next_message(&mut self) -> Result<Option<Bytes>, Refused> {
        // Kept until it is there: whoever waits may give up and come back.
        if let Some(answer) = &mut self.answer {
            let answer = answer.await;
            self.answer = None;
            let response = answer.map_err(|e| e.to_string())?;
            self.refused = status(response.headers());
            self.from = Some(response.into_body());
        }
        loop {
            match self.frames.message() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(_) => return Err("a server that does not keep to the protocol".into()),
            }
            if let Some(refused) = self.refused.take() {
                return Err(refused);
            }
            let Some(from) = &mut self.from else { return Ok(None) };
            match from.frame().await {
                None => return Ok(None),
                Some(Err(e)) => return Err(e.to_string()),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.frames.add(&data),
                    Err(trailers) => self.refused = trailers.trailers_ref().and_then(status),
                },
            }
        }
    }
}

/// A message with the header of its frame.
pub fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEADER + message.len());
    out.put_u8(0);
    out.put_u32(message.len() as u32);
    out.put_slice(message);
    out.freeze()
}

/// What a status that is not OK says.
fn status(headers: &http::HeaderMap) -> Option<Refused> {
    let status = tonic::Status::from_header_map(headers).filter(|status| status.code() != tonic::Code::Ok)?;
    Some(format!("status {:?}: {}", status.code(), status.message()))
}

async fn late<T>(work: impl Future<Output = T>) -> Result<T, Refused> {
    tokio::time::timeout(ANSWER, work).await.map_err(|_| format!("{NOTHING} within {ANSWER:?}"))
}

/// How an error begins that says that a server does not answer.
pub const NOTHING: &str = "nothing";
