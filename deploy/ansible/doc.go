// Package ansible has a playbook that makes hosts nodes of gpuaas, and one that drains them. Its tests
// run them against a real admin API.
package ansible
