//! Whether a server is fit for locks, by what it says of itself.

use crate::backends::redis::config::Config;
use crate::{Error, Result};

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// Refuses a server on which locks would not be safe.
pub(super) fn check(info: &str, config: &Config) -> Result<()> {
    let store = &config.label;
    if let Some(version) = field(info, "redis_version") {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let (major, minor) = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        if (major, minor) < (6, 2) {
            return Err(Error::config(format!("{store} is Redis {version}; Fencepost needs 6.2 or newer")));
        }
    }
    if field(info, "cluster_enabled") == Some("1") {
        return Err(cluster(store));
    }
    if field(info, "role") == Some("slave") && !config.allow_replica {
        return Err(replica(store));
    }
    let policy = field(info, "maxmemory_policy").unwrap_or("noeviction");
    if policy != "noeviction" && !config.allow_evicting {
        return Err(Error::config(format!(
            "{store} evicts keys when memory runs short (maxmemory-policy {policy}), and so could give one lock to two \
             holders, or forget a token; set `maxmemory-policy noeviction`, use a server of its own for this, or accept it \
             with `?allow=evicting`"
        )));
    }
    Ok(())
}

pub(super) fn replica(store: &str) -> Error {
    Error::config(format!("{store} is a read-only replica; connect to its master"))
}

pub(super) fn cluster(store: &str) -> Error {
    Error::config(format!(
        "{store} is a node of a Redis Cluster, which this store does not support; use a single server"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::StoreUrl;

    fn config(url: &str) -> Config {
        Config::from_url(StoreUrl::parse(url).unwrap()).unwrap()
    }

    const GOOD: &str = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";

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
}
