//! A TCP link on loopback that can be slow, stuck, one-way or cut, while both ends believe in the network.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A TCP proxy. New, it passes everything on; dropping it cuts all connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    link: Arc<Link>,
}

#[derive(Debug)]
struct Link {
    target: Mutex<SocketAddr>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    mode: Mode,
    /// How often the link was cut: a connection from before the last cut carries nothing any more.
    cuts: u64,
    /// Both ends of every connection, to reset them.
    open: Vec<TcpStream>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Delay(Duration),
    Stall,
    HoldAnswers,
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

impl Proxy {
    /// Starts a proxy to `target`.
    ///
    /// # Panics
    /// If no port can be opened.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let addr = listener.local_addr().expect("a bound port has an address");
        let state = State { mode: Mode::Pass, cuts: 0, open: Vec::new(), ended: false };
        let link =
            Arc::new(Link { target: Mutex::new(target), state: Mutex::new(state), changed: Condvar::new() });
        let accepting = link.clone();
        thread::spawn(move || accepting.accept(&listener));
        Self { addr, link }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sends new connections somewhere else, as a failover does.
    pub fn redirect(&self, target: SocketAddr) {
        *lock(&self.link.target) = target;
    }

    /// Passes everything on, also what was held back.
    pub fn pass(&self) {
        self.link.set(Mode::Pass);
    }

    /// Holds every piece of data back for `by` before it is passed on.
    pub fn delay(&self, by: Duration) {
        self.link.set(Mode::Delay(by));
    }

    /// Holds everything back, in both directions, without closing anything.
    pub fn stall(&self) {
        self.link.set(Mode::Stall);
    }

    /// Passes requests on and holds the answers back: the server acts and the client does not learn of it.
    pub fn hold_answers(&self) {
        self.link.set(Mode::HoldAnswers);
    }

    /// Resets all connections, and new ones at once, until [`pass`](Self::pass).
    pub fn cut(&self) {
        self.link.set(Mode::Cut);
    }

    /// Resets all connections; new ones pass. What was held back is lost.
    pub fn reset(&self) {
        self.link.set(Mode::Cut);
        self.link.set(Mode::Pass);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        lock(&self.link.state).ended = true;
        self.link.set(Mode::Cut);
        // Ends the accept loop.
        let _ = TcpStream::connect(self.addr);
    }
}

impl Link {
    fn set(&self, mode: Mode) {
        let mut state = lock(&self.state);
        state.mode = mode;
        if mode == Mode::Cut {
            state.cuts += 1;
            state.open.drain(..).for_each(reset);
        }
        self.changed.notify_all();
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { continue };
            {
                let state = lock(&self.state);
                if state.ended {
                    return;
                }
                if state.mode == Mode::Cut {
                    reset(client);
                    continue;
                }
            }
            let target = *lock(&self.target);
            let Ok(server) = TcpStream::connect(target) else {
                reset(client);
                continue;
            };
            self.join(client, server);
        }
    }

    fn join(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let both = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let cuts = {
            let mut state = lock(&self.state);
            if state.mode == Mode::Cut {
                reset(client);
                reset(server);
                return;
            }
            state.open.extend([both(&client), both(&server)]);
            state.cuts
        };
        let (link, from, to) = (self.clone(), both(&client), both(&server));
        thread::spawn(move || link.pump(Direction::Request, cuts, from, to));
        let link = self.clone();
        thread::spawn(move || link.pump(Direction::Answer, cuts, server, client));
    }

    fn pump(&self, direction: Direction, cuts: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if !self.admit(direction, cuts) || to.write_all(&buffer[..count]).is_err() {
                break;
            }
        }
        // A link that holds everything back holds the end of a connection back, too.
        if self.admit(direction, cuts) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// Waits until data may pass; `false` if the link was cut since the connection was made.
    fn admit(&self, direction: Direction, cuts: u64) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.cuts != cuts {
                return false;
            }
            match state.mode {
                Mode::Pass => return true,
                Mode::HoldAnswers if direction == Direction::Request => return true,
                Mode::Delay(by) => {
                    drop(state);
                    thread::sleep(by);
                    return true;
                }
                Mode::Stall | Mode::HoldAnswers | Mode::Cut => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// Closes a connection with a reset, as a crashed host or a firewall does: the end of reading ends its pumps, and
/// the last descriptor sends the reset.
fn reset(stream: TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Read);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        addr
    }

    fn exchange(stream: &mut TcpStream) -> std::io::Result<u8> {
        let mut byte = [7];
        stream.write_all(&byte)?;
        stream.read_exact(&mut byte)?;
        Ok(byte[0])
    }

    #[test]
    fn a_link_passes_stalls_and_is_cut() {
        let proxy = Proxy::start(echo());
        let mut stream = TcpStream::connect(proxy.addr()).unwrap();
        assert_eq!(exchange(&mut stream).unwrap(), 7);

        proxy.stall();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        assert!(exchange(&mut stream).is_err());
        stream.set_read_timeout(None).unwrap();
        proxy.pass();
        assert_eq!(stream.read(&mut [0]).unwrap(), 1);

        proxy.cut();
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)));
        let refused = TcpStream::connect(proxy.addr()).and_then(|mut stream| exchange(&mut stream));
        assert!(refused.is_err());

        proxy.pass();
        assert_eq!(exchange(&mut TcpStream::connect(proxy.addr()).unwrap()).unwrap(), 7);
    }
}
