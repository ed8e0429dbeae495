CREATE SCHEMA fencepost;
-- The schema of layout 1.
--
-- A lock is an advisory lock of its holder's session *and* a row here whose lease has not ended. The row
-- keeps others out when the session is gone, and the advisory lock keeps out code that knows nothing of the
-- row. A lock that was detached, or handed to a waiter, is the row alone. All functions expect READ
-- COMMITTED: each statement in them then sees what was committed before it began, and not only what was
-- committed before the advisory lock was asked for.

CREATE TABLE IF NOT EXISTS fencepost.locks (
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
    PRIMARY KEY (two_part, key)
) WITH (fillfactor = 50);

-- Who waits, one row a process and lock. Nothing of worth is lost with it.
CREATE UNLOGGED TABLE IF NOT EXISTS fencepost.waiters (
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

CREATE OR REPLACE FUNCTION fencepost.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- The key of a name: `pg:12345` and `pg:1,42` are those numbers, any other name is hashed together with the
-- schema.
CREATE OR REPLACE FUNCTION fencepost.key_of(a_name text, OUT two_part boolean, OUT key bigint)
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
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
    key := ('x' || encode(substr(sha256(convert_to('fencepost', 'UTF8') || '\x00'::bytea
        || convert_to(a_name, 'UTF8')), 1, 8),
        'hex'))::bit(64)::bigint;
END $$;

-- The backends that have an advisory lock. The session is null where this user may not know when it began,
-- which takes the same user or `pg_read_all_stats`.
CREATE OR REPLACE FUNCTION fencepost.backends_with(a_two_part boolean, a_key bigint)
RETURNS TABLE (pid integer, session text, about text) LANGUAGE sql VOLATILE AS $$
    SELECT l.pid, a.pid || ' ' || extract(epoch FROM a.backend_start),
           format('PostgreSQL backend %s%s', l.pid, ', application ' || nullif(a.application_name, ''))
    FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'advisory' AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND l.classid = ((a_key >> 32) & 4294967295)::oid AND l.objid = (a_key & 4294967295)::oid
      AND l.objsubid = CASE WHEN a_two_part THEN 2 ELSE 1 END
$$;

-- Gives one advisory lock of this session back.
CREATE OR REPLACE FUNCTION fencepost.unlock(a_two_part boolean, a_key bigint) RETURNS boolean
    LANGUAGE sql VOLATILE AS $$
    SELECT CASE WHEN a_two_part THEN pg_advisory_unlock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
                ELSE pg_advisory_unlock(a_key) END
$$;

-- Which session this is, as the table of locks names it.
CREATE OR REPLACE FUNCTION fencepost.own_session() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT format('%s %s', a.pid, extract(epoch FROM a.backend_start))
    FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()
$$;

-- Refuses to work for a session that another backend serves by now.
CREATE OR REPLACE FUNCTION fencepost.check_backend(a_pid integer) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        RAISE EXCEPTION 'this session has moved from backend % to %', a_pid, pg_backend_pid()
            USING ERRCODE = 'FP001';
    END IF;
END $$;

-- Makes this session have an advisory lock once if the row is one of its grants, and else not at all.
-- Session locks are counted and survive a rollback, so whoever finds that its row is not its own cannot
-- know what else the count stands for.
CREATE OR REPLACE FUNCTION fencepost.settle(a_two_part boolean, a_key bigint) RETURNS void
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    granted boolean;
BEGIN
    granted := EXISTS (SELECT FROM fencepost.locks l WHERE l.two_part = a_two_part AND l.key = a_key
                       AND l.owner IS NOT NULL AND l.ends > clock_timestamp()
                           AND l.session = fencepost.own_session());
    IF granted AND NOT (CASE WHEN a_two_part
                             THEN pg_try_advisory_xact_lock((a_key >> 32)::integer,
                                 (a_key << 32 >> 32)::integer)
                             ELSE pg_try_advisory_xact_lock(a_key) END) THEN
        -- Somebody else has it: that grant is lost, and its next heartbeat says so.
        RETURN;
    END IF;
    -- The transaction has it meanwhile, so nobody gets in between.
    LOOP
        EXIT WHEN NOT EXISTS (SELECT FROM fencepost.backends_with(a_two_part, a_key) b
            WHERE b.pid = pg_backend_pid());
        EXIT WHEN NOT fencepost.unlock(a_two_part, a_key);
    END LOOP;
    IF granted THEN
        PERFORM CASE WHEN a_two_part
            THEN pg_try_advisory_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
                     ELSE pg_try_advisory_lock(a_key) END;
    END IF;
END $$;

-- Tells the one who has waited longest that the lock is free, and takes it off the list. Returns its channel.
CREATE OR REPLACE FUNCTION fencepost.wake(a_two_part boolean, a_key bigint) RETURNS text
    LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    first fencepost.waiters;
BEGIN
    SELECT * INTO first FROM fencepost.waiters w
    WHERE w.two_part = a_two_part AND w.key = a_key AND w.until > clock_timestamp()
    ORDER BY w.since LIMIT 1;
    IF FOUND THEN
        PERFORM pg_notify(first.channel, format('free %s %s', a_two_part::integer, a_key));
        DELETE FROM fencepost.waiters w
        WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = first.channel;
    END IF;
    RETURN first.channel;
END $$;

-- The next token of a lock whose last one was a_last.
CREATE OR REPLACE FUNCTION fencepost.next_token(a_last bigint, a_sequence text) RETURNS bigint
    LANGUAGE sql VOLATILE AS $$
    SELECT greatest(a_last + 1, CASE WHEN a_sequence IS NULL
        THEN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
                                     ELSE nextval(a_sequence::regclass) END)
$$;

-- Takes a lock if it is free: then o_token is its token. Otherwise says who has it; o_state is
--   held      by a lease, of which o_left milliseconds are left
--   foreign   by a session that has the advisory lock and no lease
--   moving    by nobody we can name: it is changing hands, or a transaction has it
-- With a_channel, the caller waits and is told there, for as long as o_until says (in microseconds), and
-- lets a waiter that was told before go first, for a tenth of a second; a_listed says that it is on the
-- list already. Whoever only tries takes what is free. With a_push, a release may grant the lock to the
-- caller while it waits. If one has, o_state is
--   pushed    and the grant is a lease alone, as that of a detached lock
CREATE OR REPLACE FUNCTION fencepost.acquire(
    a_pid integer, a_two_part boolean, a_key bigint, a_name text, a_owner text, a_term bigint,
    a_host text, a_process integer, a_note text, a_session text, a_own_channel text,
    a_delay boolean, a_sequence text, a_channel text, a_listed boolean, a_push boolean DEFAULT false,
    OUT o_token bigint, OUT o_state text, OUT o_name text, OUT o_owner text, OUT o_holder_token bigint,
    OUT o_host text, OUT o_process integer, OUT o_note text, OUT o_since bigint, OUT o_left bigint,
        OUT o_revoked text,
    OUT o_until bigint
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held fencepost.locks;
    locked boolean;
    blocked boolean;
    listed timestamptz;
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM fencepost.check_backend(a_pid);
    END IF;
    FOR turn IN 1..3 LOOP
        locked := false;
        blocked := false;
        IF a_channel IS NOT NULL THEN
            -- Whoever waits does not touch the advisory lock while the last release has promised it to
            -- another: that one is about to take it. The same while there is a lease, as far as that does
            -- not depend on its session.
            SELECT * INTO held FROM fencepost.locks l WHERE l.two_part = a_two_part AND l.key = a_key;
            IF held.owner = a_owner THEN
                UPDATE fencepost.locks l
                SET ends = greatest(l.ends, clock_timestamp() + a_term * interval '1 millisecond')
                WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.revoked IS NULL
                  AND l.ends > clock_timestamp()
                RETURNING l.token INTO o_token;
                IF FOUND THEN
                    o_state := 'pushed';
                    -- An ask that met the release has made an entry behind it.
                    DELETE FROM fencepost.waiters w
                    WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = a_channel
                        AND w.owner = a_owner;
                    RETURN;
                END IF;
            END IF;
            blocked := CASE WHEN held.owner IS NOT NULL THEN held.ends > clock_timestamp()
                AND (held.delay OR held.session IS NULL)
                            ELSE held.promised <> a_channel
                                AND held.ends >= clock_timestamp() - interval '100 milliseconds' END;
            -- Without the row's lock, which that one needs now. If its release should miss us, we ask soon
            -- again.
            EXIT WHEN blocked AND held.owner IS NULL;
        END IF;
        -- The transaction's lock first: whatever fails below gives it back, and nothing is left with the
        -- session.
        IF blocked IS NOT TRUE AND (CASE WHEN a_two_part THEN
                pg_try_advisory_xact_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer)
                ELSE pg_try_advisory_xact_lock(a_key) END) THEN
            -- Re-reads the row under its lock. That a session may lock twice does not matter here: a lease
            -- of the same session keeps others out as any other does.
            UPDATE fencepost.locks l
            SET name = a_name, token = fencepost.next_token(l.token, a_sequence), owner = a_owner,
                ends = clock_timestamp() + a_term * interval '1 millisecond', since = clock_timestamp(),
                host = a_host, process = a_process, note = a_note, session = a_session, channel =
                    a_own_channel,
                delay = a_delay, revoked = NULL, promised = NULL
            WHERE l.two_part = a_two_part AND l.key = a_key
              AND (l.owner IS NULL OR l.ends <= clock_timestamp() OR (NOT l.delay AND l.session <> a_session))
              AND (l.promised IS NULL OR a_channel IS NULL OR l.promised = a_channel
                   OR l.ends < clock_timestamp() - interval '100 milliseconds')
            RETURNING l.token INTO o_token;
            IF NOT FOUND THEN
                INSERT INTO fencepost.locks AS l (two_part, key, name, token, owner, ends, since, host,
                    process, note,
                                               session, channel, delay)
                VALUES (a_two_part, a_key, a_name, fencepost.next_token(0, a_sequence), a_owner,
                        clock_timestamp() + a_term * interval '1 millisecond', clock_timestamp(), a_host,
                            a_process,
                        a_note, a_session, a_own_channel, a_delay)
                ON CONFLICT DO NOTHING
                RETURNING l.token INTO o_token;
            END IF;
            IF FOUND THEN
                -- Certain to succeed: the transaction has it.
                IF a_two_part THEN
                    locked := pg_try_advisory_lock((a_key >> 32)::integer, (a_key << 32 >> 32)::integer);
                ELSE
                    locked := pg_try_advisory_lock(a_key);
                END IF;
                IF a_listed THEN
                    DELETE FROM fencepost.waiters w
                    WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = a_channel;
                END IF;
                RETURN;
            END IF;
        END IF;
        EXIT WHEN a_channel IS NULL;
        -- A release needs the same row: it comes before this, and is seen here, or behind, and sees who
        -- waits.
        SELECT * INTO held FROM fencepost.locks l WHERE l.two_part = a_two_part AND l.key = a_key
        FOR NO KEY UPDATE SKIP LOCKED;
        locked := FOUND;
        -- A release has granted it a moment ago.
        CONTINUE WHEN locked AND held.owner = a_owner AND held.revoked IS NULL
            AND held.ends > clock_timestamp();
        EXIT WHEN NOT locked OR (held.owner IS NOT NULL AND held.ends > clock_timestamp());
        EXIT WHEN held.promised <> a_channel AND held.ends >= clock_timestamp() - interval '100 milliseconds';
    END LOOP;
    IF NOT locked THEN
        SELECT * INTO held FROM fencepost.locks l WHERE l.two_part = a_two_part AND l.key = a_key;
    END IF;
    IF a_channel IS NOT NULL THEN
        INSERT INTO fencepost.waiters AS w (two_part, key, channel, since, until, owner, push, term, host,
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
        o_state := CASE WHEN held.ends > clock_timestamp()
            AND (locked OR a_channel IS NULL) THEN 'held' ELSE 'moving' END;
        o_name := held.name;
        o_owner := held.owner;
        o_holder_token := held.token;
        o_host := held.host;
        o_process := held.process;
        o_note := held.note;
        o_since := (extract(epoch FROM held.since) * 1000)::bigint;
        o_left := greatest(0, extract(epoch FROM held.ends - clock_timestamp()) * 1000)::bigint;
        o_revoked := held.revoked;
    ELSIF blocked THEN
        o_state := 'moving';
    ELSE
        SELECT b.about INTO o_note FROM fencepost.backends_with(a_two_part, a_key) b LIMIT 1;
        o_state := CASE WHEN FOUND THEN 'foreign' ELSE 'moving' END;
    END IF;
    -- A live holder gives its advisory lock back when its lease ends. One that has not is stopped or out of
    -- reach.
    IF held.owner IS NOT NULL AND held.ends < clock_timestamp() - interval '2 seconds' THEN
        PERFORM fencepost.end_session(a_two_part, a_key, held.session);
    END IF;
END $$;

-- Ends the session that has an advisory lock, if it is this one: false if we may not, null if it has the
-- lock no more.
CREATE OR REPLACE FUNCTION fencepost.end_session(a_two_part boolean, a_key bigint, a_session text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RETURN (SELECT bool_or(CASE WHEN b.session IS NULL THEN false ELSE pg_terminate_backend(b.pid) END)
            FROM fencepost.backends_with(a_two_part, a_key) b
            WHERE b.pid::text = split_part(a_session, ' ', 1) AND coalesce(b.session, a_session) = a_session);
EXCEPTION WHEN insufficient_privilege THEN
    RETURN false;
END $$;

-- Gives a lock back, if it is a_owner's. a_unlock: this session may have its advisory lock, and gives that
-- back even if the row is not a_owner's. a_ended: the lease should have ended, so nobody is waited for who
-- has locked the row. o_woken is the channel of the waiter that was told, or has it now. a_session asks
-- whether a session, in which the lock may still be granted, has ended.
CREATE OR REPLACE FUNCTION fencepost.release(
    a_pid integer, a_two_part boolean, a_key bigint, a_owner text, a_unlock boolean, a_ended boolean,
        a_session text,
    OUT o_found boolean, OUT o_woken text, OUT o_alive boolean
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    done boolean;
    first fencepost.waiters;
    fresh bigint;
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM fencepost.check_backend(a_pid);
    END IF;
    IF a_ended THEN
        PERFORM FROM fencepost.locks l
        WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner AND l.ends <= clock_timestamp()
          AND NOT EXISTS (SELECT FROM fencepost.locks f WHERE f.two_part = a_two_part
              AND f.key = a_key FOR UPDATE SKIP LOCKED);
        IF FOUND THEN
            o_found := false;
            o_alive := false;
            IF a_unlock THEN
                PERFORM fencepost.settle(a_two_part, a_key);
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
    -- Whoever enters itself among the waiters has locked this row: before this, and is seen, or behind, and
    -- sees what this has done.
    PERFORM FROM fencepost.locks l
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner FOR NO KEY UPDATE;
    o_found := FOUND;
    IF o_found THEN
        DELETE FROM fencepost.waiters w
        WHERE w.two_part = a_two_part AND w.key = a_key
          AND w.channel = (SELECT c.channel FROM fencepost.waiters c
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
        PERFORM fencepost.unlock(a_two_part, a_key);
    ELSIF a_unlock THEN
        PERFORM fencepost.settle(a_two_part, a_key);
    END IF;
    -- A transaction that waits for the advisory lock has it by now: it comes first, since nobody tells it
    -- anything.
    IF first.push AND pg_try_advisory_xact_lock(a_key) THEN
        -- Grants it right away: a lease alone, until its entry ends, so that it counts from when it asked
        -- to be entered.
        UPDATE fencepost.locks l
        SET token = fencepost.next_token(l.token, NULL), owner = first.owner, since = clock_timestamp(),
            ends = least(first.until, clock_timestamp() + first.term * interval '1 millisecond'), host =
                first.host,
            process = first.process, note = first.note, session = NULL, channel = first.channel, delay = true,
            revoked = NULL, promised = NULL
        WHERE l.two_part = a_two_part AND l.key = a_key
        RETURNING l.token INTO fresh;
        done := pg_notify(o_woken, 'granted ' || a_two_part::integer || ' ' || a_key || ' ' || first.owner
            || ' ' || fresh || ' '
                          || (extract(epoch FROM first.until) * 1000000)::bigint) IS NULL;
    ELSIF o_found THEN
        UPDATE fencepost.locks l
        SET owner = NULL, ends = clock_timestamp(), session = NULL, channel = NULL, revoked = NULL,
            promised = o_woken
        WHERE l.two_part = a_two_part AND l.key = a_key;
        IF o_woken IS NOT NULL THEN
            done := pg_notify(o_woken, 'free ' || a_two_part::integer || ' ' || a_key) IS NULL;
        END IF;
    END IF;
END $$;

-- Takes a waiter off the list, and gives back what it may have been granted meanwhile. False if somebody
-- has locked the row: to be repeated, since all statements of a session are behind each other. The entry
-- has an end in any case.
CREATE OR REPLACE FUNCTION fencepost.leave(a_pid integer, a_two_part boolean, a_key bigint, a_channel text,
    a_owner text)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held fencepost.locks;
BEGIN
    -- A release has the row's lock, too: it was before this, and what it has granted is seen, or comes
    -- behind and sees no entry.
    SELECT * INTO held FROM fencepost.locks l WHERE l.two_part = a_two_part
        AND l.key = a_key FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND AND EXISTS (SELECT FROM fencepost.locks l WHERE l.two_part = a_two_part
        AND l.key = a_key) THEN
        RETURN false;
    END IF;
    DELETE FROM fencepost.waiters w
    WHERE w.two_part = a_two_part AND w.key = a_key AND w.channel = a_channel AND w.owner = a_owner;
    IF held.owner = a_owner AND held.session IS NULL THEN
        PERFORM fencepost.release(a_pid, a_two_part, a_key, a_owner, false, false, NULL);
    END IF;
    RETURN true;
END $$;

-- Renews locks: a_terms has milliseconds, or null where a lock is only looked after. a_bound are those
-- whose advisory lock this session has. Returns those that are not held any more, by their place, with what
-- was found
--   unlocked  the lease is there, the advisory lock is not
--   revoked   by an operator, o_reason says why
--   ended     nobody renewed it in time
--   gone      the row is somebody else's or nobody's
-- Their advisory locks stay: `release` gives them back.
CREATE OR REPLACE FUNCTION fencepost.renew(
    a_pid integer, a_two_parts boolean[], a_keys bigint[], a_owners text[], a_terms bigint[],
        a_bound boolean[],
    a_channel text
) RETURNS TABLE (o_place integer, o_found text, o_reason text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    ours text[];
    renewed integer[];
    lost record;
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM fencepost.check_backend(a_pid);
    END IF;
    IF true = ANY (a_bound) THEN
        SELECT array_agg(format('%s %s', (l.objsubid = 2)::integer,
            (l.classid::bigint << 32) | l.objid::bigint)) INTO ours
        FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.pid = a_pid AND l.mode = 'ExclusiveLock';
    END IF;
    WITH done AS (
        UPDATE fencepost.locks l
        SET ends = greatest(l.ends, clock_timestamp() + r.term * interval '1 millisecond'),
            -- Who has attached a lock listens elsewhere than the one who detached it.
            channel = CASE WHEN r.bound THEN l.channel ELSE a_channel END
        FROM unnest(a_two_parts, a_keys, a_owners, a_terms, a_bound) WITH ORDINALITY
            AS r (two_part, key, owner, term, bound, n)
        WHERE l.two_part = r.two_part AND l.key = r.key AND l.owner = r.owner AND r.term IS NOT NULL
          AND l.revoked IS NULL AND l.ends > clock_timestamp()
          AND (NOT r.bound OR format('%s %s', r.two_part::integer, r.key) = ANY (ours))
        RETURNING r.n::integer AS n
    )
    SELECT coalesce(array_agg(n), '{}') INTO renewed FROM done;
    FOR lost IN
        SELECT r.n::integer AS n, l.revoked,
               CASE WHEN l.owner IS DISTINCT FROM r.owner THEN 'gone'
                    WHEN l.revoked IS NOT NULL THEN 'revoked'
                    WHEN l.ends <= clock_timestamp() THEN 'ended'
                    WHEN r.bound AND format('%s %s', r.two_part::integer, r.key) = ANY (ours) IS NOT TRUE
                        THEN 'unlocked'
               END AS found
        FROM unnest(a_two_parts, a_keys, a_owners, a_terms, a_bound) WITH ORDINALITY
            AS r (two_part, key, owner, term, bound, n)
        LEFT JOIN fencepost.locks l ON l.two_part = r.two_part AND l.key = r.key
        WHERE NOT r.n::integer = ANY (renewed)
    LOOP
        o_place := lost.n;
        o_reason := lost.revoked;
        -- One that was to be renewed and is in order now was not a moment ago.
        o_found := coalesce(lost.found, CASE WHEN a_terms[lost.n] IS NOT NULL THEN 'gone' END);
        CONTINUE WHEN o_found IS NULL;
        RETURN NEXT;
    END LOOP;
END $$;

-- Turns a held lock into a lease alone. False if it is not held any more.
CREATE OR REPLACE FUNCTION fencepost.detach(a_pid integer, a_two_part boolean, a_key bigint, a_owner text,
    a_term bigint)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    IF a_pid <> pg_backend_pid() THEN
        PERFORM fencepost.check_backend(a_pid);
    END IF;
    UPDATE fencepost.locks l
    SET session = NULL, channel = NULL, delay = true,
        ends = greatest(l.ends, clock_timestamp() + a_term * interval '1 millisecond')
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner
      AND l.revoked IS NULL AND l.ends > clock_timestamp();
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM fencepost.unlock(a_two_part, a_key);
    RETURN true;
END $$;

-- Asks a lock back from its holder, or frees its row at once. o_token is fresh, and null if nobody holds
-- the lock.
CREATE OR REPLACE FUNCTION fencepost.revoke(
    a_two_part boolean, a_key bigint, a_owner text, a_reason text, a_now boolean, a_sequence text,
    OUT o_token bigint, OUT o_session text
) LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    held fencepost.locks;
BEGIN
    SELECT * INTO held FROM fencepost.locks l
    WHERE l.two_part = a_two_part AND l.key = a_key AND l.owner = a_owner
        AND l.ends > clock_timestamp() FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    o_token := fencepost.next_token(held.token, a_sequence);
    o_session := held.session;
    UPDATE fencepost.locks l
    SET token = o_token, revoked = a_reason, owner = CASE WHEN a_now THEN NULL ELSE l.owner END,
        ends = CASE WHEN a_now THEN clock_timestamp() ELSE l.ends END
    WHERE l.two_part = a_two_part AND l.key = a_key;
    IF held.channel IS NOT NULL THEN
        PERFORM pg_notify(held.channel,
            format('%s %s %s', CASE WHEN a_now
                THEN 'taken' ELSE 'revoked' END, a_owner, left(a_reason, 1000)));
    END IF;
    IF a_now THEN
        PERFORM fencepost.wake(a_two_part, a_key);
    END IF;
END $$;

-- A fresh token for a lock that a foreign session has.
CREATE OR REPLACE FUNCTION fencepost.raise_token(a_two_part boolean, a_key bigint, a_name text,
    a_sequence text)
RETURNS bigint LANGUAGE sql VOLATILE AS $$
    INSERT INTO fencepost.locks AS l (two_part, key, name, token, ends, since, delay)
    VALUES (a_two_part, a_key, a_name, fencepost.next_token(0, a_sequence), clock_timestamp(),
        clock_timestamp(), false)
    ON CONFLICT (two_part, key) DO UPDATE SET token = greatest(l.token + 1, excluded.token)
    RETURNING l.token
$$;

-- For callers of other make: takes a lock until the end of the current transaction, and returns its token.
-- Waits for it; `try_lock_in_transaction` returns null instead. A statement of its own, in READ COMMITTED:
-- one that began before the lock was granted does not see what the last holder has written.
CREATE OR REPLACE FUNCTION fencepost.lock_in_transaction(a_name text, a_sequence text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_key record;
    left_over double precision;
    fresh bigint;
    started timestamptz := clock_timestamp();
BEGIN
    PERFORM fencepost.check_isolation();
    found_key := fencepost.key_of(a_name);
    IF found_key.two_part THEN
        PERFORM pg_advisory_xact_lock((found_key.key >> 32)::integer, (found_key.key << 32 >> 32)::integer);
    ELSE
        PERFORM pg_advisory_xact_lock(found_key.key);
    END IF;
    LOOP
        SELECT extract(epoch FROM l.ends - clock_timestamp()) INTO left_over FROM fencepost.locks l
        WHERE l.two_part = found_key.two_part AND l.key = found_key.key AND l.owner IS NOT NULL
            AND l.ends > clock_timestamp()
          AND (l.delay OR l.session IS NULL);
        IF NOT FOUND THEN
            fresh := fencepost.mark_transaction(found_key.two_part, found_key.key, a_name, a_sequence);
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

CREATE OR REPLACE FUNCTION fencepost.try_lock_in_transaction(a_name text, a_sequence text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    found_key record;
BEGIN
    PERFORM fencepost.check_isolation();
    found_key := fencepost.key_of(a_name);
    IF NOT (CASE WHEN found_key.two_part
                 THEN pg_try_advisory_xact_lock((found_key.key >> 32)::integer,
                     (found_key.key << 32 >> 32)::integer)
                 ELSE pg_try_advisory_xact_lock(found_key.key) END) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM fencepost.locks l
    WHERE l.two_part = found_key.two_part AND l.key = found_key.key AND l.owner IS NOT NULL
        AND l.ends > clock_timestamp()
      AND (l.delay OR l.session IS NULL);
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RETURN fencepost.mark_transaction(found_key.two_part, found_key.key, a_name, a_sequence);
END $$;

CREATE OR REPLACE FUNCTION fencepost.check_isolation() RETURNS void LANGUAGE plpgsql VOLATILE AS $$
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
CREATE OR REPLACE FUNCTION fencepost.mark_transaction(a_two_part boolean, a_key bigint, a_name text,
    a_sequence text)
RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    fresh bigint;
BEGIN
    BEGIN
        INSERT INTO fencepost.locks AS l (two_part, key, name, token, ends, since, delay)
        VALUES (a_two_part, a_key, a_name, fencepost.next_token(0, a_sequence), clock_timestamp(),
            clock_timestamp(), false)
        ON CONFLICT (two_part, key) DO UPDATE
        SET name = excluded.name, token = greatest(l.token + 1, excluded.token), owner = NULL, ends =
            clock_timestamp(),
            session = NULL, channel = NULL, revoked = NULL
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
    FROM (SELECT w.channel FROM fencepost.waiters w
          WHERE w.two_part = a_two_part AND w.key = a_key
              AND w.until > clock_timestamp() ORDER BY w.since LIMIT 1) first;
    RETURN fresh;
END $$;

-- Removes what nobody has used for a day: the clock keeps the tokens that follow larger.
CREATE OR REPLACE FUNCTION fencepost.collect() RETURNS void LANGUAGE sql VOLATILE AS $$
    DELETE FROM fencepost.locks l WHERE l.ends < clock_timestamp() - interval '1 day';
    DELETE FROM fencepost.waiters w WHERE w.until < clock_timestamp() - interval '1 minute';
$$;
