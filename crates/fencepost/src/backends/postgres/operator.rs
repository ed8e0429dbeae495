//! What operators ask: who holds what, and to take it away. Over a connection of its own, so that a long answer
//! holds up no renewal.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::claim::holder;
use super::hub::Hub;
use super::key::Key;
use super::wire::get;
use crate::backend::{ForceRelease, Revoked};
use crate::{Error, FencingToken, Holder, Listing, Name, Result};

/// How long a victim has to give its advisory lock back by itself before its session is ended.
const MANNERS: Duration = Duration::from_millis(500);

/// Pauses before who has an advisory lock and no lease is taken for other code.
const LOOKS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(40)];

/// The columns of a holder, as `acquire` returns them. A lease without delay counts while its session is there. Whoever may
/// write to the table may have written what is no time, or far too much.
const HOLDERS: &str = "
    SELECT NULL::bigint, 'held', left(l.name, 1024), left(l.owner, 64),
           CASE WHEN l.revoked IS NULL THEN l.token ELSE l.revoked_token END, left(l.host, 1024), l.process, left(l.note, 1024),
           CASE WHEN isfinite(l.since) THEN (extract(epoch FROM l.since) * 1000)::bigint END,
           CASE WHEN isfinite(l.ends)
                THEN greatest(0, (extract(epoch FROM l.ends) - extract(epoch FROM clock_timestamp())) * 1000)::bigint END,
           left(l.revoked, 1024)
    FROM @schema@.locks l
    WHERE l.owner IS NOT NULL AND l.ends > clock_timestamp()
      AND (l.delay OR l.session IS NULL
           OR EXISTS (SELECT FROM @schema@.backends_with(l.two_part, l.key) b
                      WHERE b.pid::text = split_part(l.session, ' ', 1) AND coalesce(b.session, l.session) = l.session))";

/// A backend that has an advisory lock.
struct Backend {
    pid: i32,
    /// Unknown if this user may not see when it began.
    session: Option<String>,
    about: String,
}

impl Backend {
    /// Whether it may be this session: another one under its number, where we cannot know, is taken for it.
    fn may_be(&self, session: &str) -> bool {
        match &self.session {
            Some(own) => own == session,
            None => session.split(' ').next() == Some(self.pid.to_string().as_str()),
        }
    }

    /// The session, as far as it is known.
    fn session(&self) -> String {
        self.session.clone().unwrap_or_else(|| format!("{} ", self.pid))
    }
}

/// Who has a lock.
enum Found {
    Nobody,
    Lease(Holder),
    /// Sessions that have the advisory lock and no lease.
    Foreign(Holder, Vec<Backend>),
}

impl Hub {
    async fn query(self: &Arc<Self>, sql: &str, arguments: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let wire = self.desk().await?;
        let sql = self.config.sql(sql);
        let rows = self.in_time(wire.client.query(&sql, arguments)).await;
        if rows.is_err() {
            // Stuck, and it has nothing to lose.
            wire.close();
        }
        rows?.map_err(|error| self.config.trouble(error))
    }

    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Listing> {
        let sql = format!("{HOLDERS} AND starts_with(l.name, $1) ORDER BY l.name COLLATE \"C\"");
        let rows = self.query(&sql, &[&prefix]).await?;
        let mut listing = Listing::default();
        for row in &rows {
            match Name::new(get(row, 2).unwrap_or_default()) {
                Ok(name) => listing.holders.push(holder(&name, row)),
                Err(error) => {
                    let why = format!("a row of `{}.locks` has no lock's name: {error}", self.config.schema);
                    listing
                        .unreadable
                        .push(Error::Backend { store: self.config.label.clone(), source: why.into() });
                }
            }
        }
        Ok(listing)
    }

    pub(super) async fn show(self: &Arc<Self>, name: &Name) -> Result<Option<Holder>> {
        Ok(match self.look(name).await? {
            Found::Nobody => None,
            Found::Lease(holder) | Found::Foreign(holder, _) => Some(holder),
        })
    }

    async fn look(self: &Arc<Self>, name: &Name) -> Result<Found> {
        let key = Key::of(&self.config.schema, name.as_str());
        let text = name.as_str();
        let sql = format!("{HOLDERS} AND l.two_part = $1 AND l.key = $2 AND l.name = $3");
        let mut looks = LOOKS.into_iter();
        loop {
            let rows = self.query(&sql, &[&key.two_part, &key.number, &text]).await?;
            if let Some(row) = rows.first() {
                return Ok(Found::Lease(holder(name, row)));
            }
            let backends = self.backends(key).await?;
            let Some(first) = backends.first() else { return Ok(Found::Nobody) };
            // A grant of ours has the advisory lock a moment before others see its row.
            match looks.next() {
                Some(pause) => tokio::time::sleep(pause).await,
                None => {
                    let mut holder = Holder::unknown(name.clone());
                    holder.note = Some(first.about.clone());
                    return Ok(Found::Foreign(holder, backends));
                }
            }
        }
    }

    /// The backends that have an advisory lock.
    async fn backends(self: &Arc<Self>, key: Key) -> Result<Vec<Backend>> {
        let sql = "SELECT pid, session, about FROM @schema@.backends_with($1, $2)";
        let rows = self.query(sql, &[&key.two_part, &key.number]).await?;
        let backend = |row: &Row| {
            Some(Backend { pid: get(row, 0)?, session: get(row, 1), about: get(row, 2).unwrap_or_default() })
        };
        Ok(rows.iter().filter_map(backend).collect())
    }

    /// Takes the lock from the holder that is found first, and from nobody who comes after it.
    pub(super) async fn force_release(
        self: &Arc<Self>,
        name: &Name,
        how: &ForceRelease,
    ) -> Result<Option<Revoked>> {
        let key = Key::of(&self.config.schema, name.as_str());
        let holder = match self.look(name).await? {
            Found::Nobody => return Ok(None),
            Found::Lease(holder) | Found::Foreign(holder, _) if !how.means(&holder) => {
                return Err(Error::changed(name, holder));
            }
            Found::Foreign(holder, backends) => {
                return self.end_foreign(name, key, holder, &backends, how.now).await.map(Some);
            }
            Found::Lease(holder) => holder,
        };
        let Some(owner) = holder.owner else {
            return Err(Error::Backend {
                store: self.config.label.clone(),
                source: format!(
                    "the row of lock `{name}` has an owner that fencepost did not write; correct it"
                )
                .into(),
            });
        };
        let (owner, token) =
            (owner.to_string(), holder.token.and_then(|token| i64::try_from(token.get()).ok()));
        let sql = "SELECT o_token, o_session FROM @schema@.revoke($1, $2, $3, $4, $5, $6, $7)";
        let arguments: [&(dyn ToSql + Sync); 7] =
            [&key.two_part, &key.number, &owner, &token, &how.reason, &how.now, &self.config.sequence];
        let rows = self.query(sql, &arguments).await?;
        let Some(token) = rows.first().and_then(|row| get(row, 0)) else {
            return match self.show(name).await? {
                None => Ok(None),
                Some(holder) => Err(Error::changed(name, holder)),
            };
        };
        if how.now
            && let Some(session) = rows.first().and_then(|row| get::<String>(row, 1))
        {
            self.see_it_free(name, key, &session).await?;
        }
        Ok(Some(Revoked::new(holder, self.token(token)?, how.now)))
    }

    fn token(&self, token: i64) -> Result<FencingToken> {
        u64::try_from(token).ok().and_then(FencingToken::new).ok_or_else(|| Error::Backend {
            store: self.config.label.clone(),
            source: format!("{token} is not a token").into(),
        })
    }

    /// Waits until the victim has given its advisory lock back, and ends its session if it does not.
    async fn see_it_free(self: &Arc<Self>, name: &Name, key: Key, session: &str) -> Result<()> {
        let start = self.clock.now();
        let mut ended = false;
        while self.backends(key).await?.iter().any(|backend| backend.may_be(session)) {
            let waited = self.clock.now().since(start);
            if waited > MANNERS && !ended {
                ended = true;
                let others =
                    "SELECT name FROM @schema@.locks WHERE session = $1 AND owner IS NOT NULL ORDER BY 1";
                let rows = self.query(others, &[&session]).await?;
                let names: Vec<&str> = rows.iter().filter_map(|row| get(row, 0)).collect();
                tracing::warn!(%name, session, others = ?names, "the holder does not let go; its session is ended");
                self.end_backend(name, key, session).await?;
            }
            if waited > MANNERS + self.config.timeout {
                return Err(self.config.unavailable(format!("the session that holds `{name}` does not end")));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn end_backend(self: &Arc<Self>, name: &Name, key: Key, session: &str) -> Result<()> {
        let sql = "SELECT @schema@.end_session($1, $2, $3)";
        let rows = self.query(sql, &[&key.two_part, &key.number, &session]).await?;
        match rows.first().and_then(|row| get(row, 0)) {
            Some(false) => Err(Error::config(format!(
                "{}: this user may not end the session that holds `{name}`, which goes on; run as a superuser: GRANT \
                 pg_signal_backend, pg_read_all_stats TO {}",
                self.config.label,
                super::trouble::quoted(self.config.server.get_user().unwrap_or("…"))
            ))),
            // If it is gone by now, whoever looks next sees that.
            Some(true) | None => Ok(()),
        }
    }

    /// Takes a lock from a session that has the advisory lock and no lease.
    async fn end_foreign(
        self: &Arc<Self>,
        name: &Name,
        key: Key,
        holder: Holder,
        backends: &[Backend],
        now: bool,
    ) -> Result<Revoked> {
        if !now {
            return Err(Error::unsupported(
                format!("asking the foreign holder of lock `{name}` to let go"),
                "only ending its session at once works (`--now`); make sure that it does not work any more",
            ));
        }
        for backend in backends {
            let session = backend.session();
            self.end_backend(name, key, &session).await?;
            self.see_it_free(name, key, &session).await?;
        }
        let text = name.as_str();
        let sql = "SELECT @schema@.raise_token($1, $2, $3, $4)";
        let rows = self.query(sql, &[&key.two_part, &key.number, &text, &self.config.sequence]).await?;
        let token = rows.first().and_then(|row| get(row, 0)).unwrap_or(0);
        Ok(Revoked::new(holder, self.token(token)?, true))
    }
}
