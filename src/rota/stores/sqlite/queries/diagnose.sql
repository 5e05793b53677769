-- name: diagnose.mode
pragma journal_mode

-- name: diagnose.moved
select offset_seconds from clock
