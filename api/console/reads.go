package console

import (
	"context"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/trust"
)

// Bounds of the reads that pages share.
const (
	// readEvery is the least time between two reads of the same data.
	readEvery = 2 * time.Second
	// keptTime is how old the data of a page that a person opens may be. Data that is older than
	// readEvery is read again meanwhile, so that the page does not wait for a slow read.
	keptTime = 10 * time.Second
	readTime = 15 * time.Second
	maxReads = 1024
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
	changed  time.Time // the last change that was made in the console
}

// freshness is how new the data of a page must be.
type freshness int

// The freshness of a list that a person opens, of a page about one node or operation, and of a page
// that the script reads again after a change.
const (
	atMostKept   freshness = iota // at most keptTime old
	atMostRecent                  // at most readEvery old
	afterChange                   // and not from before the last change that was noticed
)

// read is a response with the time and the revision at the start of its request.
type read struct {
	body     []byte
	at       time.Time
	revision string
	decoded  *decoded
}

// decoded is the content of a response, which the first page that needs it decodes.
type decoded struct {
	once  sync.Once
	value any
	err   error
}

func newReads(cfg Config, revision func() string) *reads {
	return &reads{cfg: cfg, revision: revision, kept: map[string]read{}}
}

// get returns the response to a GET of target. One that is fresh enough is used again, and past
// readEvery a new one is read in the background. If it must be from after the last change, get waits
// until the next read is due.
func (c *reads) get(ctx context.Context, target string, fresh freshness, fetch func(context.Context, string) ([]byte, error)) (read, error) {
	start := func() <-chan singleflight.Result {
		return c.flights.DoChan(target, func() (caught any, err error) {
			defer func() { caught = recover() }()
			return nil, c.read(context.WithoutCancel(ctx), target, fetch)
		})
	}
	for {
		r, pause := c.find(target, fresh)
		if r.body != nil {
			if c.age(r) >= readEvery {
				start()
			}
			return r, nil
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
				return read{}, notInTime(ctx)
			case <-time.After(pause):
			}
		}
		select {
		case <-ctx.Done():
			return read{}, notInTime(ctx)
		case result := <-start():
			if result.Val != nil {
				panic(result.Val) // that of the read is one of each request that waits for it
			}
			if result.Err != nil {
				return read{}, result.Err
			}
		}
		fresh = atMostKept // what was read now is new enough
	}
}

func (c *reads) age(r read) time.Duration { return c.cfg.Now().Sub(r.at) }

// notInTime is the error of a page whose time ended before its data was read.
func notInTime(ctx context.Context) error {
	return schema.Wrap(schema.KindServiceUnavailable, ctx.Err(), "the data of the page was not read in time")
}

// find returns the response that can be used, or how long to wait before the next read.
func (c *reads) find(target string, fresh freshness) (read, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.kept[target]
	age := c.age(r)
	switch {
	case !ok || age >= keptTime || fresh >= atMostRecent && age >= readEvery || r.at.Before(c.changed):
		return read{}, 0
	case fresh == afterChange && r.revision != c.revision():
		return read{}, readEvery - age
	}
	return r, 0
}

// change makes what was read before now too old, because the console changed something.
func (c *reads) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = c.cfg.Now()
}

func (c *reads) read(ctx context.Context, target string, fetch func(context.Context, string) ([]byte, error)) error {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	if r, _ := c.find(target, afterChange); r.body != nil {
		return nil // another page read it while this one waited
	}
	started := read{at: c.cfg.Now(), revision: c.revision(), decoded: &decoded{}}
	body, err := fetch(ctx, target)
	if err != nil {
		return err
	}
	started.body = body
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.kept, func(_ string, r read) bool { return c.age(r) >= keptTime })
	if len(c.kept) >= maxReads {
		clear(c.kept)
	}
	c.kept[target] = started
	return nil
}

// parts reads the parts of a page at the same time. A panic in one is a panic of the request, which
// does not end the process.
type parts struct {
	group    sync.WaitGroup
	mu       sync.Mutex
	panicked any
}

// Go starts to read a part.
func (p *parts) Go(read func()) {
	p.group.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.panicked = v
			}
		}()
		read()
	})
}

// Wait waits for all parts.
func (p *parts) Wait() {
	p.group.Wait()
	if p.panicked != nil {
		panic(p.panicked)
	}
}
