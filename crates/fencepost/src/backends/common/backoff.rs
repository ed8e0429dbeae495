//! Pauses between repeated requests.

use std::time::Duration;

use crate::wait::jittered;

/// Each pause is twice as long as the one before, up to a limit. Jitter takes up to half of it away.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Backoff {
    next: Duration,
    most: Duration,
}

impl Backoff {
    pub(in crate::backends) const fn new(first: Duration, most: Duration) -> Self {
        Self { next: first, most }
    }

    /// The next pause.
    pub(in crate::backends) fn pause(&mut self) -> Duration {
        let pause = self.next.min(self.most);
        self.next = pause * 2;
        jittered(pause)
    }

    /// Sleeps for the next pause, on the current runtime.
    pub(in crate::backends) async fn sleep(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_jitter_takes_half_at_most() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(ms(100), ms(300));
        for expected in [100, 200, 300, 300] {
            assert!((ms(expected / 2)..=ms(expected)).contains(&backoff.pause()));
        }
    }
}
