//! A TCP link on loopback that can be slow, stuck, one-way, lossy or cut, while both ends believe in the
//! network.

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
    /// How many connections there were.
    connections: u64,
    /// Those up to this number hold everything back, whatever the mode.
    stranded: u64,
    /// Those up to this number were cut and carry nothing any more.
    cut: u64,
    /// Pieces of data that came by since the mode was set.
    pieces: u32,
    /// Pieces of data that were held up and connections that were ended, ever.
    harm: u64,
    /// Both ends of every connection, to reset them, with its number.
    open: Vec<(u64, TcpStream)>,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Pass,
    Delay(Duration),
    Repeat(Duration),
    LoseEvery(u32),
    Stall,
    HoldRequests,
    HoldAnswers,
    CutAnswer,
    Cut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Request,
    Answer,
}

/// What becomes of a piece of data.
enum Passage {
    Whole,
    /// It passes, and once more by a connection of its own, so much later.
    Twice(Duration),
    /// One byte passes, and the connection ends.
    Cut,
    /// Nothing passes, and the connection ends.
    Lost,
}

impl Proxy {
    /// Starts a proxy to `target`.
    ///
    /// # Panics
    /// If no port can be opened.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let addr = listener.local_addr().expect("a bound port has an address");
        let state = State {
            mode: Mode::Pass,
            connections: 0,
            stranded: 0,
            cut: 0,
            pieces: 0,
            harm: 0,
            open: Vec::new(),
            ended: false,
        };
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
        lock(&self.link.state).stranded = 0;
        self.link.set(Mode::Pass);
    }

    /// Holds every piece of data back for `by` before it is passed on.
    pub fn delay(&self, by: Duration) {
        self.link.set(Mode::Delay(by));
    }

    /// Delivers every request twice: the second time `later`, over a connection of its own, and nobody hears
    /// the answer.
    pub fn repeat(&self, later: Duration) {
        self.link.set(Mode::Repeat(later));
    }

    /// Loses every `n`-th piece of data, and the connection with it.
    pub fn lose_every(&self, n: u32) {
        self.link.set(Mode::LoseEvery(n));
    }

    /// Holds everything back, in both directions, without closing anything.
    pub fn stall(&self) {
        self.link.set(Mode::Stall);
    }

    /// Holds back what the connections of now carry, until [`pass`](Self::pass); new ones pass.
    pub fn strand(&self) {
        let mut state = lock(&self.link.state);
        state.stranded = state.connections;
    }

    /// Holds requests back and passes answers on, such as messages that the server sends by itself.
    pub fn hold_requests(&self) {
        self.link.set(Mode::HoldRequests);
    }

    /// Passes requests on and holds the answers back: the server acts and the client does not learn of it.
    pub fn hold_answers(&self) {
        self.link.set(Mode::HoldAnswers);
    }

    /// Resets a connection in the middle of the next answer; from then on everything passes.
    pub fn cut_next_answer(&self) {
        self.link.set(Mode::CutAnswer);
    }

    /// Resets all connections, and new ones at once, until [`pass`](Self::pass).
    pub fn cut(&self) {
        self.link.set(Mode::Cut);
    }

    /// How often anything was held up, cut or refused so far: a link that nobody uses can be broken without
    /// effect.
    pub fn harm(&self) -> u64 {
        lock(&self.link.state).harm
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
        state.pieces = 0;
        if mode == Mode::Cut {
            state.cut = state.connections;
            state.harm += state.open.len() as u64;
            state.open.drain(..).for_each(|(_, stream)| reset(stream));
        }
        self.changed.notify_all();
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { continue };
            {
                let mut state = lock(&self.state);
                if state.ended {
                    return;
                }
                if state.mode == Mode::Cut {
                    state.harm += 1;
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
        let number = {
            let mut state = lock(&self.state);
            if state.mode == Mode::Cut {
                reset(client);
                reset(server);
                return;
            }
            state.connections += 1;
            let number = state.connections;
            state.open.extend([(number, both(&client)), (number, both(&server))]);
            number
        };
        let (link, from, to) = (self.clone(), both(&client), both(&server));
        thread::spawn(move || link.pump(Direction::Request, number, from, to));
        let link = self.clone();
        thread::spawn(move || link.pump(Direction::Answer, number, server, client));
    }

    fn pump(&self, direction: Direction, number: u64, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let data = &buffer[..count];
            let written = match self.admit(direction, number) {
                Passage::Whole => to.write_all(data),
                Passage::Twice(later) => {
                    self.once_more(data.to_vec(), later);
                    to.write_all(data)
                }
                Passage::Cut => {
                    let _ = to.write_all(&data[..1]);
                    return self.end(number);
                }
                Passage::Lost => return self.end(number),
            };
            if written.is_err() {
                break;
            }
        }
        // A link that holds everything back holds the end of a connection back, too.
        if self.wait(direction, number).is_some() {
            let _ = to.shutdown(Shutdown::Write);
        }
    }

    /// Waits until data may pass, and says how.
    fn admit(&self, direction: Direction, number: u64) -> Passage {
        let Some(mut state) = self.wait(direction, number) else { return Passage::Lost };
        state.pieces += 1;
        match state.mode {
            Mode::Delay(by) => {
                state.harm += 1;
                drop(state);
                thread::sleep(by);
                Passage::Whole
            }
            Mode::Repeat(later) if direction == Direction::Request => Passage::Twice(later),
            Mode::LoseEvery(n) if state.pieces % n == 0 => Passage::Lost,
            Mode::CutAnswer if direction == Direction::Answer => {
                state.mode = Mode::Pass;
                Passage::Cut
            }
            _ => Passage::Whole,
        }
    }

    /// Waits until nothing holds this connection back; `None` if it was cut.
    fn wait(&self, direction: Direction, number: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = lock(&self.state);
        let mut was_held = false;
        loop {
            let held = number <= state.stranded
                || match state.mode {
                    Mode::Stall | Mode::Cut => true,
                    Mode::HoldRequests => direction == Direction::Request,
                    Mode::HoldAnswers => direction == Direction::Answer,
                    _ => false,
                };
            if number <= state.cut {
                return None;
            }
            if !held {
                return Some(state);
            }
            state.harm += u64::from(!was_held);
            was_held = true;
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends data over a connection of its own, and lets the other side answer before it is closed.
    fn once_more(&self, data: Vec<u8>, later: Duration) {
        let target = *lock(&self.target);
        thread::spawn(move || {
            thread::sleep(later);
            let Ok(mut server) = TcpStream::connect(target) else { return };
            if server.write_all(&data).is_ok() && server.shutdown(Shutdown::Write).is_ok() {
                let _ = std::io::copy(&mut server, &mut std::io::sink());
            }
        });
    }

    /// Resets both ends of one connection.
    fn end(&self, number: u64) {
        let mut state = lock(&self.state);
        let (ended, open) = state.open.drain(..).partition(|(other, _)| *other == number);
        state.open = open;
        let ended: Vec<(u64, TcpStream)> = ended;
        ended.into_iter().for_each(|(_, stream)| reset(stream));
    }
}

/// Closes a connection with a reset, as a crashed host or a firewall does: the end of reading ends its pumps,
/// and the last descriptor sends the reset.
fn reset(stream: TcpStream) {
    let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    let _ = stream.shutdown(Shutdown::Read);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
