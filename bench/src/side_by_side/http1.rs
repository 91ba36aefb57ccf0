//! Just enough HTTP/1.1 for the backend and the client: one head, then a body that is skipped.
//!
//! Both share a core with nobody to spare it: a general client or server would measure itself. The body's content
//! is of no interest, but its framing must be followed to the end, or the next message would start inside it.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

const MOST_HEADERS: usize = 64;
const MOST_HEAD: u64 = 64 * 1024;
const BUFFER: usize = 256 * 1024;

pub(crate) struct Connection {
    stream: BufStream<TcpStream>,
    line: Vec<u8>,
}

#[derive(Debug, PartialEq)]
enum Framing {
    Length(u64),
    Chunked,
}

impl Connection {
    pub(crate) async fn open(port: u16) -> Result<Self> {
        Self::accepted(TcpStream::connect(("127.0.0.1", port)).await.context("connect")?)
    }

    pub(crate) fn accepted(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufStream::with_capacity(BUFFER, 0, stream), line: Vec::new() })
    }

    pub(crate) async fn send(&mut self, message: &[u8]) -> Result<()> {
        self.stream.write_all(message).await.context("send")?;
        self.stream.flush().await.context("send")
    }

    /// Reads a whole request and says what it asks for; `None` when the peer is done.
    pub(crate) async fn request(&mut self) -> Result<Option<String>> {
        if !self.read_head().await? {
            return Ok(None);
        }
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        request.parse(&self.line)?;
        let path = request.path.unwrap_or_default().to_owned();
        let framing = framing(request.headers)?.unwrap_or(Framing::Length(0));
        self.skip_body(framing).await?;
        Ok(Some(path))
    }

    /// Reads a whole response and returns its status.
    pub(crate) async fn response(&mut self) -> Result<u16> {
        ensure!(self.read_head().await?, "connection closed instead of a response");
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        response.parse(&self.line)?;
        let status = response.code.context("response without status")?;
        let framing = framing(response.headers)?.context("response without length or chunks")?;
        self.skip_body(framing).await?;
        Ok(status)
    }

    /// Fills `line` with everything up to the empty line; false when the peer closed between messages.
    async fn read_head(&mut self) -> Result<bool> {
        self.line.clear();
        loop {
            let room = MOST_HEAD.saturating_sub(self.line.len() as u64);
            let read = (&mut self.stream).take(room).read_until(b'\n', &mut self.line).await?;
            match read {
                0 if self.line.is_empty() => return Ok(false),
                0 => bail!("connection closed inside a head, or a head over {MOST_HEAD} bytes"),
                _ if self.line.ends_with(b"\r\n\r\n") => return Ok(true),
                _ => {}
            }
        }
    }

    async fn skip_body(&mut self, framing: Framing) -> Result<()> {
        match framing {
            Framing::Length(length) => self.skip(length).await,
            Framing::Chunked => {
                loop {
                    let size = self.read_line().await?;
                    let digits = size.split(';').next().unwrap_or_default().trim();
                    match u64::from_str_radix(digits, 16).context("chunk size")? {
                        0 => break,
                        size => self.skip(size + 2).await?,
                    }
                }
                while !self.read_line().await?.trim().is_empty() {}
                Ok(())
            }
        }
    }

    async fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        ensure!(self.stream.read_line(&mut line).await? > 0, "connection closed inside a chunked body");
        Ok(line)
    }

    async fn skip(&mut self, mut rest: u64) -> Result<()> {
        while rest > 0 {
            let available = self.stream.fill_buf().await?.len();
            ensure!(available > 0, "connection closed inside a body");
            let taken = available.min(usize::try_from(rest).unwrap_or(usize::MAX));
            self.stream.consume(taken);
            rest -= taken as u64;
        }
        Ok(())
    }
}

fn framing(headers: &[httparse::Header<'_>]) -> Result<Option<Framing>> {
    for header in headers {
        let value = std::str::from_utf8(header.value).unwrap_or_default();
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            ensure!(value.eq_ignore_ascii_case("chunked"), "transfer-encoding {value}");
            return Ok(Some(Framing::Chunked));
        }
        if header.name.eq_ignore_ascii_case("content-length") {
            return Ok(Some(Framing::Length(value.trim().parse().context("content-length")?)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn pair() -> (TcpStream, Connection) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (near, far) = tokio::join!(TcpStream::connect(("127.0.0.1", port)), listener.accept());
        (near.unwrap(), Connection::accepted(far.unwrap().0).unwrap())
    }

    #[tokio::test]
    async fn each_message_starts_where_the_body_before_it_ended() {
        let (mut near, mut far) = pair().await;
        let sent = "POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello\
            POST /b HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nt: 1\r\n\r\n\
            GET /c HTTP/1.1\r\n\r\n";
        near.write_all(sent.as_bytes()).await.unwrap();
        drop(near);
        for path in ["/a", "/b", "/c"] {
            assert_eq!(far.request().await.unwrap().as_deref(), Some(path));
        }
        assert_eq!(far.request().await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_response_cut_short_is_an_error() {
        let (mut near, mut far) = pair().await;
        near.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nshort").await.unwrap();
        drop(near);
        assert!(far.response().await.is_err());
    }
}
