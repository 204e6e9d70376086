package fleet

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gpuaas/gpuaas/agent"
)

const (
	// startEvery spaces the agents' starts: a fleet that comes back all at once
	// is another test than this one.
	startEvery = 5 * time.Millisecond
	// talkEvery is how often the preparation says how far it is.
	talkEvery = 3 * time.Second
)

// Run prepares the nodes and runs their agents until ctx ends, which is no
// error. A line of the report goes to out now and then, talk to talk. Errors are
// *schema.Error where an operator can resolve them.
func Run(ctx context.Context, c Config, out, talk io.Writer) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if err := makeRoom(c.Size); err != nil {
		return err
	}
	held, err := lock(c)
	if err != nil {
		return err
	}
	defer held.Close() //nolint:errcheck // closing gives the lock back
	wrongs, err := assign(c.Size, c.Misbehave, c.Seed)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	f := fleet{conf: c, wrongs: wrongs, pace: time.NewTicker(startEvery)}
	f.tally.base = resident()
	defer f.pace.Stop()
	defer f.work.Wait()
	defer cancel()
	f.work.Go(func() { every(ctx, c.ReportEvery, func() { fmt.Fprintln(out, f.tally.line(c.Size)) }) })
	if err := f.prepare(ctx, talk); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	<-ctx.Done()
	fmt.Fprintln(out, f.tally.line(c.Size))
	return nil
}

type fleet struct {
	conf   Config
	wrongs []Misbehavior
	tally  tally
	pace   *time.Ticker
	work   sync.WaitGroup
}

// prepare gives every node an identity or a token for one, starts its agent and
// says how far it is.
func (f *fleet) prepare(ctx context.Context, talk io.Writer) error {
	v := &nodeInventory{conf: f.conf, admin: newAdmin(f.conf.AdminURL, f.conf.Token), ready: func(i int, conf agent.Config) {
		select {
		case <-f.pace.C:
		case <-ctx.Done():
			return
		}
		m := newMember(f.conf, conf, f.wrongs[i], &f.tally)
		f.work.Go(func() { m.live(ctx) })
	}}
	say := func() {
		prepared, left, why := v.state()
		fmt.Fprintf(talk, "prepared %d of %d nodes, %d enrolled, %d left out\n", prepared, f.conf.Size, f.tally.enrolled.Load(), left)
		if why != nil {
			fmt.Fprintf(talk, "  left out last: %v\n", why)
		}
	}
	reporting, stopReports := context.WithCancel(ctx)
	var speaker sync.WaitGroup
	speaker.Go(func() { every(reporting, talkEvery, say) })
	err := v.run(ctx)
	stopReports()
	speaker.Wait()
	if err == nil {
		say()
		fmt.Fprintln(talk, "the fleet runs until it is interrupted (Ctrl-C)")
	}
	return err
}

// every calls do each d until ctx ends.
func every(ctx context.Context, d time.Duration, do func()) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			do()
		}
	}
}
