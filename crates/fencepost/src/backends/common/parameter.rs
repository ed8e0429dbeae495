//! The parameters of store URLs, as the documents and the command's help print them.

/// One `key=value` of a store URL. Each store lists its own in `config.rs`, in the order of its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// The key.
    pub name: &'static str,
    /// What holds without it; empty if nothing does.
    pub default: &'static str,
    /// What it sets, in one sentence without a period.
    pub help: &'static str,
}

impl Parameter {
    pub(in crate::backends) const fn new(
        name: &'static str,
        default: &'static str,
        help: &'static str,
    ) -> Self {
        Self { name, default, help }
    }
}
