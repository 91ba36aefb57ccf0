//! A store for limits that several scorers share: a real Redis, or a Valkey.

use crate::process::Process;
use crate::{free_port, wait_until};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A server that runs, with nothing on disk.
#[derive(Debug)]
pub struct Redis {
    /// `redis://127.0.0.1:PORT`.
    pub url: String,
    /// Its process.
    pub process: Process,
    /// Where it listens.
    pub port: u16,
    log: std::path::PathBuf,
}

impl Redis {
    /// Starts one and waits until it answers.
    pub async fn start(dir: &Path) -> Result<Self> {
        let (port, log) = (free_port()?, dir.join("redis.log"));
        let process = Self::start_process(port, &log)?;
        let redis = Self { url: format!("redis://127.0.0.1:{port}"), process, port, log };
        redis.answers().await?;
        Ok(redis)
    }

    fn start_process(port: u16, log: &Path) -> Result<Process> {
        let port = port.to_string();
        // A replica keeps what it is sent first in a file there.
        let dir = log.parent().unwrap_or(log).display().to_string();
        let command = [
            "redis-server",
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            &dir,
        ];
        Process::start(&command.map(str::to_owned), log).context("build.sh test installs redis-server")
    }

    async fn answers(&self) -> Result<()> {
        let answers = async || self.ask(&["PING"]).is_ok_and(|answer| answer == "PONG");
        wait_until("Redis answers", Duration::from_secs(10), answers).await
    }

    /// Starts it again, empty, after [`Process::kill`].
    pub async fn restart(&mut self) -> Result<()> {
        self.process = Self::start_process(self.port, &self.log)?;
        self.answers().await
    }

    /// The answer to a command.
    pub fn ask(&self, command: &[&str]) -> Result<String> {
        let out = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(command).output()?;
        Ok(String::from_utf8(out.stdout)?.trim().to_owned())
    }

    /// The names of all keys.
    pub fn keys(&self) -> Result<Vec<String>> {
        Ok(self.ask(&["KEYS", "*"])?.lines().map(str::to_owned).filter(|name| !name.is_empty()).collect())
    }
}

/// What becomes of a store's answers on their way through a [`Relay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Nothing.
    Straight,
    /// Each is late by so much.
    Late(Duration),
    /// Each comes as something else.
    Garbled,
    /// Nothing; but what is asked takes a second for so many bytes.
    Narrow(u32),
}

/// Stands between scorers and their store.
#[derive(Debug)]
pub struct Relay {
    /// `redis://127.0.0.1:PORT`.
    pub url: String,
    now: Arc<Mutex<(u16, Way)>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Relay {
    /// Leads to the store at this port.
    pub async fn start(port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let url = format!("redis://{}", listener.local_addr()?);
        let now = Arc::new(Mutex::new((port, Way::Straight)));
        let shared = now.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (port, _) = *shared.lock().expect("no panics");
                let now = shared.clone();
                tokio::spawn(async move {
                    if let Ok(store) = TcpStream::connect(("127.0.0.1", port)).await {
                        let _ = relay(client, store, port, &now).await;
                    }
                });
            }
        });
        Ok(Self { url, now, task })
    }

    /// From now on answers go this way.
    pub fn way(&self, way: Way) {
        self.now.lock().expect("no panics").1 = way;
    }

    /// From now on it leads to another store; connections to the one before end with their next command.
    pub fn lead(&self, port: u16) {
        self.now.lock().expect("no panics").0 = port;
    }
}

async fn relay(client: TcpStream, store: TcpStream, port: u16, now: &Mutex<(u16, Way)>) -> Result<()> {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_store, mut to_store) = store.into_split();
    let asks = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_client.read(&mut bytes).await?;
            if read == 0 || now.lock().expect("no panics").0 != port {
                return anyhow::Ok(());
            }
            let (_, way) = *now.lock().expect("no panics");
            if let Way::Narrow(per_second) = way {
                tokio::time::sleep(Duration::from_secs_f64(read as f64 / f64::from(per_second))).await;
            }
            to_store.write_all(&bytes[..read]).await?;
        }
    };
    let answers = async {
        let mut bytes = vec![0; 1 << 16];
        loop {
            let read = from_store.read(&mut bytes).await?;
            if read == 0 {
                return anyhow::Ok(());
            }
            let (_, way) = *now.lock().expect("no panics");
            match way {
                Way::Straight | Way::Narrow(_) => {}
                Way::Late(by) => tokio::time::sleep(by).await,
                Way::Garbled => bytes[..read].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
            }
            to_client.write_all(&bytes[..read]).await?;
        }
    };
    tokio::select! { ended = asks => ended, ended = answers => ended }
}
