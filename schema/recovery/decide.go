package recovery

// Decide returns the decisions of one round: one for each node, those with the longest fault first.
// It depends on nothing but its arguments, and the order of nodes, conditions, attempts and sizes in
// f does not matter.
func Decide(p Policy, f Fleet) Result { return Result{} }

// Acts reports whether a repair starts.
func (d Decision) Acts() bool { return d.Rung != "" && d.Brake == "" }
