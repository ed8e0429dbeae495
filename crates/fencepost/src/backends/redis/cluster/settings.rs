//! What a cluster is set to, as far as it tells: which leases a failover cannot break.

use std::sync::Once;
use std::time::Duration;

use crate::backends::redis::driver::resp::Value;
use crate::backends::redis::driver::session::Sessions;
use crate::format_duration;

/// For clocks, and for requests on their way.
const MARGIN: Duration = Duration::from_secs(2);

/// An election in which too few vote holds a shard up for five seconds.
const SHORT: Duration = Duration::from_secs(6);

/// What matters of it, where the server tells.
#[derive(Debug)]
pub(super) struct Settings {
    node_timeout: Option<Duration>,
    /// For how long a master without replicas goes on; `None` if it is not known, or has no end.
    lag: Option<Duration>,
    /// It has no end.
    unbounded: bool,
    warned: [Once; 2],
}

impl Settings {
    /// Reads them from one master. Nothing is guessed: a user may not be allowed to.
    pub(super) async fn read(master: &Sessions) -> Self {
        let names = ["cluster-node-timeout", "min-replicas-to-write", "min-replicas-max-lag"];
        let commands = names.map(|name| ["CONFIG", "GET", name]);
        let replies = master.ask(&commands.each_ref().map(|words| &words[..])).await.unwrap_or_default();
        let number = |index: usize| {
            let [_, value] = replies.get(index).and_then(Value::as_list)? else { return None };
            value.as_text()?.parse::<u64>().ok()
        };
        Self::new(number(0), number(1), number(2))
    }

    fn new(node_timeout: Option<u64>, replicas: Option<u64>, lag: Option<u64>) -> Self {
        let unbounded = replicas == Some(0) || replicas.is_some() && lag == Some(0);
        let lag = lag.filter(|_| replicas.is_some() && !unbounded).map(Duration::from_secs);
        let node_timeout = node_timeout.map(Duration::from_millis);
        Self { node_timeout, lag, unbounded, warned: [const { Once::new() }; 2] }
    }

    /// What to tell about locks of this ttl: that a failover may break them, and that they are short.
    fn warnings(&self, ttl: Duration) -> [Option<String>; 2] {
        let longest =
            self.node_timeout.zip(self.lag).map(|(timeout, lag)| timeout.saturating_sub(lag + MARGIN));
        let breakable = match longest {
            _ if self.unbounded => Some(
                "a failover can give a lock to a second holder: set `min-replicas-to-write 1` and \
                 `min-replicas-max-lag 2` on all nodes"
                    .to_owned(),
            ),
            Some(longest) if ttl > longest => Some(format!(
                "a failover can give a lock with a ttl of {} to a second holder: use a ttl of at most {}, or \
                 a longer `cluster-node-timeout`",
                format_duration(ttl),
                format_duration(longest),
            )),
            _ => None,
        };
        let short = (ttl < SHORT).then(|| {
            format!(
                "a failover can take longer than a ttl of {}, and locks run out meanwhile: use 10s",
                format_duration(ttl)
            )
        });
        [breakable, short]
    }

    /// Warns, once of each.
    pub(super) fn look_at(&self, ttl: Duration, store: &str) {
        if self.warned.iter().all(Once::is_completed) {
            return;
        }
        for (warning, once) in self.warnings(ttl).into_iter().zip(&self.warned) {
            if let Some(warning) = warning {
                once.call_once(|| tracing::warn!(store, "{warning} (or add `allow=failover` to the URL)"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_lease_must_end_before_another_master_may_be_elected() {
        let settings = Settings::new(Some(15_000), Some(1), Some(2));
        assert_eq!(settings.warnings(seconds(10)), [None, None]);
        assert_eq!(settings.warnings(seconds(11)), [None, None]);
        let [Some(breakable), None] = settings.warnings(seconds(12)) else { panic!() };
        assert!(breakable.contains("12s") && breakable.contains("at most 11s"), "{breakable}");
        let [None, Some(short)] = settings.warnings(seconds(5)) else { panic!() };
        assert!(short.contains("5s"), "{short}");
    }

    #[test]
    fn a_master_that_goes_on_without_replicas_is_warned_about_and_what_is_not_told_is_not() {
        for settings in
            [Settings::new(Some(15_000), Some(0), Some(10)), Settings::new(None, Some(1), Some(0))]
        {
            let [Some(breakable), None] = settings.warnings(seconds(10)) else { panic!() };
            assert!(breakable.contains("min-replicas-to-write 1"), "{breakable}");
        }
        assert_eq!(Settings::new(None, None, None).warnings(seconds(60)), [None, None]);
        assert_eq!(Settings::new(Some(1), None, Some(10)).warnings(seconds(60)), [None, None]);
    }
}
