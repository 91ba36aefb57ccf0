//! An endpoint by script: it keeps what comes byte for byte, and says what it is told.
//!
//! The engines of this repository understand requests and make up answers. Where a test needs to see the very bytes
//! that arrive, or to choose those that come back, this stands in their place.

use crate::{Raw, filter_config, find_all};
use anyhow::Result;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Heard {
    /// `METHOD PATH HTTP/1.1`.
    pub line: String,
    /// Names in lower case, in their order.
    pub headers: Vec<(String, String)>,
    /// The body, without its framing.
    pub body: Vec<u8>,
}

impl Heard {
    /// All values of a header, by its name in lower case.
    pub fn values(&self, name: &str) -> Vec<&str> {
        self.headers.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    }
}

/// What it says to each request.
#[derive(Clone, Debug)]
pub struct Saying {
    /// HTTP status.
    pub status: u16,
    /// Headers, without those of the framing.
    pub headers: Vec<(String, String)>,
    /// The body, a chunk each.
    pub pieces: Vec<Vec<u8>>,
    /// Time between two pieces.
    pub pause: Duration,
}

/// The endpoint. To an upgrade it answers 101, [`Backend::GREETING`], and then every byte that comes.
#[derive(Debug)]
pub struct Backend {
    /// `IP:port`.
    pub address: String,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    heard: Mutex<Vec<Heard>>,
    saying: Mutex<Saying>,
    connections: AtomicUsize,
}

impl Backend {
    /// What it says first on an upgraded connection: an unmasked WebSocket text frame.
    pub const GREETING: &[u8] = b"\x81\x05hello";

    /// Starts one that answers `{}`.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let saying = Saying {
            status: 200,
            headers: vec![("content-type".into(), "application/json".into())],
            pieces: vec![b"{}".to_vec()],
            pause: Duration::ZERO,
        };
        let shared =
            Arc::new(Shared { heard: Mutex::default(), saying: Mutex::new(saying), connections: 0.into() });
        let own = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                own.connections.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, own.clone()));
            }
        });
        Ok(Self { address, shared })
    }

    /// From now on it says this.
    pub fn says(&self, saying: Saying) {
        *self.shared.saying.lock().unwrap() = saying;
    }

    /// What it has heard since it was last asked.
    pub fn heard(&self) -> Vec<Heard> {
        std::mem::take(&mut self.shared.heard.lock().unwrap())
    }

    /// Connections made to it so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// An edit of Envoy's configuration that puts it in the place of a pool's engines, for these models and for
    /// requests without a model to one of these path prefixes.
    pub fn place(&self, envoy: &mut Value, pool: usize, models: &[&str], prefixes: &[&str]) {
        let name = ["small", "large"][pool];
        let (host, port) = self.address.rsplit_once(':').expect("address:port");
        let address =
            json!({"socket_address": {"address": host, "port_value": port.parse::<u16>().expect("a port")}});
        for cluster in find_all(envoy, &|value| value["load_assignment"]["cluster_name"] == name) {
            cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] =
                json!([{"endpoint": {"address": address}}]);
        }
        filter_config(envoy, "pick", |pick| {
            pick["pools"][pool]["models"] = json!(models);
            pick["pools"][pool]["endpoints"] = json!([self.address]);
        });
        let by_model = models.iter().map(|model| {
            json!({"match": {"prefix": "/", "headers": [{"name": "x-gateway-model-name", "string_match": {"exact": model}}]},
                   "route": {"cluster": name, "timeout": "0s", "idle_timeout": "1200s"}})
        });
        let by_path = prefixes
            .iter()
            .map(|prefix| json!({"match": {"prefix": prefix}, "route": {"cluster": name, "timeout": "0s", "idle_timeout": "1200s"}}));
        let routes: Vec<Value> = by_model.chain(by_path).collect();
        for host in find_all(envoy, &|value| value["routes"].is_array()) {
            let all = host["routes"].as_array_mut().expect("a list");
            all.splice(0..0, routes.iter().cloned());
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut connection = Raw::accepted(stream);
    loop {
        let (line, message) = connection.message().await?;
        let upgrade = message.header("upgrade").is_some();
        let is_head = line.starts_with("HEAD ");
        let heard = Heard { line, headers: message.headers, body: message.body };
        shared.heard.lock().unwrap().push(heard);
        if upgrade {
            connection
                .send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
                .await?;
            connection.send(Backend::GREETING).await?;
            return connection.echo().await;
        }
        let saying = shared.saying.lock().unwrap().clone();
        let mut head = format!("HTTP/1.1 {} As told\r\n", saying.status);
        saying.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
        connection.send(head + "transfer-encoding: chunked\r\n\r\n").await?;
        if is_head {
            continue;
        }
        for piece in saying.pieces.iter().filter(|piece| !piece.is_empty()) {
            connection.send_chunk(piece).await?;
            if !saying.pause.is_zero() {
                tokio::time::sleep(saying.pause).await;
            }
        }
        connection.send_chunk("").await?;
    }
}
