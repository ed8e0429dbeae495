DO $$
DECLARE
    worst pg_catalog.record;
BEGIN
    -- Whoever owns the schema, may create in it, owns its functions, tables or triggers, or may put
    -- triggers and foreign keys on its tables has code run by whoever uses it. Trusted with that are: the
    -- session's user, superusers, and the owner of the database, but not by a superuser, or the owner of a
    -- database could become one. So are roles that one of those has made the session's user a member of:
    -- others can make it a member of roles of their own.
    WITH RECURSIVE me AS (
        SELECT r.oid, r.rolsuper FROM pg_catalog.pg_roles r
        WHERE r.rolname OPERATOR(pg_catalog.=) session_user
    ), here AS (
        SELECT d.datdba FROM pg_catalog.pg_database d
        WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()
    ), sure AS (
        SELECT me.oid FROM me
        UNION SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolsuper
        UNION SELECT here.datdba FROM here, me WHERE NOT me.rolsuper
    ), own AS (
        SELECT me.oid FROM me
        UNION SELECT m.roleid FROM pg_catalog.pg_auth_members m
        JOIN own ON m.member OPERATOR(pg_catalog.=) own.oid
        JOIN sure ON m.grantor OPERATOR(pg_catalog.=) sure.oid
    ), trusted AS (
        SELECT own.oid FROM own UNION SELECT sure.oid FROM sure
    ), space AS (
        SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace n
        WHERE n.nspname OPERATOR(pg_catalog.=) @label@
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
               CASE WHEN r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
                   THEN here.datdba ELSE found.role END AS role
        FROM here, found LEFT JOIN pg_catalog.pg_roles r ON r.oid OPERATOR(pg_catalog.=) found.role
    )
    SELECT roles.*,
           EXISTS (SELECT FROM trusted WHERE trusted.oid OPERATOR(pg_catalog.=) roles.role) AS is_trusted
    INTO worst FROM roles ORDER BY is_trusted, roles.rank LIMIT 1;
    -- Somebody may make it in the next moment: then nothing of it may be run either.
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no schema %', pg_catalog.quote_ident(@label@)
            USING ERRCODE = 'invalid_schema_name';
    END IF;
    IF NOT worst.is_trusted THEN
        RAISE EXCEPTION 'the schema % is not used: % %, and could have % run anything',
            pg_catalog.quote_ident(@label@),
            CASE WHEN worst.rank OPERATOR(pg_catalog.=) 8
                 THEN 'somebody' ELSE pg_catalog.concat('role ', worst.name) END,
            worst.does, session_user
            USING ERRCODE = 'FP020', HINT = CASE
                WHEN worst.rank OPERATOR(pg_catalog.=) 2
                THEN pg_catalog.format('REVOKE CREATE ON SCHEMA %I FROM %s', @label@, worst.name)
                WHEN worst.rank OPERATOR(pg_catalog.=) 6
                THEN pg_catalog.format(
                    'REVOKE TRIGGER, REFERENCES ON ALL TABLES IN SCHEMA %I FROM %s CASCADE',
                    @label@, worst.name)
                WHEN worst.rank OPERATOR(pg_catalog.>=) 5
                THEN 'drop that as the owner of the schema, or name another schema'
                ELSE 'connect as that role, or name another schema, or have a role that you trust own it' END;
    END IF;
END $$;
