#!/bin/sh
# Creates the roles and databases of gpuaas and of Temporal. The image runs it once, when
# the volume is empty.
set -eu
password() { cat "/run/secrets/password-$1"; }
psql --username postgres --dbname postgres --set ON_ERROR_STOP=1 \
  --set owner="$(password owner)" --set worker="$(password worker)" --set temporal="$(password temporal)" \
  --set admin="$(password api-admin)" --set node="$(password api-node)" << 'SQL'
CREATE ROLE gpuaas LOGIN PASSWORD :'owner';
CREATE ROLE gpuaas_worker LOGIN PASSWORD :'worker';
CREATE ROLE gpuaas_api_admin LOGIN PASSWORD :'admin';
CREATE ROLE gpuaas_api_node LOGIN PASSWORD :'node';
CREATE ROLE temporal LOGIN PASSWORD :'temporal';
CREATE DATABASE gpuaas OWNER gpuaas;
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
REVOKE CONNECT ON DATABASE gpuaas, temporal, temporal_visibility FROM PUBLIC;
GRANT CONNECT ON DATABASE gpuaas TO gpuaas_worker, gpuaas_api_admin, gpuaas_api_node;
SQL
