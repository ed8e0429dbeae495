//! Byte streams to servers, with TLS or without.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::Tls;

/// A byte stream to a server.
pub(in crate::backends) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Opens one over TCP.
pub(in crate::backends) async fn connect(
    host: &str,
    port: u16,
    tls: Option<&Tls>,
) -> std::io::Result<Box<dyn Stream>> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    match tls {
        Some(tls) => tls.wrap(stream).await,
        None => Ok(Box::new(stream)),
    }
}
