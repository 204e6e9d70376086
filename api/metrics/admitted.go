package metrics

// admitted bounds the series of a gauge whose labels nodes choose. A value gets a series when it is counted
// and the limit allows it, and keeps its place for the life of the process. So a node that reports a new value
// before each scrape adds a limited number of series in all, not in each scrape.
type admitted[K comparable] struct {
	most   int
	places map[K]bool
	// single counts the places of values that one node reported.
	single int
}

func newAdmitted[K comparable](most int) *admitted[K] {
	return &admitted[K]{most: most, places: map[K]bool{}}
}

// admit reports whether the value has a series. nodes is how many nodes report it. Values of one node get
// at most half of the places, unless they are known. So one node cannot use the places of the fleet.
func (a *admitted[K]) admit(value K, nodes int64, known bool) bool {
	if a.places[value] {
		return true
	}
	single := nodes < 2 && !known
	if len(a.places) >= a.most || single && a.single >= a.most/2 {
		return false
	}
	a.places[value] = true
	if single {
		a.single++
	}
	return true
}
