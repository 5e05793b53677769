-- compatible-with: 1
-- One at a time: roles and their terms, singletons and their state, locks, node numbers. The same tables as on Postgres.
-- Whatever a replica holds here it holds as long as it lives; removing its row frees it.

alter table replicas add column locked integer not null default 1;
alter table replicas add column roles text not null default '[]';

create table roles (
    role        text not null primary key check (role <> ''),
    term        integer not null default 0,
    nonce       integer not null default 0,
    replica_id  integer,
    holder      text,
    elector     text,
    won_at      text,
    ended_at    text,
    released    integer not null default 1,
    step_down   integer,
    meant_for   integer,
    meant_until text
) strict, without rowid;
create index roles_of_replica on roles (replica_id) where replica_id is not null;

create table singletons (
    name         text not null primary key check (name <> ''),
    state        text check (state is null or json_valid(state)),
    saved_at     text,
    expires_at   text,
    ttl          real,
    heartbeat    real not null default 30,
    expect_every real,
    created_at   text not null,
    started_at   text,
    beat_at      text,
    executed_at  text,
    run_count    integer not null default 0,
    failure_count integer not null default 0,
    last_error   text
) strict, without rowid;

-- State that could not be read any more, kept aside.
create table lost_states (
    id     integer primary key,
    name   text not null,
    state  text not null,
    reason text not null,
    at     text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now'))
) strict;

create table locks (
    name  text not null primary key check (name <> ''),
    fence integer not null default 0
) strict, without rowid;
create table lock_holders (
    token       integer primary key,
    name        text not null,
    fence       integer not null,
    holder      text not null,
    replica_id  integer,
    expires_at  text,
    acquired_at text not null default (strftime('%Y-%m-%d %H:%M:%f000', 'now')),
    check ((replica_id is null) <> (expires_at is null))
) strict;
create index lock_holders_of_name on lock_holders (name);
create index lock_holders_of_replica on lock_holders (replica_id) where replica_id is not null;

create table nodes (
    node  integer primary key check (node between 0 and 1023),
    token integer not null,
    until integer not null
) strict;

create trigger replica_gone after delete on replicas
begin
    update roles set replica_id = null, nonce = 0, released = 0, ended_at = old.beat_at where replica_id = old.id;
    delete from lock_holders where replica_id = old.id;
end;
