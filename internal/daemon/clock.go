package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/gpuaas/gpuaas/schema"
	"github.com/gpuaas/gpuaas/schema/lifecycle"
)

// MaxSkew is the largest difference between the clocks of two machines of the control
// plane with which tasks are signed and dispatched.
const MaxSkew = 30 * time.Second

// ClockOfPostgres names the clock by which leases end, and whose time is in lease grants, with
// which nodes check tasks.
const ClockOfPostgres = "postgres"

// Clocks compares this machine's clock with those of the servers. It is safe for
// concurrent use.
type Clocks struct {
	now   func() time.Time
	skew  *prometheus.GaugeVec
	peers []*peerClock
}

// peerClock is the clock of a server as last read.
type peerClock struct {
	name, effect string
	read         func(ctx context.Context) (time.Time, error)

	mu      sync.Mutex
	skew    error // the fault of a clock that differs, as last compared
	unknown error // why it was never compared; nil once it was
}

// NewClocks returns Clocks without a peer, which publish their differences to the registry.
func NewClocks(reg prometheus.Registerer) *Clocks {
	return &Clocks{now: time.Now, skew: promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{Name: "gpuaas_clock_skew_seconds",
		Help: "How far the peer's clock is ahead of this machine's at the last comparison; negative if it is behind."}, []string{"peer"})}
}

// Compare declares the clock of a server. read returns its time, within the context's
// deadline. effect completes the message about a wrong clock: what does not work then.
// Call it before Check.
func (c *Clocks) Compare(name, effect string, read func(ctx context.Context) (time.Time, error)) {
	c.peers = append(c.peers, &peerClock{name: name, effect: effect, read: read,
		unknown: schema.NewError(schema.KindServiceUnavailable, "the clock of %s was not compared with this machine's yet; %s", name, effect)})
}

// Check reads all clocks and returns Skew.
func (c *Clocks) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeBudget)
	defer cancel()
	var group sync.WaitGroup
	for _, p := range c.peers {
		group.Go(func() { c.read(ctx, p) })
	}
	group.Wait()
	return c.Skew()
}

// Skew returns the fault of the first clock that differs by more than MaxSkew, as last
// compared, with reason lifecycle.ReasonClockSkew. A server that never responded has none: its
// own health check reports it.
func (c *Clocks) Skew() error {
	for _, p := range c.peers {
		if err := p.fault(false); err != nil {
			return err
		}
	}
	return nil
}

// Fault returns why the clock of a server prevents work that needs it: it differs, as Skew, or
// it was never compared. The fault of a clock that was never compared has the reason for which
// the server did not respond.
func (c *Clocks) Fault(name string) error {
	for _, p := range c.peers {
		if p.name == name {
			return p.fault(true)
		}
	}
	return nil
}

// fault returns the fault of a clock that differs or, if needed is set, of one that is not known.
func (p *peerClock) fault(needed bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.skew == nil && needed {
		return p.unknown
	}
	return p.skew
}

// read compares one clock. The server read its clock at an unknown time during the call, so
// half of the call's duration is not counted as a difference.
func (c *Clocks) read(ctx context.Context, p *peerClock) {
	before := c.now()
	theirs, err := p.read(ctx)
	after := c.now()
	if err != nil {
		p.unread(err)
		return
	}
	half := after.Sub(before) / 2
	skew := theirs.Sub(after.Add(-half))
	c.skew.WithLabelValues(p.name).Set(skew.Seconds())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.skew, p.unknown = nil, nil
	if skew.Abs()-half > MaxSkew {
		p.skew = p.differs(skew)
	}
}

// unread records why the clock was not read. A clock that was compared before keeps the fault,
// or none, that it had.
func (p *peerClock) unread(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.unknown == nil {
		return
	}
	e := schema.AsError(err)
	p.unknown = schema.Wrap(schema.KindServiceUnavailable, err, "the clock of %s is not known: %s; %s", p.name, e.Message, p.effect).
		WithReason(e.Reason).WithNext(e.Next)
}

// differs is the fault of a clock that differs.
func (p *peerClock) differs(skew time.Duration) error {
	relation := "ahead of"
	if skew < 0 {
		relation = "behind"
	}
	return schema.NewError(schema.KindServiceUnavailable, "the clock of %s is %s %s this machine's, more than the limit of %s; %s",
		p.name, skew.Abs().Round(time.Second), relation, MaxSkew, p.effect).
		WithReason(lifecycle.ReasonClockSkew).WithNext("run timedatectl on both machines and correct the clock that is wrong; work then continues automatically")
}
