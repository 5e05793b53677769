-- name: diagnose.clock
select clock_timestamp()

-- name: diagnose.server
-- As a plain session has it: rota's own sets what it needs.
select current_setting('server_version') as version, current_setting('server_version_num')::integer as number,
       current_user::text as role, pg_is_in_recovery() as standby,
       current_setting('default_transaction_read_only')::boolean as read_only,
       current_setting('synchronous_commit') as synchronous_commit, current_setting('fsync')::boolean as fsync,
       current_setting('autovacuum')::boolean as autovacuum,
       current_setting('statement_timeout') as statement_timeout,
       current_setting('idle_session_timeout') as idle_session_timeout,
       current_setting('idle_in_transaction_session_timeout') as idle_in_transaction_session_timeout,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer as places,
       (select count(*)::integer from pg_stat_activity where backend_type = 'client backend') as taken

-- name: diagnose.rights
select has_database_privilege(current_database(), 'create') as may_create,
       to_regnamespace('rota') is not null as there,
       case when to_regnamespace('rota') is not null then has_schema_privilege('rota', 'usage') end as may_use,
       array(
           select c.relname::text from pg_class c
           where c.relnamespace = to_regnamespace('rota') and c.relkind in ('r', 'p', 'v')
               and not (has_table_privilege(c.oid, 'select') and (c.relkind = 'v' or (
                            has_table_privilege(c.oid, 'insert') and has_table_privilege(c.oid, 'update')
                            and has_table_privilege(c.oid, 'delete'))))
           order by 1
       ) as refused

-- name: diagnose.moved
-- Something to be sure of after tests: rota's clock is the server's.
select extract(epoch from rota.rota_now() - clock_timestamp())::float8

-- name: diagnose.bloat
select relname::text as name, n_live_tup as live, n_dead_tup as dead
from pg_stat_user_tables
where schemaname = 'rota' and n_dead_tup > 50000 and n_dead_tup > 2 * n_live_tup
order by n_dead_tup desc limit 1

-- name: diagnose.oldest
select pid, coalesce(nullif(application_name, ''), 'no name') as name,
       extract(epoch from clock_timestamp() - xact_start)::float8 as age
from pg_stat_activity
where xact_start < clock_timestamp() - interval '1 hour' and backend_type = 'client backend'
order by xact_start limit 1
