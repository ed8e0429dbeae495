//! The rules of the shell around the client's core. Each can be switched off, to see that the simulation
//! notices.

#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// A node that has lost something does not vote until every lease that it may have granted is over.
    pub(super) quarantine: bool,
    /// That goes for one that was never used, too: it may have taken the place of one that was.
    pub(super) spares_wait: bool,
    /// Each new connection begins with a greeting, so that a server which started anew is noticed.
    pub(super) greeting: bool,
    /// A lock is valid from when it was asked for, not from when it was answered.
    pub(super) validity_from_send: bool,
    /// A node does not confirm a token that its counter has passed.
    pub(super) counter_test: bool,
    /// The end of a term is left unused, for the sake of clocks that run at different rates.
    pub(super) margin: bool,
    /// An extension counts, and acts on nodes, only while the old term lasts.
    pub(super) timely_extension: bool,
    /// Each attempt has an owner of its own.
    pub(super) fresh_owner: bool,
    /// Who does not get a lock gives back what it got of it.
    pub(super) giving_back: bool,
}

impl Rules {
    pub(super) const ALL: Self = Self {
        quarantine: true,
        spares_wait: true,
        greeting: true,
        validity_from_send: true,
        counter_test: true,
        margin: true,
        timely_extension: true,
        fresh_owner: true,
        giving_back: true,
    };
}
