// Package ansible has a playbook that makes hosts nodes of gpuaas, and one that drains them. Its tests
// run both against an admin API on Postgres.
package ansible
