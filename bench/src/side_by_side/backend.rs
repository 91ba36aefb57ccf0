//! A backend that costs next to nothing: any POST gets the same small chat completion, whole and with `usage`.
//!
//! It runs on the client's core, so whatever it spends it takes from the load; and it must answer what routers ask
//! of an engine before they send it traffic (`/health`, `/v1/models`).

use super::http1::Connection;
use anyhow::Result;
use tokio::net::TcpListener;

const COMPLETION: &str = r#"{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1760000000,"model":"bench","choices":[{"index":0,"message":{"role":"assistant","content":"It depends on the river."},"finish_reason":"stop"}],"usage":{"prompt_tokens":240,"completion_tokens":6,"total_tokens":246}}"#;
const MODELS: &str = r#"{"object":"list","data":[{"id":"bench","object":"model","created":1760000000,"owned_by":"weir","max_model_len":131072}]}"#;

pub(crate) async fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let connection = Connection::accepted(stream)?;
        // A proxy that goes away in the middle of a request is the end of its connection only.
        tokio::spawn(answer(connection));
    }
}

async fn answer(mut connection: Connection) -> Result<()> {
    let (completion, models) = (response(COMPLETION), response(MODELS));
    while let Some(path) = connection.request().await? {
        connection.send(if path.starts_with("/v1/models") { &models } else { &completion }).await?;
    }
    Ok(())
}

fn response(json: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
        json.len()
    )
    .into_bytes()
}
