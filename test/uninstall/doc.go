// Package uninstall types the commands of docs/uninstall.md on a Postgres, a Vault and a Temporal that
// gpuaas admin setup prepared, and checks that nothing of gpuaas is left.
//
// It needs bin/gpuaas-dev-vault and bin/gpuaas-dev-temporal (./task build). With -short it runs no test.
package uninstall
