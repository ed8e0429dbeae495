//! Whether a server is fit for locks, and what its refusals mean for the caller.

use super::config::Config;
use super::driver::batch;
use super::sentinel::reign;
use crate::{Error, Result, Source};

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Refuses a server on which locks would not be safe, by its INFO. Returns its version, as far as it tells.
pub(super) fn check(info: &str, config: &Config) -> Result<(u32, u32)> {
    let store = &config.label;
    let told = field(info, "redis_version");
    let mut parts = told.unwrap_or("6.2").split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < (6, 2) {
        let told = told.unwrap_or_default();
        return Err(Error::config(format!("{store} is Redis {told}; Fencepost needs 6.2 or newer")));
    }
    let is_cluster = field(info, "cluster_enabled") == Some("1");
    if is_cluster && !config.is_cluster() {
        return Err(cluster(store));
    }
    if !is_cluster && config.is_cluster() && field(info, "cluster_enabled").is_some() {
        return Err(no_cluster(store));
    }
    if field(info, "role") == Some("slave") && !config.allow_replica {
        // Of a cluster, or as Sentinel has it, it was the master until now, or is not yet.
        return Err(match is_cluster || config.is_found_by_sentinel() {
            true => unavailable("it is a replica now", config),
            false => replica(store),
        });
    }
    let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && !config.allow_evicting {
        return Err(Error::config(format!(
            "{store} evicts keys when memory runs short (maxmemory-policy {policy}), and so could give one \
             lock to two holders, or forget a token; set `maxmemory-policy noeviction`, use a server of its \
             own for this, or accept it with `?allow=evicting`"
        )));
    }
    Ok(version)
}

/// What an error reply means.
pub(super) fn refusal(text: &str, config: &Config) -> Error {
    let store = &config.label;
    // An unknown command is quoted with its arguments, and the first one carries the password.
    let text = text.split(", with args").next().unwrap_or_default();
    // What a script may not call has no code of its own.
    let code = match code(text) {
        batch::UNREPLICATED if text.contains("NOPERM") => "NOPERM",
        _ if text.contains("can't run this command") => "NOPERM",
        code => code,
    };
    let hidden = config.password.as_ref().map(|password| password.hide_in(text));
    let text = hidden.as_deref().unwrap_or(text);
    match code {
        "WRONGPASS" | "NOAUTH" => Error::config(format!(
            "{store} refused the user or password ({text}); give both in the URL as \
             `redis://user:password@host`"
        )),
        "NOPERM" => Error::config(format!(
            "{store} does not let this user do what locks need ({text}); grant it `+@scripting +@pubsub \
             +@string +@list +@keyspace +@connection +info +time{}{}` on the keys `{}*` and `{{{}*` and on \
             all channels",
            if config.is_cluster() { " +cluster|slots" } else { "" },
            config.replicas.map_or("", |_| " +wait"),
            config.start,
            config.prefix
        )),
        "QUARANTINE" => unavailable(reign::refusal(text), config),
        "READONLY" | "REIGN" if config.is_found_by_sentinel() => unavailable(text, config),
        "READONLY" | "MOVED" | "ASK" if config.is_cluster() => unavailable(text, config),
        "READONLY" => replica(store),
        "MOVED" | "ASK" => cluster(store),
        "LOADING"
        | "BUSY"
        | "MASTERDOWN"
        | "CLUSTERDOWN"
        | "TRYAGAIN"
        | "NOREPLICAS"
        | batch::UNREPLICATED => unavailable(text, config),
        "ERR" if text.contains("cluster support disabled") => no_cluster(store),
        // Only `SELECT` speaks of it.
        "ERR" if text.contains("DB index") => Error::config(format!(
            "{store} has no database {} ({text}); choose a smaller number in the URL, or raise \
             `databases` in the server's configuration",
            config.database
        )),
        "ERR" if text.contains("unknown command") || is_unknown_in_script(text) => Error::config(format!(
            "{store} is too old or not a Redis ({text}); Fencepost needs Redis 6.2 or newer, or a server \
             compatible with it"
        )),
        _ => Error::Backend { store: store.clone(), source: text.into() },
    }
}

pub(super) fn unavailable(source: impl Into<Source>, config: &Config) -> Error {
    Error::Unavailable { store: config.label.clone(), source: source.into() }
}

/// The code of an error reply: its first word. What follows may name a key, and so anything. Redis 6 wraps
/// the error of a command in that of the script: there the code is the next word in capitals.
pub(super) fn code(text: &str) -> &str {
    let mut words = text.split([' ', ':']).map(|word| word.trim_start_matches('-'));
    let first = words.next().unwrap_or_default();
    let is_code = |word: &&str| word.len() > 2 && word.bytes().all(|letter| letter.is_ascii_uppercase());
    let in_script = text.starts_with("ERR Error running script") || text.starts_with("@user_script");
    if in_script { words.find(is_code).unwrap_or(first) } else { first }
}

/// A script has called what the server does not know. It does not tell what.
fn is_unknown_in_script(text: &str) -> bool {
    text.contains("Unknown ") && text.contains("command called from")
}

fn replica(store: &str) -> Error {
    Error::config(format!("{store} is a read-only replica; connect to its master"))
}

fn cluster(store: &str) -> Error {
    Error::config(format!(
        "{store} is a node of a Redis Cluster; write `redis+cluster://` in front of its address"
    ))
}

fn no_cluster(store: &str) -> Error {
    Error::config(format!("{store} is no cluster; write `redis://` for one server"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    fn config(url: &str) -> Config {
        Config::from_url(StoreUrl::parse(url).unwrap()).unwrap()
    }

    const GOOD: &str = concat!(
        "# Server\r\nredis_version:7.0.15\r\nrole:master\r\n",
        "maxmemory_policy:noeviction\r\ncluster_enabled:0\r\n"
    );

    #[test]
    fn a_plain_master_is_fit() {
        assert!(check(GOOD, &config("redis://h")).is_ok());
    }

    #[test]
    fn each_unfit_server_is_refused_for_its_own_reason() {
        for (from, to, word) in [
            ("7.0.15", "6.0.16", "6.2 or newer"),
            ("role:master", "role:slave", "replica"),
            ("noeviction", "allkeys-lru", "evicts"),
            ("cluster_enabled:0", "cluster_enabled:1", "Cluster"),
        ] {
            let message = check(&GOOD.replace(from, to), &config("redis://h")).unwrap_err().to_string();
            assert!(message.contains(word), "{message}");
        }
        let lenient = config("redis://h?allow=evicting,replica");
        assert!(
            check(&GOOD.replace("noeviction", "volatile-ttl").replace("master", "slave"), &lenient).is_ok()
        );
    }

    #[test]
    fn the_code_of_an_error_is_not_taken_from_the_name_of_a_key() {
        for (text, expected) in [
            ("READONLY You can't write against a read only replica.", "READONLY"),
            (
                "ERR Error running script (call to f_0): @user_script:41: -READONLY You can't write",
                "READONLY",
            ),
            ("@user_script: 41: -READONLY You can't write", "READONLY"),
            ("WRONGTYPE Operation: {lock:a: -READONLY b}:fence", "WRONGTYPE"),
            ("@user_script: 41: -ERR the token is out of range: {lock:a READONLY b}:fence", "ERR"),
            ("ERR Error running script (call to f_0): @user_script:3: no code", "ERR"),
            ("", ""),
        ] {
            assert_eq!(code(text), expected, "{text}");
        }
    }
}
