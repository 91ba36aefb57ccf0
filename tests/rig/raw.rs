//! HTTP/1.1 written by hand: a test decides what is sent when, and where it breaks off.

use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// No answer of the gateway's takes as long.
const PATIENCE: Duration = Duration::from_secs(20);

/// A connection.
#[derive(Debug)]
pub struct Raw {
    stream: TcpStream,
    /// Received and not yet used.
    read: Vec<u8>,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Its body.
    pub body: Vec<u8>,
}

impl Raw {
    /// Connects to `http://ADDRESS`.
    pub async fn connect(url: &str) -> Result<Self> {
        let stream = TcpStream::connect(url.trim_start_matches("http://")).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, read: Vec::new() })
    }

    /// The other side of a connection: one that an endpoint has accepted.
    pub fn accepted(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    /// Sends bytes as they are.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        Ok(self.stream.write_all(bytes.as_ref()).await?)
    }

    /// Sends a chunk of a body; an empty one ends it.
    pub async fn send_chunk(&mut self, bytes: impl AsRef<[u8]>) -> Result<()> {
        let bytes = bytes.as_ref();
        let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
        chunk.extend_from_slice(bytes);
        chunk.extend_from_slice(b"\r\n");
        self.send(chunk).await
    }

    /// Waits until something has been received that holds `text`.
    pub async fn wait_for(&mut self, text: &str) -> Result<()> {
        while !self.read.windows(text.len()).any(|window| window == text.as_bytes()) {
            self.receive().await?;
        }
        Ok(())
    }

    /// Waits for a whole answer.
    pub async fn answer(&mut self) -> Result<Answer> {
        let (line, mut answer) = self.message().await?;
        answer.status = line.split(' ').nth(1).context("no status line")?.parse()?;
        Ok(answer)
    }

    /// Waits for a whole message: its first line; its headers and body as an answer without a status. Of one that
    /// changes the protocol the body is nothing.
    pub async fn message(&mut self) -> Result<(String, Answer)> {
        let end = loop {
            match self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => self.receive().await?,
            }
        };
        let head = String::from_utf8(self.read.drain(..end).collect())?;
        let mut lines = head.lines();
        let line = lines.next().context("no first line")?.to_owned();
        let headers =
            lines.filter_map(|line| line.split_once(": ")).map(|(n, v)| (n.to_lowercase(), v.to_owned()));
        let mut message = Answer { status: 0, headers: headers.collect(), body: Vec::new() };
        if let Some(length) = message.header("content-length") {
            message.body = self.take(length.parse()?).await?;
        } else if message.header("transfer-encoding") == Some("chunked") {
            while let size @ 1.. = self.chunk_size().await? {
                message.body.extend(self.take(size).await?);
                self.take(2).await?;
            }
            self.take(2).await?;
        }
        Ok((line, message))
    }

    /// Waits for so many bytes, whatever they are.
    pub async fn bytes(&mut self, length: usize) -> Result<Vec<u8>> {
        self.take(length).await
    }

    /// Waits until the other side closes; gives what it said before.
    pub async fn closed(&mut self) -> Result<Vec<u8>> {
        loop {
            let receive = self.stream.read_buf(&mut self.read);
            match timeout(PATIENCE, receive).await.context("it stays open")? {
                Ok(0) | Err(_) => return Ok(std::mem::take(&mut self.read)),
                Ok(_) => {}
            }
        }
    }

    /// Sends back whatever comes, until the other side closes.
    pub async fn echo(&mut self) -> Result<()> {
        loop {
            let bytes = std::mem::take(&mut self.read);
            self.send(&bytes).await?;
            if self.stream.read_buf(&mut self.read).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Breaks the connection off with a reset instead of a proper end.
    pub fn reset(self) -> Result<()> {
        Ok(self.stream.set_zero_linger()?)
    }

    async fn chunk_size(&mut self) -> Result<usize> {
        let end = loop {
            match self.read.windows(2).position(|window| window == b"\r\n") {
                Some(end) => break end,
                None => self.receive().await?,
            }
        };
        let line = self.take(end + 2).await?;
        Ok(usize::from_str_radix(String::from_utf8(line)?.trim(), 16)?)
    }

    async fn take(&mut self, length: usize) -> Result<Vec<u8>> {
        while self.read.len() < length {
            self.receive().await?;
        }
        Ok(self.read.drain(..length).collect())
    }

    async fn receive(&mut self) -> Result<()> {
        let receive = self.stream.read_buf(&mut self.read);
        if timeout(PATIENCE, receive).await.context("nothing comes")?? == 0 {
            bail!("closed by the gateway after {:?}", String::from_utf8_lossy(&self.read));
        }
        Ok(())
    }
}

impl Answer {
    /// The value of a header, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; an error quotes what it is instead.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body).with_context(|| String::from_utf8_lossy(&self.body).into_owned())
    }
}

/// The head of a POST, with further header lines.
pub fn post(path: &str, headers: &[&str]) -> String {
    let mut head = format!("POST {path} HTTP/1.1\r\nhost: weir\r\ncontent-type: application/json\r\n");
    headers.iter().for_each(|line| head += &format!("{line}\r\n"));
    head + "\r\n"
}
