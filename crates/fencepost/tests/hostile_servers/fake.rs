//! A listener that does to each client what it is told to.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What a fake does with one client. An error means that the client is gone.
pub(crate) type Serve = Arc<dyn Fn(&mut Peer) -> io::Result<()> + Send + Sync>;

pub(crate) struct Fake {
    pub(crate) addr: SocketAddr,
    serve: Arc<Mutex<Serve>>,
    most: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl Fake {
    pub(crate) fn start(serve: Serve) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let serve = Arc::new(Mutex::new(serve));
        let fake = Self { addr, serve: serve.clone(), most: Arc::default(), done: Arc::default() };
        let (most, done) = (fake.most.clone(), fake.done.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if done.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                // What is counted as sent lies in the client's hands, or almost.
                let _ = rustix::net::sockopt::set_socket_send_buffer_size(&stream, 1 << 16);
                let _ = stream.set_nodelay(true);
                let mut peer = Peer { stream, sent: 0, most: most.clone(), done: done.clone() };
                let serve = serve.lock().unwrap().clone();
                // Ends with the client, or with the fake.
                thread::spawn(move || drop(serve(&mut peer)));
            }
        });
        fake
    }

    /// An honest server, by way of this address, until it changes.
    pub(crate) fn in_front_of(server: SocketAddr) -> Self {
        Self::start(Arc::new(move |peer: &mut Peer| {
            let (mut there, mut here) = (TcpStream::connect(server)?, peer.stream.try_clone()?);
            let (mut from_server, mut to_client) = (there.try_clone()?, peer.stream.try_clone()?);
            thread::spawn(move || {
                let _ = io::copy(&mut from_server, &mut to_client);
                to_client.shutdown(std::net::Shutdown::Both)
            });
            let _ = io::copy(&mut here, &mut there);
            there.shutdown(std::net::Shutdown::Both)
        }))
    }

    /// Does something else to those who connect from now on.
    pub(crate) fn change(&self, serve: Serve) {
        *self.serve.lock().unwrap() = serve;
    }

    /// The most bytes that one connection took.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // Wakes the listener.
        let _ = TcpStream::connect(self.addr);
    }
}

/// A client, as the fake sees it.
pub(crate) struct Peer {
    stream: TcpStream,
    sent: usize,
    most: Arc<AtomicUsize>,
    done: Arc<AtomicBool>,
}

impl Peer {
    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.stream.write(bytes)?;
            bytes = &bytes[count..];
            self.sent += count;
            self.most.fetch_max(self.sent, Ordering::Relaxed);
        }
        if self.done.load(Ordering::Relaxed) { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }

    /// Sends the same for as long as the client is there.
    pub(crate) fn flood(&mut self, bytes: &[u8]) -> io::Result<()> {
        let many = bytes.repeat((65_536 / bytes.len()).max(1));
        loop {
            self.send(&many)?;
        }
    }

    /// Sends byte by byte.
    pub(crate) fn drip(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes {
            self.send(&[*byte])?;
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Whatever comes next, at most so much.
    pub(crate) fn some(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; 65_536];
        let count = self.stream.read(&mut bytes)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(count);
        Ok(bytes)
    }

    pub(crate) fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// The port that the client has found.
    pub(crate) fn port(&self) -> io::Result<u16> {
        Ok(self.stream.local_addr()?.port())
    }

    /// Says nothing any more, until the client has gone.
    pub(crate) fn silence(&mut self) -> io::Result<()> {
        loop {
            self.some()?;
        }
    }
}
