//! What operators ask: who holds what, and to take it away. Over a connection of its own, so that a long
//! answer holds up no renewal.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::client::Client;
use super::driver::{get, quoted};
use super::keys::Key;
use super::record;
use crate::backend::{ForceRelease, Revoked};
use crate::backends::common::foreign;
use crate::text::printable;
use crate::{Error, FencingToken, Holder, Listing, Name, Result};

/// How long a victim has to give its advisory lock back by itself before its session is ended.
const GRACE: Duration = Duration::from_millis(500);

/// Pauses before a session that has an advisory lock and no lease is taken for other code.
const LOOKS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(10), Duration::from_millis(40)];

/// The columns of a holder, as `acquire` returns them. A lease without delay counts while its session is
/// there. Whoever may write to the table may have written what is no time, or far too much.
const HOLDERS: &str = "
    SELECT NULL::bigint, 'held', left(l.name, 1024), left(l.owner, 64),
           CASE WHEN l.revoked IS NULL THEN l.token ELSE l.revoked_token END,
           left(l.host, 1024), l.process, left(l.note, 1024),
           CASE WHEN isfinite(l.since) THEN (extract(epoch FROM l.since) * 1000)::bigint END,
           CASE WHEN isfinite(l.ends) THEN
               greatest(0, (extract(epoch FROM l.ends) - extract(epoch FROM clock_timestamp())) * \
               1000)::bigint
           END,
           left(l.revoked, 1024)
    FROM @schema@.locks l
    WHERE l.owner IS NOT NULL AND l.ends > clock_timestamp()
      AND (l.delay OR l.session IS NULL
           OR EXISTS (SELECT FROM @schema@.backends_with(l.two_part, l.key) b
                      WHERE b.pid::text = split_part(l.session, ' ', 1)
                        AND coalesce(b.session, l.session) = l.session))";

/// Who waits, in the columns of a holder. First the sessions that wait for the advisory lock: no release can
/// pass them over. PostgreSQL 14 and newer tells since when they do; else their statement does, where this
/// user may see that. Then the waiters of the table.
const WAITERS: &str = "
    SELECT NULL::bigint, 'waits', NULL::text, q.owner, NULL::bigint, q.host, q.process, q.note,
           CASE WHEN isfinite(q.since) THEN (extract(epoch FROM q.since) * 1000)::bigint END,
           NULL::bigint, NULL::text
    FROM (SELECT 1 AS line, coalesce((to_jsonb(l) ->> 'waitstart')::timestamptz, a.query_start) AS since,
                 NULL::text AS owner, NULL::text AS host, NULL::integer AS process,
                 format('PostgreSQL backend %s%s', l.pid,
                        ', application ' || nullif(a.application_name, '')) AS note
          FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
          WHERE l.locktype = 'advisory' AND NOT l.granted
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND l.classid = (($2::bigint >> 32) & 4294967295)::oid
            AND l.objid = ($2::bigint & 4294967295)::oid
            AND l.objsubid = CASE WHEN $1::boolean THEN 2 ELSE 1 END
          UNION ALL
          SELECT 2, w.since, left(w.owner, 64), left(w.host, 1024), w.process, left(w.note, 1024)
          FROM @schema@.waiters w
          WHERE w.two_part = $1::boolean AND w.key = $2::bigint AND w.until > clock_timestamp()) q
    ORDER BY q.line, q.since LIMIT 1000";

/// A session that has an advisory lock.
struct AdvisoryHolder {
    /// Its pid, a space, and when it began if this user may see that.
    session: String,
    about: String,
}

impl AdvisoryHolder {
    /// Whether it may be this session. Where that is unknown, another one of its pid is taken for it.
    fn may_be(&self, session: &str) -> bool {
        self.session == session || self.session.ends_with(' ') && session.starts_with(&self.session)
    }
}

/// Who has a lock.
enum LockHolder {
    Nobody,
    Lease(Holder),
    /// Sessions that have the advisory lock and no lease.
    Foreign(Holder, Vec<AdvisoryHolder>),
}

pub(super) async fn check(client: &Arc<Client>) -> Result<()> {
    let session = client.session().await?;
    client.in_time(session.ping()).await?.map_err(|error| client.config.error(error))
}

pub(super) async fn list(client: &Arc<Client>, prefix: &str) -> Result<Listing> {
    let sql = format!("{HOLDERS} AND starts_with(l.name, $1) ORDER BY l.name COLLATE \"C\"");
    let mut listing = Listing::default();
    for row in &query(client, &sql, &[&prefix]).await? {
        match Name::new(get(row, 2).unwrap_or_default()) {
            Ok(name) => listing.holders.push(record::holder(&name, row)),
            Err(error) => {
                let why = format!("a row of `{}.locks` has no lock's name: {error}", client.config.schema);
                listing.unreadable.push(client.config.broken(why));
            }
        }
    }
    Ok(listing)
}

/// Who holds a lock, and who waits for it.
pub(super) async fn show(client: &Arc<Client>, name: &Name) -> Result<Option<Holder>> {
    let mut holder = match find(client, name).await? {
        LockHolder::Nobody => return Ok(None),
        LockHolder::Lease(holder) | LockHolder::Foreign(holder, _) => holder,
    };
    let key = Key::of(&client.config.schema, name.as_str());
    match query(client, WAITERS, &[&key.two_part, &key.number]).await {
        Ok(rows) => holder.queue = rows.iter().map(|row| record::waiter(name, row)).collect(),
        // A user may have the right to look at the locks alone.
        Err(Error::Config { message }) => {
            let name = printable(name.as_str());
            tracing::warn!(%name, %message, "who waits for the lock cannot be read");
        }
        Err(error) => return Err(error),
    }
    Ok(Some(holder))
}

/// Takes the lock from the holder that is found first, and from nobody who comes after it.
pub(super) async fn force_release(
    client: &Arc<Client>,
    name: &Name,
    how: &ForceRelease,
) -> Result<Option<Revoked>> {
    let key = Key::of(&client.config.schema, name.as_str());
    let holder = match find(client, name).await? {
        LockHolder::Nobody => return Ok(None),
        LockHolder::Lease(holder) | LockHolder::Foreign(holder, _) if !how.means(&holder) => {
            return Err(Error::changed(name, holder));
        }
        LockHolder::Foreign(..) if !how.now => {
            return Err(foreign::cannot_be_asked(name, "ending its session"));
        }
        LockHolder::Foreign(holder, sessions) => {
            let token = end_foreign(client, name, key, &sessions).await?;
            return Ok(Some(Revoked::new(holder, token, true)));
        }
        LockHolder::Lease(holder) => holder,
    };
    let Some(owner) = holder.owner.map(|owner| owner.to_string()) else {
        let why = format!("the row of lock `{name}` has an owner that fencepost did not write; correct it");
        return Err(client.config.broken(why));
    };
    let (token, sequence) = (holder.token.map(record::number), &client.config.sequence);
    let sql = "SELECT o_token, o_session FROM @schema@.revoke($1, $2, $3, $4, $5, $6, $7)";
    let arguments: [&(dyn ToSql + Sync); 7] =
        [&key.two_part, &key.number, &owner, &token, &how.reason, &how.now, sequence];
    let rows = query(client, sql, &arguments).await?;
    let Some(token) = rows.first().and_then(|row| get(row, 0)) else {
        return match show(client, name).await? {
            None => Ok(None),
            Some(holder) => Err(Error::changed(name, holder)),
        };
    };
    if how.now
        && let Some(session) = rows.first().and_then(|row| get::<String>(row, 1))
    {
        see_it_free(client, name, key, &session).await?;
    }
    Ok(Some(Revoked::new(holder, read_token(client, token)?, how.now)))
}

async fn query(client: &Arc<Client>, sql: &str, arguments: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
    let admin = client.admin().await?;
    let rows = client.in_time(admin.client.query(&client.config.sql(sql), arguments)).await;
    if rows.is_err() {
        // Stuck, and it has nothing to lose.
        admin.close();
    }
    rows?.map_err(|error| client.config.error(error))
}

fn read_token(client: &Client, token: i64) -> Result<FencingToken> {
    record::token(token).ok_or_else(|| client.config.broken(format!("{token} is not a token")))
}

async fn find(client: &Arc<Client>, name: &Name) -> Result<LockHolder> {
    let key = Key::of(&client.config.schema, name.as_str());
    let sql = format!("{HOLDERS} AND l.two_part = $1 AND l.key = $2 AND l.name = $3");
    let mut looks = LOOKS.into_iter();
    loop {
        let rows = query(client, &sql, &[&key.two_part, &key.number, &name.as_str()]).await?;
        if let Some(row) = rows.first() {
            return Ok(LockHolder::Lease(record::holder(name, row)));
        }
        let sessions = advisory_holders(client, key).await?;
        let Some(first) = sessions.first() else { return Ok(LockHolder::Nobody) };
        // A grant of ours has the advisory lock a moment before others see its row.
        match looks.next() {
            Some(pause) => tokio::time::sleep(pause).await,
            None => {
                let mut holder = Holder::unknown(name.clone());
                holder.note = Some(first.about.clone());
                return Ok(LockHolder::Foreign(holder, sessions));
            }
        }
    }
}

async fn advisory_holders(client: &Arc<Client>, key: Key) -> Result<Vec<AdvisoryHolder>> {
    let sql = "SELECT coalesce(session, pid || ' '), about FROM @schema@.backends_with($1, $2)";
    let rows = query(client, sql, &[&key.two_part, &key.number]).await?;
    let holder = |row| Some(AdvisoryHolder { session: get(row, 0)?, about: get(row, 1).unwrap_or_default() });
    Ok(rows.iter().filter_map(holder).collect())
}

/// Waits until the victim has given its advisory lock back, and ends its session if it does not.
async fn see_it_free(client: &Arc<Client>, name: &Name, key: Key, session: &str) -> Result<()> {
    let start = client.clock.now();
    let mut ended = false;
    while advisory_holders(client, key).await?.iter().any(|holder| holder.may_be(session)) {
        let waited = client.clock.now().since(start);
        if waited > GRACE && !ended {
            ended = true;
            let others = "SELECT name FROM @schema@.locks WHERE session = $1 AND owner IS NOT NULL ORDER \
                          BY 1";
            let rows = query(client, others, &[&session]).await?;
            let names: Vec<&str> = rows.iter().filter_map(|row| get(row, 0)).collect();
            tracing::warn!(%name, session, others = ?names, "the holder does not let go; its session is \
            ended");
            end_session(client, name, key, session).await?;
        }
        if waited > GRACE + client.config.timeout {
            let why = format!("the session that holds `{name}` does not end");
            return Err(client.config.unavailable(why));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

async fn end_session(client: &Arc<Client>, name: &Name, key: Key, session: &str) -> Result<()> {
    let sql = "SELECT @schema@.end_session($1, $2, $3)";
    let rows = query(client, sql, &[&key.two_part, &key.number, &session]).await?;
    match rows.first().and_then(|row| get(row, 0)) {
        Some(false) => Err(Error::config(format!(
            "{}: this user may not end the session that holds `{name}`, which goes on; run as a superuser: \
             GRANT pg_signal_backend, pg_read_all_stats TO {}",
            client.config.label,
            quoted(client.config.server.get_user().unwrap_or("…"))
        ))),
        // If it is gone by now, whoever looks next sees that.
        Some(true) | None => Ok(()),
    }
}

/// Takes a lock from sessions that have the advisory lock and no lease. Returns a fresh token.
async fn end_foreign(
    client: &Arc<Client>,
    name: &Name,
    key: Key,
    sessions: &[AdvisoryHolder],
) -> Result<FencingToken> {
    for AdvisoryHolder { session, .. } in sessions {
        end_session(client, name, key, session).await?;
        see_it_free(client, name, key, session).await?;
    }
    let sql = "SELECT @schema@.raise_token($1, $2, $3, $4)";
    let arguments: [&(dyn ToSql + Sync); 4] =
        [&key.two_part, &key.number, &name.as_str(), &client.config.sequence];
    let rows = query(client, sql, &arguments).await?;
    read_token(client, rows.first().and_then(|row| get(row, 0)).unwrap_or(0))
}
