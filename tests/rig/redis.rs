//! A store for limits that several scorers share: a real Redis, or a Valkey.

use crate::process::Process;
use crate::{free_port, wait_until};
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// A server that runs, with nothing on disk.
#[derive(Debug)]
pub struct Redis {
    /// `redis://127.0.0.1:PORT`.
    pub url: String,
    /// Its process.
    pub process: Process,
    port: u16,
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
        let command =
            ["redis-server", "--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
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
