package health

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/agent/internal/command"
	"github.com/gpuaas/gpuaas/agent/internal/text"
	"github.com/gpuaas/gpuaas/schema/health/host"
)

// Limits of the kernel log.
const (
	maxChunk   = 2 << 20  // bytes of one call of journalctl
	maxChunks  = 8        // of one sample; the next one continues
	maxMessage = 4 << 10  // bytes of a line that are looked at
	maxRecord  = 64 << 10 // bytes of a record; a longer one is skipped
)

// lines are what one reading of the kernel log found.
type lines struct {
	events []host.Event
	cursor string    // after the last line
	at     time.Time // of the last line
}

// readKernel is the source of host.InputKernel: the lines since the last sample.
func (m *Monitor) readKernel(ctx context.Context) (reading, error) {
	m.mu.Lock()
	from := lines{cursor: m.state.Cursor, at: m.state.ReadAt}
	m.mu.Unlock()
	read := m.readKmsg
	journalctl, err := exec.LookPath("journalctl")
	if err == nil {
		read = func(ctx context.Context, from lines) (lines, error) { return m.readJournal(ctx, journalctl, from) }
	}
	got, err := read(ctx, from)
	if err != nil && got.cursor == from.cursor {
		return nil, err
	}
	return func(*host.Sample) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.state.keep(got.events)
		m.state.Cursor, m.state.ReadAt = got.cursor, got.at
	}, nil
}

// readJournal reads journald's kernel lines of all boots after the cursor, or those of this boot.
func (m *Monitor) readJournal(ctx context.Context, journalctl string, from lines) (got lines, err error) {
	got = lines{cursor: from.cursor, at: from.at}
	for range maxChunks {
		args := append([]string{"--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE,_BOOT_ID"}, m.conf.Journal...)
		switch {
		case got.cursor != "":
			args = append(args, "--after-cursor="+got.cursor)
		case !got.at.IsZero():
			args = append(args, fmt.Sprintf("--since=@%d", got.at.Unix()))
		default:
			args = append(args, "_BOOT_ID="+journalBoot(m.conf.BootID))
		}
		out, full, err := chunk(ctx, journalctl, append(args, "_TRANSPORT=kernel"))
		if err != nil && got.cursor == from.cursor && from.cursor != "" && !from.at.IsZero() && ctx.Err() == nil {
			from.cursor, got.cursor = "", "" // the journal no longer accepts it
			continue
		}
		if err != nil {
			return got, err
		}
		read := m.parseJournal(out, full, &got)
		if !full || !read {
			return got, nil
		}
	}
	return got, nil
}

// chunk runs journalctl and returns the first maxChunk bytes of its output; full is true if there is
// more.
func chunk(ctx context.Context, journalctl string, args []string) (out string, full bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out, stderr, err := command.Runner{Output: &stopAfter{n: maxChunk, stop: func() { cancel(errFull) }}}.Run(ctx, maxChunk, journalctl, args...)
	if errors.Is(context.Cause(ctx), errFull) {
		return out, true, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("journalctl: %w: %s", err, text.Printable(text.Truncate(strings.TrimSpace(stderr)), 200))
	}
	return out, false, nil
}

var errFull = errors.New("enough was read")

// stopAfter calls stop once more than n bytes were written.
type stopAfter struct {
	n    int
	stop func()
}

// Write implements io.Writer.
func (s *stopAfter) Write(b []byte) (int, error) {
	if s.n -= len(b); s.n <= 0 {
		s.stop()
	}
	return len(b), nil
}

// record is a line of journalctl --output=json. A message that is not text is an array of bytes, and
// one that is too long for journalctl is null.
type record struct {
	Cursor  string          `json:"__CURSOR"`
	At      string          `json:"__REALTIME_TIMESTAMP"` // in microseconds
	BootID  string          `json:"_BOOT_ID"`
	Message json.RawMessage `json:"MESSAGE"`
}

// parseJournal adds the records of a chunk. It reports whether there was a whole one. The last line of
// a full chunk is a part.
func (m *Monitor) parseJournal(out string, full bool, got *lines) (read bool) {
	for line := range strings.Lines(out) {
		if !strings.HasSuffix(line, "\n") && full {
			break
		}
		var r record
		if json.Unmarshal([]byte(line), &r) != nil || r.Cursor == "" {
			continue
		}
		read, got.cursor = true, r.Cursor
		us, err := strconv.ParseInt(r.At, 10, 64)
		if err != nil {
			continue
		}
		got.at = time.UnixMicro(us).UTC()
		message, _, _ := strings.Cut(messageOf(r.Message), "\n") // the kernel writes lines
		if e, ok := m.parser.Parse(message); ok {
			got.events = append(got.events, host.Event{Event: e, At: got.at, BootID: m.bootOf(r.BootID)})
		}
	}
	return read
}

// messageOf returns the text of a message.
func messageOf(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s[:min(len(s), maxMessage)]
	}
	var codes []int
	if json.Unmarshal(raw, &codes) != nil {
		return ""
	}
	var b bytes.Buffer
	for _, c := range codes[:min(len(codes), maxMessage)] {
		b.WriteByte(byte(c)) //nolint:gosec // journalctl prints bytes
	}
	return b.String()
}

// journalBoot is a boot ID as the journal writes it.
func journalBoot(id string) string { return strings.ReplaceAll(id, "-", "") }

// bootOf returns the boot ID of a record in the form of the sample.
func (m *Monitor) bootOf(id string) string {
	if journalBoot(m.conf.BootID) == id {
		return m.conf.BootID
	}
	return cmp.Or(id, "unknown")
}
