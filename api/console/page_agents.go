package console

import (
	"cmp"
	"net/url"
	"slices"
	"time"

	"github.com/gpuaas/gpuaas/schema/lifecycle"
	"github.com/gpuaas/gpuaas/schema/wire"
)

// Bounds of the page about agents.
const (
	agentNodes   = "1000" // nodes of one request
	maxAgentRows = 50     // nodes that are listed by name
)

func agentRoutes() []Route { return []Route{shared("/agents", showAgents)} }

// agentsPage is the data of the template agents.
type agentsPage struct {
	Nodes    int
	Expiry   []agentCount
	Versions []agentCount
	// Soon are the nodes whose certificate ends first, at most maxAgentRows.
	Soon []agentRow
	// Behind are nodes with another version than most, at most maxAgentRows, and MoreBehind how
	// many others there are.
	Behind     []agentRow
	MoreBehind int
}

// agentCount is the number of nodes of one kind. State is that which gives the row its sign.
type agentCount struct {
	Name, State string
	Nodes       int
}

// agentRow is one node.
type agentRow struct {
	ID, Host, Version string
	State             lifecycle.NodeState
	// NotAfter is nil for a node without a certificate.
	NotAfter        *time.Time
	LastHeartbeatAt *time.Time
}

// showAgents shows when the certificates of nodes expire, and which versions their agents have.
func showAgents(r *request) (view, error) {
	nodes, err := everyAgent(r)
	if err != nil {
		return view{}, err
	}
	p := agentsPage{Nodes: len(nodes), Expiry: expiries(nodes, r.Now), Versions: versionsOf(nodes)}
	p.Soon = soonest(nodes, r.Now)
	if len(p.Versions) > 0 {
		behind := slices.DeleteFunc(slices.Clone(nodes), func(n agentRow) bool { return n.Version == "" || n.Version == p.Versions[0].Name })
		p.Behind = behind[:min(len(behind), maxAgentRows)]
		p.MoreBehind = len(behind) - len(p.Behind)
	}
	return view{Template: "agents", Title: "Agents and certificates", Nav: "Agents", Data: p}, nil
}

// everyAgent returns the nodes that are not removed, in order of host name. All pages read them
// once.
func everyAgent(r *request) (all []agentRow, err error) {
	q := url.Values{"limit": {agentNodes}, "fields": {"id,host,state,agent_version,identity,last_heartbeat_at"}}
	for {
		list, err := fetchShared[wire.NodeList](r, "/nodes", q)
		if err != nil {
			return nil, err
		}
		for _, n := range list.Nodes {
			row := agentRow{ID: n.ID, Host: n.Host, State: n.State, Version: n.AgentVersion, LastHeartbeatAt: n.LastHeartbeatAt}
			if n.Identity != nil {
				row.NotAfter = &n.Identity.NotAfter
			}
			all = append(all, row)
		}
		if list.NextPageToken == "" {
			return all, nil
		}
		q.Set("page_token", list.NextPageToken)
	}
}

// expiries counts the nodes by the time that is left of their certificate.
func expiries(nodes []agentRow, now time.Time) []agentCount {
	buckets := []struct {
		name, state string
		left        time.Duration
	}{
		{"expired", "failed", 0},
		{"in less than 6 hours", "parked", 6 * time.Hour},
		{"in less than 1 day", "parked", 24 * time.Hour},
		{"in less than 7 days", "", 7 * 24 * time.Hour},
		{"in 7 days or later", "", 1<<63 - 1},
	}
	all := make([]agentCount, len(buckets)+1)
	for i, b := range buckets {
		all[i] = agentCount{Name: b.name, State: b.state}
	}
	all[len(buckets)].Name = "no certificate"
	for _, n := range nodes {
		i := len(buckets)
		if n.NotAfter != nil {
			left := n.NotAfter.Sub(now)
			for i = range buckets {
				if left <= buckets[i].left {
					break
				}
			}
		}
		all[i].Nodes++
	}
	return all
}

// versionsOf counts the nodes by the version of their agent, most frequent first. A node that
// never reported one is not counted.
func versionsOf(nodes []agentRow) (all []agentCount) {
	of := map[string]int{}
	for _, n := range nodes {
		if n.Version != "" {
			of[n.Version]++
		}
	}
	for version, count := range of {
		all = append(all, agentCount{Name: version, Nodes: count})
	}
	slices.SortFunc(all, func(a, b agentCount) int { return cmp.Or(b.Nodes-a.Nodes, cmp.Compare(a.Name, b.Name)) })
	return all
}

// soonest returns the nodes whose certificates end within a day or have ended, first ones first.
func soonest(nodes []agentRow, now time.Time) []agentRow {
	soon := slices.DeleteFunc(slices.Clone(nodes), func(n agentRow) bool { return n.NotAfter == nil || n.NotAfter.Sub(now) > 24*time.Hour })
	slices.SortStableFunc(soon, func(a, b agentRow) int { return a.NotAfter.Compare(*b.NotAfter) })
	return soon[:min(len(soon), maxAgentRows)]
}
