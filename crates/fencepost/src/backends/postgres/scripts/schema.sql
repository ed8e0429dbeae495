-- The tables and functions of the PostgreSQL store. Placeholders stand for the name of the schema, as an
-- identifier and as a literal; comments must not have them, since a name may have line breaks. Run again,
-- this upgrades layout 1.
--
-- Every function runs under a search_path of its own, or qualifies all that it names: whoever may create
-- functions and operators in a schema of the caller's search_path must not have them run by the caller.
-- This script itself is run under the same search_path, so types need not be qualified.
--
-- A lock is an advisory lock of its holder's session *and* a row here whose lease has not ended. The row
-- keeps others out when the session is gone, and the advisory lock keeps out code that knows nothing of the
-- row. A lock that was detached, or handed to a waiter, is the row alone.
--
-- All functions expect READ COMMITTED: each statement in them then sees what was committed before it began,
-- and not only what was committed before the advisory lock was asked for.

CREATE TABLE IF NOT EXISTS @schema@.locks (
    two_part boolean NOT NULL,      -- the key is of pg_advisory_lock(int, int), both in one number
    key bigint NOT NULL,
    name text NOT NULL,
    token bigint NOT NULL,
    owner text,                     -- none: free
    ends timestamptz NOT NULL,      -- of the lease; of a free lock: when it was last held
    since timestamptz NOT NULL,
    host text,
    process integer,
    note text,
    session text,                   -- which backend has the advisory lock; none: detached, a lease alone
    channel text,                   -- where the holder listens
    delay boolean NOT NULL,         -- the lease outlives its session
    revoked text,                   -- why an operator wants it back
    promised text,                  -- the channel of the waiter that the last release has told
    revoked_token bigint,           -- the token of a holder that was revoked; that of others is the row's own
    PRIMARY KEY (two_part, key)
) WITH (fillfactor = 50);

ALTER TABLE @schema@.locks ADD COLUMN IF NOT EXISTS revoked_token bigint;

-- Who waits: one row for each lock and channel, which is each waiter. Nothing of worth is lost with it.
CREATE UNLOGGED TABLE IF NOT EXISTS @schema@.waiters (
    two_part boolean NOT NULL,
    key bigint NOT NULL,
    channel text NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL,
    owner text NOT NULL,
    push boolean NOT NULL,          -- a release may grant it the lock; otherwise it is told, and asks
    term bigint NOT NULL,           -- the grant's, in milliseconds; it ends with the entry at the latest
    host text NOT NULL,
    process integer NOT NULL,
    note text NOT NULL,
    PRIMARY KEY (two_part, key, channel)
) WITH (fillfactor = 50);

-- Default privileges may have given others more than locks need: by a trigger or a foreign key they have
-- code run by whoever uses the tables.
DO $$
DECLARE
    grantee text;
BEGIN
    FOR grantee IN SELECT DISTINCT coalesce(quote_ident(r.rolname), 'PUBLIC')
            FROM pg_class c, aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
            WHERE c.relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = @label@)
              AND c.relname IN ('locks', 'waiters')
              AND a.grantee <> c.relowner AND a.privilege_type IN ('TRIGGER', 'REFERENCES') LOOP
        EXECUTE format('REVOKE TRIGGER, REFERENCES ON TABLE %1$I.locks, %1$I.waiters FROM %2$s',
                       @label@, grantee);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';

-- Functions of layout 1 that have other arguments now.
DROP FUNCTION IF EXISTS
    @schema@.acquire(integer, boolean, bigint, text, text, bigint, text, integer, text, text, text,
                     boolean, text, text, boolean, boolean),
    @schema@.renew(integer, boolean[], bigint[], text[], bigint[], boolean[], text),
    @schema@.detach(integer, boolean, bigint, text, bigint),
    @schema@.revoke(boolean, bigint, text, text, boolean, text);

-- The key of a name: `pg:12345` and `pg:1,42` are those numbers, any other name is hashed together with the
-- schema.
CREATE OR REPLACE FUNCTION @schema@.key_of(a_name text, OUT two_part boolean, OUT key bigint)
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    parts text[];
BEGIN
    parts := regexp_match(a_name, '^pg:(-?[0-9]+)(?:,(-?[0-9]+))?$');
    two_part := parts[2] IS NOT NULL;
    BEGIN
        IF two_part THEN
            key := (parts[1]::integer::bigint << 32) | (parts[2]::integer::bigint & 4294967295);
            RETURN;
        ELSIF parts IS NOT NULL THEN
            key := parts[1]::bigint;
            RETURN;
        END IF;
    EXCEPTION WHEN numeric_value_out_of_range THEN
        NULL;
    END;
    two_part := false;
    key := ('x' || encode(substr(sha256(
        convert_to(@label@, 'UTF8') || decode('00', 'hex') || convert_to(a_name, 'UTF8')
    ), 1, 8), 'hex'))::bit(64)::bigint;
END $$;

-- The backends that have an advisory lock. The session is null where this user may not know when it began,
-- which takes the same user or `pg_read_all_stats`.
CREATE OR REPLACE FUNCTION @schema@.backends_with(a_two_part boolean, a_key bigint)
RETURNS TABLE (pid integer, session text, about text) LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.pid, a.pid || ' ' || extract(epoch FROM a.backend_start),
           format('PostgreSQL backend %s%s', l.pid, ', application ' || nullif(a.application_name, ''))
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid = ((a_key >> 32) & 4294967295)::oid AND l.objid = (a_key & 4294967295)::oid
      AND l.objsubid = CASE WHEN a_two_part THEN 2 ELSE 1 END
$$;

-- Gives one advisory lock of this session back.
CREATE OR REPLACE FUNCTION @schema@.unlock(a_two_part boolean, a_key bigint) RETURNS boolean
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN a_two_part THEN pg_advisory_unlock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
                ELSE pg_advisory_unlock(a_key) END
$$;

-- Which session this is, as the table of locks names it.
CREATE OR REPLACE FUNCTION @schema@.own_session() RETURNS text LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT format('%s %s', a.pid, extract(epoch FROM a.backend_start))
    FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
$$;

-- Refuses to work for a session that another backend serves by now.
CREATE OR REPLACE FUNCTION @schema@.check_backend(a_pid integer) RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        RAISE EXCEPTION 'this session has moved from backend % to %', a_pid, pg_backend_pid()
            USING ERRCODE = 'FP001';
    END IF;
END $$;

-- Makes this session have an advisory lock once if the row is one of its grants, and else not at all.
-- Session locks are counted and survive a rollback, so whoever finds that its row is not its own cannot
-- know what else the count stands for.
CREATE OR REPLACE FUNCTION @schema@.settle(a_two_part boolean, a_key bigint) RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    granted boolean;
BEGIN
    granted := EXISTS (SELECT FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key
                       AND l.owner IS NOT NULL AND l.ends > clock_timestamp()
                       AND l.session = @schema@.own_session());
    IF granted AND NOT (CASE WHEN a_two_part THEN
            pg_try_advisory_xact_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
            ELSE pg_try_advisory_xact_lock(a_key) END) THEN
        -- Somebody else has it: that grant is lost, and its next heartbeat says so.
        RETURN;
    END IF;
    -- The transaction has it meanwhile, so nobody gets in between.
    LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM @schema@.backends_with(a_two_part, a_key) b
                              WHERE b.pid = pg_backend_pid());
        EXIT WHEN NOT @schema@.unlock(a_two_part, a_key);
    END LOOP;
    IF granted THEN
        PERFORM CASE WHEN a_two_part THEN
            pg_try_advisory_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
            ELSE pg_try_advisory_lock(a_key) END;
    END IF;
END $$;

-- Tells the one who has waited longest that the lock is free, and takes it off the list. Returns its channel.
CREATE OR REPLACE FUNCTION @schema@.wake(a_two_part boolean, a_key bigint) RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first @schema@.waiters;
BEGIN
    SELECT * INTO first FROM @schema@.waiters w
    WHERE w.two_part = a_two_part AND w.key = a_key AND w.until > clock_timestamp()
    ORDER BY w.since LIMIT 1;
    IF FOUND THEN
        PERFORM pg_notify(first.channel, format('free %s %s', a_two_part::integer, a_key));
        DELETE FROM @schema@.waiters w
        WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = first.channel;
    END IF;
    RETURN first.channel;
END $$;

-- The next token of a lock whose last one was a_last. Qualified instead of with a search_path: so the
-- planner inlines it.
CREATE OR REPLACE FUNCTION @schema@.next_token(a_last bigint, a_sequence text) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT greatest(a_last OPERATOR(pg_catalog.+) 1, CASE WHEN a_sequence IS NULL
        THEN (extract(epoch FROM pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000000)::bigint
        ELSE pg_catalog.nextval(a_sequence::pg_catalog.regclass) END)
$$;

-- Takes a lock if it is free: then o_token is its token. Otherwise says who has it; o_state is
--   held      by a lease, of which o_left milliseconds are left
--   foreign   by a session that has the advisory lock and no lease
--   moving    by nobody we can name: it is changing hands, or a transaction has it
-- With a_channel, the caller waits and is told there, for as long as o_until says (in microseconds), and
-- lets a waiter that was told before go first, for a tenth of a second; a_listed says that it is on the
-- list already. Whoever only tries takes what is free.
-- With a_push, a release may grant the lock to the caller while it waits. If one has, o_state is
--   pushed    and the grant is a lease alone, as that of a detached lock
-- Without a_advisory the grant is a lease alone, too: the server's table of locks has no room for one more
-- of this client.
CREATE OR REPLACE FUNCTION @schema@.acquire(
    a_pid integer, a_two_part boolean, a_key bigint, a_name text, a_owner text, a_term bigint,
    a_host text, a_process integer, a_note text, a_session text, a_own_channel text,
    a_delay boolean, a_sequence text, a_channel text, a_listed boolean, a_push boolean,
    a_advisory boolean,
    OUT o_token bigint, OUT o_state text, OUT o_name text, OUT o_owner text, OUT o_holder_token bigint,
    OUT o_host text, OUT o_process integer, OUT o_note text, OUT o_since bigint, OUT o_left bigint,
    OUT o_revoked text, OUT o_until bigint
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held @schema@.locks;
    locked boolean;
    blocked boolean;
    listed timestamptz;
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM @schema@.check_backend(a_pid);
    END IF;
    FOR turn IN 1..3 LOOP
        locked := false;
        blocked := false;
        IF a_channel IS NOT NULL THEN
            -- Whoever waits does not touch the advisory lock while the last release has promised it to
            -- another: that one is about to take it. The same while there is a lease, as far as that does
            -- not depend on its session.
            SELECT * INTO held FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key;
            IF held.owner = a_owner THEN
                UPDATE @schema@.locks l
                SET ends = greatest(l.ends, clock_timestamp() + a_term * interval '1 millisecond')
                WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.revoked IS NULL
                  AND l.ends > clock_timestamp()
                RETURNING l.token INTO o_token;
                IF FOUND THEN
                    o_state := 'pushed';
                    -- An ask that met the release has made an entry after it.
                    DELETE FROM @schema@.waiters w
                    WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = a_channel
                      AND w.owner = a_owner;
                    RETURN;
                END IF;
            END IF;
            blocked := CASE
                WHEN held.owner IS NOT NULL
                THEN held.ends > clock_timestamp() AND (held.delay OR held.session IS NULL)
                ELSE held.promised <> a_channel
                     AND held.ends >= clock_timestamp() - interval '100 milliseconds' END;
            -- Without the row's lock, which that one needs now. If its release misses us, we soon ask again.
            EXIT WHEN blocked AND held.owner IS NULL;
        END IF;
        -- The transaction's lock first: whatever fails below gives it back, and nothing is left with the
        -- session.
        IF blocked IS NOT TRUE AND (CASE WHEN a_two_part THEN
                pg_try_advisory_xact_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
                ELSE pg_try_advisory_xact_lock(a_key) END) THEN
            -- Re-reads the row under its lock. That a session may lock twice does not matter here: a lease
            -- of the same session keeps others out as any other does.
            UPDATE @schema@.locks l
            SET name = a_name, token = @schema@.next_token(l.token, a_sequence), owner = a_owner,
                ends = clock_timestamp() + a_term * interval '1 millisecond', since = clock_timestamp(),
                host = a_host, process = a_process, note = a_note,
                session = CASE WHEN a_advisory THEN a_session END, channel = a_own_channel,
                delay = a_delay OR NOT a_advisory, revoked = NULL, promised = NULL, revoked_token = NULL
            WHERE l.two_part = a_two_part AND l.key = a_key
              AND (l.owner IS NULL OR l.ends <= clock_timestamp() OR (NOT l.delay AND l.session <> a_session))
              AND (l.promised IS NULL OR a_channel IS NULL OR l.promised = a_channel
                   OR l.ends < clock_timestamp() - interval '100 milliseconds')
            RETURNING l.token INTO o_token;
            IF NOT FOUND THEN
                INSERT INTO @schema@.locks AS l (two_part, key, name, token, owner, ends, since,
                                                 host, process, note, session, channel, delay)
                VALUES (a_two_part, a_key, a_name, @schema@.next_token(0, a_sequence), a_owner,
                        clock_timestamp() + a_term * interval '1 millisecond', clock_timestamp(),
                        a_host, a_process, a_note, CASE WHEN a_advisory THEN a_session END, a_own_channel,
                        a_delay OR NOT a_advisory)
                ON CONFLICT DO NOTHING
                RETURNING l.token INTO o_token;
            END IF;
            IF FOUND THEN
                -- Certain to succeed: the transaction has it.
                IF NOT a_advisory THEN
                    locked := false;
                ELSIF a_two_part THEN
                    locked := pg_try_advisory_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer);
                ELSE
                    locked := pg_try_advisory_lock(a_key);
                END IF;
                IF a_listed THEN
                    DELETE FROM @schema@.waiters w
                    WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = a_channel;
                END IF;
                RETURN;
            END IF;
        END IF;
        EXIT WHEN a_channel IS NULL;
        -- A release needs the same row: it comes before this, and is seen here, or after, and sees who waits.
        SELECT * INTO held FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key
        FOR NO KEY UPDATE SKIP LOCKED;
        locked := FOUND;
        -- A release has granted it a moment ago.
        CONTINUE WHEN locked AND held.owner = a_owner AND held.revoked IS NULL
                      AND held.ends > clock_timestamp();
        EXIT WHEN NOT locked OR (held.owner IS NOT NULL AND held.ends > clock_timestamp());
        EXIT WHEN held.promised <> a_channel AND held.ends >= clock_timestamp() - interval '100 milliseconds';
    END LOOP;
    IF NOT locked THEN
        SELECT * INTO held FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key;
    END IF;
    IF a_channel IS NOT NULL THEN
        INSERT INTO @schema@.waiters AS w (two_part, key, channel, since, until, owner, push, term, host,
            process, note)
        VALUES (a_two_part, a_key, a_channel, clock_timestamp(), clock_timestamp() + interval '3 seconds',
            a_owner, a_push,
                a_term, a_host, a_process, a_note)
        ON CONFLICT (two_part, key, channel) DO UPDATE
        SET until = excluded.until, owner = excluded.owner, push = excluded.push, term = excluded.term,
            host = excluded.host, process = excluded.process, note = excluded.note
        RETURNING w.until INTO listed;
        o_until := (extract(epoch FROM listed) * 1000000)::bigint;
    END IF;
    o_name := a_name;
    IF held.owner IS NOT NULL THEN
        o_state := CASE WHEN held.ends > clock_timestamp() AND (locked OR a_channel IS NULL)
                        THEN 'held' ELSE 'moving' END;
        o_name := held.name;
        o_owner := held.owner;
        o_holder_token := CASE WHEN held.revoked IS NULL THEN held.token ELSE held.revoked_token END;
        o_host := held.host;
        o_process := held.process;
        o_note := held.note;
        -- Whoever may write to the table may have written what is no time.
        IF isfinite(held.since) THEN
            o_since := (extract(epoch FROM held.since) * 1000)::bigint;
        END IF;
        IF isfinite(held.ends) THEN
            o_left := greatest(
                0, (extract(epoch FROM held.ends) - extract(epoch FROM clock_timestamp())) * 1000)::bigint;
        END IF;
        o_revoked := held.revoked;
    ELSIF blocked THEN
        o_state := 'moving';
    ELSE
        SELECT b.about INTO o_note FROM @schema@.backends_with(a_two_part, a_key) b LIMIT 1;
        o_state := CASE WHEN FOUND THEN 'foreign' ELSE 'moving' END;
    END IF;
    -- A live holder gives its advisory lock back when its lease ends. One that has not is stopped or out of
    -- reach.
    IF held.owner IS NOT NULL AND held.ends < clock_timestamp() - interval '2 seconds' THEN
        PERFORM @schema@.end_session(a_two_part, a_key, held.session);
    END IF;
END $$;

-- Ends the session that has an advisory lock, if it is this one: false if we may not, null if it has the
-- lock no more.
CREATE OR REPLACE FUNCTION @schema@.end_session(a_two_part boolean, a_key bigint, a_session text)
RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT bool_or(CASE WHEN b.session IS NULL THEN false ELSE pg_terminate_backend(b.pid) END)
            FROM @schema@.backends_with(a_two_part, a_key) b
            WHERE b.pid::text = split_part(a_session, ' ', 1) AND coalesce(b.session, a_session) = a_session);
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END $$;

-- Gives a lock back, if it is a_owner's. a_unlock: this session may have its advisory lock, and gives that
-- back even if the row is not a_owner's. a_ended: the lease should have ended, so nobody is waited for who
-- has locked the row. o_woken is the channel of the waiter that was told, or has it now. a_session asks
-- whether a session, in which the lock may still be granted, has ended.
CREATE OR REPLACE FUNCTION @schema@.release(
    a_pid integer, a_two_part boolean, a_key bigint, a_owner text, a_unlock boolean, a_ended boolean,
    a_session text,
    OUT o_found boolean, OUT o_woken text, OUT o_alive boolean
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    done boolean;
    first @schema@.waiters;
    fresh bigint;
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM @schema@.check_backend(a_pid);
    END IF;
    IF a_ended THEN
        PERFORM FROM @schema@.locks l
        WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.ends <= clock_timestamp()
          AND NOT EXISTS (SELECT FROM @schema@.locks f WHERE f.two_part = a_two_part AND f.key = a_key
                          FOR UPDATE SKIP LOCKED);
        IF FOUND THEN
            o_found := false;
            o_alive := false;
            IF a_unlock THEN
                PERFORM @schema@.settle(a_two_part, a_key);
            END IF;
            RETURN;
        END IF;
    END IF;
    o_alive := false;
    IF a_session IS NOT NULL THEN
        -- Looked at first: what a session that is gone by now has committed is seen below.
        o_alive := EXISTS (SELECT FROM pg_stat_activity a
                           WHERE format('%s %s', a.pid, extract(epoch FROM a.backend_start)) = a_session);
    END IF;
    IF current_setting('synchronous_commit') <> 'off' THEN
        -- A release that a crash undoes costs the rest of the lease, and no more.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- A waiter that enters itself has locked this row: before this, and is seen, or after, and sees what this
    -- has done.
    PERFORM FROM @schema@.locks l
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner FOR NO KEY UPDATE;
    o_found := FOUND;
    IF o_found THEN
        DELETE FROM @schema@.waiters w
        WHERE w.two_part = a_two_part AND w.key = a_key
          AND w.channel = (SELECT c.channel FROM @schema@.waiters c
                           WHERE c.two_part = a_two_part AND c.key = a_key AND c.until > clock_timestamp()
                             AND c.owner <> a_owner
                           ORDER BY c.since LIMIT 1)
        RETURNING * INTO first;
        o_woken := first.channel;
    END IF;
    -- Assigned rather than performed: that is no statement of its own.
    IF a_unlock AND o_found AND NOT a_two_part THEN
        done := pg_advisory_unlock(a_key);
    ELSIF a_unlock AND o_found THEN
        PERFORM @schema@.unlock(a_two_part, a_key);
    ELSIF a_unlock THEN
        PERFORM @schema@.settle(a_two_part, a_key);
    END IF;
    -- A transaction that waits for the advisory lock has it by now: it comes first, since nobody tells it
    -- anything.
    IF first.push AND pg_try_advisory_xact_lock(a_key) THEN
        -- Grants it right away: a lease alone, until its entry ends, so that it counts from when it asked
        -- to be entered.
        UPDATE @schema@.locks l
        SET token = @schema@.next_token(l.token, NULL), owner = first.owner, since = clock_timestamp(),
            ends = least(first.until, clock_timestamp() + first.term * interval '1 millisecond'),
            host = first.host, process = first.process, note = first.note, session = NULL,
            channel = first.channel, delay = true, revoked = NULL, promised = NULL, revoked_token = NULL
        WHERE l.two_part = a_two_part AND l.key = a_key
        RETURNING l.token INTO fresh;
        done := pg_notify(o_woken, 'granted ' || a_two_part::integer || ' ' || a_key || ' ' || first.owner
                          || ' ' || fresh || ' '
                          || (extract(epoch FROM first.until) * 1000000)::bigint) IS NULL;
    ELSIF o_found THEN
        UPDATE @schema@.locks l
        SET owner = NULL, ends = clock_timestamp(), session = NULL, channel = NULL, revoked = NULL,
            promised = o_woken, revoked_token = NULL
        WHERE l.two_part = a_two_part AND l.key = a_key;
        IF o_woken IS NOT NULL THEN
            done := pg_notify(o_woken, 'free ' || a_two_part::integer || ' ' || a_key) IS NULL;
        END IF;
    END IF;
END $$;

-- Takes a waiter off the list, and gives back what it may have been granted meanwhile. False if somebody
-- has locked the row: to be repeated, since each statement of a session waits for the one before. The entry
-- has an end in any case.
CREATE OR REPLACE FUNCTION @schema@.leave(
    a_pid integer, a_two_part boolean, a_key bigint, a_channel text, a_owner text
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held @schema@.locks;
BEGIN
    -- A release has the row's lock, too: it was before this, and its grant is seen, or comes after and sees
    -- no entry.
    SELECT * INTO held FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key
    FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND
       AND EXISTS (SELECT FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key) THEN
        RETURN false;
    END IF;
    DELETE FROM @schema@.waiters w
    WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = a_channel AND w.owner = a_owner;
    IF held.owner = a_owner AND held.session IS NULL THEN
        PERFORM @schema@.release(a_pid, a_two_part, a_key, a_owner, false, false, NULL);
    END IF;
    RETURN true;
END $$;

-- Renews locks: a_terms has milliseconds, or null where a lock is only looked after. a_bound are those
-- whose advisory lock this session has. Returns those that were not renewed, by their place, with what was
-- found
--   locked    somebody has locked the row: to be tried again, and the others are not held up
--   unlocked  the lease is there, the advisory lock is not
--   revoked   by an operator, o_reason says why
--   ended     nobody renewed it in time
--   gone      the row is somebody else's or nobody's
-- The advisory locks of the last two are given back; that of one that was revoked is its holder's to give.
-- At place 0 it returns how many locks the server has, if it had to look.
CREATE OR REPLACE FUNCTION @schema@.renew(
    a_pid integer, a_two_parts boolean[], a_keys bigint[], a_owners text[], a_terms bigint[],
    a_bound boolean[]
) RETURNS TABLE (o_place integer, o_found text, o_reason text) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    ours text[];
    renewed integer[];
    lost record;
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM @schema@.check_backend(a_pid);
    END IF;
    IF true = ANY (a_bound) THEN
        SELECT array_agg(
                   format('%s %s', (l.objsubid = 2)::integer, (l.classid::bigint << 32) | l.objid::bigint)
               ) FILTER (WHERE l.locktype = 'advisory' AND l.granted AND l.pid = a_pid
                               AND l.mode = 'ExclusiveLock'),
               count(*)
        INTO ours, o_reason
        FROM pg_locks l;
        o_place := 0;
        o_found := 'locks';
        RETURN NEXT;
    END IF;
    WITH mine AS (
        SELECT l.two_part, l.key, r.n::integer AS n, r.term
        FROM unnest(a_two_parts, a_keys, a_owners, a_terms, a_bound)
             WITH ORDINALITY AS r (two_part, key, owner, term, bound, n)
        JOIN @schema@.locks l ON l.two_part = r.two_part AND l.key = r.key
        WHERE l.owner = r.owner AND r.term IS NOT NULL AND l.revoked IS NULL AND l.ends > clock_timestamp()
          AND (NOT r.bound OR format('%s %s', r.two_part::integer, r.key) = ANY (ours))
        FOR NO KEY UPDATE OF l SKIP LOCKED
    ), done AS (
        UPDATE @schema@.locks l
        SET ends = greatest(l.ends, clock_timestamp() + mine.term * interval '1 millisecond')
        FROM mine WHERE l.two_part = mine.two_part AND l.key = mine.key
        RETURNING mine.n
    )
    SELECT coalesce(array_agg(n), '{}') INTO renewed FROM done;
    FOR lost IN
        SELECT r.n::integer AS n, r.two_part, r.key, r.bound, l.revoked,
               CASE WHEN l.owner IS DISTINCT FROM r.owner THEN 'gone'
                    WHEN l.revoked IS NOT NULL THEN 'revoked'
                    WHEN l.ends <= clock_timestamp() THEN 'ended'
                    WHEN r.bound
                         AND format('%s %s', r.two_part::integer, r.key) = ANY (ours) IS NOT TRUE
                    THEN 'unlocked'
                    WHEN r.term IS NOT NULL THEN 'locked'
               END AS found
        FROM unnest(a_two_parts, a_keys, a_owners, a_terms, a_bound)
             WITH ORDINALITY AS r (two_part, key, owner, term, bound, n)
        LEFT JOIN @schema@.locks l ON l.two_part = r.two_part AND l.key = r.key
        WHERE NOT r.n::integer = ANY (renewed)
    LOOP
        CONTINUE WHEN lost.found IS NULL;
        IF lost.bound AND lost.found IN ('gone', 'ended') THEN
            PERFORM @schema@.settle(lost.two_part, lost.key);
        END IF;
        o_place := lost.n;
        o_found := lost.found;
        o_reason := lost.revoked;
        RETURN NEXT;
    END LOOP;
END $$;

-- What follows changes a lock under its owner and, where it is given, its token, and returns null, or why
-- it did not: `gone`, `revoked` or `ended` as above. a_commit is the synchronous_commit to write it with: a
-- lease that outlives its session has nobody who would notice that a crash took it back.

-- Why a lock cannot be changed under an owner. For the statement after one that found nothing to change.
CREATE OR REPLACE FUNCTION @schema@.why_not(
    a_two_part boolean, a_key bigint, a_owner text, a_token bigint, OUT o_found text, OUT o_reason text
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held @schema@.locks;
BEGIN
    SELECT * INTO held FROM @schema@.locks l WHERE l.two_part = a_two_part AND l.key = a_key;
    o_found := CASE WHEN held.owner IS DISTINCT FROM a_owner THEN 'gone'
                    WHEN CASE WHEN held.revoked IS NULL THEN held.token ELSE held.revoked_token END <> a_token
                    THEN 'gone'
                    WHEN held.revoked IS NOT NULL THEN 'revoked'
                    WHEN held.ends <= clock_timestamp() THEN 'ended'
                    ELSE 'gone' END;
    IF o_found = 'revoked' THEN
        o_reason := held.revoked;
    END IF;
END $$;

-- Turns a held lock into a lease alone. a_unlock: this session has its advisory lock.
CREATE OR REPLACE FUNCTION @schema@.detach(
    a_pid integer, a_two_part boolean, a_key bigint, a_owner text, a_term bigint, a_unlock boolean,
    a_commit text,
    OUT o_found text, OUT o_reason text
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM @schema@.check_backend(a_pid);
    END IF;
    PERFORM set_config('synchronous_commit', a_commit, true);
    UPDATE @schema@.locks l
    SET session = NULL, channel = NULL, delay = true,
        ends = greatest(l.ends, clock_timestamp() + a_term * interval '1 millisecond')
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner
      AND l.revoked IS NULL AND l.ends > clock_timestamp();
    IF NOT FOUND THEN
        SELECT * INTO o_found, o_reason FROM @schema@.why_not(a_two_part, a_key, a_owner, NULL);
    ELSIF a_unlock THEN
        PERFORM @schema@.unlock(a_two_part, a_key);
    END IF;
END $$;

-- Gives a detached lock to a_heir, who listens on a_channel.
CREATE OR REPLACE FUNCTION @schema@.attach(
    a_pid integer, a_two_part boolean, a_key bigint, a_owner text, a_token bigint, a_heir text, a_term bigint,
    a_host text, a_process integer, a_note text, a_channel text, a_commit text,
    OUT o_found text, OUT o_reason text
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @schema@.check_backend(a_pid);
    PERFORM set_config('synchronous_commit', a_commit, true);
    -- It ends with no session from now on, whosever it was.
    UPDATE @schema@.locks l
    SET owner = a_heir, host = a_host, process = a_process, note = coalesce(nullif(a_note, ''), l.note),
        channel = a_channel, session = NULL, delay = true,
        ends = greatest(l.ends, clock_timestamp() + a_term * interval '1 millisecond')
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.token = a_token
      AND l.revoked IS NULL AND l.ends > clock_timestamp();
    IF NOT FOUND THEN
        SELECT * INTO o_found, o_reason FROM @schema@.why_not(a_two_part, a_key, a_owner, a_token);
    END IF;
END $$;

-- Renews a detached lock.
CREATE OR REPLACE FUNCTION @schema@.renew_detached(
    a_pid integer, a_two_part boolean, a_key bigint, a_owner text, a_token bigint, a_term bigint,
    a_commit text,
    OUT o_found text, OUT o_reason text
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM @schema@.check_backend(a_pid);
    PERFORM set_config('synchronous_commit', a_commit, true);
    UPDATE @schema@.locks l
    SET ends = greatest(l.ends, clock_timestamp() + a_term * interval '1 millisecond')
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.token = a_token
      AND l.revoked IS NULL AND l.ends > clock_timestamp();
    IF NOT FOUND THEN
        SELECT * INTO o_found, o_reason FROM @schema@.why_not(a_two_part, a_key, a_owner, a_token);
    END IF;
END $$;

-- Gives a detached lock back, revoked or not. False if it is not a_owner's any more.
CREATE OR REPLACE FUNCTION @schema@.release_detached(
    a_pid integer, a_two_part boolean, a_key bigint, a_owner text, a_token bigint, a_commit text
) RETURNS boolean LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    was_ours boolean;
BEGIN
    PERFORM FROM @schema@.locks l
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.ends > clock_timestamp()
      AND CASE WHEN l.revoked IS NULL THEN l.token ELSE l.revoked_token END = a_token
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT r.o_found INTO was_ours
    FROM @schema@.release(a_pid, a_two_part, a_key, a_owner, false, false, NULL) r;
    -- Last, since `release` has its own. A crash must not make the handle good again.
    PERFORM set_config('synchronous_commit', a_commit, true);
    RETURN was_ours;
END $$;

-- Asks a lock back from its holder, or frees its row at once. o_token is fresh, and null if the holder is
-- not a_owner with a_token (any token, if that is null).
CREATE OR REPLACE FUNCTION @schema@.revoke(
    a_two_part boolean, a_key bigint, a_owner text, a_token bigint, a_reason text, a_now boolean,
    a_sequence text,
    OUT o_token bigint, OUT o_session text
) LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    held @schema@.locks;
BEGIN
    SELECT * INTO held FROM @schema@.locks l
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.ends > clock_timestamp()
      AND (a_token IS NULL OR CASE WHEN l.revoked IS NULL THEN l.token ELSE l.revoked_token END = a_token)
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    o_token := @schema@.next_token(held.token, a_sequence);
    o_session := held.session;
    UPDATE @schema@.locks l
    SET token = o_token, revoked = a_reason, owner = CASE WHEN a_now THEN NULL ELSE l.owner END,
        revoked_token = CASE WHEN held.revoked IS NULL THEN held.token ELSE held.revoked_token END,
        ends = CASE WHEN a_now THEN clock_timestamp() ELSE l.ends END
    WHERE l.two_part = a_two_part AND l.key = a_key;
    IF held.channel IS NOT NULL THEN
        PERFORM pg_notify(held.channel,
            format('%s %s %s', CASE WHEN a_now THEN 'taken' ELSE 'revoked' END, a_owner,
                   left(a_reason, 1000)));
    END IF;
    IF a_now THEN
        PERFORM @schema@.wake(a_two_part, a_key);
    END IF;
END $$;

-- A fresh token for a lock that a foreign session has.
CREATE OR REPLACE FUNCTION @schema@.raise_token(
    a_two_part boolean, a_key bigint, a_name text, a_sequence text
) RETURNS bigint LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    INSERT INTO @schema@.locks AS l (two_part, key, name, token, ends, since, delay)
    VALUES (a_two_part, a_key, a_name, @schema@.next_token(0, a_sequence),
            clock_timestamp(), clock_timestamp(), false)
    ON CONFLICT (two_part, key) DO UPDATE SET token = greatest(l.token + 1, excluded.token)
    RETURNING l.token
$$;

-- For callers of other make: takes a lock until the end of the current transaction, and returns its token.
-- Waits for it; `try_lock_in_transaction` returns null instead. A statement of its own, in READ COMMITTED:
-- one that began before the lock was granted does not see what the last holder has written.
CREATE OR REPLACE FUNCTION @schema@.lock_in_transaction(a_name text, a_sequence text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_key record;
    left_over double precision;
    fresh bigint;
    started timestamptz := clock_timestamp();
BEGIN
    PERFORM @schema@.check_isolation();
    found_key := @schema@.key_of(a_name);
    IF found_key.two_part THEN
        PERFORM pg_advisory_xact_lock((found_key.key >> 32)::integer, (found_key.key << 32 >> 32)::integer);
    ELSE
        PERFORM pg_advisory_xact_lock(found_key.key);
    END IF;
    LOOP
        SELECT extract(epoch FROM l.ends - clock_timestamp()) INTO left_over FROM @schema@.locks l
        WHERE l.two_part = found_key.two_part AND l.key = found_key.key AND l.owner IS NOT NULL
          AND l.ends > clock_timestamp() AND (l.delay OR l.session IS NULL);
        IF NOT FOUND THEN
            fresh := @schema@.mark_transaction(found_key.two_part, found_key.key, a_name, a_sequence);
            IF fresh IS NOT NULL THEN
                RETURN fresh;
            END IF;
        END IF;
        -- The session of the holder is gone, or the lock is detached: its lease counts. The server knows of
        -- no wait here.
        PERFORM FROM pg_settings s
        WHERE s.name = 'lock_timeout' AND s.setting <> '0'
          AND clock_timestamp() >= started + s.setting::bigint * interval '1 millisecond';
        IF FOUND THEN
            RAISE EXCEPTION 'canceling statement due to lock timeout' USING ERRCODE = 'lock_not_available';
        END IF;
        PERFORM pg_sleep(least(left_over, 0.05));
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.try_lock_in_transaction(a_name text, a_sequence text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_key record;
BEGIN
    PERFORM @schema@.check_isolation();
    found_key := @schema@.key_of(a_name);
    IF NOT (CASE WHEN found_key.two_part
                 THEN pg_try_advisory_xact_lock(
                     (found_key.key >> 32)::integer, (found_key.key << 32 >> 32)::integer)
                 ELSE pg_try_advisory_xact_lock(found_key.key) END) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM @schema@.locks l
    WHERE l.two_part = found_key.two_part AND l.key = found_key.key AND l.owner IS NOT NULL
      AND l.ends > clock_timestamp() AND (l.delay OR l.session IS NULL);
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN @schema@.mark_transaction(found_key.two_part, found_key.key, a_name, a_sequence);
END $$;

CREATE OR REPLACE FUNCTION @schema@.check_isolation() RETURNS void LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a lock in a % transaction protects nothing: its snapshot may be older than the lock',
            current_setting('transaction_isolation')
            USING ERRCODE = 'FP002', HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
END $$;

-- A transaction has the advisory lock: raises the token, and has the first waiter told at its commit.
-- Returns null if there is a lease after all: one may be renewed or detached between a look at it and the
-- lock on its row.
CREATE OR REPLACE FUNCTION @schema@.mark_transaction(
    a_two_part boolean, a_key bigint, a_name text, a_sequence text
) RETURNS bigint LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fresh bigint;
BEGIN
    BEGIN
        INSERT INTO @schema@.locks AS l (two_part, key, name, token, ends, since, delay)
        VALUES (a_two_part, a_key, a_name, @schema@.next_token(0, a_sequence),
                clock_timestamp(), clock_timestamp(), false)
        ON CONFLICT (two_part, key) DO UPDATE
        SET name = excluded.name, token = greatest(l.token + 1, excluded.token), owner = NULL,
            ends = clock_timestamp(), session = NULL, channel = NULL, revoked = NULL, revoked_token = NULL
        WHERE l.owner IS NULL OR l.ends <= clock_timestamp() OR NOT (l.delay OR l.session IS NULL)
        RETURNING l.token INTO fresh;
        IF NOT FOUND THEN
            -- The row would stay locked, and its holder could not renew: the way out of here unlocks it.
            RAISE EXCEPTION 'a lease is in the way' USING ERRCODE = 'FP003';
        END IF;
    EXCEPTION WHEN SQLSTATE 'FP003' THEN
        RETURN NULL;
    END;
    -- The entry stays: to remove it here would hold up its waiter, who renews it, until this transaction
    -- ends.
    PERFORM pg_notify(first.channel, format('free %s %s', a_two_part::integer, a_key))
    FROM (SELECT w.channel FROM @schema@.waiters w
          WHERE w.two_part = a_two_part AND w.key = a_key AND w.until > clock_timestamp()
          ORDER BY w.since LIMIT 1) first;
    RETURN fresh;
END $$;

-- Removes what nobody has used for a day: the clock keeps the tokens that follow larger.
CREATE OR REPLACE FUNCTION @schema@.collect() RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM @schema@.locks l WHERE l.ends < clock_timestamp() - interval '1 day';
    DELETE FROM @schema@.waiters w WHERE w.until < clock_timestamp() - interval '1 minute';
$$;
