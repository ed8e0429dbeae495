//! What operators ask: who holds what, and to take it away. Over a connection of its own, so that a long answer
//! holds up no renewal.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::claim::holder;
use super::hub::Hub;
use super::key::Key;
use crate::backend::Revoked;
use crate::{Error, FencingToken, Holder, Name, Result};

/// How long a victim has to give its advisory lock back by itself before its session is ended.
const MANNERS: Duration = Duration::from_millis(500);

/// The columns of a holder, as `acquire` returns them. A lease without delay counts while its session is there.
const HOLDERS: &str = "
    SELECT NULL::bigint, 'held', l.name, l.owner, l.token, l.host, l.process, l.note,
           (extract(epoch FROM l.since) * 1000)::bigint,
           greatest(0, extract(epoch FROM l.ends - clock_timestamp()) * 1000)::bigint, l.revoked
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

    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Vec<Holder>> {
        let sql = format!("{HOLDERS} AND starts_with(l.name, $1) ORDER BY l.name COLLATE \"C\"");
        let rows = self.query(&sql, &[&prefix]).await?;
        rows.iter().map(|row| Ok(holder(&Name::new(row.get(2))?, row))).collect()
    }

    pub(super) async fn show(self: &Arc<Self>, name: &Name) -> Result<Option<Holder>> {
        let key = Key::of(&self.config.schema, name.as_str());
        let text = name.as_str();
        let sql = format!("{HOLDERS} AND l.two_part = $1 AND l.key = $2 AND l.name = $3");
        let rows = self.query(&sql, &[&key.two_part, &key.number, &text]).await?;
        if let Some(row) = rows.first() {
            return Ok(Some(holder(name, row)));
        }
        // What our own session has without a lease it is about to give back: that is no holder.
        let own = self.current();
        let is_foreign = |backend: &Backend| !own.as_ref().is_some_and(|own| backend.may_be(&own.id));
        let backends = self.backends(key).await?;
        Ok(backends.into_iter().find(is_foreign).map(|backend| {
            let mut holder = Holder::unknown(name.clone());
            holder.note = Some(backend.about);
            holder
        }))
    }

    /// The backends that have an advisory lock.
    async fn backends(self: &Arc<Self>, key: Key) -> Result<Vec<Backend>> {
        let sql = "SELECT pid, session, about FROM @schema@.backends_with($1, $2)";
        let rows = self.query(sql, &[&key.two_part, &key.number]).await?;
        let backend = |row: &Row| Backend { pid: row.get(0), session: row.get(1), about: row.get(2) };
        Ok(rows.iter().map(backend).collect())
    }

    pub(super) async fn force_release(
        self: &Arc<Self>,
        name: &Name,
        reason: &str,
        now: bool,
    ) -> Result<Option<Revoked>> {
        let key = Key::of(&self.config.schema, name.as_str());
        // The holder may change between the look and the revocation; then look again.
        for _ in 0..8 {
            let Some(holder) = self.show(name).await? else { return Ok(None) };
            let Some(owner) = holder.owner else {
                return self.end_foreign(name, key, holder, now).await.map(Some);
            };
            let owner = owner.to_string();
            let sql = "SELECT o_token, o_session FROM @schema@.revoke($1, $2, $3, $4, $5, $6)";
            let arguments: [&(dyn ToSql + Sync); 6] =
                [&key.two_part, &key.number, &owner, &reason, &now, &self.config.sequence];
            let rows = self.query(sql, &arguments).await?;
            let Some(token) = rows.first().and_then(|row| row.get::<_, Option<i64>>(0)) else { continue };
            let session: Option<String> = rows.first().and_then(|row| row.get(1));
            if now && let Some(session) = session {
                self.see_it_free(name, key, &session).await?;
            }
            return Ok(Some(Revoked::new(holder, self.token(token)?, now)));
        }
        Err(self.config.unavailable(format!("lock `{name}` changed hands all the time; try again")))
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
                let names: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
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
        match rows.first().and_then(|row| row.get::<_, Option<bool>>(0)) {
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
        now: bool,
    ) -> Result<Revoked> {
        if !now {
            return Err(Error::unsupported(
                format!("asking the foreign holder of lock `{name}` to let go"),
                "only ending its session at once works (`--now`); make sure that it does not work any more",
            ));
        }
        for backend in self.backends(key).await? {
            let session = backend.session();
            self.end_backend(name, key, &session).await?;
            self.see_it_free(name, key, &session).await?;
        }
        let text = name.as_str();
        let sql = "SELECT @schema@.raise_token($1, $2, $3, $4)";
        let rows = self.query(sql, &[&key.two_part, &key.number, &text, &self.config.sequence]).await?;
        let token = rows.first().map_or(0, |row| row.get(0));
        Ok(Revoked::new(holder, self.token(token)?, true))
    }
}
