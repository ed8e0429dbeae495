//! Who we are, as shown to others in a holder's record.

use std::sync::OnceLock;

/// This machine's host name.
pub(crate) fn host() -> &'static str {
    static HOST: OnceLock<String> = OnceLock::new();
    HOST.get_or_init(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}
