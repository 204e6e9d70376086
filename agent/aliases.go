package agent

import (
	"github.com/gpuaas/gpuaas/agent/identity"
	"github.com/gpuaas/gpuaas/agent/internal/disk"
	tasks "github.com/gpuaas/gpuaas/agent/task"
	"github.com/gpuaas/gpuaas/agent/workload"
)

// Types of the packages below that callers of this package use.
type (
	// FS is the part of a file system that the agent writes through.
	FS = disk.FS
	// File is a file being written.
	File = disk.File
	// OS is the operating system's file system.
	OS = disk.OS
	// Task is an executor's view of a task.
	Task = tasks.Task
	// Executor runs one type of task.
	Executor = tasks.Executor
	// Workloads is a workload driver.
	Workloads = workload.Driver
	// Outcome is the result of one pass of the identity manager.
	Outcome = identity.Outcome
)

// DriverNone is the workload driver of a node whose workloads the agent does not
// manage.
const DriverNone = workload.NameNone
