package console

import (
	"context"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gpuaas/gpuaas/schema/trust"
)

// Bounds of the reads that pages share.
const (
	// readEvery is the least time between two reads of the same data.
	readEvery = 2 * time.Second
	readTime  = 15 * time.Second
	maxReads  = 256
)

// service is the subject for which the console reads what it shares between pages. Only a
// subject with the role viewer sees a page.
func service() Subject { return Subject{Name: Via, Role: trust.RoleViewer} }

// reads keeps what pages share, so that the number of queries does not grow with that of pages.
type reads struct {
	cfg      Config
	revision func() string
	flights  singleflight.Group
	mu       sync.Mutex
	kept     map[string]read
}

// read is a response with the time and the revision at the start of its request.
type read struct {
	body     []byte
	at       time.Time
	revision string
}

func newReads(cfg Config, revision func() string) *reads {
	return &reads{cfg: cfg, revision: revision, kept: map[string]read{}}
}

// get returns the response to a GET of target. A response that is younger than readEvery is used
// again. If newest is true, it must not be from before the last change: then get waits until
// the next read is due.
func (c *reads) get(ctx context.Context, target string, newest bool, fetch func(context.Context, string) ([]byte, error)) ([]byte, error) {
	for {
		r, pause := c.find(target, newest)
		if r.body != nil && pause == 0 {
			return r.body, nil
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(pause):
			}
		}
		done := c.flights.DoChan(target, func() (any, error) { return nil, c.read(context.WithoutCancel(ctx), target, fetch) })
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case result := <-done:
			if result.Err != nil {
				return nil, result.Err
			}
		}
		newest = false // what was read now is new enough
	}
}

// find returns the response that can be used, or how long to wait before the next read.
func (c *reads) find(target string, newest bool) (read, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.kept[target]
	age := c.cfg.Now().Sub(r.at)
	switch {
	case !ok || age >= readEvery:
		return read{}, 0
	case newest && r.revision != c.revision():
		return read{}, readEvery - age
	}
	return r, 0
}

func (c *reads) read(ctx context.Context, target string, fetch func(context.Context, string) ([]byte, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if r, pause := c.find(target, true); r.body != nil && pause == 0 {
		return nil // another page read it while this one waited
	}
	started := read{at: c.cfg.Now(), revision: c.revision()}
	body, err := fetch(ctx, target)
	if err != nil {
		return err
	}
	started.body = body
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kept) >= maxReads {
		clear(c.kept)
	}
	c.kept[target] = started
	return nil
}
