//go:build !linux

package health

import (
	"context"
	"errors"
)

func (m *Monitor) readKmsg(_ context.Context, from lines) (lines, error) {
	return from, errors.New("the kernel log is read on Linux only")
}
