// Package ansible has a playbook that makes hosts nodes of gpuaas, and one that drains them. Its test
// checks their syntax.
package ansible
