//go:build !linux

package agent

import "errors"

func rebootKernel() error { return errors.New("the agent restarts machines with Linux only") }
