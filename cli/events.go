package cli

import (
	"bufio"
	"context"
	"strings"
	"time"

	"github.com/gpuaas/gpuaas/api/client/adminclient"
	"github.com/gpuaas/gpuaas/schema/wire"
)

const (
	// streamTime bounds one event stream; the API ends it after 15 minutes.
	streamTime = 16 * time.Minute
	// reconnectPause is the pause before a stream that ended is opened again.
	reconnectPause = 2 * time.Second
	// refreshEvery is the longest time between two reads of a watched list.
	refreshEvery = 5 * time.Second
)

// watchEvents returns a channel that receives a value, coalesced, whenever an
// operation of the node changed, or of any node when nodeID is empty. It is closed
// when the API has no event stream: the caller then polls.
func watchEvents(ctx context.Context, api *adminclient.Client, nodeID string) <-chan struct{} {
	wake := make(chan struct{}, 1)
	go func() {
		defer close(wake)
		for readEvents(ctx, api, nodeID, wake) && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-time.After(reconnectPause):
			}
		}
	}()
	return wake
}

// readEvents reads one event stream to its end and reports whether there was one.
func readEvents(ctx context.Context, api *adminclient.Client, nodeID string, wake chan<- struct{}) bool {
	ctx, cancel := context.WithTimeout(ctx, streamTime)
	defer cancel()
	kinds := []string{wire.EventOperation}
	res, err := api.StreamEvents(ctx, &adminclient.StreamEventsParams{Node: given(nodeID), Kind: &kinds})
	if err != nil {
		return false
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		// The first comment confirms that the stream is open: earlier changes are read then.
		if text := lines.Text(); strings.HasPrefix(text, "event:") || strings.HasPrefix(text, ": connected") {
			select {
			case wake <- struct{}{}:
			default:
			}
		}
	}
	return true
}

// pause waits for d, for a change or for the end of ctx, and calls redraw at each tick
// of the clock. It returns the channel to wait on next, nil when there are no more
// events, and whether there was a change.
func (c clock) pause(ctx context.Context, d time.Duration, changes <-chan struct{}, redraw func()) (next <-chan struct{}, changed bool) {
	ticks, stop := c.spin()
	defer stop()
	for later := c.after(d); ; {
		select {
		case <-ctx.Done():
			return changes, false
		case <-later:
			return changes, false
		case <-ticks:
			redraw()
		case _, open := <-changes:
			if open {
				return changes, true
			}
			changes = nil
		}
	}
}

// refresh calls show, and with watch again at each change and at least every
// refreshEvery until ctx ends.
func (e *env) refresh(ctx context.Context, ctl control, watch bool, show func() error) error {
	if !watch {
		return show()
	}
	changes := ctl.changes(ctx, "")
	for {
		err := show()
		if err == nil {
			changes, _ = e.clock.pause(ctx, refreshEvery, changes, func() {})
		}
		if ctx.Err() != nil { // the operator ended the watch
			return nil //nolint:nilerr // err is the end of ctx
		}
		if err != nil {
			return err
		}
	}
}
