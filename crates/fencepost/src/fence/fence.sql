-- fence.sql: makes PostgreSQL refuse what a stale holder of a lock writes. For any language.
--
-- Run it once in each database, by `psql -1 -f fence.sql` or as a migration; again, it changes nothing,
-- except that functions of an earlier form of this file are replaced. PostgreSQL 11 or newer. What it runs
-- does not depend on the search_path, nor changes it. It makes the schema `fencepost_fence`. Whoever shall
-- use it needs `GRANT USAGE ON SCHEMA fencepost_fence TO …`, and no more: the functions work with the rights
-- of their owner, so that nobody else can lower a token.
--
-- Three ways, of which each works alone:
--
-- 1. In your transaction, before you read:      SELECT fencepost_fence.activate('account:7', 42);
--    It raises the error FP010 if a larger token was seen, and otherwise keeps all others out until COMMIT.
-- 2. A trigger on your table, which refuses stale writes from any client:
--                                               SELECT fencepost_fence.protect('account', 'fence', 'id');
-- 3. Inline, without anything of this file:
--                                               UPDATE account SET balance = 5, fence = 42
--                                               WHERE id = 7 AND fence <= 42;
--    No row was updated: stale.
--
-- The error FP010 has presented and highest token as JSON in its DETAIL.

CREATE SCHEMA IF NOT EXISTS fencepost_fence;

-- Somebody else may have made the schema, and filled it. Nothing of it is run before this.
DO $$
DECLARE
    worst pg_catalog.record;
BEGIN
    -- Whoever owns the schema, may create in it, owns its functions, tables or triggers, or may put triggers
    -- and foreign keys on
    -- its tables has code run by whoever uses it. Trusted with that are: the session's user, superusers, and
    -- the owner of the
    -- database, but not by a superuser, or the owner of a database could become one. So are roles that one of
    -- those has made
    -- the session's user a member of: others can make it a member of roles of their own.
    WITH RECURSIVE me AS (
        SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=)
            session_user
    ), here AS (
        SELECT d.datdba FROM pg_catalog.pg_database d
        WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
    ), sure AS (
        SELECT me.oid FROM me
        UNION SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper
        UNION SELECT here.datdba FROM here, me WHERE NOT me.rolsuper
    ), own AS (
        SELECT me.oid FROM me
        UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN own ON m.member OPERATOR(pg_catalog.=)
            own.oid
        JOIN sure ON m.grantor OPERATOR(pg_catalog.=) sure.oid
    ), trusted AS (
        SELECT own.oid FROM own UNION SELECT sure.oid FROM sure
    ), space AS (
        SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace n WHERE n.nspname
            OPERATOR(pg_catalog.=) 'fencepost_fence'
    ), tables AS (
        SELECT c.oid, c.relowner, c.relacl FROM space
        JOIN pg_catalog.pg_class c ON c.relnamespace OPERATOR(pg_catalog.=) space.oid
        WHERE c.relname OPERATOR(pg_catalog.=) ANY ('{locks,waiters,guards}')
    ), found (rank, role, does) AS (
        SELECT 1, space.nspowner, 'owns it' FROM space
        UNION ALL
        SELECT 2, a.grantee, 'may create functions in it' FROM space, pg_catalog.aclexplode(space.nspacl) a
        WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
        UNION ALL
        SELECT 3, p.proowner, 'owns a function in it' FROM space
        JOIN pg_catalog.pg_proc p ON p.pronamespace OPERATOR(pg_catalog.=) space.oid
        UNION ALL
        SELECT 4, tables.relowner, 'owns a table in it' FROM tables
        UNION ALL
        SELECT 5, p.proowner, 'owns a trigger on a table in it' FROM tables
        JOIN pg_catalog.pg_trigger t ON t.tgrelid OPERATOR(pg_catalog.=) tables.oid
        JOIN pg_catalog.pg_proc p ON p.oid OPERATOR(pg_catalog.=) t.tgfoid
        UNION ALL
        SELECT 6, a.grantee, 'may put triggers or foreign keys on a table in it' FROM tables
        JOIN pg_catalog.pg_attribute c ON c.attrelid OPERATOR(pg_catalog.=) tables.oid,
        pg_catalog.aclexplode(pg_catalog.array_cat(tables.relacl, c.attacl)) a
        WHERE a.privilege_type OPERATOR(pg_catalog.=) ANY ('{TRIGGER,REFERENCES}')
        UNION ALL
        -- What is deleted here is deleted there, and triggers of that table run.
        SELECT 7, c.relowner, 'owns a table that refers to one in it' FROM tables
        JOIN pg_catalog.pg_constraint k ON k.confrelid OPERATOR(pg_catalog.=) tables.oid
        JOIN pg_catalog.pg_class c ON c.oid OPERATOR(pg_catalog.=) k.conrelid
        UNION ALL
        -- A trigger has no owner, and its condition may call any function.
        SELECT 8, 0::pg_catalog.oid, 'has put a trigger with a condition on a table in it' FROM tables
        JOIN pg_catalog.pg_trigger t ON t.tgrelid OPERATOR(pg_catalog.=) tables.oid WHERE t.tgqual IS NOT NULL
    ), roles AS (
        SELECT found.rank, found.does, coalesce(pg_catalog.quote_ident(r.rolname), 'PUBLIC') AS name,
               CASE WHEN r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner' THEN here.datdba ELSE
                   found.role END AS role
        FROM here, found LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) found.role
    )
    SELECT roles.*, EXISTS (SELECT FROM trusted WHERE trusted.oid OPERATOR(pg_catalog.=) roles.role) AS
        is_trusted
    INTO worst FROM roles ORDER BY is_trusted, roles.rank LIMIT 1;
    -- Somebody may make it in the next moment: then nothing of it may be run either.
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schema %', pg_catalog.quote_ident('fencepost_fence') USING ERRCODE =
            'invalid_schema_name';
    END IF;
    IF NOT worst.is_trusted THEN
        RAISE EXCEPTION 'the schema % is not used: % %, and could have % run anything',
            pg_catalog.quote_ident('fencepost_fence'),
            CASE WHEN worst.rank OPERATOR(pg_catalog.=) 8 THEN 'somebody' ELSE pg_catalog.concat('role ',
                worst.name) END,
            worst.does, session_user
            USING ERRCODE = 'FP020', HINT = CASE
                WHEN worst.rank OPERATOR(pg_catalog.=) 2
                THEN pg_catalog.format('REVOKE CREATE ON SCHEMA %I FROM %s', 'fencepost_fence', worst.name)
                WHEN worst.rank OPERATOR(pg_catalog.=) 6
                THEN pg_catalog.format(
                    'REVOKE TRIGGER, REFERENCES ON ALL TABLES IN SCHEMA %I FROM %s CASCADE',
                    'fencepost_fence', worst.name)
                WHEN worst.rank OPERATOR(pg_catalog.>=) 5 THEN
                    'drop that as the owner of the schema, or name another schema'
                ELSE 'connect as that role, or name another schema, or have a role that you trust own it' END;
    END IF;
END $$;

-- One row a resource. A row must live as long as its resource: without it, any token is new.
CREATE TABLE IF NOT EXISTS fencepost_fence.guards (
    resource pg_catalog.text PRIMARY KEY,
    token bigint NOT NULL,          -- the largest that was seen
    value pg_catalog.bytea          -- what `write` has written; nothing to do with your own tables
) WITH (fillfactor = 50);

-- Default privileges may have given others a right on a new table. Writing it lowers tokens, and a trigger or
-- foreign key on it has code run by its owner. Reading does no harm.
DO $$
DECLARE
    grantee pg_catalog.text;
BEGIN
    FOR grantee IN SELECT DISTINCT coalesce(pg_catalog.quote_ident(r.rolname), 'PUBLIC')
            FROM pg_catalog.pg_class c, pg_catalog.aclexplode(c.relacl) a
            LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) a.grantee
            WHERE c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('fencepost_fence.guards')
            AND a.grantee OPERATOR(pg_catalog.<>) c.relowner
            AND a.privilege_type OPERATOR(pg_catalog.<>) 'SELECT' LOOP
        EXECUTE pg_catalog.format(
            'REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON TABLE fencepost_fence.guards '
            'FROM %s', grantee);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION fencepost_fence.version() RETURNS integer
LANGUAGE sql IMMUTABLE AS 'SELECT 1';

-- Raises the refusal.
CREATE OR REPLACE FUNCTION fencepost_fence.refuse(
    a_resource pg_catalog.text, a_presented bigint, a_highest bigint
) RETURNS pg_catalog.void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'token % is refused at resource "%", which has seen %', a_presented, a_resource, a_highest
        USING ERRCODE = 'FP010',
              DETAIL = json_build_object('resource', a_resource, 'presented', a_presented,
                                         'highest', a_highest)::text,
              HINT = 'The lock was lost, or this token has had its one effect: roll back, and take the lock '
                     'again.';
END $$;

-- Records a token, or refuses it; with `a_once` refuses it also if it was seen before. Writes the value if
-- told to. Returns what was there before.
--
-- The row is written even if it has the token already. That locks it until the end of the transaction: two
-- transactions come one after the other. And it makes a later one with an older snapshot (REPEATABLE READ,
-- SERIALIZABLE) fail with 40001 instead of reading what was true before.
--
-- It runs with its owner's rights under the caller's search_path, since to set that would take a sixth of the
-- time. So all functions, operators and types in it are qualified, also those that look as if nobody could
-- replace them.
CREATE OR REPLACE FUNCTION fencepost_fence.admit(
    a_resource pg_catalog.text, a_token bigint, a_once boolean, a_writes boolean, a_value pg_catalog.bytea
) RETURNS pg_catalog.bytea LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
DECLARE
    seen bigint;
    found_value pg_catalog.bytea;
BEGIN
    -- A null must not slip through as "nothing to compare".
    IF a_resource IS NULL OR a_resource OPERATOR(pg_catalog.=) ''
            OR pg_catalog.octet_length(a_resource) OPERATOR(pg_catalog.>) 512 THEN
        RAISE EXCEPTION 'the name of a resource has 1 to 512 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF a_token IS NULL OR a_token OPERATOR(pg_catalog.<) 1
            OR a_token OPERATOR(pg_catalog.>) 9007199254740991 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %',
            coalesce(a_token::pg_catalog.text, 'null')
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
        SELECT g.token INTO seen FROM fencepost_fence.guards g
            WHERE g.resource OPERATOR(pg_catalog.=) a_resource;
        PERFORM fencepost_fence.refuse(a_resource, a_token, seen);
    END IF;
    RETURN found_value;
END $$;

-- First statement of a transaction, before it reads: records the token. A holder comes as often as it likes.
-- Returns what `write` has written, if it was used.
--
-- A rollback takes the token back; the next transaction has to call this again, and does so anyway.
--
-- Nearly always the resource is known and the token good. That is tried first, and `admit` has the last word
-- on all the rest. Here, too, everything is qualified.
CREATE OR REPLACE FUNCTION fencepost_fence.activate(a_resource pg_catalog.text, a_token bigint)
RETURNS pg_catalog.bytea LANGUAGE plpgsql VOLATILE SECURITY DEFINER AS $$
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
CREATE OR REPLACE FUNCTION fencepost_fence.activate_once(a_resource pg_catalog.text, a_token bigint)
RETURNS pg_catalog.bytea LANGUAGE sql VOLATILE AS
'SELECT fencepost_fence.admit(a_resource, a_token, true, false, NULL)';

-- Records the token and writes a value beside it: for those who have no table of their own.
CREATE OR REPLACE FUNCTION fencepost_fence.write(
    a_resource pg_catalog.text, a_token bigint, a_value pg_catalog.bytea
) RETURNS pg_catalog.void LANGUAGE sql VOLATILE AS
'SELECT fencepost_fence.admit(a_resource, a_token, false, true, a_value)';

-- The same once a token.
CREATE OR REPLACE FUNCTION fencepost_fence.write_once(
    a_resource pg_catalog.text, a_token bigint, a_value pg_catalog.bytea
) RETURNS pg_catalog.void LANGUAGE sql VOLATILE AS
'SELECT fencepost_fence.admit(a_resource, a_token, true, true, a_value)';

-- The trigger. Each row of the table is a resource, and one of its columns is the largest token that the row
-- has seen.
--
-- An UPDATE presents a token by setting that column. One that does not set it presents that of the
-- transaction, if there is one:
--     SET LOCAL fencepost_fence.token = '42';
-- which is stored in the rows then. So does a DELETE, which cannot set columns. Whoever presents none is
-- refused with FP011. Who presents both is refused if either is too small, and the larger one is stored. An
-- INSERT is not checked: a new row has seen what it is given, or nothing (0).
--
-- Inside of one UPDATE nobody can tell a column that was set to what it was from one that was not set, except
-- a trigger for that column. So there are two: the first, BEFORE UPDATE OF the column, marks a token that was
-- presented by a minus, and the second, for every UPDATE, takes that away. The rows themselves are never
-- negative, which a constraint sees to.
--
-- PL/pgSQL can name a column only as it is written, and to put statements together at each row would cost ten
-- times as much. So each name of a column has two functions of its own, which all tables with such a column
-- share: `mark_fence` and `guard_fence`. This makes them. It runs as the owner of the schema, so that whoever
-- protects a table needs no right to create anything here; there is nothing but the name of a column that the
-- caller can put in.
--
-- Both run with the rights of whoever writes: as their owner they would run what the types of anybody's table
-- bring along. So they call nothing of this schema, which a writer may have no right to use. They run under
-- the writer's search_path, and qualify all functions, operators and types like `admit`. A column that is not
-- there any more is an error.
CREATE OR REPLACE FUNCTION fencepost_fence.make_guard(a_column pg_catalog.name) RETURNS pg_catalog.void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $make$
DECLARE
    sql CONSTANT text :=
        'CREATE OR REPLACE FUNCTION fencepost_fence.%I() RETURNS trigger LANGUAGE plpgsql AS %L';
BEGIN
    IF octet_length(a_column) > 57 THEN
        RAISE EXCEPTION 'a column with fencing tokens has a name of 57 bytes at most'
            USING ERRCODE = 'name_too_long';
    END IF;
    EXECUTE format(sql, 'mark_' || a_column, format($body$
DECLARE
    presented bigint := NEW.%1$I;
BEGIN
    IF presented IS NULL OR presented OPERATOR(pg_catalog.<) 1
            OR presented OPERATOR(pg_catalog.>) 9007199254740991 THEN
        RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %%',
            coalesce(presented::pg_catalog.text, 'null')
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
            RAISE EXCEPTION 'a fencing token lies between 1 and 2^53 - 1, not %% (fencepost_fence.token)',
                set_for_all USING ERRCODE = 'invalid_parameter_value';
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
    -- It is for the message only. Of a column that is not there, the same words would call a function of that
    -- name.
    IF EXISTS (SELECT FROM pg_catalog.pg_attribute a WHERE a.attrelid OPERATOR(pg_catalog.=) TG_RELID
               AND a.attname OPERATOR(pg_catalog.=) TG_ARGV[0] AND a.attnum OPERATOR(pg_catalog.>) 0
               AND NOT a.attisdropped) THEN
        EXECUTE pg_catalog.format('SELECT ($1).%%I::pg_catalog.text', TG_ARGV[0]) INTO key USING OLD;
    END IF;
    resource := pg_catalog.concat_ws(':', TG_TABLE_NAME, key);
    IF set_in_row IS NULL AND set_for_all IS NULL THEN
        RAISE EXCEPTION '%% of resource "%%" presents no fencing token', TG_OP, resource
            USING ERRCODE = 'FP011',
                  HINT = pg_catalog.format(
                      'Set the column %%I to the token of your lock, '
                      'or `SET LOCAL fencepost_fence.token = ''…''`.', %1$L);
    END IF;
    RAISE EXCEPTION 'token %% is refused at resource "%%", which has seen %%',
        least(set_in_row, set_for_all), resource, highest
        USING ERRCODE = 'FP010',
              DETAIL = pg_catalog.json_build_object(
                  'resource', resource, 'presented', least(set_in_row, set_for_all), 'highest', highest
              )::pg_catalog.text,
              HINT = 'The lock was lost: roll back, and take the lock again.';
END $body$, a_column));
END $make$;

-- Puts the triggers on a table; adds the column if it is not there. The key column is for messages only.
-- Needs the right to change the table; again, it changes nothing.
CREATE OR REPLACE FUNCTION fencepost_fence.protect(
    a_table pg_catalog.regclass, a_column pg_catalog.name DEFAULT 'fence', a_key pg_catalog.name DEFAULT 'id'
) RETURNS pg_catalog.void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    present_column name;
    present_type text;
    bounds text;
    table_name CONSTANT text := a_table;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a table is not protected in a % transaction, which does not see it as it is',
            current_setting('transaction_isolation')
            USING ERRCODE = 'FP002', HINT = 'Begin the transaction with ISOLATION LEVEL READ COMMITTED.';
    END IF;
    -- Before anything is looked at: its owner could change it between the look and what follows.
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', table_name);
    IF to_regclass(table_name) IS DISTINCT FROM a_table THEN
        RAISE EXCEPTION '% was renamed meanwhile', table_name
            USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
    END IF;
    IF EXISTS (SELECT FROM pg_inherits JOIN pg_class ON pg_class.oid = inhparent
               WHERE inhparent = a_table AND relkind <> 'p') THEN
        RAISE EXCEPTION '% has tables that inherit from it, whose rows a trigger on it would not see', a_table
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Protect the tables that inherit, and keep no rows in this one.';
    END IF;
    SELECT attname INTO present_column FROM pg_trigger
        JOIN pg_attribute ON attrelid = tgrelid AND attnum = tgattr[0]
        WHERE tgrelid = a_table AND tgname = 'fencepost_1_mark';
    IF present_column <> a_column THEN
        RAISE EXCEPTION '% is protected by its column % already', a_table, quote_ident(present_column)
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Name that column; or rename it first, so that what it has seen is kept.';
    END IF;
    -- Of another type it would bring operators and casts of its own along, and the constraint runs them.
    SELECT format_type(atttypid, NULL) INTO present_type FROM pg_attribute
        WHERE attrelid = a_table AND attname = a_column AND NOT attisdropped
        AND atttypid <> 'bigint'::regtype;
    IF FOUND THEN
        RAISE EXCEPTION 'the column %.% is of type %, and fencing tokens are of type bigint',
            a_table, quote_ident(a_column), present_type USING ERRCODE = 'datatype_mismatch';
    END IF;
    EXECUTE format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS %I bigint NOT NULL DEFAULT 0', a_table, a_column);
    SELECT pg_get_constraintdef(oid) INTO bounds FROM pg_constraint
        WHERE conrelid = a_table AND conname = 'fencepost_fence';
    IF bounds IS NULL OR bounds NOT LIKE '%9007199254740992%' THEN
        EXECUTE format('ALTER TABLE %1$s DROP CONSTRAINT IF EXISTS fencepost_fence, '
                       'ADD CONSTRAINT fencepost_fence CHECK (%2$I >= 0 AND %2$I < 9007199254740992)',
                       a_table, a_column);
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
--
-- Then replaces triggers that an earlier form of this file has made, which took the name of their column as
-- an argument. Where `protect` refuses (whoever runs this may not change the table, say) they stay and work
-- as they did.
CREATE OR REPLACE FUNCTION fencepost_fence.upgrade() RETURNS pg_catalog.void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    a_column name;
    old record;
    zero CONSTANT bytea := decode('00', 'hex');
BEGIN
    FOR a_column IN SELECT 'fence' UNION SELECT substr(proname, 7) FROM pg_proc
            WHERE pronamespace = 'fencepost_fence'::regnamespace AND starts_with(proname, 'guard_') LOOP
        PERFORM fencepost_fence.make_guard(a_column);
    END LOOP;
    IF to_regprocedure('fencepost_fence.mark()') IS NULL THEN
        RETURN;
    END IF;
    FOR old IN SELECT mark.tgrelid::regclass AS name, attname, guard.tgargs AS names, owner.rolname AS owner,
            owner.rolsuper OR NOT me.rolsuper AS is_trusted
            FROM pg_roles me, pg_roles owner JOIN pg_class ON owner.oid = relowner
            JOIN pg_trigger mark ON mark.tgrelid = pg_class.oid
            JOIN pg_trigger guard ON guard.tgrelid = mark.tgrelid AND guard.tgname = 'fencepost_2_guard'
            JOIN pg_attribute ON attrelid = mark.tgrelid AND attnum = mark.tgattr[0]
            WHERE me.rolname = session_user AND mark.tgfoid = to_regprocedure('fencepost_fence.mark()')
            -- A partition has them from its table.
            AND NOT EXISTS (SELECT FROM pg_inherits JOIN pg_trigger ON tgrelid = inhparent
                            WHERE inhrelid = mark.tgrelid AND tgname = mark.tgname) LOOP
        -- A superuser does not change unasked what strangers own.
        IF NOT old.is_trusted THEN
            RAISE WARNING
                '% keeps the trigger of an earlier fence.sql until protect is called for it: role % owns it',
                old.name, quote_ident(old.owner);
            CONTINUE;
        END IF;
        BEGIN
            -- The arguments are column and key, each with a zero behind it.
            PERFORM fencepost_fence.protect(old.name, old.attname, convert_from(
                btrim(substring(old.names FROM position(zero IN old.names)), zero), getdatabaseencoding()
            )::name);
        EXCEPTION WHEN OTHERS THEN
            RAISE WARNING '% keeps the trigger of an earlier fence.sql until protect is called for it: %',
                old.name, SQLERRM;
        END;
    END LOOP;
    DROP FUNCTION IF EXISTS fencepost_fence.check_token(bigint);
    BEGIN
        DROP FUNCTION fencepost_fence.mark(), fencepost_fence.guard();
    EXCEPTION WHEN dependent_objects_still_exist THEN
        NULL;   -- they are in use
    END;
END $$;

-- A function, since that can have a search_path of its own, and a block like this cannot.
DO $$
BEGIN
    PERFORM fencepost_fence.upgrade();
END $$;

DROP FUNCTION fencepost_fence.upgrade();
