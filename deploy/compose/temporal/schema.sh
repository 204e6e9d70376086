#!/bin/sh
# Creates or migrates Temporal's tables. It changes nothing if they have the version of the
# image.
set -eu
SQL_PASSWORD=$(cat /run/secrets/password-temporal)
export SQL_PASSWORD
for schema in temporal visibility; do
  database=temporal
  if [ "$schema" = visibility ]; then
    database=temporal_visibility
  fi
  tool="temporal-sql-tool --plugin postgres12 --endpoint postgres --port 5432 --user temporal --database $database"
  $tool setup-schema -v 0.0
  $tool update-schema -d "/etc/temporal/schema/postgresql/v12/$schema/versioned"
done
