#!/bin/bash
# What the official image does at its start: makes the database of POSTGRES_DB for POSTGRES_USER, once, then serves it.
set -euo pipefail
if [ "$(id -u)" = 0 ]; then
  install --directory --owner=postgres --mode=0700 "$PGDATA" /var/run/postgresql
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb --username="$POSTGRES_USER" --pwfile=<(printf '%s\n' "$POSTGRES_PASSWORD") --auth-host=scram-sha-256 >/dev/null
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  # Like the official image: at first a server that listens on its socket alone.
  pg_ctl --wait --options="-c listen_addresses=''" start >/dev/null
  createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl --wait stop >/dev/null
fi
exec postgres -c listen_addresses='*'
