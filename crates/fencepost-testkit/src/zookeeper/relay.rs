//! A link that knows the protocol: it can lose the answer to one request, or put an error in its place.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A request, by its number in the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Deletes a node.
    Delete = 2,
    /// Changes the data of a node.
    Write = 5,
    /// Waits for what the leader knows.
    Sync = 9,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Lost,
    Error(i32),
}

type Plan = Arc<Mutex<Option<(Operation, Fate)>>>;

/// A relay to one server. New, it passes everything on; it ends with the process.
#[derive(Debug)]
pub struct Relay {
    addr: SocketAddr,
    plan: Plan,
}

impl Relay {
    /// Starts a relay to `target`.
    ///
    /// # Panics
    /// If no port can be opened.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let addr = listener.local_addr().expect("a bound port has an address");
        let plan = Plan::default();
        let shared = plan.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(target) else { continue };
                let plan = shared.clone();
                thread::spawn(move || relay(&client, &server, &plan));
            }
        });
        Self { addr, plan }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next such request reaches the server; its connection ends instead of the answer.
    pub fn lose_answer(&self, operation: Operation) {
        self.set(operation, Fate::Lost);
    }

    /// The next such request is answered with an error.
    pub fn answer_with(&self, operation: Operation, code: i32) {
        self.set(operation, Fate::Error(code));
    }

    fn set(&self, operation: Operation, fate: Fate) {
        *lock(&self.plan) = Some((operation, fate));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Carries one connection to its end.
fn relay(client: &TcpStream, server: &TcpStream, plan: &Plan) {
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    // The request whose answer has another fate.
    let marked = Mutex::new(None);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = answers(server, client, &marked);
            end(client, server);
        });
        let _ = requests(client, server, plan, &marked);
        end(client, server);
    });
}

fn end(client: &TcpStream, server: &TcpStream) {
    let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

fn requests(
    client: &TcpStream,
    mut server: &TcpStream,
    plan: &Plan,
    marked: &Mutex<Option<([u8; 4], Fate)>>,
) -> io::Result<()> {
    // The greeting has a form of its own.
    server.write_all(&frame(client)?)?;
    loop {
        let request = frame(client)?;
        let mut plan = lock(plan);
        if let Some((operation, fate)) = *plan
            && request.get(8..12) == Some(&(operation as i32).to_be_bytes()[..])
        {
            *plan = None;
            *lock(marked) = request[4..8].try_into().ok().map(|xid| (xid, fate));
        }
        drop(plan);
        server.write_all(&request)?;
    }
}

fn answers(
    server: &TcpStream,
    mut client: &TcpStream,
    marked: &Mutex<Option<([u8; 4], Fate)>>,
) -> io::Result<()> {
    client.write_all(&frame(server)?)?;
    loop {
        let mut answer = frame(server)?;
        match *lock(marked) {
            Some((xid, Fate::Lost)) if answer[4..8] == xid => return Ok(()),
            Some((xid, Fate::Error(code))) if answer[4..8] == xid => {
                // Its length, its number, a transaction, and the error; nothing behind.
                answer.truncate(20);
                answer[..4].copy_from_slice(&16_i32.to_be_bytes());
                answer[16..].copy_from_slice(&code.to_be_bytes());
            }
            _ => {}
        }
        client.write_all(&answer)?;
    }
}

/// One message, its length in front.
fn frame(mut stream: &TcpStream) -> io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    stream.read_exact(&mut message)?;
    let length = i32::from_be_bytes(message[..].try_into().map_err(io::Error::other)?);
    message.resize(4 + usize::try_from(length).map_err(io::Error::other)?, 0);
    stream.read_exact(&mut message[4..])?;
    Ok(message)
}
