//! The real server: calls scripts with a given clock, reads all keys back, and listens to one channel.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Instant;

use fencepost_testkit::LIMIT;
use fencepost_testkit::redis::{Reply, Server};

/// Somebody listens here...
pub(crate) const HEARD: &str = "channel-000heard";
/// ... and nobody here.
pub(crate) const UNHEARD: &str = "channel-0unheard";

macro_rules! script {
    ($name:literal) => {
        include_str!(concat!("../../../fencepost/src/backends/redlock/scripts/", $name, ".lua"))
    };
}

/// Hands a script the clock that comes as the last argument; all else is the server's. Says at the end what
/// is there.
const AROUND: [&str; 2] = [
    "local clock = tonumber(table.remove(ARGV))
local server = redis
local redis = {}
for _, call in ipairs({ 'call', 'pcall' }) do
  redis[call] = function(command, ...)
    if command ~= 'TIME' then return server[call](command, ...) end
    return { string.format('%.0f', math.floor(clock / 1000000)), string.format('%.0f', clock % 1000000) }
  end
end
local function script()
",
    "
end
local reply = script()
local found, keys = {}, server.call('KEYS', '*')
table.sort(keys)
for i, key in ipairs(keys) do
  local kind = server.call('TYPE', key).ok
  local value = kind == 'string' and server.call('GET', key) or server.call('LRANGE', key, 0, -1)
  found[i] = { key, value, server.call('PTTL', key) }
end
return { reply, found }
",
];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    Ops,
    Revoke,
    Hold,
    Attach,
    Greet,
    /// Does nothing: only says what is there.
    Look,
}

impl Script {
    const ALL: [Self; 6] = [Self::Ops, Self::Revoke, Self::Hold, Self::Attach, Self::Greet, Self::Look];

    fn source(self) -> String {
        let [before, after] = AROUND;
        let prelude = script!("prelude");
        let body = match self {
            Self::Ops => script!("ops").to_owned(),
            Self::Revoke => format!("{prelude}{}", script!("revoke")),
            Self::Hold => format!("{prelude}{}", script!("hold")),
            Self::Attach => format!("{prelude}{}", script!("attach")),
            Self::Greet => script!("greet").to_owned(),
            Self::Look => "return 0".to_owned(),
        };
        format!("{before}{body}{after}")
    }
}

/// One key: name, value, and what `PTTL` says.
pub(crate) type Found = (String, Reply, i64);

pub(crate) struct Real<'a> {
    server: &'a Server,
    shas: Vec<String>,
    listener: UnixStream,
    since: Instant,
}

impl<'a> Real<'a> {
    /// The server without any key.
    pub(crate) fn new(server: &'a Server) -> Self {
        let shas =
            Script::ALL.iter().map(|script| server.cli(&["SCRIPT", "LOAD", &script.source()])).collect();
        let mut listener = UnixStream::connect(server.socket()).expect("the server listens");
        listener.set_read_timeout(Some(LIMIT)).expect("a timeout");
        listener.write_all(format!("SUBSCRIBE {HEARD}\r\n").as_bytes()).expect("the server reads");
        let real = Self { server, shas, listener, since: Instant::now() };
        for key in server.keys() {
            server.call(&["DEL", &key]);
        }
        real
    }

    pub(crate) fn run_id(&self) -> String {
        let info = self.server.cli(&["INFO", "server"]);
        let line = info.lines().find_map(|line| line.strip_prefix("run_id:")).expect("a run id");
        line.trim().to_owned()
    }

    pub(crate) fn command(&self, words: &[&str]) {
        self.server.cli(words);
    }

    /// Milliseconds since the start of the sequence.
    pub(crate) fn elapsed(&self) -> i64 {
        i64::try_from(self.since.elapsed().as_millis()).expect("a short time")
    }

    /// Calls a script at the given time and says what is there afterwards.
    pub(crate) fn call(&self, script: Script, keys: &[&str], args: &[&str], now: u64) -> (Reply, Vec<Found>) {
        let (count, now) = (keys.len().to_string(), now.to_string());
        let mut words = vec!["EVALSHA", &self.shas[script as usize], &count];
        words.extend(keys);
        words.extend(args);
        words.push(&now);
        match self.server.call(&words) {
            Reply::List(both) => {
                let [reply, found] = <[Reply; 2]>::try_from(both).expect("reply and keys");
                (reply, list(found).into_iter().map(entry).collect())
            }
            error => (error, self.call(Script::Look, &[], &[], 0).1),
        }
    }

    /// All that the listener was told, as it came over the wire.
    pub(crate) fn heard(&mut self) -> String {
        let end = message("the end");
        self.server.cli(&["PUBLISH", HEARD, "the end"]);
        let (mut heard, mut buffer) = (String::new(), [0; 4096]);
        while !heard.ends_with(&end) {
            let count = self.listener.read(&mut buffer).expect("the end is told");
            assert!(count > 0, "the server hung up");
            heard += std::str::from_utf8(&buffer[..count]).expect("text");
        }
        heard.truncate(heard.len() - end.len());
        let subscribed = format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{HEARD}\r\n:1\r\n", HEARD.len());
        heard.strip_prefix(&subscribed).expect("subscribed").to_owned()
    }
}

/// A message as it comes over the wire.
pub(crate) fn message(text: &str) -> String {
    format!("*3\r\n$7\r\nmessage\r\n${}\r\n{HEARD}\r\n${}\r\n{text}\r\n", HEARD.len(), text.len())
}

fn list(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::List(items) => items,
        other => panic!("not a list: {other:?}"),
    }
}

fn entry(reply: Reply) -> Found {
    match <[Reply; 3]>::try_from(list(reply)) {
        Ok([Reply::Text(key), value, Reply::Number(left)]) => (key, value, left),
        other => panic!("not a key: {other:?}"),
    }
}
