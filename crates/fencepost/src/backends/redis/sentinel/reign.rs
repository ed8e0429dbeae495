//! From when on a master may grant locks. A new one may not know of what the last one granted: it waits
//! until that has ended. `scripts/greet.lua` keeps the key that says so, `scripts/reign.lua` asks it for each
//! grant.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use super::config::Quarantine;
use crate::backends::redis::driver::connection::Connection;
use crate::backends::redis::driver::connector::Connector;
use crate::backends::redis::driver::resp::Value;
use crate::runtime::sync::lock;
use crate::{Error, Result, format_duration};

const GREET: &str = include_str!("../scripts/greet.lua");
const ASK: &str = include_str!("../scripts/reign.lua");
const OPS: &str = include_str!("../scripts/ops.lua");

/// Where `ops.lua` grants a lock or makes it last longer, and what is put before or in place of that. One
/// Redis has no such questions, and shall not pay for them.
const QUESTIONS: [(usize, &str, &str); 7] = [
    (1, "local call, sub, now = redis.call, string.sub, nil\n", ASK),
    // A release hands the lock to nobody. The waiter keeps its place.
    (
        1,
        "    head = popped\n  elseif verb == 'renew'",
        "    if popped and not may_grant() then\n\
         \x20     call('LPUSH', queue, popped) call('PEXPIRE', queue, '60000')\n\
         \x20     popped = nil\n\
         \x20   end\n\
         \x20   head = popped\n  elseif verb == 'renew'",
    ),
    // Of two that attach one handle the first may have been forgotten.
    (
        1,
        "    if new then call('SET', lock, new .. suffix, 'KEEPTTL') end\n",
        "    if new and found == sub(mine, 1, 36) and not may_grant() then return refused end\n\
         \x20   if new then call('SET', lock, new .. suffix, 'KEEPTTL') end\n",
    ),
    (
        2,
        "    local left = call('PTTL', lock)\n",
        "    local left = call('PTTL', lock)\n    if not may_last(left) then return refused end\n",
    ),
    (
        1,
        "    if holder ~= value then return {holder or '', call('PTTL', lock), -1} end\n",
        "    if holder ~= value then return {holder or '', call('PTTL', lock), -1} end\n\
         \x20   if verb == 'seize' and not may_grant() then return refused end\n",
    ),
    // A lock that is free is free for nobody.
    (
        1,
        "  elseif not holder then\n",
        "  elseif not holder and not may_grant() then\n\
         \x20   if not left then return refused end\n\
         \x20 elseif not holder then\n",
    ),
    (
        1,
        "  return {sub(call('GET', lock) or '', 1, 16384), call('PTTL', lock), place}\n",
        "  if not holder and left then return {met, left, place} end\n\
         \x20 return {sub(call('GET', lock) or '', 1, 16384), call('PTTL', lock), place}\n",
    ),
];

/// `ops.lua` for a link that has met a reign.
pub(in crate::backends::redis) fn script() -> &'static str {
    static SCRIPT: LazyLock<String> =
        LazyLock::new(|| QUESTIONS.iter().fold(OPS.to_owned(), |text, (_, from, to)| text.replace(from, to)));
    &SCRIPT
}

/// Redis' default, and what is assumed of a server that does not tell.
const DEFAULT_MAX_LAG: Duration = Duration::from_secs(10);

/// Silence is counted in whole seconds; and the last replica of the old master is told of the new one not
/// quite as early as we are.
const GRAIN: Duration = Duration::from_secs(2);

/// Where the text of a reign says why there is a quarantine.
const WHY: usize = 6;

/// What replicas a master must have heard of lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Replicas {
    count: u64,
    max_lag: Duration,
}

/// What a greeting may settle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends::redis) enum GreetMode {
    /// Begins a quarantine if the reign is another one.
    Meet,
    /// An operator declares a new deployment.
    Found,
    /// An operator changes the longest ttl.
    Change,
}

/// The reign that a link has met.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Reign {
    pub(in crate::backends::redis) key: String,
    /// The text of the key.
    pub(in crate::backends::redis) text: String,
    /// What else the script is told: two times of it, and what replicas there must be.
    pub(in crate::backends::redis) terms: String,
    /// How long a master goes on that hears nothing of its replicas.
    pub(in crate::backends::redis) max_lag: Duration,
    /// What was left of its quarantine.
    pub(super) left: Duration,
    /// Whether the greeting has begun it.
    pub(super) is_new: bool,
}

impl Reign {
    /// Why nothing is granted for so many milliseconds more, if that is what a lock's value says.
    pub(in crate::backends::redis) fn quarantine(&self, value: &[u8], left: i64) -> Option<String> {
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(1));
        (value == self.text.as_bytes()).then(|| in_quarantine(left, self.text.split(' ').nth(WHY)))
    }
}

/// Why nothing is granted.
fn in_quarantine(left: Duration, why: Option<&str>) -> String {
    // To the second: nobody waits for less.
    let left = format_duration(Duration::from_secs(left.as_millis().div_ceil(1000).try_into().unwrap_or(0)));
    match why {
        Some("new") => format!(
            "in quarantine for another {left}: it is new, or has lost its data; if it has never been used \
             for locks, declare it with `fencepost init`, and it grants them at once"
        ),
        Some("changed") => {
            format!("in quarantine for another {left}: `max_ttl` or `min-replicas-max-lag` was changed")
        }
        Some("switched") => {
            format!(
                "in quarantine after a failover for another {left}: the last master may have granted locks"
            )
        }
        _ => format!("in quarantine after a failover for another {left}"),
    }
}

/// What an error reply says of a quarantine: `QUARANTINE MILLISECONDS`.
pub(in crate::backends::redis) fn refusal(text: &str) -> String {
    let left = text.split(' ').nth(1).and_then(|left| left.parse().ok()).unwrap_or(1);
    in_quarantine(Duration::from_millis(left), None)
}

/// The key that tells the reign: a name that no lock can have.
pub(super) fn key(prefix: &str) -> String {
    format!("{{{prefix}fencepost}}:reign")
}

/// Meets the reign of a server that is master. Warns of what its configuration lacks.
pub(in crate::backends::redis) async fn greet(
    connector: &Connector,
    connection: &Connection,
    quarantine: Option<Quarantine>,
    mode: GreetMode,
) -> Result<Option<Reign>> {
    let ask = async |words: &[&str]| {
        let reply = connection.command(words).map_err(|why| connector.unavailable(why))?;
        reply.await.map_err(|_| connector.unavailable(connection.why_ended()))
    };
    let replicas = replicas(&ask(&["CONFIG", "GET", "min-replicas-*"]).await?, &connector.config.label);
    let Some(Quarantine { max_ttl }) = quarantine else { return Ok(None) };
    let [lease, alone] = [max_ttl, replicas.max_lag + GRAIN].map(|time| time.as_millis().to_string());
    let mode = match mode {
        GreetMode::Meet => "meet",
        GreetMode::Found => "found",
        GreetMode::Change => "change",
    };
    let key = key(&connector.config.prefix);
    let reply = ask(&["EVAL", GREET, "1", &key, &lease, &alone, mode]).await?;
    if let Value::Error(text) = &reply {
        return Err(connector.refusal(text));
    }
    let reign = read(&reply, key, replicas).ok_or_else(|| {
        Error::backend(&connector.config.label, format!("a greeting that makes no sense: {reply:?}"))
    })?;
    if !reign.left.is_zero() {
        let (store, why) =
            (&connector.config.label, in_quarantine(reign.left, reign.text.split(' ').nth(WHY)));
        tracing::info!(%store, "{why}");
    }
    Ok(Some(reign))
}

fn read(reply: &Value, key: String, Replicas { count, max_lag }: Replicas) -> Option<Reign> {
    let [text, left, is_new] = reply.as_list()? else { return None };
    let (text, left) = (text.as_text()?.to_owned(), u64::try_from(left.as_int()?).ok()?);
    let [settled, ends] = [4, 5].map(|at| text.split(' ').nth(at));
    let terms = format!("{} {} {count} {}", settled?, ends?, max_lag.as_secs());
    let left = Duration::from_millis(left);
    Some(Reign { key, text, terms, max_lag, left, is_new: is_new.as_int()? == 1 })
}

/// What replicas the server wants, by the reply to `CONFIG GET min-replicas-*`. One that wants none is known
/// to the script by its INFO.
fn replicas(reply: &Value, label: &str) -> Replicas {
    let setting = |name: &str| {
        let pair = reply.as_list()?.chunks_exact(2).find(|pair| pair[0].as_text() == Some(name))?;
        pair[1].as_text()?.parse::<u64>().ok()
    };
    match (setting("min-replicas-to-write"), setting("min-replicas-max-lag")) {
        (Some(count @ 1..), Some(lag @ 1..)) => Replicas { count, max_lag: Duration::from_secs(lag) },
        (Some(_), Some(_)) => {
            warn_once(
                label,
                "a master that is cut off from its replicas goes on granting locks, without end; set on \
                 every server `CONFIG SET min-replicas-to-write 1`, `CONFIG SET min-replicas-max-lag 2` and \
                 `CONFIG REWRITE`",
            );
            Replicas { count: 1, max_lag: DEFAULT_MAX_LAG }
        }
        _ => {
            warn_once(
                label,
                "the server does not tell `min-replicas-to-write` and `min-replicas-max-lag`, and 10s are \
                 taken for the latter; see that both are set on every server, or allow this user \
                 `+config|get`",
            );
            Replicas { count: 1, max_lag: DEFAULT_MAX_LAG }
        }
    }
}

fn warn_once(store: &str, what: &'static str) {
    static WARNED: LazyLock<Mutex<HashSet<(String, &'static str)>>> = LazyLock::new(Mutex::default);
    if lock(&WARNED).insert((store.to_owned(), what)) {
        tracing::warn!(%store, "{what}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_asks_at_each_place() {
        for (count, from, to) in QUESTIONS {
            assert_eq!(OPS.matches(from).count(), count, "{from}");
            assert_eq!(script().matches(to).count(), count, "{to}");
        }
    }

    #[test]
    fn a_value_that_is_the_reign_tells_of_its_quarantine() {
        let text = "aa bb 10000 4000 1690000000000000 1700000000000000 switched".to_owned();
        let key = key("app:");
        assert_eq!(key, "{app:fencepost}:reign");
        let replicas = Replicas { count: 1, max_lag: Duration::from_secs(2) };
        let reply = Value::List(vec![Value::Text(text.into()), Value::Int(0), Value::Int(0)]);
        let reign = read(&reply, key, replicas).unwrap();
        assert_eq!(
            (reign.terms.as_str(), reign.left),
            ("1690000000000000 1700000000000000 1 2", Duration::ZERO)
        );
        let why = reign.quarantine(reign.text.as_bytes(), 6001).unwrap();
        assert!(why.starts_with("in quarantine after a failover for another 7s"), "{why}");
        assert_eq!(reign.quarantine(b"", 1), None);
        assert!(refusal("QUARANTINE 900 x").ends_with("for another 1s"));
        assert!(refusal("QUARANTINE").ends_with("for another 1s"));
    }

    #[test]
    fn the_replicas_are_read_and_silence_is_not_guessed_short() {
        let text = |text: &str| Value::Text(text.into());
        let settings = |count: &str, lag: &str| {
            let words = ["min-replicas-max-lag", lag, "min-replicas-to-write", count];
            let Replicas { count, max_lag } = replicas(&Value::List(words.map(text).to_vec()), "x");
            (count, max_lag.as_secs())
        };
        assert_eq!(settings("1", "2"), (1, 2));
        assert_eq!(settings("2", "30"), (2, 30));
        assert_eq!(settings("0", "2"), (1, 10));
        assert_eq!(settings("1", "0"), (1, 10));
        for reply in [Value::Error("NOPERM".to_owned()), Value::List(Vec::new())] {
            assert_eq!(replicas(&reply, "x").max_lag, DEFAULT_MAX_LAG);
        }
    }
}
