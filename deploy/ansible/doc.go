// Package ansible has a playbook that makes hosts nodes of gpuaas, and one that drains them. Its tests
// check their syntax and, with the build tag ansible, run both against an admin API on Postgres.
package ansible
