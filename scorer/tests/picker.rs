//! The picker as a gateway meets it: gRPC over a loopback port.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

use bytes::{Buf, BufMut};
use envoy_types::pb::envoy::config::core::v3::{HeaderMap, HeaderValue};
use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Asked;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response as Told;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpBody, HttpHeaders, ProcessingRequest};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Request, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use weir_scorer::picker::{self, Picker};
use weir_scorer::scorer::{Config, Scorer};

const PATIENCE: Duration = Duration::from_secs(30);

struct Running {
    address: SocketAddr,
    scorer: Arc<Scorer>,
    stop: oneshot::Sender<()>,
    server: JoinHandle<anyhow::Result<()>>,
}

async fn start(change: impl Fn(&mut serde_json::Value)) -> Running {
    let mut config = json!({"pools": [{"name": "a", "models": ["m"], "endpoints": ["10.0.0.1:8000", "10.0.0.2:8000"]}], "picker": {}});
    change(&mut config);
    let config = Config::read(config.to_string().as_bytes()).unwrap();
    let scorer = Arc::new(Scorer::new(&config).unwrap());
    let picker = Arc::new(Picker::new(Arc::clone(&scorer), &config.pools, config.picker.as_ref().unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let server = tokio::spawn(picker::serve(listener, picker, async {
        let _ = stopped.await;
    }));
    Running { address, scorer, stop, server }
}

type Said = Streaming<envoy_types::pb::envoy::service::ext_proc::v3::ProcessingResponse>;

impl Running {
    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// A chat request in the protocol's own mode, up to its answer.
    async fn ask(&self, pool: Option<&'static str>) -> (mpsc::Sender<ProcessingRequest>, Said, Told) {
        self.send(pool, br#"{"model":"m","messages":[]}"#).await
    }

    async fn send(
        &self,
        pool: Option<&'static str>,
        body: &[u8],
    ) -> (mpsc::Sender<ProcessingRequest>, Said, Told) {
        let mut client = ExternalProcessorClient::connect(self.url()).await.unwrap();
        let (say, heard) = mpsc::channel(8);
        let mut request = Request::new(ReceiverStream::new(heard));
        pool.map(|pool| request.metadata_mut().insert("x-weir-pool", pool.parse().unwrap()));
        let header = |(key, value): &(&str, &str)| HeaderValue {
            key: (*key).to_owned(),
            raw_value: value.as_bytes().to_vec(),
            ..HeaderValue::default()
        };
        let headers = [(":method", "POST"), (":path", "/v1/chat/completions")].iter().map(header).collect();
        let headers = HttpHeaders { headers: Some(HeaderMap { headers }), ..HttpHeaders::default() };
        let body = HttpBody { body: body.to_vec(), end_of_stream: true, ..HttpBody::default() };
        for asked in [Asked::RequestHeaders(headers), Asked::RequestBody(body)] {
            say.send(ProcessingRequest { request: Some(asked), ..ProcessingRequest::default() })
                .await
                .unwrap();
        }
        let mut said = client.process(request).await.unwrap().into_inner();
        let told = said.message().await.unwrap().unwrap().response.unwrap();
        (say, said, told)
    }

    async fn health(&self, name: &str) -> ServingStatus {
        let channel = Endpoint::from_shared(self.url()).unwrap().connect().await.unwrap();
        let mut client = HealthClient::new(channel);
        let answer = client.check(HealthCheckRequest { service: name.to_owned() }).await;
        answer.map_or(ServingStatus::ServiceUnknown, |answer| answer.into_inner().status())
    }

    fn leases(&self) -> usize {
        self.scorer.loads()[0].leases
    }
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "never {what}");
}

#[tokio::test]
async fn a_stream_that_is_dropped_gives_its_lease_back() {
    let running = start(|_| {}).await;
    for pool in [None, Some("a")] {
        let (say, said, told) = running.ask(pool).await;
        assert!(matches!(told, Told::RequestHeaders(_)), "{told:?}");
        assert_eq!(running.leases(), 1);
        drop((say, said));
        until("the lease has ended", async || running.leases() == 0).await;
    }
    let (_say, _said, told) = running.ask(Some("nobody's")).await;
    assert!(matches!(told, Told::ImmediateResponse(_)), "{told:?}");
}

#[tokio::test]
async fn it_is_ready_once_there_is_somebody_to_choose() {
    const SERVICE: &str = "envoy.service.ext_proc.v3.ExternalProcessor";
    let running = start(|_| {}).await;
    for name in ["", "readiness", "liveness", SERVICE] {
        until(name, async || running.health(name).await == ServingStatus::Serving).await;
    }
    assert_eq!(running.health("somebody else").await, ServingStatus::ServiceUnknown);
    let empty = start(|config| {
        config["pools"][0].as_object_mut().unwrap().remove("endpoints");
        config["discovery"] = json!({"a": {"file": "there is none"}});
    })
    .await;
    until("alive", async || empty.health("liveness").await == ServingStatus::Serving).await;
    for name in ["", "readiness", SERVICE] {
        until(name, async || empty.health(name).await == ServingStatus::NotServing).await;
    }
    let (_say, _said, told) = empty.ask(None).await;
    assert!(matches!(told, Told::ImmediateResponse(refused) if refused.status.as_ref().unwrap().code == 503));
}

#[tokio::test]
async fn noise_on_its_port_is_nobody_elses_trouble() {
    let running = start(|_| {}).await;
    for noise in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        &[0; 9_000],
    ] {
        let mut connection = TcpStream::connect(running.address).await.unwrap();
        let _ = connection.write_all(noise).await;
    }
    let (_say, _said, told) = running.ask(None).await;
    assert!(matches!(told, Told::RequestHeaders(_)), "{told:?}");
}

#[tokio::test]
async fn told_to_stop_it_lets_a_request_go_on_and_then_ends() {
    let running = start(|_| {}).await;
    let (say, mut said, _) = running.ask(None).await;
    let Running { scorer, stop, server, address } = running;
    stop.send(()).unwrap();
    until("nobody is let in", async || TcpStream::connect(address).await.is_err()).await;
    assert_eq!(scorer.loads()[0].leases, 1);
    // The rest of the body's answer, and then the request's end.
    assert!(said.message().await.unwrap().is_some());
    drop((say, said));
    tokio::time::timeout(PATIENCE, server).await.expect("it ends").unwrap().unwrap();
    assert_eq!(scorer.loads()[0].leases, 0);
}

/// Messages as bytes, whatever they are.
struct Plain;

impl Codec for Plain {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        buffer.advance(buffer.remaining());
        Ok(Some(()))
    }
}

#[tokio::test]
async fn what_cannot_be_decoded_ends_the_stream_with_an_error_and_not_as_leave_to_go_on() {
    let running = start(|_| {}).await;
    let channel = Endpoint::from_shared(running.url()).unwrap().connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    // A string with a byte that is no text, in the metadata of dynamic fields: prost refuses the whole message.
    let string = b"\x42\x05\x0a\x03\x0a\x01\xff".to_vec();
    let path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process".parse().unwrap();
    let asked = Request::new(tokio_stream::once(string));
    let status = match client.streaming(asked, path, Plain).await {
        Ok(answer) => answer.into_inner().message().await.unwrap_err(),
        Err(status) => status,
    };
    assert_eq!(status.code(), tonic::Code::Internal, "{status:?}");
    let counted = async || {
        let metrics = running.scorer.metrics().unwrap();
        metrics.contains("weir_picker_requests_total{outcome=\"undecodable\"} 1")
    };
    until("it is counted", counted).await;
}

#[tokio::test]
async fn a_message_that_is_too_long_to_be_read_is_answered_413() {
    let running = start(|config| config["picker"]["request"] = json!({"max_body_bytes": 1000})).await;
    let (_say, _said, told) = running.send(None, &vec![b' '; 10 << 20]).await;
    assert!(matches!(told, Told::ImmediateResponse(refused) if refused.status.as_ref().unwrap().code == 413));
}

/// What is sent on a connection of HTTP/2, frame by frame.
#[derive(Default)]
struct Frames(Vec<u8>);

impl Frames {
    fn push(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        self.0.extend([&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat());
    }

    /// Begins a request to the picker.
    fn open(&mut self, stream: u32) {
        // HPACK: POST, http, and two literals.
        let path = b"/envoy.service.ext_proc.v3.ExternalProcessor/Process";
        let head = [&[0x83, 0x86, 0x04, path.len() as u8], &path[..], &[0x01, 1, b'x']].concat();
        self.push(1, 4, stream, &head);
    }

    /// Says a message of it, in a frame of its own.
    fn say(&mut self, stream: u32, message: &[u8]) {
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        self.push(0, 0, stream, &[&[0], &length[..], message].concat());
    }

    /// Sends all of it and a PING, and reads until that is answered: the connection lives.
    async fn outlive(self, address: SocketAddr) {
        let (mut read, mut write) = TcpStream::connect(address).await.unwrap().into_split();
        let mut hello = Self(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec());
        hello.push(4, 0, 0, &[]);
        write.write_all(&hello.0).await.unwrap();
        // Its windows apply once its settings are acknowledged.
        assert_eq!(frame(&mut read).await.0, 4, "SETTINGS");
        let [mut before, mut after] = [Self::default(), Self::default()];
        before.push(4, 1, 0, &[]);
        after.push(6, 0, 0, b"the ping");
        let all = [before.0, self.0, after.0].concat();
        let answered = async {
            loop {
                let (kind, flags, payload) = frame(&mut read).await;
                assert_ne!(kind, 7, "GOAWAY: {payload:?}");
                if (kind, flags) == (6, 1) && payload == b"the ping" {
                    return;
                }
            }
        };
        let both = async { tokio::join!(write.write_all(&all), answered) };
        tokio::time::timeout(PATIENCE, both).await.unwrap().0.unwrap();
    }
}

/// The next frame: its kind, flags and payload.
async fn frame(read: &mut OwnedReadHalf) -> (u8, u8, Vec<u8>) {
    let mut head = [0; 9];
    read.read_exact(&mut head).await.unwrap();
    let [a, b, c, kind, flags, ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
    read.read_exact(&mut payload).await.unwrap();
    (kind, flags, payload)
}

#[tokio::test]
async fn streams_that_are_reset_at_once_cost_nobody_else_the_connection() {
    let running = start(|_| {}).await;
    let mut frames = Frames::default();
    for stream in (0..500).map(|n| 2 * n + 1) {
        frames.open(stream);
        frames.push(3, 0, stream, &8_u32.to_be_bytes());
    }
    frames.outlive(running.address).await;
}

#[tokio::test]
async fn bodies_in_pieces_of_a_byte_cost_nobody_else_the_connection() {
    // About as many as may be under way of each. They wait to be read, since each has an answer that the client does not take.
    const PIECES: usize = 20_000;
    let running = start(|_| {}).await;
    let field = |number: u8, content: &[u8]| [&[number << 3 | 2, content.len() as u8], content].concat();
    let header = |key: &[u8], value: &[u8]| field(1, &[field(1, key), field(3, value)].concat());
    let headers = [header(b":method", b"POST"), header(b":path", b"/v1/chat/completions")].concat();
    // The request's headers, and the mode STREAMED, ahead of the headers' answer.
    let head = [field(2, &field(1, &headers)), field(11, &[8, 2, 24, 1])].concat();
    let piece = field(4, &field(1, b" "));
    let mut frames = Frames::default();
    for stream in (0..16).map(|n| 2 * n + 1) {
        frames.open(stream);
        frames.say(stream, &head);
        (0..PIECES).for_each(|_| frames.say(stream, &piece));
    }
    frames.outlive(running.address).await;
}
