package console

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// maxRegions bounds the rendered regions in memory.
const maxRegions = 256

// regions keeps the rendered regions of pages with Route.shared, so that many open pages with the same
// data are rendered once.
type regions struct {
	now     func() time.Time
	flights singleflight.Group
	mu      sync.Mutex
	kept    map[string]region
}

// region is a rendered region, which is used for readEvery: it says how long ago things were.
type region struct {
	body []byte
	at   time.Time
}

func newRegions(now func() time.Time) *regions {
	return &regions{now: now, kept: map[string]region{}}
}

// of returns the region of a request. It calls render unless another request with the same address,
// role and data rendered it just now.
func (c *regions) of(r *request, render func() ([]byte, error)) ([]byte, error) {
	if !r.shared {
		return render()
	}
	slices.Sort(r.reads)
	key := fmt.Sprint(r.Subject.Role, " ", r.URL.RequestURI(), " ", r.reads)
	if body := c.find(key); body != nil {
		return body, nil
	}
	body, err, _ := c.flights.Do(key, func() (any, error) {
		body, err := render()
		if err == nil {
			c.keep(key, body)
		}
		return body, err
	})
	return body.([]byte), err
}

// find returns a region that was rendered less than readEvery ago, nil if there is none.
func (c *regions) find(key string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept := c.kept[key]; c.now().Sub(kept.at) < readEvery {
		return kept.body
	}
	return nil
}

func (c *regions) keep(key string, body []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	maps.DeleteFunc(c.kept, func(_ string, r region) bool { return now.Sub(r.at) >= readEvery })
	if len(c.kept) >= maxRegions {
		clear(c.kept)
	}
	c.kept[key] = region{body, now}
}
