package libvirt

import (
	"bytes"
	"context"
	"encoding/xml"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpuaas/gpuaas/schema/machine"
)

// show is the virsh command that prints the definition and the state of a domain.
func show(name string) string {
	return "dumpxml " + name + "; domstats --state --nowait " + name
}

// names returns the names of all domains of the host.
func (p *Provider) names(ctx context.Context) ([]string, error) {
	out, err := p.run(ctx, false, nil, "list", "--all", "--name")
	if err != nil {
		return nil, err
	}
	unprintable := func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }
	if bytes.ContainsFunc(out, unprintable) || len(out) > 0 && out[len(out)-1] != '\n' {
		return nil, unparsed("list")
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}

// find returns the domain of an instance, of any owner. found is false only if libvirt listed its
// domains without it.
func (p *Provider) find(ctx context.Context, instanceID string) (d domain, found bool, err error) {
	name := domainName(instanceID)
	out, err := p.run(ctx, false, nil, show(name))
	if err != nil && !is(err, noDomain) {
		return domain{}, false, err
	}
	if d, found = parse(out)[name]; found && err == nil {
		return d, true, nil
	}
	if err == nil {
		return domain{}, false, unparsed("dumpxml")
	}
	all, listErr := p.names(ctx)
	if listErr != nil {
		return domain{}, false, listErr
	}
	if slices.Contains(all, name) {
		return domain{}, false, err // created meanwhile, or virsh failed for another reason
	}
	return domain{}, false, nil
}

// get returns the instance's machine, or machine.ReasonMissing.
func (p *Provider) get(ctx context.Context, what, instanceID string) (domain, error) {
	d, found, err := p.find(ctx, instanceID)
	if err != nil {
		return domain{}, report(err, what, instanceID)
	}
	if !found || !d.owned(p.settings.Owner) {
		return domain{}, machine.Errorf(machine.ReasonMissing, "libvirt has no domain %s of this installation", domainName(instanceID))
	}
	return d, nil
}

func unparsed(command string) error {
	return &failure{problem: unknown, command: command, detail: "its output cannot be parsed"}
}

// maxShown is the number of domains of one virsh command.
const maxShown = 100

// all returns the domains of the owner.
func (p *Provider) all(ctx context.Context) ([]domain, error) {
	names, err := p.names(ctx)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { _, ours := instanceOf(n); return !ours })
	slices.Sort(names)
	var all []domain
	for part := range slices.Chunk(names, maxShown) {
		found, err := p.shown(ctx, part)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return slices.DeleteFunc(all, func(d domain) bool { return !d.owned(p.settings.Owner) }), nil
}

// shown returns those of the domains that still exist.
func (p *Provider) shown(ctx context.Context, names []string) ([]domain, error) {
	commands := make([]string, len(names))
	for i, n := range names {
		commands[i] = show(n)
	}
	out, err := p.run(ctx, false, nil, strings.Join(commands, "; "))
	if err != nil && !is(err, noDomain) {
		return nil, err
	}
	parsed := parse(out)
	var all []domain
	for _, n := range names {
		d, found := parsed[n]
		if !found {
			id, _ := instanceOf(n)
			if d, found, err = p.find(ctx, id); err != nil {
				return nil, err
			}
		}
		if found {
			all = append(all, d)
		}
	}
	return all, nil
}

// parse reads the output of show commands, by name. It leaves out what it cannot parse and
// domains of which it has only one half.
func parse(out []byte) map[string]domain {
	definitions, states := map[string]domainXML{}, map[string]state{}
	var text strings.Builder
	var name string
	for line := range strings.Lines(string(out)) {
		switch {
		case text.Len() > 0 || strings.HasPrefix(line, "<domain "):
			text.WriteString(line)
			if strings.TrimSpace(line) == "</domain>" && strings.HasPrefix(line, "<") {
				var d domainXML
				if xml.Unmarshal([]byte(text.String()), &d) == nil {
					definitions[d.Name] = d
				}
				text.Reset()
			}
		case strings.HasPrefix(line, "Domain: '"):
			name = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "Domain: '"), "'")
		default:
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			n, err := strconv.Atoi(value)
			s := states[name]
			if err != nil {
				continue
			}
			if key == "state.state" {
				s.state = n
				states[name] = s
			} else if key == "state.reason" {
				s.reason = n
				states[name] = s
			}
		}
	}
	all := map[string]domain{}
	for name, s := range states {
		if d, ok := definitions[name]; ok {
			all[name] = domain{d, s}
		}
	}
	return all
}
