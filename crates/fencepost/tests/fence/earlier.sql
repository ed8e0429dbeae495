-- fence.sql as it was when its triggers took the name of their column as an argument. Databases may have it.
--
-- Run it once in each database, by `psql -1 -f fence.sql` or as a migration; again, it changes nothing. PostgreSQL 11 or newer.
-- It makes the schema `fencepost_fence`. Whoever shall use it needs `GRANT USAGE ON SCHEMA fencepost_fence TO …`, and no more:
-- the functions work with the rights of their owner, so that nobody else can lower a token.
--
-- Three ways, of which each works alone:
--
-- 1. In your transaction, before you read:      SELECT fencepost_fence.activate('account:7', 42);
--    It raises the error FP010 if a larger token was seen, and otherwise keeps all others out until COMMIT.
-- 2. A trigger on your table, which refuses stale writes from any client:
--                                               SELECT fencepost_fence.protect('account', 'fence', 'id');
-- 3. Inline, without anything of this file:     UPDATE account SET balance = 5, fence = 42 WHERE id = 7 AND fence <= 42;
--    No row was updated: stale.
--
-- The error FP010 has presented and highest token as JSON in its DETAIL.

CREATE SCHEMA IF NOT EXISTS fencepost_fence;

-- One row a resource. A row must live as long as its resource: without it, any token is new.
CREATE TABLE IF NOT EXISTS fencepost_fence.guards (
    resource text PRIMARY KEY,
    token bigint NOT NULL,          -- the largest that was seen
    value bytea                     -- what `write` has written; nothing to do with your own tables
) WITH (fillfactor = 50);

CREATE OR REPLACE FUNCTION fencepost_fence.version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- Refuses what is no token. A null must not slip through as "nothing to compare".
CREATE OR REPLACE FUNCTION fencepost_fence.check_token(a_token bigint) RETURNS void LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF a_token IS NULL OR a_token <= 0 OR a_token >= 9007199254740992 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %', coalesce(a_token::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;

-- Raises the refusal.
CREATE OR REPLACE FUNCTION fencepost_fence.refuse(a_resource text, a_presented bigint, a_highest bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'token % is refused at resource "%", which has seen %', a_presented, a_resource, a_highest
        USING ERRCODE = 'FP010',
              DETAIL = json_build_object('resource', a_resource, 'presented', a_presented, 'highest', a_highest)::text,
              HINT = 'The lock was lost, or this token has had its one effect: roll back, and take the lock again.';
END $$;

-- Records a token, or refuses it; with `a_once` refuses it also if it was seen before. Writes the value if told to. Returns what
-- was there before.
--
-- The row is written even if it has the token already. That locks it until the end of the transaction: two
-- transactions come one after the other. And it makes a later one with an older snapshot (REPEATABLE READ, SERIALIZABLE) fail with
-- 40001 instead of reading what was true before.
CREATE OR REPLACE FUNCTION fencepost_fence.admit(
    a_resource text, a_token bigint, a_once boolean, a_writes boolean, a_value bytea
) RETURNS bytea LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    seen bigint;
    found_value bytea;
BEGIN
    IF a_resource IS NULL OR octet_length(a_resource) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'the name of a resource has 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM fencepost_fence.check_token(a_token);
    INSERT INTO fencepost_fence.guards AS g (resource, token, value)
        VALUES (a_resource, a_token, CASE WHEN a_writes THEN a_value END)
        ON CONFLICT (resource) DO UPDATE
            SET token = EXCLUDED.token, value = CASE WHEN a_writes THEN EXCLUDED.value ELSE g.value END
            WHERE g.token < EXCLUDED.token OR (g.token = EXCLUDED.token AND NOT a_once)
        RETURNING g.value INTO found_value;
    IF NOT FOUND THEN
        SELECT g.token INTO seen FROM fencepost_fence.guards g WHERE g.resource = a_resource;
        PERFORM fencepost_fence.refuse(a_resource, a_token, seen);
    END IF;
    RETURN found_value;
END $$;

-- First statement of a transaction, before it reads: records the token. A holder comes as often as it likes. Returns what `write` has
-- written, if it was used.
--
-- A rollback takes the token back; the next transaction has to call this again, and does so anyway.
CREATE OR REPLACE FUNCTION fencepost_fence.activate(a_resource text, a_token bigint) RETURNS bytea
LANGUAGE sql VOLATILE AS 'SELECT fencepost_fence.admit(a_resource, a_token, false, false, NULL)';

-- The same for an effect that must happen once a token: refused if the token was seen before.
CREATE OR REPLACE FUNCTION fencepost_fence.activate_once(a_resource text, a_token bigint) RETURNS bytea
LANGUAGE sql VOLATILE AS 'SELECT fencepost_fence.admit(a_resource, a_token, true, false, NULL)';

-- Records the token and writes a value beside it: for those who have no table of their own.
CREATE OR REPLACE FUNCTION fencepost_fence.write(a_resource text, a_token bigint, a_value bytea) RETURNS void
LANGUAGE sql VOLATILE AS 'SELECT fencepost_fence.admit(a_resource, a_token, false, true, a_value)';

-- The same once a token.
CREATE OR REPLACE FUNCTION fencepost_fence.write_once(a_resource text, a_token bigint, a_value bytea) RETURNS void
LANGUAGE sql VOLATILE AS 'SELECT fencepost_fence.admit(a_resource, a_token, true, true, a_value)';

-- The trigger. Each row of the table is a resource, and one of its columns is the largest token that the row has seen.
--
-- An UPDATE presents a token by setting that column. One that does not set it presents that of the transaction, if there is one:
--     SET LOCAL fencepost_fence.token = '42';
-- which is stored in the rows then. So does a DELETE, which cannot set columns. Whoever presents none is refused with FP011. Who
-- presents both is refused if either is too small, and the larger one is stored.
-- An INSERT is not checked: a new row has seen what it is given, or nothing (0).
--
-- Inside of one UPDATE nobody can tell a column that was set to what it was from one that was not set, except a trigger for that column. So there are
-- two: the first, BEFORE UPDATE OF the column, marks a token that was presented by a minus, and the second, for every
-- UPDATE, takes that away. The rows themselves are never negative, which a constraint sees to.
--
-- Both run with the rights of whoever writes: as their owner they would run what the types of anybody's table bring along.
-- So they call nothing of this schema, which a writer may have no right to use. Of a row they read the one column, never all
-- of it as JSON, in which not every value has a place (`\u0000`). A column that is not there any more is an error.
CREATE OR REPLACE FUNCTION fencepost_fence.mark() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    presented bigint;
BEGIN
    EXECUTE format('SELECT ($1).%I', TG_ARGV[0]) INTO presented USING NEW;
    IF presented IS NULL OR presented <= 0 OR presented >= 9007199254740992 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %', coalesce(presented::text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[0], -presented));
END $$;

CREATE OR REPLACE FUNCTION fencepost_fence.guard() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    highest bigint;
    set_in_row bigint;
    set_for_all bigint := nullif(current_setting('fencepost_fence.token', true), '')::bigint;
    resource text := TG_TABLE_NAME;
    key text;
BEGIN
    IF TG_OP = 'UPDATE' THEN
        EXECUTE format('SELECT coalesce(($1).%1$I, 0), nullif(greatest(-($2).%1$I, 0), 0)', TG_ARGV[0])
            INTO highest, set_in_row USING OLD, NEW;
    ELSE
        EXECUTE format('SELECT coalesce(($1).%I, 0)', TG_ARGV[0]) INTO highest USING OLD;
    END IF;
    IF set_for_all NOT BETWEEN 1 AND 9007199254740991 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not % (fencepost_fence.token)', set_for_all
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Both count: in a MERGE of several actions the mark is on all rows if one action sets the column.
    IF least(set_in_row, set_for_all) >= highest THEN
        IF TG_OP = 'DELETE' THEN
            RETURN OLD;
        END IF;
        RETURN jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[0], greatest(set_in_row, set_for_all)));
    END IF;
    BEGIN
        EXECUTE format('SELECT ($1).%I::text', TG_ARGV[1]) INTO key USING OLD;
    EXCEPTION WHEN undefined_column THEN
        NULL;   -- it was for the message only
    END;
    resource := resource || coalesce(':' || key, '');
    IF set_in_row IS NULL AND set_for_all IS NULL THEN
        RAISE EXCEPTION '% of resource "%" presents no fencing token', TG_OP, resource
            USING ERRCODE = 'FP011',
                  HINT = format('Set the column %I to the token of your lock, or `SET LOCAL fencepost_fence.token = ''…''`.',
                                TG_ARGV[0]);
    END IF;
    RAISE EXCEPTION 'token % is refused at resource "%", which has seen %', least(set_in_row, set_for_all), resource, highest
        USING ERRCODE = 'FP010',
              DETAIL = json_build_object('resource', resource, 'presented', least(set_in_row, set_for_all),
                                         'highest', highest)::text,
              HINT = 'The lock was lost: roll back, and take the lock again.';
END $$;

-- Puts the triggers on a table; adds the column if it is not there. The key column is for messages only. Needs the right to change
-- the table; again, it changes nothing.
CREATE OR REPLACE FUNCTION fencepost_fence.protect(a_table regclass, a_column name DEFAULT 'fence', a_key name DEFAULT 'id')
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    present_column name;
    bounds text;
BEGIN
    IF EXISTS (SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent WHERE inhparent = a_table AND relkind <> 'p') THEN
        RAISE EXCEPTION '% has tables that inherit from it, whose rows a trigger on it would not see', a_table
            USING ERRCODE = 'feature_not_supported', HINT = 'Protect the tables that inherit, and keep no rows in this one.';
    END IF;
    SELECT attname INTO present_column FROM pg_trigger JOIN pg_attribute ON attrelid = tgrelid AND attnum = tgattr[0]
        WHERE tgrelid = a_table AND tgname = 'fencepost_1_mark';
    IF present_column <> a_column THEN
        RAISE EXCEPTION '% is protected by its column % already', a_table, quote_ident(present_column)
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Name that column; or rename it first, so that what it has seen is kept.';
    END IF;
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS %I bigint NOT NULL DEFAULT 0', a_table, a_column);
    SELECT pg_get_constraintdef(oid) INTO bounds FROM pg_constraint WHERE conrelid = a_table AND conname = 'fencepost_fence';
    IF bounds IS NULL OR bounds NOT LIKE '%9007199254740992%' THEN
        EXECUTE format('ALTER TABLE %1$s DROP CONSTRAINT IF EXISTS fencepost_fence, '
                       'ADD CONSTRAINT fencepost_fence CHECK (%2$I >= 0 AND %2$I < 9007199254740992)', a_table, a_column);
    END IF;
    -- Triggers of one kind fire by name.
    EXECUTE format('DROP TRIGGER IF EXISTS fencepost_1_mark ON %s', a_table);
    EXECUTE format('DROP TRIGGER IF EXISTS fencepost_2_guard ON %s', a_table);
    EXECUTE format('CREATE TRIGGER fencepost_1_mark BEFORE UPDATE OF %I ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION fencepost_fence.mark(%L)', a_column, a_table, a_column);
    EXECUTE format('CREATE TRIGGER fencepost_2_guard BEFORE UPDATE OR DELETE ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION fencepost_fence.guard(%L, %L)', a_table, a_column, a_key);
END $$;
