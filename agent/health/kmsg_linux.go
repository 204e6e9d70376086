package health

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/gpuaas/gpuaas/schema/health/host"
)

// kmsgCursor begins a cursor of /dev/kmsg: the boot ID and the sequence of the last line follow.
const kmsgCursor = "kmsg "

// readKmsg reads the kernel's own buffer on a host without journald. It has only this boot.
func (m *Monitor) readKmsg(ctx context.Context, from lines) (got lines, err error) {
	if m.conf.BootedAt.IsZero() {
		return from, errors.New("the host has neither journalctl nor the time of its boot")
	}
	fd, err := syscall.Open("/dev/kmsg", syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return from, fmt.Errorf("the host has no journalctl, and /dev/kmsg cannot be read: %w", err)
	}
	defer syscall.Close(fd) //nolint:errcheck // only read
	prefix := kmsgCursor + m.conf.BootID + " "
	last := int64(-1)
	if rest, ok := strings.CutPrefix(from.cursor, prefix); ok {
		if last, err = strconv.ParseInt(rest, 10, 64); err != nil {
			last = -1
		}
	}
	buf := make([]byte, maxRecord)
	for ctx.Err() == nil {
		n, err := syscall.Read(fd, buf)
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR): // lines were overwritten meanwhile
			continue
		case errors.Is(err, syscall.EAGAIN) || n == 0 && err == nil:
			got.cursor = prefix + strconv.FormatInt(last, 10)
			return got, nil
		case err != nil:
			return from, fmt.Errorf("reading /dev/kmsg: %w", err)
		}
		seq, e, ok := m.parseKmsg(string(buf[:n]))
		if seq <= last {
			continue
		}
		last = seq
		if ok {
			got.events, got.at = append(got.events, e), e.At
		}
	}
	return from, ctx.Err()
}

// parseKmsg reads a record "priority,sequence,microseconds,flags;message" with further lines. Lines of
// programs, whose facility is not the kernel's, make no event. A record that is none has sequence -1.
func (m *Monitor) parseKmsg(record string) (seq int64, e host.Event, ok bool) {
	head, message, found := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return -1, e, false
	}
	priority, err := strconv.ParseInt(fields[0], 10, 64)
	seq, seqErr := strconv.ParseInt(fields[1], 10, 64)
	us, timeErr := strconv.ParseInt(fields[2], 10, 64)
	if errors.Join(err, seqErr, timeErr) != nil {
		return -1, e, false
	}
	const kernelFacility = 8 // priorities below it are of facility 0
	if priority >= kernelFacility {
		return seq, e, false
	}
	message, _, _ = strings.Cut(message, "\n")
	e.Event, ok = m.parser.Parse(message)
	e.At, e.BootID = m.conf.BootedAt.Add(time.Duration(us)*time.Microsecond).UTC(), m.conf.BootID
	return seq, e, ok
}
