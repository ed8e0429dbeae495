-- fence.sql: makes PostgreSQL refuse what a stale holder of a lock writes. For any language.
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

-- Raises the refusal.
CREATE OR REPLACE FUNCTION fencepost_fence.refuse(a_resource text, a_presented bigint, a_highest bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
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
--
-- It runs with its owner's rights under the caller's search_path, since to set that would take a sixth of the time. So all
-- functions, operators and types in it are qualified, also those that look as if nobody could replace them.
CREATE OR REPLACE FUNCTION fencepost_fence.admit(
    a_resource text, a_token bigint, a_once boolean, a_writes boolean, a_value bytea
) RETURNS bytea LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    seen bigint;
    found_value pg_catalog.bytea;
BEGIN
    -- A null must not slip through as "nothing to compare".
    IF a_resource IS NULL OR a_resource OPERATOR(pg_catalog.=) ''
            OR pg_catalog.octet_length(a_resource) OPERATOR(pg_catalog.>) 512 THEN
        RAISE EXCEPTION 'the name of a resource has 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF a_token IS NULL OR a_token OPERATOR(pg_catalog.<) 1 OR a_token OPERATOR(pg_catalog.>) 9007199254740991 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %', coalesce(a_token::pg_catalog.text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO fencepost_fence.guards AS g (resource, token, value)
        VALUES (a_resource, a_token, CASE WHEN a_writes THEN a_value END)
        ON CONFLICT (resource) DO UPDATE
            SET token = EXCLUDED.token, value = CASE WHEN a_writes THEN EXCLUDED.value ELSE g.value END
            WHERE g.token OPERATOR(pg_catalog.<) EXCLUDED.token
                OR (g.token OPERATOR(pg_catalog.=) EXCLUDED.token AND NOT a_once)
        RETURNING g.value INTO found_value;
    IF NOT FOUND THEN
        SELECT g.token INTO seen FROM fencepost_fence.guards g WHERE g.resource OPERATOR(pg_catalog.=) a_resource;
        PERFORM fencepost_fence.refuse(a_resource, a_token, seen);
    END IF;
    RETURN found_value;
END $$;

-- First statement of a transaction, before it reads: records the token. A holder comes as often as it likes. Returns what `write` has
-- written, if it was used.
--
-- A rollback takes the token back; the next transaction has to call this again, and does so anyway.
--
-- Nearly always the resource is known and the token good. That is tried first, and `admit` has the last word on all the rest. Here, too,
-- everything is qualified.
CREATE OR REPLACE FUNCTION fencepost_fence.activate(a_resource text, a_token bigint) RETURNS bytea
LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    found_value pg_catalog.bytea;
BEGIN
    UPDATE fencepost_fence.guards AS g SET token = a_token
        WHERE g.resource OPERATOR(pg_catalog.=) a_resource AND g.token OPERATOR(pg_catalog.<=) a_token
            AND a_token OPERATOR(pg_catalog.<=) 9007199254740991
        RETURNING g.value INTO found_value;
    IF FOUND THEN
        RETURN found_value;
    END IF;
    RETURN fencepost_fence.admit(a_resource, a_token, false, false, NULL);
END $$;

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
-- PL/pgSQL can name a column only as it is written, and to put statements together at each row would cost ten times as much. So each name of a
-- column has two functions of its own, which all tables with such a column share: `mark_fence` and `guard_fence`. This makes them. It runs as
-- the owner of the schema, so that whoever protects a table needs no right to create anything here; there is nothing but
-- the name of a column that the caller can put in.
--
-- Both run with the rights of whoever writes: as their owner they would run what the types of anybody's table bring along.
-- So they call nothing of this schema, which a writer may have no right to use. They run under the writer's search_path, and qualify all
-- functions, operators and types like `admit`. A column that is not there any more is an error.
CREATE OR REPLACE FUNCTION fencepost_fence.make_guard(a_column name) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    sql CONSTANT text := 'CREATE OR REPLACE FUNCTION fencepost_fence.%I() RETURNS trigger LANGUAGE plpgsql AS %L';
BEGIN
    IF octet_length(a_column) > 57 THEN
        RAISE EXCEPTION 'a column with fencing tokens has a name of 57 bytes at most' USING ERRCODE = 'name_too_long';
    END IF;
    EXECUTE format(sql, 'mark_' || a_column, format($body$
DECLARE
    presented bigint := NEW.%1$I;
BEGIN
    IF presented IS NULL OR presented OPERATOR(pg_catalog.<) 1 OR presented OPERATOR(pg_catalog.>) 9007199254740991 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %%', coalesce(presented::pg_catalog.text, 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    NEW.%1$I := OPERATOR(pg_catalog.-) presented;
    RETURN NEW;
END $body$, a_column));
    EXECUTE format(sql, 'guard_' || a_column, format($body$
DECLARE
    highest bigint := coalesce(OLD.%1$I, 0);
    setting pg_catalog.text := pg_catalog.current_setting('fencepost_fence.token', true);
    set_in_row bigint;
    set_for_all bigint;
    resource pg_catalog.text;
    key pg_catalog.text;
BEGIN
    IF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' AND NEW.%1$I OPERATOR(pg_catalog.<) 0 THEN
        set_in_row := OPERATOR(pg_catalog.-) NEW.%1$I;
    END IF;
    IF setting OPERATOR(pg_catalog.<>) '' THEN
        set_for_all := setting;
        IF set_for_all OPERATOR(pg_catalog.<) 1 OR set_for_all OPERATOR(pg_catalog.>) 9007199254740991 THEN
            RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %% (fencepost_fence.token)', set_for_all
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    -- Both count: in a MERGE of several actions the mark is on all rows if one action sets the column.
    IF least(set_in_row, set_for_all) OPERATOR(pg_catalog.>=) highest THEN
        IF TG_OP OPERATOR(pg_catalog.=) 'DELETE' THEN
            RETURN OLD;
        END IF;
        NEW.%1$I := greatest(set_in_row, set_for_all);
        RETURN NEW;
    END IF;
    BEGIN
        EXECUTE pg_catalog.format('SELECT ($1).%%I::pg_catalog.text', TG_ARGV[0]) INTO key USING OLD;
    EXCEPTION WHEN undefined_column THEN
        NULL;   -- it was for the message only
    END;
    resource := pg_catalog.concat_ws(':', TG_TABLE_NAME, key);
    IF set_in_row IS NULL AND set_for_all IS NULL THEN
        RAISE EXCEPTION '%% of resource "%%" presents no fencing token', TG_OP, resource
            USING ERRCODE = 'FP011',
                  HINT = pg_catalog.format(
                      'Set the column %%I to the token of your lock, or `SET LOCAL fencepost_fence.token = ''…''`.', %1$L);
    END IF;
    RAISE EXCEPTION 'token %% is refused at resource "%%", which has seen %%', least(set_in_row, set_for_all), resource, highest
        USING ERRCODE = 'FP010',
              DETAIL = pg_catalog.json_build_object('resource', resource, 'presented', least(set_in_row, set_for_all),
                                                    'highest', highest)::pg_catalog.text,
              HINT = 'The lock was lost: roll back, and take the lock again.';
END $body$, a_column));
END $make$;

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
    IF to_regprocedure(format('fencepost_fence.%I()', 'guard_' || a_column)) IS NULL THEN
        PERFORM fencepost_fence.make_guard(a_column);
    END IF;
    -- Triggers of one kind fire by name.
    EXECUTE format('DROP TRIGGER IF EXISTS fencepost_1_mark ON %s', a_table);
    EXECUTE format('DROP TRIGGER IF EXISTS fencepost_2_guard ON %s', a_table);
    EXECUTE format('CREATE TRIGGER fencepost_1_mark BEFORE UPDATE OF %I ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION fencepost_fence.%I()', a_column, a_table, 'mark_' || a_column);
    EXECUTE format('CREATE TRIGGER fencepost_2_guard BEFORE UPDATE OR DELETE ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION fencepost_fence.%I(%L)', a_table, 'guard_' || a_column, a_key);
END $$;

-- Makes the functions for the usual column, and anew those for other columns that are there.
DO $$
DECLARE
    a_column name;
BEGIN
    FOR a_column IN SELECT 'fence' UNION SELECT substr(proname, 7) FROM pg_proc
            WHERE pronamespace = 'fencepost_fence'::regnamespace AND starts_with(proname, 'guard_') LOOP
        PERFORM fencepost_fence.make_guard(a_column);
    END LOOP;
END $$;

-- Replaces triggers that an earlier form of this file has made, which took the name of their column as an argument. Where `protect` refuses (whoever runs
-- this may not change the table, say) they stay and work as they did.
DO $$
DECLARE
    old record;
    zero CONSTANT bytea := decode('00', 'hex');
BEGIN
    IF to_regprocedure('fencepost_fence.mark()') IS NULL THEN
        RETURN;
    END IF;
    FOR old IN SELECT mark.tgrelid::regclass AS name, attname, guard.tgargs AS names
            FROM pg_trigger mark JOIN pg_trigger guard ON guard.tgrelid = mark.tgrelid AND guard.tgname = 'fencepost_2_guard'
            JOIN pg_attribute ON attrelid = mark.tgrelid AND attnum = mark.tgattr[0]
            WHERE mark.tgfoid = to_regprocedure('fencepost_fence.mark()')
            -- A partition has them from its table.
            AND NOT EXISTS (SELECT FROM pg_inherits JOIN pg_trigger ON tgrelid = inhparent
                            WHERE inhrelid = mark.tgrelid AND tgname = mark.tgname) LOOP
        BEGIN
            -- The arguments are column and key, each with a zero behind it.
            PERFORM fencepost_fence.protect(old.name, old.attname, convert_from(
                btrim(substring(old.names FROM position(zero IN old.names)), zero), getdatabaseencoding())::name);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING '% keeps the trigger of an earlier fence.sql until protect is called for it: %', old.name, SQLERRM;
        END;
    END LOOP;
    DROP FUNCTION IF EXISTS fencepost_fence.check_token(bigint);
    BEGIN
        DROP FUNCTION fencepost_fence.mark(), fencepost_fence.guard();
    EXCEPTION WHEN dependent_objects_still_exist THEN
        NULL;   -- they are in use
    END;
END $$;
